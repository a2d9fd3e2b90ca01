/* comm/nccl_call.c - one call: its parts in one group of NCCL's, on the communicator's stream,
 * between two events.
 *
 *     compute stream  ... makes `in` --+                                +-- uses `out` ...
 *                                      v before                   done  ^
 *     communicator    ................ all-gather, reduce-scatter ... --+ (put there by the wait)
 *
 * Where NCCL's own reduction would round 16-bit sums at every hop, or has none because pieces
 * are of different sizes, the terms are exchanged and summed here, in rank order and f32, as on
 * the other backends. Read first: comm/nccl_internal.h. */
#include "comm/nccl_group_internal.h"

#include <stdlib.h>

static ncclDataType_t type_of(dt_dtype dtype)
{
    static const ncclDataType_t types[DT_NDTYPES] = {
        [DT_F32] = ncclFloat32, [DT_BF16] = ncclBfloat16, [DT_F16] = ncclFloat16,
        [DT_F64] = ncclFloat64, [DT_I32] = ncclInt32,     [DT_I64] = ncclInt64,
        [DT_U8] = ncclUint8};
    return types[dtype];
}

static ncclRedOp_t op_of(dt_reduce op)
{
    return op == DT_REDUCE_SUM ? ncclSum : op == DT_REDUCE_MAX ? ncclMax : ncclMin;
}

static dti_nccl *group_of(const dt_work *w)
{
    return w->comm->nccl[w->group];
}

/* One part as pieces for and from each rank, in elements. */
typedef struct pieces {
    const dt_comm *comm;
    dti_nccl *g;
    char *in, *out, *terms; /* terms: [size, my piece], where a reduction's terms come together */
    int64_t nin, nout;
    const int64_t *send, *recv; /* counts; NULL: even */
    dt_dtype dtype;
    dt_reduce op;
    int root;
} pieces;

static char *at(const pieces *p, char *base, int64_t element)
{
    return base ? base + element * (int64_t)dt_dtype_size(p->dtype) : NULL;
}

/* Pieces to and from everybody; `from` NULL: the same `n` elements to all. */
static ncclResult_t exchange(const pieces *p, bool to_terms)
{
    const int k = p->comm->size, me = p->comm->rank;
    ncclResult_t result = ncclSuccess;
    int64_t from = 0, to = 0;
    const int64_t mine = dti_piece_of(p->send, p->nin, k, me);
    for (int r = 0; r < k && result == ncclSuccess; r++) {
        const int64_t ns = dti_piece_of(p->send, p->nin, k, r);
        const int64_t nr = to_terms ? mine : dti_piece_of(p->recv, p->nout, k, r);
        if (ns > 0)
            result = ncclSend(at(p, p->in, from), (size_t)ns, type_of(p->dtype), r, p->g->comm,
                              p->g->stream);
        if (nr > 0 && result == ncclSuccess)
            result = ncclRecv(at(p, to_terms ? p->terms : p->out, to), (size_t)nr,
                              type_of(p->dtype), r, p->g->comm, p->g->stream);
        from += ns;
        to += nr;
    }
    return result;
}

/* Everybody's piece of `out`, from where it lies in `in`, or in `out` itself. */
static ncclResult_t gather(const pieces *p, const char *mine)
{
    const int k = p->comm->size;
    ncclResult_t result = ncclSuccess;
    int64_t to = 0;
    for (int r = 0; r < k && result == ncclSuccess; r++) {
        const int64_t n = dti_piece_of(p->recv, p->nout, k, r);
        if (n > 0)
            result = ncclBroadcast(r == p->comm->rank ? mine : at(p, p->out, to), at(p, p->out, to),
                                   (size_t)n, type_of(p->dtype), r, p->g->comm, p->g->stream);
        to += n;
    }
    return result;
}

static bool is_even(const int64_t *counts, int64_t total, int k)
{
    for (int r = 0; counts && r < k; r++)
        if (counts[r] != counts[0])
            return false;
    return total % k == 0;
}

static bool sums_here(dt_call kind, const pieces *p)
{
    const bool half = p->dtype == DT_BF16 || p->dtype == DT_F16;
    const int k = p->comm->size;
    if (kind == DT_CALL_ALL_REDUCE)
        return half && k > 2 && p->op == DT_REDUCE_SUM;
    return kind == DT_CALL_REDUCE_SCATTER && (half || !is_even(p->send, p->nin, k));
}

static ncclResult_t enqueue(dt_call kind, const pieces *p)
{
    const ncclDataType_t type = type_of(p->dtype);
    dti_nccl *g = p->g;
    const int k = p->comm->size;
    if (p->nin == 0 && p->nout == 0)
        return ncclSuccess;
    if (sums_here(kind, p))
        return exchange(p, true);
    switch (kind) {
    case DT_CALL_ALL_GATHER:
        if (is_even(p->recv, p->nout, k))
            return ncclAllGather(p->in, p->out, (size_t)p->nin, type, g->comm, g->stream);
        return gather(p, p->in);
    case DT_CALL_REDUCE_SCATTER:
        return ncclReduceScatter(p->in, p->out, (size_t)p->nout, type, op_of(p->op), g->comm,
                                 g->stream);
    case DT_CALL_ALL_REDUCE:
        return ncclAllReduce(p->in, p->out, (size_t)p->nin, type, op_of(p->op), g->comm, g->stream);
    case DT_CALL_ALL_TO_ALL: return exchange(p, false);
    case DT_CALL_BROADCAST:
        return ncclBroadcast(p->in ? p->in : p->out, p->out, (size_t)p->nout, type, p->root,
                             g->comm, g->stream);
    case DT_CALL_SEND: return ncclSend(p->in, (size_t)p->nin, type, 1, g->comm, g->stream);
    case DT_CALL_RECV: return ncclRecv(p->out, (size_t)p->nout, type, 0, g->comm, g->stream);
    case DT_CALL_BARRIER:
    case DT_NCALLS: break;
    }
    return ncclInvalidUsage;
}

/* Counts are there only in calls that use them. */
static pieces pieces_of(dt_work *w, int i, const dt_part *part)
{
    const dti_operand *o = &w->operand[i];
    const bool sends = w->kind == DT_CALL_REDUCE_SCATTER || w->kind == DT_CALL_ALL_TO_ALL;
    const bool receives = w->kind == DT_CALL_ALL_GATHER || w->kind == DT_CALL_ALL_TO_ALL;
    return (pieces){.comm = w->comm,
                    .g = group_of(w),
                    .in = dt_array_data(&o->in),
                    .out = dt_array_data(&o->out),
                    .nin = o->in.storage ? dt_array_count(&o->in) : 0,
                    .nout = o->out.storage ? dt_array_count(&o->out) : 0,
                    .send = sends ? part->send : NULL,
                    .recv = receives ? part->recv : NULL,
                    .dtype = o->dtype,
                    .op = w->op,
                    .root = w->peer};
}

/* Room for the terms that are summed here; one array for the call. */
static dt_status make_room(dt_work *w, const dt_part *part, pieces *p)
{
    int64_t bytes = 0;
    for (int round = 0; round < 2; round++) {
        char *base = round ? dt_array_data(&w->staging) : NULL;
        bytes = 0;
        for (int i = 0; i < w->n; i++) {
            p[i] = pieces_of(w, i, &part[i]);
            if (!sums_here(w->kind, &p[i]))
                continue;
            const int64_t mine = dti_piece_of(p[i].send, p[i].nin, w->comm->size, w->comm->rank);
            p[i].terms = base ? base + bytes : NULL;
            bytes += (mine * w->comm->size * (int64_t)dt_dtype_size(p[i].dtype) + 63) / 64 * 64;
        }
        if (round == 0 && bytes > 0)
            DT_TRY(dt_array_create(w->operand[0].in.storage->heap, DT_U8, DT_SHAPE(bytes),
                                   DT_TAG_COMM, &w->staging));
        if (bytes == 0)
            break;
    }
    return DT_OK;
}

/* My piece of the result, from everybody's terms. */
static void sum_terms(dt_work *w, int i, const pieces *p)
{
    enum { MOST = 64 };
    const int k = w->comm->size, me = w->comm->rank;
    const int64_t mine = dti_piece_of(p->send, p->nin, k, me);
    const int64_t size = (int64_t)dt_dtype_size(p->dtype);
    dt_array terms[MOST], *out = &w->operand[i].out;
    const dt_array *source[MOST];
    dt_array piece = {out->storage, out->offset, DT_SHAPE(mine), p->dtype};
    if (w->kind == DT_CALL_ALL_REDUCE)
        for (int r = 0; r < me; r++)
            piece.offset += dti_piece_of(NULL, p->nin, k, r);
    for (int first = 0; first < k; first += MOST) {
        int n = 0;
        for (int r = first; r < k && n < MOST; r++, n++) {
            const int64_t offset = (p->terms - (char *)dt_array_data(&w->staging)) / size;
            terms[n] = (dt_array){w->staging.storage, offset + r * mine, DT_SHAPE(mine), p->dtype};
            source[n] = &terms[n];
        }
        if (mine > 0)
            dt_array_reduce(&piece, n, source, p->op);
    }
}

/* All of it, on the communicator's stream. */
static dt_status run(dt_work *w, dt_heap *heap, const pieces *p)
{
    dti_nccl *g = group_of(w);
    bool sums = false;
    ncclResult_t result = ncclGroupStart();
    for (int i = 0; i < w->n && result == ncclSuccess; i++) {
        result = enqueue(w->kind, &p[i]);
        sums = sums || sums_here(w->kind, &p[i]);
    }
    DT_TRY(dti_nccl_check(w->comm, result, dt_call_name(w->kind)));
    DT_TRY(dti_nccl_check(w->comm, ncclGroupEnd(), dt_call_name(w->kind)));
    DT_TRY(dti_nccl_ready(w->comm, g));
    if (!sums)
        return DT_OK;
    void *compute = dt_heap_set_stream(heap, g->stream);
    for (int i = 0; i < w->n; i++)
        if (sums_here(w->kind, &p[i]))
            sum_terms(w, i, &p[i]);
    (void)dt_heap_set_stream(heap, compute);
    if (w->kind != DT_CALL_ALL_REDUCE)
        return DT_OK;
    result = ncclGroupStart();
    for (int i = 0; i < w->n && result == ncclSuccess; i++) {
        if (!sums_here(w->kind, &p[i]))
            continue;
        int64_t offset = 0;
        for (int r = 0; r < w->comm->rank; r++)
            offset += dti_piece_of(NULL, p[i].nout, w->comm->size, r);
        result = gather(&p[i], at(&p[i], p[i].out, offset));
    }
    DT_TRY(dti_nccl_check(w->comm, result, "all-gather of sums"));
    DT_TRY(dti_nccl_check(w->comm, ncclGroupEnd(), "all-gather of sums"));
    return dti_nccl_ready(w->comm, g);
}

/* DT_FAULT=drop_event:N forgets to wait, so that tests see whether that is noticed: 1, a stream of
 * the communicator for the compute stream; 2, the compute stream for it; 3, collectives for
 * messages. Others: array/cuda/copies.c. */
static bool drops(const dt_work *w, int which)
{
    return dt_world_fault_number(w->comm->world, "drop_event") == which;
}

static cudaEvent_t take_event(dti_nccl *g)
{
    cudaEvent_t event = NULL;
    if (g->nspare > 0)
        return g->spare[--g->nspare];
    return cudaEventCreateWithFlags(&event, cudaEventDisableTiming) == cudaSuccess ? event : NULL;
}

static dt_status check_cuda(const dt_work *w, cudaError_t error)
{
    DT_REQUIRE(error == cudaSuccess, DT_ERR_DEVICE, "%s on %s: %s", dt_call_name(w->kind),
               w->comm->name, cudaGetErrorString(error));
    return DT_OK;
}

/* A collective comes after the messages that were put into its communicator before. */
static dt_status follow_messages(const dt_work *w)
{
    for (int i = 0; w->group == DTI_NCCL_ALL && i < DTI_NCCL_GROUPS; i++) {
        const dti_nccl *m = w->comm->nccl[i];
        if (i == DTI_NCCL_ALL || !m)
            continue;
        DT_TRY(check_cuda(w, cudaEventRecord(m->before, m->stream)));
        if (!drops(w, 3))
            DT_TRY(check_cuda(w, cudaStreamWaitEvent(group_of(w)->stream, m->before, 0)));
    }
    return DT_OK;
}

static dt_status start(dt_work *w, const dt_part *part, pieces *p)
{
    dti_nccl *g = group_of(w);
    dt_heap *heap = (part->in ? part->in : part->out)->storage->heap;
    DT_TRY(make_room(w, part, p));
    w->event = take_event(g);
    DT_REQUIRE(w->event, DT_ERR_DEVICE, "%s: no event", w->comm->name);
    DT_TRY(check_cuda(w, cudaEventRecord(g->before, dt_heap_stream(heap))));
    if (!drops(w, 1))
        DT_TRY(check_cuda(w, cudaStreamWaitEvent(g->stream, g->before, 0)));
    DT_TRY(follow_messages(w));
    DT_TRY(run(w, heap, p));
    DT_TRY(check_cuda(w, cudaEventRecord(w->event, g->stream)));
    return DT_OK;
}

dt_status dti_nccl_call(dt_comm *comm, const dti_call_options *o, int n, const dt_part *part,
                        dt_work **work_out)
{
    const bool message = o->kind == DT_CALL_SEND || o->kind == DT_CALL_RECV;
    const dti_work_plan plan = {.kind = o->kind, .n = n, .width = message ? 1 : comm->size};
    const int group = dti_nccl_group(comm, o);
    if (comm->nccl[group]->aborted)
        return dti_peer_failed(comm->world, "came to the next call");
    pieces *p = calloc((size_t)n, sizeof *p);
    dt_work *w = NULL;
    dt_status st = p ? DT_OK : DT_ERROR(DT_ERR_NOMEM, "a call of %d parts", n);
    DT_TRY_TO(done, st, st);
    DT_TRY_TO(done, st, dti_work_create(comm, plan, o->label, &w));
    DT_TRY_TO(done, st, dti_plan_work(w, o, part));
    w->group = group;
    w->sequence = message ? comm->messages++ : comm->collectives++;
    dti_count_issue(w);
    dti_ring_mark(w, DTI_RING_RUNS);
    DT_TRY_TO(done, st, start(w, part, p));
    w->next = comm->world->on_device;
    comm->world->on_device = w;
    *work_out = w;
done:
    if (st != DT_OK && w) {
        dti_break(comm->world, dt_error_trace());
        dti_work_free(w);
    }
    free(p);
    return st;
}

dt_status dti_nccl_wait(dt_work *w)
{
    const dti_operand *o = &w->operand[0];
    dt_heap *heap = (o->in.storage ? &o->in : &o->out)->storage->heap;
    if (!drops(w, 2))
        DT_TRY(check_cuda(w, cudaStreamWaitEvent(dt_heap_stream(heap), w->event, 0)));
    dti_ring_mark(w, DTI_RING_DONE);
    DT_TRY(dt_heap_status(heap));
    return DT_OK;
}

bool dti_nccl_done(const dt_work *w)
{
    return cudaEventQuery(w->event) == cudaSuccess;
}

void dti_nccl_forget(dt_work *w)
{
    dti_nccl *g = group_of(w);
    if (!w->event)
        return;
    if (g && g->nspare < DTI_SPARE_EVENTS) /* NULL: it was closed, and the call had failed */
        g->spare[g->nspare++] = w->event;
    else
        (void)cudaEventDestroy(w->event);
}
