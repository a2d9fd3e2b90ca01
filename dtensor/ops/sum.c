/* dtensor/ops/sum.c - the sum over some dims, which go.
 *
 * forward    y[kept] = sum over the others of x; neighbouring summed dims at a time, last ones
 *            first, in f64
 * backward   dx[...] = dy[kept]
 * rule       a letter a dim, such as "abc->b", linear: a summed sharded dim gives P */
#include "dtensor/ops/ops_internal.h"

typedef struct sum_attr {
    uint32_t dims; /* bit d: dim d is summed */
} sum_attr;

static dt_status infer(dt_rule *r)
{
    const sum_attr *attr = r->attr;
    const int ndim = r->in[0]->shape.ndim;
    char spec[2 * DT_MAX_DIMS + 3], *p = spec;
    DT_REQUIRE(!(attr->dims >> ndim), DT_ERR_ARG, "sum over dims 0x%x of a tensor with %d dims",
               attr->dims, ndim);
    for (int d = 0; d < ndim; d++)
        *p++ = (char)('a' + d);
    *p++ = '-';
    *p++ = '>';
    for (int d = 0; d < ndim; d++)
        if (!(attr->dims >> d & 1))
            *p++ = (char)('a' + d);
    *p = 0;
    return dt_rule_letters(r, spec, NULL);
}

static uint64_t key(const void *attr)
{
    return ((const sum_attr *)attr)->dims;
}

/* The last block of neighbouring dims in the mask: [lo, hi). False if it is empty. */
static bool last_block(uint32_t dims, int *lo_out, int *hi_out)
{
    int hi = DT_MAX_DIMS;
    while (hi > 0 && !(dims >> (hi - 1) & 1))
        hi--;
    int lo = hi;
    while (lo > 0 && dims >> (lo - 1) & 1)
        lo--;
    *lo_out = lo;
    *hi_out = hi;
    return lo < hi;
}

/* `shape` without dims [lo, hi). */
static dt_shape without(dt_shape shape, int lo, int hi)
{
    dt_shape s = {.ndim = shape.ndim - (hi - lo)};
    for (int d = 0; d < s.ndim; d++)
        s.dim[d] = shape.dim[d < lo ? d : d + hi - lo];
    return s;
}

static dt_status forward(dt_op_call *c)
{
    uint32_t dims = ((const sum_attr *)c->attr)->dims;
    const dt_array *x = &c->in[0];
    int lo, hi;
    if (!last_block(dims, &lo, &hi)) {
        dt_array_copy(&c->out[0], x);
        return DT_OK;
    }
    while (dims) {
        last_block(dims, &lo, &hi);
        dims &= (1u << lo) - 1;
        const dt_shape s = x->shape, rest = without(s, lo, hi);
        dt_array *out = &c->out[0];
        if (dims)
            DT_TRY(dt_op_scratch(c, x->dtype, rest, &out));
        int64_t mid = 1;
        for (int d = lo; d < hi; d++)
            mid *= s.dim[d];
        dti_math(c)->sum(x->dtype, dt_shape_outer(s, lo), mid, dt_shape_inner(s, hi - 1),
                         dt_array_data(x), dt_array_data(out));
        x = out;
    }
    return DT_OK;
}

static dt_status backward(dt_op_call *c)
{
    const uint32_t dims = ((const sum_attr *)c->attr)->dims;
    const dt_shape s = c->din[0].shape;
    dt_strided_args a = {.elem_bytes = (int64_t)dt_dtype_size(c->din[0].dtype),
                         .ndim = s.ndim,
                         .src = dt_array_data(&c->dout[0]),
                         .dst = dt_array_data(&c->din[0])};
    int64_t stride = 1;
    for (int d = s.ndim - 1; d >= 0; d--) {
        const bool summed = dims >> d & 1;
        a.size[d] = s.dim[d];
        a.stride[d] = summed ? 0 : stride;
        stride *= summed ? 1 : s.dim[d];
    }
    if (dt_array_count(&c->din[0]) > 0)
        dti_math(c)->strided(&a);
    return DT_OK;
}

const dt_op dt_op_sum = {.name = "sum",
                         .nin = 1,
                         .nout = 1,
                         .linear = 1,
                         .infer = infer,
                         .key = key,
                         .attr_bytes = sizeof(sum_attr),
                         .forward = forward,
                         .backward = backward};

dt_tensor *(dt_sum)(dt_tape *t, dt_tensor *x, uint32_t dims)
{
    const sum_attr attr = {dims ? dims : (1u << dt_tensor_shape(x).ndim) - 1};
    return dt_op_apply1(t, &dt_op_sum, &attr, x);
}
