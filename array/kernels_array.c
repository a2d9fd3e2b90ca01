/* array/kernels_array.c - fill, scale, add and reduce for every dtype. Read first:
 * array/array_internal.h. */
#include "array/array_internal.h"
#include "array/dt_half.h"
#include "array/dt_kernels.h"

#include <string.h>

enum { BLOCK = 1024 }; /* elements staged on the stack */

#define T         float
#define NAME(f)   f##_f32
#define ADD(a, b) ((a) + (b))
#define IS_NAN(x) ((x) != (x))
#include "array/kernel_array.inc"
#undef T
#undef NAME
#define T       double
#define NAME(f) f##_f64
#include "array/kernel_array.inc"
#undef T
#undef NAME
#undef ADD
#undef IS_NAN
/* Integers wrap around. */
#define IS_NAN(x) false
#define T         int32_t
#define NAME(f)   f##_i32
#define ADD(a, b) ((int32_t)((uint32_t)(a) + (uint32_t)(b)))
#include "array/kernel_array.inc"
#undef T
#undef NAME
#undef ADD
#define T         int64_t
#define NAME(f)   f##_i64
#define ADD(a, b) ((int64_t)((uint64_t)(a) + (uint64_t)(b)))
#include "array/kernel_array.inc"
#undef T
#undef NAME
#undef ADD
#define T         uint8_t
#define NAME(f)   f##_u8
#define ADD(a, b) ((uint8_t)((a) + (b)))
#include "array/kernel_array.inc"
#undef T
#undef NAME
#undef ADD

DT_CLONES static void fill_16(uint16_t *dst, int64_t n, uint16_t value)
{
    for (int64_t i = 0; i < n; i++)
        dst[i] = value;
}

DT_CLONES static void scale_f32(float *dst, int64_t n, float factor)
{
    for (int64_t i = 0; i < n; i++)
        dst[i] *= factor;
}

DT_CLONES static void scale_f64(double *dst, int64_t n, double factor)
{
    for (int64_t i = 0; i < n; i++)
        dst[i] *= factor;
}

/* bf16, f16: block by block through f32. */
static void scale_16(dt_dtype dtype, uint16_t *dst, int64_t n, float factor)
{
    float x[BLOCK];
    for (int64_t lo = 0; lo < n; lo += BLOCK) {
        const int64_t count = n - lo < BLOCK ? n - lo : BLOCK;
        dt_load_f32(dtype, dst + lo, x, count);
        scale_f32(x, count, factor);
        dt_store_f32(dtype, x, dst + lo, count);
    }
}

static void add_16(dt_dtype dtype, uint16_t *dst, const uint16_t *src, int64_t n)
{
    float total[BLOCK], x[BLOCK];
    for (int64_t lo = 0; lo < n; lo += BLOCK) {
        const int64_t count = n - lo < BLOCK ? n - lo : BLOCK;
        dt_load_f32(dtype, dst + lo, total, count);
        dt_load_f32(dtype, src + lo, x, count);
        sum_f32(total, x, count);
        dt_store_f32(dtype, total, dst + lo, count);
    }
}

static void reduce_16(dt_dtype dtype, uint16_t *dst, int nsrc, const dt_array *const *src,
                      int64_t n, dt_reduce op)
{
    float total[BLOCK], x[BLOCK];
    for (int64_t lo = 0; lo < n; lo += BLOCK) {
        const int64_t count = n - lo < BLOCK ? n - lo : BLOCK;
        dt_load_f32(dtype, (const uint16_t *)dt_array_data(src[0]) + lo, total, count);
        for (int k = 1; k < nsrc; k++) {
            dt_load_f32(dtype, (const uint16_t *)dt_array_data(src[k]) + lo, x, count);
            combine_f32(total, x, count, op);
        }
        dt_store_f32(dtype, total, dst + lo, count);
    }
}

void dti_fill(dt_dtype dtype, void *dst, int64_t n, double value)
{
    switch (dtype) {
    case DT_F32: fill_f32(dst, n, (float)value); break;
    case DT_BF16: fill_16(dst, n, dt_f32_to_bf16((float)value)); break;
    case DT_F16: fill_16(dst, n, dt_f32_to_f16((float)value)); break;
    case DT_F64: fill_f64(dst, n, value); break;
    case DT_I32: fill_i32(dst, n, dti_to_i32(value)); break;
    case DT_I64: fill_i64(dst, n, dti_to_i64(value)); break;
    case DT_U8: fill_u8(dst, n, dti_to_u8(value)); break;
    case DT_NDTYPES: break;
    }
}

void dti_scale(dt_dtype dtype, void *dst, int64_t n, double factor)
{
    if (dtype == DT_F64)
        scale_f64(dst, n, factor);
    else if (dtype == DT_F32)
        scale_f32(dst, n, (float)factor);
    else
        scale_16(dtype, dst, n, (float)factor);
}

void dti_add(dt_dtype dtype, void *dst, const void *src, int64_t n)
{
    if (dtype == DT_F64)
        sum_f64(dst, src, n);
    else if (dtype == DT_F32)
        sum_f32(dst, src, n);
    else
        add_16(dtype, dst, src, n);
}

void dti_reduce(dt_dtype dtype, void *dst, int nsrc, const dt_array *const *src, int64_t n,
                dt_reduce op)
{
    switch (dtype) {
    case DT_F32: reduce_f32(dst, nsrc, src, n, op); break;
    case DT_BF16:
    case DT_F16: reduce_16(dtype, dst, nsrc, src, n, op); break;
    case DT_F64: reduce_f64(dst, nsrc, src, n, op); break;
    case DT_I32: reduce_i32(dst, nsrc, src, n, op); break;
    case DT_I64: reduce_i64(dst, nsrc, src, n, op); break;
    case DT_U8: reduce_u8(dst, nsrc, src, n, op); break;
    case DT_NDTYPES: break;
    }
}

void dti_copy_block(const dti_strided_block *b)
{
    char *to = b->dst;
    const char *from = b->src;
    int64_t index[DT_MAX_DIMS] = {0}, run = 1;
    int outer = b->ndim; /* the inner dims are one run in both */
    while (outer > 0 && (b->extent[outer - 1] == 1 ||
                         (b->dst_stride[outer - 1] == run && b->src_stride[outer - 1] == run)))
        run *= b->extent[--outer];
    for (int d = 0; d >= 0;) {
        memcpy(to, from, (size_t)(run * b->elem_bytes));
        /* Count up over the outer dims, the last one fastest. */
        for (d = outer - 1; d >= 0; d--) {
            to += b->elem_bytes * b->dst_stride[d];
            from += b->elem_bytes * b->src_stride[d];
            if (++index[d] < b->extent[d])
                break;
            to -= b->elem_bytes * b->dst_stride[d] * index[d];
            from -= b->elem_bytes * b->src_stride[d] * index[d];
            index[d] = 0;
        }
    }
}
