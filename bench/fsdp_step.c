/* bench/fsdp_step.c - a training step of a Llama of 25 million parameters on two cores: two ranks
 * with one thread each, sharded (ZeRO-3) or replicated, against one rank with two threads. Each
 * line: milliseconds a step, best of several, and that peer's time divided by it.
 *
 *   build/bench/fsdp_step [TOKENS]      a step has 4096, or TOKENS, a multiple of 4 */
#include "array/dt_kernels.h"
#include "fsdp/dt_fsdp.h"
#include "models/dt_models.h"
#include "optim/dt_optim.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { BATCH = 4, LAYERS = 7, VOCAB = 3072, STEPS = 3 };

typedef struct way {
    int ranks, threads;
    bool replicated;
    int64_t seq;
    double best_s;
    int64_t params;
} way;

static double now_s(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static dt_status lay_out(dt_world *world, const way *w, dt_mesh **mesh, dt_module **model)
{
    const dt_llama_config config = {.vocab_size = VOCAB,
                                    .hidden_size = 512,
                                    .intermediate_size = 1376,
                                    .num_hidden_layers = LAYERS,
                                    .num_attention_heads = 8,
                                    .num_key_value_heads = 8,
                                    .head_dim = 64,
                                    .max_position_embeddings = w->seq,
                                    .rope.theta = 1e4,
                                    .rms_norm_eps = 1e-5,
                                    .initializer_range = 0.02};
    DT_TRY(dt_mesh_create(world, (dt_device){DT_CPU, 0},
                          &(dt_mesh_options){.axes = {{"dp_shard", w->ranks}}}, mesh));
    DT_TRY(dt_llama_create(&config, model));
    if (w->replicated)
        DT_TRY(dt_replicate(*model, *mesh, "dp_shard", 0));
    for (int i = 0; i < LAYERS && !w->replicated; i++)
        DT_TRY(dt_fully_shard(dt_model_layer(*model, i), *mesh, "dp_shard", NULL));
    if (!w->replicated)
        DT_TRY(dt_fully_shard(*model, *mesh, "dp_shard", NULL));
    DT_TRY(dt_module_materialize(*model, *mesh, 1));
    dt_model_set_loss(*model, BATCH * w->seq, 0);
    return DT_OK;
}

static dt_status batch(const way *w, dt_mesh *mesh, dt_values *in)
{
    const int64_t n = BATCH * w->seq;
    const dt_layout *layout = NULL;
    int32_t *ids = calloc((size_t)n, sizeof *ids);
    DT_REQUIRE(ids, DT_ERR_NOMEM, "ids");
    for (int64_t i = 0; i < n; i++)
        ids[i] = (int32_t)(i * 7 % VOCAB);
    in->n = 2;
    dt_status st = dt_mesh_layout_text(mesh, DT_SHAPE(BATCH, w->seq), "S(0)@dp_shard", &layout);
    for (int i = 0; i < 2 && st == DT_OK; i++)
        st = dt_distribute(layout, DT_I32, ids, &in->value[i]);
    free(ids);
    return st;
}

static dt_status body(dt_world *world, void *arg)
{
    way *w = arg;
    dt_mesh *mesh = NULL;
    dt_module *model = NULL;
    dt_tape *t = NULL;
    dt_optim *optim = NULL;
    dt_values in = {0};
    dt_compute_threads_set(w->threads);
    DT_TRY(lay_out(world, w, &mesh, &model));
    DT_TRY(batch(w, mesh, &in));
    DT_TRY(dt_adamw_create(model, &(dt_adamw_options){0}, &optim));
    DT_TRY(dt_tape_create(mesh, NULL, &t));
    for (int i = 0; i < STEPS; i++) {
        dt_tape_reset(t, NULL);
        DT_TRY(dt_world_agree_sync(world, DT_OK)); /* start together */
        const double start_s = now_s();
        DT_TRY(dt_backward(t, dt_module_call(model, t, &in).value[0]));
        DT_TRY(dt_module_reduce_grads(model));
        DT_TRY(dt_optim_step(optim, 1e-4, 1));
        dt_module_clear_grads(model);
        const double took_s = now_s() - start_s;
        if (dt_world_rank(world) == 0 && (i == 0 || took_s < w->best_s))
            w->best_s = took_s;
    }
    if (dt_world_rank(world) == 0)
        w->params = dt_module_count(model);
    dt_tape_destroy(&t);
    dt_optim_destroy(&optim);
    dt_tensor_destroy(&in.value[0]);
    dt_tensor_destroy(&in.value[1]);
    dt_module_destroy(&model);
    dt_mesh_destroy(&mesh);
    return DT_OK;
}

int main(int argc, char **argv)
{
    const int64_t tokens = argc > 1 ? strtoll(argv[1], NULL, 10) : 4096;
    way ways[] = {{.ranks = 1, .threads = 2},
                  {.ranks = 2, .threads = 1},
                  {.ranks = 2, .threads = 1, .replicated = true}};
    for (int i = 0; i < DT_COUNT(ways); i++) {
        way *w = &ways[i];
        w->seq = tokens / BATCH > 0 ? tokens / BATCH : 1;
        DT_MUST(dt_world_run_threads(w->ranks, NULL, body, w));
        (void)printf(
            "%.1fM parameters, %lld tokens, ranks %d, threads %d, %-10s: %8.1f ms  %.2f x\n",
            1e-6 * (double)w->params, (long long)BATCH * w->seq, w->ranks, w->threads,
            w->replicated ? "replicated" : "sharded", 1e3 * w->best_s, ways[0].best_s / w->best_s);
    }
    return EXIT_SUCCESS;
}
