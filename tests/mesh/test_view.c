/* tests/mesh/test_view.c - slices and views: which ranks, which handles, which communicators.
 * Cases M5-M7 of PyTorch's device mesh tests, and parts of an axis (tp = tp_kv x tp_rep). */
#include "mesh/dt_mesh.h"
#include "tests/harness.h"

#include <stdio.h>
#include <string.h>

static const dt_device cpu = {.kind = DT_CPU};

/* M5: a mesh sliced by all its names is itself. M6: slices of a (2,4) mesh create no
 * communicator. */
static dt_status slice_body(dt_world *world, void *arg)
{
    (void)arg;
    const int me = dt_world_rank(world);
    dt_mesh *line = NULL, *mesh = NULL, *slice = NULL, *again = NULL;
    DT_TRY(dt_mesh_create(world, cpu, &(dt_mesh_options){.axes = {{"dp", 8}}}, &line));
    DT_TRY(dt_mesh_slice(line, "dp", &slice));
    TEST_THAT(slice == line, "M5");
    dt_mesh_destroy(&line);

    DT_TRY(dt_mesh_create(
        world, cpu, &(dt_mesh_options){.axes = {{"dp_replicate", 2}, {"dp_shard", 4}}}, &mesh));
    dt_comm *replicate = NULL, *shard = NULL, *comm = NULL;
    DT_TRY(dt_mesh_comm_named(mesh, "dp_replicate", 0, &replicate));
    DT_TRY(dt_mesh_comm_named(mesh, "dp_shard", 0, &shard));
    const int created = dt_world_comms_created(world);
    DT_TRY(dt_mesh_slice(mesh, "dp_replicate, dp_shard", &slice));
    TEST_THAT(slice == mesh, "both axes");
    DT_TRY(dt_mesh_slice(mesh, "dp_replicate", &slice));
    DT_TRY(dt_mesh_comm_named(slice, "dp_replicate", 0, &comm));
    TEST_THAT(comm == replicate, "reused");
    DT_TRY(dt_mesh_slice(mesh, "dp_shard", &slice));
    DT_TRY(dt_mesh_comm_named(slice, "dp_shard", 0, &comm));
    TEST_THAT(comm == shard, "reused");
    TEST_THAT(dt_world_comms_created(world) == created, "M6: %d new communicators",
              dt_world_comms_created(world) - created);

    DT_TRY(dt_mesh_slice(mesh, " dp_shard", &again));
    TEST_THAT(again == slice, "same list, same handle");
    for (int r = 0; r < 4; r++)
        TEST_THAT(dt_mesh_world_rank(slice, r) == me / 4 * 4 + r, "place %d", r);
    TEST_THAT(dt_mesh_coord(slice)[0] == me % 4 && dt_mesh_size(slice) == 4, "coordinate");
    TEST_THAT(dt_mesh_axis_size(slice, "dp_replicate") == 1, "sliced away");
    TEST_FAILS(DT_ERR_ARG, "in its order", dt_mesh_slice(mesh, "dp_shard,dp_replicate", &again));
    TEST_FAILS(DT_ERR_ARG, "twice", dt_mesh_slice(mesh, "dp_shard,dp_shard", &again));
    TEST_FAILS(DT_ERR_ARG, "it has dp_replicate, dp_shard", dt_mesh_slice(mesh, "tp", &again));
    TEST_FAILS(DT_ERR_ARG, "no axis", dt_mesh_slice(mesh, "dp_shard,", &again));
    dt_mesh_destroy(&mesh);
    return DT_OK;
}

START_TEST(test_slices)
{
    test_ranks(8, slice_body, NULL);
}
END_TEST

static dt_status paths_body(dt_world *world, void *arg)
{
    (void)arg;
    dt_mesh *mesh = NULL, *tp = NULL, *plane = NULL, *view = NULL, *got = NULL;
    DT_TRY(dt_mesh_create(world, cpu, &(dt_mesh_options){.axes = {{"pp", 2}, {"dp", 2}, {"tp", 2}}},
                          &mesh));
    DT_TRY(dt_mesh_slice(mesh, "tp", &tp));
    DT_TRY(dt_mesh_slice(mesh, "dp,tp", &plane));
    DT_TRY(dt_mesh_slice(plane, "tp", &got));
    TEST_THAT(got == tp, "slice of a slice");
    DT_TRY(dt_mesh_flatten(mesh, "pp,dp", "all_dp", &view));
    DT_TRY(dt_mesh_slice(view, "tp", &got));
    TEST_THAT(got == tp, "slice of a view");
    DT_TRY(dt_mesh_split(view, "all_dp", "pp", 2, "dp", &got));
    TEST_THAT(got == mesh, "a view undone");
    dt_mesh *flat = NULL, *slice = NULL;
    DT_TRY(dt_mesh_flatten(plane, "dp,tp", "x", &flat));
    DT_TRY(dt_mesh_flatten(mesh, "dp,tp", "x", &view));
    DT_TRY(dt_mesh_slice(view, "x", &slice));
    TEST_THAT(slice == flat && slice != view, "flattened slice, sliced flattening");
    dt_mesh_destroy(&mesh);
    return DT_OK;
}

START_TEST(test_same_mesh_by_any_path)
{
    test_ranks(8, paths_body, NULL);
}
END_TEST

/* A slice along no axis: this rank alone, with whole tensors. */
static dt_status alone_body(dt_world *world, void *arg)
{
    (void)arg;
    const int me = dt_world_rank(world);
    dt_mesh *mesh = NULL, *alone = NULL, *again = NULL;
    DT_TRY(dt_mesh_create(world, cpu, &(dt_mesh_options){.axes = {{"dp", 2}, {"tp", 2}}}, &mesh));
    DT_TRY(dt_mesh_slice(mesh, "", &alone));
    DT_TRY(dt_mesh_slice(mesh, "", &again));
    TEST_THAT(again == alone && alone != mesh, "cached");
    TEST_THAT(dt_mesh_size(alone) == 1 && dt_mesh_rank(alone) == 0, "one rank");
    TEST_THAT(dt_mesh_world_rank(alone, 0) == me, "me");
    const dt_layout *whole = NULL;
    DT_TRY(dt_mesh_layout_text(alone, DT_SHAPE(5, 3), "R", &whole));
    TEST_THAT(dt_shape_equal(dt_mesh_local(whole, NULL), DT_SHAPE(5, 3)), "all of it");
    char text[DT_MESH_TEXT], want[DT_MESH_TEXT];
    (void)snprintf(want, sizeof want, "mesh 1 [], rank %d at ()", me);
    TEST_THAT(strcmp(dt_mesh_print(alone, text, sizeof text), want) == 0, "%s", text);
    dt_mesh_destroy(&mesh);
    return DT_OK;
}

START_TEST(test_alone)
{
    test_ranks(4, alone_body, NULL);
}
END_TEST

/* M7: dp x cp of (2,2,2) as one axis: 0246 and 1357; PyTorch makes a new communicator, here it is
 * that of the line along dp,cp. */
static dt_status flatten_body(dt_world *world, void *arg)
{
    (void)arg;
    const int me = dt_world_rank(world);
    dt_mesh *mesh = NULL, *view = NULL, *again = NULL, *slice = NULL;
    DT_TRY(dt_mesh_create(world, cpu, &(dt_mesh_options){.axes = {{"dp", 2}, {"cp", 2}, {"tp", 2}}},
                          &mesh));
    DT_TRY(dt_mesh_flatten(mesh, "dp,cp", "fsdp", &view));
    DT_TRY(dt_mesh_flatten(mesh, "dp,cp", "fsdp", &again));
    TEST_THAT(view == again, "cached");
    const dt_grid *grid = dt_mesh_grid(view);
    TEST_THAT(grid->naxes == 2 && grid->size[0] == 4 && grid->size[1] == 2, "4 x 2");
    TEST_THAT(strcmp(grid->name[0], "fsdp") == 0 && strcmp(grid->name[1], "tp") == 0, "names");
    DT_TRY(dt_mesh_slice(view, "fsdp", &slice));
    TEST_THAT(dt_mesh_size(slice) == 4, "4 ranks");
    for (int r = 0; r < 4; r++)
        TEST_THAT(dt_mesh_world_rank(slice, r) == 2 * r + me % 2, "M7: place %d", r);
    TEST_THAT(dt_mesh_coord(view)[0] == me / 2 && dt_mesh_coord(view)[1] == me % 2, "coordinates");
    dt_comm *nested = NULL, *flat = NULL;
    DT_TRY(dt_mesh_comm_named(mesh, "dp,cp", 0, &nested));
    DT_TRY(dt_mesh_comm_named(view, "fsdp", 0, &flat));
    TEST_THAT(nested == flat, "same ranks, same communicator");
    TEST_FAILS(DT_ERR_ARG, "neighbours", dt_mesh_flatten(mesh, "dp,tp", "x", &again));
    TEST_FAILS(DT_ERR_ARG, "neighbours", dt_mesh_flatten(mesh, "cp,dp", "x", &again));
    TEST_FAILS(DT_ERR_ARG, "'tp' is taken", dt_mesh_flatten(mesh, "dp,cp", "tp", &again));
    TEST_FAILS(DT_ERR_ARG, "it has dp, cp, tp", dt_mesh_flatten(mesh, "dp,ep", "x", &again));
    dt_mesh_destroy(&mesh);
    return DT_OK;
}

START_TEST(test_flatten)
{
    test_ranks(8, flatten_body, NULL);
}
END_TEST

/* tp 4 as tp_kv 2 x tp_rep 2 in (dp 2, tp 4): rank r = 4 dp + 2 kv + rep. */
static dt_status split_body(dt_world *world, void *arg)
{
    (void)arg;
    const int me = dt_world_rank(world);
    dt_mesh *mesh = NULL, *view = NULL, *again = NULL, *slice = NULL;
    DT_TRY(dt_mesh_create(world, cpu, &(dt_mesh_options){.axes = {{"dp", 2}, {"tp", 4}}}, &mesh));
    DT_TRY(dt_mesh_split(mesh, "tp", "tp_kv", 2, "tp_rep", &view));
    DT_TRY(dt_mesh_split(mesh, "tp", "tp_kv", 2, "tp_rep", &again));
    TEST_THAT(view == again, "cached");
    DT_TRY(dt_mesh_split(mesh, "tp", "tp_kv", 4, "tp_rep", &again));
    TEST_THAT(view != again && dt_mesh_axis_size(again, "tp_rep") == 1, "other sizes");
    const int *coord = dt_mesh_coord(view);
    TEST_THAT(coord[0] == me / 4 && coord[1] == me / 2 % 2 && coord[2] == me % 2, "coordinates");
    DT_TRY(dt_mesh_slice(view, "tp_kv", &slice));
    const int first = me / 4 * 4 + me % 2;
    TEST_THAT(dt_mesh_size(slice) == 2 && dt_mesh_world_rank(slice, 0) == first &&
                  dt_mesh_world_rank(slice, 1) == first + 2,
              "ranks of tp_kv");
    dt_comm *whole = NULL, *parts = NULL;
    DT_TRY(dt_mesh_comm_named(mesh, "tp", 0, &whole));
    DT_TRY(dt_mesh_comm_named(view, "tp_kv,tp_rep", 0, &parts));
    TEST_THAT(whole == parts, "same ranks, same communicator");
    TEST_FAILS(DT_ERR_ARG, "does not split", dt_mesh_split(mesh, "tp", "a", 3, "b", &again));
    TEST_FAILS(DT_ERR_ARG, "does not split", dt_mesh_split(mesh, "tp", "a", 0, "b", &again));
    TEST_FAILS(DT_ERR_ARG, "both parts", dt_mesh_split(mesh, "tp", "a", 2, "a", &again));
    TEST_FAILS(DT_ERR_ARG, "'dp' is taken", dt_mesh_split(mesh, "tp", "dp", 2, "b", &again));
    TEST_FAILS(DT_ERR_ARG, "it has dp, tp", dt_mesh_split(mesh, "cp", "a", 2, "b", &again));
    dt_mesh_destroy(&mesh);
    return DT_OK;
}

START_TEST(test_split)
{
    test_ranks(8, split_body, NULL);
}
END_TEST

/* Parts of the same names and sizes in another order are other ranks: tp 4 as a 2 x b 2, b 2 x a
 * 2. */
static dt_status swapped_body(dt_world *world, void *arg)
{
    (void)arg;
    const int me = dt_world_rank(world);
    dt_mesh *mesh = NULL, *outer = NULL, *inner = NULL, *far = NULL, *near = NULL, *got = NULL;
    DT_TRY(dt_mesh_create(world, cpu, &(dt_mesh_options){.axes = {{"tp", 4}}}, &mesh));
    DT_TRY(dt_mesh_split(mesh, "tp", "a", 2, "b", &outer));
    DT_TRY(dt_mesh_split(mesh, "tp", "b", 2, "a", &inner));
    DT_TRY(dt_mesh_slice(outer, "a", &far));
    DT_TRY(dt_mesh_slice(inner, "a", &near));
    TEST_THAT(far != near, "two lines");
    for (int r = 0; r < 2; r++)
        TEST_THAT(dt_mesh_world_rank(far, r) == me % 2 + 2 * r &&
                      dt_mesh_world_rank(near, r) == me / 2 * 2 + r,
                  "place %d", r);
    DT_TRY(dt_mesh_slice(inner, "b", &got));
    TEST_THAT(dt_mesh_world_rank(got, 1) == me % 2 + 2, "far from each other, by another name");
    dt_mesh_destroy(&mesh);
    return DT_OK;
}

START_TEST(test_parts_in_another_order)
{
    test_ranks(4, swapped_body, NULL);
}
END_TEST

/* What it costs to gather f32 [8] that the list of axes shards. */
static dt_status gather_costs(dt_mesh *mesh, const char *axis, double want)
{
    const dt_layout *rows = NULL, *whole = NULL;
    const dt_plan *plan = NULL;
    char text[64];
    (void)snprintf(text, sizeof text, "S(0)@%s", axis);
    DT_TRY(dt_mesh_layout_text(mesh, DT_SHAPE(8), text, &rows));
    DT_TRY(dt_mesh_layout_text(mesh, DT_SHAPE(8), "", &whole));
    DT_TRY(dt_mesh_plan(mesh, rows, whole, &plan));
    const double off = plan->cost_s - want;
    TEST_THAT(off > -1e-9 && off < 1e-9, "%s: %.9g s, not %.9g", axis, plan->cost_s, want);
    return DT_OK;
}

/* Links go with their axes; a flattened axis has the slowest of its own: of 2 and 4 ranks 16 and
 * 24 bytes move. */
static dt_status links_body(dt_world *world, void *arg)
{
    (void)arg;
    dt_mesh *mesh = NULL, *flat = NULL, *slice = NULL, *split = NULL;
    DT_TRY(dt_mesh_create(world, cpu,
                          &(dt_mesh_options){.axes = {{"pp", 1}, {"dp", 2}, {"tp", 2}},
                                             .link = {{9, 9}, {1, 2e-3}, {2, 1e-3}}},
                          &mesh));
    DT_TRY(gather_costs(mesh, "dp", 1 + 16 * 2e-3));
    DT_TRY(dt_mesh_slice(mesh, "tp", &slice));
    DT_TRY(gather_costs(slice, "tp", 2 + 16 * 1e-3));
    DT_TRY(dt_mesh_flatten(mesh, "dp,tp", "all", &flat));
    DT_TRY(gather_costs(flat, "all", 2 + 24 * 2e-3));
    DT_TRY(dt_mesh_split(flat, "all", "kv", 2, "rep", &split));
    DT_TRY(gather_costs(split, "kv", 2 + 16 * 2e-3));
    DT_TRY(gather_costs(split, "rep", 2 + 16 * 2e-3));
    DT_TRY(dt_mesh_slice(mesh, "dp", &slice));
    DT_TRY(gather_costs(slice, "dp", 1 + 16 * 2e-3));
    dt_mesh_destroy(&mesh);
    return DT_OK;
}

START_TEST(test_links)
{
    test_ranks(4, links_body, NULL);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("mesh views");
    TCase *t = tcase_create("views");
    suite_add_tcase(suite, t);
    tcase_add_test(t, test_slices);
    tcase_add_test(t, test_same_mesh_by_any_path);
    tcase_add_test(t, test_alone);
    tcase_add_test(t, test_flatten);
    tcase_add_test(t, test_split);
    tcase_add_test(t, test_parts_in_another_order);
    tcase_add_test(t, test_links);
    return test_main(suite);
}
