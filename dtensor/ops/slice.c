/* dtensor/ops/slice.c - elements [lo, hi) of a dim; and one index of a dim, which goes.
 *
 * forward    slice: y = x[..., lo:hi, ...]     select: y = x[..., i, ...]
 * backward   dx = dy there, 0 elsewhere
 * rule       "abC->abC" and "abC->ab": the dim may not be sharded, all else passes; linear */
#include "dtensor/ops/ops_internal.h"

typedef struct slice_attr {
    int64_t dim, lo, hi;
} slice_attr;

static uint64_t key(const void *attr)
{
    return dti_hash(0, attr, sizeof(slice_attr));
}

static dt_status infer(dt_rule *r, bool keep)
{
    const slice_attr *attr = r->attr;
    const int dim = (int)attr->dim;
    DT_TRY(dti_rule_along(r, dim, keep));
    const int64_t size = r->in[0]->shape.dim[dim];
    DT_REQUIRE(attr->lo >= 0 && attr->lo <= attr->hi && attr->hi <= size, DT_ERR_ARG,
               "%s: elements [%lld, %lld) of dim %d, which has %lld", r->name, (long long)attr->lo,
               (long long)attr->hi, dim, (long long)size);
    if (keep)
        r->out[0].shape.dim[dim] = attr->hi - attr->lo;
    return DT_OK;
}

static dt_status infer_slice(dt_rule *r)
{
    return infer(r, true);
}

static dt_status infer_select(dt_rule *r)
{
    return infer(r, false);
}

/* y's elements are the block of x at lo along the dim; y's shape there is [lo, hi), also after
 * select. */
static dt_array with_dim(const slice_attr *attr, const dt_array *y, const dt_array *x)
{
    dt_shape s = x->shape;
    s.dim[attr->dim] = attr->hi - attr->lo;
    return dt_array_reshape(y, s);
}

static dt_status forward(dt_op_call *c)
{
    const slice_attr *attr = c->attr;
    const int64_t zero[DT_MAX_DIMS] = {0};
    int64_t at[DT_MAX_DIMS] = {0};
    at[attr->dim] = attr->lo;
    dt_array y = with_dim(attr, &c->out[0], &c->in[0]);
    dt_array_copy_block(&y, zero, &c->in[0], at, y.shape);
    dt_array_release(&y);
    return DT_OK;
}

static dt_status backward(dt_op_call *c)
{
    const slice_attr *attr = c->attr;
    const int64_t zero[DT_MAX_DIMS] = {0};
    int64_t at[DT_MAX_DIMS] = {0};
    at[attr->dim] = attr->lo;
    dt_array dy = with_dim(attr, &c->dout[0], &c->din[0]);
    dt_array_zero(&c->din[0]);
    dt_array_copy_block(&c->din[0], at, &dy, zero, dy.shape);
    dt_array_release(&dy);
    return DT_OK;
}

const dt_op dt_op_slice = {.name = "slice",
                           .nin = 1,
                           .nout = 1,
                           .linear = 1,
                           .infer = infer_slice,
                           .key = key,
                           .attr_bytes = sizeof(slice_attr),
                           .any_dtype = true,
                           .forward = forward,
                           .backward = backward,
                           .handles_half = true};

const dt_op dt_op_select = {.name = "select",
                            .nin = 1,
                            .nout = 1,
                            .linear = 1,
                            .infer = infer_select,
                            .key = key,
                            .attr_bytes = sizeof(slice_attr),
                            .any_dtype = true,
                            .forward = forward,
                            .backward = backward,
                            .handles_half = true};

dt_tensor *(dt_slice)(dt_tape *t, dt_tensor *x, int dim, int64_t lo, int64_t hi)
{
    const slice_attr attr = {dim, lo, hi};
    return dt_op_apply1(t, &dt_op_slice, &attr, x);
}

dt_tensor *(dt_select)(dt_tape *t, dt_tensor *x, int dim, int64_t i)
{
    const slice_attr attr = {dim, i, i + 1};
    return dt_op_apply1(t, &dt_op_select, &attr, x);
}
