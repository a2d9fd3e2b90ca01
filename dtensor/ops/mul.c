/* dtensor/ops/mul.c - y = a * b, element by element; the operand with fewer dims is repeated along
 * leading dims.
 *
 * forward    y = a * b
 * backward   da = dy * b, db = dy * a, each summed over the leading dims it lacks
 * rule       "...,...->...", linear in each: P * R is P */
#include "dtensor/ops/ops_internal.h"

/* out = x * y, of which at most one is repeated along leading dims. */
static void multiply(const dt_op_call *c, const dt_array *x, const dt_array *y, dt_array *out)
{
    const int64_t n = dt_array_count(out);
    const bool swap = dt_array_count(x) < n;
    const dt_array *large = swap ? y : x, *small = swap ? x : y;
    if (n == 0)
        return;
    const int64_t inner = dt_array_count(small);
    dti_math(c)->mul(out->dtype, n / inner, inner, dt_array_data(large), dt_array_data(small),
                     dt_array_data(out));
}

static dt_status forward(dt_op_call *c)
{
    multiply(c, &c->in[0], &c->in[1], &c->out[0]);
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
        if (inner == n)
            multiply(c, dy, &c->in[1 - i], &c->din[i]);
        else
            dti_math(c)->sum_mul(dy->dtype, inner ? n / inner : 0, inner, dt_array_data(dy),
                                 dt_array_data(&c->in[1 - i]), dt_array_data(&c->din[i]));
    }
    return DT_OK;
}

const dt_op dt_op_mul = {.name = "mul",
                         .nin = 2,
                         .nout = 1,
                         .rule = "...,...->...",
                         .linear = 3,
                         .forward = forward,
                         .backward = backward,
                         .saves = {DT_SAVE_IN(1), DT_SAVE_IN(0)}};

dt_tensor *(dt_mul)(dt_tape *t, dt_tensor *x, dt_tensor *y)
{
    return dt_op_apply2(t, &dt_op_mul, NULL, x, y);
}
