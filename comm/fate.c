/* comm/fate.c - how calls fail: who says what, and why one failure ends the waits of all.
 *
 * A call that fails while it runs leaves its communicator in an unknown state on other ranks, so
 * the whole world is dead from then on: every later call fails at once with the first message. */
#include "comm/comm_internal.h"

#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

void dti_break(dt_world *world, const char *message)
{
    dti_fate *fate = world->fate;
    int nobody = 0;
    if (!atomic_compare_exchange_strong(&fate->failed, &nobody, -1))
        return;
    (void)snprintf(fate->message, sizeof fate->message, "%s", message);
    atomic_store(&fate->failed, 1 + world->rank);
}

bool dti_broken(const dt_world *world)
{
    return atomic_load(&world->fate->failed) != 0;
}

void dti_describe(const dt_work *w, char *text, size_t size_bytes)
{
    (void)snprintf(text, size_bytes, "%s #%lld '%s' on %s", dt_call_name(w->kind),
                   (long long)w->sequence, w->label, w->comm->name);
}

dt_status dti_work_fail(dt_work *w, dt_status st, const char *fmt, ...)
{
    dti_describe(w, w->message, sizeof w->message / 2);
    const size_t length = strlen(w->message);
    const int n = snprintf(w->message + length, sizeof w->message - length, ": ");
    const size_t at = length + (size_t)n;
    va_list args;
    va_start(args, fmt);
    (void)vsnprintf(w->message + at, sizeof w->message - at, fmt, args);
    va_end(args);
    dti_break(w->comm->world, w->message);
    return st;
}

int dti_broken_by(dt_world *world)
{
    const dti_fate *fate = world->fate;
    for (int i = 0; i < 1000 && atomic_load(&fate->failed) < 0; i++)
        (void)sched_yield();
    const int rank = atomic_load(&fate->failed) - 1;
    if (rank >= 0 && rank != world->rank)
        atomic_store(&world->saw_peer_fail, true);
    return rank;
}

dt_status dti_peer_failed(dt_world *world, const char *meanwhile)
{
    const int rank = dti_broken_by(world);
    return DT_ERROR(DT_ERR_COMM, "a peer failed while this rank %s: rank %d: %s", meanwhile, rank,
                    rank < 0 ? "it had not said how" : world->fate->message);
}

dt_status dti_work_fail_peer(dt_work *w)
{
    dt_world *world = w->comm->world;
    const dti_fate *fate = world->fate;
    const int rank = dti_broken_by(world);
    if (rank < 0)
        return dti_work_fail(w, DT_ERR_COMM, "a rank failed and died before it had said how");
    return dti_work_fail(w, DT_ERR_COMM, "%s rank %d failed: %s",
                         rank == world->rank ? "an earlier call of this" : "peer", rank,
                         fate->message);
}

dt_status dti_work_fail_absent(dt_work *w, const bool *absent)
{
    char text[256] = "";
    int missing = 0;
    for (int r = 0; r < w->comm->size; r++) {
        if (!absent[r])
            continue;
        const size_t at = strlen(text);
        (void)snprintf(text + at, sizeof text - at, "%s%d", missing ? ", " : "", w->comm->ranks[r]);
        missing++;
    }
    return dti_work_fail(w, DT_ERR_TIMEOUT, "waited %.3g s for %s %s to arrive",
                         w->comm->world->timeout_s, missing == 1 ? "rank" : "ranks", text);
}
