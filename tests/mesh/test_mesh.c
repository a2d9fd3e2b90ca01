/* tests/mesh/test_mesh.c - definitions of meshes, lines and their communicators, coordinates, ranks
 * outside. Cases M1-M4, M9, M10 of PyTorch's device mesh tests; the rank groups are written out by
 * hand. */
#include "mesh/dt_mesh.h"
#include "tests/harness.h"

#include <stdio.h>
#include <string.h>

static const dt_device cpu = {.kind = DT_CPU};

/* One mesh and, for an axis or a list of axes, the lines along it as sets of ranks (bit r = rank
 * r). */
typedef struct line_case {
    int nranks;
    dt_axis axes[4];
    const char *along;
    unsigned lines[8];
} line_case;

static const line_case line_cases[] = {
    {4, {{"dp", 2}, {"tp", 2}}, "dp", {0x5, 0xa}},                          /* 02 13 */
    {4, {{"dp", 2}, {"tp", 2}}, "tp", {0x3, 0xc}},                          /* 01 23 */
    {4, {{"dp", 2}, {"tp", 2}}, "dp,tp", {0xf}},                            /* 0123 */
    {8, {{"pp", 2}, {"dp", 2}, {"tp", 2}}, "pp", {0x11, 0x22, 0x44, 0x88}}, /* 04 15 26 37 */
    {8, {{"pp", 2}, {"dp", 2}, {"tp", 2}}, "dp", {0x05, 0x0a, 0x50, 0xa0}}, /* 02 13 46 57 */
    {8, {{"pp", 2}, {"dp", 2}, {"tp", 2}}, "tp", {0x03, 0x0c, 0x30, 0xc0}}, /* 01 23 45 67 */
    {8, {{"pp", 2}, {"dp", 2}, {"tp", 2}}, "pp,dp", {0x55, 0xaa}},          /* 0246 1357 */
    {8, {{"pp", 2}, {"dp", 2}, {"tp", 2}}, "pp,tp", {0x33, 0xcc}},          /* 0145 2367 */
    {8, {{"dp", 2}, {"tp", 4}}, "dp", {0x11, 0x22, 0x44, 0x88}},            /* 04 15 26 37 */
    {8, {{"dp", 2}, {"tp", 4}}, "tp", {0x0f, 0xf0}},                        /* 0123 4567 */
    {3, {{"dp", 1}, {"tp", 3}}, "dp", {0x1, 0x2, 0x4}},                     /* alone */
};

static unsigned my_line(const line_case *c, int rank)
{
    unsigned line = 0;
    for (int i = 0; i < DT_COUNT(c->lines); i++)
        line |= c->lines[i] >> rank & 1 ? c->lines[i] : 0;
    return line;
}

/* M1, M2: the communicator sums 2^rank over exactly the line's ranks; the slice lists them in
 * order; by name, by index and by the slice it is one communicator. */
static dt_status lines_body(dt_world *world, void *arg)
{
    const line_case *c = arg;
    const int me = dt_world_rank(world);
    const unsigned line = my_line(c, me);
    dt_mesh_options options = {0};
    memcpy(options.axes, c->axes, sizeof c->axes);
    dt_mesh *mesh = NULL, *slice = NULL;
    DT_TRY(dt_mesh_create(world, cpu, &options, &mesh));
    dt_comm *comm = NULL, *other = NULL;
    DT_TRY(dt_mesh_comm_named(mesh, c->along, 0, &comm));
    int64_t sum = INT64_C(1) << me;
    DT_TRY(dt_all_reduce_i64_sync(comm, &sum, 1, DT_REDUCE_SUM));
    TEST_THAT(sum == line, "%s: rank %d: line %llx, want %x", c->along, me, (long long)sum, line);

    DT_TRY(dt_mesh_slice(mesh, c->along, &slice));
    int at = 0;
    for (int r = 0; r < c->nranks; r++) {
        if (!(line >> r & 1))
            continue;
        TEST_THAT(dt_mesh_world_rank(slice, at) == r, "place %d of %s", at, c->along);
        if (r == me)
            TEST_THAT(dt_comm_rank(comm) == at && dt_mesh_rank(slice) == at &&
                          dt_mesh_axis_index(mesh, c->along) == at,
                      "my place %d", at);
        at++;
    }
    TEST_THAT(at == dt_mesh_size(slice) && at == dt_comm_size(comm) &&
                  at == dt_mesh_axis_size(mesh, c->along),
              "%d ranks", at);

    uint8_t axis[DT_MAX_AXES];
    int naxes = 0, index = 0;
    for (int a = 0; c->axes[a].name; a++)
        if (strstr(c->along, c->axes[a].name)) {
            DT_TRY(dt_mesh_axis(mesh, c->axes[a].name, &index));
            TEST_THAT(index == a, "axis %d", a);
            axis[naxes++] = (uint8_t)a;
        }
    DT_TRY(dt_mesh_comm(mesh, naxes, axis, 0, &other));
    TEST_THAT(other == comm, "by index");
    DT_TRY(dt_mesh_comm_named(slice, c->along, 0, &other));
    TEST_THAT(other == comm || at == 1, "by slice");
    dt_mesh_destroy(&mesh);
    TEST_THAT(!mesh, "handle is cleared");
    dt_mesh_destroy(&mesh);
    return DT_OK;
}

START_TEST(test_lines)
{
    line_case c = line_cases[_i];
    test_ranks(c.nranks, lines_body, &c);
}
END_TEST

/* Members stand in the order of the axes as listed: along tp,dp rank 1 (dp 0, tp 1) of (2,2) comes
 * third. */
static dt_status order_body(dt_world *world, void *arg)
{
    (void)arg;
    static const int place[] = {0, 2, 1, 3};
    dt_mesh *mesh = NULL;
    DT_TRY(dt_mesh_create(world, cpu, &(dt_mesh_options){.axes = {{"dp", 2}, {"tp", 2}}}, &mesh));
    dt_comm *comm = NULL, *channel1 = NULL, *again = NULL;
    DT_TRY(dt_mesh_comm_named(mesh, " tp , dp ", 0, &comm));
    TEST_THAT(dt_comm_rank(comm) == place[dt_world_rank(world)], "rank %d", dt_comm_rank(comm));
    const int created = dt_world_comms_created(world);
    DT_TRY(dt_mesh_comm_named(mesh, "tp,dp", 1, &channel1));
    DT_TRY(dt_mesh_comm_named(mesh, "tp,dp", 1, &again));
    TEST_THAT(channel1 != comm && again == channel1, "channels are apart");
    TEST_THAT(dt_world_comms_created(world) == created + 1, "one more");
    DT_TRY(dt_mesh_comm(mesh, 0, NULL, 0, &comm));
    TEST_THAT(dt_comm_size(comm) == 1 && dt_world_comms_created(world) == created + 1, "alone");
    TEST_FAILS(DT_ERR_ARG, "channel 4", dt_mesh_comm_named(mesh, "tp", 4, &comm));
    TEST_FAILS(DT_ERR_ARG, "twice", dt_mesh_comm(mesh, 2, (const uint8_t[]){1, 1}, 0, &comm));
    TEST_FAILS(DT_ERR_ARG, "past", dt_mesh_comm(mesh, 1, (const uint8_t[]){2}, 0, &comm));
    TEST_FAILS(DT_ERR_ARG, "twice", dt_mesh_comm_named(mesh, "tp,tp", 0, &comm));
    TEST_FAILS(DT_ERR_ARG, "it has dp, tp", dt_mesh_comm_named(mesh, "cp", 0, &comm));
    TEST_FAILS(DT_ERR_ARG, "it has dp, tp", dt_mesh_comm_named(mesh, "", 0, &comm));
    dt_mesh_destroy(&mesh);
    return DT_OK;
}

START_TEST(test_order_and_channels)
{
    test_ranks(4, order_body, NULL);
}
END_TEST

/* M3: rank r of (2,4) is at (r / 4, r % 4). */
static dt_status coord_body(dt_world *world, void *arg)
{
    (void)arg;
    const int r = dt_world_rank(world);
    dt_mesh *mesh = NULL;
    DT_TRY(dt_mesh_create(world, cpu, &(dt_mesh_options){.axes = {{"dp", 2}, {"tp", 4}}}, &mesh));
    const int *coord = dt_mesh_coord(mesh);
    TEST_THAT(coord[0] == r / 4 && coord[1] == r % 4, "at (%d, %d)", coord[0], coord[1]);
    TEST_THAT(dt_mesh_axis_index(mesh, "dp") == r / 4 && dt_mesh_axis_index(mesh, "tp") == r % 4,
              "index");
    TEST_THAT(dt_mesh_axis_index(mesh, "tp,dp") == r % 4 * 2 + r / 4, "tp outermost");
    TEST_THAT(dt_mesh_axis_size(mesh, "cp") == 1 && dt_mesh_axis_index(mesh, "cp") == 0, "absent");
    TEST_THAT(dt_mesh_axis_size(mesh, "cp,tp") == 4 && dt_mesh_axis_index(mesh, "cp,tp") == r % 4,
              "absent and present");
    TEST_THAT(dt_mesh_size(mesh) == 8 && dt_mesh_rank(mesh) == r && dt_mesh_contains_me(mesh),
              "rank");
    TEST_THAT(dt_mesh_world(mesh) == world && dt_mesh_device(mesh).kind == DT_CPU, "world, device");
    dt_heap *heap = NULL;
    DT_TRY(dt_world_heap(world, cpu, &heap));
    TEST_THAT(dt_mesh_heap(mesh) == heap, "heap");
    const dt_grid *grid = dt_mesh_grid(mesh);
    TEST_THAT(grid->naxes == 2 && grid->size[1] == 4 && strcmp(grid->name[1], "tp") == 0, "grid");
    char text[DT_MESH_TEXT], want[DT_MESH_TEXT];
    (void)snprintf(want, sizeof want, "mesh 2x4 [dp 2, tp 4], rank %d at (%d, %d)", r, r / 4,
                   r % 4);
    TEST_THAT(strcmp(dt_mesh_print(mesh, text, sizeof text), want) == 0, "%s", text);
    dt_mesh_destroy(&mesh);
    return DT_OK;
}

START_TEST(test_coordinates)
{
    test_ranks(8, coord_body, NULL);
}
END_TEST

/* M4, M10: what is refused, and words of the message. */
static const struct {
    dt_mesh_options options;
    const char *text;
} bad_cases[] = {
    {{.axes = {{0}}}, "at least one axis"},
    {{.axes = {{"tp", 2}, {"tp", 2}}}, "'tp' is taken"},
    {{.axes = {{"", 2}}}, "letters"},
    {{.axes = {{"a,b", 2}}}, "letters"},
    {{.axes = {{"a_name_of_24_characters_", 2}}}, "letters"},
    {{.axes = {{"dp", 0}, {"tp", 2}}}, "'dp' has size 0"},
    {{.axes = {{"dp", -2}, {"tp", 2}}}, "'dp' has size -2"},
    {{.axes = {{"dp", -1}, {"tp", -1}}}, "two axes of size -1: 'dp' and 'tp'"},
    {{.axes = {{"dp", 4}, {"tp", 2}}}, "multiply to 8, but there are 4"},
    {{.axes = {{"dp", 1 << 30}, {"tp", 1 << 30}, {"cp", 16}}}, "there are 4"},
    {{.axes = {{"dp", -1}, {"tp", 3}}}, "4 ranks do not divide by 3"},
    {{.axes = {{"dp", -1}, {"tp", 2}}, .first_rank = 1}, "3 ranks do not divide by 2"},
    {{.axes = {{"tp", 4}}, .first_rank = 1}, "there are 3 ranks"},
    {{.axes = {{"tp", 1}}, .first_rank = 4}, "first_rank 4"},
    {{.axes = {{"tp", 1}}, .first_rank = -1}, "first_rank -1"},
};

static dt_status bad_body(dt_world *world, void *arg)
{
    (void)arg;
    dt_mesh *mesh = NULL;
    for (int i = 0; i < DT_COUNT(bad_cases); i++) {
        TEST_FAILS(DT_ERR_ARG, bad_cases[i].text,
                   dt_mesh_create(world, cpu, &bad_cases[i].options, &mesh));
        TEST_THAT(!mesh, "output untouched");
    }
    TEST_FAILS(DT_ERR_ARG, "at least one axis", dt_mesh_create(world, cpu, NULL, &mesh));
    return DT_OK;
}

START_TEST(test_bad_definitions)
{
    test_ranks(4, bad_body, NULL);
}
END_TEST

/* M10: -1 is what is left. */
static dt_status left_body(dt_world *world, void *arg)
{
    (void)arg;
    dt_mesh *mesh = NULL;
    DT_TRY(dt_mesh_create(world, cpu, &(dt_mesh_options){.axes = {{"dp_shard", -1}, {"tp", 2}}},
                          &mesh));
    TEST_THAT(dt_mesh_axis_size(mesh, "dp_shard") == 4, "8 / 2");
    dt_mesh *view = NULL;
    TEST_FAILS(DT_ERR_ARG, "does not split",
               dt_mesh_split(mesh, "dp_shard", "edp", 3, "ep", &view));
    dt_mesh_destroy(&mesh);
    DT_TRY(dt_mesh_create(
        world, cpu,
        &(dt_mesh_options){
            .axes =
                {{"a", 2}, {"b", 1}, {"c", 1}, {"d", 1}, {"e", 1}, {"f", 1}, {"g", 2}, {"h", -1}}},
        &mesh));
    TEST_THAT(dt_mesh_grid(mesh)->naxes == DT_MAX_AXES && dt_mesh_axis_size(mesh, "h") == 2,
              "8 axes");
    TEST_FAILS(DT_ERR_ARG, "most allowed", dt_mesh_split(mesh, "a", "a0", 2, "a1", &view));
    dt_mesh_destroy(&mesh);
    return DT_OK;
}

START_TEST(test_what_is_left)
{
    test_ranks(8, left_body, NULL);
}
END_TEST

/* M10, one rank: all sizes 1, communicators free. */
START_TEST(test_single_rank)
{
    dt_world *world = NULL;
    dt_mesh *mesh = NULL, *slice = NULL;
    dt_comm *comm = NULL;
    ck_ok(dt_world_create(&(dt_world_options){.backend = DT_BACKEND_SELF}, &world));
    ck_ok(dt_mesh_create(world, cpu, &(dt_mesh_options){.axes = {{"dp_shard", -1}, {"tp", 1}}},
                         &mesh));
    ck_assert_int_eq(dt_mesh_size(mesh), 1);
    ck_assert_int_eq(dt_mesh_axis_size(mesh, "dp_shard"), 1);
    ck_ok(dt_mesh_slice(mesh, "tp", &slice));
    ck_ok(dt_mesh_comm_named(slice, "tp", 0, &comm));
    ck_assert_int_eq(dt_comm_size(comm), 1);
    ck_assert_int_eq(dt_world_comms_created(world), 0);
    dt_mesh_destroy(&mesh);
    dt_world_destroy(&world);
}
END_TEST

/* M9: a mesh over ranks 1 and 2 of 4. */
static dt_status outside_body(dt_world *world, void *arg)
{
    (void)arg;
    const int me = dt_world_rank(world);
    dt_mesh *mesh = NULL, *slice = NULL, *view = NULL;
    dt_comm *comm = NULL;
    const dt_layout *layout = NULL;
    char text[DT_MESH_TEXT];
    DT_TRY(dt_mesh_create(
        world, cpu, &(dt_mesh_options){.axes = {{"dp", 1}, {"tp", 2}}, .first_rank = 1}, &mesh));
    TEST_THAT(dt_mesh_world_rank(mesh, 0) == 1 && dt_mesh_world_rank(mesh, 1) == 2,
              "ranks 1 and 2");
    DT_TRY(dt_mesh_flatten(mesh, "dp,tp", "all", &view));
    if (me == 1 || me == 2) {
        TEST_THAT(dt_mesh_contains_me(mesh) && dt_mesh_rank(mesh) == me - 1, "inside");
        DT_TRY(dt_mesh_comm_named(mesh, "tp", 0, &comm));
        int64_t sum = me;
        DT_TRY(dt_all_reduce_i64_sync(comm, &sum, 1, DT_REDUCE_SUM));
        TEST_THAT(sum == 3, "sum %lld", (long long)sum);
        DT_TRY(dt_mesh_slice(mesh, "tp", &slice));
    } else {
        TEST_THAT(!dt_mesh_contains_me(mesh) && dt_mesh_rank(mesh) == -1, "outside");
        TEST_THAT(!dt_mesh_coord(mesh) && dt_mesh_axis_index(mesh, "tp") == -1, "nowhere");
        TEST_THAT(!dt_mesh_contains_me(view) && dt_mesh_axis_size(view, "all") == 2, "view");
        TEST_FAILS(DT_ERR_STATE, "not in the mesh", dt_mesh_comm_named(mesh, "tp", 0, &comm));
        TEST_FAILS(DT_ERR_STATE, "not in the mesh", dt_mesh_slice(mesh, "tp", &slice));
        TEST_FAILS(DT_ERR_STATE, "not in the mesh",
                   dt_mesh_layout_text(mesh, DT_SHAPE(4), "S(0)@tp", &layout));
        TEST_THAT(strstr(dt_mesh_print(mesh, text, sizeof text), "outside"), "%s", text);
        TEST_THAT(!comm && !slice && !layout, "outputs untouched");
    }
    dt_mesh_destroy(&mesh);
    return DT_OK;
}

START_TEST(test_outside)
{
    test_ranks(4, outside_body, NULL);
}
END_TEST

/* Rank 2 of 4 defines the mesh otherwise: an error on all ranks which says what differs. */
static const struct {
    dt_mesh_options most, rank2;
    const char *text;
} differ_cases[] = {
    {{.axes = {{"dp", 2}, {"tp", 2}}}, {.axes = {{"dp", 1}, {"tp", 4}}}, "size of axis 0"},
    {{.axes = {{"dp", 2}, {"tp", 2}}}, {.axes = {{"tp", 2}, {"dp", 2}}}, "name of axis 0"},
    {{.axes = {{"dp", 2}, {"tp", 2}}}, {.axes = {{"dp", 2}}}, "number of axes is from 1 to 2"},
    {{.axes = {{"tp", 2}}}, {.axes = {{"tp", 2}}, .first_rank = 1}, "first_rank is from 0 to 1"},
    {{.axes = {{"tp", 4}}}, {.axes = {{"tp", 4}}, .link = {{1e-6, 0}}}, "links"},
    {{.axes = {{"tp", 4}}}, {.axes = {{"tp", 5}}}, "there are 4 ranks"},
};

static dt_status differ_body(dt_world *world, void *arg)
{
    (void)arg;
    dt_mesh *mesh = NULL;
    for (int i = 0; i < DT_COUNT(differ_cases); i++)
        TEST_FAILS(DT_ERR_ARG, differ_cases[i].text,
                   dt_mesh_create(world, cpu,
                                  dt_world_rank(world) == 2 ? &differ_cases[i].rank2
                                                            : &differ_cases[i].most,
                                  &mesh));
    const dt_device meta = {.kind = DT_META};
    TEST_FAILS(DT_ERR_ARG, "kind of device",
               dt_mesh_create(world, dt_world_rank(world) == 2 ? meta : cpu, &differ_cases[0].most,
                              &mesh));
    DT_TRY(dt_mesh_create(world, cpu, &differ_cases[0].most, &mesh)); /* the world still works */
    dt_mesh_destroy(&mesh);
    return DT_OK;
}

START_TEST(test_definitions_differ)
{
    test_ranks(4, differ_body, NULL);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("mesh");
    TCase *t = tcase_create("mesh");
    suite_add_tcase(suite, t);
    tcase_add_loop_test(t, test_lines, 0, DT_COUNT(line_cases));
    tcase_add_test(t, test_order_and_channels);
    tcase_add_test(t, test_coordinates);
    tcase_add_test(t, test_bad_definitions);
    tcase_add_test(t, test_what_is_left);
    tcase_add_test(t, test_single_rank);
    tcase_add_test(t, test_outside);
    tcase_add_test(t, test_definitions_differ);
    return test_main(suite);
}
