/* fsdp/hooks.c - the order of events.
 *
 *   forward    gather i (unless it was gathered ahead), wait i, gather i+1 ahead, run, free i
 *   backward   gather i, wait i, gather i-1 ahead, run, begin to reduce i (after finishing the reduction before), free i
 *   end        the root's backward is the last: finish the last reduction, free what was gathered ahead for nothing
 *
 * "i+1" is the group that ran after i in the first forward pass; nothing depends on how far the host runs ahead. Live at once:
 * the group that runs, those gathered ahead, and the input of one reduction. On tapes without gradients every group is freed
 * after it ran, so no stale copy outlives an optimizer step; dt_module_reduce_grads frees the others. */
#include "fsdp/fsdp_internal.h"

#include <stdio.h>
#include <stdlib.h>

void dti_fsdp_event(const dti_group *g, const char *what)
{
    dt_trace *trace = dt_world_trace(dt_mesh_world(g->mesh));
    if (!trace)
        return;
    char name[64];
    const char *path = dt_module_path(g->modules[0]);
    (void)snprintf(name, sizeof name, "%s %s", what, *path ? path : "root");
    dt_trace_record(trace, "fsdp", name, DT_TRACE_MOMENT, 0, 0);
}

/* ---- order and prefetch ---- */

static int index_of(const dti_group *g)
{
    for (int64_t i = 0; i < g->fsdp->ngroups; i++) {
        if (g->fsdp->group[i] == g)
            return (int)i;
    }
    return -1;
}

/* Position of the next (step 1) or last (step -1) pass of a group in the order, from `from` on; -1 if there is none. */
static int64_t find_pass(const dti_fsdp *f, int64_t from, int step, int index)
{
    for (int64_t i = from; i >= 0 && i < f->norder; i += step) {
        if (f->order[i] == index)
            return i;
    }
    return -1;
}

static int depth(const dti_group *g)
{
    return g->options.prefetch ? (g->options.prefetch > 0 ? g->options.prefetch : 0) : 1;
}

/* Begin to gather the groups that come after position `at` in the direction `step`. */
static dt_status gather_ahead(dti_group *g, int64_t at, int step)
{
    dti_fsdp *f = g->fsdp;
    int left = depth(g);
    for (int64_t i = at + step; left > 0 && i >= 0 && i < f->norder; i += step, left--)
        DT_TRY(dti_fsdp_unshard_begin(f->group[f->order[i]]));
    return DT_OK;
}

static dt_status record_pass(dti_group *g)
{
    dti_fsdp *f = g->fsdp;
    DT_TRY(dt_grow((void **)&f->order, &f->order_capacity, f->norder + 1, sizeof *f->order));
    f->order[f->norder++] = index_of(g);
    return DT_OK;
}

/* ---- forward ---- */

static dt_status pre_forward(dt_module *m, dt_tape *t, bool recompute, void *arg)
{
    dti_group *g = arg;
    dti_fsdp *f = g->fsdp;
    (void)t;
    DT_TRY(dti_fsdp_unshard(g));
    if (recompute || m != g->modules[0])
        return DT_OK;
    if (!f->order_known) {
        DT_TRY(record_pass(g));
    } else {
        const int index = index_of(g);
        int64_t at = find_pass(f, g->is_root ? 0 : f->at, 1, index);
        if (at < 0)
            at = find_pass(f, 0, 1, index);
        if (at >= 0) {
            f->at = at + 1;
            DT_TRY(gather_ahead(g, at, 1));
        }
    }
    dti_fsdp_event(g, "forward");
    return DT_OK;
}

static bool frees_after_forward(const dti_group *g, const dt_tape *t)
{
    if (dt_tape_get_options(t)->no_grad)
        return true;
    return g->options.reshard == DT_RESHARD_DEFAULT ? !g->is_root
                                                    : g->options.reshard != DT_RESHARD_NEVER;
}

static dt_status post_forward(dt_module *m, dt_tape *t, bool recompute, void *arg)
{
    dti_group *g = arg;
    if (recompute)
        return DT_OK;
    if (g->is_root && g->fsdp->norder > 0)
        g->fsdp->order_known = true;
    if (m == g->modules[g->nmodules - 1] && frees_after_forward(g, t))
        DT_TRY(dti_fsdp_reshard(g, !dt_tape_get_options(t)->no_grad));
    return DT_OK;
}

/* ---- backward ---- */

static dt_status pre_backward(dt_module *m, dt_tape *t, void *arg)
{
    dti_group *g = arg;
    dti_fsdp *f = g->fsdp;
    (void)t;
    DT_TRY(dti_fsdp_unshard(g));
    if (g->is_root)
        f->at = f->norder - 1;
    f->order_known = true;
    const int index = index_of(g);
    int64_t at = find_pass(f, f->at, -1, index);
    if (at < 0)
        at = find_pass(f, f->norder - 1, -1, index);
    if (m == g->modules[g->nmodules - 1] && at >= 0) {
        f->at = g->is_root ? f->norder - 1 : at - 1;
        DT_TRY(gather_ahead(g, g->is_root ? f->norder : at, -1));
    }
    dti_fsdp_event(g, "backward");
    return DT_OK;
}

/* Is this the last backward of the group's modules on this tape? */
static bool last_on_tape(const dti_group *g, const dt_tape *t)
{
    for (int i = 0; i < g->nmodules; i++) {
        if (dt_tape_marker_ahead(t, g->modules[i]))
            return false;
    }
    return true;
}

static dt_status finish_in_flight(dti_fsdp *f)
{
    if (f->in_flight)
        DT_TRY(dti_fsdp_reduce_finish(f->in_flight));
    f->in_flight = NULL;
    return DT_OK;
}

static dt_status reduce(dti_group *g)
{
    if (!g->grad_sync || g->options.reduce == DT_REDUCE_STEP) {
        DT_TRY(dti_fsdp_reduce_hold(g));
        return DT_OK;
    }
    DT_TRY(finish_in_flight(g->fsdp));
    DT_TRY(dti_fsdp_reduce_begin(g, g->options.reduce == DT_REDUCE_EACH));
    g->fsdp->in_flight = g;
    return DT_OK;
}

/* What was gathered ahead and not used by this backward. */
static dt_status drop_unused(dti_fsdp *f)
{
    for (int64_t i = 0; i < f->ngroups; i++) {
        if (f->group[i]->reshard_after_backward && f->group[i]->state == DTI_GATHERING)
            DT_TRY(dti_fsdp_reshard(f->group[i], false));
    }
    return DT_OK;
}

static dt_status post_backward(dt_module *m, dt_tape *t, void *arg)
{
    dti_group *g = arg;
    (void)m;
    if (!last_on_tape(g, t))
        return DT_OK;
    DT_TRY(reduce(g));
    if (g->reshard_after_backward)
        DT_TRY(dti_fsdp_reshard(g, false));
    if (g->is_root) {
        DT_TRY(finish_in_flight(g->fsdp));
        DT_TRY(drop_unused(g->fsdp));
    }
    return DT_OK;
}

/* ---- the sharder's table, and the calls of users ---- */

static dt_status sharder_unshard(dt_module *m, void *arg)
{
    (void)m;
    return dti_fsdp_unshard_begin(arg);
}

static dt_status sharder_reshard(dt_module *m, void *arg)
{
    (void)m;
    return dti_fsdp_reshard(arg, false);
}

static void sharder_set_grad_sync(dt_module *m, bool on, void *arg)
{
    (void)m;
    ((dti_group *)arg)->grad_sync = on;
}

/* Whatever is left at the end of a step: unsynced gradients, a reduction in flight, a gathered copy. */
static dt_status sharder_reduce_grads(dt_module *m, void *arg)
{
    dti_group *g = arg;
    (void)m;
    DT_TRY(finish_in_flight(g->fsdp));
    DT_TRY(dti_fsdp_reduce_begin(g, g->options.reduce == DT_REDUCE_EACH));
    DT_TRY(dti_fsdp_reduce_finish(g));
    DT_TRY(dti_fsdp_reshard(g, false));
    return DT_OK;
}

const dt_sharder dti_fsdp_sharder = {sharder_unshard, sharder_reshard, sharder_set_grad_sync,
                                     sharder_reduce_grads};

static dt_status group_of(dt_module *m, dti_group **out)
{
    void *arg = NULL;
    DT_REQUIRE(dt_module_sharder(m, &arg) == &dti_fsdp_sharder, DT_ERR_STATE,
               "module '%s' was not given to fully_shard", dt_module_path(m));
    *out = arg;
    return DT_OK;
}

dt_status dt_fsdp_unshard(dt_module *m)
{
    dti_group *g = NULL;
    DT_TRY(group_of(m, &g));
    DT_TRY(dti_fsdp_unshard_begin(g));
    return DT_OK;
}

dt_status dt_fsdp_reshard(dt_module *m)
{
    dti_group *g = NULL;
    DT_TRY(group_of(m, &g));
    DT_TRY(dti_fsdp_reshard(g, false));
    return DT_OK;
}

/* For every group at and below m. */
static void each_group(dt_module *m, void (*fn)(dti_group *g, bool on), bool on)
{
    dti_group *g = NULL;
    void *arg = NULL;
    if (dt_module_sharder(m, &arg) == &dti_fsdp_sharder) {
        g = arg;
        fn(g, on);
    }
    for (int i = 0; i < dt_module_nchildren(m); i++)
        each_group(dt_module_child(m, i), fn, on);
}

static void set_sync(dti_group *g, bool on)
{
    g->grad_sync = on;
}

static void set_reshard_after_backward(dti_group *g, bool on)
{
    g->reshard_after_backward = on;
}

void dt_fsdp_set_grad_sync(dt_module *m, bool on)
{
    each_group(m, set_sync, on);
}

void dt_fsdp_set_reshard_after_backward(dt_module *m, bool on)
{
    each_group(m, set_reshard_after_backward, on);
}

/* ---- casts at the group's border ---- */

static dt_values cast_floats(dt_tape *t, const dt_values *in, dt_dtype dtype)
{
    dt_values out = *in;
    for (int i = 0; i < in->n; i++) {
        dt_tensor *x = in->value[i];
        if (x && !dt_tensor_is_failed(x) && dt_dtype_is_float(dt_tensor_dtype(x)) &&
            dt_tensor_dtype(x) != dtype)
            out.value[i] = dt_cast(t, x, dtype, false);
    }
    return out;
}

static dt_values cast_inputs(dt_module *m, dt_tape *t, const dt_values *in, void *arg)
{
    const dti_group *g = arg;
    (void)m;
    return g->options.keep_input_dtype ? *in : cast_floats(t, in, g->options.param_dtype);
}

static dt_values cast_outputs(dt_module *m, dt_tape *t, const dt_values *out, void *arg)
{
    const dti_group *g = arg;
    (void)m;
    return g->is_root && !g->options.keep_input_dtype ? cast_floats(t, out, DT_F32) : *out;
}

dt_status dti_fsdp_install_hooks(dti_group *g)
{
    for (int i = 0; i < g->nmodules; i++) {
        const dt_lifetime hooks = {.pre_forward = pre_forward,
                                   .post_forward = post_forward,
                                   .pre_backward = pre_backward,
                                   .post_backward_weight = post_backward,
                                   .arg = g,
                                   .free_arg = dti_fsdp_group_release};
        DT_TRY(dt_module_add_lifetime(g->modules[i], &hooks));
        g->hooked++;
        if (g->options.param_dtype != DT_F32)
            DT_TRY(dt_module_add_transform(g->modules[i], cast_inputs, cast_outputs, g, NULL));
        dt_module_set_sharder(g->modules[i], &dti_fsdp_sharder, g);
    }
    return DT_OK;
}

/* ---- the schedule in words ---- */

static void print_event(const dti_group *g, const char *what,
                        void (*print)(void *arg, const char *line), void *arg)
{
    char line[200];
    const char *path = dt_module_path(g->modules[0]);
    (void)snprintf(line, sizeof line, "%-9s %s", what, *path ? path : "root");
    print(arg, line);
}

void dt_fsdp_schedule_print(dt_module *root, void (*print)(void *arg, const char *line), void *arg)
{
    dti_group *g = NULL;
    if (group_of(root, &g) != DT_OK)
        return;
    const dti_fsdp *f = g->fsdp;
    for (int64_t i = 0; i < f->norder; i++) {
        const dti_group *now = f->group[f->order[i]];
        if (i == 0 || depth(now) == 0)
            print_event(now, "gather", print, arg);
        print_event(now, "wait", print, arg);
        if (i + 1 < f->norder && depth(now) > 0)
            print_event(f->group[f->order[i + 1]], "gather", print, arg);
        print_event(now, "forward", print, arg);
        if (!now->is_root && now->options.reshard != DT_RESHARD_NEVER)
            print_event(now, "free", print, arg);
    }
    for (int64_t i = f->norder - 1; i >= 0; i--) {
        const dti_group *now = f->group[f->order[i]];
        print_event(now, "backward", print, arg);
        print_event(now, "reduce", print, arg);
        print_event(now, "free", print, arg);
    }
}
