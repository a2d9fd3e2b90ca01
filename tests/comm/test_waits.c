/* tests/comm/test_waits.c - calls that nothing but streams keeps in order: what was just made is
 * sent, what has just come is used. On cuda test_dropped_waits.sh runs each case once more with
 * each of the waits between streams left out (DT_FAULT=drop_event). */
#include "tests/comm/cases.h"

enum { COUNT = 512 };

typedef struct waits {
    dt_comm *comm; /* of both ranks, linked; on channel 1, where it is not the world's */
    dt_array x, y; /* of COUNT */
} waits;

/* The first collective makes NCCL's communicator, which lets streams run: here, not later. */
static dt_status begin(dt_world *world, waits *w)
{
    dt_work *first;
    DT_TRY(dt_comm_create(world, (int[]){0, 1}, 2, 1, &w->comm));
    DT_TRY(case_link(world, w->comm));
    DT_TRY(case_floats(world, COUNT, 0, &w->x));
    DT_TRY(case_floats(world, COUNT, 0, &w->y));
    const dt_part part = {.in = &w->x, .out = &w->x};
    DT_TRY(dt_all_reduce(w->comm, 1, &part, DT_REDUCE_SUM, "first", &first));
    return dt_work_wait(&first);
}

/* All calls have run before anything is said of numbers: a race needs both of its accesses. */
static dt_status end(waits *w, float want)
{
    const float *y = test_look(&w->y);
    dt_comm_destroy(&w->comm);
    for (int i = 0; i < COUNT; i++)
        TEST_THAT(y[i] == want, "element %d is %g, not %g", i, (double)y[i], (double)want);
    dt_array_release(&w->x);
    dt_array_release(&w->y);
    return DT_OK;
}

static dt_status collective(dt_world *world, void *arg)
{
    (void)arg;
    waits w;
    dt_work *work;
    DT_TRY(begin(world, &w));
    const dt_part part = {.in = &w.x, .out = &w.y};
    dt_array_fill(&w.x, dt_world_rank(world) + 1);
    DT_TRY(dt_all_reduce(w.comm, 1, &part, DT_REDUCE_SUM, "x", &work));
    DT_TRY(dt_work_wait(&work));
    dt_array_scale(&w.y, 2);
    return end(&w, 6);
}

static dt_status message(dt_world *world, void *arg)
{
    (void)arg;
    const int me = dt_world_rank(world);
    waits w;
    dt_work *sent, *got;
    DT_TRY(begin(world, &w));
    const dt_array *const from = &w.x;
    dt_array *const to = &w.y;
    dt_array_fill(&w.x, me + 1);
    DT_TRY(dt_send(w.comm, 1 - me, 1, &from, "x", &sent));
    DT_TRY(dt_recv(w.comm, 1 - me, 1, &to, "y", &got));
    DT_TRY(dt_work_wait(&got));
    dt_array_scale(&w.y, 2);
    DT_TRY(dt_work_wait(&sent));
    return end(&w, (float)(2 * (2 - me)));
}

/* A collective uses what was received just before it. */
static dt_status both(dt_world *world, void *arg)
{
    (void)arg;
    const int me = dt_world_rank(world);
    waits w;
    dt_work *sent, *got, *sum;
    DT_TRY(begin(world, &w));
    const dt_array *const from = &w.x;
    dt_array *const to = &w.y;
    const dt_part part = {.in = &w.y, .out = &w.y};
    dt_array_fill(&w.x, me + 1);
    DT_TRY(dt_send(w.comm, 1 - me, 1, &from, "x", &sent));
    DT_TRY(dt_recv(w.comm, 1 - me, 1, &to, "y", &got));
    DT_TRY(dt_all_reduce(w.comm, 1, &part, DT_REDUCE_SUM, "y", &sum));
    DT_TRY(dt_work_wait(&sum));
    DT_TRY(dt_work_wait(&got));
    DT_TRY(dt_work_wait(&sent));
    return end(&w, 3);
}

START_TEST(what_is_made_is_reduced_and_the_sum_used)
{
    test_ranks(2, collective, NULL);
}
END_TEST

START_TEST(what_is_made_is_sent_and_what_comes_used)
{
    test_ranks(2, message, NULL);
}
END_TEST

START_TEST(what_comes_is_reduced)
{
    test_ranks(2, both, NULL);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("comm waits");
    const TTest *const tests[] = {what_is_made_is_reduced_and_the_sum_used,
                                  what_is_made_is_sent_and_what_comes_used, what_comes_is_reduced};
    const char *const names[] = {"collective", "message", "both"}; /* for CK_RUN_CASE */
    for (int i = 0; i < 3; i++) {
        TCase *tc = tcase_create(names[i]);
        tcase_set_timeout(tc, 60);
        tcase_add_test(tc, tests[i]);
        suite_add_tcase(suite, tc);
    }
    return test_main(suite);
}
