/* tests/pp/pipe.c - see tests/pp/pipe.h. */
#include "tests/pp/pipe.h"

#include "fsdp/dt_fsdp.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

const char *const pipe_schedules[PIPE_NSCHEDULES] = {
    "gpipe", "1f1b",           "looped-bfs", "interleaved", "zb-h1",    "zb-h2",
    "zbv",   "interleaved-zb", "v-half",     "v-min",       "dualpipev"};

static dt_status make_model(const pipe_plan *c, dt_module **out)
{
    const dt_llama_config config = {.vocab_size = c->vocab ? c->vocab : PIPE_VOCAB,
                                    .hidden_size = PIPE_HIDDEN,
                                    .intermediate_size = 6,
                                    .num_hidden_layers = c->layers,
                                    .num_attention_heads = 2,
                                    .num_key_value_heads = 2,
                                    .head_dim = 4,
                                    .max_position_embeddings = 16,
                                    .rope.theta = 1e4,
                                    .rms_norm_eps = 1e-5,
                                    .initializer_range = 0.3,
                                    .tie_word_embeddings = c->tied};
    DT_TRY(dt_llama_create(&config, out));
    return DT_OK;
}

static dt_status cut(pipe *p)
{
    const pipe_plan *c = p->plan;
    const dt_model_facts facts = {.architecture = "LlamaForCausalLM"};
    const dt_pipeline_options options = {.chain = dt_model_chain(&facts),
                                         .split = c->split,
                                         .hidden = c->hidden ? c->hidden : PIPE_HIDDEN,
                                         .dtype = c->half && !c->wide ? DT_BF16 : DT_F32,
                                         .boundary =
                                             c->sp ? "S(0)@dp_shard, S(1)@tp" : "S(0)@dp_shard",
                                         .max_unsharded = c->zero == 2 ? 2 : 0};
    dt_pp_schedule *s = NULL;
    DT_TRY(dt_pp_schedule_create(c->schedule, c->ranks, c->m, c->v, &s));
    const dt_status st = dt_pipeline_split(&p->model, p->mesh, "pp", s, &options, &p->pipe);
    dt_pp_schedule_destroy(&s);
    DT_TRY(st);
    return DT_OK;
}

static dt_status compose(pipe *p, dt_module *m, dt_mesh *mesh, bool last)
{
    const pipe_plan *c = p->plan;
    if (c->tp > 1) {
        dt_tp_plan plan = dt_llama_tp_plan(DT_TP_VOCAB_SPLIT, c->sp);
        plan.stage = true;
        DT_TRY(dt_parallelize_module(m, mesh, "tp", &plan));
    }
    const dt_fsdp_options policy = {.reshard = c->zero == 2 ? DT_RESHARD_STEP : DT_RESHARD_DEFAULT,
                                    .reduce = c->once ? DT_REDUCE_STEP : DT_REDUCE_SHARDS_EACH,
                                    .param_dtype = c->half ? DT_BF16 : DT_F32,
                                    .output_dtype =
                                        c->half && !c->wide && !last ? DT_BF16 : DT_F32};
    for (int i = 0; i < dt_model_nlayers(m); i++) {
        dt_recompute(dt_model_layer(m, i), c->recompute);
        if (c->zero)
            DT_TRY(dt_fully_shard(dt_model_layer(m, i), mesh, "dp_shard", &policy));
    }
    if (c->zero)
        DT_TRY(dt_fully_shard(m, mesh, "dp_shard", &policy));
    return DT_OK;
}

static dt_mesh *mesh_of(const pipe *p)
{
    return p->pipe ? dt_pipeline_mesh(p->pipe) : p->mesh;
}

static dt_module *all_of(const pipe *p)
{
    return p->pipe ? dt_pipeline_module(p->pipe) : p->model;
}

dt_status pipe_open(const pipe_plan *plan, dt_world *world, pipe *p)
{
    *p = (pipe){.plan = plan, .torn = -1};
    const dt_mesh_options axes = {
        .axes = {{"pp", -1},
                 {"dp_shard", plan->dp ? plan->dp : 1},
                 {"tp", plan->tp ? plan->tp : 1}},
    };
    DT_TRY(dt_mesh_create(world, test_device(world), &axes, &p->mesh));
    DT_TRY(make_model(plan, &p->model));
    if (!plan->whole)
        DT_TRY(cut(p));
    for (int i = 0; p->pipe && i < dt_pipeline_nstages(p->pipe); i++)
        DT_TRY(compose(p, dt_pipeline_stage(p->pipe, i), mesh_of(p),
                       dt_pipeline_stage_is_last(p->pipe, i)));
    DT_TRY(dt_module_materialize(all_of(p), mesh_of(p), 1));
    for (int i = 0; p->pipe && i < dt_pipeline_nstages(p->pipe); i++)
        dt_model_set_loss(dt_pipeline_stage(p->pipe, i), PIPE_SAMPLES * PIPE_SEQ, 0);
    if (plan->whole)
        dt_model_set_loss(p->model, PIPE_SAMPLES * PIPE_SEQ, 0);
    return DT_OK;
}

void pipe_close(pipe *p)
{
    dt_module_destroy(&p->model);
    dt_pipeline_destroy(&p->pipe);
    dt_mesh_destroy(&p->mesh);
}

/* ---- passes ---- */

dt_status pipe_tokens(pipe *p, int64_t lo, int64_t hi, dt_tensor **out)
{
    int32_t host[PIPE_SAMPLES * PIPE_SEQ];
    const dt_layout *layout = NULL;
    for (int64_t i = lo * PIPE_SEQ; i < hi * PIPE_SEQ; i++)
        host[i - lo * PIPE_SEQ] = (int32_t)(i * 7 % PIPE_VOCAB);
    DT_TRY(dt_mesh_layout_text(mesh_of(p), DT_SHAPE(hi - lo, PIPE_SEQ), "S(0)@dp_shard", &layout));
    DT_TRY(dt_distribute(layout, DT_I32, host, out));
    return DT_OK;
}

static dt_status read_tokens(void *arg, int64_t lo, int64_t hi, dt_tensor **ids,
                             dt_tensor **targets)
{
    pipe *p = arg;
    DT_REQUIRE(!targets || lo != p->torn, DT_ERR_IO, "these targets are torn");
    if (ids)
        DT_TRY(pipe_tokens(p, lo, hi, ids));
    if (targets)
        DT_TRY(pipe_tokens(p, lo, hi, targets));
    return DT_OK;
}

dt_pipeline_pass pipe_pass(pipe *p)
{
    const int64_t at_once = p->plan->at_once;
    return (dt_pipeline_pass){.samples = PIPE_SAMPLES,
                              .at_once = at_once ? at_once : PIPE_SAMPLES / p->plan->m,
                              .seq_len = PIPE_SEQ,
                              .loss = p->loss,
                              .read = read_tokens,
                              .arg = p};
}

dt_status pipe_run(pipe *p, double *loss)
{
    const dt_pipeline_pass pass = pipe_pass(p);
    DT_TRY(dt_pipeline_run(p->pipe, &pass, loss));
    return DT_OK;
}

/* ---- against one rank ---- */

/* Forward and backward of the uncut model, on this rank alone. */
static dt_status run_whole(pipe *one, double *loss_out)
{
    dt_tape *t = NULL;
    dt_tensor *ids = NULL;
    float loss = 0;
    DT_TRY(pipe_tokens(one, 0, PIPE_SAMPLES, &ids));
    DT_TRY(dt_tape_create(one->mesh, NULL, &t));
    const dt_values in = {.n = 2, .value = {ids, ids}};
    const dt_values out = dt_module_call(one->model, t, &in);
    DT_TRY(dt_backward(t, out.value[0]));
    DT_TRY(dt_array_read(dt_tensor_local(out.value[0]), &loss, 1));
    *loss_out = (double)loss;
    dt_tape_destroy(&t);
    dt_tensor_destroy(&ids);
    return DT_OK;
}

static dt_status whole_gradient(dt_param *p, float **out)
{
    dt_tensor *g = NULL;
    const dt_local *grad = dt_tensor_grad(p->tensor);
    TEST_THAT(grad->array.storage != NULL, "%s has no gradient", p->name);
    *out = calloc((size_t)dt_shape_count(p->shape), sizeof **out);
    TEST_THAT(*out != NULL, "no memory");
    DT_TRY(dt_from_array(grad->layout, &grad->array, &g));
    DT_TRY(dt_tensor_read_f32_sync(g, *out));
    dt_tensor_destroy(&g);
    return DT_OK;
}

static dt_param *find(dt_module *m, const char *name)
{
    int n = 0;
    dt_param *const *param = dt_module_params(m, &n);
    for (int i = 0; i < n; i++)
        if (strcmp(param[i]->name, name) == 0)
            return param[i];
    return NULL;
}

dt_status pipe_same_gradients(dt_module *stages, dt_module *whole)
{
    int n = 0;
    dt_param *const *param = dt_module_params(stages, &n);
    TEST_THAT(n > 0, "no parameters");
    for (int i = 0; i < n; i++) {
        const int64_t count = dt_shape_count(param[i]->shape);
        float *a = NULL, *b = NULL;
        DT_TRY(whole_gradient(param[i], &a));
        DT_TRY(whole_gradient(find(whole, param[i]->name), &b));
        const double diff = test_max_diff(a, b, count), most = test_max_abs(b, count);
        TEST_THAT(most > 0 && diff <= 1e-5 * most, "%s differs by %g of %g", param[i]->name, diff,
                  most);
        free(a);
        free(b);
    }
    return DT_OK;
}

dt_status pipe_check(pipe *p, double loss)
{
    const pipe_plan *c = p->plan;
    pipe_plan alone = {.layers = c->layers, .tied = c->tied, .vocab = c->vocab, .whole = true};
    dt_world *world = NULL;
    double want = 0;
    pipe one;
    DT_TRY(dt_world_create(&(dt_world_options){.backend = DT_BACKEND_SELF}, &world));
    DT_TRY(pipe_open(&alone, world, &one));
    DT_TRY(run_whole(&one, &want));
    DT_TRY(pipe_same_gradients(dt_pipeline_module(p->pipe), one.model));
    pipe_close(&one);
    dt_world_destroy(&world);
    dt_comm *parts = NULL;
    DT_TRY(dt_mesh_comm_named(p->mesh, "pp,dp_shard", 0, &parts));
    DT_TRY(dt_all_reduce_f64_sync(parts, &loss, 1, DT_REDUCE_SUM));
    TEST_THAT(fabs(loss - want) <= 2e-5, "loss %.9g, one rank %.9g", loss, want);
    return DT_OK;
}
