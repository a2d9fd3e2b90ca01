/* tests/law/test_law_f64.c - the law where rounding is 1e-16: with everything in f64, N ranks give
 * the gradients of one rank within 1e-13, and its weights within 1e-12 though AdamW's eps is as
 * small in models of 8 layers, whose weights are random, as in the golden cases. What differs by
 * 1e-5 in f32 is rounding if it is here 1e-13, and a fault if not. */
#include "tests/law/pipelines.h"

#include <stdlib.h>
#include <string.h>

enum { F64_STEPS = 2 };
#define F64_GRADIENT_LIMIT 1e-13
#define F64_LIMIT          1e-12

/* clang-format off */
#define LLAMA(...) {.golden = "llama_tiny", __VA_ARGS__}
#define TIED(...)  {.golden = "llama_tied", __VA_ARGS__}
#define GPT2(...)  {.golden = "gpt2_tiny", __VA_ARGS__}
/* What is neither pp nor tp nor dp_shard replicates. */
static const law_case cases[] = {
    LLAMA(.ranks = 3, .micro_batch = 1),
    LLAMA(.ranks = 4, .tp = 4, .sp = true),
    LLAMA(.ranks = 8, .tp = 8, .sp = true, .tp_overlap = true), /* tp_kv 4 x tp_rep 2 */
    LLAMA(.ranks = 4, .tp = 2, .gather_logits = true, .dropout = 0.2),
    LLAMA(.ranks = 3, .dp_shard = 3, .micro_batch = 1),
    LLAMA(.ranks = 8, .pp = 2, .tp = 2, .dp_shard = 2, .sp = true, .tp_overlap = true,
          .micro_batch = 1, .recompute = DT_RECOMPUTE_FULL, .schedule = "zb-h1"),
    TIED(.ranks = 3, .tp = 3, .sp = true, .recompute = DT_RECOMPUTE_FULL),
    TIED(.ranks = 4, .dp_shard = 2, .keep_gathered = true),
    TIED(.ranks = 2, .pp = 2, .micro_batch = 1),
    GPT2(.ranks = 2, .tp = 2, .layers = 8),
    GPT2(.ranks = 4, .tp = 4, .sp = true, .layers = 8),
    GPT2(.ranks = 4, .dp_shard = 4, .reshard_size = 2, .recompute = DT_RECOMPUTE_SELECTIVE,
         .layers = 8),
    GPT2(.ranks = 8, .pp = 2, .tp = 2, .dp_shard = 2, .sp = true, .micro_batch = 1, .layers = 8),
};
/* clang-format on */

static void check(law_case c)
{
    law_run many = {0};
    char where[128] = "";
    c.f64 = true;
    c.steps = F64_STEPS;
    c.eps = LAW_SMOOTH_EPS;
    ck_ok(law_train(&c, &many));
    const law_run *one = law_one_rank(&c);
    const double worst = law_compare(&many, one, false, where);
    ck_assert_msg(worst <= F64_GRADIENT_LIMIT, "gradient of %s differs by %g", where, worst);
    law_check_within(&many, one, F64_STEPS, F64_LIMIT, F64_LIMIT);
    law_free(&many);
}

START_TEST(n_ranks_are_one)
{
    check(cases[_i]);
}
END_TEST

/* Of the cover those of 8 layers of GPT-2 with its own batch; everything with DT_FULL=1. */
static law_choice *alone, *in_3d;

static bool runs(const law_choice *x)
{
    const law_case *c = &x->c;
    return getenv("DT_FULL") ||
           (x->chosen && c->layers == 8 && c->batch == 0 && strcmp(c->golden, "gpt2_tiny") == 0);
}

START_TEST(a_pipeline_is_one_rank)
{
    if (runs(&alone[_i]))
        check(alone[_i].c);
}
END_TEST

START_TEST(a_pipeline_composes)
{
    if (runs(&in_3d[_i]))
        check(in_3d[_i].c);
}
END_TEST

int main(void)
{
    const int n = law_pipelines(false, &alone), n_3d = law_pipelines_3d(&in_3d);
    Suite *suite = suite_create("law in f64");
    TCase *tc = tcase_create("f64");
    tcase_set_timeout(tc, 300);
    test_some(tc, n_ranks_are_one, DT_COUNT(cases));
    test_some(tc, a_pipeline_is_one_rank, n);
    test_some(tc, a_pipeline_composes, n_3d);
    suite_add_tcase(suite, tc);
    const int failed = test_main(suite);
    free(alone);
    free(in_3d);
    return failed;
}
