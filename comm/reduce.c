/* comm/reduce.c - sum (max, min) of one chunk's terms, in rank order.
 *
 * Serial, because communication workers run it. Terms add in f32 (f64 for f64) and are rounded to
 * the storage type once, at the end; integers wrap. NaN wins in max and min. */
#include "comm/comm_internal.h"

#include "array/dt_half.h"

#include <string.h>

enum { BLOCK = 512 }; /* elements: the sums of a block stay in the first cache */

#define TYPE      float
#define SUM_TYPE  float
#define NAME(f)   f##_f32
#define IS_NAN(v) ((v) != (v))
#include "comm/reduce.inc"

#define TYPE      double
#define SUM_TYPE  double
#define NAME(f)   f##_f64
#define IS_NAN(v) ((v) != (v))
#include "comm/reduce.inc"

#define TYPE      int32_t
#define SUM_TYPE  uint32_t
#define NAME(f)   f##_i32
#define IS_NAN(v) false
#include "comm/reduce.inc"

#define TYPE      int64_t
#define SUM_TYPE  uint64_t
#define NAME(f)   f##_i64
#define IS_NAN(v) false
#include "comm/reduce.inc"

#define TYPE      uint8_t
#define SUM_TYPE  unsigned
#define NAME(f)   f##_u8
#define IS_NAN(v) false
#include "comm/reduce.inc"

static void combine(void *acc, const void *x, int64_t n, dt_dtype dtype, dt_reduce op)
{
    switch (dtype) {
    case DT_F32: combine_f32(acc, x, n, op); break;
    case DT_F64: combine_f64(acc, x, n, op); break;
    case DT_I32: combine_i32(acc, x, n, op); break;
    case DT_I64: combine_i64(acc, x, n, op); break;
    case DT_U8: combine_u8(acc, x, n, op); break;
    case DT_BF16:
    case DT_F16:
    case DT_NDTYPES: break; /* 16-bit floats come here as f32 */
    }
}

void dti_add_terms(void *dst, int nsources, const void *const *source, int64_t n, dt_dtype dtype,
                   dt_reduce op)
{
    _Alignas(16) char acc[BLOCK * sizeof(double)];
    _Alignas(16) char term[BLOCK * sizeof(double)];
    const bool half = dtype == DT_BF16 || dtype == DT_F16;
    const dt_dtype sums = half ? DT_F32 : dtype;
    const size_t element = dt_dtype_size(dtype), wide = dt_dtype_size(sums);
    for (int64_t lo = 0; lo < n; lo += BLOCK) {
        const int64_t count = n - lo < BLOCK ? n - lo : BLOCK;
        const size_t offset = (size_t)lo * element;
        for (int r = 0; r < nsources; r++) {
            char *to = r == 0 ? acc : term;
            const char *from = source[r];
            if (!from)
                memset(to, 0, (size_t)count * wide);
            else if (half)
                dt_load_f32(dtype, from + offset, (float *)(void *)to, count);
            else
                memcpy(to, from + offset, (size_t)count * wide);
            if (r > 0)
                combine(acc, term, count, sums, op);
        }
        if (half)
            dt_store_f32(dtype, (const float *)(const void *)acc, (char *)dst + offset, count);
        else
            memcpy((char *)dst + offset, acc, (size_t)count * wide);
    }
}
