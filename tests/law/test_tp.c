/* tests/law/test_tp.c - the law for tensor, sequence and loss parallelism, alone and with replicas,
 * shards and recomputed layers: N ranks give the one-rank result, element by element; planted
 * faults are seen. On each mesh two of the four combinations of sequence and loss parallelism, all
 * four with DT_FULL=1. */
#include "tests/harness.h"
#include "tests/law/law.h"

#include <stdlib.h>
#include <string.h>

enum { STEPS = 3 };

/* clang-format off */
/* llama_tiny has 8 query and 4 key/value heads, llama_tied 6 and 6, gpt2_tiny 4. What is neither tp
 * nor dp_shard replicates. */
static const law_case mesh[] = {
    {.golden = "llama_tiny", .ranks = 2, .tp = 2},
    {.golden = "llama_tiny", .ranks = 4, .tp = 4, .micro_batch = 1},
    {.golden = "llama_tiny", .ranks = 8, .tp = 8},
    {.golden = "llama_tiny", .ranks = 4, .tp = 2},
    {.golden = "llama_tiny", .ranks = 8, .tp = 4},
    {.golden = "llama_tiny", .ranks = 8, .tp = 2, .micro_batch = 1},
    {.golden = "llama_tied", .ranks = 2, .tp = 2},
    {.golden = "llama_tied", .ranks = 3, .tp = 3, .micro_batch = 1},
    {.golden = "llama_tied", .ranks = 6, .tp = 3},
    {.golden = "llama_tied", .ranks = 6, .tp = 6},
    {.golden = "gpt2_tiny", .ranks = 2, .tp = 2},
    {.golden = "gpt2_tiny", .ranks = 4, .tp = 4, .micro_batch = 1},
    {.golden = "gpt2_tiny", .ranks = 6, .tp = 2},
    {.golden = "gpt2_tiny", .ranks = 8, .tp = 4},
    /* shards of shards: S(d)@tp>dp_shard; with replicas; with recomputed layers */
    {.golden = "llama_tiny", .ranks = 4, .tp = 2, .dp_shard = 2, .micro_batch = 1},
    {.golden = "llama_tiny", .ranks = 8, .tp = 2, .dp_shard = 2},
    {.golden = "llama_tiny", .ranks = 8, .tp = 2, .dp_shard = 4, .keep_gathered = true},
    {.golden = "llama_tiny", .ranks = 8, .tp = 4, .dp_shard = 2, .recompute = DT_RECOMPUTE_FULL},
    {.golden = "llama_tiny", .ranks = 4, .tp = 4, .recompute = DT_RECOMPUTE_SELECTIVE},
    {.golden = "llama_tied", .ranks = 6, .tp = 3, .dp_shard = 2, .micro_batch = 1},
    {.golden = "llama_tied", .ranks = 6, .tp = 2, .dp_shard = 3,
     .recompute = DT_RECOMPUTE_SELECTIVE},
    {.golden = "llama_tied", .ranks = 3, .tp = 3, .recompute = DT_RECOMPUTE_FULL},
    {.golden = "gpt2_tiny", .ranks = 8, .tp = 2, .dp_shard = 2, .micro_batch = 1},
    {.golden = "gpt2_tiny", .ranks = 4, .tp = 2, .dp_shard = 2, .recompute = DT_RECOMPUTE_FULL},
    {.golden = "gpt2_tiny", .ranks = 8, .tp = 4, .dp_shard = 2},
    /* overlapped where sp is on */
    {.golden = "llama_tiny", .ranks = 4, .tp = 4, .tp_overlap = true, .micro_batch = 1},
    {.golden = "llama_tiny", .ranks = 8, .tp = 2, .dp_shard = 2, .tp_overlap = true},
    {.golden = "llama_tiny", .ranks = 8, .tp = 8, .tp_overlap = true}, /* tp_kv 4 x tp_rep 2 */
    {.golden = "llama_tied", .ranks = 3, .tp = 3, .tp_overlap = true,
     .recompute = DT_RECOMPUTE_FULL},
    {.golden = "gpt2_tiny", .ranks = 4, .tp = 2, .dp_shard = 2, .tp_overlap = true,
     .recompute = DT_RECOMPUTE_SELECTIVE},
    {.golden = "llama_tiny", .ranks = 4, .tp = 4, .dropout = 0.2},
    {.golden = "gpt2_tiny", .ranks = 4, .tp = 2, .dropout = 0.2, .micro_batch = 1},
};
/* clang-format on */

static law_case which(int i)
{
    law_case c = mesh[i / 4];
    c.steps = STEPS;
    c.eps = LAW_SMOOTH_EPS;
    c.sp = i & 1;
    c.tp_overlap = c.tp_overlap && c.sp;
    c.gather_logits = i & 2;
    return c;
}

START_TEST(tp_ranks_are_one)
{
    const int mix = _i % 4, pair = _i / 4 % 2; /* pairs: neither and both; one or the other */
    if (!getenv("DT_FULL") && (mix == 0 || mix == 3) != (pair == 0))
        return;
    const law_case c = which(_i);
    law_run many = {0};
    ck_ok(law_train(&c, &many));
    law_check_same(&many, law_one_rank(&c), STEPS);
    law_free(&many);
}
END_TEST

/* Tests of the test: what a forgotten or misplaced collective does must be far above the limit. The
 * argument of a fault is a part of the module path that issued the collective. */
static const struct {
    const char *golden, *fault;
    bool sp;
} fault[] = {
    {"llama_tiny", "skip_reduce:reduce_grads",
     true}, /* norm gradients, P under sequence parallelism */
    {"gpt2_tiny", "skip_reduce:reduce_grads", true},
    {"llama_tiny", "skip_reduce:o_proj", false}, /* g */
    {"llama_tiny", "skip_reduce:down_proj", true},
    {"llama_tiny", "skip_reduce:1.mlp", false}, /* f */
    {"gpt2_tiny", "swap_shards:attn", true},
    {"llama_tied", "skip_reduce:embed_tokens", true},
    {"llama_tied", "skip_reduce:lm_head", false},
    {"llama_tied", "skip_reduce:cross_entropy", false},
};

START_TEST(a_fault_is_noticed)
{
    law_run wrong = {0};
    char where[128];
    const law_case c = {.golden = fault[_i].golden,
                        .ranks = 2,
                        .tp = 2,
                        .steps = 1,
                        .sp = fault[_i].sp,
                        .fault = fault[_i].fault};
    ck_ok(law_train(&c, &wrong));
    ck_assert_msg(law_compare(&wrong, law_one_rank(&c), false, where) > 100 * LAW_ELEMENT_LIMIT,
                  "%s went unnoticed", fault[_i].fault);
    law_free(&wrong);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("law of tensor parallelism");
    TCase *tc = tcase_create("tp");
    tcase_set_timeout(tc, 300);
    test_some(tc, tp_ranks_are_one, 4 * DT_COUNT(mesh));
    test_some(tc, a_fault_is_noticed, DT_COUNT(fault));
    suite_add_tcase(suite, tc);
    return test_main(suite);
}
