/* array/cuda/rows.h - kernels that work on rows: a group of threads a row, which keeps the row in
 * registers where it fits, so that it is read once. Read first: array/cuda/vec.h.
 *
 * A group is `width` threads: a power of two of at most 32, several groups a block (blockDim.y), or
 * a whole block. Element i of a row belongs to pack i / N, pack p to thread p % width. */
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

/* The row at hand, of m elements: m is 0 for a group that has none, which goes along for the
 * group operations. KEEP packs of N a thread are held in registers; 0: none, every look is a load.
 */
template <class S, int N, int KEEP> struct row {
    const S *from;
    pack<S, N> held[KEEP ? KEEP : 1];

    /* f(k, i): this thread's pack k, which starts at element i. */
    template <class F> __device__ static void each(int64_t m, F f)
    {
        const int64_t step = (int64_t)blockDim.x * N, first = (int64_t)threadIdx.x * N;
        if constexpr (KEEP == 0) {
#pragma unroll 4
            for (int64_t i = first; i < m; i += step)
                f(0, i);
        } else {
#pragma unroll
            for (int k = 0; k < KEEP; k++)
                if (first + k * step < m)
                    f(k, first + k * step);
        }
    }
    __device__ void open(const S *p, int64_t m)
    {
        from = p;
        if constexpr (KEEP > 0)
            each(m, [&](int k, int64_t i) { held[k] = load<N>(p + i); });
    }
    __device__ void get(int k, int64_t i, real<S> (&x)[N]) const
    {
        const pack<S, N> raw = KEEP ? held[k] : load<N>(from + i);
#pragma unroll
        for (int j = 0; j < N; j++)
            x[j] = to_real(raw.at[j]);
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
template <class T, int N> __device__ inline T pack_sum(const T (&x)[N])
{
    T s[N];
#pragma unroll
    for (int j = 0; j < N; j++)
        s[j] = x[j];
#pragma unroll
    for (int half = N / 2; half > 0; half /= 2)
#pragma unroll
        for (int j = 0; j < half; j++)
            s[j] += s[j + half];
    return s[0];
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
