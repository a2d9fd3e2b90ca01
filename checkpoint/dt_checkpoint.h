/* checkpoint/dt_checkpoint.h - training state in a folder of steps, written in parallel, loaded on
 * any mesh. Every step is a Hugging Face model:
 *
 *     DIR/latest -> step-00000020                                a link, moved last
 *     DIR/step-00000020/config.json
 *                       model-00001-of-00002.safetensors ...     parameters by their names
 *                       model.safetensors.index.json
 *                       optimizer-00001-of-00003.safetensors ... NAME.exp_avg, NAME.exp_avg_sq, and
 *                                                                NAME.master where files round it
 *                       optimizer.safetensors.index.json
 *                       state.json                               step, data position, checksums ...
 *     DIR/.lock                                                  whose the folder is
 *
 * Nothing in it depends on the mesh that wrote it. A step is written under another name, synced,
 * and renamed: it is there whole or not at all, whenever the program ends.
 * Read next: docs/checkpoint.md, checkpoint/plan.c. */
#pragma once

#include "checkpoint/dt_safetensors.h"
#include "optim/dt_optim.h"
#include "optim/dt_scaler.h"

typedef struct dt_checkpoint dt_checkpoint;

/* Zeros mean the defaults in brackets. Strings are copied. */
typedef struct dt_checkpoint_options {
    const char *config_path; /* copied into every step as config.json; NULL: none */
    dt_dtype dtype;          /* of parameters in model files: f32, bf16 or f16 */
    bool async;              /* saves go on in the background after staging */
    int keep;                /* newest steps that stay, and what is later; 0: all */
    int64_t file_bytes;      /* limit of a file; a larger tensor has its own [5e9] */
    /* Memory of a rank for moving and staging [128 MiB; async: also all that the rank writes]. With
     * less, async saves wait for the disk. At least 256 KiB for every rank of the mesh. */
    int64_t staging_bytes;
    int64_t piece_bytes; /* smallest piece of a tensor that is cut for several writers [4 MiB] */
    /* Told on rank 0: damaged steps that were passed over. */
    void (*say)(void *arg, const char *line);
    void *say_arg;
} dt_checkpoint_options;

/* What else a training run needs to go on. */
typedef struct dt_checkpoint_state {
    int64_t step;     /* finished ones */
    int64_t position; /* token where the next batch starts: global, so right on any mesh */
    uint64_t seed;
    dt_scaler scaler;
    dt_schedule schedule;
    const dt_mesh *mesh; /* for the record; NULL: that of the parameters here. Not loaded */
} dt_checkpoint_state;

/* dt_checkpoint_open - a folder of steps; made if it is not there, with its parents. Removes what
 * killed saves left. It is this program's alone until it is closed, by a lock (flock) on DIR/.lock.
 * Collective: the world.   Errors: DT_ERR_IO, DT_ERR_ARG; DT_ERR_STATE names the process that has
 * the folder. */
DT_NODISCARD dt_status dt_checkpoint_open(dt_world *world, const char *dir,
                                          const dt_checkpoint_options *options,
                                          dt_checkpoint **checkpoint_out);
/* Waits for a save in flight; without dt_checkpoint_wait before, that save is given up. Accepts
 * NULL inside. */
void dt_checkpoint_close(dt_checkpoint **checkpoint);

/* dt_checkpoint_save - one step: parameters below `module`, and the optimizer's state (NULL: a save
 * of the model only). A save in flight is finished first. Pipeline stages each give their own.
 *   async   returns when all is staged; parameters may change then. dt_checkpoint_poll or _wait
 *           finish it.
 * Each rank writes contiguous ranges of tensors; copies are written once, by all ranks that have
 * them in turn; no rank holds more of the model than before.
 * Cost: all-to-alls of (1 - 1/k) of what is not on its writer yet (nothing where tensors are S(0)
 * and cut as many times as there are writers).
 * Collective: the world.   Blocks: yes.   Errors: alike on all ranks; training state and older
 * steps are untouched. DT_ERR_IO (disk full ...), DT_ERR_STATE before materialize,
 * DT_ERR_PLACEMENT for a parameter that is P, DT_ERR_UNSUPPORTED where ranks disagree on what there
 * is, DT_ERR_NOMEM. */
DT_NODISCARD dt_status dt_checkpoint_save(dt_checkpoint *checkpoint, dt_module *module,
                                          dt_optim *optim, const dt_checkpoint_state *state);
/* Finish a save in flight if every rank has written its part; then old steps go. *busy_out: it goes
 * on. Collective: the world, one number if a save is in flight.   Errors: as dt_checkpoint_save's,
 * of the save in flight, which is given up then. */
DT_NODISCARD dt_status dt_checkpoint_poll(dt_checkpoint *checkpoint, bool *busy_out);
DT_NODISCARD dt_status dt_checkpoint_wait(dt_checkpoint *checkpoint);

/* dt_checkpoint_load - a step into a materialized module and its optimizer, in place. NULL:
 * parameters only, exact also where model files round them; an optimizer with masters is made after
 * that. Every rank reads the bytes of its own parts; all of them together check the sums first.
 *   in   step   -1: the first that is whole of what `latest` names, what is older, and what is
 *               newer, newest first; damaged ones are told and passed over, and so are saves of the
 *               model only if there is an optimizer
 *   out  state_out; *found_out: false: there are no steps at all (with step -1 only)
 * Collective: the world.   Blocks: yes.   Errors: alike on all ranks. DT_ERR_IO: no such step;
 * DT_ERR_FORMAT names what is damaged, missing or of another shape. */
DT_NODISCARD dt_status dt_checkpoint_load(dt_checkpoint *checkpoint, int64_t step,
                                          dt_module *module, dt_optim *optim,
                                          dt_checkpoint_state *state_out, bool *found_out);

/* Finished steps in the folder, good or not. Collective: the world. */
DT_NODISCARD dt_status dt_checkpoint_count(dt_checkpoint *checkpoint, int64_t *n_out);

/* dt_checkpoint_verify - compare all checksums of a step's folder; rank-local.
 * Errors: DT_ERR_FORMAT or DT_ERR_IO names the file and the bytes. */
DT_NODISCARD dt_status dt_checkpoint_verify(const char *step_folder);
