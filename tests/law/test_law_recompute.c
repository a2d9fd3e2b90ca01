/* tests/law/test_law_recompute.c - the law for recomputation: training with it equals training
 * without, bit for bit: losses, norms, gradients and weights, with dropout, on 1, 2 and 3 ranks of
 * data parallelism, fully sharded in every mode, and under tensor and sequence parallelism. */
#include "tests/harness.h"
#include "tests/law/law.h"

#include <string.h>

static const char *const goldens[] = {"llama_tiny", "llama_tied", "gpt2_tiny"};
static const dt_recompute_policy policies[] = {DT_RECOMPUTE_FULL, DT_RECOMPUTE_SELECTIVE};

static void same_bits(const law_run *a, const law_run *b)
{
    ck_assert_int_eq(a->nparams, b->nparams);
    ck_assert_int_eq(a->steps, b->steps);
    ck_assert_mem_eq(a->loss, b->loss, sizeof a->loss);
    ck_assert_mem_eq(a->norm, b->norm, sizeof a->norm);
    for (int i = 0; i < a->nparams; i++) {
        const size_t bytes = sizeof(double) * (size_t)a->count[i];
        ck_assert_msg(memcmp(a->grad[i], b->grad[i], bytes) == 0, "gradient of %s", a->name[i]);
        ck_assert_msg(memcmp(a->weight[i], b->weight[i], bytes) == 0, "weight %s", a->name[i]);
    }
}

static void check(law_case c)
{
    law_run none = {0}, again = {0};
    ck_ok(law_train(&c, &none));
    for (int k = 0; k < DT_COUNT(policies); k++) {
        c.recompute = policies[k];
        ck_ok(law_train(&c, &again));
        same_bits(&again, &none);
        /* what is gathered for backward serves the second run too */
        ck_assert(c.tp > 1 || again.all_gathers == none.all_gathers);
        ck_assert(c.dp_shard < 2 || again.all_gathers > 0);
        law_free(&again);
    }
    law_free(&none);
}

START_TEST(data_parallel)
{
    check((law_case){.golden = goldens[_i / 3],
                     .ranks = _i % 3 + 1,
                     .micro_batch = _i % 3,
                     .steps = 2,
                     .dropout = 0.2});
}
END_TEST

START_TEST(fully_sharded)
{
    static const law_case modes[] = {{.ranks = 2, .dp_shard = 2},
                                     {.ranks = 3, .dp_shard = 3, .micro_batch = 1},
                                     {.ranks = 2, .dp_shard = 2, .keep_gathered = true},
                                     {.ranks = 4, .dp_shard = 4, .reshard_size = 2},
                                     {.ranks = 4, .dp_shard = 2, .micro_batch = 1},
                                     {.ranks = 2, .dp_shard = 2, .param_dtype = DT_BF16}};
    law_case c = modes[_i / DT_COUNT(goldens)];
    c.golden = goldens[_i % DT_COUNT(goldens)];
    c.steps = 2;
    c.dropout = 0.2;
    check(c);
}
END_TEST

START_TEST(tensor_parallel)
{
    check((law_case){
        .golden = goldens[_i / 2], .ranks = 2, .tp = 2, .sp = _i % 2, .steps = 2, .dropout = 0.2});
}
END_TEST

/* The cases above would say nothing of dropout if none happened. */
START_TEST(dropout_happens)
{
    law_run with = {0}, without = {0};
    law_case c = {.golden = goldens[_i], .ranks = 1, .steps = 1};
    ck_ok(law_train(&c, &without));
    c.dropout = 0.2;
    ck_ok(law_train(&c, &with));
    ck_assert(with.loss[0] != without.loss[0]);
    law_free(&with);
    law_free(&without);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("law of recomputation");
    TCase *tc = tcase_create("bits");
    tcase_set_timeout(tc, 300);
    test_some(tc, data_parallel, 3 * DT_COUNT(goldens));
    test_some(tc, fully_sharded, 6 * DT_COUNT(goldens));
    test_some(tc, tensor_parallel, 2 * DT_COUNT(goldens));
    test_some(tc, dropout_happens, DT_COUNT(goldens));
    suite_add_tcase(suite, tc);
    return test_main(suite);
}
