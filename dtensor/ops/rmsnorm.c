/* dtensor/ops/rmsnorm.c - y = w u over the last dim, u = x / sqrt(mean(x^2) + eps); w left
 * out is ones.
 *
 *     dx = (g - u mean(g u)) / sqrt(mean(x^2) + eps),  g = dy w        dw = sum over rows of dy u
 *
 * Rule: "...N,N->...N", linear in w; dw is P where rows are sharded. Means and sums are in f64;
 * backward computes the means again from x. The functions are those of layernorm.c.
 * Source: Zhang and Sennrich 2019, "Root mean square layer normalization". */
#include "dtensor/ops/nn_internal.h"

const dt_op dt_op_rmsnorm = {.name = "rmsnorm",
                             .rule = "...N,N->...N",
                             .linear = 1u << 1,
                             .nin = 2,
                             .nout = 1,
                             .attr_bytes = sizeof(dti_norm_attributes),
                             .optional = 1u << 1,
                             .forward = dti_any_norm_forward,
                             .backward = dti_any_norm_backward,
                             .handles_half = true,
                             .saves = {DT_SAVE_IN(0) | DT_SAVE_IN(1), DT_SAVE_IN(0)}};

dt_tensor *(dt_rmsnorm)(dt_tape *t, dt_tensor *x, dt_tensor *w, double eps)
{
    const dti_norm_attributes attr = {eps, false};
    return dt_op_apply(t, &dt_op_rmsnorm, &attr, 2, (dt_tensor *[]){x, w});
}
