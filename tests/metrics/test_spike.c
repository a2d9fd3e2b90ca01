/* tests/metrics/test_spike.c - z-scores against the formula over the last values. */
#include "metrics/dt_metrics.h"
#include "tests/harness.h"

#include <math.h>

static double value_at(int i)
{
    return 3 + 0.01 * (i * 7919 % 101) - 0.001 * i;
}

START_TEST(scores)
{
    dt_spike s = {0};
    for (int i = 0; i < 400; i++) {
        const int from = i > DT_SPIKE_WINDOW ? i - DT_SPIKE_WINDOW : 0;
        double sum = 0, squares = 0;
        for (int k = from; k < i; k++)
            sum += value_at(k);
        const double mean = sum / (i - from);
        for (int k = from; k < i; k++)
            squares += pow(value_at(k) - mean, 2);
        const double want = i - from < DT_SPIKE_LEAST
                                ? 0
                                : (value_at(i) - mean) / sqrt(squares / (i - from - 1));
        ck_assert_double_eq_tol(dt_spike_score(&s, value_at(i)), want, 1e-9);
    }
}
END_TEST

START_TEST(flat)
{
    dt_spike s = {0};
    for (int i = 0; i < DT_SPIKE_LEAST; i++)
        ck_assert(dt_spike_score(&s, 2.5) == 0);
    ck_assert(dt_spike_score(&s, 2.5) == 0);
    ck_assert(isinf(dt_spike_score(&s, 2.6)));
    ck_assert(dt_spike_score(&s, 2.4) < 0);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("spike");
    TCase *tests = tcase_create("spike");
    tcase_add_test(tests, scores);
    tcase_add_test(tests, flat);
    suite_add_tcase(suite, tests);
    return test_main(suite);
}
