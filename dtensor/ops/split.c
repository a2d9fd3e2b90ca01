/* dtensor/ops/split.c - cut a dim into outputs of given sizes.
 *
 * forward    y_j = the next sizes[j] elements of dim
 * backward   dx = the dy_j one after the other, 0 for an output that no gradient reached
 * rule       "abC->abC": the dim may not be sharded, all else passes; linear */
#include "dtensor/ops/ops_internal.h"

#include <string.h>

typedef struct split_attr {
    int64_t dim, n, size[DT_OP_MAX_OUT]; /* n sizes, then 0 */
} split_attr;

static uint64_t key(const void *attr)
{
    return dti_hash(0, attr, sizeof(split_attr));
}

static dt_status infer(dt_rule *r)
{
    const split_attr *attr = r->attr;
    const int dim = (int)attr->dim;
    DT_TRY(dti_rule_along(r, dim, true));
    int64_t total = 0;
    for (int j = 0; j < r->nout; j++) {
        DT_REQUIRE(attr->size[j] >= 0, DT_ERR_ARG, "split: size %lld of output %d",
                   (long long)attr->size[j], j);
        total += attr->size[j];
        r->out[j] = r->out[0];
        r->out[j].shape.dim[dim] = attr->size[j];
    }
    DT_REQUIRE(total == r->in[0]->shape.dim[dim], DT_ERR_SHAPE,
               "split: sizes add up to %lld, dim %d has %lld", (long long)total, dim,
               (long long)r->in[0]->shape.dim[dim]);
    return DT_OK;
}

static dt_status forward(dt_op_call *c)
{
    const split_attr *attr = c->attr;
    const int64_t zero[DT_MAX_DIMS] = {0};
    int64_t at[DT_MAX_DIMS] = {0};
    for (int j = 0; j < c->nout; j++) {
        dt_array_copy_block(&c->out[j], zero, &c->in[0], at, c->out[j].shape);
        at[attr->dim] += attr->size[j];
    }
    return DT_OK;
}

static dt_status backward(dt_op_call *c)
{
    const split_attr *attr = c->attr;
    const int64_t zero[DT_MAX_DIMS] = {0};
    int64_t at[DT_MAX_DIMS] = {0};
    bool all = true;
    for (int j = 0; j < c->nout; j++)
        all &= c->dout[j].storage != NULL;
    if (!all)
        dt_array_zero(&c->din[0]);
    for (int j = 0; j < c->nout; j++) {
        if (c->dout[j].storage)
            dt_array_copy_block(&c->din[0], at, &c->dout[j], zero, c->dout[j].shape);
        at[attr->dim] += attr->size[j];
    }
    return DT_OK;
}

const dt_op dt_op_split = {.name = "split",
                           .nin = 1,
                           .nout = DT_OP_MAX_OUT,
                           .linear = 1,
                           .infer = infer,
                           .key = key,
                           .attr_bytes = sizeof(split_attr),
                           .any_dtype = true,
                           .forward = forward,
                           .backward = backward,
                           .handles_half = true};

void(dt_split)(dt_tape *t, dt_tensor *x, int dim, int n, const int64_t *sizes, dt_tensor **out)
{
    split_attr attr = {.dim = dim, .n = n};
    if (n > 0 && n <= DT_OP_MAX_OUT)
        memcpy(attr.size, sizes, (size_t)n * sizeof *sizes);
    dt_op_apply_n(t, &dt_op_split, &attr, 1, &x, n, out);
}
