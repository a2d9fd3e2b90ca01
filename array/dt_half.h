/* array/dt_half.h - bf16 and f16 as bits, and their conversion to and from f32.
 *
 * Both round to nearest, ties to even; too large becomes inf; subnormals are kept; NaN stays NaN
 * (quiet). The block forms are serial: communication workers may call them. f64 and integers reach
 * 16 bits through f32, as PyTorch's do.
 *
 * Source: IEEE 754-2019; branch-free f16 forms from F. Giesen, "float->half variants". */
#pragma once

#include "base/dt_types.h"

#include <string.h>

static inline uint32_t dt_float_bits(float x)
{
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}

static inline float dt_float_from_bits(uint32_t u)
{
    float x;
    memcpy(&x, &u, sizeof x);
    return x;
}

static inline float dt_bf16_to_f32(uint16_t h)
{
    return dt_float_from_bits((uint32_t)h << 16);
}

static inline uint16_t dt_f32_to_bf16(float x)
{
    const uint32_t u = dt_float_bits(x);
    const uint32_t rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
    return (uint16_t)(x != x ? 0x7fc0u : rounded);
}

static inline float dt_f16_to_f32(uint16_t h)
{
    const uint32_t bits = ((uint32_t)h & 0x7fffu) << 13; /* exponent and mantissa in f32's places */
    const uint32_t exponent = bits & 0x0f800000u;
    const uint32_t normal = bits + (112u << 23);
    /* A subnormal is normal after adding 2^-14's exponent and subtracting 2^-14 again. */
    const uint32_t subnormal =
        dt_float_bits(dt_float_from_bits(bits + (113u << 23)) - dt_float_from_bits(113u << 23));
    const uint32_t special = bits + (224u << 23); /* inf, NaN */
    const uint32_t finite = exponent == 0 ? subnormal : normal;
    const uint32_t u = exponent == 0x0f800000u ? special : finite;
    return dt_float_from_bits(u | ((uint32_t)h & 0x8000u) << 16);
}

static inline uint16_t dt_f32_to_f16(float x)
{
    const uint32_t all = dt_float_bits(x);
    const uint32_t u = all & 0x7fffffffu;
    const uint32_t magic = 126u << 23; /* 0.5: its last bit is 2^-24, f16's smallest subnormal */
    const uint32_t special = u > 0x7f800000u ? 0x7e00u : 0x7c00u;
    const uint32_t subnormal =
        dt_float_bits(dt_float_from_bits(u) + dt_float_from_bits(magic)) - magic;
    const uint32_t normal = (u - (112u << 23) + 0xfffu + ((u >> 13) & 1u)) >> 13;
    const uint32_t finite = u < (113u << 23) ? subnormal : normal;
    const uint32_t h = u >= (143u << 23) ? special : finite;
    return (uint16_t)(h | (all & 0x80000000u) >> 16);
}

/* n elements from src to dst; no overlap. */
void dt_bf16_to_f32_block(const uint16_t *src, float *dst, int64_t n);
void dt_f32_to_bf16_block(const float *src, uint16_t *dst, int64_t n);
void dt_f16_to_f32_block(const uint16_t *src, float *dst, int64_t n);
void dt_f32_to_f16_block(const float *src, uint16_t *dst, int64_t n);

/* The same, chosen by dtype: bf16 or f16, and f32 as a plain copy. `src` and `dst` are the first
 * elements. */
void dt_load_f32(dt_dtype dtype, const void *src, float *dst, int64_t n);
void dt_store_f32(dt_dtype dtype, const float *src, void *dst, int64_t n);
