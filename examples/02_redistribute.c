/* examples/02_redistribute.c - one tensor, several layouts, and what the ways between them cost.
 *
 *   build/examples/02_redistribute --ranks 4        4 ranks as threads of this process
 *   tools/mpirun -n 4 build/examples/02_redistribute
 *
 * Read next: examples/03_autograd.c. */
#include "dtensor/ops/dt_ops.h"
#include "examples/example.h"

#include <stdio.h>

enum { ROWS = 5, COLUMNS = 6 };

/* Every rank says what it holds; rank 0 collects the texts and prints them. */
static dt_status show(dt_mesh *mesh, dt_tensor *x)
{
    enum { WORDS = 32 };
    const int n = dt_mesh_size(mesh), me = dt_mesh_rank(mesh);
    int64_t(*text)[WORDS] = calloc((size_t)n, sizeof *text);
    DT_REQUIRE(text, DT_ERR_NOMEM, "%d texts", n);
    (void)dt_tensor_print(x, (char *)text[me], sizeof text[me]); /* the others' stay 0: a sum */
    const dt_status st = dt_all_reduce_i64_sync(dt_world_comm(dt_mesh_world(mesh)), text[0],
                                                n * WORDS, DT_REDUCE_SUM);
    for (int r = 0; st == DT_OK && me == 0 && r < n; r++)
        printf("  rank %d: %s\n", r, (const char *)text[r]);
    free(text);
    return st;
}

/* Go to `layout`, say by which steps, and check that the value is still the same. */
static dt_status go(dt_tape *t, dt_tensor **x, const char *layout, const float *value)
{
    dt_mesh *mesh = dt_tape_mesh(t);
    char plan_text[500], from[DT_LAYOUT_TEXT], to[DT_LAYOUT_TEXT];
    float now[ROWS * COLUMNS];
    dt_world_reset_counts(dt_mesh_world(mesh));
    dt_tensor *y = dt_redistribute(t, *x, layout);
    DT_TRY(dt_tape_status(t));
    const dt_counts counts = dt_world_counts(dt_mesh_world(mesh));
    const dt_plan *plan = NULL;
    DT_TRY(dt_mesh_plan(mesh, dt_tensor_layout(*x), dt_tensor_layout(y), &plan));
    if (dt_mesh_rank(mesh) == 0)
        printf("\n%s -> %s: %s\n  collectives counted: %lld, bytes sent by rank 0: %lld\n",
               dt_layout_print(dt_tensor_layout(*x), from, sizeof from),
               dt_layout_print(dt_tensor_layout(y), to, sizeof to),
               dt_plan_print(plan, plan_text, sizeof plan_text), (long long)counts.total_calls,
               (long long)counts.total_bytes);
    DT_TRY(show(mesh, y));
    DT_TRY(dt_tensor_read_f32_sync(y, now));
    for (int i = 0; i < ROWS * COLUMNS; i++)
        DT_REQUIRE(now[i] == value[i], DT_ERR_STATE, "element %d changed", i);
    *x = y;
    return DT_OK;
}

static dt_status body(dt_world *world, void *arg)
{
    (void)arg;
    dt_mesh *mesh = NULL;
    const int tp = dt_world_size(world) % 2 == 0 ? 2 : 1;
    const dt_mesh_options options = {.axes = {{"dp", -1}, {"tp", tp}}};
    DT_TRY(dt_mesh_create(world, (dt_device){.kind = DT_CPU}, &options, &mesh));

    float value[ROWS * COLUMNS];
    for (int i = 0; i < ROWS * COLUMNS; i++)
        value[i] = (float)i;
    const dt_layout *rows = NULL;
    dt_tensor *start = NULL;
    dt_tape *t = NULL;
    DT_TRY(dt_mesh_layout_text(mesh, DT_SHAPE(ROWS, COLUMNS), "S(0)@dp", &rows));
    DT_TRY(dt_distribute(rows, DT_F32, value, &start));
    DT_TRY(dt_tape_create(mesh, NULL, &t));

    dt_tensor *x = start;
    DT_TRY(go(t, &x, "S(0)@dp, S(1)@tp", value)); /* a slice: nothing moves */
    DT_TRY(go(t, &x, "S(0)@tp>dp", value));       /* rows by tp first, each piece then by dp */
    DT_TRY(go(t, &x, "P@tp", value));             /* a sum over tp that is still open */
    DT_TRY(go(t, &x, "S(1)@tp", value));          /* reduce-scatter closes it */
    DT_TRY(go(t, &x, "", value));                 /* all-gather: everybody has everything */

    dt_tape_destroy(&t);
    dt_tensor_destroy(&start);
    dt_mesh_destroy(&mesh);
    return DT_OK;
}

int main(int argc, char **argv)
{
    return example_run(argc, argv, body);
}
