/* tests/gpu/test_dropout.c - dropout of blocks of a tensor: the same elements go as on the cpu, and
 * the others have the same bits. */
#include "tests/gpu/gpu_test.h"

#include "array/array_internal.h"

#include <math.h>
#include <stdlib.h>

static void check(dt_dtype dtype, dt_dropout_args a, int which, int shift)
{
    const int64_t n = dt_shape_count(a.local);
    gpu_shift(shift);
    const gpu_pair x = gpu_random(dtype, n, -2, 2), y = gpu_output(dtype, n);
    a.dtype = x.wide;
    dt_nn_kernels_of(DT_CPU)->dropout(&a, x.cpu, y.cpu);
    a.dtype = dtype;
    dt_nn_kernels_of(DT_CUDA)->dropout(&a, x.gpu, y.gpu);
    void *want = malloc((size_t)(n + 1) * dt_dtype_size(dtype));
    ck_assert(want != NULL);
    dti_cast(dtype, want, y.wide, y.cpu, n);
    gpu_bits(&y, want, "block %d, p %g, shift %d", which, a.p, shift);
    free(want);
}

START_TEST(test_blocks)
{
    static const dt_dropout_args blocks[] = {
        {.global = {0}, .local = {0}},
        {.global = {1, {1003}}, .local = {1, {1003}}, .first_sample = 3},
        {.global = {3, {5, 7, 16}}, .local = {3, {5, 7, 16}}, .first_sample = 6},
        {.global = {3, {8, 6, 32}}, .local = {3, {2, 6, 32}}, .offset = {4}},
        {.global = {3, {8, 6, 32}}, .local = {3, {8, 3, 32}}, .offset = {0, 3}, .first_sample = 2},
        {.global = {3, {8, 6, 32}}, .local = {3, {8, 6, 16}}, .offset = {0, 0, 16}},
        {.global = {3, {8, 6, 30}}, .local = {3, {8, 6, 16}}},
        {.global = {3, {8, 6, 31}}, .local = {3, {8, 6, 10}}, .offset = {0, 0, 21}},
        {.global = {4, {3, 4, 5, 8}}, .local = {4, {2, 4, 3, 8}}, .offset = {1, 0, 2}},
        {.global = {4, {3, 4, 5, 8}}, .local = {4, {2, 4, 0, 8}}},
        {.global = {2, {100, 40000}}, .local = {2, {1, 40000}}, .first_sample = 200000}};
    for (int d = 0; d < GPU_FLOATS; d++)
        for (int b = 0; b < DT_COUNT(blocks); b++)
            for (int k = 0; k < 5; k++) {
                dt_dropout_args a = blocks[b];
                a.key = dt_key_named(5, "a.b");
                a.p = k == 2 ? 0 : k == 1 ? 1.0 / 3 : 0.1;
                gpu_begin(_i);
                check(gpu_float[d], a, b, k < 3 ? k == 1 : 2 - k); /* below 0: x or y alone */
                gpu_end();
            }
}
END_TEST

/* A number is dropped below p, however close: p is moved to the number of one element, and a
 * quarter of a unit beyond. */
START_TEST(test_threshold)
{
    const float one = 1;
    dt_dropout_args a = {.key = dt_key_named(7, "c"), .dtype = DT_F32};
    a.global = a.local = DT_SHAPE(1);
    double kept = 0, dropped = 1;
    while (dropped - kept > 0x1p-30) {
        float y;
        a.p = (kept + dropped) / 2;
        dt_nn_kernels_of(DT_CPU)->dropout(&a, &one, &y);
        if (y == 0)
            dropped = a.p;
        else
            kept = a.p;
    }
    const double number = floor(dropped * 0x1p24) / 0x1p24;
    for (int k = 0; k < 2; k++) {
        gpu_begin(_i);
        a.p = number + k * 0x1p-26;
        check(DT_F32, a, 100 + k, 0);
        const gpu_pair x = gpu_values(DT_F32, 1, &one), y = gpu_output(DT_F32, 1);
        dt_nn_kernels_of(DT_CUDA)->dropout(&a, x.gpu, y.gpu);
        const float want = k ? 0 : (float)(1 / (1 - a.p));
        gpu_bits(&y, &want, "one at p %d", k);
        gpu_end();
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("gpu dropout");
    TCase *tc = tcase_create("dropout");
    tcase_set_timeout(tc, 120);
    tcase_add_loop_test(tc, test_blocks, 0, GPU_ORDERS);
    tcase_add_loop_test(tc, test_threshold, 0, GPU_ORDERS);
    suite_add_tcase(suite, tc);
    return gpu_main(suite);
}
