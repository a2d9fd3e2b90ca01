/* tests/gpu/test_elementwise.c - sums, products and multiples element by element, fills, reductions
 * over several arrays, and ranges. */
#include "tests/gpu/gpu_test.h"

#include "array/array_internal.h"
#include "array/cuda_internal.h"

#include <math.h>
#include <string.h>

static const int64_t sizes[] = {0, 1, 7, 64, 255, 4097, 20011};
static const dt_dtype all_dtypes[] = {DT_F32, DT_BF16, DT_F16, DT_F64, DT_I32, DT_I64, DT_U8};

static const dti_cuda_arrays *gpu_arrays;

typedef void two_arrays(dt_dtype dtype, int64_t outer, int64_t inner, const void *x, const void *y,
                        void *out);

static void check_rows(const char *name, two_arrays *cpu, two_arrays *gpu, dt_dtype dtype,
                       int64_t outer, int64_t inner, bool in_place)
{
    const gpu_pair x = gpu_random(dtype, outer * inner, -2, 2), y = gpu_random(dtype, inner, -2, 2);
    const gpu_pair out = in_place ? x : gpu_output(dtype, outer * inner);
    cpu(x.wide, outer, inner, x.cpu, y.cpu, out.cpu);
    gpu(dtype, outer, inner, x.gpu, y.gpu, out.gpu);
    gpu_same(&out, 0, "%s [%d, %d]%s", name, (int)outer, (int)inner, in_place ? " in place" : "");
}

START_TEST(test_rows)
{
    static const int64_t shape[][2] = {{0, 8}, {8, 0},    {1, 1},    {1, 5003}, {3, 64},
                                       {5, 7}, {517, 24}, {1000, 1}, {2, 4096}};
    const dt_math_kernels *cpu = dt_math_kernels_of(DT_CPU), *gpu = dt_math_kernels_of(DT_CUDA);
    for (int d = 0; d < GPU_FLOATS; d++) {
        for (int s = 0; s < DT_COUNT(shape); s++) {
            gpu_begin(_i);
            check_rows("add", cpu->add, gpu->add, gpu_float[d], shape[s][0], shape[s][1], false);
            check_rows("mul", cpu->mul, gpu->mul, gpu_float[d], shape[s][0], shape[s][1], false);
            check_rows("add", cpu->add, gpu->add, gpu_float[d], shape[s][0], shape[s][1], true);
            for (int shift = -3; shift < 2; shift++) {
                static const char *const name[] = {"mul, out alone", "mul, y alone", "mul, x alone",
                                                   "mul again", "shifted mul"};
                gpu_shift(shift);
                check_rows(name[shift + 3], cpu->mul, gpu->mul, gpu_float[d], shape[s][0],
                           shape[s][1], false);
            }
            gpu_end();
        }
    }
}
END_TEST

static void check_scale(dt_dtype dtype, int64_t n, int shift)
{
    const double factor = 0.37;
    const gpu_pair x = gpu_random(dtype, n, -3, 3), y = gpu_output(dtype, n);
    dt_math_kernels_of(DT_CPU)->scale(x.wide, n, factor, x.cpu, y.cpu);
    dt_math_kernels_of(DT_CUDA)->scale(dtype, n, factor, x.gpu, y.gpu);
    gpu_same(&y, 0, "scale %d, shift %d", (int)n, shift);
    gpu_arrays->scale(dtype, x.gpu, n, factor);
    dti_scale(x.wide, x.cpu, n, factor);
    gpu_same(&x, 0, "scale in place %d, shift %d", (int)n, shift);
    const gpu_pair a = gpu_random(dtype, n, -3, 3), b = gpu_random(dtype, n, -3, 3);
    gpu_arrays->add(dtype, a.gpu, b.gpu, n);
    dti_add(a.wide, a.cpu, b.cpu, n);
    gpu_same(&a, 0, "add into %d, shift %d", (int)n, shift);
}

START_TEST(test_scale_and_add_into)
{
    for (int d = 0; d < GPU_FLOATS; d++)
        for (int s = 0; s < DT_COUNT(sizes); s++)
            for (int shift = 0; shift < 2; shift++) {
                gpu_begin(_i);
                gpu_shift(shift);
                check_scale(gpu_float[d], sizes[s], shift);
                gpu_end();
            }
}
END_TEST

START_TEST(test_fill)
{
    static const double value[] = {0, -1.7, 300.6, 1e30, -1e30, NAN, 0.1};
    char want[20011 * 8];
    for (int d = 0; d < DT_COUNT(all_dtypes); d++)
        for (int s = 0; s < DT_COUNT(sizes); s++) {
            const double v = value[(d + s) % DT_COUNT(value)];
            const int shift = (d + s) % 3;
            gpu_begin(_i);
            gpu_shift(shift);
            const gpu_pair x = gpu_output(all_dtypes[d], sizes[s]);
            dti_fill(x.dtype, want, x.n, v);
            gpu_arrays->fill(x.dtype, x.gpu, x.n, v);
            gpu_bits(&x, want, "fill %d with %g, shift %d", (int)x.n, v, shift);
            gpu_end();
        }
}
END_TEST

/* Integers of all sizes, so that sums wrap. */
static gpu_pair term(dt_dtype dtype, int64_t n)
{
    switch ((int)dtype) {
    case DT_U8: return gpu_random(dtype, n, 0, 256);
    case DT_I32: return gpu_random(dtype, n, -0x1p31, 0x1p31);
    case DT_I64: return gpu_random(dtype, n, -0x1p63, 0x1p63);
    default: return gpu_random(dtype, n, -5, 5);
    }
}

static void check_reduce(dt_dtype dtype, int64_t n, int nterms, dt_reduce op, int into)
{
    gpu_pair x[9];
    const void *src[9];
    dt_array host[9];
    const dt_array *each[9];
    dt_storage bytes[9] = {{0}};
    for (int k = 0; k < nterms; k++) {
        x[k] = term(dtype, n);
        src[k] = x[k].gpu;
        bytes[k].data = x[k].cpu;
        host[k] = (dt_array){.storage = &bytes[k], .shape = DT_SHAPE(n), .dtype = x[k].wide};
        each[k] = &host[k];
    }
    const gpu_pair out = into >= 0 ? x[into] : gpu_output(dtype, n);
    if (n > 0)
        dti_reduce(out.wide, out.cpu, nterms, each, n, op);
    gpu_arrays->reduce(dtype, out.gpu, nterms, src, n, op);
    gpu_same(&out, 0, "reduce %d of %d by %d into %d", nterms, (int)n, (int)op, into);
}

START_TEST(test_reduce)
{
    static const dt_reduce ops[] = {DT_REDUCE_SUM, DT_REDUCE_MAX, DT_REDUCE_MIN};
    for (int d = 0; d < DT_COUNT(all_dtypes); d++)
        for (int s = 0; s < DT_COUNT(sizes); s++)
            for (int o = 0; o < DT_COUNT(ops); o++) {
                gpu_begin(_i);
                gpu_shift(s % 2 ? 1 : -(s / 2));
                check_reduce(all_dtypes[d], sizes[s], 1 + (s + o) % 4, ops[o], -1);
                check_reduce(all_dtypes[d], sizes[s], 9, ops[o], o + 1);
                gpu_end();
            }
}
END_TEST

/* A NaN stays, on either side. */
START_TEST(test_reduce_nan)
{
    const float a[] = {NAN, 1, 2, NAN}, b[] = {1, NAN, 3, NAN}, most[] = {NAN, NAN, 3, NAN},
                least[] = {NAN, NAN, 2, NAN};
    gpu_begin(_i);
    const gpu_pair x = gpu_values(DT_F32, 4, a), y = gpu_values(DT_F32, 4, b);
    const gpu_pair out = gpu_output(DT_F32, 4);
    const void *src[] = {x.gpu, y.gpu};
    gpu_arrays->reduce(DT_F32, out.gpu, 2, src, 4, DT_REDUCE_MAX);
    gpu_bits(&out, most, "greatest with NaN");
    gpu_arrays->reduce(DT_F32, out.gpu, 2, src, 4, DT_REDUCE_MIN);
    gpu_bits(&out, least, "least with NaN");
    gpu_end();
}
END_TEST

START_TEST(test_range)
{
    for (int s = 0; s < DT_COUNT(sizes); s++) {
        gpu_begin(_i);
        const gpu_pair x = gpu_output(DT_I32, sizes[s]);
        dt_math_kernels_of(DT_CPU)->range(x.n, 2147483000, x.cpu);
        dt_math_kernels_of(DT_CUDA)->range(x.n, 2147483000, x.gpu);
        gpu_same(&x, 0, "range of %d", (int)x.n);
        gpu_end();
    }
}
END_TEST

int main(void)
{
    gpu_arrays = dti_cuda_array_kernels();
    Suite *suite = suite_create("gpu: elementwise");
    TCase *tc = tcase_create("elementwise");
    tcase_add_loop_test(tc, test_rows, 0, GPU_ORDERS);
    tcase_add_loop_test(tc, test_scale_and_add_into, 0, GPU_ORDERS);
    tcase_add_loop_test(tc, test_fill, 0, GPU_ORDERS);
    tcase_add_loop_test(tc, test_reduce, 0, GPU_ORDERS);
    tcase_add_loop_test(tc, test_reduce_nan, 0, GPU_ORDERS);
    tcase_add_loop_test(tc, test_range, 0, GPU_ORDERS);
    suite_add_tcase(suite, tc);
    return gpu_main(suite);
}
