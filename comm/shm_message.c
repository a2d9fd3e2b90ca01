/* comm/shm_message.c - point to point between ranks that see each other's memory.
 *
 * Message number m of a pair has a place in the receiver's box. Of the two calls, the one that
 * comes first leaves its address there; the second claims it, checks the sizes, and copies.
 *
 *   place   0 -> first's address -> the same, CLAIMED -> 0
 *
 * A small message the second copies alone, knowing from the place what it needs, before it clears
 * the place: so the first sees that it is done. Of a larger one, the second opens the first's
 * account and clears the place, and both copy chunks that they claim from the account:
 *
 *   account   claimed 0, 1, 2, ... ; done = chunks copied + 1 when the second has left
 *
 * Both calls land when all is done, and only then may their owners free them: so a rank reads the
 * other's work only while it has claimed the place or a chunk (or, as the second, before it
 * leaves).
 * Read before: shm_internal.h. */
#include "comm/shm_internal.h"

#include <sched.h>
#include <string.h>

enum { CHUNK_BYTES = 128 << 10, LOOKS = 64 };

/* Marks on a call's address at its place; works are aligned. */
enum { SENDER = 1, CLAIMED = 2 };

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

/* Of the pair's next message. */
static dti_place *place_of(const dt_work *w)
{
    const dti_room *room = w->comm->room;
    const int me = w->comm->rank;
    dti_pair *mine = &room->desk[me]->pair[w->peer];
    if (!is_send(w))
        return &mine->box[mine->received++ % DTI_BOX];
    return &room->desk[w->peer]->pair[me].box[mine->sent++ % DTI_BOX];
}

static uintptr_t mark_of(const dt_work *w)
{
    return (uintptr_t)w | (is_send(w) ? SENDER : 0);
}

/* Leave this call at the place, or claim the counterpart that waits there. The place may still hold
 * this side's message of DTI_BOX ago. */
static dt_status leave_or_claim(dt_work *w, dti_place *place, const void **first_out)
{
    const uintptr_t side = is_send(w) ? SENDER : 0;
    double since = 0;
    for (;;) {
        uintptr_t found = atomic_load(&place->first);
        if (found == 0) {
            place->piece[side] = w->first.n == 1 ? *row_of(w) : (dti_piece){.bytes = SIZE_MAX};
            w->flight.place = place;
            if (atomic_compare_exchange_strong(&place->first, &found, mark_of(w)))
                return DT_OK;
            w->flight.place = NULL;
        }
        if (found != 0 && (found & SENDER) != side &&
            atomic_compare_exchange_strong(&place->first, &found, found | CLAIMED)) {
            *first_out = (const void *)(found & ~(uintptr_t)SENDER);
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

/* Whether it was small. Both sizes are equal then. */
static bool copy_small(const dt_work *w, const dti_place *place)
{
    const dti_piece theirs = place->piece[is_send(w) ? 0 : SENDER], *mine = row_of(w);
    if (w->first.n != 1 || mine->bytes > CHUNK_BYTES || mine->bytes != theirs.bytes)
        return false;
    char *there = dti_there(w->comm->room->peer[w->peer], theirs.data);
    if (mine->bytes > 0)
        memcpy(is_send(w) ? there : mine->data, is_send(w) ? mine->data : there, mine->bytes);
    return true;
}

dt_status dti_shm_start(dt_work *w)
{
    if (dti_broken(w->comm->world))
        return dti_work_fail_peer(w);
    dti_place *place = place_of(w);
    const void *first = NULL;
    w->flight = (dti_flight){0};
    dt_status st = leave_or_claim(w, place, &first);
    if (st != DT_OK || !first)
        return st;
    if (copy_small(w, place)) {
        atomic_store(&place->first, 0);
        land(w, DT_OK);
        return DT_OK;
    }
    dt_work *other = dti_there(w->comm->room->peer[w->peer], first);
    st = check_sizes(w, other);
    if (st == DT_OK) {
        other->flight.partner = w;
        atomic_store(&other->flight.open, true);
    } else {
        land(other, st);
    }
    atomic_store(&place->first, 0);
    if (st == DT_OK)
        copy_unclaimed(w, first, &other->flight, true);
    return st;
}

/* The second has taken it away: all is done but for what the account or a failure says. */
static void look_at_place(dt_work *w)
{
    dti_flight *f = &w->flight;
    if (!f->place || (atomic_load(&f->place->first) & ~(uintptr_t)CLAIMED) == mark_of(w))
        return;
    f->place = NULL;
    if (!atomic_load(&f->open) && atomic_load(&f->landed) == 0)
        land(w, DT_OK);
}

dt_status dti_shm_test(dt_work *w, bool *done_out)
{
    const dti_room *room = w->comm->room;
    const bool look = w->flight.looks++ % LOOKS == LOOKS - 1;
    const bool dead = look && dti_peer_is_dead(room->peer[w->peer]);
    look_at_place(w); /* after that: it may have been done before the peer ended */
    if (atomic_load(&w->flight.landed) == 0 && atomic_load(&w->flight.open))
        copy_unclaimed(w, w->flight.partner, &w->flight, false);
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
    uintptr_t mine = mark_of(w);
    if (w->flight.place && atomic_compare_exchange_strong(&w->flight.place->first, &mine, 0))
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
