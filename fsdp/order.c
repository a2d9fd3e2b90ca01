/* fsdp/order.c - the order of events.
 *
 *   forward    gather i (unless it was gathered ahead), wait i, gather i+1 ahead, run, free i
 *   backward   gather i, wait i, gather i-1 ahead, run, begin to reduce i, free i
 *   end        of the root's backward: finish reductions, free what was gathered ahead for nothing
 *   offload    the shards of one group more than are gathered ahead are read from where they rest
 *
 * "i+1" is the group whose pass began after i's in the first forward of the root; "i-1" the one
 * whose pass ended before i's did, which also holds for groups inside of groups. Nothing depends
 * on how far the host runs ahead. Live at once: the group that runs, those gathered ahead, and the
 * input of one reduction. On tapes without gradients every group is freed after it ran, so no
 * stale copy outlives an optimizer step; dt_module_reduce_grads frees the others.
 *
 * dt_fsdp_schedule_print runs the same functions dry, so what it prints is what happens. Read
 * next: fsdp/hooks.c. */
#include "fsdp/fsdp_internal.h"

#include <stdio.h>
#include <stdlib.h>

void dti_fsdp_event(const dti_group *g, const char *what)
{
    char line[256];
    if (g->fsdp->print) {
        (void)snprintf(line, sizeof line, "%-8s %s", what, dti_fsdp_name(g));
        g->fsdp->print(g->fsdp->print_arg, line);
        return;
    }
    dt_trace *trace = dt_world_trace(dt_mesh_world(g->mesh));
    if (!trace)
        return;
    (void)snprintf(line, sizeof line, "%s %s", what, dti_fsdp_name(g));
    dt_trace_record(trace, "fsdp", line, DT_TRACE_MOMENT, 0, 0);
}

/* ---- order and prefetch ---- */

static int index_of(const dti_group *g)
{
    int i = 0;
    while (g->fsdp->group[i] != g)
        i++;
    return i;
}

static dt_status record(dti_fsdp *f, int pass)
{
    DT_TRY(dt_grow((void **)&f->pass, &f->pass_capacity, f->npasses + 1, sizeof *f->pass));
    f->pass[f->npasses++] = pass;
    return DT_OK;
}

/* Position of the pass that now begins: the next one of this group on the way, or from the start;
 * -1 if there is none. */
static int64_t find_pass(const dti_fsdp *f, int pass)
{
    const int step = pass < 0 ? -1 : 1;
    const int64_t start[] = {f->at + step, pass < 0 ? f->npasses - 1 : 0};
    for (int k = 0; k < 2; k++) {
        for (int64_t i = start[k]; i >= 0 && i < f->npasses; i += step) {
            if (f->pass[i] == pass)
                return i;
        }
    }
    return -1;
}

/* Begin to gather the groups that come after this pass, and to read the shards of the next one. */
static dt_status gather_ahead(dti_group *g, bool backward)
{
    dti_fsdp *f = g->fsdp;
    const int step = backward ? -1 : 1;
    for (int i = 0; i < g->ahead[backward].n; i++)
        DT_TRY(dti_fsdp_unshard_begin(g->ahead[backward].group[i]));
    int left = g->ahead[backward].n >= 0 || g->options.prefetch < 0 ? 0
               : g->options.prefetch                                ? g->options.prefetch
                                                                    : 1;
    for (int64_t i = f->at + step; left >= 0 && i >= 0 && i < f->npasses; i += step) {
        const int pass = f->pass[i];
        dti_group *next = f->group[pass < 0 ? ~pass : pass];
        if ((pass < 0) != backward || next == g || next->nmoving == 0)
            continue;
        DT_TRY(left > 0 ? dti_fsdp_unshard_begin(next) : dti_fsdp_read(next));
        left--;
    }
    return DT_OK;
}

static dt_status go_on(dti_group *g, bool backward)
{
    dti_fsdp *f = g->fsdp;
    const int64_t at = find_pass(f, backward ? ~index_of(g) : index_of(g));
    if (!f->known || at < 0)
        return DT_OK;
    f->at = at;
    DT_TRY(gather_ahead(g, backward));
    return DT_OK;
}

/* What was gathered ahead and not used. */
static dt_status drop_unused(dti_fsdp *f)
{
    for (int64_t i = 0; i < f->ngroups; i++) {
        dti_group *g = f->group[i];
        if (g->reading || (g->reshard_after_backward && g->state == DTI_GATHERING))
            DT_TRY(dti_fsdp_reshard(g, false));
    }
    return DT_OK;
}

/* ---- forward ---- */

dt_status dti_fsdp_forward_begins(dti_group *g)
{
    dti_fsdp *f = g->fsdp;
    DT_TRY(dti_fsdp_unshard(g));
    if (g->is_root && !f->known) {
        f->npasses = 0;
        f->recording = true;
    }
    if (f->recording)
        DT_TRY(record(f, index_of(g)));
    DT_TRY(go_on(g, false));
    dti_fsdp_event(g, "forward");
    return DT_OK;
}

static bool frees_after_forward(const dti_group *g)
{
    switch (g->options.reshard) {
    case DT_RESHARD_DEFAULT: return !g->is_root;
    case DT_RESHARD_ALWAYS:
    case DT_RESHARD_GROUP: return true;
    case DT_RESHARD_NEVER:
    case DT_RESHARD_STEP: break;
    }
    return false;
}

dt_status dti_fsdp_forward_ends(dti_group *g, bool no_grad)
{
    dti_fsdp *f = g->fsdp;
    if (f->recording)
        DT_TRY(record(f, ~index_of(g)));
    if (f->recording && g->is_root) {
        f->recording = false;
        f->known = true;
    }
    if (no_grad || frees_after_forward(g))
        DT_TRY(dti_fsdp_reshard(g, !no_grad));
    if (no_grad && g->is_root)
        DT_TRY(drop_unused(f));
    return DT_OK;
}

/* ---- backward ---- */

dt_status dti_fsdp_backward_begins(dti_group *g)
{
    DT_TRY(dti_fsdp_unshard(g));
    DT_TRY(go_on(g, true));
    dti_fsdp_event(g, "backward");
    return DT_OK;
}

/* Move the reductions in flight one stage on, so that there is room for one more. */
static dt_status move_on(dti_fsdp *f)
{
    dti_group *shards = f->at_shards, *replicas = f->at_replicas;
    f->at_shards = f->at_replicas = NULL;
    if (replicas)
        DT_TRY(dti_fsdp_reduce_next(replicas));
    if (shards)
        DT_TRY(dti_fsdp_reduce_next(shards));
    f->at_replicas = shards && shards->at_replicas ? shards : NULL;
    return DT_OK;
}

static dt_status finish_in_flight(dti_fsdp *f)
{
    DT_TRY(move_on(f));
    DT_TRY(move_on(f));
    return DT_OK;
}

static dt_status reduce(dti_group *g)
{
    if (!g->grad_sync || g->options.reduce == DT_REDUCE_STEP) {
        DT_TRY(dti_fsdp_reduce_hold(g));
        return DT_OK;
    }
    DT_TRY(move_on(g->fsdp));
    DT_TRY(dti_fsdp_reduce_begin(g));
    g->fsdp->at_shards = g;
    return DT_OK;
}

/* Is the next pass of backward this group's own, as when a head is called chunk after chunk? After
 * the first group's pass comes the root's of the forward before. */
static bool goes_on_at_once(const dti_group *g)
{
    const dti_fsdp *f = g->fsdp;
    for (int64_t k = 1; k <= f->npasses; k++) {
        const int pass = f->pass[(f->at - k + f->npasses) % f->npasses];
        if (pass < 0)
            return f->group[~pass] == g;
    }
    return false;
}

dt_status dti_fsdp_backward_ends(dti_group *g, bool last)
{
    const bool free_now = g->reshard_after_backward && g->options.reshard != DT_RESHARD_STEP;
    if (!last) {
        if (free_now && g->options.reshard != DT_RESHARD_NEVER && !goes_on_at_once(g))
            DT_TRY(dti_fsdp_reshard(g, false));
        return DT_OK;
    }
    g->pretends = true;
    DT_TRY(reduce(g));
    if (free_now)
        DT_TRY(dti_fsdp_reshard(g, false));
    if (g->is_root) {
        DT_TRY(finish_in_flight(g->fsdp));
        DT_TRY(drop_unused(g->fsdp));
    }
    return DT_OK;
}

/* Whatever is left at the end of a step: unsynced gradients, a reduction in flight, a gathered
 * copy. */
dt_status dti_fsdp_step_ends(dti_group *g)
{
    DT_TRY(finish_in_flight(g->fsdp));
    DT_TRY(dti_fsdp_reduce_begin(g));
    DT_TRY(dti_fsdp_reduce_finish(g));
    DT_TRY(dti_fsdp_reshard(g, false));
    return DT_OK;
}

/* ---- the schedule in words ---- */

static dt_status steps_end(dt_module *m)
{
    void *arg = NULL;
    if (dt_module_sharder(m, &arg) == &dti_fsdp_sharder)
        DT_TRY(dti_fsdp_step_ends(arg));
    for (int i = 0; i < dt_module_nchildren(m); i++)
        DT_TRY(steps_end(dt_module_child(m, i)));
    return DT_OK;
}

static bool begins_before(const dti_fsdp *f, int64_t at, int index)
{
    for (int64_t i = 0; i < at; i++) {
        if (f->pass[i] == index)
            return true;
    }
    return false;
}

static dt_status dry_step(dt_module *root, dti_fsdp *f)
{
    for (int64_t i = 0; i < f->npasses; i++) {
        const int pass = f->pass[i];
        DT_TRY(pass >= 0 ? dti_fsdp_forward_begins(f->group[pass])
                         : dti_fsdp_forward_ends(f->group[~pass], false));
    }
    for (int64_t i = f->npasses - 1; i >= 0; i--) {
        const int pass = f->pass[i];
        DT_TRY(pass < 0 ? dti_fsdp_backward_begins(f->group[~pass])
                        : dti_fsdp_backward_ends(f->group[pass], !begins_before(f, i, pass)));
    }
    DT_TRY(steps_end(root));
    return DT_OK;
}

dt_status dt_fsdp_schedule_print(dt_module *root, void (*print)(void *arg, const char *line),
                                 void *arg)
{
    void *group = NULL;
    DT_REQUIRE(root && dt_module_sharder(root, &group) == &dti_fsdp_sharder, DT_ERR_STATE,
               "only what fully_shard was given last has a schedule");
    dti_fsdp *f = ((dti_group *)group)->fsdp;
    DT_REQUIRE(f->known, DT_ERR_STATE, "the first forward fixes the schedule; none ran yet");
    for (int64_t i = 0; i < f->ngroups; i++)
        DT_REQUIRE(f->group[i]->state == DTI_SHARDED && !f->at_shards && !f->at_replicas,
                   DT_ERR_STATE, "a step is under way: '%s' is gathered",
                   dti_fsdp_name(f->group[i]));
    for (int64_t i = 0; i < f->ngroups; i++)
        f->group[i]->pretends = false;
    const int64_t at = f->at;
    f->print = print;
    f->print_arg = arg;
    const dt_status st = dry_step(root, f);
    f->print = NULL;
    f->at = at;
    return st;
}
