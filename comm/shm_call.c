/* comm/shm_call.c - collectives between ranks that see each other's memory.
 *
 * Small calls travel on the slips: every rank copies what it gives onto its own, meets the others,
 * and takes (or sums) what it needs from theirs. Large ones meet, work straight from array to
 * array, and meet again before anybody may touch its arrays. Of an all_to_all, what one rank sends
 * may go this way and what another sends that way.
 *
 *   all_gather       each stores its piece into everybody's result
 *   broadcast        each stores 1/k of the root's array into everybody's
 *   reduce_scatter   each sums its chunk of everybody's terms, in rank order
 *   all_reduce       the same, and stores the sum into everybody's result, in one pass
 *   all_to_all       each fetches its pieces
 *
 * What is too large for the caches goes past them. Read before: shm_internal.h, plan.c. */
#include "comm/shm_internal.h"

#include <string.h>

enum { BLOCK_BYTES = 8192, LINE = 64 };

static size_t padded(size_t bytes)
{
    return (bytes + 15) / 16 * 16;
}

/* Peer's table, and a piece of it with our address of its data. */
static dti_piece piece_at(const dti_peer *peer, const dti_piece *row, int index)
{
    const dti_piece *there = dti_there(peer, row);
    return (dti_piece){dti_there(peer, there[index].data), there[index].bytes};
}

static const dt_work *work_of(const dti_room *r, int member)
{
    return dti_there(r->peer[member], dti_room_slip(r, member)->work);
}

static const dti_exchange *table_of(const dti_room *r, int member)
{
    return dti_there(r->peer[member], dti_room_slip(r, member)->table);
}

/* ---- small calls ---- */

static bool is_small(const dt_work *w)
{
    return w->whole + 16 * (int64_t)w->n <= DTI_STAGE_BYTES;
}

/* Bytes of part i that `member` lays on its slip. */
static size_t staged_bytes(const dt_work *w, int i, int member)
{
    const int k = w->comm->size;
    const dti_piece *recv = &w->first.recv[i * k], *send = &w->first.send[i * k];
    size_t sum = 0;
    switch (w->kind) {
    case DT_CALL_ALL_GATHER: return recv[member].bytes;
    case DT_CALL_BROADCAST: return member == w->peer ? recv[member].bytes : 0;
    case DT_CALL_ALL_REDUCE:
    case DT_CALL_REDUCE_SCATTER:
        for (int r = 0; r < k; r++)
            sum += send[r].bytes;
        return sum;
    case DT_CALL_ALL_TO_ALL:
    case DT_CALL_SEND:
    case DT_CALL_RECV:
    case DT_CALL_BARRIER:
    case DT_NCALLS: break;
    }
    return 0;
}

static void stage(const dt_work *w)
{
    char *at = dti_room_own_slip(w->comm->room)->staged;
    for (int i = 0; i < w->first.n; i++) {
        const size_t bytes = staged_bytes(w, i, w->comm->rank);
        if (bytes > 0)
            memcpy(at, w->first.send[i * w->comm->size].data, bytes);
        at += padded(bytes);
    }
}

static void take_staged(const dt_work *w)
{
    const int k = w->comm->size;
    for (int p = 0; p < k; p++) {
        const char *at = dti_room_slip(w->comm->room, p)->staged;
        for (int i = 0; i < w->first.n; i++) {
            const size_t bytes = staged_bytes(w, i, p);
            if (bytes > 0)
                memcpy(w->first.recv[i * k + p].data, at, bytes);
            at += padded(bytes);
        }
    }
}

static void sum_staged(const dt_work *w)
{
    const int k = w->comm->size, me = w->comm->rank;
    size_t offset = 0;
    for (int i = 0; i < w->first.n; i++) {
        const dti_operand *o = &w->operand[i];
        const bool all = w->kind == DT_CALL_ALL_REDUCE;
        const size_t bytes = staged_bytes(w, i, me);
        size_t before = 0;
        for (int r = 0; r < me && !all; r++)
            before += w->first.send[i * k + r].bytes;
        for (int p = 0; p < k; p++)
            w->source[p] = dti_room_slip(w->comm->room, p)->staged + offset + before;
        const int64_t count = all ? (int64_t)(bytes / dt_dtype_size(o->dtype)) : o->sum_count;
        char *sum = all ? w->second.recv[i * k].data : o->sum;
        if (count > 0)
            dti_add_terms(sum, k, w->source, count, o->dtype, w->op);
        offset += padded(bytes);
    }
}

static dt_status run_small(dt_work *w)
{
    stage(w);
    const dt_status st = dti_room_meet(w, DTI_STEP_STAGED, NULL);
    if (st != DT_OK)
        return st;
    if (w->source)
        sum_staged(w);
    else
        take_staged(w);
    return DT_OK;
}

/* ---- large calls ---- */

/* Copy to all members but those whose destination is the source itself, reading it once. */
static void store_to_all(const dt_work *w, const char *from, size_t bytes, bool stream)
{
    const dti_room *r = w->comm->room;
    const int k = r->size, me = r->me;
    for (size_t at = 0; at < bytes; at += BLOCK_BYTES) {
        const size_t n = bytes - at < BLOCK_BYTES ? bytes - at : BLOCK_BYTES;
        for (int step = 0; step < k; step++) {
            char *to = r->to[(me + step) % k];
            if (to != from)
                dti_copy(to + at, from + at, n, stream);
        }
    }
}

void dti_store_piece(const dt_work *w, int cell, dti_piece from, bool stream)
{
    const dti_room *r = w->comm->room;
    for (int p = 0; p < r->size; p++)
        r->to[p] = piece_at(r->peer[p], table_of(r, p)->recv, cell).data;
    if (from.bytes > 0)
        store_to_all(w, from.data, from.bytes, stream);
}

static void broadcast_part(const dt_work *w, int i, bool stream)
{
    const dti_room *r = w->comm->room;
    const int k = w->comm->size, me = w->comm->rank, root = w->peer;
    const dti_piece from = piece_at(r->peer[root], work_of(r, root)->first.send, i * k);
    const int64_t lines = (int64_t)(from.bytes + LINE - 1) / LINE;
    const size_t lo = (size_t)(lines * me / k) * LINE, end = (size_t)(lines * (me + 1) / k) * LINE;
    const size_t hi = end < from.bytes ? end : from.bytes;
    for (int p = 0; p < k; p++)
        r->to[p] = piece_at(r->peer[p], work_of(r, p)->first.recv, i * k + root).data + lo;
    if (hi > lo)
        store_to_all(w, from.data + lo, hi - lo, stream);
}

static void reduce_part(const dt_work *w, int i, bool stream)
{
    const dti_room *r = w->comm->room;
    const int k = w->comm->size, me = w->comm->rank;
    const dti_operand *o = &w->operand[i];
    const bool all = w->kind == DT_CALL_ALL_REDUCE;
    for (int p = 0; p < k; p++) {
        const dt_work *theirs = work_of(r, p);
        r->from[p] = piece_at(r->peer[p], theirs->first.send, i * k + me).data;
        if (all)
            r->to[p] = piece_at(r->peer[p], theirs->second.recv, i * k + me).data;
    }
    if (!all)
        r->to[0] = o->sum;
    const dti_targets to = {.at = r->to, .n = all ? k : 1, .stream = stream};
    if (o->sum_count > 0)
        dti_add_terms_to(to, k, r->from, o->sum_count, o->dtype, w->op);
}

static dt_status check_bytes(dt_work *w, int member, size_t sent, size_t expected)
{
    if (sent != expected)
        return dti_work_fail(w, DT_ERR_COMM,
                             "rank %d sends %zu bytes where this rank expects %zu",
                             w->comm->ranks[member], sent, expected);
    return DT_OK;
}

static dt_status fetch_from(dt_work *w, const dti_exchange *x, int member, bool stream)
{
    const dti_room *r = w->comm->room;
    const int k = w->comm->size, me = w->comm->rank;
    const dti_exchange *theirs = table_of(r, member);
    dt_status st = DT_OK;
    for (int i = 0; st == DT_OK && i < x->n; i++) {
        const dti_piece from = piece_at(r->peer[member], theirs->send, i * k + me);
        const dti_piece *to = &x->recv[i * k + member];
        st = check_bytes(w, member, from.bytes, to->bytes);
        if (st == DT_OK && to->bytes > 0 && to->data != from.data)
            dti_copy(to->data, from.data, to->bytes, stream);
    }
    return st;
}

static dt_status fetch(dt_work *w, const dti_exchange *x, bool stream)
{
    const int k = w->comm->size;
    dt_status st = DT_OK;
    for (int step = 1; st == DT_OK && step <= k; step++) /* not all from the same rank at once */
        st = fetch_from(w, x, (w->comm->rank + step) % k, stream);
    return st;
}

/* ---- all_to_all, whose pieces are of any sizes ---- */

/* On the slip: the bytes of each piece, then the pieces. Whether there is room for them. */
static bool stage_pieces(const dt_work *w)
{
    const int cells = w->first.n * w->comm->size;
    char *slip = dti_room_own_slip(w->comm->room)->staged;
    size_t at = (size_t)cells * sizeof(size_t), sum = at;
    for (int c = 0; c < cells; c++)
        sum += w->first.send[c].bytes;
    if (sum > DTI_STAGE_BYTES)
        return false;
    for (int c = 0; c < cells; c++) {
        const dti_piece *from = &w->first.send[c];
        memcpy(slip + (size_t)c * sizeof(size_t), &from->bytes, sizeof(size_t));
        if (from->bytes > 0)
            memcpy(slip + at, from->data, from->bytes);
        at += from->bytes;
    }
    return true;
}

static dt_status take_pieces(dt_work *w, int member)
{
    const int k = w->comm->size, cells = w->first.n * k;
    const char *slip = dti_room_slip(w->comm->room, member)->staged;
    size_t at = (size_t)cells * sizeof(size_t);
    dt_status st = DT_OK;
    for (int c = 0; st == DT_OK && c < cells; c++) {
        size_t bytes;
        memcpy(&bytes, slip + (size_t)c * sizeof bytes, sizeof bytes);
        const dti_piece *to = &w->first.recv[c - c % k + member];
        const bool mine = c % k == w->comm->rank;
        st = mine ? check_bytes(w, member, bytes, to->bytes) : DT_OK;
        if (st == DT_OK && mine && bytes > 0)
            memcpy(to->data, slip + at, bytes);
        at += bytes;
    }
    return st;
}

static dt_status all_to_all(dt_work *w, bool stream)
{
    const int k = w->comm->size;
    bool all_staged = true;
    dt_status st = dti_room_meet(w, stage_pieces(w) ? DTI_STEP_STAGED : DTI_STEP_DIRECT, &w->first);
    for (int step = 1; st == DT_OK && step <= k; step++) {
        const int p = (w->comm->rank + step) % k;
        const bool staged = dti_room_slip(w->comm->room, p)->step == DTI_STEP_STAGED;
        all_staged = all_staged && staged;
        st = staged ? take_pieces(w, p) : fetch_from(w, &w->first, p, stream);
    }
    if (stream)
        dti_copy_fence();
    return st == DT_OK && !all_staged ? dti_shm_finish(w) : st;
}

/* In place, results lie in the caches where their terms were; many ranks gain from leaving them
 * there. */
static bool is_streamed(const dt_work *w)
{
    const int64_t k = w->comm->size;
    if (w->kind == DT_CALL_ALL_TO_ALL) {
        int64_t bytes = 0;
        for (int c = 0; c < w->first.n * (int)k; c++)
            bytes += (int64_t)w->first.recv[c].bytes;
        return 2 * k * bytes >= DTI_STREAM_BYTES;
    }
    const bool in_place = w->kind == DT_CALL_ALL_REDUCE && w->first.n > 0 &&
                          w->first.send->data == w->second.recv->data;
    return k * w->whole >= DTI_STREAM_BYTES && !(in_place && k > 4);
}

dt_status dti_shm_collective(dt_work *w)
{
    const bool stream = is_streamed(w);
    if (w->kind == DT_CALL_ALL_TO_ALL)
        return all_to_all(w, stream);
    if (is_small(w))
        return run_small(w);
    const int k = w->comm->size, me = w->comm->rank;
    dt_status st = dti_room_meet(w, DTI_STEP_DIRECT, &w->first);
    if (st != DT_OK)
        return st;
    if (w->host_values)
        st = fetch(w, &w->first, stream);
    for (int i = 0; i < w->first.n && !w->host_values; i++) {
        if (w->kind == DT_CALL_ALL_GATHER)
            dti_store_piece(w, i * k + me, w->first.send[i * k + me], stream);
        else if (w->kind == DT_CALL_BROADCAST)
            broadcast_part(w, i, stream);
        else if (w->source)
            reduce_part(w, i, stream);
    }
    if (stream)
        dti_copy_fence();
    return st == DT_OK ? dti_shm_finish(w) : st;
}

/* For DT_CHECK=collective: all come, whatever they are about to call. */
dt_status dti_shm_exchange(dt_work *w, const dti_exchange *x)
{
    const dt_status st = dti_room_meet(w, DTI_STEP_COMPARE, x);
    return st == DT_OK ? fetch(w, x, false) : st;
}

dt_status dti_shm_finish(dt_work *w)
{
    return dti_room_meet(w, DTI_STEP_LEAVE, NULL);
}
