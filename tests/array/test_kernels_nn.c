/* tests/array/test_kernels_nn.c - exponentials of f32 kernels against those of libm in f64, in each
 * kind of machine that this one is. What kernels compute is tested through the ops
 * (tests/dtensor/test_ops_*.c). */
#include "array/exp_internal.h"
#include "tests/harness.h"

#include <float.h>
#include <math.h>
#include <string.h>

enum { N = 1000 };

/* In half ulps, of normal numbers. */
static double error_of(float got, double want)
{
    return fabs((double)got - want) / (want * FLT_EPSILON / 2);
}

/* Ten thousandths from lo to hi, through fn in runs of N. */
static double worst_of(const dti_exp_kernels *k, int lo, int hi,
                       double (*fn)(const dti_exp_kernels *k, const float *x))
{
    double worst = 0;
    for (int first = lo; first <= hi; first += N) {
        float x[N];
        for (int i = 0; i < N; i++)
            x[i] = (float)(first + i < hi ? first + i : hi) * 1e-4f;
        worst = test_larger(fn(k, x), worst);
    }
    return worst;
}

static double row_error(const dti_exp_kernels *k, const float *x)
{
    float y[N];
    double worst = 0;
    k->row(N, x, 0, 1, y);
    for (int i = 0; i < N; i++)
        worst = test_larger(error_of(y[i], exp((double)x[i])), worst);
    return worst;
}

static double sigmoid_error(const dti_exp_kernels *k, const float *x)
{
    float y[N];
    double worst = 0;
    memcpy(y, x, sizeof y);
    k->one_plus(N, y);
    for (int i = 0; i < N; i++)
        worst = test_larger(error_of(1 / y[i], 1 / (1 + exp(-(double)x[i]))), worst);
    return worst;
}

START_TEST(test_exp_is_accurate)
{
    for (int i = 0; dti_exp_kernels_of(i); i++) {
        const double worst = worst_of(dti_exp_kernels_of(i), -873000, 883000, row_error);
        ck_assert_msg(worst <= 2, "kind %d: %g half ulps", i, worst);
    }
}
END_TEST

START_TEST(test_sigmoid_is_accurate)
{
    for (int i = 0; dti_exp_kernels_of(i); i++) {
        const double worst = worst_of(dti_exp_kernels_of(i), -880000, 1000000, sigmoid_error);
        ck_assert_msg(worst <= 4, "kind %d: %g half ulps", i, worst);
    }
}
END_TEST

START_TEST(test_exp_at_the_ends)
{
    static const float x[] = {0,    -110, -3e7f, -1e30f,   -INFINITY, 88.8f,
                              1e4f, 3e7f, 1e30f, INFINITY, NAN,       -NAN};
    static const float want[] = {1,        0,        0,        0,        0,   INFINITY,
                                 INFINITY, INFINITY, INFINITY, INFINITY, NAN, NAN};
    for (int i = 0; dti_exp_kernels_of(i); i++) {
        float y[DT_COUNT(x)], t[DT_COUNT(x)];
        dti_exp_kernels_of(i)->row(DT_COUNT(x), x, 0, 1, y);
        for (int j = 0; j < DT_COUNT(x); j++)
            t[j] = -x[j];
        dti_exp_kernels_of(i)->one_plus(DT_COUNT(x), t);
        for (int j = 0; j < DT_COUNT(x); j++) {
            ck_assert_msg((y[j] == want[j] && !signbit(y[j])) || (isnan(want[j]) && isnan(y[j])),
                          "kind %d: exp(%g) %g", i, (double)x[j], (double)y[j]);
            ck_assert_msg(t[j] == 1 + want[j] || (isnan(want[j]) && isnan(t[j])),
                          "kind %d: 1 + exp(%g) is %g", i, (double)x[j], (double)t[j]);
        }
    }
}
END_TEST

/* Past both ends, however far: inf; subnormal or 0, and not -0. */
START_TEST(test_exp_of_large)
{
    for (int i = 0; dti_exp_kernels_of(i); i++) {
        for (float x = 89; x < INFINITY; x *= 1.01f) {
            float y, z, above = -x;
            dti_exp_kernels_of(i)->row(1, &x, 0, 1, &y);
            ck_assert_msg(isinf(y) && y > 0, "kind %d: exp(%g) %g", i, (double)x, (double)y);
            dti_exp_kernels_of(i)->row(1, &above, 0, 1, &z);
            ck_assert_msg(z >= 0 && z < FLT_MIN && !signbit(z) && (x < 104 || z == 0),
                          "kind %d: exp(%g) %g", i, (double)above, (double)z);
        }
    }
}
END_TEST

/* The same bits wherever an element is, in place or not, in a run of any length. */
START_TEST(test_exp_ignores_the_place)
{
    float x[N], one[N], y[N], t[N], one_t[N];
    for (int i = 0; i < N; i++)
        x[i] = (float)(i * 7919 % N) * 0.03f - 15;
    for (int k = 0; dti_exp_kernels_of(k); k++) {
        memcpy(one_t, x, sizeof x);
        for (int i = 0; i < N; i++) {
            dti_exp_kernels_of(k)->row(1, x + i, 0.3f, 1.7f, one + i);
            dti_exp_kernels_of(k)->one_plus(1, one_t + i);
        }
        for (int first = 0, n = 1; first + n <= N; first += n, n++) {
            dti_exp_kernels_of(k)->row(n, x + first, 0.3f, 1.7f, y + first);
            memcpy(t + first, x + first, (size_t)n * 4);
            dti_exp_kernels_of(k)->one_plus(n, t + first);
            ck_assert_mem_eq(y + first, one + first, (size_t)n * 4);
            ck_assert_mem_eq(t + first, one_t + first, (size_t)n * 4);
            memcpy(t + first, x + first, (size_t)n * 4);
            dti_exp_kernels_of(k)->row(n, t + first, 0.3f, 1.7f, t + first);
            ck_assert_mem_eq(t + first, one + first, (size_t)n * 4);
        }
    }
}
END_TEST

START_TEST(test_sum_is_of_the_row)
{
    float x[N], y[N];
    for (int i = 0; i < N; i++)
        x[i] = (float)(i * 7919 % N) * -0.01f;
    for (int k = 0; dti_exp_kernels_of(k); k++) {
        for (int n = 0; n < 200; n++) {
            double sum = 0;
            dti_exp_kernels_of(k)->row(n, x, -0.7f, 1, y);
            for (int i = 0; i < n; i++)
                sum += (double)y[i];
            ck_assert(fabs((double)dti_exp_kernels_of(k)->sum(n, x, -0.7f) - sum) <= 1e-6 * sum);
        }
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("kernels of neural network ops");
    TCase *tc = tcase_create("exp");
    tcase_add_test(tc, test_exp_is_accurate);
    tcase_add_test(tc, test_sigmoid_is_accurate);
    tcase_add_test(tc, test_exp_at_the_ends);
    tcase_add_test(tc, test_exp_of_large);
    tcase_add_test(tc, test_exp_ignores_the_place);
    tcase_add_test(tc, test_sum_is_of_the_row);
    suite_add_tcase(suite, tc);
    return test_main(suite);
}
