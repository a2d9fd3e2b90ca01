/* tests/simdev/core.h - what compiled kernels ask of the simulated device (libsimdev.so).
 *
 * Kernels see this through simdev.h only. The functions that name a file and a line are called by
 * macros, so that messages point at the kernel's source. */
#pragma once

#include <cuda_runtime_api.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif
/* The simulated thread that runs now. */
extern uint3 sim_threadIdx, sim_blockIdx;
extern dim3 sim_blockDim, sim_gridDim;
int sim_lane(void);
int sim_lane_exists(int lane); /* of this thread's warp; the last warp may be short */

/* Print `simdev: FATAL: ...` and end the process with status 97. */
void sim_fail(const char *format, ...) __attribute__((noreturn, format(printf, 1, 2)));

/* A barrier of the block; gives the sum of `value` over its threads. */
int sim_barrier(int value, const char *file, int line);
/* A meeting of the lanes in `mask`: gives each lane's value, valid until the warp's next meeting
 * but one. Lanes that meet with different `op` or line are an error. `value` NULL: only meet. */
const uint64_t *sim_warp_rv(unsigned mask, const uint64_t *value, int op, const char *file,
                            int line);
unsigned sim_no_activemask(void); /* fails: what it gives depends on the schedule */
void sim_yield(void);
void *sim_dynamic_shared(void);
/* Fail: an access of `bytes` at once. */
void sim_misaligned(const void *p, size_t bytes) __attribute__((noreturn));

/* Fail unless p is NULL or inside a live allocation of the device that the launch goes to, or at
 * its end. (Pointers inside structures are not looked at: what a kernel does not use of those need
 * not be set.) */
void sim_check_pointer(const char *kernel, int argument, const void *p, cudaStream_t stream);

/* Part of an allocation is in use from here on, in the order of `stream`: new, and so poisoned; or
 * no longer. Allocators that cudaMalloc large pieces and share them out tell. */
void sim_block_taken(void *p, size_t bytes, size_t red_zone, cudaStream_t stream);
void sim_block_given(void *p, size_t bytes, cudaStream_t stream);

typedef struct sim_launch_args {
    const char *name; /* the kernel's, as it is written in the launch */
    const void *kernel;
    dim3 grid, block;
    size_t shared_bytes;
    void (*call)(const void *kernel, void *args); /* one simulated thread */
    void *args;
    void (*destroy)(void *args);
} sim_launch_args;
void sim_enqueue_kernel(const sim_launch_args *launch, cudaStream_t stream);

/* For tests. Order of blocks and threads: 0 forward, 1 reverse, 2 random (SIMDEV_ORDER). */
void sim_set_order(int order);
size_t sim_live_allocations(void);
uint64_t sim_launches(void);
#ifdef __cplusplus
}
#endif
