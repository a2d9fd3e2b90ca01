/* tests/gpu/test_sum.c - sums over a dim, and sums of products by letters. */
#include "tests/gpu/gpu_test.h"

#include <string.h>

/* outer, mid, inner: few and many of each, odd and even, one launch and two. */
static const int64_t shapes[][3] = {
    {0, 4, 4},     {4, 4, 0},      {4, 0, 4},   {3, 0, 1},    {1, 1, 1},      {5, 1, 7},
    {300, 3, 1},   {700, 16, 1},   {9, 100, 1}, {37, 641, 1}, {3, 5000, 1},   {1, 20001, 1},
    {2, 30000, 1}, {1, 65, 24},    {2, 33, 7},  {3, 9, 1000}, {1, 1500, 256}, {1, 3001, 3},
    {40, 12, 16},  {1, 700, 1030}, {2, 4096, 8}};

static void check_sum(dt_dtype dtype, const int64_t s[3], int shift)
{
    gpu_shift(shift);
    const gpu_pair x = gpu_random(dtype, s[0] * s[1] * s[2], -1, 1);
    const gpu_pair out = gpu_output(dtype, s[0] * s[2]);
    dt_math_kernels_of(DT_CPU)->sum(x.wide, s[0], s[1], s[2], x.cpu, out.cpu);
    dt_math_kernels_of(DT_CUDA)->sum(dtype, s[0], s[1], s[2], x.gpu, out.gpu);
    /* Whether addresses are aligned changes no bit: no shift in the text. */
    gpu_same(&out, 0, "sum of [%d, %d, %d]", (int)s[0], (int)s[1], (int)s[2]);
}

static void check_sum_mul(dt_dtype dtype, int64_t mid, int64_t inner, int shift)
{
    gpu_shift(shift);
    const gpu_pair x = gpu_random(dtype, mid * inner, -1, 1);
    const gpu_pair y = gpu_random(dtype, mid * inner, -1, 1), out = gpu_output(dtype, inner);
    dt_math_kernels_of(DT_CPU)->sum_mul(x.wide, mid, inner, x.cpu, y.cpu, out.cpu);
    dt_math_kernels_of(DT_CUDA)->sum_mul(dtype, mid, inner, x.gpu, y.gpu, out.gpu);
    gpu_same(&out, 0, "sum of products of [%d, %d]", (int)mid, (int)inner);
}

START_TEST(test_sums)
{
    for (int d = 0; d < GPU_FLOATS; d++)
        for (int s = 0; s < DT_COUNT(shapes); s++)
            for (int shift = -2; shift < 2; shift++) {
                gpu_begin(_i);
                check_sum(gpu_float[d], shapes[s], shift);
                gpu_begin(_i);
                if (shapes[s][0] == 1)
                    check_sum_mul(gpu_float[d], shapes[s][1], shapes[s][2], shift);
                gpu_end();
            }
}
END_TEST

/* ---- products ---- */

/* C[b, m, n] (+)= sum over k of A[b, m, k] B[k, n] w[k], and letters of size 1 and 0. */
static void check_product(dt_dtype dtype, int64_t b, int64_t m, int64_t n, int64_t k, bool add)
{
    const gpu_pair x = gpu_random(dtype, b * m * k, -1, 1), y = gpu_random(dtype, k * n, -1, 1);
    const gpu_pair w = gpu_random(dtype, k, -1, 1);
    const gpu_pair out = gpu_random(dtype, b * m * n, -1, 1);
    dt_product_args a = {.dtype = x.wide,
                         .nfactors = 3,
                         .nletters = 5,
                         .nfree = 4,
                         .add = add,
                         .size = {b, m, 1, n, k},
                         .stride = {{m * k, k, 5, 0, 1}, {0, 0, 7, 1, n}, {0, 0, 0, 0, 1}},
                         .out_stride = {m * n, n, 3, 1},
                         .factor = {x.cpu, y.cpu, w.cpu},
                         .out = out.cpu};
    dt_math_kernels_of(DT_CPU)->product(&a);
    a.dtype = dtype;
    a.out = out.gpu;
    memcpy(a.factor, (const void *[]){x.gpu, y.gpu, w.gpu}, 3 * sizeof a.factor[0]);
    dt_math_kernels_of(DT_CUDA)->product(&a);
    gpu_same(&out, 0, "product [%d, %d, %d], %d terms%s", (int)b, (int)m, (int)n, (int)k,
             add ? ", added" : "");
}

START_TEST(test_products)
{
    static const int64_t sizes[][4] = {{2, 3, 5, 7},   {1, 1, 1, 3000}, {3, 2, 2, 300},
                                       {1, 70, 70, 2}, {2, 3, 4, 0},    {0, 3, 4, 5},
                                       {1, 1, 1, 1}};
    for (int d = 0; d < GPU_FLOATS; d++)
        for (int s = 0; s < DT_COUNT(sizes); s++) {
            gpu_begin(_i);
            for (int add = 0; add < 2; add++)
                check_product(gpu_float[d], sizes[s][0], sizes[s][1], sizes[s][2], sizes[s][3],
                              add);
            gpu_end();
        }
}
END_TEST

/* No free letters, no factors: out is the number of values of the summed letters. */
START_TEST(test_product_of_nothing)
{
    gpu_begin(_i);
    const gpu_pair out = gpu_output(DT_F32, 1);
    const dt_product_args a = {.dtype = DT_F32, .nletters = 2, .size = {6, 7}, .out = out.gpu};
    dt_math_kernels_of(DT_CUDA)->product(&a);
    gpu_bits(&out, (const float[]){42}, "product of no factors");
    gpu_end();
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("gpu: sums");
    TCase *tc = tcase_create("sum");
    tcase_add_loop_test(tc, test_sums, 0, GPU_ORDERS);
    tcase_add_loop_test(tc, test_products, 0, GPU_ORDERS);
    tcase_add_loop_test(tc, test_product_of_nothing, 0, GPU_ORDERS);
    suite_add_tcase(suite, tc);
    return gpu_main(suite);
}
