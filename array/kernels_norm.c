/* array/kernels_norm.c - rmsnorm and layernorm: one set of kernels, since rmsnorm is layernorm with
 * mean 0 and no bias.
 *
 * All sums are in f64, in a fixed order: along a row by lanes, along a column by rows. */
#include "array/kernels_nn_internal.h"

#include <math.h>

enum { COLUMNS = 1024 }; /* of dw at once: their sums stay in the first cache */

typedef struct norm_job {
    const dt_norm_args *a;
    void *out, *out2;
} norm_job;

#define REAL    float
#define NAME(f) f##_f32
#include "array/kernel_norm.inc"
#undef REAL
#undef NAME
#define REAL    double
#define NAME(f) f##_f64
#include "array/kernel_norm.inc"

void dti_norm(const dt_norm_args *a, void *y)
{
    norm_job job = {.a = a, .out = y};
    dt_parallel_range(a->rows, a->n, a->dtype == DT_F32 ? norm_rows_f32 : norm_rows_f64, &job);
}

void dti_norm_backward(const dt_norm_args *a, void *dx, void *dw, void *db)
{
    norm_job rows = {.a = a, .out = dx}, columns = {.a = a, .out = dw, .out2 = db};
    dt_parallel_range(a->rows, 2 * a->n, a->dtype == DT_F32 ? dx_rows_f32 : dx_rows_f64, &rows);
    if (dw || db)
        dt_parallel_range(a->n, a->rows, a->dtype == DT_F32 ? dw_range_f32 : dw_range_f64,
                          &columns);
}
