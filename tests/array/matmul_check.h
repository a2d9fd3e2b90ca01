/* tests/array/matmul_check.h - a product against a triple loop in double.
 *
 * The bound on an element is that of any order of summation (Higham, "Accuracy and stability of
 * numerical algorithms", 3.1): (k + 4) u sum|a||b|, plus one rounding to C's dtype. */
#pragma once

#include "array/dt_matmul.h"

typedef void matmul_fn(const dt_matmul_args *args);

uint32_t matmul_random(uint32_t *state);

/* n random elements in [-1, 1); one byte-exact malloc, so that the sanitizer sees reads past the
 * end. The caller frees it. */
void *matmul_block(dt_dtype dtype, int64_t n, uint32_t *state);

/* All elements of C, and that what lies between its rows is as before. `c_count`: elements of C
 * with the gaps, 0: there are none. */
void matmul_check_result(const dt_matmul_args *p, const void *before, int64_t c_count);

/* Fill in operands with gaps (or none), multiply, compare. `p` says dtypes, sizes, transposes,
 * alpha, beta, and by bias != NULL whether there shall be one. */
void matmul_check(matmul_fn *product, dt_matmul_args p, int64_t gap, bool shared_b,
                  uint32_t *state);
