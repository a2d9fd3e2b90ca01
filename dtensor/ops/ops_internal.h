/* dtensor/ops/ops_internal.h - what the files of ops share: the ops themselves, and small helpers.
 * */
#pragma once

#include "array/dt_kernels_math.h"
#include "dtensor/dt_op.h"
#include "dtensor/ops/dt_ops.h"

extern const dt_op dt_op_linear, dt_op_linear_in_out, dt_op_matmul;
extern const dt_op dt_op_add, dt_op_mul, dt_op_product, dt_op_sum, dt_op_scale;
extern const dt_op dt_op_cast, dt_op_rearrange;
extern const dt_op dt_op_split, dt_op_concat, dt_op_slice, dt_op_select;
extern const dt_op dt_op_embedding, dt_op_rmsnorm, dt_op_layernorm, dt_op_softmax;
extern const dt_op dt_op_silu, dt_op_gelu, dt_op_swiglu, dt_op_rope, dt_op_attention, dt_op_dropout;
extern const dt_op dt_op_cross_entropy, dt_op_linear_cross_entropy;

/* The kernels of the device that a call runs on. */
static inline const dt_math_kernels *dti_math(const dt_op_call *c)
{
    return dt_math_kernels_of(dt_heap_device(dt_op_heap(c)).kind);
}

/* dti_rule_along - the rule of ops that cut or join along `dim`: it may not be sharded, all else
 * passes, P too. Terms are added ("abC+abD->abC"), sizes along dim need not agree.
 *   in   keep   the output has the dim, of size 1 for now; else it lacks it
 *   out  r->out[0], r->zeroed */
DT_NODISCARD dt_status dti_rule_along(dt_rule *r, int dim, bool keep);

/* Mix n bytes into a key of the rule cache; start from 0. */
uint64_t dti_hash(uint64_t hash, const void *bytes, size_t n);
