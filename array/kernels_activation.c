/* array/kernels_activation.c - silu, gelu and swiglu.
 *
 * tanh(a) = 2 sigmoid(2a) - 1, so the tanh form of gelu is x sigmoid(2 sqrt(2/pi) (x + 0.044715
 * x^3)): one exponential, and no cancellation for negative x. */
#include "array/kernels_nn_internal.h"

#include "array/exp_internal.h"

#define TWO_SQRT_2_OVER_PI (M_2_SQRTPI * M_SQRT2)
#define erf_of_f32         erff
#define erf_of_f64         erf

enum { WORK = 8 }; /* of an exponential, in elements of plain arithmetic */

typedef struct act_job {
    dt_activation kind;
    const void *x, *up, *dy;
    void *out;
} act_job;

#define REAL    float
#define NAME(f) f##_f32
#include "array/kernel_activation.inc"
#undef REAL
#undef NAME
#define REAL    double
#define NAME(f) f##_f64
#include "array/kernel_activation.inc"

void dti_activation_dx(dt_dtype dtype, dt_activation kind, int64_t n, const void *x, const void *dy,
                       void *dx)
{
    act_job job = {.kind = kind, .x = x, .dy = dy, .out = dx};
    dt_parallel_range(n, WORK, dtype == DT_F32 ? act_range_f32 : act_range_f64, &job);
}

void dti_activation(dt_dtype dtype, dt_activation kind, int64_t n, const void *x, void *y)
{
    dti_activation_dx(dtype, kind, n, x, NULL, y);
}

void dti_swiglu_dgate(dt_dtype dtype, int64_t n, const void *gate, const void *up, const void *dy,
                      void *dgate)
{
    act_job job = {.x = gate, .up = up, .dy = dy, .out = dgate};
    dt_parallel_range(n, WORK, dtype == DT_F32 ? swiglu_range_f32 : swiglu_range_f64, &job);
}

void dti_swiglu(dt_dtype dtype, int64_t n, const void *gate, const void *up, void *y)
{
    dti_swiglu_dgate(dtype, n, gate, up, NULL, y);
}
