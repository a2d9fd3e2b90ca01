/* array/cuda_internal.h - what array/ asks of the cuda device: array/cuda/, or cuda_none.c where it
 * is not built in. Read next: array/cuda/gpu_internal.h. */
#pragma once

#include "array/array_internal.h"
#include "array/dt_kernels_math.h"
#include "array/dt_kernels_nn.h"
#include "array/dt_kernels_optim.h"
#include "array/dt_matmul.h"

/* One cast of a list. */
typedef struct dti_cast_args {
    dt_dtype to, from;
    void *dst;
    const void *src;
    int64_t n;
} dti_cast_args;

/* Whole-array operations on device pointers, in the order of the rank's compute stream; contracts
 * as in array/array_internal.h. */
typedef struct dti_cuda_arrays {
    void (*zero)(void *dst, size_t bytes);
    void (*copy)(void *dst, const void *src, size_t bytes);
    void (*fill)(dt_dtype dtype, void *dst, int64_t n, double value);
    void (*scale)(dt_dtype dtype, void *dst, int64_t n, double factor);
    void (*add)(dt_dtype dtype, void *dst, const void *src, int64_t n);
    /* A launch for neighbours in the list of the same two types. */
    void (*cast)(int count, const dti_cast_args *list);
    void (*copy_block)(const dti_strided_block *b);
    void (*reduce)(dt_dtype dtype, void *dst, int nsrc, const void *const *src, int64_t n,
                   dt_reduce op);
    /* Host to device, where the host's bytes may change at once, and back; both block. */
    dt_status (*write)(void *dst, const void *host, size_t bytes);
    dt_status (*read)(void *host, const void *src, size_t bytes);
} dti_cuda_arrays;

/* The tables; NULL where cuda is not built in. */
const dti_cuda_arrays *dti_cuda_array_kernels(void);
const dt_math_kernels *dti_cuda_math_kernels(void);
const dt_nn_kernels *dti_cuda_nn_kernels(void);
const dt_optim_kernels *dti_cuda_optim_kernels(void);
/* Arguments are checked, leading dimensions are set; m, n and batch are > 0, k may be 0. */
dt_status dti_cuda_matmul(const dt_matmul_args *p);

/* The memory of a heap: one stretch of device memory (`bytes` 0: nine tenths of the device's share
 * for one of `ranks` on it; where others have taken so much that this is not free, half of the
 * share of what is left). It also makes this thread's context (array/cuda/gpu_internal.h), which
 * lives as long as it has a heap. Any thread may destroy it, once the thread that made it has ended
 * or is the same.
 * Errors: DT_ERR_DEVICE, DT_ERR_NOMEM. */
typedef struct dti_cuda_memory {
    void *base;
    size_t bytes;
    void *context;
} dti_cuda_memory;
dt_status dti_cuda_memory_create(int device, int ranks, size_t bytes, dti_cuda_memory *memory_out);
void dti_cuda_memory_destroy(const dti_cuda_memory *memory);
/* A block of that memory is in use from here on, in the order of the compute stream, with a red
 * zone behind it; or no longer. For the simulated device (tests/simdev), which poisons it each
 * time. */
void dti_cuda_block_taken(void *block, size_t bytes, size_t red_zone);
void dti_cuda_block_given(void *block, size_t bytes);

/* Copies between the device and pinned memory of the host that the host does not wait for, on two
 * streams, one each way. A copy comes after what is on the compute stream at the call, and after
 * the mark, which then stands for its end; streams that have no need of it go on. A mark is of one
 * thread's device. Errors stay with the device (dt_heap_status). */
typedef struct dti_cuda_copies_table {
    dt_status (*pin)(void *host, size_t bytes); /* until then such copies block */
    void (*unpin)(void *host);
    /* drop: 0, or the wait that is left out, by its number in array/cuda/copies.c (tests) */
    dt_status (*open)(int drop, void **streams_out);
    void (*close)(void *streams); /* Blocks: until all is done */
    dt_status (*mark)(void **mark_out);
    void (*unmark)(void *mark); /* the host waits for its copy */
    void (*in)(void *streams, void *dst, const void *host, size_t bytes, void *mark);
    /* Another mark is made to stand for its end too, without being waited for. */
    void (*out)(void *streams, void *host, const void *src, size_t bytes, void *mark, void *other);
    /* What comes on the compute stream from now on is after the mark. */
    void (*wait)(void *streams, void *mark);
} dti_cuda_copies_table;
/* NULL where cuda is not built in. */
const dti_cuda_copies_table *dti_cuda_copies(void);

/* Behind dt_device_count, dt_heap_get_counts, dt_heap_status and dt_heap_stream. */
int dti_cuda_device_count(void);
dt_heap_counts dti_cuda_counts(void);
dt_status dti_cuda_status(void);
void *dti_cuda_stream(void);
void *dti_cuda_set_stream(void *stream);
void dti_cuda_set_watch(dt_heap_watch watch, void *arg);
