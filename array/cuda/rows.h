/* array/cuda/rows.h - kernels that work on rows: a group of threads a row, which keeps the row in
 * registers where it fits, so that it is read once. Read first: array/cuda/vec.h.
 *
 * A group is `width` threads: a power of two of at most 32, several groups a block (blockDim.y), or
 * a whole block. A row is cut into packs of N elements; pack p belongs to thread p % width. */
#pragma once

#include "array/cuda/vec.h"

namespace gpu {

constexpr int ROW_THREADS = 512; /* the widest group */
constexpr int ROWS_BLOCK = 128;  /* threads of a block of several groups */

struct row_shape {
    dim3 block;
    int64_t blocks;
};
/* Of rows of n elements, `each` a thread where they suffice. */
inline row_shape shape_of_rows(int64_t rows, int64_t n, int each)
{
    const int64_t want = (n + each - 1) / each;
    unsigned width = 1, height = 1;
    while (width < want && width < 32)
        width *= 2;
    if (want > 32)
        width = want < ROW_THREADS ? (unsigned)(want + 31) / 32 * 32 : ROW_THREADS;
    else
        height = ROWS_BLOCK / width;
    return {dim3(width, height), (rows + height - 1) / height};
}

/* Pack p of a row. An index where an address would do: nvcc takes accesses apart that it cannot
 * see to be aligned. */
template <int N, class S> __device__ inline const pack<S, N> &pack_at(const S *p, int64_t i)
{
    using at_once = const pack<S, N>;
    return GPU_AT_ONCE(at_once, p)[i];
}
template <int N, class S> __device__ inline pack<S, N> &pack_at(S *p, int64_t i)
{
    using at_once = pack<S, N>;
    return GPU_AT_ONCE(at_once, p)[i];
}
template <class S, int N> __device__ inline void unpack(const pack<S, N> from, real<S> (&x)[N])
{
#pragma unroll
    for (int j = 0; j < N; j++)
        x[j] = to_real(from.at[j]);
}
template <class S, int N> __device__ inline pack<S, N> packed(const real<S> (&x)[N])
{
    pack<S, N> to;
#pragma unroll
    for (int j = 0; j < N; j++)
        to.at[j] = from_real<S>(x[j]);
    return to;
}

/* The row at hand, of m packs: 0 for a group that has none, which goes along for the group
 * operations. KEEP packs a thread are held in registers; 0: none, every look is a load. */
template <class S, int N, int KEEP> struct row {
    const S *from;
    pack<S, N> held[KEEP ? KEEP : 1];

    /* f(k, p): this thread's pack k, which is pack p of the row. */
    template <class F> __device__ static void each(int64_t m, F f)
    {
        if constexpr (KEEP == 0) {
#pragma unroll 4
            for (int64_t p = threadIdx.x; p < m; p += blockDim.x)
                f(0, p);
        } else {
#pragma unroll
            for (int k = 0; k < KEEP; k++)
                if (threadIdx.x + k * blockDim.x < m)
                    f(k, (int64_t)(threadIdx.x + k * blockDim.x));
        }
    }
    __device__ void open(const S *p, int64_t m)
    {
        from = p;
        if constexpr (KEEP > 0)
            each(m, [&](int k, int64_t i) { held[k] = pack_at<N>(p, i); });
    }
    __device__ void get(int k, int64_t p, real<S> (&x)[N]) const
    {
        if constexpr (KEEP > 0)
            unpack(held[k], x);
        else
            unpack(pack_at<N>(from, p), x);
    }
    /* What takes the pack's place, of a row that close then writes: loads of other arrays need
     * not wait for stores. */
    __device__ void put(int k, int64_t p, const real<S> (&x)[N], S *to)
    {
        if constexpr (KEEP > 0)
            held[k] = packed<S>(x);
        else
            pack_at<N>(to, p) = packed<S>(x);
    }
    __device__ void close(int64_t m, S *to)
    {
        if constexpr (KEEP > 0)
            each(m, [&](int k, int64_t p) { pack_at<N>(to, p) = held[k]; });
    }
};

/* M numbers over the group at once; every thread of the block must call it. */
template <class T, int M, class Op> __device__ inline void group_reduce(T (&x)[M], Op op)
{
    __shared__ T part[M][ROW_THREADS / 32];
    const unsigned width = blockDim.x < 32 ? blockDim.x : 32, warps = blockDim.x / 32;
    for (unsigned step = width / 2; step > 0; step /= 2)
#pragma unroll
        for (int i = 0; i < M; i++)
            x[i] = op(x[i], __shfl_xor_sync(ALL_LANES, x[i], step));
    if (warps <= 1)
        return;
    __syncthreads(); /* the last call's parts have been read */
    if (threadIdx.x % 32 == 0)
        for (int i = 0; i < M; i++)
            part[i][threadIdx.x / 32] = x[i];
    __syncthreads();
#pragma unroll
    for (int i = 0; i < M; i++) {
        x[i] = part[i][0];
        for (unsigned w = 1; w < warps; w++)
            x[i] = op(x[i], part[i][w]);
    }
}
template <int M> __device__ inline void group_sum(double (&x)[M])
{
    group_reduce(x, plus_op());
}
__device__ inline double group_sum(double x)
{
    double one[1] = {x};
    group_sum(one);
    return one[0];
}

/* A NaN passes; the sum will have it. */
struct largest_op {
    template <class T> __device__ T operator()(T a, T b) const
    {
        return b > a ? b : a;
    }
};
template <class R> __device__ inline R group_max(R x)
{
    R one[1] = {x};
    group_reduce(one, largest_op());
    return one[0];
}

/* The sum of a pack, pairwise. */
template <int N, class T> __device__ inline T sum_pairwise(const T *x)
{
    if constexpr (N == 1)
        return x[0];
    else
        return sum_pairwise<N / 2>(x) + sum_pairwise<N / 2>(x + N / 2);
}
template <class T, int N> __device__ inline T pack_sum(const T (&x)[N])
{
    return sum_pairwise<N>(x);
}

/* f(size<N>, size<KEEP>): packs of 16 bytes where `packs` and n allow, else single elements; up to
 * EACH elements a thread in registers, if that holds a row of n. */
template <int X> struct size {
    static constexpr int value = X;
};
template <class S, int EACH, class F> void for_rows(int64_t n, bool packs, F f)
{
    constexpr int N = PER_16<S>;
    const bool fits_registers = n <= (int64_t)EACH * ROW_THREADS;
    if (packs && n % N == 0) {
        if (fits_registers)
            f(size<N>(), size<EACH / N>());
        else
            f(size<N>(), size<0>());
    } else if (fits_registers) {
        f(size<1>(), size<EACH>());
    } else {
        f(size<1>(), size<0>());
    }
}
} // namespace gpu
