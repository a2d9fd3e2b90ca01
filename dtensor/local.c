/* dtensor/local.c - leaving the global view and coming back: dt_to_local, dt_from_local,
 * dt_local_map.
 *
 * A rank's local part is a tensor of a mesh of that rank alone, so every op works on it, and
 * gradients find their way:
 *
 *     y = dt_from_local(t, f(dt_to_local(t, x, grad_layout)), layout)
 *
 * Errors that only the caller can avoid: R promises equal parts; a gradient declared R must be
 * equal on all ranks. */
#include "dtensor/ops/dt_ops.h"
#include "dtensor/tape_internal.h"

#include <string.h>

/* ---- to_local: attr is where the gradient that comes back lives ---- */

static dt_status to_local_backward(dt_tape *t, dti_node *n, uint32_t need)
{
    (void)t;
    (void)need;
    dt_tensor *x = n->in[0];
    const dt_layout *declared = n->attr;
    dt_layout dual = dt_layout_dual(x->layout);
    for (int axis = 0; axis < dual.grid->naxes; axis++) { /* P may stay where x is R */
        if (dt_layout_at(x->layout, axis).kind == DT_REPLICATE)
            dual.partial = (uint8_t)(dual.partial | (declared->partial & 1u << axis));
    }
    const dt_layout *dst = NULL;
    const dt_local dy = {declared, n->out[0]->grad.array};
    dt_local dx = {0};
    DT_TRY(dt_mesh_layout(dt_layout_mesh(x->layout), &dual, &dst));
    DT_TRY(dt_move(1, &dy, &dst, 0, n->path, DT_TAG_GRADIENT, &dx));
    DT_TRY(dti_deliver(x, &dx));
    return DT_OK;
}

static dt_status finish(dt_tape *t, const char *name, dt_tensor *x, const dt_layout *layout,
                        const void *attr, dti_backward backward, dt_tensor **out)
{
    dt_tensor *y = dti_tensor(t, layout);
    DT_REQUIRE(y, DT_ERR_NOMEM, "a tensor");
    y->local = dt_array_share(&x->local);
    if (dti_wants_grad(t, 1, &x, 0)) {
        y->requires_grad = true;
        y->weight_side = x->weight_side;
    }
    if (y->requires_grad && dti_records(t)) {
        dti_node *n = dti_append(t, name, 1, &x, 1, &y, backward);
        DT_REQUIRE(n, DT_ERR_NOMEM, "a node");
        n->attr = attr;
    }
    *out = y;
    return DT_OK;
}

static dt_status to_local(dt_tape *t, dt_tensor *x, const char *grad_text, dt_tensor **out)
{
    dt_mesh *mesh = dt_layout_mesh(x->layout), *alone = NULL;
    const dt_layout *grad = NULL, *layout = NULL;
    const dt_layout dual = dt_layout_dual(x->layout);
    if (grad_text)
        DT_TRY(dt_mesh_layout_text(mesh, x->layout->shape, grad_text, &grad));
    else
        DT_TRY(dt_mesh_layout(mesh, &dual, &grad));
    char a[DT_LAYOUT_TEXT], b[DT_LAYOUT_TEXT];
    DT_REQUIRE(dt_shape_equal(dt_mesh_local(grad, NULL), x->local.shape), DT_ERR_SHAPE,
               "gradients of %s cannot live at %s: other local shapes",
               dt_layout_print(x->layout, a, sizeof a), dt_layout_print(grad, b, sizeof b));
    DT_TRY(dt_mesh_slice(mesh, "", &alone));
    DT_TRY(dt_mesh_layout_text(alone, x->local.shape, "", &layout));
    DT_TRY(finish(t, "to_local", x, layout, grad, to_local_backward, out));
    return DT_OK;
}

dt_tensor *(dt_to_local)(dt_tape *t, dt_tensor *x, const char *grad_layout)
{
    dt_tensor *y = NULL;
    if (!dti_usable(t, "to_local", 1, &x))
        return dt_tape_failed(t);
    const dt_status st = to_local(t, x, grad_layout, &y);
    return st == DT_OK ? y : dti_fail(t, st, "to_local", 1, &x);
}

/* ---- from_local ---- */

static dt_status from_local_backward(dt_tape *t, dti_node *n, uint32_t need)
{
    (void)t;
    (void)need;
    dt_tensor *x = n->in[0];
    const dt_layout dual = dt_layout_dual(n->out[0]->layout);
    const dt_layout *dst = NULL;
    dt_local dx = {0};
    DT_TRY(dt_mesh_layout(dt_layout_mesh(n->out[0]->layout), &dual, &dst));
    char label[DTI_LABEL_TEXT];
    DT_TRY(dt_move(1, &n->out[0]->grad, &dst, 0, dti_label(n->path, n->where, true, label),
                   DT_TAG_GRADIENT, &dx));
    dx.layout = x->layout;
    DT_TRY(dti_deliver(x, &dx));
    return DT_OK;
}

static dt_status from_local(dt_tape *t, dt_tensor *x, const dt_layout *layout, dt_tensor **out)
{
    dt_tensor *checked = NULL; /* dt_from_array has the checks */
    DT_TRY(dt_from_array(layout, &x->local, &checked));
    dt_tensor_destroy(&checked);
    DT_TRY(finish(t, "from_local", x, layout, NULL, from_local_backward, out));
    return DT_OK;
}

dt_tensor *(dt_from_local)(dt_tape *t, dt_tensor *local, const dt_layout *layout)
{
    dt_tensor *y = NULL;
    if (!dti_usable(t, "from_local", 1, &local))
        return dt_tape_failed(t);
    const dt_status st = from_local(t, local, layout, &y);
    return st == DT_OK ? y : dti_fail(t, st, "from_local", 1, &local);
}

/* ---- local_map: an op whose layouts are declared instead of inferred ---- */

typedef struct region {
    dt_op op;
    dti_rule rule;
} region;

/* Outputs' gradients come home to the duals first; then it is the backward of an op. */
static dt_status local_map_backward(dt_tape *t, dti_node *n, uint32_t need)
{
    for (int j = 0; j < n->nout; j++) {
        dt_local *dy = &n->out[j]->grad;
        if (!dy->array.storage)
            continue;
        const dt_layout dual = dt_layout_dual(n->out[j]->layout);
        const dt_layout *dst = NULL;
        dt_local moved = {0};
        DT_TRY(dt_mesh_layout(dt_layout_mesh(n->out[j]->layout), &dual, &dst));
        DT_TRY(dt_move(1, dy, &dst, 0, n->path, DT_TAG_GRADIENT, &moved));
        dti_local_release(dy);
        *dy = moved;
    }
    return dti_op_backward(t, n, need);
}

static dt_status declare(const dt_local_map_options *o, int nin, dt_tensor *const *in, region *g)
{
    DT_REQUIRE(nin >= 1 && nin <= DT_OP_MAX_IN && o->nout >= 1 && o->nout <= DT_OP_MAX_OUT,
               DT_ERR_ARG, "%d inputs (1 to %d) and %d outputs (1 to %d)", nin, DT_OP_MAX_IN,
               o->nout, DT_OP_MAX_OUT);
    dt_mesh *mesh = NULL;
    for (int i = 0; i < nin; i++) {
        DT_REQUIRE(in[i], DT_ERR_ARG, "input %d of %d is missing", i, nin);
        mesh = dt_layout_mesh(in[i]->layout);
    }
    DT_REQUIRE(o->forward, DT_ERR_ARG, "a region needs a forward function");
    g->op = (dt_op){.name = o->name ? o->name : "local_map",
                    .nin = nin,
                    .nout = o->nout,
                    .any_dtype = true,
                    .attr_bytes = o->attr_bytes,
                    .forward = o->forward,
                    .backward = o->backward};
    g->rule.nout = o->nout;
    for (int i = 0; i < nin; i++) {
        const dt_shape shape = in[i]->layout->shape;
        const dt_layout *wanted = in[i]->layout;
        char a[DT_LAYOUT_TEXT], b[DT_LAYOUT_TEXT];
        if (o->in[i])
            DT_TRY(dt_mesh_layout_text(mesh, shape, o->in[i], &wanted));
        DT_REQUIRE(
            wanted == in[i]->layout, DT_ERR_PLACEMENT, "input %d is %s, the region declares %s", i,
            dt_layout_print(in[i]->layout, a, sizeof a), dt_layout_print(wanted, b, sizeof b));
        const dt_layout dual = dt_layout_dual(wanted);
        if (o->grad[i])
            DT_TRY(dt_mesh_layout_text(mesh, shape, o->grad[i], &g->rule.grad[i]));
        else
            DT_TRY(dt_mesh_layout(mesh, &dual, &g->rule.grad[i]));
        dt_layout shards = *g->rule.grad[i];
        shards.partial = 0;
        DT_REQUIRE(dt_layout_equal(&shards, &dual) &&
                       !(g->rule.grad[i]->partial & in[i]->layout->partial),
                   DT_ERR_PLACEMENT, "input %d is %s, its gradient cannot be %s", i,
                   dt_layout_print(in[i]->layout, a, sizeof a),
                   dt_layout_print(g->rule.grad[i], b, sizeof b));
        for (int k = 0; k < nin; k++)
            g->op.saves[i] |= DT_SAVE_IN(k);
        for (int j = 0; j < o->nout; j++)
            g->op.saves[i] |= DT_SAVE_OUT(j);
    }
    for (int j = 0; j < o->nout; j++) {
        DT_REQUIRE(o->out[j] && o->out[j]->grid == in[0]->layout->grid, DT_ERR_PLACEMENT,
                   "output %d needs a layout of the inputs' mesh", j);
        g->rule.out[j] = o->out[j];
    }
    return DT_OK;
}

void(dt_local_map)(dt_tape *t, const dt_local_map_options *o, int nin, dt_tensor *const *in,
                   dt_tensor **out)
{
    for (int j = 0; j < o->nout && j < DT_OP_MAX_OUT; j++)
        out[j] = dt_tape_failed(t);
    if (!dti_usable(t, "local_map", nin, in))
        return;
    region *g = dti_alloc(t, sizeof *g);
    const dt_status st = g ? declare(o, nin, in, g) : DT_ERROR(DT_ERR_NOMEM, "a region");
    if (st != DT_OK) {
        (void)dti_fail(t, st, "local_map", nin, in);
        return;
    }
    const int64_t before = t->nnodes;
    dti_run(t, &g->op, o->attr, &g->rule, nin, in, out);
    if (t->nnodes > before)
        t->node[t->nnodes - 1]->backward = local_map_backward;
}
