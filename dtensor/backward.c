/* dtensor/backward.c - walks the tape from its end and carries gradients to the leaves.
 *
 * One walk does it all, or two share it: the first (INPUT) computes gradients of what is not a
 * parameter and leaves output
 * gradients standing at nodes whose parameters still need theirs; the second (WEIGHT) does those.
 * Both call the same op
 * functions on the same arrays in the same order, hence equal bits. */
#include "dtensor/tape_internal.h"

#include <stdio.h>

/* Inputs that want a gradient: of parameters (and what was made from them), or of the rest. */
static uint32_t wanted(const dti_node *n, bool weights)
{
    uint32_t mask = 0;
    for (int i = 0; i < n->nin; i++) {
        const dt_tensor *x = n->in[i];
        const bool never = n->op && (n->op->no_grad_in >> i & 1);
        if (x && x->requires_grad && !never && x->weight_side == weights)
            mask |= 1u << i;
    }
    return mask;
}

/* ---- the backward of an op ---- */

typedef struct back_call {
    dti_call call; /* first: the functions for ops cast back */
    const dt_layout *din_layout[DT_OP_MAX_IN];
} back_call;

/* On the device of this moment: in a rehearsal a parameter's empty storage stays on its own. */
static dt_status widened(const back_call *k, const dt_op *op, const dt_array *a, dt_array *out)
{
    if (!a->storage || !dti_widens(op, k->call.mesh, a->dtype)) {
        *out = a->storage ? dt_array_share(a) : (dt_array){0};
        return DT_OK;
    }
    DT_TRY(dt_array_create(dt_mesh_heap(k->call.mesh), DT_F32, a->shape, DT_TAG_WORKSPACE, out));
    dt_array_cast(out, a);
    return DT_OK;
}

/* The axes on which a layout is R. */
static uint8_t replicated(const dt_layout *layout)
{
    uint8_t axes = 0;
    for (int a = 0; a < layout->grid->naxes; a++)
        axes |= (uint8_t)((dt_layout_at(layout, a).kind == DT_REPLICATE) << a);
    return axes;
}

/* All outputs' gradients in one placement where the outputs are R: P wherever one of them is. */
static dt_status unify_outputs(dti_node *n, const dt_layout **dy)
{
    uint8_t partial = 0;
    for (int j = 0; j < n->nout; j++)
        partial |= n->out[j]->grad.array.storage ? n->out[j]->grad.layout->partial : 0;
    for (int j = 0; j < n->nout; j++) {
        dt_local *g = &n->out[j]->grad;
        if (!g->array.storage)
            continue;
        char a[DT_LAYOUT_TEXT], b[DT_LAYOUT_TEXT];
        DT_REQUIRE(!(g->layout->partial & n->out[j]->layout->partial), DT_ERR_PLACEMENT,
                   "%s: output %s has gradient %s; the dual of P is R", n->name,
                   dt_layout_print(n->out[j]->layout, a, sizeof a),
                   dt_layout_print(g->layout, b, sizeof b));
        DT_TRY(dti_make_partial(g, partial & replicated(n->out[j]->layout), DT_TAG_GRADIENT));
        *dy = g->layout;
    }
    return DT_OK;
}

static dt_status load(back_call *k, dti_node *n, const dt_layout *dy)
{
    dt_op_call *c = &k->call.c;
    for (int i = 0; i < n->nin; i++) {
        c->in_layout[i] = n->in[i] ? n->in[i]->layout : NULL;
        if (n->saved_in) {
            dt_array *saved = NULL;
            DT_TRY(dti_saved_input(n, i, c->need, &saved));
            DT_TRY(widened(k, n->op, saved, &c->in[i]));
        }
        if (!(c->need >> i & 1))
            continue;
        dt_layout arises = n->rule->grad[i] ? *n->rule->grad[i]
                                            : dt_rule_grad(n->in[i]->layout, n->rule->zeroed[i],
                                                           n->rule->out[0], dy);
        arises.partial |= n->rule->summed[i];
        DT_TRY(dt_mesh_layout(k->call.mesh, &arises, &k->din_layout[i]));
        const dt_dtype dtype = n->in[i]->local.dtype;
        const bool wide = n->in[i]->wide_grad && (n->op->wide_grad >> i & 1);
        DT_TRY(dt_array_create(dt_mesh_heap(k->call.mesh),
                               wide || dti_widens(n->op, k->call.mesh, dtype) ? DT_F32 : dtype,
                               dt_mesh_local(k->din_layout[i], NULL), DT_TAG_GRADIENT, &c->din[i]));
    }
    for (int j = 0; j < n->nout; j++) {
        c->out_layout[j] = n->rule->out[j];
        c->dout_layout[j] = n->out[j]->grad.layout;
        if (n->saved_out)
            DT_TRY(widened(k, n->op, &n->saved_out[j], &c->out[j]));
        DT_TRY(widened(k, n->op, &n->out[j]->grad.array, &c->dout[j]));
    }
    /* The last use takes them over, so that a gradient may be one of them. */
    const bool last = c->need == (wanted(n, false) | wanted(n, true));
    for (int e = 0; e < DT_OP_MAX_EXTRA; e++) {
        c->extra[e] = n->extra[e].storage ? dt_array_share(&n->extra[e]) : (dt_array){0};
        if (last)
            dti_release(&n->extra[e]);
    }
    return DT_OK;
}

static dt_status deliver_all(back_call *k, dti_node *n)
{
    for (int i = 0; i < n->nin; i++) {
        if (!(k->call.c.need >> i & 1))
            continue;
        dt_array *din = &k->call.c.din[i];
        if (!n->in[i]->wide_grad)
            DT_TRY(dti_recast(din, n->in[i]->local.dtype, DT_TAG_GRADIENT));
        dt_local g = {k->din_layout[i], *din};
        *din = (dt_array){0};
        DT_TRY(dti_deliver(n->in[i], &g));
    }
    return DT_OK;
}

static dt_status op_backward(back_call *k, dti_node *n)
{
    const dt_layout *dy = NULL;
    DT_TRY(unify_outputs(n, &dy));
    DT_TRY(load(k, n, dy));
    dt_world *world = dt_mesh_world(k->call.mesh);
    dt_trace *trace = dt_world_trace(world);
    if (trace)
        dt_trace_record(trace, "grad", n->name, DT_TRACE_BEGIN, 0, 0);
    if (dti_is_called(n->op, k->call.mesh)) {
        DT_TRY(n->op->backward(&k->call.c));
        DT_TRY(dt_heap_status(dt_mesh_heap(k->call.mesh)));
        dti_tally(&k->call.c, true);
    }
    if (trace)
        dt_trace_record(trace, "grad", n->name, DT_TRACE_END, 0, 0);
    DT_TRY(deliver_all(k, n));
    return DT_OK;
}

dt_status dti_op_backward(dt_tape *t, dti_node *n, uint32_t need)
{
    back_call k;
    dti_call_begin(&k.call, t, n->op, n->attr, n->nin, n->nout);
    k.call.c.need = need;
    k.call.c.dtype = n->out[0]->local.dtype;
    k.call.c.path = n->path;
    k.call.c.where = n->where;
    k.call.mesh = dt_layout_mesh(n->rule->out[0]);
    const dt_status st = op_backward(&k, n);
    dti_call_release(&k.call);
    if (st != DT_OK)
        return dt_error_push(st, __FILE__, __LINE__, n->name);
    return DT_OK;
}

/* ---- the walk ---- */

/* Keep of a node's saved arrays only what the gradients in `need` use. */
static void keep_saved(dti_node *n, uint32_t need)
{
    uint32_t mask = 0;
    for (int i = 0; n->op && i < n->nin; i++)
        mask |= need >> i & 1 ? n->op->saves[i] : 0;
    for (int i = 0; n->saved_in && i < n->nin; i++) {
        if (!(mask & DT_SAVE_IN(i)))
            dti_release(&n->saved_in[i]);
    }
    for (int j = 0; n->saved_out && j < n->nout; j++) {
        if (!(mask & DT_SAVE_OUT(j)))
            dti_release(&n->saved_out[j]);
    }
    for (int e = 0; !need && e < DT_OP_MAX_EXTRA; e++)
        dti_release(&n->extra[e]);
}

bool dti_has_gradient(const dti_node *n)
{
    for (int j = 0; j < n->nout; j++) {
        if (n->out[j] && n->out[j]->grad.array.storage)
            return true;
    }
    return false;
}

static dt_status visit_marker(dt_tape *t, dti_node *n, dt_walk walk)
{
    if (n->pair >= 0)
        n->reached = t->node[n->pair]->reached;
    else if (dti_has_gradient(n))
        n->reached = true;
    if (n->reached && n->marker)
        DT_TRY(n->marker(t, n->marker_arg, walk));
    return DT_OK;
}

static dt_status visit(dt_tape *t, dti_node *n, dt_walk walk)
{
    if (n->is_marker)
        return visit_marker(t, n, walk);
    if (n->again)
        return dti_visit_again(t, n, walk);
    if (!dti_has_gradient(n)) {
        if (walk != DT_WALK_INPUT)
            keep_saved(n, 0);
        return DT_OK;
    }
    const uint32_t inputs = wanted(n, false), weights = wanted(n, true);
    const uint32_t need = walk == DT_WALK_ALL     ? inputs | weights
                          : walk == DT_WALK_INPUT ? inputs
                                                  : weights;
    if (need)
        DT_TRY(n->backward(t, n, need));
    const uint32_t later = walk == DT_WALK_INPUT ? weights : 0;
    if (n->op || walk != DT_WALK_INPUT) /* the other walk may gather again */
        keep_saved(n, later);
    for (int j = 0; j < n->nout && !later; j++)
        dti_local_release(&n->out[j]->grad);
    return DT_OK;
}

dt_status dti_walk(dt_tape *t, dt_walk walk)
{
    for (int64_t i = t->nnodes - 1; i >= 0; i--) {
        t->walk_at = i;
        const dti_node *n = t->node[i];
        const dt_status st = visit(t, t->node[i], walk);
        if (st == DT_OK)
            continue;
        char what[100];
        (void)snprintf(what, sizeof what, "gradients of op %s", n->name);
        return dti_fail_at(t, st, n->where ? n->where : "", n->path, what);
    }
    return DT_OK;
}

/* A gradient must live where its output's may: the same shards, and P only where the output is R.
 * */
static dt_status check_grad(const dt_tensor *y, const dt_local *g, int i)
{
    const dt_layout dual = dt_layout_dual(y->layout);
    dt_layout shards = *g->layout;
    shards.partial = 0;
    char a[DT_LAYOUT_TEXT], b[DT_LAYOUT_TEXT];
    DT_REQUIRE(dt_layout_equal(&shards, &dual) && !(g->layout->partial & y->layout->partial),
               DT_ERR_PLACEMENT, "output %d is %s, its gradient cannot be %s", i,
               dt_layout_print(y->layout, a, sizeof a), dt_layout_print(g->layout, b, sizeof b));
    DT_REQUIRE(dt_shape_equal(g->array.shape, dt_mesh_local(g->layout, NULL)), DT_ERR_SHAPE,
               "the gradient of output %d has local shape %s, which is not this rank's part of %s",
               i, dt_shape_print(g->array.shape, a, sizeof a),
               dt_layout_print(g->layout, b, sizeof b));
    DT_REQUIRE(g->array.dtype == y->local.dtype, DT_ERR_ARG, "output %d is %s, its gradient %s", i,
               dt_dtype_name(y->local.dtype), dt_dtype_name(g->array.dtype));
    return DT_OK;
}

static dt_status seed(dt_tape *t, int n, dt_tensor *const *outputs, const dt_local *grads)
{
    DT_TRY(dt_tape_status(t));
    DT_REQUIRE(!t->walked, DT_ERR_STATE, "this tape has been walked already; record again");
    DT_REQUIRE(!t->options.no_grad, DT_ERR_STATE, "a tape made with no_grad has no gradients");
    t->walked = true;
    for (int i = 0; i < n; i++) {
        if (!grads[i].array.storage)
            continue;
        DT_TRY(dti_tensor_status(outputs[i], "gradients of"));
        DT_REQUIRE(outputs[i]->tape == t || !outputs[i]->tape, DT_ERR_STATE,
                   "output %d is on another tape", i);
        DT_REQUIRE(outputs[i]->requires_grad, DT_ERR_STATE,
                   "output %d depends on nothing that wants a gradient", i);
        DT_TRY(check_grad(outputs[i], &grads[i], i));
        dt_local g = {grads[i].layout, dt_array_share(&grads[i].array)};
        DT_TRY(dti_deliver(outputs[i], &g));
    }
    return DT_OK;
}

dt_status dt_backward_from(dt_tape *t, int n, dt_tensor *const *outputs, const dt_local *grads)
{
    DT_TRY(seed(t, n, outputs, grads));
    DT_TRY(dti_walk(t, DT_WALK_ALL));
    return DT_OK;
}

dt_status dt_backward_input(dt_tape *t, int n, dt_tensor *const *outputs, const dt_local *grads)
{
    DT_TRY(seed(t, n, outputs, grads));
    t->input_walked = true;
    DT_TRY(dti_walk(t, DT_WALK_INPUT));
    return DT_OK;
}

dt_status dt_backward_weight(dt_tape *t)
{
    DT_TRY(dt_tape_status(t));
    DT_REQUIRE(t->input_walked, DT_ERR_STATE, "dt_backward_weight comes after dt_backward_input");
    t->input_walked = false;
    DT_TRY(dti_walk(t, DT_WALK_WEIGHT));
    return DT_OK;
}

dt_status dt_backward(dt_tape *t, dt_tensor *loss)
{
    DT_TRY(dt_tape_status(t));
    DT_TRY(dti_tensor_status(loss, "backward from"));
    DT_REQUIRE(dt_shape_count(loss->layout->shape) == 1, DT_ERR_SHAPE,
               "backward starts at a loss of one element");
    dt_mesh *mesh = dt_layout_mesh(loss->layout);
    const dt_layout dual = dt_layout_dual(loss->layout);
    dt_local one = {0};
    DT_TRY(dt_mesh_layout(mesh, &dual, &one.layout));
    DT_TRY(dt_array_create(dt_mesh_heap(mesh), loss->local.dtype, loss->local.shape,
                           DT_TAG_GRADIENT, &one.array));
    dt_array_fill(&one.array, 1.0);
    const dt_status st = dt_backward_from(t, 1, &loss, &one);
    dti_local_release(&one);
    if (st != DT_OK)
        return dt_error_push(st, __FILE__, __LINE__, __func__);
    return DT_OK;
}

/* ---- markers ---- */

static int mark(dt_tape *t, const char *name, dt_marker fn, void *arg, int n,
                dt_tensor *const *watched)
{
    if (!dti_records(t) || t->status != DT_OK)
        return -1;
    dti_node *node = dti_append(t, name, 0, NULL, n, watched, NULL);
    if (!node)
        return -1;
    node->is_marker = true;
    node->marker = fn;
    node->marker_arg = arg;
    return (int)(t->nnodes - 1);
}

int dt_tape_mark_end(dt_tape *t, dt_marker fn, void *arg, int n, dt_tensor *const *watched)
{
    return mark(t, "end", fn, arg, n, watched);
}

int dt_tape_mark_begin(dt_tape *t, dt_marker fn, void *arg)
{
    return mark(t, "begin", fn, arg, 0, NULL);
}

bool dt_tape_marker_ahead(const dt_tape *t, const void *arg)
{
    for (; t; t = t->parent) {
        for (int64_t i = t->walk_at - 1; i >= 0; i--) {
            const dti_node *n = t->node[i];
            if (n->is_marker && n->pair >= 0 && n->marker_arg == arg)
                return true;
        }
    }
    return false;
}

void dt_tape_mark_pair(dt_tape *t, int begin, int end)
{
    if (begin >= 0 && end >= 0)
        t->node[begin]->pair = end;
}
