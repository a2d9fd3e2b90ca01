/* comm/call.c - the public calls: check the arguments, write down which bytes go to whom, count, queue.
 *
 * Each check uses values that are the same on all ranks or each rank's own part of one agreed shape,
 * so that a wrong call fails on every rank alike. Read next: run.c. */
#include "comm/comm_internal.h"

#include <stdlib.h>

typedef struct call_options {
    dt_call kind;
    dt_reduce op;
    int peer;
    const char *label;
} call_options;

/* Elements of rank r's piece: as the caller counts them, or even. */
static int64_t piece_of(const int64_t *counts, int64_t total, int k, int r)
{
    return counts ? counts[r] : dti_chunk(total, k, r);
}

static dt_status check_counts(const char *what, const int64_t *counts, int64_t total, int k)
{
    if (!counts) {
        DT_REQUIRE(total % k == 0, DT_ERR_SHAPE,
                   "%s has %lld elements, which %d ranks do not share evenly: give counts", what,
                   (long long)total, k);
        return DT_OK;
    }
    int64_t sum = 0;
    for (int r = 0; r < k; r++) {
        DT_REQUIRE(counts[r] >= 0, DT_ERR_ARG, "%s: count of rank %d is %lld", what, r,
                   (long long)counts[r]);
        sum += counts[r];
    }
    DT_REQUIRE(sum == total, DT_ERR_SHAPE, "%s has %lld elements, its counts add up to %lld", what,
               (long long)total, (long long)sum);
    return DT_OK;
}

static dt_status check_arrays(const dt_comm *comm, const dt_array *in, const dt_array *out)
{
    DT_REQUIRE((!in || in->storage) && (!out || out->storage), DT_ERR_ARG, "a part has no array");
    const dt_array *any = in ? in : out;
    const dt_device_kind device = dt_heap_device(any->storage->heap).kind;
    DT_REQUIRE(device != DT_CUDA, DT_ERR_UNSUPPORTED, "backend of %s cannot move cuda arrays",
               comm->name);
    if (!in || !out)
        return DT_OK;
    DT_REQUIRE(in->dtype == out->dtype, DT_ERR_ARG, "in is %s, out is %s", dt_dtype_name(in->dtype),
               dt_dtype_name(out->dtype));
    DT_REQUIRE(dt_array_is_meta(in) == dt_array_is_meta(out), DT_ERR_ARG,
               "in and out are on different devices");
    return DT_OK;
}

static dt_status check_equal(int64_t got, int64_t want, const char *what)
{
    DT_REQUIRE(got == want, DT_ERR_SHAPE, "%s has %lld elements, must have %lld", what,
               (long long)got, (long long)want);
    return DT_OK;
}

static dt_status check_sizes(const dt_comm *comm, const call_options *o, const dt_part *p)
{
    const int k = comm->size, me = comm->rank;
    const int64_t in = p->in ? dt_array_count(p->in) : 0;
    const int64_t out = p->out ? dt_array_count(p->out) : 0;
    switch (o->kind) {
    case DT_CALL_ALL_GATHER:
        DT_TRY(check_counts("out", p->recv, out, k));
        DT_TRY(check_equal(in, piece_of(p->recv, out, k, me), "in"));
        break;
    case DT_CALL_REDUCE_SCATTER:
        DT_TRY(check_counts("in", p->send, in, k));
        DT_TRY(check_equal(out, piece_of(p->send, in, k, me), "out"));
        break;
    case DT_CALL_ALL_REDUCE: DT_TRY(check_equal(out, in, "out")); break;
    case DT_CALL_BROADCAST:
        if (me == o->peer && p->in)
            DT_TRY(check_equal(out, in, "out"));
        break;
    case DT_CALL_ALL_TO_ALL:
        DT_TRY(check_counts("in", p->send, in, k));
        DT_TRY(check_counts("out", p->recv, out, k));
        DT_TRY(check_equal(piece_of(p->recv, out, k, me), piece_of(p->send, in, k, me),
                           "my own piece of out"));
        break;
    case DT_CALL_SEND:
    case DT_CALL_RECV:
    case DT_CALL_BARRIER:
    case DT_NCALLS: break;
    }
    return DT_OK;
}

/* All parts live on one device: either all move bytes or none does. */
static dt_status check_call(const dt_comm *comm, const call_options *o, int n, const dt_part *part)
{
    const bool message = o->kind == DT_CALL_SEND || o->kind == DT_CALL_RECV;
    DT_REQUIRE(comm->rank >= 0, DT_ERR_ARG, "rank %d is not a member of %s", comm->world->rank,
               comm->name);
    DT_REQUIRE(n >= 1, DT_ERR_ARG, "n=%d parts, must be at least 1", n);
    if (message || o->kind == DT_CALL_BROADCAST)
        DT_REQUIRE(o->peer >= 0 && o->peer < comm->size && !(message && o->peer == comm->rank),
                   DT_ERR_ARG, "rank %d of a communicator of %d, me being %d", o->peer, comm->size,
                   comm->rank);
    for (int i = 0; i < n && o->kind != DT_CALL_BARRIER; i++) {
        const bool no_in = o->kind == DT_CALL_RECV || o->kind == DT_CALL_BROADCAST;
        const bool no_out = o->kind == DT_CALL_SEND;
        DT_REQUIRE((part[i].in || no_in) && (part[i].out || no_out), DT_ERR_ARG,
                   "part %d: %s is NULL", i, part[i].out ? "in" : "out");
        DT_TRY(check_arrays(comm, part[i].in, part[i].out));
        DT_TRY(check_sizes(comm, o, &part[i]));
        DT_REQUIRE(dt_array_is_meta(part[i].in ? part[i].in : part[i].out) ==
                       dt_array_is_meta(part->in ? part->in : part->out),
                   DT_ERR_ARG, "parts 0 and %d are on different devices", i);
    }
    return DT_OK;
}

/* ---- which bytes go to whom ---- */

/* One after the other: the pieces of all ranks in an array. */
static void split(dti_piece *row, const dt_array *a, const int64_t *counts, int k)
{
    char *at = dt_array_data(a);
    for (int r = 0; r < k; r++) {
        const size_t element = dt_dtype_size(a->dtype);
        const size_t bytes = (size_t)piece_of(counts, dt_array_count(a), k, r) * element;
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
        return in - element * piece_of(part->send, in / element, (int)k, (int)me);
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
    w->host_copy = calloc((size_t)k + 1, 1);
    DT_REQUIRE(w->host_copy, DT_ERR_NOMEM, "a barrier of %d", k);
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

static dt_status plan_work(dt_work *w, const call_options *o, const dt_part *part)
{
    dt_world *world = w->comm->world;
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
    if (w->kind == DT_CALL_BARRIER)
        DT_TRY(plan_barrier(w));
    if (w->source && !world->ops->lends)
        DT_TRY(plan_staging(w));
    w->trace = world->trace;
    w->delay_s = world->delay_mask >> w->kind & 1 ? world->delay_s : 0;
    dti_prepare_faults(w);
    if (w->compare.n > 0)
        dti_prepare_compare(w);
    return dti_work_scratch(w);
}

/* On a communicator of one rank: the result is the input, at once. */
static void run_alone(int n, const dt_part *part)
{
    for (int i = 0; i < n; i++)
        if (part[i].in && part[i].out && dt_array_count(part[i].in) > 0 &&
            dt_array_data(part[i].in) != dt_array_data(part[i].out))
            dt_array_copy(part[i].out, part[i].in);
}

static dt_status call(dt_comm *comm, const call_options *o, int n, const dt_part *part,
                      dt_work **work_out)
{
    DT_TRY(check_call(comm, o, n, part));
    if (comm->size == 1) {
        run_alone(n, part);
        *work_out = NULL;
        return DT_OK;
    }
    const bool message = o->kind == DT_CALL_SEND || o->kind == DT_CALL_RECV;
    const dti_work_plan plan = {
        .kind = o->kind,
        .n = n,
        .width = message ? 1 : comm->size,
        .moves = o->kind == DT_CALL_BARRIER || !dt_array_is_meta(part->in ? part->in : part->out),
        .reduces = o->kind == DT_CALL_ALL_REDUCE || o->kind == DT_CALL_REDUCE_SCATTER,
        .two_steps = o->kind == DT_CALL_ALL_REDUCE,
        .compares =
            !message && o->kind != DT_CALL_BARRIER && dt_world_check(comm->world, "collective"),
    };
    dt_work *w;
    DT_TRY(dti_work_create(comm, plan, o->label, &w));
    dt_status st = DT_OK;
    DT_TRY_TO(fail, st, plan_work(w, o, part));
    w->sequence = message ? comm->messages++ : comm->collectives++;
    dti_record_issue(w);
    DT_TRY_TO(fail, st, dti_lane_issue(w));
    *work_out = w;
    return DT_OK;
fail:
    dti_work_free(w);
    return st;
}

dt_status dt_all_gather(dt_comm *comm, int n, const dt_part *part, const char *label,
                        dt_work **work_out)
{
    const call_options o = {.kind = DT_CALL_ALL_GATHER, .peer = -1, .label = label};
    DT_TRY(call(comm, &o, n, part, work_out));
    return DT_OK;
}

dt_status dt_reduce_scatter(dt_comm *comm, int n, const dt_part *part, const char *label,
                            dt_work **work_out)
{
    const call_options o = {.kind = DT_CALL_REDUCE_SCATTER, .peer = -1, .label = label};
    DT_TRY(call(comm, &o, n, part, work_out));
    return DT_OK;
}

dt_status dt_all_reduce(dt_comm *comm, int n, const dt_part *part, dt_reduce op, const char *label,
                        dt_work **work_out)
{
    const call_options o = {.kind = DT_CALL_ALL_REDUCE, .op = op, .peer = -1, .label = label};
    DT_TRY(call(comm, &o, n, part, work_out));
    return DT_OK;
}

dt_status dt_all_to_all(dt_comm *comm, int n, const dt_part *part, const char *label,
                        dt_work **work_out)
{
    const call_options o = {.kind = DT_CALL_ALL_TO_ALL, .peer = -1, .label = label};
    DT_TRY(call(comm, &o, n, part, work_out));
    return DT_OK;
}

dt_status dt_broadcast(dt_comm *comm, int root, int n, const dt_part *part, const char *label,
                       dt_work **work_out)
{
    const call_options o = {.kind = DT_CALL_BROADCAST, .peer = root, .label = label};
    DT_TRY(call(comm, &o, n, part, work_out));
    return DT_OK;
}

static dt_status message(dt_comm *comm, const call_options *o, int n, dt_part *part,
                         dt_work **work_out)
{
    DT_REQUIRE(part, DT_ERR_NOMEM, "a message of %d arrays", n);
    const dt_status st = call(comm, o, n, part, work_out);
    free(part);
    return st;
}

dt_status dt_send(dt_comm *comm, int to, int n, const dt_array *const *arrays, const char *label,
                  dt_work **work_out)
{
    const call_options o = {.kind = DT_CALL_SEND, .peer = to, .label = label};
    dt_part *part = calloc(n > 0 ? (size_t)n : 1, sizeof *part);
    for (int i = 0; part && i < n; i++)
        part[i].in = arrays[i];
    DT_TRY(message(comm, &o, n, part, work_out));
    return DT_OK;
}

dt_status dt_recv(dt_comm *comm, int from, int n, dt_array *const *arrays, const char *label,
                  dt_work **work_out)
{
    const call_options o = {.kind = DT_CALL_RECV, .peer = from, .label = label};
    dt_part *part = calloc(n > 0 ? (size_t)n : 1, sizeof *part);
    for (int i = 0; part && i < n; i++)
        part[i].out = arrays[i];
    DT_TRY(message(comm, &o, n, part, work_out));
    return DT_OK;
}

dt_status dt_barrier(dt_comm *comm, const char *label, dt_work **work_out)
{
    const call_options o = {.kind = DT_CALL_BARRIER, .peer = -1, .label = label};
    DT_TRY(call(comm, &o, 1, NULL, work_out));
    return DT_OK;
}
