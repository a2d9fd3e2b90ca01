/* array/tiles_internal.h - small products of matrices that lie in the caches, for one thread: the
 * inner loops of attention. Read next: array/tiles.c. */
#pragma once

#include "base/dt_types.h"

/* c [m, n] += a [m, k] b [k, n]. Element (i, p) of a is a[i * a_row + p * a_col], so a may be a
 * transpose; rows of b and c have no gaps within. Every element of c adds its terms one by one in
 * the order of p, multiplied and added with one rounding where the machine can, as dti_dot_* does,
 * whatever m and n are. */
typedef struct dti_tiles {
    const void *a, *b;
    void *c;
    int64_t a_row, a_col, b_row, c_row;
} dti_tiles;

void dti_tiles_f32(const dti_tiles *x, int64_t m, int64_t n, int64_t k);
void dti_tiles_f64(const dti_tiles *x, int64_t m, int64_t n, int64_t k);

/* The sum of x[i] y[i], with the bits of an element of c that began as 0. */
float dti_dot_f32(int64_t n, const float *x, const float *y);
double dti_dot_f64(int64_t n, const double *x, const double *y);
