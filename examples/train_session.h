/* examples/train_session.h - a training run of one rank: what it holds and one step of it. The
 * loop around it, with logs, is examples/train.c; the tests call the same two functions. */
#pragma once

#include "examples/train_config.h"
#include "optim/dt_scaler.h"
#include "pp/dt_pipeline.h"

/* A parameter of the model, whichever rank holds it; here NULL: another pipeline stage's. */
typedef struct train_param {
    char *name;
    int64_t count; /* elements */
    dt_param *here;
} train_param;

typedef struct train_session {
    const train_config *config;
    dt_world *world;
    /* whole: of all ranks; mesh: without the pipeline's axis, where this rank's tensors live */
    dt_mesh *whole, *mesh;
    dt_pipeline *pipe; /* NULL: one stage */
    char boundary[80]; /* with pipe: how tensors between stages are placed */
    dt_module *model;  /* what this rank has of it */
    train_param *param;
    int nparams;
    int64_t elements, matmul_params; /* of the whole model */
    dt_model_facts facts;
    dt_optim *optim;
    dt_store *store; /* where they rest that are offloaded; NULL: all is in memory */
    dt_dataset *data, *eval_data; /* eval_data NULL: the end of data */
    dt_tape *tape;
    dt_tally tally; /* of the last step, on this rank */
    dt_scaler scaler;       /* of the loss, with parameters in f16; else the scale stays 1 */
    int64_t step;           /* finished ones */
    int64_t position;       /* token where the next batch starts */
    int32_t *ids, *targets; /* of this rank's part of a microbatch */
    /* Called with the reduced gradients (times scaler.scale), before clipping and update; NULL:
     * not. */
    dt_status (*inspect)(struct train_session *s, void *arg);
    void *inspect_arg;
} train_session;

typedef struct train_result {
    double loss, grad_norm, lr; /* loss before the update, norm before clipping */
    int64_t tokens, valid;
    bool skipped; /* no update: gradients overflowed in f16, the loss scale is now half */
    double *param_grad_norm; /* one for each of train_session.param; NULL if not wanted */
} train_result;

/* Collective: all ranks of the world. Errors: anything wrong with the configuration, model,
 * weights or data. */
dt_status train_session_create(const train_config *config, dt_world *world,
                               train_session *session_out);
void train_session_destroy(train_session *s);

/* train_session_step - one optimizer step over the global batch, in microbatches.
 * With parameters in f16 a step whose gradients overflow updates nothing and halves the loss scale.
 * Collective. Errors: DT_ERR_STATE when loss or gradients are not finite: nothing was updated. */
dt_status train_session_step(train_session *s, train_result *result);

/* log.plan: print the collectives of every module, for the first rank of each pipeline stage.
 * nranks: of the world. */
dt_status train_plan_print(const train_config *config, int nranks);

/* Data and weights in between: logits [n, seq_len, vocab] of n samples of the data at
 * `position`, on every rank. */
dt_status train_session_logits(train_session *s, int64_t position, int64_t n, float *logits);
/* The loss of the batch at `position` without an update and without dropout. */
dt_status train_session_loss(train_session *s, int64_t position, double *loss_out);
/* The same over eval.steps batches: the mean of all their targets that count. */
dt_status train_session_eval(train_session *s, double *loss_out);
