/* array/cuda/loss.cu - the local pieces of cross-entropy: a block a row, whose logits are read once
 * for max, sum and the target's, and once more for dz.
 *
 * While a thread goes along a row it keeps the largest element so far and the sum of exponentials
 * relative to it. Source: Milakov and Gimelshein 2018, "Online normalizer calculation for softmax".
 */
#include "array/cuda/expo.h"
#include "array/cuda/rows.h"

namespace {
using namespace gpu;

/* What accompanies an array of `dtype`. */
template <class F> void for_wide(dt_dtype dtype, F f)
{
    if (dtype == DT_F64)
        f(type<double>());
    else
        f(type<float>());
}
template <class F> void for_half(dt_dtype dtype, F f)
{
    if (dtype == DT_BF16)
        f(type<bf16>());
    else
        f(type<f16>());
}

constexpr int AHEAD = 4; /* packs that are loaded before the first is looked at */

template <class S> struct loss_data {
    int64_t n, lo, ignore;
    const int32_t *targets;
    const S *z;
    real<S> *max, *sum, *hit;

    /* The column of row r's target here, or -1. */
    __device__ int64_t hit_column(int64_t r) const
    {
        const int64_t column = targets[r] - lo;
        return targets[r] != ignore && column >= 0 && column < n ? column : -1;
    }
};
template <class S> loss_data<S> data_of(const dt_loss_args *a)
{
    using R = real<S>;
    return {a->n,        a->lo,       a->ignore,  a->targets, (const S *)a->z,
            (R *)a->max, (R *)a->sum, (R *)a->hit};
}

/* A row from element `at` of its array on: single elements up to the first pack, packs, and single
 * ones again. */
template <int N> struct stretch {
    int64_t head, packs, n;
    __device__ stretch(int64_t at, int64_t n_) : n(n_)
    {
        head = (N - at % N) % N;
        head = head < n ? head : n;
        packs = (n - head) / N;
    }
    /* The i-th single element, i < N - 1 + N - 1; n and above: there is none. */
    __device__ int64_t single(int64_t i) const
    {
        return i < head ? i : i + packs * N;
    }
};

/* The largest so far, and the sum of exponentials relative to it. */
template <class S> struct online {
    using R = real<S>;
    R most = -INFINITY;
    double sum = 0;

    template <int M> __device__ void add(const R (&x)[M])
    {
        R top = most, e[M];
#pragma unroll
        for (int j = 0; j < M; j++)
            top = largest_op()(top, x[j]);
        if (top > most) {
            sum *= exponential<S>(most - top);
            most = top;
        }
        const R shift = most == -INFINITY ? R(0) : most;
#pragma unroll
        for (int j = 0; j < M; j++)
            e[j] = exponential<S>(x[j] - shift);
        sum += pack_sum(e);
    }
};

template <class S, int N>
__device__ inline void add_packs(online<S> &sum, const S *z, int64_t packs, int64_t first)
{
    using R = real<S>;
    pack<S, N> raw[AHEAD];
    R x[AHEAD * N];
#pragma unroll
    for (int k = 0; k < AHEAD; k++)
        if (first + k * blockDim.x < packs)
            raw[k] = pack_at<N>(z, first + k * blockDim.x);
#pragma unroll
    for (int k = 0; k < AHEAD; k++)
#pragma unroll
        for (int j = 0; j < N; j++)
            x[k * N + j] = first + k * blockDim.x < packs ? to_real(raw[k].at[j]) : R(-INFINITY);
    sum.add(x);
}

template <class S, int N> __global__ void __launch_bounds__(ROW_THREADS) loss_rows(loss_data<S> a)
{
    using R = real<S>;
    const int64_t r = blockIdx.x;
    const S *z = a.z + r * a.n;
    const stretch<N> all(r * a.n, a.n);
    online<S> mine;
    for (int64_t first = threadIdx.x; first < all.packs; first += AHEAD * blockDim.x)
        add_packs<S, N>(mine, z + all.head, all.packs, first);
    if (threadIdx.x < 2 * N && all.single(threadIdx.x) < a.n) {
        const R x[1] = {to_real(z[all.single(threadIdx.x)])};
        mine.add(x);
    }
    const R most = group_max(mine.most);
    /* where all is -inf the sum is 0, as on the cpu: other ranks may have more of the row */
    const double shift = most == -INFINITY ? 1 : (double)exponential<S>(mine.most - most);
    const double sum = group_sum(mine.sum * shift);
    if (threadIdx.x > 0)
        return;
    const int64_t column = a.hit_column(r);
    a.max[r] = most;
    a.sum[r] = a.n > 0 ? (R)sum : R(0);
    a.hit[r] = column < 0 ? R(0) : to_real(z[column]);
}

template <class R> struct shifted_sum {
    __device__ R operator()(R sum, R old_max, R max) const
    {
        return sum * exponential<R>(old_max - max);
    }
};

template <class R>
__global__ void __launch_bounds__(ROW_THREADS)
    loss_total(int64_t rows, int64_t ignore, const int32_t *targets, const R *max, const R *sum,
               const R *hit, double *total)
{
    double mine = 0;
    for (int64_t r = threadIdx.x; r < rows; r += ROW_THREADS)
        if (targets[r] != ignore)
            mine += log((double)sum[r]) + ((double)max[r] - (double)hit[r]);
    mine = group_sum(mine);
    if (threadIdx.x == 0)
        *total += mine;
}

/* One row's dz. */
template <class S> struct dz_row {
    using R = real<S>;
    R max, factor, whole; /* whole: of the target itself */
    int64_t column;
    bool ignored;

    __device__ dz_row(const loss_data<S> &a, int64_t r, const R *dy, R scale)
    {
        whole = dy ? *dy * scale : scale;
        max = a.max[r];
        factor = whole / a.sum[r];
        column = a.hit_column(r);
        ignored = a.targets[r] == a.ignore;
    }
    __device__ R operator()(R z, int64_t i) const
    {
        const R p = exponential<S>(z - max) * factor;
        return ignored ? R(0) : i == column ? p - whole : p;
    }
};

/* Block (r, part) writes a part of row r, of AHEAD packs a thread. */
template <class S, class D, int N>
__global__ void __launch_bounds__(ROW_THREADS)
    loss_dz(loss_data<S> a, const real<S> *dy, real<S> scale, D *dz)
{
    using R = real<S>;
    const int64_t r = blockIdx.x;
    const stretch<N> all(r * a.n, a.n);
    const S *z = a.z + r * a.n;
    const dz_row<S> f(a, r, dy, scale);
    dz += r * a.n;
    const int64_t first = (int64_t)blockIdx.y * AHEAD * blockDim.x + threadIdx.x;
    R x[AHEAD][N];
#pragma unroll
    for (int k = 0; k < AHEAD; k++)
        if (first + k * blockDim.x < all.packs)
            unpack(pack_at<N>(z + all.head, first + k * blockDim.x), x[k]);
#pragma unroll
    for (int k = 0; k < AHEAD; k++) {
        const int64_t p = first + k * blockDim.x, i = all.head + p * N;
#pragma unroll
        for (int j = 0; j < N; j++)
            x[k][j] = f(x[k][j], i + j);
        if (p < all.packs)
            pack_at<N>(dz + all.head, p) = packed<D>(x[k]);
    }
    const int64_t i = all.single(first);
    if (first < 2 * N && i < a.n)
        dz[i] = from_real<D>(f(to_real(z[i]), i));
}

/* Threads for rows of n: a few packs each. */
inline unsigned row_threads(int64_t n, int per)
{
    const int64_t want = (n / per + 31) / 32 * 32;
    return want < 32 ? 32 : want < ROW_THREADS ? (unsigned)want : ROW_THREADS;
}

template <class S, class D>
void dz_of(const dt_loss_args *args, const void *dy, double divisor, D *dz)
{
    constexpr int PACK = PER_16<S>;
    const loss_data<S> a = data_of<S>(args);
    const auto go = [&](auto n) {
        constexpr int N = decltype(n)::value;
        const unsigned threads = row_threads(a.n, AHEAD * N);
        const dim3 grid((unsigned)args->rows, blocks(a.n, (int64_t)AHEAD * N * threads));
        GPU_LAUNCH((loss_dz<S, D, N>), grid, threads, 0, dti_gpu_stream(), a, (const real<S> *)dy,
                   (real<S>)(1 / divisor), dz);
    };
    if (fits<PACK>(a.z) && fits<PACK>((const D *)dz))
        go(size<PACK>());
    else
        go(size<1>());
}
} // namespace

void dti_cuda_loss_rows(const dt_loss_args *a)
{
    if (a->rows <= 0)
        return;
    for_float(a->dtype, [&](auto t) {
        using S = typename decltype(t)::storage;
        constexpr int N = PER_16<S>;
        const loss_data<S> d = data_of<S>(a);
        if (fits<N>(d.z))
            GPU_LAUNCH((loss_rows<S, N>), (unsigned)a->rows, row_threads(a->n, 2 * N), 0,
                       dti_gpu_stream(), d);
        else
            GPU_LAUNCH((loss_rows<S, 1>), (unsigned)a->rows, row_threads(a->n, 2), 0,
                       dti_gpu_stream(), d);
    });
    if (a->dz)
        dti_cuda_loss_dz(a, nullptr, a->divisor, a->dz_dtype, a->dz);
}

void dti_cuda_loss_shift(const dt_loss_args *a, const void *old_max)
{
    for_wide(a->dtype, [&](auto t) {
        using R = typename decltype(t)::storage;
        map(a->rows, shifted_sum<R>(), (R *)a->sum, (const R *)a->sum, (const R *)old_max,
            (const R *)a->max);
    });
}

void dti_cuda_loss_total(const dt_loss_args *a, double *total)
{
    for_wide(a->dtype, [&](auto t) {
        using R = typename decltype(t)::storage;
        GPU_LAUNCH(loss_total<R>, 1, ROW_THREADS, 0, dti_gpu_stream(), a->rows, a->ignore,
                   a->targets, (const R *)a->max, (const R *)a->sum, (const R *)a->hit, total);
    });
}

void dti_cuda_loss_dz(const dt_loss_args *a, const void *dy, double divisor, dt_dtype dz_dtype,
                      void *dz)
{
    if (a->rows <= 0 || a->n <= 0)
        return;
    for_float(a->dtype, [&](auto t) {
        using S = typename decltype(t)::storage;
        if (a->dtype == dz_dtype)
            dz_of<S>(a, dy, divisor, (S *)dz);
        else if constexpr (std::is_same_v<S, float>)
            for_half(dz_dtype, [&](auto h) {
                dz_of<S>(a, dy, divisor, (typename decltype(h)::storage *)dz);
            });
    });
}
