/* tests/fsdp/test_errors.c - what is refused, on all ranks alike, with names, and with nothing
 * left behind; what a failed pass leaves. */
#include "tests/fsdp/net.h"

#include <stdlib.h>
#include <string.h>

/* ---- set-up ---- */

typedef struct bench {
    dt_mesh *mesh;
    dt_module *root, *a, *b, *c; /* c: without parameters */
} bench;

static dt_values chain(dt_module *m, dt_tape *t, const dt_values *in)
{
    dt_tensor *x = in->value[0];
    for (int i = 0; i < dt_module_nchildren(m); i++)
        x = dt_module_call1(dt_module_child(m, i), t, x);
    return (dt_values){.n = 1, .value = {x}};
}

static dt_values same(dt_module *m, dt_tape *t, const dt_values *in)
{
    (void)m;
    (void)t;
    return *in;
}

static dt_status open_bench(bench *b, dt_world *world)
{
    static const dt_module_kind root = {"chain", 0, chain}, none = {"same", 0, same};
    const dt_linear_options o = {.in = 4, .out = 4, .bias = true, .std = 0.5};
    *b = (bench){0};
    DT_TRY(dt_mesh_create(world, test_device(world),
                          &(dt_mesh_options){.axes = {{"dp_shard", -1}, {"tp", 1}}}, &b->mesh));
    DT_TRY(dt_module_create(&root, &b->root));
    DT_TRY(dt_layer_linear(&o, &b->a));
    DT_TRY(dt_layer_linear(&o, &b->b));
    DT_TRY(dt_module_create(&none, &b->c));
    DT_TRY(dt_module_add(b->root, "a", b->a));
    DT_TRY(dt_module_add(b->root, "b", b->b));
    DT_TRY(dt_module_add(b->root, "c", b->c));
    return DT_OK;
}

static void close_bench(bench *b)
{
    dt_module_destroy(&b->root);
    dt_mesh_destroy(&b->mesh);
}

static dt_status setup_body(dt_world *world, void *arg)
{
    (void)arg;
    bench b;
    dt_module *loose = NULL;
    DT_TRY(open_bench(&b, world));
    TEST_FAILS(DT_ERR_STATE, "no names", dt_fully_shard(b.root, b.mesh, "dp_shard", NULL));
    DT_TRY(dt_module_finish(b.root));
    TEST_FAILS(DT_ERR_ARG, "nowhere", dt_fully_shard(b.root, b.mesh, "nowhere", NULL));
    TEST_FAILS(DT_ERR_ARG, "no axis", dt_fully_shard(b.root, b.mesh, "", NULL));
    TEST_FAILS(DT_ERR_ARG, "no axes", dt_fully_shard(b.root, b.mesh, NULL, NULL));
    TEST_FAILS(DT_ERR_ARG, "named twice",
               dt_fully_shard(b.root, b.mesh, "dp_shard,dp_shard", NULL));
    TEST_FAILS(DT_ERR_ARG, "both shards and replicates",
               dt_fully_shard(b.root, b.mesh, "dp_shard",
                              &(dt_fsdp_options){.replicate_axes = "dp_shard"}));
    TEST_FAILS(DT_ERR_ARG, "'c' has no parameters", dt_fully_shard(b.c, b.mesh, "dp_shard", NULL));
    TEST_FAILS(DT_ERR_ARG, "no modules", dt_fully_shard_list(0, NULL, b.mesh, "dp_shard", NULL));
    TEST_FAILS(DT_ERR_ARG, "3 is not a factor of the 4",
               dt_fully_shard(b.root, b.mesh, "dp_shard",
                              &(dt_fsdp_options){.reshard = DT_RESHARD_GROUP, .reshard_size = 3}));
    TEST_FAILS(DT_ERR_ARG, "0 is not a factor",
               dt_fully_shard(b.root, b.mesh, "dp_shard",
                              &(dt_fsdp_options){.reshard = DT_RESHARD_GROUP}));
    TEST_FAILS(
        DT_ERR_ARG, "float",
        dt_fully_shard(b.root, b.mesh, "dp_shard", &(dt_fsdp_options){.param_dtype = DT_I32}));
    TEST_FAILS(DT_ERR_STATE, "NULL", dt_fsdp_unshard(loose));
    TEST_FAILS(DT_ERR_STATE, "'a' was not given", dt_fsdp_unshard(b.a));
    int n = 0;
    dt_param *const *p = dt_module_params(b.root, &n);
    for (int i = 0; i < n; i++)
        TEST_THAT(!p[i]->layout && !p[i]->owner, "%s was changed by a call that failed",
                  p[i]->name);
    DT_TRY(dt_fully_shard(b.a, b.mesh, "dp_shard", NULL)); /* and now all is well */
    TEST_FAILS(DT_ERR_STATE, "'a' was given", dt_fully_shard(b.a, b.mesh, "dp_shard", NULL));
    TEST_FAILS(DT_ERR_STATE, "a.bias", dt_replicate(b.root, b.mesh, "dp_shard", 0));
    DT_TRY(dt_fully_shard(b.root, b.mesh, "dp_shard", NULL));
    TEST_FAILS(DT_ERR_STATE, "was given", dt_fully_shard(b.root, b.mesh, "dp_shard", NULL));
    TEST_FAILS(DT_ERR_STATE, "a.weight is not materialized", dt_fsdp_unshard(b.a));
    close_bench(&b);
    return DT_OK;
}

START_TEST(setup)
{
    test_ranks(4, setup_body, NULL);
}
END_TEST

static dt_status scalar_body(dt_world *world, void *arg)
{
    (void)arg;
    bench b;
    DT_TRY(open_bench(&b, world));
    DT_TRY(dt_module_add_param(b.c, "gain", DT_SCALAR, NULL, (dt_init){DT_INIT_ONES, 0}, NULL));
    DT_TRY(dt_module_finish(b.root));
    TEST_FAILS(DT_ERR_ARG, "c.gain is a scalar", dt_fully_shard(b.root, b.mesh, "dp_shard", NULL));
    int n = 0;
    dt_param *const *p = dt_module_params(b.root, &n);
    for (int i = 0; i < n; i++)
        TEST_THAT(!p[i]->layout && !p[i]->owner, "%s was changed by a call that failed",
                  p[i]->name);
    DT_TRY(dt_module_materialize(b.root, b.mesh, 1));
    TEST_FAILS(DT_ERR_STATE, "a.weight is materialized already",
               dt_fully_shard(b.a, b.mesh, "dp_shard", NULL));
    close_bench(&b);
    return DT_OK;
}

START_TEST(scalars)
{
    test_ranks(2, scalar_body, NULL);
}
END_TEST

/* ---- the first forward ---- */

typedef enum wrong { TWO_ROOTS, NO_ROOT, NOT_MATERIALIZED } wrong;

static dt_status first_body(dt_world *world, void *arg)
{
    static const char *const text[] = {"two roots in one model, 'a' and 'b'", "no root above",
                                       "a.weight is not materialized"};
    const wrong *w = arg;
    bench b;
    dt_tape *t = NULL;
    dt_tensor *x = NULL;
    const dt_layout *layout = NULL;
    DT_TRY(open_bench(&b, world));
    DT_TRY(dt_module_finish(b.root));
    dt_module *const both[] = {b.a, b.b};
    if (*w == TWO_ROOTS) {
        DT_TRY(dt_fully_shard(b.a, b.mesh, "dp_shard", NULL));
        DT_TRY(dt_fully_shard(b.b, b.mesh, "dp_shard", NULL));
    } else if (*w == NO_ROOT) {
        DT_TRY(dt_fully_shard_list(2, both, b.mesh, "dp_shard", NULL));
    } else {
        DT_TRY(dt_fully_shard(b.root, b.mesh, "dp_shard", NULL));
    }
    if (*w != NOT_MATERIALIZED)
        DT_TRY(dt_module_materialize(b.root, b.mesh, 1));
    DT_TRY(dt_mesh_layout_text(b.mesh, DT_SHAPE(4, 4), "S(0)@dp_shard", &layout));
    DT_TRY(dt_full_value(layout, DT_F32, 1, &x));
    DT_TRY(dt_tape_create(b.mesh, NULL, &t));
    TEST_THAT(dt_tensor_is_failed(dt_module_call1(b.root, t, x)), "it ran");
    TEST_FAILS(DT_ERR_STATE, text[*w], dt_tape_status(t));
    dt_tensor_destroy(&x);
    dt_tape_destroy(&t);
    close_bench(&b);
    return DT_OK;
}

START_TEST(first_forward)
{
    wrong w = (wrong)_i;
    test_ranks(2, first_body, &w);
}
END_TEST

/* ---- failures on the way ---- */

static bool fails_now[8]; /* by rank: all or none */

static dt_values failing(dt_module *m, dt_tape *t, const dt_values *in)
{
    (void)m;
    if (!fails_now[dt_world_rank(dt_mesh_world(dt_tape_mesh(t)))])
        return *in;
    (void)dt_tape_fail(t, DT_ERROR(DT_ERR_IO, "a bad token"));
    return (dt_values){.n = 1, .value = {dt_tape_failed(t)}};
}

static dt_status add_failing(net *n)
{
    static const dt_module_kind kind = {"failing", 0, failing};
    dt_module *m = NULL;
    DT_TRY(dt_module_create(&kind, &m));
    DT_TRY(dt_module_add(n->layers, "failing", m));
    DT_TRY(dt_module_finish(n->root));
    for (int i = 0; i < n->c->blocks; i++)
        DT_TRY(dt_fully_shard(n->block[i], n->mesh, "dp_shard", &n->c->options));
    DT_TRY(dt_fully_shard(n->root, n->mesh, "dp_shard", &n->c->options));
    return DT_OK;
}

/* A forward that fails in the middle, with groups gathered and others on their way; reset; the
 * next step is the one that would have been. Two forwards without backward do no harm either. */
static dt_status middle_body(dt_world *world, void *arg)
{
    net n, clean;
    dt_tensor *loss = NULL;
    double a = 0, b = 0;
    float *first = NULL, *second = NULL;
    int64_t count = 0;
    bool *fail = &fails_now[dt_world_rank(world)];
    *fail = false;
    DT_TRY(net_open(arg, world, &clean));
    for (int s = 0; s < 2; s++)
        DT_TRY(net_step(&clean, s, &b));
    DT_TRY(net_weights(&clean, &count, &second));
    net_close(&clean);
    DT_TRY(net_open(arg, world, &n));
    *fail = true;
    TEST_FAILS(DT_ERR_IO, "a bad token", net_forward(&n, 0, false, &loss)); /* the very first */
    dt_tape_reset(n.t, NULL);
    DT_TRY(dt_fsdp_reset(n.root));
    *fail = false;
    DT_TRY(net_step(&n, 0, &a));
    *fail = true;
    TEST_FAILS(DT_ERR_IO, "a bad token", net_forward(&n, 1, false, &loss));
    dt_tape_reset(n.t, NULL);
    DT_TRY(dt_fsdp_reset(n.root));
    const dt_heap_stats s = dt_heap_get_stats(dt_mesh_heap(n.mesh));
    TEST_THAT(s.live[DT_TAG_COMM] == 0 && s.live[DT_TAG_GRADIENT] == 0, "%lld and %lld bytes stay",
              (long long)s.live[DT_TAG_COMM], (long long)s.live[DT_TAG_GRADIENT]);
    *fail = false;
    DT_TRY(net_forward(&n, 3, false, &loss));
    DT_TRY(net_forward(&n, 4, false, &loss));
    DT_TRY(net_step(&n, 1, &a));
    TEST_THAT(a == b, "%.9g, not %.9g", a, b);
    DT_TRY(net_weights(&n, &count, &first));
    TEST_THAT(memcmp(first, second, sizeof *first * (size_t)count) == 0, "weights");
    free(first);
    free(second);
    /* and the end comes while something is on its way */
    DT_TRY(dt_fsdp_unshard(n.block[0]));
    DT_TRY(net_forward(&n, 3, false, &loss));
    net_close(&n);
    return DT_OK;
}

START_TEST(in_the_middle)
{
    static const dt_reshard reshard[] = {DT_RESHARD_DEFAULT, DT_RESHARD_NEVER, DT_RESHARD_GROUP};
    net_case c = {.shard = 4,
                  .blocks = 2,
                  .n = 6,
                  .hidden = 5,
                  .batch = 4,
                  .shard_with = add_failing,
                  .options = {.reshard = reshard[_i], .reshard_size = 2, .prefetch = 2}};
    test_ranks(4, middle_body, &c);
}
END_TEST

/* Memory that ends at any allocation: an error everywhere, never a hang, and nothing leaks (run
 * with the sanitizers). */
START_TEST(memory_ends)
{
    net_case c = {.shard = 2,
                  .blocks = 2,
                  .n = 6,
                  .hidden = 5,
                  .batch = 4,
                  .options = {.param_dtype = _i % 2 ? DT_BF16 : DT_F32}};
    int failures = 0;
    for (int64_t at = 1 + _i; at < 260; at += 5) {
        const dt_world_options o = {.heap = {.fail_after = at}};
        const dt_status st = dt_world_run_threads(2, &o, net_two_steps, &c);
        ck_assert_msg(st == DT_OK || st == DT_ERR_NOMEM || st == DT_ERR_COMM, "allocation %lld: %s",
                      (long long)at, dt_error_trace());
        dt_error_clear();
        failures += st != DT_OK;
    }
    ck_assert_int_gt(failures, 20);
}
END_TEST

/* A peer that dies while gathers are in flight: the others fail, and nothing leaks. */
static dt_status death_body(dt_world *world, void *arg)
{
    net n;
    double loss = 0;
    dt_tensor *l = NULL;
    DT_TRY(net_open(arg, world, &n));
    DT_TRY(net_step(&n, 0, &loss));
    dt_status st = dt_world_rank(world) == 1 ? DT_ERROR(DT_ERR_IO, "rank 1 is gone") : DT_OK;
    if (st == DT_OK)
        st = net_forward(&n, 1, false, &l);
    if (st == DT_OK)
        st = dt_backward(n.t, l);
    net_close(&n);
    return st;
}

START_TEST(a_peer_dies)
{
    net_case c = {.shard = 3, .blocks = 2, .n = 6, .hidden = 5, .batch = 4};
    const dt_status st = dt_world_run_threads(3, NULL, death_body, &c);
    ck_assert_msg(st != DT_OK, "nobody noticed");
    dt_error_clear();
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("fully_shard errors");
    TCase *tc = tcase_create("errors");
    tcase_set_timeout(tc, 120);
    tcase_add_test(tc, setup);
    tcase_add_test(tc, scalars);
    tcase_add_loop_test(tc, first_forward, 0, 3);
    tcase_add_loop_test(tc, in_the_middle, 0, 3);
    tcase_add_loop_test(tc, memory_ends, 0, 2);
    tcase_add_test(tc, a_peer_dies);
    suite_add_tcase(suite, tc);
    return test_main(suite);
}
