/* bench/tp_step.c - a training step of 4096 tokens on two cores: two tensor-parallel ranks with one
 * thread each, with and without sequence parallelism, against one rank with two threads. Each line:
 * milliseconds a step, best of several, and the ratio to that peer. */
#include "array/dt_kernels.h"
#include "models/dt_models.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { BATCH = 4, SEQ = 1024, STEPS = 3 };

typedef struct way {
    int tp, threads;
    bool sequence;
    double best_s;
} way;

static double now_s(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static dt_status lay_out(dt_world *world, const way *w, dt_mesh **mesh, dt_module **model)
{
    const dt_llama_config config = {.vocab_size = 1024,
                                    .hidden_size = 256,
                                    .intermediate_size = 704,
                                    .num_hidden_layers = 2,
                                    .num_attention_heads = 8,
                                    .num_key_value_heads = 8,
                                    .head_dim = 32,
                                    .max_position_embeddings = SEQ,
                                    .rope.theta = 1e4,
                                    .rms_norm_eps = 1e-5,
                                    .initializer_range = 0.02};
    const dt_tp_plan plan = dt_llama_tp_plan(DT_TP_VOCAB_SPLIT, w->sequence);
    DT_TRY(dt_mesh_create(world, (dt_device){DT_CPU, 0},
                          &(dt_mesh_options){.axes = {{"tp", w->tp}}}, mesh));
    DT_TRY(dt_llama_create(&config, model));
    DT_TRY(dt_parallelize_module(*model, *mesh, "tp", &plan));
    DT_TRY(dt_module_materialize(*model, *mesh, 1));
    dt_model_set_loss(*model, BATCH * SEQ, 0);
    return DT_OK;
}

static dt_status body(dt_world *world, void *arg)
{
    way *w = arg;
    dt_mesh *mesh = NULL;
    dt_module *model = NULL;
    dt_tape *t = NULL;
    const dt_layout *layout = NULL;
    dt_values in = {.n = 2};
    int32_t *ids = calloc(BATCH * SEQ, sizeof *ids);
    DT_REQUIRE(ids, DT_ERR_NOMEM, "ids");
    for (int i = 0; i < BATCH * SEQ; i++)
        ids[i] = i * 7 % 1024;
    dt_compute_threads_set(w->threads);
    DT_TRY(lay_out(world, w, &mesh, &model));
    DT_TRY(dt_mesh_layout_text(mesh, DT_SHAPE(BATCH, SEQ), "", &layout));
    DT_TRY(dt_distribute(layout, DT_I32, ids, &in.value[0]));
    DT_TRY(dt_distribute(layout, DT_I32, ids, &in.value[1]));
    DT_TRY(dt_tape_create(mesh, NULL, &t));
    for (int i = 0; i < STEPS; i++) {
        dt_tape_reset(t, NULL);
        DT_TRY(dt_world_agree_sync(world, DT_OK)); /* start together */
        const double start_s = now_s();
        DT_TRY(dt_backward(t, dt_module_call(model, t, &in).value[0]));
        DT_TRY(dt_module_reduce_grads(model));
        dt_module_clear_grads(model);
        const double took_s = now_s() - start_s;
        if (dt_world_rank(world) == 0 && (i == 0 || took_s < w->best_s))
            w->best_s = took_s;
    }
    dt_tape_destroy(&t);
    dt_tensor_destroy(&in.value[0]);
    dt_tensor_destroy(&in.value[1]);
    dt_module_destroy(&model);
    dt_mesh_destroy(&mesh);
    free(ids);
    return DT_OK;
}

int main(void)
{
    way ways[] = {{1, 2, false, 0}, {2, 1, false, 0}, {2, 1, true, 0}};
    for (int i = 0; i < DT_COUNT(ways); i++) {
        DT_MUST(dt_world_run_threads(ways[i].tp, NULL, body, &ways[i]));
        (void)printf("ranks %d, threads %d, sequence parallelism %s: %8.1f ms  %.2f x\n",
                     ways[i].tp, ways[i].threads, ways[i].sequence ? "yes" : "no ",
                     1e3 * ways[i].best_s, ways[i].best_s / ways[0].best_s);
    }
    return EXIT_SUCCESS;
}
