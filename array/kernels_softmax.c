/* array/kernels_softmax.c - softmax, and the local pieces of cross-entropy.
 *
 * Cross-entropy comes in pieces because a sharded vocabulary needs a sum over ranks between them:
 * max, sum and target logit, then the loss. dz is 0 in ignored rows, whatever they hold. */
#include "array/kernels_nn_internal.h"

#include "array/dt_half.h"
#include "array/exp_internal.h"

#include <math.h>
#include <string.h>

enum {
    BLOCK = 512, /* exponentials at once */
    WORK = 8     /* of an exponential, in elements of plain arithmetic */
};

typedef struct softmax_job {
    int64_t n;
    const void *x, *dy;
    void *out;
} softmax_job;

typedef struct loss_job {
    const dt_loss_args *a;
    double factor;
    dt_dtype dtype; /* of dz */
    void *dz;
    dt_range_body *dz_rows;
} loss_job;

static void exp_row_f32(int64_t n, const float *x, float shift, float factor, float *y)
{
    dti_exp_kernels_of(0)->row(n, x, shift, factor, y);
}

static float exp_sum_f32(int64_t n, const float *x, float shift)
{
    return dti_exp_kernels_of(0)->sum(n, x, shift);
}

static void exp_row_f64(int64_t n, const double *x, double shift, double factor, double *y)
{
    for (int64_t i = 0; i < n; i++)
        y[i] = exp(x[i] - shift) * factor;
}

static double exp_sum_f64(int64_t n, const double *x, double shift)
{
    double lane[DT_LANES] = {0};
    for (int64_t i = 0; i < n; i++)
        lane[i % DT_LANES] += exp(x[i] - shift);
    return dt_lanes_sum_f64(lane);
}

#define REAL    float
#define NAME(f) f##_f32
#include "array/kernel_softmax.inc"
#undef REAL
#undef NAME
#define REAL    double
#define NAME(f) f##_f64
#include "array/kernel_softmax.inc"

void dti_softmax(dt_dtype dtype, int64_t rows, int64_t n, const void *x, void *y)
{
    softmax_job job = {.n = n, .x = x, .out = y};
    dt_parallel_range(rows, WORK * n, dtype == DT_F32 ? softmax_rows_f32 : softmax_rows_f64, &job);
}

void dti_softmax_dx(dt_dtype dtype, int64_t rows, int64_t n, const void *y, const void *dy,
                    void *dx)
{
    softmax_job job = {.n = n, .x = y, .dy = dy, .out = dx};
    dt_parallel_range(rows, n, dtype == DT_F32 ? softmax_dx_rows_f32 : softmax_dx_rows_f64, &job);
}

void dti_loss_shift(const dt_loss_args *a, const void *old_max)
{
    if (a->dtype == DT_F32)
        loss_shift_f32(a, old_max);
    else
        loss_shift_f64(a, old_max);
}

void dti_loss_total(const dt_loss_args *a, double *total)
{
    *total += a->dtype == DT_F32 ? total_f32(a) : total_f64(a);
}

static void dz_rows_16(void *arg, int64_t lo, int64_t hi)
{
    const loss_job *job = arg;
    const int64_t n = job->a->n;
    float part[BLOCK];
    for (int64_t at = lo * n; at < hi * n;) {
        const int64_t r = at / n, first = at % n, m = n - first < BLOCK ? n - first : BLOCK;
        dz_part_f32(job, r, first, m, part);
        dt_store_f32(job->dtype, part, (uint16_t *)job->dz + at, m);
        at += m;
    }
}

static loss_job job_of(const dt_loss_args *a, double factor, dt_dtype dz_dtype, void *dz)
{
    return (loss_job){.a = a,
                      .factor = factor,
                      .dtype = dz_dtype,
                      .dz = dz,
                      .dz_rows = dz_dtype == DT_F64   ? dz_rows_f64
                                 : dz_dtype == DT_F32 ? dz_rows_f32
                                                      : dz_rows_16};
}

void dti_loss_rows(const dt_loss_args *a)
{
    loss_job job = job_of(a, 1 / a->divisor, a->dz_dtype, a->dz);
    dt_parallel_range(a->rows, WORK * a->n, a->dtype == DT_F32 ? loss_range_f32 : loss_range_f64,
                      &job);
}

void dti_loss_dz(const dt_loss_args *a, const void *dy, double divisor, dt_dtype dz_dtype, void *dz)
{
    const double value = !dy                  ? 1
                         : a->dtype == DT_F32 ? (double)*(const float *)dy
                                              : *(const double *)dy;
    loss_job job = job_of(a, value / divisor, dz_dtype, dz);
    dt_parallel_range(a->rows, WORK * a->n, job.dz_rows, &job);
}
