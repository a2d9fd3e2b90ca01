/* array/matmul_plain.c - products in plain C, for f64 and for builds without oneDNN. Read next:
 * kernel_matmul.inc. */
#include "array/dt_kernels.h"
#include "array/matmul_internal.h"

#include <string.h>

enum { TILE_ROWS = 4, BLOCK_ROWS = 128, BLOCK_COLS = 128, DEPTH = 128 };

static int64_t min64(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

#define REAL    float
#define NAME(f) f##_f32
#include "array/kernel_matmul.inc"
#undef REAL
#undef NAME
#define REAL    double
#define NAME(f) f##_f64
#include "array/kernel_matmul.inc"

/* An item is BLOCK_ROWS rows of one product. */
static void run(const dt_matmul_args *args, dt_range_body *items)
{
    dt_matmul_args p = *args;
    const int64_t blocks = (p.m + BLOCK_ROWS - 1) / BLOCK_ROWS;
    dt_parallel_range(p.batch * blocks, min64(p.m, BLOCK_ROWS) * p.n * p.k, items, &p);
}

void dti_matmul_plain_f32(const dt_matmul_args *args)
{
    run(args, items_f32);
}

void dti_matmul_plain_f64(const dt_matmul_args *args)
{
    run(args, items_f64);
}
