/* tests/harness.c - see tests/harness.h. */
#include "tests/harness.h"

#include <math.h>
#include <pthread.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The condition may hold a '%', so it is not part of a format. */
dt_status test_untrue(const char *file, int line, const char *func, const char *cond,
                      const char *fmt, ...)
{
    char details[512];
    va_list args;
    va_start(args, fmt);
    (void)vsnprintf(details, sizeof details, fmt, args);
    va_end(args);
    return dt_error_set(DT_ERR_STATE, file, line, func, "not true: %s: %s", cond, details);
}

dt_status test_expect(dt_status got, dt_status want, const char *text, const char *call)
{
    DT_REQUIRE(got == want, DT_ERR_STATE, "%s gave '%s', wanted '%s': %s", call,
               dt_status_string(got), dt_status_string(want), dt_error_trace());
    DT_REQUIRE(want == DT_OK || strstr(dt_error_trace(), text), DT_ERR_STATE,
               "%s: message lacks '%s': %s", call, text, dt_error_trace());
    dt_error_clear();
    return DT_OK;
}

/* The one world of a launched test, and how many bodies ran in it. */
static dt_world *launched;
static int bodies;

static void run_launched(int nranks, const dt_world_options *options, dt_rank_body body, void *arg)
{
    if (!launched)
        DT_MUST(dt_world_create(options, &launched));
    if (dt_world_size(launched) != nranks)
        return;
    DT_MUST(body(launched, arg)); /* a rank that ends so ends the job */
    bodies++;
}

void test_ranks_with(int nranks, const dt_world_options *options, dt_rank_body body, void *arg)
{
    if (getenv("DT_TEST_LAUNCHED")) {
        run_launched(nranks, options, body, arg);
        return;
    }
    const dt_status st = dt_world_run_threads(nranks, options, body, arg);
    ck_assert_msg(st == DT_OK, "%d ranks: %s", nranks, dt_error_trace());
}

void test_ranks(int nranks, dt_rank_body body, void *arg)
{
    test_ranks_with(nranks, NULL, body, arg);
}

dt_device_kind test_device_kind(void)
{
    const char *text = getenv("DT_DEVICE");
    return text && strcmp(text, "cuda") == 0 ? DT_CUDA : DT_CPU;
}

dt_device test_device(dt_world *world)
{
    static _Thread_local int mine = -1; /* a thread has one device, in a world of its own too */
    dt_device device;
    const dt_status st = dt_world_device(world, test_device_kind(), &device);
    if (st != DT_OK)
        dt_die(st, __FILE__, __LINE__);
    if (mine < 0 || dt_world_size(world) > 1)
        mine = device.index;
    device.index = mine;
    return device;
}

bool test_bits(void)
{
    return test_device_kind() == DT_CPU;
}

/* Copies made by test_look, all threads together. */
static pthread_mutex_t copies_lock = PTHREAD_MUTEX_INITIALIZER;
static void **copies;
static int64_t ncopies, copies_capacity;

const void *test_look(const dt_array *a)
{
    static const max_align_t nothing;
    void *copy;
    const void *data = dt_array_look(a, &copy);
    if (!copy)
        return data || dt_array_count(a) > 0 ? data : &nothing;
    pthread_mutex_lock(&copies_lock);
    if (dt_grow((void **)&copies, &copies_capacity, ncopies + 1, sizeof *copies) == DT_OK)
        copies[ncopies++] = copy;
    pthread_mutex_unlock(&copies_lock);
    return data;
}

static void free_copies(void)
{
    while (ncopies > 0)
        free(copies[--ncopies]);
    free(copies);
    copies = NULL;
    copies_capacity = 0;
}

static int number_of(const char *variable, int least)
{
    const char *text = getenv(variable);
    return text && atoi(text) > least ? atoi(text) : least;
}

void test_some(TCase *tc, const TTest *test, int n)
{
    const int every = number_of("DT_EVERY", 1);
    for (int i = number_of("DT_FIRST", 0) % (every < n ? every : n); i < n; i += every)
        tcase_add_loop_test(tc, test, i, i + 1);
}

void test_loop(TCase *tc, const TTest *test, int n)
{
    if (test_device_kind() == DT_CUDA)
        test_some(tc, test, n);
    else
        tcase_add_loop_test(tc, test, 0, n);
}

int test_main(Suite *suite)
{
    SRunner *runner = srunner_create(suite);
    srunner_set_fork_status(runner, CK_NOFORK);
    srunner_run_all(runner, CK_NORMAL);
    const int failed = srunner_ntests_failed(runner);
    const bool idle = getenv("DT_TEST_LAUNCHED") && bodies == 0;
    srunner_free(runner);
    dt_world_destroy(&launched);
    free_copies();
    if (idle)
        (void)fprintf(stderr, "no test is for so many ranks\n");
    return failed == 0 && !idle ? EXIT_SUCCESS : EXIT_FAILURE;
}

double test_larger(double a, double b)
{
    return isnan(b) || a <= b ? b : a;
}

double test_max_diff(const float *a, const float *b, int64_t n)
{
    double worst = 0;
    for (int64_t i = 0; i < n; i++)
        worst = test_larger(fabs((double)a[i] - (double)b[i]), worst);
    return worst;
}

double test_max_abs(const float *b, int64_t n)
{
    double worst = 0;
    for (int64_t i = 0; i < n; i++)
        worst = test_larger(fabs((double)b[i]), worst);
    return worst;
}
