/* dtensor/ops/silu.c - y = x sigmoid(x).
 *
 *     dx = dy s (1 + x (1 - s)),   s = sigmoid(x)
 *
 * Rule: "...->...".
 * Source: Elfwing, Uchibe and Doya 2017, "Sigmoid-weighted linear units". */
#include "dtensor/ops/nn_internal.h"

static dt_status forward(dt_op_call *c)
{
    dti_nn(c)->activation(c->in[0].dtype, DT_ACT_SILU, dt_array_count(&c->in[0]),
                          dt_array_data(&c->in[0]), dt_array_data(&c->out[0]));
    return DT_OK;
}

static dt_status backward(dt_op_call *c)
{
    dti_nn(c)->activation_dx(c->in[0].dtype, DT_ACT_SILU, dt_array_count(&c->in[0]),
                             dt_array_data(&c->in[0]), dt_array_data(&c->dout[0]),
                             dt_array_data(&c->din[0]));
    return DT_OK;
}

const dt_op dt_op_silu = {.name = "silu",
                          .rule = "...->...",
                          .nin = 1,
                          .nout = 1,
                          .forward = forward,
                          .backward = backward,
                          .handles_half = true,
                          .saves = {DT_SAVE_IN(0)}};

dt_tensor *(dt_silu)(dt_tape *t, dt_tensor *x)
{
    return dt_op_apply1(t, &dt_op_silu, NULL, x);
}
