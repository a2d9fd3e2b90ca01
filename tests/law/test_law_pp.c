/* tests/law/test_law_pp.c - the law for pipelines: every schedule on 2, 3 and 4 ranks, alone and
 * with shards, replicas, tensor and sequence parallelism on up to 8; microbatches that do not
 * divide the batch, tied weights, dropout, recomputation; the tapes alive at once are the
 * simulator's. A pairwise cover; everything with DT_FULL=1. */
#include "tests/harness.h"
#include "tests/law/pipelines.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { STEPS = 3, UNEVEN_STEPS = 10, HALVES = 6 };

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
/* What the cover has not: three samples, three ranks that replicate, dropout, recomputation, stages
 * that are not equal. */
static const law_case more[] = {
    LLAMA(.ranks = 2, .pp = 2, .schedule = "1f1b", .micro_batch = 3),  /* 3, 3, 2 */
    LLAMA(.ranks = 6, .pp = 2, .schedule = "gpipe", .micro_batch = 1), /* 3 x 1, 3 x 1, 2 */
    LLAMA(.ranks = 4, .pp = 2, .micro_batch = 1, .dropout = 0.1, .schedule = "zbv"),
    GPT2(.ranks = 3, .pp = 3, .micro_batch = 2, .dropout = 0.1),
    LLAMA(.ranks = 4, .pp = 2, .dp_shard = 2, .micro_batch = 1, .recompute = DT_RECOMPUTE_FULL),
    LLAMA(.ranks = 2, .pp = 2, .micro_batch = 2, .recompute = DT_RECOMPUTE_SELECTIVE,
          .schedule = "zb-h1"),
    LLAMA(.ranks = 8, .pp = 2, .tp = 2, .dp_shard = 2, .sp = true, .micro_batch = 1,
          .recompute = DT_RECOMPUTE_FULL, .schedule = "interleaved", .stages_per_rank = 2),
    LLAMA(.ranks = 8, .pp = 2, .tp = 4, .sp = true, .micro_batch = 2, .gather_logits = true),
    LLAMA(.ranks = 3, .pp = 3, .micro_batch = 1, .split = "cost"),
    LLAMA(.ranks = 2, .pp = 2, .micro_batch = 1, .split = "1,3", .schedule = "zb-h1"),
    LLAMA(.ranks = 8, .pp = 4, .tp = 2, .sp = true, .micro_batch = 1, .keep_gathered = true,
          .split = "model.embed_tokens; model.layers.0-1; model.layers.2-3; model.norm,lm_head"),
    GPT2(.ranks = 6, .pp = 3, .dp_shard = 2, .micro_batch = 1, .schedule = "zb-h1",
         .split = "transformer.wte,transformer.wpe; transformer.h.0-2; transformer.ln_f,lm_head"),
    TIED(.ranks = 2, .pp = 2, .micro_batch = 1, .schedule = "zbv", .stages_per_rank = 2,
         .split = "model.embed_tokens; model.layers.0; model.layers.1; model.norm,lm_head"),
    LLAMA(.ranks = 4, .pp = 2, .tp = 2, .sp = true, .tp_overlap = true, .micro_batch = 2,
          .schedule = "zb-h1"),
    LLAMA(.ranks = 8, .pp = 2, .tp = 2, .dp_shard = 2, .sp = true, .tp_overlap = true,
          .micro_batch = 1, .recompute = DT_RECOMPUTE_FULL),
    LLAMA(.ranks = 16, .pp = 2, .tp = 8, .sp = true, .tp_overlap = true, .micro_batch = 4),
    GPT2(.ranks = 4, .pp = 2, .tp = 2, .sp = true, .tp_overlap = true, .micro_batch = 1,
         .schedule = "zb-h2"),
    TIED(.ranks = 4, .pp = 2, .dp_shard = 2, .micro_batch = 1),
    TIED(.ranks = 4, .pp = 2, .tp = 2, .micro_batch = 1),
    TIED(.ranks = 6, .pp = 2, .tp = 3, .sp = true, .tp_overlap = true, .micro_batch = 1),
};

static law_choice *alone, *in_3d;

/* The most tapes at once, from the simulator. */
static void check_live(const law_case *c, const law_run *run)
{
    const int batch = c->batch                               ? c->batch
                      : strcmp(c->golden, "llama_tiny") == 0 ? 8
                      : strcmp(c->golden, "gpt2_tiny") == 0  ? 6
                                                             : 4;
    const int inner = c->ranks / c->pp, dp = inner / (c->tp ? c->tp : 1);
    const int at_once = c->micro_batch * dp, m = (batch + at_once - 1) / at_once;
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

/* A gradient that should be 0 is some 1e-8 of the largest, and AdamW divides by eps: where weights
 * are random, gradients are ten times as large as in the golden cases, so eps is too. (That it is
 * rounding shows tests/law/test_law_f64.c, with the same cases and the smaller eps.) */
static double smooth_eps(const law_case *c)
{
    return c->layers ? 10 * LAW_SMOOTH_EPS : LAW_SMOOTH_EPS;
}

static void check(law_case c)
{
    law_run many = {0};
    c.steps = c.hidden ? UNEVEN_STEPS : STEPS;
    c.eps = smooth_eps(&c);
    const law_run *one = law_one_rank(&c);
    ck_ok(law_train(&c, &many));
    law_check_same(&many, one, c.steps);
    for (int i = 0; i < c.steps; i++)
        ck_assert_msg(fabs(many.norm[i] - one->norm[i]) <= LAW_ELEMENT_LIMIT * one->norm[i],
                      "norm of step %d: %.9g, one rank %.9g", i, many.norm[i], one->norm[i]);
    ck_assert_msg(fabs(many.final_loss - one->final_loss) <= LAW_LOSS_LIMIT, "%g, not %g",
                  many.final_loss, one->final_loss);
    check_live(&c, &many);
    law_free(&many);
}

START_TEST(a_pipeline_is_one_rank)
{
    if (law_runs(&alone[_i]))
        check(alone[_i].c);
}
END_TEST

START_TEST(a_pipeline_composes)
{
    if (law_runs(&in_3d[_i]))
        check(in_3d[_i].c);
}
END_TEST

START_TEST(more_of_them_are_one_rank)
{
    check(more[_i]);
}
END_TEST

/* F10 of the tests that PyTorch has for fully_shard: widths that neither tensor parallel ranks nor
 * shards divide, with and without sequence parallelism and recomputation, ten steps. */
START_TEST(uneven_sizes_are_one_rank)
{
    static const int size[] = {3, 5, 16, 17};
    const bool sp = _i / 4 % 2, zbv = _i / 8 % 2;
    check((law_case)LLAMA(.ranks = 8, .pp = 2, .dp_shard = 2, .tp = 2, .micro_batch = 1, .sp = sp,
                          .hidden = size[_i % 4], .schedule = zbv ? "zbv" : "1f1b",
                          .recompute = sp == zbv ? DT_RECOMPUTE_FULL : DT_RECOMPUTE_NONE));
}
END_TEST

static void check_bits(const law_run *a, const law_run *b)
{
    for (int i = 0; i < a->nparams; i++) {
        const size_t bytes = sizeof(double) * (size_t)a->count[i];
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
    static const law_case with[] = {{.ranks = 2},
                                    {.ranks = 2, .recompute = DT_RECOMPUTE_FULL},
                                    {.ranks = 2, .recompute = DT_RECOMPUTE_SELECTIVE},
                                    {.ranks = 4, .dp_shard = 2},
                                    {.ranks = 4, .dp_shard = 2, .keep_gathered = true},
                                    {.ranks = 8, .dp_shard = 2, .tp = 2, .sp = true}};
    ck_assert_int_eq(DT_COUNT(with), HALVES);
    law_run whole = {0}, half = {0};
    const bool llama = _i / 2 % 2 == 0;
    law_case c = with[_i / 4];
    c.golden = cases[!llama];
    c.pp = 2;
    c.micro_batch = 1;
    c.dropout = 0.1;
    c.steps = 2;
    char path[] = "/tmp/law_pp_XXXXXX.csv";
    const int fd = mkstemps(path, 4);
    FILE *f = fd >= 0 ? fdopen(fd, "w") : NULL;
    ck_assert(f != NULL);
    write_halves(f, (llama ? 8 : 6) / (c.dp_shard ? c.dp_shard : 1), _i % 2);
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
    const int n = law_pipelines(false, &alone), n_3d = law_pipelines_3d(&in_3d);
    Suite *suite = suite_create("law of pipelines");
    TCase *tc = tcase_create("pp");
    tcase_set_timeout(tc, 300);
    test_some(tc, a_pipeline_is_one_rank, n);
    test_some(tc, a_pipeline_composes, n_3d);
    test_some(tc, more_of_them_are_one_rank, DT_COUNT(more));
    test_some(tc, uneven_sizes_are_one_rank, 16);
    test_some(tc, backward_in_halves_is_backward_bit_for_bit, 4 * HALVES);
    suite_add_tcase(suite, tc);
    const int failed = test_main(suite);
    free(alone);
    free(in_3d);
    return failed;
}
