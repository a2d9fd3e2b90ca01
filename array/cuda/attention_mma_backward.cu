/* array/cuda/attention_mma_backward.cu - attention backward of bf16 and f16 on tensor cores: one
 * kernel makes dq of tiles of queries, and the same one, turned around, dk and dv of tiles of keys.
 * Both compute the scores again; no sum crosses blocks, so every run adds in the same order.
 * Method: array/kernels_attention.c; probabilities and ds are rounded to 16 bits before products.
 *
 *     rows       columns    x1   x2     y1   y2       d1         d2
 *     queries    keys       q    dout   k    v        dq += ds k
 *     keys       queries    k    v      q    dout     dk += ds q  dv += p dout */
#include "array/cuda/attention_tiles.h"

namespace {
using namespace gpu;

/* A tile of columns; where they are queries, with their lse and delta. */
template <class S, int WIDTH> struct column_memory {
    S y1[COLS * WIDTH], y2[COLS * WIDTH];
    float lse[COLS], delta[COLS];
};

/* Columns come in turn into two places. */
template <class S, int WIDTH, int WARPS> struct backward_memory {
    S x1[16 * WARPS * WIDTH], x2[16 * WARPS * WIDTH];
    column_memory<S, WIDTH> place[2];
    uint8_t seen[SEEN];
};

/* Where the columns come from. */
template <class S> struct sources {
    const attention_sizes &z;
    const S *y1, *y2;
    const float *lse, *delta;
};

template <bool BY_KEYS, int THREADS, class S, int WIDTH, class Walk>
__device__ inline void load_columns(copies &c, const Walk &w, const sources<S> &from,
                                    column_memory<S, WIDTH> *to)
{
    const int n = w.n(), i = (int)threadIdx.x;
    const swizzled<S, WIDTH> y1 = {to->y1}, y2 = {to->y2};
    load_tile<COLS, THREADS>(c, y1, w.theirs(from.y1, from.z.dim), n, from.z.dim);
    load_tile<COLS, THREADS>(c, y2, w.theirs(from.y2, from.z.vdim), n, from.z.vdim);
    if (BY_KEYS && i < 2 * COLS) {
        const bool there = i % COLS < n;
        const float *x = (i < COLS ? from.lse : from.delta) + w.there();
        c.add4((i < COLS ? to->lse : to->delta) + i % COLS, there ? x + i % COLS : x, there);
    }
}

/* Of a lane's rows, where rows are queries. */
struct row_terms {
    float lse[2], delta[2];
};

__device__ inline row_terms load_terms(const float *lse, const float *delta, int row, int m)
{
    row_terms x = {};
#pragma unroll
    for (int h = 0; h < 2; h++)
        if (row + row_of(2 * h) < m) {
            x.lse[h] = lse[row + row_of(2 * h)];
            x.delta[h] = delta[row + row_of(2 * h)];
        }
    return x;
}

/* p = exp(s - lse) from x1 y1. */
template <bool BY_KEYS, class S, int WIDTH>
__device__ inline void make_p(float factor, const row_terms &rows,
                              const column_memory<S, WIDTH> &cols, frag_c (&p)[1][COLS / 8])
{
    for_scores<1>([&](int, int j, int e) {
        const float lse = BY_KEYS ? cols.lse[col_of(j, e)] : rows.lse[e / 2];
        p[0][j].r[e] = exp2_fast(p[0][j].r[e] * factor - LOG2_E * lse);
    });
}

/* ds / scale = p (dp - delta) from dp = x2 y2. */
template <bool BY_KEYS, class S, int WIDTH>
__device__ inline void make_ds(const row_terms &rows, const column_memory<S, WIDTH> &cols,
                               const frag_c (&p)[1][COLS / 8], frag_c (&ds)[1][COLS / 8])
{
    for_scores<1>([&](int, int j, int e) {
        const float delta = BY_KEYS ? cols.delta[col_of(j, e)] : rows.delta[e / 2];
        ds[0][j].r[e] = p[0][j].r[e] * (ds[0][j].r[e] - delta);
    });
}

/* Registers do not hold two wide sums: then d1 and d2 are made by different blocks, in o1. */
template <int WIDTH, bool BY_KEYS> constexpr bool APART = BY_KEYS &&WIDTH > 128;

template <bool SECOND, class A, class B> __device__ inline auto &choose(A &first, B &second)
{
    if constexpr (SECOND)
        return second;
    else
        return first;
}

template <class S, int WIDTH, int WARPS, bool BY_KEYS>
__global__ void __launch_bounds__(32 * WARPS)
    mma_backward(const __grid_constant__ attention_sizes z, const S *q, const S *k, const S *v,
                 const S *dout, const float *lse, const float *delta, S *d1, S *d2)
{
    constexpr int ROWS = 16 * WARPS, THREADS = 32 * WARPS;
    constexpr bool TWO = BY_KEYS && !APART<WIDTH, BY_KEYS>;
    using memory = backward_memory<S, WIDTH, WARPS>;
    GPU_DYN_SMEM(memory, mem);
    const int64_t ntiles = ((BY_KEYS ? z.keys : z.queries) + ROWS - 1) / ROWS;
    const int64_t number = blockIdx.x % ntiles; /* those that see most go first */
    walk<BY_KEYS, ROWS, COLS> w(z, BY_KEYS ? number : ntiles - 1 - number, blockIdx.x / ntiles,
                                mem->seen);
    const bool want1 = d1 && (TWO || blockIdx.y == 0);
    const bool want2 = d2 && (TWO || blockIdx.y == 1);
    const sources<S> from = {z, BY_KEYS ? q : k, BY_KEYS ? dout : v, lse, delta};
    const swizzled<S, WIDTH> x1 = {mem->x1}, x2 = {mem->x2};
    const int row = warp() * 16;
    frag_c o1[1][WIDTH / 8] = {}, o2[1][TWO ? WIDTH / 8 : 1] = {};
    row_terms terms = {};
    copies c;
    load_tile<ROWS, THREADS>(c, x1, w.mine(BY_KEYS ? k : q, z.dim), w.m(), z.dim);
    load_tile<ROWS, THREADS>(c, x2, w.mine(BY_KEYS ? v : dout, z.vdim), w.m(), z.vdim);
    if (!w.ended())
        load_columns<BY_KEYS, THREADS>(c, w, from, &mem->place[0]);
    c.commit();
    if (!BY_KEYS)
        terms = load_terms(lse + w.at(), delta + w.at(), row, w.m());
    for (int place = 0; !w.ended(); place ^= 1) {
        const column_memory<S, WIDTH> &cols = mem->place[place];
        const swizzled<S, WIDTH> y1 = {mem->place[place].y1}, y2 = {mem->place[place].y2};
        const auto now = w;
        const bool all = w.sees_all();
        frag_c p[1][COLS / 8], ds[1][COLS / 8];
        w.next();
        c.wait<0>();
        __syncthreads(); /* these columns are there, the last ones have been used */
        if (!w.ended())
            load_columns<BY_KEYS, THREADS>(c, w, from, &mem->place[place ^ 1]);
        c.commit();
        multiply_rows(x1, row, y1, p);
        make_p<BY_KEYS>((float)z.scale * LOG2_E, terms, cols, p);
        if (!all)
            hide(now, row, 0, p);
        if constexpr (BY_KEYS)
            if (want2)
                add_product(p, y2, choose<TWO>(o1, o2));
        if (want1) {
            multiply_rows(x2, row, y2, ds);
            make_ds<BY_KEYS>(terms, cols, p, ds);
            add_product(ds, y1, o1);
        }
    }
    c.wait<0>();
    __syncthreads();
    if (want1)
        write_rows(x1, row, o1[0], (float)z.scale, (float)z.scale, w.mine(d1, z.dim), w.m(), z.dim);
    if constexpr (BY_KEYS)
        if (want2)
            write_rows(x2, row, choose<TWO>(o1, o2)[0], 1, 1, w.mine(d2, z.vdim), w.m(), z.vdim);
}

template <class S, int WIDTH, int WARPS, bool BY_KEYS>
void backward(const dt_attention_args *a, const void *delta, void *d1, void *d2)
{
    constexpr size_t bytes = sizeof(backward_memory<S, WIDTH, WARPS>);
    const int64_t heads = a->batch * (BY_KEYS ? a->kv_heads : a->heads);
    const int64_t rows = BY_KEYS ? a->keys : a->queries;
    const int64_t tiles = heads * ((rows + 16 * WARPS - 1) / (16 * WARPS));
    if (tiles == 0)
        return;
    GPU_SMEM_LIMIT((mma_backward<S, WIDTH, WARPS, BY_KEYS>), bytes);
    GPU_LAUNCH((mma_backward<S, WIDTH, WARPS, BY_KEYS>),
               dim3((unsigned)tiles, APART<WIDTH, BY_KEYS> ? 2 : 1), 32 * WARPS, bytes,
               dti_gpu_stream(), sizes_of(a), (const S *)a->q, (const S *)a->k, (const S *)a->v,
               (const S *)a->dout, (const float *)a->lse, (const float *)delta, (S *)d1, (S *)d2);
}

template <class S, int WIDTH, int WARPS> void both(const dt_attention_args *a, const void *delta)
{
    if (a->dq)
        backward<S, WIDTH, WARPS, false>(a, delta, a->dq, nullptr);
    if (a->dk || a->dv)
        backward<S, WIDTH, WARPS, true>(a, delta, a->dk, a->dv);
}

template <class S> void backward_of(const dt_attention_args *a, const void *delta)
{
    const int64_t width = max(a->dim, a->vdim);
    if (width <= 64)
        both<S, 64, 8>(a, delta);
    else if (width <= 128)
        both<S, 128, 8>(a, delta);
    else
        both<S, 256, 4>(a, delta);
}
} // namespace

void gpu::attention_mma_backward(const dt_attention_args *a, const void *delta)
{
    if (a->dtype == DT_BF16)
        backward_of<bf16>(a, delta);
    else
        backward_of<f16>(a, delta);
}
