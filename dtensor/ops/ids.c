/* dtensor/ops/ids.c - integer operands (ids, targets, positions, documents): placed as the tensor
 * they meet, and in range. */
#include "dtensor/ops/nn_internal.h"

#include <stdio.h>
#include <string.h>

/* The dim of x that `axis` splits, or -1. */
static int split_dim(const dt_layout *x, int axis)
{
    const dt_placement p = dt_layout_at(x, axis);
    return p.kind == DT_SHARD ? p.dim : -1;
}

/* On one axis: S(d) where the leader's dim dims[d] is sharded, else R. */
static dt_status follows_on(const dt_rule *r, const dti_follow *f, int axis)
{
    const dt_layout *x = r->in[f->i], *lead = r->in[f->lead];
    const int leads = split_dim(lead, axis);
    int want = -1;
    for (int d = 0; d < f->ndims; d++)
        want = leads >= 0 && f->dims[d] == leads ? d : want;
    const bool partial = dt_layout_at(x, axis).kind == DT_PARTIAL;
    if (!partial && split_dim(x, axis) == want)
        return DT_OK;
    char text[24] = "R", a[DT_LAYOUT_TEXT], b[DT_LAYOUT_TEXT];
    if (want >= 0)
        (void)snprintf(text, sizeof text, "S(%d)", want);
    return DT_ERROR(DT_ERR_PLACEMENT, "%s: on %s: %s %s must be %s, as %s is %s", r->name,
                    lead->grid->name[axis], f->what, dt_layout_print(x, a, sizeof a), text,
                    f->leader, dt_layout_print(lead, b, sizeof b));
}

dt_status dti_follows(const dt_rule *r, const dti_follow *f)
{
    const dt_layout *x = r->in[f->i], *lead = r->in[f->lead];
    char a[DT_SHAPE_TEXT], b[DT_SHAPE_TEXT];
    bool sizes = x->shape.ndim == f->ndims;
    for (int d = 0; d < f->ndims && sizes; d++)
        sizes = f->dims[d] < lead->shape.ndim && x->shape.dim[d] == lead->shape.dim[f->dims[d]];
    DT_REQUIRE(sizes, DT_ERR_SHAPE, "%s: %s %s does not fit %s %s", r->name, f->what,
               dt_shape_print(x->shape, a, sizeof a), f->leader,
               dt_shape_print(lead->shape, b, sizeof b));
    DT_REQUIRE(x->grid == lead->grid, DT_ERR_ARG, "%s: %s lives on another mesh than %s", r->name,
               f->what, f->leader);
    for (int axis = 0; axis < x->grid->naxes; axis++)
        DT_TRY(follows_on(r, f, axis));
    for (int d = 0; d < f->ndims; d++)
        DT_REQUIRE(!memcmp(x->split[d], lead->split[f->dims[d]], x->nsplit[d]), DT_ERR_PLACEMENT,
                   "%s: on %s: dim %d of %s is split in another order than dim %d of %s", r->name,
                   x->grid->name[x->split[d][0]], d, f->what, f->dims[d], f->leader);
    return DT_OK;
}

static dt_status read_one(const dt_array *a, int64_t at, int32_t *value_out)
{
    dt_array flat = dt_array_reshape(a, DT_SHAPE(dt_array_count(a)));
    dt_array element = dt_array_rows(&flat, at, at + 1);
    const dt_status st = dt_array_read(&element, value_out, 1);
    dt_array_release(&element);
    dt_array_release(&flat);
    return st;
}

dt_status dti_ids_check(dt_op_call *c, int i, int64_t limit, int64_t ignore, const char *what)
{
    const dt_array *ids = &c->in[i];
    const int32_t *value = dt_array_data(ids);
    int64_t at = dt_array_is_meta(ids)
                     ? -1
                     : dti_nn(c)->find_bad_id(dt_array_count(ids), value, limit, ignore);
    if (at < 0)
        return DT_OK;
    int32_t bad = 0;
    DT_TRY(read_one(ids, at, &bad));
    dt_shape position = ids->shape;
    for (int d = ids->shape.ndim - 1; d >= 0; d--) {
        int64_t lo, hi;
        dt_op_range(c, i, d, &lo, &hi);
        position.dim[d] = lo + at % ids->shape.dim[d];
        at /= ids->shape.dim[d];
    }
    char text[DT_SHAPE_TEXT];
    return DT_ERROR(DT_ERR_ARG, "%s: %s at %s is %d, outside of the vocabulary [0, %lld)",
                    c->op->name, what, dt_shape_print(position, text, sizeof text), bad,
                    (long long)limit);
}

dt_status dti_positions_follow(const dt_rule *r, int i, int lead, int seq,
                               const char *what)
{
    if (!r->in[i])
        return DT_OK;
    dti_follow f = {
        .i = i, .lead = lead, .ndims = 1, .dims = {seq}, .what = what, .leader = "the tensor"};
    if (r->in[i]->shape.ndim == 2) {
        f.ndims = 2;
        f.dims[0] = 0;
        f.dims[1] = seq;
    }
    return dti_follows(r, &f);
}
