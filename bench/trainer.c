/* bench/trainer.c - see bench/trainer.h. */
#include "bench/trainer.h"

#include "fsdp/dt_fsdp.h"
#include "metrics/dt_metrics.h"
#include "models/dt_models.h"

#include <stdlib.h>

/* ---- set-up ---- */

static dt_status make_model(const trainer_shape *s, dt_module **model)
{
    const dt_llama_config llama = {.vocab_size = s->vocab,
                                   .hidden_size = s->hidden,
                                   .intermediate_size = s->inner,
                                   .num_hidden_layers = s->layers,
                                   .num_attention_heads = s->heads,
                                   .num_key_value_heads = s->kv_heads,
                                   .head_dim = s->hidden / s->heads,
                                   .max_position_embeddings = s->seq,
                                   .rope.theta = 1e4,
                                   .rms_norm_eps = 1e-5,
                                   .initializer_range = 0.02};
    const dt_gpt2_config gpt2 = {.vocab_size = s->vocab,
                                 .n_embd = s->hidden,
                                 .n_layer = s->layers,
                                 .n_head = s->heads,
                                 .n_inner = s->inner,
                                 .n_positions = s->seq,
                                 .layer_norm_epsilon = 1e-5,
                                 .initializer_range = 0.02};
    return s->llama ? dt_llama_create(&llama, model) : dt_gpt2_create(&gpt2, model);
}

static dt_status make_batch(trainer *t)
{
    const int64_t n = t->s->batch * t->s->seq;
    const dt_layout *layout = NULL;
    int32_t *ids = calloc((size_t)n, sizeof *ids);
    DT_REQUIRE(ids, DT_ERR_NOMEM, "ids");
    for (int64_t i = 0; i < n; i++)
        ids[i] = (int32_t)(i * 7919 % t->s->vocab);
    t->in.n = 2;
    dt_status st = dt_mesh_layout_text(t->mesh, DT_SHAPE(t->s->batch, t->s->seq), "", &layout);
    for (int i = 0; i < 2 && st == DT_OK; i++)
        st = dt_distribute(layout, DT_I32, ids, &t->in.value[i]);
    free(ids);
    return st;
}

dt_status trainer_create(trainer *t, dt_world *world, dt_device device)
{
    const dt_fsdp_options policy = {.reshard = DT_RESHARD_NEVER, .param_dtype = t->dtype};
    DT_TRY(dt_mesh_create(world, device, &(dt_mesh_options){.axes = {{"dp_shard", 1}}}, &t->mesh));
    DT_TRY(make_model(t->s, &t->model));
    for (int i = 0; i < dt_model_nlayers(t->model); i++)
        DT_TRY(dt_fully_shard(dt_model_layer(t->model, i), t->mesh, "dp_shard", &policy));
    DT_TRY(dt_fully_shard(t->model, t->mesh, "dp_shard", &policy));
    DT_TRY(dt_module_materialize(t->model, t->mesh, 1));
    dt_model_set_loss(t->model, t->s->batch * t->s->seq, 0);
    DT_TRY(make_batch(t));
    DT_TRY(dt_adamw_create(t->model, &(dt_adamw_options){.weight_decay = 0.1}, &t->optim));
    return dt_tape_create(t->mesh, NULL, &t->tape);
}

void trainer_destroy(trainer *t)
{
    dt_tape_destroy(&t->tape);
    dt_optim_destroy(&t->optim);
    dt_tensor_destroy(&t->in.value[0]);
    dt_tensor_destroy(&t->in.value[1]);
    dt_module_destroy(&t->model);
    dt_mesh_destroy(&t->mesh);
}

/* ---- a step ---- */

static void mark(trainer *t, const char *name, dt_trace_phase phase)
{
    if (t->trace)
        dt_trace_record(t->trace, "step", name, phase, 0, 0);
}

static dt_status clip_and_update(trainer *t)
{
    int n = 0;
    double norm = 0;
    dt_param *const *p = dt_module_params(t->model, &n);
    dt_local *grads = calloc((size_t)n + 1, sizeof *grads);
    DT_REQUIRE(grads, DT_ERR_NOMEM, "%d gradients", n);
    for (int i = 0; i < n; i++)
        grads[i] = *dt_tensor_grad(p[i]->tensor);
    mark(t, "norm", DT_TRACE_BEGIN);
    dt_comm *comm = NULL;
    dt_status st = dt_mesh_comm(t->mesh, 1, (const uint8_t[]){0}, 0, &comm);
    if (st == DT_OK)
        st = dt_global_norm_sync(n, grads, comm, &norm, NULL);
    mark(t, "norm", DT_TRACE_END);
    free(grads);
    DT_TRY(st);
    mark(t, "adamw", DT_TRACE_BEGIN);
    DT_TRY(dt_optim_step(t->optim, 1e-4, dt_clip_factor(norm, 1)));
    mark(t, "adamw", DT_TRACE_END);
    return DT_OK;
}

dt_status trainer_forward(trainer *t, dt_tensor **loss_out)
{
    dt_tape_reset(t->tape, NULL);
    *loss_out = dt_module_call(t->model, t->tape, &t->in).value[0];
    return dt_tape_status(t->tape);
}

dt_status trainer_backward(trainer *t, dt_tensor *loss)
{
    DT_TRY(dt_backward(t->tape, loss));
    return dt_module_reduce_grads(t->model);
}

dt_status trainer_update(trainer *t)
{
    DT_TRY(clip_and_update(t));
    dt_module_clear_grads(t->model);
    return DT_OK;
}

dt_status trainer_step(trainer *t, float *loss)
{
    dt_tensor *y = NULL;
    DT_TRY(trainer_forward(t, &y));
    DT_TRY(dt_array_read(dt_tensor_local(y), loss, 1));
    DT_TRY(trainer_backward(t, y));
    return trainer_update(t);
}

double trainer_flops(const trainer *t)
{
    const trainer_shape *s = t->s;
    const double tokens = (double)(s->batch * s->seq);
    return tokens * (6 * (double)dt_flops_matmul_params(t->model) +
                     6 * (double)(s->layers * s->hidden * s->seq));
}
