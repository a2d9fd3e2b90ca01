/* mesh/dt_mesh.h - an n-dimensional grid of ranks with named axes, its slices and views, its
 * communicators, and its interned layouts.
 *
 * Axes are given outermost first; canonical names are pp, dp_replicate, dp_shard, cp, tp. A mesh
 * may cover some of the world's ranks: the others get a handle too, for which dt_mesh_contains_me
 * is false. Slices and views are arithmetic and owned by the mesh they came from: do not destroy
 * them.
 * Read next: dtensor/dt_tensor.h. */
#pragma once

#include "comm/dt_comm.h"
#include "placements/dt_plan.h"

typedef struct dt_mesh dt_mesh;

typedef struct dt_axis {
    const char *name; /* copied */
    int size;         /* -1 on one axis: what is left of the world */
} dt_axis;

typedef struct dt_mesh_options {
    dt_axis axes[DT_MAX_AXES];     /* ends at the first NULL name */
    int first_rank;                /* world rank of the mesh's rank 0 */
    dt_link link[DT_MAX_AXES];     /* for the planner; all-zero: defaults */
} dt_mesh_options;

/* dt_mesh_create - lay the ranks of a world out as a grid.
 * Collective: all of the world (all ranks' definitions are compared: an error everywhere, not a
 * hang).   Blocks: yes.
 * Errors: DT_ERR_ARG for duplicate or empty names, a size of 0 or below -1, a product that does not
 * fit. */
DT_NODISCARD dt_status dt_mesh_create(dt_world *world, dt_device device,
                                      const dt_mesh_options *options, dt_mesh **mesh_out);
/* Collective. Releases slices, views, communicators and layouts. Accepts NULL. */
void dt_mesh_destroy(dt_mesh **mesh);

dt_world *dt_mesh_world(const dt_mesh *mesh);
dt_device dt_mesh_device(const dt_mesh *mesh);
dt_heap *dt_mesh_heap(const dt_mesh *mesh);
/* dt_mesh_rehearse - while on, a mesh and its slices and views are as if on meta, whatever their
 * tensors are: new ones have shapes only, ops compute nothing, redistributes are planned and not
 * done, modules' lifetime hooks are not called. So a forward on real parameters shows what cannot
 * work before anything moves. Errors: DT_ERR_NOMEM. */
DT_NODISCARD dt_status dt_mesh_rehearse(dt_mesh *mesh, bool on);
bool dt_mesh_rehearses(const dt_mesh *mesh);
const dt_grid *dt_mesh_grid(const dt_mesh *mesh);
int dt_mesh_size(const dt_mesh *mesh);                   /* ranks in it */
bool dt_mesh_contains_me(const dt_mesh *mesh);
int dt_mesh_rank(const dt_mesh *mesh);                   /* mine in it, row-major; -1 outside */
const int *dt_mesh_coord(const dt_mesh *mesh);           /* one an axis; NULL outside */
int dt_mesh_world_rank(const dt_mesh *mesh, int rank);   /* world rank of a mesh rank */
/* Size of a list of axes ("dp_shard,cp"), and my row-major index in it. An axis that the mesh does
 * not have counts as size 1, index 0; outside the mesh the index is -1. Name no axis twice. */
int dt_mesh_axis_size(const dt_mesh *mesh, const char *axes);
int dt_mesh_axis_index(const dt_mesh *mesh, const char *axes);
/* Errors: DT_ERR_ARG lists the axes the mesh has. */
DT_NODISCARD dt_status dt_mesh_axis(const dt_mesh *mesh, const char *name, int *axis_out);
/* "mesh 2x2 [dp_shard 2, tp 2], rank 3 at (1, 1)", the rank being that of the world, or "... rank 5
 * outside". Returns buf. */
enum { DT_MESH_TEXT = 512 };
const char *dt_mesh_print(const dt_mesh *mesh, char *buf, size_t size_bytes);

/* dt_mesh_axes - the axes of a list such as "dp_shard,cp", in its order; bits (may be NULL): the
 * sum of 1 << axis. Errors: DT_ERR_ARG for an axis the mesh lacks, one named twice, none. */
DT_NODISCARD dt_status dt_mesh_axes(const dt_mesh *mesh, const char *list, int *naxes_out,
                                    uint8_t axis_out[DT_MAX_AXES], uint8_t *bits_out);
/* dt_mesh_slice - the mesh of my line, plane ... along some axes ("tp" or "dp_shard,tp", in mesh
 * order); "" gives the mesh of this rank alone, without axes.
 * No communication; all its axes give the mesh itself. The same ranks under the same axes are the
 * same handle, whether by slices, views, or slices of these.
 * Errors: DT_ERR_ARG for an unknown axis, one named twice or out of order; DT_ERR_STATE outside the
 * mesh. */
DT_NODISCARD dt_status dt_mesh_slice(dt_mesh *mesh, const char *axes, dt_mesh **slice_out);
/* dt_mesh_flatten - a view in which neighbouring axes ("dp_shard,cp") are one axis `name`, new to
 * the mesh. Ranks and their order stay; so do they in dt_mesh_split. Also outside the mesh. Cached.
 * Errors: DT_ERR_ARG for axes that are not neighbours in mesh order, a name that is taken or not
 * legal. */
DT_NODISCARD dt_status dt_mesh_flatten(dt_mesh *mesh, const char *axes, const char *name,
                                       dt_mesh **view_out);
/* dt_mesh_split - a view in which axis `name` is two axes, outer x inner (tp = tp_kv x tp_rep).
 * Cached.
 * Errors: DT_ERR_ARG if outer_size does not divide the axis, for names as above, for more than
 * DT_MAX_AXES. */
DT_NODISCARD dt_status dt_mesh_split(dt_mesh *mesh, const char *name, const char *outer,
                                     int outer_size, const char *inner, dt_mesh **view_out);

/* dt_mesh_comm - the communicator of my line along some axes, members row-major over the axes in
 * the order listed; borrowed. Channel 0..3. Slices and views of the same ranks share it. No axes:
 * this rank alone.
 * Collective: over the line, at first use (so ask in set-up code); later calls are a look-up.
 * Errors: DT_ERR_ARG for an axis past the last or named twice; DT_ERR_STATE outside the mesh. */
DT_NODISCARD dt_status dt_mesh_comm(dt_mesh *mesh, int naxes, const uint8_t *axis, int channel,
                                    dt_comm **comm_out);
/* dt_mesh_comm by names: "tp", "dp_shard,cp". */
DT_NODISCARD dt_status dt_mesh_comm_named(dt_mesh *mesh, const char *axes, int channel,
                                          dt_comm **comm_out);

/* ---- layouts, interned: one pointer per distinct layout of a mesh, immutable, compared by pointer
 * ---- */

/* dt_mesh_layout - the mesh's own copy of a layout; lives as long as the mesh, and its grid is the
 * mesh's.
 * Errors: DT_ERR_ARG when the layout's grid has other contents than the mesh's, DT_ERR_PLACEMENT
 * for an illegal layout, DT_ERR_STATE outside the mesh (where this rank would hold nothing). */
DT_NODISCARD dt_status dt_mesh_layout(dt_mesh *mesh, const dt_layout *layout,
                                      const dt_layout **interned_out);
/* From text: dt_mesh_layout_text(mesh, shape, "S(0)@dp_shard", &l). */
DT_NODISCARD dt_status dt_mesh_layout_text(dt_mesh *mesh, dt_shape shape, const char *text,
                                           const dt_layout **interned_out);
/* Cached plan between two layouts interned by this mesh, priced at 4 bytes an element and the
 * mesh's links. */
DT_NODISCARD dt_status dt_mesh_plan(dt_mesh *mesh, const dt_layout *src, const dt_layout *dst,
                                    const dt_plan **plan_out);
/* The mesh that an interned layout belongs to. */
dt_mesh *dt_layout_mesh(const dt_layout *layout);
/* Local shape of this rank under an interned layout, precomputed; offset (may be NULL) of its first
 * element. */
dt_shape dt_mesh_local(const dt_layout *layout, int64_t offset_out[DT_MAX_DIMS]);

/* A pointer-keyed cache that lives with the mesh: op rules use it. Keys are n words, the first of
 * which should tell the users of the cache apart (the address of something of theirs); a value is
 * owned by the cache and freed with free() at the mesh's end. Get gives NULL for an unknown key.
 * Errors: DT_ERR_STATE for a key that is there already; after an error the value is still the
 * caller's. */
void *dt_mesh_cache_get(dt_mesh *mesh, int n, const uint64_t *key);
DT_NODISCARD dt_status dt_mesh_cache_put(dt_mesh *mesh, int n, const uint64_t *key, void *value);
