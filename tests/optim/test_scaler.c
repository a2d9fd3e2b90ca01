/* tests/optim/test_scaler.c - the loss scale: halves on overflow, doubles after enough good steps,
 * powers of two throughout. */
#include "optim/dt_scaler.h"
#include "tests/harness.h"

#include <math.h>

static bool update(dt_scaler *s, double norm)
{
    double factor = 0;
    bool apply = false;
    const double scale = s->scale;
    int exponent = 0;
    ck_ok(dt_scaler_update(s, norm, &factor, &apply));
    ck_assert(factor * scale == 1 && frexp(s->scale, &exponent) == 0.5);
    return apply;
}

START_TEST(grows_and_backs_off)
{
    dt_scaler s = dt_scaler_start();
    ck_assert(s.scale == 65536 && s.interval == 2000);
    s.interval = 3;
    ck_assert(!update(&s, INFINITY) && s.scale == 32768);
    ck_assert(!update(&s, NAN) && s.scale == 16384 && s.skipped == 2);
    ck_assert(update(&s, 1) && update(&s, 0) && s.scale == 16384);
    ck_assert(!update(&s, -INFINITY) && s.scale == 8192); /* the count of good steps starts again */
    ck_assert(update(&s, 1) && update(&s, 1) && s.scale == 8192);
    ck_assert(update(&s, 1) && s.scale == 16384);
    const dt_scaler saved = s; /* a plain value */
    ck_assert(update(&s, 1) && s.good == saved.good + 1);
    for (int i = 0; i < 3000; i++)
        (void)update(&s, 1);
    ck_assert(isfinite((float)s.scale));
}
END_TEST

START_TEST(gives_up_at_one)
{
    dt_scaler s = {.scale = 2, .interval = 10};
    double factor = 0;
    bool apply = true;
    ck_assert(!update(&s, INFINITY) && s.scale == 1);
    ck_assert(update(&s, 5));
    ck_assert_int_eq(dt_scaler_update(&s, INFINITY, &factor, &apply), DT_ERR_STATE);
    ck_assert(s.scale == 1);
    dt_error_clear();
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("loss scale");
    TCase *tc = tcase_create("all");
    tcase_add_test(tc, grows_and_backs_off);
    tcase_add_test(tc, gives_up_at_one);
    suite_add_tcase(suite, tc);
    return test_main(suite);
}
