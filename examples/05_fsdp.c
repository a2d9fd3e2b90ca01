/* examples/05_fsdp.c - an MLP of three blocks, sharded: bytes of a rank before and after, the
 * collectives of a step, and the order of its events.
 *
 *   build/examples/05_fsdp --ranks 4
 *
 * Read next: docs/fsdp.md, fsdp/order.c. */
#include "examples/example.h"
#include "fsdp/dt_fsdp.h"
#include "nn/dt_layers.h"

#include <stdio.h>

enum { BLOCKS = 3, N = 64, HIDDEN = 256, BATCH = 8 };

static dt_values run_children(dt_module *m, dt_tape *t, const dt_values *in)
{
    dt_tensor *x = in->value[0];
    for (int i = 0; i < dt_module_nchildren(m); i++)
        x = dt_module_call1(dt_module_child(m, i), t, x);
    return (dt_values){.n = 1, .value = {x}};
}

/* Blocks 0, 1, 2 and a head, on meta: names and shapes, no memory. */
static dt_status build(dt_module **model)
{
    static const dt_module_kind kind = {"mlps", 0, run_children};
    static const char *const name[BLOCKS + 1] = {"0", "1", "2", "head"};
    DT_TRY(dt_module_create(&kind, model));
    for (int i = 0; i <= BLOCKS; i++) {
        dt_module *child = NULL;
        DT_TRY(i < BLOCKS
                   ? dt_layer_gpt2_mlp(N, HIDDEN, 0.1, 0.1, 0, &child)
                   : dt_layer_linear(&(dt_linear_options){.in = N, .out = N, .std = 0.1}, &child));
        DT_TRY(dt_module_add(*model, name[i], child));
    }
    DT_TRY(dt_module_finish(*model));
    return DT_OK;
}

static dt_status step(dt_world *world, dt_mesh *mesh, dt_module *model, dt_tape *t)
{
    const dt_layout *rows = NULL;
    dt_tensor *x = NULL;
    DT_TRY(dt_mesh_layout_text(mesh, DT_SHAPE(BATCH, N), "S(0)@dp_shard", &rows));
    DT_TRY(dt_full_value(rows, DT_F32, 0.5, &x));
    dt_world_reset_counts(world);
    DT_TRY(dt_backward(t, dt_sum(t, dt_module_call1(model, t, x), 0)));
    DT_TRY(dt_module_reduce_grads(model)); /* here an optimizer would update this rank's shards */
    dt_module_clear_grads(model);
    dt_tape_reset(t, NULL);
    dt_tensor_destroy(&x);
    return DT_OK;
}

static void print_line(void *arg, const char *line)
{
    if (dt_world_rank(arg) == 0)
        (void)printf("  %s\n", line);
}

static dt_status body(dt_world *world, void *arg)
{
    (void)arg;
    dt_mesh *mesh = NULL;
    dt_module *model = NULL;
    dt_tape *t = NULL;
    const dt_mesh_options axes = {.axes = {{"dp_shard", -1}}};
    DT_TRY(dt_mesh_create(world, (dt_device){DT_CPU, 0}, &axes, &mesh));
    DT_TRY(build(&model));
    const int64_t before = dt_module_local_bytes(model);
    for (int i = 0; i < BLOCKS; i++) /* bottom-up: every block a group, then what is left */
        DT_TRY(dt_fully_shard(dt_module_child(model, i), mesh, "dp_shard", NULL));
    DT_TRY(dt_fully_shard(model, mesh, "dp_shard", NULL));
    const int64_t after = dt_module_local_bytes(model);
    DT_TRY(dt_module_materialize(model, mesh, 42)); /* this rank's shards alone */
    DT_TRY(dt_tape_create(mesh, NULL, &t));
    for (int i = 0; i < 2;
         i++) /* the first step fixes the order; from then on groups are gathered ahead */
        DT_TRY(step(world, mesh, model, t));
    const dt_counts c = dt_world_counts(world);
    if (dt_world_rank(world) == 0)
        (void)printf("parameters of a rank: %lld bytes, sharded %lld\n"
                     "a step: %lld all-gathers of %lld bytes, %lld reduce-scatters of %lld\n"
                     "its events:\n",
                     (long long)before, (long long)after, (long long)c.calls[DT_CALL_ALL_GATHER],
                     (long long)c.bytes[DT_CALL_ALL_GATHER],
                     (long long)c.calls[DT_CALL_REDUCE_SCATTER],
                     (long long)c.bytes[DT_CALL_REDUCE_SCATTER]);
    DT_TRY(dt_fsdp_schedule_print(model, print_line, world));
    dt_tape_destroy(&t);
    dt_module_destroy(&model);
    dt_mesh_destroy(&mesh);
    return DT_OK;
}

int main(int argc, char **argv)
{
    return example_run(argc, argv, body);
}
