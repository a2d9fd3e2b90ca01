/* comm/shm_room.c - rendezvous in shared memory.
 *
 * A wait first spins where each rank has a core, then gives the core away 20 times, then sleeps in
 * the kernel (futex) in slices; between slices it looks whether the world is dead, the deadline has
 * passed or the process waited for has ended. So it costs a fraction of a microsecond when all are
 * there, and survives more ranks than cores. Read next: shm_call.c. */
#include "comm/shm_internal.h"

#include <limits.h>
#include <linux/futex.h>
#include <poll.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { YIELDS = 20 };

#if defined(__x86_64__)
#define RELAX() __builtin_ia32_pause()
#elif defined(__aarch64__)
#define RELAX() __asm__ volatile("isb")
#else
#define RELAX() ((void)0)
#endif

size_t dti_desk_bytes(int members)
{
    return sizeof(dti_desk) + (size_t)members * sizeof(dti_pair);
}

dti_room *dti_room_new(int members, int me, const int *ranks)
{
    const size_t k = (size_t)members;
    dti_room *r = calloc(1, sizeof *r + k * (4 * sizeof(void *) + sizeof(int)));
    if (!r)
        return NULL;
    r->desk = (dti_desk **)(void *)(r + 1);
    r->peer = (const dti_peer **)(void *)(r->desk + k);
    r->to = (char **)(void *)(r->peer + k);
    r->from = (const void **)(void *)(r->to + k);
    r->ranks = (int *)(void *)(r->from + k);
    r->size = members;
    r->me = me;
    memcpy(r->ranks, ranks, k * sizeof *ranks);
    return r;
}

void dti_room_enter(dti_room *r)
{
    const dti_slip *slip = r->desk[r->me]->slip;
    const unsigned even = atomic_load(&slip[0].number), odd = atomic_load(&slip[1].number);
    r->here = (int)(even - odd) > 0 ? even : odd;
}

dti_slip *dti_room_own_slip(const dti_room *r)
{
    return &r->desk[r->me]->slip[(r->here + 1) & 1];
}

const dti_slip *dti_room_slip(const dti_room *r, int member)
{
    return &r->desk[member]->slip[r->here & 1];
}

bool dti_peer_is_dead(const dti_peer *peer)
{
    struct pollfd look = {.fd = peer->pidfd, .events = POLLIN};
    return peer->pidfd >= 0 && poll(&look, 1, 0) > 0;
}

/* Not to a later one: whoever asks has not come to that. */
static bool has_come(const dti_desk *desk, unsigned number)
{
    return atomic_load_explicit(&desk->slip[number & 1].number, memory_order_acquire) == number;
}

static void hand_in(dti_desk *desk, unsigned number)
{
    atomic_uint *slip = &desk->slip[number & 1].number;
    atomic_store(slip, number);
    if (atomic_load(&desk->sleepers) > 0)
        (void)syscall(SYS_futex, slip, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

static void sleep_until_here(dti_desk *desk, unsigned number)
{
    atomic_uint *slip = &desk->slip[number & 1].number;
    const struct timespec slice = {.tv_nsec = DTI_SLICE_MS * 1000000L};
    atomic_fetch_add(&desk->sleepers, 1);
    const unsigned seen = atomic_load(slip);
    if (seen != number)
        (void)syscall(SYS_futex, slip, FUTEX_WAIT, seen, &slice, NULL, 0);
    atomic_fetch_sub(&desk->sleepers, 1);
}

static dt_status fail_absent(dt_work *w)
{
    const dti_room *r = w->comm->room;
    bool *absent = calloc((size_t)w->comm->size, sizeof *absent);
    if (!absent)
        return dti_work_fail(w, DT_ERR_TIMEOUT, "deadline passed");
    for (int i = 0, p = 0; i < r->size; i++) {
        while (w->comm->ranks[p] != r->ranks[i])
            p++;
        absent[p] = !has_come(r->desk[i], r->here);
    }
    const dt_status st = dti_work_fail_absent(w, absent);
    free(absent);
    return st;
}

/* A rank that failed says so before it ends: look for that last. */
static dt_status check_absent(dt_work *w, int member)
{
    const dti_room *r = w->comm->room;
    const bool dead = dti_peer_is_dead(r->peer[member]);
    if (dti_broken(w->comm->world))
        return dti_work_fail_peer(w);
    if (dead && !has_come(r->desk[member], r->here))
        return dti_work_fail(w, DT_ERR_COMM, "rank %d has died (process %d)", r->ranks[member],
                             r->peer[member]->pid);
    return dti_late(w) ? fail_absent(w) : DT_OK;
}

static dt_status wait_for(dt_work *w, int member)
{
    const dti_room *r = w->comm->room;
    dti_desk *desk = r->desk[member];
    const int spins = w->comm->channel == 0 ? w->comm->world->spins : 0;
    for (int i = 0; i <= spins; i++) {
        if (has_come(desk, r->here))
            return DT_OK;
        RELAX();
    }
    for (int i = 0; i < YIELDS; i++) {
        if (has_come(desk, r->here))
            return DT_OK;
        (void)sched_yield();
    }
    while (!has_come(desk, r->here)) {
        const dt_status st = check_absent(w, member);
        if (st != DT_OK)
            return st;
        sleep_until_here(desk, r->here);
    }
    return DT_OK;
}

static dt_status compare_slips(dt_work *w, const dti_slip *mine, const dti_slip *theirs, int member)
{
    const bool enters = mine->step == DTI_STEP_STAGED || mine->step == DTI_STEP_DIRECT;
    const bool either = enters && mine->kind == DT_CALL_ALL_TO_ALL &&
                        (theirs->step == DTI_STEP_STAGED || theirs->step == DTI_STEP_DIRECT);
    const bool alike = theirs->kind == mine->kind && theirs->peer == mine->peer &&
                       theirs->n == mine->n && theirs->shape == mine->shape;
    if ((theirs->step == mine->step || either) && (alike || !enters))
        return DT_OK;
    return dti_work_fail(w, DT_ERR_COMM,
                         "rank %d makes a different call: %s of %d parts, %lld bytes where this "
                         "rank expects %d parts, %lld bytes, and the same root, types and sizes",
                         w->comm->room->ranks[member], dt_call_name(theirs->kind), theirs->n,
                         (long long)theirs->whole, mine->n, (long long)mine->whole);
}

dt_status dti_room_meet(dt_work *w, dti_step step, const dti_exchange *table)
{
    dti_room *r = w->comm->room;
    if (dti_broken(w->comm->world))
        return dti_work_fail_peer(w);
    dti_slip *mine = dti_room_own_slip(r);
    mine->step = step;
    mine->kind = w->kind;
    mine->peer = w->peer;
    mine->n = w->n;
    mine->whole = w->whole;
    mine->shape = w->shape;
    mine->work = w;
    mine->table = table;
    r->here++;
    hand_in(r->desk[r->me], r->here);
    dt_status st = DT_OK;
    for (int i = 1; st == DT_OK && i < r->size; i++)
        st = wait_for(w, (r->me + i) % r->size);
    for (int p = 0; st == DT_OK && p < r->size; p++)
        st = compare_slips(w, mine, dti_room_slip(r, p), p);
    return st;
}
