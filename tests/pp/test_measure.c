/* tests/pp/test_measure.c - timelines from traces: an action is from its first op to its end, and
 * what is before was waiting; traces that are of something else are refused. */
#include "pp/dt_schedule.h"
#include "tests/harness.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void event(dt_trace *t, const char *kind, const char *name, dt_trace_phase phase)
{
    dt_trace_record(t, kind, name, phase, 0, 0);
}

/* As the executor records an action with n ops, whose input it waits for. */
static void act(dt_trace *t, const char *name, const char *kind, int nops)
{
    event(t, "pp", name, DT_TRACE_BEGIN);
    event(t, "wait", "recv", DT_TRACE_BEGIN);
    event(t, "wait", "recv", DT_TRACE_END);
    for (int i = 0; i < nops; i++) {
        event(t, kind, "linear", DT_TRACE_BEGIN);
        event(t, kind, "linear", DT_TRACE_END);
    }
    event(t, "pp", name, DT_TRACE_END);
}

static double time_of(const dt_trace *t, int64_t i)
{
    int64_t count = 0;
    const dt_trace_event *e = dt_trace_events(t, &count);
    ck_assert_int_lt(i, count);
    return e[i].time_s;
}

START_TEST(from_the_first_op_to_the_end)
{
    dt_pp_schedule *s = NULL;
    dt_pp_timeline *t = NULL;
    dt_trace *trace[2];
    ck_ok(dt_pp_schedule_parse("0F0,0SEND_F0,0RECV_B0,0I0,0W0\n1RECV_F0,1F0,1B0,1SEND_B0", "text",
                               &s));
    for (int r = 0; r < 2; r++) {
        ck_ok(dt_trace_create(&trace[r]));
        (void)usleep(20000); /* traces that begin apart have one clock */
    }
    act(trace[0], "0F0", "op", 2);      /* events 0 to 7: action, wait, wait, 4 of ops, action */
    act(trace[0], "0SEND_F0", "op", 0); /* 8 to 11 */
    act(trace[0], "0RECV_B0", "op", 0); /* 12 to 15 */
    act(trace[1], "1RECV_F0", "op", 0); /* 0 to 3 */
    act(trace[1], "1F0", "op", 1);      /* 4 to 9 */
    act(trace[1], "1B0", "grad", 1);    /* 10 to 15 */
    act(trace[1], "1SEND_B0", "op", 0);
    act(trace[0], "0I0", "grad", 1); /* 16 to 21 */
    act(trace[0], "0W0", "grad", 0); /* 22 to 25: no op */
    ck_ok(dt_pp_measure(s, (const dt_trace *const *)trace, &t));
    const double zero = time_of(trace[0], 3);
    const dt_pp_lane *a = &t->lane[0], *b = &t->lane[1];
    ck_assert(a->start[0] == 0 && a->end[0] == time_of(trace[0], 7) - zero);
    ck_assert(a->start[3] == time_of(trace[0], 19) - zero);
    ck_assert(a->start[4] == time_of(trace[0], 22) - zero);
    ck_assert(a->end[4] == time_of(trace[0], 25) - zero && t->makespan == a->end[4]);
    ck_assert(b->start[1] == time_of(trace[1], 7) - zero);
    ck_assert(b->start[2] == time_of(trace[1], 13) - zero);
    ck_assert(a->peak_live == 1 && b->peak_live == 1);
    const double busy = a->busy + b->busy, idle = 1 - busy / (2 * t->makespan);
    const double least = b->end[1] - b->start[1] + b->end[2] - b->start[2];
    ck_assert(b->busy > 0.999 * least && b->busy < 1.001 * least);
    ck_assert(dt_pp_idle(t) > idle - 1e-9 && dt_pp_idle(t) < idle + 1e-9 && idle > 0 && idle < 1);
    dt_pp_timeline_destroy(&t);
    dt_trace_clear(trace[1]);
    act(trace[1], "1RECV_F0", "op", 0);
    act(trace[1], "1B0", "grad", 1);
    ck_ok(test_expect(dt_pp_measure(s, (const dt_trace *const *)trace, &t), DT_ERR_ARG,
                      "the trace of rank 1 has no 1F0", ""));
    ck_assert_ptr_null(t);
    for (int r = 0; r < 2; r++)
        dt_trace_destroy(&trace[r]);
    dt_pp_schedule_destroy(&s);
}
END_TEST

/* Simulated: two ranks, 1 F and 1 B each: 6 long, 3 busy. */
START_TEST(idle_part)
{
    dt_pp_schedule *s = NULL;
    dt_pp_timeline *t = NULL;
    ck_ok(dt_pp_schedule_parse("0F0,0B0\n1F0,1B0", "text", &s));
    ck_ok(dt_pp_simulate(s, NULL, &t));
    ck_assert(t->makespan == 6 && dt_pp_idle(t) == 0.5);
    dt_pp_timeline_destroy(&t);
    dt_pp_schedule_destroy(&s);
}
END_TEST

/* Rank 0: F of stages 0 and 2 take 1 and 3; rank 1: of stages 1 and 3 2 and 2; every B takes twice
 * that. Simulated with their means, each stage takes its own time again. */
START_TEST(means)
{
    const double factor[4] = {1, 2, 3, 2};
    double stage[4];
    dt_pp_schedule *s = NULL;
    dt_pp_timeline *t = NULL, *again = NULL;
    dt_pp_costs costs;
    ck_ok(dt_pp_schedule_create("interleaved", 2, 4, 2, &s));
    ck_ok(dt_pp_simulate(s, &(dt_pp_costs){.f = 1, .b = 2, .stage = factor}, &t));
    dt_pp_mean_costs(s, t, stage, &costs);
    ck_assert(costs.f == 2 && costs.b == 4 && costs.i == 0 && costs.w == 0);
    for (int i = 0; i < 4; i++)
        ck_assert(costs.stage[i] == factor[i] / 2);
    ck_ok(dt_pp_simulate(s, &costs, &again));
    ck_assert(again->makespan == t->makespan);
    dt_pp_timeline_destroy(&again);
    dt_pp_timeline_destroy(&t);
    dt_pp_schedule_destroy(&s);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("pp measure");
    TCase *tests = tcase_create("measure");
    tcase_add_test(tests, from_the_first_op_to_the_end);
    tcase_add_test(tests, idle_part);
    tcase_add_test(tests, means);
    suite_add_tcase(suite, tests);
    return test_main(suite);
}
