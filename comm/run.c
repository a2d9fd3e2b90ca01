/* comm/run.c - the algorithms, common to all backends: a call is one or two exchanges of pieces
 * and, for reductions, a sum of the received chunks in rank order.
 *
 *   all_reduce of N elements on k ranks, c = ceil(N / k):
 *     first exchange   rank r gets everybody's terms of [r c, (r+1) c) and adds them up
 *     second           everybody gets everybody's sums
 *
 * How the N elements are cut does not change any sum, so all backends agree bit for bit. */
#include "comm/comm_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

int64_t dti_chunk(int64_t n, int k, int r)
{
    const int64_t c = (n + k - 1) / k;
    const int64_t lo = c * r < n ? c * r : n;
    const int64_t hi = lo + c < n ? lo + c : n;
    return hi - lo;
}

static void keep_own_pieces(const dt_work *w, const dti_exchange *x)
{
    for (int i = 0; i < x->n; i++) {
        const dti_piece *from = &x->send[i * x->width + w->comm->rank];
        const dti_piece *to = &x->recv[i * x->width + w->comm->rank];
        if (to->bytes > 0 && from->data && to->data && to->data != from->data)
            memmove(to->data, from->data, to->bytes);
    }
}

static void add_up(dt_work *w)
{
    const int k = w->comm->size, me = w->comm->rank;
    for (int i = 0; i < w->n; i++) {
        const dti_operand *o = &w->operand[i];
        if (!o->sum)
            continue;
        for (int r = 0; r < k; r++)
            w->source[r] = r == me ? w->first.send[i * k + r].data : w->first.recv[i * k + r].data;
        dti_add_terms(o->sum, k, w->source, o->sum_count, o->dtype, w->op);
    }
}

static dt_status exchange(dt_work *w, const dti_exchange *x)
{
    const dt_status st = w->comm->ops->exchange(w, x);
    if (st == DT_OK)
        keep_own_pieces(w, x);
    return st;
}

/* All ranks see the same records, so they fail together and nothing has moved yet. */
static dt_status compare_calls(dt_work *w)
{
    dt_status st = exchange(w, &w->compare);
    if (st == DT_OK)
        st = w->comm->ops->finish(w);
    for (int r = 1; st == DT_OK && r < w->comm->size; r++) {
        if (w->record[r].hash == w->record[0].hash)
            continue;
        (void)snprintf(w->message, sizeof w->message,
                       "ranks make different calls on %s: rank %d %s; rank %d %s", w->comm->name,
                       w->comm->ranks[0], w->record[0].text, w->comm->ranks[r], w->record[r].text);
        return DT_ERR_COMM;
    }
    return st;
}

dt_status dti_work_run(dt_work *w)
{
    const dti_backend *ops = w->comm->ops;
    if (w->delay_s > 0) {
        const struct timespec nap = dti_timespec(w->delay_s);
        (void)nanosleep(&nap, NULL);
    }
    dt_status st = w->compare.n > 0 ? compare_calls(w) : DT_OK;
    if (ops->collective)
        return st == DT_OK ? ops->collective(w) : st;
    if (st == DT_OK)
        st = exchange(w, &w->first);
    if (st == DT_OK && w->source)
        add_up(w);
    if (st == DT_OK && w->second.n > 0)
        st = exchange(w, &w->second);
    return st == DT_OK ? ops->finish(w) : st;
}

/* ---- what must be equal on all ranks ---- */

static uint64_t mix(uint64_t hash, uint64_t word)
{
    hash = (hash ^ word) * 0x9e3779b97f4a7c15u;
    return hash ^ hash >> 29;
}

/* Pieces of an all-to-all differ between ranks: their sizes are checked when they move. */
uint64_t dti_shape_of(const dt_work *w, int64_t *whole_out)
{
    const int k = w->comm->size;
    const bool gathers = w->kind == DT_CALL_ALL_GATHER || w->kind == DT_CALL_BROADCAST;
    const bool cut = w->kind == DT_CALL_ALL_GATHER || w->kind == DT_CALL_REDUCE_SCATTER;
    uint64_t hash = mix((uint64_t)w->kind, (uint64_t)w->op);
    int64_t whole = 0;
    for (int i = 0; i < w->n && w->kind != DT_CALL_BARRIER; i++) {
        const dti_operand *o = &w->operand[i];
        hash = mix(hash, (uint64_t)o->dtype);
        if (w->kind == DT_CALL_ALL_TO_ALL)
            continue;
        const int64_t count = dt_array_count(gathers ? &o->out : &o->in);
        hash = mix(hash, (uint64_t)count);
        whole += count * (int64_t)dt_dtype_size(o->dtype);
        const dti_piece *pieces = gathers ? w->first.recv : w->first.send;
        for (int r = 0; r < k && w->first.n > 0 && cut; r++)
            hash = mix(hash, pieces[i * k + r].bytes);
    }
    *whole_out = whole;
    return hash;
}

/* For DT_CHECK=collective also the label. */
void dti_prepare_compare(dt_work *w)
{
    const int k = w->comm->size, me = w->comm->rank;
    uint64_t hash = mix(mix(w->shape, (uint64_t)w->n), (uint64_t)w->peer);
    for (const char *c = w->label; *c; c++)
        hash = mix(hash, (unsigned char)*c);
    char call[80];
    (void)snprintf(call, sizeof call, "%s '%.48s'", dt_call_name(w->kind), w->label);
    (void)snprintf(w->record[me].text, sizeof w->record[me].text, "%s of %d, %lld bytes", call,
                   w->n, (long long)w->whole);
    w->record[me].hash = hash;
    for (int r = 0; r < k; r++) {
        w->compare.send[r] = (dti_piece){(char *)&w->record[me], sizeof w->record[me]};
        w->compare.recv[r] = (dti_piece){(char *)&w->record[r], sizeof w->record[r]};
    }
}

/* ---- DT_FAULT ---- */

/* Keep a copy of `now` and put it to `at` when the call has run. */
static void plan_restore(dti_operand *o, char *at, const char *now, size_t bytes)
{
    o->saved = bytes > 0 && at && now ? malloc(bytes) : NULL;
    if (!o->saved)
        return;
    memcpy(o->saved, now, bytes);
    o->restore = (dti_piece){at, bytes};
}

void dti_prepare_faults(dt_work *w)
{
    const dt_world *world = w->comm->world;
    if (!world->faults[0])
        return;
    const bool reduces = w->kind == DT_CALL_ALL_REDUCE || w->kind == DT_CALL_REDUCE_SCATTER;
    const bool skip = reduces && dti_fault_hits(world, "skip_reduce", w->label);
    const bool drop = dti_fault_hits(world, "drop_wait", w->label);
    const int me = w->comm->rank;
    w->swap = w->kind == DT_CALL_ALL_GATHER && dti_fault_hits(world, "swap_shards", w->label);
    for (int i = 0; i < w->n && w->first.n > 0 && (skip || drop); i++) {
        dti_operand *o = &w->operand[i];
        if (!o->out.storage)
            continue;
        char *out = dt_array_data(&o->out);
        const char *terms = w->kind == DT_CALL_ALL_REDUCE
                                ? dt_array_data(&o->in)
                                : w->first.send[i * w->first.width + me].data;
        plan_restore(o, out, drop ? out : terms, dt_array_bytes(&o->out));
    }
}

static void swap_bytes(char *a, char *b, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        const char c = a[i];
        a[i] = b[i];
        b[i] = c;
    }
}

void dti_apply_faults(dt_work *w)
{
    for (int i = 0; i < w->n; i++) {
        const dti_operand *o = &w->operand[i];
        if (o->saved)
            memcpy(o->restore.data, o->saved, o->restore.bytes);
        if (!w->swap || w->first.n == 0)
            continue;
        const dti_piece *piece = &w->first.recv[i * w->first.width];
        if (piece[0].data && piece[1].data)
            swap_bytes(piece[0].data, piece[1].data,
                       piece[0].bytes < piece[1].bytes ? piece[0].bytes : piece[1].bytes);
    }
}
