/* mesh/view.c - meshes made from meshes: a slice keeps my line or plane along some axes, a view
 * names the same ranks, in the same order, by other axes. All is arithmetic; nothing is
 * communicated.
 *
 *   mesh (dp 2, tp 4) on ranks 0..7, seen from rank 5:
 *   slice "tp"                     ranks 4 5 6 7      axes (tp 4)
 *   flatten "dp,tp" as "all"       ranks 0 .. 7       axes (all 8)
 *   split "tp" as kv 2 x rep       ranks 0 .. 7       axes (dp 2, kv 2, rep 2)
 *
 * The same ranks under the same axes are the same handle, by whatever path they were asked for, so
 * that their layouts are the same pointers. Read before: mesh/mesh.c. */
#include "mesh/mesh_internal.h"

#include <stdlib.h>
#include <string.h>

/* A description of a mesh to be found or made: its grid, and which of the parent's ranks are in
 * it. */
typedef struct recipe {
    dt_grid grid;
    dt_link link[DT_MAX_AXES];
    bool is_slice; /* the line through me along these axes of the parent; else all its ranks */
    int nline;
    uint8_t line[DT_MAX_AXES];
} recipe;

static void recipe_push(recipe *r, const char *name, int size, dt_link link)
{
    r->link[r->grid.naxes] = link;
    dti_grid_push(&r->grid, name, size);
}

static void recipe_copy_axis(recipe *r, const dt_mesh *mesh, int axis)
{
    recipe_push(r, mesh->grid.name[axis], mesh->grid.size[axis], mesh->link[axis]);
}

static dt_status remember(dt_mesh *mesh, dti_meshes *list)
{
    DT_TRY(dt_grow((void **)&list->mesh, &list->capacity, list->count + 1, sizeof *list->mesh));
    list->mesh[list->count++] = mesh;
    return DT_OK;
}

/* Under one parent the grid alone tells: a slice has some of the parent's names, a view has a new
 * name. */
static dt_mesh *find_derived(const dt_mesh *parent, const dt_grid *grid)
{
    for (int64_t i = 0; i < parent->derived.count; i++)
        if (dti_grid_equal(&parent->derived.mesh[i]->grid, grid))
            return parent->derived.mesh[i];
    return NULL;
}

static dt_mesh *find_owned(dt_mesh *root, const dt_grid *grid, const int *ranks, int nranks)
{
    for (int64_t i = -1; i < root->owned.count; i++) {
        dt_mesh *mesh = i < 0 ? root : root->owned.mesh[i]; /* the root: a view undone by another */
        if (dti_grid_equal(&mesh->grid, grid) &&
            memcmp(mesh->world_rank, ranks, (size_t)nranks * sizeof *ranks) == 0)
            return mesh;
    }
    return NULL;
}

static dt_status make(dt_mesh *parent, const recipe *r, int *ranks, dt_mesh **mesh_out)
{
    dt_mesh *mesh = NULL;
    DT_TRY(dti_mesh_new(parent->world, parent->device, &r->grid, ranks, &mesh));
    mesh->heap = parent->heap;
    mesh->root = parent->root;
    memcpy(mesh->link, r->link, sizeof mesh->link);
    const dt_status st = remember(mesh, &parent->root->owned);
    if (st != DT_OK) {
        dti_mesh_free(mesh);
        return st;
    }
    *mesh_out = mesh;
    return DT_OK;
}

static dt_status derive(dt_mesh *parent, const recipe *r, dt_mesh **mesh_out)
{
    dt_mesh *mesh = find_derived(parent, &r->grid);
    if (!mesh) {
        const int nranks = r->is_slice ? dti_line_size(parent, r->nline, r->line) : parent->size;
        int *ranks = malloc((size_t)nranks * sizeof *ranks);
        DT_REQUIRE(ranks, DT_ERR_NOMEM, "a list of %d ranks", nranks);
        if (r->is_slice)
            dti_line_ranks(parent, r->nline, r->line, ranks);
        else
            memcpy(ranks, parent->world_rank, (size_t)nranks * sizeof *ranks);
        mesh = find_owned(parent->root, &r->grid, ranks, nranks);
        if (mesh)
            free(ranks);
        else
            DT_TRY(make(parent, r, ranks, &mesh));
        DT_TRY(remember(mesh, &parent->derived));
    }
    *mesh_out = mesh;
    return DT_OK;
}

dt_status dt_mesh_slice(dt_mesh *mesh, const char *axes, dt_mesh **slice_out)
{
    recipe r = {.is_slice = true};
    if (*axes) /* "": the mesh of this rank alone */
        DT_TRY(dt_mesh_axes(mesh, axes, &r.nline, r.line, NULL));
    DT_REQUIRE(mesh->rank >= 0, DT_ERR_STATE,
               "world rank %d is not in the mesh: no line of it passes through it",
               dt_world_rank(mesh->world));
    for (int i = 1; i < r.nline; i++)
        DT_REQUIRE(r.line[i - 1] < r.line[i], DT_ERR_ARG,
                   "slice '%s': axis '%s' stands before '%s' in the mesh; name axes in its order",
                   axes, mesh->grid.name[r.line[i]], mesh->grid.name[r.line[i - 1]]);
    for (int i = 0; i < r.nline; i++)
        recipe_copy_axis(&r, mesh, r.line[i]);
    if (r.nline == mesh->grid.naxes)
        *slice_out = mesh;
    else
        DT_TRY(derive(mesh, &r, slice_out));
    return DT_OK;
}

dt_status dt_mesh_flatten(dt_mesh *mesh, const char *axes, const char *name, dt_mesh **view_out)
{
    int n = 0;
    uint8_t axis[DT_MAX_AXES];
    DT_TRY(dt_mesh_axes(mesh, axes, &n, axis, NULL));
    DT_TRY(dti_name_check(&mesh->grid, name));
    recipe r = {0};
    for (int a = 0; a < axis[0]; a++)
        recipe_copy_axis(&r, mesh, a);
    dt_link slowest = {0};
    for (int i = 0; i < n; i++) {
        DT_REQUIRE(
            axis[i] == axis[0] + i, DT_ERR_ARG,
            "flatten '%s': the axes must be neighbours in the mesh, outermost first; slice the "
            "mesh to have them so",
            axes);
        const dt_link link = mesh->link[axis[i]];
        slowest.latency_s = link.latency_s > slowest.latency_s ? link.latency_s : slowest.latency_s;
        slowest.byte_s = link.byte_s > slowest.byte_s ? link.byte_s : slowest.byte_s;
    }
    recipe_push(&r, name, dti_line_size(mesh, n, axis), slowest);
    for (int a = axis[0] + n; a < mesh->grid.naxes; a++)
        recipe_copy_axis(&r, mesh, a);
    DT_TRY(derive(mesh, &r, view_out));
    return DT_OK;
}

dt_status dt_mesh_split(dt_mesh *mesh, const char *name, const char *outer, int outer_size,
                        const char *inner, dt_mesh **view_out)
{
    int axis = 0;
    DT_TRY(dt_mesh_axis(mesh, name, &axis));
    DT_TRY(dti_name_check(&mesh->grid, outer));
    DT_TRY(dti_name_check(&mesh->grid, inner));
    const int size = mesh->grid.size[axis];
    DT_REQUIRE(strcmp(outer, inner) != 0, DT_ERR_ARG, "both parts of '%s' are called '%s'", name,
               inner);
    DT_REQUIRE(outer_size > 0 && size % outer_size == 0, DT_ERR_ARG,
               "axis '%s' of size %d does not split into '%s' of size %d times something", name,
               size, outer, outer_size);
    DT_REQUIRE(mesh->grid.naxes < DT_MAX_AXES, DT_ERR_ARG, "the mesh has %d axes, the most allowed",
               DT_MAX_AXES);
    recipe r = {0};
    for (int a = 0; a < axis; a++)
        recipe_copy_axis(&r, mesh, a);
    recipe_push(&r, outer, outer_size, mesh->link[axis]);
    recipe_push(&r, inner, size / outer_size, mesh->link[axis]);
    for (int a = axis + 1; a < mesh->grid.naxes; a++)
        recipe_copy_axis(&r, mesh, a);
    DT_TRY(derive(mesh, &r, view_out));
    return DT_OK;
}
