/* array/exp_internal.h - exponentials of runs of f32, compiled for three kinds of machine.
 *
 * Within 1.5 ulp down to -87.3; subnormal or 0 where the result would be subnormal; inf from 88.4
 * on, with AVX-512 from 88.73 on; -inf gives 0, NaN stays NaN. What an element becomes depends on
 * nothing but itself, and on the kind of machine: of a chain of products and sums some round half
 * as often. Serial. Read next: array/exp.c. */
#pragma once

#include "base/dt_types.h"

typedef struct dti_exp_kernels {
    void (*one_plus)(int64_t n, float *a); /* a = 1 + exp(-a) */
    /* y = exp(x - shift) factor; y is x or apart from it. */
    void (*row)(int64_t n, const float *x, float shift, float factor, float *y);
    /* The sum of exp(x - shift), in lanes: array/dt_kernels.h. */
    float (*sum)(int64_t n, const float *x, float shift);
} dti_exp_kernels;

/* The i-th of those that run on this machine, the best first; NULL past the last. */
const dti_exp_kernels *dti_exp_kernels_of(int i);
