/* dtensor/ops/add.c - y = a + b, element by element; the operand with fewer dims is repeated along
 * leading dims.
 *
 * forward    y = a + b
 * backward   da = dy, db = dy, each summed over the leading dims it lacks; of a full-sized operand
 *            it is dy itself
 * rule       "...+...->...", linear in both: P + R makes the R operand P */
#include "dtensor/ops/ops_internal.h"

static dt_status forward(dt_op_call *c)
{
    const int64_t n = dt_array_count(&c->out[0]);
    const int large = dt_array_count(&c->in[0]) == n ? 0 : 1;
    const dt_array *x = &c->in[large], *y = &c->in[1 - large];
    if (n == 0)
        return DT_OK;
    const int64_t inner = dt_array_count(y);
    dti_math(c)->add(x->dtype, n / inner, inner, dt_array_data(x), dt_array_data(y),
                     dt_array_data(&c->out[0]));
    return DT_OK;
}

static dt_status backward(dt_op_call *c)
{
    const dt_array *dy = &c->dout[0];
    const int64_t n = dt_array_count(dy);
    for (int i = 0; i < 2; i++) {
        if (!(c->need >> i & 1))
            continue;
        const int64_t inner = dt_array_count(&c->din[i]);
        if (inner == n) {
            dt_array same = dt_array_reshape(dy, c->din[i].shape);
            dt_op_share_din(c, i, &same);
            dt_array_release(&same);
        } else {
            dti_math(c)->sum(dy->dtype, 1, inner ? n / inner : 0, inner, dt_array_data(dy),
                             dt_array_data(&c->din[i]));
        }
    }
    return DT_OK;
}

const dt_op dt_op_add = {.name = "add",
                         .nin = 2,
                         .nout = 1,
                         .rule = "...+...->...",
                         .linear = 3,
                         .handles_half = true,
                         .forward = forward,
                         .backward = backward};

dt_tensor *(dt_add)(dt_tape *t, dt_tensor *x, dt_tensor *y)
{
    return dt_op_apply2(t, &dt_op_add, NULL, x, y);
}
