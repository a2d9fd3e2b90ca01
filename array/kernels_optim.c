/* array/kernels_optim.c - AdamW and sums of powers on the CPU, and their table.
 *
 * Types of 16 bits go through stack buffers of RUN floats, so that a step is one pass over
 * memory. */
#include "array/dt_kernels_optim.h"

#include "array/cuda_internal.h"
#include "array/dt_half.h"

#include <math.h>
#include <stddef.h>

enum {
    RUN = 1024,  /* elements at once */
    BLOCKS = 128 /* of a sum of powers; their bounds depend on n alone */
};

/* What two parts of a sum of powers make together. */
static double with(double power, double a, double b)
{
    if (!isinf(power))
        return a + b;
    return b > a || isnan(b) ? b : a;
}

#define REAL    float
#define NAME(f) f##_f32
#define SQRT    sqrtf
#include "array/kernel_optim.inc"
#undef REAL
#undef NAME
#undef SQRT
#define REAL    double
#define NAME(f) f##_f64
#define SQRT    sqrt
#include "array/kernel_optim.inc"

static const void *at(dt_dtype dtype, const void *base, int64_t i)
{
    return (const char *)base + (size_t)i * dt_dtype_size(dtype);
}

static void adamw_range_f32(void *arg, int64_t lo, int64_t hi)
{
    const dt_adamw_args *a = arg;
    const adamw_constants_f32 c = constants_f32(a);
    float grad[RUN];
    for (int64_t i = lo; i < hi; i += RUN) {
        const int64_t n = hi - i < RUN ? hi - i : RUN;
        float *w = (float *)a->w + i;
        dt_load_f32(a->grad_dtype, at(a->grad_dtype, a->g, i), grad, n);
        adamw_run_f32(c, n, grad, w, (float *)a->m + i, (float *)a->v + i);
        if (a->rounded)
            dt_store_f32(a->rounded_dtype, w,
                         (char *)a->rounded + (size_t)i * dt_dtype_size(a->rounded_dtype), n);
    }
}

static void adamw_range_f64(void *arg, int64_t lo, int64_t hi)
{
    const dt_adamw_args *a = arg;
    adamw_run_f64(constants_f64(a), hi - lo, (const double *)a->g + lo, (double *)a->w + lo,
                  (double *)a->m + lo, (double *)a->v + lo);
}

static void adamw(int count, const dt_adamw_args *list)
{
    for (int i = 0; i < count; i++) {
        dt_adamw_args a = list[i];
        dt_parallel_range(a.n, 4, a.dtype == DT_F64 ? adamw_range_f64 : adamw_range_f32, &a);
    }
}

typedef struct power_job {
    dt_dtype dtype;
    int64_t n, block;
    const void *x;
    double power, sum[BLOCKS];
} power_job;

static double power_block(const power_job *job, int64_t lo, int64_t hi)
{
    if (job->dtype == DT_F64)
        return power_run_f64(hi - lo, (const double *)job->x + lo, job->power);
    if (job->dtype == DT_F32)
        return power_run_f32(hi - lo, (const float *)job->x + lo, job->power);
    double sum = 0;
    float run[RUN];
    for (int64_t i = lo; i < hi; i += RUN) {
        const int64_t n = hi - i < RUN ? hi - i : RUN;
        dt_load_f32(job->dtype, at(job->dtype, job->x, i), run, n);
        sum = with(job->power, sum, power_run_f32(n, run, job->power));
    }
    return sum;
}

static void power_blocks(void *arg, int64_t first, int64_t end)
{
    power_job *job = arg;
    for (int64_t b = first; b < end; b++) {
        const int64_t lo = b * job->block, next = lo + job->block;
        job->sum[b] = lo < job->n ? power_block(job, lo, next < job->n ? next : job->n) : 0;
    }
}

static double power_sum_of(const dt_power_args *a, double power)
{
    power_job job = {.dtype = a->dtype,
                     .n = a->n,
                     .block = (a->n + BLOCKS - 1) / BLOCKS,
                     .x = a->x,
                     .power = power};
    dt_parallel_range(BLOCKS, job.block, power_blocks, &job);
    double sum = 0;
    for (int b = 0; b < BLOCKS; b++)
        sum = with(power, sum, job.sum[b]);
    return sum;
}

static void power_sum(int count, const dt_power_args *list, double power)
{
    for (int i = 0; i < count; i++)
        *list[i].sum = power_sum_of(&list[i], power);
}

static const dt_optim_kernels cpu = {.adamw = adamw, .power_sum = power_sum};

const dt_optim_kernels *dt_optim_kernels_of(dt_device_kind kind)
{
    return kind == DT_CPU ? &cpu : kind == DT_CUDA ? dti_cuda_optim_kernels() : NULL;
}
