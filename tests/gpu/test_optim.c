/* tests/gpu/test_optim.c - AdamW and sums of powers over lists of tensors. */
#include "tests/gpu/gpu_test.h"

#include "array/array_internal.h"
#include "array/cuda/gpu_internal.h"

#include <math.h>
#include <stdlib.h>

enum { MOST = 500 };

typedef struct adamw_case {
    gpu_pair g, w, m, v, rounded;
    dt_adamw_args cpu, gpu;
} adamw_case;

/* w, m, v in dtype; gradients in another; rounded DT_NDTYPES: not wanted. On the cpu the gradient
 * is in its own dtype too, and so is what is rounded. */
static void make_case(adamw_case *c, dt_dtype dtype, dt_dtype grad, dt_dtype rounded, int64_t n,
                      double decay)
{
    c->g = gpu_random(grad, n, -1, 1);
    c->w = gpu_random(dtype, n, -1, 1);
    c->m = gpu_random(dtype, n, -0.1, 0.1);
    c->v = gpu_random(dtype, n, 0, 0.1);
    const bool rounds = rounded != DT_NDTYPES;
    c->rounded = gpu_output(rounds ? rounded : DT_U8, rounds ? n : 0);
    c->cpu = (dt_adamw_args){.dtype = dtype,
                             .grad_dtype = c->g.wide,
                             .n = n,
                             .lr = 0.01,
                             .beta1 = 0.9,
                             .beta2 = 0.95,
                             .eps = 1e-8,
                             .decay = decay,
                             .grad_scale = 0.5,
                             .correction1 = 1 - pow(0.9, 3),
                             .correction2 = 1 - pow(0.95, 3),
                             .g = c->g.cpu,
                             .w = c->w.cpu,
                             .m = c->m.cpu,
                             .v = c->v.cpu,
                             .rounded_dtype = rounds ? rounded : DT_F32};
    c->gpu = c->cpu;
    c->gpu.grad_dtype = grad;
    c->gpu.g = c->g.gpu;
    c->gpu.w = c->w.gpu;
    c->gpu.m = c->m.gpu;
    c->gpu.v = c->v.gpu;
    c->gpu.rounded = c->rounded.gpu;
}

static void check_case(adamw_case *c, int number, const char *list)
{
    gpu_same(&c->w, 0, "adamw of %s, w %d", list, number);
    gpu_same(&c->m, 0, "adamw of %s, m %d", list, number);
    gpu_same(&c->v, 0, "adamw of %s, v %d", list, number);
    if (c->rounded.n > 0) {
        dti_cast(DT_F32, c->rounded.cpu, c->w.wide, c->w.cpu, c->w.n);
        gpu_same(&c->rounded, 0, "adamw of %s, rounded %d", list, number);
    }
}

static void run_list(adamw_case *c, int n, const char *list)
{
    dt_adamw_args cpu[MOST], gpu[MOST];
    for (int i = 0; i < n; i++) {
        cpu[i] = c[i].cpu;
        gpu[i] = c[i].gpu;
    }
    dt_optim_kernels_of(DT_CPU)->adamw(n, cpu);
    const int64_t before = dti_gpu_get_counts().launches;
    dt_optim_kernels_of(DT_CUDA)->adamw(n, gpu);
    ck_assert_int_eq(dti_gpu_get_counts().launches - before, 1);
    for (int i = 0; i < n; i++)
        check_case(&c[i], i, list);
}

/* All pairs of dtypes in one list, of sizes that need one block, several, and none. */
START_TEST(test_adamw)
{
    static const int64_t sizes[] = {1, 7, 2048, 0, 5001, 2049};
    static const dt_dtype grads[] = {DT_F32, DT_BF16, DT_F16},
                          rounded[] = {DT_NDTYPES, DT_BF16, DT_F16};
    adamw_case c[18];
    for (int shift = -5; shift < 2; shift++) { /* below 0: of g, w, m, v or rounded alone */
        gpu_begin(_i);
        for (int i = 0; i < DT_COUNT(c); i++) {
            gpu_shift(i % 5 == 4 ? shift : 0);
            make_case(&c[i], DT_F32, grads[i % 3], rounded[i / 3 % 3], sizes[i % DT_COUNT(sizes)],
                      i % 2 * 0.1);
        }
        run_list(c, DT_COUNT(c), "f32");
        gpu_end();
        gpu_begin(_i);
        for (int i = 0; i < DT_COUNT(sizes); i++) {
            gpu_shift(shift);
            make_case(&c[i], DT_F64, DT_F64, DT_NDTYPES, sizes[i], 0.1);
        }
        run_list(c, DT_COUNT(sizes), "f64");
        gpu_end();
    }
}
END_TEST

/* Longer lists, in one launch up to 384 and in two beyond. */
START_TEST(test_adamw_long)
{
    dt_adamw_args cpu[MOST], gpu[MOST];
    gpu_begin(_i);
    adamw_case c;
    make_case(&c, DT_F32, DT_BF16, DT_BF16, 40 * MOST, 0.1);
    static const int counts[] = {384, 385};
    for (int k = 0; k < DT_COUNT(counts); k++) {
        for (int i = 0; i < counts[k]; i++) {
            const int64_t at = 40 * i, n = 1 + i % 40;
            cpu[i] = c.cpu;
            gpu[i] = c.gpu;
            cpu[i].n = gpu[i].n = n;
            cpu[i].g = (const float *)c.cpu.g + at;
            cpu[i].w = (float *)c.cpu.w + at;
            cpu[i].m = (float *)c.cpu.m + at;
            cpu[i].v = (float *)c.cpu.v + at;
            gpu[i].g = (const uint16_t *)c.gpu.g + at;
            gpu[i].w = (float *)c.gpu.w + at;
            gpu[i].m = (float *)c.gpu.m + at;
            gpu[i].v = (float *)c.gpu.v + at;
            gpu[i].rounded = (uint16_t *)c.gpu.rounded + at;
        }
        const int64_t before = dti_gpu_get_counts().launches;
        dt_optim_kernels_of(DT_CPU)->adamw(counts[k], cpu);
        dt_optim_kernels_of(DT_CUDA)->adamw(counts[k], gpu);
        ck_assert_int_eq(dti_gpu_get_counts().launches - before, k + 1);
        gpu_same(&c.w, 0, "w of a list of %d", counts[k]);
        gpu_same(&c.v, 0, "v of a list of %d", counts[k]);
    }
    gpu_end();
}
END_TEST

/* Every number of a launch is of all its tensors: one that differs in one goes apart. */
START_TEST(test_adamw_unlike)
{
    adamw_case c[15];
    dt_adamw_args cpu[DT_COUNT(c)], gpu[DT_COUNT(c)];
    gpu_begin(_i);
    for (int i = 0; i < DT_COUNT(c); i++) {
        make_case(&c[i], DT_F32, DT_F32, DT_NDTYPES, 50, 0.1);
        cpu[i] = c[i].cpu;
        gpu[i] = c[i].gpu;
        for (int side = 0; side < 2; side++) {
            dt_adamw_args *a = side ? &gpu[i] : &cpu[i];
            double *const field[] = {&a->lr,         &a->beta1,       &a->beta2,      &a->eps,
                                     &a->grad_scale, &a->correction1, &a->correction2};
            if (i % 2 == 1)
                *field[i / 2] = 0.3;
        }
    }
    dt_optim_kernels_of(DT_CPU)->adamw(DT_COUNT(c), cpu);
    const int64_t before = dti_gpu_get_counts().launches;
    dt_optim_kernels_of(DT_CUDA)->adamw(DT_COUNT(c), gpu);
    ck_assert_int_eq(dti_gpu_get_counts().launches - before, DT_COUNT(c));
    for (int i = 0; i < DT_COUNT(c); i++)
        check_case(&c[i], i, "unlike");
    gpu_end();
}
END_TEST

/* ---- sums of powers ---- */

static void check_powers(double power, int shift)
{
    static const int64_t sizes[] = {0, 1, 9, 8192, 8193, 40001};
    enum { N = GPU_FLOATS * DT_COUNT(sizes) };
    dt_power_args cpu[N], gpu[N];
    const gpu_pair out = gpu_output(DT_F64, N);
    gpu_shift(shift);
    for (int i = 0; i < N; i++) {
        const gpu_pair x = gpu_random(gpu_float[i % GPU_FLOATS], sizes[i / GPU_FLOATS], -3, 3);
        cpu[i] = (dt_power_args){x.wide, x.n, x.cpu, (double *)out.cpu + i};
        gpu[i] = (dt_power_args){x.dtype, x.n, x.gpu, (double *)out.gpu + i};
    }
    const int64_t before = dti_gpu_get_counts().launches;
    dt_optim_kernels_of(DT_CPU)->power_sum(N, cpu, power);
    dt_optim_kernels_of(DT_CUDA)->power_sum(N, gpu, power);
    ck_assert_int_eq(dti_gpu_get_counts().launches - before, 2);
    gpu_same(&out, 0, "sums of power %g", power);
}

START_TEST(test_powers)
{
    static const double power[] = {2, 1, INFINITY, 3, 0.5};
    for (int p = 0; p < DT_COUNT(power); p++)
        for (int shift = 0; shift < 2; shift++) {
            gpu_begin(_i);
            check_powers(power[p], shift);
            gpu_end();
        }
}
END_TEST

/* More tensors than a launch takes, and one of more blocks than are added up at once. */
START_TEST(test_powers_many)
{
    enum { COUNT = 390, LONG = 257 * 4096 + 3 };
    dt_power_args cpu[COUNT], gpu[COUNT];
    gpu_begin(_i);
    const gpu_pair x = gpu_random(DT_F64, LONG, -3, 3), out = gpu_output(DT_F64, COUNT);
    for (int i = 0; i < COUNT; i++) {
        const int64_t n = i == COUNT - 1 ? LONG : 1 + i % 3, at = i == COUNT - 1 ? 0 : 5 * i;
        cpu[i] = (dt_power_args){DT_F64, n, (double *)x.cpu + at, (double *)out.cpu + i};
        gpu[i] = (dt_power_args){DT_F64, n, (double *)x.gpu + at, (double *)out.gpu + i};
    }
    dt_optim_kernels_of(DT_CPU)->power_sum(COUNT, cpu, 2);
    dt_optim_kernels_of(DT_CUDA)->power_sum(COUNT, gpu, 2);
    for (int i = 0; i < COUNT; i++)
        ck_assert_msg(((double *)out.cpu)[i] > 0, "sum %d", i);
    gpu_same(&out, 0, "sums of many");
    gpu_end();
}
END_TEST

/* The largest is NaN wherever one is; infinities stay. */
START_TEST(test_powers_not_finite)
{
    enum { N = 3000 };
    float x[N] = {0};
    for (int at = 0; at < N; at += 977) {
        gpu_begin(_i);
        x[at] = NAN;
        const gpu_pair a = gpu_values(DT_F32, N, x), out = gpu_output(DT_F64, 2);
        x[at] = -INFINITY;
        const gpu_pair b = gpu_values(DT_F32, N, x);
        x[at] = 0;
        const dt_power_args list[] = {{DT_F32, N, a.gpu, out.gpu},
                                      {DT_F32, N, b.gpu, (double *)out.gpu + 1}};
        dt_optim_kernels_of(DT_CUDA)->power_sum(2, list, INFINITY);
        gpu_bits(&out, (const double[]){NAN, INFINITY}, "largest with %d not finite", at);
        gpu_end();
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("gpu: optimizer");
    TCase *tc = tcase_create("optim");
    tcase_add_loop_test(tc, test_adamw, 0, GPU_ORDERS);
    tcase_add_loop_test(tc, test_adamw_long, 0, GPU_ORDERS);
    tcase_add_loop_test(tc, test_adamw_unlike, 0, GPU_ORDERS);
    tcase_add_loop_test(tc, test_powers, 0, GPU_ORDERS);
    tcase_add_loop_test(tc, test_powers_many, 0, GPU_ORDERS);
    tcase_add_loop_test(tc, test_powers_not_finite, 0, GPU_ORDERS);
    suite_add_tcase(suite, tc);
    return gpu_main(suite);
}
