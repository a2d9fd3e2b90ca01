/* fsdp/replicate.c - data parallelism without sharding: buckets of gradients all-reduced while
 * backward runs.
 *
 * Parameters are put in buckets in reverse order of use, as their gradients become ready. When the
 * last gradient of a bucket has arrived its all-reduce begins, in the background; the end of the
 * root's backward waits for all of them.
 * Source: Li et al. 2020 (PyTorch DistributedDataParallel). */
#include "fsdp/dt_fsdp.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CHANNEL = 2, DEFAULT_BUCKET_BYTES = 4 << 20 };

typedef struct bucket {
    dt_param **param;
    int n, waiting; /* parameters whose gradient has not arrived in this backward */
    dt_moving *moving;
    int *moved, nmoved;
} bucket;

typedef struct replica {
    dt_module *root;
    dt_mesh *mesh;
    uint8_t axes;
    bool sync;
    bucket *bucket;
    int nbuckets;
} replica;

/* ---- one bucket ---- */

static dt_status begin(replica *r, bucket *b, dt_local *src, const dt_layout **dst)
{
    for (int i = 0; i < b->n; i++) {
        const dt_local *g = dt_tensor_grad(b->param[i]->tensor);
        if (!g->array.storage)
            continue;
        dt_layout home = *g->layout;
        home.partial = (uint8_t)(home.partial & ~r->axes);
        src[b->nmoved] = *g;
        DT_TRY(dt_mesh_layout(r->mesh, &home, &dst[b->nmoved]));
        b->moved[b->nmoved++] = i;
    }
    if (b->nmoved == 0)
        return DT_OK;
    char label[32];
    (void)snprintf(label, sizeof label, "bucket %d", (int)(b - r->bucket));
    const dt_move_options o = {.channel = CHANNEL, .label = label, .tag = DT_TAG_GRADIENT};
    DT_TRY(dt_move_begin(b->nmoved, src, dst, &o, &b->moving));
    for (int k = 0; k < b->nmoved; k++)
        dt_tensor_clear_grad(b->param[b->moved[k]]->tensor);
    return DT_OK;
}

static dt_status bucket_begin(replica *r, bucket *b)
{
    dt_local *src = calloc((size_t)b->n, sizeof *src);
    const dt_layout **dst = calloc((size_t)b->n, sizeof *dst);
    b->nmoved = 0;
    const dt_status st =
        src && dst ? begin(r, b, src, dst) : DT_ERROR(DT_ERR_NOMEM, "%d gradients", b->n);
    free(src);
    free(dst);
    return st;
}

static dt_status bucket_finish(bucket *b)
{
    if (!b->moving)
        return DT_OK;
    dt_local *got = calloc((size_t)b->nmoved, sizeof *got);
    DT_REQUIRE(got, DT_ERR_NOMEM, "%d gradients", b->nmoved);
    dt_status st = dt_move_finish(&b->moving, got);
    for (int k = 0; k < b->nmoved && st == DT_OK; k++) {
        dt_local given = got[k];
        got[k] = (dt_local){0};
        st = dt_tensor_add_grad(b->param[b->moved[k]]->tensor, &given);
    }
    for (int k = 0; k < b->nmoved; k++)
        dt_array_release(&got[k].array); /* what a failure left */
    free(got);
    return st;
}

/* ---- events ---- */

static bucket *bucket_of(replica *r, const dt_param *p)
{
    for (int i = 0; i < r->nbuckets; i++) {
        for (int k = 0; k < r->bucket[i].n; k++) {
            if (r->bucket[i].param[k] == p)
                return &r->bucket[i];
        }
    }
    return NULL;
}

/* Every holder of every parameter of the bucket has ended its last backward: the gradients are
 * whole. */
static dt_status module_done(dt_module *m, dt_tape *t, void *arg)
{
    replica *r = arg;
    int n = 0;
    dt_param *const *p = dt_module_params(m, &n);
    if (!r->sync || dt_tape_marker_ahead(t, m))
        return DT_OK;
    for (int i = 0; i < n; i++) {
        bucket *b = bucket_of(r, p[i]);
        if (b && --b->waiting == 0)
            DT_TRY(bucket_begin(r, b));
    }
    return DT_OK;
}

static void start_counting(replica *r)
{
    for (int i = 0; i < r->nbuckets && r->sync; i++) {
        bucket *b = &r->bucket[i];
        b->waiting = 0;
        for (int k = 0; k < b->n; k++)
            b->waiting += b->param[k]->users;
    }
}

/* Buckets that are incomplete (a module that this backward did not reach) go as they are. */
static dt_status finish_all(replica *r)
{
    for (int i = 0; i < r->nbuckets; i++) {
        if (r->bucket[i].waiting > 0)
            DT_TRY(bucket_begin(r, &r->bucket[i]));
        r->bucket[i].waiting = 0;
    }
    for (int i = 0; i < r->nbuckets; i++)
        DT_TRY(bucket_finish(&r->bucket[i]));
    return DT_OK;
}

static dt_status root_starts(dt_module *m, dt_tape *t, void *arg)
{
    (void)m;
    (void)t;
    start_counting(arg);
    return DT_OK;
}

static dt_status root_ends(dt_module *m, dt_tape *t, void *arg)
{
    if (!dt_tape_marker_ahead(t, m))
        DT_TRY(finish_all(arg));
    return DT_OK;
}

static void replica_free(void *arg)
{
    replica *r = arg;
    for (int i = 0; i < r->nbuckets; i++) {
        bucket *b = &r->bucket[i];
        dt_local *got = b->moving ? calloc((size_t)b->nmoved, sizeof *got) : NULL;
        if (got && dt_move_finish(&b->moving, got) == DT_OK) {
            for (int k = 0; k < b->nmoved; k++)
                dt_array_release(&got[k].array);
        }
        free(got);
        free(r->bucket[i].param);
        free(r->bucket[i].moved);
    }
    free(r->bucket);
    free(r);
}

/* ---- set-up ---- */

static dt_status add_to_bucket(bucket *b, dt_param *p)
{
    dt_param **grown = realloc(b->param, (size_t)(b->n + 1) * sizeof(dt_param *));
    DT_REQUIRE(grown, DT_ERR_NOMEM, "a bucket");
    b->param = grown;
    int *moved = realloc(b->moved, (size_t)(b->n + 1) * sizeof *moved);
    DT_REQUIRE(moved, DT_ERR_NOMEM, "a bucket");
    b->moved = moved;
    b->param[b->n++] = p;
    p->owner = b;
    return DT_OK;
}

static dt_status fill_buckets(replica *r, int64_t bucket_bytes)
{
    int n = 0;
    int64_t bytes = 0;
    dt_param *const *p = dt_module_params(r->root, &n);
    DT_REQUIRE(n > 0, DT_ERR_ARG, "module '%s' has no parameters", dt_module_path(r->root));
    r->bucket = calloc((size_t)n, sizeof *r->bucket);
    DT_REQUIRE(r->bucket, DT_ERR_NOMEM, "buckets");
    for (int i = n - 1; i >= 0; i--) {
        if (p[i]->frozen)
            continue;
        DT_REQUIRE(!p[i]->owner, DT_ERR_STATE, "%s is reduced by fully_shard or replicate already",
                   p[i]->name);
        if (r->nbuckets == 0 || bytes >= bucket_bytes) {
            r->nbuckets++;
            bytes = 0;
        }
        const dt_shape local = p[i]->layout ? dt_mesh_local(p[i]->layout, NULL) : p[i]->shape;
        bytes += dt_shape_count(local) * (int64_t)dt_dtype_size(p[i]->dtype);
        DT_TRY(add_to_bucket(&r->bucket[r->nbuckets - 1], p[i]));
    }
    return DT_OK;
}

/* Modules without children hold the parameters; what others hold goes at the end. */
static dt_status hook_leaves(replica *r, dt_module *m)
{
    const dt_lifetime hooks = {.post_backward_weight = module_done, .arg = r};
    if (dt_module_nchildren(m) == 0)
        DT_TRY(dt_module_add_lifetime(m, &hooks));
    for (int i = 0; i < dt_module_nchildren(m); i++)
        DT_TRY(hook_leaves(r, dt_module_child(m, i)));
    return DT_OK;
}

static dt_status sharder_nothing(dt_module *m, void *arg)
{
    (void)m;
    (void)arg;
    return DT_OK;
}

static void sharder_set_sync(dt_module *m, bool on, void *arg)
{
    (void)m;
    ((replica *)arg)->sync = on;
}

static dt_status sharder_finish(dt_module *m, void *arg)
{
    (void)m;
    DT_TRY(finish_all(arg));
    return DT_OK;
}

static const dt_sharder replica_sharder = {
    sharder_nothing, sharder_nothing, sharder_set_sync, sharder_finish, NULL, NULL};

dt_status dt_replicate(dt_module *m, dt_mesh *mesh, const char *axes, int64_t bucket_bytes)
{
    int naxes = 0;
    uint8_t axis[DT_MAX_AXES], bits = 0;
    void *arg = NULL;
    DT_TRY(dt_mesh_axes(mesh, axes, &naxes, axis, &bits));
    DT_REQUIRE(!dt_module_sharder(m, &arg), DT_ERR_STATE,
               "module '%s' was given to fully_shard or replicate already", dt_module_path(m));
    replica *r = calloc(1, sizeof *r);
    DT_REQUIRE(r, DT_ERR_NOMEM, "a replica");
    *r = (replica){.root = m, .mesh = mesh, .axes = bits, .sync = true};
    const dt_status st = fill_buckets(r, bucket_bytes > 0 ? bucket_bytes : DEFAULT_BUCKET_BYTES);
    if (st != DT_OK) {
        for (int i = 0; i < r->nbuckets; i++) {
            for (int k = 0; k < r->bucket[i].n; k++)
                r->bucket[i].param[k]->owner = NULL;
        }
        replica_free(r);
        return dt_error_push(st, __FILE__, __LINE__, __func__);
    }
    const dt_lifetime hooks = {.pre_backward = root_starts,
                               .post_backward_weight = root_ends,
                               .arg = r,
                               .free_arg = replica_free};
    DT_TRY(hook_leaves(r, m));
    DT_TRY(dt_module_add_lifetime(m, &hooks));
    dt_module_set_sharder(m, &replica_sharder, r);
    return DT_OK;
}
