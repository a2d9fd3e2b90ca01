/* tests/gpu/test_matmul.c - products on the device against a triple loop in f64, by way of
 * tests/array/matmul_check.h: types, transposes, sizes, strides, batches, biases. */
#include "tests/gpu/gpu_test.h"

#include "array/cuda/gpu_internal.h"
#include "array/dt_half.h"
#include "array/dt_matmul.h"
#include "tests/array/matmul_check.h"

#include <math.h>
#include <stdlib.h>

static const struct {
    dt_dtype dtype, dtype_c;
} pairs[] = {{DT_F32, DT_F32},  {DT_F64, DT_F64}, {DT_BF16, DT_BF16},
             {DT_BF16, DT_F32}, {DT_F16, DT_F16}, {DT_F16, DT_F32}};

static int64_t extent(int64_t batch, int64_t stride, int64_t rows, int64_t ld, int64_t cols)
{
    return batch == 0 || rows == 0 || cols == 0 ? 0 : (batch - 1) * stride + (rows - 1) * ld + cols;
}

/* n elements on the device, of which the first is `skip` after a boundary of 64 bytes. */
static void *on_device(dt_dtype dtype, int64_t n, int skip, const void *host, dt_array *array)
{
    char *bytes = calloc((size_t)(n + skip), dt_dtype_size(dtype));
    memcpy(bytes + (size_t)skip * dt_dtype_size(dtype), host, (size_t)n * dt_dtype_size(dtype));
    ck_ok(dt_array_create(gpu_heap(), dtype, DT_SHAPE(n + skip), DT_TAG_WORKSPACE, array));
    ck_ok(dt_array_write(array, bytes, n + skip));
    free(bytes);
    return (char *)dt_array_data(array) + (size_t)skip * dt_dtype_size(dtype);
}

static int skip, launches; /* of operands; of the last product */
static enum { NO_SUMS, OF_A, OF_B } sums_of;
static bool summed; /* with the last product */

static double value(dt_dtype dtype, const void *p, int64_t i)
{
    float x = 0;
    if (dtype == DT_F64)
        return ((const double *)p)[i];
    dt_load_f32(dtype, (const char *)p + (size_t)i * dt_dtype_size(dtype), &x, 1);
    return (double)x;
}

/* Beside the product of args, with the bound that its elements have. */
static void check_sums(const dt_matmul_args *args, const void *got)
{
    const dt_matmul_args *p = args;
    const double u = ldexp(1, -24), last = p->dtype_c == DT_F32 ? u : ldexp(1, -8);
    const int64_t count = sums_of == OF_A ? p->m : p->n;
    for (int64_t i = 0; i < count; i++) {
        double sum = 0, size = 0;
        for (int64_t l = 0; l < p->k; l++) {
            const double x =
                sums_of == OF_A
                    ? value(p->dtype, p->a, p->trans_a ? l * p->lda + i : i * p->lda + l)
                    : value(p->dtype, p->b, p->trans_b ? i * p->ldb + l : l * p->ldb + i);
            sum += x;
            size += fabs(x);
        }
        const double is = value(p->dtype_c, got, i);
        ck_assert_msg(fabs(is - sum) <= (double)(p->k + 4) * u * size + last * fabs(sum),
                      "%s to %s %lldx%lldx%lld: sum %lld is %.9g, not %.9g",
                      dt_dtype_name(p->dtype), dt_dtype_name(p->dtype_c), (long long)p->m,
                      (long long)p->n, (long long)p->k, (long long)i, is, sum);
    }
}

static void by_device(const dt_matmul_args *args)
{
    dt_matmul_args p = *args;
    const size_t size = dt_dtype_size(p.dtype_c);
    const int64_t na = extent(p.batch, p.stride_a, p.trans_a ? p.k : p.m, p.lda,
                              p.trans_a ? p.m : p.k),
                  nb = extent(p.batch, p.stride_b, p.trans_b ? p.n : p.k, p.ldb,
                              p.trans_b ? p.k : p.n),
                  nc = extent(p.batch, p.stride_c, p.m, p.ldc, p.n);
    dt_array a, b, c, bias = {0}, sums = {0};
    p.device = DT_CUDA;
    p.a = on_device(p.dtype, na, skip, p.a, &a);
    p.b = on_device(p.dtype, nb, 2 * skip, p.b, &b);
    p.c = on_device(p.dtype_c, nc, 3 * skip, p.c, &c);
    if (p.bias)
        p.bias = on_device(p.dtype_c, p.n, skip, p.bias, &bias);
    const int64_t nsums = sums_of == OF_A ? p.m : p.n;
    char *host = calloc((size_t)(nsums + skip), size);
    if (sums_of)
        p.sums = on_device(p.dtype_c, nsums, skip, host, &sums);
    p.sums_of_a = sums_of == OF_A;
    p.summed = &summed;
    const int64_t before = dti_gpu_get_counts().launches;
    ck_ok(dt_matmul_run(&p));
    launches = (int)(dti_gpu_get_counts().launches - before);
    if (sums_of && summed) {
        ck_ok(dt_array_read(&sums, host, nsums + skip));
        check_sums(args, host + (size_t)skip * size);
    }
    free(host);
    dt_array_release(&sums);
    char *all = malloc((size_t)(nc + 3 * skip) * size + 1);
    ck_ok(dt_array_read(&c, all, nc + 3 * skip));
    memcpy(args->c, all + (size_t)(3 * skip) * size, (size_t)nc * size);
    free(all);
    dt_array_release(&a);
    dt_array_release(&b);
    dt_array_release(&c);
    dt_array_release(&bias);
}

/* Every transpose, with and without gaps, batches, shared B, a bias, odd sizes and addresses: more
 * products than the device's table of them has places. */
START_TEST(test_against_triple_loop)
{
    static const int64_t sizes[] = {1, 2, 3, 5, 8, 17, 31, 33, 65, 130};
    static const double factors[][2] = {{1, 0}, {1, 1}, {0.5, 0}, {-2, 0.25}};
    uint32_t state = (uint32_t)_i + 5;
    gpu_begin(0);
    for (int i = 0; i < 320; i++) {
        const double *factor = factors[i / 4 % 4];
        const dt_matmul_args p = {.dtype = pairs[_i].dtype,
                                  .dtype_c = pairs[_i].dtype_c,
                                  .trans_a = i % 2 == 1,
                                  .trans_b = i / 2 % 2 == 1,
                                  .batch = i % 3 == 0 ? 3 : 1,
                                  .m = sizes[matmul_random(&state) % 10],
                                  .n = sizes[matmul_random(&state) % 10],
                                  .k = sizes[matmul_random(&state) % 10],
                                  .alpha = factor[0],
                                  .beta = factor[1],
                                  .bias = factor[1] == 0 && i % 5 < 3 ? "" : NULL};
        skip = i / 64 % 2;
        matmul_check(by_device, p, i / 16 % 2 * 3, i / 32 % 2 == 1, &state);
        ck_assert_int_eq(launches, p.bias && p.dtype == DT_F64 ? 2 : 1);
    }
    gpu_end();
}
END_TEST

/* Sums of rows of op(A) or columns of op(B) come with the product, in one launch; on a GPU where
 * cuBLASLt has that, on the simulated device always (tests/dtensor/test_half.c). Never in f64. */
START_TEST(test_sums)
{
    static const int64_t sizes[] = {1, 2, 5, 8, 33, 64, 130};
    uint32_t state = (uint32_t)_i + 11;
    gpu_begin(0);
    for (int i = 0; i < 128; i++) {
        const dt_matmul_args p = {.dtype = pairs[_i].dtype,
                                  .dtype_c = pairs[_i].dtype_c,
                                  .trans_a = i / 2 % 2 == 1,
                                  .trans_b = i / 4 % 2 == 1,
                                  .batch = 1,
                                  .m = sizes[matmul_random(&state) % 7],
                                  .n = sizes[matmul_random(&state) % 7],
                                  .k = sizes[matmul_random(&state) % 7],
                                  .alpha = 1};
        sums_of = i % 2 ? OF_A : OF_B;
        skip = i / 8 % 2;
        matmul_check(by_device, p, i / 16 % 2 * 3, false, &state);
        ck_assert_int_eq(launches, 1);
        ck_assert(!summed || p.dtype != DT_F64);
    }
    sums_of = NO_SUMS;
    gpu_end();
}
END_TEST

START_TEST(test_sums_that_are_not_made)
{
    float host = 0;
    const dt_matmul_args ok = {.batch = 1,
                               .m = 1,
                               .n = 1,
                               .k = 1,
                               .a = &host,
                               .b = &host,
                               .c = &host,
                               .alpha = 1,
                               .sums = &host,
                               .summed = &summed};
    dt_matmul_args wrong[] = {ok, ok, ok, ok};
    wrong[0].batch = 2;
    wrong[1].alpha = 2;
    wrong[2].beta = 1;
    wrong[3].bias = &host;
    for (int i = 0; i < DT_COUNT(wrong); i++) {
        ck_assert_int_eq(dt_matmul_run(&wrong[i]), DT_ERR_ARG);
        ck_assert_msg(strstr(dt_error_trace(), "sums are made of one"), "%s", dt_error_trace());
        dt_error_clear();
    }
    summed = true;
    ck_ok(dt_matmul_run(&ok)); /* the cpu makes none */
    ck_assert(!summed);
}
END_TEST

START_TEST(test_sizes_of_zero)
{
    uint32_t state = 9;
    gpu_begin(0);
    skip = 0;
    for (int zero = 0; zero < 16; zero++)
        for (int factors = 0; factors < 4; factors++) {
            const dt_matmul_args p = {.dtype = pairs[_i].dtype,
                                      .dtype_c = pairs[_i].dtype_c,
                                      .trans_a = zero % 3 == 0,
                                      .batch = zero & 8 ? 0 : 2,
                                      .m = zero & 1 ? 0 : 3,
                                      .n = zero & 2 ? 0 : 4,
                                      .k = zero & 4 ? 0 : 5,
                                      .alpha = 1,
                                      .beta = factors % 3 * 0.5,
                                      .bias = factors == 3 ? "" : NULL};
            matmul_check(by_device, p, (zero / 4 + factors) % 2, false, &state);
        }
    gpu_end();
}
END_TEST

/* The table of products is about shapes: other operands, at other places, are used; and a longer
 * way from row to row is another shape. */
START_TEST(test_shape_again)
{
    uint32_t state = 3;
    gpu_begin(0);
    dt_array between[4];
    skip = 0;
    for (int i = 0; i < DT_COUNT(between); i++) {
        ck_ok(dt_array_create(gpu_heap(), DT_F32, DT_SHAPE(8), DT_TAG_WORKSPACE, &between[i]));
        const dt_matmul_args p = {.dtype = DT_BF16,
                                  .dtype_c = i < 2 ? DT_BF16 : DT_F32,
                                  .batch = 1,
                                  .m = 3,
                                  .n = 8,
                                  .k = 5,
                                  .alpha = 1,
                                  .bias = ""};
        matmul_check(by_device, p, 0, false, &state);
    }
    for (int i = 0; i < 4; i++) {
        const dt_matmul_args p = {.dtype = DT_F32,
                                  .dtype_c = DT_F32,
                                  .batch = 1,
                                  .m = 3,
                                  .n = 8,
                                  .k = 5,
                                  .ldc = i % 2 ? 12 : 8,
                                  .stride_c = 64,
                                  .alpha = 1};
        matmul_check(by_device, p, 0, false, &state);
    }
    for (int i = 0; i < DT_COUNT(between); i++)
        dt_array_release(&between[i]);
    gpu_end();
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("gpu_matmul");
    TCase *tc = tcase_create("gpu_matmul");
    tcase_set_timeout(tc, 110);
    suite_add_tcase(suite, tc);
    tcase_add_loop_test(tc, test_against_triple_loop, 0, DT_COUNT(pairs));
    tcase_add_loop_test(tc, test_sums, 0, DT_COUNT(pairs));
    tcase_add_test(tc, test_sums_that_are_not_made);
    tcase_add_loop_test(tc, test_sizes_of_zero, 0, DT_COUNT(pairs));
    tcase_add_test(tc, test_shape_again);
    return gpu_main(suite);
}
