/* tests/array/test_kernels_nn.c - exponentials of f32 kernels against those of libm in f64. What
 * kernels compute is tested through the ops (tests/dtensor/test_ops_*.c). */
#include "array/exp_internal.h"
#include "tests/harness.h"

#include <float.h>

START_TEST(test_exp_is_accurate)
{
    double worst = 0;
    for (int i = -1040000; i <= 887000; i++) {
        const float x = (float)i * 1e-4f;
        const double want = exp((double)x);
        const double half = fmax(want * (double)FLT_EPSILON / 2, 0x1p-149); /* of an ulp */
        worst = fmax(worst, fabs((double)dt_exp_f32(x) - want) / half);
    }
    ck_assert_msg(worst <= 2, "%g half ulps", worst);
}
END_TEST

START_TEST(test_exp_below_zero)
{
    double worst = 0;
    for (int i = -873000; i <= 0; i++) {
        const float x = (float)i * 1e-4f;
        const double want = exp((double)x);
        worst = fmax(worst, fabs((double)dt_exp_below_f32(x) - want) / (want * FLT_EPSILON / 2));
    }
    ck_assert_msg(worst <= 2, "%g half ulps", worst);
    ck_assert(dt_exp_below_f32(0) == 1);
    ck_assert(dt_exp_below_f32(-90) == 0);
    ck_assert(dt_exp_below_f32(-1e30f) == 0);
    ck_assert(dt_exp_below_f32(-INFINITY) == 0);
    ck_assert(isnan(dt_exp_below_f32(NAN)));
}
END_TEST

START_TEST(test_sigmoid)
{
    double worst = 0;
    for (int i = -880000; i <= 1000000; i++) {
        const float x = (float)i * 1e-4f;
        const double want = 1 / (1 + exp(-(double)x));
        worst = fmax(worst, fabs((double)dt_sigmoid_f32(x) - want) / (want * FLT_EPSILON / 2));
    }
    ck_assert_msg(worst <= 4, "%g half ulps", worst);
    ck_assert(dt_sigmoid_f32(-1e30f) == 0);
    ck_assert(dt_sigmoid_f32(1e30f) == 1);
    ck_assert(isnan(dt_sigmoid_f32(NAN)));
}
END_TEST

START_TEST(test_exp_at_the_ends)
{
    ck_assert(dt_exp_f32(0) == 1);
    ck_assert(dt_exp_f32(-INFINITY) == 0);
    ck_assert(dt_exp_f32(-1e30f) == 0);
    ck_assert(isinf(dt_exp_f32(INFINITY)));
    ck_assert(isinf(dt_exp_f32(88.8f)));
    ck_assert(isnan(dt_exp_f32(NAN)));
    ck_assert(dt_exp_f32(-100) > 0); /* subnormal */
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("kernels of neural network ops");
    TCase *tc = tcase_create("exp");
    tcase_add_test(tc, test_exp_is_accurate);
    tcase_add_test(tc, test_exp_at_the_ends);
    tcase_add_test(tc, test_exp_below_zero);
    tcase_add_test(tc, test_sigmoid);
    suite_add_tcase(suite, tc);
    return test_main(suite);
}
