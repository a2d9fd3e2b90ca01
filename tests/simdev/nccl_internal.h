/* tests/simdev/nccl_internal.h - communicators between threads of one process, and their calls.
 *
 * A gang is the calls of one ncclGroup on one stream (a call outside of a group is a gang alone):
 * one op of the stream. It is open while it is at the head of its stream and the first of each of
 * its communicators. A call runs when its partners' gangs are open: for all of them, by whoever
 * drives their streams. */
#pragma once

#include "sim_internal.h"

#include <deque>
#include <map>
#include <memory>
#include <nccl.h>

enum SimCallKind {
    SIM_ALL_GATHER,
    SIM_REDUCE_SCATTER,
    SIM_ALL_REDUCE,
    SIM_BROADCAST,
    SIM_SEND,
    SIM_RECV
};

struct SimCall {
    SimCallKind kind;
    std::shared_ptr<ncclComm> comm;
    const void *send; /* NULL: none */
    void *recv;
    size_t count; /* as in ncclX(): of a rank's part where parts and the whole differ */
    ncclDataType_t type;
    ncclRedOp_t op;
    int peer; /* the root too */
    bool done;
};

struct SimGang {
    cudaStream_t stream;
    uint64_t serial; /* of its op in the stream */
    std::vector<SimCall> calls;
};

/* The members of a communicator. */
struct SimClique {
    uint64_t id;
    std::vector<ncclComm *> member; /* NULL: destroyed, or aborted */
};

struct SimSplit {
    int color, key;
};

struct ncclComm {
    int rank, size, device;
    std::shared_ptr<SimClique> clique; /* NULL until all have joined */
    ncclResult_t state;                /* ncclInProgress until then */
    std::string error;
    bool blocking, aborted;
    std::deque<std::shared_ptr<SimGang>> gangs; /* in the order of the calls, the first one first */
    std::deque<SimSplit> splits;                /* and what becomes of them: */
    std::deque<std::shared_ptr<ncclComm>> split_into;
};

const char *sim_call_name(SimCallKind kind);
std::string sim_call_text(const SimCall &call); /* kind, rank, count, type */
size_t sim_nccl_bytes(ncclDataType_t type);     /* of one element; 0: not simulated */
/* Bytes that a call reads and writes at its rank. */
size_t sim_call_reads(const SimCall &call);
size_t sim_call_writes(const SimCall &call);
/* nccl_calls.cc: put the calls on their streams. */
void sim_nccl_submit(const std::vector<std::pair<cudaStream_t, SimCall>> &calls);
/* nccl_move.cc: of all ranks in the order of their ranks; or of a send and its receive. */
void sim_nccl_move(const std::vector<SimCall *> &calls);
