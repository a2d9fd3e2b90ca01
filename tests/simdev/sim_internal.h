/* tests/simdev/sim_internal.h - the parts of the simulator to each other.
 *
 * One device lock is held by whoever works on the simulator's state or runs device work; everything
 * here but sim_lock needs it. Device work runs in the host thread that waits for it (stream.cc), on
 * whichever device and stream it is; only then is device memory accessible (memory.cc). */
#pragma once

#include "core.h"

#include <functional>
#include <string>
#include <vector>

/* ---- settings, lock.cc ---- */
enum SimSchedule { SIM_EAGER, SIM_RANDOM, SIM_NEWEST, SIM_DEMAND };
struct SimSettings {
    SimSchedule schedule; /* SIMDEV_SCHED */
    int order;            /* SIMDEV_ORDER */
    uint64_t seed;        /* SIMDEV_SEED */
    int devices;          /* SIMDEV_DEVICES */
    size_t memory;        /* SIMDEV_MEMORY: bytes of a device */
    bool poison, protect; /* SIMDEV_POISON, SIMDEV_PROTECT */
    bool verbose;         /* SIMDEV_VERBOSE */
    int timeout_s;        /* SIMDEV_TIMEOUT: of a wait in which nothing happens */
};
extern SimSettings sim_settings;
uint32_t sim_random();

/* ---- lock.cc: futexes, which the thread sanitizer does not take for synchronisation ---- */
struct SimLock {
    SimLock(); /* also reads the settings, the first time */
    ~SimLock();
    SimLock(const SimLock &) = delete;
};
void sim_unlock_while(const std::function<void()> &body);
void sim_news(); /* something happened that a waiting thread may want to see */
/* Give the lock away until there is news since the lock was taken, or `seconds` have passed. */
bool sim_wait_for_news(int seconds);

/* ---- sanitizer.cc: nothing but calls that do nothing without a sanitizer ---- */
bool sim_tsan();
bool sim_asan();
void sim_acquire(void *token);
void sim_release(void *token);
void *sim_fiber_create();
void sim_fiber_destroy(void *fiber);
void *sim_fiber_current();
void sim_fiber_switch(void *fiber);
/* Accesses made by operations of a library: copies, products, collectives. */
void sim_touch(const void *p, size_t bytes, bool write);
/* From here on it is other memory: who had used it is forgotten. Once before: where it can be. */
void sim_fresh_within(const char *first, const char *end);
void sim_fresh(const char *p, size_t bytes);
void sim_redzone(void *p, size_t bytes, bool poisoned);

/* ---- memory.cc ---- */
struct SimAllocation {
    size_t size, span; /* bytes asked for, bytes taken with the guards */
    uint64_t id;
    int device;
};
bool sim_in_arena(const void *p);
const SimAllocation *sim_find(const void *p, char **base_out);
void sim_need_device(const char *what, const void *p, size_t bytes, int device);
bool sim_is_pinned(const void *p, size_t bytes);
/* Between them device memory is accessible to this thread (and, unavoidably, to all). */
void sim_memory_open();
void sim_memory_close();
void sim_check_all_guards();

/* ---- stream.cc, drive.cc ---- */
struct SimOp {
    std::string name;
    std::function<bool()> ready; /* NULL: always */
    std::function<bool()> run;   /* true: done; false: call again when ready */
    /* Streams that must go on before it can: none when it is ready. */
    std::function<void(std::vector<cudaStream_t> &)> needs;
    bool host; /* runs on the host: without the lock, and device memory closed */
};
void sim_enqueue(cudaStream_t stream, SimOp op);
void sim_enqueue_simple(cudaStream_t stream, const std::string &name, std::function<void()> run);
int sim_stream_device(cudaStream_t stream);             /* fails if it is none */
bool sim_is_head(cudaStream_t stream, uint64_t serial); /* of the op that waits at its head */
uint64_t sim_next_serial(cudaStream_t stream);          /* of the op enqueued next */
/* Run device work until `done`. In the order "demand" nothing but what want() needs runs. */
void sim_drive(const std::function<bool()> &done, const std::function<cudaStream_t()> &want);
void sim_wait_for_stream(cudaStream_t stream, const std::function<bool()> &done);
void sim_poll(cudaStream_t want); /* a few ops, if there are any that can run */
void sim_drain_device(int device);
/* The accesses of an op, as made by a stream; for ops that work on several streams. */
void sim_as_stream(cudaStream_t stream, const std::function<void()> &body);
std::string sim_pending(); /* a line for each stream that has work */

/* ---- launch.cc ---- */
int sim_device();                         /* this thread's current one */
cudaError_t sim_error(cudaError_t error); /* kept for cudaGetLastError, and given back */

/* ---- block.cc, fiber.cc, shared.cc ---- */
void sim_run_grid(const sim_launch_args &launch);
enum { SIM_MAX_THREADS = 1024, SIM_DYNAMIC_SHARED_MAX = 232448, SIM_CANARY = 64 };
struct SimFiber;
SimFiber *sim_fiber_main(); /* the host thread that runs a grid */
SimFiber *sim_fiber_new();  /* runs sim_fiber_body, which never returns, when first swapped to */
void sim_fiber_swap(SimFiber *from, SimFiber *to);
void *&sim_fiber_tsan(SimFiber *fiber);
void sim_fiber_body(); /* block.cc */
void sim_forget_fibers(void *stream_fiber);
unsigned char *sim_dynamic_new(size_t bytes); /* and SIM_CANARY bytes: shared memory of a grid */
void sim_dynamic_delete(unsigned char *p, size_t bytes);
/* Static shared memory of a kernel. It is poisoned whenever no block runs. */
void sim_shared_before_grid();
void sim_shared_after_block(const void *kernel);
void sim_shared_after_grid(const void *kernel);
size_t sim_shared_bytes(const void *kernel); /* as far as its grids have shown */
size_t sim_shared_limit(const void *kernel); /* of both kinds together; launch.cc */
