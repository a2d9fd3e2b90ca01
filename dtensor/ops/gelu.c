/* dtensor/ops/gelu.c - y = x Phi(x), Phi the normal distribution, or its tanh form.
 *
 *     erf    Phi(x) = (1 + erf(x / sqrt 2)) / 2                dx = dy (Phi + x phi(x))
 *     tanh   Phi(x) ~ s = sigmoid(a), a = 2 sqrt(2/pi) (x + 0.044715 x^3)
 *                                                              dx = dy (s + x s (1 - s) a')
 *
 * which is the usual x (1 + tanh(a / 2)) / 2.
 * Rule: "...->...".
 * Source: Hendrycks and Gimpel 2016, "Gaussian error linear units". */
#include "dtensor/ops/nn_internal.h"

static dt_status forward(dt_op_call *c)
{
    const dt_activation *kind = c->attr;
    dti_nn(c)->activation(c->in[0].dtype, *kind, dt_array_count(&c->in[0]),
                          dt_array_data(&c->in[0]), dt_array_data(&c->out[0]));
    return DT_OK;
}

static dt_status backward(dt_op_call *c)
{
    const dt_activation *kind = c->attr;
    dti_nn(c)->activation_dx(c->in[0].dtype, *kind, dt_array_count(&c->in[0]),
                             dt_array_data(&c->in[0]), dt_array_data(&c->dout[0]),
                             dt_array_data(&c->din[0]));
    return DT_OK;
}

const dt_op dt_op_gelu = {.name = "gelu",
                          .rule = "...->...",
                          .nin = 1,
                          .nout = 1,
                          .attr_bytes = sizeof(dt_activation),
                          .forward = forward,
                          .backward = backward,
                          .handles_half = true,
                          .saves = {DT_SAVE_IN(0)}};

dt_tensor *(dt_gelu)(dt_tape *t, dt_tensor *x, dt_gelu_kind kind)
{
    const dt_activation act = kind == DT_GELU_TANH ? DT_ACT_GELU_TANH : DT_ACT_GELU_ERF;
    return dt_op_apply1(t, &dt_op_gelu, &act, x);
}
