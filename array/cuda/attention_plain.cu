/* array/cuda/attention_plain.cu - attention of any storage type and size, in tiles of 64 x 64
 * scores held in shared memory; sums are in real<S>. Up to OUT columns of an output are a block's;
 * more are other blocks', which compute the scores again. Method: array/kernels_attention.c.
 *
 * A thread holds the scores, and the output, of rows ty + 16 i and columns tx + 16 j. */
#include "array/cuda/attention_internal.h"

namespace {
using namespace gpu;

constexpr int TILE = 64, SIDE = 16, PER = TILE / SIDE, THREADS = SIDE * SIDE;
constexpr int DEPTH = 32; /* terms of a score at once */
constexpr int OUT = 128, OUT_PER = OUT / SIDE;
constexpr int STAGE = 2 * TILE * (DEPTH + 1), SCORES = TILE * (TILE + 1); /* of shared memory */
static_assert(STAGE >= DEPTH * OUT, "rows of values are staged in the same place");

template <class R> struct tile_memory {
    R stage[STAGE], score[SCORES];
    R row[TILE]; /* what is known of each row */
    uint8_t seen[SEEN];
};

__device__ inline int tx()
{
    return (int)threadIdx.x % SIDE;
}
__device__ inline int ty()
{
    return (int)threadIdx.x / SIDE;
}

/* f(i, j, place in the tile) for this thread's scores. */
template <class F> __device__ inline void for_scores(F f)
{
#pragma unroll
    for (int i = 0; i < PER; i++)
#pragma unroll
        for (int j = 0; j < PER; j++)
            f(i, j, (ty() + SIDE * i) * (TILE + 1) + tx() + SIDE * j);
}

/* Does the row of this thread's score i, j see the column? */
template <bool BY_KEYS>
__device__ inline void see(const walk<BY_KEYS, TILE, TILE> &w, bool (&seen)[PER][PER])
{
    mark row[PER], col[PER];
#pragma unroll
    for (int i = 0; i < PER; i++) {
        row[i] = w.row(ty() + SIDE * i);
        col[i] = w.col(tx() + SIDE * i);
    }
#pragma unroll
    for (int i = 0; i < PER; i++)
#pragma unroll
        for (int j = 0; j < PER; j++)
            seen[i][j] = w.sees(row[i], col[j]);
}

/* to [TILE, DEPTH + 1] = columns [d, d + depth) of m rows of x, 0 past m. */
template <class S>
__device__ inline void stage_rows(rows_of<const S> x, int m, int64_t d, int depth, real<S> *to)
{
    for (int i = (int)threadIdx.x; i < TILE * DEPTH; i += THREADS) {
        const int r = i / DEPTH, c = i % DEPTH;
        if (c < depth)
            to[r * (DEPTH + 1) + c] = r < m ? to_real(x.at[r * x.step + d + c]) : 0;
    }
}

/* sum = rows of x [m, width] times rows of y [n, width], term after term. Ends with a barrier. */
template <class S>
__device__ inline void multiply(rows_of<const S> x, int m, rows_of<const S> y, int n, int64_t width,
                                real<S> *stage, real<S> (&sum)[PER][PER])
{
    real<S> *xs = stage, *ys = stage + TILE * (DEPTH + 1);
#pragma unroll
    for (int i = 0; i < PER; i++)
#pragma unroll
        for (int j = 0; j < PER; j++)
            sum[i][j] = 0;
    for (int64_t d = 0; d < width; d += DEPTH) {
        const int depth = (int)min(width - d, (int64_t)DEPTH);
        stage_rows(x, m, d, depth, xs);
        stage_rows(y, n, d, depth, ys);
        __syncthreads();
        for (int c = 0; c < depth; c++) {
            real<S> a[PER], b[PER];
#pragma unroll
            for (int i = 0; i < PER; i++) {
                a[i] = xs[(ty() + SIDE * i) * (DEPTH + 1) + c];
                b[i] = ys[(tx() + SIDE * i) * (DEPTH + 1) + c];
            }
#pragma unroll
            for (int i = 0; i < PER; i++)
#pragma unroll
                for (int j = 0; j < PER; j++)
                    sum[i][j] += a[i] * b[j];
        }
        __syncthreads();
    }
}

/* out += score times columns [col, col + OUT) of the n rows of y [n, width]. `score` was written
 * just before. Ends with a barrier. */
template <class S>
__device__ inline void accumulate(rows_of<const S> y, int n, int64_t width, int64_t col,
                                  tile_memory<real<S>> &mem, real<S> (&out)[PER][OUT_PER])
{
    const int cols = (int)min(width - col, (int64_t)OUT);
    __syncthreads();
    for (int r0 = 0; r0 < n; r0 += DEPTH) {
        const int rows = min(n - r0, DEPTH);
        for (int i = (int)threadIdx.x; i < rows * OUT; i += THREADS)
            if (i % OUT < cols)
                mem.stage[i] = to_real(y.at[(r0 + i / OUT) * y.step + col + i % OUT]);
        __syncthreads();
        for (int r = 0; r < rows; r++)
#pragma unroll
            for (int j = 0; j < OUT_PER; j++)
                if (SIDE * j < cols) {
                    const real<S> b = mem.stage[r * OUT + tx() + SIDE * j];
#pragma unroll
                    for (int i = 0; i < PER; i++)
                        out[i][j] += mem.score[(ty() + SIDE * i) * (TILE + 1) + r0 + r] * b;
                }
        __syncthreads();
    }
}

template <class R>
__device__ inline void scale_rows(const tile_memory<R> &mem, R (&out)[PER][OUT_PER])
{
#pragma unroll
    for (int i = 0; i < PER; i++)
#pragma unroll
        for (int j = 0; j < OUT_PER; j++)
            out[i][j] *= mem.row[ty() + SIDE * i];
}

/* Columns [col, col + OUT) of m rows of `width`. */
template <class S>
__device__ inline void write_rows(const real<S> (&out)[PER][OUT_PER], int m, int64_t width,
                                  int64_t col, rows_of<S> to)
{
#pragma unroll
    for (int i = 0; i < PER; i++)
#pragma unroll
        for (int j = 0; j < OUT_PER; j++) {
            const int r = ty() + SIDE * i;
            const int64_t c = col + tx() + SIDE * j;
            if (r < m && c < width)
                to.at[r * to.step + c] = from_real<S>(out[i][j]);
        }
}

/* ---- forward ---- */

template <class R> struct running {
    R max, sum;
};

/* Four threads a row bring its maximum and sum up to date with the scores, which become
 * exponentials; mem.row: the factor of what was summed before. Between barriers. */
template <class R> __device__ inline void absorb(tile_memory<R> &mem, running<R> &x)
{
    const int r = (int)threadIdx.x / 4, part = (int)threadIdx.x % 4;
    R *s = mem.score + r * (TILE + 1) + part * (TILE / 4);
    R most = x.max;
    for (int c = 0; c < TILE / 4; c++)
        most = max(most, s[c]);
    most = max(most, __shfl_xor_sync(ALL_LANES, most, 1));
    most = max(most, __shfl_xor_sync(ALL_LANES, most, 2));
    const R shift = most == -(R)INFINITY ? 0 : most; /* nothing seen yet: exp(-inf - 0) is 0 */
    const R before = exp(x.max - shift);
    R sum = 0;
    for (int c = 0; c < TILE / 4; c++) {
        s[c] = exp(s[c] - shift);
        sum += s[c];
    }
    sum += __shfl_xor_sync(ALL_LANES, sum, 1);
    sum += __shfl_xor_sync(ALL_LANES, sum, 2);
    x = {most, x.sum * before + sum};
    if (part == 0)
        mem.row[r] = before;
}

/* The block's tile of rows and columns of the output: blockIdx = (head and tile, chunk of OUT). */
template <bool BY_KEYS, class R>
__device__ inline walk<BY_KEYS, TILE, TILE> walk_of(const attention_sizes &z, tile_memory<R> *mem)
{
    const int64_t ntiles = ((BY_KEYS ? z.keys : z.queries) + TILE - 1) / TILE;
    return {z, blockIdx.x % ntiles, blockIdx.x / ntiles, mem->seen};
}

template <class S>
__global__ void __launch_bounds__(THREADS)
    plain_forward(const __grid_constant__ attention_sizes z, const S *q, const S *k, const S *v,
                  S *out, real<S> *lse)
{
    using R = real<S>;
    GPU_DYN_SMEM(tile_memory<R>, mem);
    auto w = walk_of<false>(z, mem);
    const int64_t col = blockIdx.y * (int64_t)OUT;
    running<R> x = {-(R)INFINITY, 0};
    bool seen[PER][PER];
    R sum[PER][PER], o[PER][OUT_PER] = {};
    for (; !w.ended(); w.next()) {
        const int n = w.n();
        multiply(w.mine(q, z.dim), w.m(), w.theirs(k, z.dim), n, z.dim, mem->stage, sum);
        see(w, seen);
        for_scores([&](int i, int j, int at) {
            mem->score[at] = seen[i][j] ? sum[i][j] * (R)z.scale : -(R)INFINITY;
        });
        __syncthreads();
        absorb(*mem, x);
        __syncthreads();
        scale_rows(*mem, o);
        accumulate(w.theirs(v, z.vdim), n, z.vdim, col, *mem, o);
    }
    const int r = (int)threadIdx.x / 4;
    if (threadIdx.x % 4 == 0)
        mem->row[r] = x.sum > 0 ? 1 / x.sum : 0;
    if (threadIdx.x % 4 == 0 && r < w.m() && blockIdx.y == 0)
        lse[w.at() + r] = x.sum > 0 ? x.max + log(x.sum) : 0;
    __syncthreads();
    scale_rows(*mem, o);
    write_rows(o, w.m(), z.vdim, col, w.mine(out, z.vdim));
}

/* ---- backward ---- */

/* dq of a tile of queries, or with BY_KEYS dk and dv of a tile of keys: of p = exp(s - lse) and
 * ds = p (dout . v - delta) scale, both [rows, columns], d1 is ds times k or q, d2 p times dout. */
template <class S, bool BY_KEYS>
__global__ void __launch_bounds__(THREADS)
    plain_backward(const __grid_constant__ attention_sizes z, const S *q, const S *k, const S *v,
                   const S *dout, const real<S> *lse, const real<S> *delta, S *d1, S *d2)
{
    using R = real<S>;
    GPU_DYN_SMEM(tile_memory<R>, mem);
    auto w = walk_of<BY_KEYS>(z, mem);
    const int64_t col = blockIdx.y * (int64_t)OUT;
    const rows_of<const S> x1 = w.mine(BY_KEYS ? k : q, z.dim);
    const rows_of<const S> x2 = w.mine(BY_KEYS ? v : dout, z.vdim);
    const bool want1 = d1 && col < z.dim, want2 = d2 && col < z.vdim;
    bool seen[PER][PER];
    R p[PER][PER], ds[PER][PER], o1[PER][OUT_PER] = {}, o2[PER][OUT_PER] = {};
    for (; !w.ended(); w.next()) {
        const int n = w.n();
        const rows_of<const S> y1 = w.theirs(BY_KEYS ? q : k, z.dim);
        const rows_of<const S> y2 = w.theirs(BY_KEYS ? dout : v, z.vdim);
        multiply(x1, w.m(), y1, n, z.dim, mem->stage, p);
        multiply(x2, w.m(), y2, n, z.vdim, mem->stage, ds);
        see(w, seen);
        for_scores([&](int i, int j, int at) {
            const int64_t query = BY_KEYS ? w.there() + tx() + SIDE * j : w.at() + ty() + SIDE * i;
            p[i][j] = seen[i][j] ? exp(p[i][j] * (R)z.scale - lse[query]) : 0;
            ds[i][j] = seen[i][j] ? p[i][j] * (ds[i][j] - delta[query]) * (R)z.scale : 0;
            mem->score[at] = p[i][j];
        });
        if (want2)
            accumulate(y2, n, z.vdim, col, *mem, o2);
        for_scores([&](int i, int j, int at) { mem->score[at] = ds[i][j]; });
        if (want1)
            accumulate(y1, n, z.dim, col, *mem, o1);
    }
    if (want1)
        write_rows(o1, w.m(), z.dim, col, w.mine(d1, z.dim));
    if (want2)
        write_rows(o2, w.m(), z.vdim, col, w.mine(d2, z.vdim));
}

/* ---- launches ---- */

/* `rows` rows of each of `heads` heads, `width` columns of output. */
dim3 grid_of(int64_t heads, int64_t rows, int64_t width)
{
    const unsigned chunks = width > 0 ? blocks(width, OUT) : 1;
    return dim3((unsigned)(heads * ((rows + TILE - 1) / TILE)), chunks);
}

template <class S> void forward(const dt_attention_args *a)
{
    constexpr size_t bytes = sizeof(tile_memory<real<S>>);
    GPU_SMEM_LIMIT(plain_forward<S>, bytes);
    GPU_LAUNCH(plain_forward<S>, grid_of(a->batch * a->heads, a->queries, a->vdim), THREADS, bytes,
               dti_gpu_stream(), sizes_of(a), (const S *)a->q, (const S *)a->k, (const S *)a->v,
               (S *)a->out, (real<S> *)a->lse);
}

template <class S, bool BY_KEYS>
void backward(const dt_attention_args *a, const void *delta, void *d1, void *d2)
{
    constexpr size_t bytes = sizeof(tile_memory<real<S>>);
    const int64_t heads = a->batch * (BY_KEYS ? a->kv_heads : a->heads);
    const int64_t width = max(d1 ? a->dim : 0, d2 ? a->vdim : 0);
    GPU_SMEM_LIMIT((plain_backward<S, BY_KEYS>), bytes);
    GPU_LAUNCH((plain_backward<S, BY_KEYS>), grid_of(heads, BY_KEYS ? a->keys : a->queries, width),
               THREADS, bytes, dti_gpu_stream(), sizes_of(a), (const S *)a->q, (const S *)a->k,
               (const S *)a->v, (const S *)a->dout, (const real<S> *)a->lse, (const real<S> *)delta,
               (S *)d1, (S *)d2);
}
} // namespace

void gpu::attention_plain(const dt_attention_args *a)
{
    for_float(a->dtype, [&](auto t) { forward<typename decltype(t)::storage>(a); });
}

void gpu::attention_plain_backward(const dt_attention_args *a, const void *delta)
{
    for_float(a->dtype, [&](auto t) {
        using S = typename decltype(t)::storage;
        if (a->dq && a->dim > 0 && a->queries > 0 && a->heads > 0)
            backward<S, false>(a, delta, a->dq, nullptr);
        if ((a->dk || a->dv) && a->keys > 0 && a->kv_heads > 0)
            backward<S, true>(a, delta, a->dk, a->dv);
    });
}
