/* tests/comm/test_counts.c - what is counted and remembered of calls; the self and fake backends.
 * */
#include "tests/comm/cases.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* One call of each kind on 4 ranks; bytes by the formulas of dt_comm.h. */
static dt_status one_of_each(dt_world *world, dt_comm *comm, int me)
{
    dt_array small, large;
    DT_TRY(case_floats(world, 5, 1, &small)); /* 20 bytes */
    DT_TRY(case_floats(world, 20, 1, &large));
    dt_array large2 = dt_array_share(&large);
    const dt_part gather = {.in = &small, .out = &large}, scatter = {.in = &large, .out = &small};
    const dt_part sum = {.in = &large, .out = &large};
    dt_array from;
    DT_TRY(case_floats(world, 20, 1, &from));
    int64_t to[4]; /* 2, 4, 6 or 8 elements; as many come from there */
    for (int r = 0; r < 4; r++)
        to[r] = 2 + 2 * ((me + r) % 4);
    const dt_part change = {.in = &from, .out = &large, .send = to, .recv = to};
    dt_work *work;
    DT_TRY(dt_all_gather(comm, 1, &gather, "a", &work));
    DT_TRY(dt_work_wait(&work));
    DT_TRY(dt_reduce_scatter(comm, 1, &scatter, "b", &work));
    DT_TRY(dt_work_wait(&work));
    DT_TRY(dt_all_reduce(comm, 2, (dt_part[]){sum, {.in = &small, .out = &small}}, DT_REDUCE_SUM,
                         "c", &work));
    DT_TRY(dt_work_wait(&work));
    DT_TRY(dt_all_to_all(comm, 1, &change, "d", &work));
    DT_TRY(dt_work_wait(&work));
    DT_TRY(dt_broadcast(comm, 1, 1, &sum, "e", &work));
    DT_TRY(dt_work_wait(&work));
    const dt_array *const sent = &small;
    dt_array *const got = &small;
    if (me == 0)
        DT_TRY(dt_send(comm, 1, 1, &sent, "f", &work));
    if (me == 1)
        DT_TRY(dt_recv(comm, 0, 1, &got, "f", &work));
    if (me < 2)
        DT_TRY(dt_work_wait(&work));
    DT_TRY(dt_barrier(comm, "g", &work));
    DT_TRY(dt_work_wait(&work));
    dt_array_release(&from);
    dt_array_release(&small);
    dt_array_release(&large);
    dt_array_release(&large2);
    return DT_OK;
}

static dt_status check_counts(const dt_counts *c, int me)
{
    static const int64_t bytes[DT_NCALLS] = {
        [DT_CALL_ALL_GATHER] = 60,
        [DT_CALL_REDUCE_SCATTER] = 60,
        [DT_CALL_ALL_REDUCE] = 2 * 60 + 30,
    };
    for (int i = 0; i < DT_NCALLS; i++) {
        const bool message = i == DT_CALL_SEND || i == DT_CALL_RECV;
        const int64_t calls =
            message ? (me == 0 && i == DT_CALL_SEND) || (me == 1 && i == DT_CALL_RECV) : 1;
        int64_t want = bytes[i];
        if (i == DT_CALL_ALL_TO_ALL) /* but for what is its own */
            want = me % 2 == 0 ? 80 - 4 * 2 : 80 - 4 * 6;
        if (i == DT_CALL_BROADCAST && me == 1)
            want = 80;
        if (i == DT_CALL_SEND && me == 0)
            want = 20;
        TEST_THAT(c->calls[i] == calls && c->bytes[i] == want, "%s: %lld calls, %lld bytes",
                  dt_call_name((dt_call)i), (long long)c->calls[i], (long long)c->bytes[i]);
    }
    const int64_t total = 270 + (me % 2 == 0 ? 72 : 56) + (me == 1 ? 80 : 0) + (me == 0 ? 20 : 0);
    TEST_THAT(c->total_calls == 6 + (me < 2) && c->total_bytes == total, "%lld calls, %lld bytes",
              (long long)c->total_calls, (long long)c->total_bytes);
    return DT_OK;
}

static dt_status counts(dt_world *world, void *arg)
{
    (void)arg;
    const int me = dt_world_rank(world);
    dt_comm *pair;
    DT_TRY(dt_comm_create(world, (int[]){me - me % 2, me - me % 2 + 1}, 2, 0, &pair));
    DT_TRY(one_of_each(world, dt_world_comm(world), me));
    const dt_counts all = dt_world_counts(world), own = dt_comm_counts(dt_world_comm(world));
    DT_TRY(check_counts(&all, me));
    DT_TRY(check_counts(&own, me));
    TEST_THAT(dt_comm_counts(pair).total_calls == 0, "another communicator");
    dt_world_reset_counts(world);
    TEST_THAT(dt_world_counts(world).total_calls == 0, "reset");
    TEST_THAT(dt_comm_counts(dt_world_comm(world)).total_bytes == 0, "reset");
    dt_comm_destroy(&pair);
    return DT_OK;
}

START_TEST(calls_and_bytes)
{
    test_ranks(4, counts, NULL);
}
END_TEST

typedef struct lines {
    int count;
    char first[320], last[320];
} lines;

static void take_line(void *arg, const char *line)
{
    lines *l = arg;
    (void)snprintf(l->count == 0 ? l->first : l->last, sizeof l->first, "%s", line);
    l->count++;
}

static dt_status ring(dt_world *world, void *arg)
{
    (void)arg;
    dt_work *work;
    for (int i = 0; i < 300; i++) {
        char label[32];
        (void)snprintf(label, sizeof label, "call.%d", i);
        DT_TRY(dt_barrier(dt_world_comm(world), label, &work));
        if (i < 299)
            DT_TRY(dt_work_wait(&work));
    }
    lines l = {0};
    dt_world_print_ring(world, take_line, &l);
    TEST_THAT(l.count == 256, "%d lines", l.count);
    TEST_THAT(strcmp(l.first, "barrier #44 on world [0,1]/0, 0 bytes, done: call.44") == 0, "%s",
              l.first);
    TEST_THAT(strcmp(l.last, "barrier #299 on world [0,1]/0, 0 bytes, queued: call.299") == 0, "%s",
              l.last);
    DT_TRY(dt_work_wait(&work));
    return DT_OK;
}

START_TEST(ring_keeps_the_last_256_calls)
{
    test_ranks(2, ring, NULL);
}
END_TEST

/* Environment: read at creation; rank 0 alone speaks. */
static dt_status one_barrier(dt_world *world, void *arg)
{
    (void)arg;
    TEST_THAT(dt_world_explain(world) == (dt_world_rank(world) == 0), "rank 0 explains");
    TEST_THAT(dt_world_fault(world, "swap_shards"), "DT_FAULT");
    TEST_THAT(dt_world_check(world, "collective"), "DT_CHECK");
    dt_work *work;
    DT_TRY(dt_barrier(dt_world_comm(world), "layers.3", &work));
    DT_TRY(dt_work_wait(&work));
    return DT_OK;
}

START_TEST(switches_come_from_the_environment)
{
    ck_assert_int_eq(setenv("DT_EXPLAIN", "1", 1), 0);
    ck_assert_int_eq(setenv("DT_CHECK", "collective", 1), 0);
    ck_assert_int_eq(setenv("DT_FAULT", "swap_shards,slow_comm:0", 1), 0);
    char text[4096] = "";
    FILE *saved = stderr;
    stderr = fmemopen(text, sizeof text - 1, "w");
    const dt_status st = dt_world_run_threads(2, NULL, one_barrier, NULL);
    (void)fclose(stderr);
    stderr = saved;
    (void)unsetenv("DT_EXPLAIN");
    (void)unsetenv("DT_CHECK");
    (void)unsetenv("DT_FAULT");
    ck_ok(st);
    ck_assert_str_eq(text, "comm: barrier #0 on world [0,1]/0, 0 bytes, 1 tensor: layers.3\n");
}
END_TEST

static dt_status nothing(dt_world *world, void *arg)
{
    (void)world;
    (void)arg;
    return DT_OK;
}

START_TEST(unknown_switches_are_refused)
{
    static const char *const wrong[][3] = {
        {"DT_CHECK", "collectives",
         "DT_CHECK=collectives: 'collectives' is unknown; legal: "
         "collective,replicas"},
        {"DT_CHECK", "replicas,all", "'all' is unknown"},
        {"DT_FAULT", "alloc:1,skip", "'skip' is unknown; legal: skip_reduce,swap_shards,drop_wait"},
    };
    for (int i = 0; i < DT_COUNT(wrong); i++) {
        dt_world *world = NULL;
        ck_assert_int_eq(setenv(wrong[i][0], wrong[i][1], 1), 0);
        const dt_status one =
            dt_world_create(&(dt_world_options){.backend = DT_BACKEND_SELF}, &world);
        ck_assert_msg(strstr(dt_error_trace(), wrong[i][2]) != NULL, "%s", dt_error_trace());
        const dt_status threads = dt_world_run_threads(2, NULL, nothing, NULL);
        (void)unsetenv(wrong[i][0]);
        ck_assert(one == DT_ERR_ARG && threads == DT_ERR_ARG);
    }
}
END_TEST

/* Twice a world, once a warning. */
START_TEST(narrow_affinity_is_warned_of_once)
{
    cpu_set_t old, one;
    ck_assert_int_eq(sched_getaffinity(0, sizeof old, &old), 0);
    CPU_ZERO(&one);
    for (size_t cpu = 0; CPU_COUNT(&one) == 0; cpu++)
        if (CPU_ISSET(cpu, &old))
            CPU_SET(cpu, &one);
    ck_assert_int_eq(sched_setaffinity(0, sizeof one, &one), 0);
    const char *threads = getenv("OMP_NUM_THREADS");
    char *restored = threads ? strdup(threads) : NULL;
    ck_assert_int_eq(setenv("OMP_NUM_THREADS", "2", 1), 0);
    char text[4096] = "";
    FILE *saved = stderr;
    stderr = fmemopen(text, sizeof text - 1, "w");
    for (int i = 0; i < 2; i++) {
        dt_world *world;
        ck_ok(dt_world_create(&(dt_world_options){.backend = DT_BACKEND_SELF}, &world));
        dt_world_destroy(&world);
    }
    (void)fclose(stderr);
    stderr = saved;
    if (restored)
        (void)setenv("OMP_NUM_THREADS", restored, 1);
    else
        (void)unsetenv("OMP_NUM_THREADS");
    free(restored);
    ck_assert_int_eq(sched_setaffinity(0, sizeof old, &old), 0);
    const char *found = strstr(text, "OMP_NUM_THREADS is 2 but this process may use only 1 cores");
    ck_assert_ptr_nonnull(found);
    ck_assert_ptr_null(strstr(found + 1, "warning"));
}
END_TEST

/* ---- self and fake ---- */

START_TEST(self_is_a_world_of_one)
{
    dt_world *world;
    ck_ok(dt_world_create(&(dt_world_options){.backend = DT_BACKEND_SELF}, &world));
    ck_assert_int_eq(dt_world_size(world), 1);
    case_results results = {0};
    ck_ok(run_cases(world, dt_world_comm(world), false, &results));
    ck_assert_int_eq(dt_world_counts(world).total_calls, 0);
    ck_ok(dt_world_agree_sync(world, DT_OK));
    ck_assert_int_eq(dt_world_agree_sync(world, DT_ERROR(DT_ERR_IO, "mine")), DT_ERR_IO);
    free(results.bytes);
    dt_world_destroy(&world);
    dt_world_destroy(&world);
    ck_assert_int_eq(dt_world_create(&(dt_world_options){.backend = DT_BACKEND_THREADS}, &world),
                     DT_ERR_ARG);
}
END_TEST

START_TEST(fake_counts_and_zeroes)
{
    dt_world *world;
    ck_ok(dt_world_create(
        &(dt_world_options){.backend = DT_BACKEND_FAKE, .fake_rank = 0, .fake_size = 4}, &world));
    ck_ok(one_of_each(world, dt_world_comm(world), 0));
    const dt_counts c = dt_world_counts(world);
    ck_ok(check_counts(&c, 0));
    dt_array x, all;
    ck_ok(case_floats(world, 1, 5, &x));
    ck_ok(case_floats(world, 4, 7, &all));
    dt_work *work;
    ck_ok(dt_all_gather(dt_world_comm(world), 1, &(dt_part){.in = &x, .out = &all}, "", &work));
    ck_ok(dt_work_wait(&work));
    const float *got = test_look(&all);
    ck_assert(got[0] == 5 && got[1] == 0 && got[3] == 0);
    ck_ok(dt_all_reduce(dt_world_comm(world), 1, &(dt_part){.in = &x, .out = &x}, DT_REDUCE_SUM, "",
                        &work));
    ck_ok(dt_work_wait(&work));
    ck_assert_float_eq(case_first(&x), 5); /* the others' terms are zeros */
    int64_t same = 3;                      /* all ranks of a fake world say what this one says */
    ck_ok(dt_all_reduce_i64_sync(dt_world_comm(world), &same, 1, DT_REDUCE_MIN));
    ck_assert_int_eq(same, 3);
    ck_assert_int_eq(dt_world_agree_sync(world, DT_ERROR(DT_ERR_IO, "mine")), DT_ERR_IO);
    dt_array_release(&x);
    dt_array_release(&all);
    dt_world_destroy(&world);
    ck_assert_int_eq(
        dt_world_create(
            &(dt_world_options){.backend = DT_BACKEND_FAKE, .fake_rank = 4, .fake_size = 4},
            &world),
        DT_ERR_ARG);
}
END_TEST

START_TEST(fake_world_of_16384)
{
    dt_world *world;
    ck_ok(dt_world_create(
        &(dt_world_options){.backend = DT_BACKEND_FAKE, .fake_rank = 9999, .fake_size = 16384},
        &world));
    dt_heap *heap;
    ck_ok(dt_world_heap(world, (dt_device){.kind = DT_META}, &heap));
    dt_array x;
    ck_ok(dt_array_create(heap, DT_BF16, DT_SHAPE(16384, 1 << 20), DT_TAG_GRADIENT, &x));
    dt_work *work;
    ck_ok(dt_all_reduce(dt_world_comm(world), 1, &(dt_part){.in = &x, .out = &x}, DT_REDUCE_SUM,
                        "huge", &work));
    ck_ok(dt_work_wait(&work));
    ck_assert_int_eq(dt_world_counts(world).total_bytes, (int64_t)2 * 16383 * (1 << 21));
    dt_array_release(&x);
    dt_world_destroy(&world);
}
END_TEST

static Suite *make_suite(void)
{
    Suite *suite = suite_create("comm counts");
    TCase *tc = tcase_create("counts");
    tcase_set_timeout(tc, 60);
    tcase_add_test(tc, narrow_affinity_is_warned_of_once); /* before another world warns */
    tcase_add_test(tc, calls_and_bytes);
    tcase_add_test(tc, ring_keeps_the_last_256_calls);
    tcase_add_test(tc, unknown_switches_are_refused);
    tcase_add_test(tc, switches_come_from_the_environment);
    tcase_add_test(tc, self_is_a_world_of_one);
    tcase_add_test(tc, fake_counts_and_zeroes);
    tcase_add_test(tc, fake_world_of_16384);
    suite_add_tcase(suite, tc);
    return suite;
}

int main(void)
{
    return test_main(make_suite());
}
