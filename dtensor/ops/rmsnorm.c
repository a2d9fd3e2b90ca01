/* dtensor/ops/rmsnorm.c - y = w u over the last dim, u = x / sqrt(mean(x^2) + eps).
 *
 *     dx = (g - u mean(g u)) / sqrt(mean(x^2) + eps),  g = dy w        dw = sum over rows of dy u
 *
 * Rule: "...N,N->...N", linear in w; dw is P where rows are sharded. Means and sums are in f64;
 * backward computes the means again from x.
 * Source: Zhang and Sennrich 2019, "Root mean square layer normalization". */
#include "dtensor/ops/nn_internal.h"

typedef struct attributes {
    double eps;
} attributes;

static dt_status arguments(dt_op_call *c, dt_norm_args *out)
{
    const dt_array *x = &c->in[0];
    dt_array *stats;
    DT_TRY(dt_op_scratch(c, DT_F64, DT_SHAPE(dti_rows(x), 2), &stats));
    *out = (dt_norm_args){.dtype = x->dtype,
                          .rows = dti_rows(x),
                          .n = x->shape.dim[x->shape.ndim - 1],
                          .eps = ((const attributes *)c->attr)->eps,
                          .x = dt_array_data(x),
                          .w = dt_array_data(&c->in[1]),
                          .stats = dt_array_data(stats)};
    return DT_OK;
}

static dt_status forward(dt_op_call *c)
{
    dt_norm_args a;
    DT_TRY(arguments(c, &a));
    dti_nn(c)->norm(&a, dt_array_data(&c->out[0]));
    return DT_OK;
}

static dt_status backward(dt_op_call *c)
{
    dt_norm_args a;
    DT_TRY(arguments(c, &a));
    a.dy = dt_array_data(&c->dout[0]);
    if (c->need & 1u)
        dti_nn(c)->norm_dx(&a, dt_array_data(&c->din[0]));
    else
        dti_nn(c)->norm_stats(&a);
    if (c->need & 2u)
        dti_nn(c)->norm_dw(&a, dt_array_data(&c->din[1]), NULL);
    return DT_OK;
}

const dt_op dt_op_rmsnorm = {.name = "rmsnorm",
                             .rule = "...N,N->...N",
                             .linear = 1u << 1,
                             .nin = 2,
                             .nout = 1,
                             .attr_bytes = sizeof(attributes),
                             .forward = forward,
                             .backward = backward,
                             .saves = {DT_SAVE_IN(0) | DT_SAVE_IN(1), DT_SAVE_IN(0)}};

dt_tensor *(dt_rmsnorm)(dt_tape *t, dt_tensor *x, dt_tensor *w, double eps)
{
    const attributes attr = {eps};
    return dt_op_apply(t, &dt_op_rmsnorm, &attr, 2, (dt_tensor *[]){x, w});
}
