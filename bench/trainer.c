/* bench/trainer.c - see bench/trainer.h. */
#include "bench/trainer.h"

#include "fsdp/dt_fsdp.h"
#include "metrics/dt_metrics.h"
#include "models/dt_models.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const trainer_shape shapes[] = {{"gpt2-124m", false, 50304, 768, 3072, 12, 12, 12, 4, 256},
                                       {"llama-25m", true, 3072, 512, 1376, 7, 8, 8, 4, 1024},
                                       {"llama-110m", true, 32000, 768, 2048, 10, 12, 4, 2, 1024},
                                       {"tiny", true, 128, 64, 128, 2, 4, 2, 2, 32}};

const trainer_shape *trainer_shape_named(const char *name)
{
    for (int i = 0; i < DT_COUNT(shapes); i++)
        if (!strcmp(name, shapes[i].name))
            return &shapes[i];
    return NULL;
}

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

/* Token i of the batch is 7919 i; all or this rank's. */
static dt_status tokens(const trainer *t, int64_t lo, int64_t hi, dt_tensor **out)
{
    const int64_t n = (hi - lo) * t->s->seq;
    const bool data_parallel = t->way == TRAINER_FSDP || t->way == TRAINER_REPLICATED;
    const dt_layout *layout = NULL;
    int32_t *ids = calloc((size_t)n, sizeof *ids);
    DT_REQUIRE(ids, DT_ERR_NOMEM, "ids");
    for (int64_t i = 0; i < n; i++)
        ids[i] = (int32_t)((lo * t->s->seq + i) * 7919 % t->s->vocab);
    dt_status st = dt_mesh_layout_text(t->stage_mesh, DT_SHAPE(hi - lo, t->s->seq),
                                       data_parallel ? "S(0)@dp_shard" : "", &layout);
    if (st == DT_OK)
        st = dt_distribute(layout, DT_I32, ids, out);
    free(ids);
    return st;
}

static dt_status read_tokens(void *arg, int64_t lo, int64_t hi, dt_tensor **ids,
                             dt_tensor **targets)
{
    if (ids)
        DT_TRY(tokens(arg, lo, hi, ids));
    if (targets)
        DT_TRY(tokens(arg, lo, hi, targets));
    return DT_OK;
}

/* This rank's stage. */
static dt_status cut(trainer *t)
{
    const dt_model_facts facts = {.architecture =
                                      t->s->llama ? "LlamaForCausalLM" : "GPT2LMHeadModel"};
    const dt_pipeline_options options = {.chain = dt_model_chain(&facts),
                                         .split = t->split,
                                         .dtype = t->dtype,
                                         .hidden = t->s->hidden,
                                         .boundary = ""};
    dt_pp_schedule *schedule = NULL;
    dt_module *whole = t->model;
    t->model = NULL;
    dt_status st = dt_pp_schedule_create("1f1b", dt_world_size(t->world), (int)t->samples, 0,
                                         &schedule);
    if (st == DT_OK)
        st = dt_pipeline_split(&whole, t->mesh, "pp", schedule, &options, &t->pipeline);
    dt_pp_schedule_destroy(&schedule);
    dt_module_destroy(&whole);
    DT_TRY(st);
    t->stage_mesh = dt_pipeline_mesh(t->pipeline);
    t->model = dt_pipeline_stage(t->pipeline, 0);
    return DT_OK;
}

static dt_status shard(trainer *t)
{
    const dt_fsdp_options policy = {
        .reshard = dt_world_size(t->world) == 1 ? DT_RESHARD_NEVER : DT_RESHARD_DEFAULT,
        .param_dtype = t->dtype,
        .output_dtype =
            t->pipeline && !dt_pipeline_stage_is_last(t->pipeline, 0) ? t->dtype : DT_F32};
    for (int i = 0; i < dt_model_nlayers(t->model); i++)
        DT_TRY(dt_fully_shard(dt_model_layer(t->model, i), t->stage_mesh, "dp_shard", &policy));
    return dt_fully_shard(t->model, t->stage_mesh, "dp_shard", &policy);
}

static dt_status lay_out(trainer *t)
{
    const int n = dt_world_size(t->world);
    const bool is_tp = t->way == TRAINER_TP || t->way == TRAINER_SP;
    dt_tp_plan plan = (t->s->llama ? dt_llama_tp_plan : dt_gpt2_tp_plan)(DT_TP_VOCAB_SPLIT,
                                                                         t->way == TRAINER_SP);
    if (t->way == TRAINER_PP)
        DT_TRY(cut(t));
    if (is_tp && n > 1)
        DT_TRY(dt_parallelize_module(t->model, t->stage_mesh, "tp", &plan));
    if (t->way == TRAINER_REPLICATED)
        return dt_replicate(t->model, t->stage_mesh, "dp_shard", 0);
    return shard(t);
}

dt_status trainer_create(trainer *t, dt_world *world, dt_device device)
{
    const int n = dt_world_size(world);
    const bool is_pp = t->way == TRAINER_PP, is_tp = t->way == TRAINER_TP || t->way == TRAINER_SP;
    const dt_mesh_options flat = {.axes = {{"dp_shard", is_tp ? 1 : n}, {"tp", is_tp ? n : 1}}};
    const dt_mesh_options deep = {.axes = {{"pp", n}, {"dp_shard", 1}, {"tp", 1}}};
    t->world = world;
    t->samples = t->samples > 0 ? t->samples : t->s->batch;
    DT_TRY(dt_mesh_create(world, device, is_pp ? &deep : &flat, &t->mesh));
    t->stage_mesh = t->mesh;
    DT_TRY(make_model(t->s, &t->model));
    DT_TRY(lay_out(t));
    DT_TRY(dt_module_materialize(t->model, t->stage_mesh, 1));
    dt_model_set_loss(t->model, t->samples * t->s->seq, 0);
    DT_TRY(dt_adamw_create(t->model, &(dt_adamw_options){.weight_decay = 0.1}, &t->optim));
    if (is_pp)
        return DT_OK;
    t->in.n = 2;
    DT_TRY(read_tokens(t, 0, t->samples, &t->in.value[0], &t->in.value[1]));
    return dt_tape_create(t->mesh, NULL, &t->tape);
}

void trainer_destroy(trainer *t)
{
    dt_tape_destroy(&t->tape);
    dt_optim_destroy(&t->optim);
    dt_tensor_destroy(&t->in.value[0]);
    dt_tensor_destroy(&t->in.value[1]);
    if (!t->pipeline)
        dt_module_destroy(&t->model);
    dt_pipeline_destroy(&t->pipeline);
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
    dt_status st = dt_mesh_comm_named(t->stage_mesh, "dp_shard,tp", 0, &comm);
    if (st == DT_OK)
        st = dt_global_norm_sync(n, grads, comm, &norm, NULL);
    free(grads);
    if (st == DT_OK && t->pipeline) {
        norm *= norm;
        st = dt_all_reduce_f64_sync(dt_world_comm(t->world), &norm, 1, DT_REDUCE_SUM);
        norm = sqrt(norm);
    }
    mark(t, "norm", DT_TRACE_END);
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
    if (t->pipeline) {
        const dt_pipeline_pass pass = {.samples = t->samples,
                                       .at_once = 1,
                                       .seq_len = t->s->seq,
                                       .read = read_tokens,
                                       .arg = t};
        double terms = 0;
        DT_TRY(dt_pipeline_run(t->pipeline, &pass, &terms));
        *loss = (float)terms;
        return trainer_update(t);
    }
    DT_TRY(trainer_forward(t, &y));
    DT_TRY(dt_array_read(dt_tensor_local(y), loss, 1));
    DT_TRY(trainer_backward(t, y));
    return trainer_update(t);
}

double trainer_flops(const trainer *t)
{
    const trainer_shape *s = t->s;
    const double tokens = (double)(t->samples * s->seq);
    return tokens * (6 * (double)dt_flops_matmul_params(t->model) +
                     6 * (double)(s->layers * s->hidden * s->seq));
}
