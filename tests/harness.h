/* tests/harness.h - Check for programs whose ranks are threads of one process, or MPI processes.
 *
 * A test that needs ranks is a Check test which calls test_ranks(n, body, arg): `body` runs on n
 * rank threads and returns DT_OK or a failure; inside it, use DT_TRY and TEST_THAT (which return,
 * so that no rank is left waiting: a failing rank fails the waits of the others). Outside of ranks
 * use plain ck_assert. */
#pragma once

#include "comm/dt_comm.h"

#include <check.h>

/* Inside a rank body: fail the test with a message; the condition and printf-like details. */
#define TEST_THAT(cond, ...)                                                      \
    do {                                                                          \
        if (!(cond))                                                              \
            return test_untrue(__FILE__, __LINE__, __func__, #cond, __VA_ARGS__); \
    } while (0)
DT_PRINTF(5, 6)
dt_status test_untrue(const char *file, int line, const char *func, const char *cond,
                      const char *fmt, ...);

/* Expect a failure with this status whose message contains `text` (may be ""). Returns from the
 * body if not. */
#define TEST_FAILS(want, text, call) DT_TRY(test_expect((call), (want), (text), #call))
dt_status test_expect(dt_status got, dt_status want, const char *text, const char *call);

/* Run `body` on n rank threads; ck_assert that all return DT_OK, printing the trace. With
 * DT_TEST_LAUNCHED set the ranks are those that tools/mpirun launched, in one world for all tests;
 * bodies for another number of ranks are skipped. */
void test_ranks(int nranks, dt_rank_body body, void *arg);
void test_ranks_with(int nranks, const dt_world_options *options, dt_rank_body body, void *arg);

/* Where tests run: DT_DEVICE=cuda (this rank's device), else the cpu. */
dt_device_kind test_device_kind(void);
dt_device test_device(dt_world *world);

/* Whether reduce-scatter and all-reduce add in one order, whose bits can be compared. NCCL's do
 * not. */
bool test_bits(void);

/* An array's elements, to be read: on the cpu its own, on cuda a copy that lives until test_main
 * returns. Not NULL where there are none; NULL on meta. */
const void *test_look(const dt_array *a);

/* Outside of ranks: assert that a call returns DT_OK, with the trace. */
#define ck_ok(call) ck_assert_msg((call) == DT_OK, "%s\n%s", #call, dt_error_trace())

/* tcase_add_loop_test for 0 to n - 1, n >= 1: every DT_EVERY-th from DT_FIRST on (all from 0 on
 * where the environment does not say), for builds that run ten times slower. */
void test_some(TCase *tc, const TTest *test, int n);
/* The same on cuda, which may be simulated; else all. */
void test_loop(TCase *tc, const TTest *test, int n);

/* Run one suite (CK_NOFORK); prints Check's line and returns for main(). `tests` ends with NULL
 * name. */
int test_main(Suite *suite);

/* The larger one; NaN where one is: fmax would lose it. */
double test_larger(double a, double b);
/* Largest |a - b|, and largest |b|; NaN where there is one. */
double test_max_diff(const float *a, const float *b, int64_t n);
double test_max_abs(const float *b, int64_t n);
