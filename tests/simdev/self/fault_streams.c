/* tests/simdev/self/fault_streams.c - programs that use streams, events and products wrongly. */
#include "device_test.h"
#include "faults.h"
#include "kernels.h"

#include <cublasLt.h>
#include <string.h>

static cudaStream_t s;
static cudaEvent_t event;
static float *x; /* 64 elements on device 0 */

static void default_stream(void)
{
    ck_cuda(cudaMemsetAsync(x, 0, 64, NULL));
}

static void destroyed_stream(void)
{
    ck_cuda(cudaStreamDestroy(s));
    ck_cuda(cudaMemsetAsync(x, 0, 64, s));
}

static void destroyed_event(void)
{
    ck_cuda(cudaEventDestroy(event));
    ck_cuda(cudaStreamWaitEvent(s, event, 0));
}

static void stream_of_other_device(void)
{
    ck_cuda(cudaSetDevice(1));
    k_fault("fine", 1, (int *)x, s);
}

static void event_of_other_device(void)
{
    ck_cuda(cudaSetDevice(1));
    ck_cuda(cudaEventRecord(event, new_stream()));
}

/* [m, k] times [k, n], row by row; the last row of `a` starts 8 elements too late. */
static void product_range(void)
{
    enum { M = 8, N = 8, K = 8 };
    cublasLtHandle_t lt;
    cublasLtMatmulDesc_t desc;
    cublasLtMatrixLayout_t a, b;
    float one = 1, zero = 0, *y = device_array(M * N * sizeof(float));
    ck_assert(cublasLtCreate(&lt) == CUBLAS_STATUS_SUCCESS);
    ck_assert(cublasLtMatmulDescCreate(&desc, CUBLAS_COMPUTE_32F, CUDA_R_32F) ==
              CUBLAS_STATUS_SUCCESS);
    ck_assert(cublasLtMatrixLayoutCreate(&a, CUDA_R_32F, M, K, K + 1) == CUBLAS_STATUS_SUCCESS);
    ck_assert(cublasLtMatrixLayoutCreate(&b, CUDA_R_32F, K, N, K) == CUBLAS_STATUS_SUCCESS);
    (void)cublasLtMatmul(lt, desc, &one, x, a, x, b, &zero, y, b, y, b, NULL, NULL, 0, s);
}

/* Two streams of one device and one of another, of which none waits for another, with kernels that
 * use all that a block has of its own: static and dynamic shared memory, shuffles, arrays of its
 * threads. */
static void streams_apart(bool one_result)
{
    enum { ROWS = 3, N = 70, STREAMS = 3, ROUNDS = 4 };
    float *in[STREAMS], *out[STREAMS];
    int *count[STREAMS];
    cudaStream_t stream[STREAMS];
    for (int i = 0; i < STREAMS; i++) {
        ck_cuda(cudaSetDevice(i == 2));
        stream[i] = new_stream();
        in[i] = device_array(ROWS * N * sizeof(float));
        out[i] = device_array(ROWS * sizeof(float));
        count[i] = device_array(ROWS * (size_t)256 * sizeof(int));
        ck_cuda(cudaMemsetAsync(in[i], 0, ROWS * N * sizeof(float), stream[i]));
    }
    for (int round = 0; round < ROUNDS; round++)
        for (int i = 0; i < STREAMS; i++) {
            float *result = out[one_result && i == 1 ? 0 : i];
            const int threads = 32 << (round + i) % 4;
            ck_cuda(cudaSetDevice(i == 2));
            k_row_sum(result, in[i], ROWS, N, threads, round % 2, stream[i]);
            k_own_arrays(count[i], ROWS, threads, stream[i]);
        }
    for (int i = 0; i < STREAMS; i++)
        ck_cuda(cudaStreamSynchronize(stream[i]));
}

static void streams_share_nothing(void)
{
    streams_apart(false);
}

static void streams_write_one(void)
{
    streams_apart(true);
}

#define FAULTS(X)             \
    X(streams_share_nothing)  \
    X(streams_write_one)      \
    X(default_stream)         \
    X(destroyed_stream)       \
    X(destroyed_event)        \
    X(stream_of_other_device) \
    X(event_of_other_device)  \
    X(product_range)

bool fault_of_streams(const char *name)
{
    s = new_stream();
    x = device_array(64 * sizeof *x);
    ck_cuda(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
#define X(fault)                 \
    if (!strcmp(name, #fault)) { \
        fault();                 \
        return true;             \
    }
    FAULTS(X)
#undef X
    return false;
}
