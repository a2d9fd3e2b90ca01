/* dtensor/ops/linear.c - y = x w^T + b, and y = x w + b for weights stored [in, out].
 *
 * forward    y[r, n] = sum over k of x[r, k] w[n, k] + b[n], rounded once
 * backward   dx = dy w, dw = dy^T x, db = sum of dy's rows (in f64, in order; on cuda in f32, with
 *            dw in one launch where cuBLASLt can)
 * rule       "...k,nk+n->...n"; "...k,kn+n->...n", or with n = (c, n) or (c, h, d). Linear in every
 *            operand. Column parallel: w S(n), x R: y S, dx P. Row parallel: x and w S(k): y P, b
 *            added once.
 * bf16 and f16 go to the product as they are. */
#include "array/dt_matmul.h"
#include "dtensor/ops/ops_internal.h"

/* Local sizes: x [rows, k], w holds k x n numbers. */
typedef struct sizes {
    int64_t rows, n, k;
} sizes;

static bool is_in_out(const dt_op_call *c)
{
    return c->op == &dt_op_linear_in_out;
}

/* From the shapes of x and w. */
static sizes sizes_of(const dt_op_call *c, dt_shape x, dt_shape w)
{
    return (sizes){.rows = dt_shape_outer(x, x.ndim - 1),
                   .n = is_in_out(c) ? dt_shape_inner(w, 0) : w.dim[0],
                   .k = x.dim[x.ndim - 1]};
}

static dt_status forward(dt_op_call *c)
{
    const sizes s = sizes_of(c, c->in[0].shape, c->in[1].shape);
    const void *bias = c->in[2].storage ? dt_array_data(&c->in[2]) : NULL;
    DT_TRY(dt_op_multiply(c, &(dt_matmul_args){.dtype = c->in[0].dtype,
                                               .dtype_c = c->out[0].dtype,
                                               .trans_b = !is_in_out(c),
                                               .batch = 1,
                                               .m = s.rows,
                                               .n = s.n,
                                               .k = s.k,
                                               .a = dt_array_data(&c->in[0]),
                                               .b = dt_array_data(&c->in[1]),
                                               .c = dt_array_data(&c->out[0]),
                                               .alpha = 1,
                                               .bias = bias}));
    return DT_OK;
}

static dt_status input_gradient(dt_op_call *c)
{
    const dt_array *dy = &c->dout[0], *w = &c->in[1];
    const sizes s = sizes_of(c, c->din[0].shape, w->shape);
    DT_TRY(dt_op_multiply(c, &(dt_matmul_args){.dtype = dy->dtype,
                                               .dtype_c = c->din[0].dtype,
                                               .trans_b = is_in_out(c),
                                               .batch = 1,
                                               .m = s.rows,
                                               .n = s.k,
                                               .k = s.n,
                                               .a = dt_array_data(dy),
                                               .b = dt_array_data(w),
                                               .c = dt_array_data(&c->din[0]),
                                               .alpha = 1}));
    return DT_OK;
}

static dt_status weight_gradient(dt_op_call *c, bool *made_db)
{
    const dt_array *dy = &c->dout[0], *x = &c->in[0];
    const sizes s = sizes_of(c, x->shape, c->din[1].shape);
    const bool in_out = is_in_out(c);
    const bool alike = (c->need & 4) && c->din[2].dtype == c->din[1].dtype;
    DT_TRY(dt_op_multiply(c, &(dt_matmul_args){.dtype = dy->dtype,
                                               .dtype_c = c->din[1].dtype,
                                               .trans_a = true,
                                               .batch = 1,
                                               .m = in_out ? s.k : s.n,
                                               .n = in_out ? s.n : s.k,
                                               .k = s.rows,
                                               .a = dt_array_data(in_out ? x : dy),
                                               .b = dt_array_data(in_out ? dy : x),
                                               .c = dt_array_data(&c->din[1]),
                                               .alpha = 1,
                                               .sums = alike ? dt_array_data(&c->din[2]) : NULL,
                                               .sums_of_a = !in_out,
                                               .summed = made_db}));
    return DT_OK;
}

static dt_status bias_gradient(dt_op_call *c)
{
    const dt_array *dy = &c->dout[0];
    dt_array *db = &c->din[2], *sum = db;
    const int64_t n = dt_array_count(db), rows = n ? dt_array_count(dy) / n : 0;
    if (dy->dtype != db->dtype)
        DT_TRY(dt_op_scratch(c, dy->dtype, db->shape, &sum));
    dti_math(c)->sum(dy->dtype, 1, rows, n, dt_array_data(dy), dt_array_data(sum));
    if (sum != db)
        dt_array_cast(db, sum);
    return DT_OK;
}

static dt_status backward(dt_op_call *c)
{
    if (c->need & 1)
        DT_TRY(input_gradient(c));
    bool made_db = false;
    if (c->need & 2)
        DT_TRY(weight_gradient(c, &made_db));
    if ((c->need & 4) && !made_db)
        DT_TRY(bias_gradient(c));
    return DT_OK;
}

static dt_status infer_in_out(dt_rule *r)
{
    static const char *const spec[] = {"...k,kn+n->...n", "...k,kcn+cn->...cn",
                                       "...k,kchd+chd->...chd"};
    const int ndim = r->in[1]->shape.ndim;
    DT_REQUIRE(ndim >= 2 && ndim <= 4, DT_ERR_SHAPE,
               "%s: w has %d dims; legal are [k, n], [k, c, n] and [k, c, h, d]", r->name, ndim);
    return dt_rule_letters(r, spec[ndim - 2], NULL);
}

const dt_op dt_op_linear = {.name = "linear",
                            .nin = 3,
                            .nout = 1,
                            .rule = "...k,nk+n->...n",
                            .linear = 7,
                            .optional = 1u << 2,
                            .forward = forward,
                            .backward = backward,
                            .saves = {DT_SAVE_IN(1), DT_SAVE_IN(0)},
                            .keep = true,
                            .wide_grad = 1u << 1 | 1u << 2,
                            .handles_half = true};

const dt_op dt_op_linear_in_out = {.name = "linear_in_out",
                                   .nin = 3,
                                   .nout = 1,
                                   .linear = 7,
                                   .infer = infer_in_out,
                                   .optional = 1u << 2,
                                   .forward = forward,
                                   .backward = backward,
                                   .saves = {DT_SAVE_IN(1), DT_SAVE_IN(0)},
                                   .keep = true,
                                   .wide_grad = 1u << 1 | 1u << 2,
                                   .handles_half = true};

dt_tensor *(dt_linear)(dt_tape *t, dt_tensor *x, dt_tensor *w, dt_tensor *b)
{
    return dt_op_apply(t, &dt_op_linear, NULL, 3, (dt_tensor *[]){x, w, b});
}

dt_tensor *(dt_linear_in_out)(dt_tape *t, dt_tensor *x, dt_tensor *w, dt_tensor *b)
{
    return dt_op_apply(t, &dt_op_linear_in_out, NULL, 3, (dt_tensor *[]){x, w, b});
}
