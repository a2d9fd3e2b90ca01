/* tests/pp/test_pipeline.c - the split of a model by every kind of text, each cut giving the
 * numbers of one rank; what is refused; tied weights. Read next: tests/pp/test_executor.c. */
#include "tests/pp/pipe.h"

#include <stdlib.h>
#include <string.h>

/* ---- the split ---- */

typedef struct split_case {
    pipe_plan plan;
    int layers[4];
} split_case;

#define SPLIT(n, a, b, c, ...)                                                \
    {                                                                         \
        {.schedule = "1f1b", .ranks = 3, .m = 4, .layers = (n), __VA_ARGS__}, \
        {                                                                     \
            a, b, c                                                           \
        }                                                                     \
    }
/* A layer has 416 parameters, the embedding 264, norm and head 272. */
static const split_case splits[] = {
    SPLIT(7, 3, 2, 2, .split = NULL),
    SPLIT(7, 3, 2, 2, .tied = true),
    SPLIT(7, 3, 2, 2, .split = "equal"),
    SPLIT(7, 1, 5, 1, .split = "1,5,1"),
    /* work 1248, 832, 832 + 272; other cuts are as good or worse: the first stages have more */
    SPLIT(7, 3, 2, 2, .split = "cost"),
    SPLIT(7, 3, 2, 2, .split = "cost", .tied = true), /* a tied head costs as much */
    /* the head 8 * 129 + 8, as much as two and a half layers; 1248, 1248, 416 + 1040 */
    SPLIT(7, 3, 3, 1, .split = "cost", .vocab = 129),
    SPLIT(3, 1, 1, 1, .split = "cost"),
    {{.schedule = "1f1b", .ranks = 4, .m = 4, .layers = 5, .split = "cost"}, {2, 1, 1, 1}},
    SPLIT(7, 1, 4, 2,
          .split = "model.embed_tokens,model.layers.0; model.layers.1-3,model.layers.4;"
                   "model.layers.5-6,model.norm,lm_head"),
    SPLIT(7, 0, 7, 0, .split = "model.embed_tokens;model.layers.0-6;model.norm,lm_head"),
};

/* Stages together hold each layer once, in order; names are the model's. */
static dt_status split_body(dt_world *world, void *arg)
{
    const split_case *c = arg;
    const int rank = dt_world_rank(world), end = c->plan.ranks - 1;
    char name[64];
    pipe p;
    DT_TRY(pipe_open(&c->plan, world, &p));
    TEST_THAT(dt_pipeline_nstages(p.pipe) == 1 && !p.model, "one stage");
    dt_module *m = dt_pipeline_stage(p.pipe, 0), *holder = dt_pipeline_module(p.pipe);
    TEST_THAT(dt_model_nlayers(m) == c->layers[rank], "%d layers on rank %d", dt_model_nlayers(m),
              rank);
    int first = 0;
    for (int s = 0; s < rank; s++)
        first += c->layers[s];
    (void)snprintf(name, sizeof name, "model.layers.%d", first);
    TEST_THAT(c->layers[rank] == 0 || (dt_module_find(m, name) == dt_model_layer(m, 0) &&
                                       strcmp(dt_module_path(dt_model_layer(m, 0)), name) == 0),
              "%s is found under its name", name);
    TEST_THAT((dt_module_find(m, "model.embed_tokens") != NULL) == (rank == 0), "embedding");
    TEST_THAT((dt_module_find(m, "model.norm") != NULL) == (rank == end), "norm");
    TEST_THAT((dt_module_find(m, "lm_head") != NULL) == (rank == end), "head");
    if (c->plan.tied && rank == end) {
        const dt_param *w = dt_module_param(dt_module_find(m, "lm_head"), "weight");
        TEST_THAT(w->copy && strcmp(w->name, "model.embed_tokens.weight") == 0, "%s", w->name);
    }
    int64_t all = dt_module_count(holder);
    DT_TRY(dt_all_reduce_i64_sync(dt_world_comm(world), &all, 1, DT_REDUCE_SUM));
    const int64_t vocab = c->plan.vocab ? c->plan.vocab : PIPE_VOCAB;
    const int64_t layer = 4 * 8 * 8 + 3 * 8 * 6 + 2 * 8, ends = 2 * vocab * 8 + 8;
    TEST_THAT(all == c->plan.layers * layer + ends, "%lld parameters", (long long)all);
    double loss = 0;
    DT_TRY(pipe_run(&p, &loss));
    DT_TRY(pipe_check(&p, loss));
    pipe_close(&p);
    return DT_OK;
}

START_TEST(stages_make_up_the_model)
{
    split_case c = splits[_i];
    test_ranks(c.plan.ranks, split_body, &c);
}
END_TEST

/* ---- what is refused, on every rank ---- */

typedef struct refusal {
    pipe_plan plan;
    dt_status status;
    const char *says;
} refusal;

#define REFUSED(text, ...)                                  \
    {                                                       \
        {__VA_ARGS__, .ranks = 3, .m = 4}, DT_ERR_ARG, text \
    }
static const refusal refused[] = {
    REFUSED("3 pipeline stages are more than the model's 2", .schedule = "1f1b", .layers = 2),
    REFUSED("3 pipeline stages are more than the model's 2", .schedule = "1f1b", .layers = 2,
            .split = "cost"),
    REFUSED("6 pipeline stages", .schedule = "zbv", .layers = 5),
    REFUSED("the stages have 6 layers, the model 5", .schedule = "1f1b", .layers = 5,
            .split = "2,2,2"),
    REFUSED("stage 1 has 0 layers", .schedule = "1f1b", .layers = 5, .split = "4,0,1"),
    REFUSED("layers of 2 stages are given, the schedule has 3", .schedule = "1f1b", .layers = 5,
            .split = "4,1"),
    REFUSED("'x' is not a list of counts", .schedule = "1f1b", .layers = 5, .split = "3,x"),
    REFUSED("legal: equal, cost, counts of layers", .schedule = "1f1b", .layers = 5,
            .split = "evenly"),
    REFUSED("names of 2 stages, the schedule has 3", .schedule = "1f1b", .layers = 2,
            .split = "model.embed_tokens,model.layers.0;model.layers.1,model.norm,lm_head"),
    REFUSED("no stage has 'model.layers.2'", .schedule = "1f1b", .layers = 3,
            .split = "model.embed_tokens;model.layers.0-1;model.norm,lm_head"),
    REFUSED("layer 1 comes next", .schedule = "1f1b", .layers = 3,
            .split = "model.embed_tokens,model.layers.0;model.layers.2;model.layers.1,model.norm,"
                     "lm_head"),
    REFUSED("'model.embed_tokens' must be in stage 0", .schedule = "1f1b", .layers = 3,
            .split = "model.layers.0;model.embed_tokens,model.layers.1-2;model.norm,lm_head"),
    REFUSED("no stage has 'lm_head'", .schedule = "1f1b", .layers = 3,
            .split = "model.embed_tokens;model.layers.0-2;model.norm"),
    REFUSED("no module 'model.head'", .schedule = "1f1b", .layers = 3,
            .split = "model.embed_tokens;model.layers.0-2;model.norm,model.head"),
    REFUSED("stage 1 has no layers", .schedule = "1f1b", .layers = 3,
            .split = "model.embed_tokens,model.layers.0;;model.layers.1-2,model.norm,lm_head"),
    REFUSED("'model.layers.7' is no layer; the model has model.layers.0 .. model.layers.2",
            .schedule = "1f1b", .layers = 3,
            .split = "model.embed_tokens;model.layers.0,model.layers.7;model.norm,lm_head"),
    {{.schedule = "1f1b", .ranks = 2, .m = 4, .layers = 5},
     DT_ERR_ARG,
     "the schedule is for 2 ranks, axis pp has 3"},
    {{.schedule = "1f1b", .ranks = 3, .m = 2, .layers = 5}, DT_ERR_ARG, "1f1b"},
};

static dt_status refused_body(dt_world *world, void *arg)
{
    const refusal *r = arg;
    pipe p;
    TEST_FAILS(r->status, r->says, pipe_open(&r->plan, world, &p));
    pipe_close(&p);
    return DT_OK;
}

START_TEST(what_cannot_be_cut_is_refused)
{
    refusal r = refused[_i];
    test_ranks(3, refused_body, &r);
}
END_TEST

/* ---- a run ---- */

static dt_status count_body(dt_world *world, void *arg)
{
    pipe p;
    double loss = 0;
    pipe_plan other = *(const pipe_plan *)arg;
    DT_TRY(pipe_open(arg, world, &p));
    other.m = 8;
    p.plan = &other;
    TEST_FAILS(DT_ERR_ARG, "8 microbatches, but the schedule was made for 4", pipe_run(&p, &loss));
    p.plan = arg;
    DT_TRY(pipe_run(&p, &loss));
    TEST_THAT(dt_world_rank(world) == 1 ? loss > 0 : loss == 0, "loss %g", loss);
    pipe_close(&p);
    return DT_OK;
}

START_TEST(microbatches_must_be_those_of_the_schedule)
{
    pipe_plan c = {.schedule = "1f1b", .ranks = 2, .m = 4, .layers = 4};
    test_ranks(2, count_body, &c);
}
END_TEST

/* The copies of a tied parameter have equal gradients, bit for bit, also on one rank of a V. */
static dt_status tied_body(dt_world *world, void *arg)
{
    enum { COUNT = PIPE_VOCAB * PIPE_HIDDEN };
    const pipe_plan *c = arg;
    pipe p;
    double loss = 0, sums[2 * COUNT] = {0};
    float host[COUNT];
    DT_TRY(pipe_open(c, world, &p));
    DT_TRY(pipe_run(&p, &loss));
    int n = 0;
    dt_param *const *param = dt_module_params(dt_pipeline_module(p.pipe), &n);
    for (int i = 0; i < n; i++) {
        if (strcmp(param[i]->name, "model.embed_tokens.weight") != 0)
            continue;
        DT_TRY(dt_array_read(&dt_tensor_grad(param[i]->tensor)->array, host, COUNT));
        for (int k = 0; k < COUNT; k++)
            sums[(param[i]->copy ? COUNT : 0) + k] = (double)host[k];
    }
    DT_TRY(dt_all_reduce_f64_sync(dt_world_comm(world), sums, 2 * COUNT, DT_REDUCE_SUM));
    double size = 0;
    for (int k = 0; k < COUNT; k++) {
        TEST_THAT(sums[k] == sums[COUNT + k], "element %d: %g and %g", k, sums[k], sums[COUNT + k]);
        size += sums[k] * sums[k];
    }
    TEST_THAT(size > 0, "no gradient");
    pipe_close(&p);
    return DT_OK;
}

START_TEST(tied_copies_have_equal_gradients)
{
    static const char *const schedule[] = {"1f1b", "zbv"};
    pipe_plan c = {.schedule = schedule[_i], .ranks = 2, .m = 4, .layers = 4, .tied = true};
    test_ranks(2, tied_body, &c);
}
END_TEST

/* ---- 16 bits ---- */

static dt_status same_bits(dt_module *a, dt_module *b)
{
    int n = 0;
    dt_param *const *x = dt_module_params(a, &n), *const *y = dt_module_params(b, &n);
    for (int i = 0; i < n; i++) {
        const dt_array *gx = &dt_tensor_grad(x[i]->tensor)->array;
        const dt_array *gy = &dt_tensor_grad(y[i]->tensor)->array;
        float here[512], there[512];
        const int64_t count = dt_array_count(gx);
        TEST_THAT(gx->dtype == DT_F32 && count > 0 && count <= 512, "%s", x[i]->name);
        DT_TRY(dt_array_read(gx, here, count));
        DT_TRY(dt_array_read(gy, there, count));
        TEST_THAT(memcmp(here, there, (size_t)count * sizeof *here) == 0, "%s", x[i]->name);
    }
    return DT_OK;
}

/* Bytes that all ranks send in a pass whose shapes are known. */
static dt_status run_and_count(pipe *p, dt_world *world, double *loss, int64_t *sent)
{
    DT_TRY(pipe_run(p, loss));
    dt_module_clear_grads(dt_pipeline_module(p->pipe));
    dt_world_reset_counts(world);
    DT_TRY(pipe_run(p, loss));
    *sent = dt_world_counts(world).bytes[DT_CALL_SEND];
    DT_TRY(dt_all_reduce_i64_sync(dt_world_comm(world), sent, 1, DT_REDUCE_SUM));
    return DT_OK;
}

/* A bf16 stage's output in f32 is what it is in bf16, in twice the bytes: no bit depends on it. */
static dt_status half_body(dt_world *world, void *arg)
{
    const pipe_plan *c = arg;
    pipe_plan wider = *c;
    pipe half, wide;
    double loss[2] = {0, 0};
    int64_t sent[2] = {0, 0};
    wider.wide = true;
    DT_TRY(pipe_open(c, world, &half));
    DT_TRY(pipe_open(&wider, world, &wide));
    DT_TRY(run_and_count(&half, world, &loss[0], &sent[0]));
    DT_TRY(run_and_count(&wide, world, &loss[1], &sent[1]));
    const int64_t elements = PIPE_SAMPLES * PIPE_SEQ * PIPE_HIDDEN;
    const int64_t messages = c->m * (c->dp ? c->dp : 1), borders = c->ranks - 1;
    for (int i = 0; i < 2; i++) /* both ways; a message carries a status of 4 bytes */
        TEST_THAT(sent[i] == 2 * borders * ((2 + 2 * i) * elements + 4 * messages), "%lld bytes",
                  (long long)sent[i]);
    TEST_THAT(loss[0] == loss[1], "loss %.9g, %.9g", loss[0], loss[1]);
    DT_TRY(same_bits(dt_pipeline_module(half.pipe), dt_pipeline_module(wide.pipe)));
    pipe_close(&half);
    pipe_close(&wide);
    return DT_OK;
}

START_TEST(sixteen_bits_go_between_stages)
{
    static pipe_plan plans[] = {
        {.schedule = "1f1b", .ranks = 2, .m = 4, .layers = 4, .zero = 3, .half = true},
        {.schedule = "zb-h1", .ranks = 4, .m = 8, .layers = 4, .zero = 2, .half = true},
        {.schedule = "gpipe", .ranks = 2, .m = 2, .layers = 3, .dp = 2, .zero = 3, .half = true}};
    test_ranks(plans[_i].ranks * (plans[_i].dp ? 2 : 1), half_body, &plans[_i]);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("pipeline");
    TCase *tc = tcase_create("pipeline");
    tcase_set_timeout(tc, 120);
    test_loop(tc, stages_make_up_the_model, DT_COUNT(splits));
    test_loop(tc, what_cannot_be_cut_is_refused, DT_COUNT(refused));
    tcase_add_test(tc, microbatches_must_be_those_of_the_schedule);
    test_loop(tc, tied_copies_have_equal_gradients, 2);
    test_loop(tc, sixteen_bits_go_between_stages, 3);
    suite_add_tcase(suite, tc);
    return test_main(suite);
}
