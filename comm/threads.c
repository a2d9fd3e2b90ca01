/* comm/threads.c - ranks are threads of one process and read each other's memory.
 *
 * The ranks of a communicator share a room. An exchange is one rendezvous: each rank hangs its
 * list of send pieces on the wall, and when all have done so each copies (or borrows) what is
 * meant for it.
 *
 *     rank 0   hang list 7 | copy ...            | hang list 8 | ...
 *     rank 1        hang list 7 | copy           | hang list 8
 *
 * Lists of two rendezvous hang side by side, even and odd: whoever hangs list 9 over list 7 has
 * seen everybody come to rendezvous 8, so nobody reads list 7 any more. `finish` is a rendezvous
 * without a list. Point-to-point calls are pinned up until their counterpart comes; the second of
 * the two copies. All memory is read under a rendezvous or after a lock, so the thread sanitizer
 * sees every hand-over.
 * Read next: launch.c. */
#include "comm/comm_internal.h"

#include <errno.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef struct room {
    int *ranks, size, channel, refs;
    pthread_mutex_t lock;
    pthread_cond_t all_here;
    int64_t *arrived;               /* rendezvous that each rank has come to */
    atomic_llong complete;          /* rendezvous that all have come to */
    const dti_exchange **wall[2];   /* by parity of the rendezvous, then rank */
    dt_work *posted, **last_posted; /* point-to-point calls without counterpart, oldest first */
    struct room *next;
} room;

struct dti_group {
    dti_fate fate;
    pthread_mutex_t lock;
    room *rooms;
};

dt_status dti_group_create(int nranks, dti_group **group_out)
{
    dti_group *group = calloc(1, sizeof *group);
    DT_REQUIRE(group, DT_ERR_NOMEM, "a world of %d threads", nranks);
    dti_fate_init(&group->fate);
    pthread_mutex_init(&group->lock, NULL);
    *group_out = group;
    return DT_OK;
}

void dti_group_destroy(dti_group **group)
{
    pthread_mutex_destroy(&(*group)->fate.lock);
    pthread_mutex_destroy(&(*group)->lock);
    free(*group);
    *group = NULL;
}

/* ---- rooms ---- */

static room *find_room(const dti_group *group, const dt_comm *comm)
{
    for (room *r = group->rooms; r; r = r->next)
        if (r->size == comm->size && r->channel == comm->channel &&
            memcmp(r->ranks, comm->ranks, (size_t)comm->size * sizeof *comm->ranks) == 0)
            return r;
    return NULL;
}

static void free_room(room *r)
{
    pthread_mutex_destroy(&r->lock);
    pthread_cond_destroy(&r->all_here);
    free(r->ranks);
    free(r->arrived);
    free(r->wall[0]);
    free(r->wall[1]);
    free(r);
}

static room *new_room(const dt_comm *comm)
{
    room *r = calloc(1, sizeof *r);
    if (!r)
        return NULL;
    const size_t k = (size_t)comm->size;
    r->size = comm->size;
    r->channel = comm->channel;
    r->ranks = malloc(k * sizeof *r->ranks);
    r->arrived = calloc(k, sizeof *r->arrived);
    r->wall[0] = calloc(k, sizeof *r->wall[0]);
    r->wall[1] = calloc(k, sizeof *r->wall[1]);
    r->last_posted = &r->posted;
    atomic_init(&r->complete, 0);
    pthread_mutex_init(&r->lock, NULL);
    pthread_cond_init(&r->all_here, NULL);
    if (!r->ranks || !r->arrived || !r->wall[0] || !r->wall[1]) {
        free_room(r);
        return NULL;
    }
    memcpy(r->ranks, comm->ranks, k * sizeof *r->ranks);
    return r;
}

static dt_status open_comm(dt_comm *comm)
{
    dti_group *group = comm->world->data;
    pthread_mutex_lock(&group->lock);
    room *r = find_room(group, comm);
    if (!r) {
        r = new_room(comm);
        if (r) {
            r->next = group->rooms;
            group->rooms = r;
        }
    }
    if (r)
        r->refs++;
    pthread_mutex_unlock(&group->lock);
    DT_REQUIRE(r, DT_ERR_NOMEM, "a communicator of %d threads", comm->size);
    comm->data = r;
    return DT_OK;
}

static void close_comm(dt_comm *comm)
{
    dti_group *group = comm->world->data;
    room *r = comm->data;
    pthread_mutex_lock(&group->lock);
    if (--r->refs == 0) {
        room **link = &group->rooms;
        while (*link != r)
            link = &(*link)->next;
        *link = r->next;
        free_room(r);
    }
    pthread_mutex_unlock(&group->lock);
}

/* ---- rendezvous ---- */

static bool all_arrived(const room *r, int64_t rendezvous)
{
    for (int i = 0; i < r->size; i++)
        if (r->arrived[i] < rendezvous)
            return false;
    return true;
}

static dt_status fail_absent(dt_work *w, const room *r, int64_t rendezvous)
{
    bool *absent = calloc((size_t)r->size, sizeof *absent);
    if (!absent)
        return dti_work_fail(w, DT_ERR_TIMEOUT, "deadline passed");
    for (int i = 0; i < r->size; i++)
        absent[i] = r->arrived[i] < rendezvous;
    const dt_status st = dti_work_fail_absent(w, absent);
    free(absent);
    return st;
}

/* With the room's lock. Sleeps in slices, because a peer that fails elsewhere does not know this
 * room. */
static dt_status wait_for_all(dt_work *w, room *r, int64_t rendezvous)
{
    while (atomic_load(&r->complete) < rendezvous) {
        if (dti_broken(w->comm->world))
            return dti_work_fail_peer(w);
        if (dti_now() > w->deadline_s)
            return fail_absent(w, r, rendezvous);
        struct timespec now;
        (void)clock_gettime(CLOCK_REALTIME, &now);
        const double slice = (double)DTI_SLICE_MS / 1e3;
        const struct timespec until =
            dti_timespec((double)now.tv_sec + 1e-9 * (double)now.tv_nsec + slice);
        (void)pthread_cond_timedwait(&r->all_here, &r->lock, &until);
    }
    return DT_OK;
}

/* Come to the next rendezvous and wait for the others; its number is even or odd. */
static dt_status meet(dt_work *w, const dti_exchange *list, int64_t *rendezvous_out)
{
    room *r = w->comm->data;
    const int me = w->comm->rank;
    pthread_mutex_lock(&r->lock);
    if (dti_broken(w->comm->world)) {
        pthread_mutex_unlock(&r->lock);
        return dti_work_fail_peer(w);
    }
    const int64_t rendezvous = ++r->arrived[me];
    r->wall[rendezvous & 1][me] = list;
    if (all_arrived(r, rendezvous)) {
        atomic_store(&r->complete, rendezvous);
        pthread_cond_broadcast(&r->all_here);
    }
    pthread_mutex_unlock(&r->lock);
    *rendezvous_out = rendezvous;
    for (int i = 0; i < 20; i++) { /* often the others are nearly here */
        if (atomic_load(&r->complete) >= rendezvous)
            return DT_OK;
        (void)sched_yield();
    }
    pthread_mutex_lock(&r->lock);
    const dt_status st = wait_for_all(w, r, rendezvous);
    pthread_mutex_unlock(&r->lock);
    return st;
}

static dt_status take(dt_work *w, const dti_piece *from, dti_piece *to, int peer)
{
    if (from->bytes != to->bytes)
        return dti_work_fail(w, DT_ERR_COMM, "rank %d sends %zu bytes where this rank expects %zu",
                             w->comm->ranks[peer], from->bytes, to->bytes);
    if (to->bytes > 0 && to->data)
        memcpy(to->data, from->data, to->bytes);
    else
        to->data = from->data;
    return DT_OK;
}

static dt_status exchange(dt_work *w, const dti_exchange *x)
{
    int64_t rendezvous;
    dt_status st = meet(w, x, &rendezvous);
    room *r = w->comm->data;
    const int k = w->comm->size, me = w->comm->rank;
    for (int step = 1; st == DT_OK && step < k; step++) {
        const int peer = (me + step) % k; /* not all from the same rank at once */
        const dti_exchange *theirs = r->wall[rendezvous & 1][peer];
        if (!theirs || theirs->n != x->n)
            return dti_work_fail(w, DT_ERR_COMM, "rank %d makes a different call",
                                 w->comm->ranks[peer]);
        for (int i = 0; st == DT_OK && i < x->n; i++)
            st = take(w, &theirs->send[i * k + me], &x->recv[i * k + peer], peer);
    }
    return st;
}

static dt_status finish(dt_work *w)
{
    int64_t rendezvous;
    return meet(w, NULL, &rendezvous);
}

/* ---- point to point ---- */

/* Take the oldest posted counterpart of w off the list; NULL: none. */
static dt_work *match(room *r, const dt_work *w)
{
    const dt_call wanted = w->kind == DT_CALL_SEND ? DT_CALL_RECV : DT_CALL_SEND;
    for (dt_work **link = &r->posted; *link; link = &(*link)->next_posted) {
        dt_work *p = *link;
        if (p->kind != wanted || p->comm->rank != w->peer || p->peer != w->comm->rank)
            continue;
        *link = p->next_posted;
        if (!p->next_posted)
            r->last_posted = link;
        return p;
    }
    return NULL;
}

static void land(dt_work *w, dt_status st)
{
    atomic_store(&w->landed, 1 + (int)st);
}

static dt_status start(dt_work *w)
{
    room *r = w->comm->data;
    atomic_store(&w->landed, 0);
    pthread_mutex_lock(&r->lock);
    dt_work *other = dti_broken(w->comm->world) ? NULL : match(r, w);
    if (!other) {
        w->next_posted = NULL;
        *r->last_posted = w;
        r->last_posted = &w->next_posted;
    }
    pthread_mutex_unlock(&r->lock);
    if (!other)
        return DT_OK;
    const dti_exchange *from = w->kind == DT_CALL_SEND ? &w->first : &other->first;
    const dti_exchange *to = w->kind == DT_CALL_SEND ? &other->first : &w->first;
    dt_status st = DT_OK;
    if (from->n != to->n)
        st = dti_work_fail(w, DT_ERR_COMM, "%d tensors are sent where %d are expected", from->n,
                           to->n);
    for (int i = 0; st == DT_OK && i < from->n; i++)
        st = take(w, &from->send[i], &to->recv[i], w->peer);
    land(other, st);
    land(w, st);
    return st;
}

static dt_status test(dt_work *w, bool *done_out)
{
    const int landed = atomic_load(&w->landed);
    *done_out = landed > 0;
    return landed > 1 ? dti_work_fail_peer(w) : DT_OK;
}

static bool cancel(dt_work *w)
{
    room *r = w->comm->data;
    pthread_mutex_lock(&r->lock);
    dt_work **link = &r->posted;
    while (*link && *link != w)
        link = &(*link)->next_posted;
    const bool waits = *link == w;
    if (waits) {
        *link = w->next_posted;
        if (!w->next_posted)
            r->last_posted = link;
    }
    pthread_mutex_unlock(&r->lock);
    while (!waits && atomic_load(&w->landed) == 0) /* its counterpart is copying just now */
        (void)sched_yield();
    return !waits;
}

static size_t scratch_bytes(const dt_work *w)
{
    (void)w;
    return 0;
}

void dti_threads_open(dt_world *world, dti_group *group, int rank, int size)
{
    static const dti_backend ops = {
        .lends = true,
        .comm_open = open_comm,
        .comm_close = close_comm,
        .scratch_bytes = scratch_bytes,
        .exchange = exchange,
        .finish = finish,
        .start = start,
        .test = test,
        .cancel = cancel,
    };
    world->ops = &ops;
    world->data = group;
    world->rank = rank;
    world->size = size;
    world->fate = &group->fate;
}
