/* dtensor/ops/scale.c - y = c x for a number c.
 *
 * forward    y = c x
 * backward   dx = c dy
 * rule       "...->...", linear */
#include "dtensor/ops/ops_internal.h"

static dt_status scaled(const dt_op_call *c, const dt_array *x, dt_array *out)
{
    const double *factor = c->attr;
    dti_math(c)->scale(out->dtype, dt_array_count(out), *factor, dt_array_data(x),
                       dt_array_data(out));
    return DT_OK;
}

static dt_status forward(dt_op_call *c)
{
    return scaled(c, &c->in[0], &c->out[0]);
}

static dt_status backward(dt_op_call *c)
{
    return scaled(c, &c->dout[0], &c->din[0]);
}

const dt_op dt_op_scale = {.name = "scale",
                           .nin = 1,
                           .nout = 1,
                           .rule = "...->...",
                           .linear = 1,
                           .attr_bytes = sizeof(double),
                           .forward = forward,
                           .backward = backward};

dt_tensor *(dt_scale)(dt_tape *t, dt_tensor *x, double factor)
{
    return dt_op_apply1(t, &dt_op_scale, &factor, x);
}
