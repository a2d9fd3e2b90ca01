/* array/dt_kernels.h - how kernels are written, and what they share.
 *
 * A kernel is a plain function over raw pointers and sizes; it knows no arrays, layouts or tapes.
 * It is written once for float and double in kernel_<name>.inc and included twice from
 * kernels_<name>.c:
 *
 *     #define REAL float
 *     #define NAME(f) f##_f32
 *     #include "array/kernel_rmsnorm.inc"
 *     #undef REAL
 *     #undef NAME
 *     #define REAL double
 *     ...
 *
 * bf16 and f16 are loaded to f32 by blocks, computed on, and stored (array/dt_half.h).
 *
 * Vectors: mark the inner function DT_CLONES, keep it out of line, and take pointers as `restrict`
 * parameters or locals (gcc does not vectorise loops that reload a pointer through a struct). The
 * clones give equal bits for element-wise loops, since contraction is off and no compiler reorders
 * additions; array/exp.c and array/tiles.c, which multiply and add with one rounding, do so by name
 * and only where a machine can. A sum must therefore fix its own order: DT_LANES partial sums, lane
 * j taking elements j, j + DT_LANES, ..., added at the end by dt_lanes_sum_f32 / _f64; that
 * vectorises and does not depend on the width of a vector.
 *
 * Threads: the outer function calls dt_parallel_range, which cuts [0, n) among threads. Every index
 * must be computed from its own inputs alone (a sum that crosses indices stays inside one call of
 * the body), so that results do not depend on the number of threads. Functions that communication
 * workers call stay serial.
 *
 * Read next: array/dt_half.h, array/dt_matmul.h. */
#pragma once

#include "base/dt_types.h"

/* DT_CLONES - compile a function for three vector widths and choose when the program is loaded.
 * clang 14 rejects it with noinline, and sanitizers are not ready when the choice is made. */
#if defined(__x86_64__) && defined(__gnu_linux__) && defined(__GNUC__) && !defined(__clang__) && \
    !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define DT_CLONES __attribute__((noinline, target_clones("arch=x86-64-v4", "avx2", "default")))
#else
#define DT_CLONES __attribute__((noinline))
#endif

enum {
    DT_PARALLEL_MIN = 65536, /* elements of work below which one thread is faster */
    DT_LANES = 16,           /* partial sums of a reduction */
    DT_WIDE_LANES = 32       /* of one that reads 16 bits: a vector of them is as many */
};

/* Threads that kernels and products called from this thread may use. Default: OMP_NUM_THREADS, or
 * the cores; 1 without OpenMP. Each rank sets its own; n < 1 is taken as 1. */
void dt_compute_threads_set(int n);
int dt_compute_threads_get(void);

/* dt_parallel_range - body(arg, lo, hi) over pieces of [0, n), on several threads if n *
 * work_per_index reaches DT_PARALLEL_MIN. The pieces are disjoint and cover [0, n); their number is
 * that of the threads. Blocks: until done. */
typedef void dt_range_body(void *arg, int64_t lo, int64_t hi);
void dt_parallel_range(int64_t n, int64_t work_per_index, dt_range_body *body, void *arg);

/* Add DT_LANES partial sums pairwise: (0+8, 1+9, ...), then halves again. */
static inline float dt_lanes_sum_f32(float lane[DT_LANES])
{
    for (int step = DT_LANES / 2; step > 0; step /= 2)
        for (int j = 0; j < step; j++)
            lane[j] += lane[j + step];
    return lane[0];
}

static inline double dt_lanes_sum_f64(double lane[DT_LANES])
{
    for (int step = DT_LANES / 2; step > 0; step /= 2)
        for (int j = 0; j < step; j++)
            lane[j] += lane[j + step];
    return lane[0];
}

/* The same of whole vectors and of what is left of a row: apart, that gcc keeps `lane` in
 * registers. */
static inline double dt_wide_lanes_sum_f64(double lane[DT_WIDE_LANES],
                                           const double last[DT_WIDE_LANES])
{
    for (int j = 0; j < DT_LANES; j++)
        lane[j] = (lane[j] + last[j]) + (lane[j + DT_LANES] + last[j + DT_LANES]);
    return dt_lanes_sum_f64(lane);
}
