/* array/kernels_attention.c - attention in blocks of 64 queries by 64 keys, forward and backward;
 * four blocks of queries share what is prepared of a block of keys.
 *
 *     for each block of queries:            m = max, l = sum of exp, both of the keys seen so far
 *         for each block of keys:           s = scale q k^T, hidden keys -inf
 *             m', p = exp(s - m')           out = out exp(m - m') + p v,  l likewise
 *     out /= l,  lse = m + log l
 *
 * Backward computes p = exp(s - lse) again, block by block. Nothing larger than four blocks is ever
 * stored (300 KiB on the stack in f64), and blocks that no query sees are skipped. Sums are in
 * f32 (f64 for f64) in a fixed order. Products: array/tiles.c.
 * Source: Dao et al. 2022, "FlashAttention"; Milakov and Gimelshein 2018, "Online normalizer
 * calculation for softmax". */
#include "array/kernels_nn_internal.h"

#include "array/exp_internal.h"
#include "array/tiles_internal.h"

#include <math.h>
#include <string.h>

enum {
    BLOCK = 64, /* queries, and keys */
    PARTS = 4   /* blocks of queries at once */
};

/* What a block of queries may see. */
typedef struct view {
    int m; /* queries */
    bool causal;
    const int32_t *q_pos, *k_pos; /* NULL: counted from q_first, k_first */
    int64_t q_first, k_first;
    const int32_t *q_doc, *k_doc; /* NULL: one document */
} view;

/* Where a head of a sample begins among its array's rows, and how far apart its rows are. */
static int64_t first_row(const dt_attention_args *a, int64_t b, int64_t h, int64_t heads,
                         int64_t rows)
{
    if (rows == 0)
        return 0; /* of no array */
    return a->bshd ? b * rows * heads + h : (b * heads + h) * rows;
}

static int64_t row_step(const dt_attention_args *a, int64_t heads)
{
    return a->bshd ? heads : 1;
}

typedef enum sight { SIGHT_NONE, SIGHT_SOME, SIGHT_ALL } sight;

static view view_at(const dt_attention_args *a, int64_t b, int64_t first)
{
    view v = {.m = a->queries - first < BLOCK ? (int)(a->queries - first) : BLOCK,
              .causal = a->causal,
              .q_first = a->q_first + first,
              .k_first = a->k_first};
    if (a->q_pos)
        v.q_pos = a->q_pos + (a->q_pos_batched ? b * a->queries : 0) + first;
    if (a->k_pos)
        v.k_pos = a->k_pos + (a->k_pos_batched ? b * a->keys : 0);
    if (a->q_doc) {
        v.q_doc = a->q_doc + (a->q_doc_batched ? b * a->queries : 0) + first;
        v.k_doc = a->k_doc + (a->k_doc_batched ? b * a->keys : 0);
    }
    return v;
}

static int32_t q_position(const view *v, int64_t i)
{
    return v->q_pos ? v->q_pos[i] : (int32_t)(v->q_first + i);
}

static int32_t k_position(const view *v, int64_t key)
{
    return v->k_pos ? v->k_pos[key] : (int32_t)(v->k_first + key);
}

/* Do the queries see none, some or all of the keys [key, key + n)? "Some" is always right. */
static sight sight_of(const view *v, int64_t key, int n)
{
    if (!v->causal)
        return v->q_doc ? SIGHT_SOME : SIGHT_ALL;
    int32_t q_low = q_position(v, 0), q_high = q_low, k_low = k_position(v, key), k_high = k_low;
    for (int i = 1; i < v->m; i++) {
        const int32_t p = q_position(v, i);
        q_low = p < q_low ? p : q_low;
        q_high = p > q_high ? p : q_high;
    }
    for (int j = 1; j < n; j++) {
        const int32_t p = k_position(v, key + j);
        k_low = p < k_low ? p : k_low;
        k_high = p > k_high ? p : k_high;
    }
    if (k_low > q_high)
        return SIGHT_NONE;
    return k_high <= q_low && !v->q_doc ? SIGHT_ALL : SIGHT_SOME;
}

/* x = exp(x - shift). */
static void exp_run_f32(int64_t n, float shift, float *x)
{
    dti_exp_kernels_of(0)->row(n, x, shift, 1, x);
}

static void exp_run_f64(int64_t n, double shift, double *x)
{
    for (int64_t i = 0; i < n; i++)
        x[i] = exp(x[i] - shift);
}

#define REAL    float
#define NAME(f) f##_f32
#include "array/kernel_attention.inc"
#undef REAL
#undef NAME
#define REAL    double
#define NAME(f) f##_f64
#include "array/kernel_attention.inc"

void dti_attention(const dt_attention_args *a)
{
    dt_attention_args copy = *a;
    const int64_t nspans = (a->queries + PARTS * BLOCK - 1) / (PARTS * BLOCK);
    dt_parallel_range(a->batch * a->heads * nspans, PARTS * BLOCK * a->keys * (a->dim + a->vdim),
                      a->dtype == DT_F32 ? forward_range_f32 : forward_range_f64, &copy);
}

void dti_attention_backward(const dt_attention_args *a)
{
    dt_attention_args copy = *a;
    dt_parallel_range(a->batch * a->kv_heads, a->queries * a->keys * (a->dim + a->vdim),
                      a->dtype == DT_F32 ? backward_range_f32 : backward_range_f64, &copy);
}
