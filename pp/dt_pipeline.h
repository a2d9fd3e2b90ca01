/* pp/dt_pipeline.h - a model cut into pipeline stages, and what runs a schedule on it.
 *
 *     dt_pp_schedule_create("1f1b", p, m, 0, &schedule);
 *     dt_pipeline_split(&model, mesh, "pp", schedule, &options, &pipe);    on meta
 *     ... parallelize, recompute, fully_shard each stage; materialize dt_pipeline_module(pipe)
 *     dt_pipeline_run(pipe, &pass, &loss);                                 forward and backward
 *
 * A stage is a tree of modules of its own, with the model's names, that holds a run of layers; the
 * first one has the embedding, the last one norm, head and loss. Its parameters live on the mesh
 * without the pipeline's axis. Read first: pp/dt_schedule.h. Read next: pp/split.c, pp/run.c. */
#pragma once

#include "nn/dt_module.h"
#include "pp/dt_schedule.h"

typedef struct dt_pipeline dt_pipeline;

enum { DT_PP_MAX_SKIPS = 4, DT_PP_FIRST_SKIP = 4 };

typedef struct dt_pipeline_options {
    dt_chain chain;       /* what the model is made of (dt_model_chain); static text */
    /* Which layers the stages have. "equal", or NULL: equally many, the first ones with one more.
     * "cost": work of a stage as equal as can be, in parameters of its layers, norm and head (a
     * token's lookup in an embedding is no work), each stage with a layer; of equal cuts the one
     * whose first stages have more. "3,2,2": so many each. Names:
     * "model.embed_tokens,model.layers.0-2; model.layers.3,model.norm,lm_head", stages between
     * semicolons, everything once and in order; first and last may then have no layer. */
    const char *split;
    int64_t hidden;       /* tensors between stages are [samples, seq_len, hidden] */
    dt_dtype dtype; /* and of this type: that of the stages' outputs (fully_shard's output_dtype) */
    const char *boundary; /* and placed so: "S(0)@dp_replicate>dp_shard"; copied */
    /* Skip connections: tensors [samples, seq_len, skip[i]] that go along from stage to stage,
     * placed alike, until 0. Stages take them as values DT_PP_FIRST_SKIP + i of their call (NULL at
     * the first one) and, but for the last one, give them at the same places: what was made there,
     * or what came. One that is yet to be made is of what values you like; its gradient is 0. */
    int64_t skip[DT_PP_MAX_SKIPS];
    /* 0: gathering and freeing is fully_shard's own; else, at least 2: the schedule's, which keeps
     * the next so many stages whole (dt_pp_lower) */
    int max_unsharded;
} dt_pipeline_options;

/* dt_pipeline_split - cut a model on meta; which rank has which stages is what the schedule says.
 *   in out  model   becomes NULL: the stages of this rank are the pipeline's, the rest is gone
 *   in      axis    of the mesh: one rank a row of the schedule
 *           schedule   not lowered; copied
 * A tied parameter of two stages is one on each; dt_pipeline_run adds their gradients, so that they
 * stay equal. The later one is marked `copy`, for norms and files.
 * Collective: the mesh (communicators of the axis and of all).
 * Errors: DT_ERR_ARG for more stages than layers, a schedule of another number of ranks or with a
 * stage on two ranks, a split that is not one of the whole model; DT_ERR_UNSUPPORTED for a
 * parameter tied over three stages. The model is then gone or unchanged; *model says which. */
DT_NODISCARD dt_status dt_pipeline_split(dt_module **model, dt_mesh *mesh, const char *axis,
                                         const dt_pp_schedule *schedule,
                                         const dt_pipeline_options *options,
                                         dt_pipeline **pipeline_out);
void dt_pipeline_destroy(dt_pipeline **pipeline); /* with its stages; accepts NULL inside */

/* The mesh of a stage; this rank's stages, in order of their numbers; and all of them as one
 * module, for materialize, load, gradients and the optimizer. */
dt_mesh *dt_pipeline_mesh(const dt_pipeline *p);
int dt_pipeline_nstages(const dt_pipeline *p);
dt_module *dt_pipeline_stage(dt_pipeline *p, int i);
int dt_pipeline_stage_number(const dt_pipeline *p, int i);
bool dt_pipeline_stage_is_last(const dt_pipeline *p, int i); /* of the model */
dt_module *dt_pipeline_module(dt_pipeline *p);

/* The loss of a microbatch, one element placed R or P, made on tape t from what the last stage
 * gives (logits) and the targets that `read` gave. `arg` is the pass's. */
typedef dt_tensor *dt_pipeline_loss(void *arg, dt_tape *t, dt_tensor *y, dt_tensor *targets);

/* One pass over a batch of samples [0, samples), `at_once` a microbatch; the last may be short. */
typedef struct dt_pipeline_pass {
    int64_t samples, at_once, seq_len;
    dt_tape_options tape; /* first_sample: of the batch */
    bool no_targets;      /* the last stage gives logits */
    dt_pipeline_loss *loss; /* NULL: the model's own, which takes the targets */
    double loss_scale;      /* 0: 1 */
    /* Samples [lo, hi) as tensors for the pass to destroy. Ranks with the first stage are asked for
     * ids, with the last for targets; the other is NULL. */
    dt_status (*read)(void *arg, int64_t lo, int64_t hi, dt_tensor **ids, dt_tensor **targets);
    /* Tensors that every stage takes besides, as values 2 and 3 of its call; NULL: none. */
    dt_status (*aside)(void *arg, int64_t lo, int64_t hi, dt_tensor *out[2]);
    /* What the last stage gave, on its ranks, microbatch after microbatch: logits, or this rank's
     * term of the loss, which is then not added up. NULL: it is a loss. */
    dt_status (*output)(void *arg, int64_t lo, int64_t hi, dt_tensor *y);
    void *arg;
} dt_pipeline_pass;

/* dt_pipeline_run - forward and backward of all microbatches, as the schedule says; gradients are
 * then at home (dt_module_reduce_grads, a stage when its last backward is done). With tape.no_grad:
 * forward only, microbatch after microbatch.
 *   out  loss   this rank's terms: of the last stage's ranks, 0 elsewhere
 * Before the first pass of its kind (sizes of microbatches, seq_len, with or without gradients and
 * targets, loss) all stages are rehearsed without numbers: what cannot work, and a pass that is
 * another one on some rank, is an error on all ranks of the mesh before anything moves. A stage
 * that fails later sends failures in place of what is due from it: all ranks of the line end with
 * its error, and may go on (dt_fsdp_reset where it is used, dt_module_clear_grads, the next pass).
 * A rank that fails where the others of its stage do not (a file, memory) must end its part in the
 * world, which fails their waits.
 * Collective: the mesh.   Blocks: yes.
 * Cost: a send and a receive for each microbatch and boundary between ranks, each way; one of each
 * for a tied parameter; an agreement along the axis, at a new kind of pass one of the mesh.
 * Memory: on each rank the tapes, and at most the simulator's peak_received tensors that came and
 * are not used yet; what is sent goes when it has been.
 * Errors: DT_ERR_ARG where the schedule has another number of microbatches; DT_ERR_PLACEMENT for a
 * stage whose output is not as options.boundary says; the tapes', with stage and action. */
DT_NODISCARD dt_status dt_pipeline_run(dt_pipeline *p, const dt_pipeline_pass *pass,
                                       double *loss_out);

/* Most tapes that were alive at once in the last run with gradients, and most tensors that waited
 * after they were received: the simulator's peak_live and peak_received. */
int dt_pipeline_peak_live(const dt_pipeline *p);
int dt_pipeline_peak_received(const dt_pipeline *p);
/* What this rank does in a run. With a trace each action is a span "pp", and after it a moment
 * "pp live": its name how many tapes live, its bytes those of activations. */
const dt_pp_row *dt_pipeline_row(const dt_pipeline *p);
/* The schedule that is run, lowered; borrowed. */
const dt_pp_schedule *dt_pipeline_schedule(const dt_pipeline *p);
/* dt_pipeline_measure_sync - dt_pp_measure of a run with gradients, from the traces of the ranks of
 * a line, threads or processes.
 *   in   trace, from   this rank's, and its first event that is of this run
 *   out  timeline_out  of dt_pipeline_schedule(p), on every rank of the line
 * Times are those of a machine's clock; on several machines rows are shifted by what their clocks
 * differ. Collective: the axis.   Blocks: yes. */
DT_NODISCARD dt_status dt_pipeline_measure_sync(const dt_pipeline *p, const dt_trace *trace,
                                                int64_t from, dt_pp_timeline **timeline_out);
