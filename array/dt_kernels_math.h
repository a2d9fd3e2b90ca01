/* array/dt_kernels_math.h - the kernels of sums, element-wise sums of products, and changes of
 * shape: one table a device.
 *
 * dtype is DT_F32 or DT_F64: that of every `void *` unless said otherwise. Arrays are contiguous
 * and row-major. Outputs are overwritten, not added to. How kernels are written:
 * array/dt_kernels.h. The ops: dtensor/ops/. */
#pragma once

#include "array/dt_kernels.h"
#include "base/dt_random.h"

enum {
    DT_STRIDED_DIMS = 16,   /* of a strided copy */
    DT_PRODUCT_TERMS = 8,   /* factors of one product */
    DT_PRODUCT_LETTERS = 64 /* of one product */
};

/* dst [size[0], size[1], ...], contiguous, from src by strides in elements; a stride of 0 repeats.
 */
typedef struct dt_strided_args {
    int64_t elem_bytes; /* 1, 2, 4 or 8 */
    int ndim;
    int64_t size[DT_STRIDED_DIMS], stride[DT_STRIDED_DIMS];
    const void *src;
    void *dst;
} dt_strided_args;

/* out (+)= the sum over letters [nfree, nletters) of the product of the factors, for all values of
 * the first nfree letters. stride[f][l] is factor f's step in elements for letter l, 0 if it lacks
 * l; out_stride[l] is the output's. */
typedef struct dt_product_args {
    dt_dtype dtype;
    int nfactors, nletters, nfree;
    bool add; /* to what out holds */
    int64_t size[DT_PRODUCT_LETTERS];
    int64_t stride[DT_PRODUCT_TERMS][DT_PRODUCT_LETTERS], out_stride[DT_PRODUCT_LETTERS];
    const void *factor[DT_PRODUCT_TERMS];
    void *out;
} dt_product_args;

typedef struct dt_math_kernels {
    /* out [outer, inner] = x [outer, inner] + y [inner], and times. out may be x. These three, and
     * sum, also take bf16 and f16: computed in f32 (sum: f64), rounded once. */
    void (*add)(dt_dtype dtype, int64_t outer, int64_t inner, const void *x, const void *y,
                void *out);
    void (*mul)(dt_dtype dtype, int64_t outer, int64_t inner, const void *x, const void *y,
                void *out);
    void (*scale)(dt_dtype dtype, int64_t n, double factor, const void *x, void *out);

    /* out [outer, inner] = sum over the middle of x [outer, mid, inner], and of x * y. In f64, in a
     * fixed order. */
    void (*sum)(dt_dtype dtype, int64_t outer, int64_t mid, int64_t inner, const void *x,
                void *out);
    void (*sum_mul)(dt_dtype dtype, int64_t mid, int64_t inner, const void *x, const void *y,
                    void *out);

    void (*strided)(const dt_strided_args *a);
    /* out[i] = first + i, i < n. */
    void (*range)(int64_t n, int32_t first, int32_t *out);
    /* out[i] = std * element first + i of dt_normal's sequence, i < n: in f64, rounded to f32, then
     * to any dtype as dt_array_cast does. */
    void (*normal)(dt_dtype dtype, dt_key key, uint64_t first, int64_t n, double std, void *out);
    /* Plain loops, in f64. */
    void (*product)(const dt_product_args *a);
} dt_math_kernels;

/* The table of a device; NULL on meta, which has nothing to compute on, and on devices that are not
 * built in. */
const dt_math_kernels *dt_math_kernels_of(dt_device_kind kind);
