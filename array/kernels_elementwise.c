/* array/kernels_elementwise.c - x + y and x * y, y repeated along leading dims, and c * x. */
#include "array/kernels_math_internal.h"

#include <stddef.h>

typedef enum row_kind { ADD, MUL, SCALE } row_kind;

typedef struct row_job {
    row_kind kind;
    int64_t inner;
    double factor;
    const void *x, *y;
    void *out;
} row_job;

#define REAL    float
#define NAME(f) f##_f32
#include "array/kernel_elementwise.inc"
#undef REAL
#undef NAME
#define REAL    double
#define NAME(f) f##_f64
#include "array/kernel_elementwise.inc"

static void run(dt_dtype dtype, int64_t outer, row_job *job)
{
    const bool f32 = dtype == DT_F32;
    if (outer == 1)
        dt_parallel_range(job->inner, 1, f32 ? within_f32 : within_f64, job);
    else if (job->inner > 0)
        dt_parallel_range(outer, job->inner, f32 ? rows_f32 : rows_f64, job);
}

void dti_elementwise_add(dt_dtype dtype, int64_t outer, int64_t inner, const void *x, const void *y,
                         void *out)
{
    run(dtype, outer, &(row_job){.kind = ADD, .inner = inner, .x = x, .y = y, .out = out});
}

void dti_elementwise_mul(dt_dtype dtype, int64_t outer, int64_t inner, const void *x, const void *y,
                         void *out)
{
    run(dtype, outer, &(row_job){.kind = MUL, .inner = inner, .x = x, .y = y, .out = out});
}

void dti_elementwise_scale(dt_dtype dtype, int64_t n, double factor, const void *x, void *out)
{
    run(dtype, 1, &(row_job){.kind = SCALE, .inner = n, .factor = factor, .x = x, .out = out});
}
