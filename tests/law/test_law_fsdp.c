/* tests/law/test_law_fsdp.c - the law for fully_shard: shards, replicas, every way to reshard,
 * microbatches; and that in f32 sharding and replicating give equal bits. */
#include "tests/harness.h"
#include "tests/law/law.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char *const cases[] = {"llama_tiny", "llama_tied", "gpt2_tiny"};

/* What is tried on each case; ranks = dp_shard x dp_replicate x tp. */
static const law_case layouts[] = {
    {.ranks = 2, .dp_shard = 2},
    {.ranks = 3, .dp_shard = 3, .micro_batch = 1},
    {.ranks = 4, .dp_shard = 4, .keep_gathered = true, .micro_batch = 1},
    {.ranks = 8, .dp_shard = 8},
    {.ranks = 4, .dp_shard = 4, .reshard_size = 2},
    {.ranks = 4, .dp_shard = 2},
    {.ranks = 4, .dp_shard = 2, .micro_batch = 1, .keep_gathered = true},
    {.ranks = 8, .dp_shard = 4, .micro_batch = 2},
    {.ranks = 8, .dp_shard = 4, .reshard_size = 2, .micro_batch = 1},
    {.ranks = 4, .dp_shard = 4, .recompute = DT_RECOMPUTE_FULL, .micro_batch = 2},
    {.ranks = 4, .dp_shard = 2, .recompute = DT_RECOMPUTE_SELECTIVE, .micro_batch = 1},
    {.ranks = 8, .dp_shard = 2, .recompute = DT_RECOMPUTE_FULL, .tp = 2},
};

START_TEST(sharded_ranks_are_one)
{
    law_run many = {0};
    law_case c = layouts[_i % DT_COUNT(layouts)];
    c.golden = cases[_i / DT_COUNT(layouts)];
    c.steps = 3;
    c.eps = LAW_SMOOTH_EPS;
    ck_ok(law_train(&c, &many));
    const law_run *one = law_one_rank(&c);
    law_check_same(&many, one, 3);
    for (int i = 0; i < 3; i++)
        ck_assert_msg(fabs(many.norm[i] - one->norm[i]) <= LAW_ELEMENT_LIMIT * one->norm[i],
                      "norm of step %d: %.9g, one rank %.9g", i, many.norm[i], one->norm[i]);
    law_free(&many);
}
END_TEST

/* One microbatch: then both sum a gradient once, over the ranks in their order, and no bit differs.
 * (With several, shards are summed over ranks first and over microbatches then; replicas the other
 * way round.) NCCL orders the two collectives each in its own way: there the law's limits hold. */
START_TEST(sharding_is_replicating_bit_for_bit)
{
    law_run shard = {0}, replicate = {0};
    law_case c = {.golden = cases[_i], .ranks = 3, .steps = 3, .eps = LAW_SMOOTH_EPS};
    ck_ok(law_train(&c, &replicate));
    c.dp_shard = 3;
    ck_ok(law_train(&c, &shard));
    if (test_device_kind() == DT_CUDA)
        law_check_same(&shard, &replicate, 3);
    for (int i = 0; i < shard.nparams && test_device_kind() == DT_CPU; i++)
        ck_assert_msg(memcmp(shard.weight[i], replicate.weight[i],
                             sizeof(double) * (size_t)shard.count[i]) == 0,
                      "%s differs", shard.name[i]);
    law_free(&shard);
    law_free(&replicate);
}
END_TEST

/* Recomputation changes no bit of a sharded run. */
START_TEST(recomputing_changes_no_bit)
{
    law_run plain = {0}, again = {0};
    law_case c = {.golden = cases[_i],
                  .ranks = 4,
                  .dp_shard = 4,
                  .steps = 2,
                  .micro_batch = 1,
                  .dropout = 0.1};
    ck_ok(law_train(&c, &plain));
    c.recompute = _i % 2 ? DT_RECOMPUTE_SELECTIVE : DT_RECOMPUTE_FULL;
    ck_ok(law_train(&c, &again));
    for (int i = 0; i < plain.nparams; i++)
        ck_assert_msg(
            memcmp(plain.weight[i], again.weight[i], sizeof(double) * (size_t)plain.count[i]) == 0,
            "%s differs", plain.name[i]);
    law_free(&plain);
    law_free(&again);
}
END_TEST

/* Optimizer state offloaded to files, shards too, all to memory of the host. */
static void check_offload(law_case c)
{
    char folder[] = "/tmp/law_offload_XXXXXX";
    law_run plain = {0}, away = {0};
    c.steps = 3;
    ck_ok(law_train(&c, &plain));
    ck_assert(mkdtemp(folder));
    for (int way = 0; way < (test_device_kind() == DT_CUDA ? 3 : 2); way++) {
        c.offload_params = way > 0;
        c.offload_host = way == 2;
        c.offload_dir = way < 2 ? folder : NULL;
        ck_ok(law_train(&c, &away));
        ck_assert(away.final_loss == plain.final_loss && away.loss[2] == plain.loss[2]);
        ck_assert(away.norm[2] == plain.norm[2]);
        for (int i = 0; i < plain.nparams; i++)
            ck_assert_msg(memcmp(plain.weight[i], away.weight[i],
                                 sizeof(double) * (size_t)plain.count[i]) == 0,
                          "%s differs", plain.name[i]);
        law_free(&away);
    }
    ck_assert_msg(rmdir(folder) == 0, "files stay in %s", folder);
    law_free(&plain);
}

/* Nor does offloading, on one rank or on several, in f32 or not. */
START_TEST(offloading_changes_no_bit)
{
    static const int shards[] = {1, 2, 4};
    law_case c = {.golden = cases[_i % 3], .ranks = shards[_i / 3 % 3]};
    c.dp_shard = c.ranks;
    c.micro_batch = _i % 2;
    c.param_dtype = _i / 9 ? DT_BF16 : DT_F32;
    check_offload(c);
}
END_TEST

/* Under pipelines, and with tensor and sequence parallelism. */
static const law_case offloaded[] = {
    {.golden = "llama_tiny", .ranks = 2, .pp = 2, .micro_batch = 2},
    {.golden = "llama_tied", .ranks = 4, .pp = 2, .dp_shard = 2, .micro_batch = 1},
    {.golden = "gpt2_tiny",
     .ranks = 6,
     .pp = 3,
     .dp_shard = 2,
     .micro_batch = 1,
     .keep_gathered = true},
    {.golden = "llama_tiny", .ranks = 2, .pp = 2, .micro_batch = 1, .schedule = "zbv"},
    {.golden = "llama_tiny",
     .ranks = 4,
     .pp = 2,
     .dp_shard = 2,
     .micro_batch = 1,
     .schedule = "zbv",
     .param_dtype = DT_BF16},
    {.golden = "gpt2_tiny",
     .ranks = 4,
     .pp = 2,
     .dp_shard = 2,
     .micro_batch = 1,
     .param_dtype = DT_BF16},
    {.golden = "llama_tiny", .ranks = 2, .tp = 2, .sp = true},
    {.golden = "gpt2_tiny", .ranks = 4, .tp = 2, .sp = true, .dp_shard = 2, .micro_batch = 1},
    {.golden = "llama_tied", .ranks = 6, .tp = 3, .sp = true, .dp_shard = 2},
    {.golden = "llama_tiny",
     .ranks = 8,
     .pp = 2,
     .tp = 2,
     .sp = true,
     .dp_shard = 2,
     .micro_batch = 1,
     .recompute = DT_RECOMPUTE_FULL},
    {.golden = "llama_tiny",
     .ranks = 8,
     .pp = 2,
     .tp = 2,
     .sp = true,
     .dp_shard = 2,
     .micro_batch = 1,
     .schedule = "zbv",
     .keep_gathered = true},
};

START_TEST(offloading_composes)
{
    check_offload(offloaded[_i]);
}
END_TEST

/* Compute in 16 bits, master weights in f32: the curve is that of f32 to a few thousandths (bf16
 * has 8 digits), sharded or not, in a pipeline too. */
START_TEST(sixteen_bits_learn_alike)
{
    static const dt_dtype types[][2] = {
        {DT_BF16, DT_F32}, {DT_BF16, DT_BF16}, {DT_F16, DT_F32}, {DT_F32, DT_BF16}};
    law_run f32 = {0}, narrow = {0};
    law_case c = {.golden = cases[_i % 3], .ranks = 4, .dp_shard = _i % 2 ? 4 : 2, .steps = 10};
    if (_i >= 12) {
        c.pp = c.dp_shard = 2;
        c.micro_batch = 1;
    }
    ck_ok(law_train(&c, &f32));
    c.param_dtype = types[_i % 12 / 3][0];
    c.reduce_dtype = types[_i % 12 / 3][1];
    ck_ok(law_train(&c, &narrow));
    for (int i = 0; i < 10; i++)
        ck_assert_msg(fabs(f32.loss[i] - narrow.loss[i]) < 0.005 * f32.loss[0],
                      "step %d: %g, in f32 %g", i, narrow.loss[i], f32.loss[i]);
    ck_assert(fabs(f32.final_loss - narrow.final_loss) < 0.005 * f32.loss[0]);
    ck_assert(f32.final_loss < f32.loss[0]);
    law_free(&f32);
    law_free(&narrow);
}
END_TEST

START_TEST(a_skipped_reduction_is_noticed)
{
    law_run one = {0}, wrong = {0};
    char where[128];
    ck_ok(law_train(&(law_case){.golden = cases[_i], .ranks = 1, .steps = 1}, &one));
    ck_ok(law_train(
        &(law_case){
            .golden = cases[_i], .ranks = 2, .dp_shard = 2, .steps = 1, .fault = "skip_reduce"},
        &wrong));
    ck_assert(law_compare(&wrong, &one, false, where) > 100 * LAW_ELEMENT_LIMIT);
    law_free(&one);
    law_free(&wrong);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("law of fully_shard");
    TCase *tc = tcase_create("fsdp");
    tcase_set_timeout(tc, 300);
    test_some(tc, sharded_ranks_are_one, DT_COUNT(cases) * DT_COUNT(layouts));
    test_some(tc, sharding_is_replicating_bit_for_bit, DT_COUNT(cases));
    test_some(tc, recomputing_changes_no_bit, DT_COUNT(cases));
    test_some(tc, offloading_changes_no_bit, 18);
    test_some(tc, offloading_composes, DT_COUNT(offloaded));
    test_some(tc, sixteen_bits_learn_alike, 24);
    test_some(tc, a_skipped_reduction_is_noticed, DT_COUNT(cases));
    suite_add_tcase(suite, tc);
    return test_main(suite);
}
