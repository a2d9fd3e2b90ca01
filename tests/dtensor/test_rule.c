/* tests/dtensor/test_rule.c - rules in letters: "...", optional operands, rows by axis, shapes,
 * and what errors say. */
#include "dtensor/dt_rule.h"
#include "tests/harness.h"

#include <string.h>

static const dt_grid grid = {.naxes = 2, .size = {2, 3}, .name = {"dp", "tp"}};
static dt_layout in[DT_OP_MAX_IN];

/* An application to `n` operands; NULL text: left out. */
static dt_rule apply(int n, const dt_shape *shape, const char *const *text)
{
    dt_rule r = {.name = "linear", .linear = 0xff, .nin = n, .nout = 1};
    for (int i = 0; i < n; i++) {
        if (!text[i])
            continue;
        ck_ok(dt_layout_parse(&grid, shape[i], text[i], &in[i]));
        r.in[i] = &in[i];
    }
    return r;
}

static void check_out(const dt_rule *r, dt_shape shape, const char *text)
{
    char buf[DT_LAYOUT_TEXT];
    ck_assert(dt_shape_equal(r->out[0].shape, shape));
    ck_assert_str_eq(dt_layout_print(&r->out[0], buf, sizeof buf), text);
    ck_assert_ptr_eq(r->out[0].grid, &grid);
    ck_ok(dt_layout_check(&r->out[0]));
}

static const dt_shape linear[] = {
    {3, {4, 6, 8}},
    {2, {16, 8}},
    {1, {16}},
};
#define TEXTS(...) ((const char *const[]){__VA_ARGS__})

START_TEST(test_row_parallel_linear_keeps_the_bias_once)
{
    dt_rule r = apply(3, linear, TEXTS("S(0)@dp, S(2)@tp", "S(1)@tp", ""));
    ck_ok(dt_rule_letters(&r, "...k,nk+n->...n", NULL));
    check_out(&r, DT_SHAPE(4, 6, 16), "[S(0)@dp, P@tp]");
    ck_assert_int_eq(r.zeroed[0], 0);
    ck_assert_int_eq(r.zeroed[1], 0);
    ck_assert_int_eq(r.zeroed[2], 1 << 1); /* tp */
}
END_TEST

START_TEST(test_optional_operands_drop_out)
{
    dt_rule r = apply(3, linear, TEXTS("S(1)@dp>tp", "", NULL));
    ck_ok(dt_rule_letters(&r, "...k, nk + n -> ...n", NULL));
    check_out(&r, DT_SHAPE(4, 6, 16), "[S(1)@dp>tp]");
    /* A term left out is no R term: nothing is zeroed, and P stays possible. */
    r = apply(3, linear, TEXTS("P@tp", "", NULL));
    ck_ok(dt_rule_letters(&r, "...k,nk+n->...n", NULL));
    check_out(&r, DT_SHAPE(4, 6, 16), "[P@tp]");
    ck_assert_int_eq(r.zeroed[0] | r.zeroed[1] | r.zeroed[2], 0);
    r = apply(3, linear, TEXTS(NULL, NULL, NULL));
    ck_assert_int_eq(dt_rule_letters(&r, "...k,nk+n->...n", NULL), DT_ERR_ARG);
}
END_TEST

START_TEST(test_dots_align_on_the_right)
{
    const dt_shape shape[] = {DT_SHAPE(2, 3, 5, 7), DT_SHAPE(5, 7), DT_SCALAR};
    dt_rule r = apply(3, shape, TEXTS("S(2)@tp, S(0)@dp", "S(0)@tp", ""));
    ck_ok(dt_rule_letters(&r, "...+...,...->...", NULL));
    check_out(&r, shape[0], "[S(0)@dp, S(2)@tp]");
    ck_ok(dt_rule_letters(&r, "...+...,...->", NULL));
    check_out(&r, DT_SCALAR, "[P@dp, P@tp]");
    r = apply(2, shape, TEXTS("S(3)@tp", "S(0)@tp"));
    ck_assert_int_eq(dt_rule_letters(&r, "...+...->...", NULL), DT_ERR_PLACEMENT);
}
END_TEST

/* Attention's row A: g of k is h of q on the axes that shard it; its size is checked by the op. */
static const char *row_of_axis(const dt_rule *r, int axis)
{
    return dt_layout_at(r->in[1], axis).kind == DT_SHARD ? "bhD,bhD->bh" : NULL;
}

START_TEST(test_rows_by_axis)
{
    const dt_shape shape[] = {DT_SHAPE(3, 8, 4), DT_SHAPE(3, 4, 4)};
    dt_rule r = apply(2, shape, TEXTS("S(1)@tp>dp", "S(1)@tp"));
    dt_layout wide = in[1];
    wide.shape.dim[1] = 8;
    dt_letters options = {.spec_of_axis = row_of_axis, .loose = "hG", .seen = {NULL, &wide}};
    ck_ok(dt_rule_letters(&r, "bhD,bGD->bh", &options));
    check_out(&r, DT_SHAPE(3, 8), "[S(1)@tp>dp]");
    options.spec_of_axis = NULL;
    ck_assert_int_eq(dt_rule_letters(&r, "bhD,bGD->bh", &options), DT_ERR_PLACEMENT);
}
END_TEST

typedef struct refusal {
    const char *spec, *text[3];
    uint32_t linear;
    dt_status status;
    const char *says;
} refusal;

static const refusal refusals[] = {
    {"...k,nk+n->...n",
     {"S(2)@tp", "", ""},
     7,
     DT_ERR_PLACEMENT,
     "linear: on tp: operand 1 ([16, 8] [R]) must be S(1), as operand 0 ([4, 6, 8] [S(2)@tp]) is "
     "sharded on dim 2"},
    {"...k,nk+n->...n",
     {"S(1)@dp", "", "S(0)@dp"},
     7,
     DT_ERR_PLACEMENT,
     "on dp: operand 2 ([16] [S(0)@dp]) must be R, as operand 0 ([4, 6, 8] [S(1)@dp]) is sharded "
     "on dim 1"},
    {"...k,nk+n->...n",
     {"", "S(0)@tp", ""},
     7,
     DT_ERR_PLACEMENT,
     "on tp: operand 2 ([16] [R]) must be S(0)"},
    {"...k,nk+n->...n",
     {"S(0)@tp", "", "P@tp"},
     7,
     DT_ERR_PLACEMENT,
     "operand 2 ([16] [P@tp]) must be R"},
    {"...k,nk+n->...n", {"P@tp", "P@tp", ""}, 7, DT_ERR_PLACEMENT, "a product of two sums"},
    {"...k,nk+n->...n",
     {"P@tp", "", ""},
     6,
     DT_ERR_PLACEMENT,
     "operand 0 ([4, 6, 8] [P@tp]) is P, but the op is not linear in it"},
    {"...k,nk+n->...n",
     {"S(2)@dp>tp", "S(1)@tp>dp", ""},
     7,
     DT_ERR_PLACEMENT,
     "dim 2 of operand 0 ([4, 6, 8] [S(2)@dp>tp]) and dim 1 of operand 1 ([16, 8] [S(1)@tp>dp]) "
     "are split differently"},
    {"...K,nK+n->...n",
     {"S(2)@tp", "S(1)@tp", ""},
     7,
     DT_ERR_PLACEMENT,
     "on tp: dim 2 of operand 0 ([4, 6, 8] [S(2)@tp]) may not be sharded"},
    {"...k,kn+n->...n",
     {"", "", ""},
     7,
     DT_ERR_SHAPE,
     "dim 2 of operand 0 ([4, 6, 8] [R]) has size 8, dim 0 of operand 1 ([16, 8] [R]) has size "
     "16: they must agree"},
    {"...k,nkc+n->...n",
     {"", "", ""},
     7,
     DT_ERR_SHAPE,
     "operand 1 ([16, 8] [R]) must have 3 dims (nkc)"},
    {"...k,nk+...ab->...n", {"", "", ""}, 7, DT_ERR_SHAPE, "must have at least 2 dims (...ab)"},
    {"...k,nk+n-...n", {"", "", ""}, 7, DT_ERR_ARG, "no '->'"},
    {"...k,n1+n->...n", {"", "", ""}, 7, DT_ERR_ARG, "unexpected '1' at 6"},
    {"...k,nk+n->...n,k", {"", "", ""}, 7, DT_ERR_ARG, "unexpected ','"},
    {"...k,nk->...n", {"", "", ""}, 7, DT_ERR_ARG, "has 2 operands, not 3"},
    {"...k,nk+n+n->...n", {"", "", ""}, 7, DT_ERR_ARG, "more than 3 operands"},
    {"...k,nk+n->...z", {"", "", ""}, 7, DT_ERR_ARG, "output letter z"},
    {"...k,nk+n->...nn", {"", "", ""}, 7, DT_ERR_ARG, "output letter n"},
    {"...kk,nk+n->...n", {"", "", ""}, 7, DT_ERR_ARG, "operand 0 has letter k twice"},
};

START_TEST(test_refusals_say_what_is_wrong)
{
    for (int i = 0; i < DT_COUNT(refusals); i++) {
        const refusal *f = &refusals[i];
        dt_rule r = apply(3, linear, f->text);
        r.linear = f->linear;
        const dt_rule before = r;
        ck_ok(test_expect(dt_rule_letters(&r, f->spec, NULL), f->status, f->says, f->spec));
        ck_assert_msg(!memcmp(&before, &r, sizeof r), "%s: a failure left marks", f->spec);
    }
}
END_TEST

START_TEST(test_another_mesh_is_refused)
{
    dt_grid twin = grid;
    dt_rule r = apply(3, linear, TEXTS("", "", ""));
    in[2].grid = &twin;
    ck_ok(test_expect(dt_rule_letters(&r, "...k,nk+n->...n", NULL), DT_ERR_ARG,
                      "operand 2 lives on another mesh", "other mesh"));
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("rules in letters");
    TCase *tc = tcase_create("letters");
    tcase_add_test(tc, test_row_parallel_linear_keeps_the_bias_once);
    tcase_add_test(tc, test_optional_operands_drop_out);
    tcase_add_test(tc, test_dots_align_on_the_right);
    tcase_add_test(tc, test_rows_by_axis);
    tcase_add_test(tc, test_refusals_say_what_is_wrong);
    tcase_add_test(tc, test_another_mesh_is_refused);
    suite_add_tcase(suite, tc);
    return test_main(suite);
}
