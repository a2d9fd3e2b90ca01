/* array/kernels_norm.c - rmsnorm and layernorm: one set of kernels, since rmsnorm is layernorm with
 * mean 0 and no bias.
 *
 * All sums are in f64, in a fixed order: along a row by lanes; along a column by rows within a
 * block of rows, then by blocks, whose bounds depend on the number of rows alone. Backward is one
 * pass: what it reads of a row again comes from the nearest cache. */
#include "array/kernels_nn_internal.h"

#include "array/dt_half.h"

#include <math.h>
#include <string.h>

enum { COLUMNS = 64 /* of dw at once */ };

typedef struct norm_job {
    const dt_norm_args *a;
    int64_t block, nblocks; /* rows of a block */
    void *dx, *dw, *db;     /* forward: dx is y */
} norm_job;

#define KERNELS "array/kernel_norm.inc"
#include "array/each_float.inc"

static const struct {
    dt_range_body *rows, *back_blocks, *back_columns;
} of[DT_NDTYPES] = {[DT_F32] = {norm_rows_f32, back_blocks_f32, back_columns_f32},
                    [DT_BF16] = {norm_rows_bf16, back_blocks_bf16, back_columns_bf16},
                    [DT_F16] = {norm_rows_f16, back_blocks_f16, back_columns_f16},
                    [DT_F64] = {norm_rows_f64, back_blocks_f64, back_columns_f64}};

void dti_norm(const dt_norm_args *a, void *y)
{
    norm_job job = {.a = a, .dx = y};
    dt_parallel_range(a->rows, a->n, of[a->dtype].rows, &job);
}

void dti_norm_backward(const dt_norm_args *a, void *dx, void *dw, void *db)
{
    const int64_t block = (a->rows + DT_NORM_BLOCKS - 1) / DT_NORM_BLOCKS;
    norm_job job = {.a = a, .block = block < 8 ? 8 : block, .dx = dx, .dw = dw, .db = db};
    job.nblocks = (a->rows + job.block - 1) / job.block;
    dt_parallel_range(job.nblocks, 4 * job.block * a->n, of[a->dtype].back_blocks, &job);
    dt_parallel_range(a->n, 2 * job.nblocks, of[a->dtype].back_columns, &job);
}
