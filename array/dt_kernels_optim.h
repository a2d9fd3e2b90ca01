/* array/dt_kernels_optim.h - the kernels of optimizers and norms: one table a device.
 *
 * Arrays are contiguous. How kernels are written: array/dt_kernels.h. The users: optim/. */
#pragma once

#include "array/dt_kernels.h"

/* One step of AdamW on n elements:
 *     g' = grad_scale g;  m = b1 m + (1 - b1) g';  v = b2 v + (1 - b2) g'^2
 *     w = w - (lr decay) w - lr (m / correction1) / (sqrt(v / correction2) + eps)
 * Constants are computed in double and rounded once to `dtype`, in which all else is computed. */
typedef struct dt_adamw_args {
    dt_dtype dtype;      /* of w, m, v: f32 or f64 */
    dt_dtype grad_dtype; /* of g: dtype; bf16 or f16 beside f32 */
    int64_t n;
    double lr, beta1, beta2, eps, decay, grad_scale;
    double correction1, correction2; /* 1 - beta^k */
    const void *g;
    void *w, *m, *v;
    void *rounded; /* w once more, in rounded_dtype (bf16, f16); NULL: not wanted */
    dt_dtype rounded_dtype;
} dt_adamw_args;

/* A tensor whose powers are summed: n floats of any dtype. */
typedef struct dt_power_args {
    dt_dtype dtype;
    int64_t n;
    const void *x;
    double *sum; /* on the device of x */
} dt_power_args;

/* Lists: of any tensors, one after the other on the cpu, together on a device that starts kernels,
 * which costs more than a small one runs. */
typedef struct dt_optim_kernels {
    void (*adamw)(int count, const dt_adamw_args *list);
    /* *sum = the sum of |x|^power in f64, in an order that depends on n alone; for INFINITY the
     * largest |x|, or NaN if there is one. */
    void (*power_sum)(int count, const dt_power_args *list, double power);
} dt_optim_kernels;

/* The table of a device; NULL on meta and on devices that are not built in. */
const dt_optim_kernels *dt_optim_kernels_of(dt_device_kind kind);
