/* comm/reduce.c - sum (max, min) of one chunk's terms, in rank order.
 *
 * Serial, because communication workers run it. Terms add in f32 (f64 for f64) and are rounded to
 * the storage type once, at the end; integers wrap. NaN wins in max and min. A block of sums is
 * made in the first cache and then copied to where it is wanted: a destination may be a source. */
#include "comm/comm_internal.h"

#include "array/dt_half.h"
#include "array/dt_kernels.h"

#include <string.h>

enum { BLOCK = 1024 }; /* elements */

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

/* acc = a op b; acc may be a. */
static void combine(void *acc, const void *a, const void *b, int64_t n, dt_dtype dtype,
                    dt_reduce op)
{
    switch (dtype) {
    case DT_F32: combine_f32(acc, a, b, n, op); break;
    case DT_F64: combine_f64(acc, a, b, n, op); break;
    case DT_I32: combine_i32(acc, a, b, n, op); break;
    case DT_I64: combine_i64(acc, a, b, n, op); break;
    case DT_U8: combine_u8(acc, a, b, n, op); break;
    case DT_BF16:
    case DT_F16:
    case DT_NDTYPES: break; /* 16-bit floats come here as f32 */
    }
}

DT_CLONES static void add_two_bf16(float *restrict acc, const uint16_t *restrict a,
                                   const uint16_t *restrict b, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        acc[i] = dt_bf16_to_f32(a[i]) + dt_bf16_to_f32(b[i]);
}

DT_CLONES static void add_bf16(float *restrict acc, const uint16_t *restrict x, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        acc[i] += dt_bf16_to_f32(x[i]);
}

/* The terms of a block, at `offset` bytes; a NULL source is zero. */
static const void *term_at(const void *const *source, int r, size_t offset)
{
    static const double zeros[BLOCK];
    return source[r] ? (const char *)source[r] + offset : (const void *)zeros;
}

static void sum_halves(float *acc, int nsources, const void *const *source, size_t offset,
                       int64_t n, dt_dtype dtype, dt_reduce op)
{
    float term[BLOCK];
    int r = 0;
    if (dtype == DT_BF16 && op == DT_REDUCE_SUM && nsources > 1) {
        add_two_bf16(acc, term_at(source, 0, offset), term_at(source, 1, offset), n);
        for (r = 2; r < nsources; r++)
            add_bf16(acc, term_at(source, r, offset), n);
        return;
    }
    dt_load_f32(dtype, term_at(source, 0, offset), acc, n);
    for (r = 1; r < nsources; r++) {
        dt_load_f32(dtype, term_at(source, r, offset), term, n);
        combine(acc, acc, term, n, DT_F32, op);
    }
}

void dti_add_terms_to(dti_targets to, int nsources, const void *const *source, int64_t n,
                      dt_dtype dtype, dt_reduce op)
{
    _Alignas(64) char acc[BLOCK * sizeof(double)], rounded[BLOCK * sizeof(uint16_t)];
    const bool half = dtype == DT_BF16 || dtype == DT_F16;
    const size_t element = dt_dtype_size(dtype);
    for (int64_t lo = 0; lo < n; lo += BLOCK) {
        const int64_t count = n - lo < BLOCK ? n - lo : BLOCK;
        const size_t offset = (size_t)lo * element;
        const void *sum = half ? rounded : acc;
        if (half) {
            sum_halves((float *)(void *)acc, nsources, source, offset, count, dtype, op);
            dt_store_f32(dtype, (const float *)(const void *)acc, rounded, count);
        } else if (nsources == 1) {
            memcpy(acc, term_at(source, 0, offset), (size_t)count * element);
        } else {
            combine(acc, term_at(source, 0, offset), term_at(source, 1, offset), count, dtype, op);
            for (int r = 2; r < nsources; r++)
                combine(acc, acc, term_at(source, r, offset), count, dtype, op);
        }
        for (int t = 0; t < to.n; t++)
            dti_copy(to.at[t] + offset, sum, (size_t)count * element, to.stream);
    }
}

void dti_add_terms(void *dst, int nsources, const void *const *source, int64_t n, dt_dtype dtype,
                   dt_reduce op)
{
    char *const at[] = {dst};
    dti_add_terms_to((dti_targets){.at = at, .n = 1}, nsources, source, n, dtype, op);
}
