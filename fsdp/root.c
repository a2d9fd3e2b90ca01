/* fsdp/root.c - names of groups; that one root holds all of them. Read next: fsdp/order.c. */
#include "fsdp/fsdp_internal.h"

const char *dti_fsdp_name(const dti_group *g)
{
    const char *path = dt_module_path(g->modules[0]);
    return *path ? path : "root";
}

/* A group at or below m that is not f's, or NULL. */
static const dti_group *stranger(dt_module *m, const dti_fsdp *f)
{
    void *arg = NULL;
    if (dt_module_sharder(m, &arg) == &dti_fsdp_sharder && ((dti_group *)arg)->fsdp != f)
        return arg;
    const dti_group *found = NULL;
    for (int i = 0; i < dt_module_nchildren(m) && !found; i++)
        found = stranger(dt_module_child(m, i), f);
    return found;
}

dt_status dti_fsdp_check_root(dti_group *g)
{
    dti_fsdp *f = g->fsdp;
    if (f->checked)
        return DT_OK;
    const dti_group *root = NULL;
    dt_module *top = g->modules[0];
    while (dt_module_parent(top))
        top = dt_module_parent(top);
    for (int64_t i = 0; i < f->ngroups; i++)
        root = f->group[i]->is_root ? f->group[i] : root;
    const dti_group *other = stranger(top, f);
    DT_REQUIRE(!other, DT_ERR_STATE,
               "fully_shard has two roots in one model, '%s' and '%s': call it last on the module "
               "that holds both",
               dti_fsdp_name(root ? root : g), dti_fsdp_name(other));
    DT_REQUIRE(root, DT_ERR_STATE,
               "'%s' has no root above it: call fully_shard last on the module that holds all",
               dti_fsdp_name(g));
    f->checked = true;
    return DT_OK;
}
