/* tests/comm/test_failures.c - every failure ends in a message on every rank, and nobody hangs:
 * wrong arguments, absent ranks, failing ranks, calls that differ; and each fault of DT_FAULT is
 * visible. */
#include "tests/comm/cases.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

static dt_status wrong_arguments(dt_world *world, void *arg)
{
    (void)arg;
    dt_comm *comm = dt_world_comm(world);
    dt_array three, six, half;
    DT_TRY(case_floats(world, 3, 0, &three));
    DT_TRY(case_floats(world, 6, 0, &six));
    DT_TRY(case_array(world, DT_F16, 0, 0, 0, 3, &half));
    dt_work *work = NULL;
    const dt_part odd = {.in = &three, .out = &three}, mixed = {.in = &three, .out = &half};
    const dt_part no_out = {.in = &three};
    const dt_part counts = {.in = &three, .out = &six, .recv = (int64_t[]){3, 4}};
    TEST_FAILS(DT_ERR_SHAPE, "3 elements, which 2 ranks do not share evenly",
               dt_all_gather(comm, 1, &odd, "", &work));
    TEST_FAILS(DT_ERR_ARG, "in is f32, out is f16",
               dt_all_reduce(comm, 1, &mixed, DT_REDUCE_SUM, "", &work));
    TEST_FAILS(DT_ERR_ARG, "NULL", dt_all_reduce(comm, 1, &no_out, DT_REDUCE_SUM, "", &work));
    TEST_FAILS(DT_ERR_SHAPE, "add up to 7", dt_all_gather(comm, 1, &counts, "", &work));
    TEST_FAILS(DT_ERR_ARG, "n=0", dt_all_gather(comm, 0, &counts, "", &work));
    TEST_FAILS(DT_ERR_ARG, "rank 2", dt_broadcast(comm, 2, 1, &odd, "", &work));
    const dt_part wide = {.in = &three, .out = &six}, whole = {.in = &six, .out = &six};
    TEST_FAILS(DT_ERR_SHAPE, "out has 6 elements, must have 3",
               dt_all_reduce(comm, 1, &wide, DT_REDUCE_SUM, "", &work));
    TEST_FAILS(DT_ERR_SHAPE, "in has 6 elements, must have 3",
               dt_all_gather(comm, 1, &whole, "", &work));
    TEST_FAILS(DT_ERR_SHAPE, "out has 6 elements, must have 3",
               dt_reduce_scatter(comm, 1, &whole, "", &work));
    if (dt_world_rank(world) == 1) /* only the root gives something */
        TEST_FAILS(DT_ERR_SHAPE, "out has 6 elements, must have 3",
                   dt_broadcast(comm, 1, 1, &wide, "", &work));
    const dt_part crossed = {
        .in = &three, .out = &half, .send = (int64_t[]){1, 2}, .recv = (int64_t[]){2, 1}};
    dt_part own = crossed;
    own.out = &three;
    TEST_FAILS(DT_ERR_ARG, "in is f32, out is f16", dt_all_to_all(comm, 1, &crossed, "", &work));
    TEST_FAILS(DT_ERR_SHAPE, "my own piece of out", dt_all_to_all(comm, 1, &own, "", &work));
    const dt_array *const array = &three;
    TEST_FAILS(DT_ERR_ARG, "me being", dt_send(comm, dt_world_rank(world), 1, &array, "", &work));
    TEST_THAT(!work && dt_world_counts(world).total_calls == 0, "nothing was queued");
    const dt_part good = {.in = &three, .out = &six}; /* the world still lives */
    DT_TRY(dt_all_gather(comm, 1, &good, "", &work));
    DT_TRY(dt_work_wait(&work));
    dt_array_release(&three);
    dt_array_release(&six);
    dt_array_release(&half);
    return DT_OK;
}

START_TEST(wrong_arguments_are_errors_at_the_call)
{
    test_ranks(2, wrong_arguments, NULL);
}
END_TEST

/* Ranks 1 and 3 never come. */
static dt_status absent(dt_world *world, void *arg)
{
    const int channel = *(const int *)arg;
    if (dt_world_rank(world) % 2 == 1)
        return DT_OK;
    dt_comm *comm;
    DT_TRY(dt_comm_create(world, (int[]){0, 1, 2, 3}, 4, channel, &comm));
    dt_work *work;
    DT_TRY(dt_barrier(comm, "layers.7", &work));
    const dt_status st = dt_work_wait(&work);
    TEST_THAT(st == DT_ERR_TIMEOUT || st == DT_ERR_COMM, "%s", dt_status_string(st));
    TEST_THAT(strstr(dt_error_trace(), "barrier #0 'layers.7' on ") &&
                  strstr(dt_error_trace(), "[0-3]") &&
                  strstr(dt_error_trace(), "ranks 1, 3 to arrive"),
              "%s", dt_error_trace());
    TEST_FAILS(DT_ERR_COMM, "failed", dt_world_agree_sync(world, DT_OK)); /* dead from now on */
    return DT_OK;
}

START_TEST(time_out_names_absent_ranks)
{
    int channel = _i;
    test_ranks_with(4, &(dt_world_options){.timeout_s = 1}, absent, &channel);
}
END_TEST

static dt_status nobody_receives(dt_world *world, void *arg)
{
    (void)arg;
    if (dt_world_rank(world) == 1)
        return DT_OK;
    dt_array x;
    DT_TRY(case_floats(world, 3, 0, &x));
    const dt_array *const array = &x;
    dt_work *work;
    DT_TRY(dt_send(dt_world_comm(world), 1, 1, &array, "to nobody", &work));
    TEST_FAILS(DT_ERR_TIMEOUT, "for rank 1 to receive", dt_work_wait(&work));
    dt_array_release(&x);
    return DT_OK;
}

START_TEST(time_out_of_a_message_names_the_peer)
{
    test_ranks_with(2, &(dt_world_options){.timeout_s = 0.1}, nobody_receives, NULL);
}
END_TEST

enum { LATE_COUNT = 4096 };

/* Rank 1 comes about when rank 0 gives up: then both have the message, or neither. */
static dt_status late(dt_world *world, void *arg)
{
    int *ended = arg;
    const int me = dt_world_rank(world);
    dt_array x; /* never on a device: NCCL aborts all that flies */
    dt_heap *heap;
    DT_TRY(dt_world_heap(world, (dt_device){.kind = DT_CPU}, &heap));
    DT_TRY(dt_array_create(heap, DT_F32, DT_SHAPE(LATE_COUNT), DT_TAG_ACTIVATION, &x));
    dt_array_fill(&x, me == 0 ? 7 : 0);
    const dt_array *const from = &x;
    dt_array *const to = &x;
    dt_work *work = NULL;
    const struct timespec pause = {.tv_nsec = 19 * 1000000 + 75000L * ended[2]};
    if (me == 1)
        (void)nanosleep(&pause, NULL);
    const dt_status issued = me == 0 ? dt_send(dt_world_comm(world), 1, 1, &from, "late", &work)
                                     : dt_recv(dt_world_comm(world), 0, 1, &to, "late", &work);
    const dt_status st = issued == DT_OK ? dt_work_wait(&work) : issued;
    const float *got = dt_array_data(&x);
    for (int i = 0; st == DT_OK && i < LATE_COUNT; i++)
        TEST_THAT(got[i] == 7, "element %d is %g", i, (double)got[i]);
    ended[me] = st == DT_OK;
    dt_array_release(&x);
    return DT_OK;
}

START_TEST(a_message_withdrawn_too_late_is_received)
{
    for (int i = 0; i < 40; i++) {
        int ended[3] = {-1, -1, i};
        test_ranks_with(2, &(dt_world_options){.timeout_s = 0.02}, late, ended);
        ck_assert_msg(ended[0] == ended[1], "try %d: sent %d, received %d", i, ended[0], ended[1]);
    }
}
END_TEST

/* Rank 2 fails; the others, which wait for it for 300 s in all kinds of calls, fail at once. */
static dt_status one_fails(dt_world *world, void *arg)
{
    (void)arg;
    const int me = dt_world_rank(world);
    if (me == 2)
        return DT_ERROR(DT_ERR_IO, "disk is full");
    dt_comm *comm;
    DT_TRY(dt_comm_create(world, (int[]){0, 1, 2, 3}, 4, me, &comm));
    dt_array x;
    DT_TRY(case_floats(world, 4, 0, &x));
    dt_array *const room = &x;
    dt_work *work;
    if (me == 3)
        DT_TRY(dt_recv(comm, 2, 1, &room, "", &work));
    else
        DT_TRY(dt_barrier(comm, "", &work));
    dt_array_release(&x);
    DT_TRY(dt_work_wait(&work));
    return DT_OK;
}

START_TEST(a_failing_rank_frees_the_others)
{
    const dt_status st = dt_world_run_threads(4, NULL, one_fails, NULL);
    ck_assert_int_eq(st, DT_ERR_IO); /* the cause, not rank 0's "peer failed" */
    ck_assert_ptr_nonnull(strstr(dt_error_trace(), "rank 2: "));
    ck_assert_ptr_nonnull(strstr(dt_error_trace(), "disk is full"));
}
END_TEST

static dt_status two_fail(dt_world *world, void *arg)
{
    (void)arg;
    const int me = dt_world_rank(world);
    return me == 0 ? DT_OK : DT_ERROR(me == 1 ? DT_ERR_ARG : DT_ERR_IO, "rank %d's own", me);
}

START_TEST(the_lowest_failing_rank_is_reported)
{
    ck_assert_int_eq(dt_world_run_threads(3, NULL, two_fail, NULL), DT_ERR_ARG);
    ck_assert_ptr_nonnull(strstr(dt_error_trace(), "rank 1's own"));
}
END_TEST

static dt_status agreement(dt_world *world, void *arg)
{
    (void)arg;
    const int me = dt_world_rank(world);
    DT_TRY(dt_world_agree_sync(world, DT_OK));
    const dt_status mine =
        me == 0 ? DT_OK : DT_ERROR(me == 1 ? DT_ERR_FORMAT : DT_ERR_IO, "file of rank %d", me);
    TEST_FAILS(DT_ERR_FORMAT, "file of rank 1", dt_world_agree_sync(world, mine));
    DT_TRY(dt_world_agree_sync(world, DT_OK));
    return DT_OK;
}

START_TEST(agreement_gives_all_the_lowest_failure)
{
    test_ranks(3, agreement, NULL);
}
END_TEST

/* Without the check the difference is still an error as soon as sizes differ; never a hang. */
static dt_status different_sizes(dt_world *world, void *arg)
{
    (void)arg;
    dt_array x;
    DT_TRY(case_floats(world, dt_world_rank(world) == 0 ? 4 : 6, 0, &x));
    dt_work *work;
    DT_TRY(dt_all_reduce(dt_world_comm(world), 1, &(dt_part){.in = &x, .out = &x}, DT_REDUCE_SUM,
                         "", &work));
    TEST_FAILS(DT_ERR_COMM, "bytes where this rank expects", dt_work_wait(&work));
    dt_array_release(&x);
    return DT_OK;
}

START_TEST(different_sizes_are_an_error)
{
    test_ranks(2, different_sizes, NULL);
}
END_TEST

static dt_status check_collective(dt_world *world, void *arg)
{
    (void)arg;
    const int me = dt_world_rank(world);
    dt_world_set_check(world, "replicas,collective");
    TEST_THAT(dt_world_check(world, "replicas") && !dt_world_check(world, "rep"), "list");
    dt_array x, whole;
    DT_TRY(case_floats(world, 4, 1, &x));
    DT_TRY(case_floats(world, 12, 1, &whole));
    const dt_part sum = {.in = &x, .out = &x}, all = {.in = &x, .out = &whole};
    dt_work *work;
    for (int round = 0; round < 4; round++) { /* alike; label, op, kind differ on rank 2 */
        const bool odd = me == 2;
        const dt_reduce op = odd && round == 2 ? DT_REDUCE_MAX : DT_REDUCE_SUM;
        const char *label = odd && round == 1 ? "layers.1.mlp" : "layers.0.mlp";
        if (odd && round == 3)
            DT_TRY(dt_all_gather(dt_world_comm(world), 1, &all, label, &work));
        else
            DT_TRY(dt_all_reduce(dt_world_comm(world), 1, &sum, op, label, &work));
        const dt_status st = dt_work_wait(&work);
        if (round == 0)
            DT_TRY(st);
        else
            TEST_FAILS(DT_ERR_COMM, "rank 0 all-reduce 'layers.0.mlp'", st);
    }
    TEST_THAT(case_first(&x) == 3, "nothing moved after the first call: %g",
              (double)case_first(&x));
    dt_array_release(&x);
    dt_array_release(&whole);
    return DT_OK;
}

START_TEST(check_collective_names_both_calls)
{
    test_ranks(3, check_collective, NULL);
}
END_TEST

/* ---- DT_FAULT ---- */

static dt_status skip_reduce(dt_world *world, void *arg)
{
    (void)arg;
    const float me = (float)dt_world_rank(world);
    dt_world_set_fault(world, "other,skip_reduce:mlp");
    TEST_THAT(dt_world_fault(world, "skip_reduce") && !dt_world_fault(world, "skip"), "list");
    static const char *const label[] = {"layers.0.mlp", "layers.0.attn"};
    for (int i = 0; i < 2; i++) {
        dt_array x, mine;
        DT_TRY(case_floats(world, 4, me + 1, &x));
        DT_TRY(case_floats(world, 2, 0, &mine));
        dt_work *work;
        DT_TRY(dt_reduce_scatter(dt_world_comm(world), 1, &(dt_part){.in = &x, .out = &mine},
                                 label[i], &work));
        DT_TRY(dt_work_wait(&work));
        DT_TRY(dt_all_reduce(dt_world_comm(world), 1, &(dt_part){.in = &x, .out = &x},
                             DT_REDUCE_SUM, label[i], &work));
        DT_TRY(dt_work_wait(&work));
        const float want = i == 0 ? me + 1 : 3;
        TEST_THAT(case_first(&x) == want && case_first(&mine) == want, "%s: %g and %g", label[i],
                  (double)case_first(&x), (double)case_first(&mine));
        dt_array_release(&x);
        dt_array_release(&mine);
    }
    return DT_OK;
}

START_TEST(fault_skip_reduce_by_label)
{
    test_ranks(2, skip_reduce, NULL);
}
END_TEST

static dt_status swapped_and_dropped(dt_world *world, void *arg)
{
    (void)arg;
    dt_array x, all;
    DT_TRY(case_floats(world, 1, (float)dt_world_rank(world), &x));
    DT_TRY(case_floats(world, 3, 9, &all));
    const dt_part part = {.in = &x, .out = &all};
    dt_work *work;
    dt_world_set_fault(world, "drop_wait");
    DT_TRY(dt_all_gather(dt_world_comm(world), 1, &part, "", &work));
    DT_TRY(dt_work_wait(&work));
    const float *got = test_look(&all);
    TEST_THAT(got[0] == 9 && got[2] == 9, "as before: %g %g", (double)got[0], (double)got[2]);
    dt_world_set_fault(world, "swap_shards");
    DT_TRY(dt_all_gather(dt_world_comm(world), 1, &part, "", &work));
    DT_TRY(dt_work_wait(&work));
    got = test_look(&all);
    TEST_THAT(got[0] == 1 && got[1] == 0 && got[2] == 2, "swapped");
    dt_world_set_fault(world, NULL);
    DT_TRY(dt_all_gather(dt_world_comm(world), 1, &part, "", &work));
    DT_TRY(dt_work_wait(&work));
    got = test_look(&all);
    TEST_THAT(got[0] == 0 && got[1] == 1 && got[2] == 2, "no fault");
    dt_array_release(&x);
    dt_array_release(&all);
    return DT_OK;
}

START_TEST(faults_swap_shards_and_drop_wait)
{
    test_ranks(3, swapped_and_dropped, NULL);
}
END_TEST

static Suite *make_suite(void)
{
    Suite *suite = suite_create("comm failures");
    TCase *tc = tcase_create("failures");
    tcase_set_timeout(tc, 60);
    tcase_add_test(tc, wrong_arguments_are_errors_at_the_call);
    tcase_add_loop_test(tc, time_out_names_absent_ranks, 0, 2);
    tcase_add_test(tc, time_out_of_a_message_names_the_peer);
    tcase_add_test(tc, a_message_withdrawn_too_late_is_received);
    tcase_add_test(tc, a_failing_rank_frees_the_others);
    tcase_add_test(tc, the_lowest_failing_rank_is_reported);
    tcase_add_test(tc, agreement_gives_all_the_lowest_failure);
    if (test_device_kind() == DT_CPU) /* NCCL does not compare; DT_CHECK=collective does */
        tcase_add_test(tc, different_sizes_are_an_error);
    tcase_add_test(tc, check_collective_names_both_calls);
    tcase_add_test(tc, fault_skip_reduce_by_label);
    tcase_add_test(tc, faults_swap_shards_and_drop_wait);
    suite_add_tcase(suite, tc);
    return suite;
}

int main(void)
{
    return test_main(make_suite());
}
