/* tests/law/law.c - see tests/law/law.h. */
#include "tests/law/law.h"

#include "base/dt_json.h"
#include "tests/harness.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

const char *law_path(const char *golden, const char *file, char buf[1024])
{
    const char *root = getenv("DT_GOLDEN");
    (void)snprintf(buf, 1024, "%s/%s/%s", root ? root : "tests/golden", golden, file);
    return buf;
}

/* ---- configuration from expected.json ---- */

typedef struct paths {
    char config[1024], weights[1024], tokens[1024], labels[1024], expected[1024];
} paths;

static double number(const json_t *train, const char *key)
{
    return json_number_value(json_object_get(train, key));
}

/* A copy of the model's config with dropout, or other sizes; p->config becomes its path. */
static dt_status alter_model(const law_case *c, paths *p)
{
    static const char *const llama[] = {"num_hidden_layers", "dropout"};
    static const char *const gpt2[] = {"n_layer", "embd_pdrop", "resid_pdrop"};
    static const char *const sizes[] = {"hidden_size", "intermediate_size", "head_dim"};
    json_t *j = NULL;
    DT_TRY(dt_json_load(p->config, &j));
    (void)snprintf(p->config, sizeof p->config, "/tmp/law_config_XXXXXX");
    FILE *f = NULL;
    const int fd = mkstemp(p->config);
    bool ok = fd >= 0 && (f = fdopen(fd, "w")) != NULL;
    const bool is_gpt2 = json_object_get(j, "n_layer") != NULL;
    const char *const *field = is_gpt2 ? gpt2 : llama;
    for (int i = 1; c->dropout > 0 && i < (is_gpt2 ? DT_COUNT(gpt2) : DT_COUNT(llama)); i++)
        ok = ok && json_object_set_new(j, field[i], json_real(c->dropout)) == 0;
    if (c->layers)
        ok = ok && json_object_set_new(j, field[0], json_integer(c->layers)) == 0;
    for (int i = 0; c->hidden && i < DT_COUNT(sizes); i++)
        ok = ok && json_object_set_new(j, sizes[i], json_integer(i < 2 ? c->hidden : 4)) == 0;
    ok = ok && json_dumpf(j, f, 0) == 0;
    ok = (!f || fclose(f) == 0) && ok;
    json_decref(j);
    DT_REQUIRE(ok, DT_ERR_IO, "%s cannot be written", p->config);
    return DT_OK;
}

static bool alters_model(const law_case *c)
{
    return c->dropout > 0 || c->layers || c->hidden;
}

static dt_status configure(const law_case *c, paths *p, train_config *config)
{
    json_t *expected = NULL;
    DT_TRY(dt_json_load(law_path(c->golden, "expected.json", p->expected), &expected));
    const json_t *train = json_object_get(expected, "train");
    const json_t *schedule = json_object_get(train, "lr_schedule");
    const char *labels = json_string_value(json_object_get(expected, "labels_file"));
    const char *kind = json_string_value(json_object_get(schedule, "type"));
    const int64_t steps = (int64_t)number(train, "steps");
    *config = (train_config){
        .model_config = law_path(c->golden, "config.json", p->config),
        .model_init =
            c->layers || c->hidden ? NULL : law_path(c->golden, "model.safetensors", p->weights),
        .data_path = law_path(c->golden, "tokens.bin", p->tokens),
        .data_labels = labels ? law_path(c->golden, labels, p->labels) : NULL,
        .steps = steps,
        .seq_len = (int64_t)number(train, "seq_len"),
        .global_batch = c->batch ? c->batch : (int64_t)number(train, "batch_size"),
        .micro_batch = c->micro_batch,
        .max_norm = number(train, "grad_clip"),
        .adamw = {.beta1 = number(train, "beta1"),
                  .beta2 = number(train, "beta2"),
                  .eps = number(train, "eps"),
                  .weight_decay = number(train, "weight_decay")},
        .schedule = {.lr = number(train, "lr"),
                     .warmup_steps = (int64_t)number(schedule, "warmup_steps"),
                     .total_steps = (int64_t)number(schedule, "total_steps"),
                     .decay = kind && strcmp(kind, "warmup_cosine") == 0 ? DT_DECAY_COSINE
                                                                         : DT_DECAY_NONE,
                     .min_ratio = number(schedule, "min_lr_ratio")},
        .dp_replicate = c->ranks / ((c->tp ? c->tp : 1) * (c->dp_shard ? c->dp_shard : 1) *
                                    (c->pp ? c->pp : 1)),
        .dp_shard = c->dp_shard ? c->dp_shard : 1,
        .reshard_after_forward = !c->keep_gathered,
        .reshard_size = c->reshard_size,
        .offload_dir = c->offload_dir,
        .offload_host = c->offload_host,
        .offload_params = c->offload_params,
        .device = test_device_kind(),
        .param_dtype = c->param_dtype,
        .reduce_dtype = c->reduce_dtype,
        .f64 = c->f64,
        .tp = c->tp ? c->tp : 1,
        .pp = c->pp ? c->pp : 1,
        .pp_schedule = c->schedule ? c->schedule : "1f1b",
        .stages_per_rank = c->stages_per_rank,
        .pp_split = c->split,
        .recompute = c->recompute,
        .sp = c->sp,
        .tp_overlap = c->tp_overlap,
        .loss_parallel = !c->gather_logits,
    };
    if (c->eps > 0)
        config->adamw.eps = c->eps;
    if (alters_model(c))
        DT_TRY(alter_model(c, p));
    json_decref(expected);
    return DT_OK;
}

/* ---- one run ---- */

typedef struct job {
    const law_case *c;
    train_config config;
    law_run *run;
} job;

/* A whole tensor. Collective. */
static dt_status read_whole(dt_tensor *x, double *host)
{
    const int64_t count = dt_shape_count(dt_tensor_shape(x));
    if (dt_tensor_dtype(x) == DT_F64)
        return dt_tensor_read_sync(x, host);
    float *narrow = calloc((size_t)count + 1, sizeof *narrow);
    DT_REQUIRE(narrow, DT_ERR_NOMEM, "%lld numbers", (long long)count);
    const dt_status st = dt_tensor_read_f32_sync(x, narrow);
    for (int64_t i = 0; i < count; i++)
        host[i] = (double)narrow[i];
    free(narrow);
    return st;
}

/* Whole tensors of all parameters' gradients or weights, on rank 0. Collective. */
static dt_status keep(train_session *s, law_run *run, bool weights)
{
    const bool mine = dt_world_rank(s->world) == 0;
    dt_comm *line = NULL; /* of which one rank has the parameter */
    DT_TRY(dt_mesh_comm_named(s->whole, "pp", 0, &line));
    for (int i = 0; i < s->nparams; i++) {
        const int64_t count = s->param[i].count;
        dt_param *p = s->param[i].here;
        double *host = calloc((size_t)count + 1, sizeof *host);
        DT_REQUIRE(host, DT_ERR_NOMEM, "%lld numbers", (long long)count);
        if (p && weights) {
            DT_TRY(read_whole(p->tensor, host));
        } else if (p) {
            dt_tensor *g = NULL;
            const dt_local *grad = dt_tensor_grad(p->tensor);
            DT_TRY(dt_from_array(grad->layout, &grad->array, &g));
            DT_TRY(read_whole(g, host));
            dt_tensor_destroy(&g);
        }
        DT_TRY(dt_all_reduce_f64_sync(line, host, (int)count, DT_REDUCE_SUM));
        double **slot = weights ? &run->weight[i] : &run->grad[i];
        if (mine)
            *slot = host;
        else
            free(host);
    }
    return DT_OK;
}

static dt_status keep_gradients(train_session *s, void *arg)
{
    job *j = arg;
    if (s->step == 0)
        DT_TRY(keep(s, j->run, false));
    return DT_OK;
}

static dt_status begin(train_session *s, job *j)
{
    const int n = s->nparams;
    law_run *run = j->run;
    const bool mine = dt_world_rank(s->world) == 0;
    DT_REQUIRE(n <= LAW_MAX_PARAMS && j->c->steps <= LAW_MAX_STEPS, DT_ERR_ARG, "%d parameters", n);
    const size_t logits = (size_t)(s->config->seq_len * s->facts.vocab * s->config->dp_replicate);
    float *host = calloc(logits, sizeof *host);
    DT_REQUIRE(host, DT_ERR_NOMEM, "logits");
    /* as many samples as ranks, so that each rank has one; sample 0 comes first */
    const int64_t samples =
        s->config->dp_replicate < s->config->global_batch ? s->config->dp_replicate : 1;
    DT_TRY(train_session_logits(s, 0, samples, host));
    if (!mine) {
        free(host);
        return DT_OK;
    }
    run->logits = host;
    run->vocab = s->facts.vocab;
    run->nparams = n;
    for (int i = 0; i < n; i++) {
        run->name[i] = strdup(s->param[i].name);
        run->count[i] = s->param[i].count;
    }
    return DT_OK;
}

static dt_status train(dt_world *world, void *arg)
{
    job *j = arg;
    const bool mine = dt_world_rank(world) == 0;
    law_run *run = j->run;
    double each[LAW_MAX_PARAMS];
    train_session s = {0};
    if (j->c->fault)
        dt_world_set_fault(world, j->c->fault);
    DT_TRY(train_session_create(&j->config, world, &s));
    DT_TRY(begin(&s, j));
    s.inspect = keep_gradients;
    s.inspect_arg = j;
    const int steps = j->c->steps ? j->c->steps : (int)j->config.steps;
    for (int i = 0; i < steps; i++) {
        train_result r = {.param_grad_norm = each};
        dt_world_reset_counts(world);
        DT_TRY(train_session_step(&s, &r));
        if (s.pipe)
            run->live[dt_world_rank(world)] = dt_pipeline_peak_live(s.pipe);
        if (!mine)
            continue;
        run->steps = i + 1;
        run->loss[i] = r.loss;
        run->norm[i] = r.grad_norm;
        run->lr[i] = r.lr;
        run->valid[i] = r.valid;
        run->all_gathers = dt_world_counts(world).calls[DT_CALL_ALL_GATHER];
        run->all_reduces = dt_world_counts(world).calls[DT_CALL_ALL_REDUCE];
        if (i == 0)
            memcpy(run->grad_norm, each, sizeof run->grad_norm);
    }
    double loss = 0;
    DT_TRY(train_session_loss(&s, 0, &loss));
    if (mine)
        run->final_loss = loss;
    DT_TRY(keep(&s, run, true));
    train_session_destroy(&s);
    return DT_OK;
}

dt_status law_train(const law_case *c, law_run *run_out)
{
    paths p;
    law_run run = {0};
    job j = {.c = c, .run = &run};
    DT_TRY(configure(c, &p, &j.config));
    dt_status st = DT_OK;
    if (c->mpi) {
        dt_world *world = NULL;
        DT_TRY(dt_world_create(NULL, &world));
        j.config.dp_replicate = dt_world_size(world);
        st = train(world, &j);
        dt_world_destroy(&world);
    } else {
        st = dt_world_run_threads(c->ranks, NULL, train, &j);
    }
    if (alters_model(c))
        (void)unlink(p.config);
    if (st != DT_OK)
        law_free(&run);
    else
        *run_out = run;
    return st;
}

void law_free(law_run *run)
{
    for (int i = 0; i < LAW_MAX_PARAMS; i++) {
        free(run->name[i]);
        free(run->grad[i]);
        free(run->weight[i]);
    }
    free(run->logits);
    *run = (law_run){0};
}

double law_compare(const law_run *a, const law_run *b, bool weights, char where[128])
{
    double worst = 0;
    for (int i = 0; i < b->nparams; i++) {
        const double *x = weights ? a->weight[i] : a->grad[i],
                     *y = weights ? b->weight[i] : b->grad[i];
        const bool key_bias = strstr(b->name[i], "c_attn.bias") != NULL;
        const int64_t third = b->count[i] / 3;
        double diff = 0, largest = 0;
        for (int64_t k = 0; k < b->count[i]; k++) {
            if (key_bias && k >= third && k < 2 * third)
                continue; /* its true gradient is 0: only rounding is there to compare */
            diff = test_larger(fabs(x[k] - y[k]), diff);
            largest = fmax(largest, fabs(y[k]));
        }
        const double relative = diff / (largest > 0 ? largest : 1);
        if (!(relative <= worst) && !isnan(worst)) {
            worst = relative;
            (void)snprintf(where, 128, "%s", b->name[i]);
        }
    }
    return worst;
}

void law_check_within(const law_run *a, const law_run *one, int steps, double element, double loss)
{
    static const char *const what[] = {"gradient of", "weight"};
    char where[128] = "";
    for (int weights = 0; weights < 2; weights++) {
        const double worst = law_compare(a, one, weights, where);
        ck_assert_msg(worst <= element, "%s %s differs by %g of its largest element", what[weights],
                      where, worst);
    }
    for (int i = 0; i < steps; i++)
        ck_assert_msg(fabs(a->loss[i] - one->loss[i]) <= loss,
                      "loss of step %d: %.17g, one rank %.17g", i, a->loss[i], one->loss[i]);
}

void law_check_same(const law_run *a, const law_run *one, int steps)
{
    law_check_within(a, one, steps, LAW_ELEMENT_LIMIT, LAW_LOSS_LIMIT);
}

static bool one_suffices(const law_case *a, const law_case *b)
{
    return strcmp(a->golden, b->golden) == 0 && a->layers == b->layers && a->hidden == b->hidden &&
           a->batch == b->batch && a->dropout == b->dropout && a->steps == b->steps &&
           a->eps == b->eps && a->f64 == b->f64;
}

const law_run *law_one_rank(const law_case *c)
{
    static law_case made[64];
    static law_run run[64];
    int i = 0;
    while (made[i].golden && !one_suffices(&made[i], c))
        i++;
    ck_assert_int_lt(i, DT_COUNT(made) - 1);
    if (!made[i].golden) {
        const law_case one = {.golden = c->golden,
                              .layers = c->layers,
                              .hidden = c->hidden,
                              .batch = c->batch,
                              .dropout = c->dropout,
                              .steps = c->steps,
                              .eps = c->eps,
                              .f64 = c->f64,
                              .ranks = 1};
        ck_ok(law_train(&one, &run[i]));
        made[i] = one;
    }
    return &run[i];
}
