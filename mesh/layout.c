/* mesh/layout.c - interned layouts, cached plans, and the cache of op rules.
 * A distinct layout exists once in a mesh, so everybody compares and looks up pointers. What op
 * dispatch asks on every call (my local shape, the mesh) stands beside it. Read before:
 * mesh/table.c. */
#include "mesh/mesh_internal.h"

#include <stdlib.h>
#include <string.h>

/* The layout comes first: a pointer to it is a pointer to all of this. */
typedef struct interned {
    dt_layout layout;
    dt_mesh *mesh;
    dt_shape local;
    int64_t offset[DT_MAX_DIMS];
} interned;

/* A layout as words: ndim and partial, the dims, the counts of splits, and the splits of each
 * dim. */
enum { KEY_WORDS = 1 + DT_MAX_DIMS + 1 + DT_MAX_DIMS };
_Static_assert(DT_MAX_AXES == sizeof(uint64_t) && DT_MAX_DIMS == sizeof(uint64_t),
               "nsplit and each row of split fill one word");

static void layout_words(const dt_layout *layout, uint64_t key_out[KEY_WORDS])
{
    key_out[0] = (uint64_t)layout->shape.ndim << 8 | layout->partial;
    memcpy(key_out + 1, layout->shape.dim, sizeof layout->shape.dim);
    memcpy(key_out + 1 + DT_MAX_DIMS, layout->nsplit, sizeof layout->nsplit);
    memcpy(key_out + 2 + DT_MAX_DIMS, layout->split, sizeof layout->split);
}

dt_status dt_mesh_layout(dt_mesh *mesh, const dt_layout *layout, const dt_layout **interned_out)
{
    DT_REQUIRE(mesh->rank >= 0, DT_ERR_STATE,
               "world rank %d is not in the mesh, so it holds no part of any tensor there",
               dt_world_rank(mesh->world));
    DT_REQUIRE(layout->grid == &mesh->grid || dti_grid_equal(layout->grid, &mesh->grid), DT_ERR_ARG,
               "the layout was made for another grid than this mesh's");
    uint64_t key[KEY_WORDS];
    layout_words(layout, key);
    interned *known = dti_table_get(&mesh->layouts, KEY_WORDS, key);
    if (!known) {
        DT_TRY(dt_layout_check(layout));
        known = calloc(1, sizeof *known);
        DT_REQUIRE(known, DT_ERR_NOMEM, "a layout");
        known->layout = *layout;
        known->layout.grid = &mesh->grid;
        known->mesh = mesh;
        known->local = dt_layout_local(&known->layout, mesh->coord, known->offset);
        const dt_status st = dti_table_put(&mesh->layouts, KEY_WORDS, key, known);
        if (st != DT_OK) {
            free(known);
            return st;
        }
    }
    *interned_out = &known->layout;
    return DT_OK;
}

dt_status dt_mesh_layout_text(dt_mesh *mesh, dt_shape shape, const char *text,
                              const dt_layout **interned_out)
{
    dt_layout layout;
    DT_TRY(dt_layout_parse(&mesh->grid, shape, text, &layout));
    DT_TRY(dt_mesh_layout(mesh, &layout, interned_out));
    return DT_OK;
}

dt_mesh *dt_layout_mesh(const dt_layout *layout)
{
    return ((const interned *)layout)->mesh;
}

dt_shape dt_mesh_local(const dt_layout *layout, int64_t offset_out[DT_MAX_DIMS])
{
    const interned *known = (const interned *)layout;
    if (offset_out)
        memcpy(offset_out, known->offset, sizeof known->offset);
    return known->local;
}

dt_status dt_mesh_plan(dt_mesh *mesh, const dt_layout *src, const dt_layout *dst,
                       const dt_plan **plan_out)
{
    enum {
        PLAN_ELEM_BYTES = 4
    }; /* a plan's order of steps hardly depends on it; f32 stands for all */
    const uint64_t key[] = {(uintptr_t)src, (uintptr_t)dst};
    dt_plan *plan = dti_table_get(&mesh->plans, DT_COUNT(key), key);
    if (!plan) {
        DT_REQUIRE(dt_layout_mesh(src) == mesh && dt_layout_mesh(dst) == mesh, DT_ERR_ARG,
                   "both layouts must be interned by this mesh");
        DT_TRY(dt_plan_create(src, dst, PLAN_ELEM_BYTES, mesh->link, &plan));
        const dt_status st = dti_table_put(&mesh->plans, DT_COUNT(key), key, plan);
        if (st != DT_OK) {
            dt_plan_destroy(&plan);
            return st;
        }
    }
    *plan_out = plan;
    return DT_OK;
}

void *dt_mesh_cache_get(dt_mesh *mesh, int n, const uint64_t *key)
{
    return dti_table_get(&mesh->cache, n, key);
}

dt_status dt_mesh_cache_put(dt_mesh *mesh, int n, const uint64_t *key, void *value)
{
    DT_REQUIRE(n > 0 && value, DT_ERR_ARG, "a key of %d words, value %p: both must be something", n,
               value);
    DT_TRY(dti_table_put(&mesh->cache, n, key, value));
    return DT_OK;
}
