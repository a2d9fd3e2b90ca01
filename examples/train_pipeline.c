/* examples/train_pipeline.c - the part of a training run that only pipelines have: the cut into
 * stages, and passes through them. Read first: examples/train_session.c, pp/dt_pipeline.h. */
#include "examples/train_pipeline.h"

#include <stdio.h>
#include <string.h>

int64_t train_microbatch(const train_config *c)
{
    return c->micro_batch ? c->micro_batch * c->dp_replicate * c->dp_shard : c->global_batch;
}

/* By name; what is wrong with p, m or v is told with the keys that they come from. */
static dt_status make_named(const train_config *c, int64_t m, dt_pp_schedule **out)
{
    char keys[200];
    const dt_status st =
        dt_pp_schedule_create(c->pp_schedule, c->pp, (int)m, c->stages_per_rank, out);
    if (st == DT_OK)
        return DT_OK;
    (void)snprintf(keys, sizeof keys,
                   "p = parallel.pp, v = parallel.stages_per_rank, m = train.global_batch=%lld / "
                   "(train.micro_batch=%lld x %lld data-parallel ranks)",
                   (long long)c->global_batch, (long long)c->micro_batch,
                   (long long)(train_microbatch(c) / c->micro_batch));
    return dt_error_push(st, __FILE__, __LINE__, keys);
}

static dt_status make_schedule(const train_config *c, dt_pp_schedule **out)
{
    const int64_t at_once = train_microbatch(c), m = (c->global_batch + at_once - 1) / at_once;
    const char *name = c->pp_schedule, *end = strrchr(name, '.');
    DT_REQUIRE(m <= INT32_MAX, DT_ERR_ARG, "%lld microbatches", (long long)m);
    if (!end || strcmp(end, ".csv") != 0)
        return make_named(c, m, out);
    DT_TRY(dt_pp_schedule_read(name, out));
    DT_REQUIRE((*out)->nranks == c->pp && (*out)->nmicrobatches == m, DT_ERR_ARG,
               "parallel.schedule=%s is for %d ranks and %d microbatches; here parallel.pp=%d, and "
               "train.global_batch and train.micro_batch make %lld",
               name, (*out)->nranks, (*out)->nmicrobatches, c->pp, (long long)m);
    return DT_OK;
}

dt_status train_pipeline_cut(train_session *s, const char *tp)
{
    const train_config *c = s->config;
    char axes[32];
    (void)snprintf(axes, sizeof axes, "%s", tp);
    for (char *comma = axes; (comma = strchr(comma, ','));)
        *comma = '>';
    (void)snprintf(s->boundary, sizeof s->boundary, "%s%s%s", train_batch_layout,
                   c->sp ? ", S(1)@" : "", c->sp ? axes : "");
    const dt_pipeline_options options = {.chain = dt_model_chain(&s->facts),
                                         .split = c->pp_split,
                                         .hidden = s->facts.hidden,
                                         .dtype = c->f64 ? DT_F64 : c->param_dtype,
                                         .boundary = s->boundary,
                                         .max_unsharded =
                                             c->reshard_after_forward || c->reshard_size ? 0 : 2};
    dt_pp_schedule *schedule = NULL;
    dt_status st = make_schedule(c, &schedule);
    if (st == DT_OK)
        st = dt_pipeline_split(&s->model, s->whole, "pp", schedule, &options, &s->pipe);
    dt_pp_schedule_destroy(&schedule);
    DT_TRY(st);
    s->model = dt_pipeline_module(s->pipe);
    s->mesh = dt_pipeline_mesh(s->pipe);
    return DT_OK;
}

/* What a pipeline's pass reads, and where logits go. */
typedef struct pipe_data {
    train_session *s;
    train_place at;
    float *logits;
} pipe_data;

static dt_status pipe_samples(void *arg, int64_t lo, int64_t hi, dt_tensor **ids,
                              dt_tensor **targets)
{
    const pipe_data *d = arg;
    train_micro m = {0};
    const dt_status st = train_session_read(d->s, d->at, lo, hi, &m);
    if (st == DT_OK && ids) {
        *ids = m.ids;
        m.ids = NULL;
    }
    if (st == DT_OK && targets) {
        *targets = m.targets;
        m.targets = NULL;
    }
    train_micro_release(&m);
    return st;
}

static dt_status pipe_aside(void *arg, int64_t lo, int64_t hi, dt_tensor *out[2])
{
    const pipe_data *d = arg;
    train_micro m = {0};
    const dt_status st = train_session_read(d->s, d->at, lo, hi, &m);
    out[0] = m.positions;
    out[1] = m.documents;
    m.positions = m.documents = NULL;
    train_micro_release(&m);
    return st;
}

dt_status train_pipeline_passes(train_session *s, train_place at, bool no_grad, double *loss)
{
    pipe_data data = {s, at, NULL};
    const dt_pipeline_pass pass = {.samples = s->config->global_batch,
                                   .at_once = train_microbatch(s->config),
                                   .seq_len = s->config->seq_len,
                                   .tape = {.no_grad = no_grad,
                                            .no_dropout = no_grad,
                                            .seed = s->config->seed,
                                            .step = s->step,
                                            .tally = &s->tally},
                                   .loss_scale = s->scaler.scale,
                                   .read = pipe_samples,
                                   .aside = train_has_documents(s) ? pipe_aside : NULL,
                                   .arg = &data};
    DT_TRY(dt_pipeline_run(s->pipe, &pass, loss));
    return DT_OK;
}

/* The sums of n host values over the pipeline's ranks, of which all but one give zeros. */
static dt_status share(train_session *s, float *values, int64_t n)
{
    dt_comm *line = NULL;
    dt_array sum = {0};
    dt_work *work = NULL;
    DT_TRY(dt_mesh_comm_named(s->whole, "pp", 0, &line));
    if (dt_comm_size(line) == 1)
        return DT_OK;
    DT_TRY(dt_array_create(dt_mesh_heap(s->whole), DT_F32, DT_SHAPE(n), DT_TAG_COMM, &sum));
    const dt_part all = {.in = &sum, .out = &sum};
    dt_status st = dt_array_write(&sum, values, n);
    if (st == DT_OK)
        st = dt_all_reduce(line, 1, &all, DT_REDUCE_SUM, "share", &work);
    if (st == DT_OK)
        st = dt_work_wait(&work);
    if (st == DT_OK)
        st = dt_array_read(&sum, values, n);
    dt_array_release(&sum);
    return st;
}

static dt_status take_logits(void *arg, int64_t lo, int64_t hi, dt_tensor *y)
{
    const pipe_data *d = arg;
    (void)lo;
    (void)hi;
    DT_TRY(dt_tensor_read_f32_sync(y, d->logits));
    return DT_OK;
}

dt_status train_pipeline_logits(train_session *s, train_place at, int64_t n, float *logits)
{
    pipe_data data = {s, at, logits};
    double none = 0;
    const int64_t count = n * s->config->seq_len * s->facts.vocab;
    memset(logits, 0, (size_t)count * sizeof *logits);
    const dt_pipeline_pass pass = {.samples = n,
                                   .at_once = n,
                                   .seq_len = s->config->seq_len,
                                   .tape = {.no_grad = true, .no_dropout = true},
                                   .no_targets = true,
                                   .read = pipe_samples,
                                   .aside = train_has_documents(s) ? pipe_aside : NULL,
                                   .output = take_logits,
                                   .arg = &data};
    DT_TRY(dt_pipeline_run(s->pipe, &pass, &none));
    DT_TRY(share(s, logits, count));
    return DT_OK;
}
