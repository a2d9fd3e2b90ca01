/* pp/run.c - the executor: does what its row of the lowered schedule says, action by action.
 *
 *     RECV_F  begin to receive x          F  x -> y on a tape of the microbatch's own
 *     SEND_F  begin to send y             B  dy -> dx, and the weights' gradients; the tape goes
 *     RECV_B  begin to receive dy         I  dy -> dx; the tape stays for
 *     SEND_B  begin to send dx            W  the weights' gradients
 *
 * dt_pp_check has shown that even sends that wait at once would not deadlock. When an action fails,
 * the row is still gone through to its end, with nothing computed and a failure sent in place of
 * each tensor still due, so that nobody waits; then the ranks of the line agree on the error. Read
 * next: pp/stage.c, pp/message.c. */
#include "pp/pipeline_internal.h"

#include <stdio.h>
#include <stdlib.h>

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

/* ---- actions ---- */

static dt_status act(dti_run *r, dti_stage *s, dt_pp_action a)
{
    const int k = a.microbatch;
    switch (a.kind) {
    case DT_PP_F: return dti_pp_forward(r, s, k);
    case DT_PP_B: return dti_pp_backward(r, s, k, true);
    case DT_PP_I: return dti_pp_backward(r, s, k, false);
    case DT_PP_W: return dti_pp_backward_weight(r, s, k);
    case DT_PP_RECV_F: return dti_pp_receive(r, s, k, false);
    case DT_PP_RECV_B: return dti_pp_receive(r, s, k, true);
    case DT_PP_SEND_F: return dti_pp_send(r, s, k, false);
    case DT_PP_SEND_B: return dti_pp_send(r, s, k, true);
    case DT_PP_UNSHARD: return set_whole(s->root, true);
    case DT_PP_RESHARD: return set_whole(s->root, false);
    case DT_PP_REDUCE_GRAD: return dt_module_reduce_grads(s->root);
    case DT_PP_NKINDS: break;
    }
    return DT_OK;
}

/* After a failure: no message is left unmatched. */
static dt_status act_failed(dti_run *r, dti_stage *s, dt_pp_action a)
{
    if (dti_pp_is_comm(a.kind))
        return act(r, s, a);
    return dti_pp_computes(a.kind) ? dti_pp_arrived(r, &s->cell[a.microbatch]) : DT_OK;
}

/* When the peers cannot be reached, nothing can be sent to them. */
static bool is_final(dt_status st, dt_pp_action a)
{
    return st == DT_ERR_COMM || st == DT_ERR_TIMEOUT || dti_pp_is_comm(a.kind);
}

static dt_status step(dti_run *r, dt_pp_action a)
{
    dti_stage *s = dti_pp_stage(r->p, a.stage);
    char text[DT_PP_ACTION_TEXT], tapes[16];
    dt_trace *trace = dt_world_trace(dt_mesh_world(r->p->mesh));
    const dt_heap *heap = dt_mesh_heap(r->p->mesh);
    (void)dt_pp_action_print(a, text, sizeof text);
    dt_trace_record(trace, "pp", text, DT_TRACE_BEGIN, 0, 0);
    const dt_status st = r->failed ? act_failed(r, s, a) : act(r, s, a);
    dt_trace_record(trace, "pp", text, DT_TRACE_END, 0, 0);
    (void)snprintf(tapes, sizeof tapes, "%d", r->p->live);
    dt_trace_record(trace, "pp live", tapes, DT_TRACE_MOMENT, 0,
                    trace ? dt_heap_get_stats(heap).live[DT_TAG_ACTIVATION] : 0);
    if (st == DT_OK)
        return dti_pp_end_sends(r->p, false);
    if (is_final(st, a))
        return dt_error_push(st, __FILE__, __LINE__, text);
    r->own = DT_ERROR(st, "stage %d failed in %s: %s", a.stage, text, dt_error_trace());
    (void)snprintf(r->trace, sizeof r->trace, "%s", dt_error_trace());
    r->failed = true;
    return act_failed(r, s, a);
}

/* ---- rows ---- */

/* A send to, or a receive from, stage `other`, if that is on another rank. */
static dt_status step_between(dti_run *r, int other, dt_pp_action a)
{
    const dt_pipeline *p = r->p;
    if (other >= 0 && other < p->lowered->nstages && p->owner[other] != p->rank)
        DT_TRY(step(r, a));
    return DT_OK;
}

/* Forward only: one microbatch after the other, each through the stages in their order; that is one
 * order of events on all ranks together. */
static dt_status forward_only(dti_run *r)
{
    dt_pipeline *p = r->p;
    for (int k = 0; k < r->nmicrobatches; k++) {
        for (int i = 0; i < p->nstages; i++) {
            const int s = p->stage[i].index;
            DT_TRY(step_between(r, s - 1, (dt_pp_action){DT_PP_RECV_F, s, k, false}));
            DT_TRY(step(r, (dt_pp_action){DT_PP_F, s, k, false}));
            DT_TRY(step_between(r, s + 1, (dt_pp_action){DT_PP_SEND_F, s, k, false}));
            dti_pp_finish(p, &p->stage[i].cell[k]);
        }
    }
    return DT_OK;
}

static dt_status whole_row(dti_run *r)
{
    const dt_pp_row *row = dt_pipeline_row(r->p);
    for (int64_t i = 0; i < row->count; i++)
        DT_TRY(step(r, row->action[i]));
    return DT_OK;
}

/* This rank's own failure, if it has one. */
static dt_status own_failure(dti_run *r)
{
    if (r->own != DT_OK)
        return dt_error_restore(r->own, r->trace);
    return r->failed || r->pass->tape.no_grad ? DT_OK : dti_pp_check_ties(r->p);
}

static dt_status run(dti_run *r, dt_status valid)
{
    DT_TRY(dti_pp_rehearse(r, valid));
    DT_TRY(r->pass->tape.no_grad ? forward_only(r) : whole_row(r));
    DT_TRY(dti_pp_end_sends(r->p, true));
    DT_TRY(dt_comm_agree_sync(r->p->line, own_failure(r)));
    if (!r->pass->tape.no_grad)
        DT_TRY(dti_pp_reduce_ties(r->p));
    return DT_OK;
}

void dti_pp_abandon(dt_pipeline *p)
{
    for (int i = 0; i < p->nstages; i++) {
        dti_stage *s = &p->stage[i];
        s->sent[0] = s->sent[1] = NULL;
        for (int k = 0; s->cell && k < p->lowered->nmicrobatches; k++) {
            s->cell[k].arriving = NULL;
            dti_pp_finish(p, &s->cell[k]);
            dti_pp_release(s->cell[k].dx);
            dt_array_release(&s->cell[k].word);
        }
    }
    p->received = 0;
}

static dt_status check_pass(const dt_pipeline *p, const dt_pipeline_pass *pass, int *n_out)
{
    const int m = p->lowered->nmicrobatches;
    DT_REQUIRE(pass->samples > 0 && pass->at_once > 0, DT_ERR_ARG,
               "%lld samples, %lld at once; both must be positive", (long long)pass->samples,
               (long long)pass->at_once);
    const int64_t n = (pass->samples + pass->at_once - 1) / pass->at_once;
    DT_REQUIRE(pass->tape.no_grad ? n <= m : n == m, DT_ERR_ARG,
               "%lld microbatches, but the schedule was made for %d", (long long)n, m);
    *n_out = (int)n;
    return DT_OK;
}

dt_status dt_pipeline_run(dt_pipeline *p, const dt_pipeline_pass *pass, double *loss_out)
{
    dti_run r = {.p = p, .pass = pass};
    const dt_status valid = check_pass(p, pass, &r.nmicrobatches);
    if (!pass->tape.no_grad)
        p->peak_live = p->peak_received = 0;
    const dt_status st = run(&r, valid);
    if (st != DT_OK) {
        dti_pp_abandon(p);
        return dt_error_push(st, __FILE__, __LINE__, __func__);
    }
    *loss_out = r.loss;
    return DT_OK;
}
