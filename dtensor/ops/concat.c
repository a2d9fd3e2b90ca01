/* dtensor/ops/concat.c - join tensors along a dim.
 *
 * forward    y = x_0, x_1, ... one after the other along dim
 * backward   dx_i = its elements of dy
 * rule       "abC+abC->abC" (sizes of C may differ): the dim may not be sharded, all else passes;
 *            linear, and where one operand is P the R ones become P */
#include "dtensor/ops/ops_internal.h"

static uint64_t key(const void *attr)
{
    return (uint64_t) * (const int *)attr;
}

static dt_status infer(dt_rule *r)
{
    const int dim = *(const int *)r->attr;
    int64_t total = 0;
    DT_TRY(dti_rule_along(r, dim, true));
    for (int i = 0; i < r->nin; i++)
        total += r->in[i]->shape.dim[dim];
    r->out[0].shape.dim[dim] = total;
    return DT_OK;
}

static dt_status forward(dt_op_call *c)
{
    for (int k = 1; k < c->nin; k++)
        DT_REQUIRE(c->in[k].dtype == c->in[0].dtype, DT_ERR_ARG,
                   "operand %d is %s, operand 0 is %s", k, dt_dtype_name(c->in[k].dtype),
                   dt_dtype_name(c->in[0].dtype));
    const int dim = *(const int *)c->attr;
    const int64_t zero[DT_MAX_DIMS] = {0};
    int64_t at[DT_MAX_DIMS] = {0};
    for (int i = 0; i < c->nin; i++) {
        dt_array_copy_block(&c->out[0], at, &c->in[i], zero, c->in[i].shape);
        at[dim] += c->in[i].shape.dim[dim];
    }
    return DT_OK;
}

static dt_status backward(dt_op_call *c)
{
    const int dim = *(const int *)c->attr;
    const int64_t zero[DT_MAX_DIMS] = {0};
    int64_t at[DT_MAX_DIMS] = {0};
    for (int i = 0; i < c->nin; i++) {
        if (c->need >> i & 1)
            dt_array_copy_block(&c->din[i], zero, &c->dout[0], at, c->din[i].shape);
        at[dim] += c->in_layout[i]->shape.dim[dim];
    }
    return DT_OK;
}

const dt_op dt_op_concat = {.name = "concat",
                            .nin = DT_OP_MAX_IN,
                            .nout = 1,
                            .linear = (1u << DT_OP_MAX_IN) - 1,
                            .infer = infer,
                            .key = key,
                            .attr_bytes = sizeof(int),
                            .any_dtype = true,
                            .forward = forward,
                            .backward = backward,
                            .handles_half = true};

dt_tensor *(dt_concat)(dt_tape *t, int n, dt_tensor *const *x, int dim)
{
    return dt_op_apply(t, &dt_op_concat, &dim, n, x);
}
