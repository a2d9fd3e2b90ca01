/* tests/law/law.h - trains a golden case on any number of ranks and keeps everything that tests
 * compare. */
#pragma once

#include "tests/harness.h"

#include "examples/train_session.h"

enum { LAW_MAX_PARAMS = 128, LAW_MAX_STEPS = 64, LAW_MAX_RANKS = 16 };

/* What a run gave. Arrays are whole tensors in file order of dt_module_params. */
typedef struct law_run {
    int nparams, steps;
    char *name[LAW_MAX_PARAMS];
    int64_t count[LAW_MAX_PARAMS];
    double loss[LAW_MAX_STEPS], norm[LAW_MAX_STEPS], lr[LAW_MAX_STEPS];
    int64_t valid[LAW_MAX_STEPS];
    double grad_norm[LAW_MAX_PARAMS]; /* step 0 */
    double *grad[LAW_MAX_PARAMS];     /* step 0, reduced, before clipping */
    double *weight[LAW_MAX_PARAMS];   /* after the last step */
    double final_loss;                /* of step 0's batch, after the last step */
    float *logits;                    /* sample 0 of step 0, initial weights: [seq_len, vocab] */
    int64_t vocab;
    int live[LAW_MAX_RANKS]; /* with pp: the most tapes alive at once in the last step, by rank */
    int64_t all_gathers; /* of the last step */
    int64_t all_reduces; /* of the last step: gradients' only */
} law_run;

/* Which run. */
typedef struct law_case {
    const char *golden;            /* folder below tests/golden */
    int ranks, micro_batch, steps; /* steps 0: all that expected.json has */
    bool mpi;                      /* ranks are those of mpirun, not threads */
    const char *fault;             /* DT_FAULT of the world; NULL: none */
    double eps;                    /* of AdamW; 0: the case's */
    int layers;                    /* 0: the case's; else so many, with weights of their own */
    int hidden;                    /* llama; 0: the case's; else hidden and mlp features */
    int batch;                     /* samples of a step; 0: the case's */
    dt_recompute_policy recompute;
    double dropout;                /* wherever the model has one; 0: the case's */
    /* of the ranks, these are tensor parallel; 0: 1. The others replicate */
    int tp;
    bool sp, gather_logits;        /* with tp: sequence parallelism; no loss parallelism */
    bool tp_overlap;               /* with sp */
    int pp;                        /* of the ranks, these are pipeline stages' ranks; 0: 1 */
    const char *schedule;          /* with pp; NULL: 1f1b */
    int stages_per_rank;           /* with pp; 0: by schedule */
    const char *split;             /* with pp; NULL: equal */
    int dp_shard;                  /* of the ranks, these hold shards; 0: 1 */
    bool keep_gathered;            /* with dp_shard: not resharded after forward (ZeRO-2) */
    int reshard_size;              /* with dp_shard: resharded to groups of so many; 0: not */
    dt_dtype param_dtype, reduce_dtype;
    bool f64;                      /* everything */
    const char *offload_dir;       /* where optimizer state rests; NULL: in memory */
    bool offload_host;             /* it rests in memory of the host */
    bool offload_params;           /* with one of these: shards too */
} law_case;

/* Run on every rank; rank 0's results. Errors as dt_status, with trace. */
dt_status law_train(const law_case *c, law_run *run_out);
void law_free(law_run *run);
/* The run on one rank of the same model, data, steps, eps and type, made once for all that compare
 * with it; kept. */
const law_run *law_one_rank(const law_case *c);

/* Where the golden folders are: environment DT_GOLDEN, or tests/golden. */
const char *law_path(const char *golden, const char *file, char buf[1024]);

/* Largest |a - b| / max |b| over the tensors of `which` ("grad" or "weight"), and where. Leaves out
 * parameters whose true gradient is zero in part (GPT-2's key bias), if skip_key_bias. */
double law_compare(const law_run *a, const law_run *b, bool weights, char where[128]);

/* The law, in f32: losses 2e-5 absolute; every gathered gradient and updated weight max|a-b| <=
 * 1e-5 max|b| of its tensor. */
#define LAW_LOSS_LIMIT    2e-5
#define LAW_ELEMENT_LIMIT 1e-5
/* AdamW divides by |g| + eps: with the usual 1e-8 the first update of a weight is lr times the sign
 * of its gradient, and a gradient that is zero but for rounding (1e-10 of 1e-2) has no sign that
 * any order of additions could agree on. With this eps the update is a smooth function of the
 * gradient, so every element can be held to the limit. */
#define LAW_SMOOTH_EPS 1e-4
/* ck_assert that run a obeys the law; `one` is the same on one rank. */
void law_check_same(const law_run *a, const law_run *one, int steps);
/* The same with other limits. */
void law_check_within(const law_run *a, const law_run *one, int steps, double element, double loss);
