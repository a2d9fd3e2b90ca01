/* dtensor/ops/linear_overlap.c - linear layers that communicate while they compute, for sequence
 * parallelism. t ranks of an axis or a nest of axes, each with a piece of the sequence, S(1).
 *
 *     gather_linear    y_i = (all-gathered x) w_i^T + b_i   w_i and b_i split along outputs
 *     linear_scatter   y = reduce-scattered (x w^T) + b     x and w split along what is summed
 *
 * The pieces go round a ring; while one is on its way, the product of the one before is computed.
 * Each op is the other's adjoint:
 *
 *     gather_linear    forward    gather x
 *                      backward   scatter dx = sum of dy_i w_i; gather x again for dw_i
 *     linear_scatter   forward    scatter x w^T
 *                      backward   gather dy for dx = dy w and dw = dy^T x
 *
 * Bytes are those of the collectives, (t-1)/t of the whole each, in the tensors' type; inside are
 * f64 and f32. Sums are taken in the order of the ring, which starts elsewhere for each piece.
 * Rule: that of linear on the gathered x; linear_scatter makes P on the axis S(1). b of
 * linear_scatter is added by the owner of a position, so its gradient is P.
 * Source: Wang et al. 2023, "Overlap communication with dependent computation via decomposition".
 * Read first: dtensor/ops/linear.c, dtensor/ops/ring.c. */
#include "array/dt_matmul.h"
#include "dtensor/ops/ops_internal.h"
#include "dtensor/ops/ring_internal.h"

enum { MOST = DT_OVERLAP_MOST, X = 0 };
#define W(i) (1 + 2 * (i))
#define B(i) (2 + 2 * (i))

/* The attributes are the options. */
typedef dt_overlap_options attributes;

static uint64_t key(const void *a)
{
    const attributes *attr = a;
    return dti_hash((uint64_t)attr->n << 1 | attr->in_out, attr->axis, (size_t)attr->naxes);
}

/* ---- rules ---- */

static dt_status infer_linear(const dt_rule *r, const dt_layout *x, int i, dt_rule *one)
{
    static const char *const spec[] = {"...k,kn+n->...n", "...k,kcn+cn->...cn",
                                       "...k,kchd+chd->...chd"};
    const attributes *attr = r->attr;
    const int ndim = r->in[W(i)]->shape.ndim;
    DT_REQUIRE(ndim >= 2 && ndim <= (attr->in_out ? 4 : 2), DT_ERR_SHAPE, "%s: w has %d dims",
               r->name, ndim);
    *one = (dt_rule){
        .name = r->name, .linear = 7, .nin = 3, .nout = 1, .in = {x, r->in[W(i)], r->in[B(i)]}};
    return dt_rule_letters(one, attr->in_out ? spec[ndim - 2] : "...k,nk+n->...n", NULL);
}

/* Is x S(1) on all axes of the ring, innermost and in their order? Then it becomes R on them. */
static bool gather_axes(const attributes *attr, dt_layout *x)
{
    const int outer = x->nsplit[1] - attr->naxes;
    bool split = x->shape.ndim == 3 && outer >= 0;
    for (int i = 0; split && i < attr->naxes; i++)
        split = x->split[1][outer + i] == attr->axis[i];
    for (int i = 0; i < attr->naxes; i++)
        dt_layout_clear(x, attr->axis[i]);
    return split;
}

/* Weights that are R on an axis of the ring (key/value heads on tp_rep) get gradients P there. */
static dt_status infer_gather(dt_rule *r)
{
    const attributes *attr = r->attr;
    dt_layout x = *r->in[X];
    DT_REQUIRE(gather_axes(attr, &x), DT_ERR_PLACEMENT,
               "%s: x must be [B, S, k], S(1) on %s and the other axes of the ring, innermost",
               r->name, x.grid->name[attr->axis[0]]);
    for (int i = 0; i < attr->n; i++) {
        dt_rule one;
        DT_TRY(infer_linear(r, &x, i, &one));
        r->out[i] = one.out[0];
        for (int a = 0; a < attr->naxes; a++) {
            const dt_placement at = dt_layout_at(&one.out[0], attr->axis[a]);
            DT_REQUIRE(at.kind != DT_PARTIAL, DT_ERR_PLACEMENT,
                       "%s: weights must be split along outputs on %s, or R", r->name,
                       x.grid->name[attr->axis[a]]);
            if (at.kind == DT_REPLICATE) {
                r->summed[W(i)] |= (uint8_t)(1u << attr->axis[a]);
                r->summed[B(i)] |= (uint8_t)(1u << attr->axis[a]);
            }
        }
    }
    return DT_OK;
}

static dt_status infer_scatter(dt_rule *r)
{
    const attributes *attr = r->attr;
    dt_rule one;
    DT_TRY(infer_linear(r, r->in[X], 0, &one));
    r->out[0] = one.out[0];
    for (int a = 0; a < attr->naxes; a++) {
        const int axis = attr->axis[a];
        DT_REQUIRE(r->in[X]->shape.ndim == 3 && one.out[0].shape.ndim == 3 &&
                       dt_layout_at(&one.out[0], axis).kind == DT_PARTIAL,
                   DT_ERR_PLACEMENT, "%s: x [B, S, k] and w must be split along k on %s", r->name,
                   r->in[X]->grid->name[axis]);
        DT_REQUIRE(!r->in[B(0)] || dt_layout_at(r->in[B(0)], axis).kind == DT_REPLICATE,
                   DT_ERR_PLACEMENT, "%s: the bias must be R on %s", r->name,
                   r->in[X]->grid->name[axis]);
        dt_layout_clear(&r->out[0], axis);
        dt_layout_shard(&r->out[0], axis, 1);
    }
    return DT_OK;
}

/* ---- products of a piece ---- */

/* What the four uses share: weight i between whole arrays and pieces. */
typedef struct job {
    dti_ring g;
    dt_op_call *c;
    bool in_out;
    int n; /* weights */
} job;

static int64_t outputs(const job *j, const dt_array *w)
{
    return j->in_out ? dt_shape_inner(w->shape, 0) : w->shape.dim[0];
}

static int64_t inputs(const job *j, const dt_array *w)
{
    return j->in_out ? w->shape.dim[0] : w->shape.dim[1];
}

static char *row(const dt_array *a, int64_t at, int64_t width)
{
    char *data = dt_array_data(a);
    return data ? data + at * width * (int64_t)dt_dtype_size(a->dtype) : NULL;
}

/* c = a w^T (or a w: `back`) + beta c for all of the batch; rows from row `a_at`, `c_at` of
 * sequences that are a_rows and c_rows long. */
typedef struct span {
    const dt_array *array;
    int64_t at, rows;
} span;

static dt_status times_weight(const job *j, span a, const dt_array *w, bool back, span c, int64_t m,
                              double beta)
{
    const int64_t k = back ? outputs(j, w) : inputs(j, w), n = back ? inputs(j, w) : outputs(j, w);
    return dt_op_multiply(j->c, &(dt_matmul_args){.dtype = w->dtype,
                                                  .dtype_c = w->dtype,
                                                  .trans_b = back == j->in_out,
                                                  .batch = j->g.batch,
                                                  .m = m,
                                                  .n = n,
                                                  .k = k,
                                                  .a = row(a.array, a.at, k),
                                                  .b = dt_array_data(w),
                                                  .c = row(c.array, c.at, n),
                                                  .stride_a = a.rows * k,
                                                  .stride_c = c.rows * n,
                                                  .alpha = 1,
                                                  .beta = beta});
}

/* dw += dy^T x (or x^T dy), sequence by sequence. */
static dt_status add_weight_gradient(const job *j, span x, span dy, dt_array *dw, int64_t rows)
{
    const int64_t k = inputs(j, dw), n = outputs(j, dw);
    for (int64_t b = 0; b < j->g.batch; b++) {
        const void *xb = row(x.array, b * x.rows + x.at, k),
                   *yb = row(dy.array, b * dy.rows + dy.at, n);
        DT_TRY(dt_op_multiply(j->c, &(dt_matmul_args){.dtype = dw->dtype,
                                                      .dtype_c = dw->dtype,
                                                      .trans_a = true,
                                                      .batch = 1,
                                                      .m = j->in_out ? k : n,
                                                      .n = j->in_out ? n : k,
                                                      .k = rows,
                                                      .a = j->in_out ? xb : yb,
                                                      .b = j->in_out ? yb : xb,
                                                      .c = dt_array_data(dw),
                                                      .alpha = 1,
                                                      .beta = 1}));
    }
    return DT_OK;
}

/* y [.., n]: b in every row. */
static void repeat_bias(const dt_op_call *c, const dt_array *b, dt_array *y)
{
    const int64_t n = dt_array_count(b), rows = n ? dt_array_count(y) / n : 0;
    if (rows == 0 || dt_array_is_meta(y))
        return;
    dti_math(c)->strided(&(dt_strided_args){.elem_bytes = (int64_t)dt_dtype_size(y->dtype),
                                            .ndim = 2,
                                            .size = {rows, n},
                                            .stride = {0, 1},
                                            .src = dt_array_data(b),
                                            .dst = dt_array_data(y)});
}

/* `whole`: of what is gathered or scattered, as this rank has it apart from the axis. */
static dt_status start(dt_op_call *c, const dt_layout *whole, job *j)
{
    const attributes *attr = c->attr;
    *j = (job){.c = c, .in_out = attr->in_out, .n = attr->n};
    const dt_shape local = dt_mesh_local(whole, NULL);
    return dti_ring_open(c, attr, local.dim[0], local.dim[1], &j->g);
}

static span part(const job *j, const dt_array *whole, dti_piece p)
{
    return (span){whole, p.lo, j->g.sequence};
}

static span all(const dt_array *piece)
{
    return (span){piece, 0, piece->shape.dim[1]};
}

/* Has output i a gradient that this rank shall use? None may have reached it; and where output and
 * gradient are both R on an axis of the ring, its first rank counts for all. */
static bool counts(const dt_op_call *c, int i)
{
    const attributes *attr = c->attr;
    bool here = c->dout[i].storage != NULL;
    for (int a = 0; here && a < attr->naxes; a++)
        here = dt_layout_at(c->dout_layout[i], attr->axis[a]).kind != DT_REPLICATE ||
               dt_op_coord(c)[attr->axis[a]] == 0;
    return here;
}

static void bias_gradient(const dt_op_call *c, const dt_array *dy, bool used, dt_array *db)
{
    if (!used || dt_array_is_meta(db)) {
        dt_array_zero(db);
        return;
    }
    const int64_t n = dt_array_count(db), rows = n ? dt_array_count(dy) / n : 0;
    dti_math(c)->sum(dy->dtype, 1, rows, n, dt_array_data(dy), dt_array_data(db));
}

/* ---- gather_linear ---- */

static dt_status outputs_of_piece(void *arg, dti_piece p, dt_array *x)
{
    const job *j = arg;
    for (int i = 0; i < j->n; i++)
        DT_TRY(times_weight(j, all(x), &j->c->in[W(i)], false, part(j, &j->c->out[i], p),
                            p.hi - p.lo, j->c->in[B(i)].storage ? 1 : 0));
    return DT_OK;
}

static dt_status gather_forward(dt_op_call *c)
{
    job j;
    DT_TRY(start(c, c->out_layout[0], &j));
    for (int i = 0; i < j.n; i++) {
        if (c->in[B(i)].storage)
            repeat_bias(c, &c->in[B(i)], &c->out[i]);
    }
    DT_TRY(dti_ring_gather(&j.g, &c->in[X], outputs_of_piece, &j));
    return DT_OK;
}

static dt_status weight_gradients_of_piece(void *arg, dti_piece p, dt_array *x)
{
    const job *j = arg;
    for (int i = 0; i < j->n; i++) {
        if ((j->c->need >> W(i) & 1) && counts(j->c, i))
            DT_TRY(add_weight_gradient(j, all(x), part(j, &j->c->dout[i], p), &j->c->din[W(i)],
                                       p.hi - p.lo));
    }
    return DT_OK;
}

static dt_status input_gradient_of_piece(void *arg, dti_piece p, dt_array *dx)
{
    const job *j = arg;
    dt_array_zero(dx);
    for (int i = 0; i < j->n; i++) {
        if (counts(j->c, i))
            DT_TRY(times_weight(j, part(j, &j->c->dout[i], p), &j->c->in[W(i)], true, all(dx),
                                p.hi - p.lo, 1));
    }
    return DT_OK;
}

static dt_status gather_backward(dt_op_call *c)
{
    job j;
    bool weights = false;
    DT_TRY(start(c, c->out_layout[0], &j));
    for (int i = 0; i < j.n; i++) {
        if (c->need >> W(i) & 1)
            dt_array_zero(&c->din[W(i)]);
        if (c->need >> B(i) & 1)
            bias_gradient(c, &c->dout[i], counts(c, i), &c->din[B(i)]);
        weights = weights || (c->need >> W(i) & 1);
    }
    if (c->need >> X & 1)
        DT_TRY(dti_ring_scatter(&j.g, input_gradient_of_piece, &j, &c->din[X]));
    if (weights)
        DT_TRY(dti_ring_gather(&j.g, &c->in[X], weight_gradients_of_piece, &j));
    return DT_OK;
}

/* ---- linear_scatter ---- */

static dt_status terms_of_piece(void *arg, dti_piece p, dt_array *y)
{
    const job *j = arg;
    return times_weight(j, part(j, &j->c->in[X], p), &j->c->in[W(0)], false, all(y), p.hi - p.lo,
                        0);
}

static dt_status scatter_forward(dt_op_call *c)
{
    job j;
    dt_array *bias;
    DT_TRY(start(c, c->in_layout[X], &j));
    DT_TRY(dti_ring_scatter(&j.g, terms_of_piece, &j, &c->out[0]));
    if (c->in[B(0)].storage) {
        DT_TRY(dt_op_scratch(c, c->out[0].dtype, c->out[0].shape, &bias));
        repeat_bias(c, &c->in[B(0)], bias);
        dt_array_add_into(&c->out[0], bias);
    }
    return DT_OK;
}

static dt_status gradients_of_piece(void *arg, dti_piece p, dt_array *dy)
{
    const job *j = arg;
    dt_op_call *c = j->c;
    if (c->need >> X & 1)
        DT_TRY(
            times_weight(j, all(dy), &c->in[W(0)], true, part(j, &c->din[X], p), p.hi - p.lo, 0));
    if (c->need >> W(0) & 1)
        DT_TRY(add_weight_gradient(j, part(j, &c->in[X], p), all(dy), &c->din[W(0)], p.hi - p.lo));
    return DT_OK;
}

static dt_status scatter_backward(dt_op_call *c)
{
    job j;
    DT_TRY(start(c, c->in_layout[X], &j));
    if (c->need >> W(0) & 1)
        dt_array_zero(&c->din[W(0)]);
    if (c->need >> B(0) & 1)
        bias_gradient(c, &c->dout[0], true, &c->din[B(0)]);
    if (c->need & (1u << X | 1u << W(0)))
        DT_TRY(dti_ring_gather(&j.g, &c->dout[0], gradients_of_piece, &j));
    return DT_OK;
}

/* ---- the ops ---- */

static const dt_op gather_op = {.name = "gather_linear",
                                .infer = infer_gather,
                                .key = key,
                                .nin = 1 + 2 * MOST,
                                .optional = 1u << B(0) | 1u << B(1) | 1u << B(2),
                                .nout = MOST,
                                .linear = 0,
                                .attr_bytes = sizeof(attributes),
                                .communicates = true,
                                .forward = gather_forward,
                                .backward = gather_backward,
                                .saves = {DT_SAVE_IN(W(0)) | DT_SAVE_IN(W(1)) | DT_SAVE_IN(W(2)),
                                          DT_SAVE_IN(X), 0, DT_SAVE_IN(X), 0, DT_SAVE_IN(X)}};
static const dt_op scatter_op = {.name = "linear_scatter",
                                 .infer = infer_scatter,
                                 .key = key,
                                 .nin = 3,
                                 .optional = 1u << B(0),
                                 .nout = 1,
                                 .attr_bytes = sizeof(attributes),
                                 .communicates = true,
                                 .forward = scatter_forward,
                                 .backward = scatter_backward,
                                 .saves = {DT_SAVE_IN(W(0)), DT_SAVE_IN(X)}};

void(dt_gather_linear)(dt_tape *t, dt_tensor *x, const dt_overlap_options *o, dt_tensor *const *w,
                       dt_tensor *const *b, dt_tensor **out)
{
    dt_tensor *in[1 + 2 * MOST] = {x};
    for (int i = 0; i < o->n; i++) {
        in[W(i)] = w[i];
        in[B(i)] = b[i];
    }
    dt_op_apply_n(t, &gather_op, o, 1 + 2 * o->n, in, o->n, out);
}

dt_tensor *(dt_linear_scatter)(dt_tape *t, dt_tensor *x, const dt_overlap_options *o, dt_tensor *w,
                               dt_tensor *b)
{
    dt_tensor *const in[] = {x, w, b};
    return dt_op_apply(t, &scatter_op, o, 3, in);
}
