/* tests/fsdp/test_replicate.c - plain replication: buckets, their number and order, overlap with
 * backward, modules that are not used, microbatches; the same as one rank and as sharding. */
#include "tests/fsdp/net.h"

#include <stdlib.h>
#include <string.h>

enum { N = 3 };
static int64_t bucket_bytes[8]; /* of the case, by rank */

static dt_status replicate(net *n)
{
    return dt_replicate(n->root, n->mesh, "dp_replicate", bucket_bytes[dt_world_rank(n->world)]);
}

static net_case usual(int ranks, int64_t bytes)
{
    for (int r = 0; r < 8; r++)
        bucket_bytes[r] = bytes;
    return (net_case){.replicate = ranks,
                      .blocks = N,
                      .n = 6,
                      .hidden = 5,
                      .batch = 5,
                      .micro = 2,
                      .steps = 4,
                      .shard_with = replicate};
}

/* ---- parity ---- */

START_TEST(parity)
{
    static const int64_t bytes[] = {0, 1, 400, 1000000};
    net_case c = usual(_i % 3 + 2, bytes[_i / 3]);
    c.last_sync_only = _i % 2;
    net_run many = net_train(&c);
    c.plain = true;
    c.replicate = 1;
    net_run one = net_train(&c);
    net_same(&many, &one, 4, 2e-6);
    net_free(&many);
    net_free(&one);
}
END_TEST

/* One microbatch: sharded and replicated sums are formed in one order, so no bit differs. */
START_TEST(equals_sharding)
{
    net_case c = usual(4, 300);
    c.micro = 1;
    net_run replicated = net_train(&c);
    c.replicate = 1;
    c.shard = 4;
    c.shard_with = NULL;
    net_run sharded = net_train(&c);
    net_same(&replicated, &sharded, 4, test_bits() ? 0 : 2e-6);
    net_free(&replicated);
    net_free(&sharded);
}
END_TEST

/* ---- counts ---- */

/* Buckets are filled in reverse order of parameters; one is closed when it has at least so many
 * bytes. */
static int buckets(net *n, int64_t bytes)
{
    int np = 0, count = 0;
    int64_t in_it = bytes;
    dt_param *const *p = dt_module_params(n->root, &np);
    for (int i = np - 1; i >= 0; i--) {
        if (in_it >= bytes) {
            count++;
            in_it = 0;
        }
        in_it += 4 * dt_shape_count(p[i]->shape);
    }
    return count;
}

static dt_status counts_body(dt_world *world, void *arg)
{
    const net_case *c = arg;
    const int64_t bytes = bucket_bytes[dt_world_rank(world)];
    net n;
    dt_tensor *loss = NULL;
    DT_TRY(net_open(c, world, &n));
    const int want = buckets(&n, bytes ? bytes : 4 << 20);
    int64_t all = 0;
    for (int step = 0; step < 2; step++) {
        dt_world_reset_counts(world);
        DT_TRY(net_forward(&n, step, false, &loss));
        TEST_THAT(dt_world_counts(world).total_calls == 0, "forward moves nothing");
        DT_TRY(dt_backward(n.t, loss));
        TEST_THAT(
            net_calls(&n, DT_CALL_ALL_REDUCE) == want && dt_world_counts(world).total_calls == want,
            "%lld all-reduces for %d buckets", (long long)net_calls(&n, DT_CALL_ALL_REDUCE), want);
        DT_TRY(dt_module_reduce_grads(n.root));
        TEST_THAT(dt_world_counts(world).total_calls == want, "the end moves nothing more");
        all = dt_world_counts(world).total_bytes;
        dt_module_clear_grads(n.root);
        /* sync off: nothing, and then all in one call */
        dt_world_reset_counts(world);
        dt_fsdp_set_grad_sync(n.root, false);
        DT_TRY(net_forward(&n, step, false, &loss));
        DT_TRY(dt_backward(n.t, loss));
        TEST_THAT(dt_world_counts(world).total_calls == 0, "sync is off");
        DT_TRY(dt_module_reduce_grads(n.root));
        TEST_THAT(dt_world_counts(world).total_calls == 1 &&
                      dt_world_counts(world).total_bytes == all,
                  "one call at the end");
        dt_fsdp_set_grad_sync(n.root, true);
        dt_module_clear_grads(n.root);
    }
    net_close(&n);
    return DT_OK;
}

START_TEST(counts)
{
    static const int64_t bytes[] = {0, 1, 144 /* a c_proj, exactly */, 400, 700};
    net_case c = usual(2, bytes[_i]);
    test_ranks(2, counts_body, &c);
}
END_TEST

/* ---- order ---- */

/* Position of the first such event from `from` on; -1. */
static int64_t find(const net *n, int64_t from, const char *kind, const char *name, int phase)
{
    int64_t count = 0;
    const dt_trace_event *e = dt_trace_events(n->trace, &count);
    for (int64_t i = from; i < count; i++) {
        if (strcmp(e[i].kind, kind) == 0 && strstr(e[i].name, name) &&
            (phase < 0 || (int)e[i].phase == phase))
            return i;
    }
    return -1;
}

/* Slow all-reduces: bucket 0 (the head) is issued before the last block's gradients are computed,
 * bucket 1 after; and bucket 0's call ends after that compute, if the machine is not too busy. */
static dt_status order_body(dt_world *world, void *arg)
{
    net n;
    dt_tensor *loss = NULL;
    int64_t seen = 0;
    DT_TRY(net_open(arg, world, &n));
    for (int i = 0; i < 8 && !seen; i++) { /* longer and longer calls */
        dt_world_set_delay(world, 1u << DT_CALL_ALL_REDUCE, 20 << i);
        DT_TRY(net_forward(&n, i, false, &loss));
        dt_trace_clear(n.trace);
        DT_TRY(dt_backward(n.t, loss));
        const int64_t issued = find(&n, 0, "issue", "bucket 0", -1);
        const int64_t grad = find(&n, issued, "grad", "linear", DT_TRACE_END);
        const int64_t second = find(&n, issued, "issue", "bucket 1", -1);
        TEST_THAT(issued >= 0 && issued < grad && grad < second,
                  "issued %lld, gradient %lld, bucket 1 %lld", (long long)issued, (long long)grad,
                  (long long)second);
        seen = grad < find(&n, issued, "comm", "bucket 0", DT_TRACE_END);
        DT_TRY(dt_all_reduce_i64_sync(dt_world_comm(world), &seen, 1, DT_REDUCE_MIN));
        dt_module_clear_grads(n.root);
    }
    TEST_THAT(seen, "bucket 0 never ended after the compute that it should run beside");
    net_close(&n);
    return DT_OK;
}

START_TEST(order)
{
    net_case c = usual(2, 6 * 7 * 4); /* the head is a bucket */
    test_ranks(2, order_body, &c);
}
END_TEST

/* ---- a module that backward does not reach: its bucket goes without it, the others as ever ----
 * */

static dt_status unused_body(dt_world *world, void *arg)
{
    net n;
    dt_tensor *loss = NULL;
    int np = 0;
    DT_TRY(net_open(arg, world, &n));
    dt_param *const *p = dt_module_params(n.root, &np);
    DT_TRY(net_forward(&n, 0, false, &loss));
    dt_tape_reset(n.t, NULL);
    dt_tensor *x = dt_module_call1(n.block[0], n.t, n.x); /* neither norm, nor block 1, nor head */
    x = dt_module_call1(n.block[2], n.t, x);
    DT_TRY(dt_backward(n.t, dt_sum(n.t, x, 0)));
    DT_TRY(dt_module_reduce_grads(n.root));
    for (int i = 0; i < np; i++) {
        const dt_local *g = dt_tensor_grad(p[i]->tensor);
        const bool used = strstr(p[i]->name, "layers.0") || strstr(p[i]->name, "layers.2");
        TEST_THAT(used == (g->array.storage != NULL), "%s", p[i]->name);
        TEST_THAT(!used || g->layout == p[i]->layout, "%s is not at home", p[i]->name);
    }
    dt_module_clear_grads(n.root);
    /* called twice on a tape: each bucket goes once, when the second walk has passed */
    DT_TRY(net_forward(&n, 1, false, &loss));
    dt_tensor *again = dt_module_call1(n.root, n.t, n.x);
    dt_world_reset_counts(world);
    DT_TRY(dt_backward(n.t, dt_add(n.t, loss, dt_sum(n.t, again, 0))));
    DT_TRY(dt_module_reduce_grads(n.root));
    TEST_THAT(dt_world_counts(world).total_calls == buckets(&n, bucket_bytes[dt_world_rank(world)]),
              "%lld calls", (long long)dt_world_counts(world).total_calls);
    dt_module_clear_grads(n.root);
    double value = 0;
    DT_TRY(net_step(&n, 1, &value)); /* the next one is whole again */
    net_close(&n);
    return DT_OK;
}

START_TEST(unused)
{
    net_case c = usual(2, _i ? 1 : 500);
    test_ranks(2, unused_body, &c);
}
END_TEST

static dt_status errors_body(dt_world *world, void *arg)
{
    net n;
    int np = 0;
    DT_TRY(net_open(arg, world, &n));
    dt_param *const *p = dt_module_params(n.root, &np);
    TEST_FAILS(DT_ERR_ARG, "nowhere", dt_replicate(n.root, n.mesh, "nowhere", 0));
    TEST_FAILS(DT_ERR_ARG, "no axis", dt_replicate(n.root, n.mesh, "", 0));
    for (int i = 0; i < np; i++)
        TEST_THAT(!p[i]->owner, "%s was taken by a call that failed", p[i]->name);
    DT_TRY(dt_replicate(n.block[0], n.mesh, "dp_replicate", 0));
    TEST_FAILS(DT_ERR_STATE, "already", dt_replicate(n.block[0], n.mesh, "dp_replicate", 0));
    TEST_FAILS(DT_ERR_STATE, "layers.0.c_proj", dt_replicate(n.root, n.mesh, "dp_replicate", 0));
    TEST_THAT(!p[np - 1]->owner, "%s was taken by a call that failed", p[np - 1]->name);
    net_close(&n);
    return DT_OK;
}

START_TEST(errors)
{
    net_case c = usual(2, 0);
    c.shard_with = NULL;
    c.plain = true;
    test_ranks(2, errors_body, &c);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("replicate");
    TCase *tc = tcase_create("all");
    tcase_set_timeout(tc, 120);
    tcase_add_loop_test(tc, parity, 0, 12);
    tcase_add_test(tc, equals_sharding);
    tcase_add_loop_test(tc, counts, 0, 5);
    if (test_device_kind() == DT_CPU) /* a device's calls leave no events */
        tcase_add_test(tc, order);
    tcase_add_loop_test(tc, unused, 0, 2);
    tcase_add_test(tc, errors);
    suite_add_tcase(suite, tc);
    return test_main(suite);
}
