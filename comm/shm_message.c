/* comm/shm_message.c - point to point between ranks that see each other's memory.
 *
 * Message number m of a pair has a place in the receiver's box. Of the two calls, the one that
 * comes first leaves its address there; the second takes it away, checks the sizes and copies, in
 * chunks that both claim from the account of the first: whoever waits meanwhile helps.
 *
 *   account: claimed 0, 1, 2, ... ; done = chunks copied + 1 when the second has left
 *
 * A message of one chunk the second copies alone.
 *
 * Both calls land when all is done, and only then may their owners free them: so a rank reads the
 * other's work only while it holds a claimed chunk (or, as the second, before it leaves).
 * Read before: shm_internal.h. */
#include "comm/shm_internal.h"

#include <sched.h>

enum { CHUNK_BYTES = 128 << 10, LOOKS = 64 };

static bool is_send(const dt_work *w)
{
    return w->kind == DT_CALL_SEND;
}

static const dti_piece *row_of(const dt_work *w)
{
    return is_send(w) ? w->first.send : w->first.recv;
}

static unsigned chunks_of(size_t bytes)
{
    return (unsigned)((bytes + CHUNK_BYTES - 1) / CHUNK_BYTES);
}

static unsigned count_chunks(const dt_work *w)
{
    unsigned n = 0;
    for (int i = 0; i < w->first.n; i++)
        n += chunks_of(row_of(w)[i].bytes);
    return n;
}

/* `other` is in our address space, what it points to is not. */
static void copy_chunk(const dt_work *w, const dt_work *other, unsigned chunk, bool stream)
{
    const dti_room *room = w->comm->room;
    const dti_peer *peer = room->peer[w->peer];
    int i = 0;
    for (; chunk >= chunks_of(row_of(w)[i].bytes); i++)
        chunk -= chunks_of(row_of(w)[i].bytes);
    const dti_piece mine = row_of(w)[i];
    const dti_piece *theirs = dti_there(peer, row_of(other));
    char *there = dti_there(peer, theirs[i].data);
    const size_t at = (size_t)chunk * CHUNK_BYTES;
    const size_t bytes = mine.bytes - at < CHUNK_BYTES ? mine.bytes - at : CHUNK_BYTES;
    if (is_send(w))
        dti_copy(there + at, mine.data + at, bytes, stream);
    else
        dti_copy(mine.data + at, there + at, bytes, stream);
}

static void land(dt_work *w, dt_status st)
{
    atomic_store(&w->flight.landed, 1 + (int)st);
}

/* Copy what nobody has claimed. `account` is the first's flight, w's own or the other's. */
static void copy_unclaimed(dt_work *w, const void *partner, dti_flight *account, bool second)
{
    const dti_room *room = w->comm->room;
    const unsigned chunks = count_chunks(w);
    const bool stream = (int64_t)chunks * CHUNK_BYTES * 2 >= DTI_STREAM_BYTES;
    unsigned copied = 0;
    dt_work *other = dti_there(room->peer[w->peer], partner);
    for (;;) {
        const unsigned chunk = atomic_fetch_add(&account->claimed, 1);
        if (chunk >= chunks)
            break;
        copy_chunk(w, other, chunk, stream);
        copied++;
    }
    if (stream)
        dti_copy_fence();
    const unsigned add = copied + (second ? 1 : 0);
    if (add > 0 && atomic_fetch_add(&account->done, add) + add == chunks + 1) {
        land(other, DT_OK);
        land(w, DT_OK);
    }
}

static dt_status check_sizes(dt_work *w, const dt_work *other)
{
    const dti_room *room = w->comm->room;
    const dti_exchange *theirs = &other->first;
    const int rank = w->comm->ranks[w->peer];
    const int sent = is_send(w) ? w->first.n : theirs->n;
    const int wanted = is_send(w) ? theirs->n : w->first.n;
    if (sent != wanted)
        return dti_work_fail(w, DT_ERR_COMM,
                             "%d tensors are sent where %d are expected, with rank %d", sent,
                             wanted, rank);
    const dti_piece *row = dti_there(room->peer[w->peer], row_of(other));
    for (int i = 0; i < sent; i++)
        if (row[i].bytes != row_of(w)[i].bytes)
            return dti_work_fail(w, DT_ERR_COMM, "rank %d %s %zu bytes where this rank %s %zu",
                                 rank, is_send(w) ? "expects" : "sends", row[i].bytes,
                                 is_send(w) ? "sends" : "expects", row_of(w)[i].bytes);
    return DT_OK;
}

/* The place of the pair's next message. */
static atomic_uintptr_t *box_of(const dt_work *w)
{
    const dti_room *room = w->comm->room;
    const int me = w->comm->rank;
    dti_pair *mine = &room->desk[me]->pair[w->peer];
    if (!is_send(w))
        return &mine->box[mine->received++ % DTI_BOX];
    return &room->desk[w->peer]->pair[me].box[mine->sent++ % DTI_BOX];
}

/* Leave this call in the box, or find the counterpart's there. Works are aligned: the lowest bit
 * says which side waits, for the box may still hold this side's message of DTI_BOX ago. */
static dt_status leave_or_find(dt_work *w, atomic_uintptr_t *box, const void **first_out)
{
    const uintptr_t side = is_send(w) ? 1 : 0;
    double since = 0;
    w->flight = (dti_flight){.box = box};
    for (;;) {
        uintptr_t found = 0;
        if (atomic_compare_exchange_strong(box, &found, (uintptr_t)w | side))
            return DT_OK;
        if ((found & 1) != side) {
            w->flight.box = NULL;
            *first_out = (const void *)(found - (1 - side));
            return DT_OK;
        }
        if (dti_broken(w->comm->world))
            return dti_work_fail_peer(w);
        since = since > 0 ? since : dti_now();
        if (dti_now() - since > w->comm->world->timeout_s)
            return dti_work_fail(w, DT_ERR_TIMEOUT, "%d messages wait for rank %d already", DTI_BOX,
                                 w->comm->ranks[w->peer]);
        dti_pause(since);
    }
}

dt_status dti_shm_start(dt_work *w)
{
    const dti_room *room = w->comm->room;
    if (dti_broken(w->comm->world))
        return dti_work_fail_peer(w);
    atomic_uintptr_t *box = box_of(w);
    const void *first = NULL;
    dt_status st = leave_or_find(w, box, &first);
    if (st != DT_OK || !first)
        return st;
    atomic_store(box, 0);
    dt_work *other = dti_there(room->peer[w->peer], first);
    st = check_sizes(w, other);
    if (st != DT_OK) {
        land(other, st);
        return st;
    }
    const unsigned chunks = count_chunks(w);
    if (chunks <= 1) {
        if (chunks == 1)
            copy_chunk(w, other, 0, false);
        land(other, DT_OK);
        land(w, DT_OK);
        return DT_OK;
    }
    other->flight.partner = w;
    atomic_store(&other->flight.open, true);
    copy_unclaimed(w, first, &other->flight, true);
    return DT_OK;
}

dt_status dti_shm_test(dt_work *w, bool *done_out)
{
    const dti_room *room = w->comm->room;
    if (atomic_load(&w->flight.landed) == 0 && atomic_load(&w->flight.open))
        copy_unclaimed(w, w->flight.partner, &w->flight, false);
    const bool look = w->flight.looks++ % LOOKS == LOOKS - 1;
    const bool dead = look && dti_peer_is_dead(room->peer[w->peer]);
    const int landed = atomic_load(&w->flight.landed);
    *done_out = landed > 0;
    if (landed == 0 && dead && !dti_broken(w->comm->world))
        return dti_work_fail(w, DT_ERR_COMM, "rank %d has died (process %d)",
                             w->comm->ranks[w->peer], room->peer[w->peer]->pid);
    return landed > 1 ? dti_work_fail_peer(w) : DT_OK;
}

bool dti_shm_cancel(dt_work *w)
{
    const dti_room *room = w->comm->room;
    uintptr_t mine = (uintptr_t)w | is_send(w);
    if (w->flight.box && atomic_compare_exchange_strong(w->flight.box, &mine, 0))
        return false;
    bool done = false;
    while (atomic_load(&w->flight.landed) == 0) { /* the other is copying just now */
        if (dti_peer_is_dead(room->peer[w->peer]))
            return false;
        (void)dti_shm_test(w, &done);
        (void)sched_yield();
    }
    return true;
}
