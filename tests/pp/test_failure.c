/* tests/pp/test_failure.c - a pipeline in which something cannot work: an error on all ranks that
 * says what and where, and no rank is left waiting. What shapes tell is noticed before anything
 * moves; after a failure in the middle of a pass the next pass is as if nothing had been. */
#include "fsdp/dt_fsdp.h"
#include "tests/pp/trouble.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { COMPOSED = 9, LONELY = 6 };

/* The pass fails, and its message has both texts. */
static dt_status fails(pipe *p, dt_status want, const char *where, const char *cause)
{
    double loss = 0;
    const dt_status st = pipe_run(p, &loss);
    const char *says = dt_error_trace();
    TEST_THAT(st == want && strstr(says, where) && strstr(says, cause), "status %d, %s %s: %s", st,
              where, cause, says);
    return DT_OK;
}

/* ---- an op that fails on one stage, at one microbatch ---- */

/* What a user calls before the next pass; reset: and to free the gathered copies at once. */
static dt_status recover(pipe *p, bool reset)
{
    for (int i = 0; reset && i < dt_pipeline_nstages(p->pipe); i++)
        DT_TRY(dt_fsdp_reset(dt_pipeline_stage(p->pipe, i)));
    dt_module_clear_grads(dt_pipeline_module(p->pipe));
    return DT_OK;
}

static dt_status fails_once(pipe *p, trouble *x, int k, bool reset)
{
    double loss = -1;
    const char kinds[NSPOTS][2] = {{'F', 'F'}, {'B', 'I'}, {'B', 'W'}};
    const char *cause = x->spot == IN_FORWARD    ? "op matmul"
                        : x->spot == IN_BACKWARD ? "the backward is spoiled"
                                                 : "the weights' gradients are spoiled";
    char where[2][60], layer[40];
    x->armed = true;
    x->first_sample = k * (PIPE_SAMPLES / p->plan->m);
    const dt_status st = pipe_run(p, &loss);
    x->armed = false;
    for (int i = 0; i < 2; i++)
        (void)snprintf(where[i], sizeof where[i], "stage %d failed in %d%c%d:", x->stage, x->stage,
                       kinds[x->spot][i], k);
    (void)snprintf(layer, sizeof layer, "model.layers.%d", x->stage); /* one a stage */
    const char *says = dt_error_trace();
    TEST_THAT(st == (x->spot == IN_FORWARD ? DT_ERR_SHAPE : DT_ERR_DEVICE), "status %d: %s", st,
              says);
    TEST_THAT((strstr(says, where[0]) || strstr(says, where[1])) && strstr(says, cause) &&
                  strstr(says, layer),
              "%s", says);
    TEST_THAT(loss == -1, "a loss was given");
    DT_TRY(recover(p, reset));
    return DT_OK;
}

static dt_status fails_everywhere(pipe *p, trouble *x, bool reset)
{
    const int n = pipe_stages(p), m = p->plan->m;
    const bool few = p->plan->ranks > 4 && !getenv("DT_FULL"); /* in the middle alone */
    for (x->stage = 0; x->stage < n; x->stage++)
        for (int i = few; i < NSPOTS * 3; i += few ? 3 : 1) {
            x->spot = (spot)(i / 3);
            DT_TRY(fails_once(p, x, i % 3 == 0 ? 0 : i % 3 == 1 ? m / 2 : m - 1, reset));
        }
    return DT_OK;
}

static dt_status anywhere_body(dt_world *world, void *arg)
{
    pipe p;
    trouble x = {0};
    witness list[MOST_STAGES];
    double before = 0, after = 0;
    DT_TRY(pipe_open(arg, world, &p));
    DT_TRY(trouble_watch(&p, &x, list));
    DT_TRY(pipe_run(&p, &before));
    dt_module_clear_grads(dt_pipeline_module(p.pipe));
    for (int reset = 0; reset <= (p.plan->zero > 0); reset++) {
        DT_TRY(fails_everywhere(&p, &x, reset));
        for (int i = 0; i < dt_pipeline_nstages(p.pipe); i++)
            TEST_THAT(list[i].after == 0, "stage %d computed what had failed before",
                      list[i].stage);
        DT_TRY(pipe_run(&p, &after));
        TEST_THAT(before == after, "the loss was %.9g and is %.9g", before, after);
        DT_TRY(pipe_check(&p, after));
        DT_TRY(recover(&p, false));
    }
    pipe_close(&p);
    return DT_OK;
}

START_TEST(an_op_may_fail_on_any_stage)
{
    const int ranks = 2 << _i / PIPE_NSCHEDULES; /* 2, 4, 8 */
    pipe_plan c = {
        .schedule = pipe_schedules[_i % PIPE_NSCHEDULES], .ranks = ranks, .m = ranks > 2 ? 8 : 4};
    if (ranks == 8 && strcmp(c.schedule, "dualpipev") == 0) { /* wants 16 microbatches */
        c.ranks = 4;
        c.tp = 2;
    }
    pipe one = {.plan = &c};
    c.layers = pipe_stages(&one);
    ck_assert_int_gt(c.layers, 0);
    ck_assert_int_le(c.layers, MOST_STAGES);
    test_ranks_with(ranks, &(dt_world_options){.timeout_s = 60}, anywhere_body, &c);
}
END_TEST

/* With shards, gathered by the schedule or by layers, and tensor parallelism: it fails on all ranks
 * of the stage. */
START_TEST(a_composed_stage_may_fail)
{
    static const pipe_plan with[] = {
        {.schedule = "1f1b", .dp = 2, .zero = 2},
        {.schedule = "1f1b", .dp = 2, .zero = 3},
        {.schedule = "zbv", .dp = 2, .zero = 2, .once = true},
        {.schedule = "zbv", .dp = 2, .zero = 3},
        {.schedule = "interleaved", .dp = 2, .zero = 2},
        {.schedule = "zb-h1", .tp = 2},
        {.schedule = "interleaved", .tp = 2, .sp = true, .recompute = DT_RECOMPUTE_FULL},
        {.schedule = "zbv", .dp = 2, .tp = 2, .sp = true, .zero = 2},
        {.schedule = "1f1b", .dp = 2, .tp = 2, .sp = true, .zero = 3}};
    ck_assert_int_eq(DT_COUNT(with), COMPOSED);
    pipe_plan c = with[_i];
    c.ranks = 2;
    c.m = 4;
    pipe one = {.plan = &c};
    c.layers = pipe_stages(&one);
    test_ranks_with(c.ranks * (c.dp ? c.dp : 1) * (c.tp ? c.tp : 1),
                    &(dt_world_options){.timeout_s = 60}, anywhere_body, &c);
}
END_TEST

/* On one rank of the stage alone: those of its line get its error, and when they leave the others
 * end too. Processes: tests/pp/test_lone.sh. */
typedef struct lonely {
    pipe_plan plan;
    int spoilt; /* rank of the world */
    dt_status status[8];
    bool names_it[8];
} lonely;

static dt_status lonely_body(dt_world *world, void *arg)
{
    lonely *l = arg;
    pipe p;
    trouble x = {.stage = 1, .spot = IN_BACKWARD, .first_sample = 2};
    witness list[MOST_STAGES];
    double loss = 0;
    const int me = dt_world_rank(world);
    DT_TRY(pipe_open(&l->plan, world, &p));
    DT_TRY(trouble_watch(&p, &x, list));
    DT_TRY(pipe_run(&p, &loss));
    DT_TRY(recover(&p, false));
    x.armed = me == l->spoilt;
    l->status[me] = pipe_run(&p, &loss);
    const char *says = dt_error_trace();
    l->names_it[me] = strstr(says, "stage 1 failed in 1B1:") && strstr(says, "backward is spoiled");
    pipe_close(&p);
    return l->status[me];
}

START_TEST(one_rank_of_a_stage_may_fail)
{
    static const lonely with[] = {
        {{.schedule = "1f1b", .dp = 2, .zero = 2}, .spoilt = 3},
        {{.schedule = "1f1b", .dp = 2, .zero = 3}, .spoilt = 3},
        {{.schedule = "1f1b", .tp = 2}, .spoilt = 3},
        {{.schedule = "1f1b", .dp = 2, .tp = 2, .sp = true, .zero = 2}, .spoilt = 6},
        {{.schedule = "interleaved", .dp = 4, .zero = 3}, .spoilt = 5},
        {{.schedule = "gpipe", .dp = 2, .tp = 2, .zero = 3}, .spoilt = 4}};
    ck_assert_int_eq(DT_COUNT(with), LONELY);
    if (getenv("DT_TEST_LAUNCHED"))
        return;
    lonely l = with[_i];
    l.plan.ranks = 2;
    l.plan.m = 4;
    l.plan.layers = 4;
    const int inner = (l.plan.dp ? l.plan.dp : 1) * (l.plan.tp ? l.plan.tp : 1);
    ck_assert_int_ne(
        dt_world_run_threads(2 * inner, &(dt_world_options){.timeout_s = 60}, lonely_body, &l),
        DT_OK);
    for (int r = 0; r < 2 * inner; r++) {
        const bool line = r % inner == l.spoilt % inner; /* ranks are pp x the others */
        ck_assert_msg(l.status[r] == (line ? DT_ERR_DEVICE : DT_ERR_COMM), "rank %d: status %d", r,
                      l.status[r]);
        ck_assert_msg(!line || l.names_it[r], "rank %d does not name the stage", r);
    }
}
END_TEST

/* Evaluation too. */
static dt_status evaluation_body(dt_world *world, void *arg)
{
    pipe p;
    trouble x = {.stage = 1, .first_sample = 2};
    witness list[MOST_STAGES];
    double loss = 0;
    DT_TRY(pipe_open(arg, world, &p));
    DT_TRY(trouble_watch(&p, &x, list));
    dt_pipeline_pass pass = pipe_pass(&p);
    pass.tape.no_grad = true;
    DT_TRY(dt_pipeline_run(p.pipe, &pass, &loss));
    x.armed = true;
    TEST_FAILS(DT_ERR_SHAPE, "stage 1 failed in 1F1:", dt_pipeline_run(p.pipe, &pass, &loss));
    x.armed = false;
    DT_TRY(dt_pipeline_run(p.pipe, &pass, &loss));
    int n = 0;
    dt_param *const *param = dt_module_params(dt_pipeline_module(p.pipe), &n);
    for (int i = 0; i < n; i++)
        TEST_THAT(!dt_tensor_grad(param[i]->tensor)->array.storage,
                  "evaluation leaves no gradient");
    pipe_close(&p);
    return DT_OK;
}

START_TEST(an_evaluation_may_fail)
{
    pipe_plan c = {.schedule = "zbv", .ranks = 2, .m = 4, .layers = 4};
    test_ranks_with(2, &(dt_world_options){.timeout_s = 60}, evaluation_body, &c);
}
END_TEST

/* What one rank cannot read. */
static dt_status torn_body(dt_world *world, void *arg)
{
    pipe p;
    char stage[80], early[80];
    DT_TRY(pipe_open(arg, world, &p));
    const int last = pipe_stages(&p) - 1;
    (void)snprintf(early, sizeof early, "before the first microbatch, stage %d:", last);
    (void)snprintf(stage, sizeof stage, "stage %d failed in %dF2:", last, last);
    p.torn = 0;
    DT_TRY(fails(&p, DT_ERR_IO, early, "these targets are torn"));
    p.torn = 4;
    DT_TRY(fails(&p, DT_ERR_IO, stage, "these targets are torn"));
    pipe_close(&p);
    return DT_OK;
}

START_TEST(data_may_be_torn)
{
    pipe_plan c = {.schedule = pipe_schedules[_i], .ranks = 2, .m = 4, .layers = 4};
    test_ranks_with(2, &(dt_world_options){.timeout_s = 60}, torn_body, &c);
}
END_TEST

/* ---- what shapes tell ---- */

static dt_status nothing_moved(dt_world *world)
{
    const dt_counts counts = dt_world_counts(world);
    TEST_THAT(counts.total_calls == 0, "%lld calls", (long long)counts.total_calls);
    return DT_OK;
}

static dt_status boundary_body(dt_world *world, void *arg)
{
    pipe p;
    DT_TRY(pipe_open(arg, world, &p));
    dt_world_reset_counts(world);
    DT_TRY(fails(&p, DT_ERR_PLACEMENT, "stage 0 gives [2, 6, 8]", "the next one takes [2, 6, 9]"));
    DT_TRY(nothing_moved(world));
    pipe_close(&p);
    return DT_OK;
}

START_TEST(a_boundary_of_another_shape_is_noticed)
{
    pipe_plan c = {.schedule = "1f1b", .ranks = 3, .m = 4, .layers = 4, .hidden = 9};
    test_ranks_with(3, &(dt_world_options){.timeout_s = 60}, boundary_body, &c);
}
END_TEST

/* At every stage; and where only the short last microbatch cannot work. */
static dt_status rehearsal_body(dt_world *world, void *arg)
{
    pipe p;
    trouble x = {.armed = true, .always = true};
    witness list[MOST_STAGES];
    double loss = 0;
    char where[60];
    DT_TRY(pipe_open(arg, world, &p));
    DT_TRY(trouble_watch(&p, &x, list));
    dt_world_reset_counts(world);
    const int n = pipe_stages(&p);
    for (int i = 0; i < 2 * n; i++) {
        x.stage = i / 2;
        x.samples = i % 2 ? 2 : 0;
        (void)snprintf(where, sizeof where, "before the first microbatch, stage %d:", x.stage);
        DT_TRY(fails(&p, DT_ERR_SHAPE, where, "op matmul"));
        DT_TRY(nothing_moved(world));
    }
    x.armed = false;
    DT_TRY(pipe_run(&p, &loss));
    DT_TRY(pipe_check(&p, loss));
    pipe_close(&p);
    return DT_OK;
}

START_TEST(what_cannot_work_is_noticed_before)
{
    static const char *const schedule[] = {"1f1b", "zbv", "interleaved"};
    pipe_plan c = {
        .schedule = schedule[_i], .ranks = 2, .m = 3, .layers = 4, .at_once = 3}; /* 3, 3, 2 */
    c.m = _i == 1 ? 4 : 3;
    c.at_once = _i == 1 ? 2 : 3;
    test_ranks_with(2, &(dt_world_options){.timeout_s = 60}, rehearsal_body, &c);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("failures of pipelines");
    TCase *tc = tcase_create("failure");
    tcase_set_timeout(tc, 120);
    test_loop(tc, an_op_may_fail_on_any_stage, 3 * PIPE_NSCHEDULES);
    test_loop(tc, a_composed_stage_may_fail, COMPOSED);
    test_loop(tc, one_rank_of_a_stage_may_fail, LONELY);
    tcase_add_test(tc, an_evaluation_may_fail);
    test_loop(tc, data_may_be_torn, PIPE_NSCHEDULES);
    tcase_add_test(tc, a_boundary_of_another_shape_is_noticed);
    test_loop(tc, what_cannot_work_is_noticed_before, 3);
    suite_add_tcase(suite, tc);
    return test_main(suite);
}
