/* array/kernels_activation.c - silu, gelu and swiglu.
 *
 * tanh(a) = 2 sigmoid(2a) - 1, so the tanh form of gelu is x sigmoid(2 sqrt(2/pi) (x + 0.044715
 * x^3)): one exponential, and no cancellation for negative x. */
#include "array/kernels_nn_internal.h"

#include "array/dt_half.h"
#include "array/exp_internal.h"

#include <math.h>

#define TWO_SQRT_2_OVER_PI (M_2_SQRTPI * M_SQRT2)

enum {
    RUN = 512, /* elements at once: exponentials of them stay in the first cache */
    WORK = 8   /* of an exponential, in elements of plain arithmetic */
};

typedef struct act_job {
    dt_activation kind;
    const void *x, *up, *dy; /* up: swiglu, x its gate; dy: backward */
    void *out, *dup;         /* dup: swiglu, backward; NULL: not wanted */
} act_job;

/* a = 1 + exp(-a), by which sigmoids divide. Apart from what comes before and after, so that a core
 * has shorter chains of operations to keep in flight. */
static void one_plus_exp_f32(int64_t n, float *a)
{
    dti_exp_kernels_of(0)->one_plus(n, a);
}

static void one_plus_exp_f64(int64_t n, double *a)
{
    for (int64_t i = 0; i < n; i++)
        a[i] = 1 + exp(-a[i]);
}

/* x, at most 30 away from 0; NaN may become 30. As integers, of which minima are one instruction:
 * more negative floats are larger as unsigned ones, and larger positive ones as signed ones. */
static inline float within_30_f32(float x)
{
    const uint32_t u = dt_float_bits(x), least = dt_float_bits(-30), above = u < least ? u : least;
    const int32_t i = (int32_t)above, most = (int32_t)dt_float_bits(30);
    return dt_float_from_bits((uint32_t)(i < most ? i : most));
}

static inline double within_30_f64(double x)
{
    return fmin(fmax(x, -30), 30);
}

#define exp_f32 expf
#define exp_f64 exp
#define erf_f32 erff
#define erf_f64 erf
#define KERNELS "array/kernel_activation.inc"
#include "array/each_float.inc"

static void run(dt_dtype dtype, int64_t n, act_job *job)
{
    dt_parallel_range(n, WORK,
                      dtype == DT_F32    ? act_range_f32
                      : dtype == DT_BF16 ? act_range_bf16
                      : dtype == DT_F16  ? act_range_f16
                                         : act_range_f64,
                      job);
}

void dti_activation_dx(dt_dtype dtype, dt_activation kind, int64_t n, const void *x, const void *dy,
                       void *dx)
{
    run(dtype, n, &(act_job){.kind = kind, .x = x, .dy = dy, .out = dx});
}

void dti_activation(dt_dtype dtype, dt_activation kind, int64_t n, const void *x, void *y)
{
    dti_activation_dx(dtype, kind, n, x, NULL, y);
}

void dti_swiglu(dt_dtype dtype, int64_t n, const void *gate, const void *up, void *y)
{
    run(dtype, n, &(act_job){.x = gate, .up = up, .out = y});
}

void dti_swiglu_backward(dt_dtype dtype, int64_t n, const void *gate, const void *up,
                         const void *dy, void *dgate, void *dup)
{
    if (dgate)
        run(dtype, n, &(act_job){.x = gate, .up = up, .dy = dy, .out = dgate, .dup = dup});
    else if (dup)
        dti_swiglu(dtype, n, gate, dy, dup);
}
