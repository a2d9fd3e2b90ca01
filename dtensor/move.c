/* dtensor/move.c - executes redistribution plans for lists of local arrays, coalesced.
 *
 * All items go through their plans in lockstep: local steps as soon as they are next; then the collective that the
 * first unfinished item needs, together with every item whose next step is of that kind on the same axes. A collective
 * is pack (copy what each member gets, piece after piece) -> call -> unpack; pieces that already lie one after the
 * other, as rows do, are not copied. Read first: placements/dt_plan.h. */
#include "dtensor/tape_internal.h"

#include <stdlib.h>
#include <string.h>

/* One tensor on its way. */
typedef struct item {
    dt_local now;
    const dt_plan *plan;
    int next;
    dt_array packed, received; /* of the step under way */
    int64_t *send, *recv;      /* elements per member */
} item;

typedef struct move {
    dt_mesh *mesh;
    int channel;
    const char *label;
    dt_tag tag;
    int n;
    item *item;
} move;

static const dt_step *next_step(const item *it)
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

static dt_status new_array(const move *m, dt_dtype dtype, dt_shape shape, dt_array *out)
{
    DT_TRY(dt_array_create(dt_mesh_heap(m->mesh), dtype, shape, m->tag, out));
    return DT_OK;
}

static dt_status intern(const move *m, const dt_layout *layout, const dt_layout **out)
{
    DT_TRY(dt_mesh_layout(m->mesh, layout, out));
    return DT_OK;
}

/* Replace what the item holds; takes over `array`. */
static dt_status advance(const move *m, item *it, const dt_step *step, dt_array *array)
{
    dt_array_release(&it->now.array);
    it->now.array = *array;
    *array = (dt_array){0};
    it->next++;
    DT_TRY(intern(m, &step->after, &it->now.layout));
    return DT_OK;
}

/* The offset of global index `global` in a local array that starts at `origin`. */
static void relative(const int64_t *global, const int64_t *origin, int ndim, int64_t *out)
{
    for (int d = 0; d < ndim; d++)
        out[d] = global[d] - origin[d];
}

static dt_status local_step(const move *m, item *it, const dt_step *step)
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

/* Copy between a local array laid out as `whole` (mine) and pieces that lie one after the other in `pieces`, one a member:
 * the overlap of my block with the member's block under `theirs`. Counts elements per member; copies if pieces has bytes. */
static void each_piece(const move *m, const dt_step *step, const dt_layout *mine,
                       const dt_layout *theirs, dt_array *whole, dt_array *pieces, bool pack,
                       int64_t *count)
{
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

/* Pieces along dim lie one after the other already if nothing but dims of size 1 comes before it. */
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

/* Fill `packed` (what I send), counts, and an empty `received`. */
static dt_status prepare(const move *m, item *it, const dt_step *step)
{
    const int members = member_count(m->mesh, step);
    const int me_only = step->kind == DT_STEP_ALL_REDUCE || step->kind == DT_STEP_ALL_GATHER;
    const dt_dtype dtype = it->now.array.dtype;
    const dt_shape after = dt_layout_local(&step->after, dt_mesh_coord(m->mesh), NULL);
    it->send = calloc((size_t)members * 2, sizeof *it->send);
    DT_REQUIRE(it->send, DT_ERR_NOMEM, "counts of %d ranks", members);
    it->recv = it->send + members;
    if (step->kind == DT_STEP_ALL_GATHER || step->kind == DT_STEP_ALL_TO_ALL)
        each_piece(m, step, &step->after, &step->before, NULL, NULL, false, it->recv);
    if (step->kind == DT_STEP_REDUCE_SCATTER || step->kind == DT_STEP_ALL_TO_ALL)
        each_piece(m, step, &step->before, &step->after, NULL, NULL, true, it->send);
    if (me_only ||
        (step->kind == DT_STEP_REDUCE_SCATTER && in_order(it->now.array.shape, step->dim_to))) {
        it->packed = dt_array_share(&it->now.array);
    } else {
        DT_TRY(new_array(m, dtype, DT_SHAPE(dt_array_count(&it->now.array)), &it->packed));
        each_piece(m, step, &step->before, &step->after, &it->now.array, &it->packed, true,
                   it->send);
    }
    const bool flat = step->kind == DT_STEP_ALL_TO_ALL ||
                      (step->kind == DT_STEP_ALL_GATHER && !in_order(after, step->dim_from));
    DT_TRY(new_array(m, dtype, flat ? DT_SHAPE(total(it->recv, members)) : after, &it->received));
    return DT_OK;
}

/* From `received` to the item's new local array. */
static dt_status finish(const move *m, item *it, const dt_step *step)
{
    const dt_shape after = dt_layout_local(&step->after, dt_mesh_coord(m->mesh), NULL);
    if (!dt_shape_equal(it->received.shape, after)) {
        dt_array out = {0};
        DT_TRY(new_array(m, it->now.array.dtype, after, &out));
        each_piece(m, step, &step->after, &step->before, &out, &it->received, false, it->recv);
        dt_array_release(&it->received);
        it->received = out;
    }
    dt_array_release(&it->packed);
    free(it->send);
    it->send = it->recv = NULL;
    DT_TRY(advance(m, it, step, &it->received));
    return DT_OK;
}

static dt_status issue(dt_comm *comm, dt_step_kind kind, int n, const dt_part *part,
                       const char *label, dt_work **work)
{
    switch (kind) {
    case DT_STEP_ALL_GATHER: return dt_all_gather(comm, n, part, label, work);
    case DT_STEP_REDUCE_SCATTER: return dt_reduce_scatter(comm, n, part, label, work);
    case DT_STEP_ALL_REDUCE: return dt_all_reduce(comm, n, part, DT_REDUCE_SUM, label, work);
    case DT_STEP_ALL_TO_ALL: return dt_all_to_all(comm, n, part, label, work);
    case DT_STEP_SLICE:
    case DT_STEP_KEEP:
    case DT_STEP_PAD:
    case DT_STEP_RELABEL:
    case DT_NSTEP_KINDS: break;
    }
    return DT_ERROR(DT_ERR_STATE, "step kind %d is not a collective", (int)kind);
}

static bool same_call(const item *it, const dt_step *step)
{
    const dt_step *s = next_step(it);
    return s && s->kind == step->kind && s->naxes == step->naxes &&
           memcmp(s->axis, step->axis, (size_t)s->naxes) == 0;
}

/* One coalesced collective: `step` of `first` and the like steps of later items. */
static dt_status collective(move *m, int first, const dt_step *step, dt_part *part, int *index)
{
    dt_comm *comm = NULL;
    DT_TRY(dt_mesh_comm(m->mesh, step->naxes, step->axis, m->channel, &comm));
    int n = 0;
    for (int i = first; i < m->n; i++) {
        item *it = &m->item[i];
        if (!same_call(it, step))
            continue;
        DT_TRY(prepare(m, it, next_step(it)));
        part[n] = (dt_part){&it->packed, &it->received, it->send, it->recv};
        index[n++] = i;
    }
    dt_work *work = NULL;
    DT_TRY(issue(comm, step->kind, n, part, m->label, &work));
    DT_TRY(dt_work_wait(&work));
    for (int i = 0; i < n; i++) {
        item *it = &m->item[index[i]];
        DT_TRY(finish(m, it, next_step(it)));
    }
    return DT_OK;
}

/* Run local steps that are next; returns in *first the first item that waits for a collective, or n. */
static dt_status run_local(move *m, int *first)
{
    *first = m->n;
    for (int i = m->n - 1; i >= 0; i--) {
        item *it = &m->item[i];
        const dt_step *step = next_step(it);
        for (; step && !dt_step_moves(step->kind); step = next_step(it))
            DT_TRY(local_step(m, it, step));
        if (step)
            *first = i;
    }
    return DT_OK;
}

static dt_status run(move *m, dt_part *part, int *index)
{
    for (;;) {
        int first = 0;
        DT_TRY(run_local(m, &first));
        if (first == m->n)
            return DT_OK;
        DT_TRY(collective(m, first, next_step(&m->item[first]), part, index));
    }
}

dt_status dt_move(int n, const dt_local *src, const dt_layout *const *dst, int channel,
                  const char *label, dt_tag tag, dt_local *out)
{
    if (n == 0)
        return DT_OK;
    if (n == 1 && src->layout == dst[0]) { /* the hot no-op */
        *out = (dt_local){src->layout, dt_array_share(&src->array)};
        return DT_OK;
    }
    dt_status st = DT_OK;
    move m = {dt_layout_mesh(src[0].layout),  channel, label, tag, n,
              calloc((size_t)n, sizeof(item))};
    dt_part *part = calloc((size_t)n, sizeof *part);
    int *index = calloc((size_t)n, sizeof *index);
    if (!m.item || !part || !index) {
        st = DT_ERROR(DT_ERR_NOMEM, "moving %d tensors", n);
        goto done;
    }
    for (int i = 0; i < n; i++) {
        m.item[i].now = (dt_local){src[i].layout, dt_array_share(&src[i].array)};
        DT_TRY_TO(done, st, dt_mesh_plan(m.mesh, src[i].layout, dst[i], &m.item[i].plan));
    }
    DT_TRY_TO(done, st, run(&m, part, index));
    for (int i = 0; i < n; i++) {
        out[i] = (dt_local){dst[i], m.item[i].now.array};
        m.item[i].now.array = (dt_array){0};
    }
done:
    for (int i = 0; m.item && i < n; i++) {
        dt_array_release(&m.item[i].now.array);
        dt_array_release(&m.item[i].packed);
        dt_array_release(&m.item[i].received);
        free(m.item[i].send);
    }
    free(m.item);
    free(part);
    free(index);
    return st;
}
