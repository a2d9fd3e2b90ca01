/* array/cuda/vec.h - what kernels share: storage types and their math type, accesses of 16 bytes,
 * sums over warps and blocks, and launches over the elements of arrays.
 *
 * A kernel is a template of its storage type: float, double, bf16 or f16; it computes in
 * real<S>, float for 16 bits, and rounds once. Kernels and the functors they take belong into an
 * unnamed namespace of their .cu file: two files' templates of the same name would be one.
 *
 *     namespace {
 *     template <class R> struct plus {
 *         __device__ R operator()(R a, R b) const { return a + b; }
 *     };
 *     }
 *     gpu::for_float(dtype, [&](auto t) {
 *         using S = typename decltype(t)::storage;
 *         gpu::map(n, plus<gpu::real<S>>{}, (S *)out, (const S *)x, (const S *)y);
 *     });
 */
#pragma once

#include "array/cuda/gpu_lang.h"

namespace gpu {
using bf16 = __nv_bfloat16;
using f16 = __half;

/* ---- storage types ---- */

/* Integers are computed in their own type. */
template <class S> struct math_type {
    using type = S;
};
template <> struct math_type<bf16> {
    using type = float;
};
template <> struct math_type<f16> {
    using type = float;
};
template <class S> using real = typename math_type<S>::type;

template <class S> __device__ inline real<S> to_real(S x)
{
    if constexpr (std::is_same_v<S, bf16>)
        return __bfloat162float(x);
    else if constexpr (std::is_same_v<S, f16>)
        return __half2float(x);
    else
        return x;
}

/* Rounded to nearest, ties to even. */
template <class S> __device__ inline S from_real(real<S> x)
{
    if constexpr (std::is_same_v<S, bf16>)
        return __float2bfloat16_rn(x);
    else if constexpr (std::is_same_v<S, f16>)
        return __float2half_rn(x);
    else
        return x;
}

/* f(type<S>()) for the storage type of a float dtype, or of any dtype. */
template <class S> struct type {
    using storage = S;
};
template <class F> void for_float(dt_dtype dtype, F f)
{
    switch (dtype) {
    case DT_F32: f(type<float>()); break;
    case DT_BF16: f(type<bf16>()); break;
    case DT_F16: f(type<f16>()); break;
    case DT_F64: f(type<double>()); break;
    default: break;
    }
}
template <class F> void for_any(dt_dtype dtype, F f)
{
    switch (dtype) {
    case DT_I32: f(type<int32_t>()); break;
    case DT_I64: f(type<int64_t>()); break;
    case DT_U8: f(type<uint8_t>()); break;
    default: for_float(dtype, f); break;
    }
}

/* ---- accesses ---- */

/* N neighbours, moved by accesses of at most 16 bytes: their address must be a multiple of what is
 * moved at once. PER_16 fill one access. */
template <class S, int N> struct alignas(sizeof(S) * N < 16 ? sizeof(S) * N : 16) pack {
    S at[N];
};
template <class S> constexpr int PER_16 = 16 / (int)sizeof(S);

template <int N, class S> __device__ inline pack<S, N> load(const S *p)
{
    using at_once = const pack<S, N>;
    return *GPU_AT_ONCE(at_once, p);
}
template <class S, int N> __device__ inline void store(S *p, const pack<S, N> &x)
{
    using at_once = pack<S, N>;
    *GPU_AT_ONCE(at_once, p) = x;
}
/* The first `valid` of N, from any address; the others are 0. */
template <int N, class S> __device__ inline pack<S, N> load_some(const S *p, int64_t valid)
{
    pack<S, N> x;
#pragma unroll
    for (int i = 0; i < N; i++)
        x.at[i] = i < valid ? p[i] : from_real<S>(0);
    return x;
}
/* load in the math type, and store. */
template <int N, class S> __device__ inline void load_real(const S *p, real<S> (&x)[N])
{
    const pack<S, N> raw = load<N>(p);
#pragma unroll
    for (int i = 0; i < N; i++)
        x[i] = to_real(raw.at[i]);
}
template <int N, class S> __device__ inline void store_real(S *p, const real<S> (&x)[N])
{
    pack<S, N> raw;
#pragma unroll
    for (int i = 0; i < N; i++)
        raw.at[i] = from_real<S>(x[i]);
    store(p, raw);
}

/* May packs of N elements be moved at these addresses? (N elements from the start of every row: the
 * row's length must be a multiple of N too.) NULL: no array. */
template <int N, class... S> bool fits(const S *...p)
{
    return (((uintptr_t)p % alignof(pack<S, N>) == 0) && ...);
}

/* Divides by one number, again and again: 32-bit numbers below 2^31 by a product and a shift. */
template <class Index> class divider;
template <> class divider<int64_t> {
    int64_t by;

  public:
    divider() = default;
    divider(int64_t d) : by(d)
    {
    }
    __device__ int64_t quotient(int64_t n) const
    {
        return n / by;
    }
    __device__ int64_t remainder(int64_t n) const
    {
        return split(n);
    }
    /* n becomes the quotient; gives the remainder. */
    __device__ int64_t split(int64_t &n) const
    {
        const int64_t all = n;
        n = all / by;
        return all - n * by;
    }
};
template <> class divider<uint32_t> {
    uint32_t by, magic, shift;

  public:
    divider() = default;
    /* floor(n / d) = floor((n (2^32 + magic)) / 2^(32 + shift)), 2^shift >= d. */
    divider(int64_t d) : by((uint32_t)d), shift(0)
    {
        while ((int64_t)1 << shift < d)
            shift++;
        magic = (uint32_t)((((uint64_t)1 << 32) * (((uint64_t)1 << shift) - by)) / by + 1);
    }
    __device__ uint32_t quotient(uint32_t n) const
    {
        return (__umulhi(n, magic) + n) >> shift;
    }
    __device__ uint32_t remainder(uint32_t n) const
    {
        return split(n);
    }
    __device__ uint32_t split(uint32_t &n) const
    {
        const uint32_t all = n;
        n = quotient(all);
        return all - n * by;
    }
};
/* f(type<I>()) for the index type of n elements: uint32_t where they are fewer than 2^31. */
template <class F> void for_index(int64_t n, F f)
{
    if (n < (int64_t)1 << 31)
        f(type<uint32_t>());
    else
        f(type<int64_t>());
}

/* ---- warps and blocks: fixed orders, every thread gets the result ---- */

constexpr unsigned ALL_LANES = 0xffffffffu;

struct plus_op {
    template <class T> __device__ T operator()(T a, T b) const
    {
        return a + b;
    }
};
/* A NaN stays. */
struct max_op {
    template <class T> __device__ T operator()(T a, T b) const
    {
        return b > a || !(b == b) ? b : a;
    }
};
struct min_op {
    template <class T> __device__ T operator()(T a, T b) const
    {
        return b < a || !(b == b) ? b : a;
    }
};

/* op is commutative: lanes i and j compute op(i, j) and op(j, i). */
template <class T, class Op> __device__ inline T warp_reduce(T x, Op op)
{
#pragma unroll
    for (int step = 16; step > 0; step /= 2)
        x = op(x, __shfl_xor_sync(ALL_LANES, x, step));
    return x;
}

/* Over a block of one dim, a multiple of 32 threads: all of them must call it. */
template <class T, class Op> __device__ inline T block_reduce(T x, Op op)
{
    __shared__ T part[32];
    x = warp_reduce(x, op);
    __syncthreads(); /* the last call's parts have been read */
    if (threadIdx.x % 32 == 0)
        part[threadIdx.x / 32] = x;
    __syncthreads();
    x = part[0];
    for (unsigned w = 1; w < blockDim.x / 32; w++)
        x = op(x, part[w]);
    return x;
}
template <class T> __device__ inline T block_sum(T x)
{
    return block_reduce(x, plus_op());
}

/* ---- launches ---- */

constexpr int BLOCK = 256; /* threads, where nothing asks for another number */

/* Blocks for n indices, `each` a block. */
inline unsigned blocks(int64_t n, int64_t each)
{
    return (unsigned)((n + each - 1) / each);
}
__device__ inline int64_t thread_index()
{
    return (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
}

template <int M> constexpr int largest(const int (&x)[M])
{
    int most = x[0];
    for (int i = 1; i < M; i++)
        most = x[i] > most ? x[i] : most;
    return most;
}

template <int N, class F, class S, class... In>
__device__ inline void map_pack(F f, S *out, pack<In, N>... x)
{
    pack<S, N> y;
#pragma unroll
    for (int j = 0; j < N; j++)
        y.at[j] = f(x.at[j]...);
    store(out, y);
}

template <int N, class F, class S, class... In>
__global__ void __launch_bounds__(BLOCK) map_kernel(int64_t n, F f, S *out, const In *...in)
{
    const int64_t i = thread_index() * N;
    if (i + N <= n) {
        map_pack<N>(f, out + i, load<N>(in + i)...);
        return;
    }
    for (int64_t j = i; j < n; j++)
        map_pack<1>(f, out + j, load<1>(in + j)...);
}

/* out[i] = f(in[i]...), i < n, in storage types. out may be one of them. */
template <class F, class S, class... In> void map_stored(int64_t n, F f, S *out, const In *...in)
{
    constexpr int SIZES[] = {(int)sizeof(S), (int)sizeof(In)...};
    constexpr int N = 16 / largest(SIZES);
    if (n <= 0 || !out)
        return;
    if (fits<N>(out, in...))
        GPU_LAUNCH((map_kernel<N, F, S, In...>), blocks(n, (int64_t)BLOCK * N), BLOCK, 0,
                   dti_gpu_stream(), n, f, out, in...);
    else
        GPU_LAUNCH((map_kernel<1, F, S, In...>), blocks(n, BLOCK), BLOCK, 0, dti_gpu_stream(), n, f,
                   out, in...);
}

/* The same with f in the math types. */
template <class S, class F> struct in_math_type {
    F f;
    template <class... In> __device__ S operator()(In... x) const
    {
        return from_real<S>(f(to_real(x)...));
    }
};
template <class F, class S, class... In> void map(int64_t n, F f, S *out, const In *...in)
{
    map_stored(n, in_math_type<S, F>{f}, out, in...);
}
} // namespace gpu
