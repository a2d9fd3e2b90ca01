/* tests/pp/test_executor.c - the executor does what its row says, in that order, with the tapes,
 * bytes and received tensors that the simulator counts; shards are whole when the schedule says so;
 * with tensor parallelism, recompute and a loss of the user's the numbers are those of one rank.
 * What fails is in tests/pp/test_failure.c, more of the law in tests/law/test_law_pp.c. */
#include "tests/pp/pipe.h"

#include <stdlib.h>
#include <string.h>

/* ---- order, tapes, bytes, received tensors ---- */

/* What the simulator says of a plan, and a rank's row of it. */
typedef struct forecast {
    dt_pp_schedule *plain, *lowered;
    dt_pp_timeline *time;
    const dt_pp_row *row;
    const dt_pp_lane *lane;
} forecast;

static dt_status foresee(const pipe_plan *c, int rank, forecast *f)
{
    *f = (forecast){0};
    DT_TRY(dt_pp_schedule_create(c->schedule, c->ranks, c->m, c->v, &f->plain));
    DT_TRY(dt_pp_lower(f->plain, c->zero == 2 ? 2 : 0, &f->lowered));
    DT_TRY(dt_pp_simulate(f->lowered, NULL, &f->time));
    f->row = &f->lowered->row[rank];
    f->lane = &f->time->lane[rank];
    return DT_OK;
}

static void forget(forecast *f)
{
    dt_pp_timeline_destroy(&f->time);
    dt_pp_schedule_destroy(&f->lowered);
    dt_pp_schedule_destroy(&f->plain);
}

/* Microbatches that are alive in a stage after action i, and tensors that came and wait. */
static int alive(const dt_pp_row *row, int64_t i, int stage)
{
    int n = 0;
    for (int64_t k = 0; k <= i; k++) {
        const dt_pp_action a = row->action[k];
        if (a.stage == stage)
            n += (a.kind == DT_PP_F) - (a.kind == DT_PP_B || a.kind == DT_PP_W);
    }
    return n;
}

enum { MOST_STAGES = 12 };
/* Of a tensor between stages: 2 samples of a microbatch at most. */
static const int64_t boundary_bytes = 2 * PIPE_SEQ * PIPE_HIDDEN * (int64_t)sizeof(float);

/* What one microbatch of each stage holds after its F, from the first ones. */
static void weigh(const forecast *f, const int64_t *bytes, int64_t *each)
{
    for (int s = 0; s < MOST_STAGES; s++)
        each[s] = 0;
    for (int64_t i = f->row->count - 1; i > 0; i--)
        if (f->row->action[i].kind == DT_PP_F)
            each[f->row->action[i].stage] = bytes[i] - bytes[i - 1] + boundary_bytes;
}

/* At every moment at most: what lives, as heavy as the first ones; what was received and waits; and
 * one tensor on its way out a stage and side. */
static dt_status check_bytes(const forecast *f, const int64_t *bytes)
{
    int64_t each[MOST_STAGES];
    char text[DT_PP_ACTION_TEXT];
    weigh(f, bytes, each);
    for (int64_t i = 0; i < f->row->count; i++) {
        int64_t most = (f->lane->peak_received + 2) * boundary_bytes;
        for (int s = 0; s < f->lowered->nstages; s++)
            most += alive(f->row, i, s) * each[s];
        TEST_THAT(bytes[i] <= most, "after %s %lld bytes of activations, at most %lld",
                  dt_pp_action_print(f->row->action[i], text, sizeof text), (long long)bytes[i],
                  (long long)most);
    }
    TEST_THAT(bytes[f->row->count - 1] == 0, "%lld bytes are left",
              (long long)bytes[f->row->count - 1]);
    return DT_OK;
}

/* Events of kind pp: begin and end of each action, then how many tapes live. */
static dt_status check_events(const dt_trace *trace, const forecast *f, int64_t *bytes)
{
    int64_t count = 0, at = 0;
    char want[DT_PP_ACTION_TEXT];
    const dt_trace_event *event = dt_trace_events(trace, &count);
    for (int64_t i = 0; i < count; i++) {
        if (strncmp(event[i].kind, "pp", 2) != 0)
            continue;
        const int64_t k = at / 3;
        TEST_THAT(k < f->row->count, "more events than actions");
        (void)dt_pp_action_print(f->row->action[k], want, sizeof want);
        const bool moment = at++ % 3 == 2;
        TEST_THAT(strcmp(event[i].kind, moment ? "pp live" : "pp") == 0, "%s", event[i].kind);
        if (moment) {
            bytes[k] = event[i].bytes;
            TEST_THAT(atoi(event[i].name) == f->lane->live[k],
                      "after %s %s tapes live, the simulator says %d", want, event[i].name,
                      f->lane->live[k]);
            continue;
        }
        TEST_THAT(strcmp(event[i].name, want) == 0, "%s, not %s", event[i].name, want);
        TEST_THAT(event[i].phase == (at % 3 == 1 ? DT_TRACE_BEGIN : DT_TRACE_END), "%s", want);
    }
    TEST_THAT(at == 3 * f->row->count && at > 0, "%lld of %lld actions", (long long)at / 3,
              (long long)f->row->count);
    return DT_OK;
}

/* Every rank gets all rows' times: a rank's actions one after the other, a stage's F after the
 * stage before's, the live ones as simulated. */
static dt_status check_timeline(const forecast *f, const pipe *p, const dt_trace *trace)
{
    dt_pp_timeline *t = NULL;
    double done[MOST_STAGES] = {0};
    DT_TRY(dt_pipeline_measure_sync(p->pipe, trace, 0, &t));
    const dt_pp_schedule *s = dt_pipeline_schedule(p->pipe);
    for (int r = 0; r < s->nranks; r++) {
        const dt_pp_lane *lane = &t->lane[r];
        TEST_THAT(lane->peak_live == f->time->lane[r].peak_live && lane->busy > 0, "rank %d", r);
        for (int64_t i = 0; i < s->row[r].count; i++) {
            const dt_pp_action a = s->row[r].action[i];
            TEST_THAT(lane->end[i] >= lane->start[i] && (!i || lane->start[i] >= lane->end[i - 1]),
                      "rank %d, action %lld", r, (long long)i);
            if (a.kind == DT_PP_F && a.microbatch == 0)
                done[a.stage] = lane->end[i];
        }
    }
    for (int i = 1; i < s->nstages; i++)
        TEST_THAT(done[i] > done[i - 1], "stage %d is done at %g, the one before at %g", i, done[i],
                  done[i - 1]);
    dt_pp_timeline_destroy(&t);
    return DT_OK;
}

static dt_status order_body(dt_world *world, void *arg)
{
    pipe p;
    forecast f;
    double loss = 0;
    dt_trace *trace = NULL;
    DT_TRY(foresee(arg, dt_world_rank(world), &f));
    DT_TRY(dt_trace_create(&trace));
    DT_TRY(pipe_open(arg, world, &p));
    dt_world_set_trace(world, trace);
    DT_TRY(pipe_run(&p, &loss));
    dt_world_set_trace(world, NULL);
    TEST_THAT(dt_pipeline_row(p.pipe)->count == f.row->count, "the row");
    int64_t *bytes = calloc((size_t)f.row->count, sizeof *bytes);
    TEST_THAT(bytes != NULL, "no memory");
    DT_TRY(check_events(trace, &f, bytes));
    DT_TRY(check_bytes(&f, bytes));
    DT_TRY(check_timeline(&f, &p, trace));
    TEST_THAT(dt_pipeline_peak_live(p.pipe) == f.lane->peak_live, "peak of tapes");
    TEST_THAT(dt_pipeline_peak_received(p.pipe) == f.lane->peak_received &&
                  f.lane->peak_received > 0,
              "%d tensors waited, the simulator says %d", dt_pipeline_peak_received(p.pipe),
              f.lane->peak_received);
    /* The loss comes from the last stage alone: in a V, from rank 0. */
    const int held = dt_pipeline_nstages(p.pipe), end = f.lowered->nstages - 1;
    const bool last = dt_pipeline_stage_number(p.pipe, held - 1) == end;
    TEST_THAT(last ? loss > 0 : loss == 0, "loss %g", loss);
    const char *name = ((const pipe_plan *)arg)->schedule;
    if (name[0] == 'v' || strcmp(name, "zbv") == 0 || strcmp(name, "dualpipev") == 0)
        TEST_THAT(last == (dt_world_rank(world) == 0), "the last stage of %s", name);
    free(bytes);
    dt_trace_destroy(&trace);
    pipe_close(&p);
    forget(&f);
    return DT_OK;
}

START_TEST(a_row_is_run_as_it_stands)
{
    const bool four = _i >= PIPE_NSCHEDULES;
    pipe_plan c = {.schedule = pipe_schedules[_i % PIPE_NSCHEDULES],
                   .ranks = four ? 4 : 2,
                   .m = four ? 8 : 4,
                   .layers = 8};
    test_ranks(c.ranks, order_body, &c);
}
END_TEST

/* ---- twice the same; the loss of the user ---- */

static dt_tensor *own_loss(void *arg, dt_tape *t, dt_tensor *y, dt_tensor *targets)
{
    const dt_cross_entropy_options o = {.valid = PIPE_SAMPLES * PIPE_SEQ};
    (void)arg;
    return dt_cross_entropy(t, y, targets, &o);
}

/* The sum of all logits times 3: its gradient is known. */
static dt_tensor *sum_loss(void *arg, dt_tape *t, dt_tensor *y, dt_tensor *targets)
{
    (void)arg;
    (void)targets;
    return dt_scale(t, dt_sum(t, y, 0), 3);
}

static dt_tensor *no_loss(void *arg, dt_tape *t, dt_tensor *y, dt_tensor *targets)
{
    (void)arg;
    (void)targets;
    return dt_scale(t, y, 2);
}

static dt_status loss_body(dt_world *world, void *arg)
{
    pipe p;
    double first = 0, loss = 0, none = 0;
    DT_TRY(pipe_open(arg, world, &p));
    for (int i = 0; i < 20; i++) {
        DT_TRY(pipe_run(&p, i ? &loss : &first));
        DT_TRY(pipe_check(&p, i ? loss : first));
        TEST_THAT(i == 0 || loss == first, "run %d: %.9g, first %.9g", i, loss, first);
        dt_module_clear_grads(dt_pipeline_module(p.pipe));
    }
    p.loss = own_loss;
    DT_TRY(pipe_run(&p, &loss));
    DT_TRY(pipe_check(&p, loss));
    dt_module_clear_grads(dt_pipeline_module(p.pipe));
    p.loss = no_loss;
    TEST_FAILS(DT_ERR_SHAPE, "loss has 396 elements, not one", pipe_run(&p, &none));
    p.loss = sum_loss;
    DT_TRY(pipe_run(&p, &none));
    /* dL/dw of the head is 3 times the sum of its inputs, the same for each of its rows. */
    dt_module *m = dt_pipeline_stage(p.pipe, dt_pipeline_nstages(p.pipe) - 1);
    dt_module *head = dt_module_find(m, "lm_head");
    float host[PIPE_VOCAB * PIPE_HIDDEN];
    if (head) {
        dt_param *w = dt_module_param(head, "weight");
        DT_TRY(dt_array_read(&dt_tensor_grad(w->tensor)->array, host, PIPE_VOCAB * PIPE_HIDDEN));
        for (int i = PIPE_HIDDEN; i < PIPE_VOCAB * PIPE_HIDDEN; i++)
            TEST_THAT(host[i] == host[i - PIPE_HIDDEN] && host[i] != 0, "element %d: %g", i,
                      (double)host[i]);
    }
    pipe_close(&p);
    return DT_OK;
}

START_TEST(passes_repeat_and_take_a_loss)
{
    static const char *const schedule[] = {"gpipe", "1f1b", "interleaved", "zb-h1", "zbv"};
    pipe_plan c = {.schedule = schedule[_i], .ranks = 2, .m = 4, .layers = 4};
    test_ranks(2, loss_body, &c);
}
END_TEST

/* ---- shards ---- */

/* Gathers happen in UNSHARD alone, frees in RESHARD or at the end of the step, and no more than two
 * stages are whole at once. Layers: one a stage, so a stage has two groups, its layer's and the
 * root's. */
static dt_status check_gathers(const dt_trace *trace, const dt_pp_row *row)
{
    int64_t count = 0, gathers = 0, unshards = 0;
    int whole = 0;
    bool inside = false;
    const dt_trace_event *event = dt_trace_events(trace, &count);
    for (int64_t i = 0; i < row->count; i++)
        unshards += row->action[i].kind == DT_PP_UNSHARD;
    for (int64_t i = 0; i < count; i++) {
        const bool gather = strncmp(event[i].name, "gather", 6) == 0;
        if (strcmp(event[i].kind, "pp") == 0 && event[i].phase != DT_TRACE_MOMENT)
            inside = event[i].phase == DT_TRACE_BEGIN && strstr(event[i].name, "UNSHARD") != NULL;
        if (strcmp(event[i].kind, "fsdp") != 0)
            continue;
        TEST_THAT(!gather || inside, "%s outside of UNSHARD", event[i].name);
        gathers += gather;
        whole += gather;
        whole -= strncmp(event[i].name, "free", 4) == 0;
        TEST_THAT(whole <= 2 * 2, "%d groups are whole", whole);
    }
    TEST_THAT(unshards > 3 && gathers >= unshards && gathers <= 2 * unshards,
              "%lld gathers in %lld UNSHARD", (long long)gathers, (long long)unshards);
    return DT_OK;
}

static dt_status sharded_body(dt_world *world, void *arg)
{
    const pipe_plan *c = arg;
    pipe p;
    double loss = 0, again = 0;
    dt_trace *trace = NULL;
    DT_TRY(dt_trace_create(&trace));
    DT_TRY(pipe_open(c, world, &p));
    dt_world_set_trace(world, trace);
    DT_TRY(pipe_run(&p, &loss));
    dt_world_set_trace(world, NULL);
    DT_TRY(pipe_check(&p, loss));
    if (c->zero == 2 && c->v >= 3)
        DT_TRY(check_gathers(trace, dt_pipeline_row(p.pipe)));
    /* An evaluation, then the same again. */
    dt_pipeline_pass pass = pipe_pass(&p);
    pass.tape.no_grad = true;
    dt_module_clear_grads(dt_pipeline_module(p.pipe));
    DT_TRY(dt_pipeline_run(p.pipe, &pass, &again));
    TEST_THAT(again == loss, "evaluation gives %.9g, not %.9g", again, loss);
    DT_TRY(pipe_run(&p, &again));
    TEST_THAT(again == loss, "%.9g, at first %.9g", again, loss);
    DT_TRY(pipe_check(&p, again));
    dt_trace_destroy(&trace);
    pipe_close(&p);
    return DT_OK;
}

#define PLAN(...)               \
    {                           \
        .ranks = 2, __VA_ARGS__ \
    }
static const pipe_plan sharded[] = {
    PLAN(.schedule = "interleaved", .m = 4, .v = 3, .layers = 6, .dp = 2, .zero = 2),
    PLAN(.schedule = "interleaved", .m = 4, .v = 3, .layers = 6, .dp = 2, .zero = 3),
    PLAN(.schedule = "looped-bfs", .m = 4, .v = 3, .layers = 6, .dp = 2, .zero = 2),
    PLAN(.schedule = "looped-bfs", .m = 4, .v = 4, .layers = 8, .dp = 2, .zero = 2),
    PLAN(.schedule = "interleaved-zb", .m = 4, .v = 3, .layers = 6, .dp = 2, .zero = 2),
    PLAN(.schedule = "interleaved-zb", .m = 4, .v = 4, .layers = 8, .dp = 2, .zero = 3),
    PLAN(.schedule = "interleaved", .m = 3, .v = 3, .layers = 7, .dp = 2, .zero = 2,
         .at_once = 3), /* 3, 3, 2 */
    PLAN(.schedule = "interleaved", .m = 3, .v = 3, .layers = 7, .dp = 2, .zero = 3, .at_once = 3,
         .recompute = DT_RECOMPUTE_FULL),
    PLAN(.schedule = "interleaved", .m = 4, .v = 3, .layers = 6, .tp = 2, .sp = true),
    PLAN(.schedule = "interleaved-zb", .m = 4, .v = 3, .layers = 6, .tp = 2,
         .recompute = DT_RECOMPUTE_SELECTIVE),
    PLAN(.schedule = "interleaved", .m = 4, .v = 3, .layers = 6, .dp = 2, .tp = 2, .sp = true,
         .zero = 2),
    PLAN(.schedule = "zbv", .m = 4, .layers = 4, .dp = 2, .tp = 2, .sp = true, .zero = 3,
         .tied = true, .recompute = DT_RECOMPUTE_FULL),
};

START_TEST(stages_are_sharded)
{
    pipe_plan c = sharded[_i];
    test_ranks(c.ranks * (c.dp ? c.dp : 1) * (c.tp ? c.tp : 1), sharded_body, &c);
}
END_TEST

/* One reduce-scatter a group of a stage: once a step, or after every microbatch's backward. A
 * group: each layer, and what else the first and the last stage have. */
static dt_status reduces_body(dt_world *world, void *arg)
{
    const pipe_plan *c = arg;
    pipe p;
    double loss = 0;
    int64_t groups = 0;
    DT_TRY(pipe_open(c, world, &p));
    const int held = dt_pipeline_nstages(p.pipe), end = c->ranks * c->v - 1;
    TEST_THAT(held == c->v, "%d stages", held);
    for (int i = 0; i < held; i++) {
        const int number = dt_pipeline_stage_number(p.pipe, i);
        groups += dt_model_nlayers(dt_pipeline_stage(p.pipe, i)) + (number == 0 || number == end);
    }
    for (int step = 0; step < 2; step++) {
        dt_world_reset_counts(world);
        DT_TRY(pipe_run(&p, &loss));
        const dt_counts n = dt_world_counts(world);
        const int64_t want = groups * (c->once ? 1 : c->m);
        TEST_THAT(n.calls[DT_CALL_REDUCE_SCATTER] == want && n.calls[DT_CALL_ALL_REDUCE] == 0,
                  "%lld reduce-scatters, not %lld", (long long)n.calls[DT_CALL_REDUCE_SCATTER],
                  (long long)want);
        DT_TRY(pipe_check(&p, loss));
        dt_module_clear_grads(dt_pipeline_module(p.pipe));
    }
    pipe_close(&p);
    return DT_OK;
}

START_TEST(gradients_are_reduced_once)
{
    const int v = _i % 3 + 1;
    pipe_plan c = {.schedule = v == 1 ? "1f1b" : "interleaved",
                   .ranks = 2,
                   .m = 4,
                   .v = v,
                   .layers = 7,
                   .dp = 2,
                   .zero = 2 + _i / 3 % 2,
                   .once = _i < 6};
    test_ranks(4, reduces_body, &c);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("executor of pipelines");
    TCase *tc = tcase_create("executor");
    tcase_set_timeout(tc, 120);
    test_loop(tc, a_row_is_run_as_it_stands, 2 * PIPE_NSCHEDULES);
    test_loop(tc, passes_repeat_and_take_a_loss, 5);
    test_loop(tc, stages_are_sharded, DT_COUNT(sharded));
    test_loop(tc, gradients_are_reduced_once, 12);
    suite_add_tcase(suite, tc);
    return test_main(suite);
}
