/* array/cuda/strided.cu - copies between strided views on the device: permutations of dims,
 * repeats, blocks of arrays.
 *
 * The host merges dims that stay neighbours and takes as large a unit as sizes and addresses allow,
 * so that [B, S, H, D] -> [B, H, S, D] moves 16 bytes a thread. Where the last dim of the
 * destination is another than that of the source, tiles go through shared memory, so that reads and
 * writes both are of neighbours. */
#include "array/cuda/vec.h"

namespace {
enum { DIMS = DT_STRIDED_DIMS, WORTH_A_TILE = 8 };

/* Strides in bytes. */
struct movement {
    int64_t unit; /* bytes that are moved at once */
    int ndim;
    int64_t size[DIMS], to[DIMS], from[DIMS];
    char *dst;
    const char *src;
};

void drop_dim(movement *m, int d)
{
    m->ndim--;
    for (; d < m->ndim; d++) {
        m->size[d] = m->size[d + 1];
        m->to[d] = m->to[d + 1];
        m->from[d] = m->from[d + 1];
    }
}

/* Drop dims of size 1, merge those that are one run on both sides. */
void merge_dims(movement *m)
{
    for (int d = m->ndim - 1; d >= 0; d--) {
        if (m->size[d] == 1) {
            drop_dim(m, d);
        } else if (d + 1 < m->ndim && m->to[d] == m->to[d + 1] * m->size[d + 1] &&
                   m->from[d] == m->from[d + 1] * m->size[d + 1]) {
            m->size[d + 1] *= m->size[d];
            drop_dim(m, d);
        }
    }
}

/* May two neighbours be one unit? */
bool can_double(const movement *m)
{
    const int last = m->ndim - 1;
    const int64_t unit = 2 * m->unit;
    if (last < 0 || unit > 16 || m->to[last] != m->unit || m->from[last] != m->unit ||
        m->size[last] % 2 != 0 || (uintptr_t)m->dst % unit != 0 || (uintptr_t)m->src % unit != 0)
        return false;
    bool all = true;
    for (int d = 0; d < last; d++)
        all = all && m->to[d] % unit == 0 && m->from[d] % unit == 0;
    return all;
}

void widen(movement *m)
{
    while (can_double(m)) {
        const int last = m->ndim - 1;
        m->unit *= 2;
        m->size[last] /= 2;
        m->to[last] = m->from[last] = m->unit;
    }
}

/* ---- a unit a thread, in the order of the destination ---- */

template <class I> struct walk {
    int ndim;
    gpu::divider<I> size[DIMS];
    int64_t to[DIMS], from[DIMS];
};

template <class U, class I>
__global__ void __launch_bounds__(gpu::BLOCK)
    units_kernel(I count, walk<I> w, const char *src, char *dst)
{
    I i = (I)gpu::thread_index();
    if (i >= count)
        return;
    for (int d = w.ndim - 1; d >= 0; d--) {
        const int64_t index = w.size[d].split(i);
        src += index * w.from[d];
        dst += index * w.to[d];
    }
    *(U *)dst = *(const U *)src;
}

template <class U> void move_units(const movement &m, int64_t count)
{
    gpu::for_index(count + gpu::BLOCK, [&](auto t) {
        using I = typename decltype(t)::storage;
        walk<I> w = {};
        w.ndim = m.ndim;
        for (int d = 0; d < m.ndim; d++) {
            w.size[d] = gpu::divider<I>(m.size[d]);
            w.to[d] = m.to[d];
            w.from[d] = m.from[d];
        }
        GPU_LAUNCH((units_kernel<U, I>), gpu::blocks(count, gpu::BLOCK), gpu::BLOCK, 0,
                   dti_gpu_stream(), (I)count, w, m.src, m.dst);
    });
}

/* ---- tiles ---- */

/* A matrix is columns that follow each other in the source, of rows that do in the destination;
 * there are as many as the outer dims say. */
struct matrices {
    int64_t rows, columns; /* size of the destination's last dim, of the source's */
    int64_t row_tiles, column_tiles;
    int64_t from_row,
        to_column; /* bytes to the next row in the source, column in the destination */
    int ndim;
    int64_t size[DIMS], to[DIMS], from[DIMS];
};

template <class U, int TILE>
__global__ void __launch_bounds__(gpu::BLOCK) tiles_kernel(matrices m, const char *src, char *dst)
{
    __shared__ U tile[TILE][TILE + 1];
    int64_t b = blockIdx.x;
    const int64_t row = b % m.row_tiles * TILE;
    b /= m.row_tiles;
    const int64_t column = b % m.column_tiles * TILE;
    b /= m.column_tiles;
    for (int d = m.ndim - 1; d >= 0; d--) {
        src += b % m.size[d] * m.from[d];
        dst += b % m.size[d] * m.to[d];
        b /= m.size[d];
    }
    const int x = threadIdx.x % 32, y = threadIdx.x / 32;
    for (int r = y; r < TILE && row + r < m.rows; r += gpu::BLOCK / 32)
        for (int c = x; c < TILE && column + c < m.columns; c += 32)
            tile[r][c] = ((const U *)(src + (row + r) * m.from_row))[column + c];
    __syncthreads();
    for (int c = y; c < TILE && column + c < m.columns; c += gpu::BLOCK / 32)
        for (int r = x; r < TILE && row + r < m.rows; r += 32)
            ((U *)(dst + (column + c) * m.to_column))[row + r] = tile[r][c];
}

/* The dim that is the source's last; -1: that of the destination too, or tiles would be slivers. */
int tiled_dim(const movement *m)
{
    const int last = m->ndim - 1;
    if (last < 1 || m->unit > 8 || m->to[last] != m->unit || m->size[last] < WORTH_A_TILE)
        return -1;
    for (int d = 0; d < last; d++)
        if (m->from[d] == m->unit && m->size[d] >= WORTH_A_TILE)
            return d;
    return -1;
}

template <class U> void move_tiles(const movement &m, int d)
{
    constexpr int TILE = sizeof(U) <= 2 ? 64 : 32;
    const int last = m.ndim - 1;
    movement outer = m;
    matrices all = {};
    all.rows = m.size[last];
    all.columns = m.size[d];
    all.row_tiles = gpu::blocks(all.rows, TILE);
    all.column_tiles = gpu::blocks(all.columns, TILE);
    all.from_row = m.from[last];
    all.to_column = m.to[d];
    drop_dim(&outer, last);
    drop_dim(&outer, d);
    int64_t tiles = all.row_tiles * all.column_tiles;
    all.ndim = outer.ndim;
    for (int o = 0; o < outer.ndim; o++) {
        all.size[o] = outer.size[o];
        all.to[o] = outer.to[o];
        all.from[o] = outer.from[o];
        tiles *= outer.size[o];
    }
    GPU_LAUNCH((tiles_kernel<U, TILE>), (unsigned)tiles, gpu::BLOCK, 0, dti_gpu_stream(), all,
               m.src, m.dst);
}

template <class U> void move_by(const movement &m, int64_t count)
{
    const int tiled = tiled_dim(&m);
    if (tiled >= 0)
        move_tiles<U>(m, tiled);
    else
        move_units<U>(m, count);
}

void run(movement *m)
{
    merge_dims(m);
    widen(m);
    merge_dims(m);
    int64_t count = 1;
    for (int d = 0; d < m->ndim; d++)
        count *= m->size[d];
    if (count == 0 || !m->dst)
        return;
    switch (m->unit) {
    case 1: move_by<uint8_t>(*m, count); break;
    case 2: move_by<uint16_t>(*m, count); break;
    case 4: move_by<uint32_t>(*m, count); break;
    case 8: move_by<uint64_t>(*m, count); break;
    default: move_units<gpu::pack<uint64_t, 2>>(*m, count); break;
    }
}
} // namespace

void dti_cuda_strided(const dt_strided_args *a)
{
    movement m = {};
    m.unit = a->elem_bytes;
    m.ndim = a->ndim;
    int64_t step = a->elem_bytes;
    for (int d = a->ndim - 1; d >= 0; d--) {
        m.size[d] = a->size[d];
        m.from[d] = a->stride[d] * a->elem_bytes;
        m.to[d] = step;
        step *= a->size[d];
    }
    m.dst = (char *)a->dst;
    m.src = (const char *)a->src;
    run(&m);
}

void dti_cuda_copy_block(const dti_strided_block *b)
{
    movement m = {};
    m.unit = b->elem_bytes;
    m.ndim = b->ndim;
    for (int d = 0; d < b->ndim; d++) {
        m.size[d] = b->extent[d];
        m.to[d] = b->dst_stride[d] * b->elem_bytes;
        m.from[d] = b->src_stride[d] * b->elem_bytes;
    }
    m.dst = (char *)b->dst;
    m.src = (const char *)b->src;
    run(&m);
}
