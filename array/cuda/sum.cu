/* array/cuda/sum.cu - sums over the middle of [outer, mid, inner] on the device, in f64 and in an
 * order that the sizes alone decide.
 *
 * inner == 1: threads share a row. Otherwise threads have columns, and several share one. Where
 * that makes few blocks, `mid` is cut into pieces, whose sums a second launch adds. Numbers of 16
 * bits are added a few at once in f32, which holds their sum nearly exactly, then in f64. */
#include "array/cuda/vec.h"

namespace {
enum { ENOUGH_BLOCKS = 1024, TOGETHER = 4 };

/* What a thread adds up before it goes to f64. */
template <class S> using near_sum = std::conditional_t<sizeof(S) == 2, float, double>;

template <bool MUL, class S> __device__ inline near_sum<S> term(S x, S y)
{
    const auto value = (near_sum<S>)gpu::to_real(x);
    if constexpr (MUL)
        return value * (near_sum<S>)gpu::to_real(y);
    else
        return value;
}

/* Of `mid`; the last may be shorter. */
struct pieces {
    int64_t count, length;
};

/* Cut n so that `others` blocks become enough, but no piece shorter than `least`. */
pieces cut(int64_t others, int64_t n, int64_t least)
{
    int64_t count = others < ENOUGH_BLOCKS ? ENOUGH_BLOCKS / others : 1;
    count = n / least < count ? n / least : count;
    if (count <= 1)
        return {1, n};
    const int64_t length = ((n + count - 1) / count + 63) / 64 * 64;
    return {(n + length - 1) / length, length};
}

/* N elements of x, and of y. WHOLE: addresses are multiples of 16 bytes; otherwise they are added
 * in the same order, more slowly. */
template <int N, bool WHOLE, bool MUL, class S>
__device__ inline void add_terms(const S *x, const S *y, int64_t valid, near_sum<S> (&near)[N])
{
    gpu::pack<S, N> a, b;
    if (WHOLE && valid >= N) {
        a = gpu::load<N>(x);
        b = MUL ? gpu::load<N>(y) : a;
    } else {
        a = gpu::load_some<N>(x, valid);
        b = MUL ? gpu::load_some<N>(y, valid) : a;
    }
#pragma unroll
    for (int j = 0; j < N; j++)
        near[j] += term<MUL>(a.at[j], b.at[j]);
}

/* ---- inner == 1 ---- */

/* out [outer, pieces] of x [outer, mid], LANES threads a sum, N elements each at once. */
template <int N, bool WHOLE, int LANES, bool MUL, class S, class Out>
__global__ void __launch_bounds__(gpu::BLOCK)
    rows_kernel(int64_t outer, int64_t mid, pieces p, const S *x, const S *y, Out *out)
{
    const int64_t sum = gpu::thread_index() / LANES;
    const int lane = threadIdx.x % LANES;
    const int64_t row = sum / p.count, lo = sum % p.count * p.length;
    const bool mine = row < outer;
    const int64_t hi = !mine ? lo : lo + p.length < mid ? lo + p.length : mid;
    const S *a = x + row * mid, *b = y + row * mid;
    double total = 0;
#pragma unroll 2
    for (int64_t i = lo + lane * N; i < hi; i += LANES * N) {
        near_sum<S> near[N] = {};
        add_terms<N, WHOLE, MUL>(a + i, b + i, hi - i, near);
#pragma unroll
        for (int j = 1; j < N; j++)
            near[0] += near[j];
        total += (double)near[0];
    }
    if constexpr (LANES == 32)
        total = gpu::warp_reduce(total, gpu::plus_op());
    else if constexpr (LANES > 32)
        total = gpu::block_sum(total);
    if (mine && lane == 0)
        out[sum] = gpu::from_real<Out>((gpu::real<Out>)total);
}

template <int LANES, bool MUL, class S, class Out>
void rows(int64_t outer, int64_t mid, pieces p, const S *x, const S *y, Out *out)
{
    constexpr int N = LANES == 1 ? 1 : gpu::PER_16<S>;
    const unsigned grid = gpu::blocks(outer * p.count, gpu::BLOCK / LANES);
    if (gpu::fits<N>(x, y) && (outer == 1 || mid % N == 0))
        GPU_LAUNCH((rows_kernel<N, true, LANES, MUL, S, Out>), grid, gpu::BLOCK, 0,
                   dti_gpu_stream(), outer, mid, p, x, y, out);
    else
        GPU_LAUNCH((rows_kernel<N, false, LANES, MUL, S, Out>), grid, gpu::BLOCK, 0,
                   dti_gpu_stream(), outer, mid, p, x, y, out);
}

/* ---- columns ---- */

/* out [outer, pieces, inner] of x [outer, mid, inner]: strips of `width` threads side by side, each
 * with N columns, and the other threads of the block below each other. */
template <int N, bool WHOLE, bool MUL, class S, class Out>
__global__ void __launch_bounds__(gpu::BLOCK)
    columns_kernel(int64_t mid, int64_t inner, pieces p, int width, int64_t nstrips, const S *x,
                   const S *y, Out *out)
{
    __shared__ double part[gpu::BLOCK * N];
    const int64_t strip = blockIdx.x % nstrips, sum = blockIdx.x / nstrips;
    const int64_t o = sum / p.count, lo = sum % p.count * p.length;
    const int64_t hi = lo + p.length < mid ? lo + p.length : mid;
    const int across = threadIdx.x % width, down = threadIdx.x / width;
    const int height = gpu::BLOCK / width;
    const int64_t first = strip * width * N, column = first + across * N;
    double total[N] = {};
    for (int64_t m = lo + down; m < hi && column < inner; m += TOGETHER * height) {
        near_sum<S> near[N] = {};
#pragma unroll
        for (int k = 0; k < TOGETHER; k++) {
            const int64_t row = m + k * height, at = (o * mid + row) * inner + column;
            if (row < hi)
                add_terms<N, WHOLE, MUL>(x + at, y + at, inner - column, near);
        }
#pragma unroll
        for (int j = 0; j < N; j++)
            total[j] += (double)near[j];
    }
#pragma unroll
    for (int j = 0; j < N; j++)
        part[(down * width + across) * N + j] = total[j];
    __syncthreads();
    for (int c = threadIdx.x; c < width * N && first + c < inner; c += gpu::BLOCK) {
        double all = 0;
        for (int h = 0; h < height; h++)
            all += part[h * width * N + c];
        out[sum * inner + first + c] = gpu::from_real<Out>((gpu::real<Out>)all);
    }
}

/* Threads side by side: enough for all columns, up to a warp. */
template <class S> int width_of(int64_t inner)
{
    int width = 1;
    while (width < 32 && width * gpu::PER_16<S> < inner)
        width *= 2;
    return width;
}

template <bool MUL, class S, class Out>
void columns(int64_t outer, int64_t mid, int64_t inner, pieces p, const S *x, const S *y, Out *out)
{
    constexpr int N = gpu::PER_16<S>;
    const int width = width_of<S>(inner);
    const int64_t nstrips = gpu::blocks(inner, width * N);
    const unsigned grid = (unsigned)(outer * p.count * nstrips);
    if (inner % N == 0 && gpu::fits<N>(x, y))
        GPU_LAUNCH((columns_kernel<N, true, MUL, S, Out>), grid, gpu::BLOCK, 0, dti_gpu_stream(),
                   mid, inner, p, width, nstrips, x, y, out);
    else
        GPU_LAUNCH((columns_kernel<N, false, MUL, S, Out>), grid, gpu::BLOCK, 0, dti_gpu_stream(),
                   mid, inner, p, width, nstrips, x, y, out);
}

/* ---- one launch, or two ---- */

template <bool MUL, class S, class Out>
void launch(int64_t outer, int64_t mid, int64_t inner, pieces p, const S *x, const S *y, Out *out)
{
    if (inner > 1)
        columns<MUL>(outer, mid, inner, p, x, y, out);
    else if (mid <= 16)
        rows<1, MUL>(outer, mid, p, x, y, out);
    else if (mid <= 1024)
        rows<32, MUL>(outer, mid, p, x, y, out);
    else
        rows<gpu::BLOCK, MUL>(outer, mid, p, x, y, out);
}

template <class S> pieces pieces_for(int64_t outer, int64_t mid, int64_t inner)
{
    if (inner == 1)
        return cut(outer, mid, 4096);
    const int width = width_of<S>(inner);
    return cut(outer * gpu::blocks(inner, width * gpu::PER_16<S>), mid,
               2 * TOGETHER * gpu::BLOCK / width);
}

template <bool MUL, class S>
void sum(int64_t outer, int64_t mid, int64_t inner, const S *x, const S *y, S *out)
{
    if (outer <= 0 || inner <= 0)
        return;
    const pieces p = pieces_for<S>(outer, mid, inner);
    if (p.count == 1) {
        launch<MUL>(outer, mid, inner, p, x, y, out);
        return;
    }
    double *part = (double *)dti_gpu_scratch((size_t)(outer * p.count * inner) * sizeof *part);
    if (!part)
        return;
    launch<MUL>(outer, mid, inner, p, x, y, part);
    launch<false>(outer, p.count, inner, pieces{1, p.count}, (const double *)part,
                  (const double *)part, out);
}
} // namespace

void dti_cuda_sum(dt_dtype dtype, int64_t outer, int64_t mid, int64_t inner, const void *x,
                  void *out)
{
    gpu::for_float(dtype, [&](auto t) {
        using S = typename decltype(t)::storage;
        sum<false>(outer, mid, inner, (const S *)x, (const S *)x, (S *)out);
    });
}

void dti_cuda_sum_mul(dt_dtype dtype, int64_t mid, int64_t inner, const void *x, const void *y,
                      void *out)
{
    gpu::for_float(dtype, [&](auto t) {
        using S = typename decltype(t)::storage;
        sum<true>(1, mid, inner, (const S *)x, (const S *)y, (S *)out);
    });
}
