/* comm/call.c - the public calls: check the arguments, write down which bytes go to whom, count,
 * queue.
 *
 * Each check uses values that are the same on all ranks or each rank's own part of one agreed
 * shape, so that a wrong call fails on every rank alike. Read next: plan.c. */
#include "comm/nccl_internal.h"

#include <stdlib.h>

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
    const dt_heap *ours = comm->world->heap[DT_CPU];
    for (int side = 0; side < 2; side++) {
        const dt_array *a = side == 0 ? in : out;
        DT_REQUIRE(!a || comm->size == 1 || !comm->ops->shares || dt_array_is_meta(a) ||
                       a->storage->heap == ours || device == DT_CUDA,
                   DT_ERR_ARG,
                   "an array of another heap than dt_world_heap's: shm moves only those"
                   " (DT_COMM=mpi moves any)");
    }
    if (!in || !out)
        return DT_OK;
    DT_REQUIRE(in->dtype == out->dtype, DT_ERR_ARG, "in is %s, out is %s", dt_dtype_name(in->dtype),
               dt_dtype_name(out->dtype));
    DT_REQUIRE(dt_heap_device(out->storage->heap).kind == device, DT_ERR_ARG,
               "in and out are on different devices");
    return DT_OK;
}

static dt_status check_equal(int64_t got, int64_t want, const char *what)
{
    DT_REQUIRE(got == want, DT_ERR_SHAPE, "%s has %lld elements, must have %lld", what,
               (long long)got, (long long)want);
    return DT_OK;
}

static dt_status check_sizes(const dt_comm *comm, const dti_call_options *o, const dt_part *p)
{
    const int k = comm->size, me = comm->rank;
    const int64_t in = p->in ? dt_array_count(p->in) : 0;
    const int64_t out = p->out ? dt_array_count(p->out) : 0;
    switch (o->kind) {
    case DT_CALL_ALL_GATHER:
        DT_TRY(check_counts("out", p->recv, out, k));
        DT_TRY(check_equal(in, dti_piece_of(p->recv, out, k, me), "in"));
        break;
    case DT_CALL_REDUCE_SCATTER:
        DT_TRY(check_counts("in", p->send, in, k));
        DT_TRY(check_equal(out, dti_piece_of(p->send, in, k, me), "out"));
        break;
    case DT_CALL_ALL_REDUCE: DT_TRY(check_equal(out, in, "out")); break;
    case DT_CALL_BROADCAST:
        if (me == o->peer && p->in)
            DT_TRY(check_equal(out, in, "out"));
        break;
    case DT_CALL_ALL_TO_ALL:
        DT_TRY(check_counts("in", p->send, in, k));
        DT_TRY(check_counts("out", p->recv, out, k));
        DT_TRY(check_equal(dti_piece_of(p->recv, out, k, me), dti_piece_of(p->send, in, k, me),
                           "my own piece of out"));
        break;
    case DT_CALL_SEND:
    case DT_CALL_RECV:
    case DT_CALL_BARRIER:
    case DT_NCALLS: break;
    }
    return DT_OK;
}

static dt_device_kind kind_of(const dt_part *p)
{
    return dt_heap_device((p->in ? p->in : p->out)->storage->heap).kind;
}

/* All parts live on one device: either all move bytes or none does. */
static dt_status check_call(const dt_comm *comm, const dti_call_options *o, int n,
                            const dt_part *part)
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
        DT_REQUIRE(kind_of(&part[i]) == kind_of(part), DT_ERR_ARG,
                   "parts 0 and %d are on different devices", i);
    }
    return DT_OK;
}

/* On a communicator of one rank: the result is the input, at once. */
static void run_alone(int n, const dt_part *part)
{
    for (int i = 0; i < n; i++)
        if (part[i].in && part[i].out && dt_array_count(part[i].in) > 0 &&
            dt_array_data(part[i].in) != dt_array_data(part[i].out))
            dt_array_copy(part[i].out, part[i].in);
}

dt_status dti_call(dt_comm *comm, const dti_call_options *o, int n, const dt_part *part,
                   dt_work **work_out)
{
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
    DT_TRY_TO(fail, st, dti_plan_work(w, o, part));
    w->sequence = message ? comm->messages++ : comm->collectives++;
    dti_count_issue(w);
    DT_TRY_TO(fail, st, dti_lane_issue(w));
    *work_out = w;
    return DT_OK;
fail:
    dti_work_free(w);
    return st;
}

static dt_status call(dt_comm *comm, const dti_call_options *o, int n, const dt_part *part,
                      dt_work **work_out)
{
    DT_TRY(check_call(comm, o, n, part));
    if (comm->size == 1) {
        run_alone(n, part);
        *work_out = NULL;
        return DT_OK;
    }
    if (o->kind == DT_CALL_BARRIER || kind_of(part) != DT_CUDA)
        return dti_call(comm, o, n, part, work_out);
    bool nccl;
    DT_TRY(dti_nccl_takes(comm, part->in ? part->in : part->out, o, &nccl));
    return nccl ? dti_nccl_call(comm, o, n, part, work_out)
                : dti_call_staged(comm, o, n, part, work_out);
}

dt_status dt_comm_link(dt_comm *comm, dt_heap *heap)
{
    DT_REQUIRE(comm->rank >= 0, DT_ERR_ARG, "rank %d is not a member of %s", comm->world->rank,
               comm->name);
    return comm->size > 1 && dt_heap_device(heap).kind == DT_CUDA ? dti_nccl_link(comm, heap)
                                                                  : DT_OK;
}

dt_status dt_all_gather(dt_comm *comm, int n, const dt_part *part, const char *label,
                        dt_work **work_out)
{
    const dti_call_options o = {.kind = DT_CALL_ALL_GATHER, .peer = -1, .label = label};
    DT_TRY(call(comm, &o, n, part, work_out));
    return DT_OK;
}

dt_status dt_reduce_scatter(dt_comm *comm, int n, const dt_part *part, const char *label,
                            dt_work **work_out)
{
    const dti_call_options o = {.kind = DT_CALL_REDUCE_SCATTER, .peer = -1, .label = label};
    DT_TRY(call(comm, &o, n, part, work_out));
    return DT_OK;
}

dt_status dt_all_reduce(dt_comm *comm, int n, const dt_part *part, dt_reduce op, const char *label,
                        dt_work **work_out)
{
    const dti_call_options o = {.kind = DT_CALL_ALL_REDUCE, .op = op, .peer = -1, .label = label};
    DT_TRY(call(comm, &o, n, part, work_out));
    return DT_OK;
}

dt_status dt_all_to_all(dt_comm *comm, int n, const dt_part *part, const char *label,
                        dt_work **work_out)
{
    const dti_call_options o = {.kind = DT_CALL_ALL_TO_ALL, .peer = -1, .label = label};
    DT_TRY(call(comm, &o, n, part, work_out));
    return DT_OK;
}

dt_status dt_broadcast(dt_comm *comm, int root, int n, const dt_part *part, const char *label,
                       dt_work **work_out)
{
    const dti_call_options o = {.kind = DT_CALL_BROADCAST, .peer = root, .label = label};
    DT_TRY(call(comm, &o, n, part, work_out));
    return DT_OK;
}

static dt_status message(dt_comm *comm, const dti_call_options *o, int n, dt_part *part,
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
    const dti_call_options o = {.kind = DT_CALL_SEND, .peer = to, .label = label};
    dt_part *part = calloc(n > 0 ? (size_t)n : 1, sizeof *part);
    for (int i = 0; part && i < n; i++)
        part[i].in = arrays[i];
    DT_TRY(message(comm, &o, n, part, work_out));
    return DT_OK;
}

dt_status dt_recv(dt_comm *comm, int from, int n, dt_array *const *arrays, const char *label,
                  dt_work **work_out)
{
    const dti_call_options o = {.kind = DT_CALL_RECV, .peer = from, .label = label};
    dt_part *part = calloc(n > 0 ? (size_t)n : 1, sizeof *part);
    for (int i = 0; part && i < n; i++)
        part[i].out = arrays[i];
    DT_TRY(message(comm, &o, n, part, work_out));
    return DT_OK;
}

dt_status dt_barrier(dt_comm *comm, const char *label, dt_work **work_out)
{
    const dti_call_options o = {.kind = DT_CALL_BARRIER, .peer = -1, .label = label};
    DT_TRY(call(comm, &o, 1, &(dt_part){0}, work_out));
    return DT_OK;
}
