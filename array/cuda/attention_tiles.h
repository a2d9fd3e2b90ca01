/* array/cuda/attention_tiles.h - what the attention kernels on tensor cores share: each warp has 16
 * rows (or MT times 16) of scores and of the output in registers; tiles of rows and of columns lie
 * in shared memory, WIDTH numbers a row, of which those past the real width are zeros. */
#pragma once

#include "array/cuda/attention_internal.h"
#include "array/cuda/mma_tile.h"

namespace gpu {
constexpr int COLS = 64; /* of a tile of scores */
constexpr float LOG2_E = 1.44269504088896341f;

__device__ inline int lane()
{
    return (int)threadIdx.x % 32;
}
__device__ inline int warp()
{
    return (int)threadIdx.x / 32;
}

/* Begin to copy n rows of `width` to a tile of ROWS rows; zeros past n and width. */
template <int ROWS, int THREADS, class S, int WIDTH>
__device__ inline void load_tile(copies &c, swizzled<S, WIDTH> to, rows_of<const S> from, int n,
                                 int64_t width)
{
    constexpr int PACKS = WIDTH / 8, STEP = THREADS / PACKS; /* rows at once */
    static_assert(ROWS % STEP == 0, "no thread has more to copy than others");
    const int row = (int)threadIdx.x / PACKS, pack = (int)threadIdx.x % PACKS;
    const S *p = from.at + row * from.step + pack * 8;
#pragma unroll
    for (int i = 0; i < ROWS; i += STEP) {
        const bool there = row + i < n && pack * 8 < width;
        c.add16(to.pack(row + i, pack), there ? p : from.at, there);
        p += STEP * from.step;
    }
}

/* s [MT * 16, COLS] = rows [row, row + MT * 16) of x times rows of y. */
template <int MT, class S, int WIDTH>
__device__ inline void multiply_rows(swizzled<S, WIDTH> x, int row, swizzled<S, WIDTH> y,
                                     frag_c (&s)[MT][COLS / 8])
{
#pragma unroll
    for (int mt = 0; mt < MT; mt++)
#pragma unroll
        for (int j = 0; j < COLS / 8; j++)
            s[mt][j] = {};
#pragma unroll
    for (int d = 0; d < WIDTH; d += 16) {
        frag_a a[MT];
#pragma unroll
        for (int mt = 0; mt < MT; mt++)
            a[mt] = x.load_a(row + mt * 16, d);
#pragma unroll
        for (int j = 0; j < COLS; j += 16) {
            frag_b b[2];
            y.load_b_rows(j, d, b);
#pragma unroll
            for (int mt = 0; mt < MT; mt++) {
                mma<S>(s[mt][j / 8], a[mt], b[0]);
                mma<S>(s[mt][j / 8 + 1], a[mt], b[1]);
            }
        }
    }
}

/* Columns [16 k, 16 k + 16) of scores, rounded or yet to be. */
template <class S> __device__ inline frag_a part_of(const frag_c (&p)[COLS / 8], int k)
{
    return frag_of<S>(p[2 * k], p[2 * k + 1]);
}
template <class S> __device__ inline frag_a part_of(const frag_a (&p)[COLS / 16], int k)
{
    return p[k];
}

/* out [MT * 16, WIDTH] += p [MT * 16, COLS] y, p rounded to 16 bits. */
template <int MT, class P, class S, int WIDTH>
__device__ inline void add_product(const P (&p)[MT], swizzled<S, WIDTH> y,
                                   frag_c (&out)[MT][WIDTH / 8])
{
#pragma unroll
    for (int k = 0; k < COLS / 16; k++) {
        frag_a a[MT];
#pragma unroll
        for (int mt = 0; mt < MT; mt++)
            a[mt] = part_of<S>(p[mt], k);
#pragma unroll
        for (int j = 0; j < WIDTH; j += 16) {
            frag_b b[2];
            y.load_b(k * 16, j, b);
#pragma unroll
            for (int mt = 0; mt < MT; mt++) {
                mma<S>(out[mt][j / 8], a[mt], b[0]);
                mma<S>(out[mt][j / 8 + 1], a[mt], b[1]);
            }
        }
    }
}

/* f(mt, j, e) for a lane's scores s[mt][j].r[e]: row 16 mt + row_of(e), column col_of(j, e). */
template <int MT, class F> __device__ inline void for_scores(F f)
{
#pragma unroll
    for (int mt = 0; mt < MT; mt++)
#pragma unroll
        for (int j = 0; j < COLS / 8; j++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                f(mt, j, e);
}
__device__ inline int row_of(int e)
{
    return lane() / 4 + e / 2 * 8;
}
__device__ inline int col_of(int j, int e)
{
    return 8 * j + lane() % 4 * 2 + e % 2;
}

/* Scores whose row does not see the column become `hidden`. Rows from `row` on. */
template <int MT, class Walk>
__device__ inline void hide(const Walk &w, int row, float hidden, frag_c (&s)[MT][COLS / 8])
{
    mark rows[MT][2];
#pragma unroll
    for (int mt = 0; mt < MT; mt++)
#pragma unroll
        for (int h = 0; h < 2; h++)
            rows[mt][h] = w.row(row + mt * 16 + row_of(2 * h));
#pragma unroll
    for (int j = 0; j < COLS / 8; j++)
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const mark col = w.col(col_of(j, i));
#pragma unroll
            for (int e = i; e < 4 * MT; e += 2)
                if (!w.sees(rows[e / 4][e % 4 / 2], col))
                    s[e / 4][j].r[e % 4] = hidden;
        }
}

/* Rows [row, row + 16) of the m of `width` at `to` = out times factors, of rows lane / 4 and those
 * 8 further; by way of the same rows of a tile, which only this warp uses. */
template <class S, int WIDTH>
__device__ inline void write_rows(swizzled<S, WIDTH> tile, int row, const frag_c (&out)[WIDTH / 8],
                                  float factor, float factor8, rows_of<S> to, int m, int64_t width)
{
    constexpr int PACKS = WIDTH / 8;
    __syncwarp();
#pragma unroll
    for (int j = 0; j < PACKS; j++) {
        const int col = j * 8 + lane() % 4 * 2;
        tile.put(row + lane() / 4, col, out[j].r[0] * factor, out[j].r[1] * factor);
        tile.put(row + lane() / 4 + 8, col, out[j].r[2] * factor8, out[j].r[3] * factor8);
    }
    __syncwarp();
#pragma unroll
    for (int i = lane(); i < 16 * PACKS; i += 32) {
        const int r = row + i / PACKS, pack8 = i % PACKS;
        if (r < m && pack8 * 8 < width)
            store(to.at + r * to.step + pack8 * 8, load<8>(tile.pack(r, pack8)));
    }
}
} // namespace gpu
