/* mesh/mesh_internal.h - what the files of this folder share: the mesh itself and its word-keyed
 * table.
 * Read next: mesh/mesh.c, mesh/create.c, mesh/view.c, mesh/comms.c, mesh/layout.c, mesh/table.c. */
#pragma once

#include "mesh/dt_mesh.h"

/* ---- table.c: n 64-bit words -> pointer; open addressing, linear probing, at most half full
 * ---- */

typedef struct dti_entry {
    void *value;
    int n;
    uint64_t key[]; /* n words */
} dti_entry;

typedef struct dti_slot {
    uint64_t hash;
    dti_entry *entry; /* NULL: free */
} dti_slot;

/* All-zero is an empty table. */
typedef struct dti_table {
    dti_slot *slot;
    int64_t capacity, count; /* capacity is 0 or a power of two, 2^(64 - shift) */
    int shift;
} dti_table;

void *dti_table_get(const dti_table *table, int n, const uint64_t *key);
/* Errors: DT_ERR_STATE if the key is there already, DT_ERR_NOMEM; then the value stays the
 * caller's. */
dt_status dti_table_put(dti_table *table, int n, const uint64_t *key, void *value);
/* Free the table and hand each value to `release`. */
void dti_table_free(dti_table *table, void (*release)(void *value));

/* ---- the mesh ---- */

/* A growable list of meshes. */
typedef struct dti_meshes {
    dt_mesh **mesh;
    int64_t count, capacity;
} dti_meshes;

struct dt_mesh {
    dt_world *world;
    dt_device device;
    dt_heap *heap;
    dt_grid grid;
    dt_link link[DT_MAX_AXES];
    int size;               /* ranks in it */
    int rank;               /* mine in it, -1 outside */
    int coord[DT_MAX_AXES]; /* mine, while rank >= 0 */
    int *world_rank;        /* of each mesh rank */
    dt_mesh *root;          /* the mesh that dt_mesh_create made; itself for the root */
    dt_heap *dry;           /* root only: the meta heap while nothing is real; else NULL */
    dti_meshes owned;       /* root only: all slices and views made from it, by whatever path */
    dti_meshes derived; /* those made directly from this mesh; told apart by their grids (view.c) */
    dti_table comms, layouts, plans, cache;
};

/* create.c */
/* A mesh of `grid` whose rank r is world rank world_rank[r]; takes world_rank over, also on
 * failure. */
dt_status dti_mesh_new(dt_world *world, dt_device device, const dt_grid *grid, int *world_rank,
                       dt_mesh **mesh_out);
void dti_mesh_free(dt_mesh *mesh);

/* mesh.c */
bool dti_grid_equal(const dt_grid *a, const dt_grid *b);
/* A name of letters, digits and '_' that fits and that `grid` does not have yet. Errors:
 * DT_ERR_ARG. */
dt_status dti_name_check(const dt_grid *grid, const char *name);
/* Append an axis to a grid that has room. */
void dti_grid_push(dt_grid *grid, const char *name, int size);

/* comms.c: how many ranks lie on a line along these axes, and which: those whose coordinates equal
 * mine on all other axes, as world ranks, row-major over the axes in the order listed. */
int dti_line_size(const dt_mesh *mesh, int naxes, const uint8_t *axis);
void dti_line_ranks(const dt_mesh *mesh, int naxes, const uint8_t *axis, int *world_rank_out);
