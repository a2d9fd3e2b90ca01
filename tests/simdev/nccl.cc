/* tests/simdev/nccl.cc - NCCL's functions: communicators between the threads of one process, each
 * on a device of its own, and groups of calls. Read next: nccl_internal.h. */
#include "nccl_internal.h"

#include <algorithm>
#include <cstring>
#include <unistd.h>

/* A communicator on its way: who has come. */
struct Joining {
    std::vector<ncclComm *> member;
    int missing;
};
struct Id {
    char mark[8];
    uint64_t number;
    int process;
};
static const char id_mark[8] = "simdev";
static std::map<uint64_t, Joining> joining;
static std::map<ncclComm *, std::shared_ptr<ncclComm>> comms;
static uint64_t ids, cliques;
static thread_local int group_depth;
static thread_local std::vector<std::pair<cudaStream_t, SimCall>> group_calls;
static thread_local std::vector<std::shared_ptr<ncclComm>> group_joining;
static thread_local std::string last_error;

static ncclResult_t refuse(ncclResult_t result, const std::string &why)
{
    last_error = why;
    return result;
}

static std::shared_ptr<ncclComm> find(ncclComm_t comm)
{
    auto found = comms.find(comm);
    if (found == comms.end())
        sim_fail("%p is not an NCCL communicator, or was destroyed", static_cast<void *>(comm));
    return found->second;
}

/* ---- coming together ---- */

static void form(const std::vector<ncclComm *> &members)
{
    auto clique = std::make_shared<SimClique>(SimClique{++cliques, members});
    std::string error;
    for (ncclComm *a : members)
        for (ncclComm *b : members)
            if (a->rank < b->rank && a->device == b->device)
                error = "ranks " + std::to_string(a->rank) + " and " + std::to_string(b->rank) +
                        " are both on device " + std::to_string(a->device);
    for (ncclComm *m : members) {
        m->clique = clique;
        m->state = error.empty() ? ncclSuccess : ncclInvalidUsage;
        m->error = error;
    }
    sim_news();
}

static std::shared_ptr<ncclComm> new_comm(int rank, int size, const ncclConfig_t *config,
                                          bool blocking)
{
    auto comm = std::make_shared<ncclComm>();
    comm->rank = rank;
    comm->size = size;
    comm->device = sim_device();
    comm->state = ncclInProgress;
    comm->blocking =
        config && config->blocking != NCCL_CONFIG_UNDEF_INT ? config->blocking : blocking;
    comms[comm.get()] = comm;
    return comm;
}

/* Blocks, unless the communicator is not to; inside of a group its end does. */
static ncclResult_t wait_for(const std::shared_ptr<ncclComm> &comm)
{
    if (group_depth > 0 && comm->state == ncclInProgress) {
        group_joining.push_back(comm);
        return ncclSuccess;
    }
    if (!comm->blocking)
        return comm->state;
    for (int quiet_s = 0; comm->state == ncclInProgress;) {
        quiet_s = sim_wait_for_news(1) ? 0 : quiet_s + 1;
        if (quiet_s >= sim_settings.timeout_s)
            sim_fail("rank %d of %d waits for others to make an NCCL communicator, %d s",
                     comm->rank, comm->size, quiet_s);
    }
    return comm->state == ncclSuccess ? ncclSuccess : refuse(comm->state, comm->error);
}

ncclResult_t ncclGetVersion(int *version)
{
    *version = NCCL_VERSION_CODE;
    return ncclSuccess;
}

ncclResult_t ncclGetUniqueId(ncclUniqueId *out)
{
    SimLock lock;
    Id id = {};
    memcpy(id.mark, id_mark, sizeof id.mark);
    id.number = ++ids;
    id.process = getpid();
    memset(out, 0, sizeof *out);
    memcpy(out, &id, sizeof id);
    return ncclSuccess;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t *out, int size, ncclUniqueId unique, int rank,
                                    ncclConfig_t *config)
{
    SimLock lock;
    Id id;
    memcpy(&id, &unique, sizeof id);
    if (memcmp(id.mark, id_mark, sizeof id.mark))
        return refuse(ncclInvalidArgument, "the id is not from ncclGetUniqueId");
    if (id.process != getpid())
        return refuse(ncclSystemError, "simulated devices meet within one process only");
    if (rank < 0 || rank >= size)
        return refuse(ncclInvalidArgument,
                      "rank " + std::to_string(rank) + " of " + std::to_string(size));
    Joining &j = joining[id.number];
    if (j.member.empty())
        j = {std::vector<ncclComm *>(static_cast<size_t>(size)), size};
    if (static_cast<int>(j.member.size()) != size || j.member[static_cast<size_t>(rank)])
        sim_fail("ncclCommInitRank: rank %d of %d, where others said %zu ranks, or a second time",
                 rank, size, j.member.size());
    auto comm = new_comm(rank, size, config, true);
    j.member[static_cast<size_t>(rank)] = *out = comm.get();
    if (--j.missing == 0) {
        form(j.member);
        joining.erase(id.number);
    }
    return wait_for(comm);
}

ncclResult_t ncclCommInitRank(ncclComm_t *out, int size, ncclUniqueId id, int rank)
{
    return ncclCommInitRankConfig(out, size, id, rank, nullptr);
}

/* When every member has made its next split: the new communicators of each color, by key. */
static void finish_split(const std::vector<ncclComm *> &members)
{
    std::map<int, std::vector<ncclComm *>> colors;
    for (ncclComm *m : members)
        if (!m || m->splits.empty())
            return;
    for (ncclComm *m : members)
        if (m->splits.front().color != NCCL_SPLIT_NOCOLOR)
            colors[m->splits.front().color].push_back(m);
    for (auto &[color, ranks] : colors) {
        std::stable_sort(ranks.begin(), ranks.end(), [](ncclComm *a, ncclComm *b) {
            return a->splits.front().key < b->splits.front().key;
        });
        std::vector<ncclComm *> parts;
        for (ncclComm *m : ranks) {
            ncclComm *part = m->split_into.front().get();
            part->rank = static_cast<int>(parts.size());
            part->size = static_cast<int>(ranks.size());
            parts.push_back(part);
        }
        form(parts);
    }
    for (ncclComm *m : members) {
        m->splits.pop_front();
        m->split_into.front()->state =
            m->split_into.front()->clique ? m->split_into.front()->state : ncclSuccess;
        m->split_into.pop_front();
    }
    sim_news();
}

ncclResult_t ncclCommSplit(ncclComm_t parent, int color, int key, ncclComm_t *out,
                           ncclConfig_t *config)
{
    SimLock lock;
    auto p = find(parent);
    if (p->state != ncclSuccess)
        return refuse(ncclInvalidArgument, "the communicator to be split is not ready");
    auto part = new_comm(0, 0, config, p->blocking);
    part->device = p->device;
    p->splits.push_back({color, key});
    p->split_into.push_back(part);
    *out = color == NCCL_SPLIT_NOCOLOR ? nullptr : part.get();
    if (!*out)
        comms.erase(part.get());
    finish_split(p->clique->member);
    return wait_for(part);
}

/* ---- going apart ---- */

static ncclResult_t forget(ncclComm_t comm)
{
    auto c = find(comm);
    if (c->clique)
        c->clique->member[static_cast<size_t>(c->rank)] = nullptr;
    comms.erase(comm);
    return ncclSuccess;
}

ncclResult_t ncclCommFinalize(ncclComm_t comm)
{
    SimLock lock;
    auto c = find(comm);
    sim_drive([=] { return c->gangs.empty(); },
              [=] { return c->gangs.empty() ? nullptr : c->gangs.front()->stream; });
    return c->state;
}

ncclResult_t ncclCommDestroy(ncclComm_t comm)
{
    ncclResult_t result = ncclCommFinalize(comm);
    SimLock lock;
    forget(comm);
    return result;
}

/* Its calls end where they are; those of other ranks wait on. */
ncclResult_t ncclCommAbort(ncclComm_t comm)
{
    SimLock lock;
    auto c = find(comm);
    c->aborted = true;
    for (auto &[id, j] : joining)
        for (ncclComm *&m : j.member)
            if (m == comm) {
                m = nullptr;
                j.missing++;
            }
    sim_news();
    return forget(comm);
}

/* ---- questions ---- */

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *error)
{
    SimLock lock;
    *error = find(comm)->state;
    return ncclSuccess;
}

ncclResult_t ncclCommCount(const ncclComm_t comm, int *count)
{
    SimLock lock;
    *count = find(comm)->size;
    return ncclSuccess;
}

ncclResult_t ncclCommUserRank(const ncclComm_t comm, int *rank)
{
    SimLock lock;
    *rank = find(comm)->rank;
    return ncclSuccess;
}

ncclResult_t ncclCommCuDevice(const ncclComm_t comm, int *device)
{
    SimLock lock;
    *device = find(comm)->device;
    return ncclSuccess;
}

const char *ncclGetLastError(ncclComm_t)
{
    return last_error.c_str();
}

const char *ncclGetErrorString(ncclResult_t result)
{
    static const char *const texts[] = {"no error",
                                        "unhandled cuda error",
                                        "unhandled system error",
                                        "internal error",
                                        "invalid argument",
                                        "invalid usage",
                                        "remote process exited or there was a network error",
                                        "NCCL operation in progress"};
    return result >= 0 && result < ncclNumResults ? texts[result] : "unknown result code";
}

ncclResult_t ncclCommRegister(const ncclComm_t comm, void *p, size_t bytes, void **handle)
{
    SimLock lock;
    sim_need_device("ncclCommRegister", p, bytes, find(comm)->device);
    *handle = p;
    return ncclSuccess;
}

ncclResult_t ncclCommDeregister(const ncclComm_t comm, void *)
{
    SimLock lock;
    find(comm);
    return ncclSuccess;
}

/* ---- groups and calls ---- */

ncclResult_t ncclGroupStart()
{
    group_depth++;
    return ncclSuccess;
}

ncclResult_t ncclGroupEnd()
{
    if (group_depth == 0)
        return refuse(ncclInvalidUsage, "ncclGroupEnd without ncclGroupStart");
    if (--group_depth > 0)
        return ncclSuccess;
    SimLock lock;
    ncclResult_t result = ncclSuccess;
    for (const auto &comm : std::exchange(group_joining, {})) {
        ncclResult_t one = wait_for(comm);
        result = result == ncclSuccess ? one : result;
    }
    sim_nccl_submit(std::exchange(group_calls, {}));
    return result;
}

/* What a call does not have is left out of `call`. */
static ncclResult_t add(SimCall call, ncclComm_t comm, cudaStream_t stream)
{
    SimLock lock;
    call.comm = find(comm);
    if (call.comm->state != ncclSuccess)
        return refuse(ncclInvalidArgument, "the communicator is not ready");
    if (!sim_nccl_bytes(call.type) || call.peer < 0 || call.peer >= call.comm->size)
        return refuse(ncclInvalidArgument, "a type that is not simulated, or no such rank");
    bool pair = call.kind == SIM_SEND || call.kind == SIM_RECV;
    if (call.count == 0 && !pair)
        return ncclSuccess;
    int device = call.comm->device;
    if (sim_stream_device(stream) != device)
        sim_fail("%s: the communicator is of device %d, the stream of device %d",
                 sim_call_name(call.kind), device, sim_stream_device(stream));
    if (call.kind == SIM_BROADCAST && call.comm->rank != call.peer)
        call.send = nullptr;
    sim_need_device(sim_call_name(call.kind), call.send, sim_call_reads(call), device);
    sim_need_device(sim_call_name(call.kind), call.recv, sim_call_writes(call), device);
    if (group_depth > 0)
        group_calls.emplace_back(stream, call);
    else
        sim_nccl_submit({{stream, call}});
    return ncclSuccess;
}

ncclResult_t ncclAllGather(const void *send, void *recv, size_t count, ncclDataType_t type,
                           ncclComm_t comm, cudaStream_t stream)
{
    return add({SIM_ALL_GATHER, nullptr, send, recv, count, type, ncclSum, 0, false}, comm, stream);
}

ncclResult_t ncclReduceScatter(const void *send, void *recv, size_t count, ncclDataType_t type,
                               ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream)
{
    return add({SIM_REDUCE_SCATTER, nullptr, send, recv, count, type, op, 0, false}, comm, stream);
}

ncclResult_t ncclAllReduce(const void *send, void *recv, size_t count, ncclDataType_t type,
                           ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream)
{
    return add({SIM_ALL_REDUCE, nullptr, send, recv, count, type, op, 0, false}, comm, stream);
}

ncclResult_t ncclBroadcast(const void *send, void *recv, size_t count, ncclDataType_t type,
                           int root, ncclComm_t comm, cudaStream_t stream)
{
    return add({SIM_BROADCAST, nullptr, send, recv, count, type, ncclSum, root, false}, comm,
               stream);
}

ncclResult_t ncclSend(const void *send, size_t count, ncclDataType_t type, int peer,
                      ncclComm_t comm, cudaStream_t stream)
{
    return add({SIM_SEND, nullptr, send, nullptr, count, type, ncclSum, peer, false}, comm, stream);
}

ncclResult_t ncclRecv(void *recv, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream)
{
    return add({SIM_RECV, nullptr, nullptr, recv, count, type, ncclSum, peer, false}, comm, stream);
}
