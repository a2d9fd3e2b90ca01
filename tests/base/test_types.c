/* tests/base/test_types.c - the error trace, dtypes, shapes, the growable array. */
#include "base/dt_types.h"
#include "tests/harness.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static dt_status fails_at_depth(int depth)
{
    if (depth == 0)
        return DT_ERROR(DT_ERR_SHAPE, "rows n=%d", 5);
    DT_TRY(fails_at_depth(depth - 1));
    return DT_OK;
}

static dt_status cleans_up(int *freed)
{
    dt_status st;
    DT_TRY_TO(fail, st, fails_at_depth(0));
    return DT_OK;
fail:
    (*freed)++;
    return st;
}

static dt_status requires_positive(int n)
{
    DT_REQUIRE(n > 0, DT_ERR_ARG, "n=%d must be positive", n);
    return DT_OK;
}

START_TEST(trace_of_a_failure)
{
    ck_assert_int_eq(fails_at_depth(2), DT_ERR_SHAPE);
    const char *trace = dt_error_trace(),
               *first = strstr(trace, "rows n=5 (shapes do not agree)\n");
    ck_assert_ptr_nonnull(first);
    const char *second = strstr(first, "  from "), *third = strstr(second + 1, "  from ");
    ck_assert_ptr_nonnull(third);
    ck_assert_ptr_null(strstr(third + 1, "  from "));
    int freed = 0;
    ck_assert_int_eq(cleans_up(&freed), DT_ERR_SHAPE);
    ck_assert_int_eq(freed, 1);
    ck_ok(requires_positive(1));
    ck_ok(test_expect(requires_positive(0), DT_ERR_ARG, "n=0 must be positive (invalid argument)",
                      ""));
    ck_assert_str_eq(dt_error_trace(), "");
    ck_assert_int_eq(fails_at_depth(500), DT_ERR_SHAPE); /* too long: the deepest lines stay */
    ck_assert_ptr_nonnull(strstr(dt_error_trace(), "rows n=5"));
    dt_error_clear();
    for (int i = DT_OK; i <= DT_ERR_UNSUPPORTED; i++)
        ck_assert_uint_gt(strlen(dt_status_string((dt_status)i)), 0);
    ck_assert_str_eq(dt_status_string((dt_status)99), "unknown status");
}
END_TEST

START_TEST(dtypes)
{
    static const size_t bytes[DT_NDTYPES] = {
        [DT_F32] = 4, [DT_BF16] = 2, [DT_F16] = 2, [DT_F64] = 8,
        [DT_I32] = 4, [DT_I64] = 8,  [DT_U8] = 1};
    for (int i = 0; i < DT_NDTYPES; i++) {
        dt_dtype back = DT_NDTYPES;
        ck_assert_uint_eq(dt_dtype_size((dt_dtype)i), bytes[i]);
        ck_ok(dt_dtype_parse(dt_dtype_name((dt_dtype)i), &back));
        ck_assert_int_eq(back, i);
        ck_assert_int_eq(dt_dtype_is_float((dt_dtype)i),
                         strchr(dt_dtype_name((dt_dtype)i), 'f') != NULL);
    }
    dt_dtype d;
    ck_ok(dt_dtype_parse("BF16", &d));
    ck_assert_int_eq(d, DT_BF16);
    ck_ok(test_expect(dt_dtype_parse("f31", &d), DT_ERR_ARG, "'f31'; legal: f32, bf16", ""));
}
END_TEST

START_TEST(shapes)
{
    const dt_shape s = DT_SHAPE(2, 3, 4);
    char text[DT_SHAPE_TEXT];
    ck_assert(s.ndim == 3 && dt_shape_count(s) == 24 && dt_shape_count(DT_SCALAR) == 1);
    ck_assert(dt_shape_outer(s, 0) == 1 && dt_shape_outer(s, 2) == 6);
    ck_assert(dt_shape_inner(s, 0) == 12 && dt_shape_inner(s, 2) == 1);
    ck_assert_int_eq(dt_shape_count(DT_SHAPE(5, 0, 7)), 0);
    ck_assert(dt_shape_equal(s, DT_SHAPE(2, 3, 4)) && !dt_shape_equal(s, DT_SHAPE(2, 3)));
    ck_assert(!dt_shape_equal(s, DT_SHAPE(2, 3, 5)));
    ck_assert_str_eq(dt_shape_print(s, text, sizeof text), "[2, 3, 4]");
    ck_assert_str_eq(dt_shape_print(DT_SCALAR, text, sizeof text), "[]");
    int64_t most[DT_MAX_DIMS];
    for (int d = 0; d < DT_MAX_DIMS; d++)
        most[d] = INT64_MAX;
    (void)dt_shape_print(dt_shape_make(DT_MAX_DIMS, most), text, sizeof text);
    ck_assert_int_eq(text[strlen(text) - 1], ']');
    ck_assert_str_eq(dt_shape_print(s, text, 5), "[2, ");
}
END_TEST

START_TEST(growing)
{
    int *data = NULL;
    int64_t capacity = 0;
    for (int i = 0; i < 1000; i++) {
        const int64_t before = capacity;
        ck_ok(dt_grow((void **)&data, &capacity, i + 1, sizeof *data));
        ck_assert(capacity > i && (capacity == before || capacity >= 2 * before));
        data[i] = i;
    }
    ck_assert(data[0] == 0 && data[999] == 999);
    free(data);
}
END_TEST

/* Of the tests' own comparisons: no NaN gets lost, wherever it is. */
START_TEST(differences_that_are_nan)
{
    for (int at = 0; at < 3; at++) {
        const float a[] = {1, 2, 4}, b[] = {1, 3, 4};
        float wrong[] = {1, 2, 4};
        wrong[at] = NAN;
        ck_assert(test_max_diff(a, b, 3) == 1 && test_max_abs(b, 3) == 4);
        ck_assert(isnan(test_max_diff(wrong, b, 3)) && isnan(test_max_diff(b, wrong, 3)));
        ck_assert(isnan(test_max_abs(wrong, 3)));
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("types");
    TCase *tests = tcase_create("types");
    tcase_add_test(tests, trace_of_a_failure);
    tcase_add_test(tests, dtypes);
    tcase_add_test(tests, shapes);
    tcase_add_test(tests, growing);
    tcase_add_test(tests, differences_that_are_nan);
    suite_add_tcase(suite, tests);
    return test_main(suite);
}
