/* array/kernels_optim.c - AdamW on the CPU, and the table of what optimizers need.
 *
 * Types of 16 bits go through stack buffers of RUN floats, so that a step is one pass over
 * memory. */
#include "array/dt_kernels_optim.h"

#include "array/cuda_internal.h"
#include "array/dt_half.h"
#include "array/kernels_optim_internal.h"

#include <math.h>
#include <stddef.h>

enum { RUN = 1024 /* elements at once */ };

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

static const dt_optim_kernels cpu = {.adamw = adamw, .power_sum = dti_power_sum};

const dt_optim_kernels *dt_optim_kernels_of(dt_device_kind kind)
{
    return kind == DT_CPU ? &cpu : kind == DT_CUDA ? dti_cuda_optim_kernels() : NULL;
}
