/* array/exp_internal.h - exponentials for kernels: f32 in a form that compilers vectorise, f64 from
 * libm.
 *
 * exp(x) = 2^n exp(r), n = round(x / ln 2), |r| <= ln 2 / 2; exp(r) = 1 + r + r^2 p(r), p of degree
 * 4 with the least relative error of exp(r), 5e-9. The terms of p are paired, since a core waits
 * for the longest chain of them. Within 1.5 ulp over the whole range, subnormal results included;
 * -inf gives 0, NaN stays NaN. The split of ln 2 is Cody and Waite's. */
#pragma once

#include "array/dt_half.h"

#include <math.h>

/* exp(x) 2^-n, and 2^n's exponent; x within +-105. */
static inline __attribute__((always_inline)) float dti_exp_fraction(float x, int32_t *n_out)
{
    const float magic = 0x1.8p23f; /* adding it rounds to an integer, found in the low bits */
    const float shifted = x * 0x1.715476p0f + magic;
    const float n = shifted - magic;
    const float r = (x - n * 0x1.63p-1f) - n * -0x1.bd0106p-13f, r2 = r * r;
    const float high = 0x1.6db424p-10f * r2 + (0x1.123b52p-7f * r + 0x1.55545ep-5f);
    const float low = 0x1.55548ep-3f * r + 0.5f;
    *n_out = (int32_t)(dt_float_bits(shifted) - 0x4b400000u);
    return (high * r2 + low) * r2 + r + 1.0f;
}

static inline __attribute__((always_inline)) float dti_within(float x, float least, float most)
{
    const float above = x < least ? least : x;
    return above > most ? most : above;
}

static inline __attribute__((always_inline)) float dt_exp_f32(float x)
{
    int32_t n;
    const float y = dti_exp_fraction(dti_within(x, -104, 89), &n);
    /* 2^n as two factors, so that both are normal numbers. */
    const int32_t half = n >> 1;
    return y * dt_float_from_bits((uint32_t)(half + 127) << 23) *
           dt_float_from_bits((uint32_t)(n - half + 127) << 23);
}

static inline double dt_exp_f64(double x)
{
    return exp(x);
}

/* exp(x) for x <= 0, in fewer operations: 0 where it would be subnormal. */
static inline __attribute__((always_inline)) float dt_exp_below_f32(float x)
{
    int32_t n;
    const float y = dti_exp_fraction(x < -104 ? -104 : x, &n);
    return y * dt_float_from_bits((uint32_t)(n < -127 ? 0 : n + 127) << 23);
}

static inline double dt_exp_below_f64(double x)
{
    return exp(x);
}

/* 1 / (1 + exp(-x)). Below -88.4 it is 0: 2^128 is inf as one factor. */
static inline __attribute__((always_inline)) float dt_sigmoid_f32(float x)
{
    int32_t n;
    const float y = dti_exp_fraction(dti_within(-x, -87, 89), &n);
    return 1 / (1 + y * dt_float_from_bits((uint32_t)(n + 127) << 23));
}

static inline double dt_sigmoid_f64(double x)
{
    return 1 / (1 + exp(-x));
}
