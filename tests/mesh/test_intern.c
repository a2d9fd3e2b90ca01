/* tests/mesh/test_intern.c - interned layouts, plans, the cache, and a mesh of 16,384 ranks that
 * exists once. Local shapes are worked out by hand from c = ceil(n/k), rank r owning [min(n, r*c),
 * min(n, (r+1)*c)). */
#include "mesh/dt_mesh.h"
#include "tests/harness.h"

#include <stdlib.h>
#include <string.h>

static const dt_device cpu = {.kind = DT_CPU};

/* Texts of one layout of a 2-dim tensor on (dp, tp) share a pointer; texts in different rows do
 * not. */
static const char *const same_texts[][4] = {
    {"[R]", "", "R@tp", "[R@dp, R@tp]"},
    {"[S(0)@dp]", "S(0)@dp", "R@tp, S(0)@dp", "S(-2)@dp"},
    {"[S(0)@dp>tp]", "S(0)@dp, S(0)@tp", "S(-2)@dp>tp", "[S(0)@dp>tp]"},
    {"[S(0)@tp>dp]", "S(0)@tp, S(0)@dp", "S(-2)@tp>dp", "[S(0)@tp>dp]"},
    {"[S(0)@dp, S(1)@tp]", "S(1)@tp, S(0)@dp", "S(-1)@tp, S(-2)@dp", "[S(1)@tp,S(0)@dp]"},
    {"[P@dp]", "P@dp", "R@tp, P@dp", "[P@dp]"},
    {"[P@tp]", "P@tp", "R@dp, P@tp", "[P@tp]"},
    {"[P@dp, S(1)@tp]", "S(1)@tp, P@dp", "S(-1)@tp, P@dp", "P@dp,S(1)@tp"},
};

static dt_status pointers_body(dt_world *world, void *arg)
{
    (void)arg;
    dt_mesh *mesh = NULL, *slice = NULL;
    DT_TRY(dt_mesh_create(world, cpu, &(dt_mesh_options){.axes = {{"dp", 2}, {"tp", 2}}}, &mesh));
    const dt_layout *first[DT_COUNT(same_texts)];
    for (int i = 0; i < DT_COUNT(same_texts); i++) {
        for (int j = 0; j < 4; j++) {
            const dt_layout *l = NULL;
            DT_TRY(dt_mesh_layout_text(mesh, DT_SHAPE(6, 4), same_texts[i][j], &l));
            if (j == 0)
                first[i] = l;
            TEST_THAT(l == first[i], "'%s' is '%s'", same_texts[i][j], same_texts[i][0]);
            TEST_THAT(dt_layout_mesh(l) == mesh && l->grid == dt_mesh_grid(mesh), "owner");
        }
        for (int k = 0; k < i; k++)
            TEST_THAT(first[k] != first[i], "'%s' is not '%s'", same_texts[i][0], same_texts[k][0]);
    }
    const dt_layout *other = NULL;
    DT_TRY(dt_mesh_layout_text(mesh, DT_SHAPE(6, 5), "S(0)@dp", &other));
    TEST_THAT(other != first[1], "another shape");
    DT_TRY(dt_mesh_slice(mesh, "dp", &slice));
    DT_TRY(dt_mesh_layout_text(slice, DT_SHAPE(6, 4), "S(0)@dp", &other));
    TEST_THAT(other != first[1] && dt_layout_mesh(other) == slice, "a slice has its own");
    dt_mesh_destroy(&mesh);
    return DT_OK;
}

START_TEST(test_one_pointer_a_layout)
{
    test_ranks(4, pointers_body, NULL);
}
END_TEST

static dt_status grids_body(dt_world *world, void *arg)
{
    (void)arg;
    dt_mesh *mesh = NULL;
    DT_TRY(dt_mesh_create(world, cpu, &(dt_mesh_options){.axes = {{"dp", 2}, {"tp", 2}}}, &mesh));
    const dt_layout *own = NULL, *got = NULL;
    DT_TRY(dt_mesh_layout_text(mesh, DT_SHAPE(6, 4), "S(0)@dp", &own));
    dt_grid grid = {.naxes = 2, .size = {2, 2}, .name = {"dp", "tp"}};
    dt_layout layout = dt_layout_replicated(&grid, DT_SHAPE(6, 4));
    dt_layout_shard(&layout, 0, 0);
    DT_TRY(dt_mesh_layout(mesh, &layout, &got));
    TEST_THAT(got == own, "an equal grid");
    (void)strcpy(grid.name[1], "cp");
    TEST_FAILS(DT_ERR_ARG, "another grid", dt_mesh_layout(mesh, &layout, &got));
    (void)strcpy(grid.name[1], "tp");
    grid.size[1] = 3;
    TEST_FAILS(DT_ERR_ARG, "another grid", dt_mesh_layout(mesh, &layout, &got));
    layout.grid = dt_mesh_grid(mesh);
    layout.partial = 1; /* dp is S(0) already */
    TEST_FAILS(DT_ERR_PLACEMENT, "", dt_mesh_layout(mesh, &layout, &got));
    TEST_FAILS(DT_ERR_PLACEMENT, "", dt_mesh_layout_text(mesh, DT_SHAPE(6), "S(1)@dp", &got));
    TEST_FAILS(DT_ERR_PLACEMENT, "", dt_mesh_layout_text(mesh, DT_SHAPE(6), "S(0)@ep", &got));
    TEST_THAT(got == own, "output untouched");
    dt_mesh_destroy(&mesh);
    return DT_OK;
}

START_TEST(test_grids_and_errors)
{
    test_ranks(4, grids_body, NULL);
}
END_TEST

/* Rank r = 2 dp + tp: local rows and columns and their first indices. */
static const struct {
    int64_t rows, cols;
    const char *text;
    int64_t local[4][4]; /* rows, cols, first row, first col */
} local_cases[] = {
    {5, 3, "R", {{5, 3, 0, 0}, {5, 3, 0, 0}, {5, 3, 0, 0}, {5, 3, 0, 0}}},
    {5, 3, "P@dp", {{5, 3, 0, 0}, {5, 3, 0, 0}, {5, 3, 0, 0}, {5, 3, 0, 0}}},
    {5, 3, "S(0)@dp>tp", {{2, 3, 0, 0}, {1, 3, 2, 0}, {1, 3, 3, 0}, {1, 3, 4, 0}}},
    {5, 3, "S(0)@tp>dp", {{2, 3, 0, 0}, {1, 3, 3, 0}, {1, 3, 2, 0}, {1, 3, 4, 0}}},
    {5, 3, "S(0)@dp, S(1)@tp", {{3, 2, 0, 0}, {3, 1, 0, 2}, {2, 2, 3, 0}, {2, 1, 3, 2}}},
    {1, 3, "S(0)@dp>tp", {{1, 3, 0, 0}, {0, 3, 1, 0}, {0, 3, 1, 0}, {0, 3, 1, 0}}},
    {2, 0, "S(1)@dp, S(0)@tp", {{1, 0, 0, 0}, {1, 0, 1, 0}, {1, 0, 0, 0}, {1, 0, 1, 0}}},
};

static dt_status local_body(dt_world *world, void *arg)
{
    (void)arg;
    dt_mesh *mesh = NULL;
    DT_TRY(dt_mesh_create(world, cpu, &(dt_mesh_options){.axes = {{"dp", 2}, {"tp", 2}}}, &mesh));
    for (int i = 0; i < DT_COUNT(local_cases); i++) {
        const dt_layout *l = NULL;
        DT_TRY(dt_mesh_layout_text(mesh, DT_SHAPE(local_cases[i].rows, local_cases[i].cols),
                                   local_cases[i].text, &l));
        int64_t offset[DT_MAX_DIMS];
        const dt_shape local = dt_mesh_local(l, offset);
        const int64_t *want = local_cases[i].local[dt_world_rank(world)];
        TEST_THAT(dt_shape_equal(local, DT_SHAPE(want[0], want[1])),
                  "case %d: %lld rows, %lld cols", i, (long long)local.dim[0],
                  (long long)local.dim[1]);
        TEST_THAT(offset[0] == want[2] && offset[1] == want[3], "case %d: from %lld, %lld", i,
                  (long long)offset[0], (long long)offset[1]);
        TEST_THAT(dt_shape_equal(dt_mesh_local(l, NULL), local), "no offset asked");
    }
    dt_mesh_destroy(&mesh);
    return DT_OK;
}

START_TEST(test_local_shapes)
{
    test_ranks(4, local_body, NULL);
}
END_TEST

static dt_status plan_body(dt_world *world, void *arg)
{
    (void)arg;
    dt_mesh *mesh = NULL, *slice = NULL;
    DT_TRY(dt_mesh_create(world, cpu, &(dt_mesh_options){.axes = {{"dp", 2}, {"tp", 2}}}, &mesh));
    const dt_layout *whole = NULL, *rows = NULL, *foreign = NULL;
    DT_TRY(dt_mesh_layout_text(mesh, DT_SHAPE(6, 4), "R", &whole));
    DT_TRY(dt_mesh_layout_text(mesh, DT_SHAPE(6, 4), "S(0)@tp", &rows));
    const dt_plan *gather = NULL, *cut = NULL, *again = NULL;
    DT_TRY(dt_mesh_plan(mesh, rows, whole, &gather));
    DT_TRY(dt_mesh_plan(mesh, whole, rows, &cut));
    DT_TRY(dt_mesh_plan(mesh, rows, whole, &again));
    TEST_THAT(again == gather && cut != gather, "cached");
    TEST_THAT(gather->nsteps == 1 && gather->step[0].kind == DT_STEP_ALL_GATHER, "gather");
    TEST_THAT(gather->bytes == 3 * 4 * 4, "3 rows of 4 f32: %lld bytes", (long long)gather->bytes);
    TEST_THAT(cut->nsteps == 1 && cut->step[0].kind == DT_STEP_SLICE, "cut");
    DT_TRY(dt_mesh_slice(mesh, "tp", &slice));
    DT_TRY(dt_mesh_layout_text(slice, DT_SHAPE(6, 4), "S(0)@tp", &foreign));
    TEST_FAILS(DT_ERR_ARG, "interned by this mesh", dt_mesh_plan(mesh, rows, foreign, &again));
    dt_mesh_destroy(&mesh);
    return DT_OK;
}

START_TEST(test_plans)
{
    test_ranks(4, plan_body, NULL);
}
END_TEST

/* Key i of the cache test: 3 to 8 words, some of them equal in many keys, like pointers. */
static int make_key(int i, uint64_t key_out[8])
{
    for (int w = 0; w < 8; w++)
        key_out[w] = UINT64_C(0x7f0000000000) + (uint64_t)(i >> w) * 64;
    return 3 + i % 6;
}

START_TEST(test_cache)
{
    enum { ENTRIES = 10000 };
    dt_world *world = NULL;
    dt_mesh *mesh = NULL;
    uint64_t key[8];
    ck_ok(dt_world_create(&(dt_world_options){.backend = DT_BACKEND_SELF}, &world));
    ck_ok(dt_mesh_create(world, cpu, &(dt_mesh_options){.axes = {{"tp", 1}}}, &mesh));
    ck_assert_ptr_null(dt_mesh_cache_get(mesh, make_key(0, key), key));
    for (int i = 0; i < ENTRIES; i++) {
        int *value = malloc(sizeof *value);
        *value = i;
        const int n = make_key(i, key);
        ck_ok(dt_mesh_cache_put(mesh, n, key, value));
    }
    for (int i = 0; i < ENTRIES; i++) {
        const int n = make_key(i, key);
        const int *value = dt_mesh_cache_get(mesh, n, key);
        ck_assert(value && *value == i);
        ck_assert_ptr_null(dt_mesh_cache_get(mesh, n - 1, key)); /* a part of a key */
        key[n - 1] ^= 8;
        ck_assert_ptr_null(dt_mesh_cache_get(mesh, n, key));
    }
    int *twice = malloc(sizeof *twice);
    ck_assert_int_eq(dt_mesh_cache_put(mesh, make_key(7, key), key, twice), DT_ERR_STATE);
    ck_assert_int_eq(dt_mesh_cache_put(mesh, 0, key, twice), DT_ERR_ARG);
    free(twice);
    uint64_t many[40] = {1, 2, 3}; /* no limit on words */
    int *last = calloc(1, sizeof *last);
    ck_ok(dt_mesh_cache_put(mesh, DT_COUNT(many), many, last));
    ck_assert_ptr_eq(dt_mesh_cache_get(mesh, DT_COUNT(many), many), last);
    dt_mesh_destroy(&mesh);
    dt_world_destroy(&world);
}
END_TEST

/* Keys of one hash, made with the table's multiplier: (a, b) and (a + 1, b - multiplier). */
START_TEST(test_cache_collisions)
{
    dt_world *world = NULL;
    dt_mesh *mesh = NULL;
    ck_ok(dt_world_create(&(dt_world_options){.backend = DT_BACKEND_SELF}, &world));
    ck_ok(dt_mesh_create(world, cpu, &(dt_mesh_options){.axes = {{"tp", 1}}}, &mesh));
    int *value[6];
    for (uint64_t i = 0; i < 6; i++) {
        const uint64_t key[] = {100 + i, 200 - i * UINT64_C(0x9e3779b97f4a7c15)};
        ck_assert_ptr_null(dt_mesh_cache_get(mesh, 2, key));
        value[i] = malloc(sizeof *value[i]);
        ck_ok(dt_mesh_cache_put(mesh, 2, key, value[i]));
    }
    for (uint64_t i = 0; i < 6; i++) {
        const uint64_t key[] = {100 + i, 200 - i * UINT64_C(0x9e3779b97f4a7c15)};
        ck_assert_ptr_eq(dt_mesh_cache_get(mesh, 2, key), value[i]);
    }
    dt_mesh_destroy(&mesh);
    dt_world_destroy(&world);
}
END_TEST

/* Rank 12,345 of 16,384 = 12 * 1024 + 7 * 8 + 1. */
START_TEST(test_large_fake_world)
{
    dt_world *world = NULL;
    dt_mesh *mesh = NULL, *slice = NULL, *view = NULL;
    const dt_world_options options = {
        .backend = DT_BACKEND_FAKE, .fake_rank = 12345, .fake_size = 16384};
    ck_ok(dt_world_create(&options, &world));
    ck_ok(dt_mesh_create(world, (dt_device){.kind = DT_META},
                         &(dt_mesh_options){.axes = {{"pp", 16}, {"dp_shard", -1}, {"tp", 8}}},
                         &mesh));
    ck_assert_int_eq(dt_mesh_axis_size(mesh, "dp_shard"), 128);
    const int *coord = dt_mesh_coord(mesh);
    ck_assert(coord[0] == 12 && coord[1] == 7 && coord[2] == 1);
    ck_ok(dt_mesh_slice(mesh, "dp_shard", &slice));
    ck_assert_int_eq(dt_mesh_size(slice), 128);
    for (int r = 0; r < 128; r++)
        ck_assert_int_eq(dt_mesh_world_rank(slice, r), 12 * 1024 + r * 8 + 1);
    ck_ok(dt_mesh_flatten(mesh, "dp_shard,tp", "stage", &view));
    ck_assert_int_eq(dt_mesh_coord(view)[1], 57);
    const dt_layout *l = NULL;
    int64_t offset[DT_MAX_DIMS];
    ck_ok(dt_mesh_layout_text(mesh, DT_SHAPE(16384 * 8, 53248), "S(0)@dp_shard, S(1)@tp", &l));
    ck_assert(dt_shape_equal(dt_mesh_local(l, offset), DT_SHAPE(1024, 6656)));
    ck_assert(offset[0] == 7 * 1024 && offset[1] == 6656);
    dt_comm *comm = NULL;
    ck_ok(dt_mesh_comm_named(mesh, "dp_shard,tp", 0, &comm));
    ck_assert(dt_comm_size(comm) == 1024 && dt_comm_rank(comm) == 57);
    dt_mesh_destroy(&mesh);
    dt_world_destroy(&world);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("mesh layouts");
    TCase *t = tcase_create("layouts");
    suite_add_tcase(suite, t);
    tcase_add_test(t, test_one_pointer_a_layout);
    tcase_add_test(t, test_grids_and_errors);
    tcase_add_test(t, test_local_shapes);
    tcase_add_test(t, test_plans);
    tcase_add_test(t, test_cache);
    tcase_add_test(t, test_cache_collisions);
    tcase_add_test(t, test_large_fake_world);
    return test_main(suite);
}
