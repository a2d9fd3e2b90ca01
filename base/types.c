/* base/types.c - data types, shapes, the growable array. */
#include "base/dt_types.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

static const struct {
    size_t bytes;
    bool is_float;
    const char *upper;
} dtypes[] = {
#define X(name, bytes, is_float, file_name) [DT_##name] = {bytes, is_float, file_name},
    DT_DTYPE_TABLE(X)
#undef X
};

/* An element type of this library? A caller's number may be anything. */
static bool is_known(dt_dtype dtype)
{
    return (unsigned)dtype < DT_NDTYPES;
}

size_t dt_dtype_size(dt_dtype dtype)
{
    return is_known(dtype) ? dtypes[dtype].bytes : 0;
}

const char *dt_dtype_name(dt_dtype dtype)
{
    static const char *const lower[] = {[DT_F32] = "f32", [DT_BF16] = "bf16", [DT_F16] = "f16",
                                        [DT_F64] = "f64", [DT_I32] = "i32",   [DT_I64] = "i64",
                                        [DT_U8] = "u8"};
    return is_known(dtype) ? lower[dtype] : "unknown";
}

bool dt_dtype_is_float(dt_dtype dtype)
{
    return is_known(dtype) && dtypes[dtype].is_float;
}

dt_status dt_dtype_parse(const char *text, dt_dtype *dtype_out)
{
    for (int i = 0; i < DT_NDTYPES; i++) {
        if (strcasecmp(text, dtypes[i].upper) == 0) {
            *dtype_out = (dt_dtype)i;
            return DT_OK;
        }
    }
    return DT_ERROR(DT_ERR_ARG, "unknown dtype '%s'; legal: f32, bf16, f16, f64, i32, i64, u8",
                    text);
}

dt_shape dt_shape_make(int ndim, const int64_t *dim)
{
    dt_shape s = {.ndim = ndim};
    for (int d = 0; d < ndim; d++)
        s.dim[d] = dim[d];
    return s;
}

int64_t dt_shape_count(dt_shape s)
{
    return dt_shape_outer(s, s.ndim);
}

bool dt_shape_equal(dt_shape a, dt_shape b)
{
    return a.ndim == b.ndim && memcmp(a.dim, b.dim, (size_t)a.ndim * sizeof a.dim[0]) == 0;
}

int64_t dt_shape_outer(dt_shape s, int d)
{
    int64_t n = 1;
    for (int i = 0; i < d; i++)
        n *= s.dim[i];
    return n;
}

int64_t dt_shape_inner(dt_shape s, int d)
{
    int64_t n = 1;
    for (int i = d + 1; i < s.ndim; i++)
        n *= s.dim[i];
    return n;
}

const char *dt_shape_print(dt_shape s, char *buf, size_t size_bytes)
{
    size_t used = (size_t)snprintf(buf, size_bytes, "[");
    for (int d = 0; d < s.ndim && used < size_bytes; d++)
        used += (size_t)snprintf(buf + used, size_bytes - used, d ? ", %lld" : "%lld",
                                 (long long)s.dim[d]);
    if (used < size_bytes)
        (void)snprintf(buf + used, size_bytes - used, "]");
    return buf;
}

dt_status dt_grow(void **data, int64_t *capacity, int64_t need, size_t elem_bytes)
{
    if (need <= *capacity)
        return DT_OK;
    const int64_t larger = need > 2 * *capacity ? (need < 8 ? 8 : need) : 2 * *capacity;
    void *grown = realloc(*data, (size_t)larger * elem_bytes);
    DT_REQUIRE(grown, DT_ERR_NOMEM, "%lld elements of %zu bytes", (long long)larger, elem_bytes);
    *data = grown;
    *capacity = larger;
    return DT_OK;
}
