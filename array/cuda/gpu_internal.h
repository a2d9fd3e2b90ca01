/* array/cuda/gpu_internal.h - a rank's context on its device: the stream that its kernels run on,
 * memory for their own use, and the first error. Plain C, also for .cu files.
 *
 * A rank is a thread, and a context belongs to the thread that made it: a heap on cuda makes it,
 * the last heap of the thread ends it. All that array/ does on the device is put on the compute
 * stream in the order of the calls; nothing waits but reads. */
#pragma once

#include "base/dt_types.h"

#include <cuda_runtime_api.h>

/* This thread's compute stream. There must be a context. */
cudaStream_t dti_gpu_stream(void);
/* Workspace in the order of the compute stream: valid for what is put on it until the next call,
 * which may give the same bytes. Grows rarely; what fits costs nothing. NULL, with the error kept,
 * where the device has no memory. */
void *dti_gpu_scratch(size_t bytes);
/* 0, 1, ... at least to n - 1, kept for what follows on the compute stream: made anew, with a wait,
 * where an n is larger than all before. NULL as above. */
const int32_t *dti_gpu_count_up(int64_t n);
/* Keep the first error of this thread's context: DTI_GPU(cudaMemcpyAsync(...)). True: fine. The
 * error stays; dti_cuda_status gives it. */
bool dti_gpu_ok(cudaError_t error, const char *what, const char *file, int line);
#define DTI_GPU(call) dti_gpu_ok((call), #call, __FILE__, __LINE__)
/* What array/cuda/matmul.c and attention_cudnn.c keep in this thread's context: zeros at first;
 * `drop` ends it with the context, once the device has come to rest. */
typedef enum dti_gpu_keeper { DTI_GPU_PRODUCTS, DTI_GPU_ATTENTION, DTI_GPU_KEEPERS } dti_gpu_keeper;
typedef struct dti_gpu_kept {
    void *state;
    void (*drop)(void *state);
} dti_gpu_kept;
dti_gpu_kept *dti_gpu_keep(dti_gpu_keeper keeper);
/* Every launch is counted, and every wait of the host for the device; for tests and reports. */
typedef struct dti_gpu_counts {
    int64_t launches, waits;
} dti_gpu_counts;
dti_gpu_counts dti_gpu_get_counts(void);
void dti_gpu_count_launch(void);
/* Wait for all that is on the compute stream. Blocks. */
void dti_gpu_sync(void);
