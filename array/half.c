/* array/half.c - blocks of bf16 and f16 to and from f32. Read first: array/dt_half.h. */
#include "array/dt_half.h"

#include "array/dt_kernels.h"

#include <assert.h>

DT_CLONES void dt_bf16_to_f32_block(const uint16_t *restrict src, float *restrict dst, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        dst[i] = dt_bf16_to_f32(src[i]);
}

DT_CLONES void dt_f32_to_bf16_block(const float *restrict src, uint16_t *restrict dst, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        dst[i] = dt_f32_to_bf16(src[i]);
}

DT_CLONES void dt_f16_to_f32_block(const uint16_t *restrict src, float *restrict dst, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        dst[i] = dt_f16_to_f32(src[i]);
}

DT_CLONES void dt_f32_to_f16_block(const float *restrict src, uint16_t *restrict dst, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        dst[i] = dt_f32_to_f16(src[i]);
}

void dt_load_f32(dt_dtype dtype, const void *src, float *dst, int64_t n)
{
    if (n <= 0)
        return;
    if (dtype == DT_BF16)
        dt_bf16_to_f32_block(src, dst, n);
    else if (dtype == DT_F16)
        dt_f16_to_f32_block(src, dst, n);
    else
        memcpy(dst, src, (size_t)n * sizeof *dst);
    assert(dtype == DT_F32 || dtype == DT_BF16 || dtype == DT_F16);
}

void dt_store_f32(dt_dtype dtype, const float *src, void *dst, int64_t n)
{
    if (n <= 0)
        return;
    if (dtype == DT_BF16)
        dt_f32_to_bf16_block(src, dst, n);
    else if (dtype == DT_F16)
        dt_f32_to_f16_block(src, dst, n);
    else
        memcpy(dst, src, (size_t)n * sizeof *src);
    assert(dtype == DT_F32 || dtype == DT_BF16 || dtype == DT_F16);
}
