/* nn/dt_recompute.h - activation recomputation: a module keeps its inputs instead of what its
 * backward needs, and runs again when the walk of backward reaches it.
 *
 *     dt_module *block = dt_model_layer(model, i);
 *     dt_recompute(block, DT_RECOMPUTE_FULL);      after parallelize, before fully_shard
 *
 * Kept between forward and backward, bytes of a block of B samples, S positions, hidden size N:
 *     none        every tensor that some gradient needs
 *     full        its inputs: B S N numbers
 *     selective   its inputs, and what is dear to make again: results of matrix products and of
 *                 attention, and of redistributes that reduce or exchange shards (those that gather
 *                 run again: keeping them would undo what sharding saves). Norms, activations,
 *                 rotations, casts and dropout are made again.
 * In backward one module at a time lives in full. Gradients are bit-equal to those without, dropout
 * included, on every mesh, with dt_backward and with its two halves.
 *
 * Hooks of a recomputed module M and of a module I inside of it:
 *     forward    transforms of M; M pre_forward; (I pre_forward; I post_forward); M post_forward
 *     backward   M pre_backward
 *                second run, on a tape of its own (dt_tape_origin gives the first):
 *                    transforms of M; M pre_forward(recompute); I pre_forward(recompute);
 *                    I post_forward(recompute); M post_forward(recompute)
 *                walk of that tape:
 *                    I pre_backward; I post_backward_input and _weight
 *                M post_backward_input and _weight
 * So M's backward hooks fire once, and around everything: what pre_backward gathers serves both the
 * second run and the gradients. Under dt_backward_input and dt_backward_weight the second run
 * happens in the first; its tape stays for the second.
 *
 * Inside of a recomputed module another one may be marked: it is recomputed when the outer's second
 * run is walked, so its forward runs three times and less of it lives at once.
 * A module's forward must do the same each time, and of the tape's tensors use its inputs alone.
 * Sources: Chen et al. 2016, "Training deep nets with sublinear memory cost"; Korthikanti et al.
 * 2022, "Reducing activation recomputation in large transformer models". */
#pragma once

#include "nn/dt_module.h"

#define DT_RECOMPUTE_TABLE(X) \
    X(NONE, "none")           \
    X(FULL, "full")           \
    X(SELECTIVE, "selective")

typedef enum dt_recompute_policy {
#define X(name, text) DT_RECOMPUTE_##name,
    DT_RECOMPUTE_TABLE(X)
#undef X
} dt_recompute_policy;

/* dt_recompute - from now on, calls of m on tapes with gradients follow the policy. NONE undoes it.
 * Cost: full: the module's forward again in backward, with its redistributes.
 * Errors: none here; what fails in a second run fails backward, with the module's path. */
void dt_recompute(dt_module *m, dt_recompute_policy policy);

/* By name. Errors: DT_ERR_ARG lists the legal ones. */
DT_NODISCARD dt_status dt_recompute_parse(const char *text, dt_recompute_policy *policy_out);
