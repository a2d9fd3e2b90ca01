/* tests/comm/test_collectives.c - values of every collective on 1..5 rank threads, on sub-groups
 * and channels; host values; communicators. */
#include "tests/comm/edges.h"

#include <math.h>
#include <stdlib.h>

static dt_status all_cases(dt_world *world, void *arg)
{
    (void)arg;
    case_results results = {0};
    const dt_status st = run_cases(world, dt_world_comm(world), true, &results);
    free(results.bytes);
    DT_TRY(st);
    return DT_OK;
}

START_TEST(values_on_1_to_5_ranks)
{
    test_ranks(_i, all_cases, NULL);
}
END_TEST

START_TEST(values_at_edges)
{
    test_ranks(_i, edge_values, NULL);
}
END_TEST

/* Ranks in reverse order on every channel: pieces follow the order of the communicator. */
static dt_status reversed(dt_world *world, void *arg)
{
    (void)arg;
    for (int channel = 0; channel < 4; channel++) {
        dt_comm *comm;
        DT_TRY(dt_comm_create(world, (int[]){2, 1, 0}, 3, channel, &comm));
        TEST_THAT(dt_comm_rank(comm) == 2 - dt_world_rank(world), "rank %d", dt_comm_rank(comm));
        case_results results = {0};
        const dt_status st = run_cases(world, comm, false, &results);
        free(results.bytes);
        DT_TRY(st);
        dt_comm_destroy(&comm);
    }
    return DT_OK;
}

START_TEST(values_on_reversed_ranks_and_channels)
{
    test_ranks(3, reversed, NULL);
}
END_TEST

static dt_status communicators(dt_world *world, void *arg)
{
    (void)arg;
    const int me = dt_world_rank(world), pair = me / 2;
    dt_comm *comm, *same, *other, *alone, *foreign;
    TEST_THAT(dt_world_comms_created(world) == 0, "at first");
    DT_TRY(dt_comm_create(world, (int[]){2 * pair, 2 * pair + 1}, 2, 0, &comm));
    DT_TRY(dt_comm_create(world, (int[]){2 * pair, 2 * pair + 1}, 2, 0, &same));
    DT_TRY(dt_comm_create(world, (int[]){2 * pair, 2 * pair + 1}, 2, 1, &other));
    DT_TRY(dt_comm_create(world, &me, 1, 0, &alone));
    DT_TRY(dt_comm_create(world, (int[]){2 - 2 * pair, 3 - 2 * pair}, 2, 0, &foreign));
    TEST_THAT(comm == same && comm != other, "same ranks and channel give the same communicator");
    TEST_THAT(dt_world_comms_created(world) == 2, "%d", dt_world_comms_created(world));
    TEST_THAT(dt_comm_size(alone) == 1 && dt_comm_rank(alone) == 0, "alone");
    TEST_THAT(dt_comm_rank(foreign) == -1, "not a member");
    dt_work *work;
    TEST_FAILS(DT_ERR_ARG, "not a member", dt_barrier(foreign, "", &work));
    int64_t sum = me;
    DT_TRY(dt_all_reduce_i64_sync(comm, &sum, 1, DT_REDUCE_SUM));
    TEST_THAT(sum == 4 * pair + 1, "%lld", (long long)sum);
    TEST_FAILS(DT_ERR_ARG, "named twice", dt_comm_create(world, (int[]){1, 1}, 2, 0, &comm));
    TEST_FAILS(DT_ERR_ARG, "channel=4", dt_comm_create(world, &me, 1, 4, &comm));
    TEST_FAILS(DT_ERR_ARG, "not in a world", dt_comm_create(world, (int[]){4}, 1, 0, &comm));
    dt_comm_destroy(&same);
    TEST_THAT(dt_comm_size(other) == 2, "counted references");
    dt_comm_destroy(&other);
    dt_comm_destroy(&alone);
    dt_comm_destroy(&foreign);
    return DT_OK;
}

START_TEST(communicators_are_interned)
{
    test_ranks(4, communicators, NULL);
}
END_TEST

static dt_status host_values(dt_world *world, void *arg)
{
    (void)arg;
    const int me = dt_world_rank(world), k = dt_world_size(world);
    double x[2] = {me + 0.5, -me};
    DT_TRY(dt_all_reduce_f64_sync(dt_world_comm(world), x, 2, DT_REDUCE_SUM));
    TEST_THAT(x[0] == k * (k - 1) / 2 + 0.5 * k && x[1] == -k * (k - 1) / 2, "%g %g", x[0], x[1]);
    int64_t big = ((int64_t)1 << 60) + me;
    DT_TRY(dt_all_reduce_i64_sync(dt_world_comm(world), &big, 1, DT_REDUCE_MAX));
    TEST_THAT(big == ((int64_t)1 << 60) + k - 1, "%lld", (long long)big);
    DT_TRY(dt_all_reduce_i64_sync(dt_world_comm(world), &big, 1, DT_REDUCE_MIN));
    TEST_THAT(dt_world_counts(world).total_calls == 0, "host values are not counted");
    return DT_OK;
}

START_TEST(host_values_on_1_to_5_ranks)
{
    test_ranks(_i, host_values, NULL);
}
END_TEST

/* Rank r gives NaN as element r of as many as there are ranks, else its number. */
static dt_status not_numbers(dt_world *world, dt_dtype dtype, dt_reduce op)
{
    enum { K = 3 };
    dt_heap *heap;
    DT_TRY(dt_world_heap(world, (dt_device){.kind = DT_CPU}, &heap));
    dt_array wide, x;
    DT_TRY(dt_array_create(heap, DT_F32, DT_SHAPE(K + 1), DT_TAG_ACTIVATION, &wide));
    DT_TRY(dt_array_create(heap, dtype, DT_SHAPE(K + 1), DT_TAG_ACTIVATION, &x));
    float *v = dt_array_data(&wide);
    for (int i = 0; i <= K; i++)
        v[i] = i == dt_world_rank(world) ? NAN : (float)(1 + dt_world_rank(world));
    dt_array_cast(&x, &wide);
    const dt_part part = {.in = &x, .out = &x};
    dt_work *work;
    DT_TRY(dt_all_reduce(dt_world_comm(world), 1, &part, op, "nan", &work));
    DT_TRY(dt_work_wait(&work));
    dt_array_cast(&wide, &x);
    for (int i = 0; i < K; i++)
        TEST_THAT(isnan(v[i]), "%s: element %d is %g", dt_dtype_name(dtype), i, (double)v[i]);
    const double want = op == DT_REDUCE_SUM ? 6 : op == DT_REDUCE_MAX ? 3 : 1;
    TEST_THAT((double)v[K] == want, "%s: %g", dt_dtype_name(dtype), (double)v[K]);
    dt_array_release(&wide);
    dt_array_release(&x);
    return DT_OK;
}

static dt_status nan_body(dt_world *world, void *arg)
{
    (void)arg;
    static const dt_dtype type[] = {DT_F32, DT_F64, DT_BF16, DT_F16};
    static const dt_reduce op[] = {DT_REDUCE_SUM, DT_REDUCE_MAX, DT_REDUCE_MIN};
    for (int i = 0; i < DT_COUNT(type) * DT_COUNT(op); i++)
        DT_TRY(not_numbers(world, type[i / DT_COUNT(op)], op[i % DT_COUNT(op)]));
    for (int i = 0; i < 3; i++) {
        double x = i == dt_world_rank(world) ? NAN : 1;
        DT_TRY(dt_all_reduce_f64_sync(dt_world_comm(world), &x, 1, DT_REDUCE_MAX));
        TEST_THAT(isnan(x), "largest is %g with NaN of rank %d", x, i);
    }
    return DT_OK;
}

START_TEST(nan_of_any_rank_wins)
{
    test_ranks(3, nan_body, NULL);
}
END_TEST

/* Arrays without bytes: calls run and are counted. */
static dt_status shapes_only(dt_world *world, void *arg)
{
    (void)arg;
    dt_heap *heap;
    DT_TRY(dt_world_heap(world, (dt_device){.kind = DT_META}, &heap));
    dt_array a, whole;
    DT_TRY(dt_array_create(heap, DT_F32, DT_SHAPE(1000), DT_TAG_ACTIVATION, &a));
    DT_TRY(dt_array_create(heap, DT_F32, DT_SHAPE(3000), DT_TAG_ACTIVATION, &whole));
    const dt_part gather = {.in = &a, .out = &whole}, sum = {.in = &a, .out = &a};
    dt_work *work;
    DT_TRY(dt_all_gather(dt_world_comm(world), 1, &gather, "meta", &work));
    DT_TRY(dt_work_wait(&work));
    DT_TRY(dt_all_reduce(dt_world_comm(world), 1, &sum, DT_REDUCE_SUM, "meta", &work));
    DT_TRY(dt_work_wait(&work));
    TEST_THAT(dt_world_counts(world).total_bytes == 8000 + 5333, "%lld",
              (long long)dt_world_counts(world).total_bytes);
    dt_array_release(&a);
    dt_array_release(&whole);
    return DT_OK;
}

START_TEST(meta_arrays_are_counted)
{
    test_ranks(3, shapes_only, NULL);
}
END_TEST

static dt_status nothing(dt_world *world, void *arg)
{
    (void)world;
    (void)arg;
    return DT_OK;
}

/* The room for messages of a million pairs is more than a machine has, and is not used. */
START_TEST(a_world_of_1024_threads)
{
    ck_ok(dt_world_run_threads(1024, NULL, nothing, NULL));
}
END_TEST

static Suite *make_suite(void)
{
    Suite *suite = suite_create("comm collectives");
    TCase *tc = tcase_create("values");
    tcase_set_timeout(tc, 100);
    tcase_add_loop_test(tc, values_on_1_to_5_ranks, 1, 6);
    tcase_add_loop_test(tc, values_at_edges, 2, 4);
    tcase_add_test(tc, values_on_reversed_ranks_and_channels);
    tcase_add_test(tc, communicators_are_interned);
    tcase_add_loop_test(tc, host_values_on_1_to_5_ranks, 1, 6);
    tcase_add_test(tc, nan_of_any_rank_wins);
    tcase_add_test(tc, meta_arrays_are_counted);
    tcase_add_test(tc, a_world_of_1024_threads);
    suite_add_tcase(suite, tc);
    return suite;
}

int main(void)
{
    return test_main(make_suite());
}
