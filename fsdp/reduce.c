/* fsdp/reduce.c - gradients from where they arose to where their parameters rest, one coalesced
 * call a group.
 *
 *     P@dp_shard -> S(0)@dp_shard           reduce-scatter
 *     P@dp_replicate -> R@dp_replicate      then all-reduce of the shard (HSDP)
 *
 * Gradients are summed in sum_dtype. P on other axes (tensor parallelism) stays:
 * dt_module_reduce_grads ends it. */
#include "fsdp/fsdp_internal.h"

#include <stdlib.h>

static bool same_dtype(const dti_member *mb)
{
    return mb->use_dtype == mb->sum_dtype;
}

/* Add what arose at p->use to the sum in sum_dtype, once `casts` have run. */
static dt_status hold(const dti_group *g, dti_member *mb, dt_casts *casts)
{
    dt_local *arisen = dt_tensor_grad(mb->param->use);
    if (!arisen->array.storage)
        return DT_OK;
    if (!mb->sum) {
        DT_TRY(dt_tensor_create(mb->use, mb->sum_dtype, DT_TAG_GRADIENT, &mb->sum));
        dt_storage_empty(dt_tensor_local(mb->sum)->storage); /* only its gradient is used */
    }
    if (arisen->array.dtype == mb->sum_dtype) { /* it arose so */
        dt_local as_is = *arisen;
        *arisen = (dt_local){0};
        DT_TRY(dt_tensor_add_grad(mb->sum, &as_is));
        return DT_OK;
    }
    dt_local wide = {.layout = arisen->layout};
    DT_TRY(dt_array_create(dt_mesh_heap(g->mesh), mb->sum_dtype, arisen->array.shape,
                           DT_TAG_GRADIENT, &wide.array));
    dt_casts_add(casts, &wide.array, &arisen->array);
    dt_tensor_clear_grad(mb->param->use);
    if (dt_tensor_grad(mb->sum)->array.storage)
        dt_casts_run(casts);
    DT_TRY(dt_tensor_add_grad(mb->sum, &wide));
    return DT_OK;
}

dt_status dti_fsdp_reduce_hold(dti_group *g)
{
    dt_casts casts = {0};
    dt_status st = DT_OK;
    for (int i = 0; !g->fsdp->print && st == DT_OK && i < g->n; i++) {
        if (g->member[i].param->use && !same_dtype(&g->member[i]))
            st = hold(g, &g->member[i], &casts);
    }
    dt_casts_run(&casts);
    return st;
}

void dti_fsdp_reduce_clear(dti_group *g)
{
    g->forget = g->reduce != NULL;
    for (int i = 0; i < g->n; i++) {
        if (g->member[i].sum)
            dt_tensor_clear_grad(g->member[i].sum);
    }
}

/* The leaf whose gradient shall be reduced, or NULL if there is none. */
static dt_tensor *carrier(const dti_member *mb)
{
    dt_tensor *leaf = same_dtype(mb) ? mb->param->use : mb->sum;
    return leaf && dt_tensor_grad(leaf)->array.storage ? leaf : NULL;
}

/* The gradient's layout when the sum over some axes is done: at the parameter's place, P on the
 * other axes as before. */
static dt_status destination(const dti_group *g, const dti_member *mb, const dt_local *grad,
                             uint8_t axes, const dt_layout **out)
{
    dt_layout rest = *mb->param->layout;
    rest.partial = (uint8_t)(grad->layout->partial & ~axes);
    DT_TRY(dt_mesh_layout(g->mesh, &rest, out));
    return DT_OK;
}

static dt_status begin_move(dti_group *g, int n, const dt_local *src, const dt_layout *const *dst)
{
    const dt_move_options o = {
        .channel = DTI_REDUCE_CHANNEL, .label = dti_fsdp_name(g), .tag = DT_TAG_GRADIENT};
    DT_TRY(dt_move_begin(n, src, dst, &o, &g->reduce));
    g->nreducing = n;
    return DT_OK;
}

static dt_status begin(dti_group *g, dt_local *src, const dt_layout **dst)
{
    int n = 0;
    for (int i = 0; i < g->n; i++) {
        dt_tensor *leaf = carrier(&g->member[i]);
        if (!leaf)
            continue;
        src[n] = *dt_tensor_grad(leaf);
        DT_TRY(destination(g, &g->member[i], &src[n], g->shard_axes, &dst[n]));
        g->reducing[n++] = i;
    }
    if (n == 0)
        return DT_OK;
    dti_fsdp_event(g, "reduce");
    DT_TRY(begin_move(g, n, src, dst));
    for (int k = 0; k < n; k++) /* the move holds the bytes now */
        dt_tensor_clear_grad(carrier(&g->member[g->reducing[k]]));
    return DT_OK;
}

/* Dry: the gradients that a whole backward would have left. */
static void pretend(dti_group *g)
{
    g->nreducing = 0;
    for (int i = 0; i < g->n; i++)
        g->nreducing += g->pretends && !g->member[i].alias && !g->member[i].param->frozen;
    g->pretends = false;
    if (g->nreducing > 0)
        dti_fsdp_event(g, "reduce");
}

static dt_status with_lists(dti_group *g,
                            dt_status (*fn)(dti_group *g, dt_local *src, const dt_layout **dst))
{
    dt_local *src = calloc((size_t)g->n + 1, sizeof *src);
    const dt_layout **dst = calloc((size_t)g->n + 1, sizeof *dst);
    const dt_status st =
        src && dst ? fn(g, src, dst) : DT_ERROR(DT_ERR_NOMEM, "%d gradients", g->n);
    free(src);
    free(dst);
    return st;
}

dt_status dti_fsdp_reduce_begin(dti_group *g)
{
    if (g->fsdp->print) {
        pretend(g);
        return DT_OK;
    }
    DT_TRY(dti_fsdp_reduce_finish(g));
    DT_TRY(dti_fsdp_reduce_hold(g));
    DT_TRY(with_lists(g, begin));
    return DT_OK;
}

/* Add a reduced gradient to what the parameter has, in the parameter's own type. */
static dt_status arrive(dti_group *g, dt_param *p, dt_local *got)
{
    const dt_dtype dtype = dt_tensor_dtype(p->tensor);
    if (got->array.dtype != dtype) {
        dt_array wide = {0};
        DT_TRY(dt_array_create(dt_mesh_heap(g->mesh), dtype, got->array.shape, DT_TAG_GRADIENT,
                               &wide));
        dt_array_cast(&wide, &got->array);
        dt_array_release(&got->array);
        got->array = wide;
    }
    dt_local given = *got;
    *got = (dt_local){0};
    DT_TRY(dt_tensor_add_grad(p->tensor, &given));
    return DT_OK;
}

static void release_all(int n, dt_local *got)
{
    for (int k = 0; k < n; k++)
        dt_array_release(&got[k].array);
}

/* got: sums over shards, in flight until now. */
static dt_status begin_replicas(dti_group *g, int n, dt_local *got, const dt_layout **dst)
{
    for (int k = 0; k < n; k++)
        DT_TRY(destination(g, &g->member[g->reducing[k]], &got[k], g->replicate_axes, &dst[k]));
    DT_TRY(begin_move(g, n, got, dst));
    g->at_replicas = true;
    return DT_OK;
}

static dt_status next(dti_group *g, dt_local *got, const dt_layout **dst)
{
    const int n = g->nreducing;
    const bool over_replicas = g->all_replicas && !g->at_replicas;
    g->nreducing = 0;
    g->at_replicas = false;
    DT_TRY(dt_move_finish(&g->reduce, got));
    dt_status st = over_replicas ? begin_replicas(g, n, got, dst) : DT_OK;
    for (int k = 0; k < n && st == DT_OK && !over_replicas && !g->forget; k++)
        st = arrive(g, g->member[g->reducing[k]].param, &got[k]);
    g->forget = g->forget && over_replicas;
    release_all(n, got); /* the move has its own references; what a failure left */
    return st;
}

dt_status dti_fsdp_reduce_next(dti_group *g)
{
    if (g->nreducing == 0)
        return DT_OK;
    if (!g->all_replicas || g->at_replicas)
        dti_fsdp_event(g, "reduced");
    if (!g->fsdp->print) {
        DT_TRY(with_lists(g, next));
        return DT_OK;
    }
    g->at_replicas = g->all_replicas && !g->at_replicas;
    g->nreducing = g->at_replicas ? g->nreducing : 0;
    return DT_OK;
}

dt_status dti_fsdp_reduce_finish(dti_group *g)
{
    while (g->nreducing > 0)
        DT_TRY(dti_fsdp_reduce_next(g));
    return DT_OK;
}
