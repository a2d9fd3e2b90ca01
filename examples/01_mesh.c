/* examples/01_mesh.c - ranks as a grid with named axes: lines, communicators, and shards.
 *
 *   build/examples/01_mesh --ranks 4        4 ranks as threads of this process
 *   tools/mpirun -n 4 build/examples/01_mesh
 *
 * Read next: examples/02_redistribute.c. */
#include "examples/example.h"
#include "mesh/dt_mesh.h"

#include <stdio.h>

/* Layouts are arithmetic: any rank can say what every other rank holds, without asking it. */
static dt_status show_layout(dt_mesh *mesh, const char *text)
{
    const dt_layout *layout = NULL;
    char shape[DT_SHAPE_TEXT], name[DT_LAYOUT_TEXT];
    DT_TRY(dt_mesh_layout_text(mesh, DT_SHAPE(5, 6), text, &layout));
    if (dt_mesh_rank(mesh) != 0)
        return DT_OK;
    printf("\na tensor of 5 rows and 6 columns laid out %s:\n",
           dt_layout_print(layout, name, sizeof name));
    for (int r = 0; r < dt_mesh_size(mesh); r++) {
        int coord[DT_MAX_AXES];
        int64_t first[DT_MAX_DIMS];
        dt_grid_coord(dt_mesh_grid(mesh), r, coord);
        const dt_shape local = dt_layout_local(layout, coord, first);
        printf("  rank %d holds %s from row %lld, column %lld\n", r,
               dt_shape_print(local, shape, sizeof shape), (long long)first[0],
               (long long)first[1]);
    }
    return DT_OK;
}

/* Sum the rank numbers along an axis; rank 0 collects and prints what each rank got. */
static dt_status show_sums(dt_mesh *mesh, const char *axis)
{
    dt_comm *line = NULL;
    dt_comm *everybody = dt_world_comm(dt_mesh_world(mesh));
    const int n = dt_mesh_size(mesh), me = dt_mesh_rank(mesh);
    int64_t sum = me;
    DT_TRY(dt_mesh_comm_named(mesh, axis, 0, &line));
    DT_TRY(dt_all_reduce_i64_sync(line, &sum, 1, DT_REDUCE_SUM));
    int64_t *sums = calloc((size_t)n, sizeof *sums);
    DT_REQUIRE(sums, DT_ERR_NOMEM, "%d numbers", n);
    sums[me] = sum;
    const dt_status st = dt_all_reduce_i64_sync(everybody, sums, n, DT_REDUCE_SUM);
    if (st == DT_OK && me == 0) {
        printf("rank numbers summed along %s:", axis);
        for (int r = 0; r < n; r++)
            printf(" %lld", (long long)sums[r]);
        printf("\n");
    }
    free(sums);
    return st;
}

static dt_status body(dt_world *world, void *arg)
{
    (void)arg;
    dt_mesh *mesh = NULL, *tp = NULL;
    char text[DT_MESH_TEXT];
    const int tp_size = dt_world_size(world) % 2 == 0 ? 2 : 1;
    const dt_mesh_options options = {.axes = {{"dp", -1}, {"tp", tp_size}}}; /* -1: what is left */
    DT_TRY(dt_mesh_create(world, (dt_device){.kind = DT_CPU}, &options, &mesh));
    DT_TRY(dt_mesh_slice(mesh, "tp", &tp));
    if (dt_world_rank(world) == 0) {
        printf("%s\n", dt_mesh_print(mesh, text, sizeof text));
        printf("its slice along tp: %s, ranks", dt_mesh_print(tp, text, sizeof text));
        for (int r = 0; r < dt_mesh_size(tp); r++)
            printf(" %d", dt_mesh_world_rank(tp, r));
        printf("\n\n");
    }
    DT_TRY(show_sums(mesh, "dp"));
    DT_TRY(show_sums(mesh, "tp"));
    DT_TRY(show_sums(mesh, "dp,tp"));
    DT_TRY(show_layout(mesh, "S(0)@dp, S(1)@tp"));
    DT_TRY(show_layout(mesh, "S(0)@tp>dp")); /* rows by tp first, then each piece by dp */
    dt_mesh_destroy(&mesh);
    return DT_OK;
}

int main(int argc, char **argv)
{
    return example_run(argc, argv, body);
}
