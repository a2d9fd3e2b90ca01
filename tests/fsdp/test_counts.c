/* tests/fsdp/test_counts.c - how many collectives: n blocks and the root, every policy,
 * microbatches, replicas; frozen parameters; several calls of a module; groups of several modules.
 * (F5, F7, F14-F16.) */
#include "tests/fsdp/net.h"

#include <string.h>

#define IS(n, what, kind, want)                                                         \
    TEST_THAT(net_calls((n), (kind)) == (want), "%s: %lld calls of %s, not %d", (what), \
              (long long)net_calls((n), (kind)), dt_call_name(kind), (int)(want))

enum { N = 3 }; /* blocks */

static net_case usual(dt_fsdp_options o)
{
    return (net_case){.shard = 4, .blocks = N, .n = 6, .hidden = 5, .batch = 4, .options = o};
}

/* ---- F5 ---- */

typedef struct forward_backward {
    net_case c;
    int forward, backward, scatter, reduce_forward_backward, reduce_end;
} forward_backward;

static dt_status pass_body(dt_world *world, void *arg)
{
    const forward_backward *want = arg;
    net n;
    dt_tensor *loss = NULL;
    DT_TRY(net_open(&want->c, world, &n));
    const int comms = dt_world_comms_created(world);
    for (int step = 0; step < 2; step++) {
        dt_world_reset_counts(world);
        DT_TRY(net_forward(&n, step, false, &loss));
        IS(&n, "forward", DT_CALL_ALL_GATHER, want->forward);
        dt_world_reset_counts(world);
        DT_TRY(dt_backward(n.t, loss));
        IS(&n, "backward", DT_CALL_ALL_GATHER, want->backward);
        IS(&n, "backward", DT_CALL_REDUCE_SCATTER, want->scatter);
        IS(&n, "backward", DT_CALL_ALL_REDUCE, want->reduce_forward_backward);
        dt_world_reset_counts(world);
        DT_TRY(dt_module_reduce_grads(n.root));
        IS(&n, "end", DT_CALL_REDUCE_SCATTER, N + 1 - want->scatter);
        IS(&n, "end", DT_CALL_ALL_REDUCE, want->reduce_end);
        TEST_THAT(dt_world_counts(world).total_calls == N + 1 - want->scatter + want->reduce_end,
                  "nothing else");
        dt_module_clear_grads(n.root);
    }
    TEST_THAT(dt_world_comms_created(world) == comms, "a step makes a communicator");
    net_close(&n);
    return DT_OK;
}

START_TEST(passes)
{
    const forward_backward want[] = {
        {usual((dt_fsdp_options){0}), N + 1, N, N + 1, 0, 0},
        {usual((dt_fsdp_options){.reshard = DT_RESHARD_ALWAYS}), N + 1, N + 1, N + 1, 0, 0},
        {usual((dt_fsdp_options){.reshard = DT_RESHARD_NEVER}), N + 1, 0, N + 1, 0, 0},
        {usual((dt_fsdp_options){.reshard = DT_RESHARD_GROUP, .reshard_size = 2}), N + 1, N + 1,
         N + 1, 0, 0},
        {usual(dt_fsdp_zero(1)), N + 1, 0, 0, 0, 0},
        {usual(dt_fsdp_zero(2)), N + 1, 0, N + 1, 0, 0},
        {usual(dt_fsdp_zero(3)), N + 1, N, N + 1, 0, 0},
        {usual((dt_fsdp_options){.prefetch = -1}), N + 1, N, N + 1, 0, 0},
        {usual((dt_fsdp_options){.prefetch = 3}), N + 1, N, N + 1, 0, 0},
        {usual((dt_fsdp_options){0}), N + 1, N, N + 1, N + 1, 0},
        {usual((dt_fsdp_options){.reduce = DT_REDUCE_SHARDS_EACH}), N + 1, N, N + 1, 0, 1},
        {usual((dt_fsdp_options){.reduce = DT_REDUCE_STEP}), N + 1, N, 0, 0, 1},
    };
    ck_assert_int_lt(_i, DT_COUNT(want));
    forward_backward w = want[_i];
    w.c.replicate = _i >= 9 ? 2 : 1;
    w.c.shard = _i >= 9 ? 2 : 4;
    test_ranks(4, pass_body, &w);
}
END_TEST

/* Resharding by hand after forward: backward gathers all again. */
static dt_status manual_body(dt_world *world, void *arg)
{
    net n;
    dt_tensor *loss = NULL;
    DT_TRY(net_open(arg, world, &n));
    DT_TRY(net_forward(&n, 0, false, &loss));
    for (int i = 0; i < N; i++)
        DT_TRY(dt_fsdp_reshard(n.block[i]));
    DT_TRY(dt_fsdp_reshard(n.root));
    dt_world_reset_counts(world);
    DT_TRY(dt_backward(n.t, loss));
    IS(&n, "backward", DT_CALL_ALL_GATHER, N + 1);
    /* and gathering by hand before: forward gathers nothing */
    for (int i = 0; i < N; i++)
        DT_TRY(dt_fsdp_unshard(n.block[i]));
    DT_TRY(dt_fsdp_unshard(n.root));
    IS(&n, "by hand", DT_CALL_ALL_GATHER, 2 * (N + 1));
    DT_TRY(net_forward(&n, 1, false, &loss));
    IS(&n, "forward", DT_CALL_ALL_GATHER, 2 * (N + 1));
    DT_TRY(dt_backward(n.t, loss));
    net_close(&n);
    return DT_OK;
}

START_TEST(by_hand)
{
    net_case c = usual((dt_fsdp_options){.reshard = DT_RESHARD_NEVER});
    test_ranks(4, manual_body, &c);
}
END_TEST

/* ---- F7 ---- */

typedef enum sync_off { ALL, ROOT, TWO, NONE } sync_off;
typedef struct accumulate {
    net_case c;
    sync_off off;
    bool keep; /* not resharded after backward until the last microbatch */
    int gathers, scatters, reduces, scatters_end, reduces_end;
} accumulate;

static dt_status accumulate_body(dt_world *world, void *arg)
{
    const accumulate *a = arg;
    enum { M = 3 };
    net n;
    dt_tensor *loss = NULL;
    DT_TRY(net_open(&a->c, world, &n));
    for (int step = 0; step < 2; step++) {
        dt_world_reset_counts(world);
        for (int m = 0; m < M; m++) {
            const bool last = m == M - 1;
            dt_fsdp_set_grad_sync(n.root, last || a->off == NONE || a->off == TWO);
            for (int i = 0; i < N && a->off != ALL; i++)
                dt_fsdp_set_grad_sync(n.block[i], last || !(a->off == TWO && i < 2));
            dt_fsdp_set_reshard_after_backward(n.root, last || !a->keep);
            DT_TRY(net_forward(&n, m, false, &loss));
            DT_TRY(dt_backward(n.t, loss));
        }
        IS(&n, "step", DT_CALL_ALL_GATHER, a->gathers);
        IS(&n, "step", DT_CALL_REDUCE_SCATTER, a->scatters);
        IS(&n, "step", DT_CALL_ALL_REDUCE, a->reduces);
        DT_TRY(dt_module_reduce_grads(n.root));
        IS(&n, "end", DT_CALL_REDUCE_SCATTER, a->scatters_end);
        IS(&n, "end", DT_CALL_ALL_REDUCE, a->reduces_end);
        dt_module_clear_grads(n.root);
    }
    net_close(&n);
    return DT_OK;
}

START_TEST(accumulation)
{
    enum { M = 3, G = N + 1 };
    const dt_fsdp_options always = {.reshard = DT_RESHARD_ALWAYS},
                          never = {.reshard = DT_RESHARD_NEVER},
                          shards = {.reduce = DT_REDUCE_SHARDS_EACH, .reshard = DT_RESHARD_ALWAYS};
    const accumulate want[] = {
        {usual(always), ALL, false, G * 2 * M, G, 0, G, 0},
        {usual(always), ROOT, false, G * 2 * M, G + N * (M - 1), 0, G + N * (M - 1), 0},
        {usual(always), TWO, false, G * 2 * M, G + (N - 2 + 1) * (M - 1), 0,
         G + (N - 2 + 1) * (M - 1), 0},
        {usual(never), NONE, false, G * M, G * M, 0, G * M, 0},
        {usual(never), ALL, true, G, G, 0, G, 0},
        {usual(dt_fsdp_zero(1)), NONE, false, G, 0, 0, G, 0},
        {usual(dt_fsdp_zero(2)), NONE, false, G, G * M, 0, G * M, 0},
        {usual(dt_fsdp_zero(3)), NONE, false, (2 * N + 1) * M, G * M, 0, G * M, 0},
        {usual(shards), NONE, false, G * 2 * M, G * M, 0, G * M, 1},
        {usual(always), NONE, false, G * 2 * M, G * M, G * M, G * M, G * M},
        {usual(always), ALL, false, G * 2 * M, G, G, G, G},
    };
    accumulate w = want[_i];
    w.c.replicate = _i >= 8 ? 2 : 1;
    w.c.shard = _i >= 8 ? 2 : 4;
    ck_assert_int_lt(_i, DT_COUNT(want));
    test_ranks(4, accumulate_body, &w);
}
END_TEST

/* ---- a group that runs alone, twice, while its first sums are on their way ---- */

static dt_status alone_body(dt_world *world, void *arg)
{
    net n;
    dt_tensor *loss = NULL;
    DT_TRY(net_open(arg, world, &n));
    DT_TRY(net_forward(&n, 0, false, &loss)); /* makes x */
    dt_tensor *w = dt_module_param(dt_module_child(n.block[0], 0), "weight")->tensor;
    float once[6 * 5] = {0};
    for (int times = 1; times <= 2; times++) {
        dt_module_clear_grads(n.root);
        for (int i = 0; i < times; i++) {
            dt_tape_reset(n.t, NULL);
            DT_TRY(dt_backward(n.t, dt_sum(n.t, dt_module_call1(n.block[0], n.t, n.x), 0)));
        }
        DT_TRY(dt_module_reduce_grads(n.root));
        const dt_array *g = &dt_tensor_grad(w)->array;
        const float *got = test_look(g);
        for (int64_t i = 0; i < dt_array_count(g); i++) {
            once[i] = times == 1 ? got[i] : once[i];
            TEST_THAT(got[i] == (float)times * once[i], "element %lld: %g, once %g", (long long)i,
                      (double)got[i], (double)once[i]);
        }
    }
    net_close(&n);
    return DT_OK;
}

START_TEST(alone)
{
    net_case c = usual((dt_fsdp_options){0});
    c.shard = c.replicate = 2;
    test_ranks(4, alone_body, &c);
}
END_TEST

/* ---- recomputation: one unshard serves the second run and the gradients ---- */

START_TEST(recomputed)
{
    forward_backward w = {usual((dt_fsdp_options){0}), N + 1, N, N + 1, 0, 0};
    w.c.recompute = _i ? DT_RECOMPUTE_SELECTIVE : DT_RECOMPUTE_FULL;
    test_ranks(4, pass_body, &w);
}
END_TEST

/* ---- F14: biases alone are trained ---- */

static dt_status freeze(net *n)
{
    int np = 0;
    dt_param *const *p = dt_module_params(n->root, &np);
    for (int i = 0; i < np; i++)
        p[i]->frozen = !strstr(p[i]->name, "bias");
    for (int i = 0; i < N; i++)
        DT_TRY(dt_fully_shard(n->block[i], n->mesh, "dp_shard", &n->c->options));
    DT_TRY(dt_fully_shard(n->root, n->mesh, "dp_shard", &n->c->options));
    return DT_OK;
}

static dt_status frozen_body(dt_world *world, void *arg)
{
    net n;
    dt_tensor *loss = NULL;
    int np = 0;
    DT_TRY(net_open(arg, world, &n));
    dt_param *const *p = dt_module_params(n.root, &np);
    DT_TRY(net_forward(&n, 0, false, &loss));
    dt_world_reset_counts(world);
    DT_TRY(dt_backward(n.t, loss));
    int64_t trained = 0; /* bytes of a bias that a reduce-scatter over 4 moves: 3/4 of the whole */
    for (int i = 0; i < np; i++) {
        if (!p[i]->frozen)
            trained += dt_shape_count(p[i]->shape) * 4 * 3 / 4;
        TEST_THAT(p[i]->frozen == !dt_tensor_grad(p[i]->tensor)->array.storage, "%s", p[i]->name);
    }
    IS(&n, "biases", DT_CALL_REDUCE_SCATTER, N + 1);
    TEST_THAT(dt_world_counts(world).bytes[DT_CALL_REDUCE_SCATTER] == trained,
              "%lld bytes, not %lld",
              (long long)dt_world_counts(world).bytes[DT_CALL_REDUCE_SCATTER], (long long)trained);
    /* thawed for the last step: all have gradients */
    dt_module_clear_grads(n.root);
    for (int i = 0; i < np; i++) {
        p[i]->frozen = false;
        dt_tensor_set_parameter(p[i]->tensor, true);
    }
    DT_TRY(net_forward(&n, 1, false, &loss));
    DT_TRY(dt_backward(n.t, loss));
    for (int i = 0; i < np; i++)
        TEST_THAT(dt_tensor_grad(p[i]->tensor)->array.storage, "%s was thawed", p[i]->name);
    net_close(&n);
    return DT_OK;
}

START_TEST(frozen)
{
    net_case c = usual((dt_fsdp_options){0});
    c.shard_with = freeze;
    test_ranks(4, frozen_body, &c);
}
END_TEST

/* ---- ignored parameters stay as they are ---- */

static int not_the_norm(const dt_param *p, void *arg)
{
    (void)arg;
    return strstr(p->name, "norm") ? -1 : 0;
}

static dt_status ignored_body(dt_world *world, void *arg)
{
    net n;
    double loss = 0;
    int np = 0;
    DT_TRY(net_open(arg, world, &n));
    dt_param *const *p = dt_module_params(n.root, &np);
    DT_TRY(net_step(&n, 0, &loss));
    dt_world_reset_counts(world);
    DT_TRY(net_step(&n, 1, &loss));
    IS(&n, "step", DT_CALL_ALL_REDUCE, 1); /* of the norm's two, at the end */
    IS(&n, "step", DT_CALL_REDUCE_SCATTER, N + 1);
    for (int i = 0; i < np; i++) {
        const bool whole = dt_shape_equal(dt_mesh_local(p[i]->layout, NULL), p[i]->shape);
        TEST_THAT(whole == !!strstr(p[i]->name, "norm"), "%s", p[i]->name);
    }
    net_close(&n);
    return DT_OK;
}

START_TEST(ignored)
{
    net_case c = usual((dt_fsdp_options){.shard_dim = not_the_norm});
    test_ranks(4, ignored_body, &c);
    c.steps = 4;
    net_run a = net_train(&c);
    c.plain = true;
    c.shard = 1;
    net_run b = net_train(&c);
    net_same(&a, &b, 4, 2e-6);
    net_free(&a);
    net_free(&b);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("fully_shard counts");
    TCase *tc = tcase_create("counts");
    tcase_set_timeout(tc, 120);
    tcase_add_loop_test(tc, passes, 0, 12);
    tcase_add_test(tc, by_hand);
    tcase_add_loop_test(tc, accumulation, 0, 11);
    tcase_add_loop_test(tc, recomputed, 0, 2);
    tcase_add_test(tc, alone);
    tcase_add_test(tc, frozen);
    tcase_add_test(tc, ignored);
    suite_add_tcase(suite, tc);
    return test_main(suite);
}
