/* pp/pipeline_internal.h - a rank's part of a pipeline, and one pass through it. Read next:
 * pp/split.c, pp/run.c. */
#pragma once

#include "pp/dt_pipeline.h"
#include "pp/pp_internal.h"

enum { DTI_PP_CHANNEL = 3, DTI_PP_MAX_TIES = 4, DTI_PP_REHEARSALS = 8 };
enum { DTI_PP_TENSORS = 1 + DT_PP_MAX_SKIPS }; /* between stages, at most */

/* One microbatch in one stage. First of x, y and their gradients is the one that every pipeline
 * has; skips follow. */
typedef struct dti_cell {
    dt_tape *tape;
    dt_tensor *x[DTI_PP_TENSORS]; /* from the stage before: leaves that ask for gradients */
    dt_tensor *ids, *targets, *aside[2];
    dt_tensor *y[DTI_PP_TENSORS];                    /* the tape's, or x */
    dt_local dy[DTI_PP_TENSORS], dx[DTI_PP_TENSORS]; /* gradients */
    dt_work *arriving; /* of x or dy, after a word that says whether they are some */
    dt_array word;
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

/* What decides the shapes of a pass and which ops it has. */
typedef struct dti_rehearsal {
    int64_t at_once, tail, seq_len; /* tail: samples of the last microbatch */
    bool no_grad, no_targets;
    dt_pipeline_loss *loss;
    bool aside;
} dti_rehearsal;

struct dt_pipeline {
    dt_mesh *mesh; /* of a stage */
    dt_comm *line; /* this rank's line along the axis */
    dt_comm *all;  /* of the whole mesh */
    dt_pp_schedule *lowered;
    dt_pipeline_options options;
    char *boundary;    /* options.boundary */
    int ntensors;      /* between stages */
    int rank, nstages; /* in the line; here */
    int nlayers;       /* of the whole model */
    int *layers;       /* of each stage */
    int *owner;        /* rank of each stage */
    dti_stage *stage;
    dt_module *bundle;
    dti_tie tie[DTI_PP_MAX_TIES];
    int nties;
    dt_tape **spare; /* tapes that no microbatch uses */
    int64_t nspare, spare_capacity;
    int live, peak_live;
    int received, peak_received, slots; /* tensors that came or are coming and wait; at most */
    dti_rehearsal rehearsed[DTI_PP_REHEARSALS]; /* the last ones */
    int nrehearsed;
};

/* One pass. */
typedef struct dti_run {
    dt_pipeline *p;
    const dt_pipeline_pass *pass;
    int nmicrobatches;
    double loss;
    /* Something failed: from then on nothing is computed, and what is due is sent as a failure. */
    bool failed;
    dt_status own; /* where it failed here: the error, and its trace */
    char trace[1500];
} dti_run;

/* ---- cut.c, tie.c ---- */

/* Fill p->layers. */
dt_status dti_pp_choose_layers(dt_pipeline *p, dt_module *model);
/* Is there a gradient to add wherever this rank has a tied parameter? */
dt_status dti_pp_check_ties(dt_pipeline *p);
/* Add the gradients of tied parameters, on both stages. Collective: between the two ranks. */
dt_status dti_pp_reduce_ties(dt_pipeline *p);

/* ---- stage.c: one microbatch in one stage ---- */

dti_stage *dti_pp_stage(dt_pipeline *p, int index); /* NULL: on another rank */
void dti_pp_release(dt_local *list);                /* of DTI_PP_TENSORS */
/* How tensor i between stages is placed: [samples of microbatch k, seq_len, features]; or, dual,
 * its gradient. */
dt_status dti_pp_boundary(const dti_run *r, int k, int i, bool dual, const dt_layout **out);
/* That tensor with no values yet. */
dt_status dti_pp_blank(const dti_run *r, int k, int i, bool dual, dt_tag tag, dt_local *out);
/* c->x, with the values that `from` gives or (NULL) with none yet; c->dy without values. */
dt_status dti_pp_input(const dti_run *r, int k, const dti_cell *from, dti_cell *c);
dt_status dti_pp_output_gradient(const dti_run *r, int k, dti_cell *c);
/* ids and targets, where the stage takes them and they are not there yet. */
dt_status dti_pp_read(const dti_run *r, const dti_stage *s, int k, dti_cell *c);
/* c->tape, c->x or c->ids, and c->targets are there: make c->y, and see that it fits. */
dt_status dti_pp_compute(const dti_run *r, const dti_stage *s, int k, dti_cell *c);
/* c->dy is there, or is the loss's: walk back; c->dx is then the gradient of c->x. */
dt_status dti_pp_compute_back(const dti_run *r, const dti_stage *s, int k, dti_cell *c, bool whole);
dt_status dti_pp_forward(dti_run *r, dti_stage *s, int k);
dt_status dti_pp_backward(dti_run *r, dti_stage *s, int k, bool whole);
dt_status dti_pp_backward_weight(dti_run *r, dti_stage *s, int k);
/* The microbatch needs its tape no more; what is being sent holds its own bytes. */
void dti_pp_finish(dt_pipeline *p, dti_cell *c);

/* ---- message.c: tensors between ranks ---- */

dt_status dti_pp_send(dti_run *r, dti_stage *s, int k, bool back);
dt_status dti_pp_receive(dti_run *r, const dti_stage *s, int k, bool back);
/* Wait for what cell c receives, if anything; r->failed if it is a failure. */
dt_status dti_pp_arrived(dti_run *r, dti_cell *c);
/* Free what sends that are done hold; all: wait for the others. */
dt_status dti_pp_end_sends(dt_pipeline *p, bool all);

/* ---- rehearse.c ---- */

/* Before the first pass of its kind: is it the same on all ranks, and does every stage take what
 * the one before gives? Collective: the mesh. Errors: the first stage's that does not, on all
 * ranks; `valid` if that is one, on all ranks before the first pass of any kind. */
dt_status dti_pp_rehearse(dti_run *r, dt_status valid);

/* ---- run.c ---- */

/* Forget all microbatches. After a failure nobody may wait: calls in flight go with the world. */
void dti_pp_abandon(dt_pipeline *p);
