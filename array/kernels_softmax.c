/* array/kernels_softmax.c - softmax, and the local pieces of cross-entropy.
 *
 * Cross-entropy comes in pieces because a sharded vocabulary needs a sum over ranks between them:
 * max, then sum and target logit, then the loss. dz is 0 in ignored rows, whatever they hold. */
#include "array/kernels_nn_internal.h"

#include "array/exp_internal.h"

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
    void *dz;
} loss_job;

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

void dti_loss_max(const dt_loss_args *a)
{
    dt_loss_args copy = *a;
    dt_parallel_range(a->rows, a->n, a->dtype == DT_F32 ? max_rows_f32 : max_rows_f64, &copy);
}

void dti_loss_sum_hit(const dt_loss_args *a)
{
    dt_loss_args copy = *a;
    dt_parallel_range(a->rows, WORK * a->n,
                      a->dtype == DT_F32 ? sum_hit_rows_f32 : sum_hit_rows_f64, &copy);
}

void dti_loss_total(const dt_loss_args *a, double *total)
{
    *total += a->dtype == DT_F32 ? total_f32(a) : total_f64(a);
}

void dti_loss_dz(const dt_loss_args *a, const void *dy, double divisor, void *dz)
{
    const double value = !dy                  ? 1
                         : a->dtype == DT_F32 ? (double)*(const float *)dy
                                              : *(const double *)dy;
    loss_job job = {.a = a, .factor = value / divisor, .dz = dz};
    dt_parallel_range(a->rows, WORK * a->n, a->dtype == DT_F32 ? dz_rows_f32 : dz_rows_f64, &job);
}
