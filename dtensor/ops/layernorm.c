/* dtensor/ops/layernorm.c - y = w u + b over the last dim, u = (x - mean) r, r = 1 / sqrt(var +
 * eps), biased variance; w left out is ones, b zeros.
 *
 *     dx = r (g - mean(g) - u mean(g u)),  g = dy w
 *     dw = sum over rows of dy u,  db = sum over rows of dy
 *
 * Rule: "...N,N+N->...N", linear in w and b; dw and db are P where rows are sharded. Means and
 * sums are in f64; backward computes means again from x. RMSNorm (rmsnorm.c) is the same without
 * mean and b.
 * Source: Ba, Kiros and Hinton 2016, "Layer normalization". */
#include "dtensor/ops/nn_internal.h"

static void arguments(const dt_op_call *c, dt_norm_args *out)
{
    const dt_array *x = &c->in[0];
    const dti_norm_attributes *attr = c->attr;
    *out = (dt_norm_args){.dtype = x->dtype,
                          .rows = dti_rows(x),
                          .n = x->shape.dim[x->shape.ndim - 1],
                          .eps = attr->eps,
                          .centred = attr->centred,
                          .x = dt_array_data(x),
                          .w = c->in_layout[1] ? dt_array_data(&c->in[1]) : NULL};
}

dt_status dti_any_norm_forward(dt_op_call *c)
{
    dt_norm_args a;
    arguments(c, &a);
    a.b = c->nin > 2 && c->in_layout[2] ? dt_array_data(&c->in[2]) : NULL;
    dti_nn(c)->norm(&a, dt_array_data(&c->out[0]));
    return DT_OK;
}

dt_status dti_any_norm_backward(dt_op_call *c)
{
    dt_norm_args a;
    dt_array *work;
    arguments(c, &a);
    DT_TRY(dt_op_scratch(c, DT_F64, DT_SHAPE(dt_norm_work(a.rows, a.n)), &work));
    a.work = dt_array_data(work);
    a.dy = dt_array_data(&c->dout[0]);
    void *out[3] = {NULL};
    for (int i = 0; i < 3; i++)
        if (c->need >> i & 1)
            out[i] = dt_array_data(&c->din[i]);
    dti_nn(c)->norm_backward(&a, out[0], out[1], out[2]);
    return DT_OK;
}

const dt_op dt_op_layernorm = {
    .name = "layernorm",
    .rule = "...N,N+N->...N",
    .linear = 1u << 1 | 1u << 2,
    .nin = 3,
    .nout = 1,
    .attr_bytes = sizeof(dti_norm_attributes),
    .optional = 1u << 1 | 1u << 2,
    .forward = dti_any_norm_forward,
    .backward = dti_any_norm_backward,
    .handles_half = true,
    .saves = {DT_SAVE_IN(0) | DT_SAVE_IN(1), DT_SAVE_IN(0), DT_SAVE_IN(0)}};

dt_tensor *(dt_layernorm)(dt_tape *t, dt_tensor *x, dt_tensor *w, dt_tensor *b, double eps)
{
    const dti_norm_attributes attr = {eps, true};
    return dt_op_apply(t, &dt_op_layernorm, &attr, 3, (dt_tensor *[]){x, w, b});
}
