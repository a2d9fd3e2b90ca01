/* examples/train_plan.c - log.plan: what a step will move, said before the first one. Rank 0 lays
 * the run out once more, on meta, where tensors have shapes and no bytes, in a fake world of as
 * many ranks. Read first: tp/dt_tp.h (dt_tp_print). */
#include "examples/train_pipeline.h"

#include <stdio.h>

static void print_line(void *arg, const char *line)
{
    (void)arg;
    (void)printf("%s\n", line);
}

static dt_status input(train_session *s, dt_shape shape, const char *layout, dt_dtype dtype,
                       dt_tensor **out)
{
    const dt_layout *l = NULL;
    DT_TRY(dt_mesh_layout_text(s->mesh, shape, layout, &l));
    DT_TRY(dt_tensor_create(l, dtype, DT_TAG_ACTIVATION, out));
    dt_tensor_set_requires_grad(*out, dt_dtype_is_float(dtype));
    return DT_OK;
}

/* One microbatch through one stage; a model in one piece is the first and the last. */
static dt_status print_stage(train_session *s, dt_module *m, bool first)
{
    const train_config *c = s->config;
    const bool last = dt_module_find(m, "lm_head") != NULL;
    const int64_t most = train_microbatch(c);
    const int64_t at_once = most < c->global_batch ? most : c->global_batch;
    const dt_shape ids = DT_SHAPE(at_once, c->seq_len);
    dt_values in = {.n = 1 + last};
    dt_status st = DT_OK;
    dt_model_set_loss(m, at_once * c->seq_len, c->loss_chunk);
    if (first)
        DT_TRY_TO(done, st, input(s, ids, train_batch_layout, DT_I32, &in.value[0]));
    else
        DT_TRY_TO(done, st,
                  input(s, DT_SHAPE(at_once, c->seq_len, s->facts.hidden), s->boundary,
                        c->param_dtype, &in.value[0]));
    if (last)
        DT_TRY_TO(done, st, input(s, ids, train_batch_layout, DT_I32, &in.value[1]));
    DT_TRY_TO(done, st, dt_tp_print(m, s->mesh, &in, print_line, NULL));
done:
    dt_tensor_destroy(&in.value[0]);
    dt_tensor_destroy(&in.value[1]);
    return st;
}

static dt_status print_rank(train_session *s)
{
    DT_TRY(train_session_lay_out(s, (dt_device){DT_META, 0}));
    DT_TRY(dt_module_materialize(s->model, s->mesh, s->config->seed));
    if (!s->pipe)
        return print_stage(s, s->model, true);
    for (int i = 0; i < dt_pipeline_nstages(s->pipe); i++) {
        const int number = dt_pipeline_stage_number(s->pipe, i);
        (void)printf("stage %d, on rank %d\n", number, dt_world_rank(s->world));
        DT_TRY(print_stage(s, dt_pipeline_stage(s->pipe, i), number == 0));
    }
    return DT_OK;
}

dt_status train_plan_print(const train_config *c, int nranks)
{
    (void)printf("a microbatch, forward and backward, and the gradients of a step:\n");
    for (int p = 0; p < c->pp; p++) {
        const dt_world_options fake = {
            .backend = DT_BACKEND_FAKE, .fake_rank = p * (nranks / c->pp), .fake_size = nranks};
        train_session s = {.config = c};
        DT_TRY(dt_world_create(&fake, &s.world));
        dt_world *world = s.world;
        const dt_status st = print_rank(&s);
        train_session_destroy(&s);
        dt_world_destroy(&world);
        DT_TRY(st);
    }
    return DT_OK;
}
