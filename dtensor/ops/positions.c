/* dtensor/ops/positions.c - the global indices along one dim of a tensor, placed as that dim is.
 *
 *   forward    y[i] = i, i32, over the global size of the dim
 *   rule       S on the axes that shard the dim, R on the others; nothing of x is read */
#include "dtensor/ops/ops_internal.h"

typedef struct attr {
    int dim;
} attr;

static dt_status infer(dt_rule *r)
{
    const int dim = ((const attr *)r->attr)->dim;
    const dt_layout *x = r->in[0];
    DT_REQUIRE(dim >= 0 && dim < x->shape.ndim, DT_ERR_SHAPE,
               "positions of dim %d of a tensor of %d dims", dim, x->shape.ndim);
    r->out[0] = dt_layout_replicated(x->grid, DT_SHAPE(x->shape.dim[dim]));
    for (int i = 0; i < x->nsplit[dim]; i++)
        dt_layout_shard(&r->out[0], x->split[dim][i], 0);
    return DT_OK;
}

static uint64_t key(const void *a)
{
    return (uint64_t)((const attr *)a)->dim;
}

static dt_dtype out_dtype(const void *a, dt_dtype in0)
{
    (void)a;
    (void)in0;
    return DT_I32;
}

static dt_status forward(dt_op_call *c)
{
    int64_t lo, hi;
    dt_op_range(c, 0, ((const attr *)c->attr)->dim, &lo, &hi);
    dti_math(c)->range(hi - lo, (int32_t)lo, dt_array_data(&c->out[0]));
    return DT_OK;
}

const dt_op dt_op_positions = {.name = "positions",
                               .nin = 1,
                               .nout = 1,
                               .infer = infer,
                               .key = key,
                               .attr_bytes = sizeof(attr),
                               .any_dtype = true,
                               .forward = forward,
                               .out_dtype = out_dtype};

dt_tensor *(dt_positions)(dt_tape *t, dt_tensor *x, int dim)
{
    const attr a = {dim};
    return dt_op_apply1(t, &dt_op_positions, &a, x);
}
