/* tests/dtensor/test_ops_shape.c - changes of type and shape: cast, rearrange, split, concat,
 * slice, select. Expected counts of accepted rows: tests/dtensor/RULES.txt. */
#include "tests/dtensor/op_check.h"

#include <string.h>

#define S0 "S(0)@axisA"
#define S1 "S(1)@axisA"
#define S2 "S(2)@axisA"
#define S3 "S(3)@axisA"
#define P  "P@axisA"
#define R  "R@axisA"

/* ---- cast ---- */

static void cast(dt_tape *t, dt_tensor *const *in, dt_tensor **out, const void *arg)
{
    out[0] = dt_cast(t, in[0], DT_F64, *(const bool *)arg);
}

START_TEST(cast_passes_partial_only_if_asked)
{
    const bool no = false, yes = true;
    op_check_spec spec = {.name = "cast", .call = cast, .arg = &no, .nin = 1};
    spec.shape[0] = DT_SHAPE(3, 5);
    spec.accept = 3;
    op_check(&spec);
    spec.arg = &yes;
    spec.accept = 4;
    op_check(&spec);
}
END_TEST

/* ---- rearrange ---- */

typedef struct pattern {
    const char *text, *sizes;
} pattern;

static void rearrange(dt_tape *t, dt_tensor *const *in, dt_tensor **out, const void *arg)
{
    const pattern *p = arg;
    out[0] = dt_rearrange(t, in[0], p->text, p->sizes);
}

/* x [3, 2, (5, 4)] -> [3, 5, 2, 4] */
static void heads_naive(const double *const *in, double *const *out, const void *arg)
{
    (void)arg;
    for (int b = 0; b < 3; b++)
        for (int s = 0; s < 2; s++)
            for (int h = 0; h < 5; h++)
                for (int d = 0; d < 4; d++)
                    out[0][((b * 5 + h) * 2 + s) * 4 + d] = in[0][((b * 2 + s) * 5 + h) * 4 + d];
}

static void merge_naive(const double *const *in, double *const *out, const void *arg)
{
    (void)arg;
    for (int b = 0; b < 3; b++)
        for (int s = 0; s < 2; s++)
            for (int h = 0; h < 5; h++)
                for (int d = 0; d < 4; d++)
                    out[0][((b * 2 + s) * 5 + h) * 4 + d] = in[0][((b * 5 + h) * 2 + s) * 4 + d];
}

/* Heads: 5 of 4 elements. An axis of 2 splits 20 elements in 10 + 10, but heads in 3 + 2: refused;
 * an axis of 4 splits them in 5s against 2, 2, 1, 0. Merging does not go through either: the dim of
 * heads may not be sharded. */
START_TEST(rearrange_rows_where_heads_do_not_divide)
{
    const pattern split = {"b s (h d) -> b h s d", "h=5"}, merge = {"b h s d -> b s (h d)", ""};
    op_check(&(op_check_spec){.name = "rearrange",
                              .call = rearrange,
                              .naive = heads_naive,
                              .arg = &split,
                              .nin = 1,
                              .shape = {DT_SHAPE(3, 2, 20)},
                              .accept = 4});
    op_check(&(op_check_spec){.name = "rearrange",
                              .call = rearrange,
                              .naive = merge_naive,
                              .arg = &merge,
                              .nin = 1,
                              .shape = {DT_SHAPE(3, 5, 2, 4)},
                              .accept = 4});
}
END_TEST

/* 4 heads go on 2, 4 and 2 x 2 ranks; 6 heads on 2 only: on 4, heads are 2, 2, 2, 0 and elements 6
 * each. */
START_TEST(rearrange_rows_where_heads_divide)
{
    const pattern split = {"b s (h d) -> b h s d", "d=4"}, merge = {"b h s d -> b s (h d)", NULL};
    op_check_spec spec = {.name = "rearrange", .call = rearrange, .arg = &split, .nin = 1};
    spec.shape[0] = DT_SHAPE(3, 2, 16);
    spec.accept = 5;
    op_check(&spec);
    spec.shape[0] = DT_SHAPE(3, 2, 24);
    spec.accept_4 = 4;
    spec.accept_2x2 = 24; /* 5 x 5 without S(2) on both axes */
    op_check(&spec);
    spec.arg = &merge;
    spec.shape[0] = DT_SHAPE(3, 4, 2, 5);
    spec.accept = 5;
    spec.accept_4 = spec.accept_2x2 = 0;
    op_check(&spec);
}
END_TEST

/* Groups on both sides, several letters, "1" and "()". */
START_TEST(rearrange_of_many_letters)
{
    const pattern both = {"(a b) (c d e) -> (c a) e (d b)", "a=4 c=4 d=2"},
                  ones = {"a (b c d) -> 1 a b c () d (1)", "b=2 c=4"},
                  back = {"1 a b c () d 1 -> a (b c d)", ""};
    op_check_spec spec = {.name = "rearrange", .call = rearrange, .arg = &both, .nin = 1};
    spec.shape[0] = DT_SHAPE(8, 24);
    spec.accept = 3; /* R, P, S(1) by c; a would be inside of (c a) */
    op_check(&spec);
    spec.arg = &ones;
    spec.shape[0] = DT_SHAPE(3, 24);
    spec.accept = 4;
    spec.accept_4 = 3; /* 2 pieces of 12 on 4 ranks: 6 elements, or 1, 1, 0, 0 pieces */
    spec.accept_2x2 = 15;
    op_check(&spec);
    spec.arg = &back;
    spec.shape[0] = DT_SHAPE(1, 3, 2, 4, 1, 3, 1);
    op_check(&spec);
}
END_TEST

static void reshape_23(dt_tape *t, dt_tensor *const *in, dt_tensor **out, const void *arg)
{
    (void)arg;
    out[0] = dt_rearrange(t, dt_rearrange(t, in[0], "a b -> (a b)", NULL), "(c d) -> c d", "d=2");
}

static void reshape_23457(dt_tape *t, dt_tensor *const *in, dt_tensor **out, const void *arg)
{
    (void)arg;
    dt_tensor *flat = dt_rearrange(t, in[0], "a b c d e -> (a b c) (d e)", NULL);
    out[0] = dt_rearrange(t, flat, "(x y) (z w) -> x y z w", "y=8 w=5");
}

/* A view is a rearrange, or two where the old and the new dims have no common pieces; the numbers
 * stay as they lie. */
static void same_order(const double *const *in, double *const *out, const void *arg)
{
    memcpy(out[0], in[0], *(const size_t *)arg * sizeof(double));
}

/* O10 of the map of PyTorch's tests. */
START_TEST(views_as_rearrange)
{
    const size_t six = 6, many = 840;
    const op_check_spec two = {.name = "rearrange",
                               .call = reshape_23,
                               .naive = same_order,
                               .arg = &six,
                               .nin = 1,
                               .shape = {DT_SHAPE(2, 3)},
                               .accept = 2};
    op_check_spec five = two;
    five.call = reshape_23457;
    five.arg = &many;
    five.shape[0] = DT_SHAPE(2, 3, 4, 5, 7);
    const pattern merge = {"a b c -> (a b) c", ""},
                  grow = {"a (b c d) -> 1 a b c 1 d 1", "b=2 c=4"};
    const op_check_spec merged = {.name = "rearrange",
                                  .call = rearrange,
                                  .arg = &merge,
                                  .nin = 1,
                                  .shape = {DT_SHAPE(4, 4, 5)},
                                  .accept = 4};
    const op_check_spec grown = {
        .name = "rearrange", .call = rearrange, .arg = &grow, .nin = 1, .shape = {DT_SHAPE(3, 24)}};
    op_check(&two);
    op_check_gradients(&five);
    op_check(&merged);
    const op_check_row rows[] = {
        {&merged, {S0}, S0, {S0}}, {&merged, {S2}, S1, {S2}}, {&merged, {P}, P, {R}},
        {&grown, {S0}, S1, {S0}},  {&grown, {R}, R, {R}},     {&five, {P}, P, {R}},
    };
    op_check_rows(rows, DT_COUNT(rows));
}
END_TEST

/* ---- split, concat, slice, select: x [3, 5, 4] along dim 1 ---- */

static const int64_t pieces[3] = {2, 0, 3};

static void split(dt_tape *t, dt_tensor *const *in, dt_tensor **out, const void *arg)
{
    (void)arg;
    dt_split(t, in[0], 1, 3, pieces, out);
}

static void split_naive(const double *const *in, double *const *out, const void *arg)
{
    (void)arg;
    for (int a = 0; a < 3; a++)
        for (int b = 0; b < 5; b++)
            for (int c = 0; c < 4; c++)
                out[b < 2 ? 0 : 2][b < 2 ? (a * 2 + b) * 4 + c : (a * 3 + b - 2) * 4 + c] =
                    in[0][(a * 5 + b) * 4 + c];
}

static void concat(dt_tape *t, dt_tensor *const *in, dt_tensor **out, const void *arg)
{
    (void)arg;
    out[0] = dt_concat(t, 2, in, 1);
}

/* [3, 2, 4] and [3, 3, 4] */
static void concat_naive(const double *const *in, double *const *out, const void *arg)
{
    (void)arg;
    for (int a = 0; a < 3; a++)
        for (int b = 0; b < 5; b++)
            for (int c = 0; c < 4; c++)
                out[0][(a * 5 + b) * 4 + c] =
                    b < 2 ? in[0][(a * 2 + b) * 4 + c] : in[1][(a * 3 + b - 2) * 4 + c];
}

static void slice(dt_tape *t, dt_tensor *const *in, dt_tensor **out, const void *arg)
{
    (void)arg;
    out[0] = dt_slice(t, in[0], 1, 1, 4);
}

static void slice_naive(const double *const *in, double *const *out, const void *arg)
{
    (void)arg;
    for (int a = 0; a < 3; a++)
        for (int b = 0; b < 3; b++)
            for (int c = 0; c < 4; c++)
                out[0][(a * 3 + b) * 4 + c] = in[0][(a * 5 + b + 1) * 4 + c];
}

static void select_index(dt_tape *t, dt_tensor *const *in, dt_tensor **out, const void *arg)
{
    (void)arg;
    out[0] = dt_select(t, in[0], 1, 3);
}

static void select_naive(const double *const *in, double *const *out, const void *arg)
{
    (void)arg;
    for (int a = 0; a < 3; a++)
        for (int c = 0; c < 4; c++)
            out[0][a * 4 + c] = in[0][(a * 5 + 3) * 4 + c];
}

START_TEST(rows_of_ops_along_a_dim)
{
    const dt_shape x = DT_SHAPE(3, 5, 4);
    const op_check_spec specs[] = {
        {.name = "split",
         .call = split,
         .naive = split_naive,
         .nin = 1,
         .nout = 3,
         .shape = {x},
         .accept = 4},
        {.name = "slice", .call = slice, .naive = slice_naive, .nin = 1, .shape = {x}, .accept = 4},
        {.name = "select",
         .call = select_index,
         .naive = select_naive,
         .nin = 1,
         .shape = {x},
         .accept = 4},
        {.name = "concat",
         .call = concat,
         .naive = concat_naive,
         .nin = 2,
         .shape = {DT_SHAPE(3, 2, 4), DT_SHAPE(3, 3, 4)},
         .accept = 6},
    };
    for (int i = 0; i < DT_COUNT(specs); i++)
        op_check(&specs[i]);
    const op_check_row rows[] = {
        {&specs[0], {S0}, S0, {S0}}, {&specs[0], {P}, P, {R}},       {&specs[1], {S2}, S2, {S2}},
        {&specs[2], {S2}, S1, {S2}}, {&specs[3], {P, R}, P, {R, R}},
    };
    op_check_rows(rows, DT_COUNT(rows));
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("ops: types and shapes");
    TCase *c = tcase_create("rules");
    tcase_set_timeout(c, 100);
    tcase_add_test(c, cast_passes_partial_only_if_asked);
    tcase_add_test(c, rearrange_rows_where_heads_do_not_divide);
    tcase_add_test(c, rearrange_rows_where_heads_divide);
    tcase_add_test(c, rearrange_of_many_letters);
    tcase_add_test(c, views_as_rearrange);
    tcase_add_test(c, rows_of_ops_along_a_dim);
    suite_add_tcase(suite, c);
    return test_main(suite);
}
