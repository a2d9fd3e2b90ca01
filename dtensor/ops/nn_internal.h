/* dtensor/ops/nn_internal.h - what the neural network ops share: their kernels, and integer
 * operands. */
#pragma once

#include "array/dt_kernels_nn.h"
#include "dtensor/ops/ops_internal.h"

/* The kernels of the call's device. */
static inline const dt_nn_kernels *dti_nn(const dt_op_call *c)
{
    return dt_nn_kernels_of(dt_heap_device(dt_op_heap(c)).kind);
}

/* Of what accompanies an array of 16 bits: f32; else the array's own type. */
static inline dt_dtype dti_wide(dt_dtype dtype)
{
    return dtype == DT_F64 ? DT_F64 : DT_F32;
}

/* Elements of an array without its last dim: its rows. */
static inline int64_t dti_rows(const dt_array *a)
{
    return dt_shape_outer(a->shape, a->shape.ndim - 1);
}

/* ---- integers that accompany a tensor: ids.c ---- */

/* dti_follows - in a rule: operand i (`what`, for messages) has as many dims as `dims` lists; its
 * dim d has the size and the split of dim dims[d] of operand `lead` (`leader`), and it is R on all
 * other axes. Errors: DT_ERR_SHAPE, DT_ERR_PLACEMENT. */
typedef struct dti_follow {
    int i, lead, ndims;
    int dims[DT_MAX_DIMS];
    const char *what, *leader;
} dti_follow;
DT_NODISCARD dt_status dti_follows(const dt_rule *r, const dti_follow *f);

/* dti_ids_check - every element of operand i is in [0, limit) or `ignore`.
 * Errors: DT_ERR_ARG names the global position, the value and the limit. */
DT_NODISCARD dt_status dti_ids_check(dt_op_call *c, int i, int64_t limit, int64_t ignore,
                                     const char *what);

/* Positions [S] or [B, S] follow dims `seq` and 0 of operand `lead`. */
DT_NODISCARD dt_status dti_positions_follow(const dt_rule *r, int i, int lead, int seq,
                                            const char *what);

/* ---- dropout.c, linear_cross_entropy.c ---- */

typedef struct dti_dropout_attributes {
    dt_key key;
    int64_t first_sample;
    double p;
} dti_dropout_attributes;

/* Of linear_cross_entropy. */
typedef struct dti_head_attributes {
    int64_t ignore, valid, chunk;
    bool f16; /* the operands are: 1 / valid comes last */
} dti_head_attributes;

/* ---- norms: layernorm.c ---- */

typedef struct dti_norm_attributes {
    double eps;
    bool centred; /* layernorm */
} dti_norm_attributes;
/* Of (x, w) or (x, w, b). */
DT_NODISCARD dt_status dti_any_norm_forward(dt_op_call *c);
DT_NODISCARD dt_status dti_any_norm_backward(dt_op_call *c);

/* ---- cross-entropy: cross_entropy.c ---- */

/* a->max, sum and hit from a->z, over all columns: 3 all-reduces over the axes that split dim `dim`
 * of `layout`. The arrays [rows] are what a's pointers will point at; `mine` is the max of this
 * rank's columns, for a dim that is split. */
typedef struct dti_loss_arrays {
    dt_array *max, *sum, *hit, *mine;
} dti_loss_arrays;
DT_NODISCARD dt_status dti_loss_whole_rows(dt_op_call *c, const dt_layout *layout, int dim,
                                           dt_loss_args *a, const dti_loss_arrays *arrays);
/* The gradient of a loss whose vocabulary is split by the axes of dim `dim` of `layout` is not P
 * there. */
DT_NODISCARD dt_status dti_loss_gradient(const dt_op_call *c, const dt_layout *layout, int dim);
/* The loss: the total, f64, over the number of valid targets; 0 where there are none. */
void dti_loss_mean(dt_op_call *c, dt_array *total, int64_t valid);
/* A loss is f32, or f64 from f64. */
dt_dtype dti_loss_dtype(const void *attr, dt_dtype in);
