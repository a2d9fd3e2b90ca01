/* tests/fsdp/test_offload.c - shards and optimizer state that rest in a file: no bit of training
 * changes, memory falls to what docs/fsdp.md says, files are read one group ahead, and damage ends
 * all ranks with its name. */
#include "tests/fsdp/resident.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char folder[32];

static void make_folder(void)
{
    (void)strcpy(folder, "/tmp/dt_offload_XXXXXX");
    ck_assert(mkdtemp(folder));
}

static void remove_folder(void)
{
    ck_assert_msg(rmdir(folder) == 0, "files stay in %s", folder);
}

static net_case usual(int shard, bool params, dt_fsdp_options o)
{
    return (net_case){.shard = shard,
                      .blocks = 4,
                      .n = 9,
                      .hidden = 14,
                      .batch = 5,
                      .steps = 4,
                      .micro = 2,
                      .options = o,
                      .offload_dir = folder,
                      .offload_params = params};
}

/* ---- no bit changes ---- */

static const struct {
    dt_fsdp_options options;
    int replicate, tp;
    dt_recompute_policy recompute;
    bool last_sync_only;
} ways[] = {
    {{0}, 1, 1, DT_RECOMPUTE_NONE, false},
    {{.param_dtype = DT_BF16}, 1, 1, DT_RECOMPUTE_NONE, false},
    {{.param_dtype = DT_BF16, .reduce_dtype = DT_BF16}, 2, 1, DT_RECOMPUTE_NONE, false},
    {{.reshard = DT_RESHARD_NEVER, .prefetch = 2}, 1, 1, DT_RECOMPUTE_FULL, false},
    {{.reshard = DT_RESHARD_STEP, .prefetch = -1}, 1, 1, DT_RECOMPUTE_NONE, true},
    {{.reshard = DT_RESHARD_GROUP, .reshard_size = 2}, 1, 1, DT_RECOMPUTE_SELECTIVE, false},
    {{.reduce = DT_REDUCE_SHARDS_EACH}, 2, 2, DT_RECOMPUTE_NONE, false},
};

START_TEST(no_bit_changes)
{
    static const int shards[] = {1, 2, 4};
    const int way = _i / 6, shard = shards[_i / 2 % 3];
    net_case c = usual(shard, _i % 2, ways[way].options);
    c.replicate = ways[way].replicate;
    c.tp = ways[way].tp;
    c.recompute = ways[way].recompute;
    c.last_sync_only = ways[way].last_sync_only;
    if (shard == 1) /* which 2 does not divide */
        c.options.reshard_size = 1;
    make_folder();
    net_run a = net_train(&c);
    remove_folder();
    c.offload_dir = NULL;
    net_run b = net_train(&c);
    net_same(&a, &b, c.steps, 0);
    ck_assert_int_eq(a.counts.total_calls, b.counts.total_calls);
    ck_assert_int_eq(a.counts.total_bytes, b.counts.total_bytes);
    net_free(&a);
    net_free(&b);
}
END_TEST

/* ---- memory ---- */

START_TEST(resident_bytes)
{
    net_case c = usual(2, _i % 2, (dt_fsdp_options){.prefetch = _i / 2 ? _i / 2 : -1});
    c.n = 64;
    c.hidden = 256;
    make_folder();
    test_ranks(2, net_resident_body, &c);
    remove_folder();
}
END_TEST

/* The same of a large model, on meta. */
enum { RANKS = 8 };

static dt_status wide_step(dt_module *model, dt_mesh *mesh, dt_tape *t)
{
    const dt_layout *layout = NULL;
    dt_values in = {.n = 2};
    DT_TRY(dt_mesh_layout_text(mesh, DT_SHAPE(RANKS, 16), "S(0)@dp_shard", &layout));
    dt_model_set_loss(model, RANKS * 16, 0);
    for (int i = 0; i < 2; i++)
        DT_TRY(dt_tensor_create(layout, DT_I32, DT_TAG_ACTIVATION, &in.value[i]));
    DT_TRY(dt_backward(t, dt_module_call(model, t, &in).value[0]));
    dt_tape_reset(t, NULL);
    DT_TRY(dt_module_reduce_grads(model));
    for (int i = 0; i < 2; i++)
        dt_tensor_destroy(&in.value[i]);
    return DT_OK;
}

static dt_status wide_body(dt_world *world, dt_store **store, dt_mesh **mesh, dt_module **model,
                           dt_optim **optim, dt_tape **t)
{
    DT_TRY(dt_mesh_create(world, (dt_device){DT_META, 0},
                          &(dt_mesh_options){.axes = {{"dp_shard", -1}}}, mesh));
    dt_heap *heap = dt_mesh_heap(*mesh);
    DT_TRY(dt_store_create(heap, "nowhere", 0, store));
    DT_TRY(dt_llama_create(&net_wide, model));
    const dt_fsdp_options policy = {.store = *store};
    for (int i = 0; i < 8; i++)
        DT_TRY(dt_fully_shard(dt_model_layer(*model, i), *mesh, "dp_shard", &policy));
    DT_TRY(dt_fully_shard(*model, *mesh, "dp_shard", &policy));
    DT_TRY(dt_module_materialize(*model, *mesh, 1));
    DT_TRY(dt_adamw_create(*model, &(dt_adamw_options){.store = *store}, optim));
    DT_TRY(dt_tape_create(*mesh, NULL, t));
    DT_TRY(wide_step(*model, *mesh, *t));
    dt_module_clear_grads(*model);
    const int64_t S = dt_module_local_bytes(*model);
    const int64_t B = dt_module_local_bytes(dt_model_layer(*model, 0));
    (void)printf("Llama of 24 million parameters, 1 of 8 ranks; without offload parameters %lld, "
                 "optimizer %lld bytes\n",
                 (long long)S, (long long)(2 * S));
    dt_heap_reset_peaks(heap);
    DT_TRY(net_peaks_are(heap, "at rest", 0, 0));
    DT_TRY(wide_step(*model, *mesh, *t));
    DT_TRY(net_peaks_are(heap, "passes", S - 8 * B > 2 * B ? S - 8 * B : 2 * B, 0));
    DT_TRY(dt_optim_step(*optim, 1e-3, 1));
    DT_TRY(net_peaks_are(heap, "optimizer", net_neighbours(*model), 2 * net_neighbours(*model)));
    return DT_OK;
}

START_TEST(resident_bytes_of_a_large_model)
{
    dt_world *world = NULL;
    dt_store *store = NULL;
    dt_mesh *mesh = NULL;
    dt_module *model = NULL;
    dt_optim *optim = NULL;
    dt_tape *t = NULL;
    ck_ok(dt_world_create(&(dt_world_options){.backend = DT_BACKEND_FAKE, .fake_size = RANKS},
                          &world));
    ck_ok(wide_body(world, &store, &mesh, &model, &optim, &t));
    dt_tape_destroy(&t);
    dt_optim_destroy(&optim);
    dt_module_destroy(&model);
    dt_store_destroy(&store);
    dt_mesh_destroy(&mesh);
    dt_world_destroy(&world);
}
END_TEST

/* ---- order ---- */

/* In a forward: while 0 is on its way to all ranks, 1 comes from the file, and so on. */
static dt_status order_body(dt_world *world, void *arg)
{
    static const char forward[] =
        "gather root\nwait root\ngather layers.0\nread layers.1\nforward root\n"
        "wait layers.0\ngather layers.1\nread layers.2\nforward layers.0\nfree layers.0\n"
        "wait layers.1\ngather layers.2\nread layers.3\nforward layers.1\nfree layers.1\n"
        "wait layers.2\ngather layers.3\nforward layers.2\nfree layers.2\n"
        "wait layers.3\nforward layers.3\nfree layers.3\n"
        "gather layers.3\nread layers.2\nbackward root\n";
    net n;
    double loss = 0;
    char traced[NET_TEXT], printed[NET_TEXT] = "";
    DT_TRY(net_open(arg, world, &n));
    DT_TRY(net_step(&n, 0, &loss));
    DT_TRY(dt_fsdp_schedule_print(n.root, net_add_line, printed));
    dt_trace_clear(n.trace);
    DT_TRY(net_step(&n, 1, &loss));
    DT_TRY(net_events(&n, traced));
    TEST_THAT(strcmp(printed, traced) == 0, "printed\n%s, traced\n%s", printed, traced);
    TEST_THAT(strncmp(traced, forward, sizeof forward - 1) == 0, "%s", traced);
    net_close(&n);
    return DT_OK;
}

START_TEST(read_one_group_ahead)
{
    net_case c = usual(_i ? 2 : 1, true, (dt_fsdp_options){0}); /* one rank reads ahead too */
    c.micro = 1;
    make_folder();
    test_ranks(c.shard, order_body, &c);
    remove_folder();
}
END_TEST

/* ---- damage ---- */

typedef struct outcome {
    const net_case *c;
    char message[4][2000]; /* by rank */
} outcome;

/* One byte of the file of rank 1, which has been written. */
static dt_status damage(net *n)
{
    char path[64];
    uint8_t byte = 0;
    int count = 0;
    dt_storage *last = dt_optim_states(n->optim, &count)[0].exp_avg.storage;
    DT_TRY(dt_storage_open(last)); /* all that was to be written is */
    dt_storage_close(last);
    (void)snprintf(path, sizeof path, "%s/offload.1", folder);
    const int fd = open(path, O_RDWR | O_CLOEXEC);
    TEST_THAT(fd >= 0 && pread(fd, &byte, 1, 2) == 1, "%s", path);
    byte ^= 1;
    TEST_THAT(pwrite(fd, &byte, 1, 2) == 1 && close(fd) == 0, "%s", path);
    return DT_OK;
}

static dt_status damaged_body(dt_world *world, void *arg)
{
    outcome *o = arg;
    net n;
    double loss = 0;
    DT_TRY(net_open(o->c, world, &n));
    DT_TRY(net_step(&n, 0, &loss));
    if (dt_world_rank(world) == 1)
        DT_TRY(damage(&n));
    dt_status st = DT_OK;
    for (int step = 1; step < 4 && st == DT_OK; step++)
        st = net_step(&n, step, &loss);
    if (st != DT_OK)
        (void)snprintf(o->message[dt_world_rank(world)], sizeof o->message[0], "%s",
                       dt_error_trace());
    net_close(&n);
    return st;
}

START_TEST(damage_ends_all_ranks)
{
    net_case c = usual(4, _i % 2, (dt_fsdp_options){0});
    outcome o = {.c = &c};
    make_folder();
    ck_assert_int_eq(dt_world_run_threads(4, NULL, damaged_body, &o), DT_ERR_IO);
    ck_assert_msg(strstr(dt_error_trace(), "offload.1: reading norm.weight: damaged"), "%s",
                  dt_error_trace());
    dt_error_clear();
    for (int r = 0; r < 4; r++)
        ck_assert_msg(strstr(o.message[r], "offload.1: reading norm.weight: damaged"),
                      "rank %d says: %s", r, o.message[r]);
    remove_folder();
}
END_TEST

/* Memory that ends at any allocation while shards come and go. */
START_TEST(memory_ends)
{
    net_case c = usual(2, true, (dt_fsdp_options){.param_dtype = _i ? DT_BF16 : DT_F32});
    c.blocks = 2;
    int failures = 0;
    make_folder();
    for (int64_t at = 1 + _i; at < 320; at += 7) {
        const dt_world_options o = {.heap = {.fail_after = at}};
        const dt_status st = dt_world_run_threads(2, &o, net_two_steps, &c);
        ck_assert_msg(st == DT_OK || st == DT_ERR_NOMEM || st == DT_ERR_COMM, "allocation %lld: %s",
                      (long long)at, dt_error_trace());
        dt_error_clear();
        failures += st != DT_OK;
    }
    ck_assert_int_gt(failures, 20);
    remove_folder();
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("offload");
    TCase *tc = tcase_create("offload");
    tcase_set_timeout(tc, 120);
    test_loop(tc, no_bit_changes, 6 * DT_COUNT(ways));
    test_loop(tc, resident_bytes, 6);
    tcase_add_test(tc, resident_bytes_of_a_large_model);
    test_loop(tc, read_one_group_ahead, 2);
    test_loop(tc, damage_ends_all_ranks, 2);
    test_loop(tc, memory_ends, 2);
    suite_add_tcase(suite, tc);
    return test_main(suite);
}
