/* array/cuda/norm.cu - rmsnorm and layernorm: a group of threads a row, one read of x, one launch;
 * backward one read of x and dy for dx, dw and db, and a launch that adds up what blocks found of
 * dw and db.
 *
 * Sums of layernorm are taken of x - x[0], so that they lose nothing where the mean is large;
 * squares are added in f64. */
#include "array/cuda/rows.h"

namespace {
using namespace gpu;

constexpr int BACK_THREADS = 132 * 512; /* of backward: an H200 runs so many at 128 registers */
constexpr int GROUP_ROWS = 256;         /* at most, so that sums of dw in f32 stay short */
/* Elements a thread. */
template <class S> constexpr int FORWARD_EACH = sizeof(S) == 8 ? 16 : 32;
template <class S> constexpr int BACK_EACH = sizeof(S) == 8 ? 8 : 16;

/* In f64 where f32 does not hold x. */
template <class R> __device__ inline R inverse_root(double x)
{
    if (sizeof(R) == 4 && x > 1e-37 && x < 1e38)
        return rsqrtf((float)x);
    return (R)(1 / sqrt(x));
}

template <class S> struct norm_data {
    int64_t rows, n;
    double per, eps; /* per: 1 / n */
    bool centred;
    const S *x, *w, *b, *dy;
    S *y;             /* or dx */
    real<S> *dw, *db; /* what each block found, [blocks, n] */
    double *stats;    /* for rows that no registers hold */
};

/* x - shift - mean, which is x - mean of the row without the error of a large mean. */
template <class R> struct centre {
    R shift, mean;
};

template <class S, int N, int K>
__device__ inline centre<real<S>> centre_of(const norm_data<S> &a, const row<S, N, K> &x, int64_t m)
{
    using R = real<S>;
    centre<R> c = {0, 0};
    if (!a.centred)
        return c;
    double sum = 0;
    c.shift = m > 0 ? to_real(x.from[0]) : R(0);
    x.each(m, [&](int k, int64_t p) {
        R v[N];
        x.get(k, p, v);
#pragma unroll
        for (int j = 0; j < N; j++)
            v[j] -= c.shift;
        sum += pack_sum(v);
    });
    c.mean = (R)(group_sum(sum) * a.per);
    return c;
}

/* A factor or a term for every column; NULL: `none`. */
template <int N, class S>
__device__ inline void column_pack(const S *from, int64_t p, real<S> none, real<S> (&x)[N])
{
    if (from) {
        unpack(pack_at<N>(from, p), x);
        return;
    }
#pragma unroll
    for (int j = 0; j < N; j++)
        x[j] = none;
}

template <class S, int N, int K>
__global__ void __launch_bounds__(ROW_THREADS) norm_rows(norm_data<S> a)
{
    using R = real<S>;
    const int64_t r = (int64_t)blockIdx.x * blockDim.y + threadIdx.y;
    const int64_t m = r < a.rows ? a.n / N : 0;
    row<S, N, K> x;
    x.open(a.x + r * a.n, m);
    const centre<R> c = centre_of(a, x, m);
    double squares = 0;
    x.each(m, [&](int k, int64_t p) {
        R v[N];
        x.get(k, p, v);
#pragma unroll
        for (int j = 0; j < N; j++) {
            const double d = v[j] - c.shift - c.mean;
            squares += d * d;
        }
    });
    const R inv = inverse_root<R>(group_sum(squares) * a.per + a.eps);
    x.each(m, [&](int k, int64_t p) {
        R v[N], w[N], b[N];
        x.get(k, p, v);
        column_pack(a.w, p, R(1), w);
        column_pack(a.b, p, R(0), b);
#pragma unroll
        for (int j = 0; j < N; j++)
            v[j] = (v[j] - c.shift - c.mean) * inv * w[j] + b[j];
        x.put(k, p, v, a.y + r * a.n);
    });
    x.close(m, a.y + r * a.n);
}

/* ---- backward ---- */

/* What a row's dx needs: 1 / sqrt(...), mean(g) and mean(g u), g = dy w, u = (x - mean) inv. */
template <class R> struct row_sums {
    centre<R> c;
    R inv, mean_g, mean_gu;
};

template <class S, int N, int K>
__device__ inline row_sums<real<S>> sums_of(const norm_data<S> &a, const row<S, N, K> &x,
                                            const row<S, N, K> &dy, int64_t m)
{
    using R = real<S>;
    row_sums<R> out;
    const centre<R> c = out.c = centre_of(a, x, m);
    double sum[3] = {0, 0, 0}; /* of d^2, g, g d; d = x - mean */
    x.each(m, [&](int k, int64_t p) {
        R d[N], g[N], w[N];
        x.get(k, p, d);
        dy.get(k, p, g);
        column_pack(a.w, p, R(1), w);
#pragma unroll
        for (int j = 0; j < N; j++) {
            d[j] = d[j] - c.shift - c.mean;
            g[j] *= w[j];
            sum[0] += (double)d[j] * d[j];
        }
        sum[1] += pack_sum(g);
#pragma unroll
        for (int j = 0; j < N; j++)
            g[j] *= d[j];
        sum[2] += pack_sum(g);
    });
    group_sum(sum);
    out.inv = inverse_root<R>(sum[0] * a.per + a.eps);
    out.mean_g = a.centred ? (R)(sum[1] * a.per) : R(0);
    out.mean_gu = (R)(sum[2] * a.per) * out.inv;
    return out;
}

/* A thread's sums of dw and, if there is a bias, db. */
template <class S, int N, int K, bool BIAS> struct column_sums {
    real<S> dw[K ? K : 1][N] = {}, db[BIAS && K ? K : 1][N] = {};
};

/* dx of a row; its terms of dw and db are added to `sums` if registers hold them. */
template <class S, int N, int K, bool BIAS>
__device__ inline void backward_row(const norm_data<S> &a, row<S, N, K> &x, const row<S, N, K> &dy,
                                    int64_t r, int64_t m, column_sums<S, N, K, BIAS> &sums)
{
    using R = real<S>;
    const row_sums<R> s = sums_of(a, x, dy, m);
    if (K == 0 && a.stats && threadIdx.x == 0) {
        a.stats[2 * r] = (double)s.c.shift + s.c.mean;
        a.stats[2 * r + 1] = s.inv;
    }
    x.each(m, [&](int k, int64_t p) {
        R u[N], g[N], w[N];
        x.get(k, p, u);
        dy.get(k, p, g);
        column_pack(a.w, p, R(1), w);
#pragma unroll
        for (int j = 0; j < N; j++) {
            u[j] = (u[j] - s.c.shift - s.c.mean) * s.inv;
            if constexpr (K > 0)
                sums.dw[k][j] += g[j] * u[j];
            if constexpr (K > 0 && BIAS)
                sums.db[k][j] += g[j];
            g[j] = s.inv * (g[j] * w[j] - s.mean_g - u[j] * s.mean_gu);
        }
        if (a.y)
            x.put(k, p, g, a.y + r * a.n);
    });
    if (a.y)
        x.close(m, a.y + r * a.n);
}

/* The block's sums, of its groups in order, into its row of `out`. */
template <class S, int N, int K>
__device__ inline void put_columns(const norm_data<S> &a, const real<S> (&sum)[K][N], real<S> *out)
{
    using R = real<S>;
    __shared__ R part[ROWS_BLOCK * BACK_EACH<S>];
    if (!out)
        return;
    out += blockIdx.x * a.n;
    const bool alone = blockDim.y == 1;
    R *to = alone ? out : part + threadIdx.y * a.n;
    row<S, N, K>::each(a.n / N, [&](int k, int64_t p) {
#pragma unroll
        for (int j = 0; j < N; j++)
            to[p * N + j] = sum[k][j];
    });
    if (alone)
        return;
    __syncthreads();
    for (int i = threadIdx.y * blockDim.x + threadIdx.x; i < a.n; i += ROWS_BLOCK) {
        R all = part[i];
        for (unsigned g = 1; g < blockDim.y; g++)
            all += part[g * a.n + i];
        out[i] = all;
    }
    __syncthreads(); /* before part is used again */
}

template <class S, int N, int K, bool BIAS>
__global__ void __launch_bounds__(ROW_THREADS) norm_backward_rows(norm_data<S> a)
{
    const int64_t step = (int64_t)gridDim.x * blockDim.y;
    row<S, N, K> x, dy, next_x, next_dy;
    column_sums<S, N, K, BIAS> sums;
    int64_t r = (int64_t)blockIdx.x * blockDim.y + threadIdx.y;
    int64_t m = r < a.rows ? a.n / N : 0;
    next_x.open(a.x + r * a.n, m);
    next_dy.open(a.dy + r * a.n, m);
    for (int64_t first = r - threadIdx.y; first < a.rows; first += step, r += step) {
        x = next_x;
        dy = next_dy;
        const int64_t here = m, next = r + step;
        m = next < a.rows ? a.n / N : 0;
        next_x.open(a.x + next * a.n, m);
        next_dy.open(a.dy + next * a.n, m);
        backward_row(a, x, dy, r, here, sums);
    }
    if constexpr (K > 0)
        put_columns(a, sums.dw, a.dw);
    if constexpr (K > 0 && BIAS)
        put_columns(a, sums.db, a.db);
}

/* dw and db of rows [blockIdx.y GROUP_ROWS, ...), a thread a column, for rows whose sums no
 * registers hold. */
template <class S> __global__ void __launch_bounds__(BLOCK) norm_columns(norm_data<S> a)
{
    using R = real<S>;
    const int64_t i = (int64_t)blockIdx.x * BLOCK + threadIdx.x;
    const int64_t first = (int64_t)blockIdx.y * GROUP_ROWS;
    const int64_t last = first + GROUP_ROWS < a.rows ? first + GROUP_ROWS : a.rows;
    if (i >= a.n)
        return;
    R dw = 0, db = 0;
#pragma unroll 4
    for (int64_t r = first; r < last; r++) {
        const R g = to_real(a.dy[r * a.n + i]);
        const double d = (double)to_real(a.x[r * a.n + i]) - a.stats[2 * r];
        dw += g * (R)(d * a.stats[2 * r + 1]);
        db += g;
    }
    const int64_t at = blockIdx.y * a.n + i;
    if (a.dw)
        a.dw[at] = dw;
    if (a.db)
        a.db[at] = db;
}

constexpr int ADD_COLUMNS = 32, ADD_ROWS = 8;

/* out[i] = the sum over j of part[j, i], rows j in ADD_ROWS lots; blockIdx.y: dw or db. */
template <class S>
__global__ void __launch_bounds__(ADD_COLUMNS *ADD_ROWS)
    add_columns(int64_t n, int64_t parts, const real<S> *dw_part, const real<S> *db_part, S *dw,
                S *db)
{
    __shared__ double sum[ADD_ROWS][ADD_COLUMNS];
    const real<S> *part = blockIdx.y ? db_part : dw_part;
    S *out = blockIdx.y ? db : dw;
    const int64_t i = (int64_t)blockIdx.x * ADD_COLUMNS + threadIdx.x;
    double mine = 0;
    if (i < n && out)
#pragma unroll 4
        for (int64_t j = threadIdx.y; j < parts; j += ADD_ROWS)
            mine += part[j * n + i];
    sum[threadIdx.y][threadIdx.x] = mine;
    __syncthreads();
    if (threadIdx.y > 0 || i >= n || !out)
        return;
    for (int g = 1; g < ADD_ROWS; g++)
        mine += sum[g][threadIdx.x];
    out[i] = from_real<S>((real<S>)mine);
}

template <class S> norm_data<S> data_of(const dt_norm_args *a, void *y)
{
    norm_data<S> d = {};
    d.rows = a->rows;
    d.n = a->n;
    d.per = 1 / (double)a->n;
    d.eps = a->eps;
    d.centred = a->centred;
    d.x = (const S *)a->x;
    d.w = (const S *)a->w;
    d.b = (const S *)a->b;
    d.dy = (const S *)a->dy;
    d.y = (S *)y;
    return d;
}

template <class S> void backward(const dt_norm_args *args, void *dx, void *dw, void *db)
{
    using R = real<S>;
    constexpr int N = PER_16<S>, EACH = BACK_EACH<S>;
    norm_data<S> a = data_of<S>(args, dx);
    const row_shape s = shape_of_rows(a.rows, a.n, EACH);
    const bool is_long = a.n > (int64_t)EACH * ROW_THREADS;
    const int64_t most = (s.blocks + GROUP_ROWS - 1) / GROUP_ROWS;
    const int64_t busy = BACK_THREADS / (s.block.x * s.block.y), want = most > busy ? most : busy;
    const int64_t grid = is_long || s.blocks < want ? s.blocks : want;
    const int64_t parts = is_long ? most : grid;
    if (dw || db) {
        R *found = (R *)dti_gpu_scratch((size_t)(2 * parts * a.n) * sizeof(R));
        a.dw = dw ? found : nullptr;
        a.db = db ? found + parts * a.n : nullptr;
        a.stats = args->work;
    }
    if (grid > 0)
        for_rows<S, EACH>(a.n, fits<N>(a.x, a.w, a.dy, (const S *)a.y), [&](auto n, auto keep) {
            constexpr int PACK = decltype(n)::value, KEEP = decltype(keep)::value;
            if (a.db)
                GPU_LAUNCH((norm_backward_rows<S, PACK, KEEP, true>), (unsigned)grid, s.block, 0,
                           dti_gpu_stream(), a);
            else
                GPU_LAUNCH((norm_backward_rows<S, PACK, KEEP, false>), (unsigned)grid, s.block, 0,
                           dti_gpu_stream(), a);
        });
    if (!dw && !db)
        return;
    if (is_long && parts > 0)
        GPU_LAUNCH(norm_columns<S>, dim3(blocks(a.n, BLOCK), (unsigned)parts), BLOCK, 0,
                   dti_gpu_stream(), a);
    GPU_LAUNCH(add_columns<S>, dim3(blocks(a.n, ADD_COLUMNS), 2), dim3(ADD_COLUMNS, ADD_ROWS), 0,
               dti_gpu_stream(), a.n, parts, (const R *)a.dw, (const R *)a.db, (S *)dw, (S *)db);
}
} // namespace

void dti_cuda_norm(const dt_norm_args *a, void *y)
{
    if (a->rows <= 0 || a->n <= 0)
        return;
    for_float(a->dtype, [&](auto t) {
        using S = typename decltype(t)::storage;
        const norm_data<S> d = data_of<S>(a, y);
        const row_shape s = shape_of_rows(d.rows, d.n, FORWARD_EACH<S>);
        const bool packs = fits<PER_16<S>>(d.x, d.w, d.b, (const S *)d.y);
        for_rows<S, FORWARD_EACH<S>>(d.n, packs, [&](auto n, auto keep) {
            GPU_LAUNCH((norm_rows<S, decltype(n)::value, decltype(keep)::value>),
                       (unsigned)s.blocks, s.block, 0, dti_gpu_stream(), d);
        });
    });
}

void dti_cuda_norm_backward(const dt_norm_args *a, void *dx, void *dw, void *db)
{
    if (a->n <= 0)
        return;
    for_float(a->dtype, [&](auto t) {
        using S = typename decltype(t)::storage;
        backward<S>(a, dx, dw, db);
    });
}
