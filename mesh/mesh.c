/* mesh/mesh.c - names of axes, and where this rank stands in a mesh.
 * Read next: mesh/create.c, mesh/view.c (slices and views), mesh/comms.c, mesh/layout.c. */
#include "mesh/mesh_internal.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

/* ---- names ---- */

bool dti_grid_equal(const dt_grid *a, const dt_grid *b)
{
    bool equal = a->naxes == b->naxes;
    for (int i = 0; equal && i < a->naxes; i++)
        equal = a->size[i] == b->size[i] && strcmp(a->name[i], b->name[i]) == 0;
    return equal;
}

void dti_grid_push(dt_grid *grid, const char *name, int size)
{
    assert(grid->naxes < DT_MAX_AXES);
    (void)snprintf(grid->name[grid->naxes], DT_NAME_SIZE, "%s", name);
    grid->size[grid->naxes++] = size;
}

dt_status dti_name_check(const dt_grid *grid, const char *name)
{
    static const char legal[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_";
    const size_t length = strlen(name);
    DT_REQUIRE(length > 0 && length < DT_NAME_SIZE && strspn(name, legal) == length, DT_ERR_ARG,
               "axis name '%s' must be 1 to %d letters, digits and _", name, DT_NAME_SIZE - 1);
    DT_REQUIRE(dt_grid_axis(grid, name) < 0, DT_ERR_ARG, "axis name '%s' is taken", name);
    return DT_OK;
}

/* Take the next name off a comma list: moves *list on, copies the name without blanks (cut at the
 * size of a name, which no axis then equals). False at the end of the list. */
static bool next_name(const char **list, char name_out[DT_NAME_SIZE + 1])
{
    if (!*list)
        return false;
    const char *from = *list + strspn(*list, " ");
    const size_t length = strcspn(from, ", ");
    (void)snprintf(name_out, DT_NAME_SIZE + 1, "%.*s", (int)length, from);
    from += length + strspn(from + length, " ");
    *list = *from == ',' ? from + 1 : NULL;
    return true;
}

/* "pp, dp_shard, tp" */
enum { NAMES_TEXT = DT_MAX_AXES * (DT_NAME_SIZE + 2) };
static const char *print_names(const dt_grid *grid, char buf[NAMES_TEXT])
{
    int n = 0;
    for (int a = 0; a < grid->naxes; a++)
        n += snprintf(buf + n, (size_t)(NAMES_TEXT - n), "%s%s", a ? ", " : "", grid->name[a]);
    return buf;
}

dt_status dt_mesh_axis(const dt_mesh *mesh, const char *name, int *axis_out)
{
    char has[NAMES_TEXT];
    const int axis = dt_grid_axis(&mesh->grid, name);
    DT_REQUIRE(axis >= 0, DT_ERR_ARG, "the mesh has no axis '%s'; it has %s", name,
               print_names(&mesh->grid, has));
    *axis_out = axis;
    return DT_OK;
}

dt_status dt_mesh_axes(const dt_mesh *mesh, const char *list, int *naxes_out,
                       uint8_t axis_out[DT_MAX_AXES], uint8_t *bits_out)
{
    char name[DT_NAME_SIZE + 1];
    int n = 0;
    unsigned seen = 0;
    for (const char *rest = list; next_name(&rest, name);) {
        int axis = 0;
        DT_TRY(dt_mesh_axis(mesh, name, &axis));
        DT_REQUIRE(!(seen >> axis & 1), DT_ERR_ARG, "axis '%s' is named twice in '%s'", name, list);
        seen |= 1u << axis;
        axis_out[n++] = (uint8_t)axis;
    }
    DT_REQUIRE(n > 0, DT_ERR_ARG, "no axis is named");
    *naxes_out = n;
    if (bits_out)
        *bits_out = (uint8_t)seen;
    return DT_OK;
}

/* ---- questions ---- */

dt_world *dt_mesh_world(const dt_mesh *mesh)
{
    return mesh->world;
}

dt_device dt_mesh_device(const dt_mesh *mesh)
{
    return mesh->root->dry ? (dt_device){DT_META, 0} : mesh->device;
}

dt_heap *dt_mesh_heap(const dt_mesh *mesh)
{
    return mesh->root->dry ? mesh->root->dry : mesh->heap;
}

dt_status dt_mesh_rehearse(dt_mesh *mesh, bool on)
{
    dt_heap *dry = NULL;
    if (on)
        DT_TRY(dt_world_heap(mesh->world, (dt_device){DT_META, 0}, &dry));
    mesh->root->dry = dry;
    return DT_OK;
}

bool dt_mesh_rehearses(const dt_mesh *mesh)
{
    return mesh->root->dry != NULL;
}

const dt_grid *dt_mesh_grid(const dt_mesh *mesh)
{
    return &mesh->grid;
}

int dt_mesh_size(const dt_mesh *mesh)
{
    return mesh->size;
}

bool dt_mesh_contains_me(const dt_mesh *mesh)
{
    return mesh->rank >= 0;
}

int dt_mesh_rank(const dt_mesh *mesh)
{
    return mesh->rank;
}

const int *dt_mesh_coord(const dt_mesh *mesh)
{
    return mesh->rank >= 0 ? mesh->coord : NULL;
}

int dt_mesh_world_rank(const dt_mesh *mesh, int rank)
{
    assert(rank >= 0 && rank < mesh->size);
    return mesh->world_rank[rank];
}

int dt_mesh_axis_size(const dt_mesh *mesh, const char *axes)
{
    char name[DT_NAME_SIZE + 1];
    int size = 1;
    while (next_name(&axes, name)) {
        const int axis = dt_grid_axis(&mesh->grid, name);
        size *= axis < 0 ? 1 : mesh->grid.size[axis];
    }
    return size;
}

int dt_mesh_axis_index(const dt_mesh *mesh, const char *axes)
{
    char name[DT_NAME_SIZE + 1];
    int index = 0;
    if (mesh->rank < 0)
        return -1;
    while (next_name(&axes, name)) {
        const int axis = dt_grid_axis(&mesh->grid, name);
        if (axis >= 0)
            index = index * mesh->grid.size[axis] + mesh->coord[axis];
    }
    return index;
}

const char *dt_mesh_print(const dt_mesh *mesh, char *buf, size_t size_bytes)
{
    char text[DT_MESH_TEXT];
    int n = snprintf(text, sizeof text, "mesh %s", mesh->grid.naxes ? "" : "1");
    for (int a = 0; a < mesh->grid.naxes; a++)
        n += snprintf(text + n, sizeof text - (size_t)n, "%s%d", a ? "x" : "", mesh->grid.size[a]);
    n += snprintf(text + n, sizeof text - (size_t)n, " [");
    for (int a = 0; a < mesh->grid.naxes; a++)
        n += snprintf(text + n, sizeof text - (size_t)n, "%s%s %d", a ? ", " : "",
                      mesh->grid.name[a], mesh->grid.size[a]);
    n += snprintf(text + n, sizeof text - (size_t)n, "], rank %d %s", dt_world_rank(mesh->world),
                  mesh->rank >= 0 ? "at (" : "outside");
    for (int a = 0; mesh->rank >= 0 && a < mesh->grid.naxes; a++)
        n += snprintf(text + n, sizeof text - (size_t)n, "%s%d", a ? ", " : "", mesh->coord[a]);
    (void)snprintf(text + n, sizeof text - (size_t)n, "%s", mesh->rank >= 0 ? ")" : "");
    (void)snprintf(buf, size_bytes, "%s", text);
    return buf;
}
