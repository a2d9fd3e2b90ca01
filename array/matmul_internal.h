/* array/matmul_internal.h - between dt_matmul_run and the backends. Arguments are checked and
 * complete: no size is 0, leading dimensions are filled in. Read first: array/dt_matmul.h. */
#pragma once

#include "array/dt_matmul.h"

/* FNV-1a, for tables of compiled products: of bytes without padding. */
static inline uint64_t dti_matmul_hash(const void *key, size_t bytes)
{
    const unsigned char *byte = key;
    uint64_t h = 14695981039346656037ull;
    for (size_t i = 0; i < bytes; i++)
        h = (h ^ byte[i]) * 1099511628211ull;
    return h ^ h >> 32;
}

/* matmul_plain.c, in every build. */
void dti_matmul_plain_f32(const dt_matmul_args *args);
void dti_matmul_plain_f64(const dt_matmul_args *args);

/* matmul_onednn.c or matmul_none.c. The second multiplies bf16 or f16 as they are, alpha 1 and beta
 * 0 or 1; *done_out is false, and nothing happened, if this machine has no such product. */
DT_NODISCARD dt_status dti_matmul_f32(const dt_matmul_args *args);
DT_NODISCARD dt_status dti_matmul_16(const dt_matmul_args *args, bool *done_out);
