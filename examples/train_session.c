/* examples/train_session.c - see examples/train_session.h.
 *
 * Data parallelism is nothing but placements: the batch is S(0)@dp_replicate>dp_shard, parameters
 * in use are R on these axes, so gradients arise as P; fully_shard brings them to the shards on
 * dp_shard after each layer's backward, dt_module_reduce_grads the rest, P -> R on dp_replicate, in
 * one coalesced all-reduce a step. Tensor parallelism is a plan of placements applied before. With
 * a pipeline, the model of a rank is its stages; what follows is done to each of them, and a
 * schedule runs microbatches (examples/train_pipeline.c). Batches come from
 * examples/train_data.c. */
#include "examples/train_pipeline.h"

#include "checkpoint/dt_safetensors.h"
#include "fsdp/dt_fsdp.h"
#include "metrics/dt_metrics.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- set-up, in the order of composition ---- */

/* The stages of this rank, or the model. */
static int nparts(const train_session *s)
{
    return s->pipe ? dt_pipeline_nstages(s->pipe) : 1;
}

static dt_module *part(train_session *s, int i)
{
    return s->pipe ? dt_pipeline_stage(s->pipe, i) : s->model;
}

/* All parameters, while the model is in one piece; they get the type f64 if that is asked for. */
static dt_status list_params(train_session *s)
{
    int n = 0;
    dt_param *const *p = dt_module_params(s->model, &n);
    s->elements = dt_module_count(s->model);
    s->matmul_params = dt_flops_matmul_params(s->model);
    s->param = calloc((size_t)n + 1, sizeof *s->param);
    DT_REQUIRE(s->param, DT_ERR_NOMEM, "%d parameters", n);
    for (int i = 0; i < n; i++) {
        s->param[i] = (train_param){strdup(p[i]->name), dt_shape_count(p[i]->shape), NULL};
        s->nparams++;
        p[i]->dtype = s->config->f64 ? DT_F64 : p[i]->dtype;
        DT_REQUIRE(s->param[i].name, DT_ERR_NOMEM, "a name");
    }
    return DT_OK;
}

/* Those that are here and counted here. */
static void find_params(train_session *s)
{
    int n = 0;
    dt_param *const *p = dt_module_params(s->model, &n);
    for (int i = 0; i < s->nparams; i++)
        for (int k = 0; k < n; k++)
            if (!p[k]->copy && strcmp(p[k]->name, s->param[i].name) == 0)
                s->param[i].here = p[k];
}

/* The mesh, whose tp axis the model's heads may want as two, and the model's placements on it. */
static dt_status parallelize(train_session *s, dt_device device)
{
    const train_config *c = s->config;
    const dt_tp_vocab vocab = c->loss_parallel ? DT_TP_VOCAB_SPLIT : DT_TP_VOCAB_GATHERED;
    const char *tp = NULL;
    dt_mesh_options axes = {
        .axes = {{"pp", c->pp}, {"dp_replicate", c->dp_replicate}, {"dp_shard", c->dp_shard}}};
    DT_TRY(dt_tp_axes(s->facts.heads, s->facts.kv_heads, c->tp, &axes.axes[3], &tp));
    DT_TRY(dt_mesh_create(s->world, device, &axes, &s->whole));
    s->mesh = s->whole;
    if (c->pp > 1)
        DT_TRY(train_pipeline_cut(s, tp));
    dt_tp_plan plan = dt_model_tp_plan(&s->facts, vocab, c->sp);
    plan.overlap = c->tp_overlap;
    plan.stage = plan.stage || c->pp > 1;
    for (int i = 0; c->tp > 1 && i < nparts(s); i++)
        DT_TRY(dt_parallelize_module(part(s, i), s->mesh, tp, &plan));
    return DT_OK;
}

/* Every layer a group, and the rest: embedding, last norm, head. On axes of size 1 these only
 * cast. In a pipeline, what is not freed by layers is gathered and freed by the schedule, and
 * gradients are reduced once a stage. */
static dt_status shard(train_session *s, int i)
{
    const train_config *c = s->config;
    dt_module *m = part(s, i);
    const bool goes_on = s->pipe && !dt_pipeline_stage_is_last(s->pipe, i);
    const dt_fsdp_options policy = {.replicate_axes = "dp_replicate",
                                    .reshard = c->reshard_size            ? DT_RESHARD_GROUP
                                               : c->reshard_after_forward ? DT_RESHARD_DEFAULT
                                               : s->pipe                  ? DT_RESHARD_STEP
                                                                          : DT_RESHARD_NEVER,
                                    .reshard_size = c->reshard_size,
                                    .reduce = s->pipe ? DT_REDUCE_STEP : DT_REDUCE_SHARDS_EACH,
                                    .param_dtype = c->param_dtype,
                                    .output_dtype = goes_on ? c->param_dtype : DT_F32,
                                    .reduce_dtype = c->reduce_dtype,
                                    .store = c->offload_params ? s->store : NULL};
    for (int k = 0; k < dt_model_nlayers(m); k++)
        DT_TRY(dt_fully_shard(dt_model_layer(m, k), s->mesh, "dp_shard", &policy));
    return dt_fully_shard(m, s->mesh, "dp_shard", &policy);
}

dt_status train_session_lay_out(train_session *s, dt_device device)
{
    const train_config *c = s->config;
    DT_TRY(train_config_check_ranks(c, dt_world_size(s->world)));
    DT_TRY(dt_model_create(c->model_config, &s->model, &s->facts));
    DT_TRY(list_params(s));
    DT_TRY(parallelize(s, device));
    if ((c->offload_dir || c->offload_host) && device.kind != DT_META)
        DT_TRY(dt_world_agree_sync(s->world, dt_store_create(dt_mesh_heap(s->mesh), c->offload_dir,
                                                             dt_world_rank(s->world), &s->store)));
    for (int i = 0; i < nparts(s); i++) {
        for (int k = 0; k < dt_model_nlayers(part(s, i)); k++)
            dt_recompute(dt_model_layer(part(s, i), k), c->recompute);
        DT_TRY(shard(s, i));
    }
    return DT_OK;
}

static dt_status build(train_session *s)
{
    const train_config *c = s->config;
    s->scaler = c->param_dtype == DT_F16 ? dt_scaler_start() : (dt_scaler){.scale = 1};
    dt_device device;
    DT_TRY(dt_world_device(s->world, c->device, &device));
    DT_TRY(train_session_lay_out(s, device));
    DT_REQUIRE(c->seq_len <= s->facts.max_positions, DT_ERR_ARG,
               "train.seq_len=%lld is longer than the model's %lld positions",
               (long long)c->seq_len, (long long)s->facts.max_positions);
    DT_TRY(train_data_open(s)); /* before the work of making weights */
    DT_TRY(dt_module_materialize(s->model, s->mesh, c->seed));
    if (c->model_init)
        DT_TRY(dt_module_load(s->model, c->model_init));
    find_params(s);
    dt_adamw_options adamw = c->adamw;
    adamw.store = s->store;
    DT_TRY(dt_adamw_create(s->model, &adamw, &s->optim));
    DT_TRY(dt_tape_create(s->mesh, NULL, &s->tape));
    const size_t most = (size_t)(c->global_batch * c->seq_len); /* of one rank: at most the batch */
    s->ids = malloc(most * sizeof *s->ids);
    s->targets = malloc(most * sizeof *s->targets);
    DT_REQUIRE(s->ids && s->targets, DT_ERR_NOMEM, "a batch of %zu tokens", most);
    return DT_OK;
}

dt_status train_session_create(const train_config *config, dt_world *world,
                               train_session *session_out)
{
    train_session s = {.config = config, .world = world};
    const dt_status st = dt_world_agree_sync(world, build(&s));
    if (st != DT_OK)
        train_session_destroy(&s);
    else
        *session_out = s;
    return st;
}

void train_session_destroy(train_session *s)
{
    dt_tape_destroy(&s->tape);
    dt_dataset_close(&s->data);
    dt_dataset_close(&s->eval_data);
    dt_optim_destroy(&s->optim);
    if (s->pipe)
        dt_pipeline_destroy(&s->pipe);
    else
        dt_module_destroy(&s->model);
    dt_store_destroy(&s->store);
    dt_mesh_destroy(&s->whole);
    for (int i = 0; i < s->nparams; i++)
        free(s->param[i].name);
    free(s->param);
    free(s->ids);
    free(s->targets);
    *s = (train_session){0};
}

/* ---- a step ---- */

/* Forward of one microbatch; adds this rank's term of the loss. */
static dt_status forward(train_session *s, train_place at, int64_t lo, int64_t hi, bool no_grad,
                         train_micro *m, double *loss)
{
    const dt_tape_options options = {.no_grad = no_grad,
                                     .no_dropout = no_grad,
                                     .seed = s->config->seed,
                                     .step = s->step,
                                     .first_sample = lo,
                                     .tally = &s->tally};
    dt_tape_reset(s->tape, &options);
    DT_TRY(train_session_read(s, at, lo, hi, m));
    const dt_values in = {.n = m->documents ? 4 : 2,
                          .value = {m->ids, m->targets, m->positions, m->documents}};
    const dt_values out = dt_module_call(s->model, s->tape, &in);
    m->logits_or_loss = out.value[0];
    DT_TRY(dt_tape_status(s->tape));
    double term = 0;
    DT_TRY(dt_tensor_local_item_sync(out.value[0], &term));
    *loss += term;
    return DT_OK;
}

/* Losses are P over data parallelism, and the last pipeline stage's: their sum is one scalar
 * all-reduce a step. */
static dt_status sum_loss(train_session *s, double *loss)
{
    dt_comm *dp = NULL;
    DT_TRY(dt_mesh_comm_named(s->whole, "pp,dp_replicate,dp_shard", 0, &dp));
    DT_TRY(dt_all_reduce_f64_sync(dp, loss, 1, DT_REDUCE_SUM));
    return DT_OK;
}

static dt_tensor *scaled(train_session *s, dt_tensor *loss)
{
    return s->scaler.scale == 1 ? loss : dt_scale(s->tape, loss, s->scaler.scale);
}

/* All microbatches one after the other, each forward and backward. */
static dt_status passes(train_session *s, train_place at, bool no_grad, double *loss)
{
    const int64_t samples = s->config->global_batch, at_once = train_microbatch(s->config);
    for (int64_t lo = 0; lo < samples; lo += at_once) {
        train_micro m = {0};
        dt_status st =
            forward(s, at, lo, lo + at_once < samples ? lo + at_once : samples, no_grad, &m, loss);
        if (st == DT_OK && !no_grad)
            st = dt_backward(s->tape, scaled(s, m.logits_or_loss));
        train_micro_release(&m);
        if (st != DT_OK)
            return dt_error_push(st, __FILE__, __LINE__, __func__);
    }
    dt_tape_reset(s->tape, NULL);
    return DT_OK;
}

dt_status train_passes(train_session *s, train_place at, bool no_grad, double *loss, int64_t *valid)
{
    DT_TRY(train_count_valid(s, at, valid));
    for (int i = 0; i < nparts(s); i++)
        dt_model_set_loss(part(s, i), *valid, s->config->loss_chunk);
    *loss = 0;
    DT_TRY(s->pipe ? train_pipeline_passes(s, at, no_grad, loss) : passes(s, at, no_grad, loss));
    DT_TRY(sum_loss(s, loss));
    return DT_OK;
}

dt_status train_gradient_norm(train_session *s, train_result *r)
{
    const int n = s->nparams;
    dt_comm *all = dt_world_comm(s->world);
    dt_local *grads = calloc((size_t)n, sizeof *grads);
    DT_REQUIRE(grads, DT_ERR_NOMEM, "%d gradients", n);
    for (int i = 0; i < n; i++)
        if (s->param[i].here)
            grads[i] = *dt_tensor_grad(s->param[i].here->tensor); /* borrowed */
    const dt_status st = dt_global_norm_sync(n, grads, all, &r->grad_norm, r->param_grad_norm);
    free(grads);
    return st;
}

/* Norms as they would be without the loss scale; whether the gradients are any good. */
static dt_status undo_scale(train_session *s, train_result *r, double *factor, bool *apply)
{
    if (s->config->param_dtype != DT_F16)
        return DT_OK;
    DT_TRY(dt_scaler_update(&s->scaler, r->grad_norm, factor, apply));
    for (int i = 0; r->param_grad_norm && i < s->nparams; i++)
        r->param_grad_norm[i] *= *factor;
    r->grad_norm *= *factor;
    return DT_OK;
}

dt_status train_session_step(train_session *s, train_result *r)
{
    const train_config *c = s->config;
    s->tally = (dt_tally){0};
    DT_TRY(train_passes(s, (train_place){s->data, s->position}, false, &r->loss, &r->valid));
    if (!s->pipe) /* which brings them home itself */
        DT_TRY(dt_module_reduce_grads(s->model));
    DT_TRY(train_gradient_norm(s, r));
    if (s->inspect)
        DT_TRY(s->inspect(s, s->inspect_arg));
    if (!isfinite(r->loss) || (!isfinite(r->grad_norm) && c->param_dtype != DT_F16))
        return train_find_bad(s, r);
    double unscale = 1;
    bool apply = true;
    DT_TRY(undo_scale(s, r, &unscale, &apply));
    r->skipped = !apply;
    r->lr = dt_schedule_lr(&c->schedule, s->step);
    r->tokens = c->global_batch * c->seq_len;
    if (r->valid > 0 && apply)
        DT_TRY(dt_optim_step(s->optim, r->lr, unscale * dt_clip_factor(r->grad_norm, c->max_norm)));
    dt_module_clear_grads(s->model);
    s->position = train_next_position(s, (train_place){s->data, s->position});
    s->step++;
    return DT_OK;
}

dt_status train_session_loss(train_session *s, int64_t position, double *loss_out)
{
    int64_t valid = 0;
    DT_TRY(train_passes(s, (train_place){s->data, position}, true, loss_out, &valid));
    return DT_OK;
}

dt_status train_session_eval(train_session *s, double *loss_out)
{
    train_place at = train_eval_place(s);
    double sum = 0, loss = 0;
    int64_t all = 0, valid = 0;
    for (int64_t i = 0; i < s->config->eval_steps; i++) {
        DT_TRY(train_passes(s, at, true, &loss, &valid));
        sum += loss * (double)valid;
        all += valid;
        at.position = train_next_position(s, at);
    }
    *loss_out = all > 0 ? sum / (double)all : 0;
    return DT_OK;
}

dt_status train_session_logits(train_session *s, int64_t position, int64_t n, float *logits)
{
    train_micro m = {0};
    if (s->pipe)
        return train_pipeline_logits(s, (train_place){s->data, position}, n, logits);
    dt_tape_reset(s->tape, &(dt_tape_options){.no_grad = true, .no_dropout = true});
    dt_status st = train_session_read(s, (train_place){s->data, position}, 0, n, &m);
    if (st == DT_OK) {
        const dt_values in = {.n = m.documents ? 4 : 1,
                              .value = {m.ids, NULL, m.positions, m.documents}};
        const dt_values out = dt_module_call(s->model, s->tape, &in);
        st = dt_tape_status(s->tape);
        if (st == DT_OK)
            st = dt_tensor_read_f32_sync(out.value[0], logits);
    }
    train_micro_release(&m);
    dt_tape_reset(s->tape, NULL);
    return st;
}
