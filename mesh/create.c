/* mesh/create.c - making a mesh: the grid from the options, the comparison of all ranks'
 * definitions, and its end. Read before: mesh/mesh.c. */
#include "mesh/mesh_internal.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* The grid that the options ask for, -1 replaced by what is left of the world. */
static dt_status grid_from_options(const dt_world *world, const dt_mesh_options *options,
                                   dt_grid *grid_out)
{
    dt_grid grid = {0};
    int open = -1;
    const int nworld = dt_world_size(world);
    DT_REQUIRE(options && options->axes[0].name, DT_ERR_ARG, "a mesh needs at least one axis");
    DT_REQUIRE(options->first_rank >= 0 && options->first_rank < nworld, DT_ERR_ARG,
               "first_rank %d of a world of %d", options->first_rank, nworld);
    const int left = nworld - options->first_rank;
    int64_t product = 1;
    for (int a = 0; a < DT_MAX_AXES && options->axes[a].name; a++) {
        const dt_axis axis = options->axes[a];
        DT_TRY(dti_name_check(&grid, axis.name));
        DT_REQUIRE(axis.size > 0 || axis.size == -1, DT_ERR_ARG,
                   "axis '%s' has size %d; it must be 1 or more, or -1 for what is left", axis.name,
                   axis.size);
        DT_REQUIRE(axis.size > 0 || open < 0, DT_ERR_ARG, "two axes of size -1: '%s' and '%s'",
                   grid.name[open < 0 ? 0 : open], axis.name);
        if (axis.size < 0)
            open = a;
        else
            product *= axis.size;
        DT_REQUIRE(product <= left, DT_ERR_ARG,
                   "up to axis '%s' the sizes multiply to %lld, but there are %d ranks", axis.name,
                   (long long)product, left);
        dti_grid_push(&grid, axis.name, axis.size);
    }
    if (open >= 0) {
        DT_REQUIRE(left % product == 0, DT_ERR_ARG,
                   "axis '%s' cannot be what is left: %d ranks do not divide by %lld",
                   grid.name[open], left, (long long)product);
        grid.size[open] = left / (int)product;
    }
    *grid_out = grid;
    return DT_OK;
}

dt_status dti_mesh_new(dt_world *world, dt_device device, const dt_grid *grid, int *world_rank,
                       dt_mesh **mesh_out)
{
    dt_mesh *mesh = calloc(1, sizeof *mesh);
    if (!mesh) {
        free(world_rank);
        return DT_ERROR(DT_ERR_NOMEM, "a mesh");
    }
    mesh->world = world;
    mesh->device = device;
    mesh->grid = *grid;
    mesh->size = dt_grid_count(grid);
    mesh->world_rank = world_rank;
    mesh->root = mesh;
    mesh->rank = -1;
    for (int r = 0; r < mesh->size && mesh->rank < 0; r++)
        if (world_rank[r] == dt_world_rank(world))
            mesh->rank = r;
    if (mesh->rank >= 0)
        dt_grid_coord(grid, mesh->rank, mesh->coord);
    *mesh_out = mesh;
    return DT_OK;
}

/* All of dt_mesh_create that this rank does alone. */
static dt_status create_alone(dt_world *world, dt_device device, const dt_mesh_options *options,
                              dt_mesh **mesh_out)
{
    dt_grid grid;
    dt_heap *heap = NULL;
    DT_TRY(grid_from_options(world, options, &grid));
    DT_TRY(dt_world_heap(world, device, &heap));
    const int size = dt_grid_count(&grid);
    int *world_rank = malloc((size_t)size * sizeof *world_rank);
    DT_REQUIRE(world_rank, DT_ERR_NOMEM, "a list of %d ranks", size);
    for (int r = 0; r < size; r++)
        world_rank[r] = options->first_rank + r;
    DT_TRY(dti_mesh_new(world, device, &grid, world_rank, mesh_out));
    (*mesh_out)->heap = heap;
    memcpy((*mesh_out)->link, options->link, sizeof options->link);
    return DT_OK;
}

/* FNV-1a, as a positive number. */
static int64_t hash_bytes(const void *data, size_t size_bytes)
{
    uint64_t h = UINT64_C(0xcbf29ce484222325);
    for (size_t i = 0; i < size_bytes; i++)
        h = (h ^ ((const uint8_t *)data)[i]) * UINT64_C(0x100000001b3);
    return (int64_t)(h >> 1);
}

/* A definition as numbers, one a row of `what`; sizes and names repeat for each axis. The device's
 * index is not among them: it may differ. */
enum {
    NAXES,
    FIRST_RANK,
    DEVICE,
    LINKS,
    SIZES,
    NAMES = SIZES + DT_MAX_AXES,
    NFACTS = NAMES + DT_MAX_AXES
};

static void definition(const dt_mesh *mesh, int64_t fact_out[NFACTS])
{
    memset(fact_out, 0, NFACTS * sizeof *fact_out);
    fact_out[NAXES] = mesh->grid.naxes;
    fact_out[FIRST_RANK] = mesh->world_rank[0];
    fact_out[DEVICE] = (int64_t)mesh->device.kind;
    fact_out[LINKS] = hash_bytes(mesh->link, sizeof mesh->link);
    for (int a = 0; a < mesh->grid.naxes; a++) {
        fact_out[SIZES + a] = mesh->grid.size[a];
        fact_out[NAMES + a] = hash_bytes(mesh->grid.name[a], strlen(mesh->grid.name[a]));
    }
}

/* One all-reduce gives the largest of each fact and of its negative, so every rank sees whether all
 * agree. */
static dt_status compare_definitions(const dt_mesh *mesh)
{
    int64_t fact[2 * NFACTS];
    definition(mesh, fact);
    for (int i = 0; i < NFACTS; i++)
        fact[NFACTS + i] = -fact[i];
    DT_TRY(dt_all_reduce_i64_sync(dt_world_comm(mesh->world), fact, 2 * NFACTS, DT_REDUCE_MAX));
    for (int i = 0; i < NFACTS; i++) {
        const int64_t most = fact[i], least = -fact[NFACTS + i];
        const int axis = i >= NAMES ? i - NAMES : i - SIZES;
        const char *what = i == NAXES        ? "the number of axes"
                           : i == FIRST_RANK ? "first_rank"
                           : i == DEVICE     ? "the kind of device"
                           : i == LINKS      ? "a hash of the links"
                           : i < NAMES       ? "the size"
                                             : "a hash of the name";
        DT_REQUIRE(
            most == least || i < SIZES, DT_ERR_ARG,
            "ranks define this mesh differently: %s of axis %d (here '%s' of size %d) is from "
            "%lld to %lld",
            what, axis, mesh->grid.name[axis], mesh->grid.size[axis], (long long)least,
            (long long)most);
        DT_REQUIRE(most == least, DT_ERR_ARG,
                   "ranks define this mesh differently: %s is from %lld to %lld", what,
                   (long long)least, (long long)most);
    }
    return DT_OK;
}

dt_status dt_mesh_create(dt_world *world, dt_device device, const dt_mesh_options *options,
                         dt_mesh **mesh_out)
{
    dt_mesh *mesh = NULL;
    dt_status st = create_alone(world, device, options, &mesh);
    DT_TRY_TO(fail, st, dt_world_agree_sync(world, st));
    DT_TRY_TO(fail, st, compare_definitions(mesh));
    *mesh_out = mesh;
    return DT_OK;
fail:
    dti_mesh_free(mesh);
    return st;
}

static void release_comm(void *comm)
{
    dt_comm *c = comm;
    dt_comm_destroy(&c);
}

static void release_plan(void *plan)
{
    dt_plan *p = plan;
    dt_plan_destroy(&p);
}

void dti_mesh_free(dt_mesh *mesh)
{
    if (!mesh)
        return;
    for (int64_t i = 0; i < mesh->owned.count; i++)
        dti_mesh_free(mesh->owned.mesh[i]);
    free(mesh->owned.mesh);
    free(mesh->derived.mesh);
    dti_table_free(&mesh->comms, release_comm);
    dti_table_free(&mesh->plans, release_plan);
    dti_table_free(&mesh->layouts, free);
    dti_table_free(&mesh->cache, free);
    free(mesh->world_rank);
    free(mesh);
}

void dt_mesh_destroy(dt_mesh **mesh)
{
    if (!*mesh)
        return;
    assert((*mesh)->root == *mesh && "slices and views belong to the mesh they came from");
    dti_mesh_free(*mesh);
    *mesh = NULL;
}
