/* dtensor/move.c - executes redistribution plans for lists of local arrays, coalesced, in flight or
 * at once.
 *
 * All items go through their plans in lockstep: local steps as soon as they are next; then the
 * collective that the first unfinished item needs, together with every item whose next step is of
 * that kind on the same axes. A collective is pack (copy what each member gets, piece after piece)
 * -> call -> unpack; pieces that already lie one after the other, as rows do, are not copied. Read
 * first: placements/dt_plan.h; next: dtensor/move_step.c. */
#include "dtensor/move_internal.h"
#include "dtensor/tape_internal.h"

#include <stdlib.h>
#include <string.h>

static dt_status issue(dt_comm *comm, dt_step_kind kind, int n, const dt_part *part,
                       const char *label, dt_work **work)
{
    switch (kind) {
    case DT_STEP_ALL_GATHER: return dt_all_gather(comm, n, part, label, work);
    case DT_STEP_REDUCE_SCATTER: return dt_reduce_scatter(comm, n, part, label, work);
    case DT_STEP_ALL_REDUCE: return dt_all_reduce(comm, n, part, DT_REDUCE_SUM, label, work);
    case DT_STEP_ALL_TO_ALL: return dt_all_to_all(comm, n, part, label, work);
    case DT_STEP_SLICE:
    case DT_STEP_KEEP:
    case DT_STEP_PAD:
    case DT_STEP_RELABEL:
    case DT_NSTEP_KINDS: break;
    }
    return DT_ERROR(DT_ERR_STATE, "step kind %d is not a collective", (int)kind);
}

static bool same_call(const dti_item *it, const dt_step *step)
{
    const dt_step *s = dti_step_next(it);
    return s && s->kind == step->kind && s->naxes == step->naxes &&
           memcmp(s->axis, step->axis, (size_t)s->naxes) == 0;
}

/* Issue one coalesced collective: `step` of `first` and the like steps of later items. */
static dt_status collective(dt_moving *m, int first, const dt_step *step)
{
    dt_comm *comm = NULL;
    DT_TRY(dt_mesh_comm(m->mesh, step->naxes, step->axis, m->channel, &comm));
    m->ncalled = 0;
    for (int i = first; i < m->n; i++) {
        dti_item *it = &m->item[i];
        if (!same_call(it, step))
            continue;
        DT_TRY(dti_step_prepare(m, it, dti_step_next(it)));
        m->part[m->ncalled] = (dt_part){&it->packed, &it->received, it->send, it->recv};
        m->called[m->ncalled++] = i;
    }
    DT_TRY(issue(comm, step->kind, m->ncalled, m->part, m->label, &m->work));
    return DT_OK;
}

/* Run local steps that are next; returns in *first the first item that waits for a collective, or
 * n. */
static dt_status run_local(dt_moving *m, int *first)
{
    *first = m->n;
    for (int i = m->n - 1; i >= 0; i--) {
        dti_item *it = &m->item[i];
        const dt_step *step = dti_step_next(it);
        for (; step && !dt_step_moves(step->kind); step = dti_step_next(it))
            DT_TRY(dti_step_local(m, it, step));
        if (step)
            *first = i;
    }
    return DT_OK;
}

/* Local steps, then the next collective, if there is one, in flight. */
static dt_status run_on(dt_moving *m)
{
    int first = 0;
    DT_TRY(run_local(m, &first));
    if (first < m->n)
        DT_TRY(collective(m, first, dti_step_next(&m->item[first])));
    return DT_OK;
}

/* ---- begin, finish ---- */

static void moving_free(dt_moving *m)
{
    for (int i = 0; m->item && i < m->n; i++) {
        dt_array_release(&m->item[i].now.array);
        dt_array_release(&m->item[i].packed);
        dt_array_release(&m->item[i].received);
        dt_array_release(&m->item[i].target);
        free(m->item[i].send);
    }
    free(m->item);
    free(m->part);
    free(m->called);
    free(m->label);
    free(m);
}

static dt_status fill(dt_moving *m, const dt_local *src, const dt_layout *const *dst,
                      const dt_array *const *into)
{
    m->item = calloc((size_t)m->n, sizeof *m->item);
    m->part = calloc((size_t)m->n, sizeof *m->part);
    m->called = calloc((size_t)m->n, sizeof *m->called);
    DT_REQUIRE(m->item && m->part && m->called && m->label, DT_ERR_NOMEM, "moving %d tensors",
               m->n);
    for (int i = 0; i < m->n; i++) {
        dti_item *it = &m->item[i];
        DT_REQUIRE(!src[i].array.storage->emptied, DT_ERR_STATE,
                   "tensor %d of '%s' is not in memory: dt_storage_open comes first", i, m->label);
        it->now = (dt_local){src[i].layout, dt_array_share(&src[i].array)};
        it->dst = dst[i];
        if (into && into[i])
            it->target = dt_array_share(into[i]);
        DT_TRY(dt_mesh_plan(m->mesh, src[i].layout, dst[i], &it->plan));
        if (dt_mesh_rehearses(m->mesh))
            DT_TRY(dti_step_skip(m, it));
    }
    DT_TRY(run_on(m));
    return DT_OK;
}

dt_status dt_move_begin(int n, const dt_local *src, const dt_layout *const *dst,
                        const dt_move_options *options, dt_moving **moving_out)
{
    dt_moving *m = calloc(1, sizeof *m);
    DT_REQUIRE(m, DT_ERR_NOMEM, "moving %d tensors", n);
    *m = (dt_moving){.mesh = n ? dt_layout_mesh(src[0].layout) : NULL,
                     .channel = options->channel,
                     .label = strdup(options->label ? options->label : ""),
                     .tag = options->tag,
                     .n = n};
    const dt_status st = fill(m, src, dst, options->into);
    if (st != DT_OK) {
        moving_free(m);
        return dt_error_push(st, __FILE__, __LINE__, __func__);
    }
    *moving_out = m;
    return DT_OK;
}

/* Wait for the collective in flight, unpack it, and go on to the next, until there is none. */
static dt_status run_out(dt_moving *m)
{
    while (m->work) {
        DT_TRY(dt_work_wait(&m->work));
        for (int i = 0; i < m->ncalled; i++) {
            dti_item *it = &m->item[m->called[i]];
            DT_TRY(dti_step_finish(m, it, dti_step_next(it)));
        }
        DT_TRY(run_on(m));
    }
    return DT_OK;
}

dt_status dt_move_finish(dt_moving **moving, dt_local *out)
{
    dt_moving *m = *moving;
    *moving = NULL;
    const dt_status st = run_out(m);
    for (int i = 0; st == DT_OK && i < m->n; i++) {
        dti_item *it = &m->item[i];
        if (it->target.storage && it->now.array.storage != it->target.storage) {
            dt_array_copy(&it->target, &it->now.array); /* the plan ended in a local step */
            dt_array_release(&it->now.array);
            it->now.array = dt_array_share(&it->target);
        }
        out[i] = (dt_local){it->dst, it->now.array};
        it->now.array = (dt_array){0};
    }
    moving_free(m);
    if (st != DT_OK)
        return dt_error_push(st, __FILE__, __LINE__, __func__);
    return DT_OK;
}

dt_status dt_move(int n, const dt_local *src, const dt_layout *const *dst, int channel,
                  const char *label, dt_tag tag, dt_local *out)
{
    if (n == 0)
        return DT_OK;
    if (n == 1 && src->layout == dst[0]) { /* the hot no-op */
        *out = (dt_local){src->layout, dt_array_share(&src->array)};
        return DT_OK;
    }
    const dt_move_options options = {.channel = channel, .label = label, .tag = tag};
    dt_moving *moving = NULL;
    DT_TRY(dt_move_begin(n, src, dst, &options, &moving));
    DT_TRY(dt_move_finish(&moving, out));
    return DT_OK;
}
