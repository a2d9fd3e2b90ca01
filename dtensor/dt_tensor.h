/* dtensor/dt_tensor.h - a global tensor: a layout plus this rank's local array.
 *
 * Owners: the caller (what _create, _distribute and _keep give: dt_tensor_destroy), a module
 * (parameters), or a tape (what ops return). Set-up functions return dt_status; ops take a tape and
 * return tensors (dt_tape.h).
 * Read next: dtensor/dt_tape.h. */
#pragma once

#include "mesh/dt_mesh.h"

typedef struct dt_tensor dt_tensor;
typedef struct dt_tape dt_tape;

/* Internal currency of the library: a layout and the local array placed by it. */
typedef struct dt_local {
    const dt_layout *layout; /* interned */
    dt_array array;
} dt_local;

const dt_layout *dt_tensor_layout(const dt_tensor *x);
dt_mesh *dt_tensor_mesh(const dt_tensor *x);
dt_shape dt_tensor_shape(const dt_tensor *x); /* global */
dt_dtype dt_tensor_dtype(const dt_tensor *x);
/* This rank's part; borrowed. Its bytes may be written by who owns the tensor (optimizers,
 * loaders). */
dt_array *dt_tensor_local(dt_tensor *x);
bool dt_tensor_requires_grad(const dt_tensor *x);
/* Leaves only: ask for a gradient (or not). */
void dt_tensor_set_requires_grad(dt_tensor *x, bool on);
/* Leaves only: a parameter asks for a gradient, and that gradient may wait for
 * dt_backward_weight. */
void dt_tensor_set_parameter(dt_tensor *x, bool on);
/* Leaves of 16 bits only: ops that can leave the gradient in f32, as their product makes it, do so
 * (dt_op.wide_grad); others' arrive in x's type. */
void dt_tensor_set_wide_grad(dt_tensor *x, bool on);
const char *dt_tensor_name(const dt_tensor *x); /* "" if it has none */
DT_NODISCARD dt_status dt_tensor_set_name(dt_tensor *x, const char *name); /* copied */

/* The gradient that backward accumulated in a leaf, in the placement in which it arose;
 * array.storage is NULL if none reached it. Borrowed; clear drops it. */
dt_local *dt_tensor_grad(dt_tensor *x);
void dt_tensor_clear_grad(dt_tensor *x);
/* Add to a leaf's gradient; takes g's reference over, also on failure.
 * Placements: R + P is P, S + S is S. */
DT_NODISCARD dt_status dt_tensor_add_grad(dt_tensor *x, dt_local *g);

/* dt_tensor_create - a leaf, uninitialised. On a meta mesh it has no bytes. Errors:
 * DT_ERR_NOMEM. */
DT_NODISCARD dt_status dt_tensor_create(const dt_layout *layout, dt_dtype dtype, dt_tag tag,
                                        dt_tensor **tensor_out);
void dt_tensor_destroy(dt_tensor **x); /* accepts NULL inside */

/* dt_distribute - a leaf from a whole host array that every rank holds alike; each keeps its part.
 * 0 bytes moved.
 * Errors: DT_ERR_PLACEMENT when the layout has P (a sum of what?); under DT_CHECK=replicas, unequal
 * hosts. */
DT_NODISCARD dt_status dt_distribute(const dt_layout *layout, dt_dtype dtype, const void *host,
                                     dt_tensor **tensor_out);
/* dt_full_value - a leaf with every element `value`; P: rank 0 of the axis holds it, the others
 * zero. */
DT_NODISCARD dt_status dt_full_value(const dt_layout *layout, dt_dtype dtype, double value,
                                     dt_tensor **tensor_out);
/* dt_from_array - a leaf around a local array (shared, not copied) whose shape must be this rank's
 * part of the layout. R promises equal arrays on the ranks of the axis (DT_CHECK=replicas compares
 * them). Errors: DT_ERR_SHAPE. */
DT_NODISCARD dt_status dt_from_array(const dt_layout *layout, const dt_array *local,
                                     dt_tensor **tensor_out);

/* dt_tensor_read_sync - the whole tensor, in its dtype, into host memory of every rank.
 * Collective: over its mesh.   Blocks: yes.   Cost: that of redistributing to R. */
DT_NODISCARD dt_status dt_tensor_read_sync(dt_tensor *x, void *host);
/* The same as f32 numbers, and a scalar's value. */
DT_NODISCARD dt_status dt_tensor_read_f32_sync(dt_tensor *x, float *host);
DT_NODISCARD dt_status dt_tensor_item_sync(dt_tensor *x, double *value_out);
/* What this rank has of a scalar: its term where it is P.   Blocks: yes, for its own device. */
DT_NODISCARD dt_status dt_tensor_local_item_sync(dt_tensor *x, double *value_out);
/* "w [4, 6] f32 [S(0)@tp], local [2, 6]: 0.1 0.2 ... " to `print`; local values only, no
 * communication. */
const char *dt_tensor_print(dt_tensor *x, char *buf, size_t size_bytes);

/* ---- moving between layouts, outside of tapes ---- */

/* dt_move - bring n local arrays to other layouts, coalesced: steps of one kind on the same axes
 * are one call.
 *   in   src, dst   src[i] on the same mesh as dst[i]; all on one mesh
 *        channel    0..3
 *        label      for DT_EXPLAIN and traces
 *   out  out[i]     new references; share src's bytes where nothing had to move
 * Collective: over the axes that change.   Blocks: yes.   Cost: the plans' (dt_mesh_plan). */
DT_NODISCARD dt_status dt_move(int n, const dt_local *src, const dt_layout *const *dst, int channel,
                               const char *label, dt_tag tag, dt_local *out);

/* The same in two parts, so that communication runs while the host computes: begin issues the first
 * collective and returns; finish waits, issues what else the plans need, and gives the results. In
 * between neither src nor `into` may be touched.
 * Collective: as dt_move.   Blocks: only dt_move_finish. */
typedef struct dt_moving dt_moving;
typedef struct dt_move_options {
    /* 0 has no worker: its calls run at finish; 1..3 run in the background */
    int channel;
    const char *label;           /* copied */
    dt_tag tag;                  /* of memory for results and staging */
    /* n arrays (entries may be NULL) that shall hold the results; or NULL */
    const dt_array *const *into;
} dt_move_options;
DT_NODISCARD dt_status dt_move_begin(int n, const dt_local *src, const dt_layout *const *dst,
                                     const dt_move_options *options, dt_moving **moving_out);
DT_NODISCARD dt_status dt_move_finish(dt_moving **moving, dt_local *out);
