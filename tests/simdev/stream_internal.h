/* tests/simdev/stream_internal.h - streams and events as stream.cc and drive.cc know them. */
#pragma once

#include "sim_internal.h"

#include <deque>
#include <memory>

struct SimEntry {
    SimOp op;
    std::unique_ptr<char> token; /* orders the op after what its host thread had done */
};

struct CUstream_st {
    int device;
    uint64_t id, enqueued, run; /* how many ops; `newest` below: when the last one came */
    uint64_t newest;
    std::deque<SimEntry> queue;
    bool busy, destroyed;
    void *fiber; /* of the thread sanitizer */
    char token;  /* orders its ops, and what waits for them */
};

/* One recording of an event. Waits know the recording that was the last when they were made. */
struct SimRecord {
    cudaStream_t stream; /* while not done */
    uint64_t stream_id;
    bool done;
    double seconds;
    char token;
};

struct CUevent_st {
    int device;
    std::shared_ptr<SimRecord> last; /* NULL: never recorded, waits return at once */
};

/* All streams that are not destroyed, or have work left. */
extern std::vector<cudaStream_t> sim_streams;
void sim_delete_stream(cudaStream_t stream);
void sim_need_stream(cudaStream_t stream);
