/* array/kernels_sum.c - sums over a middle dim, in f64 and in an order that neither threads nor
 * vectors change: one run of neighbours in DT_LANES partial sums, columns row after row. */
#include "array/kernels_math_internal.h"

#include "array/dt_half.h"

#include <stddef.h>

enum { COLUMNS = 256 }; /* summed at once: totals stay in the nearest cache */

typedef struct sum_job {
    dt_dtype dtype;
    int64_t mid, inner;
    const void *x, *y; /* y NULL: sum of x */
    void *out;
} sum_job;

#define REAL    float
#define NAME(f) f##_f32
#include "array/kernel_sum.inc"
#undef REAL
#undef NAME
#define REAL    double
#define NAME(f) f##_f64
#include "array/kernel_sum.inc"

/* 16 bits, blocks [lo, hi) as in sum_blocks_f32; the total is rounded once. */
static void sum_blocks_16(void *arg, int64_t lo, int64_t hi)
{
    const sum_job *job = arg;
    const int64_t nblocks = (job->inner + COLUMNS - 1) / COLUMNS;
    for (int64_t k = lo; k < hi; k++) {
        const int64_t o = k / nblocks, c = k % nblocks * COLUMNS;
        const int64_t n = job->inner - c < COLUMNS ? job->inner - c : COLUMNS;
        const uint16_t *x = (const uint16_t *)job->x + o * job->mid * job->inner + c;
        double total[COLUMNS] = {0};
        float row[COLUMNS];
        for (int64_t m = 0; m < job->mid; m++) {
            dt_load_f32(job->dtype, x + m * job->inner, row, n);
            add_to_f32(n, row, total);
        }
        for (int64_t i = 0; i < n; i++)
            row[i] = (float)total[i];
        dt_store_f32(job->dtype, row, (uint16_t *)job->out + o * job->inner + c, n);
    }
}

static void run(dt_dtype dtype, int64_t outer, sum_job *job)
{
    const bool f32 = dtype == DT_F32, half = dtype == DT_BF16 || dtype == DT_F16;
    job->dtype = dtype;
    const int64_t nblocks = (job->inner + COLUMNS - 1) / COLUMNS;
    const int64_t columns = job->inner < COLUMNS ? job->inner : COLUMNS;
    if (half)
        dt_parallel_range(outer * nblocks, job->mid * columns, sum_blocks_16, job);
    else if (job->inner == 1)
        dt_parallel_range(outer, job->mid, f32 ? sum_rows_f32 : sum_rows_f64, job);
    else
        dt_parallel_range(outer * nblocks, job->mid * columns,
                          f32 ? sum_blocks_f32 : sum_blocks_f64, job);
}

void dti_sum(dt_dtype dtype, int64_t outer, int64_t mid, int64_t inner, const void *x, void *out)
{
    run(dtype, outer, &(sum_job){.mid = mid, .inner = inner, .x = x, .out = out});
}

void dti_sum_mul(dt_dtype dtype, int64_t mid, int64_t inner, const void *x, const void *y,
                 void *out)
{
    run(dtype, 1, &(sum_job){.mid = mid, .inner = inner, .x = x, .y = y, .out = out});
}
