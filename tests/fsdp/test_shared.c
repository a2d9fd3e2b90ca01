/* tests/fsdp/test_shared.c - groups of several modules: tied parameters, a head called chunk by
 * chunk. (F15, F16.) */
#include "models/dt_models.h"
#include "tests/fsdp/net.h"

#include <stdlib.h>
#include <string.h>

/* ---- tied parameters ---- */

enum { V = 33, H = 8 };
typedef struct tied_run {
    enum { TOGETHER, APART, REPLICATED } how;
    float weight[V * H];
} tied_run;

static dt_status tied(dt_world *world, dt_module **model, dt_mesh **mesh, int how)
{
    const dt_llama_config c = {.vocab_size = 4 * 8 + 1,
                               .hidden_size = 8,
                               .intermediate_size = 6,
                               .num_hidden_layers = 1,
                               .num_attention_heads = 2,
                               .num_key_value_heads = 2,
                               .head_dim = 4,
                               .max_position_embeddings = 16,
                               .rope.theta = 1e4,
                               .rms_norm_eps = 1e-5,
                               .initializer_range = 0.3,
                               .tie_word_embeddings = true};
    DT_TRY(dt_mesh_create(world, test_device(world), &(dt_mesh_options){.axes = {{"dp_shard", -1}}},
                          mesh));
    DT_TRY(dt_llama_create(&c, model));
    dt_module *embed = dt_module_find(*model, "model.embed_tokens"),
              *head = dt_module_find(*model, "lm_head");
    dt_module *const ends[] = {embed, dt_module_find(*model, "model.norm"), head};
    if (how == REPLICATED)
        return dt_replicate(*model, *mesh, "dp_shard", 0);
    if (how == APART) {
        TEST_FAILS(DT_ERR_STATE, "model.embed_tokens",
                   dt_fully_shard(embed, *mesh, "dp_shard", NULL));
        TEST_FAILS(DT_ERR_STATE, "'lm_head'", dt_fully_shard(embed, *mesh, "dp_shard", NULL));
        TEST_FAILS(DT_ERR_STATE, "'model.embed_tokens'",
                   dt_fully_shard(head, *mesh, "dp_shard", NULL));
        return DT_OK;
    }
    DT_TRY(dt_fully_shard(dt_model_layer(*model, 0), *mesh, "dp_shard", NULL));
    DT_TRY(dt_fully_shard_list(3, ends, *mesh, "dp_shard", NULL));
    DT_TRY(dt_fully_shard(*model, *mesh, "dp_shard", NULL));
    return DT_OK;
}

/* Embedding and head share a weight of 4k+1 rows, in one group: every row learns; one reduction a
 * group. */
static dt_status tied_body(dt_world *world, void *arg)
{
    enum { B = 4, S = 12 };
    tied_run *run = arg;
    dt_mesh *mesh = NULL;
    dt_module *model = NULL;
    dt_tape *t = NULL;
    dt_optim *optim = NULL;
    const dt_layout *layout = NULL;
    dt_values in = {.n = 2};
    int32_t host[B * S];
    float before[V * H], after[V * H];
    DT_TRY(tied(world, &model, &mesh, (int)run->how));
    if (run->how != APART) {
        DT_TRY(dt_module_materialize(model, mesh, 3));
        DT_TRY(dt_adamw_create(model, &(dt_adamw_options){0}, &optim));
        DT_TRY(dt_tape_create(mesh, NULL, &t));
        DT_TRY(dt_mesh_layout_text(mesh, DT_SHAPE(B, S), "S(0)@dp_shard", &layout));
        for (int k = 0; k < 2; k++) {
            for (int i = 0; i < B * S; i++)
                host[i] = (i * 5 + k) % V;
            DT_TRY(dt_distribute(layout, DT_I32, host, &in.value[k]));
        }
        dt_tensor *w = dt_module_param(dt_module_find(model, "lm_head"), "weight")->tensor;
        DT_TRY(dt_tensor_read_f32_sync(w, before));
        dt_model_set_loss(model, B * S, 0);
        for (int s = 0; s < 10; s++) {
            const dt_values out = dt_module_call(model, t, &in);
            dt_world_reset_counts(world);
            DT_TRY(dt_backward(t, out.value[0]));
            TEST_THAT(dt_world_counts(world).calls[DT_CALL_REDUCE_SCATTER] ==
                          (run->how == TOGETHER ? 2 : 0),
                      "block, and the tied group");
            TEST_THAT(dt_world_counts(world).calls[DT_CALL_ALL_REDUCE] == (run->how == REPLICATED),
                      "or one bucket");
            dt_tape_reset(t, NULL);
            DT_TRY(dt_module_reduce_grads(model));
            DT_TRY(dt_optim_step(optim, 1e-2, 1));
            dt_module_clear_grads(model);
        }
        DT_TRY(dt_tensor_read_f32_sync(w, after));
        for (int r = 0; r < V; r++)
            TEST_THAT(memcmp(before + r * H, after + r * H, H * sizeof(float)) != 0,
                      "row %d never changed", r);
    }
    if (run->how != APART && dt_world_rank(world) == 0)
        memcpy(run->weight, after, sizeof after);
    dt_tensor_destroy(&in.value[0]);
    dt_tensor_destroy(&in.value[1]);
    dt_tape_destroy(&t);
    dt_optim_destroy(&optim);
    dt_module_destroy(&model);
    dt_mesh_destroy(&mesh);
    return DT_OK;
}

START_TEST(tied_weights)
{
    tied_run together = {.how = TOGETHER}, apart = {.how = APART}, replicated = {.how = REPLICATED};
    test_ranks(4, tied_body, &together);
    test_ranks(4, tied_body, &apart);
    test_ranks(4, tied_body, &replicated);
    const int n = V * H;
    const double limit = test_bits() ? 0 : 1e-6 * test_max_abs(replicated.weight, n);
    ck_assert(test_max_diff(together.weight, replicated.weight, n) <= limit);
}
END_TEST

/* ---- F16: one group of norm and head, the head called on chunks of the batch ---- */

static dt_values chunked(dt_module *m, dt_tape *t, const dt_values *in)
{
    dt_tensor *x = dt_module_call1(dt_module_child(m, 0), t, in->value[0]), *sum = NULL;
    for (int i = 0; i < 4; i++) {
        dt_tensor *y =
            dt_module_call1(dt_module_child(m, 1), t, dt_slice(t, x, 1, 2 * i, 2 * i + 2));
        y = dt_sum(t, dt_mul(t, y, y), 0);
        sum = sum ? dt_add(t, sum, y) : y;
    }
    return (dt_values){.n = 1, .value = {sum}};
}

typedef struct chunk_run {
    dt_reshard reshard;
    bool plain;
    int gathers; /* forward */
    float weight[5 * 4];
} chunk_run;

static dt_status chunk_body(dt_world *world, void *arg)
{
    static const dt_module_kind kind = {"chunked", 0, chunked};
    chunk_run *run = arg;
    const dt_fsdp_options o = {.reshard = run->reshard};
    dt_mesh *mesh = NULL;
    dt_module *m = NULL, *both[2] = {0};
    dt_tape *t = NULL;
    dt_tensor *x = NULL;
    float host[4 * 8 * 4];
    const dt_layout *layout = NULL;
    DT_TRY(dt_mesh_create(world, test_device(world), &(dt_mesh_options){.axes = {{"dp_shard", -1}}},
                          &mesh));
    DT_TRY(dt_module_create(&kind, &m));
    DT_TRY(dt_layer_rmsnorm(4, 1e-5, &both[0]));
    DT_TRY(dt_layer_linear(&(dt_linear_options){.in = 4, .out = 5, .std = 0.5}, &both[1]));
    DT_TRY(dt_module_add(m, "norm", both[0]));
    DT_TRY(dt_module_add(m, "head", both[1]));
    DT_TRY(dt_module_finish(m));
    if (!run->plain) {
        DT_TRY(dt_fully_shard_list(2, both, mesh, "dp_shard", &o));
        DT_TRY(dt_fully_shard(m, mesh, "dp_shard", &o));
    }
    DT_TRY(dt_module_materialize(m, mesh, 3));
    DT_TRY(dt_tape_create(mesh, NULL, &t));
    for (int i = 0; i < 4 * 8 * 4; i++)
        host[i] = (float)(i % 13) / 13 - 0.4f;
    DT_TRY(dt_mesh_layout_text(mesh, DT_SHAPE(4, 8, 4), "S(0)@dp_shard", &layout));
    DT_TRY(dt_distribute(layout, DT_F32, host, &x));
    dt_world_reset_counts(world);
    dt_tensor *loss = dt_module_call1(m, t, x);
    TEST_THAT(dt_world_counts(world).calls[DT_CALL_ALL_GATHER] == run->gathers,
              "%lld gathers, not %d", (long long)dt_world_counts(world).calls[DT_CALL_ALL_GATHER],
              run->gathers);
    dt_world_reset_counts(world);
    DT_TRY(dt_backward(t, loss));
    const dt_counts n = dt_world_counts(world);
    TEST_THAT(run->plain || (n.calls[DT_CALL_ALL_GATHER] == (run->reshard != DT_RESHARD_NEVER) &&
                             n.calls[DT_CALL_REDUCE_SCATTER] == 1),
              "backward: one gather for 4 chunks, one reduction; %lld and %lld",
              (long long)n.calls[DT_CALL_ALL_GATHER], (long long)n.calls[DT_CALL_REDUCE_SCATTER]);
    DT_TRY(dt_module_reduce_grads(m));
    TEST_THAT(run->plain || dt_heap_get_stats(dt_mesh_heap(mesh)).live[DT_TAG_COMM] == 0,
              "freed after the loop");
    dt_tensor *w = dt_module_param(both[1], "weight")->tensor, *g = NULL;
    const dt_local *grad = dt_tensor_grad(w);
    DT_TRY(dt_from_array(grad->layout, &grad->array, &g));
    float whole[5 * 4];
    DT_TRY(dt_tensor_read_f32_sync(g, whole));
    if (dt_world_rank(world) == 0)
        memcpy(run->weight, whole, sizeof whole);
    dt_tensor_destroy(&g);
    dt_tensor_destroy(&x);
    dt_tape_destroy(&t);
    dt_module_destroy(&m);
    dt_mesh_destroy(&mesh);
    return DT_OK;
}

START_TEST(head_in_chunks)
{
    chunk_run one = {.plain = true}, never = {.reshard = DT_RESHARD_NEVER, .gathers = 1},
              always = {.reshard = DT_RESHARD_ALWAYS, .gathers = 4};
    test_ranks(1, chunk_body, &one);
    test_ranks(2, chunk_body, &never);
    test_ranks(2, chunk_body, &always);
    ck_assert(test_max_diff(never.weight, one.weight, 20) <= 1e-5 * test_max_abs(one.weight, 20));
    ck_assert(test_max_diff(always.weight, one.weight, 20) <= 1e-5 * test_max_abs(one.weight, 20));
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("fully_shard groups of modules");
    TCase *tc = tcase_create("all");
    tcase_set_timeout(tc, 120);
    tcase_add_test(tc, tied_weights);
    tcase_add_test(tc, head_in_chunks);
    suite_add_tcase(suite, tc);
    return test_main(suite);
}
