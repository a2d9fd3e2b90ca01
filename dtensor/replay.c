/* dtensor/replay.c - calls that backward runs again, so that their inner nodes need not stay.
 *
 *     first run    as ever, but no nodes; then one node "recompute" that saves the inputs, and of a
 *                  selective one the results that are dear to compute
 *     second run   when the walk reaches the node: on a tape of its own, from stand-ins for the
 *                  inputs, with nodes; what was kept is taken instead of computed
 *     its walk     from the gradients of the outputs to the stand-ins and the leaves
 *
 * Equal bits: a stand-in takes over what has arrived at its input so far and gives it back after
 * the walk, so sums are formed in the order of a plain walk; leaves stand for themselves.
 * Sources: Chen et al. 2016, "Training deep nets with sublinear memory cost"; Korthikanti et al.
 * 2022, "Reducing activation recomputation in large transformer models" (selective).
 * Read first: dtensor/backward.c. */
#include "dtensor/tape_internal.h"

#include <stdlib.h>
#include <string.h>

/* ---- kept results ---- */

dt_status dti_keep(dt_tape *t, const char *name, const dt_layout *layout, const dt_array *out,
                   const dt_array *extra)
{
    dti_kept *k = t->keep;
    if (!k)
        return DT_OK;
    DT_TRY(dt_grow((void **)&k->result, &k->capacity, k->n + 1, sizeof *k->result));
    dti_kept_result *r = &k->result[k->n++];
    *r = (dti_kept_result){.name = name, .layout = layout, .out = dt_array_share(out)};
    for (int e = 0; extra && e < DT_OP_MAX_EXTRA; e++)
        r->extra[e] = extra[e].storage ? dt_array_share(&extra[e]) : (dt_array){0};
    return DT_OK;
}

dt_status dti_take(dt_tape *t, const char *name, const dt_layout *layout,
                   dti_kept_result **result_out)
{
    dti_kept *k = t->take;
    if (!k)
        return DT_OK;
    dti_kept_result *r = k->taken < k->n ? &k->result[k->taken] : NULL;
    char now[DT_LAYOUT_TEXT], before[DT_LAYOUT_TEXT] = "";
    DT_REQUIRE(r && strcmp(r->name, name) == 0 && r->layout == layout, DT_ERR_STATE,
               "recompute: the second run has %s %s where the first had %s %s; a module must do "
               "the same each time",
               name, dt_layout_print(layout, now, sizeof now), r ? r->name : "nothing",
               r ? dt_layout_print(r->layout, before, sizeof before) : before);
    k->taken++;
    *result_out = r;
    return DT_OK;
}

void dti_kept_release(dti_kept *k)
{
    for (int64_t i = 0; i < k->n; i++) {
        dt_array_release(&k->result[i].out);
        for (int e = 0; e < DT_OP_MAX_EXTRA; e++)
            dt_array_release(&k->result[i].extra[e]);
    }
    free(k->result);
    *k = (dti_kept){0};
}

void dti_again_release(dti_again *a)
{
    dti_kept_release(&a->kept);
    dt_tape_destroy(&a->tape);
}

/* ---- the first run ---- */

/* Of the results: those made in this run (after the first `before` tensors of the tape) that want a
 * gradient; others already are what they are. Returns how many. */
static int made_here(const dt_tape *t, int64_t before, int n, dt_tensor *const *out,
                     dt_tensor **mine)
{
    int count = 0;
    for (int j = 0; j < n; j++) {
        bool made = false;
        for (int64_t i = before; i < t->ntensors && !made; i++)
            made = t->tensor[i] == out[j];
        mine[j] = made && out[j]->requires_grad ? out[j] : NULL;
        count += mine[j] != NULL;
    }
    return count;
}

static dt_status append(dt_tape *t, dti_again *a, int nin, dt_tensor *const *in, int nout,
                        dt_tensor *const *out)
{
    dt_array *saved = dti_alloc(t, sizeof *saved * (size_t)(nin + 1));
    a->in = dti_alloc(t, sizeof(dt_tensor *) * (size_t)(nin + 1));
    DT_REQUIRE(saved && a->in, DT_ERR_NOMEM, "a node");
    dti_node *n = dti_append(t, "recompute", nin, in, nout, out, NULL);
    DT_REQUIRE(n, DT_ERR_NOMEM, "a node");
    n->saved_in = saved;
    n->again = a;
    for (int i = 0; i < nin; i++) {
        if (in[i] && in[i]->local.storage)
            saved[i] = dt_array_share(&in[i]->local);
    }
    return DT_OK;
}

int dt_tape_recompute(dt_tape *t, const dt_recomputed *call, int nin, dt_tensor *const *in,
                      dt_tensor **out)
{
    if (!dti_records(t))
        return call->run(t, call->arg, nin, in, out);
    dti_again *a = dti_alloc(t, sizeof *a);
    dt_tensor *mine[DT_RECOMPUTED_MAX_OUT];
    if (!a) {
        out[0] = dti_fail(t, DT_ERROR(DT_ERR_NOMEM, "a recomputed call"), "recompute", nin, in);
        return 1;
    }
    a->call = *call;
    a->drawn = t->drawn;
    const int64_t before = t->ntensors;
    t->unrecorded = true;
    t->keep = call->selective ? &a->kept : NULL;
    const int n = call->run(t, call->arg, nin, in, out);
    t->unrecorded = false;
    t->keep = NULL;
    dt_status st = t->status;
    const bool wanted = st == DT_OK && made_here(t, before, n, out, mine) > 0;
    if (wanted)
        st = append(t, a, nin, in, n, mine);
    if (!wanted || st != DT_OK)
        dti_kept_release(&a->kept);
    if (wanted && st != DT_OK)
        out[0] = dti_fail(t, st, "recompute", nin, in);
    return n;
}

/* ---- the second run ---- */

dt_tape *dt_tape_origin(dt_tape *t)
{
    while (t->parent)
        t = t->parent;
    return t;
}

/* What takes the place of input i: a leaf itself; else a tensor of the second tape with its bytes,
 * one for an input that is given several times. */
static dt_status stand_in(const dti_node *n, int i, dt_tape *second, dt_tensor **out)
{
    dt_tensor *x = n->in[i];
    *out = x;
    if (!x || !x->tape)
        return DT_OK;
    for (int k = 0; k < i; k++) {
        if (n->in[k] == x) {
            *out = n->again->in[k];
            return DT_OK;
        }
    }
    dt_tensor *y = dti_tensor(second, x->layout);
    DT_REQUIRE(y, DT_ERR_NOMEM, "a tensor");
    y->local = n->saved_in[i];
    n->saved_in[i] = (dt_array){0};
    y->dropped = !y->local.storage;
    y->local.dtype = x->local.dtype;
    y->requires_grad = x->requires_grad;
    y->weight_side = x->weight_side;
    *out = y;
    return DT_OK;
}

static dt_status same_results(const dti_node *n, int nout)
{
    const dti_again *a = n->again;
    DT_REQUIRE(nout == n->nout && a->kept.taken == a->kept.n, DT_ERR_STATE,
               "recompute: the second run gives %d results and takes %lld of those kept, the first "
               "gave %d and kept %lld; a module must do the same each time",
               nout, (long long)a->kept.taken, n->nout, (long long)a->kept.n);
    for (int j = 0; j < nout; j++) {
        const dt_tensor *x = n->out[j], *y = a->out[j];
        char before[DT_LAYOUT_TEXT], now[DT_LAYOUT_TEXT];
        DT_REQUIRE(!x || (y && x->layout == y->layout && x->local.dtype == y->local.dtype &&
                          x->requires_grad == y->requires_grad),
                   DT_ERR_STATE,
                   "recompute: result %d was %s, is %s in the second run (or has another type, or "
                   "wants no gradient); a module must do the same each time",
                   j, dt_layout_print(x->layout, before, sizeof before),
                   y ? dt_layout_print(y->layout, now, sizeof now) : "missing");
    }
    return DT_OK;
}

static dt_status run_again(dt_tape *t, dti_node *n)
{
    dti_again *a = n->again;
    dt_trace *trace = dt_world_trace(dt_mesh_world(t->mesh));
    DT_TRY(dt_tape_create(t->mesh, &t->options, &a->tape));
    dt_tape *second = a->tape;
    second->parent = t;
    second->take = a->call.selective ? &a->kept : NULL;
    for (int i = 0; i < n->nin; i++)
        DT_TRY(stand_in(n, i, second, &a->in[i]));
    dt_tape_enter(second, n->path);
    second->drawn = a->drawn;
    dt_trace_record(trace, "recompute", n->path, DT_TRACE_BEGIN, 0, 0);
    const int nout = a->call.run(second, a->call.arg, n->nin, a->in, a->out);
    dt_trace_record(trace, "recompute", n->path, DT_TRACE_END, 0, 0);
    second->take = NULL;
    DT_TRY(dt_tape_status(second));
    DT_TRY(same_results(n, nout));
    dti_kept_release(&a->kept);
    for (int64_t i = 0; i < second->ntensors; i++)
        dt_tensor_drop(second->tensor[i]); /* what the walk needs is saved in nodes */
    return DT_OK;
}

/* ---- the walk ---- */

static void hand_over(dt_tensor *from, dt_tensor *to)
{
    if (!from->grad.array.storage)
        return;
    to->grad = from->grad;
    from->grad = (dt_local){0};
}

static dt_status walk_again(dti_node *n, dt_walk walk)
{
    dti_again *a = n->again;
    for (int j = 0; j < n->nout; j++) {
        if (n->out[j])
            hand_over(n->out[j], a->out[j]);
    }
    for (int i = 0; i < n->nin; i++) {
        if (a->in[i] != n->in[i])
            hand_over(n->in[i], a->in[i]);
    }
    const dt_status st = dti_walk(a->tape, walk);
    for (int i = 0; i < n->nin; i++) {
        if (a->in[i] != n->in[i])
            hand_over(a->in[i], n->in[i]);
    }
    return st;
}

dt_status dti_visit_again(dt_tape *t, dti_node *n, dt_walk walk)
{
    dti_again *a = n->again;
    if (!a->tape && dti_has_gradient(n)) {
        DT_TRY(run_again(t, n));
        a->tape->walked = true;
    }
    if (a->tape)
        DT_TRY(walk_again(n, walk));
    if (walk == DT_WALK_INPUT)
        return DT_OK; /* the rest may be wanted by the walk of weights */
    for (int i = 0; i < n->nin; i++)
        dt_array_release(&n->saved_in[i]);
    dti_again_release(a);
    return DT_OK;
}
