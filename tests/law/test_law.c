/* tests/law/test_law.c - the law for data parallelism: N ranks give the one-rank result, element by element; two runs are
 * equal bit for bit; planted faults are seen.
 *
 * Limits (f32): losses 2e-5 absolute, every gathered gradient and updated weight max|a-b| <= 1e-5 max|b| of its tensor. */
#include "tests/harness.h"
#include "tests/law/law.h"

#include <math.h>
#include <string.h>

static const double loss_limit = 2e-5, element_limit = 1e-5;
/* AdamW divides by |g| + eps: with the usual 1e-8 the first update of a weight is lr times the sign of its gradient, and a
 * gradient that is zero but for rounding (1e-10 of 1e-2) has no sign that any order of additions could agree on. With this
 * eps the update is a smooth function of the gradient, so every element can be held to the limit. */
static const double smooth_eps = 1e-4;
static const char *const cases[] = {"llama_tiny", "llama_tied", "gpt2_tiny"};
static const int ranks[] = {2, 3, 4, 8};

static void same(const law_run *a, const law_run *one, int steps)
{
    char where[128] = "";
    double worst = law_compare(a, one, false, where);
    ck_assert_msg(worst <= element_limit, "gradient of %s differs by %g of its largest element",
                  where, worst);
    worst = law_compare(a, one, true, where);
    ck_assert_msg(worst <= element_limit, "weight %s differs by %g of its largest element", where,
                  worst);
    for (int i = 0; i < steps; i++)
        ck_assert_msg(fabs(a->loss[i] - one->loss[i]) <= loss_limit,
                      "loss of step %d: %.9g, one rank %.9g", i, a->loss[i], one->loss[i]);
}

START_TEST(n_ranks_are_one)
{
    law_run one = {0}, many = {0};
    law_case c = {.golden = cases[_i / DT_COUNT(ranks)], .ranks = 1, .steps = 3, .eps = smooth_eps};
    ck_ok(law_train(&c, &one));
    c.ranks = ranks[_i % DT_COUNT(ranks)];
    ck_ok(law_train(&c, &many));
    same(&many, &one, 3);
    ck_assert_msg(many.all_reduces == 1, "%lld all-reduces in a step, not one for all gradients",
                  (long long)many.all_reduces);
    law_free(&one);
    law_free(&many);
}
END_TEST

static bool equal_bits(const law_run *a, const law_run *b)
{
    bool same_bits = a->nparams == b->nparams && memcmp(a->loss, b->loss, sizeof a->loss) == 0;
    for (int i = 0; i < a->nparams; i++)
        same_bits = same_bits &&
                    memcmp(a->weight[i], b->weight[i], sizeof(float) * (size_t)a->count[i]) == 0;
    return same_bits;
}

START_TEST(two_runs_are_equal_bit_for_bit)
{
    law_run a = {0}, b = {0};
    const law_case c = {.golden = cases[_i], .ranks = 3, .micro_batch = 1, .steps = 3};
    ck_ok(law_train(&c, &a));
    ck_ok(law_train(&c, &b));
    ck_assert(equal_bits(&a, &b));
    law_free(&a);
    law_free(&b);
}
END_TEST

/* A test of the test: with the gradients' all-reduce left out, the comparison must notice. */
START_TEST(a_skipped_reduction_is_noticed)
{
    law_run one = {0}, wrong = {0};
    char where[128];
    ck_ok(law_train(&(law_case){.golden = cases[_i], .ranks = 1, .steps = 1}, &one));
    ck_ok(law_train(
        &(law_case){.golden = cases[_i], .ranks = 2, .steps = 1, .fault = "skip_reduce"}, &wrong));
    ck_assert(law_compare(&wrong, &one, false, where) > 100 * element_limit);
    law_free(&one);
    law_free(&wrong);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("law of data parallelism");
    TCase *tc = tcase_create("dp");
    tcase_set_timeout(tc, 300);
    tcase_add_loop_test(tc, n_ranks_are_one, 0, DT_COUNT(cases) * DT_COUNT(ranks));
    tcase_add_loop_test(tc, two_runs_are_equal_bit_for_bit, 0, DT_COUNT(cases));
    tcase_add_loop_test(tc, a_skipped_reduction_is_noticed, 0, DT_COUNT(cases));
    suite_add_tcase(suite, tc);
    return test_main(suite);
}
