/* array/cuda/attention_mma.cu - attention forward of bf16 and f16 on tensor cores. Method:
 * array/kernels_attention.c; probabilities are rounded to 16 bits before they meet v.
 *
 * Four warps own 128 queries (64 where a row is 256 wide) and walk over tiles of 64 keys. While
 * scores are made from a tile of k its v is on its way, and while p v is made the next k. */
#include "array/cuda/attention_tiles.h"

namespace {
using namespace gpu;

constexpr int THREADS = 128;

template <class S, int WIDTH, int MT> struct forward_memory {
    S q[64 * MT * WIDTH], k[COLS * WIDTH], v[COLS * WIDTH];
    uint8_t seen[SEEN];
};

/* Of a lane's rows lane / 4 and lane / 4 + 8 of MT times 16: the largest score, and this lane's
 * part of the sum of exponentials. */
template <int MT> struct running {
    float max[MT][2], sum[MT][2];
};

/* Scores become exponentials, of base 2 after the factor; what was summed before is scaled. */
template <int MT, int N>
__device__ inline void absorb(float factor, frag_c (&s)[MT][COLS / 8], running<MT> &x,
                              frag_c (&o)[MT][N])
{
    float most[MT][2], shift[MT][2];
#pragma unroll
    for (int mt = 0; mt < MT; mt++)
#pragma unroll
        for (int h = 0; h < 2; h++)
            most[mt][h] = x.max[mt][h];
    for_scores<MT>(
        [&](int mt, int j, int e) { most[mt][e / 2] = fmaxf(most[mt][e / 2], s[mt][j].r[e]); });
#pragma unroll
    for (int mt = 0; mt < MT; mt++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            float top = most[mt][h];
            top = fmaxf(top, __shfl_xor_sync(ALL_LANES, top, 1));
            top = fmaxf(top, __shfl_xor_sync(ALL_LANES, top, 2));
            /* Nothing seen yet: 2^(-inf - 0) is 0. */
            shift[mt][h] = top == -INFINITY ? 0 : top * factor;
            const float before = exp2_fast(x.max[mt][h] * factor - shift[mt][h]);
            x.max[mt][h] = top;
            x.sum[mt][h] *= before;
#pragma unroll
            for (int j = 0; j < N; j++) {
                o[mt][j].r[2 * h] *= before;
                o[mt][j].r[2 * h + 1] *= before;
            }
        }
    for_scores<MT>([&](int mt, int j, int e) {
        float &p = s[mt][j].r[e];
        p = exp2_fast(p * factor - shift[mt][e / 2]);
        x.sum[mt][e / 2] += p;
    });
}

/* Write m rows of out and lse, of which this warp has those from `row` on. */
template <class S, int WIDTH, int MT>
__device__ inline void finish(const running<MT> &x, const frag_c (&o)[MT][WIDTH / 8],
                              swizzled<S, WIDTH> tile, int row, int m, const attention_sizes &z,
                              rows_of<S> out, float *lse)
{
#pragma unroll
    for (int mt = 0; mt < MT; mt++) {
        float inverse[2];
#pragma unroll
        for (int h = 0; h < 2; h++) {
            float sum = x.sum[mt][h];
            sum += __shfl_xor_sync(ALL_LANES, sum, 1);
            sum += __shfl_xor_sync(ALL_LANES, sum, 2);
            inverse[h] = sum > 0 ? 1 / sum : 0;
            const int r = row + mt * 16 + row_of(2 * h);
            if (r < m && lane() % 4 == 0)
                lse[r] = sum > 0 ? x.max[mt][h] * (float)z.scale + logf(sum) : 0;
        }
        write_rows(tile, row + mt * 16, o[mt], inverse[0], inverse[1], out, m, z.vdim);
    }
}

template <class S, int WIDTH, int MT>
__global__ void __launch_bounds__(THREADS)
    mma_forward(const __grid_constant__ attention_sizes z, const S *q, const S *k, const S *v,
                S *out, float *lse)
{
    constexpr int ROWS = 64 * MT;
    using memory = forward_memory<S, WIDTH, MT>;
    GPU_DYN_SMEM(memory, mem);
    const swizzled<S, WIDTH> qs = {mem->q}, ks = {mem->k}, vs = {mem->v};
    const int64_t ntiles = (z.queries + ROWS - 1) / ROWS;
    /* The last queries see most keys: they go first. */
    walk<false, ROWS, COLS> w(z, ntiles - 1 - blockIdx.x % ntiles, blockIdx.x / ntiles, mem->seen);
    const int row = warp() * 16 * MT;
    copies c;
    running<MT> x;
    frag_c o[MT][WIDTH / 8] = {};
#pragma unroll
    for (int mt = 0; mt < MT; mt++)
        x.max[mt][0] = x.max[mt][1] = -INFINITY, x.sum[mt][0] = x.sum[mt][1] = 0;
    load_tile<ROWS, THREADS>(c, qs, w.mine(q, z.dim), w.m(), z.dim);
    if (!w.ended())
        load_tile<COLS, THREADS>(c, ks, w.theirs(k, z.dim), w.n(), z.dim);
    c.commit();
    while (!w.ended()) {
        frag_c s[MT][COLS / 8];
        frag_a p[MT][COLS / 16];
        c.wait<0>();
        __syncthreads(); /* k is there, v has been used */
        load_tile<COLS, THREADS>(c, vs, w.theirs(v, z.vdim), w.n(), z.vdim);
        c.commit();
        multiply_rows(qs, row, ks, s);
        if (!w.sees_all())
            hide(w, row, -INFINITY, s);
        absorb((float)z.scale * LOG2_E, s, x, o);
#pragma unroll
        for (int mt = 0; mt < MT; mt++)
#pragma unroll
            for (int i = 0; i < COLS / 16; i++)
                p[mt][i] = part_of<S>(s[mt], i);
        w.next();
        c.wait<0>();
        __syncthreads(); /* v is there, k has been used */
        if (!w.ended())
            load_tile<COLS, THREADS>(c, ks, w.theirs(k, z.dim), w.n(), z.dim);
        c.commit();
        add_product(p, vs, o);
    }
    c.wait<0>();
    __syncthreads();
    finish(x, o, qs, row, w.m(), z, w.mine(out, z.vdim), lse + w.at());
}

template <class S, int WIDTH, int MT> void forward(const dt_attention_args *a)
{
    constexpr size_t bytes = sizeof(forward_memory<S, WIDTH, MT>);
    const int64_t tiles = a->batch * a->heads * ((a->queries + 64 * MT - 1) / (64 * MT));
    GPU_SMEM_LIMIT((mma_forward<S, WIDTH, MT>), bytes);
    GPU_LAUNCH((mma_forward<S, WIDTH, MT>), (unsigned)tiles, THREADS, bytes, dti_gpu_stream(),
               sizes_of(a), (const S *)a->q, (const S *)a->k, (const S *)a->v, (S *)a->out,
               (float *)a->lse);
}

template <class S> void forward_of(const dt_attention_args *a)
{
    const int64_t width = max(a->dim, a->vdim);
    if (width <= 64)
        forward<S, 64, 2>(a);
    else if (width <= 128)
        forward<S, 128, 2>(a);
    else
        forward<S, 256, 1>(a);
}
} // namespace

bool gpu::attention_fits_mma(const dt_attention_args *a)
{
    const void *const p[] = {a->q, a->k, a->v, a->out, a->dout, a->dq, a->dk, a->dv};
    bool aligned = true;
    for (const void *x : p)
        aligned = aligned && (uintptr_t)x % 16 == 0;
    return aligned && (a->dtype == DT_BF16 || a->dtype == DT_F16) && a->dim % 8 == 0 &&
           a->vdim % 8 == 0 && a->dim <= 256 && a->vdim <= 256 && a->scale > 0;
}

void gpu::attention_mma(const dt_attention_args *a)
{
    if (a->dtype == DT_BF16)
        forward_of<bf16>(a);
    else
        forward_of<f16>(a);
}
