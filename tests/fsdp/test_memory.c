/* tests/fsdp/test_memory.c - how much lives at once, to the byte where it can be said; and what
 * each ZeRO policy keeps, by the formulas of docs/fsdp.md. (F19, section 4.8 of the reference.) */
#include "tests/fsdp/net.h"

#include <stdio.h>

enum { RANKS = 2, BLOCKS = 4 };

static net_case usual(dt_fsdp_options o)
{
    return (net_case){
        .shard = RANKS, .blocks = BLOCKS, .n = 64, .hidden = 256, .batch = 2, .options = o};
}

/* Bytes: of a block's and of the root's parameters, of all, of this rank's part. */
typedef struct sizes {
    int64_t B, N, U, S;
} sizes;

static sizes sizes_of(net *n)
{
    const int64_t block = dt_module_count(n->block[0]), all = dt_module_count(n->root);
    return (sizes){4 * block, 4 * (all - BLOCKS * block), 4 * all, dt_module_local_bytes(n->root)};
}

static dt_heap_stats stats(const net *n)
{
    return dt_heap_get_stats(dt_mesh_heap(n->mesh));
}

/* Largest sum of live bytes, less activations and workspace of which there are few here. */
static int64_t peak(const net *n)
{
    const dt_heap_stats s = stats(n);
    return s.peak_total - s.peak[DT_TAG_ACTIVATION] - s.peak[DT_TAG_WORKSPACE];
}

static dt_status peaks_body(dt_world *world, void *arg)
{
    const net_case *c = arg;
    const bool keeps = c->options.reshard == DT_RESHARD_NEVER;
    const int ahead = c->options.prefetch < 0 ? 0 : c->options.prefetch ? c->options.prefetch : 1;
    net n;
    double loss = 0;
    dt_tensor *l = NULL;
    DT_TRY(net_open(c, world, &n));
    const sizes z = sizes_of(&n);
    TEST_THAT(stats(&n).live[DT_TAG_PARAMETER] == z.S && stats(&n).live[DT_TAG_COMM] == 0,
              "at rest there is the shard alone");
    TEST_THAT(stats(&n).live[DT_TAG_OPTIMIZER] == 2 * z.S, "two moments");
    DT_TRY(net_step(&n, 0, &loss));
    for (int step = 1; step < 3; step++) {
        dt_heap_reset_peaks(dt_mesh_heap(n.mesh));
        DT_TRY(net_forward(&n, step, false, &l));
        const int64_t most = keeps ? z.U : (1 + ahead) * z.B + z.N;
        TEST_THAT(stats(&n).peak[DT_TAG_COMM] == most, "forward: %lld gathered, not %lld",
                  (long long)stats(&n).peak[DT_TAG_COMM], (long long)most);
        TEST_THAT(stats(&n).live[DT_TAG_COMM] == (keeps ? z.U : z.N), "after forward: %lld",
                  (long long)stats(&n).live[DT_TAG_COMM]);
        TEST_THAT(peak(&n) - 2 * z.S <= (keeps ? z.S + z.U + z.B : 3 * z.B + z.N + z.S), "%lld",
                  (long long)peak(&n));
        dt_heap_reset_peaks(dt_mesh_heap(n.mesh));
        DT_TRY(dt_backward(n.t, l));
        TEST_THAT(stats(&n).peak[DT_TAG_COMM] == (keeps ? z.U : most), "backward: %lld gathered",
                  (long long)stats(&n).peak[DT_TAG_COMM]);
        /* beside shards and their gradients: two blocks gathered, two blocks' gradients (one is
         * being reduced), less what the end of a block does not have at once; and the root's
         * gradients, which wait for its end */
        const int64_t bound = keeps ? z.S + z.U + 3 * z.B / 2 + z.N
                                    : (ahead < 2 ? 3 : 2 + ahead) * z.B + 2 * z.N + 2 * z.S;
        TEST_THAT(peak(&n) - 2 * z.S <= bound, "backward: %lld of at most %lld",
                  (long long)(peak(&n) - 2 * z.S), (long long)bound);
        dt_tape_reset(n.t, NULL);
        TEST_THAT(stats(&n).live[DT_TAG_COMM] == 0 && stats(&n).live[DT_TAG_GRADIENT] == z.S,
                  "after backward: %lld gathered, %lld of gradients",
                  (long long)stats(&n).live[DT_TAG_COMM],
                  (long long)stats(&n).live[DT_TAG_GRADIENT]);
        DT_TRY(dt_module_reduce_grads(n.root));
        DT_TRY(dt_optim_step(n.optim, 1e-2, 1));
        const dt_heap_stats s = stats(&n);
        TEST_THAT(s.live[DT_TAG_PARAMETER] + s.live[DT_TAG_GRADIENT] + s.live[DT_TAG_OPTIMIZER] ==
                      4 * z.S,
                  "the optimizer sees shards");
        dt_module_clear_grads(n.root);
        TEST_THAT(stats(&n).live[DT_TAG_GRADIENT] == 0, "cleared");
    }
    net_close(&n);
    return DT_OK;
}

START_TEST(peaks)
{
    net_case c = usual((dt_fsdp_options){.reshard = _i == 3 ? DT_RESHARD_NEVER : DT_RESHARD_DEFAULT,
                                         .prefetch = _i == 0 ? -1 : _i % 3});
    test_ranks(RANKS, peaks_body, &c);
}
END_TEST

/* The reference's bounds as they stand, 3B + N + 2S and S + U + 1.5B in backward. They leave the
 * root's gradients out, which wait for the end of its backward (in the reference's own test they
 * are a small part of the 16 MB that it allows for other things). With the head as a group
 * of its own, reduced when backward has passed it, nothing waits, and the bounds hold. */
static dt_status head_apart(net *n)
{
    dt_module *head = dt_module_child(n->root, 2);
    for (int i = 0; i < n->c->blocks; i++)
        DT_TRY(dt_fully_shard(n->block[i], n->mesh, "dp_shard", &n->c->options));
    DT_TRY(dt_fully_shard(head, n->mesh, "dp_shard", &n->c->options));
    DT_TRY(dt_fully_shard(n->root, n->mesh, "dp_shard", &n->c->options));
    return DT_OK;
}

static dt_status reference_body(dt_world *world, void *arg)
{
    const net_case *c = arg;
    const bool keeps = c->options.reshard == DT_RESHARD_NEVER;
    net n;
    double loss = 0;
    dt_tensor *l = NULL;
    DT_TRY(net_open(c, world, &n));
    const sizes z = sizes_of(&n);
    DT_TRY(net_step(&n, 0, &loss));
    DT_TRY(net_forward(&n, 1, false, &l));
    dt_heap_reset_peaks(dt_mesh_heap(n.mesh));
    DT_TRY(dt_backward(n.t, l));
    const int64_t bound = keeps ? z.S + z.U + 3 * z.B / 2 : 3 * z.B + z.N + 2 * z.S;
    const int64_t most = peak(&n) - 2 * z.S; /* less the optimizer's */
    (void)printf("backward, gathered parameters %s: %lld bytes of at most %lld\n",
                 keeps ? "kept" : "freed", (long long)most, (long long)bound);
    TEST_THAT(most <= bound, "backward: %lld of at most %lld", (long long)most, (long long)bound);
    net_close(&n);
    return DT_OK;
}

START_TEST(bounds_of_the_reference)
{
    net_case c = usual((dt_fsdp_options){.reshard = _i ? DT_RESHARD_NEVER : DT_RESHARD_DEFAULT});
    c.shard_with = head_apart;
    test_ranks(RANKS, reference_body, &c);
}
END_TEST

/* ---- ZeRO, by the formulas of docs/fsdp.md: Llama, 8 times llama_tiny's width and 8 layers, on
 * meta ---- */

enum { ZERO_RANKS = 8, MICRO = 3 };

/* Bytes of f32 parameters: on this rank by rows, ceil(rows / k) of each while rows last; and
 * whole. */
static void by_formula(dt_module *m, int rank, int64_t *part, int64_t *whole)
{
    int n = 0;
    dt_param *const *p = dt_module_params(m, &n);
    *part = *whole = 0;
    for (int i = 0; i < n; i++) {
        const int64_t rows = p[i]->shape.dim[0], row = 4 * dt_shape_count(p[i]->shape) / rows;
        const int64_t share = (rows + ZERO_RANKS - 1) / ZERO_RANKS, lo = share * rank;
        *whole += rows * row;
        *part += row * (lo >= rows ? 0 : lo + share > rows ? rows - lo : share);
    }
}

static dt_status step(dt_module *model, dt_mesh *mesh, dt_tape *t, const dt_heap *heap,
                      dt_heap_stats *between)
{
    const dt_layout *layout = NULL;
    dt_values in = {.n = 2};
    DT_TRY(dt_mesh_layout_text(mesh, DT_SHAPE(ZERO_RANKS, 16), "S(0)@dp_shard", &layout));
    dt_model_set_loss(model, 8 * 16, 0);
    for (int i = 0; i < 2; i++)
        DT_TRY(dt_tensor_create(layout, DT_I32, DT_TAG_ACTIVATION, &in.value[i]));
    for (int m = 0; m < MICRO; m++) {
        const dt_values out = dt_module_call(model, t, &in);
        DT_TRY(dt_backward(t, out.value[0]));
        dt_tape_reset(t, NULL);
    }
    *between = dt_heap_get_stats(heap);
    DT_TRY(dt_module_reduce_grads(model));
    for (int i = 0; i < 2; i++)
        dt_tensor_destroy(&in.value[i]);
    return DT_OK;
}

/* Bytes that a collective over all parameters below m moves. */
static int64_t moves_of(dt_module *m)
{
    int n = 0;
    int64_t bytes = 0;
    dt_param *const *p = dt_module_params(m, &n);
    for (int i = 0; i < n; i++)
        bytes += 4 * dt_shape_count(p[i]->shape) * (ZERO_RANKS - 1) / ZERO_RANKS;
    return bytes;
}

static dt_status zero(int stage, int rank)
{
    const dt_fsdp_options policy = dt_fsdp_zero(stage);
    const dt_device meta = {DT_META, 0};
    dt_world *world = NULL;
    dt_mesh *mesh = NULL;
    dt_module *model = NULL;
    dt_optim *optim = NULL;
    dt_tape *t = NULL;
    DT_TRY(dt_world_create(
        &(dt_world_options){.backend = DT_BACKEND_FAKE, .fake_rank = rank, .fake_size = ZERO_RANKS},
        &world));
    DT_TRY(dt_mesh_create(world, meta, &(dt_mesh_options){.axes = {{"dp_shard", -1}}}, &mesh));
    DT_TRY(dt_llama_create(&net_wide, &model));
    for (int i = 0; i < 8; i++)
        DT_TRY(dt_fully_shard(dt_model_layer(model, i), mesh, "dp_shard", &policy));
    DT_TRY(dt_fully_shard(model, mesh, "dp_shard", &policy));
    DT_TRY(dt_module_materialize(model, mesh, 1));
    DT_TRY(dt_adamw_create(model, &(dt_adamw_options){0}, &optim));
    DT_TRY(dt_tape_create(mesh, NULL, &t));
    const dt_heap *heap = dt_mesh_heap(mesh);
    int64_t part = 0, whole = 0;
    by_formula(model, rank, &part, &whole);
    dt_heap_stats between, rest = dt_heap_get_stats(heap);
    dt_world_reset_counts(world);
    DT_TRY(step(model, mesh, t, heap, &between));
    const dt_counts moved = dt_world_counts(world);
    (void)printf(
        "ZeRO-%d rank %d of %d: parameters %lld, optimizer %lld, gathered %lld, gradients %lld "
        "bytes between "
        "microbatches; a step of %d gathers %lld times %lld bytes, reduces %lld times %lld\n",
        stage, rank, ZERO_RANKS, (long long)rest.live[DT_TAG_PARAMETER],
        (long long)rest.live[DT_TAG_OPTIMIZER], (long long)between.live[DT_TAG_COMM],
        (long long)between.live[DT_TAG_GRADIENT], MICRO, (long long)moved.calls[DT_CALL_ALL_GATHER],
        (long long)moved.bytes[DT_CALL_ALL_GATHER], (long long)moved.calls[DT_CALL_REDUCE_SCATTER],
        (long long)moved.bytes[DT_CALL_REDUCE_SCATTER]);
    const int64_t moves = moves_of(model);
    int64_t root = moves; /* of the root's group, which stays gathered until its backward */
    for (int i = 0; i < 8; i++)
        root -= moves_of(dt_model_layer(model, i));
    TEST_THAT(rest.live[DT_TAG_PARAMETER] == part && dt_module_local_bytes(model) == part,
              "parameters");
    TEST_THAT(rest.live[DT_TAG_OPTIMIZER] == 2 * part, "optimizer");
    TEST_THAT(between.live[DT_TAG_COMM] == (stage < 3 ? whole : 0), "gathered");
    TEST_THAT(between.live[DT_TAG_GRADIENT] == (stage == 1 ? whole : part), "gradients");
    TEST_THAT(moved.calls[DT_CALL_ALL_GATHER] == (stage < 3 ? 9 : MICRO * 17), "gathers");
    TEST_THAT(moved.calls[DT_CALL_REDUCE_SCATTER] == (stage == 1 ? 9 : MICRO * 9), "reductions");
    TEST_THAT(moved.bytes[DT_CALL_ALL_GATHER] == (stage < 3 ? moves : MICRO * (2 * moves - root)),
              "gathered bytes");
    TEST_THAT(moved.bytes[DT_CALL_REDUCE_SCATTER] == (stage == 1 ? 1 : MICRO) * moves,
              "reduced bytes");
    TEST_THAT(moved.total_calls ==
                  moved.calls[DT_CALL_ALL_GATHER] + moved.calls[DT_CALL_REDUCE_SCATTER],
              "no more");
    dt_tape_destroy(&t);
    dt_optim_destroy(&optim);
    dt_module_destroy(&model);
    dt_mesh_destroy(&mesh);
    dt_world_destroy(&world);
    return DT_OK;
}

START_TEST(zero_policies)
{
    ck_ok(zero(_i % 3 + 1, _i < 3 ? 0 : ZERO_RANKS - 1));
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("fully_shard memory");
    TCase *tc = tcase_create("memory");
    tcase_set_timeout(tc, 120);
    tcase_add_loop_test(tc, peaks, 0, 4);
    tcase_add_loop_test(tc, bounds_of_the_reference, 0, 2);
    tcase_add_loop_test(tc, zero_policies, 0, 6);
    suite_add_tcase(suite, tc);
    return test_main(suite);
}
