/* tests/placements/sim.c - see tests/placements/sim.h. */
#include "tests/placements/sim.h"

#include "tests/harness.h"

#include <string.h>

dt_grid sim_grid(int naxes, const int *size)
{
    dt_grid grid = {.naxes = naxes};
    for (int a = 0; a < naxes; a++) {
        grid.size[a] = size[a];
        grid.name[a][0] = (char)('a' + a);
    }
    return grid;
}

/* Axis by axis: R, P, or at any place in the order of any dim; so every order is met once. */
static void enumerate(dt_layout layout, int axis, dt_layout *out, int *n)
{
    if (axis == layout.grid->naxes) {
        ck_assert_int_lt(*n, SIM_LAYOUTS);
        out[(*n)++] = layout;
        return;
    }
    enumerate(layout, axis + 1, out, n);
    dt_layout next = layout;
    next.partial |= (uint8_t)(1u << axis);
    enumerate(next, axis + 1, out, n);
    for (int d = 0; d < layout.shape.ndim; d++) {
        for (int i = 0; i <= layout.nsplit[d]; i++) {
            next = layout;
            memmove(next.split[d] + i + 1, layout.split[d] + i, (size_t)(layout.nsplit[d] - i));
            next.split[d][i] = (uint8_t)axis;
            next.nsplit[d]++;
            enumerate(next, axis + 1, out, n);
        }
    }
}

int sim_layouts(const dt_grid *grid, dt_shape shape, dt_layout out[SIM_LAYOUTS])
{
    int n = 0;
    enumerate(dt_layout_replicated(grid, shape), 0, out, &n);
    return n;
}

/* ---- elements ---- */

static void unravel(dt_shape shape, int64_t i, int64_t index[DT_MAX_DIMS])
{
    for (int d = shape.ndim - 1; d >= 0; d--) {
        index[d] = i % shape.dim[d];
        i /= shape.dim[d];
    }
}

static int64_t ravel(dt_shape shape, const int64_t index[DT_MAX_DIMS])
{
    int64_t i = 0;
    for (int d = 0; d < shape.ndim; d++) {
        if (index[d] < 0 || index[d] >= shape.dim[d]) /* ck_assert is slow */
            ck_abort_msg("index %d of %d", (int)index[d], (int)shape.dim[d]);
        i = i * shape.dim[d] + index[d];
    }
    return i;
}

static int64_t at(const sim_array *a, const int64_t index[DT_MAX_DIMS])
{
    return a->value[ravel(a->shape, index)];
}

static int64_t noise(int64_t corner, int64_t i)
{
    const uint64_t x = (uint64_t)(corner * 1000 + i + 1) * 0x9E3779B97F4A7C15u;
    return (int64_t)(x >> 48) - 32768;
}

static int64_t global_value(int64_t i)
{
    return noise(0, i);
}

/* What the ranks at one corner of the P axes hold of global element i; all corners add up to it. */
static int64_t part(const dt_layout *layout, const int *coord, int64_t i)
{
    int64_t corner = 0, ncorners = 1;
    for (int a = 0; a < layout->grid->naxes; a++) {
        if (layout->partial >> a & 1) {
            corner = corner * layout->grid->size[a] + coord[a];
            ncorners *= layout->grid->size[a];
        }
    }
    if (corner > 0)
        return noise(corner, i);
    int64_t rest = global_value(i);
    for (int64_t c = 1; c < ncorners; c++)
        rest -= noise(c, i);
    return rest;
}

/* Global number of element i of the rank at coord. */
static int64_t global_number(const dt_layout *layout, const int *coord, int64_t i)
{
    int64_t offset[DT_MAX_DIMS], index[DT_MAX_DIMS];
    const dt_shape local = dt_layout_local(layout, coord, offset);
    unravel(local, i, index);
    for (int d = 0; d < local.ndim; d++)
        index[d] += offset[d];
    return ravel(layout->shape, index);
}

void sim_distribute(const dt_layout *layout, sim_array *local)
{
    ck_assert_int_le(dt_grid_count(layout->grid), SIM_RANKS);
    ck_assert_int_le(dt_shape_count(layout->shape), SIM_ELEMENTS);
    for (int r = 0; r < dt_grid_count(layout->grid); r++) {
        int coord[DT_MAX_AXES];
        dt_grid_coord(layout->grid, r, coord);
        local[r].shape = dt_layout_local(layout, coord, NULL);
        for (int64_t i = 0; i < dt_shape_count(local[r].shape); i++)
            local[r].value[i] = part(layout, coord, global_number(layout, coord, i));
    }
}

/* ---- steps ---- */

/* The ranks that a step brings together around a rank, in the order of the step's axes. */
static int members(const dt_step *s, int rank, int out[SIM_RANKS])
{
    const dt_grid *grid = s->before.grid;
    int coord[DT_MAX_AXES], n = 1;
    for (int i = 0; i < s->naxes; i++)
        n *= grid->size[s->axis[i]];
    for (int m = 0; m < n; m++) {
        dt_grid_coord(grid, rank, coord);
        for (int i = s->naxes - 1, rest = m; i >= 0; i--) {
            coord[s->axis[i]] = rest % grid->size[s->axis[i]];
            rest /= grid->size[s->axis[i]];
        }
        out[m] = dt_grid_rank(grid, coord);
    }
    return n;
}

/* The element at `index` of the members' arrays, concatenated along a dim. */
static int64_t concatenated(const sim_array *old, const int *member, int n, int dim,
                            int64_t index[DT_MAX_DIMS])
{
    for (int m = 0; m < n; m++) {
        const sim_array *a = &old[member[m]];
        if (index[dim] < a->shape.dim[dim])
            return at(a, index);
        index[dim] -= a->shape.dim[dim];
    }
    ck_abort_msg("the members' pieces are too short");
}

static int64_t summed(const sim_array *old, const int *member, int n, const int64_t *index)
{
    int64_t sum = 0;
    for (int m = 0; m < n; m++)
        sum += at(&old[member[m]], index);
    return sum;
}

static int64_t padded(const sim_array *old, int dim, int64_t index[DT_MAX_DIMS])
{
    return index[dim] < 0 || index[dim] >= old->shape.dim[dim] ? 0 : at(old, index);
}

/* One element after a step. shift = where, along dim, my new range starts in my old one. */
static int64_t element(const dt_step *s, const sim_array *old, int rank, int64_t shift,
                       int64_t index[DT_MAX_DIMS])
{
    int member[SIM_RANKS];
    const int n = members(s, rank, member);
    if (s->dim_to >= 0)
        index[s->dim_to] += shift;
    switch (s->kind) {
    case DT_STEP_SLICE:
    case DT_STEP_RELABEL: return at(&old[rank], index);
    case DT_STEP_KEEP: return rank == member[0] ? at(&old[rank], index) : 0;
    case DT_STEP_PAD: index[s->dim_from] += shift; return padded(&old[rank], s->dim_from, index);
    case DT_STEP_ALL_GATHER:
    case DT_STEP_ALL_TO_ALL: return concatenated(old, member, n, s->dim_from, index);
    case DT_STEP_REDUCE_SCATTER:
    case DT_STEP_ALL_REDUCE: return summed(old, member, n, index);
    case DT_NSTEP_KINDS: break;
    }
    ck_abort_msg("step of kind %d", (int)s->kind);
}

static void run_step(const dt_step *s, sim_array *local)
{
    static sim_array old[SIM_RANKS];
    const int nranks = dt_grid_count(s->before.grid);
    memcpy(old, local, (size_t)nranks * sizeof old[0]);
    for (int r = 0; r < nranks; r++) {
        int coord[DT_MAX_AXES];
        int64_t index[DT_MAX_DIMS], from[DT_MAX_DIMS], to[DT_MAX_DIMS];
        dt_grid_coord(s->before.grid, r, coord);
        ck_assert(dt_shape_equal(old[r].shape, dt_layout_local(&s->before, coord, from)));
        local[r].shape = dt_layout_local(&s->after, coord, to);
        const int dim = s->kind == DT_STEP_PAD ? s->dim_from : s->dim_to;
        const int64_t shift = dim < 0 ? 0 : to[dim] - from[dim];
        for (int64_t i = 0; i < dt_shape_count(local[r].shape); i++) {
            unravel(local[r].shape, i, index);
            local[r].value[i] = element(s, old, r, shift, index);
        }
    }
}

void sim_run(const dt_plan *plan, const dt_layout *src, const dt_layout *dst, sim_array *local)
{
    const dt_layout *now = src;
    for (int i = 0; i < plan->nsteps; i++) {
        ck_assert(dt_layout_equal(now, &plan->step[i].before));
        ck_ok(dt_layout_check(&plan->step[i].after));
        run_step(&plan->step[i], local);
        now = &plan->step[i].after;
    }
    ck_assert(dt_layout_equal(now, dst));
}

/* ---- checks ---- */

/* Sum, over the P axes, of element i of the ranks around the one at coord. */
static int64_t sum_of_parts(const dt_layout *layout, const int *coord, const sim_array *local,
                            int64_t i)
{
    int64_t sum = 0;
    for (int r = 0; r < dt_grid_count(layout->grid); r++) {
        int other[DT_MAX_AXES];
        dt_grid_coord(layout->grid, r, other);
        bool mine = true;
        for (int a = 0; a < layout->grid->naxes; a++)
            mine = mine && (layout->partial >> a & 1 || other[a] == coord[a]);
        sum += mine ? local[r].value[i] : 0;
    }
    return sum;
}

const char *sim_wrong(const dt_layout *layout, const sim_array *local)
{
    for (int r = 0; r < dt_grid_count(layout->grid); r++) {
        int coord[DT_MAX_AXES], twin[DT_MAX_AXES];
        dt_grid_coord(layout->grid, r, coord);
        memcpy(twin, coord, sizeof twin);
        for (int a = 0; a < layout->grid->naxes; a++)
            if (dt_layout_at(layout, a).kind == DT_REPLICATE)
                twin[a] = 0;
        const sim_array *first = &local[dt_grid_rank(layout->grid, twin)];
        if (!dt_shape_equal(local[r].shape, dt_layout_local(layout, coord, NULL)))
            return "local shape";
        for (int64_t i = 0; i < dt_shape_count(local[r].shape); i++) {
            if (local[r].value[i] != first->value[i])
                return "replicas differ";
            if (sum_of_parts(layout, coord, local, i) !=
                global_value(global_number(layout, coord, i)))
                return "value";
        }
    }
    return NULL;
}

void sim_check_plan(const dt_layout *src, const dt_layout *dst)
{
    static sim_array local[SIM_RANKS];
    char a[DT_LAYOUT_TEXT], b[DT_LAYOUT_TEXT], shape[DT_SHAPE_TEXT], text[1000];
    dt_plan *plan;
    ck_ok(dt_plan_create(src, dst, 4, NULL, &plan));
    sim_distribute(src, local);
    sim_run(plan, src, dst, local);
    const char *wrong = sim_wrong(dst, local);
    ck_assert_msg(!wrong, "%s: %s -> %s of %s: %s", wrong, dt_layout_print(src, a, sizeof a),
                  dt_layout_print(dst, b, sizeof b),
                  dt_shape_print(src->shape, shape, sizeof shape),
                  dt_plan_print(plan, text, sizeof text));
    dt_plan_destroy(&plan);
}
