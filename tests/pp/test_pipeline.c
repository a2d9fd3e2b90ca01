/* tests/pp/test_pipeline.c - the split of a model, and the executor: it does what its row says, in
 * that order; what is refused, and a stage that fails: an error on all ranks, no rank left waiting.
 * That its numbers are those of one rank is in tests/law/test_law_pp.c. */
#include "models/dt_models.h"
#include "pp/dt_pipeline.h"
#include "tests/harness.h"

#include <stdlib.h>
#include <string.h>

enum { SAMPLES = 8, SEQ = 6, HIDDEN = 8, VOCAB = 33 };

static const char *const names[] = {"gpipe",  "1f1b",  "looped-bfs",     "interleaved",
                                    "zb-h1",  "zb-h2", "interleaved-zb", "zbv",
                                    "v-half", "v-min", "dualpipev"};

/* What is run. */
typedef struct plan {
    const char *schedule;
    int ranks, m, layers;
    bool tied;
    const int *of_stage; /* dt_pipeline_options.layers */
    int64_t hidden;      /* that the boundary is said to have; 0: HIDDEN */
    int fail_at;         /* microbatch whose last stage cannot read; -1: none */
} plan;

typedef struct pipe {
    dt_mesh *mesh;
    dt_module *model; /* until it is cut */
    dt_pipeline *pipe;
    const plan *plan;
} pipe;

static dt_status open_pipe(const plan *c, dt_world *world, pipe *p)
{
    const dt_llama_config config = {.vocab_size = VOCAB,
                                    .hidden_size = HIDDEN,
                                    .intermediate_size = 6,
                                    .num_hidden_layers = c->layers,
                                    .num_attention_heads = 2,
                                    .num_key_value_heads = 2,
                                    .head_dim = 4,
                                    .max_position_embeddings = 16,
                                    .rope_theta = 1e4,
                                    .rms_norm_eps = 1e-5,
                                    .initializer_range = 0.3,
                                    .tie_word_embeddings = c->tied};
    const dt_model_facts facts = {.architecture = "LlamaForCausalLM"};
    const dt_pipeline_options options = {.chain = dt_model_chain(&facts),
                                         .layers = c->of_stage,
                                         .hidden = c->hidden ? c->hidden : HIDDEN,
                                         .boundary = ""};
    dt_pp_schedule *s = NULL;
    *p = (pipe){.plan = c};
    DT_TRY(dt_mesh_create(world, (dt_device){DT_CPU, 0}, &(dt_mesh_options){.axes = {{"pp", -1}}},
                          &p->mesh));
    DT_TRY(dt_llama_create(&config, &p->model));
    DT_TRY(dt_pp_schedule_create(c->schedule, c->ranks, c->m, 0, &s));
    const dt_status st = dt_pipeline_split(&p->model, p->mesh, "pp", s, &options, &p->pipe);
    dt_pp_schedule_destroy(&s);
    DT_TRY(st);
    DT_TRY(dt_module_materialize(dt_pipeline_module(p->pipe), dt_pipeline_mesh(p->pipe), 1));
    for (int i = 0; i < dt_pipeline_nstages(p->pipe); i++)
        dt_model_set_loss(dt_pipeline_stage(p->pipe, i), SAMPLES * SEQ, 0);
    return DT_OK;
}

static void close_pipe(pipe *p)
{
    dt_module_destroy(&p->model);
    dt_pipeline_destroy(&p->pipe);
    dt_mesh_destroy(&p->mesh);
}

static dt_status tokens(pipe *p, int64_t lo, int64_t hi, dt_tensor **out)
{
    int32_t host[SAMPLES * SEQ];
    const dt_layout *layout = NULL;
    for (int64_t i = lo * SEQ; i < hi * SEQ; i++)
        host[i - lo * SEQ] = (int32_t)(i * 7 % VOCAB);
    DT_TRY(dt_mesh_layout_text(dt_pipeline_mesh(p->pipe), DT_SHAPE(hi - lo, SEQ), "", &layout));
    DT_TRY(dt_distribute(layout, DT_I32, host, out));
    return DT_OK;
}

static dt_status read_tokens(void *arg, int64_t lo, int64_t hi, dt_tensor **ids,
                             dt_tensor **targets)
{
    pipe *p = arg;
    const int64_t at_once = SAMPLES / p->plan->m;
    DT_REQUIRE(!targets || lo != p->plan->fail_at * at_once, DT_ERR_IO, "these targets are torn");
    if (ids)
        DT_TRY(tokens(p, lo, hi, ids));
    if (targets)
        DT_TRY(tokens(p, lo, hi, targets));
    return DT_OK;
}

static dt_status run(pipe *p, double *loss)
{
    const dt_pipeline_pass pass = {.samples = SAMPLES,
                                   .at_once = SAMPLES / p->plan->m,
                                   .seq_len = SEQ,
                                   .read = read_tokens,
                                   .arg = p};
    DT_TRY(dt_pipeline_run(p->pipe, &pass, loss));
    return DT_OK;
}

/* ---- the split ---- */

/* Stages together hold each layer once, in order; names are the model's. */
static dt_status split_body(dt_world *world, void *arg)
{
    const plan *c = arg;
    static const int want[] = {3, 2, 2}; /* 7 layers on 3 stages: the first has one more */
    char name[64];
    pipe p;
    DT_TRY(open_pipe(c, world, &p));
    TEST_THAT(dt_pipeline_nstages(p.pipe) == 1 && !p.model, "one stage");
    dt_module *m = dt_pipeline_stage(p.pipe, 0), *holder = dt_pipeline_module(p.pipe);
    const int rank = dt_world_rank(world), first = rank ? 1 + 2 * rank : 0;
    const int count = c->of_stage ? c->of_stage[rank] : want[rank];
    TEST_THAT(dt_model_nlayers(m) == count, "%d layers on rank %d", dt_model_nlayers(m), rank);
    (void)snprintf(name, sizeof name, "model.layers.%d", first);
    TEST_THAT(c->of_stage || strcmp(dt_module_path(dt_model_layer(m, 0)), name) == 0, "%s",
              dt_module_path(dt_model_layer(m, 0)));
    TEST_THAT(dt_module_find(m, name) || c->of_stage, "found under its name");
    TEST_THAT((dt_module_find(m, "model.embed_tokens") != NULL) == (rank == 0), "embedding");
    TEST_THAT((dt_module_find(m, "model.norm") != NULL) == (rank == 2), "norm");
    TEST_THAT((dt_module_find(m, "lm_head") != NULL) == (rank == 2), "head");
    if (c->tied && rank == 2) {
        const dt_param *w = dt_module_param(dt_module_find(m, "lm_head"), "weight");
        TEST_THAT(w->copy && strcmp(w->name, "model.embed_tokens.weight") == 0, "%s", w->name);
    }
    int64_t all = dt_module_count(holder);
    DT_TRY(dt_all_reduce_i64_sync(dt_world_comm(world), &all, 1, DT_REDUCE_SUM));
    const int64_t layer = 4 * 8 * 8 + 3 * 8 * 6 + 2 * 8, ends = 2 * VOCAB * 8 + 8;
    TEST_THAT(all == c->layers * layer + ends, "%lld parameters", (long long)all);
    close_pipe(&p);
    return DT_OK;
}

START_TEST(stages_make_up_the_model)
{
    static const int uneven[] = {1, 5, 1};
    plan c = {.schedule = "1f1b", .ranks = 3, .m = 4, .layers = 7, .fail_at = -1};
    c.tied = _i == 1;
    c.of_stage = _i == 2 ? uneven : NULL;
    test_ranks(3, split_body, &c);
}
END_TEST

/* ---- what is refused, on every rank ---- */

typedef struct refusal {
    plan plan;
    dt_status status;
    const char *says;
} refusal;

static const int too_many[] = {2, 2, 2}, none_there[] = {4, 0, 1};
static const refusal refused[] = {
    {{"1f1b", 3, 4, 2, false, NULL, 0, -1},
     DT_ERR_ARG,
     "3 pipeline stages are more than the model's 2"},
    {{"zbv", 3, 8, 5, false, NULL, 0, -1}, DT_ERR_ARG, "6 pipeline stages"},
    {{"1f1b", 3, 4, 5, false, too_many, 0, -1},
     DT_ERR_ARG,
     "the stages have 6 layers, the model 5"},
    {{"1f1b", 3, 4, 5, false, none_there, 0, -1}, DT_ERR_ARG, "stage 1 has 0 layers"},
    {{"1f1b", 2, 4, 5, false, NULL, 0, -1},
     DT_ERR_ARG,
     "the schedule is for 2 ranks, axis pp has 3"},
    {{"1f1b", 3, 2, 5, false, NULL, 0, -1}, DT_ERR_ARG, "1f1b"},
};

static dt_status refused_body(dt_world *world, void *arg)
{
    const refusal *r = arg;
    pipe p;
    TEST_FAILS(r->status, r->says, open_pipe(&r->plan, world, &p));
    close_pipe(&p);
    return DT_OK;
}

START_TEST(what_cannot_be_cut_is_refused)
{
    refusal r = refused[_i];
    test_ranks(3, refused_body, &r);
}
END_TEST

/* ---- a run ---- */

/* Every action of the row began when the one before had ended. */
static dt_status order_body(dt_world *world, void *arg)
{
    pipe p;
    double loss = 0;
    char want[DT_PP_ACTION_TEXT];
    dt_trace *trace = NULL;
    DT_TRY(dt_trace_create(&trace));
    DT_TRY(open_pipe(arg, world, &p));
    dt_world_set_trace(world, trace);
    DT_TRY(run(&p, &loss));
    dt_world_set_trace(world, NULL);
    const dt_pp_row *row = dt_pipeline_row(p.pipe);
    int64_t count = 0, at = 0;
    const dt_trace_event *event = dt_trace_events(trace, &count);
    for (int64_t i = 0; i < count; i++) {
        if (strcmp(event[i].kind, "pp") != 0)
            continue;
        TEST_THAT(at / 2 < row->count, "more events than actions");
        (void)dt_pp_action_print(row->action[at / 2], want, sizeof want);
        TEST_THAT(strcmp(event[i].name, want) == 0, "%s, not %s", event[i].name, want);
        TEST_THAT(event[i].phase == (at % 2 ? DT_TRACE_END : DT_TRACE_BEGIN), "%s", want);
        at++;
    }
    TEST_THAT(at == 2 * row->count && at > 0, "%lld of %lld actions", (long long)at / 2,
              (long long)row->count);
    dt_trace_destroy(&trace);
    close_pipe(&p);
    return DT_OK;
}

START_TEST(a_row_is_run_as_it_stands)
{
    plan c = {.schedule = names[_i], .ranks = 2, .m = 4, .layers = 4, .fail_at = -1};
    test_ranks(2, order_body, &c);
}
END_TEST

static dt_status whole_body(dt_world *world, void *arg)
{
    pipe p;
    double loss = 0;
    DT_TRY(open_pipe(arg, world, &p));
    const dt_status st = run(&p, &loss);
    close_pipe(&p);
    DT_TRY(st);
    return DT_OK;
}

/* One stage cannot go on: nobody waits for it. */
START_TEST(a_failing_stage_ends_all)
{
    const plan c = {.schedule = names[_i], .ranks = 2, .m = 4, .layers = 4, .fail_at = 2};
    ck_assert_int_eq(dt_world_run_threads(2, &(dt_world_options){.timeout_s = 60}, whole_body,
                                          (void *)(uintptr_t)&c),
                     DT_ERR_IO);
    ck_assert_msg(strstr(dt_error_trace(), "these targets are torn") != NULL, "%s",
                  dt_error_trace());
}
END_TEST

START_TEST(a_boundary_of_another_shape_is_noticed)
{
    plan c = {.schedule = "1f1b", .ranks = 2, .m = 4, .layers = 4, .fail_at = -1, .hidden = 9};
    ck_assert_int_eq(dt_world_run_threads(2, &(dt_world_options){.timeout_s = 60}, whole_body, &c),
                     DT_ERR_PLACEMENT);
    ck_assert_msg(strstr(dt_error_trace(), "stage 0 gives [2, 6, 8]") != NULL, "%s",
                  dt_error_trace());
}
END_TEST

static dt_status count_body(dt_world *world, void *arg)
{
    pipe p;
    double loss = 0;
    plan other = *(const plan *)arg;
    DT_TRY(open_pipe(arg, world, &p));
    other.m = 8;
    p.plan = &other;
    TEST_FAILS(DT_ERR_ARG, "8 microbatches, but the schedule was made for 4", run(&p, &loss));
    p.plan = arg;
    DT_TRY(run(&p, &loss));
    TEST_THAT(dt_world_rank(world) == 1 ? loss > 0 : loss == 0, "loss %g", loss);
    close_pipe(&p);
    return DT_OK;
}

START_TEST(microbatches_must_be_those_of_the_schedule)
{
    plan c = {.schedule = "1f1b", .ranks = 2, .m = 4, .layers = 4, .fail_at = -1};
    test_ranks(2, count_body, &c);
}
END_TEST

/* The copies of a tied parameter have equal gradients, bit for bit, also on one rank of a V. */
static dt_status tied_body(dt_world *world, void *arg)
{
    enum { COUNT = VOCAB * HIDDEN };
    const plan *c = arg;
    pipe p;
    double loss = 0, sums[2 * COUNT] = {0};
    float host[COUNT];
    DT_TRY(open_pipe(c, world, &p));
    DT_TRY(run(&p, &loss));
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
    close_pipe(&p);
    return DT_OK;
}

START_TEST(tied_copies_have_equal_gradients)
{
    static const char *const schedule[] = {"1f1b", "zbv"};
    plan c = {
        .schedule = schedule[_i], .ranks = 2, .m = 4, .layers = 4, .tied = true, .fail_at = -1};
    test_ranks(2, tied_body, &c);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("pipeline");
    TCase *tc = tcase_create("pipeline");
    tcase_set_timeout(tc, 120);
    tcase_add_loop_test(tc, stages_make_up_the_model, 0, 3);
    tcase_add_loop_test(tc, what_cannot_be_cut_is_refused, 0, DT_COUNT(refused));
    tcase_add_loop_test(tc, a_row_is_run_as_it_stands, 0, DT_COUNT(names));
    tcase_add_loop_test(tc, a_failing_stage_ends_all, 0, DT_COUNT(names));
    tcase_add_test(tc, a_boundary_of_another_shape_is_noticed);
    tcase_add_test(tc, microbatches_must_be_those_of_the_schedule);
    tcase_add_loop_test(tc, tied_copies_have_equal_gradients, 0, 2);
    suite_add_tcase(suite, tc);
    return test_main(suite);
}
