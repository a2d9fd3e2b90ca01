/* pp/run.c - the executor: does what its row of the lowered schedule says, action by action.
 *
 *     RECV_F  begin to receive x          F  x -> y on a tape of the microbatch's own
 *     SEND_F  begin to send y             B  dy -> dx, and the weights' gradients; the tape goes
 *     RECV_B  begin to receive dy         I  dy -> dx; the tape stays for
 *     SEND_B  begin to send dx            W  the weights' gradients
 *
 * Messages are waited for when they are used; a send when the next one to the same side begins, so
 * that at most one copy of y and dx waits in each direction. dt_pp_check has shown that even sends
 * that wait at once would not deadlock. Neighbouring stages of one rank pass tensors by hand. */
#include "pp/pipeline_internal.h"

#include <stdlib.h>

typedef struct run {
    dt_pipeline *p;
    const dt_pipeline_pass *pass;
    double *loss;
} run;

static dti_stage *stage_at(dt_pipeline *p, int index)
{
    for (int i = 0; i < p->nstages; i++)
        if (p->stage[i].index == index)
            return &p->stage[i];
    return NULL;
}

static bool is_last(const dt_pipeline *p, const dti_stage *s)
{
    return s->index == p->lowered->nstages - 1;
}

static void samples_of(const run *r, int k, int64_t *lo, int64_t *hi)
{
    *lo = k * r->pass->at_once;
    *hi = *lo + r->pass->at_once < r->pass->samples ? *lo + r->pass->at_once : r->pass->samples;
}

/* How a tensor between stages is placed: [samples of microbatch k, seq_len, hidden]. */
static dt_status boundary(const run *r, int k, bool dual, const dt_layout **out)
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

static void local_release(dt_local *l)
{
    dt_array_release(&l->array);
    *l = (dt_local){0};
}

/* ---- tapes ---- */

static dt_status take_tape(run *r, int64_t first_sample, dt_tape **out)
{
    dt_pipeline *p = r->p;
    dt_tape_options o = r->pass->tape;
    o.first_sample += first_sample;
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

/* The microbatch needs its tape no more; what is being sent holds its own bytes. */
static void finish(dt_pipeline *p, dti_cell *c)
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
    local_release(&c->dy);
}

/* ---- messages ---- */

static const char *message_label(bool back)
{
    return back ? "pipeline gradient" : "pipeline";
}

static dt_status send_to(dt_pipeline *p, dti_stage *s, bool back, const dt_array *array)
{
    const int to = p->owner[s->index + (back ? -1 : 1)];
    DT_TRY(dt_work_wait(&s->sent[back]));
    DT_TRY(dt_send(p->line, to, 1, &array, message_label(back), &s->sent[back]));
    return DT_OK;
}

static dt_status make_input(run *r, int k, const dt_array *given, dti_cell *c)
{
    const dt_layout *layout = NULL;
    DT_TRY(boundary(r, k, false, &layout));
    if (given)
        DT_TRY(dt_from_array(layout, given, &c->x));
    else
        DT_TRY(dt_tensor_create(layout, DT_F32, DT_TAG_ACTIVATION, &c->x));
    dt_tensor_set_requires_grad(c->x, !r->pass->tape.no_grad);
    return DT_OK;
}

static dt_status receive_forward(run *r, const dti_stage *s, int k)
{
    dti_cell *c = &s->cell[k];
    DT_TRY(make_input(r, k, NULL, c));
    dt_array *into = dt_tensor_local(c->x);
    DT_TRY(dt_recv(r->p->line, r->p->owner[s->index - 1], 1, &into, message_label(false),
                   &c->arriving));
    return DT_OK;
}

static dt_status receive_backward(run *r, const dti_stage *s, int k)
{
    dti_cell *c = &s->cell[k];
    DT_TRY(boundary(r, k, true, &c->dy.layout));
    DT_TRY(dt_array_create(dt_mesh_heap(r->p->mesh), DT_F32, dt_mesh_local(c->dy.layout, NULL),
                           DT_TAG_GRADIENT, &c->dy.array));
    dt_array *into = &c->dy.array;
    DT_TRY(dt_recv(r->p->line, r->p->owner[s->index + 1], 1, &into, message_label(true),
                   &c->arriving));
    return DT_OK;
}

/* ---- forward ---- */

/* The loss, or what the caller wants to see. */
static dt_status take_output(run *r, int k, dti_cell *c)
{
    int64_t lo = 0, hi = 0;
    samples_of(r, k, &lo, &hi);
    if (r->pass->output) {
        DT_TRY(r->pass->output(r->pass->arg, lo, hi, c->y));
        return DT_OK;
    }
    float term = 0;
    DT_TRY(dt_array_read(dt_tensor_local(c->y), &term, 1));
    *r->loss += (double)term;
    return DT_OK;
}

static dt_status check_output(run *r, const dti_stage *s, int k, dti_cell *c)
{
    const dt_layout *want = NULL, *got = dt_tensor_layout(c->y);
    char a[DT_LAYOUT_TEXT], b[DT_LAYOUT_TEXT], x[DT_SHAPE_TEXT], y[DT_SHAPE_TEXT];
    DT_TRY(boundary(r, k, false, &want));
    DT_REQUIRE(got == want && dt_tensor_dtype(c->y) == DT_F32, DT_ERR_PLACEMENT,
               "stage %d gives %s %s %s, the next one takes %s %s f32", s->index,
               dt_shape_print(got->shape, x, sizeof x), dt_layout_print(got, a, sizeof a),
               dt_dtype_name(dt_tensor_dtype(c->y)), dt_shape_print(want->shape, y, sizeof y),
               dt_layout_print(want, b, sizeof b));
    return DT_OK;
}

static dt_status forward(run *r, dti_stage *s, int k)
{
    dt_pipeline *p = r->p;
    dti_cell *c = &s->cell[k];
    int64_t lo = 0, hi = 0;
    samples_of(r, k, &lo, &hi);
    const bool first = s->index == 0, last = is_last(p, s), loss = last && !r->pass->no_targets;
    DT_TRY(take_tape(r, lo, &c->tape));
    if (first || loss)
        DT_TRY(
            r->pass->read(r->pass->arg, lo, hi, first ? &c->ids : NULL, loss ? &c->targets : NULL));
    DT_TRY(dt_work_wait(&c->arriving));
    const dt_values in = {.n = loss ? 2 : 1, .value = {first ? c->ids : c->x, c->targets}};
    const dt_values out = dt_module_call(s->root, c->tape, &in);
    DT_TRY(dt_tape_status(c->tape));
    c->y = out.value[0];
    if (last)
        return take_output(r, k, c);
    DT_TRY(check_output(r, s, k, c));
    const dti_stage *next = stage_at(p, s->index + 1);
    if (next)
        DT_TRY(make_input(r, k, dt_tensor_local(c->y), &next->cell[k]));
    return DT_OK;
}

/* ---- backward ---- */

static dt_status loss_gradient(run *r, dti_cell *c)
{
    const dt_layout dual = dt_layout_dual(dt_tensor_layout(c->y));
    const dt_array *y = dt_tensor_local(c->y);
    DT_TRY(dt_mesh_layout(r->p->mesh, &dual, &c->dy.layout));
    DT_TRY(dt_array_create(dt_mesh_heap(r->p->mesh), y->dtype, y->shape, DT_TAG_GRADIENT,
                           &c->dy.array));
    dt_array_fill(&c->dy.array, r->pass->loss_scale != 0 ? r->pass->loss_scale : 1);
    return DT_OK;
}

/* The gradient of x, placed as the stage before wants it (no P crosses), for SEND_B or by hand. */
static dt_status pass_back(run *r, const dti_stage *s, int k)
{
    dti_cell *c = &s->cell[k];
    const dt_local *grad = dt_tensor_grad(c->x);
    const dt_layout *home = NULL;
    DT_REQUIRE(grad->array.storage, DT_ERR_STATE,
               "no gradient reached the input of stage %d: its loss does not depend on it",
               s->index);
    DT_TRY(boundary(r, k, true, &home));
    DT_TRY(dt_move(1, grad, &home, 0, "pipeline gradient", DT_TAG_GRADIENT, &c->dx));
    dt_tensor_clear_grad(c->x);
    dti_stage *before = stage_at(r->p, s->index - 1);
    if (before) {
        before->cell[k].dy = c->dx;
        c->dx = (dt_local){0};
    }
    return DT_OK;
}

static dt_status backward(run *r, dti_stage *s, int k, bool whole)
{
    dti_cell *c = &s->cell[k];
    DT_TRY(dt_work_wait(&c->arriving));
    if (is_last(r->p, s))
        DT_TRY(loss_gradient(r, c));
    if (whole)
        DT_TRY(dt_backward_from(c->tape, 1, &c->y, &c->dy));
    else
        DT_TRY(dt_backward_input(c->tape, 1, &c->y, &c->dy));
    local_release(&c->dy);
    if (s->index > 0)
        DT_TRY(pass_back(r, s, k));
    if (whole)
        finish(r->p, c);
    return DT_OK;
}

static dt_status backward_weight(run *r, dti_stage *s, int k)
{
    DT_TRY(dt_backward_weight(s->cell[k].tape));
    finish(r->p, &s->cell[k]);
    return DT_OK;
}

/* ---- whole stages ---- */

/* All groups of fully_shard in a stage. */
static dt_status set_whole(dt_module *m, bool whole)
{
    void *arg = NULL;
    const dt_sharder *sharder = dt_module_sharder(m, &arg);
    if (sharder && sharder->unshard)
        DT_TRY(whole ? sharder->unshard(m, arg) : sharder->reshard(m, arg));
    for (int i = 0; i < dt_module_nchildren(m); i++)
        DT_TRY(set_whole(dt_module_child(m, i), whole));
    return DT_OK;
}

/* ---- the row ---- */

static dt_status act(run *r, dt_pp_action a)
{
    dti_stage *s = stage_at(r->p, a.stage);
    const int k = a.microbatch;
    switch (a.kind) {
    case DT_PP_F: return forward(r, s, k);
    case DT_PP_B: return backward(r, s, k, true);
    case DT_PP_I: return backward(r, s, k, false);
    case DT_PP_W: return backward_weight(r, s, k);
    case DT_PP_RECV_F: return receive_forward(r, s, k);
    case DT_PP_RECV_B: return receive_backward(r, s, k);
    case DT_PP_SEND_F: return send_to(r->p, s, false, dt_tensor_local(s->cell[k].y));
    case DT_PP_SEND_B: {
        const dt_status st = send_to(r->p, s, true, &s->cell[k].dx.array);
        local_release(&s->cell[k].dx);
        return st;
    }
    case DT_PP_UNSHARD: return set_whole(s->root, true);
    case DT_PP_RESHARD: return set_whole(s->root, false);
    case DT_PP_REDUCE_GRAD: return dt_module_reduce_grads(s->root);
    case DT_PP_NKINDS: break;
    }
    return DT_OK;
}

static dt_status traced(run *r, dt_pp_action a)
{
    char text[DT_PP_ACTION_TEXT];
    dt_trace *trace = dt_world_trace(dt_mesh_world(r->p->mesh));
    (void)dt_pp_action_print(a, text, sizeof text);
    dt_trace_record(trace, "pp", text, DT_TRACE_BEGIN, 0, 0);
    const dt_status st = act(r, a);
    dt_trace_record(trace, "pp", text, DT_TRACE_END, 0, 0);
    if (st != DT_OK)
        return dt_error_push(st, __FILE__, __LINE__, text);
    return DT_OK;
}

/* Forward only: one microbatch after the other, each through the stages in their order; that is one
 * order of events on all ranks together. */
static dt_status forward_only(run *r, int nmicrobatches)
{
    dt_pipeline *p = r->p;
    for (int k = 0; k < nmicrobatches; k++) {
        for (int i = 0; i < p->nstages; i++) {
            const int s = p->stage[i].index;
            if (s > 0 && p->owner[s - 1] != p->rank)
                DT_TRY(traced(r, (dt_pp_action){DT_PP_RECV_F, s, k, false}));
            DT_TRY(traced(r, (dt_pp_action){DT_PP_F, s, k, false}));
            if (s < p->lowered->nstages - 1 && p->owner[s + 1] != p->rank)
                DT_TRY(traced(r, (dt_pp_action){DT_PP_SEND_F, s, k, false}));
            finish(p, &p->stage[i].cell[k]);
        }
    }
    return DT_OK;
}

static dt_status run_row(run *r)
{
    const dt_pp_row *row = dt_pipeline_row(r->p);
    for (int64_t i = 0; i < row->count; i++)
        DT_TRY(traced(r, row->action[i]));
    DT_TRY(dti_pp_reduce_ties(r->p));
    return DT_OK;
}

static dt_status finish_sends(dt_pipeline *p)
{
    for (int i = 0; i < p->nstages; i++)
        for (int back = 0; back < 2; back++)
            DT_TRY(dt_work_wait(&p->stage[i].sent[back]));
    return DT_OK;
}

void dti_pp_abandon(dt_pipeline *p)
{
    for (int i = 0; i < p->nstages; i++) {
        dti_stage *s = &p->stage[i];
        s->sent[0] = s->sent[1] = NULL;
        for (int k = 0; s->cell && k < p->lowered->nmicrobatches; k++) {
            s->cell[k].arriving = NULL;
            finish(p, &s->cell[k]);
            local_release(&s->cell[k].dx);
        }
    }
}

dt_status dt_pipeline_run(dt_pipeline *p, const dt_pipeline_pass *pass, double *loss_out)
{
    double loss = 0;
    run r = {p, pass, &loss};
    DT_REQUIRE(pass->samples > 0 && pass->at_once > 0, DT_ERR_ARG,
               "%lld samples, %lld at once; both must be positive", (long long)pass->samples,
               (long long)pass->at_once);
    const int64_t n = (pass->samples + pass->at_once - 1) / pass->at_once;
    const bool most =
        pass->tape.no_grad ? n <= p->lowered->nmicrobatches : n == p->lowered->nmicrobatches;
    DT_REQUIRE(most, DT_ERR_ARG, "%lld microbatches, but the schedule was made for %d",
               (long long)n, p->lowered->nmicrobatches);
    if (!pass->tape.no_grad)
        p->peak_live = 0;
    dt_status st = pass->tape.no_grad ? forward_only(&r, (int)n) : run_row(&r);
    if (st == DT_OK)
        st = finish_sends(p);
    if (st != DT_OK) {
        dti_pp_abandon(p);
        return dt_error_push(st, __FILE__, __LINE__, __func__);
    }
    *loss_out = loss;
    return DT_OK;
}
