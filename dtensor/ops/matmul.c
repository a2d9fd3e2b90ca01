/* dtensor/ops/matmul.c - batched matrix products.
 *
 * forward    y[..., m, n] = sum over k of a[..., m, k] b[..., k, n]; either may lack leading dims
 *            and is then repeated
 * backward   da = dy b^T, db = a^T dy, each summed over the leading dims it lacks
 * rule       "...mk,...kn->...mn", linear in each operand */
#include "array/dt_matmul.h"
#include "dtensor/ops/ops_internal.h"

static int64_t matrices(dt_shape s)
{
    return dt_shape_outer(s, s.ndim - 2);
}

/* Numbers from one outer batch to the next; 0 for the array that lacks the outer dims and is used
 * again. */
static int64_t outer_step(const dt_array *x, int ndim, int64_t outer)
{
    return x->shape.ndim < ndim || outer == 0 ? 0 : dt_array_count(x) / outer;
}

/* z = op(x) op(y), op being ^T where asked. Of the three arrays at most one lacks leading dims: the
 * dims it has are the inner batch, which one call of the product does; the outer ones repeat it, or
 * are summed over if it is z. */
static dt_status multiply(dt_op_call *c, const dt_array *x, bool trans_x, const dt_array *y,
                          bool trans_y, dt_array *z)
{
    const dt_array *const all[3] = {x, y, z};
    const int rows = z->shape.ndim - 2, inner_of_x = x->shape.ndim - (trans_x ? 2 : 1);
    int ndim = 0;
    int64_t inner = INT64_MAX, outer = 0;
    for (int i = 0; i < 3; i++) {
        const int64_t n = matrices(all[i]->shape);
        ndim = all[i]->shape.ndim > ndim ? all[i]->shape.ndim : ndim;
        inner = n < inner ? n : inner;
        outer = n > outer ? n : outer;
    }
    outer = inner ? outer / inner : 0;
    const int64_t step_x = outer_step(x, ndim, outer), step_y = outer_step(y, ndim, outer);
    const int64_t step_z = outer_step(z, ndim, outer), bytes = (int64_t)dt_dtype_size(z->dtype);
    dt_matmul_args args = {.dtype = z->dtype,
                           .dtype_c = z->dtype,
                           .trans_a = trans_x,
                           .trans_b = trans_y,
                           .batch = inner,
                           .m = z->shape.dim[rows],
                           .n = z->shape.dim[rows + 1],
                           .k = x->shape.dim[inner_of_x],
                           .alpha = 1};
    args.stride_a = x->shape.dim[x->shape.ndim - 2] * x->shape.dim[x->shape.ndim - 1];
    args.stride_b = y->shape.dim[y->shape.ndim - 2] * y->shape.dim[y->shape.ndim - 1];
    args.stride_c = args.m * args.n;
    if (outer == 0)
        dt_array_zero(z);
    for (int64_t o = 0; o < outer; o++) {
        args.a = (const char *)dt_array_data(x) + o * step_x * bytes;
        args.b = (const char *)dt_array_data(y) + o * step_y * bytes;
        args.c = (char *)dt_array_data(z) + o * step_z * bytes;
        args.beta = o > 0 && step_z == 0;
        DT_TRY(dt_op_multiply(c, &args));
    }
    return DT_OK;
}

static dt_status forward(dt_op_call *c)
{
    return multiply(c, &c->in[0], false, &c->in[1], false, &c->out[0]);
}

static dt_status backward(dt_op_call *c)
{
    if (c->need & 1)
        DT_TRY(multiply(c, &c->dout[0], false, &c->in[1], true, &c->din[0]));
    if (c->need & 2)
        DT_TRY(multiply(c, &c->in[0], true, &c->dout[0], false, &c->din[1]));
    return DT_OK;
}

const dt_op dt_op_matmul = {.name = "matmul",
                            .nin = 2,
                            .nout = 1,
                            .rule = "...mk,...kn->...mn",
                            .linear = 3,
                            .forward = forward,
                            .backward = backward,
                            .saves = {DT_SAVE_IN(1), DT_SAVE_IN(0)},
                            .keep = true};

dt_tensor *(dt_matmul)(dt_tape *t, dt_tensor *a, dt_tensor *b)
{
    return dt_op_apply2(t, &dt_op_matmul, NULL, a, b);
}
