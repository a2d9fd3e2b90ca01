/* nn/call.c - what happens around a module's forward: path, scope, hooks, markers for backward.
 *
 *     enter path, open scope
 *       transform hooks (before), in order of adding
 *       begin marker; lifetime pre_forward
 *         forward
 *       lifetime post_forward; end marker watching the outputs
 *       transform hooks (after), in reverse
 *     close scope keeping the outputs, leave path
 *
 * In backward the walk meets the end marker first: pre_backward; then the begin marker:
 * post_backward.
 * Read next: nn/recompute.c. */
#include "nn/nn_internal.h"

/* ---- adding hooks ---- */

dt_status dt_module_add_transform(dt_module *m, dt_transform before, dt_transform after, void *arg,
                                  void (*free_arg)(void *arg))
{
    DT_TRY(dt_grow((void **)&m->transform, &m->transform_capacity, m->ntransforms + 1,
                   sizeof *m->transform));
    m->transform[m->ntransforms++] = (dti_transform){before, after, arg, free_arg};
    return DT_OK;
}

dt_status dt_module_add_lifetime(dt_module *m, const dt_lifetime *hooks)
{
    DT_TRY(dt_grow((void **)&m->lifetime, &m->lifetime_capacity, m->nlifetimes + 1,
                   sizeof *m->lifetime));
    m->lifetime[m->nlifetimes++] = *hooks;
    return DT_OK;
}

/* ---- markers ---- */

static dt_status backward_starts(dt_tape *t, void *arg, dt_walk walk)
{
    dt_module *m = arg;
    if (walk == DT_WALK_WEIGHT)
        return DT_OK;
    for (int64_t i = m->nlifetimes - 1; i >= 0; i--) {
        if (m->lifetime[i].pre_backward)
            DT_TRY(m->lifetime[i].pre_backward(m, t, m->lifetime[i].arg));
    }
    return DT_OK;
}

static dt_status backward_ends(dt_tape *t, void *arg, dt_walk walk)
{
    dt_module *m = arg;
    for (int64_t i = 0; i < m->nlifetimes; i++) {
        const dt_lifetime *h = &m->lifetime[i];
        if (walk != DT_WALK_WEIGHT && h->post_backward_input)
            DT_TRY(h->post_backward_input(m, t, h->arg));
        if (walk != DT_WALK_INPUT && h->post_backward_weight)
            DT_TRY(h->post_backward_weight(m, t, h->arg));
    }
    return DT_OK;
}

static bool has_lifetimes(const dt_module *m, const dt_tape *t)
{
    return m->nlifetimes > 0 && !dt_mesh_rehearses(dt_tape_mesh(t));
}

int dti_mark_begin(dt_module *m, dt_tape *t)
{
    return has_lifetimes(m, t) ? dt_tape_mark_begin(t, backward_ends, m) : -1;
}

void dti_mark_end(dt_module *m, dt_tape *t, int begin, const dt_values *out)
{
    if (has_lifetimes(m, t))
        dt_tape_mark_pair(t, begin, dt_tape_mark_end(t, backward_starts, m, out->n, out->value));
}

/* ---- the call ---- */

static dt_values failed_values(dt_tape *t)
{
    return (dt_values){.n = 1, .value = {dt_tape_failed(t)}};
}

dt_values dti_transformed(dt_module *m, dt_tape *t, dt_values v, bool after)
{
    for (int64_t k = 0; k < m->ntransforms; k++) {
        const dti_transform *h = &m->transform[after ? m->ntransforms - 1 - k : k];
        const dt_transform fn = after ? h->after : h->before;
        if (fn)
            v = fn(m, t, &v, h->arg);
    }
    return v;
}

static dt_status forward_hooks(dt_module *m, dt_tape *t, bool post)
{
    for (int64_t k = 0; k < m->nlifetimes; k++) {
        const dt_lifetime *h = &m->lifetime[post ? m->nlifetimes - 1 - k : k];
        dt_status (*const fn)(dt_module *, dt_tape *, bool, void *) =
            post ? h->post_forward : h->pre_forward;
        if (fn)
            DT_TRY(fn(m, t, dt_tape_origin(t) != t, h->arg));
    }
    return DT_OK;
}

static dt_values forward(dt_module *m, dt_tape *t, const dt_values *in)
{
    for (int64_t i = 0; i < m->nslots; i++) {
        const dt_param *p = m->slot[i].param;
        if (p->tensor)
            continue;
        (void)dt_tape_fail(t, DT_ERROR(DT_ERR_STATE, "%s has no memory: call dt_module_materialize",
                                       p->name ? p->name : m->slot[i].name));
        return failed_values(t);
    }
    return m->kind->forward(m, t, in);
}

static dt_values hooked_forward(dt_module *m, dt_tape *t, const dt_values *in, bool marks)
{
    if (!has_lifetimes(m, t))
        return forward(m, t, in);
    const int begin = marks ? dti_mark_begin(m, t) : -1;
    dt_status st = forward_hooks(m, t, false);
    dt_values out = st == DT_OK ? forward(m, t, in) : failed_values(t);
    if (st == DT_OK)
        st = forward_hooks(m, t, true);
    if (st != DT_OK) {
        (void)dt_tape_fail(t, st);
        return failed_values(t);
    }
    if (marks)
        dti_mark_end(m, t, begin, &out);
    return out;
}

dt_values dti_module_run(dt_module *m, dt_tape *t, const dt_values *in, bool marks)
{
    dt_scope_begin(t);
    const dt_values ready = dti_transformed(m, t, *in, false);
    dt_values out = hooked_forward(m, t, &ready, marks);
    out = dti_transformed(m, t, out, true);
    dt_scope_end(t, out.n, out.value);
    return out;
}

dt_values dt_module_call(dt_module *m, dt_tape *t, const dt_values *in)
{
    dt_tape_enter(t, dt_module_path(m));
    const dt_values out = m->recompute == DT_RECOMPUTE_NONE ? dti_module_run(m, t, in, true)
                                                            : dti_module_run_recomputed(m, t, in);
    dt_tape_leave(t);
    return out;
}

dt_tensor *dt_module_call1(dt_module *m, dt_tape *t, dt_tensor *x)
{
    const dt_values in = {.n = 1, .value = {x}};
    const dt_values out = dt_module_call(m, t, &in);
    if (out.n == 1 && out.value[0])
        return out.value[0];
    (void)dt_tape_fail(t, DT_ERROR(DT_ERR_STATE, "module '%s' gave %d tensors, one was asked for",
                                   dt_module_path(m), out.n));
    return dt_tape_failed(t);
}

dt_tensor *dt_module_sequence(dt_module *const *modules, int n, dt_tape *t, dt_tensor *x)
{
    const dt_tensor *const given = x;
    for (int i = 0; i < n; i++) {
        dt_tensor *y = dt_module_call1(modules[i], t, x);
        if (x != given && y != x) /* made by a module before; nobody else has it */
            dt_tensor_drop(x);
        x = y;
    }
    return x;
}
