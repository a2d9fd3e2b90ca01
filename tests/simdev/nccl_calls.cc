/* tests/simdev/nccl_calls.cc - which calls of several ranks belong together, and when they run. */
#include "nccl_internal.h"

#include <algorithm>

const char *sim_call_name(SimCallKind kind)
{
    static const char *const names[] = {"ncclAllGather", "ncclReduceScatter", "ncclAllReduce",
                                        "ncclBroadcast", "ncclSend",          "ncclRecv"};
    return names[kind];
}

std::string sim_call_text(const SimCall &c)
{
    static const char *const types[] = {"i8",  "u8",  "i32", "u32", "i64",
                                        "u64", "f16", "f32", "f64", "bf16"};
    std::string text = std::string(sim_call_name(c.kind)) + " of " + std::to_string(c.count) + " " +
                       types[c.type] + " by rank " + std::to_string(c.comm->rank);
    if (c.kind == SIM_REDUCE_SCATTER || c.kind == SIM_ALL_REDUCE)
        text += " (reduction " + std::to_string(c.op) + ")";
    if (c.kind == SIM_BROADCAST)
        text += " (root " + std::to_string(c.peer) + ")";
    if (c.kind == SIM_SEND || c.kind == SIM_RECV)
        text += (c.kind == SIM_SEND ? " to " : " from ") + std::to_string(c.peer);
    return text;
}

static bool is_pair(const SimCall &c)
{
    return c.kind == SIM_SEND || c.kind == SIM_RECV;
}

/* ---- partners ---- */

static bool is_open(const SimGang &gang)
{
    if (!sim_is_head(gang.stream, gang.serial))
        return false;
    return std::all_of(gang.calls.begin(), gang.calls.end(), [&](const SimCall &c) {
        return c.comm->aborted || c.comm->gangs.front().get() == &gang;
    });
}

/* A member's first call of this communicator that is not done and can be the partner of `call`;
 * NULL: it has not come so far. */
static SimCall *partner(const SimCall &call, int rank)
{
    ncclComm *other = call.comm->clique->member[static_cast<size_t>(rank)];
    if (!other || other->gangs.empty() || !is_open(*other->gangs.front()))
        return nullptr; /* one that destroyed it never comes: who waits must abort */
    SimCallKind opposite = call.kind == SIM_SEND ? SIM_RECV : SIM_SEND;
    for (SimCall &c : other->gangs.front()->calls) {
        if (c.comm.get() != other || c.done || is_pair(c) != is_pair(call))
            continue;
        if (!is_pair(c) || (c.kind == opposite && c.peer == call.comm->rank))
            return &c;
    }
    return nullptr;
}

static void compare(const SimCall &a, const SimCall &b)
{
    bool pair = is_pair(a), reduces = a.kind == SIM_REDUCE_SCATTER || a.kind == SIM_ALL_REDUCE;
    if (a.count != b.count || a.type != b.type || (!pair && a.kind != b.kind) ||
        (reduces && a.op != b.op) || (a.kind == SIM_BROADCAST && a.peer != b.peer))
        sim_fail("NCCL communicator %llu: %s meets %s",
                 static_cast<unsigned long long>(a.comm->clique->id), sim_call_text(a).c_str(),
                 sim_call_text(b).c_str());
}

/* All partners of a call in the order in which sim_nccl_move takes them; empty: it cannot run. */
static std::vector<SimCall *> partners(SimCall &call)
{
    std::vector<SimCall *> all;
    if (is_pair(call)) {
        /* The first of the calls to this peer, on both sides. */
        SimCall *other = partner(call, call.peer), *mine = nullptr;
        for (SimCall &c : call.comm->gangs.front()->calls)
            if (!mine && !c.done && c.comm == call.comm && c.kind == call.kind &&
                c.peer == call.peer)
                mine = &c;
        if (other && mine == &call)
            all = {call.kind == SIM_SEND ? &call : other, call.kind == SIM_SEND ? other : &call};
    } else {
        for (int r = 0; r < call.comm->size; r++) {
            SimCall *other = partner(call, r);
            if (!other || (r == call.comm->rank && other != &call))
                return {};
            all.push_back(other);
        }
    }
    for (SimCall *other : all)
        compare(call, *other);
    return all;
}

/* ---- gangs ---- */

static bool is_over(const SimGang &gang)
{
    return std::all_of(gang.calls.begin(), gang.calls.end(),
                       [](const SimCall &c) { return c.done || c.comm->aborted; });
}

static bool can_go_on(SimGang &gang)
{
    if (is_over(gang))
        return true;
    if (!is_open(gang))
        return false;
    return std::any_of(gang.calls.begin(), gang.calls.end(), [](SimCall &c) {
        return !c.done && !c.comm->aborted && !partners(c).empty();
    });
}

static bool go_on(const std::shared_ptr<SimGang> &gang)
{
    for (SimCall &c : gang->calls) {
        if (c.done || c.comm->aborted)
            continue;
        std::vector<SimCall *> all = partners(c);
        if (!all.empty())
            sim_nccl_move(all);
    }
    sim_news(); /* the partners' gangs */
    if (!is_over(*gang))
        return false;
    for (SimCall &c : gang->calls) {
        auto &gangs = c.comm->gangs;
        gangs.erase(std::remove(gangs.begin(), gangs.end(), gang), gangs.end());
    }
    return true;
}

/* The streams of gangs that must be first somewhere, so that this one can run. */
static void needs(const SimGang &gang, std::vector<cudaStream_t> &streams)
{
    for (const SimCall &c : gang.calls) {
        if (c.done || c.comm->aborted)
            continue;
        streams.push_back(c.comm->gangs.front()->stream);
        for (ncclComm *other : c.comm->clique->member)
            if (other && !other->gangs.empty())
                streams.push_back(other->gangs.front()->stream);
    }
}

static void submit(const std::shared_ptr<SimGang> &gang)
{
    gang->serial = sim_next_serial(gang->stream);
    std::string name;
    for (SimCall &c : gang->calls) {
        auto &gangs = c.comm->gangs;
        if (gangs.empty() || gangs.back() != gang)
            gangs.push_back(gang);
        name += (name.empty() ? "" : " + ") + sim_call_text(c);
    }
    SimOp op = {};
    op.name = name;
    op.ready = [gang] { return can_go_on(*gang); };
    op.run = [gang] { return go_on(gang); };
    op.needs = [gang](std::vector<cudaStream_t> &streams) { needs(*gang, streams); };
    sim_enqueue(gang->stream, std::move(op));
}

void sim_nccl_submit(const std::vector<std::pair<cudaStream_t, SimCall>> &calls)
{
    std::vector<std::shared_ptr<SimGang>> gangs;
    for (const auto &[stream, call] : calls) {
        for (const auto &[other_stream, other] : calls)
            if (other.comm == call.comm && other_stream != stream)
                sim_fail("%s and %s: one communicator on two streams in one group",
                         sim_call_text(call).c_str(), sim_call_text(other).c_str());
        auto found = std::find_if(gangs.begin(), gangs.end(),
                                  [s = stream](const auto &gang) { return gang->stream == s; });
        if (found == gangs.end())
            found = gangs.insert(gangs.end(), std::make_shared<SimGang>(SimGang{stream, 0, {}}));
        (*found)->calls.push_back(call);
    }
    for (const auto &gang : gangs)
        submit(gang);
}
