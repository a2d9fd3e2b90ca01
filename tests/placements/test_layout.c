/* tests/placements/test_layout.c - who owns what: the uneven rule, nests, edits, malformed layouts.
 * Numbers are PyTorch's (torch.chunk, nested Shard, _StridedShard). */
#include "tests/harness.h"
#include "tests/placements/sim.h"

#include <stdio.h>
#include <string.h>

START_TEST(chunks_as_pytorch)
{
    static const struct {
        int64_t n;
        int k;
        int64_t size[8];
    } golden[] = {
        {5, 4, {2, 2, 1, 0}}, {6, 4, {2, 2, 2, 0}}, {10, 4, {3, 3, 3, 1}},
        {9, 4, {3, 3, 3, 0}}, {3, 4, {1, 1, 1, 0}}, {1, 4, {1, 0, 0, 0}},
        {7, 2, {4, 3}},       {0, 3, {0, 0, 0}},    {13, 8, {2, 2, 2, 2, 2, 2, 1, 0}},
        {2, 8, {1, 1}},       {8, 1, {8}},
    };
    for (int i = 0; i < DT_COUNT(golden); i++) {
        int64_t offset = 0, lo, hi;
        for (int r = 0; r < golden[i].k; r++) {
            dt_chunk(golden[i].n, golden[i].k, r, &lo, &hi);
            ck_assert_int_eq(lo, offset); /* an empty piece starts at n */
            ck_assert_int_eq(hi - lo, golden[i].size[r]);
            offset = hi;
        }
        ck_assert_int_eq(offset, golden[i].n);
    }
    int64_t lo, hi;
    dt_chunk((int64_t)1 << 40, 3, 2, &lo, &hi);
    ck_assert_int_eq(lo, 733007751852);
    ck_assert_int_eq(hi, (int64_t)1 << 40);
}
END_TEST

/* The ranges of dim 0 on all ranks, in rank order, as "0-2 2-4 ...". */
static void expect_ranges(const dt_grid *grid, int64_t n, const char *layout_text, const char *want)
{
    dt_layout layout;
    ck_ok(dt_layout_parse(grid, DT_SHAPE(n), layout_text, &layout));
    char got[200];
    size_t used = 0;
    for (int r = 0; r < dt_grid_count(grid); r++) {
        int coord[DT_MAX_AXES];
        int64_t lo, hi;
        dt_grid_coord(grid, r, coord);
        dt_layout_range(&layout, 0, coord, &lo, &hi);
        used += (size_t)snprintf(got + used, sizeof got - used, r ? " %d-%d" : "%d-%d", (int)lo,
                                 (int)hi);
    }
    ck_assert_str_eq(got, want);
}

START_TEST(nests_are_not_flat)
{
    const dt_grid two = {.naxes = 2, .size = {2, 2}, .name = {"dp", "tp"}};
    const dt_grid flat = {.naxes = 1, .size = {4}, .name = {"all"}};
    expect_ranges(&two, 10, "S(0)@dp>tp", "0-3 3-5 5-8 8-10");
    expect_ranges(&flat, 10, "S(0)@all", "0-3 3-6 6-9 9-10");
    expect_ranges(&two, 5, "S(0)@dp>tp", "0-2 2-3 3-4 4-5");
    expect_ranges(&flat, 5, "S(0)@all", "0-2 2-4 4-5 5-5");
    /* _StridedShard(0, 2) on dp, Shard(0) on tp: tp splits first. Ranks: dp is the row. */
    expect_ranges(&two, 8, "S(0)@dp>tp", "0-2 2-4 4-6 6-8");
    expect_ranges(&two, 8, "S(0)@tp>dp", "0-2 4-6 2-4 6-8");
    expect_ranges(&two, 8, "S(0)@tp", "0-4 4-8 0-4 4-8");
    expect_ranges(&two, 1, "S(0)@tp>dp", "0-1 1-1 1-1 1-1");
}
END_TEST

START_TEST(pieces_tile_the_tensor)
{
    /* Every layout, 0..9 rows: each element is owned once by the ranks that S axes tell apart. */
    static const int sizes[][3] = {{2, 3, 2}, {1, 4, 2}, {3, 1, 3}};
    static dt_layout all[SIM_LAYOUTS];
    for (int g = 0; g < DT_COUNT(sizes); g++) {
        const dt_grid grid = sim_grid(3, sizes[g]);
        for (int64_t rows = 0; rows < 10; rows++) {
            const int n = sim_layouts(&grid, DT_SHAPE(rows, 3), all);
            for (int i = 0; i < n; i++) {
                int64_t owned = 0, copies = 1;
                for (int a = 0; a < 3; a++)
                    if (dt_layout_at(&all[i], a).kind != DT_SHARD)
                        copies *= grid.size[a];
                for (int r = 0; r < dt_grid_count(&grid); r++) {
                    int coord[DT_MAX_AXES];
                    dt_grid_coord(&grid, r, coord);
                    ck_assert_int_eq(dt_grid_rank(&grid, coord), r);
                    owned += dt_shape_count(dt_layout_local(&all[i], coord, NULL));
                }
                ck_assert_int_eq(owned, copies * rows * 3);
            }
        }
    }
}
END_TEST

START_TEST(local_shape_and_offset)
{
    const dt_grid grid = {.naxes = 2, .size = {2, 3}, .name = {"dp", "tp"}};
    dt_layout layout;
    ck_ok(dt_layout_parse(&grid, DT_SHAPE(5, 7, 2), "S(1)@tp, S(0)@dp", &layout));
    int64_t offset[DT_MAX_DIMS];
    const dt_shape local = dt_layout_local(&layout, (int[DT_MAX_AXES]){1, 2}, offset);
    ck_assert(dt_shape_equal(local, DT_SHAPE(2, 1, 2)));
    ck_assert(offset[0] == 3 && offset[1] == 6 && offset[2] == 0);
    const dt_layout scalar = dt_layout_replicated(&grid, DT_SCALAR);
    ck_assert_int_eq(dt_layout_local(&scalar, (int[DT_MAX_AXES]){0}, NULL).ndim, 0);
}
END_TEST

START_TEST(grids)
{
    const dt_grid grid = {.naxes = 3, .size = {2, 3, 4}, .name = {"pp", "dp", "tp"}};
    ck_assert_int_eq(dt_grid_count(&grid), 24);
    ck_assert_int_eq(dt_grid_axis(&grid, "dp"), 1);
    ck_assert_int_eq(dt_grid_axis(&grid, "d"), -1);
    int coord[DT_MAX_AXES];
    dt_grid_coord(&grid, 23, coord);
    ck_assert(coord[0] == 1 && coord[1] == 2 && coord[2] == 3 && coord[3] == 0);
    dt_grid_coord(&grid, 5, coord);
    ck_assert(coord[0] == 0 && coord[1] == 1 && coord[2] == 1);
    const dt_grid none = {.naxes = 0};
    ck_assert_int_eq(dt_grid_count(&none), 1);
}
END_TEST

START_TEST(edits)
{
    const dt_grid grid = sim_grid(4, (int[]){2, 2, 2, 2});
    dt_layout x = dt_layout_replicated(&grid, DT_SHAPE(8, 8)), y;
    dt_layout_shard(&x, 2, 0);
    dt_layout_shard(&x, 0, 0);
    dt_layout_shard(&x, 1, 0);
    x.partial = 1u << 3;
    ck_ok(dt_layout_check(&x));
    ck_assert_int_eq(dt_layout_depth(&x, 2), 0);
    ck_assert_int_eq(dt_layout_depth(&x, 1), 2);
    ck_assert_int_eq(dt_layout_depth(&x, 3), -1);
    ck_assert(dt_layout_at(&x, 0).kind == DT_SHARD && dt_layout_at(&x, 0).dim == 0);
    ck_assert(dt_layout_at(&x, 3).kind == DT_PARTIAL);
    const dt_layout dual = dt_layout_dual(&x);
    ck_assert(dt_layout_at(&dual, 3).kind == DT_REPLICATE && dt_layout_depth(&dual, 1) == 2);
    dt_layout_clear(&x, 0);
    dt_layout_clear(&x, 3);
    ck_ok(dt_layout_parse(&grid, x.shape, "S(0)@c>b", &y));
    ck_assert(dt_layout_equal(&x, &y) && dt_layout_hash(&x) == dt_layout_hash(&y));
    dt_layout_clear(&x, 1);
    dt_layout_clear(&x, 2);
    dt_layout_clear(&x, 2);
    y = dt_layout_replicated(&grid, DT_SHAPE(8, 8));
    ck_assert(dt_layout_equal(&x, &y) && !dt_layout_equal(&x, &dual));
}
END_TEST

START_TEST(all_layouts_are_legal_and_distinct)
{
    static dt_layout all[SIM_LAYOUTS];
    const dt_grid grid = sim_grid(3, (int[]){2, 2, 2});
    const int n = sim_layouts(&grid, DT_SHAPE(4, 4), all);
    /* j of 3 axes shard one of 2 dims in an order: j! * (j + 1) ways; the others are R or P. */
    ck_assert_int_eq(n, 8 + 3 * 2 * 4 + 3 * 6 * 2 + 24);
    for (int i = 0; i < n; i++) {
        ck_ok(dt_layout_check(&all[i]));
        for (int j = 0; j < i; j++) {
            ck_assert(!dt_layout_equal(&all[i], &all[j]));
            ck_assert(dt_layout_hash(&all[i]) != dt_layout_hash(&all[j]));
        }
    }
}
END_TEST

static void expect_malformed(const dt_layout *layout, const char *message)
{
    ck_ok(test_expect(dt_layout_check(layout), DT_ERR_PLACEMENT, message, "dt_layout_check"));
}

START_TEST(malformed)
{
    dt_grid grid = sim_grid(2, (int[]){2, 3});
    dt_layout good, x;
    ck_ok(dt_layout_parse(&grid, DT_SHAPE(4, 4), "S(0)@b, P@a", &good));
    ck_ok(dt_layout_check(&good));
    x = good, x.grid = NULL;
    expect_malformed(&x, "without a grid");
    x = good, x.partial = 3;
    expect_malformed(&x, "axis b is placed twice");
    x = good, x.partial = 4;
    expect_malformed(&x, "P on axes 0x4; the mesh has 2 axes");
    x = good, dt_layout_shard(&x, 1, 1);
    expect_malformed(&x, "axis b is placed twice");
    x = good, dt_layout_shard(&x, 1, 0);
    expect_malformed(&x, "axis b is placed twice");
    x = good, x.split[0][0] = 2;
    expect_malformed(&x, "split by axis 2; the mesh has 2");
    x = good, x.split[0][5] = 1;
    expect_malformed(&x, "unused entry 5 is 1");
    x = good, x.split[7][0] = 1;
    expect_malformed(&x, "unused entry 0 is 1");
    x = good, x.nsplit[0] = 3;
    expect_malformed(&x, "split by 3 axes; the mesh has 2");
    x = good, x.nsplit[0] = 200;
    expect_malformed(&x, "split by 200 axes");
    x = good, x.nsplit[2] = 1;
    expect_malformed(&x, "dim 2 of 2 is split by 1 axes");
    x = good, x.shape.ndim = 9;
    expect_malformed(&x, "9 dims");
    x = good, x.shape.ndim = -1;
    expect_malformed(&x, "-1 dims");
    x = good, x.shape.dim[1] = -4;
    expect_malformed(&x, "dim 1 of 2 has size -4");
    x = good, x.shape.dim[2] = 4;
    expect_malformed(&x, "dim 2 of 2 has size 4");
    grid.size[0] = 0;
    expect_malformed(&good, "axis a has size 0");
    grid.size[0] = 2, grid.naxes = 9;
    expect_malformed(&good, "9 axes");
    grid.naxes = -1;
    expect_malformed(&good, "-1 axes");
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("placements/layout");
    TCase *tests = tcase_create("layout");
    tcase_add_test(tests, chunks_as_pytorch);
    tcase_add_test(tests, nests_are_not_flat);
    tcase_add_test(tests, pieces_tile_the_tensor);
    tcase_add_test(tests, local_shape_and_offset);
    tcase_add_test(tests, grids);
    tcase_add_test(tests, edits);
    tcase_add_test(tests, all_layouts_are_legal_and_distinct);
    tcase_add_test(tests, malformed);
    suite_add_tcase(suite, tests);
    return test_main(suite);
}
