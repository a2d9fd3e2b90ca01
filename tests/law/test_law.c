/* tests/law/test_law.c - the law for data parallelism: N ranks give the one-rank result, element by
 * element; two runs are equal bit for bit; planted faults are seen.
 * Read next: tests/law/law.h, which has the limits. */
#include "tests/harness.h"
#include "tests/law/law.h"

#include <math.h>
#include <string.h>

static const char *const cases[] = {"llama_tiny", "llama_tied", "gpt2_tiny"};
static const int ranks[] = {2, 3, 4, 8};

START_TEST(n_ranks_are_one)
{
    law_run one = {0}, many = {0};
    law_case c = {
        .golden = cases[_i / DT_COUNT(ranks)], .ranks = 1, .steps = 3, .eps = LAW_SMOOTH_EPS};
    ck_ok(law_train(&c, &one));
    c.ranks = ranks[_i % DT_COUNT(ranks)];
    ck_ok(law_train(&c, &many));
    law_check_same(&many, &one, 3);
    ck_assert_msg(many.all_reduces == 1, "%lld all-reduces in a step, not one for all gradients",
                  (long long)many.all_reduces);
    law_free(&one);
    law_free(&many);
}
END_TEST

/* With dropout on: masks belong to samples, not to ranks or microbatches, so the law holds as it
 * does without. */
START_TEST(dropout_is_the_same_on_any_mesh)
{
    static const law_case layouts[] = {{.ranks = 1, .micro_batch = 1},
                                       {.ranks = 1, .micro_batch = 2},
                                       {.ranks = 2, .micro_batch = 1},
                                       {.ranks = 3, .micro_batch = 0},
                                       {.ranks = 4, .micro_batch = 1},
                                       {.ranks = 4, .tp = 2, .micro_batch = 2},
                                       {.ranks = 4, .tp = 4, .sp = true},
                                       {.ranks = 2, .tp = 2, .sp = true, .tp_overlap = true},
                                       {.ranks = 4, .dp_shard = 2, .micro_batch = 1}};
    law_run one = {0}, many = {0}, without = {0};
    const char *golden = _i < DT_COUNT(layouts) ? "llama_tiny" : "gpt2_tiny";
    law_case c = {.golden = golden, .ranks = 1, .steps = 2, .eps = LAW_SMOOTH_EPS};
    ck_ok(law_train(&c, &without));
    c.dropout = 0.2;
    ck_ok(law_train(&c, &one));
    const double effect = fabs(one.loss[0] - without.loss[0]); /* small weights: a small effect */
    ck_assert_msg(effect > 10 * LAW_LOSS_LIMIT, "dropout hardly does anything: %g", effect);
    law_case other = layouts[_i % DT_COUNT(layouts)];
    c.ranks = other.ranks;
    c.micro_batch = other.micro_batch;
    c.tp = other.tp;
    c.dp_shard = other.dp_shard;
    c.sp = other.sp;
    c.tp_overlap = other.tp_overlap;
    ck_ok(law_train(&c, &many));
    law_check_same(&many, &one, 2);
    law_free(&one);
    law_free(&many);
    law_free(&without);
}
END_TEST

static bool equal_bits(const law_run *a, const law_run *b)
{
    bool same_bits = a->nparams == b->nparams && memcmp(a->loss, b->loss, sizeof a->loss) == 0;
    for (int i = 0; i < a->nparams; i++)
        same_bits = same_bits &&
                    memcmp(a->weight[i], b->weight[i], sizeof(double) * (size_t)a->count[i]) == 0;
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
    ck_assert(law_compare(&wrong, &one, false, where) > 100 * LAW_ELEMENT_LIMIT);
    law_free(&one);
    law_free(&wrong);
}
END_TEST

/* The same of gradients that are no numbers: one is enough. */
START_TEST(a_nan_is_noticed)
{
    law_run one = {0}, wrong = {0};
    const law_case c = {.golden = cases[_i], .ranks = 1, .steps = 1};
    ck_ok(law_train(&c, &one));
    ck_ok(law_train(&c, &wrong));
    for (int i = 0; i < one.nparams; i += one.nparams - 1) {
        char where[128] = "";
        const double kept = wrong.grad[i][0];
        wrong.grad[i][0] = NAN;
        ck_assert(isnan(law_compare(&wrong, &one, false, where)));
        ck_assert_str_eq(where, one.name[i]);
        wrong.grad[i][0] = kept;
    }
    law_free(&one);
    law_free(&wrong);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("law of data parallelism");
    TCase *tc = tcase_create("dp");
    tcase_set_timeout(tc, 300);
    test_some(tc, n_ranks_are_one, DT_COUNT(cases) * DT_COUNT(ranks));
    test_some(tc, dropout_is_the_same_on_any_mesh, 18);
    test_some(tc, two_runs_are_equal_bit_for_bit, DT_COUNT(cases));
    test_some(tc, a_skipped_reduction_is_noticed, DT_COUNT(cases));
    test_some(tc, a_nan_is_noticed, DT_COUNT(cases));
    suite_add_tcase(suite, tc);
    return test_main(suite);
}
