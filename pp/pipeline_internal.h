/* pp/pipeline_internal.h - a rank's part of a pipeline. Read next: pp/split.c, pp/run.c. */
#pragma once

#include "pp/dt_pipeline.h"
#include "pp/pp_internal.h"

enum { DTI_PP_CHANNEL = 3, DTI_PP_MAX_TIES = 4 };

/* One microbatch in one stage. */
typedef struct dti_cell {
    dt_tape *tape;
    dt_tensor *x; /* from the stage before: a leaf that asks for a gradient */
    dt_tensor *ids, *targets;
    dt_tensor *y;      /* the tape's */
    dt_local dy, dx;   /* gradients of y and of x */
    dt_work *arriving; /* of x or dy */
} dti_cell;

typedef struct dti_stage {
    int index;
    dt_module *root;  /* owned by the bundle */
    dti_cell *cell;   /* one a microbatch */
    dt_work *sent[2]; /* the last message to the next stage, to the one before */
} dti_stage;

/* A parameter of two stages; NULL where this rank does not have it. */
typedef struct dti_tie {
    char *name;
    int stage[2];
    dt_param *param[2];
} dti_tie;

struct dt_pipeline {
    dt_mesh *mesh; /* of a stage */
    dt_comm *line; /* this rank's line along the axis */
    dt_pp_schedule *lowered;
    dt_pipeline_options options;
    char *boundary;    /* options.boundary */
    int rank, nstages; /* in the line; here */
    int nlayers;       /* of the whole model */
    int *owner;        /* rank of each stage */
    dti_stage *stage;
    dt_module *bundle;
    dti_tie tie[DTI_PP_MAX_TIES];
    int nties;
    dt_tape **spare; /* tapes that no microbatch uses */
    int64_t nspare, spare_capacity;
    int live, peak_live;
};

/* Add the gradients of tied parameters, on both stages. Collective: between the two ranks. */
dt_status dti_pp_reduce_ties(dt_pipeline *p);
/* Forget all microbatches. After a failure nobody may wait: calls in flight go with the world. */
void dti_pp_abandon(dt_pipeline *p);
