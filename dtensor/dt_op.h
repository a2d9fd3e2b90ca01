/* dtensor/dt_op.h - how an op is made: a placement rule in letters and two functions on local
 * arrays.
 *
 *     static dt_status forward(dt_op_call *c)  { ... reads c->in[], c->attr; writes c->out[] ... }
 *     static dt_status backward(dt_op_call *c) { ... reads c->in[], c->dout[]; writes c->din[] ...
 *         }
 *     const dt_op dt_op_silu = {.name = "silu", .rule = "...->...", .nin = 1, .nout = 1,
 *                               .forward = forward,
 *                               .backward = backward, .saves = {DT_SAVE_IN(0)}};
 *     dt_tensor *(dt_silu)(dt_tape *t, dt_tensor *x)
 *     {
 *         return dt_op_apply1(t, &dt_op_silu, NULL, x);
 *     }
 *
 * Everything else is here once: legality, output layouts and shapes, allocation, R -> P of terms,
 * half precision (local arrays reach the functions as f32, unless .handles_half; on cuda as they
 * are), recording, gradients' layouts, errors with their cheapest fix, DT_EXPLAIN. On meta the
 * functions are not called, unless .communicates or .shares. Rules: dtensor/dt_rule.h. */
#pragma once

#include "dtensor/dt_rule.h"
#include "dtensor/dt_tape.h"

enum { DT_OP_MAX_EXTRA = 3 };

#define DT_SAVE_IN(i)  (1u << (i))
#define DT_SAVE_OUT(i) (1u << (16 + (i)))

typedef struct dt_op_call {
    dt_tape *tape;
    const struct dt_op *op;
    /* the op's own struct, attr_bytes long; kept by the tape */
    const void *attr;
    int nin, nout;
    const dt_layout *in_layout[DT_OP_MAX_IN]; /* NULL for an optional operand left out */
    const dt_layout *out_layout[DT_OP_MAX_OUT];
    dt_array in[DT_OP_MAX_IN]; /* in backward: only what `saves` asked for */
    /* allocated; in backward: only what `saves` asked for */
    dt_array out[DT_OP_MAX_OUT];
    dt_array extra[DT_OP_MAX_EXTRA]; /* made by forward with dt_op_extra, for backward */
    uint32_t need;                   /* backward: bit i: d(in i) is wanted */
    dt_dtype dtype;                  /* of the results as stored, maybe 16 bits */
    /* backward; storage NULL where no gradient reached that output */
    dt_array dout[DT_OP_MAX_OUT];
    const dt_layout *dout_layout[DT_OP_MAX_OUT];
    /* backward: allocated, uninitialised, where needed */
    dt_array din[DT_OP_MAX_IN];
    const char *path, *where;  /* module path and source line, for labels */
    double flops, flops_again; /* for dt_tally; again: done before, in forward */
} dt_op_call;

typedef struct dt_op {
    const char *name;
    int nin, nout;
    const char *rule;               /* letters; NULL: `infer` */
    uint32_t linear;                /* bit i: linear in operand i, so P may pass */
    dt_status (*infer)(dt_rule *r); /* hand-written rows; may call dt_rule_letters */
    /* distinguishes attributes that change the rule; NULL: none do */
    uint64_t (*key)(const void *attr);
    size_t attr_bytes;
    dt_status (*forward)(dt_op_call *c);
    dt_status (*backward)(dt_op_call *c); /* NULL: no gradients */
    uint32_t no_grad_in; /* bit i: operand i has no gradient and is i32 (ids, positions) */
    uint32_t optional;   /* bit i: operand i may be NULL: left out */
    uint32_t wide_grad;  /* bit i: backward writes din[i] in f32, if it is, of 16-bit operands */
    bool any_dtype;      /* false: the operands with gradients are floats, of one type */
    uint32_t saves[DT_OP_MAX_IN]; /* what d(in i) needs: DT_SAVE_IN(j) | DT_SAVE_OUT(j) */
    bool handles_half;            /* functions take bf16 and f16 arrays as they are */
    /* functions issue collectives, so they are called on meta too, where arrays have no data */
    bool communicates;
    /* a result may be an operand's bytes, which c->out[j] is given then, and d(in i) c->dout's:
     * called on meta too, for memory to be counted alike */
    bool shares;
    /* NULL: dtype of operand 0's (first float) */
    dt_dtype (*out_dtype)(const void *attr, dt_dtype in0);
    /* one output, dear to compute: a selective recompute keeps it, with the extras */
    bool keep;
} dt_op;

/* dt_op_apply - run an op on the tape. Operands that are NULL are optional inputs left out; failed
 * inputs pass on. Never returns NULL. Float operands must have one dtype. */
dt_tensor *dt_op_apply(dt_tape *t, const dt_op *op, const void *attr, int nin,
                       dt_tensor *const *in);
/* Several outputs; all are set, to the failed tensor on failure. */
void dt_op_apply_n(dt_tape *t, const dt_op *op, const void *attr, int nin, dt_tensor *const *in,
                   int nout, dt_tensor **out);
dt_tensor *dt_op_apply1(dt_tape *t, const dt_op *op, const void *attr, dt_tensor *x);
dt_tensor *dt_op_apply2(dt_tape *t, const dt_op *op, const void *attr, dt_tensor *x, dt_tensor *y);

/* dt_op_register - check an op of one's own before its first use: letters parse, operand counts
 * agree, gradients say what they save. Errors: DT_ERR_ARG. The struct must outlive every tape that
 * uses it. */
DT_NODISCARD dt_status dt_op_register(const dt_op *op);

/* In forward: an array that backward will find in c->extra[k]; freed at once when no gradient is
 * wanted.
 * In both: scratch memory that goes when the function returns (at most 4). */
DT_NODISCARD dt_status dt_op_extra(dt_op_call *c, int k, dt_dtype dtype, dt_shape shape);
DT_NODISCARD dt_status dt_op_scratch(dt_op_call *c, dt_dtype dtype, dt_shape shape, dt_array **out);
/* In backward: let d(in i) share an array instead of filling the one allocated (x + y passes dy on
 * as it is). */
void dt_op_share_din(dt_op_call *c, int i, const dt_array *a);
/* dt_matmul_run (array/dt_matmul.h), counted. */
struct dt_matmul_args;
DT_NODISCARD dt_status dt_op_multiply(dt_op_call *c, const struct dt_matmul_args *args);
/* My coordinates on the op's mesh; global range [lo, hi) of dim d of operand i. */
const int *dt_op_coord(const dt_op_call *c);
void dt_op_range(const dt_op_call *c, int i, int d, int64_t *lo_out, int64_t *hi_out);
dt_heap *dt_op_heap(const dt_op_call *c);
