/* tests/comm/test_lanes.c - order and overlap: calls of a channel run in the order of the host's
 * program, channels run on their own, messages cross, and nothing waits for a later collective.
 * Order is asserted from values and from trace events, never from times. */
#include "tests/comm/lanes.h"

#include <stdlib.h>
#include <string.h>

START_TEST(calls_of_a_channel_run_in_order)
{
    int channel = _i;
    test_ranks(3, lane_chain, &channel);
    test_ranks(3, lane_destroyed_early, &channel);
}
END_TEST

START_TEST(channels_do_not_wait_for_each_other)
{
    test_ranks(2, lane_crossed_waits, NULL);
}
END_TEST

static int64_t find_event(const dt_trace *trace, const char *kind, const char *name,
                          dt_trace_phase phase)
{
    int64_t n = 0;
    const dt_trace_event *e = dt_trace_events(trace, &n);
    for (int64_t i = 0; i < n; i++)
        if (strcmp(e[i].kind, kind) == 0 && strstr(e[i].name, name) && e[i].phase == phase)
            return i;
    return -1;
}

/* A slow call on channel 1 begins, the host computes ("op"), the call ends in the background. */
static dt_status overlap(dt_world *world, void *arg)
{
    (void)arg;
    dt_trace *trace;
    DT_TRY(dt_trace_create(&trace));
    dt_world_set_trace(world, trace);
    dt_world_set_delay(world, 1u << DT_CALL_ALL_GATHER, 40);
    dt_comm *comm;
    DT_TRY(dt_comm_create(world, (int[]){0, 1}, 2, 1, &comm));
    dt_array x, all;
    DT_TRY(case_floats(world, 4, 1, &x));
    DT_TRY(case_floats(world, 8, 0, &all));
    dt_work *gather, *sum;
    DT_TRY(dt_all_gather(comm, 1, &(dt_part){.in = &x, .out = &all}, "layers.1", &gather));
    dt_array y;
    DT_TRY(case_floats(world, 4, 1, &y));
    DT_TRY(dt_all_reduce(dt_world_comm(world), 1, &(dt_part){.in = &y, .out = &y}, DT_REDUCE_SUM,
                         "layers.0", &sum));
    DT_TRY(dt_work_wait(&sum)); /* not held up by the gather */
    dt_trace_record(trace, "op", "compute", DT_TRACE_MOMENT, 0, 0);
    DT_TRY(dt_work_wait(&gather));
    const int64_t issue = find_event(trace, "issue", "all-gather layers.1", DT_TRACE_MOMENT);
    const int64_t begin = find_event(trace, "comm", "all-gather layers.1", DT_TRACE_BEGIN);
    const int64_t end = find_event(trace, "comm", "all-gather layers.1", DT_TRACE_END);
    const int64_t wait = find_event(trace, "wait", "all-gather layers.1", DT_TRACE_BEGIN);
    const int64_t waited = find_event(trace, "wait", "all-gather layers.1", DT_TRACE_END);
    const int64_t op = find_event(trace, "op", "compute", DT_TRACE_MOMENT);
    const int64_t reduced = find_event(trace, "comm", "all-reduce layers.0", DT_TRACE_END);
    TEST_THAT(issue >= 0 && issue < begin && begin < end && end < waited, "%d %d %d %d", (int)issue,
              (int)begin, (int)end, (int)waited);
    TEST_THAT(reduced < op && op < end && op < wait, "reduce %d, op %d, gather %d", (int)reduced,
              (int)op, (int)end);
    int64_t n;
    TEST_THAT(dt_trace_events(trace, &n)[begin].lane == 2, "lane of channel 1");
    dt_world_set_trace(world, NULL);
    dt_array_release(&x);
    dt_array_release(&y);
    dt_array_release(&all);
    dt_comm_destroy(&comm);
    dt_trace_destroy(&trace);
    return DT_OK;
}

START_TEST(a_worker_communicates_while_the_host_computes)
{
    test_ranks(2, overlap, NULL);
}
END_TEST

START_TEST(a_worker_needs_no_wait)
{
    test_ranks(2, lane_background, NULL);
}
END_TEST

START_TEST(messages_cross_on_any_channel)
{
    int channel = _i;
    test_ranks(2, lane_messages_cross, &channel);
}
END_TEST

START_TEST(a_collective_waits_for_messages_before_it)
{
    test_ranks(2, lane_receive_then_sum, NULL);
}
END_TEST

/* Work holds its storage: the caller's arrays may go before the wait. */
static dt_status released_early(dt_world *world, void *arg)
{
    (void)arg;
    dt_array x, kept;
    DT_TRY(case_floats(world, 4, 3, &x));
    kept = dt_array_share(&x);
    dt_work *work;
    DT_TRY(dt_all_reduce(dt_world_comm(world), 1, &(dt_part){.in = &x, .out = &x}, DT_REDUCE_SUM,
                         "x", &work));
    dt_array_release(&x);
    DT_TRY(dt_work_wait(&work));
    TEST_THAT(case_first(&kept) == 6 && kept.storage->refs == 1, "%d refs", kept.storage->refs);
    dt_array_release(&kept);
    return DT_OK;
}

START_TEST(work_holds_references)
{
    test_ranks(2, released_early, NULL);
}
END_TEST

static Suite *make_suite(void)
{
    Suite *suite = suite_create("comm lanes");
    TCase *tc = tcase_create("lanes");
    tcase_set_timeout(tc, 60);
    tcase_add_loop_test(tc, calls_of_a_channel_run_in_order, 0, 4);
    tcase_add_test(tc, channels_do_not_wait_for_each_other);
    if (test_device_kind() == DT_CPU) /* a device has streams in the place of workers */
        tcase_add_test(tc, a_worker_communicates_while_the_host_computes);
    tcase_add_test(tc, a_worker_needs_no_wait);
    tcase_add_loop_test(tc, messages_cross_on_any_channel, 0, 4);
    tcase_add_test(tc, a_collective_waits_for_messages_before_it);
    tcase_add_test(tc, work_holds_references);
    suite_add_tcase(suite, tc);
    return suite;
}

int main(void)
{
    return test_main(make_suite());
}
