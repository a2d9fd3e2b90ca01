/* comm/nccl.c - communicators of NCCL: one for each of ours, with a stream of its own, and what
 * watches them while the host waits for the device.
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
    ncclUniqueId id; /* of the first member */
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
        DT_REQUIRE(!dti_broken(comm->world), DT_ERR_COMM, "%s: a peer failed", comm->name);
        DT_REQUIRE(dti_now() - since < comm->world->timeout_s, DT_ERR_TIMEOUT,
                   "%s: waited %.3g s for its ranks to make an NCCL communicator", comm->name,
                   comm->world->timeout_s);
        dti_pause(since);
    }
}

/* Of everything that this rank has in flight: errors, peers that failed, and time. */
static dt_status watch(void *arg, double waited_s)
{
    dt_world *world = arg;
    dt_status st = DT_OK;
    for (dt_comm *c = world->comms; c && st == DT_OK; c = c->next) {
        ncclResult_t state = ncclSuccess;
        if (!c->nccl)
            continue;
        if (ncclCommGetAsyncError(c->nccl->comm, &state) != ncclSuccess ||
            (state != ncclSuccess && state != ncclInProgress))
            st = DT_ERROR(DT_ERR_COMM, "%s: NCCL: %s", c->name, ncclGetErrorString(state));
    }
    if (st == DT_OK && dti_broken(world)) {
        atomic_store(&world->saw_peer_fail, true);
        st = DT_ERROR(DT_ERR_COMM, "a peer failed while this rank waited for its device");
    }
    if (st == DT_OK && waited_s > world->timeout_s)
        st = DT_ERROR(DT_ERR_TIMEOUT,
                      "waited %.3g s for the device: a rank has not come to a call of this one's",
                      world->timeout_s);
    if (st == DT_OK)
        return DT_OK;
    dti_break(world, dt_error_trace());
    for (dt_comm *c = world->comms; c; c = c->next) {
        if (c->nccl)
            (void)ncclCommAbort(c->nccl->comm);
        if (c->nccl)
            c->nccl->aborted = true;
    }
    return st;
}

static dt_status join(dt_comm *comm, const facts *all)
{
    dti_nccl *g = calloc(1, sizeof *g);
    DT_REQUIRE(g, DT_ERR_NOMEM, "a communicator of NCCL");
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    dt_status st = dti_nccl_check(
        comm, ncclCommInitRankConfig(&g->comm, comm->size, all[0].id, comm->rank, &config),
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
    comm->nccl = g;
    return DT_OK;
}

static dt_status decide(dt_comm *comm, const dt_array *any)
{
    dt_heap *heap = any->storage->heap;
    facts mine = {.device = dt_heap_device(heap).index,
                  .able = dt_world_backend(comm->world) != DT_BACKEND_FAKE};
    (void)gethostname(mine.host, sizeof mine.host - 1);
    if (comm->rank == 0)
        mine.able = mine.able && ncclGetUniqueId(&mine.id) == ncclSuccess;
    facts *all = calloc((size_t)comm->size, sizeof *all);
    DT_REQUIRE(all, DT_ERR_NOMEM, "facts of %d ranks", comm->size);
    dt_status st = dti_gather_sync(comm, &mine, sizeof mine, all, "who has which device");
    if (st == DT_OK && are_apart(all, comm->size)) {
        dt_heap_set_watch(heap, watch, comm->world);
        st = join(comm, all);
    }
    free(all);
    comm->asked_nccl = st == DT_OK;
    return st;
}

dt_status dti_nccl_takes(dt_comm *comm, const dt_array *any, dt_call kind, bool *takes_out)
{
    *takes_out = false;
    const dt_world *world = comm->world; /* faults and checks of calls are those of the host's */
    const bool faults = world->faults[0] && !dt_world_fault_number(world, "drop_event");
    if (kind == DT_CALL_SEND || kind == DT_CALL_RECV || faults ||
        dt_world_check(world, "collective"))
        return DT_OK;
    if (!comm->asked_nccl)
        DT_TRY(decide(comm, any));
    *takes_out = comm->nccl != NULL;
    return DT_OK;
}

void dti_nccl_close(dt_comm *comm)
{
    dti_nccl *g = comm->nccl;
    if (!g)
        return;
    if (!g->aborted && dti_broken(comm->world))
        (void)ncclCommAbort(g->comm);
    else if (!g->aborted)
        (void)ncclCommDestroy(g->comm);
    for (int i = 0; i < g->nspare; i++)
        (void)cudaEventDestroy(g->spare[i]);
    (void)cudaEventDestroy(g->before);
    (void)cudaStreamDestroy(g->stream);
    free(g);
    comm->nccl = NULL;
}
