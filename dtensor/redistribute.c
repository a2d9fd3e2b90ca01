/* dtensor/redistribute.c - the one op that moves data: from layout to layout, as a node of the
 * tape.
 *
 *   forward    y = x, placed as asked
 *   backward   dx = dy, placed as the dual of x's layout on the axes that changed; P on other axes
 * passes through.
 *              Equal layouts: every P axis of dy is reduced. That is f of Megatron-LM (Shoeybi et
 * al. 2019); its g is
 *              P -> R forward and nothing backward.
 * Read first: dtensor/move.c. */
#include "dtensor/ops/dt_ops.h"
#include "dtensor/tape_internal.h"

#include <stdio.h>

const char *dti_label(const char *path, const char *where, bool backward, char buf[DTI_LABEL_TEXT])
{
    (void)snprintf(buf, DTI_LABEL_TEXT, "%s%s%s%s", path,
                   !*where ? ""
                   : *path ? " at "
                           : "at ",
                   where, backward ? ", backward" : "");
    return buf;
}

static dt_status backward(dt_tape *t, dti_node *n, uint32_t need)
{
    (void)t;
    (void)need;
    dt_tensor *x = n->in[0];
    dt_local *dy = &n->out[0]->grad;
    const dt_layout *src = x->layout, *out = n->out[0]->layout;
    uint8_t changed = 0;
    for (int axis = 0; axis < src->grid->naxes; axis++) {
        const dt_placement a = dt_layout_at(src, axis), b = dt_layout_at(out, axis);
        if (src == out || a.kind != b.kind || a.dim != b.dim)
            changed = (uint8_t)(changed | 1u << axis);
    }
    dt_layout dual = dt_layout_dual(src);
    dual.partial = (uint8_t)(dy->layout->partial & ~changed);
    const dt_layout *dst = NULL;
    dt_local dx = {0};
    DT_TRY(dt_mesh_layout(dt_layout_mesh(src), &dual, &dst));
    char label[DTI_LABEL_TEXT];
    DT_TRY(
        dt_move(1, dy, &dst, 0, dti_label(n->path, n->where, true, label), DT_TAG_GRADIENT, &dx));
    DT_TRY(dti_deliver(x, &dx));
    return DT_OK;
}

/* Does a selective recompute keep the result? Yes where it communicates and gives no more bytes
 * than it took: reductions
 * and exchanges of shards. Gathers run again: what they give is what sharding saves. */
static bool is_kept(const dt_layout *src, const dt_layout *dst)
{
    bool communicates = false, gathers = false;
    for (int axis = 0; axis < src->grid->naxes; axis++) {
        const dt_placement a = dt_layout_at(src, axis), b = dt_layout_at(dst, axis);
        gathers = gathers || (a.kind == DT_SHARD && b.kind == DT_REPLICATE);
        communicates = communicates || (a.kind == DT_PARTIAL && b.kind != DT_PARTIAL) ||
                       (a.kind == DT_SHARD && b.kind == DT_SHARD && a.dim != b.dim);
    }
    return communicates && !gathers;
}

/* The move itself, or in a selective recompute its result of the first run. */
static dt_status move_or_take(dt_tape *t, dt_tensor *x, const dt_layout *layout, dt_local *moved)
{
    const bool kept = is_kept(x->layout, layout);
    dti_kept_result *before = NULL;
    if (kept)
        DT_TRY(dti_take(t, "redistribute", layout, &before));
    if (before) {
        *moved = (dt_local){layout, before->out};
        before->out = (dt_array){0};
    } else {
        const dt_local src = {x->layout, x->local};
        char label[DTI_LABEL_TEXT] = "";
        if (src.layout != layout)
            (void)dti_label(dt_tape_path(t), t->where, false, label);
        DT_TRY(dt_move(1, &src, &layout, 0, label, DT_TAG_ACTIVATION, moved));
    }
    if (kept)
        DT_TRY(dti_keep(t, "redistribute", layout, &moved->array, NULL));
    return DT_OK;
}

static dt_status redistribute(dt_tape *t, dt_tensor *x, const dt_layout *layout, dt_tensor **out)
{
    DT_REQUIRE(layout->grid == x->layout->grid, DT_ERR_PLACEMENT, "the layout is of another mesh");
    dt_tensor *y = dti_tensor(t, layout);
    DT_REQUIRE(y, DT_ERR_NOMEM, "a tensor");
    dt_world *world = dt_mesh_world(dt_layout_mesh(layout));
    if (dt_world_explain(world))
        dti_explain(world,
                    &(dt_op_call){.nin = 1,
                                  .nout = 1,
                                  .in_layout = {x->layout},
                                  .out_layout = {layout},
                                  .path = dt_tape_path(t),
                                  .where = t->where},
                    "redistribute");
    dt_local moved = {0};
    const dt_status st = move_or_take(t, x, layout, &moved);
    y->local = moved.array;
    if (st != DT_OK)
        return dt_error_push(st, __FILE__, __LINE__, __func__);
    if (dti_wants_grad(t, 1, &x, 0)) {
        y->requires_grad = true;
        y->weight_side = x->weight_side;
    }
    if (y->requires_grad && dti_records(t)) {
        DT_REQUIRE(dti_append(t, "redistribute", 1, &x, 1, &y, backward), DT_ERR_NOMEM, "a node");
    }
    *out = y;
    return DT_OK;
}

dt_tensor *(dt_redistribute_to)(dt_tape *t, dt_tensor *x, const dt_layout *layout)
{
    dt_tensor *y = NULL;
    if (!dti_usable(t, "redistribute", 1, &x))
        return dt_tape_failed(t);
    const dt_status st = redistribute(t, x, layout, &y);
    return st == DT_OK ? y : dti_fail(t, st, "redistribute", 1, &x);
}

dt_tensor *(dt_redistribute)(dt_tape *t, dt_tensor *x, const char *layout)
{
    if (!dti_usable(t, "redistribute", 1, &x))
        return dt_tape_failed(t);
    const dt_layout *to = NULL;
    const dt_status st =
        dt_mesh_layout_text(dt_layout_mesh(x->layout), x->layout->shape, layout, &to);
    return st == DT_OK ? (dt_redistribute_to)(t, x, to) : dti_fail(t, st, "redistribute", 1, &x);
}

dt_tensor *(dt_full)(dt_tape *t, dt_tensor *x)
{
    return (dt_redistribute)(t, x, "");
}
