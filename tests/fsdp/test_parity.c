/* tests/fsdp/test_parity.c - sharded training is training on one rank: shapes that do not divide,
 * every way to reshard, replicas, tensor parallelism, microbatches, recomputation; and with one
 * rank nothing is sent. (F3, F8, F9, F10, F17, F18, F21 of the
 * tests that PyTorch has for fully_shard.) */
#include "tests/fsdp/net.h"

#include <stdlib.h>
#include <string.h>

#define LIMIT 2e-6 /* of the largest: f32 sums in another order */

/* c on its ranks against c on one rank, not sharded. */
static void check_parity(net_case c, double limit)
{
    net_case one = c;
    one.shard = one.replicate = one.tp = 1;
    one.plain = true;
    one.shard_with = NULL;
    one.delay_ms = 0;
    one.recompute = DT_RECOMPUTE_NONE;
    net_run a = net_train(&c), b = net_train(&one);
    net_same(&a, &b, c.steps, limit);
    net_free(&a);
    net_free(&b);
}

static int largest_dim(const dt_param *p, void *arg)
{
    int d = 0;
    (void)arg;
    for (int i = 1; i < p->shape.ndim; i++)
        d = p->shape.dim[i] > p->shape.dim[d] ? i : d;
    return d;
}

/* F3 */
START_TEST(one_group)
{
    static const int64_t size[][2] = {{16, 15}, {7, 15}, {16, 17}, {3, 2}, {1, 1}};
    static const int ranks[] = {2, 3, 4};
    net_case c = {.shard = ranks[_i / 2 % 3],
                  .blocks = 1,
                  .n = size[_i / 6][0],
                  .hidden = size[_i / 6][1],
                  .batch = 8,
                  .steps = 10};
    c.options.shard_dim = _i % 2 ? largest_dim : NULL;
    check_parity(c, LIMIT);
}
END_TEST

/* F8, F9, F10, F21: 3 microbatches; all ways at once, one after the other. */
static const net_case ways[] = {
    {.shard = 2, .options.reshard = DT_RESHARD_NEVER},
    {.shard = 2, .options.reshard = DT_RESHARD_STEP},
    {.shard = 3, .options.reduce = DT_REDUCE_STEP},
    {.shard = 4, .options = {.reshard = DT_RESHARD_GROUP, .reshard_size = 2}},
    {.shard = 3, .options = {.reshard = DT_RESHARD_GROUP, .reshard_size = 1}},
    {.shard = 3, .options = {.reshard = DT_RESHARD_GROUP, .reshard_size = 3}},
    {.shard = 3, .options.prefetch = -1},
    {.shard = 3, .options.prefetch = 2},
    {.shard = 3, .options.prefetch = 9},
    {.shard = 2, .last_sync_only = true},
    {.shard = 2, .replicate = 2},
    {.shard = 2, .replicate = 2, .options.reduce = DT_REDUCE_SHARDS_EACH},
    {.shard = 2, .replicate = 2, .last_sync_only = true, .options.reshard = DT_RESHARD_ALWAYS},
    {.shard = 2, .replicate = 2, .recompute = DT_RECOMPUTE_FULL},
    {.shard = 1, .replicate = 3},
    {.shard = 2, .tp = 2},
    {.shard = 3, .tp = 2, .recompute = DT_RECOMPUTE_FULL},
    {.shard = 2, .tp = 3, .options.reshard = DT_RESHARD_NEVER},
    {.shard = 4, .tp = 2, .options = {.reshard = DT_RESHARD_GROUP, .reshard_size = 2}},
    {.shard = 2, .replicate = 2, .tp = 2},
};

START_TEST(every_way)
{
    static const int64_t width[] = {3, 16, 17};
    net_case c = ways[_i / 3];
    c.blocks = 3;
    c.n = width[_i % 3];
    c.hidden = c.n + 2;
    c.batch = 5; /* not the same on all ranks */
    c.micro = 3;
    c.steps = 4;
    check_parity(c, LIMIT);
}
END_TEST

/* Shards over a nest of two axes. Where sizes divide, the nest is one gather and one reduction. */
static dt_status shard_nested(net *n)
{
    for (int i = 0; i < n->c->blocks; i++)
        DT_TRY(dt_fully_shard(n->block[i], n->mesh, "dp_replicate,dp_shard", &n->c->options));
    DT_TRY(dt_fully_shard(n->root, n->mesh, "dp_replicate,dp_shard", &n->c->options));
    return DT_OK;
}

START_TEST(nest_of_axes)
{
    net_case c = {.shard = 2,
                  .replicate = _i % 2 ? 2 : 3,
                  .blocks = 2,
                  .n = _i < 2 ? 12 : 7,
                  .hidden = 24,
                  .batch = 6,
                  .steps = 3,
                  .shard_with = shard_nested};
    c.options.shard_dim = _i > 3 ? largest_dim : NULL;
    check_parity(c, LIMIT);
    if (_i != 1)
        return;
    c.steps = 1;
    net_run a = net_train(&c); /* the head has 13 rows, which do not divide: two calls for it */
    ck_assert_int_le(a.counts.calls[DT_CALL_ALL_GATHER], 3 + 2 + 1);
    ck_assert_int_le(a.counts.calls[DT_CALL_REDUCE_SCATTER], 3 + 1);
    net_free(&a);
}
END_TEST

/* F3 at world 1: nothing is sent. */
START_TEST(one_rank_sends_nothing)
{
    net_case c = {.blocks = 2, .n = 7, .hidden = 5, .batch = 3, .micro = 2, .steps = 3};
    net_run a = net_train(&c);
    ck_assert_int_eq(a.counts.total_calls, 0);
    c.plain = true;
    net_run b = net_train(&c);
    net_same(&a, &b, 3, 0);
    net_free(&a);
    net_free(&b);
}
END_TEST

/* ---- F17, F18 ---- */

/* Weights are the same on any mesh before training; and sharded weights put into another run go on
 * as if nothing had been. */
static dt_status weights_body(dt_world *world, void *arg)
{
    const net_case *c = arg;
    net a, b;
    int64_t count = 0;
    float *first = NULL, *second = NULL;
    double loss[2] = {0};
    DT_TRY(net_open(c, world, &a));
    int np = 0;
    dt_param *const *p = dt_module_params(a.root, &np);
    TEST_THAT(np == 4 * c->blocks + 3 && strcmp(p[0]->name, "norm.weight") == 0 &&
                  strcmp(p[2]->name, "layers.0.c_fc.weight") == 0,
              "names stay: %s", p[2]->name);
    DT_TRY(net_step(&a, 0, &loss[0]));
    DT_TRY(net_open(c, world, &b));
    int nq = 0;
    dt_param *const *q = dt_module_params(b.root, &nq);
    DT_TRY(net_step(&b, 7, &loss[1])); /* another way; now the weights of a are put in */
    dt_world_reset_counts(world);
    for (int i = 0; i < np; i++) {
        dt_array_copy(dt_tensor_local(q[i]->tensor), dt_tensor_local(p[i]->tensor));
    }
    TEST_THAT(dt_world_counts(world).total_calls == 0, "state moves without communication");
    DT_TRY(net_gradients(&a, 1, &loss[0]));
    DT_TRY(net_gradients(&b, 1, &loss[1]));
    TEST_THAT(loss[0] == loss[1], "%.9g after the weights were put in, %.9g before", loss[1],
              loss[0]);
    DT_TRY(net_weights(&a, &count, &first));
    DT_TRY(net_weights(&b, &count, &second));
    TEST_THAT(memcmp(first, second, sizeof *first * (size_t)count) == 0, "weights");
    free(first);
    free(second);
    net_close(&b);
    net_close(&a);
    return DT_OK;
}

START_TEST(weights_go_in_and_out)
{
    net_case c = {.shard = _i + 1, .blocks = 2, .n = 7, .hidden = 5, .batch = 6};
    test_ranks(_i + 1, weights_body, &c);
    net_case start = c; /* no steps: initial weights */
    net_run a = net_train(&start);
    start.plain = true;
    start.shard = 1;
    net_run b = net_train(&start);
    net_same(&a, &b, 0, 0);
    net_free(&a);
    net_free(&b);
}
END_TEST

/* ---- no stale weights ---- */

static dt_status eval_body(dt_world *world, void *arg)
{
    net n;
    double before = 0, after = 0, loss = 0;
    dt_tensor *l = NULL;
    DT_TRY(net_open(arg, world, &n));
    const int64_t resting = dt_heap_get_stats(dt_mesh_heap(n.mesh)).live[DT_TAG_COMM];
    DT_TRY(net_forward(&n, 0, true, &l));
    DT_TRY(net_loss(&n, l, &before));
    TEST_THAT(dt_heap_get_stats(dt_mesh_heap(n.mesh)).live[DT_TAG_COMM] == resting,
              "evaluation leaves a gathered copy");
    DT_TRY(net_step(&n, 0, &loss));
    TEST_THAT(loss == before, "%.9g in training, %.9g before it", loss, before);
    TEST_THAT(dt_heap_get_stats(dt_mesh_heap(n.mesh)).live[DT_TAG_COMM] == resting,
              "a step leaves a gathered copy");
    DT_TRY(net_forward(&n, 0, true, &l));
    DT_TRY(net_loss(&n, l, &after));
    TEST_THAT(after < before, "%.9g after a step, %.9g before", after, before);
    DT_TRY(net_gradients(&n, 0, &loss));
    TEST_THAT(loss == after, "%.9g in training, %.9g evaluated", loss, after);
    net_close(&n);
    return DT_OK;
}

START_TEST(eval_step_eval)
{
    static const dt_reshard reshard[] = {DT_RESHARD_DEFAULT, DT_RESHARD_ALWAYS, DT_RESHARD_NEVER,
                                         DT_RESHARD_STEP, DT_RESHARD_GROUP};
    net_case c = {.shard = 4,
                  .blocks = 2,
                  .n = 6,
                  .hidden = 5,
                  .batch = 4,
                  .options = {.reshard = reshard[_i], .reshard_size = 2}};
    test_ranks(4, eval_body, &c);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("fully_shard parity");
    TCase *tc = tcase_create("parity");
    tcase_set_timeout(tc, 120);
    test_loop(tc, one_group, 30);
    test_loop(tc, every_way, 3 * DT_COUNT(ways));
    test_loop(tc, nest_of_axes, 6);
    tcase_add_test(tc, one_rank_sends_nothing);
    test_loop(tc, weights_go_in_and_out, 4);
    test_loop(tc, eval_step_eval, 5);
    suite_add_tcase(suite, tc);
    return test_main(suite);
}
