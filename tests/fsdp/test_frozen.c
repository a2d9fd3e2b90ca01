/* tests/fsdp/test_frozen.c - groups that are trained between groups that are not, all thawed for
 * the last step; one module called three times with a gradient, and without one in between. (F14
 * of the tests that PyTorch has for fully_shard; biases alone: test_counts.c.) */
#include "tests/fsdp/net.h"

#include <stdlib.h>
#include <string.h>

#define LIMIT 2e-6 /* of the largest: f32 sums in another order */

enum { RANKS = 4, STEPS = 3 };

static net_case usual(dt_reshard reshard, bool plain)
{
    return (net_case){.shard = plain ? 1 : RANKS,
                      .plain = plain,
                      .blocks = 4,
                      .n = 6,
                      .hidden = 8,
                      .batch = 5,
                      .options = {.reshard = reshard, .reshard_size = 2}};
}

/* All parameters, or their gradients, of one run; on rank 0. */
typedef struct outcome {
    net_case c;
    bool no_grad_between, biases_alone; /* of what is called three times */
    int64_t count;
    float *weight, *grad;
} outcome;

static dt_status keep(net *n, outcome *o)
{
    float *weight = NULL, *grad = NULL;
    int64_t count = 0;
    DT_TRY(net_weights(n, &count, &weight));
    DT_TRY(net_grads(n, &count, &grad));
    if (dt_world_rank(n->world) == 0) {
        *o = (outcome){.c = o->c, .count = count, .weight = weight, .grad = grad};
    } else {
        free(weight);
        free(grad);
    }
    return DT_OK;
}

static void check_same(const outcome *a, const outcome *b, double limit)
{
    ck_assert_int_eq(a->count, b->count);
    double worst = test_max_diff(a->weight, b->weight, b->count);
    ck_assert_msg(worst <= limit * test_max_abs(b->weight, b->count), "weights: %g", worst);
    worst = test_max_diff(a->grad, b->grad, b->count);
    ck_assert_msg(worst <= limit * test_max_abs(b->grad, b->count), "gradients: %g", worst);
}

static void forget(outcome *o)
{
    free(o->weight);
    free(o->grad);
}

/* ---- interleaved ---- */

/* Blocks 0 and 2 learn nothing, 1 its biases, 3 all; the head its weight. */
static dt_status every_other(net *n)
{
    int np = 0;
    dt_param *const *p = dt_module_params(n->root, &np);
    for (int i = 0; i < np; i++)
        p[i]->frozen = strstr(p[i]->name, "layers.0.") || strstr(p[i]->name, "layers.2.") ||
                       (strstr(p[i]->name, "layers.1.") && strstr(p[i]->name, "weight")) ||
                       strcmp(p[i]->name, "head.bias") == 0;
    for (int i = 0; i < n->c->blocks && !n->c->plain; i++)
        DT_TRY(dt_fully_shard(n->block[i], n->mesh, "dp_shard", &n->c->options));
    if (!n->c->plain)
        DT_TRY(dt_fully_shard(n->root, n->mesh, "dp_shard", &n->c->options));
    return DT_OK;
}

/* Three groups have something to sum, and only that is sent; that of block 3 while block 2's
 * backward is still to come. */
static dt_status check_step(net *n)
{
    char text[NET_TEXT];
    const dt_counts c = dt_world_counts(n->world);
    int64_t trained = 0;
    int np = 0;
    dt_param *const *p = dt_module_params(n->root, &np);
    for (int i = 0; i < np; i++)
        trained += p[i]->frozen ? 0 : dt_shape_count(p[i]->shape);
    TEST_THAT(c.calls[DT_CALL_REDUCE_SCATTER] == 3, "%lld reductions",
              (long long)c.calls[DT_CALL_REDUCE_SCATTER]);
    TEST_THAT(c.bytes[DT_CALL_REDUCE_SCATTER] ==
                  trained * (int64_t)sizeof(float) * (RANKS - 1) / RANKS,
              "%lld bytes for %lld numbers", (long long)c.bytes[DT_CALL_REDUCE_SCATTER],
              (long long)trained);
    DT_TRY(net_events(n, text));
    const char *reduce = strstr(text, "reduce layers.3"),
               *backward = strstr(text, "backward layers.2");
    TEST_THAT(reduce && backward && reduce < backward, "%s", text);
    TEST_THAT(!strstr(text, "reduce layers.0") && !strstr(text, "reduce layers.2"), "%s", text);
    return DT_OK;
}

static dt_status interleaved_body(dt_world *world, void *arg)
{
    outcome *o = arg;
    net n;
    double loss = 0;
    int np = 0;
    DT_TRY(net_open(&o->c, world, &n));
    dt_param *const *p = dt_module_params(n.root, &np);
    for (int s = 0; s < STEPS; s++) {
        dt_world_reset_counts(world);
        dt_trace_clear(n.trace);
        DT_TRY(net_step(&n, s, &loss));
        if (!o->c.plain)
            DT_TRY(check_step(&n));
    }
    for (int i = 0; i < np; i++) {
        p[i]->frozen = false;
        dt_tensor_set_parameter(p[i]->tensor, true);
    }
    DT_TRY(net_gradients(&n, STEPS, &loss));
    for (int i = 0; i < np; i++)
        TEST_THAT(dt_tensor_grad(p[i]->tensor)->array.storage, "%s was thawed", p[i]->name);
    DT_TRY(keep(&n, o));
    net_close(&n);
    return DT_OK;
}

static const dt_reshard reshard[] = {DT_RESHARD_DEFAULT, DT_RESHARD_ALWAYS, DT_RESHARD_NEVER,
                                     DT_RESHARD_GROUP};

START_TEST(frozen_between_trained)
{
    outcome many = {.c = usual(reshard[_i % 4], false)}, one = {.c = usual(0, true)};
    many.c.shard_with = one.c.shard_with = every_other;
    many.c.recompute = _i / 4 ? DT_RECOMPUTE_FULL : DT_RECOMPUTE_NONE;
    test_ranks(1, interleaved_body, &one);
    test_ranks(RANKS, interleaved_body, &many);
    check_same(&many, &one, LIMIT);
    forget(&many);
    forget(&one);
}
END_TEST

/* ---- three times ---- */

/* y = f(f(f(x))) on n's tape; between these calls f(x) on a tape without gradients, whose value is
 * that of the first. */
static dt_status three_times(net *n, const outcome *o, dt_tape *evaluate, dt_tensor **y_out)
{
    dt_module *f = n->block[0];
    dt_tensor *y[4] = {n->x};
    for (int i = 0; i < 3; i++) {
        y[i + 1] = dt_module_call1(f, n->t, y[i]);
        if (!o->no_grad_between)
            continue;
        dt_tensor *again = dt_module_call1(f, evaluate, n->x);
        const dt_array *a = dt_tensor_local(again), *b = dt_tensor_local(y[1]);
        TEST_THAT(memcmp(test_look(a), test_look(b), dt_array_bytes(b)) == 0,
                  "another value without a gradient, after call %d", i);
        dt_tape_reset(evaluate, &(dt_tape_options){.no_grad = true});
    }
    *y_out = y[3];
    DT_TRY(dt_tape_status(n->t));
    return DT_OK;
}

static dt_status three_body(dt_world *world, void *arg)
{
    outcome *o = arg;
    net n;
    dt_tensor *y = NULL;
    dt_tape *evaluate = NULL;
    int np = 0;
    DT_TRY(net_open(&o->c, world, &n));
    DT_TRY(dt_tape_create(n.mesh, &(dt_tape_options){.no_grad = true}, &evaluate));
    dt_param *const *p = dt_module_params(n.block[0], &np);
    for (int i = 0; i < np && o->biases_alone; i++) {
        p[i]->frozen = !strstr(p[i]->name, "bias");
        dt_tensor_set_parameter(p[i]->tensor, !p[i]->frozen);
    }
    DT_TRY(net_forward(&n, 0, true, &y)); /* makes x */
    for (int pass = 0; pass < 2; pass++) {
        dt_tape_reset(n.t, NULL);
        dt_module_clear_grads(n.root);
        DT_TRY(three_times(&n, o, evaluate, &y));
        dt_world_reset_counts(world);
        DT_TRY(dt_backward(n.t, dt_sum(n.t, dt_mul(n.t, y, y), 0)));
        DT_TRY(dt_module_reduce_grads(n.root));
        TEST_THAT(net_calls(&n, DT_CALL_REDUCE_SCATTER) == !o->c.plain, "%lld reductions",
                  (long long)net_calls(&n, DT_CALL_REDUCE_SCATTER));
    }
    TEST_THAT(dt_heap_get_stats(dt_mesh_heap(n.mesh)).live[DT_TAG_COMM] == 0, "copies stay");
    DT_TRY(keep(&n, o));
    dt_tape_destroy(&evaluate);
    net_close(&n);
    return DT_OK;
}

START_TEST(three_calls_and_others_without_gradient)
{
    outcome quiet = {.c = usual(reshard[_i % 4], false), .biases_alone = _i / 4};
    outcome between = quiet, one = quiet;
    between.no_grad_between = true;
    one.c = usual(0, true);
    test_ranks(1, three_body, &one);
    test_ranks(RANKS, three_body, &quiet);
    test_ranks(RANKS, three_body, &between);
    check_same(&quiet, &one, LIMIT);
    check_same(&between, &quiet, 0);
    ck_assert(test_max_abs(one.grad, one.count) > 0);
    forget(&quiet);
    forget(&between);
    forget(&one);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("fully_shard, frozen and called again");
    TCase *tc = tcase_create("frozen");
    tcase_set_timeout(tc, 120);
    tcase_add_loop_test(tc, frozen_between_trained, 0, 8);
    tcase_add_loop_test(tc, three_calls_and_others_without_gradient, 0, 8);
    suite_add_tcase(suite, tc);
    return test_main(suite);
}
