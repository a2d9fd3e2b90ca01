/* array/kernels_elementwise.c - x + y and x * y, y repeated along leading dims, and c * x. */
#include "array/kernels_math_internal.h"

#include "array/dt_half.h"

typedef enum row_kind { ADD, MUL, SCALE } row_kind;

typedef struct row_job {
    row_kind kind;
    int64_t inner;
    double factor;
    const void *x, *y;
    void *out;
} row_job;

#define KERNELS "array/kernel_elementwise.inc"
#include "array/each_float.inc"

static void run(dt_dtype dtype, int64_t outer, row_job *job)
{
    static dt_range_body *const of_one[DT_NDTYPES] = {[DT_F32] = within_f32,
                                                      [DT_BF16] = within_bf16,
                                                      [DT_F16] = within_f16,
                                                      [DT_F64] = within_f64};
    static dt_range_body *const of_many[DT_NDTYPES] = {
        [DT_F32] = rows_f32, [DT_BF16] = rows_bf16, [DT_F16] = rows_f16, [DT_F64] = rows_f64};
    if (outer == 1)
        dt_parallel_range(job->inner, 1, of_one[dtype], job);
    else if (job->inner > 0)
        dt_parallel_range(outer, job->inner, of_many[dtype], job);
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
