/* tests/gpu/gpu_test.h - the device's kernels beside the cpu's, on the same numbers.
 *
 *     START_TEST(test_scale)          // tcase_add_loop_test(tc, test_scale, 0, GPU_ORDERS)
 *     {
 *         gpu_begin(_i);
 *         gpu_pair x = gpu_random(DT_BF16, n, -1, 1), y = gpu_output(DT_BF16, n);
 *         dt_math_kernels_of(DT_CPU)->scale(x.wide, n, 0.5, x.cpu, y.cpu);
 *         dt_math_kernels_of(DT_CUDA)->scale(x.dtype, n, 0.5, x.gpu, y.gpu);
 *         gpu_same(&y, 0, "scale of %d", n);
 *         gpu_end();
 *     }
 *
 * main ends with gpu_main, which skips the program (77) where there is no device. */
#pragma once

#include "array/dt_array.h"
#include "array/dt_kernels_math.h"
#include "array/dt_kernels_nn.h"
#include "array/dt_kernels_optim.h"
#include "tests/harness.h"

enum {
    GPU_ORDERS = 3, /* of blocks and threads on the simulated device: forward, reverse, random */
    GPU_FLOATS = 4  /* dtypes of gpu_float */
};
extern const dt_dtype gpu_float[GPU_FLOATS];

/* One array on both sides. */
typedef struct gpu_pair {
    dt_dtype dtype; /* on the device */
    dt_dtype wide; /* on the host: f32 for bf16 and f16, which hold no other values to begin with */
    int64_t n, first; /* elements; where they begin in `array` */
    void *cpu, *gpu;  /* first elements; gpu is NULL for n 0 */
    dt_array array;   /* that gpu lies in, between guards */
} gpu_pair;

/* Random numbers from the start, and the order of what follows; pairs of before are gone. */
void gpu_begin(int order);
void gpu_end(void);
dt_heap *gpu_heap(void); /* one for the program */
/* Until gpu_begin, device arrays begin so many elements after a 64-byte boundary; -1 - k: only the
 * k-th of those made from here on does, by one. */
void gpu_shift(int elements);

gpu_pair gpu_random(dt_dtype dtype, int64_t n, double lo, double hi); /* integers: truncated */
gpu_pair gpu_values(dt_dtype dtype, int64_t n, const void *host);     /* of `dtype` */
gpu_pair gpu_output(dt_dtype dtype, int64_t n);                       /* bytes 255: NaN, -1 */

/* Assert that the device's elements are the cpu's: f32 within 1e-5 of the largest, f64 1e-12, 16
 * bits rounded once from such an f32, and 2 units more in the last place of `partial` where
 * kernels round on the way (0: they do not). Integers are equal. What the device wrote outside of
 * the array fails too, and bits that differ from those of an earlier call with the same text and
 * dtype: under another order of threads nothing changes. The text tells cases apart. */
DT_PRINTF(3, 4) void gpu_same(const gpu_pair *x, double partial, const char *format, ...);
/* The same with the bits of `want`, n elements of x's dtype; any NaN equals any. */
DT_PRINTF(3, 4) void gpu_bits(const gpu_pair *x, const void *want, const char *format, ...);

int gpu_main(Suite *suite);
