/* comm/plan.c - a call written down before it is queued: which bytes go to whom, where sums go,
 * what it costs. Read next: run.c. */
#include "comm/comm_internal.h"

#include <stdlib.h>

int64_t dti_piece_of(const int64_t *counts, int64_t total, int k, int r)
{
    return counts ? counts[r] : dti_chunk(total, k, r);
}

/* One after the other: the pieces of all ranks in an array. */
static void split(dti_piece *row, const dt_array *a, const int64_t *counts, int k)
{
    char *at = dt_array_data(a);
    for (int r = 0; r < k; r++) {
        const size_t element = dt_dtype_size(a->dtype);
        const size_t bytes = (size_t)dti_piece_of(counts, dt_array_count(a), k, r) * element;
        row[r] = (dti_piece){at, bytes};
        at = at ? at + bytes : NULL;
    }
}

/* The same bytes to everybody. */
static void repeat(dti_piece *row, dti_piece piece, int k)
{
    for (int r = 0; r < k; r++)
        row[r] = piece;
}

static void plan_reduction(dt_work *w, int i, const int64_t *counts)
{
    const int k = w->comm->size, me = w->comm->rank;
    dti_operand *o = &w->operand[i];
    split(w->first.send + i * k, &o->in, counts, k);
    const dti_piece mine = w->first.send[i * k + me];
    repeat(w->first.recv + i * k, (dti_piece){NULL, mine.bytes}, k);
    w->first.recv[i * k + me].bytes = 0;
    o->sum = dt_array_data(&o->out);
    if (w->second.n > 0) {
        split(w->second.recv + i * k, &o->out, NULL, k);
        o->sum = w->second.recv[i * k + me].data;
        repeat(w->second.send + i * k, w->second.recv[i * k + me], k);
    }
    o->sum_count = (int64_t)(mine.bytes / dt_dtype_size(o->dtype));
}

static void plan_part(dt_work *w, int i, const dt_part *part)
{
    const int k = w->comm->size, me = w->comm->rank;
    dti_operand *o = &w->operand[i];
    w->first.element_bytes[i] = dt_dtype_size(o->dtype);
    const dt_array *in = o->in.storage ? &o->in : &o->out;
    const dt_array *out = &o->out;
    dti_piece *send = w->first.send + i * w->first.width;
    dti_piece *recv = w->first.recv + i * w->first.width;
    switch (w->kind) {
    case DT_CALL_ALL_GATHER:
        repeat(send, (dti_piece){dt_array_data(in), dt_array_bytes(in)}, k);
        split(recv, out, part->recv, k);
        break;
    case DT_CALL_REDUCE_SCATTER: plan_reduction(w, i, part->send); break;
    case DT_CALL_ALL_REDUCE: plan_reduction(w, i, NULL); break;
    case DT_CALL_ALL_TO_ALL:
        split(send, in, part->send, k);
        split(recv, out, part->recv, k);
        break;
    case DT_CALL_BROADCAST:
        if (me == w->peer)
            repeat(send, (dti_piece){dt_array_data(in), dt_array_bytes(in)}, k);
        recv[w->peer] = (dti_piece){dt_array_data(out), dt_array_bytes(out)};
        break;
    case DT_CALL_SEND: *send = (dti_piece){dt_array_data(in), dt_array_bytes(in)}; break;
    case DT_CALL_RECV: *recv = (dti_piece){dt_array_data(out), dt_array_bytes(out)}; break;
    case DT_CALL_BARRIER:
    case DT_NCALLS: break;
    }
}

static int64_t payload(const dt_work *w, int i, const dt_part *part)
{
    const int64_t k = w->comm->size, me = w->comm->rank;
    const dti_operand *o = &w->operand[i];
    const int64_t element = (int64_t)dt_dtype_size(o->dtype);
    const int64_t in = o->in.storage ? dt_array_count(&o->in) * element : 0;
    const int64_t out = o->out.storage ? dt_array_count(&o->out) * element : 0;
    switch (w->kind) {
    case DT_CALL_ALL_GATHER: return out * (k - 1) / k;
    case DT_CALL_REDUCE_SCATTER: return in * (k - 1) / k;
    case DT_CALL_ALL_REDUCE: return 2 * in * (k - 1) / k;
    case DT_CALL_ALL_TO_ALL:
        return in - element * dti_piece_of(part->send, in / element, (int)k, (int)me);
    case DT_CALL_BROADCAST: return me == w->peer ? out : 0;
    case DT_CALL_SEND: return in;
    case DT_CALL_RECV:
    case DT_CALL_BARRIER:
    case DT_NCALLS: return 0;
    }
    return 0;
}

/* A barrier is an exchange of one byte with everybody. */
static dt_status plan_barrier(dt_work *w)
{
    const int k = w->comm->size;
    DT_TRY(dti_work_host_copy(w, (size_t)k + 1));
    w->first.element_bytes[0] = 1;
    repeat(w->first.send, (dti_piece){w->host_copy + k, 1}, k);
    for (int r = 0; r < k; r++)
        w->first.recv[r] = (dti_piece){w->host_copy + r, 1};
    return DT_OK;
}

/* Where a backend cannot lend, the received terms of reductions go to memory of this call. */
static dt_status plan_staging(dt_work *w)
{
    const int cells = w->n * w->first.width;
    size_t total = 0;
    for (int c = 0; c < cells; c++)
        total += (w->first.recv[c].bytes + 15) / 16 * 16;
    if (total == 0)
        return DT_OK;
    DT_TRY(dt_array_create(w->operand[0].out.storage->heap, DT_U8, DT_SHAPE((int64_t)total),
                           DT_TAG_COMM, &w->staging));
    char *at = dt_array_data(&w->staging);
    for (int c = 0; c < cells; c++) {
        w->first.recv[c].data = at;
        at += (w->first.recv[c].bytes + 15) / 16 * 16;
    }
    return DT_OK;
}

dt_status dti_plan_work(dt_work *w, const dti_call_options *o, const dt_part *part)
{
    const dt_world *world = w->comm->world;
    w->op = o->op;
    w->peer = o->peer;
    for (int i = 0; i < w->n && w->kind != DT_CALL_BARRIER; i++) {
        dti_operand *operand = &w->operand[i];
        operand->dtype = part[i].in ? part[i].in->dtype : part[i].out->dtype;
        if (part[i].in)
            operand->in = dt_array_share(part[i].in);
        if (part[i].out)
            operand->out = dt_array_share(part[i].out);
        if (w->first.n > 0)
            plan_part(w, i, &part[i]);
        w->bytes += payload(w, i, &part[i]);
    }
    if (w->kind == DT_CALL_BARRIER && !w->comm->ops->collective)
        DT_TRY(plan_barrier(w));
    if (w->source && w->first.n > 0 && !w->comm->ops->lends)
        DT_TRY(plan_staging(w));
    w->trace = world->trace;
    w->delay_s = world->delay_mask >> w->kind & 1 ? world->delay_s : 0;
    dti_prepare_faults(w);
    if (w->kind != DT_CALL_SEND && w->kind != DT_CALL_RECV)
        w->shape = dti_shape_of(w, &w->whole);
    if (w->compare.n > 0)
        dti_prepare_compare(w);
    return dti_work_scratch(w);
}
