/* tests/gpu/test_activation.c - silu, both forms of gelu and swiglu, forward and backward, also
 * where exponentials end. */
#include "tests/gpu/gpu_test.h"

#include <math.h>
#include <stdio.h>

static const int64_t sizes[] = {0, 1, 5, 8, 100, 4099};
static const dt_activation kinds[] = {DT_ACT_SILU, DT_ACT_GELU_TANH, DT_ACT_GELU_ERF};

static void check_kind(dt_dtype dtype, dt_activation kind, const gpu_pair *x, const char *text)
{
    const gpu_pair dy = gpu_random(dtype, x->n, -1, 1), y = gpu_output(dtype, x->n);
    const gpu_pair dx = gpu_output(dtype, x->n);
    const dt_nn_kernels *cpu = dt_nn_kernels_of(DT_CPU), *gpu = dt_nn_kernels_of(DT_CUDA);
    cpu->activation(x->wide, kind, x->n, x->cpu, y.cpu);
    gpu->activation(dtype, kind, x->n, x->gpu, y.gpu);
    gpu_same(&y, 0, "kind %d of %s", (int)kind, text);
    cpu->activation_dx(x->wide, kind, x->n, x->cpu, dy.cpu, dx.cpu);
    gpu->activation_dx(dtype, kind, x->n, x->gpu, dy.gpu, dx.gpu);
    gpu_same(&dx, 0, "kind %d, dx of %s", (int)kind, text);
}

START_TEST(test_kinds)
{
    for (int d = 0; d < GPU_FLOATS; d++)
        for (int k = 0; k < DT_COUNT(kinds); k++)
            for (int s = 0; s < DT_COUNT(sizes); s++) {
                char text[64];
                gpu_begin(_i);
                gpu_shift(s % 2);
                (void)snprintf(text, sizeof text, "%d", (int)sizes[s]);
                const gpu_pair x = gpu_random(gpu_float[d], sizes[s], -9, 9);
                check_kind(gpu_float[d], kinds[k], &x, text);
                gpu_end();
            }
}
END_TEST

/* Every 16 bits that are finite, and where exponentials overflow and vanish. */
START_TEST(test_extremes)
{
    static const float far[] = {-INFINITY, -300, -104, -88.8f, -30, -1e-30f, 0,
                                1e-30f,    17,   30,   88.8f,  300, INFINITY};
    for (int k = 0; k < DT_COUNT(kinds); k++) {
        gpu_begin(_i);
        gpu_pair x = gpu_values(DT_F32, DT_COUNT(far), far);
        if (kinds[k] != DT_ACT_GELU_TANH) { /* whose dx alone is clamped */
            x = gpu_values(DT_F32, DT_COUNT(far) - 2, far + 1);
        }
        check_kind(DT_F32, kinds[k], &x, "far");
        const gpu_pair wide = gpu_random(DT_BF16, 2000, -120, 120);
        check_kind(DT_BF16, kinds[k], &wide, "wide");
        gpu_end();
    }
}
END_TEST

static void check_swiglu(dt_dtype dtype, int64_t n, int shift)
{
    const dt_nn_kernels *cpu = dt_nn_kernels_of(DT_CPU), *gpu = dt_nn_kernels_of(DT_CUDA);
    const gpu_pair gate = gpu_random(dtype, n, -6, 6), up = gpu_random(dtype, n, -2, 2);
    const gpu_pair dy = gpu_random(dtype, n, -1, 1), y = gpu_output(dtype, n);
    cpu->swiglu(y.wide, n, gate.cpu, up.cpu, y.cpu);
    gpu->swiglu(dtype, n, gate.gpu, up.gpu, y.gpu);
    gpu_same(&y, 0, "swiglu of %d shift %d", (int)n, shift);
    for (int want = 1; want < 4; want++) {
        const bool g = want & 1, u = want & 2;
        const gpu_pair dgate = gpu_output(dtype, n), dup = gpu_output(dtype, n);
        cpu->swiglu_backward(y.wide, n, gate.cpu, g ? up.cpu : NULL, dy.cpu, g ? dgate.cpu : NULL,
                             u ? dup.cpu : NULL);
        gpu->swiglu_backward(dtype, n, gate.gpu, g ? up.gpu : NULL, dy.gpu, g ? dgate.gpu : NULL,
                             u ? dup.gpu : NULL);
        gpu_same(&dgate, 0, "swiglu dgate of %d, %d shift %d", want, (int)n, shift);
        gpu_same(&dup, 0, "swiglu dup of %d, %d shift %d", want, (int)n, shift);
    }
}

START_TEST(test_swiglu)
{
    for (int d = 0; d < GPU_FLOATS; d++)
        for (int s = 0; s < DT_COUNT(sizes); s++)
            for (int shift = -8; shift < 2; shift++) {
                gpu_begin(_i);
                gpu_shift(shift);
                check_swiglu(gpu_float[d], sizes[s], shift);
                gpu_end();
            }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("gpu activation");
    TCase *tc = tcase_create("activation");
    tcase_set_timeout(tc, 120);
    tcase_add_loop_test(tc, test_kinds, 0, GPU_ORDERS);
    tcase_add_loop_test(tc, test_extremes, 0, GPU_ORDERS);
    tcase_add_loop_test(tc, test_swiglu, 0, GPU_ORDERS);
    suite_add_tcase(suite, tc);
    return gpu_main(suite);
}
