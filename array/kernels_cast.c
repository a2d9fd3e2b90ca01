/* array/kernels_cast.c - conversion between all dtypes. Integers wrap when narrowed, as in C;
 * floats become integers toward zero and saturate; bf16 and f16 go through f32. Read first:
 * array/array_internal.h. */
#include "array/array_internal.h"
#include "array/dt_half.h"
#include "array/dt_kernels.h"

#include <string.h>

#define TO_I32(x) dti_to_i32((double)(x))
#define TO_I64(x) dti_to_i64((double)(x))
#define TO_U8(x)  dti_to_u8((double)(x))
#define S         float
#define NAME(f)   f32_##f
#include "array/kernel_cast.inc"
#undef S
#undef NAME
#define S       double
#define NAME(f) f64_##f
#include "array/kernel_cast.inc"
#undef S
#undef NAME
#undef TO_I32
#undef TO_I64
#undef TO_U8
#define TO_I32(x) ((int32_t)(x))
#define TO_I64(x) ((int64_t)(x))
#define TO_U8(x)  ((uint8_t)(x))
#define S         int32_t
#define NAME(f)   i32_##f
#include "array/kernel_cast.inc"
#undef S
#undef NAME
#define S       int64_t
#define NAME(f) i64_##f
#include "array/kernel_cast.inc"
#undef S
#undef NAME
#define S       uint8_t
#define NAME(f) u8_##f
#include "array/kernel_cast.inc"
#undef S
#undef NAME

/* Neither dtype is bf16 or f16. */
static void cast_wide(dt_dtype to, void *dst, dt_dtype from, const void *src, int64_t n)
{
    switch (from) {
    case DT_F32: f32_cast(to, dst, src, n); break;
    case DT_F64: f64_cast(to, dst, src, n); break;
    case DT_I32: i32_cast(to, dst, src, n); break;
    case DT_I64: i64_cast(to, dst, src, n); break;
    case DT_U8: u8_cast(to, dst, src, n); break;
    case DT_BF16:
    case DT_F16:
    case DT_NDTYPES: break;
    }
}

static bool is_16(dt_dtype dtype)
{
    return dtype == DT_BF16 || dtype == DT_F16;
}

/* Between f32 and bf16 or f16, one pass; otherwise two, a block at a time. */
static void cast_16(dt_dtype to, void *dst, dt_dtype from, const void *src, int64_t n)
{
    enum { BLOCK = 1024 };
    float x[BLOCK];
    for (int64_t lo = 0; lo < n; lo += BLOCK) {
        const int64_t count = n - lo < BLOCK ? n - lo : BLOCK;
        const void *in = dti_at(from, src, lo);
        void *out = dti_at(to, dst, lo);
        if (is_16(from))
            dt_load_f32(from, in, x, count);
        else
            cast_wide(DT_F32, x, from, in, count);
        if (is_16(to))
            dt_store_f32(to, x, out, count);
        else
            cast_wide(to, out, DT_F32, x, count);
    }
}

void dti_cast(dt_dtype to, void *dst, dt_dtype from, const void *src, int64_t n)
{
    if (n == 0) /* the pointers may be NULL */
        return;
    if (to == from)
        memmove(dst, src, (size_t)n * dt_dtype_size(to));
    else if (is_16(from) && to == DT_F32)
        dt_load_f32(from, src, dst, n);
    else if (from == DT_F32 && is_16(to))
        dt_store_f32(to, src, dst, n);
    else if (is_16(from) || is_16(to))
        cast_16(to, dst, from, src, n);
    else
        cast_wide(to, dst, from, src, n);
}
