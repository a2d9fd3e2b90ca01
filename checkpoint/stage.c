/* checkpoint/stage.c - bring bytes to their writers. Read first: checkpoint/plan.c, runs.c.
 *
 * In each round every rank fills one buffer with the next part of what it writes. All ranks know
 * all shares of their mesh, so each can tell what of its own others want now, and what comes:
 *
 *     count    bytes for every writer, bytes from every source
 *     pack     runs of my blocks, cast to the file's type, one writer after the other
 *     mine     what I have of my own buffer goes there directly
 *     move     one all-to-all
 *     unpack   runs of the others' blocks, to their places in the buffer
 *
 * Of equal copies, the one with the writer's own coordinate is the source, so copies move nothing.
 * Chunks begin at multiples of 8 bytes everywhere. */
#include "checkpoint/save_internal.h"

#include <stdlib.h>
#include <string.h>

/* Elements [lo, hi) of an item, at byte `at` of its writer's buffer. */
typedef struct chunk {
    const dti_item *item;
    const dti_share *share;
    int64_t lo, hi, at;
} chunk;

/* How far a writer's shares are staged. */
typedef struct cursor {
    int64_t share, element; /* element: from the share's lo */
    int64_t used;           /* of this round's buffer, in bytes */
} cursor;

typedef struct stage {
    const dti_plan *plan;
    int k, me;            /* ranks of the plan's mesh */
    int64_t round_bytes;  /* of a buffer */
    cursor *at;           /* one a writer, where this round begins */
    int64_t *send, *recv; /* bytes, one a rank of the world */
    dt_heap *heap;
    dt_array out, in; /* what goes to others, what comes; room for any round */
} stage;

static int64_t align(int64_t bytes)
{
    return (bytes + 7) / 8 * 8;
}

/* The writer's next chunk in this round; false: there is none. */
static bool next(const stage *s, int writer, cursor *c, chunk *chunk_out)
{
    if (c->share >= s->plan->first[writer + 1])
        return false;
    const dti_share *share = &s->plan->share[c->share];
    const dti_item *item = &s->plan->item[share->item];
    const int64_t size = (int64_t)dt_dtype_size(item->dtype);
    const int64_t left = share->hi - share->lo - c->element,
                  room = (s->round_bytes - c->used) / size;
    const int64_t n = left < room ? left : room;
    if (n == 0)
        return false;
    const int64_t lo = share->lo + c->element;
    *chunk_out = (chunk){item, share, lo, lo + n, c->used};
    c->used += align(n * size);
    c->element += n;
    if (n == left) {
        c->share++;
        c->element = 0;
    }
    return true;
}

/* The block that a rank of the mesh would give of a chunk; false: none, it is not the source. */
static bool block_of(const chunk *c, int from, int to, dti_block *b)
{
    const dt_layout *l = c->item->layout;
    int source[DT_MAX_AXES], writer[DT_MAX_AXES];
    dt_grid_coord(l->grid, from, source);
    dt_grid_coord(l->grid, to, writer);
    for (int a = 0; a < l->grid->naxes; a++)
        if (dt_layout_at(l, a).kind == DT_REPLICATE && source[a] != writer[a])
            return false;
    *b = (dti_block){.whole = l->shape};
    b->part = dt_layout_local(l, source, b->offset);
    return dti_block_below(b, c->lo) < dti_block_below(b, c->hi);
}

static int64_t block_bytes(const dti_block *b, const chunk *c)
{
    return align((dti_block_below(b, c->hi) - dti_block_below(b, c->lo)) *
                 (int64_t)dt_dtype_size(c->item->dtype));
}

/* Elements of a U8 array from a byte on. */
static dt_array view(const dt_array *bytes, int64_t at, dt_dtype dtype)
{
    return (dt_array){bytes->storage, at / (int64_t)dt_dtype_size(dtype), DT_SCALAR, dtype};
}

/* The chunk's elements of a block: from `src`, where the block's element src_first comes first, to
 * `dst`, as they lie in the file or one after the other. */
static void copy(const dti_block *b, const chunk *c, dt_array src, int64_t src_first, dt_array dst,
                 bool as_file)
{
    const int64_t block_first = dti_block_below(b, c->lo);
    dti_run run;
    dti_runs runs = dti_runs_of(b, c->lo, c->hi);
    while (dti_runs_next(&runs, &run)) {
        dt_array from = src, to = dst;
        from.shape = to.shape = DT_SHAPE(run.count);
        from.offset += run.block - src_first;
        to.offset += as_file ? run.whole - c->lo : run.block - block_first;
        if (from.dtype == to.dtype)
            dt_array_copy(&to, &from);
        else
            dt_array_cast(&to, &from);
    }
}

/* The same from this rank's own array, which may rest in a file or, all of it that the chunk needs
 * in one transfer, come from cuda. */
static dt_status copy_own(const dti_block *b, const chunk *c, dt_array dst, bool as_file)
{
    void *copied;
    dt_array own = c->item->src;
    const int64_t first = dti_block_below(b, c->lo);
    DT_TRY(dt_storage_open(own.storage));
    own.offset += first;
    own.shape = DT_SHAPE(dti_block_below(b, c->hi) - first);
    dt_storage host = {.data = (void *)(uintptr_t)dt_array_look(&own, &copied),
                       .bytes = dt_array_bytes(&own),
                       .refs = 1};
    dt_status st = dt_heap_status(own.storage->heap);
    if (st == DT_OK && !host.data)
        st = DT_ERROR(DT_ERR_NOMEM, "%zu bytes for staging", host.bytes);
    if (st == DT_OK)
        copy(b, c, (dt_array){&host, 0, own.shape, own.dtype}, first, dst, as_file);
    free(copied);
    dt_storage_close(own.storage);
    return st;
}

static void count(stage *s)
{
    dti_block b;
    chunk c;
    const int world = dt_world_size(s->plan->world);
    memset(s->send, 0, (size_t)world * sizeof *s->send);
    memset(s->recv, 0, (size_t)world * sizeof *s->recv);
    for (int w = 0; w < s->k; w++) {
        cursor at = s->at[w];
        while (w != s->me && next(s, w, &at, &c))
            if (block_of(&c, s->me, w, &b))
                s->send[dt_mesh_world_rank(s->plan->mesh, w)] += block_bytes(&b, &c);
    }
    cursor mine = s->at[s->me];
    while (s->k > 0 && next(s, s->me, &mine, &c))
        for (int r = 0; r < s->k; r++)
            if (r != s->me && block_of(&c, r, s->me, &b))
                s->recv[dt_mesh_world_rank(s->plan->mesh, r)] += block_bytes(&b, &c);
}

static int64_t sum(const int64_t *n, int count)
{
    int64_t all = 0;
    for (int i = 0; i < count; i++)
        all += n[i];
    return all;
}

static dt_status pack(stage *s)
{
    /* Members of a mesh may stand in any order in the world; regions are in the world's. */
    dti_block b;
    chunk c;
    for (int w = 0; w < s->k; w++) {
        int64_t at = sum(s->send, dt_mesh_world_rank(s->plan->mesh, w));
        cursor cur = s->at[w];
        while (w != s->me && next(s, w, &cur, &c)) {
            if (!block_of(&c, s->me, w, &b))
                continue;
            DT_TRY(copy_own(&b, &c, view(&s->out, at, c.item->dtype), false));
            at += block_bytes(&b, &c);
        }
    }
    return DT_OK;
}

/* What this rank has and what came, for the buffer. */
static dt_status unpack(stage *s, dti_buffer *buffer)
{
    dti_block b;
    chunk c;
    dt_status st = DT_OK;
    for (int r = 0; r < s->k; r++) {
        int64_t at = sum(s->recv, dt_mesh_world_rank(s->plan->mesh, r));
        cursor cur = s->at[s->me];
        while (st == DT_OK && next(s, s->me, &cur, &c)) {
            if (!block_of(&c, r, s->me, &b))
                continue;
            const dt_array to = view(&buffer->bytes, c.at, c.item->dtype);
            if (r == s->me) {
                st = copy_own(&b, &c, to, true);
                continue;
            }
            copy(&b, &c, view(&s->in, at, c.item->dtype), dti_block_below(&b, c.lo), to, true);
            at += block_bytes(&b, &c);
        }
    }
    return st;
}

/* What the writer does with it; then all cursors move on. */
static dt_status list_writes(stage *s, dti_buffer *buffer)
{
    chunk c;
    cursor cur = s->k > 0 ? s->at[s->me] : (cursor){0};
    while (s->k > 0 && next(s, s->me, &cur, &c)) {
        const int64_t size = (int64_t)dt_dtype_size(c.item->dtype);
        DT_TRY(dt_grow((void **)&buffer->write, &buffer->capacity, buffer->n + 1,
                       sizeof *buffer->write));
        buffer->write[buffer->n++] = (dti_write){.file = c.item->file,
                                                 .offset = c.item->at + c.lo * size,
                                                 .bytes = (c.hi - c.lo) * size,
                                                 .at = c.at,
                                                 .first = c.lo == c.share->lo,
                                                 .last = c.hi == c.share->hi};
    }
    return DT_OK;
}

static void advance(stage *s)
{
    chunk c;
    for (int w = 0; w < s->k; w++) {
        while (next(s, w, &s->at[w], &c))
            ;
        s->at[w].used = 0;
    }
}

/* local: this rank's first failure that others do not know of; it goes on for their sake. */
static dt_status round_of(stage *s, dti_writer *w, dt_status *local)
{
    dt_work *work = NULL;
    count(s);
    const int world = dt_world_size(s->plan->world);
    s->out.shape = DT_SHAPE(sum(s->send, world));
    s->in.shape = DT_SHAPE(sum(s->recv, world));
    *local = *local == DT_OK ? pack(s) : *local;
    const dt_part part = {.in = &s->out, .out = &s->in, .send = s->send, .recv = s->recv};
    if (world > 1)
        DT_TRY(dt_all_to_all(dt_world_comm(s->plan->world), 1, &part, "checkpoint", &work));
    dti_buffer *buffer = dti_writer_take(w);
    const dt_status st = dt_work_wait(&work);
    if (st == DT_OK && *local == DT_OK)
        *local = unpack(s, buffer);
    if (*local == DT_OK)
        *local = list_writes(s, buffer);
    dti_writer_put(w);
    DT_TRY(st);
    advance(s);
    return DT_OK;
}

static void begin(stage *s)
{
    for (int w = 0; w < s->k; w++)
        s->at[w] = (cursor){.share = s->plan->first[w]};
}

static bool staged(const stage *s)
{
    for (int w = 0; w < s->k; w++)
        if (s->at[w].share < s->plan->first[w + 1])
            return false;
    return true;
}

/* Go through all rounds without moving anything: how many, and room for the largest. */
static dt_status prepare(stage *s, int64_t *rounds_out)
{
    const int world = dt_world_size(s->plan->world);
    int64_t rounds = 0, out = 0, in = 0;
    for (begin(s); !staged(s); advance(s), rounds++) {
        count(s);
        out = sum(s->send, world) > out ? sum(s->send, world) : out;
        in = sum(s->recv, world) > in ? sum(s->recv, world) : in;
    }
    begin(s);
    DT_TRY(dt_array_create(s->heap, DT_U8, DT_SHAPE(out), DT_TAG_WORKSPACE, &s->out));
    DT_TRY(dt_array_create(s->heap, DT_U8, DT_SHAPE(in), DT_TAG_WORKSPACE, &s->in));
    *rounds_out = rounds;
    return DT_OK;
}

int64_t dti_stage_bytes(const dti_plan *p)
{
    int64_t bytes = 0;
    const int me = p->mesh ? dt_mesh_rank(p->mesh) : 0;
    for (int64_t i = p->first[me]; p->mesh && i < p->first[me + 1]; i++)
        bytes += align((p->share[i].hi - p->share[i].lo) *
                       (int64_t)dt_dtype_size(p->item[p->share[i].item].dtype));
    return bytes;
}

dt_status dti_stage(const dti_plan *plan, int64_t round_bytes, dti_writer *w)
{
    const int world = dt_world_size(plan->world);
    stage s = {.plan = plan, .k = plan->mesh ? dt_mesh_size(plan->mesh) : 0};
    s.me = s.k > 0 ? dt_mesh_rank(plan->mesh) : 0;
    s.round_bytes = round_bytes;
    s.at = calloc((size_t)s.k + 1, sizeof *s.at);
    s.send = calloc((size_t)world, sizeof *s.send);
    s.recv = calloc((size_t)world, sizeof *s.recv);
    dt_status st = dt_world_heap(plan->world, (dt_device){DT_CPU, 0}, &s.heap), local = DT_OK;
    if (st == DT_OK && !(s.at && s.send && s.recv))
        st = DT_ERROR(DT_ERR_NOMEM, "staging");
    int64_t rounds = 0;
    if (st == DT_OK)
        st = prepare(&s, &rounds);
    DT_TRY_TO(done, st, dt_world_agree_sync(plan->world, st));
    /* pipeline stages may have other numbers of rounds */
    DT_TRY_TO(done, st,
              dt_all_reduce_i64_sync(dt_world_comm(plan->world), &rounds, 1, DT_REDUCE_MAX));
    for (int64_t i = 0; i < rounds; i++)
        DT_TRY_TO(done, st, round_of(&s, w, &local));
    st = local;
done:
    dt_array_release(&s.out);
    dt_array_release(&s.in);
    free(s.at);
    free(s.send);
    free(s.recv);
    return st;
}
