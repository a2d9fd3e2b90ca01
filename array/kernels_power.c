/* array/kernels_power.c - sums of powers of absolute values on the CPU: norms of gradients. */
#include "array/kernels_optim_internal.h"

#include "array/dt_half.h"
#include "array/dt_kernels.h"

#include <math.h>

enum { BLOCKS = 128 /* their bounds depend on n alone */ };

/* What two parts of a sum of powers make together. */
static double with(double power, double a, double b)
{
    if (!isinf(power))
        return a + b;
    return b > a || isnan(b) ? b : a;
}

#define KERNELS "array/kernel_power.inc"
#include "array/each_float.inc"

typedef double power_run(int64_t n, const void *x, double power);
static power_run *const run[DT_NDTYPES] = {[DT_F32] = power_run_f32,
                                           [DT_BF16] = power_run_bf16,
                                           [DT_F16] = power_run_f16,
                                           [DT_F64] = power_run_f64};

typedef struct power_job {
    dt_dtype dtype;
    int64_t n, block;
    const void *x;
    double power, sum[BLOCKS];
} power_job;

static void power_blocks(void *arg, int64_t first, int64_t end)
{
    power_job *job = arg;
    const char *x = job->x;
    const int64_t size = (int64_t)dt_dtype_size(job->dtype);
    for (int64_t b = first; b < end; b++) {
        const int64_t lo = b * job->block, next = lo + job->block;
        const int64_t n = (next < job->n ? next : job->n) - lo;
        job->sum[b] = n > 0 ? run[job->dtype](n, x + lo * size, job->power) : 0;
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

void dti_power_sum(int count, const dt_power_args *list, double power)
{
    for (int i = 0; i < count; i++)
        *list[i].sum = power_sum_of(&list[i], power);
}
