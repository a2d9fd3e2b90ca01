/* dtensor/ops/swiglu.c - y = silu(gate) up, equal shapes.
 *
 *     dgate = dy up s (1 + gate (1 - s)),   dup = dy silu(gate),   s = sigmoid(gate)
 *
 * Rule: "...,...->...", linear in up.
 * Source: Shazeer 2020, "GLU variants improve transformer". */
#include "dtensor/ops/nn_internal.h"

static dt_status infer(dt_rule *r)
{
    char a[DT_SHAPE_TEXT], b[DT_SHAPE_TEXT];
    DT_REQUIRE(dt_shape_equal(r->in[0]->shape, r->in[1]->shape), DT_ERR_SHAPE,
               "%s: gate %s and up %s must have one shape", r->name,
               dt_shape_print(r->in[0]->shape, a, sizeof a),
               dt_shape_print(r->in[1]->shape, b, sizeof b));
    return dt_rule_letters(r, "...,...->...", NULL);
}

static dt_status forward(dt_op_call *c)
{
    dti_nn(c)->swiglu(c->in[0].dtype, dt_array_count(&c->in[0]), dt_array_data(&c->in[0]),
                      dt_array_data(&c->in[1]), dt_array_data(&c->out[0]));
    return DT_OK;
}

static dt_status backward(dt_op_call *c)
{
    dti_nn(c)->swiglu_backward(c->in[0].dtype, dt_array_count(&c->in[0]), dt_array_data(&c->in[0]),
                               c->need & 1u ? dt_array_data(&c->in[1]) : NULL,
                               dt_array_data(&c->dout[0]),
                               c->need & 1u ? dt_array_data(&c->din[0]) : NULL,
                               c->need & 2u ? dt_array_data(&c->din[1]) : NULL);
    return DT_OK;
}

const dt_op dt_op_swiglu = {.name = "swiglu",
                            .infer = infer,
                            .linear = 1u << 1,
                            .nin = 2,
                            .nout = 1,
                            .forward = forward,
                            .backward = backward,
                            .handles_half = true,
                            .saves = {DT_SAVE_IN(0) | DT_SAVE_IN(1), DT_SAVE_IN(0)}};

dt_tensor *(dt_swiglu)(dt_tape *t, dt_tensor *gate, dt_tensor *up)
{
    return dt_op_apply2(t, &dt_op_swiglu, NULL, gate, up);
}
