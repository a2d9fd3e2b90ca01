/* array/cuda/attention.cu - attention forward (1 launch) and backward (3): which kernels compute
 * it, ours or cuDNN's, and what the backward pass needs of each query. Read next:
 * array/cuda/attention_plain.cu, array/cuda/attention_mma.cu, array/cuda/attention_cudnn.c. */
#include "array/cuda/attention_internal.h"

namespace {
using namespace gpu;

/* dout . out, term by term as dp = dout . v is summed in attention_plain.cu, so that a query that
 * sees one key has dp - delta = 0. One thread a query; delta [outer, inner, middle], its rows
 * [outer, middle, inner]. */
template <class S, int N>
__global__ void __launch_bounds__(BLOCK)
    row_dots(int64_t rows, int64_t middle, int64_t inner, int64_t n, const S *dout, const S *out,
             real<S> *delta)
{
    const int64_t r = thread_index();
    real<S> sum = 0;
    for (int64_t i = 0; r < rows && i < n; i += N) {
        real<S> x[N], y[N];
        load_real<N>(dout + r * n + i, x);
        load_real<N>(out + r * n + i, y);
#pragma unroll
        for (int j = 0; j < N; j++)
            sum += x[j] * y[j];
    }
    if (r < rows)
        delta[(r / inner / middle * inner + r % inner) * middle + r / inner % middle] = sum;
}

template <class S> void make_delta(const dt_attention_args *a, real<S> *delta)
{
    constexpr int N = PER_16<S>;
    const int64_t rows = a->batch * a->heads * a->queries;
    const int64_t middle = a->bshd ? a->queries : rows, inner = a->bshd ? a->heads : 1;
    const S *dout = (const S *)a->dout, *out = (const S *)a->out;
    if (a->vdim % N == 0 && fits<N>(dout, out))
        GPU_LAUNCH((row_dots<S, N>), blocks(rows, BLOCK), BLOCK, 0, dti_gpu_stream(), rows, middle,
                   inner, a->vdim, dout, out, delta);
    else
        GPU_LAUNCH((row_dots<S, 1>), blocks(rows, BLOCK), BLOCK, 0, dti_gpu_stream(), rows, middle,
                   inner, a->vdim, dout, out, delta);
}

/* Arrays for positions that are counted. */
dt_attention_args with_positions(const dt_attention_args *a)
{
    dt_attention_args b = *a;
    if (a->causal && (!a->q_pos || !a->k_pos)) {
        const int64_t q_last = a->q_first + a->queries, k_last = a->k_first + a->keys;
        const int32_t *all = dti_gpu_count_up(max(q_last, k_last));
        b.q_pos = a->q_pos ? a->q_pos : all + a->q_first;
        b.k_pos = a->k_pos ? a->k_pos : all + a->k_first;
    }
    return b;
}
} // namespace

void dti_cuda_attention(const dt_attention_args *args)
{
    if (!dti_cudnn_attention(args))
        dti_cuda_attention_own(args);
}

void dti_cuda_attention_own(const dt_attention_args *args)
{
    if (args->batch == 0 || args->heads == 0 || args->queries == 0)
        return;
    const dt_attention_args a = with_positions(args);
    if (gpu::attention_fits_mma(&a))
        gpu::attention_mma(&a);
    else
        gpu::attention_plain(&a);
}

void dti_cuda_attention_backward(const dt_attention_args *args)
{
    void *delta = nullptr;
    const int64_t rows = args->batch * args->heads * args->queries;
    if (args->batch == 0)
        return;
    const dt_attention_args a = with_positions(args);
    if (rows > 0) {
        delta = dti_gpu_scratch((size_t)rows * (a.dtype == DT_F64 ? 8 : 4));
        gpu::for_float(a.dtype, [&](auto t) {
            using S = typename decltype(t)::storage;
            make_delta<S>(&a, (gpu::real<S> *)delta);
        });
    }
    if (gpu::attention_fits_mma(&a))
        gpu::attention_mma_backward(&a, delta);
    else
        gpu::attention_plain_backward(&a, delta);
}
