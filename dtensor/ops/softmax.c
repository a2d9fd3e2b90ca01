/* dtensor/ops/softmax.c - y = exp(x - max) / sum exp(x - max) over the last dim.
 *
 *     dx = y (dy - sum(y dy))
 *
 * Rule: "...V->...V": the last dim is whole. Saves y. */
#include "dtensor/ops/nn_internal.h"

static dt_status forward(dt_op_call *c)
{
    const dt_array *x = &c->in[0];
    dti_nn(c)->softmax(x->dtype, dti_rows(x), x->shape.dim[x->shape.ndim - 1], dt_array_data(x),
                       dt_array_data(&c->out[0]));
    return DT_OK;
}

static dt_status backward(dt_op_call *c)
{
    const dt_array *y = &c->out[0];
    dti_nn(c)->softmax_dx(y->dtype, dti_rows(y), y->shape.dim[y->shape.ndim - 1], dt_array_data(y),
                          dt_array_data(&c->dout[0]), dt_array_data(&c->din[0]));
    return DT_OK;
}

const dt_op dt_op_softmax = {.name = "softmax",
                             .rule = "...V->...V",
                             .nin = 1,
                             .nout = 1,
                             .forward = forward,
                             .backward = backward,
                             .saves = {DT_SAVE_OUT(0)}};

dt_tensor *(dt_softmax)(dt_tape *t, dt_tensor *x)
{
    return dt_op_apply1(t, &dt_op_softmax, NULL, x);
}
