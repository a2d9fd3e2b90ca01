/* array/cuda/embedding.cu - rows of a table by ids, and their gradient.
 *
 * The gradient adds up the rows of dy that have one id, in the order of tokens. Pairs (id, token)
 * are sorted: in tiles by counting who is smaller, then merged, up to 32 runs at once, by adding up
 * an element's place in each. Blocks then take TOKENS of the sorted pairs each. A sum that one
 * block holds whole goes to dw; what crosses the end of a block is kept in pieces, which are added
 * up in the end. The order of additions depends on the ids alone. */
#include "array/cuda/rows.h"

namespace {
using namespace gpu;

/* ---- forward ---- */

template <class S, int N>
__global__ void __launch_bounds__(ROW_THREADS)
    lookup(dt_embedding_args a, const int32_t *ids, const S *__restrict__ w, S *__restrict__ y)
{
    const int64_t t = (int64_t)blockIdx.x * blockDim.y + threadIdx.y;
    if (t >= a.tokens)
        return;
    const int64_t id = ids[t];
    const bool here = id >= a.lo && id < a.hi;
    row<S, N, 0>::each(a.d / N, [&](int, int64_t p) {
        const pack<S, N> zero = {};
        pack_at<N>(y + t * a.d, p) = here ? pack_at<N>(w + (id - a.lo) * a.d, p) : zero;
    });
}

/* ---- sorting ---- */

constexpr int TILE = BLOCK; /* pairs that a block sorts */
constexpr int RUNS = 32;    /* that are merged at once */
constexpr uint32_t NO_ID = UINT32_MAX;

/* Sorts by id, then token. Ids that are not here come last. */
__device__ inline uint64_t pair_of(const dt_embedding_args &a, const int32_t *ids, int64_t t)
{
    const int64_t id = ids[t];
    const uint32_t key = id >= a.lo && id < a.hi ? (uint32_t)(id - a.lo) : NO_ID;
    return (uint64_t)key << 32 | (uint32_t)t;
}

__global__ void __launch_bounds__(TILE)
    sort_tiles(dt_embedding_args a, const int32_t *ids, uint64_t *to)
{
    __shared__ uint64_t pair[TILE];
    const int64_t first = (int64_t)blockIdx.x * TILE, t = first + threadIdx.x;
    const int n = a.tokens - first < TILE ? (int)(a.tokens - first) : TILE;
    if (t < a.tokens)
        pair[threadIdx.x] = pair_of(a, ids, t);
    __syncthreads();
    if (t >= a.tokens)
        return;
    int smaller = 0;
    for (int i = 0; i < n; i++)
        smaller += pair[i] < pair[threadIdx.x];
    to[first + smaller] = pair[threadIdx.x];
}

/* How many of n sorted pairs are below x. */
__device__ inline int64_t below(const uint64_t *pair, int64_t n, uint64_t x)
{
    int64_t lo = 0, hi = n;
    while (lo < hi) {
        const int64_t mid = (lo + hi) / 2;
        if (pair[mid] < x)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

/* Every RUNS runs of `length` become one. */
__global__ void __launch_bounds__(BLOCK)
    merge_runs(int64_t n, int64_t length, const uint64_t *from, uint64_t *to)
{
    const int64_t i = thread_index();
    if (i >= n)
        return;
    const int64_t first = i / (length * RUNS) * (length * RUNS), mine = i / length * length;
    const int64_t last = first + length * RUNS < n ? first + length * RUNS : n;
    int64_t place = first + (i - mine);
    for (int64_t r = first; r < last; r += length)
        if (r != mine)
            place += below(from + r, last - r < length ? last - r : length, from[i]);
    to[place] = from[i];
}

/* ---- gradient ---- */

constexpr int TOKENS = 32; /* sorted pairs of a block */
constexpr int AHEAD = 8;   /* rows of dy that are loaded before the first is added */
constexpr int COLUMN_THREADS = 128;

struct tile {
    const uint64_t *pair;
    int64_t first, n, all;

    __device__ tile(const uint64_t *sorted, int64_t k, int64_t tokens)
        : pair(sorted), first(k * TOKENS), all(tokens)
    {
        n = tokens - first < TOKENS ? tokens - first : TOKENS;
    }
    __device__ uint32_t id(int64_t i) const
    {
        return (uint32_t)(pair[i] >> 32);
    }
    /* Does a sum go on from pair i - 1 to pair i? */
    __device__ bool joins(int64_t i) const
    {
        return i > 0 && i < all && id(i) == id(i - 1);
    }
};

/* A block's two pieces: of a sum that began earlier, and of one that begins here; both go on, but
 * the first may also end. */
template <class S, int N>
__global__ void __launch_bounds__(COLUMN_THREADS)
    add_tiles(dt_embedding_args a, const uint64_t *sorted, const S *dy, S *dw, real<S> *piece)
{
    using R = real<S>;
    const tile t(sorted, blockIdx.x, a.tokens);
    const int64_t p = (int64_t)blockIdx.y * COLUMN_THREADS + threadIdx.x;
    if (p * N >= a.d || t.id(t.first) == NO_ID)
        return;
    R sum[N] = {};
    bool began = !t.joins(t.first);
    for (int64_t j = 0; j < t.n; j += AHEAD) {
        pack<S, N> raw[AHEAD];
#pragma unroll
        for (int k = 0; k < AHEAD; k++)
            if (j + k < t.n && t.id(t.first + j + k) != NO_ID)
                raw[k] = pack_at<N>(dy + (uint32_t)t.pair[t.first + j + k] * a.d, p);
#pragma unroll
        for (int k = 0; k < AHEAD; k++) {
            const int64_t i = t.first + j + k;
            if (j + k >= t.n || t.id(i) == NO_ID)
                break;
#pragma unroll
            for (int e = 0; e < N; e++)
                sum[e] += to_real(raw[k].at[e]);
            const bool ends = !t.joins(i + 1);
            if (!ends && j + k + 1 < t.n)
                continue;
            if (began && ends)
                pack_at<N>(dw + t.id(i) * a.d, p) = packed<S>(sum);
            else
                pack_at<N>(piece + (2 * (int64_t)blockIdx.x + began) * a.d, p) = packed<R>(sum);
            began = true;
#pragma unroll
            for (int e = 0; e < N; e++)
                sum[e] = 0;
        }
    }
}

/* The sums that cross the ends of blocks: block (k, ...) adds up the one that begins in tile k and
 * goes on. */
template <class S>
__global__ void __launch_bounds__(COLUMN_THREADS)
    add_pieces(dt_embedding_args a, const uint64_t *sorted, const real<S> *piece, S *dw)
{
    int64_t k = blockIdx.x;
    const tile t(sorted, k, a.tokens);
    const int64_t next = t.first + TOKENS, c = (int64_t)blockIdx.y * COLUMN_THREADS + threadIdx.x;
    if (c >= a.d || !t.joins(next) || t.id(next) == NO_ID)
        return;
    const uint32_t id = t.id(next);
    if (t.id(t.first) == id && t.joins(t.first))
        return; /* it began earlier */
    double sum = piece[(k * 2 + 1) * a.d + c];
#pragma unroll 4
    for (k++; k * TOKENS < a.tokens && t.id(k * TOKENS) == id; k++)
        sum += piece[k * 2 * a.d + c];
    dw[id * a.d + c] = from_real<S>((real<S>)sum);
}

/* Sorted pairs, in one of two arrays of a->tokens. */
const uint64_t *sort_pairs(const dt_embedding_args *a, uint64_t *one, uint64_t *other)
{
    GPU_LAUNCH(sort_tiles, blocks(a->tokens, TILE), TILE, 0, dti_gpu_stream(), *a, a->ids, one);
    for (int64_t length = TILE; length < a->tokens; length *= RUNS) {
        GPU_LAUNCH(merge_runs, blocks(a->tokens, BLOCK), BLOCK, 0, dti_gpu_stream(), a->tokens,
                   length, (const uint64_t *)one, other);
        uint64_t *const sorted = other;
        other = one;
        one = sorted;
    }
    return one;
}

template <class S> void gradient(const dt_embedding_args *a, const S *dy, S *dw)
{
    using R = real<S>;
    constexpr int PACK = PER_16<S>;
    const unsigned tiles = blocks(a->tokens, TOKENS);
    const size_t pairs = (size_t)(a->tokens + 1) / 2 * 2 * sizeof(uint64_t);
    char *room = (char *)dti_gpu_scratch(2 * pairs + (size_t)tiles * 2 * (size_t)a->d * sizeof(R));
    if (!room)
        return;
    R *piece = (R *)(room + 2 * pairs);
    const uint64_t *sorted = sort_pairs(a, (uint64_t *)room, (uint64_t *)(room + pairs));
    const auto go = [&](auto n) {
        constexpr int N = decltype(n)::value;
        GPU_LAUNCH((add_tiles<S, N>), dim3(tiles, blocks(a->d, COLUMN_THREADS * N)), COLUMN_THREADS,
                   0, dti_gpu_stream(), *a, sorted, dy, dw, piece);
    };
    if (a->d % PACK == 0 && fits<PACK>(dy, (const S *)dw))
        go(size<PACK>());
    else
        go(size<1>());
    if (tiles > 1)
        GPU_LAUNCH(add_pieces<S>, dim3(tiles - 1, blocks(a->d, COLUMN_THREADS)), COLUMN_THREADS, 0,
                   dti_gpu_stream(), *a, sorted, (const R *)piece, dw);
}

/* ---- ids ---- */

constexpr int CHECK_BLOCKS = 64;

/* Of each block the lowest index of an id outside [0, limit) other than `ignore`; n: none. */
__global__ void __launch_bounds__(BLOCK)
    find_bad(int64_t n, const int32_t *ids, int64_t limit, int64_t ignore, int64_t *found)
{
    int64_t i = thread_index();
    const int64_t step = (int64_t)gridDim.x * BLOCK;
    while (i < n && ((ids[i] >= 0 && ids[i] < limit) || ids[i] == ignore))
        i += step;
    const int64_t lowest = block_reduce(i < n ? i : n, min_op());
    if (threadIdx.x == 0)
        found[blockIdx.x] = lowest;
}
} // namespace

int64_t dti_cuda_find_bad_id(int64_t n, const int32_t *ids, int64_t limit, int64_t ignore)
{
    int64_t found[CHECK_BLOCKS], lowest = n;
    if (n <= 0)
        return -1;
    const unsigned want = blocks(n, BLOCK), grid = want < CHECK_BLOCKS ? want : CHECK_BLOCKS;
    int64_t *on_device = (int64_t *)dti_gpu_scratch(sizeof found);
    if (!on_device)
        return -1;
    GPU_LAUNCH(find_bad, grid, BLOCK, 0, dti_gpu_stream(), n, ids, limit, ignore, on_device);
    if (dti_cuda_array_kernels()->read(found, on_device, grid * sizeof *found) != DT_OK)
        return -1;
    for (unsigned b = 0; b < grid; b++)
        lowest = found[b] < lowest ? found[b] : lowest;
    return lowest < n ? lowest : -1;
}

void dti_cuda_embedding(const dt_embedding_args *a, const void *w, void *y)
{
    if (a->tokens <= 0 || a->d <= 0)
        return;
    for_float(a->dtype, [&](auto t) {
        using S = typename decltype(t)::storage;
        constexpr int N = PER_16<S>;
        const row_shape s = shape_of_rows(a->tokens, a->d, 4 * N);
        if (a->d % N == 0 && fits<N>((const S *)w, (const S *)y))
            GPU_LAUNCH((lookup<S, N>), (unsigned)s.blocks, s.block, 0, dti_gpu_stream(), *a, a->ids,
                       (const S *)w, (S *)y);
        else
            GPU_LAUNCH((lookup<S, 1>), (unsigned)s.blocks, s.block, 0, dti_gpu_stream(), *a, a->ids,
                       (const S *)w, (S *)y);
    });
}

void dti_cuda_embedding_dw(const dt_embedding_args *a, const void *dy, void *dw)
{
    if (a->d <= 0 || a->hi <= a->lo)
        return;
    for_float(a->dtype, [&](auto t) {
        using S = typename decltype(t)::storage;
        const size_t bytes = (size_t)((a->hi - a->lo) * a->d) * sizeof(S);
        (void)DTI_GPU(cudaMemsetAsync(dw, 0, bytes, dti_gpu_stream()));
        if (a->tokens > 0)
            gradient(a, (const S *)dy, (S *)dw);
    });
}
