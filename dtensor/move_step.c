/* dtensor/move_step.c - one step of one tensor's redistribution: a local copy, or pack and unpack
 * around a collective. Read first: dtensor/move.c. */
#include "dtensor/move_internal.h"
#include "dtensor/tape_internal.h"

#include <stdlib.h>
#include <string.h>

const dt_step *dti_step_next(const dti_item *it)
{
    return it->next < it->plan->nsteps ? &it->plan->step[it->next] : NULL;
}

/* My coordinates, with those on the step's axes replaced by the ones of its member r. */
static void member_coord(const dt_mesh *mesh, const dt_step *step, int r, int coord[DT_MAX_AXES])
{
    const dt_grid *grid = dt_mesh_grid(mesh);
    memcpy(coord, dt_mesh_coord(mesh), sizeof(int) * (size_t)grid->naxes);
    for (int i = step->naxes - 1; i >= 0; i--) {
        const int size = grid->size[step->axis[i]];
        coord[step->axis[i]] = r % size;
        r /= size;
    }
}

static int member_count(const dt_mesh *mesh, const dt_step *step)
{
    int n = 1;
    for (int i = 0; i < step->naxes; i++)
        n *= dt_mesh_grid(mesh)->size[step->axis[i]];
    return n;
}

static dt_status new_array(const dt_moving *m, dt_dtype dtype, dt_shape shape, dt_array *out)
{
    DT_TRY(dt_array_create(dt_mesh_heap(m->mesh), dtype, shape, m->tag, out));
    return DT_OK;
}

static dt_status intern(const dt_moving *m, const dt_layout *layout, const dt_layout **out)
{
    DT_TRY(dt_mesh_layout(m->mesh, layout, out));
    return DT_OK;
}

/* Replace what the item holds; takes over `array`. */
static dt_status advance(const dt_moving *m, dti_item *it, const dt_step *step, dt_array *array)
{
    dt_array_release(&it->now.array);
    it->now.array = *array;
    *array = (dt_array){0};
    it->next++;
    DT_TRY(intern(m, &step->after, &it->now.layout));
    return DT_OK;
}

dt_status dti_step_skip(const dt_moving *m, dti_item *it)
{
    const dt_dtype dtype = it->now.array.dtype;
    dt_array_release(&it->now.array);
    it->now.layout = it->dst;
    it->next = it->plan->nsteps;
    DT_TRY(new_array(m, dtype, dt_mesh_local(it->dst, NULL), &it->now.array));
    return DT_OK;
}

/* The offset of global index `global` in a local array that starts at `origin`. */
static void relative(const int64_t *global, const int64_t *origin, int ndim, int64_t *out)
{
    for (int d = 0; d < ndim; d++)
        out[d] = global[d] - origin[d];
}

dt_status dti_step_local(const dt_moving *m, dti_item *it, const dt_step *step)
{
    const int *coord = dt_mesh_coord(m->mesh);
    int64_t before_at[DT_MAX_DIMS], after_at[DT_MAX_DIMS], offset[DT_MAX_DIMS];
    const int64_t zero[DT_MAX_DIMS] = {0};
    const dt_shape before = dt_layout_local(&step->before, coord, before_at);
    const dt_shape after = dt_layout_local(&step->after, coord, after_at);
    const uint8_t made_partial = (uint8_t)(step->after.partial & ~step->before.partial);
    dt_array out = {0};
    if (step->kind == DT_STEP_RELABEL ||
        (step->kind == DT_STEP_KEEP && dti_holds_value(it->now.layout, made_partial))) {
        out = dt_array_share(&it->now.array);
    } else {
        DT_TRY(new_array(m, it->now.array.dtype, after, &out));
        if (step->kind != DT_STEP_SLICE)
            dt_array_zero(&out);
        if (step->kind == DT_STEP_SLICE) {
            relative(after_at, before_at, after.ndim, offset);
            dt_array_copy_block(&out, zero, &it->now.array, offset, after);
        } else if (step->kind == DT_STEP_PAD) {
            relative(before_at, after_at, before.ndim, offset);
            dt_array_copy_block(&out, offset, &it->now.array, zero, before);
        }
    }
    DT_TRY(advance(m, it, step, &out));
    return DT_OK;
}

/* The block that two layouts both give: [lo, hi) in every dim, as global offset and extent. */
static dt_shape overlap(const dt_layout *a, const int *coord_a, const dt_layout *b,
                        const int *coord_b, int64_t at[DT_MAX_DIMS])
{
    dt_shape extent = {.ndim = a->shape.ndim};
    for (int d = 0; d < extent.ndim; d++) {
        int64_t lo_a, hi_a, lo_b, hi_b;
        dt_layout_range(a, d, coord_a, &lo_a, &hi_a);
        dt_layout_range(b, d, coord_b, &lo_b, &hi_b);
        at[d] = lo_a > lo_b ? lo_a : lo_b;
        const int64_t end = hi_a < hi_b ? hi_a : hi_b;
        extent.dim[d] = end > at[d] ? end - at[d] : 0;
    }
    return extent;
}

/* Copy between my local array `whole` (before the step to pack, after it to unpack) and pieces that
 * lie one after the other in `pieces`, one a member: the overlap of my block with the member's on
 * the other side of the step. Counts elements per member; copies if there are pieces. */
static void each_piece(const dt_moving *m, const dt_step *step, dt_array *whole, dt_array *pieces,
                       bool pack, int64_t *count)
{
    const dt_layout *mine = pack ? &step->before : &step->after;
    const dt_layout *theirs = pack ? &step->after : &step->before;
    const int *my_coord = dt_mesh_coord(m->mesh);
    const int members = member_count(m->mesh, step);
    const int64_t zero[DT_MAX_DIMS] = {0};
    int64_t origin[DT_MAX_DIMS], at[DT_MAX_DIMS], offset[DT_MAX_DIMS];
    (void)dt_layout_local(mine, my_coord, origin);
    int64_t done = 0;
    for (int r = 0; r < members; r++) {
        int coord[DT_MAX_AXES];
        member_coord(m->mesh, step, r, coord);
        const dt_shape extent = overlap(mine, my_coord, theirs, coord, at);
        count[r] = dt_shape_count(extent);
        if (pieces && count[r] > 0) {
            dt_array piece = {pieces->storage, pieces->offset + done, extent, pieces->dtype};
            relative(at, origin, extent.ndim, offset);
            if (pack)
                dt_array_copy_block(&piece, zero, whole, offset, extent);
            else
                dt_array_copy_block(whole, offset, &piece, zero, extent);
        }
        done += count[r];
    }
}

/* Pieces along dim lie one after the other already if nothing but dims of size 1 comes before
 * it. */
static bool in_order(dt_shape local, int dim)
{
    return dt_shape_outer(local, dim) == 1;
}

static int64_t total(const int64_t *count, int n)
{
    int64_t sum = 0;
    for (int i = 0; i < n; i++)
        sum += count[i];
    return sum;
}

/* The array that a collective's result goes to: the target, if it is the last step. */
static dt_status result_array(const dt_moving *m, const dti_item *it, dt_shape shape, dt_array *out)
{
    if (it->target.storage && it->next == it->plan->nsteps - 1)
        *out = dt_array_share(&it->target);
    else
        DT_TRY(new_array(m, it->now.array.dtype, shape, out));
    return DT_OK;
}

/* Fill `packed` (what I send), counts, and an empty `received`. */
dt_status dti_step_prepare(const dt_moving *m, dti_item *it, const dt_step *step)
{
    const int members = member_count(m->mesh, step);
    const int me_only = step->kind == DT_STEP_ALL_REDUCE || step->kind == DT_STEP_ALL_GATHER;
    const dt_dtype dtype = it->now.array.dtype;
    const dt_shape after = dt_layout_local(&step->after, dt_mesh_coord(m->mesh), NULL);
    it->send = calloc((size_t)members * 2, sizeof *it->send);
    DT_REQUIRE(it->send, DT_ERR_NOMEM, "counts of %d ranks", members);
    it->recv = it->send + members;
    if (step->kind == DT_STEP_ALL_GATHER || step->kind == DT_STEP_ALL_TO_ALL)
        each_piece(m, step, NULL, NULL, false, it->recv);
    if (step->kind == DT_STEP_REDUCE_SCATTER || step->kind == DT_STEP_ALL_TO_ALL)
        each_piece(m, step, NULL, NULL, true, it->send);
    if (me_only ||
        (step->kind == DT_STEP_REDUCE_SCATTER && in_order(it->now.array.shape, step->dim_to))) {
        it->packed = dt_array_share(&it->now.array);
    } else {
        DT_TRY(new_array(m, dtype, DT_SHAPE(dt_array_count(&it->now.array)), &it->packed));
        each_piece(m, step, &it->now.array, &it->packed, true, it->send);
    }
    const bool flat = step->kind == DT_STEP_ALL_TO_ALL ||
                      (step->kind == DT_STEP_ALL_GATHER && !in_order(after, step->dim_from));
    if (flat)
        DT_TRY(new_array(m, dtype, DT_SHAPE(total(it->recv, members)), &it->received));
    else
        DT_TRY(result_array(m, it, after, &it->received));
    return DT_OK;
}

/* From `received` to the item's new local array. */
dt_status dti_step_finish(const dt_moving *m, dti_item *it, const dt_step *step)
{
    const dt_shape after = dt_layout_local(&step->after, dt_mesh_coord(m->mesh), NULL);
    if (!dt_shape_equal(it->received.shape, after)) {
        dt_array out = {0};
        DT_TRY(result_array(m, it, after, &out));
        each_piece(m, step, &out, &it->received, false, it->recv);
        dt_array_release(&it->received);
        it->received = out;
    }
    dt_array_release(&it->packed);
    free(it->send);
    it->send = it->recv = NULL;
    DT_TRY(advance(m, it, step, &it->received));
    return DT_OK;
}
