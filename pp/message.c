/* pp/message.c - tensors between ranks. A message is a word and a tensor, with its skips; the word
 * is 0, or says that there is no tensor because a stage failed, and then the rest is only of the
 * right size.
 * So a failure travels in place of what is due, and every receive is matched.
 *
 * A message is waited for when its tensor is used; a send when the next one to the same side
 * begins, so that at most one copy of y and one of dx wait in each direction, and what it holds
 * goes as soon as it is done. Read first: pp/run.c. */
#include "pp/pipeline_internal.h"

static const char *label(bool back)
{
    return back ? "pipeline gradient" : "pipeline";
}

static dt_status new_word(const dt_pipeline *p, dt_array *out)
{
    return dt_array_create(dt_mesh_heap(p->mesh), DT_I32, DT_SHAPE(1), DT_TAG_COMM, out);
}

dt_status dti_pp_send(dti_run *r, dti_stage *s, int k, bool back)
{
    dti_cell *c = &s->cell[k];
    const int n = r->p->ntensors;
    dt_array word = {0};
    dt_local part[DTI_PP_TENSORS] = {{0}};
    const dt_array *list[1 + DTI_PP_TENSORS] = {&word};
    dt_status st = DT_OK;
    for (int i = 0; i < n; i++) {
        list[1 + i] = &part[i].array;
        if (!r->failed) {
            part[i].array = dt_array_share(back ? &c->dx[i].array : dt_tensor_local(c->y[i]));
            continue;
        }
        DT_TRY_TO(done, st, dti_pp_blank(r, k, i, back, DT_TAG_COMM, &part[i]));
        dt_array_zero(&part[i].array); /* nobody reads it */
    }
    if (back)
        dti_pp_release(c->dx);
    DT_TRY_TO(done, st, new_word(r->p, &word));
    dt_array_fill(&word, r->failed);
    DT_TRY_TO(done, st, dt_work_wait(&s->sent[back]));
    DT_TRY_TO(done, st,
              dt_send(r->p->line, r->p->owner[s->index + (back ? -1 : 1)], 1 + n, list, label(back),
                      &s->sent[back]));
done:
    dt_array_release(&word);
    dti_pp_release(part);
    return st;
}

dt_status dti_pp_receive(dti_run *r, const dti_stage *s, int k, bool back)
{
    dt_pipeline *p = r->p;
    dti_cell *c = &s->cell[k];
    dt_array *into[1 + DTI_PP_TENSORS] = {&c->word};
    DT_REQUIRE(p->received < p->slots, DT_ERR_STATE,
               "%d microbatches wait already, as many as the simulator has seen", p->slots);
    DT_TRY(new_word(p, &c->word));
    DT_TRY(back ? dti_pp_output_gradient(r, k, c) : dti_pp_input(r, k, NULL, c));
    for (int i = 0; i < p->ntensors; i++)
        into[1 + i] = back ? &c->dy[i].array : dt_tensor_local(c->x[i]);
    DT_TRY(dt_recv(p->line, p->owner[s->index + (back ? 1 : -1)], 1 + p->ntensors, into,
                   label(back), &c->arriving));
    p->received++;
    p->peak_received = p->received > p->peak_received ? p->received : p->peak_received;
    return DT_OK;
}

dt_status dti_pp_arrived(dti_run *r, dti_cell *c)
{
    int32_t word = 0;
    if (!c->arriving)
        return DT_OK;
    DT_TRY(dt_work_wait(&c->arriving));
    DT_TRY(dt_array_read(&c->word, &word, 1));
    dt_array_release(&c->word);
    r->p->received--;
    r->failed = r->failed || word != 0;
    return DT_OK;
}

dt_status dti_pp_end_sends(dt_pipeline *p, bool all)
{
    for (int i = 0; i < p->nstages; i++)
        for (int back = 0; back < 2; back++)
            if (all || dt_work_done(p->stage[i].sent[back]))
                DT_TRY(dt_work_wait(&p->stage[i].sent[back]));
    return DT_OK;
}
