/* array/cuda/elementwise.cu - element by element on the device: sums, products and multiples,
 * fills, reductions over several arrays, and ranges. The cpu's: array/kernels_elementwise.c,
 * array/kernels_array.c. */
#include "array/cuda/vec.h"

extern "C" {
#include "array/array_internal.h"
}

namespace {
/* Integers wrap around. */
struct wrapping_sum {
    template <class T> __device__ T operator()(T a, T b) const
    {
        if constexpr (std::is_integral_v<T>) {
            using U = std::make_unsigned_t<T>;
            return (T)(U)((U)a + (U)b);
        } else {
            return a + b;
        }
    }
};
struct product_op {
    template <class R> __device__ R operator()(R a, R b) const
    {
        return a * b;
    }
};
template <class R> struct multiple_op {
    R factor;
    __device__ R operator()(R x) const
    {
        return factor * x;
    }
};
template <class S> struct constant_op {
    S value;
    __device__ S operator()() const
    {
        return value;
    }
};

/* out [rows, n] = f(x [rows, n], y [n]). */
template <int N, class I, class F, class S>
__global__ void __launch_bounds__(gpu::BLOCK)
    rows_kernel(I count, gpu::divider<I> n, F f, const S *x, const S *y, S *out)
{
    const I i = (I)gpu::thread_index() * N;
    if (i >= count)
        return;
    gpu::map_pack<N>(gpu::in_math_type<S, F>{f}, out + i, gpu::load<N>(x + i),
                     gpu::load<N>(y + n.remainder(i)));
}

template <int N, class S, class F>
void rows(int64_t outer, int64_t inner, F f, const S *x, const S *y, S *out)
{
    const int64_t count = outer * inner;
    gpu::for_index(count + gpu::BLOCK * N, [&](auto t) {
        using I = typename decltype(t)::storage;
        GPU_LAUNCH((rows_kernel<N, I, F, S>), gpu::blocks(count, gpu::BLOCK * N), gpu::BLOCK, 0,
                   dti_gpu_stream(), (I)count, gpu::divider<I>(inner), f, x, y, out);
    });
}

template <class F>
void with_rows(dt_dtype dtype, int64_t outer, int64_t inner, F f, const void *x, const void *y,
               void *out)
{
    gpu::for_float(dtype, [&](auto t) {
        using S = typename decltype(t)::storage;
        constexpr int N = gpu::PER_16<S>;
        const S *a = (const S *)x, *b = (const S *)y;
        S *c = (S *)out;
        if (outer == 1)
            gpu::map(inner, f, c, a, b);
        else if (outer * inner > 0 && inner % N == 0 && gpu::fits<N>(a, b, c))
            rows<N>(outer, inner, f, a, b, c);
        else if (outer * inner > 0)
            rows<1>(outer, inner, f, a, b, c);
    });
}

void multiple(dt_dtype dtype, int64_t n, double factor, const void *x, void *out)
{
    gpu::for_float(dtype, [&](auto t) {
        using S = typename decltype(t)::storage;
        using R = gpu::real<S>;
        gpu::map(n, multiple_op<R>{(R)factor}, (S *)out, (const S *)x);
    });
}

/* ---- reductions over arrays ---- */

enum { TERMS = 64 }; /* of one launch */

struct terms {
    const void *at[TERMS];
};

/* All terms of an element before it is stored: dst may be any of them. */
template <int N, class S, class F>
__device__ inline void reduce_pack(F f, int nterms, const terms &term, int64_t i, S *dst)
{
    gpu::real<S> total[N], x[N];
    gpu::load_real<N>((const S *)term.at[0] + i, total);
    for (int k = 1; k < nterms; k++) {
        gpu::load_real<N>((const S *)term.at[k] + i, x);
#pragma unroll
        for (int j = 0; j < N; j++)
            total[j] = f(total[j], x[j]);
    }
    gpu::store_real<N>(dst + i, total);
}

template <int N, class S, class F>
__global__ void __launch_bounds__(gpu::BLOCK)
    reduce_kernel(int64_t n, F f, int nterms, terms term, S *dst)
{
    const int64_t i = gpu::thread_index() * N;
    if (i + N <= n) {
        reduce_pack<N>(f, nterms, term, i, dst);
        return;
    }
    for (int64_t j = i; j < n; j++)
        reduce_pack<1>(f, nterms, term, j, dst);
}

template <class S, class F> void reduce(int64_t n, F f, int nterms, const terms &term, S *dst)
{
    constexpr int N = gpu::PER_16<S>;
    bool wide = gpu::fits<N>(dst);
    for (int k = 0; k < nterms; k++)
        wide = wide && gpu::fits<N>((const S *)term.at[k]);
    if (wide)
        GPU_LAUNCH((reduce_kernel<N, S, F>), gpu::blocks(n, gpu::BLOCK * N), gpu::BLOCK, 0,
                   dti_gpu_stream(), n, f, nterms, term, dst);
    else
        GPU_LAUNCH((reduce_kernel<1, S, F>), gpu::blocks(n, gpu::BLOCK), gpu::BLOCK, 0,
                   dti_gpu_stream(), n, f, nterms, term, dst);
}

__global__ void __launch_bounds__(gpu::BLOCK) range_kernel(int64_t n, int32_t first, int32_t *out)
{
    const int64_t i = gpu::thread_index();
    if (i < n)
        out[i] = (int32_t)(first + i);
}
} // namespace

void dti_cuda_fill(dt_dtype dtype, void *dst, int64_t n, double value)
{
    gpu::for_any(dtype, [&](auto t) {
        using S = typename decltype(t)::storage;
        constant_op<S> op;
        dti_fill(dtype, &op.value, 1, value);
        gpu::map_stored(n, op, (S *)dst);
    });
}

void dti_cuda_scale_into(dt_dtype dtype, void *dst, int64_t n, double factor)
{
    multiple(dtype, n, factor, dst, dst);
}

void dti_cuda_add_into(dt_dtype dtype, void *dst, const void *src, int64_t n)
{
    with_rows(dtype, 1, n, gpu::plus_op(), dst, src, dst);
}

void dti_cuda_reduce(dt_dtype dtype, void *dst, int nsrc, const void *const *src, int64_t n,
                     dt_reduce op)
{
    if (n <= 0 || !dst)
        return;
    terms term = {};
    for (int k = 0; k < nsrc && k < TERMS; k++)
        term.at[k] = src[k];
    gpu::for_any(dtype, [&](auto t) {
        using S = typename decltype(t)::storage;
        switch (op) {
        case DT_REDUCE_SUM: reduce(n, wrapping_sum(), nsrc, term, (S *)dst); break;
        case DT_REDUCE_MAX: reduce(n, gpu::max_op(), nsrc, term, (S *)dst); break;
        case DT_REDUCE_MIN: reduce(n, gpu::min_op(), nsrc, term, (S *)dst); break;
        }
    });
}

void dti_cuda_add(dt_dtype dtype, int64_t outer, int64_t inner, const void *x, const void *y,
                  void *out)
{
    with_rows(dtype, outer, inner, gpu::plus_op(), x, y, out);
}

void dti_cuda_mul(dt_dtype dtype, int64_t outer, int64_t inner, const void *x, const void *y,
                  void *out)
{
    with_rows(dtype, outer, inner, product_op(), x, y, out);
}

void dti_cuda_scale(dt_dtype dtype, int64_t n, double factor, const void *x, void *out)
{
    multiple(dtype, n, factor, x, out);
}

void dti_cuda_range(int64_t n, int32_t first, int32_t *out)
{
    if (n > 0)
        GPU_LAUNCH(range_kernel, gpu::blocks(n, gpu::BLOCK), gpu::BLOCK, 0, dti_gpu_stream(), n,
                   first, out);
}
