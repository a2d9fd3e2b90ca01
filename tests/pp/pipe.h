/* tests/pp/pipe.h - a small Llama as a pipeline of any kind, and its passes; what the tests of the
 * split and of the executor share. */
#pragma once

#include "models/dt_models.h"
#include "nn/dt_recompute.h"
#include "pp/dt_pipeline.h"
#include "tests/harness.h"

enum { PIPE_SAMPLES = 8, PIPE_SEQ = 6, PIPE_HIDDEN = 8, PIPE_VOCAB = 33 };

/* All but dualpipe, which no executor runs. */
enum { PIPE_NSCHEDULES = 11 };
extern const char *const pipe_schedules[PIPE_NSCHEDULES];

/* What is run. All ranks of the world are pp x dp_shard x tp. */
typedef struct pipe_plan {
    const char *schedule;
    int ranks, m, layers; /* ranks: of pp */
    bool tied;
    const char *split; /* dt_pipeline_options.split */
    int64_t hidden;    /* that the boundary is said to have; 0: PIPE_HIDDEN */
    int64_t vocab;     /* 0: PIPE_VOCAB */
    int v;             /* stages of a rank; 0: by schedule */
    int dp, tp;        /* 0: 1 */
    bool sp, whole;    /* whole: the model is not cut; ranks 1 */
    int zero;          /* 2: gathered by the schedule; 3: by the layers; 0: not sharded */
    bool once;         /* gradients are reduced once a step, not after every backward */
    dt_recompute_policy recompute;
    bool half, wide; /* zero; parameters in use are bf16, between stages too unless `wide` */
    int64_t at_once; /* samples of a microbatch; 0: PIPE_SAMPLES / m */
} pipe_plan;

typedef struct pipe {
    dt_mesh *mesh;
    dt_module *model; /* until it is cut; whole: all of it */
    dt_pipeline *pipe;
    const pipe_plan *plan;
    int64_t torn; /* the targets that begin with this sample cannot be read; -1: none */
    dt_pipeline_loss *loss;
} pipe;

dt_status pipe_open(const pipe_plan *plan, dt_world *world, pipe *p);
void pipe_close(pipe *p);
/* Ids and targets of samples [lo, hi). */
dt_status pipe_tokens(pipe *p, int64_t lo, int64_t hi, dt_tensor **out);
/* The pass that pipe_run makes. */
dt_pipeline_pass pipe_pass(pipe *p);
/* One pass with gradients. Loss: this rank's term. */
dt_status pipe_run(pipe *p, double *loss);
/* The whole gradients of this rank's parameters, and the loss, are those of an uncut model on one
 * rank, within 1e-5 of each tensor's largest element. `loss` from pipe_run. */
dt_status pipe_check(pipe *p, double loss);
/* Whole gradients of a rank's stages are those of the uncut model, within 1e-5 of each tensor's
 * largest element. */
dt_status pipe_same_gradients(dt_module *stages, dt_module *whole);
