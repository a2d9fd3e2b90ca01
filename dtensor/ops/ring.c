/* dtensor/ops/ring.c - see dtensor/ops/ring_internal.h. Rank 1 of 3:
 *
 *     gather, its own piece first        scatter, its own piece last
 *     step      0    1    2              step     0    1    2
 *     uses      1    0    2              makes    0    2    1
 *     sends     1    0                   adds          2    1    what came from rank 0
 *     receives  0    2                   sends    0    2 */
#include "dtensor/ops/ops_internal.h"
#include "dtensor/ops/ring_internal.h"

/* As nested S(1) has it: every axis, outermost first, cuts what the one before gave. */
static dti_piece piece_of(const dti_ring *g, int r)
{
    dti_piece p = {0, g->sequence};
    int inner = g->size;
    r = (r + 2 * g->size) % g->size;
    for (int i = 0; i < g->naxes; i++) {
        int64_t lo, hi;
        inner /= g->extent[i];
        dt_chunk(p.hi - p.lo, g->extent[i], r / inner % g->extent[i], &lo, &hi);
        p = (dti_piece){p.lo + lo, p.lo + hi};
    }
    return p;
}

dt_status dti_ring_open(dt_op_call *c, const dt_overlap_options *o, int64_t batch, int64_t sequence,
                        dti_ring *g)
{
    const dt_layout *layout = c->out_layout[0];
    *g = (dti_ring){.c = c, .naxes = o->naxes, .batch = batch, .sequence = sequence};
    for (int i = 0; i < o->naxes; i++)
        g->extent[i] = layout->grid->size[o->axis[i]];
    DT_TRY(dt_mesh_comm(dt_layout_mesh(layout), o->naxes, o->axis, DT_OVERLAP_CHANNEL, &g->comm));
    g->size = dt_comm_size(g->comm);
    g->rank = dt_comm_rank(g->comm);
    return DT_OK;
}

static dt_status new_piece(const dti_ring *g, dti_piece p, int64_t width, dt_dtype dtype,
                           dt_array *out)
{
    DT_TRY(dt_array_create(dt_op_heap(g->c), dtype, DT_SHAPE(g->batch, p.hi - p.lo, width),
                           DT_TAG_WORKSPACE, out));
    return DT_OK;
}

/* The same numbers in another type. */
static dt_status converted(const dti_ring *g, const dt_array *a, dt_dtype dtype, dt_array *out)
{
    if (a->dtype == dtype) {
        *out = dt_array_share(a);
        return DT_OK;
    }
    DT_TRY(dt_array_create(dt_op_heap(g->c), dtype, a->shape, DT_TAG_WORKSPACE, out));
    dt_array_cast(out, a);
    return DT_OK;
}

/* Start to send `out` to the next rank and to receive `in` from the one before. */
static dt_status pass_on(const dti_ring *g, const dt_array *out, dt_array *in, dt_work *work[2])
{
    DT_TRY(dt_send(g->comm, (g->rank + 1) % g->size, 1, &out, g->c->path, &work[0]));
    DT_TRY(dt_recv(g->comm, (g->rank + g->size - 1) % g->size, 1, &in, g->c->path, &work[1]));
    return DT_OK;
}

static dt_status wait_both(dt_work *work[2])
{
    const dt_status a = dt_work_wait(&work[0]), b = dt_work_wait(&work[1]);
    return a != DT_OK ? a : b;
}

/* One product, in the trace. */
static dt_status product(const dti_ring *g, dti_use_piece fn, void *arg, dti_piece p, dt_array *a)
{
    dt_trace *t = dt_world_trace(dt_mesh_world(dt_layout_mesh(g->c->out_layout[0])));
    dt_trace_record(t, "product", g->c->path, DT_TRACE_BEGIN, 0, 0);
    const dt_status st = dt_array_is_meta(a) ? DT_OK : fn(arg, p, a);
    dt_trace_record(t, "product", g->c->path, DT_TRACE_END, 0, 0);
    return st;
}

dt_status dti_ring_gather(const dti_ring *g, const dt_array *mine, dti_use_piece use, void *arg)
{
    const int64_t width = mine->shape.dim[2];
    dt_array now = {0}, next = {0};
    dt_status st = converted(g, mine, g->c->dtype, &now);
    for (int s = 0; s < g->size && st == DT_OK; s++) {
        dt_work *work[2] = {NULL, NULL};
        dt_array wide = {0};
        if (s + 1 < g->size) {
            st = new_piece(g, piece_of(g, g->rank - s - 1), width, now.dtype, &next);
            if (st == DT_OK)
                st = pass_on(g, &now, &next, work);
        }
        if (st == DT_OK)
            st = converted(g, &now, mine->dtype, &wide);
        if (st == DT_OK)
            st = product(g, use, arg, piece_of(g, g->rank - s), &wide);
        const dt_status waited = wait_both(work);
        st = st != DT_OK ? st : waited;
        dt_array_release(&wide);
        dt_array_release(&now);
        now = next;
        next = (dt_array){0};
    }
    dt_array_release(&now);
    return st;
}

static dt_status add(const dti_ring *g, dt_array *sum, const dt_array *term)
{
    dt_array wide = {0};
    DT_TRY(converted(g, term, sum->dtype, &wide));
    dt_array_add_into(sum, &wide);
    dt_array_release(&wide);
    return DT_OK;
}

dt_status dti_ring_scatter(const dti_ring *g, dti_use_piece make, void *arg, dt_array *out)
{
    const int64_t width = out->shape.dim[2];
    dt_array sum = {0}, so_far = {0}, sent = {0};
    dt_work *work[2] = {NULL, NULL};
    dt_status st = DT_OK;
    for (int s = 0; s < g->size && st == DT_OK; s++) {
        const dti_piece p = piece_of(g, g->rank - 1 - s);
        st = new_piece(g, p, width, out->dtype, &sum);
        if (st == DT_OK)
            st = product(g, make, arg, p, &sum);
        const dt_status waited = wait_both(work);
        st = st != DT_OK ? st : waited;
        dt_array_release(&sent);
        if (st == DT_OK && so_far.storage)
            st = add(g, &sum, &so_far);
        dt_array_release(&so_far);
        if (st == DT_OK && s + 1 == g->size)
            dt_array_copy(out, &sum);
        if (st == DT_OK && s + 1 < g->size)
            st = converted(g, &sum, g->c->dtype, &sent);
        if (st == DT_OK && s + 1 < g->size)
            st = new_piece(g, piece_of(g, g->rank - 2 - s), width, sent.dtype, &so_far);
        if (st == DT_OK && s + 1 < g->size)
            st = pass_on(g, &sent, &so_far, work);
        dt_array_release(&sum);
    }
    const dt_status waited = wait_both(work);
    dt_array_release(&sent);
    dt_array_release(&so_far);
    return st != DT_OK ? st : waited;
}
