/* tests/gpu/test_norm.c - rmsnorm and layernorm, forward and backward: rows that a few lanes, a
 * block or no registers hold, more rows than groups, large means, and arrays left out. */
#include "tests/gpu/gpu_test.h"

#include <stdio.h>

typedef struct norm_case {
    dt_dtype dtype;
    int64_t rows, n;
    bool centred, w, b;
    int shift;
    double lo, hi; /* of x */
} norm_case;

typedef struct sides {
    dt_norm_args cpu, gpu;
} sides;

static sides arguments(const norm_case *c)
{
    const gpu_pair x = gpu_random(c->dtype, c->rows * c->n, c->lo, c->hi);
    const gpu_pair dy = gpu_random(c->dtype, c->rows * c->n, -1, 1.5);
    const gpu_pair w = gpu_random(c->dtype, c->n, -1, 2), b = gpu_random(c->dtype, c->n, -1, 1);
    const gpu_pair work = gpu_output(DT_F64, dt_norm_work(c->rows, c->n));
    sides s = {.cpu = {.dtype = x.wide,
                       .rows = c->rows,
                       .n = c->n,
                       .eps = 1e-5,
                       .centred = c->centred,
                       .x = x.cpu,
                       .w = c->w ? w.cpu : NULL,
                       .b = c->b ? b.cpu : NULL,
                       .work = work.cpu,
                       .dy = dy.cpu}};
    s.gpu = s.cpu;
    s.gpu.dtype = c->dtype;
    s.gpu.x = x.gpu;
    s.gpu.w = c->w ? w.gpu : NULL;
    s.gpu.b = c->b ? b.gpu : NULL;
    s.gpu.work = work.gpu;
    s.gpu.dy = dy.gpu;
    return s;
}

/* want: 1 dx, 2 dw, 4 db. */
static void check_backward(const norm_case *c, const sides *s, const char *text, int want)
{
    const gpu_pair dx = gpu_output(c->dtype, c->rows * c->n);
    const gpu_pair dw = gpu_output(c->dtype, c->n), db = gpu_output(c->dtype, c->n);
    dt_nn_kernels_of(DT_CPU)->norm_backward(&s->cpu, want & 1 ? dx.cpu : NULL,
                                            want & 2 ? dw.cpu : NULL, want & 4 ? db.cpu : NULL);
    dt_nn_kernels_of(DT_CUDA)->norm_backward(&s->gpu, want & 1 ? dx.gpu : NULL,
                                             want & 2 ? dw.gpu : NULL, want & 4 ? db.gpu : NULL);
    gpu_same(&dx, 0, "%s, dx of %d", text, want);
    gpu_same(&dw, 0, "%s, dw of %d", text, want);
    gpu_same(&db, 0, "%s, db of %d", text, want);
}

/* wants: bit `want` for every set of gradients that is asked for. */
static void check(const norm_case *c, int order, unsigned wants)
{
    char text[128];
    (void)snprintf(text, sizeof text, "[%d, %d]%s%s%s from %g shift %d", (int)c->rows, (int)c->n,
                   c->centred ? " centred" : "", c->w ? " w" : "", c->b ? " b" : "", c->lo,
                   c->shift);
    gpu_begin(order);
    gpu_shift(c->shift);
    const sides s = arguments(c);
    const gpu_pair y = gpu_output(c->dtype, c->rows * c->n);
    dt_nn_kernels_of(DT_CPU)->norm(&s.cpu, y.cpu);
    dt_nn_kernels_of(DT_CUDA)->norm(&s.gpu, y.gpu);
    gpu_same(&y, 0, "%s, y", text);
    if (c->n > 0)
        for (int want = 1; want < 8; want++)
            if (wants >> want & 1)
                check_backward(c, &s, text, want);
    gpu_end();
}

static const int64_t shapes[][2] = {{0, 8},   {3, 0},   {3, 1},   {5, 7},    {130, 16},
                                    {7, 128}, {3, 333}, {2, 640}, {5, 1000}, {2, 4096}};

START_TEST(test_shapes)
{
    /* dx of one element without a mean is 0 but for rounding. */
    for (int d = 0; d < GPU_FLOATS; d++)
        for (int s = 0; s < DT_COUNT(shapes); s++)
            for (int k = shapes[s][1] == 1; k < 4; k += shapes[s][1] == 1 ? 2 : 1)
                check(&(norm_case){.dtype = gpu_float[d],
                                   .rows = shapes[s][0],
                                   .n = shapes[s][1],
                                   .centred = k & 1,
                                   .w = k != 2,
                                   .b = k == 3,
                                   .shift = k == 1 ? 1 : 0,
                                   .lo = -2,
                                   .hi = 3},
                      _i, s == 6 ? 0xff : 1u << 3 | 1u << 7);
}
END_TEST

/* One array alone that no access of 16 bytes may begin at: x, dy, w, b, y, dx, dw or db. */
START_TEST(test_alone)
{
    for (int d = 0; d < GPU_FLOATS; d++)
        for (int k = 0; k < 9; k++)
            check(&(norm_case){.dtype = gpu_float[d],
                               .rows = 5,
                               .n = 64,
                               .centred = true,
                               .w = true,
                               .b = true,
                               .shift = k == 4 ? 0 : -1 - k,
                               .lo = -2,
                               .hi = 3},
                  _i, 1u << 7);
}
END_TEST

/* Rows of more elements than a block's registers hold. */
START_TEST(test_long_rows)
{
    static const int64_t length[] = {8200, 16385, 16392};
    for (int d = 0; d < GPU_FLOATS; d++)
        for (int s = 0; s < DT_COUNT(length); s++)
            check(&(norm_case){.dtype = gpu_float[d],
                               .rows = s == 0 ? 3 : 1,
                               .n = length[s],
                               .centred = s != 1,
                               .w = true,
                               .b = s == 2,
                               .lo = -2,
                               .hi = 3},
                  _i, 1u << 3 | 1u << 7);
}
END_TEST

/* More rows than groups of threads: dw is added up along them. */
START_TEST(test_many_rows)
{
    static const int64_t many[][2] = {{70001, 3}, {1100, 516}};
    for (int s = 0; s < DT_COUNT(many); s++)
        check(&(norm_case){.dtype = gpu_float[s],
                           .rows = many[s][0],
                           .n = many[s][1],
                           .centred = s == 0,
                           .w = true,
                           .lo = -2,
                           .hi = 3},
              _i, s == 0 ? 1u << 7 : 1u << 3);
}
END_TEST

/* A mean of a thousand deviations, and numbers whose squares f32 does not hold. */
START_TEST(test_large_numbers)
{
    for (int k = 0; k < 2; k++) {
        const double lo = k == 0 ? 1000 : -3e25, hi = k == 0 ? 1002 : 4e25;
        for (int s = 3; s < DT_COUNT(shapes); s++)
            check(&(norm_case){.dtype = DT_F32,
                               .rows = shapes[s][0],
                               .n = shapes[s][1],
                               .centred = true,
                               .w = true,
                               .lo = lo,
                               .hi = hi},
                  _i, 1u << 3 | 1u << 7);
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("gpu norm");
    TCase *tc = tcase_create("norm");
    tcase_set_timeout(tc, 120);
    tcase_add_loop_test(tc, test_shapes, 0, GPU_ORDERS);
    tcase_add_loop_test(tc, test_alone, 0, GPU_ORDERS);
    tcase_add_loop_test(tc, test_long_rows, 0, GPU_ORDERS);
    tcase_add_loop_test(tc, test_many_rows, 0, GPU_ORDERS);
    tcase_add_loop_test(tc, test_large_numbers, 0, GPU_ORDERS);
    suite_add_tcase(suite, tc);
    return gpu_main(suite);
}
