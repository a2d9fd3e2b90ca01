/* tests/fsdp/test_offload_host.c - shards and optimizer state that rest in memory of the host: no
 * bit of training changes and nobody waits longer; on cuda memory of the device falls to what
 * docs/fsdp.md says, and steps take no new memory of the host. */
#include "tests/fsdp/resident.h"

static net_case usual(int shard, bool params, dt_fsdp_options o)
{
    return (net_case){.shard = shard,
                      .blocks = 3,
                      .n = 9,
                      .hidden = 14,
                      .batch = 5,
                      .steps = 3,
                      .micro = 2,
                      .options = o,
                      .offload_host = true,
                      .offload_params = params};
}

static const struct {
    dt_fsdp_options options;
    int shard, replicate, tp;
    dt_recompute_policy recompute;
    bool optimizer_alone;
} ways[] = {
    {.shard = 1},
    {.shard = 2},
    {.shard = 3, .options = {.param_dtype = DT_BF16}},
    {.shard = 4, .options = {.param_dtype = DT_BF16, .reduce_dtype = DT_BF16}},
    {.shard = 2, .optimizer_alone = true},
    {.shard = 2, .replicate = 2, .options = {.reduce = DT_REDUCE_SHARDS_EACH}},
    {.shard = 2, .tp = 2, .options = {.reshard = DT_RESHARD_NEVER, .prefetch = 2}},
    {.shard = 2, .options = {.reshard = DT_RESHARD_STEP, .prefetch = -1}},
    {.shard = 4,
     .options = {.reshard = DT_RESHARD_GROUP, .reshard_size = 2},
     .recompute = DT_RECOMPUTE_FULL},
};

START_TEST(no_bit_changes)
{
    net_case c = usual(ways[_i].shard, !ways[_i].optimizer_alone, ways[_i].options);
    c.replicate = ways[_i].replicate;
    c.tp = ways[_i].tp;
    c.recompute = ways[_i].recompute;
    net_run a = net_train(&c);
    c.offload_host = c.offload_params = false;
    net_run b = net_train(&c);
    net_same(&a, &b, c.steps, 0);
    ck_assert_int_eq(a.counts.total_calls, b.counts.total_calls);
    ck_assert_int_eq(a.counts.total_bytes, b.counts.total_bytes);
    ck_assert_int_eq(a.waits, b.waits);
    net_free(&a);
    net_free(&b);
}
END_TEST

/* On the cpu all stays where it is. */
START_TEST(bytes_of_the_device)
{
    net_case c = usual(2, _i % 2, (dt_fsdp_options){.prefetch = _i / 2 ? 1 : -1});
    c.n = 64;
    c.hidden = 256;
    if (test_device_kind() == DT_CUDA)
        test_ranks(2, net_resident_body, &c);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("offload to memory of the host");
    TCase *tc = tcase_create("offload");
    tcase_set_timeout(tc, 120);
    tcase_add_loop_test(tc, no_bit_changes, 0, DT_COUNT(ways));
    tcase_add_loop_test(tc, bytes_of_the_device, 0, 4);
    suite_add_tcase(suite, tc);
    return test_main(suite);
}
