/* array/exp_internal.h - exponentials for kernels: f32 in a form that compilers vectorise, f64 from
 * libm.
 *
 * exp(x) = 2^n exp(r), n = round(x / ln 2), |r| <= ln 2 / 2; exp(r) by a polynomial of degree 7.
 * Within 1.5 ulp over the whole range, subnormal results included; -inf gives 0, NaN stays NaN.
 * Source: S. Moshier, Cephes expf; the split of ln 2 is Cody and Waite's. */
#pragma once

#include "array/dt_half.h"

#include <math.h>

static inline __attribute__((always_inline)) float dt_exp_f32(float x)
{
    const float magic = 0x1.8p23f; /* adding it rounds to an integer, found in the low bits */
    const float above = x < -104.0f ? -104.0f : x;
    const float c = above > 89.0f ? 89.0f : above;
    const float shifted = c * 0x1.715476p0f + magic;
    const float n = shifted - magic;
    const float r = (c - n * 0x1.63p-1f) - n * -0x1.bd0106p-13f;
    float y = 1.9875691500e-4f;
    y = y * r + 1.3981999507e-3f;
    y = y * r + 8.3334519073e-3f;
    y = y * r + 4.1665795894e-2f;
    y = y * r + 1.6666665459e-1f;
    y = y * r + 5.0000001201e-1f;
    y = y * (r * r) + r + 1.0f;
    /* 2^n as two factors, so that both are normal numbers. */
    const int32_t i = (int32_t)(dt_float_bits(shifted) - 0x4b400000u), half = i >> 1;
    return y * dt_float_from_bits((uint32_t)(half + 127) << 23) *
           dt_float_from_bits((uint32_t)(i - half + 127) << 23);
}

static inline double dt_exp_f64(double x)
{
    return exp(x);
}
