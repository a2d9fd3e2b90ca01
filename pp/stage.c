/* pp/stage.c - one microbatch in one stage: forward, backward, backward in two halves.
 *
 * The stage's input x is a leaf of the microbatch's own tape, placed as the boundary says; so is
 * its gradient, once redistributed, and no P crosses. Neighbouring stages of one rank pass tensors
 * by hand. Read first: pp/run.c. Read next: pp/message.c. */
#include "pp/pipeline_internal.h"

#include <stdio.h>
#include <string.h>

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

dt_status dti_pp_boundary(const dti_run *r, int k, int i, bool dual, const dt_layout **out)
{
    const dt_pipeline_options *o = &r->p->options;
    int64_t lo = 0, hi = 0;
    samples_of(r, k, &lo, &hi);
    DT_TRY(dt_mesh_layout_text(
        r->p->mesh, DT_SHAPE(hi - lo, r->pass->seq_len, i == 0 ? o->hidden : o->skip[i - 1]),
        o->boundary, out));
    if (dual) {
        const dt_layout back = dt_layout_dual(*out);
        DT_TRY(dt_mesh_layout(r->p->mesh, &back, out));
    }
    return DT_OK;
}

dt_status dti_pp_blank(const dti_run *r, int k, int i, bool dual, dt_tag tag, dt_local *out)
{
    DT_TRY(dti_pp_boundary(r, k, i, dual, &out->layout));
    DT_TRY(dt_array_create(dt_mesh_heap(r->p->mesh), r->p->options.dtype,
                           dt_mesh_local(out->layout, NULL), tag, &out->array));
    return DT_OK;
}

void dti_pp_release(dt_local *list)
{
    for (int i = 0; i < DTI_PP_TENSORS; i++) {
        dt_array_release(&list[i].array);
        list[i] = (dt_local){0};
    }
}

/* Where tensor i is among the values of a call. */
static int value_of(int i)
{
    return i == 0 ? 0 : DT_PP_FIRST_SKIP - 1 + i;
}

/* ---- tapes ---- */

static dt_status take_tape(dti_run *r, const dti_stage *s, int k, dt_tape **out)
{
    dt_pipeline *p = r->p;
    dt_tape_options o = r->pass->tape;
    o.first_sample += k * r->pass->at_once;
    o.stage = s->index;
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
    for (int i = 0; i < DTI_PP_TENSORS; i++)
        c->y[i] = NULL;
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
    for (int i = 0; i < DTI_PP_TENSORS; i++)
        dt_tensor_destroy(&c->x[i]);
    dt_tensor_destroy(&c->ids);
    dt_tensor_destroy(&c->targets);
    dt_tensor_destroy(&c->aside[0]);
    dt_tensor_destroy(&c->aside[1]);
    dti_pp_release(c->dy);
}

/* ---- forward ---- */

dt_status dti_pp_input(const dti_run *r, int k, const dti_cell *from, dti_cell *c)
{
    for (int i = 0; i < r->p->ntensors; i++) {
        const dt_layout *layout = NULL;
        DT_TRY(dti_pp_boundary(r, k, i, false, &layout));
        if (from)
            DT_TRY(dt_from_array(layout, dt_tensor_local(from->y[i]), &c->x[i]));
        else
            DT_TRY(dt_tensor_create(layout, r->p->options.dtype, DT_TAG_ACTIVATION, &c->x[i]));
        dt_tensor_set_requires_grad(c->x[i], !r->pass->tape.no_grad);
    }
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

static dt_status check_output(const dti_run *r, const dti_stage *s, int k, int i, dt_tensor *y)
{
    const dt_dtype dtype = r->p->options.dtype;
    const dt_layout *want = NULL, *got = y ? dt_tensor_layout(y) : NULL;
    char shape[DT_SHAPE_TEXT], layout[DT_LAYOUT_TEXT];
    char gives[DT_SHAPE_TEXT + DT_LAYOUT_TEXT + 16] = "nothing";
    DT_TRY(dti_pp_boundary(r, k, i, false, &want));
    if (y)
        (void)snprintf(
            gives, sizeof gives, "%s %s %s", dt_shape_print(got->shape, shape, sizeof shape),
            dt_layout_print(got, layout, sizeof layout), dt_dtype_name(dt_tensor_dtype(y)));
    DT_REQUIRE(y && got == want && dt_tensor_dtype(y) == dtype, DT_ERR_PLACEMENT,
               "stage %d gives %s as value %d, the next one takes %s %s %s", s->index, gives,
               value_of(i), dt_shape_print(want->shape, shape, sizeof shape),
               dt_layout_print(want, layout, sizeof layout), dt_dtype_name(dtype));
    return DT_OK;
}

/* What the stage is called with. */
static dt_values values_of(const dti_run *r, const dti_stage *s, const dti_cell *c, bool loss)
{
    const int skips = r->p->ntensors - 1;
    dt_values in = {.n = skips ? DT_PP_FIRST_SKIP + skips : r->pass->aside ? 4 : loss ? 2 : 1};
    in.value[0] = s->index == 0 ? c->ids : c->x[0];
    in.value[1] = loss ? c->targets : NULL;
    in.value[2] = c->aside[0];
    in.value[3] = c->aside[1];
    for (int i = 1; i <= skips; i++)
        in.value[value_of(i)] = c->x[i];
    return in;
}

dt_status dti_pp_compute(const dti_run *r, const dti_stage *s, int k, dti_cell *c)
{
    const bool last = is_last(r, s), loss = last && !r->pass->no_targets,
               own = loss && r->pass->loss;
    const dt_values in = values_of(r, s, c, loss && !own);
    const dt_values out = dt_module_call(s->root, c->tape, &in);
    DT_TRY(dt_tape_status(c->tape));
    for (int i = 0; i < (last ? 1 : r->p->ntensors); i++) {
        c->y[i] = value_of(i) < out.n ? out.value[value_of(i)] : NULL;
        if (!last)
            DT_TRY(check_output(r, s, k, i, c->y[i]));
    }
    if (own) {
        c->y[0] = r->pass->loss(r->pass->arg, c->tape, c->y[0], c->targets);
        DT_TRY(dt_tape_status(c->tape));
    }
    if (loss)
        DT_REQUIRE(dt_shape_count(dt_tensor_layout(c->y[0])->shape) == 1, DT_ERR_SHAPE,
                   "the last stage's loss has %lld elements, not one",
                   (long long)dt_shape_count(dt_tensor_layout(c->y[0])->shape));
    return DT_OK;
}

/* The loss, or what the caller wants to see. */
static dt_status take_output(dti_run *r, int k, dti_cell *c)
{
    int64_t lo = 0, hi = 0;
    samples_of(r, k, &lo, &hi);
    if (r->pass->output) {
        DT_TRY(r->pass->output(r->pass->arg, lo, hi, c->y[0]));
        return DT_OK;
    }
    double term = 0;
    DT_TRY(dt_tensor_local_item_sync(c->y[0], &term));
    r->loss += term;
    return DT_OK;
}

dt_status dti_pp_forward(dti_run *r, dti_stage *s, int k)
{
    dti_cell *c = &s->cell[k];
    DT_TRY(dti_pp_arrived(r, c));
    if (r->failed)
        return DT_OK;
    DT_TRY(take_tape(r, s, k, &c->tape));
    DT_TRY(dti_pp_read(r, s, k, c));
    DT_TRY(dti_pp_compute(r, s, k, c));
    if (is_last(r, s))
        return take_output(r, k, c);
    const dti_stage *next = dti_pp_stage(r->p, s->index + 1);
    if (next)
        DT_TRY(dti_pp_input(r, k, c, &next->cell[k]));
    return DT_OK;
}

/* ---- backward ---- */

static dt_status loss_gradient(const dti_run *r, dti_cell *c)
{
    const dt_layout dual = dt_layout_dual(dt_tensor_layout(c->y[0]));
    const dt_array *y = dt_tensor_local(c->y[0]);
    DT_TRY(dt_mesh_layout(r->p->mesh, &dual, &c->dy[0].layout));
    DT_TRY(dt_array_create(dt_mesh_heap(r->p->mesh), y->dtype, y->shape, DT_TAG_GRADIENT,
                           &c->dy[0].array));
    dt_array_fill(&c->dy[0].array, r->pass->loss_scale != 0 ? r->pass->loss_scale : 1);
    return DT_OK;
}

dt_status dti_pp_output_gradient(const dti_run *r, int k, dti_cell *c)
{
    for (int i = 0; i < r->p->ntensors; i++)
        DT_TRY(dti_pp_blank(r, k, i, true, DT_TAG_GRADIENT, &c->dy[i]));
    return DT_OK;
}

/* c->dx: what reached the leaves, brought to their places. */
static dt_status input_gradient(const dti_run *r, const dti_stage *s, int k, dti_cell *c)
{
    const int n = r->p->ntensors;
    const dt_layout *home[DTI_PP_TENSORS];
    dt_local grad[DTI_PP_TENSORS];
    DT_REQUIRE(dt_tensor_grad(c->x[0])->array.storage, DT_ERR_STATE,
               "no gradient reached the input of stage %d: its loss does not depend on it",
               s->index);
    for (int i = 0; i < n; i++) {
        DT_TRY(dti_pp_boundary(r, k, i, true, &home[i]));
        if (!dt_tensor_grad(c->x[i])->array.storage) { /* a skip that nobody uses from here on */
            dt_local none = {0};
            DT_TRY(dti_pp_blank(r, k, i, true, DT_TAG_GRADIENT, &none));
            dt_array_zero(&none.array);
            DT_TRY(dt_tensor_add_grad(c->x[i], &none));
        }
        grad[i] = *dt_tensor_grad(c->x[i]);
    }
    DT_TRY(dt_move(n, grad, home, 0, "pipeline gradient", DT_TAG_GRADIENT, c->dx));
    for (int i = 0; i < n; i++)
        dt_tensor_clear_grad(c->x[i]);
    return DT_OK;
}

dt_status dti_pp_compute_back(const dti_run *r, const dti_stage *s, int k, dti_cell *c, bool whole)
{
    const int n = is_last(r, s) ? 1 : r->p->ntensors;
    if (is_last(r, s))
        DT_TRY(loss_gradient(r, c));
    for (int i = 1; i < n; i++) /* one that was made of nothing that learns */
        if (!dt_tensor_requires_grad(c->y[i]))
            dt_array_release(&c->dy[i].array);
    if (whole)
        DT_TRY(dt_backward_from(c->tape, n, c->y, c->dy));
    else
        DT_TRY(dt_backward_input(c->tape, n, c->y, c->dy));
    dti_pp_release(c->dy);
    if (s->index > 0)
        DT_TRY(input_gradient(r, s, k, c));
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
        memcpy(before->cell[k].dy, c->dx, sizeof c->dx);
        memset(c->dx, 0, sizeof c->dx);
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
