/* tests/dtensor/place_check.h - tensors with known values under any layout, for tests of what
 * moves them.
 *
 * The value at a global index is a small whole number, and so are the parts of a P tensor: sums
 * are exact in every order
 * and in every dtype. Checks read local arrays and sum with dt_all_reduce_f64_sync, never with the
 * code under test. */
#pragma once

#include "dtensor/dt_op.h"
#include "dtensor/ops/dt_ops.h"
#include "tests/harness.h"

enum { PLACE_MAX_LAYOUTS = 160 };

/* The number at a global index: whole, in [-8, 8]. */
double place_value(uint64_t seed, int64_t index);
/* A leaf placed by `layout` whose value is that of `seed`; where it is P, different parts that add
 * up. */
dt_status place_leaf(const dt_layout *layout, dt_dtype dtype, uint64_t seed, dt_tensor **out);
/* Every rank: the local array has the layout's local shape and holds (P: together with the others)
 * the value of `seed`,
 * times `factor`. Collective. */
dt_status place_holds(const dt_local *x, uint64_t seed, double factor, const char *what);
/* The same of a tensor. */
dt_status place_tensor_holds(dt_tensor *x, uint64_t seed, const char *what);

/* Every layout of a shape with the placements R, S(0) .. S(ndim - 1), P on each axis, in every
 * order of a nest. */
dt_status place_layouts(dt_mesh *mesh, dt_shape shape, const dt_layout **list, int *n_out);

/* A mesh of all ranks of the world. */
dt_status place_mesh(dt_world *world, const dt_axis *axes, int naxes, dt_mesh **mesh_out);
/* A mesh of one axis tp of all ranks, a tape on it, and the heap of both. */
typedef struct place_bench {
    dt_world *world;
    dt_mesh *mesh;
    dt_tape *t;
    dt_heap *heap;
} place_bench;

dt_status place_open(place_bench *b, dt_world *world);
void place_close(place_bench *b);
/* A leaf that wants a gradient; its layout as text. */
dt_status place_grad_leaf(place_bench *b, dt_shape shape, const char *text, dt_dtype dtype,
                          uint64_t seed, dt_tensor **out);
/* A gradient for outputs placed `y`: the dual, with P where y is R if `partial`. */
dt_status place_dual_leaf(const dt_layout *y, bool partial, uint64_t seed, dt_tensor **out);

/* "[R] -> [P@tp] of [3, 2]" */
const char *place_text(const dt_layout *a, const dt_layout *b, char *buf, size_t size_bytes);
/* DT_FULL=1 in the environment: the long forms. */
bool place_full(void);
