/* array/kernels_math_internal.h - the CPU kernels behind dt_math_kernels, one file a family;
 * array/kernels_math_cpu.c puts them into the table. Contracts: array/dt_kernels_math.h. */
#pragma once

#include "array/dt_kernels_math.h"

void dti_elementwise_add(dt_dtype dtype, int64_t outer, int64_t inner, const void *x, const void *y,
                         void *out);
void dti_elementwise_mul(dt_dtype dtype, int64_t outer, int64_t inner, const void *x, const void *y,
                         void *out);
void dti_elementwise_scale(dt_dtype dtype, int64_t n, double factor, const void *x, void *out);
void dti_sum(dt_dtype dtype, int64_t outer, int64_t mid, int64_t inner, const void *x, void *out);
void dti_sum_mul(dt_dtype dtype, int64_t mid, int64_t inner, const void *x, const void *y,
                 void *out);
void dti_strided(const dt_strided_args *a);
void dti_product(const dt_product_args *a);
