/* fsdp/user.c - the calls of users, and the table that nn and pipelining use. Read first:
 * fsdp/order.c. */
#include "fsdp/fsdp_internal.h"

#include <stdlib.h>

/* ---- the sharder's table ---- */

static dt_status sharder_unshard(dt_module *m, void *arg)
{
    (void)m;
    return dti_fsdp_unshard_begin(arg);
}

static dt_status sharder_reshard(dt_module *m, void *arg)
{
    (void)m;
    return dti_fsdp_reshard(arg, false);
}

static void sharder_set_grad_sync(dt_module *m, bool on, void *arg)
{
    (void)m;
    ((dti_group *)arg)->grad_sync = on;
}

static dt_status sharder_reduce_grads(dt_module *m, void *arg)
{
    (void)m;
    return dti_fsdp_step_ends(arg);
}

static void sharder_clear_grads(dt_module *m, void *arg)
{
    (void)m;
    dti_fsdp_reduce_clear(arg);
}

static dt_status sharder_announce(dt_module *m, void *arg)
{
    (void)m;
    return dti_fsdp_announce(arg);
}

const dt_sharder dti_fsdp_sharder = {sharder_unshard,       sharder_reshard,
                                     sharder_set_grad_sync, sharder_reduce_grads,
                                     sharder_clear_grads,   sharder_announce};

/* ---- one group ---- */

static dt_status group_of(dt_module *m, dti_group **out)
{
    void *arg = NULL;
    DT_REQUIRE(m, DT_ERR_STATE, "no module: it is NULL, as after dt_module_destroy");
    DT_REQUIRE(dt_module_sharder(m, &arg) == &dti_fsdp_sharder, DT_ERR_STATE,
               "module '%s' was not given to fully_shard", dt_module_path(m));
    *out = arg;
    return DT_OK;
}

dt_status dt_fsdp_unshard(dt_module *m)
{
    dti_group *g = NULL;
    DT_TRY(group_of(m, &g));
    DT_TRY(dti_fsdp_unshard_begin(g));
    return DT_OK;
}

dt_status dt_fsdp_reshard(dt_module *m)
{
    dti_group *g = NULL;
    DT_TRY(group_of(m, &g));
    DT_TRY(dti_fsdp_reshard(g, false));
    return DT_OK;
}

dt_status dt_fsdp_set_prefetch(dt_module *m, bool backward, int n, dt_module *const *ahead)
{
    dti_group *g = NULL;
    DT_TRY(group_of(m, &g));
    dti_group **list = calloc((size_t)(n > 0 ? n : 0) + 1, sizeof(dti_group *));
    DT_REQUIRE(list, DT_ERR_NOMEM, "%d groups", n);
    dt_status st = DT_OK;
    for (int i = 0; i < n && st == DT_OK; i++) {
        st = group_of(ahead[i], &list[i]);
        if (st == DT_OK && list[i]->fsdp != g->fsdp)
            st = DT_ERROR(DT_ERR_ARG, "'%s' and '%s' are not below one root", dti_fsdp_name(g),
                          dti_fsdp_name(list[i]));
    }
    if (st != DT_OK) {
        free(list);
        return dt_error_push(st, __FILE__, __LINE__, __func__);
    }
    free(g->ahead[backward].group);
    g->ahead[backward].group = list;
    g->ahead[backward].n = n;
    return DT_OK;
}

/* ---- all groups at and below a module ---- */

void dt_fsdp_set_grad_sync(dt_module *m, bool on)
{
    void *arg = NULL;
    const dt_sharder *sharder = dt_module_sharder(m, &arg);
    if (sharder)
        sharder->set_grad_sync(m, on, arg);
    for (int i = 0; i < dt_module_nchildren(m); i++)
        dt_fsdp_set_grad_sync(dt_module_child(m, i), on);
}

void dt_fsdp_set_reshard_after_backward(dt_module *m, bool on)
{
    void *arg = NULL;
    if (dt_module_sharder(m, &arg) == &dti_fsdp_sharder)
        ((dti_group *)arg)->reshard_after_backward = on;
    for (int i = 0; i < dt_module_nchildren(m); i++)
        dt_fsdp_set_reshard_after_backward(dt_module_child(m, i), on);
}

static dt_status reset_groups(dt_module *m)
{
    void *arg = NULL;
    if (dt_module_sharder(m, &arg) == &dti_fsdp_sharder) {
        dti_group *g = arg;
        g->fsdp->at_shards = g->fsdp->at_replicas = NULL;
        g->fsdp->recording = false;
        DT_TRY(dti_fsdp_reduce_finish(g));
        DT_TRY(dti_fsdp_reshard(g, false));
    }
    for (int i = 0; i < dt_module_nchildren(m); i++)
        DT_TRY(reset_groups(dt_module_child(m, i)));
    return DT_OK;
}

dt_status dt_fsdp_reset(dt_module *root)
{
    DT_TRY(reset_groups(root));
    dt_module_clear_grads(root);
    return DT_OK;
}

/* ---- ZeRO by name ---- */

dt_fsdp_options dt_fsdp_zero(int stage)
{
    switch (stage) {
    case 1: return (dt_fsdp_options){.reshard = DT_RESHARD_STEP, .reduce = DT_REDUCE_STEP};
    case 2: return (dt_fsdp_options){.reshard = DT_RESHARD_STEP, .reduce = DT_REDUCE_EACH};
    default: return (dt_fsdp_options){.reshard = DT_RESHARD_DEFAULT, .reduce = DT_REDUCE_EACH};
    }
}
