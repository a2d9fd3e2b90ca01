/* comm/nccl.c - communicators of NCCL: one for each of ours, and one of two ranks for the messages
 * from one to the other, each with a stream of its own; and what watches them while the host waits
 * for the device.
 *
 * A receive stays on its stream until its message comes, and holds up what was put there later. So
 * messages of one direction between two ranks have their communicator to themselves: there both
 * ranks put them in one order, and nothing else waits for them.
 * Calls: nccl_call.c. Source: NCCL 2 user guide. */
#include "comm/nccl_group_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* What members tell each other before they decide. */
typedef struct facts {
    char host[64];
    int device;
    bool able;
    ncclUniqueId id[2]; /* the first member's; for messages: to the next rank, to the one before */
} facts;

/* The same answer on all members: no two of them on one device. */
static bool are_apart(const facts *f, int n)
{
    for (int i = 0; i < n; i++) {
        if (!f[i].able)
            return false;
        for (int j = 0; j < i; j++)
            if (f[i].device == f[j].device && strcmp(f[i].host, f[j].host) == 0)
                return false;
    }
    return true;
}

dt_status dti_nccl_check(const dt_comm *comm, ncclResult_t result, const char *what)
{
    DT_REQUIRE(result == ncclSuccess || result == ncclInProgress, DT_ERR_COMM, "%s: %s: %s",
               comm->name, what, ncclGetErrorString(result));
    return DT_OK;
}

dt_status dti_nccl_ready(dt_comm *comm, dti_nccl *g)
{
    ncclResult_t state = ncclInProgress;
    const double since = dti_now();
    for (;;) {
        DT_TRY(dti_nccl_check(comm, ncclCommGetAsyncError(g->comm, &state), "asking for errors"));
        DT_TRY(dti_nccl_check(comm, state, "NCCL"));
        if (state == ncclSuccess)
            return DT_OK;
        if (dti_broken(comm->world))
            return dti_peer_failed(comm->world, "made an NCCL communicator");
        DT_REQUIRE(dti_now() - since < comm->world->timeout_s, DT_ERR_TIMEOUT,
                   "%s: waited %.3g s for its ranks to make an NCCL communicator", comm->name,
                   comm->world->timeout_s);
        dti_pause(since);
    }
}

static dt_status look(const dt_comm *comm, const dti_nccl *g)
{
    ncclResult_t state = ncclSuccess;
    const bool asked = !g || g->aborted || ncclCommGetAsyncError(g->comm, &state) == ncclSuccess;
    DT_REQUIRE(asked && (state == ncclSuccess || state == ncclInProgress), DT_ERR_COMM,
               "%s: NCCL: %s", comm->name, ncclGetErrorString(state));
    return DT_OK;
}

static void abort_all(const dt_comm *comm)
{
    for (int i = 0; i < DTI_NCCL_GROUPS; i++) {
        dti_nccl *g = comm->nccl[i];
        if (g && !g->aborted)
            (void)ncclCommAbort(g->comm);
        if (g)
            g->aborted = true;
    }
}

/* Of everything that this rank has in flight: errors, peers that failed, and time. */
static dt_status watch(void *arg, double waited_s)
{
    dt_world *world = arg;
    dt_status st = dti_broken(world) ? dti_peer_failed(world, "waited for its device") : DT_OK;
    for (dt_comm *c = world->comms; c && st == DT_OK; c = c->next)
        for (int i = 0; i < DTI_NCCL_GROUPS && st == DT_OK; i++)
            st = look(c, c->nccl[i]);
    if (st == DT_OK && waited_s > world->timeout_s)
        st = DT_ERROR(DT_ERR_TIMEOUT,
                      "waited %.3g s for the device: a rank has not come to a call of this one's",
                      world->timeout_s);
    if (st == DT_OK)
        return DT_OK;
    dti_break(world, dt_error_trace());
    for (dt_comm *c = world->comms; c; c = c->next)
        abort_all(c);
    return st;
}

/* Rank `rank` of `size` of a new one. */
static dt_status join(dt_comm *comm, const ncclUniqueId *id, int size, int rank,
                      dti_nccl **group_out)
{
    enum { MESSAGE_BLOCKS = 4 }; /* what waits for messages must leave room for what they need */
    dti_nccl *g = calloc(1, sizeof *g);
    DT_REQUIRE(g, DT_ERR_NOMEM, "a communicator of NCCL");
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    if (group_out != &comm->nccl[DTI_NCCL_ALL])
        config.maxCTAs = MESSAGE_BLOCKS;
    dt_status st = dti_nccl_check(comm, ncclCommInitRankConfig(&g->comm, size, *id, rank, &config),
                                  "ncclCommInitRankConfig");
    if (st == DT_OK)
        st = dti_nccl_ready(comm, g);
    if (st == DT_OK && (cudaStreamCreateWithFlags(&g->stream, cudaStreamNonBlocking) ||
                        cudaEventCreateWithFlags(&g->before, cudaEventDisableTiming)))
        st = DT_ERROR(DT_ERR_DEVICE, "%s: no stream for it", comm->name);
    if (st != DT_OK) {
        if (g->comm)
            (void)ncclCommAbort(g->comm);
        free(g);
        return st;
    }
    *group_out = g;
    return DT_OK;
}

/* What all members say of themselves, `ids` of theirs included; NULL: they cannot. */
static dt_status ask(dt_comm *comm, dt_heap *heap, int ids, facts **all_out)
{
    facts mine = {.device = dt_heap_device(heap).index,
                  .able = dt_world_backend(comm->world) != DT_BACKEND_FAKE};
    (void)gethostname(mine.host, sizeof mine.host - 1);
    for (int i = 0; i < ids; i++)
        mine.able = mine.able && ncclGetUniqueId(&mine.id[i]) == ncclSuccess;
    facts *all = calloc((size_t)comm->size, sizeof *all);
    DT_REQUIRE(all, DT_ERR_NOMEM, "facts of %d ranks", comm->size);
    dt_status st = dti_gather_sync(comm, &mine, sizeof mine, all, "who has which device");
    *all_out = st == DT_OK && are_apart(all, comm->size) ? all : NULL;
    if (*all_out)
        dt_heap_set_watch(heap, watch, comm->world);
    else
        free(all);
    return st;
}

/* Faults and checks of calls are those of the host's. */
static bool is_used(const dt_world *world)
{
    const bool faults = world->faults[0] && !dt_world_fault_number(world, "drop_event");
    return !faults && !dt_world_check(world, "collective");
}

static dt_status decide(dt_comm *comm, dt_heap *heap)
{
    facts *all;
    DT_TRY(ask(comm, heap, comm->rank == 0, &all));
    const dt_status st =
        all ? join(comm, &all[0].id[0], comm->size, comm->rank, &comm->nccl[DTI_NCCL_ALL]) : DT_OK;
    free(all);
    comm->asked_nccl = st == DT_OK;
    return st;
}

/* In one order on all ranks, so that nobody waits in a circle. Of two ranks the next one is also
 * the one before. */
static dt_status link_ring(dt_comm *comm, const facts *all)
{
    const int k = comm->size, me = comm->rank;
    for (int back = 0; back < (k > 2 ? 2 : 1); back++)
        for (int from = 0; from < k; from++) {
            const int to = (from + (back ? k - 1 : 1)) % k;
            const int which = DTI_NCCL_SEND_NEXT + 2 * back;
            const ncclUniqueId *id = &all[from].id[back];
            if (from == me)
                DT_TRY(join(comm, id, 2, 0, &comm->nccl[which]));
            if (to == me)
                DT_TRY(join(comm, id, 2, 1, &comm->nccl[which + 1]));
        }
    return DT_OK;
}

dt_status dti_nccl_link(dt_comm *comm, dt_heap *heap)
{
    facts *all;
    if (comm->linked || !is_used(comm->world))
        return DT_OK;
    DT_TRY(ask(comm, heap, 2, &all));
    const dt_status st = all ? link_ring(comm, all) : DT_OK;
    free(all);
    comm->linked = st == DT_OK;
    return st;
}

int dti_nccl_group(const dt_comm *comm, const dti_call_options *o)
{
    const int k = comm->size, next = (comm->rank + 1) % k, before = (comm->rank + k - 1) % k;
    if (o->kind == DT_CALL_SEND)
        return o->peer == next ? DTI_NCCL_SEND_NEXT : o->peer == before ? DTI_NCCL_SEND_BEFORE : -1;
    if (o->kind == DT_CALL_RECV)
        return o->peer == before ? DTI_NCCL_FROM_BEFORE : o->peer == next ? DTI_NCCL_FROM_NEXT : -1;
    return DTI_NCCL_ALL;
}

dt_status dti_nccl_takes(dt_comm *comm, const dt_array *any, const dti_call_options *o,
                         bool *takes_out)
{
    const int group = dti_nccl_group(comm, o);
    *takes_out = false;
    if (group < 0 || !is_used(comm->world))
        return DT_OK;
    if (group == DTI_NCCL_ALL && !comm->asked_nccl)
        DT_TRY(decide(comm, any->storage->heap));
    *takes_out = comm->nccl[group] != NULL;
    return DT_OK;
}

/* Destroying it would wait for a peer that has left, too. */
static bool is_over(const dt_comm *comm, const dti_nccl *g)
{
    const double since = dti_now();
    while (cudaStreamQuery(g->stream) == cudaErrorNotReady) {
        if (dti_broken(comm->world) || dti_now() - since > comm->world->timeout_s)
            return false;
        dti_pause(since);
    }
    return !dti_broken(comm->world);
}

void dti_nccl_close(dt_comm *comm)
{
    for (int i = 0; i < DTI_NCCL_GROUPS; i++) {
        dti_nccl *g = comm->nccl[i];
        if (g && !g->aborted && !is_over(comm, g))
            abort_all(comm);
        comm->nccl[i] = NULL;
        if (!g)
            continue;
        if (!g->aborted)
            (void)ncclCommDestroy(g->comm);
        for (int e = 0; e < g->nspare; e++)
            (void)cudaEventDestroy(g->spare[e]);
        (void)cudaEventDestroy(g->before);
        (void)cudaStreamDestroy(g->stream);
        free(g);
    }
}
