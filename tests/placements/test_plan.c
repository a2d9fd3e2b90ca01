/* tests/placements/test_plan.c - every plan, run on all ranks, gives what distribution gives. */
#include "tests/harness.h"
#include "tests/placements/sim.h"

#include <string.h>

static dt_layout all[SIM_LAYOUTS];

static void check_all_pairs(const dt_grid *grid, dt_shape shape)
{
    const int n = sim_layouts(grid, shape, all);
    for (int i = 0; i < n; i++)
        for (int j = 0; j < n; j++)
            sim_check_plan(&all[i], &all[j]);
}

START_TEST(one_axis)
{
    for (int k = 1; k <= 4; k++) {
        const dt_grid grid = sim_grid(1, &k);
        check_all_pairs(&grid, DT_SCALAR);
        for (int64_t n = 0; n <= 2 * k + 1; n++) {
            check_all_pairs(&grid, DT_SHAPE(n));
            for (int64_t m = 0; m <= 2 * k + 1; m++)
                check_all_pairs(&grid, DT_SHAPE(n, m));
        }
    }
}
END_TEST

START_TEST(two_axes)
{
    static const int sizes[][2] = {{2, 2}, {2, 3}, {3, 2}, {1, 2}, {2, 1}, {1, 1}};
    static const int64_t shapes[][2] = {{6, 6}, {12, 6}, {5, 7}, {10, 3}, {1, 4}, {0, 5}, {4, 2}};
    for (int g = 0; g < DT_COUNT(sizes); g++) {
        const dt_grid grid = sim_grid(2, sizes[g]);
        for (int s = 0; s < DT_COUNT(shapes); s++)
            check_all_pairs(&grid, DT_SHAPE(shapes[s][0], shapes[s][1]));
    }
}
END_TEST

START_TEST(three_axes)
{
    const dt_grid cube = sim_grid(3, (int[]){2, 2, 2});
    check_all_pairs(&cube, DT_SHAPE(5, 3));
    const dt_grid thin = sim_grid(3, (int[]){2, 1, 3});
    check_all_pairs(&thin, DT_SHAPE(7, 2));
}
END_TEST

static uint64_t next_random(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return *state >> 33;
}

static dt_layout random_layout(const dt_grid *grid, dt_shape shape, uint64_t *state)
{
    dt_layout out = dt_layout_replicated(grid, shape);
    const int turn = (int)(next_random(state) % 8);
    for (int i = 0; i < grid->naxes; i++) {
        const int axis = (i * 3 + turn) % grid->naxes; /* 3 is prime to 4, 5, 7, 8 */
        const int choice = (int)(next_random(state) % (uint64_t)(shape.ndim + 2));
        if (choice < shape.ndim)
            dt_layout_shard(&out, axis, choice);
        else if (choice == shape.ndim)
            out.partial |= (uint8_t)(1u << axis);
    }
    return out;
}

START_TEST(many_axes)
{
    static const dt_grid grids[] = {
        {.naxes = 4, .size = {2, 2, 2, 2}, .name = {"a", "b", "c", "d"}},
        {.naxes = 5, .size = {2, 1, 3, 2, 2}, .name = {"a", "b", "c", "d", "e"}},
        {.naxes = 7, .size = {2, 1, 2, 1, 2, 1, 4}, .name = {"a", "b", "c", "d", "e", "f", "g"}},
        {.naxes = 8,
         .size = {2, 1, 2, 2, 1, 2, 1, 2},
         .name = {"a", "b", "c", "d", "e", "f", "g", "h"}},
    };
    uint64_t state = 1;
    for (int g = 0; g < DT_COUNT(grids); g++) {
        for (int i = 0; i < 600; i++) {
            const dt_shape shape = DT_SHAPE((int64_t)(next_random(&state) % 9), 4, 3);
            const dt_layout src = random_layout(&grids[g], shape, &state);
            const dt_layout dst = random_layout(&grids[g], shape, &state);
            sim_check_plan(&src, &dst);
        }
    }
}
END_TEST

/* Worst cases of the search: 8 axes that all change, with nests, orders and all kinds. */
START_TEST(eight_axes)
{
    const dt_grid grid = sim_grid(8, (int[]){2, 2, 2, 2, 2, 2, 2, 2});
    const dt_shape shape = DT_SHAPE(256, 256, 256, 256, 4, 4, 4, 4);
    static const char *const texts[] = {
        "",
        "P@a>b>c>d>e>f>g>h",
        "S(0)@a>b>c>d>e>f>g>h",
        "S(0)@h>g>f>e>d>c>b>a",
        "S(1)@a>b>c>d>e>f>g>h",
        "S(0)@a>b>c>d, S(1)@e>f>g>h",
        "S(0)@h>f, S(1)@g>e, S(2)@c>d, S(3)@a>b",
        "S(0)@a, S(1)@b, S(2)@c, S(3)@d, S(4)@e, S(5)@f, S(6)@g, S(7)@h",
        "S(1)@a, S(2)@b, S(3)@c, S(4)@d, S(5)@e, S(6)@f, S(7)@g, S(0)@h",
    };
    for (int i = 0; i < DT_COUNT(texts); i++) {
        for (int j = 0; j < DT_COUNT(texts); j++) {
            dt_layout src, dst;
            dt_plan *plan;
            ck_ok(dt_layout_parse(&grid, shape, texts[i], &src));
            ck_ok(dt_layout_parse(&grid, shape, texts[j], &dst));
            ck_ok(dt_plan_create(&src, &dst, 2, NULL, &plan));
            const dt_layout *end = plan->nsteps ? &plan->step[plan->nsteps - 1].after : &src;
            ck_assert(dt_layout_equal(end, &dst) && (plan->nsteps == 0) == (i == j));
            dt_plan_destroy(&plan);
        }
    }
}
END_TEST

START_TEST(errors)
{
    const dt_grid grid = sim_grid(2, (int[]){2, 2}), twin = grid;
    const dt_layout x = dt_layout_replicated(&grid, DT_SHAPE(4, 4));
    const dt_layout longer = dt_layout_replicated(&grid, DT_SHAPE(4, 5));
    const dt_layout elsewhere = dt_layout_replicated(&twin, DT_SHAPE(4, 4));
    dt_layout malformed = x;
    malformed.partial = 16;
    dt_plan *plan = NULL;
    ck_ok(test_expect(dt_plan_create(&x, &longer, 4, NULL, &plan), DT_ERR_SHAPE,
                      "from global shape [4, 4] to [4, 5]", "shape"));
    ck_ok(test_expect(dt_plan_create(&x, &elsewhere, 4, NULL, &plan), DT_ERR_ARG, "two meshes",
                      "grid"));
    ck_ok(test_expect(dt_plan_create(&x, &malformed, 4, NULL, &plan), DT_ERR_PLACEMENT, "P on axes",
                      "dst"));
    ck_ok(test_expect(dt_plan_create(&malformed, &x, 4, NULL, &plan), DT_ERR_PLACEMENT, "P on axes",
                      "src"));
    ck_assert_ptr_null(plan);
    dt_plan_destroy(&plan);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("placements/plan");
    TCase *tests = tcase_create("plan");
    tcase_set_timeout(tests, 100);
    tcase_add_test(tests, one_axis);
    tcase_add_test(tests, two_axes);
    tcase_add_test(tests, three_axes);
    tcase_add_test(tests, many_axes);
    tcase_add_test(tests, eight_axes);
    tcase_add_test(tests, errors);
    suite_add_tcase(suite, tests);
    return test_main(suite);
}
