/* tests/array/test_array.c - handles, element-wise operations, block copies, ordered reductions. */
#include "array/dt_array.h"
#include "array/dt_half.h"
#include "array/dt_kernels.h"
#include "tests/harness.h"

#include <float.h>
#include <math.h>
#include <string.h>

static dt_heap *heap;

static void set_up(void)
{
    ck_ok(dt_heap_create((dt_device){DT_CPU, 0}, NULL, &heap));
}

/* The heap asserts that every array was released. */
static void tear_down(void)
{
    ck_assert_int_eq(dt_heap_get_stats(heap).live_total, 0);
    dt_heap_destroy(&heap);
}

static dt_array new_array(dt_dtype dtype, dt_shape shape)
{
    dt_array a = {0};
    ck_ok(dt_array_create(heap, dtype, shape, DT_TAG_WORKSPACE, &a));
    return a;
}

static uint32_t next_random(uint32_t *state)
{
    *state = *state * 1664525u + 1013904223u;
    return *state >> 8;
}

static float random_float(uint32_t *state)
{
    return ldexpf((float)next_random(state) - 8388608.0f, (int)(next_random(state) % 20) - 30);
}

START_TEST(test_handles)
{
    dt_array a = new_array(DT_I32, DT_SHAPE(4, 3));
    int32_t host[12], back[12] = {0};
    for (int i = 0; i < 12; i++)
        host[i] = i * i;
    ck_ok(dt_array_write(&a, host, 12));
    ck_assert_int_eq(dt_array_write(&a, host, 11), DT_ERR_SHAPE);
    ck_assert_int_eq(dt_array_read(&a, back, 13), DT_ERR_SHAPE);
    dt_error_clear();
    dt_array b = dt_array_share(&a), r = dt_array_reshape(&a, DT_SHAPE(2, 6));
    dt_array rows = dt_array_rows(&a, 1, 3), inner = dt_array_rows(&rows, 1, 2);
    dt_array none = dt_array_rows(&a, 4, 4);
    ck_assert_int_eq(a.storage->refs, 6);
    dt_array_release(&a);
    ck_assert_ptr_null(a.storage);
    dt_array_release(&a); /* all-zero: accepted */
    ck_assert_int_eq(r.shape.dim[1], 6);
    ck_ok(dt_array_read(&r, back, 12));
    ck_assert_mem_eq(back, host, sizeof host);
    ck_ok(dt_array_read(&rows, back, 6));
    ck_assert_mem_eq(back, host + 3, 6 * sizeof *host);
    ck_ok(dt_array_read(&inner, back, 3));
    ck_assert_mem_eq(back, host + 6, 3 * sizeof *host);
    ck_assert_int_eq(dt_array_count(&none), 0);
    ck_assert_ptr_null(dt_array_data(&none));
    ck_ok(dt_array_read(&none, NULL, 0));
    ck_assert_uint_eq(dt_array_bytes(&inner), 12);
    dt_array *all[] = {&b, &r, &rows, &inner, &none};
    for (int i = 0; i < DT_COUNT(all); i++)
        dt_array_release(all[i]);
}
END_TEST

START_TEST(test_scalars_and_empty)
{
    dt_array s = new_array(DT_F64, DT_SCALAR), e = new_array(DT_F32, DT_SHAPE(3, 0, 5));
    ck_assert_int_eq(dt_array_count(&s), 1);
    dt_array_fill(&s, 2.5);
    dt_array_scale(&s, -2);
    ck_assert_double_eq(*(double *)dt_array_data(&s), -5);
    ck_assert_ptr_null(dt_array_data(&e));
    dt_array_fill(&e, 1);
    dt_array_copy(&e, &e);
    dt_array_add_into(&e, &e);
    const dt_array *src[] = {&e, &e};
    dt_array_reduce(&e, 2, src, DT_REDUCE_SUM);
    dt_array_copy_block(&e, (int64_t[]){0, 0, 0}, &e, (int64_t[]){0, 0, 0}, e.shape);
    dt_array_copy_block(&s, NULL, &s, NULL, DT_SCALAR);
    dt_array_release(&s);
    dt_array_release(&e);
}
END_TEST

/* An element of a float array, exactly. */
static double element(const dt_array *a, int64_t i)
{
    const void *p = dt_array_data(a);
    if (a->dtype == DT_F64)
        return ((const double *)p)[i];
    float x = 0;
    dt_load_f32(a->dtype, (const char *)p + i * (int64_t)dt_dtype_size(a->dtype), &x, 1);
    return (double)x;
}

/* x rounded once to the dtype. */
static double to_dtype(dt_dtype dtype, float x)
{
    uint64_t bits = 0;
    float y = 0;
    dt_store_f32(dtype, &x, &bits, 1);
    dt_load_f32(dtype, &bits, &y, 1);
    return (double)y;
}

static void fill_random(dt_array *a, uint32_t seed)
{
    const int64_t n = dt_array_count(a), size = (int64_t)dt_dtype_size(a->dtype);
    char *p = dt_array_data(a);
    for (int64_t i = 0; i < n; i++) {
        const float x = random_float(&seed);
        const double wide = (double)x * (1 + DBL_EPSILON * (double)(i % 7));
        if (a->dtype == DT_F64)
            memcpy(p + i * size, &wide, sizeof wide);
        else
            dt_store_f32(a->dtype, &x, p + i * size, 1);
    }
}

static const dt_dtype float_dtypes[] = {DT_F32, DT_BF16, DT_F16, DT_F64};
enum { LARGE = 200003 }; /* several threads, uneven pieces */

/* Fill, scale and add against element formulas; with 1 and with 3 threads, bit for bit. */
START_TEST(test_elementwise)
{
    const dt_dtype dtype = float_dtypes[_i];
    const int before = dt_compute_threads_get();
    dt_array a = new_array(dtype, DT_SHAPE(LARGE)), b = new_array(dtype, DT_SHAPE(LARGE));
    dt_array first = new_array(dtype, DT_SHAPE(LARGE)), start = new_array(dtype, DT_SHAPE(LARGE));
    fill_random(&start, 1);
    fill_random(&b, 2);
    for (int threads = 1; threads <= 3; threads += 2) {
        dt_compute_threads_set(threads);
        dt_array_copy(&a, &start);
        dt_array_scale(&a, 1.0 / 3);
        dt_array_add_into(&a, &b);
        if (threads == 1)
            dt_array_copy(&first, &a);
    }
    ck_assert_mem_eq(dt_array_data(&a), dt_array_data(&first), dt_array_bytes(&a));
    for (int64_t i = 0; i < LARGE; i++) {
        const float third = (float)element(&start, i) * (float)(1.0 / 3);
        const float sum =
            (float)to_dtype(dtype == DT_F64 ? DT_F32 : dtype, third) + (float)element(&b, i);
        const double want = dtype == DT_F64 ? element(&start, i) * (1.0 / 3) + element(&b, i)
                                            : to_dtype(dtype, sum);
        if (element(&a, i) != want)
            ck_abort_msg("element %lld: %a, want %a", (long long)i, element(&a, i), want);
    }
    dt_array_fill(&a, 0.1);
    const double tenth = dtype == DT_F64 ? 0.1 : to_dtype(dtype, 0.1f);
    for (int64_t i = 0; i < LARGE; i++)
        if (element(&a, i) != tenth)
            ck_abort_msg("fill: element %lld is %a", (long long)i, element(&a, i));
    dt_array_zero(&a);
    for (int64_t i = 0; i < LARGE; i++)
        if (element(&a, i) != 0)
            ck_abort_msg("zero: element %lld is %a", (long long)i, element(&a, i));
    dt_compute_threads_set(before);
    dt_array *all[] = {&a, &b, &first, &start};
    for (int i = 0; i < DT_COUNT(all); i++)
        dt_array_release(all[i]);
}
END_TEST

START_TEST(test_fill_integers)
{
    dt_array a = new_array(DT_I64, DT_SHAPE(3)), b = new_array(DT_U8, DT_SHAPE(3)),
             c = new_array(DT_I32, DT_SHAPE(3));
    dt_array_fill(&a, -7.9);
    dt_array_fill(&b, 300);
    dt_array_fill(&c, 12);
    ck_assert_int_eq(((int64_t *)dt_array_data(&a))[2], -7);
    ck_assert_uint_eq(((uint8_t *)dt_array_data(&b))[2], 255);
    ck_assert_int_eq(((int32_t *)dt_array_data(&c))[2], 12);
    dt_array_release(&a);
    dt_array_release(&b);
    dt_array_release(&c);
}
END_TEST

static int64_t flat(const dt_array *a, const int64_t at[], const int64_t index[])
{
    int64_t i = 0;
    for (int d = 0; d < a->shape.ndim; d++)
        i = i * a->shape.dim[d] + at[d] + index[d];
    return i;
}

/* A random block between two random shapes, against one element at a time. */
static void check_block(dt_dtype dtype, int ndim, uint32_t *state)
{
    dt_shape from = {.ndim = ndim}, to = {.ndim = ndim}, extent = {.ndim = ndim};
    int64_t src_at[DT_MAX_DIMS] = {0}, dst_at[DT_MAX_DIMS] = {0};
    for (int d = 0; d < ndim; d++) {
        const bool whole = next_random(state) % 2 == 0;
        extent.dim[d] = (int64_t)(next_random(state) % 16 == 0 ? 0 : 1 + next_random(state) % 3);
        src_at[d] = whole ? 0 : (int64_t)(next_random(state) % 3);
        dst_at[d] = whole ? 0 : (int64_t)(next_random(state) % 3);
        from.dim[d] = src_at[d] + extent.dim[d] + (whole ? 0 : (int64_t)(next_random(state) % 2));
        to.dim[d] = dst_at[d] + extent.dim[d] + (whole ? 0 : (int64_t)(next_random(state) % 2));
    }
    dt_array src = new_array(dtype, from), dst = new_array(dtype, to), want = new_array(dtype, to);
    const size_t size = dt_dtype_size(dtype);
    for (size_t i = 0; i < dt_array_bytes(&src); i++)
        ((uint8_t *)dt_array_data(&src))[i] = (uint8_t)next_random(state);
    dt_array_zero(&dst);
    dt_array_zero(&want);
    int64_t index[DT_MAX_DIMS] = {0};
    for (int64_t i = 0; i < dt_shape_count(extent); i++) {
        int64_t rest = i;
        for (int d = ndim - 1; d >= 0; d--) {
            index[d] = rest % extent.dim[d];
            rest /= extent.dim[d];
        }
        memcpy((char *)dt_array_data(&want) + flat(&want, dst_at, index) * (int64_t)size,
               (char *)dt_array_data(&src) + flat(&src, src_at, index) * (int64_t)size, size);
    }
    dt_array_copy_block(&dst, dst_at, &src, src_at, extent);
    if (dt_array_data(&dst) != NULL)
        ck_assert_mem_eq(dt_array_data(&dst), dt_array_data(&want), dt_array_bytes(&dst));
    dt_array_release(&src);
    dt_array_release(&dst);
    dt_array_release(&want);
}

START_TEST(test_copy_block)
{
    uint32_t state = 11;
    for (int i = 0; i < 3000; i++)
        check_block((dt_dtype)(i % DT_NDTYPES), i % (DT_MAX_DIMS + 1), &state);
}
END_TEST

/* op over k in the order given: in f32 and rounded once, or in f64. */
static double reduced(const dt_array *a, int n, int64_t i, dt_reduce op)
{
    double wide = element(&a[0], i);
    float narrow = (float)wide;
    for (int k = 1; k < n; k++) {
        const double x = element(&a[k], i);
        switch (op) {
        case DT_REDUCE_SUM:
            wide += x;
            narrow += (float)x;
            break;
        case DT_REDUCE_MAX: wide = x > wide ? x : wide; break;
        case DT_REDUCE_MIN: wide = x < wide ? x : wide; break;
        }
    }
    if (op != DT_REDUCE_SUM || a->dtype == DT_F64)
        return wide;
    return to_dtype(a->dtype, narrow);
}

START_TEST(test_reduce_floats)
{
    enum { N = 5, COUNT = 2500 };
    const dt_dtype dtype = float_dtypes[_i];
    dt_array a[N], keep[N], out = new_array(dtype, DT_SHAPE(COUNT));
    const dt_array *src[N];
    for (int k = 0; k < N; k++) {
        a[k] = new_array(dtype, DT_SHAPE(COUNT));
        keep[k] = new_array(dtype, DT_SHAPE(COUNT));
        fill_random(&keep[k], (uint32_t)k + 3);
        src[k] = &a[k];
    }
    for (int op = DT_REDUCE_SUM; op <= DT_REDUCE_MIN; op++)
        for (int to = -1; to < N; to++) { /* into another array, then into each of the sources */
            for (int k = 0; k < N; k++)
                dt_array_copy(&a[k], &keep[k]);
            dt_array *dst = to < 0 ? &out : &a[to];
            dt_array_reduce(dst, N, src, (dt_reduce)op);
            for (int64_t i = 0; i < COUNT; i++)
                if (element(dst, i) != reduced(keep, N, i, (dt_reduce)op))
                    ck_abort_msg("op %d into %d: element %lld is %a", op, to, (long long)i,
                                 element(dst, i));
        }
    for (int k = 0; k < N; k++) {
        dt_array_release(&a[k]);
        dt_array_release(&keep[k]);
    }
    dt_array_release(&out);
}
END_TEST

/* 1 + 2^-9 + ... : each term alone is lost in bf16, together they count. */
START_TEST(test_reduce_rounds_once)
{
    dt_array a[5], out = new_array(DT_BF16, DT_SHAPE(1));
    const dt_array *src[5];
    for (int k = 0; k < 5; k++) {
        a[k] = new_array(DT_BF16, DT_SHAPE(1));
        dt_array_fill(&a[k], k == 0 ? 1 : 1.0 / 512);
        src[k] = &a[k];
    }
    dt_array_reduce(&out, 5, src, DT_REDUCE_SUM);
    ck_assert_double_eq(element(&out, 0), 1 + 4.0 / 512);
    for (int k = 0; k < 5; k++)
        dt_array_release(&a[k]);
    dt_array_release(&out);
}
END_TEST

START_TEST(test_reduce_nan_stays)
{
    for (int op = DT_REDUCE_SUM; op <= DT_REDUCE_MIN; op++)
        for (int where = 0; where < 3; where++) {
            dt_array a[3];
            const dt_array *src[3];
            for (int k = 0; k < 3; k++) {
                a[k] = new_array(DT_F32, DT_SHAPE(9));
                dt_array_fill(&a[k], k == where ? (double)NAN : k);
                src[k] = &a[k];
            }
            dt_array_reduce(&a[0], 3, src, (dt_reduce)op);
            for (int i = 0; i < 9; i++)
                ck_assert(isnan(element(&a[0], i)));
            for (int k = 0; k < 3; k++)
                dt_array_release(&a[k]);
        }
}
END_TEST

typedef struct int_case {
    dt_dtype dtype;
    int64_t value[3], want[3]; /* want: sum, max, min */
} int_case;

static void check_ints(const int_case *c)
{
    dt_array wide = new_array(DT_I64, DT_SCALAR), out = new_array(c->dtype, DT_SCALAR), a[3];
    for (int k = 0; k < 3; k++) {
        a[k] = new_array(c->dtype, DT_SCALAR);
        ck_ok(dt_array_write(&wide, &c->value[k], 1));
        dt_array_cast(&a[k], &wide);
    }
    for (int op = 0; op < 3; op++) {
        dt_array_reduce(&out, 3, (const dt_array *[]){&a[0], &a[1], &a[2]}, (dt_reduce)op);
        dt_array_cast(&wide, &out);
        ck_assert_int_eq(*(int64_t *)dt_array_data(&wide), c->want[op]);
    }
    dt_array *all[] = {&wide, &out, &a[0], &a[1], &a[2]};
    for (int i = 0; i < DT_COUNT(all); i++)
        dt_array_release(all[i]);
}

START_TEST(test_reduce_integers)
{
    static const int64_t big = (int64_t)1 << 53;
    const int_case cases[] = {
        {DT_I32, {-5, 16777217, 3}, {16777215, 16777217, -5}},
        {DT_I32, {INT32_MAX, 1, 1}, {(int64_t)INT32_MIN + 1, INT32_MAX, 1}},
        {DT_I64, {big, 1, 2}, {big + 3, big, 1}},
        {DT_U8, {200, 100, 7}, {51, 200, 7}},
    };
    for (int i = 0; i < DT_COUNT(cases); i++)
        check_ints(&cases[i]);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("array");
    TCase *tc = tcase_create("array");
    tcase_add_checked_fixture(tc, set_up, tear_down);
    tcase_set_timeout(tc, 100);
    suite_add_tcase(suite, tc);
    tcase_add_test(tc, test_handles);
    tcase_add_test(tc, test_scalars_and_empty);
    tcase_add_loop_test(tc, test_elementwise, 0, DT_COUNT(float_dtypes));
    tcase_add_test(tc, test_fill_integers);
    tcase_add_test(tc, test_copy_block);
    tcase_add_loop_test(tc, test_reduce_floats, 0, DT_COUNT(float_dtypes));
    tcase_add_test(tc, test_reduce_rounds_once);
    tcase_add_test(tc, test_reduce_nan_stays);
    tcase_add_test(tc, test_reduce_integers);
    return test_main(suite);
}
