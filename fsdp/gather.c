/* fsdp/gather.c - from shards to parameters in use, and back to shards.
 *
 * The tensor that ops see is made once; its storage is emptied and refilled, so that what a tape
 * saved stays valid. An all-gather of dim 0 goes straight from the shards into that storage; other
 * dims are unpacked into it. */
#include "fsdp/fsdp_internal.h"

#include <stdlib.h>

/* ---- shards that rest elsewhere ---- */

static dt_storage *shard_of(const dti_member *mb)
{
    return dt_tensor_local(mb->param->tensor)->storage;
}

static dt_status open_shard(dti_member *mb)
{
    if (!mb->open)
        DT_TRY(dt_storage_open(shard_of(mb)));
    mb->open = true;
    return DT_OK;
}

static void close_shard(dti_member *mb)
{
    if (mb->open)
        dt_storage_close(shard_of(mb));
    mb->open = false;
}

static dt_status prefetch(dti_group *g)
{
    for (int i = 0; i < g->n; i++)
        DT_TRY(dt_storage_prefetch(shard_of(&g->member[i])));
    return DT_OK;
}

dt_status dti_fsdp_read(dti_group *g)
{
    if (!g->options.store || g->reading || g->state != DTI_SHARDED)
        return DT_OK;
    dti_fsdp_event(g, "read");
    if (!g->fsdp->print)
        DT_TRY(prefetch(g));
    g->reading = true;
    return DT_OK;
}

/* What was read ahead is not gathered after all. */
static dt_status read_drop(dti_group *g)
{
    for (int i = 0; g->reading && !g->fsdp->print && i < g->n; i++) {
        DT_TRY(open_shard(&g->member[i]));
        close_shard(&g->member[i]);
    }
    g->reading = false;
    return DT_OK;
}

/* ---- gathering ---- */

/* p->use, with no bytes yet. */
static dt_status make_use(dti_member *mb)
{
    dt_param *p = mb->param;
    DT_REQUIRE(p->tensor, DT_ERR_STATE,
               "%s is not materialized: dt_module_materialize comes before the first forward",
               p->name);
    if (mb->alias)
        return DT_OK;
    if (!p->use) {
        DT_TRY(dt_tensor_create(mb->use, mb->use_dtype, DT_TAG_COMM, &p->use));
        dt_storage_empty(dt_tensor_local(p->use)->storage);
        DT_TRY(dt_tensor_set_name(p->use, p->name));
    }
    dt_tensor_set_wide_grad(p->use, mb->sum_dtype == DT_F32);
    dt_tensor_set_parameter(p->use, !p->frozen); /* it may have been frozen or thawed since */
    return DT_OK;
}

dt_status dti_fsdp_announce(dti_group *g)
{
    for (int i = 0; i < g->n; i++)
        DT_TRY(make_use(&g->member[i]));
    return DT_OK;
}

/* The shard, which is open until then, in another dtype. */
static void cast_shard(const dti_group *g, dti_member *mb, dt_casts *casts, dt_array *to)
{
    dt_casts_add(casts, to, dt_tensor_local(mb->param->tensor));
    if (g->options.store)
        dt_casts_run(casts);
    close_shard(mb);
}

/* What is gathered of a member, as a new reference: its shard in the dtype of use, or what the
 * group kept. A shard that was opened stays so if it is its own bytes that move. */
static dt_status source(dti_group *g, dti_member *mb, dt_casts *casts, dt_local *out)
{
    if (g->state == DTI_GROUPED) {
        *out = mb->kept;
        mb->kept = (dt_local){0};
        return DT_OK;
    }
    dt_array *shard = dt_tensor_local(mb->param->tensor);
    DT_TRY(open_shard(mb));
    out->layout = mb->param->layout;
    if (shard->dtype == mb->use_dtype) {
        out->array = dt_array_share(shard);
        return DT_OK;
    }
    DT_TRY(dt_array_create(dt_mesh_heap(g->mesh), mb->use_dtype, shard->shape, DT_TAG_COMM,
                           &out->array));
    cast_shard(g, mb, casts, &out->array);
    return DT_OK;
}

/* Sources, destinations and targets of all members that move. */
typedef struct lists {
    dt_local *src;
    const dt_layout **dst;
    const dt_array **into;
    int n;
    dt_casts casts; /* to sources or targets, before anything moves */
} lists;

static dt_status fill(dti_group *g, lists *l)
{
    l->src = calloc((size_t)g->n + 1, sizeof *l->src);
    l->dst = calloc((size_t)g->n + 1, sizeof *l->dst);
    l->into = calloc((size_t)g->n + 1, sizeof *l->into);
    DT_REQUIRE(l->src && l->dst && l->into, DT_ERR_NOMEM, "%d parameters", g->n);
    for (int i = 0; i < g->n; i++) {
        dti_member *mb = &g->member[i];
        DT_TRY(make_use(mb));
        if (mb->alias) {
            DT_TRY(dt_storage_prefetch(shard_of(mb)));
            continue;
        }
        dt_array *use = dt_tensor_local(mb->param->use);
        DT_TRY(dt_storage_refill(use->storage));
        if (g->state == DTI_SHARDED && mb->use == mb->param->layout) { /* all of it is here */
            DT_TRY(open_shard(mb));
            cast_shard(g, mb, &l->casts, use);
            continue;
        }
        l->dst[l->n] = g->state == DTI_GROUPED ? mb->use_view : mb->use;
        l->into[l->n] = use;
        DT_TRY(source(g, mb, &l->casts, &l->src[l->n]));
        l->n++;
    }
    return DT_OK;
}

/* After a failure: no copy, as if nothing had been begun. */
static void abandon(dti_group *g)
{
    for (int i = 0; i < g->n; i++) {
        dti_member *mb = &g->member[i];
        close_shard(mb);
        dt_array_release(&mb->kept.array);
        if (!mb->alias && mb->param->use)
            dt_storage_empty(dt_tensor_local(mb->param->use)->storage);
    }
    g->state = DTI_SHARDED;
}

static dt_status begin(dti_group *g)
{
    lists l = {0};
    g->reading = false;
    dt_status st = fill(g, &l);
    dt_casts_run(&l.casts);
    if (st == DT_OK && l.n > 0) {
        const dt_move_options o = {.channel = DTI_GATHER_CHANNEL,
                                   .label = dti_fsdp_name(g),
                                   .tag = DT_TAG_COMM,
                                   .into = l.into};
        st = dt_move_begin(l.n, l.src, l.dst, &o, &g->gather);
    }
    for (int i = 0; l.src && i < g->n; i++)
        dt_array_release(&l.src[i].array);
    free(l.src);
    free(l.dst);
    free(l.into);
    g->gathering = l.n;
    if (st == DT_OK)
        return DT_OK;
    abandon(g);
    return dt_error_push(st, __FILE__, __LINE__, dti_fsdp_name(g));
}

dt_status dti_fsdp_unshard_begin(dti_group *g)
{
    if (g->state == DTI_GATHERING || g->state == DTI_UNSHARDED)
        return DT_OK;
    if (g->nmoving > 0)
        dti_fsdp_event(g, "gather");
    if (!g->fsdp->print)
        DT_TRY(begin(g));
    g->state = g->nmoving > 0 ? DTI_GATHERING : DTI_UNSHARDED;
    return DT_OK;
}

static dt_status finish(dti_group *g)
{
    dt_status st = g->gather ? dt_move_finish(&g->gather, g->gathered) : DT_OK;
    for (int i = 0; st == DT_OK && i < g->gathering; i++)
        dt_array_release(&g->gathered[i].array); /* they are p->use's bytes */
    g->gathering = 0;
    for (int i = 0; st == DT_OK && i < g->n; i++) {
        if (g->member[i].alias)
            st = open_shard(&g->member[i]);
        else
            close_shard(&g->member[i]);
    }
    if (st == DT_OK)
        return DT_OK;
    abandon(g);
    return dt_error_push(st, __FILE__, __LINE__, dti_fsdp_name(g));
}

dt_status dti_fsdp_unshard(dti_group *g)
{
    DT_TRY(dti_fsdp_unshard_begin(g));
    if (g->state != DTI_GATHERING)
        return DT_OK;
    dti_fsdp_event(g, "wait");
    if (!g->fsdp->print)
        DT_TRY(finish(g));
    g->state = DTI_UNSHARDED;
    return DT_OK;
}

/* Keep the part of this rank among its neighbours. A slice: nothing moves. */
static dt_status keep_part(dti_member *mb)
{
    const dt_local whole = {mb->use_view, *dt_tensor_local(mb->param->use)};
    DT_TRY(dt_move(1, &whole, &mb->kept_view, DTI_GATHER_CHANNEL, mb->param->name, DT_TAG_COMM,
                   &mb->kept));
    return DT_OK;
}

/* Empty the copies of a gathered group. */
static dt_status let_go(dti_group *g, bool to_group)
{
    for (int i = 0; i < g->n; i++) {
        dti_member *mb = &g->member[i];
        close_shard(mb);
        if (mb->alias)
            continue;
        if (to_group)
            DT_TRY(keep_part(mb));
        dt_storage_empty(dt_tensor_local(mb->param->use)->storage);
    }
    return DT_OK;
}

dt_status dti_fsdp_reshard(dti_group *g, bool after_forward)
{
    const bool to_group = after_forward && g->options.reshard == DT_RESHARD_GROUP;
    if (g->state == DTI_GATHERING)
        DT_TRY(dti_fsdp_unshard(g));
    DT_TRY(read_drop(g));
    for (int i = 0; g->state == DTI_GROUPED && !to_group && i < g->n; i++)
        dt_array_release(&g->member[i].kept.array);
    if (g->state == DTI_GROUPED && !to_group)
        g->state = DTI_SHARDED;
    if (g->state != DTI_UNSHARDED)
        return DT_OK;
    if (g->nmoving > 0) {
        dti_fsdp_event(g, "free");
        if (!g->fsdp->print)
            DT_TRY(let_go(g, to_group));
    }
    g->state = to_group ? DTI_GROUPED : DTI_SHARDED;
    return DT_OK;
}
