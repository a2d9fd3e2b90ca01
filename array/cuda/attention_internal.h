/* array/cuda/attention_internal.h - what the attention kernels share: sizes, and which tiles of
 * scores are computed. For .cu files. Read next: array/cuda/attention.cu.
 *
 * A block of threads owns a tile of rows and walks over tiles of columns. Rows are queries and
 * columns the keys that they read; for dk and dv rows are keys and columns the queries of all heads
 * that read them. */
#pragma once

#include "array/cuda/vec.h"

namespace gpu {
/* Of dt_attention_args; no padding, so that the simulated device can tell pointers. */
struct attention_sizes {
    int64_t heads, kv_heads, queries, keys, dim, vdim, group, head_lo, kv_lo;
    int64_t bshd; /* 1: [batch, tokens, heads, dim]; 0: heads before tokens */
    double scale;
    const int32_t *q_pos, *k_pos, *q_doc, *k_doc;           /* NULL: not causal, one document */
    int64_t q_pos_step, k_pos_step, q_doc_step, k_doc_step; /* from sample to sample */
};

/* attention_plain.cu: any type and size; attention_mma.cu and attention_mma_backward.cu: where
 * attention_fits_mma. delta: real<S> [batch, heads, queries], dout . out of each query. */
void attention_plain(const dt_attention_args *a);
void attention_plain_backward(const dt_attention_args *a, const void *delta);
bool attention_fits_mma(const dt_attention_args *a);
void attention_mma(const dt_attention_args *a);
void attention_mma_backward(const dt_attention_args *a, const void *delta);

inline attention_sizes sizes_of(const dt_attention_args *a)
{
    return {a->heads,
            a->kv_heads,
            a->queries,
            a->keys,
            a->dim,
            a->vdim,
            a->group,
            a->head_lo,
            a->kv_lo,
            a->bshd,
            a->scale,
            a->causal ? a->q_pos : nullptr,
            a->causal ? a->k_pos : nullptr,
            a->q_doc,
            a->k_doc,
            a->q_pos_batched ? a->queries : 0,
            a->k_pos_batched ? a->keys : 0,
            a->q_doc_batched ? a->queries : 0,
            a->k_doc_batched ? a->keys : 0};
}

/* ---- where a head's rows are ---- */

/* Rows of an array, `step` elements apart. */
template <class S> struct rows_of {
    S *at;
    int64_t step;
};

/* Tokens of head `head` of `heads`, counted over samples, of n tokens each, from token `first`. */
template <class S>
__device__ inline rows_of<S> head_rows(const attention_sizes &z, S *x, int64_t width, int64_t head,
                                       int64_t heads, int64_t n, int64_t first)
{
    const uint32_t sample = (uint32_t)head / (uint32_t)heads;
    const int64_t row =
        z.bshd ? (sample * n + first) * heads + head - sample * heads : head * n + first;
    return {x + row * width, z.bshd ? heads * width : width};
}

/* ---- what is seen ---- */

/* Tokens of one sample, queries or keys. */
struct tokens {
    int64_t n;
    const int32_t *pos, *doc;
};

__device__ inline tokens queries_of(const attention_sizes &z, int64_t b)
{
    return {z.queries, z.q_pos ? z.q_pos + b * z.q_pos_step : nullptr,
            z.q_doc ? z.q_doc + b * z.q_doc_step : nullptr};
}

__device__ inline tokens keys_of(const attention_sizes &z, int64_t b)
{
    return {z.keys, z.k_pos ? z.k_pos + b * z.k_pos_step : nullptr,
            z.k_doc ? z.k_doc + b * z.k_doc_step : nullptr};
}

/* What one of them is compared by: not there, it sees nothing. */
struct mark {
    bool there;
    int32_t pos, doc;
};

__device__ inline mark mark_of(const tokens &x, bool there, int64_t i)
{
    return {there, there && x.pos ? x.pos[i] : 0, there && x.doc ? x.doc[i] : 0};
}

/* Bounds of the positions and documents of a tile. */
struct extent {
    int32_t low, high, doc_low, doc_high;
};

__device__ inline void bounds_of(const int32_t *x, int n, int32_t *low, int32_t *high)
{
    *low = *high = x[0];
    for (int i = 1; i < n; i++) {
        *low = min(*low, x[i]);
        *high = max(*high, x[i]);
    }
}

__device__ inline extent extent_of(const tokens &x, int64_t first, int n)
{
    extent e = {};
    if (x.pos)
        bounds_of(x.pos + first, n, &e.low, &e.high);
    if (x.doc)
        bounds_of(x.doc + first, n, &e.doc_low, &e.doc_high);
    return e;
}

enum sight : uint8_t { SEES_NONE, SEES_SOME, SEES_ALL };

/* "Some" is always right. */
__device__ inline sight sight_of(const extent &q, const extent &k)
{
    if (k.low > q.high || k.doc_low > q.doc_high || k.doc_high < q.doc_low)
        return SEES_NONE;
    const bool one_doc = q.doc_low == q.doc_high && k.doc_low == k.doc_high;
    return k.high <= q.low && one_doc ? SEES_ALL : SEES_SOME;
}

constexpr int SEEN = 1024; /* tiles of columns looked at in one go */

/* A block's way over the tiles of columns that its tile of rows sees. All threads of the block make
 * it and call next() together; both have barriers. */
template <bool BY_KEYS, int ROWS, int COLS> class walk {
    const attention_sizes &z;
    uint8_t *seen;          /* [SEEN], shared: of tiles from `from` on */
    int row_tile, row_head; /* which rows: a tile of a head, among the heads of all samples */
    int head_end, head;     /* of columns, among those of all samples */
    int from, count, tile;  /* tiles of columns: looked at, and which of these it is */

    __device__ int64_t nrows() const
    {
        return BY_KEYS ? z.keys : z.queries;
    }
    __device__ int64_t ncols() const
    {
        return BY_KEYS ? z.queries : z.keys;
    }
    __device__ tokens rows() const
    {
        return BY_KEYS ? keys_of(z, row_head / z.kv_heads) : queries_of(z, row_head / z.heads);
    }
    __device__ tokens cols() const
    {
        return BY_KEYS ? queries_of(z, row_head / z.kv_heads) : keys_of(z, row_head / z.heads);
    }
    /* Heads of one sample: query heads h read key head (head_lo + h) / group - kv_lo. */
    __device__ int64_t low_head() const
    {
        return BY_KEYS ? (z.kv_lo + row_head % z.kv_heads) * z.group - z.head_lo
                       : (z.head_lo + row_head % z.heads) / z.group - z.kv_lo;
    }
    __device__ int first_head() const
    {
        return BY_KEYS ? (int)(row_head / z.kv_heads * z.heads + max(low_head(), (int64_t)0))
                       : head_end - 1;
    }
    __device__ int end_head() const
    {
        return BY_KEYS ? (int)(row_head / z.kv_heads * z.heads + min(low_head() + z.group, z.heads))
                       : (int)(row_head / z.heads * z.kv_heads + low_head() + 1);
    }
    __device__ void look()
    {
        __syncthreads(); /* the last `seen` has been read */
        const extent mine = extent_of(rows(), first(), m());
        count = (int)min((ncols() + COLS - 1) / COLS - from, (int64_t)SEEN);
        for (int i = (int)threadIdx.x; i < count; i += (int)blockDim.x) {
            const int64_t start = (int64_t)(from + i) * COLS;
            const int n = (int)min(ncols() - start, (int64_t)COLS);
            const extent e = extent_of(cols(), start, n);
            const sight s = BY_KEYS ? sight_of(e, mine) : sight_of(mine, e);
            seen[i] = s == SEES_ALL && n < COLS ? SEES_SOME : s;
        }
        __syncthreads();
    }

  public:
    /* Rows of tile `number` of a head, of all samples' heads. */
    __device__ walk(const attention_sizes &sizes, int64_t number, int64_t row_head_,
                    uint8_t *seen_memory)
        : z(sizes), seen(seen_memory), row_tile((int)number), row_head((int)row_head_),
          head_end(end_head()), from(-SEEN), count(0), tile(-1)
    {
        head = head_end - 1;
        if (first_head() < head_end)
            next();
        else
            from = (int)((ncols() + COLS - 1) / COLS);
    }
    __device__ bool ended() const
    {
        return (int64_t)from * COLS >= ncols();
    }
    __device__ void next()
    {
        do {
            if (++tile >= count) {
                tile = 0;
                head++;
            }
            if (head == head_end) {
                head = first_head();
                from += SEEN;
                if (ended())
                    return;
                look();
            }
        } while (seen[tile] == SEES_NONE);
    }
    /* The first row, in its head and among those of all heads in turn, and how many. */
    __device__ int64_t first() const
    {
        return (int64_t)row_tile * ROWS;
    }
    __device__ int64_t at() const
    {
        return row_head * nrows() + first();
    }
    __device__ int m() const
    {
        return (int)min(nrows() - first(), (int64_t)ROWS);
    }
    /* The rows in an array of theirs, of `width` numbers each. */
    template <class S> __device__ rows_of<S> mine(S *x, int64_t width) const
    {
        return head_rows(z, x, width, row_head, BY_KEYS ? z.kv_heads : z.heads, nrows(), first());
    }
    /* The same of the columns of the tile. */
    __device__ int64_t column() const
    {
        return (int64_t)(from + tile) * COLS;
    }
    __device__ int64_t there() const
    {
        return head * ncols() + column();
    }
    __device__ int n() const
    {
        return (int)min(ncols() - column(), (int64_t)COLS);
    }
    template <class S> __device__ rows_of<S> theirs(S *x, int64_t width) const
    {
        return head_rows(z, x, width, head, BY_KEYS ? z.heads : z.kv_heads, ncols(), column());
    }
    /* Are there COLS columns, and does every row see each? */
    __device__ bool sees_all() const
    {
        return seen[tile] == SEES_ALL;
    }
    __device__ mark row(int r) const
    {
        return mark_of(rows(), r < m(), first() + r);
    }
    __device__ mark col(int c) const
    {
        return mark_of(cols(), c < n(), column() + c);
    }
    static __device__ bool sees(const mark &r, const mark &c)
    {
        return r.there && c.there && r.doc == c.doc && (BY_KEYS ? r.pos <= c.pos : c.pos <= r.pos);
    }
};
} // namespace gpu
