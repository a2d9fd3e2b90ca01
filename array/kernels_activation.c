/* array/kernels_activation.c - silu, gelu and swiglu.
 *
 * tanh(a) = 2 sigmoid(2a) - 1, so the tanh form of gelu is x sigmoid(2 sqrt(2/pi) (x + 0.044715
 * x^3)): one exponential, and no cancellation for negative x. */
#include "array/kernels_nn_internal.h"

#include "array/exp_internal.h"

#define TWO_SQRT_2_OVER_PI (M_2_SQRTPI * M_SQRT2)
#define erf_of_f32         erff
#define erf_of_f64         erf

enum {
    RUN = 1024, /* elements of 16 bits at once */
    WORK = 8    /* of an exponential, in elements of plain arithmetic */
};

typedef struct act_job {
    dt_dtype dtype;
    dt_activation kind;
    const void *x, *up, *dy; /* up: swiglu, x its gate; dy: backward */
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

/* 16 bits: in f32, rounded once. */
static void act_range_16(void *arg, int64_t lo, int64_t hi)
{
    const act_job *job = arg;
    const void *const in[3] = {job->x, job->up, job->dy};
    float wide[3][RUN], out[RUN];
    for (int64_t i = lo; i < hi; i += RUN) {
        const int64_t n = hi - i < RUN ? hi - i : RUN;
        for (int k = 0; k < 3; k++)
            if (in[k])
                dt_load_f32(job->dtype, (const uint16_t *)in[k] + i, wide[k], n);
        act_run_f32(job, n, wide[0], wide[1], job->dy ? wide[2] : NULL, out);
        dt_store_f32(job->dtype, out, (uint16_t *)job->out + i, n);
    }
}

static void run(int64_t n, act_job *job)
{
    const bool half = job->dtype == DT_BF16 || job->dtype == DT_F16;
    dt_parallel_range(n, WORK,
                      half                   ? act_range_16
                      : job->dtype == DT_F32 ? act_range_f32
                                             : act_range_f64,
                      job);
}

void dti_activation_dx(dt_dtype dtype, dt_activation kind, int64_t n, const void *x, const void *dy,
                       void *dx)
{
    run(n, &(act_job){.dtype = dtype, .kind = kind, .x = x, .dy = dy, .out = dx});
}

void dti_activation(dt_dtype dtype, dt_activation kind, int64_t n, const void *x, void *y)
{
    dti_activation_dx(dtype, kind, n, x, NULL, y);
}

void dti_swiglu(dt_dtype dtype, int64_t n, const void *gate, const void *up, void *y)
{
    run(n, &(act_job){.dtype = dtype, .x = gate, .up = up, .out = y});
}

void dti_swiglu_backward(dt_dtype dtype, int64_t n, const void *gate, const void *up,
                         const void *dy, void *dgate, void *dup)
{
    if (dgate)
        run(n, &(act_job){.dtype = dtype, .x = gate, .up = up, .dy = dy, .out = dgate});
    if (dup)
        dti_swiglu(dtype, n, gate, dy, dup);
}
