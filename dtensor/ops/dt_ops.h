/* dtensor/ops/dt_ops.h - the ops. Each stands in one file of this folder: formula, forward,
 * backward, rule.
 *
 * None of them moves data between ranks, except where a `Cost:` says so. Shapes are global. Tape
 * first, tensors next.
 *
 * Errors: a failing op returns the tape's failed tensor (dt_tape_status). Gradients go to every
 * float operand.
 * Shape letters: B batch, S sequence, H query heads, G key/value heads, D head dim, V
 * vocabulary. */
#pragma once

#include "array/dt_kernels_nn.h"
#include "dtensor/dt_tape.h"

/* ---- sums of products ---- */

/* y = x w^T + b. x [..., k], w [n, k], b [n] or NULL -> [..., n].   Rule: "...k,nk+n->...n" */
dt_tensor *dt_linear(dt_tape *t, dt_tensor *x, dt_tensor *w, dt_tensor *b);
/* y = x w + b, weights stored [in, out] as GPT-2's. x [..., k], w [k, n] or [k, c, n] or
 * [k, c, h, d], b as w without k, or NULL -> [..., n] / [..., c, n] / [..., c, h, d].
 * Rule: "...k,kn+n->...n" and so on */
dt_tensor *dt_linear_in_out(dt_tape *t, dt_tensor *x, dt_tensor *w, dt_tensor *b);
/* Linear layers that communicate while they compute (sequence parallelism); x is [B, S, k].
 * dt_gather_linear: n <= DT_OVERLAP_MOST products out[i] = x w[i]^T + b[i] of x S(1) on the axes,
 * gathered piece by piece; w[i], b[i] (entries may be NULL) split along outputs, or R, and then
 * their gradients are P. x stays S(1) for backward, which gathers it again.
 * dt_linear_scatter: y = x w^T + b, x and w split along k on the axes, y S(1) on them. The gradient
 * of b is P there.
 * Cost: what gathering x, or scattering y, costs, sent point to point round a ring on channel
 * DT_OVERLAP_CHANNEL. */
enum { DT_OVERLAP_CHANNEL = 3, DT_OVERLAP_MOST = 3 };
typedef struct dt_overlap_options {
    int naxes; /* of the mesh, outermost first; together they are the ring */
    uint8_t axis[DT_MAX_AXES];
    int n;       /* products; 1 for dt_linear_scatter */
    bool in_out; /* weights as dt_linear_in_out's */
} dt_overlap_options;
void dt_gather_linear(dt_tape *t, dt_tensor *x, const dt_overlap_options *options,
                      dt_tensor *const *w, dt_tensor *const *b, dt_tensor **out);
dt_tensor *dt_linear_scatter(dt_tape *t, dt_tensor *x, const dt_overlap_options *options,
                             dt_tensor *w, dt_tensor *b);
/* Batched matrix product a [..., m, k], b [..., k, n] -> [..., m, n]; leading dims broadcast from
 * the right.
 * Rule: "...mk,...kn->...mn" */
dt_tensor *dt_matmul(dt_tape *t, dt_tensor *a, dt_tensor *b);
/* Elementwise with broadcast from the right.   Rule: "...+...->...", "...,...->..." */
dt_tensor *dt_add(dt_tape *t, dt_tensor *x, dt_tensor *y);
dt_tensor *dt_mul(dt_tape *t, dt_tensor *x, dt_tensor *y);
/* Any sum of products in letters, linear in every operand: dt_product(t, "bk,kn,nc->bc", 3, x).
 * Plain loops: for teaching and tests; the ops above are the fast ones. */
dt_tensor *dt_product(dt_tape *t, const char *spec, int n, dt_tensor *const *x);
/* Sum over the dims in `dims` (bit d; 0: all) without keeping them; a summed
 * sharded dim gives P. */
dt_tensor *dt_sum(dt_tape *t, dt_tensor *x, uint32_t dims);
dt_tensor *dt_scale(dt_tape *t, dt_tensor *x, double factor);

/* ---- element type and shape ---- */

/* P passes a cast only if `allow_partial`: the later sum would happen in the new type. */
dt_tensor *dt_cast(dt_tape *t, dt_tensor *x, dt_dtype dtype, bool allow_partial);
/* dt_rearrange(t, x, "b s (h d) -> b h s d", "h=8"): einops style; sizes as "name=value" words,
 * inferred where possible; "1" or "()" is a dim of size 1.
 * The outermost letter of a group may be sharded if every rank's bounds agree. Where the letters
 * keep their order the result has the bytes of x, else it is a copy. */
dt_tensor *dt_rearrange(dt_tape *t, dt_tensor *x, const char *pattern, const char *sizes);
/* Split dim into n outputs of the given sizes; join along dim; elements [lo, hi) of dim; index i of
 * dim (dim goes). The dim may not be sharded. */
void dt_split(dt_tape *t, dt_tensor *x, int dim, int n, const int64_t *sizes, dt_tensor **out);
dt_tensor *dt_concat(dt_tape *t, int n, dt_tensor *const *x, int dim);
dt_tensor *dt_slice(dt_tape *t, dt_tensor *x, int dim, int64_t lo, int64_t hi);
dt_tensor *dt_select(dt_tape *t, dt_tensor *x, int dim, int64_t i);

/* ---- neural network ---- */

/* Rows of w [V, d] by ids [...] (i32): [..., d]. w S(0): output P; ids as the output.
 * Rule: "...v,vd->...d"
 * Errors: an id outside [0, V) fails the tape on that rank, naming position and value. */
dt_tensor *dt_embedding(dt_tape *t, dt_tensor *ids, dt_tensor *w);
/* y = w * x / sqrt(mean(x^2) + eps) over the last dim; w NULL: ones.   Rule: "...N,N->...N" */
dt_tensor *dt_rmsnorm(dt_tape *t, dt_tensor *x, dt_tensor *w, double eps);
/* Biased variance over the last dim; w NULL: ones, b NULL: zeros.   Rule: "...N,N+N->...N" */
dt_tensor *dt_layernorm(dt_tape *t, dt_tensor *x, dt_tensor *w, dt_tensor *b, double eps);
dt_tensor *dt_softmax(dt_tape *t, dt_tensor *x); /* over the last dim.   Rule: "...V->...V" */
dt_tensor *dt_silu(dt_tape *t, dt_tensor *x);
typedef enum dt_gelu_kind { DT_GELU_TANH, DT_GELU_ERF } dt_gelu_kind;
dt_tensor *dt_gelu(dt_tape *t, dt_tensor *x, dt_gelu_kind kind);
dt_tensor *dt_swiglu(dt_tape *t, dt_tensor *gate, dt_tensor *up); /* silu(gate) * up */
/* Global indices 0 .. size-1 along one dim of x, i32, placed as that dim is: position ids for an
 * embedding of positions. */
dt_tensor *dt_positions(dt_tape *t, dt_tensor *x, int dim);
/* Rotary positions, halves rotated: x_BHSD, angle p * f_i, f_i = theta^(-2i/D) and its scaled
 * forms (dt_rope_options). positions [S] or [B, S] i32, placed as those dims of x; NULL: the global
 * index along S. options.bshd: x_BSHD.   Rule: "bhsD->bhsD" ("bshD->bshD"), linear */
dt_tensor *dt_rope(dt_tape *t, dt_tensor *x, dt_tensor *positions,
                   const dt_rope_options *options);

typedef struct dt_attention_options {
    bool not_causal;
    bool bshd;                              /* q_BSHD, k_BTGD, v_BTGE -> [B, S, H, E] */
    double scale;                           /* 0: 1 / sqrt(D) */
    /* i32 [S] or [B, S]; NULL: global index; a query sees keys at <= its position */
    dt_tensor *q_positions, *k_positions;
    /* i32 [S] or [B, S]; a query sees keys of its own document; NULL: one document */
    dt_tensor *q_documents, *k_documents;
} dt_attention_options;

/* Grouped-query attention in blocks: never stores S x S for all heads. q_BHSD, k_BGTD, v_BGTE,
 * H = group * G -> [B, H, S, E].
 * Rows: A heads of q, k, v sharded alike (bounds of q = group * bounds of kv); B q sharded on
 * heads, k, v R; C q sharded on S, k, v R. A query that sees no key gives zeros.
 * Rule: "bhsD,bgSD,bgSd->bhsd" ("bshD,bSgD,bSgd->bshd") */
dt_tensor *dt_attention(dt_tape *t, dt_tensor *q, dt_tensor *k, dt_tensor *v,
                        const dt_attention_options *options);
/* Zero with probability p, scale the rest by 1/(1-p); bits from (seed, step, module path, how many
 * dropouts of the module the tape has had), counter from the global element index (dim 0 is the
 * sample): equal on every mesh and for every microbatch. p = 0: x itself. */
dt_tensor *dt_dropout(dt_tape *t, dt_tensor *x, double p);

typedef struct dt_cross_entropy_options {
    int64_t ignore_index;  /* 0: -100 */
    int64_t valid;         /* the divisor: global number of valid targets; 0: the loss is 0 */
    int64_t chunk;         /* dt_linear_cross_entropy: tokens whose logits exist at once; 0: 1024 */
} dt_cross_entropy_options;

/* sum over valid targets of -log softmax(logits)[target] / valid: a scalar, P where tokens are
 * sharded. logits [..., V], targets [...] i32 placed as logits' leading dims.
 * Cost: logits S(V): 3 all-reduces of one number a token; then the loss is R on those axes and its
 * gradient must be R.
 * Errors: a target outside [0, V) that is not ignored fails the tape on that rank. */
dt_tensor *dt_cross_entropy(dt_tape *t, dt_tensor *logits, dt_tensor *targets,
                            const dt_cross_entropy_options *options);
/* The same of logits = x w^T without ever holding all logits: forward computes dx and dw chunk by
 * chunk. x [..., k], w [V, k].   Rule: linear then cross-entropy. */
dt_tensor *dt_linear_cross_entropy(dt_tape *t, dt_tensor *x, dt_tensor *w, dt_tensor *targets,
                                   const dt_cross_entropy_options *options);

/* ---- placements (dtensor/redistribute.c) ---- */

/* Move to another layout (text or interned). Equal layouts move nothing forward and are still a
 * node whose adjoint reduces every P axis of the gradient: Megatron's f.   Gradient: dual of x's
 * layout on the axes that change.   Cost: its plan. */
dt_tensor *dt_redistribute(dt_tape *t, dt_tensor *x, const char *layout);
dt_tensor *dt_redistribute_to(dt_tape *t, dt_tensor *x, const dt_layout *layout);
/* All-R. */
dt_tensor *dt_full(dt_tape *t, dt_tensor *x);
/* My local part as a tensor of a mesh of one rank, and back. `grad_layout`: where the gradient that
 * comes back lives (text; NULL: the dual of x's layout). dt_from_local: R promises equal parts. */
dt_tensor *dt_to_local(dt_tape *t, dt_tensor *x, const char *grad_layout);
dt_tensor *dt_from_local(dt_tape *t, dt_tensor *local, const dt_layout *layout);

/* A region of local code with declared layouts. `forward` reads call->in, writes call->out; the
 * layouts tell local sizes and global offsets (dt_op_range). `backward` may be NULL: no gradients.
 * Gradients arise as `grad` says (NULL: duals). */
struct dt_op_call;
typedef struct dt_local_map_options {
    const char *name;
    const char *in[8];          /* demanded layouts; NULL entry: any */
    int nout;
    const dt_layout *out[8];
    const char *grad[8];        /* layouts of the inputs' gradients; NULL: duals */
    dt_status (*forward)(struct dt_op_call *c);
    dt_status (*backward)(struct dt_op_call *c);
    const void *attr;
    size_t attr_bytes;
} dt_local_map_options;
void dt_local_map(dt_tape *t, const dt_local_map_options *options, int nin, dt_tensor *const *in,
                  dt_tensor **out);

/* Call sites, for errors and DT_EXPLAIN. */
#define dt_linear(t, ...)               dt_linear(dt_tape_at((t), DT_HERE), __VA_ARGS__)
#define dt_linear_in_out(t, ...)        dt_linear_in_out(dt_tape_at((t), DT_HERE), __VA_ARGS__)
#define dt_gather_linear(t, ...)        dt_gather_linear(dt_tape_at((t), DT_HERE), __VA_ARGS__)
#define dt_linear_scatter(t, ...)       dt_linear_scatter(dt_tape_at((t), DT_HERE), __VA_ARGS__)
#define dt_matmul(t, ...)               dt_matmul(dt_tape_at((t), DT_HERE), __VA_ARGS__)
#define dt_add(t, ...)                  dt_add(dt_tape_at((t), DT_HERE), __VA_ARGS__)
#define dt_mul(t, ...)                  dt_mul(dt_tape_at((t), DT_HERE), __VA_ARGS__)
#define dt_product(t, ...)              dt_product(dt_tape_at((t), DT_HERE), __VA_ARGS__)
#define dt_sum(t, ...)                  dt_sum(dt_tape_at((t), DT_HERE), __VA_ARGS__)
#define dt_scale(t, ...)                dt_scale(dt_tape_at((t), DT_HERE), __VA_ARGS__)
#define dt_cast(t, ...)                 dt_cast(dt_tape_at((t), DT_HERE), __VA_ARGS__)
#define dt_rearrange(t, ...)            dt_rearrange(dt_tape_at((t), DT_HERE), __VA_ARGS__)
#define dt_split(t, ...)                dt_split(dt_tape_at((t), DT_HERE), __VA_ARGS__)
#define dt_concat(t, ...)               dt_concat(dt_tape_at((t), DT_HERE), __VA_ARGS__)
#define dt_slice(t, ...)                dt_slice(dt_tape_at((t), DT_HERE), __VA_ARGS__)
#define dt_select(t, ...)               dt_select(dt_tape_at((t), DT_HERE), __VA_ARGS__)
#define dt_embedding(t, ...)            dt_embedding(dt_tape_at((t), DT_HERE), __VA_ARGS__)
#define dt_rmsnorm(t, ...)              dt_rmsnorm(dt_tape_at((t), DT_HERE), __VA_ARGS__)
#define dt_layernorm(t, ...)            dt_layernorm(dt_tape_at((t), DT_HERE), __VA_ARGS__)
#define dt_softmax(t, ...)              dt_softmax(dt_tape_at((t), DT_HERE), __VA_ARGS__)
#define dt_silu(t, ...)                 dt_silu(dt_tape_at((t), DT_HERE), __VA_ARGS__)
#define dt_gelu(t, ...)                 dt_gelu(dt_tape_at((t), DT_HERE), __VA_ARGS__)
#define dt_swiglu(t, ...)               dt_swiglu(dt_tape_at((t), DT_HERE), __VA_ARGS__)
#define dt_positions(t, ...)            dt_positions(dt_tape_at((t), DT_HERE), __VA_ARGS__)
#define dt_rope(t, ...)                 dt_rope(dt_tape_at((t), DT_HERE), __VA_ARGS__)
#define dt_attention(t, ...)            dt_attention(dt_tape_at((t), DT_HERE), __VA_ARGS__)
#define dt_dropout(t, ...)              dt_dropout(dt_tape_at((t), DT_HERE), __VA_ARGS__)
#define dt_cross_entropy(t, ...)        dt_cross_entropy(dt_tape_at((t), DT_HERE), __VA_ARGS__)
#define dt_linear_cross_entropy(t, ...) \
    dt_linear_cross_entropy(dt_tape_at((t), DT_HERE), __VA_ARGS__)
#define dt_redistribute(t, ...)         dt_redistribute(dt_tape_at((t), DT_HERE), __VA_ARGS__)
#define dt_redistribute_to(t, ...)      dt_redistribute_to(dt_tape_at((t), DT_HERE), __VA_ARGS__)
#define dt_full(t, ...)                 dt_full(dt_tape_at((t), DT_HERE), __VA_ARGS__)
#define dt_to_local(t, ...)             dt_to_local(dt_tape_at((t), DT_HERE), __VA_ARGS__)
#define dt_from_local(t, ...)           dt_from_local(dt_tape_at((t), DT_HERE), __VA_ARGS__)
#define dt_local_map(t, ...)            dt_local_map(dt_tape_at((t), DT_HERE), __VA_ARGS__)
