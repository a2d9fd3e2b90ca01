/* placements/layout.c - arithmetic on layouts: who owns what. Nothing here allocates or
 * communicates. Read next: placements/layout_text.c (text form), placements/plan.c (how to change a
 * layout). */
#include "placements/dt_layout.h"

#include <string.h>

void dt_chunk(int64_t n, int k, int r, int64_t *lo_out, int64_t *hi_out)
{
    const int64_t c = (n + k - 1) / k;
    const int64_t lo = r * c, hi = lo + c;
    *lo_out = lo < n ? lo : n;
    *hi_out = hi < n ? hi : n;
}

int dt_grid_axis(const dt_grid *grid, const char *name)
{
    for (int a = 0; a < grid->naxes; a++)
        if (strcmp(grid->name[a], name) == 0)
            return a;
    return -1;
}

int dt_grid_count(const dt_grid *grid)
{
    int n = 1;
    for (int a = 0; a < grid->naxes; a++)
        n *= grid->size[a];
    return n;
}

void dt_grid_coord(const dt_grid *grid, int rank, int coord_out[DT_MAX_AXES])
{
    memset(coord_out, 0, DT_MAX_AXES * sizeof coord_out[0]);
    for (int a = grid->naxes - 1; a >= 0; a--) {
        coord_out[a] = rank % grid->size[a];
        rank /= grid->size[a];
    }
}

int dt_grid_rank(const dt_grid *grid, const int coord[DT_MAX_AXES])
{
    int rank = 0;
    for (int a = 0; a < grid->naxes; a++)
        rank = rank * grid->size[a] + coord[a];
    return rank;
}

dt_layout dt_layout_replicated(const dt_grid *grid, dt_shape shape)
{
    return (dt_layout){.grid = grid, .shape = shape};
}

/* Where an axis stands: the dim it shards (-1: none) and its position in that dim's order. */
static int find_axis(const dt_layout *layout, int axis, int *depth_out)
{
    for (int d = 0; d < layout->shape.ndim; d++)
        for (int i = 0; i < layout->nsplit[d]; i++)
            if (layout->split[d][i] == axis) {
                *depth_out = i;
                return d;
            }
    *depth_out = -1;
    return -1;
}

dt_placement dt_layout_at(const dt_layout *layout, int axis)
{
    if (layout->partial >> axis & 1)
        return (dt_placement){.kind = DT_PARTIAL};
    int depth;
    const int d = find_axis(layout, axis, &depth);
    return d < 0 ? (dt_placement){.kind = DT_REPLICATE}
                 : (dt_placement){.kind = DT_SHARD, .dim = d};
}

int dt_layout_depth(const dt_layout *layout, int axis)
{
    int depth;
    (void)find_axis(layout, axis, &depth);
    return depth;
}

bool dt_layout_equal(const dt_layout *a, const dt_layout *b)
{
    return a->grid == b->grid && a->partial == b->partial && dt_shape_equal(a->shape, b->shape) &&
           memcmp(a->nsplit, b->nsplit, sizeof a->nsplit) == 0 &&
           memcmp(a->split, b->split, sizeof a->split) == 0;
}

/* The grid's address is left out, so that the hash is the same on every rank and in every run. */
uint64_t dt_layout_hash(const dt_layout *layout)
{
    uint64_t word[2 + DT_MAX_DIMS * 2] = {(uint64_t)layout->shape.ndim << 8 | layout->partial};
    memcpy(word + 1, layout->nsplit, sizeof layout->nsplit);
    memcpy(word + 2, layout->split, sizeof layout->split);
    memcpy(word + 2 + DT_MAX_DIMS, layout->shape.dim, sizeof layout->shape.dim);
    uint64_t hash = 0;
    for (int i = 0; i < DT_COUNT(word); i++) {
        hash = (hash ^ word[i]) * 0x9E3779B97F4A7C15u;
        hash ^= hash >> 32;
    }
    return hash;
}

static dt_status check_grid_and_shape(const dt_grid *grid, const dt_shape *shape)
{
    DT_REQUIRE(grid, DT_ERR_PLACEMENT, "a layout without a grid");
    DT_REQUIRE(grid->naxes >= 0 && grid->naxes <= DT_MAX_AXES, DT_ERR_PLACEMENT,
               "%d axes; at most %d are legal", grid->naxes, DT_MAX_AXES);
    for (int a = 0; a < grid->naxes; a++)
        DT_REQUIRE(grid->size[a] >= 1, DT_ERR_PLACEMENT, "axis %s has size %d; 1 or more is legal",
                   grid->name[a], grid->size[a]);
    DT_REQUIRE(shape->ndim >= 0 && shape->ndim <= DT_MAX_DIMS, DT_ERR_PLACEMENT,
               "%d dims; at most %d are legal", shape->ndim, DT_MAX_DIMS);
    for (int d = 0; d < DT_MAX_DIMS; d++)
        DT_REQUIRE(d < shape->ndim ? shape->dim[d] >= 0 : shape->dim[d] == 0, DT_ERR_PLACEMENT,
                   "dim %d of %d has size %lld", d, shape->ndim, (long long)shape->dim[d]);
    return DT_OK;
}

dt_status dt_layout_check(const dt_layout *layout)
{
    DT_TRY(check_grid_and_shape(layout->grid, &layout->shape));
    const int naxes = layout->grid->naxes;
    unsigned seen = layout->partial;
    DT_REQUIRE(seen >> naxes == 0, DT_ERR_PLACEMENT, "P on axes 0x%x; the mesh has %d axes", seen,
               naxes);
    for (int d = 0; d < DT_MAX_DIMS; d++) {
        const int n = layout->nsplit[d];
        DT_REQUIRE(n <= (d < layout->shape.ndim ? naxes : 0), DT_ERR_PLACEMENT,
                   "dim %d of %d is split by %d axes; the mesh has %d", d, layout->shape.ndim, n,
                   naxes);
        for (int i = 0; i < DT_MAX_AXES; i++) {
            const int axis = layout->split[d][i];
            DT_REQUIRE(i < n || axis == 0, DT_ERR_PLACEMENT,
                       "dim %d has %d splits, but unused entry %d is %d instead of 0", d, n, i,
                       axis);
            if (i >= n)
                continue;
            DT_REQUIRE(axis < naxes, DT_ERR_PLACEMENT,
                       "dim %d is split by axis %d; the mesh has %d", d, axis, naxes);
            DT_REQUIRE(!(seen >> axis & 1), DT_ERR_PLACEMENT, "axis %s is placed twice",
                       layout->grid->name[axis]);
            seen |= 1u << axis;
        }
    }
    return DT_OK;
}

void dt_layout_shard(dt_layout *layout, int axis, int dim)
{
    layout->split[dim][layout->nsplit[dim]++] = (uint8_t)axis;
}

void dt_layout_clear(dt_layout *layout, int axis)
{
    layout->partial &= (uint8_t) ~(1u << axis);
    int depth;
    const int d = find_axis(layout, axis, &depth);
    if (d < 0)
        return;
    const int last = --layout->nsplit[d];
    for (int i = depth; i < last; i++)
        layout->split[d][i] = layout->split[d][i + 1];
    layout->split[d][last] = 0;
}

dt_layout dt_layout_dual(const dt_layout *layout)
{
    dt_layout dual = *layout;
    dual.partial = 0;
    return dual;
}

void dt_layout_range(const dt_layout *layout, int dim, const int coord[DT_MAX_AXES],
                     int64_t *lo_out, int64_t *hi_out)
{
    int64_t lo = 0, hi = layout->shape.dim[dim];
    for (int i = 0; i < layout->nsplit[dim]; i++) {
        const int axis = layout->split[dim][i];
        int64_t from, to;
        dt_chunk(hi - lo, layout->grid->size[axis], coord[axis], &from, &to);
        hi = lo + to;
        lo += from;
    }
    *lo_out = lo;
    *hi_out = hi;
}

dt_shape dt_layout_local(const dt_layout *layout, const int coord[DT_MAX_AXES],
                         int64_t offset_out[DT_MAX_DIMS])
{
    dt_shape local = {.ndim = layout->shape.ndim};
    for (int d = 0; d < local.ndim; d++) {
        int64_t lo, hi;
        dt_layout_range(layout, d, coord, &lo, &hi);
        local.dim[d] = hi - lo;
        if (offset_out)
            offset_out[d] = lo;
    }
    return local;
}
