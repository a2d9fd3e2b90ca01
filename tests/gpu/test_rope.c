/* tests/gpu/test_rope.c - rotary positions: given, counted and of every sample, far ones, scaled
 * frequencies, both directions, both orders of heads and tokens. */
#include "tests/gpu/gpu_test.h"

#include <stdlib.h>

typedef struct rope_case {
    dt_dtype dtype;
    int64_t batch, heads, seq, dim;
    bool batched, counted, inverse, bshd;
    int scaling, shift;
} rope_case;

static const dt_rope_options scalings[] = {{.theta = 10000},
                                           {.theta = 10000, .factor = 4},
                                           {.theta = 500000,
                                            .factor = 8,
                                            .low_freq_factor = 1,
                                            .high_freq_factor = 4,
                                            .original_positions = 8192}};

static void check(const rope_case *c, int order)
{
    const dt_nn_kernels *cpu = dt_nn_kernels_of(DT_CPU), *gpu = dt_nn_kernels_of(DT_CUDA);
    const int64_t rows = c->batched ? c->batch * c->seq : c->seq;
    const int64_t n = c->batch * c->heads * c->seq * c->dim;
    /* Angles of f64 are to be exact to 1e-12. */
    const double far = c->dtype == DT_F64 ? 1000 : 131072;
    gpu_begin(order);
    const gpu_pair positions = gpu_random(DT_I32, rows, 0, far);
    gpu_shift(c->shift);
    const gpu_pair x = gpu_random(c->dtype, n, -2, 2), y = gpu_output(c->dtype, n);
    const gpu_pair table = gpu_output(x.wide, rows * c->dim);
    dt_rope_args a = {.dtype = x.wide,
                      .batch = c->batch,
                      .heads = c->heads,
                      .seq = c->seq,
                      .dim = c->dim,
                      .batched = c->batched,
                      .rope = scalings[c->scaling],
                      .positions = c->counted ? NULL : positions.cpu,
                      .first = 77,
                      .table = table.cpu};
    a.rope.bshd = c->bshd;
    cpu->rope_table(&a);
    cpu->rope(&a, c->inverse, x.cpu, y.cpu);
    a.dtype = c->dtype;
    a.positions = c->counted ? NULL : positions.gpu;
    a.table = NULL;
    ck_assert(gpu->rope_table == NULL);
    gpu->rope(&a, c->inverse, x.gpu, y.gpu);
    gpu_same(&y, 0, "[%d, %d, %d, %d] %d%d%d%d scaling %d shift %d", (int)c->batch, (int)c->heads,
             (int)c->seq, (int)c->dim, c->batched, c->counted, c->inverse, c->bshd, c->scaling,
             c->shift);
    gpu_end();
}

START_TEST(test_shapes)
{
    static const int64_t shapes[][4] = {{0, 2, 3, 8},  {1, 1, 1, 2},   {2, 3, 5, 6},
                                        {1, 9, 4, 64}, {3, 17, 2, 16}, {2, 2, 33, 128}};
    for (int d = 0; d < GPU_FLOATS; d++)
        for (int s = 0; s < DT_COUNT(shapes); s++)
            for (int k = 0; k < 12; k++)
                check(&(rope_case){.dtype = gpu_float[d],
                                   .batch = shapes[s][0],
                                   .heads = shapes[s][1],
                                   .seq = shapes[s][2],
                                   .dim = shapes[s][3],
                                   .batched = k % 3 == 0,
                                   .counted = k == 1,
                                   .inverse = k & 1,
                                   .bshd = k >= 6,
                                   .scaling = k % 6 / 2,
                                   .shift = k % 6 == 5  ? 1
                                            : k % 6 < 2 ? -1 - k % 6
                                                        : 0},
                      _i);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("gpu rope");
    TCase *tc = tcase_create("rope");
    tcase_set_timeout(tc, 120);
    tcase_add_loop_test(tc, test_shapes, 0, GPU_ORDERS);
    suite_add_tcase(suite, tc);
    return gpu_main(suite);
}
