/* examples/04_data_parallel.c - data parallelism is nothing but placements.
 *
 *     batch S(0)@dp, parameters R        ->  gradients arise as P@dp
 *     dt_module_reduce_grads: P -> R     ->  one coalesced all-reduce a step, for all parameters
 *         together
 *
 * A model of one linear layer learns y = x a^T. The losses are those of one rank, whatever the
 * number of ranks.
 *
 *   build/examples/04_data_parallel --ranks 4
 *
 * Read next: examples/train_session.c, the same with microbatches, clipping and AdamW. */
#include "examples/example.h"
#include "nn/dt_layers.h"

#include <stdio.h>

enum { BATCH = 6, IN = 4, OUT = 3, STEPS = 5 };

/* The whole batch, the same on every rank; dt_distribute keeps this rank's rows. */
static dt_status batch(dt_mesh *mesh, dt_tensor **x, dt_tensor **minus_y)
{
    float x_value[BATCH * IN], y_value[BATCH * OUT];
    for (int i = 0; i < BATCH * IN; i++)
        x_value[i] = (float)((i * 7) % 11) / 11 - 0.4f;
    for (int b = 0; b < BATCH; b++) {
        for (int n = 0; n < OUT; n++) {
            y_value[b * OUT + n] = 0;
            for (int k = 0; k < IN; k++)
                y_value[b * OUT + n] -= x_value[b * IN + k] * (float)(n - k);
        }
    }
    const dt_layout *lx = NULL, *ly = NULL;
    DT_TRY(dt_mesh_layout_text(mesh, DT_SHAPE(BATCH, IN), "S(0)@dp", &lx));
    DT_TRY(dt_mesh_layout_text(mesh, DT_SHAPE(BATCH, OUT), "S(0)@dp", &ly));
    DT_TRY(dt_distribute(lx, DT_F32, x_value, x));
    DT_TRY(dt_distribute(ly, DT_F32, y_value, minus_y));
    return DT_OK;
}

/* loss = sum((f(x) - y)^2) / BATCH; plain gradient descent. */
static dt_status step(dt_module *model, dt_tape *t, dt_tensor *x, dt_tensor *minus_y,
                      double *loss_value)
{
    dt_tape_reset(t, NULL);
    dt_tensor *error = dt_add(t, dt_module_call1(model, t, x), minus_y);
    dt_tensor *loss = dt_scale(t, dt_sum(t, dt_mul(t, error, error), 0), 1.0 / BATCH);
    DT_TRY(dt_tensor_item_sync(loss, loss_value));
    dt_world_reset_counts(dt_mesh_world(dt_tape_mesh(t)));
    DT_TRY(dt_backward(t, loss));
    DT_TRY(dt_module_reduce_grads(model));
    int n = 0;
    dt_param *const *p = dt_module_params(model, &n);
    for (int i = 0; i < n; i++) {
        dt_local *g = dt_tensor_grad(p[i]->tensor);
        dt_array_scale(&g->array, -0.5);
        dt_array_add_into(dt_tensor_local(p[i]->tensor), &g->array);
    }
    dt_module_clear_grads(model);
    return DT_OK;
}

static dt_status body(dt_world *world, void *arg)
{
    (void)arg;
    dt_mesh *mesh = NULL;
    dt_module *model = NULL;
    dt_tape *t = NULL;
    dt_tensor *x = NULL, *minus_y = NULL;
    const dt_linear_options options = {.in = IN, .out = OUT, .bias = true, .std = 0.1};
    DT_TRY(dt_mesh_create(world, (dt_device){.kind = DT_CPU},
                          &(dt_mesh_options){.axes = {{"dp", -1}}}, &mesh));
    DT_TRY(dt_layer_linear(&options, &model));
    DT_TRY(dt_module_finish(model));
    DT_TRY(dt_module_materialize(model, mesh, 42));
    DT_TRY(batch(mesh, &x, &minus_y));
    DT_TRY(dt_tape_create(mesh, NULL, &t));
    for (int i = 0; i < STEPS; i++) {
        double loss = 0;
        DT_TRY(step(model, t, x, minus_y, &loss));
        const dt_counts c = dt_world_counts(world);
        if (dt_world_rank(world) == 0)
            printf("step %d  loss %.6f  all-reduces of this step's gradients: %lld, %lld bytes\n",
                   i + 1, loss, (long long)c.calls[DT_CALL_ALL_REDUCE], (long long)c.total_bytes);
    }
    dt_tape_destroy(&t);
    dt_tensor_destroy(&x);
    dt_tensor_destroy(&minus_y);
    dt_module_destroy(&model);
    dt_mesh_destroy(&mesh);
    return DT_OK;
}

int main(int argc, char **argv)
{
    return example_run(argc, argv, body);
}
