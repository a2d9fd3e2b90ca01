/* tests/dtensor/test_rule_fix.c - the proposals that go with a refusal: accepted, cheapest
 * first, priced both ways. */
#include "dtensor/dtensor_internal.h"
#include "tests/harness.h"

#include <stdio.h>
#include <string.h>

static const dt_grid grid = {.naxes = 2, .size = {2, 4}, .name = {"dp", "tp"}};

/* The fix of op(x, y) refused by `spec`, both f32. */
static const char *fix_of(const char *spec, dt_shape x, const char *x_at, dt_shape y,
                          const char *y_at, uint32_t no_grad)
{
    static char buf[1000];
    dt_layout in[2];
    dt_rule r = {
        .name = "op", .linear = 3, .no_grad = no_grad, .nin = 2, .nout = 1, .in = {&in[0], &in[1]}};
    ck_ok(dt_layout_parse(&grid, x, x_at, &in[0]));
    ck_ok(dt_layout_parse(&grid, y, y_at, &in[1]));
    ck_assert_int_eq(dt_rule_letters(&r, spec, NULL), DT_ERR_PLACEMENT);
    char refusal[2000];
    snprintf(refusal, sizeof refusal, "%s", dt_error_trace());
    refusal[strcspn(refusal, "\n")] = 0;
    ck_ok(dti_rule_explain_fix(&r, NULL, spec, 4, buf, sizeof buf));
    ck_assert_msg(!strncmp(refusal, dt_error_trace(), strlen(refusal)), "trace changed: %s",
                  dt_error_trace());
    dt_error_clear();
    return buf;
}

/* x [8, 64, 512] S(2), w [512, 512] R, f32. Bytes that a rank sends: gathering w [512, 128] from
 * 4 ranks is 3/4 of 1 MiB = 786432; x has 1 MiB: an all-to-all from S(2) to S(0) sends 3/4 of a
 * rank's quarter = 196608, less than w. */
START_TEST(test_linear_wants_the_weight_or_the_input_moved)
{
    const dt_shape x = DT_SHAPE(8, 64, 512), w = DT_SHAPE(512, 512);
    ck_assert_str_eq(fix_of("...k,nk->...n", x, "S(2)@tp", w, "", 0),
                     "redistribute operand 0 S(2) -> S(0) on tp (forward all-to-all 196.6 kB, "
                     "backward all-to-all 196.6 kB) or operand 1 R -> S(1) on tp (forward 0 "
                     "bytes, backward all-gather 786.4 kB)");
}
END_TEST

/* A large batch and a small weight: the weight is sliced for nothing, its gradient gathered. */
START_TEST(test_the_cheapest_comes_first)
{
    const dt_shape x = DT_SHAPE(64, 1024, 64), w = DT_SHAPE(64, 64);
    ck_assert_str_eq(fix_of("...k,nk->...n", x, "S(2)@tp", w, "", 0),
                     "redistribute operand 1 R -> S(1) on tp (forward 0 bytes, backward all-gather "
                     "12.3 kB) or operand 0 S(2) -> S(0) on tp (forward all-to-all 3.1 MB, "
                     "backward all-to-all 3.1 MB)");
}
END_TEST

/* Two sums multiplied: one is to be reduced; as nothing else is sharded, to R. The gradient of
 * an R operand beside a P operand arises as P and the adjoint returns it as R: an all-reduce
 * too. */
START_TEST(test_product_of_two_sums)
{
    const char *fix = fix_of("...,...->...", DT_SHAPE(256), "P@tp", DT_SHAPE(4, 256), "P@tp", 0);
    ck_assert_msg(
        !strncmp(fix, "redistribute operand 0 P -> R on tp (forward all-reduce 1.5 kB, ", 64), "%s",
        fix);
    ck_assert_msg(strstr(fix, " or operand 1 P -> R on tp (forward all-reduce 6.1 kB, "), "%s",
                  fix);
}
END_TEST

/* Nests: the order of axes is part of the change. */
START_TEST(test_orders_of_a_nest)
{
    const char *fix =
        fix_of("...+...->...", DT_SHAPE(16, 8), "S(0)@dp>tp", DT_SHAPE(16, 8), "S(0)@tp>dp", 0);
    ck_assert_msg(strstr(fix, "operand 0 S(0)@dp>tp -> S(0)@tp>dp on "), "%s", fix);
    ck_assert_msg(strstr(fix, "operand 1 S(0)@tp>dp -> S(0)@dp>tp on "), "%s", fix);
}
END_TEST

/* Wrong on both axes: no single change helps, a pair does; changes of one operand are one
 * redistribute. */
START_TEST(test_pairs_where_one_change_is_not_enough)
{
    const char *fix =
        fix_of("...k,nk->...n", DT_SHAPE(64, 64), "S(1)@dp>tp", DT_SHAPE(64, 64), "", 0);
    ck_assert_msg(strstr(fix, "operand 1 R -> S(1) on dp and operand 1 R -> S(1)@dp>tp on tp "
                              "(forward 0 bytes, backward all-gather "),
                  "%s", fix);
}
END_TEST

/* An operand without a gradient costs nothing backward. */
START_TEST(test_no_gradient_no_price)
{
    const char *fix = fix_of("...,...->...", DT_SHAPE(64, 64), "", DT_SHAPE(64, 64), "S(0)@tp", 1);
    ck_assert_str_eq(fix, "redistribute operand 0 R -> S(0) on tp (forward 0 bytes, backward 0 "
                          "bytes) or operand 1 S(0) -> R on tp (forward all-gather 12.3 kB, "
                          "backward 0 bytes)");
}
END_TEST

START_TEST(test_short_buffers_are_not_overrun)
{
    dt_layout in[2];
    const dt_rule r = {.name = "op", .linear = 3, .nin = 2, .nout = 1, .in = {&in[0], &in[1]}};
    char buf[9] = "12345678";
    ck_ok(dt_layout_parse(&grid, DT_SHAPE(4, 4), "S(1)@tp", &in[0]));
    ck_ok(dt_layout_parse(&grid, DT_SHAPE(4, 4), "", &in[1]));
    ck_ok(dti_rule_explain_fix(&r, NULL, "...k,nk->...n", 4, buf, 5));
    ck_assert_str_eq(buf, "redi");
    ck_assert_int_eq(buf[5], '6');
    ck_ok(dt_layout_parse(&grid, DT_SHAPE(4, 4), "S(1)@tp", &in[1]));
    ck_assert_int_eq(dti_rule_explain_fix(&r, NULL, "...k,nk->...n", 4, buf, 5), DT_ERR_STATE);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("rule fix");
    TCase *tc = tcase_create("fix");
    tcase_add_test(tc, test_linear_wants_the_weight_or_the_input_moved);
    tcase_add_test(tc, test_the_cheapest_comes_first);
    tcase_add_test(tc, test_product_of_two_sums);
    tcase_add_test(tc, test_orders_of_a_nest);
    tcase_add_test(tc, test_pairs_where_one_change_is_not_enough);
    tcase_add_test(tc, test_no_gradient_no_price);
    tcase_add_test(tc, test_short_buffers_are_not_overrun);
    suite_add_tcase(suite, tc);
    return test_main(suite);
}
