/* tests/simdev/self/faults.h - the wrong kernels as C calls, and the wrong programs. */
#pragma once

#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stddef.h>

/* Kernels that take an array of 64, or 128, and nothing else. */
#define FAULT_KERNELS(X)     \
    X(exit_before_barrier)   \
    X(branch_around_barrier) \
    X(shuffle_exited)        \
    X(shuffle_branched)      \
    X(shuffle_left_out)      \
    X(shuffle_foreign)       \
    X(active_mask)           \
    X(no_barrier_left)       \
    X(no_barrier_right)      \
    X(no_barrier_behind)     \
    X(no_syncwarp)           \
    X(shuffle_for_syncwarp)  \
    X(blocks_write_one)      \
    X(not_atomic)            \
    X(write_before)          \
    X(misaligned)            \
    X(fine)

#ifdef __cplusplus
extern "C" {
#endif
void k_fault(const char *name, int blocks, int *out, cudaStream_t s); /* blocks of 64 threads */
/* Writes element n of 64: of global (0), static shared (1), dynamic shared (2) memory. */
void k_past(int which, int n, int *out, cudaStream_t s);
void k_much_shared(size_t bytes, int *out, cudaStream_t s); /* and 36000 bytes of static */
void k_shared_limit(int bytes);
void k_threads(int blocks, int threads, int *out, cudaStream_t s);
#ifdef __cplusplus
}
#endif

/* Do what is wrong; returns if nobody stops it. False: no fault of that name. */
bool fault_of_memory(const char *name);
bool fault_of_streams(const char *name);
bool fault_of_nccl(const char *name);
bool fault_of_cudnn(const char *name) __attribute__((weak)); /* NULL: no cuDNN */
/* A loop of layers on two devices, as a sharded model runs them: parameters gathered on one stream,
 * used on a second, gradients reduced on a third. omit 1 to 5: without one of its waits. True: the
 * results are right. */
bool zero_loop(int omit);
