/* array/cuda/mma_tile.h - tensor cores: what the 32 lanes of a warp do together on tiles of 16-bit
 * numbers that lie in shared memory. The instructions are in mma_ptx.h, and in mma_sim.h for the
 * simulated device, which moves and adds as the PTX manual (9.7.14) lays fragments out.
 *
 *     frag_c [16 x 8] += frag_a [16 x 16] frag_b [16 x 8]      f32 += bf16 or f16
 *
 * With g = lane / 4 and t = lane % 4 a lane holds, as pairs of neighbours:
 *     a.r   (g, 2t)  (g + 8, 2t)  (g, 2t + 8)  (g + 8, 2t + 8)
 *     b.r   rows 2t, 2t + 1 of column g;  rows 2t + 8, 2t + 9
 *     c.r   (g, 2t)  (g, 2t + 1)  (g + 8, 2t)  (g + 8, 2t + 1)
 * so that two c side by side, rounded, are an a. */
#pragma once

#include "array/cuda/vec.h"

namespace gpu {
struct frag_a {
    uint32_t r[4];
};
struct frag_b {
    uint32_t r[2];
};
struct frag_c {
    float r[4];
};
} // namespace gpu

#ifdef __CUDACC__
#include "array/cuda/mma_ptx.h"
#else
#include "array/cuda/mma_sim.h"
#endif

namespace gpu {
/* Two neighbours, the first in the low half. */
template <class S> __device__ inline uint32_t pair_of(float x, float y)
{
    uint32_t bits;
    if constexpr (std::is_same_v<S, bf16>) {
        const __nv_bfloat162 both = __floats2bfloat162_rn(x, y);
        memcpy(&bits, &both, sizeof bits);
    } else {
        const __half2 both = __floats2half2_rn(x, y);
        memcpy(&bits, &both, sizeof bits);
    }
    return bits;
}

/* Columns 0 to 7 and 8 to 15 of a row-major a. */
template <class S> __device__ inline frag_a frag_of(const frag_c &left, const frag_c &right)
{
    return {{pair_of<S>(left.r[0], left.r[1]), pair_of<S>(left.r[2], left.r[3]),
             pair_of<S>(right.r[0], right.r[1]), pair_of<S>(right.r[2], right.r[3])}};
}

/* A tile of rows of WIDTH numbers, WIDTH a multiple of 64, in shared memory. Packs of 8 columns (16
 * bytes) are exchanged within a row by its number, so that 8 rows of one pack lie in all banks. */
template <class S, int WIDTH> struct swizzled {
    S *at;

    __device__ S *pack(int row, int column8) const
    {
        return at + row * WIDTH + ((column8 ^ (row & 7)) << 3);
    }
    /* The same where row + more has the last 3 bits of row, and column8 is 0 or 1 more than `col` /
     * 8, col a multiple of 16: two lane's numbers, the rest constants. */
    __device__ S *pack(int row, int more, int column8, int col) const
    {
        return at + row * WIDTH + (((col / 8 % 8) ^ column8 ^ (row & 7)) << 3) +
               (more * WIDTH + col / 64 * 64);
    }
    /* Numbers at even column col and the next, rounded. */
    __device__ void put(int row, int col, float x, float y) const
    {
        *reinterpret_cast<uint32_t *>(pack(row, col / 8) + col % 8) = pair_of<S>(x, y);
    }
    /* Rows [row, row + 16), columns [col, col + 16) as an a. */
    __device__ frag_a load_a(int row, int col) const
    {
        const int lane = (int)threadIdx.x % 32;
        frag_a f;
        load_matrices(f.r, pack(lane % 16, row, lane / 16, col));
        return f;
    }
    /* The transpose of rows [row, row + 16) and columns [col, col + 16) as two b, of rows
     * [row, row + 8) and the next 8: for products with rows of the tile. */
    __device__ void load_b_rows(int row, int col, frag_b (&f)[2]) const
    {
        const int lane = (int)threadIdx.x % 32;
        uint32_t r[4];
        load_matrices(r, pack(lane % 8 + lane / 16 * 8, row, lane / 8 % 2, col));
        f[0] = {{r[0], r[1]}};
        f[1] = {{r[2], r[3]}};
    }
    /* Rows [row, row + 16) and columns [col, col + 16) as two b, of columns [col, col + 8) and the
     * next 8: for sums of rows of the tile. */
    __device__ void load_b(int row, int col, frag_b (&f)[2]) const
    {
        const int lane = (int)threadIdx.x % 32;
        uint32_t r[4];
        load_matrices_transposed(r, pack(lane % 16, row, lane / 16, col));
        f[0] = {{r[0], r[1]}};
        f[1] = {{r[2], r[3]}};
    }
};
} // namespace gpu
