/* base/dt_types.h - data types, shapes and devices as plain values. */
#pragma once

#include "base/dt_status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    DT_MAX_DIMS = 8,  /* dims of a tensor */
    DT_MAX_AXES = 8,  /* axes of a mesh */
    DT_NAME_SIZE = 24 /* bytes of an axis name, with its 0 */
};

/* name, bytes, floating point?, name in safetensors files */
#define DT_DTYPE_TABLE(X)   \
    X(F32, 4, true, "F32")  \
    X(BF16, 2, true, "BF16") \
    X(F16, 2, true, "F16")  \
    X(F64, 8, true, "F64")  \
    X(I32, 4, false, "I32") \
    X(I64, 8, false, "I64") \
    X(U8, 1, false, "U8")

typedef enum dt_dtype {
#define X(name, bytes, is_float, file_name) DT_##name,
    DT_DTYPE_TABLE(X)
#undef X
    DT_NDTYPES
} dt_dtype;

size_t dt_dtype_size(dt_dtype dtype);        /* bytes of one element */
const char *dt_dtype_name(dt_dtype dtype);   /* lower case: "f32", "bf16" */
bool dt_dtype_is_float(dt_dtype dtype);
/* From "f32" or "F32", any case. Errors: DT_ERR_ARG lists the legal names. */
DT_NODISCARD dt_status dt_dtype_parse(const char *text, dt_dtype *dtype_out);

typedef enum dt_device_kind { DT_CPU, DT_CUDA, DT_META } dt_device_kind;

/* A device. DT_META has shapes only: nothing is allocated and nothing is computed. */
typedef struct dt_device {
    dt_device_kind kind;
    int index;
} dt_device;

/* A shape; dims past ndim are 0, so that equal shapes are equal bytes. */
typedef struct dt_shape {
    int ndim;
    int64_t dim[DT_MAX_DIMS];
} dt_shape;

/* DT_SHAPE(2, 3): a shape from its dims. DT_SCALAR: no dims, one element. */
#define DT_SHAPE(...)                                              \
    dt_shape_make(DT_COUNT(((int64_t[]){__VA_ARGS__})), (int64_t[]){__VA_ARGS__})
#define DT_SCALAR ((dt_shape){0})

dt_shape dt_shape_make(int ndim, const int64_t *dim);
int64_t dt_shape_count(dt_shape s); /* elements; 1 for a scalar */
bool dt_shape_equal(dt_shape a, dt_shape b);
/* Elements before (outer) and after (inner) dim d: count = outer * dim[d] * inner. */
int64_t dt_shape_outer(dt_shape s, int d);
int64_t dt_shape_inner(dt_shape s, int d);

/* Room for any printed shape, and the printer: "[2, 3]". Returns buf. */
enum { DT_SHAPE_TEXT = 8 * 21 + 4 };
const char *dt_shape_print(dt_shape s, char *buf, size_t size_bytes);

/* Grow *data (elements of elem_bytes) so that `need` elements fit; doubles *capacity.
 * Errors: DT_ERR_NOMEM; then nothing changed. */
DT_NODISCARD dt_status dt_grow(void **data, int64_t *capacity, int64_t need, size_t elem_bytes);
