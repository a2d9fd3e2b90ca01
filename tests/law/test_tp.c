/* tests/law/test_tp.c - the law for tensor, sequence and loss parallelism, alone and with data parallelism: N ranks give the
 * one-rank result, element by element; planted faults are seen. */
#include "tests/harness.h"
#include "tests/law/law.h"

#include <string.h>

enum { STEPS = 3 };

/* llama_tiny has 8 query and 4 key/value heads, llama_tied 6 and 6, gpt2_tiny 4. */
static const struct {
    const char *golden;
    int ranks, tp, micro_batch;
} mesh[] = {
    {"llama_tiny", 2, 2, 0}, {"llama_tiny", 4, 4, 1}, {"llama_tiny", 8, 8, 0},
    {"llama_tiny", 4, 2, 0}, {"llama_tiny", 8, 4, 0}, {"llama_tiny", 8, 2, 1},
    {"llama_tied", 2, 2, 0}, {"llama_tied", 3, 3, 1}, {"llama_tied", 6, 3, 0},
    {"llama_tied", 6, 2, 0}, {"llama_tied", 6, 6, 0}, {"gpt2_tiny", 2, 2, 0},
    {"gpt2_tiny", 4, 4, 1},  {"gpt2_tiny", 4, 2, 0},  {"gpt2_tiny", 6, 2, 0},
    {"gpt2_tiny", 8, 4, 0},
};

/* The one-rank run, made once a case. */
static const law_run *one_rank(const char *golden)
{
    static law_run run[4];
    static const char *name[4];
    int i = 0;
    while (name[i] && strcmp(name[i], golden) != 0)
        i++;
    if (!name[i]) {
        const law_case c = {.golden = golden, .ranks = 1, .steps = STEPS, .eps = LAW_SMOOTH_EPS};
        ck_ok(law_train(&c, &run[i]));
        name[i] = golden;
    }
    return &run[i];
}

static law_case which(int i)
{
    const int m = i / 4;
    return (law_case){.golden = mesh[m].golden,
                      .ranks = mesh[m].ranks,
                      .tp = mesh[m].tp,
                      .micro_batch = mesh[m].micro_batch,
                      .steps = STEPS,
                      .eps = LAW_SMOOTH_EPS,
                      .sp = i & 1,
                      .gather_logits = i & 2};
}

START_TEST(tp_ranks_are_one)
{
    const law_case c = which(_i);
    law_run many = {0};
    ck_ok(law_train(&c, &many));
    law_check_same(&many, one_rank(c.golden), STEPS);
    law_free(&many);
}
END_TEST

/* Tests of the test: what a forgotten or misplaced collective does must be far above the limit. The argument of a fault is
 * a part of the module path that issued the collective. */
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
    ck_ok(law_train(&(law_case){.golden = fault[_i].golden,
                                .ranks = 2,
                                .tp = 2,
                                .steps = 1,
                                .sp = fault[_i].sp,
                                .fault = fault[_i].fault},
                    &wrong));
    ck_assert_msg(law_compare(&wrong, one_rank(fault[_i].golden), false, where) >
                      100 * LAW_ELEMENT_LIMIT,
                  "%s went unnoticed", fault[_i].fault);
    law_free(&wrong);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("law of tensor parallelism");
    TCase *tc = tcase_create("tp");
    tcase_set_timeout(tc, 300);
    tcase_add_loop_test(tc, tp_ranks_are_one, 0, 4 * DT_COUNT(mesh));
    tcase_add_loop_test(tc, a_fault_is_noticed, 0, DT_COUNT(fault));
    suite_add_tcase(suite, tc);
    return test_main(suite);
}
