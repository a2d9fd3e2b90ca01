/* dtensor/ops/cast.c - the same numbers in another element type.
 *
 * forward    y = x rounded to the type
 * backward   dx = dy rounded back to x's type
 * rule       "...->..."; P passes only if asked, since the sum would then be taken in the new type
 *            */
#include "dtensor/ops/ops_internal.h"

typedef struct cast_attr {
    dt_dtype dtype;
    bool allow_partial;
} cast_attr;

static dt_status infer(dt_rule *r)
{
    const cast_attr *attr = r->attr;
    r->linear = attr->allow_partial;
    return dt_rule_letters(r, "...->...", NULL);
}

static uint64_t key(const void *attr)
{
    return ((const cast_attr *)attr)->allow_partial;
}

static dt_dtype out_dtype(const void *attr, dt_dtype in0)
{
    (void)in0;
    return ((const cast_attr *)attr)->dtype;
}

static dt_status forward(dt_op_call *c)
{
    dt_array_cast(&c->out[0], &c->in[0]);
    return DT_OK;
}

static dt_status backward(dt_op_call *c)
{
    dt_array_cast(&c->din[0], &c->dout[0]);
    return DT_OK;
}

const dt_op dt_op_cast = {.name = "cast",
                          .nin = 1,
                          .nout = 1,
                          .infer = infer,
                          .key = key,
                          .attr_bytes = sizeof(cast_attr),
                          .any_dtype = true,
                          .forward = forward,
                          .backward = backward,
                          .handles_half = true,
                          .out_dtype = out_dtype};

dt_tensor *(dt_cast)(dt_tape *t, dt_tensor *x, dt_dtype dtype, bool allow_partial)
{
    const cast_attr attr = {.dtype = dtype, .allow_partial = allow_partial};
    return dt_op_apply1(t, &dt_op_cast, &attr, x);
}
