/* mesh/comms.c - lines through the grid, and their communicators.
 *
 *        tp 0  tp 1
 *  dp 0 |  0     1        my line (I am rank 2) along tp: 2 3; along dp: 0 2;
 *  dp 1 |  2     3        along dp,tp: 0 1 2 3; along tp,dp: 0 2 1 3
 *
 * Read before: mesh/mesh.c. */
#include "mesh/mesh_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int dti_line_size(const dt_mesh *mesh, int naxes, const uint8_t *axis)
{
    int size = 1;
    for (int i = 0; i < naxes; i++)
        size *= mesh->grid.size[axis[i]];
    return size;
}

void dti_line_ranks(const dt_mesh *mesh, int naxes, const uint8_t *axis, int *world_rank_out)
{
    const int size = dti_line_size(mesh, naxes, axis);
    int coord[DT_MAX_AXES];
    memcpy(coord, mesh->coord, sizeof coord);
    for (int r = 0; r < size; r++) {
        int rest = r;
        for (int i = naxes - 1; i >= 0; i--) {
            coord[axis[i]] = rest % mesh->grid.size[axis[i]];
            rest /= mesh->grid.size[axis[i]];
        }
        world_rank_out[r] = mesh->world_rank[dt_grid_rank(&mesh->grid, coord)];
    }
}

static dt_status create_comm(dt_mesh *mesh, int naxes, const uint8_t *axis, int channel,
                             dt_comm **comm_out)
{
    const int size = dti_line_size(mesh, naxes, axis);
    int *ranks = malloc((size_t)size * sizeof *ranks);
    DT_REQUIRE(ranks, DT_ERR_NOMEM, "a list of %d ranks", size);
    dti_line_ranks(mesh, naxes, axis, ranks);
    const dt_status st = dt_comm_create(mesh->world, ranks, size, channel, comm_out);
    free(ranks);
    DT_TRY(st);
    char axes[DT_MAX_AXES * DT_NAME_SIZE] = "";
    for (int i = 0; i < naxes; i++) {
        const size_t used = strlen(axes);
        (void)snprintf(axes + used, sizeof axes - used, "%s%s", i ? "," : "",
                       mesh->grid.name[axis[i]]);
    }
    dt_comm_set_axes(*comm_out, axes);
    return DT_OK;
}

dt_status dt_mesh_comm(dt_mesh *mesh, int naxes, const uint8_t *axis, int channel,
                       dt_comm **comm_out)
{
    DT_REQUIRE(mesh->rank >= 0, DT_ERR_STATE,
               "world rank %d is not in the mesh: it has no communicator there",
               dt_world_rank(mesh->world));
    DT_REQUIRE(naxes >= 0 && naxes <= mesh->grid.naxes && channel >= 0 && channel <= 3, DT_ERR_ARG,
               "%d axes of the mesh's %d, channel %d of 0..3", naxes, mesh->grid.naxes, channel);
    unsigned seen = 0;
    uint64_t key = (uint64_t)channel + 1; /* then 4 bits an axis, none of them 0 */
    for (int i = 0; i < naxes; i++) {
        DT_REQUIRE(axis[i] < mesh->grid.naxes && !(seen >> axis[i] & 1), DT_ERR_ARG,
                   "axis %d is named twice or past the mesh's %d axes", axis[i], mesh->grid.naxes);
        seen |= 1u << axis[i];
        key = key << 4 | (axis[i] + 1u);
    }
    dt_comm *comm = dti_table_get(&mesh->comms, 1, &key);
    if (!comm) {
        DT_TRY(create_comm(mesh, naxes, axis, channel, &comm));
        const dt_status st = dti_table_put(&mesh->comms, 1, &key, comm);
        if (st != DT_OK) {
            dt_comm_destroy(&comm);
            return st;
        }
    }
    *comm_out = comm;
    return DT_OK;
}

dt_status dt_mesh_comm_named(dt_mesh *mesh, const char *axes, int channel, dt_comm **comm_out)
{
    int naxes = 0;
    uint8_t axis[DT_MAX_AXES];
    DT_TRY(dt_mesh_axes(mesh, axes, &naxes, axis, NULL));
    DT_TRY(dt_mesh_comm(mesh, naxes, axis, channel, comm_out));
    return DT_OK;
}
