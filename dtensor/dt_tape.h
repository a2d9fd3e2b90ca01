/* dtensor/dt_tape.h - the record of a computation: an append-only array of nodes that backward
 * walks from the end.
 *
 * Every op takes the tape first and its results belong to the tape. There is no global gradient
 * mode: a tape made with .no_grad only owns. One tape per microbatch in flight. Parameters are
 * leaves on no tape. An op that fails returns the tape's failed tensor, which every op passes on;
 * dt_tape_status and dt_backward report the first error. Read next: dtensor/dt_op.h (how an op is
 * made), dtensor/ops/dt_ops.h (the ops). */
#pragma once

#include "dtensor/dt_tensor.h"

/* What ops did on this rank, added up by the tapes that are given one. */
typedef struct dt_tally {
    /* Of matrix products: 2 m n k each; attention in full, whatever its mask hides. Where several
     * ranks do the same, an equal share, so that the sum over ranks is what one rank would do. */
    double flops;
    double flops_again; /* besides: in recomputes, by several ranks alike, twice in attention */
    /* Look at every result for what is not finite. Slow, for finding mistakes. The first is told in
     * the order of the model, whatever the order in which a schedule does it: microbatch, forward
     * before backward, stage (backward: the last one first), result. */
    bool watch;
    bool bad_backward;  /* it was a gradient */
    int bad_stage;      /* dt_tape_options.stage */
    int64_t seen;       /* results looked at */
    int64_t bad_at;     /* which of them it was, from 1; 0: all are finite */
    int64_t bad_sample; /* its microbatch: dt_tape_options.first_sample */
    char bad[320];      /* op, module, source line, element */
} dt_tally;

typedef struct dt_tape_options {
    bool no_grad;
    bool no_dropout;      /* evaluation: dropout passes its input on */
    uint64_t seed;        /* of dropout */
    int64_t step;         /* of dropout */
    int64_t first_sample; /* global batch index of the first sample (dim 0) of this microbatch */
    int stage;            /* of a pipeline, for the tally */
    dt_tally *tally;      /* NULL: nothing is counted; must outlive the tape's use */
} dt_tape_options;

/* dt_tape_create - a tape for tensors of a mesh and its slices and views. Errors: DT_ERR_NOMEM. */
DT_NODISCARD dt_status dt_tape_create(dt_mesh *mesh, const dt_tape_options *options,
                                      dt_tape **tape_out);
void dt_tape_destroy(dt_tape **tape);
/* Forget all nodes and tensors but keep the memory of the tape itself, for the next microbatch. */
void dt_tape_reset(dt_tape *tape, const dt_tape_options *options);

/* The first error of an op on this tape, with its trace: op, layouts, module path, source line.
 * DT_OK if none. */
DT_NODISCARD dt_status dt_tape_status(const dt_tape *tape);
/* Record an error from outside of an op; later errors are dropped. Returns st. */
dt_status dt_tape_fail(dt_tape *tape, dt_status st);
/* What a failed op returns: size 0, on this tape. */
dt_tensor *dt_tape_failed(dt_tape *tape);
bool dt_tensor_is_failed(const dt_tensor *x);

const dt_tape_options *dt_tape_get_options(const dt_tape *tape);
dt_mesh *dt_tape_mesh(const dt_tape *tape);
int64_t dt_tape_nodes(const dt_tape *tape);
/* Bytes of tensors saved for backward, each storage once, without parameters. */
int64_t dt_tape_saved_bytes(const dt_tape *tape);
/* A line a node: op, module path, layouts, bytes saved. */
void dt_tape_print(const dt_tape *tape, void (*print)(void *arg, const char *line), void *arg);

/* dt_backward - gradients of a scalar loss (placed R or P) to every leaf that asked, accumulated
 * there.
 * Collective: the adjoints of the redistributes recorded.   Errors: the tape's, or of a failing
 * backward. Saved tensors go as the walk passes them; a tape is walked once. */
DT_NODISCARD dt_status dt_backward(dt_tape *tape, dt_tensor *loss);
/* From n outputs with given gradients (NULL entries: none), for pipeline stages. An output may be a
 * leaf that was handed on. */
DT_NODISCARD dt_status dt_backward_from(dt_tape *tape, int n, dt_tensor *const *outputs,
                                        const dt_local *grads);
/* The same in two parts (zero-bubble schedules), together bit-equal to dt_backward: first the
 * gradients of what is not a parameter, keeping for every node with parameters only what their
 * gradients need; then those of the parameters. */
DT_NODISCARD dt_status dt_backward_input(dt_tape *tape, int n, dt_tensor *const *outputs,
                                         const dt_local *grads);
DT_NODISCARD dt_status dt_backward_weight(dt_tape *tape);

/* A scope: tensors made since begin, other than the kept ones, give their local arrays back at its
 * end, unless saved for backward (then only the saved copy lives). Module calls are scopes. */
void dt_scope_begin(dt_tape *tape);
void dt_scope_end(dt_tape *tape, int nkeep, dt_tensor *const *keep);
/* Give one tensor's local array back now (a layer's input that nothing else reads). Leaves are left
 * alone. */
void dt_tensor_drop(dt_tensor *x);
/* dt_tensor_regather - do not keep y, just redistributed, for backward; redistribute it again when
 * the first gradient needs it. Less memory (what y was made from instead of y), one more
 * collective. Does nothing for other tensors, without gradients, and in the second run of a
 * recompute. */
void dt_tensor_regather(dt_tensor *y);
/* A handle of the caller's own on a tape's tensor; shares the bytes. Destroy it. */
DT_NODISCARD dt_status dt_tensor_keep(dt_tensor *x, dt_tensor **kept_out);

/* ---- for nn: module calls ---- */

/* The module path in force ("model.layers.0.mlp"), for errors, names and dropout keys; call and
 * return. */
void dt_tape_enter(dt_tape *tape, const char *path);
void dt_tape_leave(dt_tape *tape);
const char *dt_tape_path(const dt_tape *tape);
/* 0, 1, 2 ... of the module in force, over all of its calls on this tape: the ordinal of a
 * dropout. */
int dt_tape_next_ordinal(dt_tape *tape);

/* ---- for nn: recomputation ---- */

/* A part of a computation that backward may run again: makes out[0 .. returned) from in[0 .. nin)
 * and leaves; of the tape's own tensors it may use no others. It must do the same each time. */
enum { DT_RECOMPUTED_MAX_OUT = 8 };
typedef struct dt_recomputed {
    int (*run)(dt_tape *tape, void *arg, int nin, dt_tensor *const *in, dt_tensor **out);
    void *arg;
    bool selective; /* keep results of ops marked .keep, and of redistributes that reduce or swap */
} dt_recomputed;

/* dt_tape_recompute - run it now without nodes of its own, and again in backward, on a tape made
 * then. The tape keeps the inputs and what is selected. Returns the number of outputs.
 * Cost: the forward twice, redistributes too unless kept.
 * Gradient: bit-equal to a plain run's, with dropout (same paths, ordinals, samples), in every kind
 * of walk; dt_backward_input keeps the second run's tape for dt_backward_weight.
 * Nested: inside of a call that is in its own first run, or on a no_grad tape, this is a plain run:
 * the outer call's choice holds until its second run, where inner ones are recomputed in turn. */
int dt_tape_recompute(dt_tape *tape, const dt_recomputed *call, int nin, dt_tensor *const *in,
                      dt_tensor **out);
/* The tape that the user made: `tape` itself, or in a second run the one whose walk it serves. */
dt_tape *dt_tape_origin(dt_tape *tape);

/* A marker: a node without inputs whose function is called when the walk of backward reaches it.
 * `reached` says whether a gradient has arrived at one of the n watched tensors (end markers watch
 * the outputs of a call; begin markers pass the end marker's index as `pair` and are reached if it
 * was). phase: which walk. */
typedef enum dt_walk { DT_WALK_ALL, DT_WALK_INPUT, DT_WALK_WEIGHT } dt_walk;
typedef dt_status (*dt_marker)(dt_tape *tape, void *arg, dt_walk walk);
int dt_tape_mark_end(dt_tape *tape, dt_marker fn, void *arg, int n, dt_tensor *const *watched);
int dt_tape_mark_begin(dt_tape *tape, dt_marker fn, void *arg);
/* In a marker's function: does the walk still have a begin marker with this argument before it? (An
 * earlier call.) */
bool dt_tape_marker_ahead(const dt_tape *tape, const void *arg);
/* Tie a begin marker to its end marker, once both exist. */
void dt_tape_mark_pair(dt_tape *tape, int begin, int end);

/* Where the caller is, for errors and DT_EXPLAIN; used by the op headers' macros. */
#define DT_TEXT_(x) #x
#define DT_TEXT(x)  DT_TEXT_(x)
#define DT_HERE     __FILE__ ":" DT_TEXT(__LINE__)
dt_tape *dt_tape_at(dt_tape *tape, const char *where);
