/* array/dt_kernels_nn.h - the kernels of neural network ops: one table a device.
 *
 * dtype is DT_F32 or DT_F64: that of every `void *` unless said otherwise. Arrays are contiguous
 * and row-major. Outputs are overwritten, not added to. How kernels are written:
 * array/dt_kernels.h. The ops: dtensor/ops/. */
#pragma once

#include "array/dt_kernels.h"
#include "base/dt_random.h"

/* Row norms of x [rows, n]. y = (x - mean) * inv * w + b, where inv = 1 / sqrt(mean((x - mean)^2) +
 * eps); `centred` false (rmsnorm): mean is taken as 0. */
typedef struct dt_norm_args {
    dt_dtype dtype;
    int64_t rows, n;
    double eps;
    bool centred;
    const void *x, *w, *b; /* w, b [n]; w NULL: ones, b NULL: zeros */
    double *work;          /* [dt_norm_work(rows, n)]: for backward to work with */
    const void *dy;
} dt_norm_args;

enum { DT_NORM_BLOCKS = 64 }; /* of rows, at most, whose shares of dw and db are added */

static inline int64_t dt_norm_work(int64_t rows, int64_t n)
{
    const int64_t most = DT_NORM_BLOCKS, blocks = rows < most ? rows : most;
    return 2 * (blocks * n > rows ? blocks * n : rows);
}

/* Rows of w [hi - lo, d], which are rows [lo, hi) of the whole table, by ids [tokens]; others give
 * zeros. */
typedef struct dt_embedding_args {
    dt_dtype dtype;
    int64_t tokens, d, lo, hi;
    const int32_t *ids;
} dt_embedding_args;

/* Rotary positions: pair i of D/2 turns by position * f_i, f_i = theta^(-2i/D), where
 *     factor 0 or 1   that
 *     factor alone    f_i / factor (positions interpolated)
 *     and the rest    wavelengths 2 pi / f_i above original / low are divided, those below
 *                     original / high are not, between them it is blended linearly in
 *                     original * f_i / (2 pi)
 * Sources: Su et al. 2021; Chen et al. 2023, "Position Interpolation"; Llama 3.1's rope_type
 * "llama3". */
typedef struct dt_rope_options {
    double theta, factor;
    double low_freq_factor, high_freq_factor; /* 0: factor alone */
    double original_positions;
    bool bshd; /* x [batch, seq, heads, dim] */
} dt_rope_options;

/* x [batch, heads, seq, dim], or as rope.bshd has it; positions [seq], or [batch, seq] if
 * `batched`. */
typedef struct dt_rope_args {
    dt_dtype dtype;
    int64_t batch, heads, seq, dim;
    bool batched;
    dt_rope_options rope;
    const int32_t *positions; /* NULL, and not batched: first, first + 1, ... */
    int64_t first;
    void *table; /* [batch if batched, seq, dim]: cosines, then sines */
} dt_rope_args;

/* The elements of a local block of a tensor whose dim 0 is the sample. */
typedef struct dt_dropout_args {
    dt_dtype dtype;
    dt_key key;
    int64_t first_sample; /* added to the index in dim 0 */
    double p;
    dt_shape global, local;
    int64_t offset[DT_MAX_DIMS];
} dt_dropout_args;

/* Rows of logits z [rows, n], which are columns [lo, lo + n) of the whole. */
typedef struct dt_loss_args {
    dt_dtype dtype;
    int64_t rows, n, lo, ignore;
    const int32_t *targets; /* [rows] */
    const void *z;
    void *max, *sum, *hit; /* [rows]: largest logit; sum of exp(z - max); the target's logit */
    void *dz;              /* loss_rows alone: also loss_dz, of no dy; NULL: not wanted */
    dt_dtype dz_dtype;
    double divisor;
} dt_loss_args;

/* q [batch, heads, queries, dim], k [batch, kv_heads, keys, dim], v [batch, kv_heads, keys, vdim].
 * bshd: [batch, queries, heads, dim], and k, v, out and all gradients likewise.
 * Head h of q is the whole model's head head_lo + h and reads key head (head_lo + h) / group -
 * kv_lo. */
typedef struct dt_attention_args {
    dt_dtype dtype;
    bool bshd;
    int64_t batch, heads, kv_heads, queries, keys, dim, vdim;
    int64_t group, head_lo, kv_lo;
    double scale;
    bool causal;
    const int32_t *q_pos, *k_pos, *q_doc, *k_doc; /* [queries], [keys], or with batch; or NULL */
    int64_t q_first, k_first; /* positions without an array: first, first + 1, ... */
    bool q_pos_batched, k_pos_batched, q_doc_batched, k_doc_batched;
    const void *q, *k, *v;
    void *out, *lse; /* [batch, heads, queries, vdim]; log of the row's sum of exponentials [batch,
                        heads, queries] */
    const void *dout;
    void *dq, *dk, *dv; /* each may be NULL: not wanted */
} dt_attention_args;

typedef enum dt_activation { DT_ACT_SILU, DT_ACT_GELU_TANH, DT_ACT_GELU_ERF } dt_activation;

typedef struct dt_nn_kernels {
    /* Norms and activations also take bf16 and f16: computed in f32, rounded once. */
    void (*norm)(const dt_norm_args *a, void *y);
    /* From x, w and dy; each output may be NULL: not wanted. */
    void (*norm_backward)(const dt_norm_args *a, void *dx, void *dw, void *db);

    void (*activation)(dt_dtype dtype, dt_activation kind, int64_t n, const void *x, void *y);
    void (*activation_dx)(dt_dtype dtype, dt_activation kind, int64_t n, const void *x,
                          const void *dy, void *dx);
    void (*swiglu)(dt_dtype dtype, int64_t n, const void *gate, const void *up, void *y);
    /* Each output may be NULL: not wanted; up is for dgate alone. */
    void (*swiglu_backward)(dt_dtype dtype, int64_t n, const void *gate, const void *up,
                            const void *dy, void *dgate, void *dup);

    void (*softmax)(dt_dtype dtype, int64_t rows, int64_t n, const void *x, void *y);
    void (*softmax_dx)(dt_dtype dtype, int64_t rows, int64_t n, const void *y, const void *dy,
                       void *dx);

    /* Index of the first id outside [0, limit) other than `ignore`; -1: none. */
    int64_t (*find_bad_id)(int64_t n, const int32_t *ids, int64_t limit, int64_t ignore);
    void (*embedding)(const dt_embedding_args *a, const void *w, void *y);
    void (*embedding_dw)(const dt_embedding_args *a, const void *dy, void *dw);

    void (*rope_table)(const dt_rope_args *a); /* NULL: rope needs no table */
    /* Rotates by the table; `inverse` turns back, which is the adjoint. */
    void (*rope)(const dt_rope_args *a, bool inverse, const void *x, void *y);

    void (*dropout)(const dt_dropout_args *a, const void *x, void *y);

    /* max, sum and hit of the columns here: of none they are -inf, 0 and 0; hit is 0 where the
     * target is in none of them. With a->dz the columns here are all there are, and a row's
     * gradient comes while its logits are near. */
    void (*loss_rows)(const dt_loss_args *a);
    /* sum, that of exp(z - old_max), becomes that of exp(z - max), old_max [rows] <= max. */
    void (*loss_shift)(const dt_loss_args *a, const void *old_max);
    /* *total += the sum over valid targets of log(sum) + max - hit, in f64 in row order. */
    void (*loss_total)(const dt_loss_args *a, double *total);
    /* dz = (exp(z - max) / sum - [column is the target]) * *dy / divisor, 0 in ignored rows; dz may
     * be z. dy NULL: 1. dz is of a's dtype, or of 16 bits where that is f32. */
    void (*loss_dz)(const dt_loss_args *a, const void *dy, double divisor, dt_dtype dz_dtype,
                    void *dz);

    void (*attention)(const dt_attention_args *a); /* writes out and lse */
    /* Why `attention` would not go to a library (cuDNN) but to our kernels; NULL: it would. The
     * member is NULL on devices without such a library. */
    const char *(*attention_ours)(const dt_attention_args *a);
    void (*attention_backward)(
        const dt_attention_args *a); /* reads out and lse, writes dq, dk, dv */
} dt_nn_kernels;

/* The table of a device; NULL on meta, which has nothing to compute on, and on devices that are not
 * built in. */
const dt_nn_kernels *dt_nn_kernels_of(dt_device_kind kind);
