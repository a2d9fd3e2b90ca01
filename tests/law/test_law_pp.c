/* tests/law/test_law_pp.c - the law for pipelines: every schedule on 2, 3 and 4 ranks, with data,
 * sharded and tensor parallelism, microbatches that do not divide the batch, and tied weights; the
 * tapes alive at once are the simulator's. */
#include "tests/harness.h"
#include "tests/law/law.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ranks = pp x dp_replicate x dp_shard x tp. llama_tiny has 4 layers and batches of 8, gpt2_tiny 3
 * (tied) and 6, llama_tied 2 (tied) and 4. */
#define LLAMA(...)                          \
    {                                       \
        .golden = "llama_tiny", __VA_ARGS__ \
    }
#define GPT2(...)                          \
    {                                      \
        .golden = "gpt2_tiny", __VA_ARGS__ \
    }
#define TIED(...)                           \
    {                                       \
        .golden = "llama_tied", __VA_ARGS__ \
    }
static const law_case plain[] = {
    LLAMA(.ranks = 2, .pp = 2, .schedule = "gpipe", .micro_batch = 2),
    LLAMA(.ranks = 3, .pp = 3, .schedule = "gpipe", .micro_batch = 1),
    LLAMA(.ranks = 4, .pp = 4, .schedule = "gpipe", .micro_batch = 2),
    LLAMA(.ranks = 2, .pp = 2, .schedule = "1f1b", .micro_batch = 3), /* 3, 3, 2 */
    LLAMA(.ranks = 3, .pp = 3, .schedule = "1f1b", .micro_batch = 2),
    LLAMA(.ranks = 4, .pp = 4, .schedule = "1f1b", .micro_batch = 1),
    LLAMA(.ranks = 2, .pp = 2, .schedule = "looped-bfs", .stages_per_rank = 2, .micro_batch = 2),
    LLAMA(.ranks = 2, .pp = 2, .schedule = "interleaved", .stages_per_rank = 2, .micro_batch = 1),
    LLAMA(.ranks = 2, .pp = 2, .schedule = "interleaved", .stages_per_rank = 2, .micro_batch = 3),
    LLAMA(.ranks = 2, .pp = 2, .schedule = "zb-h1", .micro_batch = 2),
    LLAMA(.ranks = 3, .pp = 3, .schedule = "zb-h1", .micro_batch = 1),
    LLAMA(.ranks = 4, .pp = 4, .schedule = "zb-h1", .micro_batch = 2),
    LLAMA(.ranks = 2, .pp = 2, .schedule = "zb-h2", .micro_batch = 2),
    LLAMA(.ranks = 4, .pp = 4, .schedule = "zb-h2", .micro_batch = 1),
    LLAMA(.ranks = 2, .pp = 2, .schedule = "interleaved-zb", .stages_per_rank = 2,
          .micro_batch = 2),
    LLAMA(.ranks = 2, .pp = 2, .schedule = "zbv", .micro_batch = 1),
    LLAMA(.ranks = 2, .pp = 2, .schedule = "v-half", .micro_batch = 2),
    LLAMA(.ranks = 2, .pp = 2, .schedule = "v-min", .micro_batch = 2),
    LLAMA(.ranks = 2, .pp = 2, .schedule = "dualpipev", .micro_batch = 2),
    GPT2(.ranks = 2, .pp = 2, .schedule = "gpipe", .micro_batch = 1),
    GPT2(.ranks = 3, .pp = 3, .schedule = "gpipe", .micro_batch = 2),
    GPT2(.ranks = 2, .pp = 2, .schedule = "1f1b", .micro_batch = 2),
    GPT2(.ranks = 3, .pp = 3, .schedule = "1f1b", .micro_batch = 1),
    GPT2(.ranks = 3, .pp = 3, .schedule = "zb-h1", .micro_batch = 1),
    GPT2(.ranks = 2, .pp = 2, .schedule = "zb-h2", .micro_batch = 2),
    TIED(.ranks = 2, .pp = 2, .schedule = "gpipe", .micro_batch = 2),
    TIED(.ranks = 2, .pp = 2, .schedule = "1f1b", .micro_batch = 1),
    TIED(.ranks = 2, .pp = 2, .schedule = "zb-h1", .micro_batch = 1),
};

/* With other kinds of parallelism. */
static const law_case mixed[] = {
    LLAMA(.ranks = 4, .pp = 2, .micro_batch = 1, .dropout = 0.1, .schedule = "zbv"),
    GPT2(.ranks = 3, .pp = 3, .micro_batch = 2, .dropout = 0.1),
    LLAMA(.ranks = 4, .pp = 2, .micro_batch = 1),
    LLAMA(.ranks = 6, .pp = 2, .schedule = "gpipe", .micro_batch = 1), /* 3 x 1, 3 x 1, 2 */
    LLAMA(.ranks = 4, .pp = 2, .dp_shard = 2, .micro_batch = 1),
    LLAMA(.ranks = 4, .pp = 2, .dp_shard = 2, .micro_batch = 2, .keep_gathered = true),
    LLAMA(.ranks = 8, .pp = 2, .dp_shard = 2, .micro_batch = 1, .keep_gathered = true),
    LLAMA(.ranks = 8, .pp = 4, .dp_shard = 2, .micro_batch = 1, .schedule = "zb-h1"),
    LLAMA(.ranks = 4, .pp = 2, .dp_shard = 2, .micro_batch = 1, .keep_gathered = true,
          .schedule = "interleaved", .stages_per_rank = 2),
    LLAMA(.ranks = 4, .pp = 2, .dp_shard = 2, .micro_batch = 1, .schedule = "zbv"),
    LLAMA(.ranks = 4, .pp = 2, .dp_shard = 2, .micro_batch = 1, .recompute = DT_RECOMPUTE_FULL),
    LLAMA(.ranks = 2, .pp = 2, .micro_batch = 2, .recompute = DT_RECOMPUTE_SELECTIVE,
          .schedule = "zb-h1"),
    LLAMA(.ranks = 4, .pp = 2, .tp = 2, .micro_batch = 2),
    LLAMA(.ranks = 4, .pp = 2, .tp = 2, .sp = true, .micro_batch = 2, .schedule = "zb-h1"),
    LLAMA(.ranks = 8, .pp = 2, .tp = 2, .dp_shard = 2, .sp = true, .micro_batch = 1),
    LLAMA(.ranks = 8, .pp = 2, .tp = 4, .sp = true, .micro_batch = 2, .gather_logits = true),
    GPT2(.ranks = 4, .pp = 2, .dp_shard = 2, .micro_batch = 1, .keep_gathered = true),
    GPT2(.ranks = 4, .pp = 2, .tp = 2, .sp = true, .micro_batch = 1),
    GPT2(.ranks = 6, .pp = 3, .micro_batch = 1),
    TIED(.ranks = 4, .pp = 2, .dp_shard = 2, .micro_batch = 1),
    TIED(.ranks = 4, .pp = 2, .tp = 2, .micro_batch = 1),
};

/* The most tapes at once, from the simulator. */
static void check_live(const law_case *c, const law_run *run)
{
    const law_case shape = *c;
    const int batch = strcmp(c->golden, "llama_tiny") == 0  ? 8
                      : strcmp(c->golden, "gpt2_tiny") == 0 ? 6
                                                            : 4;
    const int inner = c->ranks / c->pp, dp = inner / (c->tp ? c->tp : 1);
    const int at_once = shape.micro_batch * dp, m = (batch + at_once - 1) / at_once;
    dt_pp_schedule *s = NULL;
    dt_pp_timeline *t = NULL;
    ck_ok(dt_pp_schedule_create(c->schedule ? c->schedule : "1f1b", c->pp, m, c->stages_per_rank,
                                &s));
    ck_ok(dt_pp_simulate(s, NULL, &t));
    for (int r = 0; r < c->ranks; r++)
        ck_assert_msg(run->live[r] == t->lane[r / inner].peak_live,
                      "rank %d had %d tapes alive, the simulator says %d", r, run->live[r],
                      t->lane[r / inner].peak_live);
    dt_pp_timeline_destroy(&t);
    dt_pp_schedule_destroy(&s);
}

static void check(law_case c)
{
    law_run one = {0}, many = {0};
    c.steps = 3;
    c.eps = LAW_SMOOTH_EPS;
    ck_ok(law_train(&(law_case){.golden = c.golden,
                                .ranks = 1,
                                .steps = 3,
                                .eps = LAW_SMOOTH_EPS,
                                .dropout = c.dropout},
                    &one));
    ck_ok(law_train(&c, &many));
    law_check_same(&many, &one, 3);
    ck_assert_msg(fabs(many.final_loss - one.final_loss) <= LAW_LOSS_LIMIT, "%g, not %g",
                  many.final_loss, one.final_loss);
    check_live(&c, &many);
    law_free(&one);
    law_free(&many);
}

START_TEST(a_pipeline_is_one_rank)
{
    check(plain[_i]);
}
END_TEST

START_TEST(a_pipeline_composes)
{
    check(mixed[_i]);
}
END_TEST

static void check_bits(const law_run *a, const law_run *b)
{
    for (int i = 0; i < a->nparams; i++) {
        const size_t bytes = sizeof(float) * (size_t)a->count[i];
        ck_assert_msg(memcmp(a->grad[i], b->grad[i], bytes) == 0, "gradient of %s", a->name[i]);
        ck_assert_msg(memcmp(a->weight[i], b->weight[i], bytes) == 0, "%s", a->name[i]);
    }
}

/* gpipe on 2 ranks with every B cut in two: W at once, or all at the end. */
static void write_halves(FILE *f, int m, bool at_once)
{
    for (int s = 0; s < 2; s++) {
        for (int k = 0; k < m; k++)
            (void)fprintf(f, "%dF%d,", s, k);
        for (int k = 0; k < m; k++)
            (void)fprintf(f, at_once ? "%dI%d,%dW%d," : "%dI%d,", s, k, s, k);
        for (int k = 0; !at_once && k < m; k++)
            (void)fprintf(f, "%dW%d,", s, k);
        (void)fputs("\n", f);
    }
}

START_TEST(backward_in_halves_is_backward_bit_for_bit)
{
    static const char *const cases[] = {"llama_tiny", "gpt2_tiny"};
    law_run whole = {0}, half = {0};
    const bool llama = _i / 2 % 2 == 0;
    law_case c = {.golden = cases[!llama],
                  .ranks = 2,
                  .pp = 2,
                  .micro_batch = 1,
                  .dropout = 0.1,
                  .steps = 2,
                  .recompute = _i / 4 ? DT_RECOMPUTE_FULL : DT_RECOMPUTE_NONE};
    char path[] = "/tmp/law_pp_XXXXXX.csv";
    const int fd = mkstemps(path, 4);
    FILE *f = fd >= 0 ? fdopen(fd, "w") : NULL;
    ck_assert(f != NULL);
    write_halves(f, llama ? 8 : 6, _i % 2);
    ck_assert_int_eq(fclose(f), 0);
    ck_ok(law_train(&c, &whole));
    c.schedule = path;
    ck_ok(law_train(&c, &half));
    check_bits(&half, &whole);
    (void)unlink(path);
    law_free(&whole);
    law_free(&half);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("law of pipelines");
    TCase *tc = tcase_create("pp");
    tcase_set_timeout(tc, 300);
    tcase_add_loop_test(tc, a_pipeline_is_one_rank, 0, DT_COUNT(plain));
    tcase_add_loop_test(tc, a_pipeline_composes, 0, DT_COUNT(mixed));
    tcase_add_loop_test(tc, backward_in_halves_is_backward_bit_for_bit, 0, 8);
    suite_add_tcase(suite, tc);
    return test_main(suite);
}
