/* array/kernels_activation.c - silu, gelu and swiglu.
 *
 * tanh(a) = 2 sigmoid(2a) - 1, so the tanh form of gelu is x sigmoid(2 sqrt(2/pi) (x + 0.044715
 * x^3)): one exponential, and no cancellation for negative x. */
#include "array/kernels_nn_internal.h"

#include "array/exp_internal.h"

#define TWO_SQRT_2_OVER_PI (M_2_SQRTPI * M_SQRT2)

enum {
    RUN = 256, /* elements at once: sigmoids of them stay in the first cache */
    WORK = 8   /* of an exponential, in elements of plain arithmetic */
};

typedef struct act_job {
    dt_activation kind;
    const void *x, *up, *dy; /* up: swiglu, x its gate; dy: backward */
    void *out, *dup;         /* dup: swiglu, backward; NULL: not wanted */
} act_job;

/* Apart from what comes before and after them, so that a core has shorter chains of operations to
 * keep in flight. */
static DT_CLONES void sigmoids_f32(int64_t n, float *a)
{
    for (int64_t i = 0; i < n; i++)
        a[i] = dt_sigmoid_f32(a[i]);
}

static void sigmoids_f64(int64_t n, double *a)
{
    for (int64_t i = 0; i < n; i++)
        a[i] = dt_sigmoid_f64(a[i]);
}

#define REAL     float
#define SIGMOIDS sigmoids_f32
#define EXP      dt_exp_f32
#define ERF      erff
#define ELEM     float
#define LOAD(x)  (x)
#define STORE(x) (x)
#define NAME(f)  f##_f32
#include "array/kernel_activation.inc"
#undef ELEM
#undef LOAD
#undef STORE
#undef NAME
#define ELEM    uint16_t /* computed on in f32, rounded once */
#define LOAD    dt_bf16_to_f32
#define STORE   dt_f32_to_bf16
#define NAME(f) f##_bf16
#include "array/kernel_activation.inc"
#undef LOAD
#undef STORE
#undef NAME
#define LOAD    dt_f16_to_f32
#define STORE   dt_f32_to_f16
#define NAME(f) f##_f16
#include "array/kernel_activation.inc"
#undef REAL
#undef SIGMOIDS
#undef EXP
#undef ERF
#undef ELEM
#undef LOAD
#undef STORE
#undef NAME
#define REAL     double
#define SIGMOIDS sigmoids_f64
#define EXP      exp
#define ERF      erf
#define ELEM     double
#define LOAD(x)  (x)
#define STORE(x) (x)
#define NAME(f)  f##_f64
#include "array/kernel_activation.inc"

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
