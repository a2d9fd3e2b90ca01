/* tests/placements/test_layout_text.c - layouts from and to text. */
#include "tests/harness.h"
#include "tests/placements/sim.h"

#include <string.h>

static const dt_grid mesh = {
    .naxes = 4, .size = {2, 2, 2, 2}, .name = {"pp", "dp_shard", "cp", "tp"}};

static void expect_text(const char *text, const char *want)
{
    dt_layout layout;
    char got[DT_LAYOUT_TEXT];
    ck_ok(dt_layout_parse(&mesh, DT_SHAPE(4, 4, 4), text, &layout));
    ck_assert_str_eq(dt_layout_print(&layout, got, sizeof got), want);
}

START_TEST(texts)
{
    expect_text("", "[R]");
    expect_text(" [ ] ", "[R]");
    expect_text("R", "[R]");
    expect_text("[R]", "[R]");
    expect_text("R@tp>cp", "[R]");
    expect_text("P@tp", "[P@tp]");
    expect_text("P@tp>cp", "[P@cp, P@tp]");
    expect_text("[S(0)@tp>dp_shard, R@pp]", "[S(0)@tp>dp_shard]");
    expect_text("S(0)@dp_shard,S(0)@tp", "[S(0)@dp_shard>tp]");
    expect_text("S(1)@tp, S(0)@dp_shard, S(1)@cp", "[S(0)@dp_shard, S(1)@tp>cp]");
    expect_text("S(-1)@tp, S(-3)@cp", "[S(0)@cp, S(2)@tp]");
    expect_text(" [ P @ pp , S ( 2 ) @ cp > tp ] ", "[S(2)@cp>tp, P@pp]");
    expect_text("P@cp, S(0)@tp>dp_shard", "[S(0)@tp>dp_shard, P@cp]");
}
END_TEST

START_TEST(every_layout_parses_back)
{
    static const int sizes[][3] = {{2, 2, 2}, {1, 3, 2}};
    static dt_layout all[SIM_LAYOUTS];
    for (int g = 0; g < DT_COUNT(sizes); g++) {
        const dt_grid grid = sim_grid(3, sizes[g]);
        for (int ndim = 0; ndim <= 3; ndim++) {
            const dt_shape shape = dt_shape_make(ndim, (int64_t[]){5, 0, 7});
            const int n = sim_layouts(&grid, shape, all);
            for (int i = 0; i < n; i++) {
                char text[DT_LAYOUT_TEXT];
                dt_layout back;
                ck_ok(dt_layout_parse(&grid, shape, dt_layout_print(&all[i], text, sizeof text),
                                      &back));
                ck_assert_msg(dt_layout_equal(&all[i], &back), "%s", text);
            }
        }
    }
}
END_TEST

START_TEST(errors)
{
    static const char *const bad[][2] = {
        {"S(0)@xp", "unknown axis xp; the mesh has: pp, dp_shard, cp, tp"},
        {"S(0)@tpp", "unknown axis tpp"},
        {"S(0)@a_name_longer_than_any_axis_may_be", "unknown axis a_name_longer"},
        {"S(0)@tp, P@tp", "axis tp is named twice"},
        {"S(0)@tp>tp", "axis tp is named twice"},
        {"R@tp, P@tp", "axis tp is named twice"},
        {"S(3)@tp", "S(3) of a tensor with 3 dims"},
        {"S(-4)@tp", "S(-4) of a tensor with 3 dims"},
        {"S(99999999999)@tp", "of a tensor with 3 dims"},
        {"S@tp", "( after S expected at \"@tp\""},
        {"S()@tp", "a dim expected at \")@tp\""},
        {"S(0@tp", ") expected at \"@tp\""},
        {"S(0)", "@ expected at \"\""},
        {"P", "@ expected"},
        {"P@", "the name of an axis expected"},
        {"P@tp>", "the name of an axis expected"},
        {"P@tp,", "R, P or S(dim) expected at \"\""},
        {"Q@tp", "R, P or S(dim) expected at \"Q@tp\""},
        {"[P@tp", ", or ] expected"},
        {"P@tp]", ", or the end expected at \"]\""},
        {"[P@tp] x", "the end expected at \"x\""},
        {"P@tp P@cp", ", or the end expected at \"P@cp\""},
        {"s(0)@tp", "R, P or S(dim) expected"},
    };
    for (int i = 0; i < DT_COUNT(bad); i++) {
        dt_layout layout = {.partial = 77};
        ck_ok(test_expect(dt_layout_parse(&mesh, DT_SHAPE(4, 4, 4), bad[i][0], &layout),
                          DT_ERR_PLACEMENT, bad[i][1], bad[i][0]));
        ck_assert_int_eq(layout.partial, 77);
    }
    dt_layout layout;
    ck_ok(test_expect(dt_layout_parse(&mesh, DT_SCALAR, "S(0)@tp", &layout), DT_ERR_PLACEMENT,
                      "S(0) of a tensor with 0 dims", "scalar"));
}
END_TEST

/* The longest name an axis may have, and one that begins alike. */
START_TEST(long_names)
{
    const dt_grid one = {.naxes = 1, .size = {2}, .name = {"a_name_of_23_characters"}};
    dt_layout layout;
    ck_ok(dt_layout_parse(&one, DT_SHAPE(4), "S(0)@a_name_of_23_characters", &layout));
    ck_assert_int_eq(layout.nsplit[0], 1);
    ck_ok(test_expect(dt_layout_parse(&one, DT_SHAPE(4), "S(0)@a_name_of_23_characters_", &layout),
                      DT_ERR_PLACEMENT, "unknown axis a_name_of_23_characters_", "longer"));
}
END_TEST

START_TEST(room)
{
    /* The longest text there is fits in DT_LAYOUT_TEXT, and a short buffer is cut, not overrun. */
    dt_grid grid = {.naxes = DT_MAX_AXES};
    dt_layout layout = {.grid = &grid, .shape = DT_SHAPE(1, 1, 1, 1, 1, 1, 1, 1)};
    for (int a = 0; a < DT_MAX_AXES; a++) {
        grid.size[a] = 2;
        memset(grid.name[a], 'a' + a, DT_NAME_SIZE - 1);
        dt_layout_shard(&layout, a, a);
    }
    char text[DT_LAYOUT_TEXT], small[8];
    const size_t length = strlen(dt_layout_print(&layout, text, sizeof text));
    ck_assert_uint_eq(length, 8 * (5 + 23 + 2));
    ck_assert_int_eq(text[length - 1], ']');
    ck_assert_str_eq(dt_layout_print(&layout, small, sizeof small), "[S(0)@a");
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("placements/layout_text");
    TCase *tests = tcase_create("text");
    tcase_add_test(tests, texts);
    tcase_add_test(tests, every_layout_parses_back);
    tcase_add_test(tests, errors);
    tcase_add_test(tests, long_names);
    tcase_add_test(tests, room);
    suite_add_tcase(suite, tests);
    return test_main(suite);
}
