/* pp/stage.c - one microbatch in one stage: forward, backward, backward in two halves.
 *
 * The stage's input x is a leaf of the microbatch's own tape, placed as the boundary says; so is
 * its gradient, once redistributed, and no P crosses. Neighbouring stages of one rank pass tensors
 * by hand. Read first: pp/run.c. Read next: pp/message.c. */
#include "pp/pipeline_internal.h"

dti_stage *dti_pp_stage(dt_pipeline *p, int index)
{
    for (int i = 0; i < p->nstages; i++)
        if (p->stage[i].index == index)
            return &p->stage[i];
    return NULL;
}

static bool is_last(const dti_run *r, const dti_stage *s)
{
    return s->index == r->p->lowered->nstages - 1;
}

static void samples_of(const dti_run *r, int k, int64_t *lo, int64_t *hi)
{
    *lo = k * r->pass->at_once;
    *hi = *lo + r->pass->at_once < r->pass->samples ? *lo + r->pass->at_once : r->pass->samples;
}

dt_status dti_pp_boundary(const dti_run *r, int k, bool dual, const dt_layout **out)
{
    int64_t lo = 0, hi = 0;
    samples_of(r, k, &lo, &hi);
    DT_TRY(dt_mesh_layout_text(r->p->mesh,
                               DT_SHAPE(hi - lo, r->pass->seq_len, r->p->options.hidden),
                               r->p->options.boundary, out));
    if (dual) {
        const dt_layout back = dt_layout_dual(*out);
        DT_TRY(dt_mesh_layout(r->p->mesh, &back, out));
    }
    return DT_OK;
}

void dti_pp_release(dt_local *l)
{
    dt_array_release(&l->array);
    *l = (dt_local){0};
}

/* ---- tapes ---- */

static dt_status take_tape(dti_run *r, int k, dt_tape **out)
{
    dt_pipeline *p = r->p;
    dt_tape_options o = r->pass->tape;
    o.first_sample += k * r->pass->at_once;
    if (p->nspare == 0) {
        DT_TRY(dt_tape_create(p->mesh, &o, out));
    } else {
        *out = p->spare[--p->nspare];
        dt_tape_reset(*out, &o);
    }
    p->live++;
    if (!o.no_grad && p->live > p->peak_live)
        p->peak_live = p->live;
    return DT_OK;
}

void dti_pp_finish(dt_pipeline *p, dti_cell *c)
{
    c->y = NULL;
    if (c->tape) {
        dt_tape_reset(c->tape, NULL);
        p->live--;
        if (dt_grow((void **)&p->spare, &p->spare_capacity, p->nspare + 1, sizeof(dt_tape *)) ==
            DT_OK)
            p->spare[p->nspare++] = c->tape;
        else
            dt_tape_destroy(&c->tape);
        c->tape = NULL;
    }
    dt_tensor_destroy(&c->x);
    dt_tensor_destroy(&c->ids);
    dt_tensor_destroy(&c->targets);
    dt_tensor_destroy(&c->aside[0]);
    dt_tensor_destroy(&c->aside[1]);
    dti_pp_release(&c->dy);
}

/* ---- forward ---- */

dt_status dti_pp_input(const dti_run *r, int k, const dt_array *given, dti_cell *c)
{
    const dt_layout *layout = NULL;
    DT_TRY(dti_pp_boundary(r, k, false, &layout));
    if (given)
        DT_TRY(dt_from_array(layout, given, &c->x));
    else
        DT_TRY(dt_tensor_create(layout, DT_F32, DT_TAG_ACTIVATION, &c->x));
    dt_tensor_set_requires_grad(c->x, !r->pass->tape.no_grad);
    return DT_OK;
}

dt_status dti_pp_read(const dti_run *r, const dti_stage *s, int k, dti_cell *c)
{
    int64_t lo = 0, hi = 0;
    samples_of(r, k, &lo, &hi);
    const bool ids = s->index == 0 && !c->ids;
    const bool targets = is_last(r, s) && !r->pass->no_targets && !c->targets;
    if (ids || targets)
        DT_TRY(r->pass->read(r->pass->arg, lo, hi, ids ? &c->ids : NULL,
                             targets ? &c->targets : NULL));
    if (r->pass->aside && !c->aside[0])
        DT_TRY(r->pass->aside(r->pass->arg, lo, hi, c->aside));
    return DT_OK;
}

static dt_status check_output(const dti_run *r, const dti_stage *s, int k, const dti_cell *c)
{
    const dt_layout *want = NULL, *got = dt_tensor_layout(c->y);
    char a[DT_LAYOUT_TEXT], b[DT_LAYOUT_TEXT], x[DT_SHAPE_TEXT], y[DT_SHAPE_TEXT];
    DT_TRY(dti_pp_boundary(r, k, false, &want));
    DT_REQUIRE(got == want && dt_tensor_dtype(c->y) == DT_F32, DT_ERR_PLACEMENT,
               "stage %d gives %s %s %s, the next one takes %s %s f32", s->index,
               dt_shape_print(got->shape, x, sizeof x), dt_layout_print(got, a, sizeof a),
               dt_dtype_name(dt_tensor_dtype(c->y)), dt_shape_print(want->shape, y, sizeof y),
               dt_layout_print(want, b, sizeof b));
    return DT_OK;
}

dt_status dti_pp_compute(const dti_run *r, const dti_stage *s, int k, dti_cell *c)
{
    const bool loss = is_last(r, s) && !r->pass->no_targets, own = loss && r->pass->loss;
    const dt_values in = {.n = r->pass->aside ? 4 : loss && !own ? 2 : 1,
                          .value = {s->index == 0 ? c->ids : c->x, own ? NULL : c->targets,
                                    c->aside[0], c->aside[1]}};
    const dt_values out = dt_module_call(s->root, c->tape, &in);
    DT_TRY(dt_tape_status(c->tape));
    c->y = out.value[0];
    if (own) {
        c->y = r->pass->loss(r->pass->arg, c->tape, c->y, c->targets);
        DT_TRY(dt_tape_status(c->tape));
    }
    if (loss)
        DT_REQUIRE(dt_shape_count(dt_tensor_layout(c->y)->shape) == 1, DT_ERR_SHAPE,
                   "the last stage's loss has %lld elements, not one",
                   (long long)dt_shape_count(dt_tensor_layout(c->y)->shape));
    if (!is_last(r, s))
        DT_TRY(check_output(r, s, k, c));
    return DT_OK;
}

/* The loss, or what the caller wants to see. */
static dt_status take_output(dti_run *r, int k, dti_cell *c)
{
    int64_t lo = 0, hi = 0;
    samples_of(r, k, &lo, &hi);
    if (r->pass->output) {
        DT_TRY(r->pass->output(r->pass->arg, lo, hi, c->y));
        return DT_OK;
    }
    float term = 0;
    DT_TRY(dt_array_read(dt_tensor_local(c->y), &term, 1));
    r->loss += (double)term;
    return DT_OK;
}

dt_status dti_pp_forward(dti_run *r, dti_stage *s, int k)
{
    dti_cell *c = &s->cell[k];
    DT_TRY(dti_pp_arrived(r, c));
    if (r->failed)
        return DT_OK;
    DT_TRY(take_tape(r, k, &c->tape));
    DT_TRY(dti_pp_read(r, s, k, c));
    DT_TRY(dti_pp_compute(r, s, k, c));
    if (is_last(r, s))
        return take_output(r, k, c);
    const dti_stage *next = dti_pp_stage(r->p, s->index + 1);
    if (next)
        DT_TRY(dti_pp_input(r, k, dt_tensor_local(c->y), &next->cell[k]));
    return DT_OK;
}

/* ---- backward ---- */

static dt_status loss_gradient(const dti_run *r, dti_cell *c)
{
    const dt_layout dual = dt_layout_dual(dt_tensor_layout(c->y));
    const dt_array *y = dt_tensor_local(c->y);
    DT_TRY(dt_mesh_layout(r->p->mesh, &dual, &c->dy.layout));
    DT_TRY(dt_array_create(dt_mesh_heap(r->p->mesh), y->dtype, y->shape, DT_TAG_GRADIENT,
                           &c->dy.array));
    dt_array_fill(&c->dy.array, r->pass->loss_scale != 0 ? r->pass->loss_scale : 1);
    return DT_OK;
}

dt_status dti_pp_compute_back(const dti_run *r, const dti_stage *s, int k, dti_cell *c, bool whole)
{
    if (is_last(r, s))
        DT_TRY(loss_gradient(r, c));
    if (whole)
        DT_TRY(dt_backward_from(c->tape, 1, &c->y, &c->dy));
    else
        DT_TRY(dt_backward_input(c->tape, 1, &c->y, &c->dy));
    dti_pp_release(&c->dy);
    if (s->index == 0)
        return DT_OK;
    const dt_local *grad = dt_tensor_grad(c->x);
    const dt_layout *home = NULL;
    DT_REQUIRE(grad->array.storage, DT_ERR_STATE,
               "no gradient reached the input of stage %d: its loss does not depend on it",
               s->index);
    DT_TRY(dti_pp_boundary(r, k, true, &home));
    DT_TRY(dt_move(1, grad, &home, 0, "pipeline gradient", DT_TAG_GRADIENT, &c->dx));
    dt_tensor_clear_grad(c->x);
    return DT_OK;
}

dt_status dti_pp_backward(dti_run *r, dti_stage *s, int k, bool whole)
{
    dti_cell *c = &s->cell[k];
    DT_TRY(dti_pp_arrived(r, c));
    if (r->failed)
        return DT_OK;
    DT_TRY(dti_pp_compute_back(r, s, k, c, whole));
    dti_stage *before = dti_pp_stage(r->p, s->index - 1);
    if (before) {
        before->cell[k].dy = c->dx;
        c->dx = (dt_local){0};
    }
    if (whole)
        dti_pp_finish(r->p, c);
    return DT_OK;
}

dt_status dti_pp_backward_weight(dti_run *r, dti_stage *s, int k)
{
    DT_TRY(dt_backward_weight(s->cell[k].tape));
    dti_pp_finish(r->p, &s->cell[k]);
    return DT_OK;
}
