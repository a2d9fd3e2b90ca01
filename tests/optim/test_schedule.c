/* tests/optim/test_schedule.c - learning rates computed by hand. */
#include "optim/dt_optim.h"
#include "tests/harness.h"

#include <math.h>

static void check(const dt_schedule *s, int n, const double (*step_lr)[2])
{
    for (int i = 0; i < n; i++) {
        const double got = dt_schedule_lr(s, (int64_t)step_lr[i][0]);
        ck_assert_msg(fabs(got - step_lr[i][1]) <= 1e-12 * fabs(step_lr[i][1]) + 1e-18,
                      "step %g: %.17g, want %.17g", step_lr[i][0], got, step_lr[i][1]);
    }
}

#define CHECK(schedule, ...)                          \
    do {                                              \
        static const double want_[][2] = __VA_ARGS__; \
        check(&(schedule), DT_COUNT(want_), want_);   \
    } while (0)

START_TEST(test_none)
{
    const dt_schedule flat = {.lr = 2, .total_steps = 10};
    CHECK(flat, {{0, 2}, {9, 2}, {100, 2}});
    const dt_schedule warm = {.lr = 2, .total_steps = 10, .warmup_steps = 4};
    CHECK(warm, {{0, 0.5}, {1, 1}, {2, 1.5}, {3, 2}, {4, 2}, {9, 2}});
}
END_TEST

START_TEST(test_linear)
{
    const dt_schedule s = {.lr = 8, .warmup_steps = 2, .total_steps = 6, .decay = DT_DECAY_LINEAR};
    CHECK(s, {{0, 4}, {1, 8}, {2, 8}, {3, 6}, {4, 4}, {5, 2}, {6, 0}, {7, 0}});
    dt_schedule floor = s;
    floor.min_ratio = 0.5;
    CHECK(floor, {{0, 4}, {1, 8}, {2, 8}, {3, 7}, {4, 6}, {5, 5}, {6, 4}, {600, 4}});
}
END_TEST

/* torchtitan's: 10 steps, 2 of them warm up; then with a decay that takes half of them. */
START_TEST(test_titan)
{
    dt_schedule s = {.lr = 1, .warmup_steps = 2, .total_steps = 10, .decay = DT_DECAY_LINEAR};
    CHECK(s, {{0, 0.5}, {1, 1}, {2, 1}, {3, 0.875}, {4, 0.75}, {8, 0.25}, {9, 0.125}});
    s.decay = DT_DECAY_WSD;
    s.decay_steps = 5;
    CHECK(s, {{0, 0.5}, {1, 1}, {5, 1}, {6, 0.8}, {7, 0.6}, {8, 0.4}, {9, 0.2}});
}
END_TEST

START_TEST(test_cosine)
{
    /* lo = 1, lr - lo = 7; cos(0) = 1, cos(pi/3) = 1/2, cos(pi/2) = 0, cos(2 pi/3) = -1/2 */
    const dt_schedule s = {
        .lr = 8, .warmup_steps = 2, .total_steps = 8, .decay = DT_DECAY_COSINE, .min_ratio = 0.125};
    CHECK(s, {{0, 4}, {1, 8}, {2, 8}, {4, 6.25}, {5, 4.5}, {6, 2.75}, {8, 1}, {80, 1}});
}
END_TEST

START_TEST(test_wsd)
{
    dt_schedule s = {.lr = 10,
                     .warmup_steps = 2,
                     .total_steps = 10,
                     .decay = DT_DECAY_WSD,
                     .min_ratio = 0.1,
                     .decay_steps = 3};
    CHECK(s, {{0, 5}, {1, 10}, {2, 10}, {6, 10}, {7, 10}, {8, 7}, {9, 4}, {10, 1}, {11, 1}});
    s.decay_steps = 0; /* a tenth of 20: the last two */
    s.total_steps = 20;
    CHECK(s, {{17, 10}, {18, 10}, {19, 5.5}, {20, 1}});
    s.decay_steps = 100; /* no more than warmup leaves: linear */
    s.total_steps = 11;
    CHECK(s, {{1, 10}, {2, 10}, {3, 9}, {10, 2}});
}
END_TEST

START_TEST(test_edges)
{
    static const dt_decay_kind kinds[] = {DT_DECAY_LINEAR, DT_DECAY_COSINE, DT_DECAY_WSD};
    for (int k = 0; k < DT_COUNT(kinds); k++) {
        /* a warmup longer than the run, and a run of no steps */
        const dt_schedule s = {.lr = 4, .warmup_steps = 8, .total_steps = 4, .decay = kinds[k]};
        CHECK(s, {{0, 0.5}, {3, 2}, {7, 4}});
        const dt_schedule none = {.lr = 4, .decay = kinds[k], .min_ratio = 0.25};
        CHECK(none, {{0, 1}});
        for (int64_t step = 0; step < 40; step++) {
            const dt_schedule any = {1, 3, 30, kinds[k], 0.3, 0};
            const double lr = dt_schedule_lr(&any, step);
            ck_assert(lr <= 1 && (step < 3 || lr >= 0.3));
        }
    }
}
END_TEST

START_TEST(test_parse)
{
    static const char *const names[] = {"none", "linear", "Cosine", "WSD"};
    dt_decay_kind kind;
    for (int i = 0; i < DT_COUNT(names); i++) {
        ck_ok(dt_decay_parse(names[i], &kind));
        ck_assert_int_eq(kind, i);
    }
    ck_ok(
        test_expect(dt_decay_parse("cosin", &kind), DT_ERR_ARG, "none, linear, cosine or wsd", ""));
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("schedule");
    TCase *tc = tcase_create("schedule");
    tcase_add_test(tc, test_none);
    tcase_add_test(tc, test_linear);
    tcase_add_test(tc, test_titan);
    tcase_add_test(tc, test_cosine);
    tcase_add_test(tc, test_wsd);
    tcase_add_test(tc, test_edges);
    tcase_add_test(tc, test_parse);
    suite_add_tcase(suite, tc);
    return test_main(suite);
}
