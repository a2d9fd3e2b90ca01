/* array/array_internal.h - kernels behind dt_array_*: n elements from raw pointers, any dtype. `lo`
 * is the first element. Read first: array/dt_kernels.h. */
#pragma once

#include "array/dt_array.h"

/* dst may be src in add; no other overlap. cast takes two dtypes, also equal ones. */
void dti_fill(dt_dtype dtype, void *dst, int64_t n, double value);
void dti_scale(dt_dtype dtype, void *dst, int64_t n, double factor);
void dti_add(dt_dtype dtype, void *dst, const void *src, int64_t n);
void dti_cast(dt_dtype to, void *dst, dt_dtype from, const void *src, int64_t n);
/* dst = src[0] op src[1] op ...; dst may be any src. */
void dti_reduce(dt_dtype dtype, void *dst, int nsrc, const dt_array *const *src, int64_t n,
                dt_reduce op);

/* A block of `extent` elements between two arrays, by strides in elements; no overlap. */
typedef struct dti_strided_block {
    int64_t elem_bytes;
    int ndim;
    int64_t extent[DT_MAX_DIMS], dst_stride[DT_MAX_DIMS], src_stride[DT_MAX_DIMS];
    void *dst; /* of its first element */
    const void *src;
} dti_strided_block;
void dti_copy_block(const dti_strided_block *b);

/* `index` elements past `base`. */
static inline void *dti_at(dt_dtype dtype, const void *base, int64_t index)
{
    return (char *)(uintptr_t)base + index * (int64_t)dt_dtype_size(dtype);
}

/* Toward zero; what does not fit becomes the nearest that does, NaN becomes 0. */
static inline int64_t dti_to_i64(double x)
{
    const bool low = x < -9223372036854775808.0, high = x >= 9223372036854775808.0;
    const double fits = low || high || x != x ? 0 : x;
    return low ? INT64_MIN : high ? INT64_MAX : (int64_t)fits;
}

static inline int32_t dti_to_i32(double x)
{
    const double above = x > -2147483648.0 ? x : -2147483648.0; /* NaN too */
    const double fits = above < 2147483647.0 ? above : 2147483647.0;
    return x != x ? 0 : (int32_t)fits;
}

static inline uint8_t dti_to_u8(double x)
{
    const double above = x > 0 ? x : 0;
    return (uint8_t)(above < 255 ? above : 255);
}
