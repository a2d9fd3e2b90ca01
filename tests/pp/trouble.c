/* tests/pp/trouble.c - see tests/pp/trouble.h. */
#include "tests/pp/trouble.h"

static bool hits(const witness *w, dt_tape *t, spot where)
{
    const trouble *x = w->trouble;
    return x->armed && x->stage == w->stage && x->spot == where &&
           (x->always || (!dt_mesh_rehearses(dt_tape_mesh(t)) &&
                          dt_tape_get_options(t)->first_sample == x->first_sample));
}

/* An op that no shapes allow. */
static dt_values spoil(dt_module *m, dt_tape *t, const dt_values *in, void *arg)
{
    witness *w = arg;
    dt_tensor *x = in->value[0];
    (void)m;
    w->after += w->trouble->armed && w->trouble->spot == IN_FORWARD &&
                w->stage > w->trouble->stage && !dt_mesh_rehearses(dt_tape_mesh(t)) &&
                dt_tape_get_options(t)->first_sample == w->trouble->first_sample;
    if (!hits(w, t, IN_FORWARD) || dt_tensor_is_failed(x) ||
        (w->trouble->samples && dt_tensor_layout(x)->shape.dim[0] != w->trouble->samples))
        return *in;
    return (dt_values){.n = 1, .value = {dt_matmul(t, x, x)}};
}

static dt_status spoil_backward(dt_module *m, dt_tape *t, void *arg)
{
    (void)m;
    DT_REQUIRE(!hits(arg, t, IN_BACKWARD), DT_ERR_DEVICE, "the backward is spoiled");
    return DT_OK;
}

static dt_status spoil_weights(dt_module *m, dt_tape *t, void *arg)
{
    (void)m;
    DT_REQUIRE(!hits(arg, t, IN_WEIGHTS), DT_ERR_DEVICE, "the weights' gradients are spoiled");
    return DT_OK;
}

dt_status trouble_watch(pipe *p, const trouble *x, witness *list)
{
    for (int i = 0; i < dt_pipeline_nstages(p->pipe); i++) {
        dt_module *layer = dt_model_layer(dt_pipeline_stage(p->pipe, i), 0);
        list[i] = (witness){x, dt_pipeline_stage_number(p->pipe, i), 0};
        const dt_lifetime hooks = {
            .pre_backward = spoil_backward, .post_backward_weight = spoil_weights, .arg = &list[i]};
        DT_TRY(dt_module_add_transform(layer, spoil, NULL, &list[i], NULL));
        DT_TRY(dt_module_add_lifetime(layer, &hooks));
    }
    return DT_OK;
}

int pipe_stages(const pipe *p)
{
    dt_pp_schedule *s = NULL;
    int n = -1;
    if (dt_pp_schedule_create(p->plan->schedule, p->plan->ranks, p->plan->m, 0, &s) == DT_OK)
        n = s->nstages;
    dt_pp_schedule_destroy(&s);
    return n;
}
