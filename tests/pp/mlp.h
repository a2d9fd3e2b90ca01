/* tests/pp/mlp.h - a pipeline of MLPs: stages that are no language model, a loss of the user's,
 * tensors besides that every stage takes, skip connections. 32 samples of 64 numbers; with
 * DT_FULL=1 256 of 512. */
#pragma once

#include "tests/pp/pipe.h"

/* Two skips: A as wide as x, B half as wide. */
enum { MLP_SKIP_A = DT_PP_FIRST_SKIP, MLP_SKIP_B, MLP_VALUES };

typedef struct mlp_plan {
    const char *schedule;
    int ranks, m; /* ranks: of the pipeline; others of the world share samples out */
    bool aside, skips, recompute, whole; /* whole: not cut, on one rank */
} mlp_plan;

typedef struct mlp {
    const mlp_plan *plan;
    int64_t samples, d;
    int nstages; /* and one layer more */
    dt_mesh *mesh;
    dt_module *whole; /* one rank's */
    dt_pipeline *pipe;
    /* What `output` saw: calls, the sample that comes next, each loss; and in an evaluation the
     * last stage's numbers. */
    int seen;
    int64_t next;
    double losses[64];
    float *y;
} mlp;

dt_status mlp_open(const mlp_plan *plan, dt_world *world, mlp *n);
void mlp_close(mlp *n);
dt_pipeline_pass mlp_pass(mlp *n);
/* Tensor number `which` of the batch, samples [lo, hi): inputs, targets, scale, shift. */
dt_status mlp_rows(const mlp *n, int which, int64_t lo, int64_t hi, dt_tensor **out);
/* The sum of (y - target)^2. */
dt_tensor *mlp_squared_error(void *arg, dt_tape *t, dt_tensor *y, dt_tensor *targets);
