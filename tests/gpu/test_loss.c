/* tests/gpu/test_loss.c - the pieces of cross-entropy: rows of any length, -inf among logits,
 * ignored and absent targets, gradients in 16 bits and in place. */
#include "tests/gpu/gpu_test.h"

#include "array/array_internal.h"

#include <math.h>
#include <stdlib.h>

static const int64_t shapes[][2] = {{0, 8},   {3, 0},    {3, 1},    {5, 7},    {130, 16}, {7, 128},
                                    {3, 333}, {5, 1000}, {2, 4096}, {3, 8197}, {2, 20000}};

enum { IGNORE = -100 };

typedef struct sides {
    dt_loss_args cpu, gpu;
    gpu_pair max, sum, hit;
} sides;

/* Rows of logits, every seventh target ignored and others on other ranks; max, sum and hit as they
 * would come out. */
static sides loss_of(gpu_pair z, int64_t rows, int64_t n, int64_t lo)
{
    int32_t *target = malloc((size_t)(rows + 1) * sizeof *target);
    ck_assert(target != NULL);
    for (int64_t r = 0; r < rows; r++)
        target[r] = r % 7 == 3 ? IGNORE : (int32_t)((r * 7919 + 5) % (lo + n + 3));
    const gpu_pair targets = gpu_values(DT_I32, rows, target);
    free(target);
    sides s = {.cpu = {.dtype = z.wide,
                       .rows = rows,
                       .n = n,
                       .lo = lo,
                       .ignore = IGNORE,
                       .targets = targets.cpu,
                       .z = z.cpu},
               .max = gpu_random(z.wide, rows, 2, 4),
               .sum = gpu_random(z.wide, rows, 10, 100),
               .hit = gpu_random(z.wide, rows, -1, 1)};
    s.gpu = s.cpu;
    s.gpu.dtype = z.dtype;
    s.gpu.targets = targets.gpu;
    s.gpu.z = z.gpu;
    s.cpu.max = s.max.cpu, s.cpu.sum = s.sum.cpu, s.cpu.hit = s.hit.cpu;
    s.gpu.max = s.max.gpu, s.gpu.sum = s.sum.gpu, s.gpu.hit = s.hit.gpu;
    return s;
}

static void check_rows(const gpu_pair *z, int64_t rows, int64_t n, const char *text)
{
    const sides s = loss_of(*z, rows, n, 11);
    dt_nn_kernels_of(DT_CPU)->loss_rows(&s.cpu);
    dt_nn_kernels_of(DT_CUDA)->loss_rows(&s.gpu);
    const char *name = dt_dtype_name(z->dtype);
    gpu_same(&s.max, 0, "max of %s %s [%d, %d]", name, text, (int)rows, (int)n);
    gpu_same(&s.sum, 0, "sum of %s %s [%d, %d]", name, text, (int)rows, (int)n);
    gpu_same(&s.hit, 0, "hit of %s %s [%d, %d]", name, text, (int)rows, (int)n);
}

START_TEST(test_loss_rows)
{
    for (int d = 0; d < GPU_FLOATS; d++)
        for (int s = 0; s < DT_COUNT(shapes); s++) {
            const int64_t rows = shapes[s][0], n = shapes[s][1];
            gpu_begin(_i);
            gpu_shift(s % 3 == 1);
            const gpu_pair z = gpu_random(gpu_float[d], rows * n, -4, 4);
            check_rows(&z, rows, n, "logits");
            gpu_end();
        }
}
END_TEST

/* -inf where logits are masked: some, all that a thread sees first, all; rising rows, and NaN. */
START_TEST(test_logits_that_end)
{
    enum { ROWS = 5, N = 20000 };
    static float z[ROWS][N];
    static double bytes[ROWS * N];
    for (int d = 0; d < GPU_FLOATS; d++) {
        for (int r = 0; r < ROWS; r++)
            for (int i = 0; i < N; i++) {
                const bool masked = r == 0 ? i % 3 == 0 : r == 1 ? i < 17000 : r == 2;
                z[r][i] = masked ? -INFINITY : r == 3 ? (float)i / 64 : 0.25f * (float)(i % 9);
            }
        z[4][77] = NAN;
        dti_cast(gpu_float[d], bytes, DT_F32, z, ROWS * N);
        gpu_begin(_i);
        const gpu_pair x = gpu_values(gpu_float[d], ROWS * N, bytes);
        check_rows(&x, ROWS, N, "masked logits");
        gpu_end();
    }
}
END_TEST

START_TEST(test_loss_shift_and_total)
{
    for (int d = 0; d < GPU_FLOATS; d++)
        for (int s = 0; s < DT_COUNT(shapes); s++) {
            const double start = 3;
            const int64_t rows = shapes[s][0] * 9;
            gpu_begin(_i);
            const sides l = loss_of(gpu_random(gpu_float[d], rows, -1, 1), rows, 1, 3);
            const gpu_pair old = gpu_random(l.max.dtype, rows, -3, 2);
            const gpu_pair total = gpu_values(DT_F64, 1, &start);
            dt_nn_kernels_of(DT_CPU)->loss_total(&l.cpu, total.cpu);
            dt_nn_kernels_of(DT_CUDA)->loss_total(&l.gpu, total.gpu);
            gpu_same(&total, 0, "%s: total of %d", dt_dtype_name(gpu_float[d]), s);
            dt_nn_kernels_of(DT_CPU)->loss_shift(&l.cpu, old.cpu);
            dt_nn_kernels_of(DT_CUDA)->loss_shift(&l.gpu, old.gpu);
            gpu_same(&l.sum, 0, "%s: shifted sum of %d", dt_dtype_name(gpu_float[d]), s);
            gpu_end();
        }
}
END_TEST

static void check_dz(dt_dtype dtype, dt_dtype dz_dtype, int s, int shift)
{
    const int64_t rows = shapes[s][0], n = shapes[s][1];
    const char *name = dt_dtype_name(dtype);
    const gpu_pair z = gpu_random(dtype, rows * n, -4, 2);
    const sides l = loss_of(z, rows, n, 11);
    const gpu_pair dy = gpu_random(z.wide, 1, 0.5, 1);
    const gpu_pair dz = gpu_output(dz_dtype, rows * n), one = gpu_output(dz_dtype, rows * n);
    const dt_nn_kernels *cpu = dt_nn_kernels_of(DT_CPU), *gpu = dt_nn_kernels_of(DT_CUDA);
    cpu->loss_dz(&l.cpu, dy.cpu, 37, dz.wide, dz.cpu);
    gpu->loss_dz(&l.gpu, dy.gpu, 37, dz_dtype, dz.gpu);
    gpu_same(&dz, 0, "%s: dz of %d shift %d", name, s, shift);
    cpu->loss_dz(&l.cpu, NULL, 1, dz.wide, one.cpu);
    gpu->loss_dz(&l.gpu, NULL, 1, dz_dtype, one.gpu);
    gpu_same(&one, 0, "%s: dz without dy of %d shift %d", name, s, shift);
    if (dz_dtype == dtype) {
        cpu->loss_dz(&l.cpu, NULL, 1, z.wide, z.cpu);
        gpu->loss_dz(&l.gpu, NULL, 1, dtype, z.gpu);
        gpu_same(&z, 0, "%s: dz in place of %d shift %d", name, s, shift);
    }
}

START_TEST(test_loss_dz)
{
    static const dt_dtype types[][2] = {{DT_F32, DT_F32}, {DT_BF16, DT_BF16}, {DT_F16, DT_F16},
                                        {DT_F64, DT_F64}, {DT_F32, DT_BF16},  {DT_F32, DT_F16}};
    for (int d = 0; d < DT_COUNT(types); d++)
        for (int s = 0; s < DT_COUNT(shapes); s++)
            for (int shift = s == 5 ? -8 : 0; shift < 2; shift++) { /* below 0: one array alone */
                gpu_begin(_i);
                gpu_shift(shift);
                check_dz(types[d][0], types[d][1], s, shift);
                gpu_end();
            }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("gpu loss");
    TCase *tc = tcase_create("loss");
    tcase_set_timeout(tc, 120);
    tcase_add_loop_test(tc, test_loss_rows, 0, GPU_ORDERS);
    tcase_add_loop_test(tc, test_logits_that_end, 0, GPU_ORDERS);
    tcase_add_loop_test(tc, test_loss_shift_and_total, 0, GPU_ORDERS);
    tcase_add_loop_test(tc, test_loss_dz, 0, GPU_ORDERS);
    suite_add_tcase(suite, tc);
    return gpu_main(suite);
}
