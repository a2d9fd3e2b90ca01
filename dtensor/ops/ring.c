/* dtensor/ops/ring.c - see dtensor/ops/ring_internal.h. Rank 1 of 3:
 *
 *     gather, its own piece first        scatter, its own piece last
 *     step      0    1    2              step     0    1    2
 *     uses      1    0    2              makes    0    2    1
 *     sends     1    0                   adds          2    1    what came from rank 0
 *     receives  0    2                   sends    0    2 */
#include "dtensor/ops/ops_internal.h"
#include "dtensor/ops/ring_internal.h"

static dti_piece piece_of(const dti_ring *g, int r)
{
    dti_piece p;
    dt_chunk(g->sequence, g->size, (r + 2 * g->size) % g->size, &p.lo, &p.hi);
    return p;
}

dt_status dti_ring_open(dt_op_call *c, int axis, int64_t batch, int64_t sequence, dti_ring *g)
{
    const uint8_t axes[] = {(uint8_t)axis};
    *g = (dti_ring){.c = c, .batch = batch, .sequence = sequence};
    DT_TRY(dt_mesh_comm(dt_layout_mesh(c->out_layout[0]), 1, axes, DT_OVERLAP_CHANNEL, &g->comm));
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

static void trace(const dti_ring *g, dt_trace_phase phase)
{
    dt_trace *t = dt_world_trace(dt_mesh_world(dt_layout_mesh(g->c->out_layout[0])));
    if (t)
        dt_trace_record(t, "product", g->c->path, phase, 0, 0);
}

dt_status dti_ring_gather(const dti_ring *g, const dt_array *mine, dti_use_piece use, void *arg)
{
    const int64_t width = mine->shape.dim[2];
    dt_array now = dt_array_share(mine), next = {0};
    dt_status st = DT_OK;
    for (int s = 0; s < g->size && st == DT_OK; s++) {
        dt_work *work[2] = {NULL, NULL};
        if (s + 1 < g->size) {
            st = new_piece(g, piece_of(g, g->rank - s - 1), width, mine->dtype, &next);
            if (st == DT_OK)
                st = pass_on(g, &now, &next, work);
        }
        trace(g, DT_TRACE_BEGIN);
        if (st == DT_OK)
            st = use(arg, piece_of(g, g->rank - s), &now);
        trace(g, DT_TRACE_END);
        const dt_status waited = wait_both(work);
        st = st != DT_OK ? st : waited;
        dt_array_release(&now);
        now = next;
        next = (dt_array){0};
    }
    dt_array_release(&now);
    return st;
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
        trace(g, DT_TRACE_BEGIN);
        if (st == DT_OK)
            st = make(arg, p, &sum);
        trace(g, DT_TRACE_END);
        const dt_status waited = wait_both(work);
        st = st != DT_OK ? st : waited;
        dt_array_release(&sent);
        if (st == DT_OK && so_far.storage)
            dt_array_add_into(&sum, &so_far);
        dt_array_release(&so_far);
        sent = sum;
        sum = (dt_array){0};
        if (st == DT_OK && s + 1 < g->size)
            st = new_piece(g, piece_of(g, g->rank - 2 - s), width, out->dtype, &so_far);
        if (st == DT_OK && s + 1 < g->size)
            st = pass_on(g, &sent, &so_far, work);
    }
    const dt_status waited = wait_both(work);
    if (st == DT_OK)
        dt_array_copy(out, &sent);
    dt_array_release(&sent);
    dt_array_release(&so_far);
    return st != DT_OK ? st : waited;
}
