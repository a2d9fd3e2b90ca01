/* array/kernels_elementwise.c - x + y and x * y, y repeated along leading dims, and c * x. */
#include "array/kernels_math_internal.h"

#include "array/dt_half.h"

#include <stddef.h>

typedef enum row_kind { ADD, MUL, SCALE } row_kind;

enum { RUN = 1024 }; /* elements of 16 bits at once */

typedef struct row_job {
    dt_dtype dtype;
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

/* 16 bits: in f32, rounded once. Elements [lo, hi) of all rows, each row beginning y anew. */
static void elements_16(void *arg, int64_t lo, int64_t hi)
{
    const row_job *job = arg;
    float x[RUN], y[RUN], out[RUN];
    int64_t n = 0;
    for (int64_t i = lo; i < hi; i += n) {
        const int64_t column = i % job->inner, left = job->inner - column;
        n = hi - i < RUN ? hi - i : RUN;
        n = n < left ? n : left;
        dt_load_f32(job->dtype, (const uint16_t *)job->x + i, x, n);
        if (job->y)
            dt_load_f32(job->dtype, (const uint16_t *)job->y + column, y, n);
        row_f32(job, x, y, out, n);
        dt_store_f32(job->dtype, out, (uint16_t *)job->out + i, n);
    }
}

static void run(dt_dtype dtype, int64_t outer, row_job *job)
{
    const bool f32 = dtype == DT_F32;
    job->dtype = dtype;
    if (dtype == DT_BF16 || dtype == DT_F16)
        dt_parallel_range(outer * job->inner, 1, elements_16, job);
    else if (outer == 1)
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
