/* tests/placements/test_plan_cost.c - known plans: steps, bytes, text, counts of collectives.
 * Read next: tests/placements/test_plan_least.c. */
#include "tests/harness.h"
#include "tests/placements/sim.h"

static dt_layout all[SIM_LAYOUTS];

/* 8 x 8 floats are 256 bytes; mesh a = 2, b = 2, c = 1. Latency counts most. */
static const char *const known[][3] = {
    {"", "", "nothing"},
    {"S(0)@a>b", "", "all-gather dim 0 @a>b 192 B"},
    {"S(0)@b>a", "", "all-gather dim 0 @b>a 192 B"},
    {"S(0)@a>b", "S(0)@a", "all-gather dim 0 @b 64 B"},
    {"S(0)@a>b", "S(0)@b", "all-gather dim 0 @a>b 192 B; slice dim 0 @b"},
    {"S(0)@a>b", "S(0)@b>a", "all-gather dim 0 @a>b 192 B; slice dim 0 @b>a"},
    {"S(0)@a", "S(0)@b", "all-gather dim 0 @a 128 B; slice dim 0 @b"},
    {"S(0)@a", "S(0)@b>a", "all-gather dim 0 @a 128 B; slice dim 0 @b>a"},
    {"S(0)@a", "S(0)@a>b", "slice dim 0 @b"},
    {"", "S(1)@b>a", "slice dim 1 @b>a"},
    {"", "S(0)@a, S(1)@b", "slice dim 0 @a; slice dim 1 @b"},
    {"S(0)@a, S(1)@b", "", "all-gather dim 0 @a 64 B; all-gather dim 1 @b 128 B"},
    {"S(0)@a", "S(1)@a", "all-to-all dim 0 -> 1 @a 64 B"},
    {"S(0)@a>b", "S(1)@a>b", "all-to-all dim 0 -> 1 @a>b 48 B"},
    {"S(0)@a>b", "S(0)@a, S(1)@b", "all-to-all dim 0 -> 1 @b 32 B"},
    {"S(0)@a>b", "S(1)@b>a", "all-gather dim 0 @a>b 192 B; slice dim 1 @b>a"},
    {"P@a", "", "all-reduce @a 256 B"},
    {"P@a, P@b", "", "all-reduce @a,b 384 B"},
    {"P@a, P@b", "P@a", "all-reduce @b 256 B"},
    {"P@a", "S(1)@a", "reduce-scatter dim 1 @a 128 B"},
    {"P@a, P@b", "S(0)@a>b", "reduce-scatter dim 0 @a>b 192 B"},
    {"P@a, P@b", "S(0)@b>a", "reduce-scatter dim 0 @b>a 192 B"},
    {"P@a, P@b", "S(0)@a, S(1)@b", "all-reduce @a,b 384 B; slice dim 0 @a; slice dim 1 @b"},
    {"P@a, P@b", "S(0)@a, P@b", "reduce-scatter dim 0 @a 128 B"},
    {"P@a, P@b", "S(0)@a", "all-reduce @a,b 384 B; slice dim 0 @a"},
    {"P@a", "S(0)@b", "slice dim 0 @b; all-reduce @a 128 B"},
    {"P@a", "S(0)@b>a", "slice dim 0 @b; reduce-scatter dim 0 @a 64 B"},
    {"P@a", "S(0)@a>b", "reduce-scatter dim 0 @a 128 B; slice dim 0 @b"},
    {"P@a, S(0)@b", "", "all-reduce @a 128 B; all-gather dim 0 @b 128 B"},
    {"", "P@a, P@b", "keep @a,b"},
    {"S(0)@a", "P@a", "pad dim 0 @a"},
    {"S(0)@b>a", "P@a, P@b", "pad dim 0 @b>a"},
    {"S(0)@a, P@b", "P@a, P@b", "pad dim 0 @a"},
    {"S(0)@a>b", "S(0)@b, P@a", "all-gather dim 0 @b 64 B; pad dim 0 @a; slice dim 0 @b"},
    {"P@a", "S(0)@a, P@b", "keep @b; reduce-scatter dim 0 @a 128 B"},
    {"P@c", "S(0)@c", "relabel @c"},
    {"S(0)@c>a", "S(0)@a>c", "relabel @c"},
    {"S(0)@a>c, P@b", "P@b, P@c", "all-gather dim 0 @a 128 B"},
};

START_TEST(known_plans)
{
    const dt_grid grid = sim_grid(3, (int[]){2, 2, 1});
    for (int i = 0; i < DT_COUNT(known); i++) {
        dt_layout src, dst;
        dt_plan *plan;
        char text[500];
        ck_ok(dt_layout_parse(&grid, DT_SHAPE(8, 8), known[i][0], &src));
        ck_ok(dt_layout_parse(&grid, DT_SHAPE(8, 8), known[i][1], &dst));
        ck_ok(dt_plan_create(&src, &dst, 4, NULL, &plan));
        ck_assert_str_eq(dt_plan_print(plan, text, sizeof text), known[i][2]);
        dt_plan_destroy(&plan);
    }
}
END_TEST

static void expect_plan(const char *src_text, const char *dst_text, const dt_link *link,
                        const char *want)
{
    const dt_grid grid = sim_grid(2, (int[]){2, 2});
    const dt_shape shape = DT_SHAPE(1 << 14, 1 << 13);
    dt_layout src, dst;
    dt_plan *plan;
    char text[500];
    ck_ok(dt_layout_parse(&grid, shape, src_text, &src));
    ck_ok(dt_layout_parse(&grid, shape, dst_text, &dst));
    ck_ok(dt_plan_create(&src, &dst, 4, link, &plan));
    ck_assert_str_eq(dt_plan_print(plan, text, sizeof text), want);
    dt_plan_destroy(&plan);
}

START_TEST(bytes_and_links_decide)
{
    /* 2^27 floats: 536.9 MB. A second collective is worth 134 MB less. */
    expect_plan("P@a, P@b", "S(0)@a", NULL,
                "reduce-scatter dim 0 @a 268.4 MB; all-reduce @b 268.4 MB");
    expect_plan("P@a, P@b", "S(0)@a, S(1)@b", NULL,
                "reduce-scatter dim 0 @a 268.4 MB; reduce-scatter dim 1 @b 134.2 MB");
    expect_plan("S(0)@a>b", "", NULL, "all-gather dim 0 @a>b 402.7 MB");
    /* A slow outer axis should carry half of the bytes, not three quarters. */
    const dt_link slow_a[2] = {{1e-5, 1e-8}, {1e-5, 1e-11}};
    expect_plan("S(0)@a>b", "", slow_a,
                "all-gather dim 0 @b 134.2 MB; all-gather dim 0 @a 268.4 MB");
    const dt_link late[2] = {{10, 1e-11}, {1, 1e-11}};
    expect_plan("S(0)@a>b", "", late, "all-gather dim 0 @a>b 402.7 MB");
}
END_TEST

START_TEST(printing)
{
    const dt_grid grid = sim_grid(1, (int[]){2});
    dt_layout src, dst;
    dt_plan *plan;
    char small[12];
    static const struct {
        int64_t rows;
        const char *text;
    } golden[] = {{999, "all-gather dim 0 @a 500 B"},
                  {1999, "all-gather dim 0 @a 1.0 kB"},
                  {8400000, "all-gather dim 0 @a 4.2 MB"},
                  {1999990000, "all-gather dim 0 @a 1.0 GB"}};
    for (int i = 0; i < DT_COUNT(golden); i++) {
        char text[100];
        ck_ok(dt_layout_parse(&grid, DT_SHAPE(golden[i].rows), "S(0)@a", &src));
        dst = dt_layout_replicated(&grid, src.shape);
        ck_ok(dt_plan_create(&src, &dst, 1, NULL, &plan));
        ck_assert_str_eq(dt_plan_print(plan, text, sizeof text), golden[i].text);
        ck_assert_str_eq(dt_plan_print(plan, small, sizeof small), "all-gather ");
        dt_plan_destroy(&plan);
    }
    ck_assert_str_eq(dt_step_name(DT_STEP_REDUCE_SCATTER), "reduce-scatter");
    ck_assert(dt_step_moves(DT_STEP_ALL_TO_ALL) && !dt_step_moves(DT_STEP_PAD));
}
END_TEST

static bool same_placement(dt_placement a, dt_placement b)
{
    return a.kind == b.kind && a.dim == b.dim;
}

static bool nested(const dt_layout *layout)
{
    for (int d = 0; d < layout->shape.ndim; d++)
        if (layout->nsplit[d] > 1)
            return true;
    return false;
}

/* Without nests: at most one collective for each axis whose change needs one. In any plan, an axis
 * that is R or P in both layouts is left alone. */
static void check_count(const dt_layout *src, const dt_layout *dst)
{
    dt_plan *plan, *again;
    ck_ok(dt_plan_create(src, dst, 4, NULL, &plan));
    ck_ok(dt_plan_create(src, dst, 4, NULL, &again));
    char a[500], b[500];
    ck_assert_str_eq(dt_plan_print(plan, a, sizeof a), dt_plan_print(again, b, sizeof b));
    int most = 0, collectives = 0;
    int64_t bytes = 0;
    for (int axis = 0; axis < src->grid->naxes; axis++) {
        const dt_placement p = dt_layout_at(src, axis), q = dt_layout_at(dst, axis);
        most += !same_placement(p, q) && p.kind != DT_REPLICATE && q.kind != DT_PARTIAL;
        for (int i = 0; i < plan->nsteps; i++)
            if (same_placement(p, q) && p.kind != DT_SHARD)
                ck_assert(same_placement(p, dt_layout_at(&plan->step[i].after, axis)));
    }
    for (int i = 0; i < plan->nsteps; i++) {
        collectives += dt_step_moves(plan->step[i].kind);
        bytes += plan->step[i].bytes;
    }
    ck_assert_int_eq(collectives, plan->ncollectives);
    ck_assert_int_eq(bytes, plan->bytes);
    if (!nested(src) && !nested(dst))
        ck_assert_msg(collectives <= most, "%d for %d changes: %s", collectives, most, a);
    dt_plan_destroy(&plan);
    dt_plan_destroy(&again);
}

START_TEST(counts)
{
    static const int sizes[][3] = {{2, 2, 2}, {4, 2, 3}};
    for (int g = 0; g < DT_COUNT(sizes); g++) {
        for (int naxes = 1; naxes <= 3; naxes++) {
            const dt_grid grid = sim_grid(naxes, sizes[g]);
            const int n = sim_layouts(&grid, DT_SHAPE(24, 24), all);
            for (int i = 0; i < n; i++)
                for (int j = 0; j < n; j++)
                    check_count(&all[i], &all[j]);
        }
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("placements/plan_cost");
    TCase *tests = tcase_create("plan_cost");
    tcase_set_timeout(tests, 100);
    tcase_add_test(tests, known_plans);
    tcase_add_test(tests, bytes_and_links_decide);
    tcase_add_test(tests, printing);
    tcase_add_test(tests, counts);
    suite_add_tcase(suite, tests);
    return test_main(suite);
}
