/* tests/gpu/test_softmax.c - softmax of rows that a few lanes, a block or no registers hold. */
#include "tests/gpu/gpu_test.h"

static const int64_t shapes[][2] = {{0, 8},   {3, 0},    {3, 1},    {5, 7},    {130, 16}, {7, 128},
                                    {3, 333}, {5, 1000}, {2, 4096}, {3, 8197}, {2, 20000}};

START_TEST(test_softmax)
{
    static const int shift[DT_COUNT(shapes)] = {1, 0, 0, 1, -1, -2, 1, -3, -4, 1, 0};
    const dt_nn_kernels *cpu = dt_nn_kernels_of(DT_CPU), *gpu = dt_nn_kernels_of(DT_CUDA);
    for (int d = 0; d < GPU_FLOATS; d++)
        for (int s = 0; s < DT_COUNT(shapes); s++) {
            const int64_t rows = shapes[s][0], n = shapes[s][1];
            gpu_begin(_i);
            gpu_shift(shift[s]);
            const gpu_pair x = gpu_random(gpu_float[d], rows * n, -4, 4);
            const gpu_pair dy = gpu_random(gpu_float[d], rows * n, -1, 1);
            const gpu_pair y = gpu_output(gpu_float[d], rows * n);
            const gpu_pair dx = gpu_output(gpu_float[d], rows * n);
            cpu->softmax(x.wide, rows, n, x.cpu, y.cpu);
            gpu->softmax(x.dtype, rows, n, x.gpu, y.gpu);
            gpu_same(&y, 0, "softmax [%d, %d]", (int)rows, (int)n);
            cpu->softmax_dx(x.wide, rows, n, x.cpu, dy.cpu, dx.cpu);
            gpu->softmax_dx(x.dtype, rows, n, x.gpu, dy.gpu, dx.gpu);
            gpu_same(&dx, 0, "softmax dx [%d, %d]", (int)rows, (int)n);
            gpu_end();
        }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("gpu softmax");
    TCase *tc = tcase_create("softmax");
    tcase_set_timeout(tc, 120);
    tcase_add_loop_test(tc, test_softmax, 0, GPU_ORDERS);
    suite_add_tcase(suite, tc);
    return gpu_main(suite);
}
