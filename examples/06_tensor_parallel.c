/* examples/06_tensor_parallel.c - a two-matrix MLP split by columns, then by rows.
 *
 *     x R --f--> x R -- w1 S(0)@tp --> S(1)@tp -- gelu -- w2 S(1)@tp --> P@tp --g--> y R
 *
 * Every rank computes its share of the hidden features from beginning to end; what the shares add
 * up to is one all-reduce forward (g). Backward the gradient of x is a sum over ranks too: one
 * all-reduce (f). Nothing else moves.
 *
 *   build/examples/06_tensor_parallel --ranks 4
 *
 * Read next: docs/tensor_parallel.md, models/llama_plan.c. */
#include "examples/example.h"
#include "tp/dt_tp.h"

#include <stdio.h>

enum { BATCH = 6, N = 8, HIDDEN = 32 };

static const dt_tp_rule rows[] = {
    {"", DT_TP_BORDER, .in = "R"},        /* f: once, at the border of the block */
    {"c_fc", DT_TP_COLWISE, NULL, NULL},  /* columns: each rank has some of the outputs */
    {"c_proj", DT_TP_ROWWISE, .out = "R"} /* rows: each rank has some of the inputs; g at its end */
};
static const dt_tp_plan plan = {.nrules = DT_COUNT(rows), .rule = rows};

static void print_line(void *arg, const char *line)
{
    if (dt_world_rank(arg) == 0)
        (void)printf("%s\n", line);
}

static void print_counts(dt_world *world, const char *when)
{
    const dt_counts c = dt_world_counts(world);
    if (dt_world_rank(world) == 0)
        (void)printf("%s: %lld all-reduce, %lld collectives in all, %lld bytes\n", when,
                     (long long)c.calls[DT_CALL_ALL_REDUCE], (long long)c.total_calls,
                     (long long)c.total_bytes);
    dt_world_reset_counts(world);
}

static dt_status input(dt_mesh *mesh, dt_tensor **x)
{
    float value[BATCH * N];
    for (int i = 0; i < BATCH * N; i++)
        value[i] = (float)((i * 7) % 11) / 11 - 0.4f;
    const dt_layout *layout = NULL;
    DT_TRY(dt_mesh_layout_text(mesh, DT_SHAPE(BATCH, N), "",
                               &layout)); /* R: all of it on every rank */
    DT_TRY(dt_distribute(layout, DT_F32, value, x));
    dt_tensor_set_requires_grad(*x, true);
    return DT_OK;
}

static dt_status body(dt_world *world, void *arg)
{
    (void)arg;
    dt_mesh *mesh = NULL;
    dt_module *mlp = NULL;
    dt_tape *t = NULL;
    dt_tensor *x = NULL;
    DT_TRY(dt_mesh_create(world, (dt_device){DT_CPU, 0}, &(dt_mesh_options){.axes = {{"tp", -1}}},
                          &mesh));
    DT_TRY(dt_layer_gpt2_mlp(N, HIDDEN, 0.3, 0.3, 0, &mlp));
    DT_TRY(dt_module_finish(mlp));
    DT_TRY(dt_parallelize_module(mlp, mesh, "tp", &plan));
    DT_TRY(dt_module_materialize(mlp, mesh,
                                 42)); /* each rank makes its part; the whole never exists */
    dt_module_print(mlp, print_line, world);

    DT_TRY(input(mesh, &x));
    DT_TRY(dt_tape_create(mesh, NULL, &t));
    dt_world_reset_counts(world);
    dt_tensor *loss = dt_sum(t, dt_module_call1(mlp, t, x), 0);
    double value = 0;
    DT_TRY(dt_tensor_item_sync(loss, &value));
    print_counts(world, "forward");
    DT_TRY(dt_backward(t, loss));
    print_counts(world, "backward");
    DT_TRY(dt_module_reduce_grads(mlp));
    print_counts(world, "gradients of parameters");
    if (dt_world_rank(world) == 0)
        (void)printf("loss %.5f, the same on any number of ranks\n", value);
    dt_tape_destroy(&t);
    dt_tensor_destroy(&x);
    dt_module_destroy(&mlp);
    dt_mesh_destroy(&mesh);
    return DT_OK;
}

int main(int argc, char **argv)
{
    return example_run(argc, argv, body);
}
