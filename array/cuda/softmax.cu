/* array/cuda/softmax.cu - softmax over rows: a group of threads a row, one read where registers
 * hold the row. */
#include "array/cuda/expo.h"
#include "array/cuda/rows.h"

namespace {
using namespace gpu;

constexpr int EACH = 16; /* elements of a row a thread */

template <class S, int N, int K>
__global__ void __launch_bounds__(ROW_THREADS)
    softmax_rows(int64_t rows, int64_t n, const S *from, S *y)
{
    using R = real<S>;
    const int64_t r = (int64_t)blockIdx.x * blockDim.y + threadIdx.y;
    const int64_t m = r < rows ? n / N : 0;
    row<S, N, K> x;
    x.open(from + r * n, m);
    R most = -INFINITY;
    x.each(m, [&](int k, int64_t p) {
        R v[N];
        x.get(k, p, v);
#pragma unroll
        for (int j = 0; j < N; j++)
            most = largest_op()(most, v[j]);
    });
    most = group_max(most);
    R held[K ? K : 1][N];
    double sum = 0;
    x.each(m, [&](int k, int64_t p) {
        R(&v)[N] = held[k];
        x.get(k, p, v);
#pragma unroll
        for (int j = 0; j < N; j++)
            v[j] = exponential<S>(v[j] - most);
        sum += pack_sum(v);
    });
    const R factor = (R)(1 / group_sum(sum));
    x.each(m, [&](int k, int64_t p) {
        R v[N];
        if constexpr (K == 0)
            x.get(k, p, v);
#pragma unroll
        for (int j = 0; j < N; j++)
            v[j] = (K ? held[k][j] : exponential<S>(v[j] - most)) * factor;
        pack_at<N>(y + r * n, p) = packed<S>(v);
    });
}

template <class S, int N, int K>
__global__ void __launch_bounds__(ROW_THREADS)
    softmax_dx_rows(int64_t rows, int64_t n, const S *y_from, const S *dy_from, S *dx)
{
    using R = real<S>;
    const int64_t r = (int64_t)blockIdx.x * blockDim.y + threadIdx.y;
    const int64_t m = r < rows ? n / N : 0;
    row<S, N, K> y, dy;
    y.open(y_from + r * n, m);
    dy.open(dy_from + r * n, m);
    double sum = 0;
    y.each(m, [&](int k, int64_t p) {
        R v[N], g[N];
        y.get(k, p, v);
        dy.get(k, p, g);
#pragma unroll
        for (int j = 0; j < N; j++)
            v[j] *= g[j];
        sum += pack_sum(v);
    });
    const R dot = (R)group_sum(sum);
    y.each(m, [&](int k, int64_t p) {
        R v[N], g[N];
        y.get(k, p, v);
        dy.get(k, p, g);
#pragma unroll
        for (int j = 0; j < N; j++)
            v[j] *= g[j] - dot;
        pack_at<N>(dx + r * n, p) = packed<S>(v);
    });
}
} // namespace

void dti_cuda_softmax(dt_dtype dtype, int64_t rows, int64_t n, const void *x, void *y)
{
    if (rows <= 0 || n <= 0)
        return;
    for_float(dtype, [&](auto t) {
        using S = typename decltype(t)::storage;
        const row_shape s = shape_of_rows(rows, n, EACH);
        const bool packs = fits<PER_16<S>>((const S *)x, (const S *)y);
        for_rows<S, EACH>(n, packs, [&](auto pack, auto keep) {
            GPU_LAUNCH((softmax_rows<S, decltype(pack)::value, decltype(keep)::value>),
                       (unsigned)s.blocks, s.block, 0, dti_gpu_stream(), rows, n, (const S *)x,
                       (S *)y);
        });
    });
}

void dti_cuda_softmax_dx(dt_dtype dtype, int64_t rows, int64_t n, const void *y, const void *dy,
                         void *dx)
{
    if (rows <= 0 || n <= 0)
        return;
    for_float(dtype, [&](auto t) {
        using S = typename decltype(t)::storage;
        const row_shape s = shape_of_rows(rows, n, EACH);
        const bool packs = fits<PER_16<S>>((const S *)y, (const S *)dy, (const S *)dx);
        for_rows<S, EACH>(n, packs, [&](auto pack, auto keep) {
            GPU_LAUNCH((softmax_dx_rows<S, decltype(pack)::value, decltype(keep)::value>),
                       (unsigned)s.blocks, s.block, 0, dti_gpu_stream(), rows, n, (const S *)y,
                       (const S *)dy, (S *)dx);
        });
    });
}
