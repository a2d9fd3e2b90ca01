/* tests/gpu/test_cast.c - casts between all dtypes and normal numbers, bit for bit the cpu's. */
#include "tests/gpu/gpu_test.h"

#include "array/array_internal.h"
#include "array/cuda_internal.h"
#include "array/dt_half.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static const dt_dtype all_dtypes[] = {DT_F32, DT_BF16, DT_F16, DT_F64, DT_I32, DT_I64, DT_U8};

/* Numbers where rounding and saturation turn, in f64. */
static int hard_values(double *x)
{
    static const double base[] = {0,        0.5,      1,         1.5,    2.5,     127,     255,
                                  256,      65504,    65519,     65520,  65536,   0x1p24,  0x1p31,
                                  0x1p32,   0x1p62,   0x1p63,    0x1p64, 0x1p-24, 0x1p-25, 0x1p-14,
                                  0x1p-126, 0x1p-149, 3.3895e38, 1e300};
    int n = 0;
    for (int i = 0; i < DT_COUNT(base); i++)
        for (int sign = -1; sign <= 1; sign += 2) {
            const double b = sign * base[i];
            const double near[] = {b,
                                   nextafter(b, INFINITY),
                                   nextafter(b, -INFINITY),
                                   (double)nextafterf((float)b, INFINITY),
                                   (double)nextafterf((float)b, -INFINITY),
                                   b + 1,
                                   b - 1,
                                   b * (1 + 0x1p-8),
                                   b * (1 + 0x1p-9),
                                   b * (1 + 3 * 0x1p-9),
                                   b * (1 + 0x1p-11),
                                   b * (1 + 3 * 0x1p-12)};
            memcpy(x + n, near, sizeof near);
            n += DT_COUNT(near);
        }
    const double special[] = {NAN, INFINITY, -INFINITY, -0.0};
    memcpy(x + n, special, sizeof special);
    return n + DT_COUNT(special);
}

static void check(dt_dtype to, dt_dtype from, int64_t n, const void *host, int shift)
{
    void *want = malloc((size_t)(n + 1) * 8);
    ck_assert(want != NULL);
    gpu_shift(shift);
    const gpu_pair x = gpu_values(from, n, host);
    const gpu_pair y = gpu_output(to, n);
    dti_cast(to, want, from, host, n);
    dti_cuda_array_kernels()->cast(1, &(dti_cast_args){to, from, y.gpu, x.gpu, n});
    gpu_bits(&y, want, "cast of %d from %s, shift %d", (int)n, dt_dtype_name(from), shift);
    free(want);
}

START_TEST(test_all_pairs)
{
    double x[1024];
    char host[sizeof x];
    const int n = hard_values(x);
    for (int a = 0; a < DT_COUNT(all_dtypes); a++)
        for (int b = 0; b < DT_COUNT(all_dtypes); b++) {
            gpu_begin(_i);
            dti_cast(all_dtypes[b], host, DT_F64, x, n);
            check(all_dtypes[a], all_dtypes[b], n, host, 0);
            for (int shift = -2; shift < 2; shift++)
                check(all_dtypes[a], all_dtypes[b], n - 3, host, shift);
            check(all_dtypes[a], all_dtypes[b], 0, host, 0);
            check(all_dtypes[a], all_dtypes[b], 1, host, 0);
            gpu_end();
        }
}
END_TEST

/* Integers that f32 and f64 do not hold, and every 16-bit number. */
START_TEST(test_all_bits)
{
    enum { N = 65536 };
    int64_t *x = malloc(N * sizeof *x);
    uint16_t *h = malloc(N * sizeof *h);
    ck_assert(x && h);
    for (int i = 0; i < N; i++) {
        x[i] = (int64_t)((uint64_t)(i + 1) * 0x9e3779b97f4a7c15u) >> (i % 48);
        h[i] = (uint16_t)i;
    }
    for (int a = 0; a < DT_COUNT(all_dtypes); a++) {
        gpu_begin(_i);
        check(all_dtypes[a], DT_I64, 1000, x, 0);
        check(all_dtypes[a], DT_I32, 2000, x, 0);
        check(all_dtypes[a], DT_BF16, N, h, 0);
        check(all_dtypes[a], DT_F16, N, h, 0);
        gpu_end();
    }
    free(x);
    free(h);
}
END_TEST

/* Lists of several pairs of types: neighbours of one pair share a launch, of at most 24 arrays. */
START_TEST(test_lists)
{
    enum { MANY = 60 };
    static const dt_dtype pairs[][2] = {{DT_BF16, DT_F32}, {DT_F32, DT_BF16}, {DT_I32, DT_F64}};
    static const int sizes[] = {5, 0, 1024, 4103, 1};
    gpu_pair x[MANY], y[MANY];
    dti_cast_args list[MANY];
    int launches = 0, run = 0;
    gpu_begin(_i);
    for (int i = 0; i < MANY; i++) {
        const dt_dtype *pair = pairs[i < 30 ? 0 : i % 3];
        gpu_shift(i % 7 == 6);
        x[i] = gpu_random(pair[1], sizes[i % DT_COUNT(sizes)], -100, 100);
        y[i] = gpu_output(pair[0], x[i].n);
        list[i] = (dti_cast_args){pair[0], pair[1], y[i].gpu, x[i].gpu, x[i].n};
        run = i > 0 && pair[0] == list[i - 1].to && run < 24 ? run + 1 : 1;
        launches += run == 1 && x[i].n > 0;
    }
    const int64_t before = dt_heap_get_counts(gpu_heap()).launches;
    dti_cuda_array_kernels()->cast(MANY, list);
    const int64_t after = dt_heap_get_counts(gpu_heap()).launches;
    ck_assert_int_eq(after - before, launches);
    for (int i = 0; i < MANY; i++) {
        dti_cast(y[i].dtype, y[i].cpu, x[i].wide, x[i].cpu, x[i].n);
        gpu_bits(&y[i], y[i].cpu, "array %d of a list", i);
    }
    gpu_end();
}
END_TEST

START_TEST(test_normal)
{
    static const uint64_t first[] = {0, 1, 4, 7, 0x3fffffffdu, 0xfffffffffffffff0u};
    static const int64_t sizes[] = {0, 1, 3, 4, 5, 1021, 8200};
    char want[8200 * 8];
    for (int f = 0; f < DT_COUNT(first); f++)
        for (int s = 0; s < DT_COUNT(sizes); s++) {
            const int64_t n = first[f] > 0x7fffffffffffffffu && sizes[s] > 15 ? 15 : sizes[s];
            const dt_dtype dtype = gpu_float[(f + s) % GPU_FLOATS];
            const dt_key key = dt_key_make(7, (uint64_t)f, (uint64_t)s);
            gpu_begin(_i);
            gpu_shift(s % 2);
            const gpu_pair x = gpu_output(dtype, n);
            dt_math_kernels_of(DT_CPU)->normal(dtype, key, first[f], n, 0.02, want);
            dt_math_kernels_of(DT_CUDA)->normal(dtype, key, first[f], n, 0.02, x.gpu);
            gpu_bits(&x, want, "normal %d from %llu, %d", (int)n, (unsigned long long)first[f], s);
            gpu_end();
        }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("gpu: casts and random numbers");
    TCase *tc = tcase_create("cast");
    tcase_add_loop_test(tc, test_all_pairs, 0, GPU_ORDERS);
    tcase_add_loop_test(tc, test_all_bits, 0, GPU_ORDERS);
    tcase_add_loop_test(tc, test_lists, 0, GPU_ORDERS);
    tcase_add_loop_test(tc, test_normal, 0, GPU_ORDERS);
    suite_add_tcase(suite, tc);
    return gpu_main(suite);
}
