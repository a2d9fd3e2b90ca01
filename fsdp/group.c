/* fsdp/group.c - makes groups: which parameters, where they rest and where they are used. Read
 * next: fsdp/hooks.c. */
#include "fsdp/fsdp_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int ranks_of(const dt_mesh *mesh, uint8_t bits)
{
    int n = 1;
    for (int a = 0; bits >> a; a++)
        n *= bits >> a & 1 ? dt_mesh_grid(mesh)->size[a] : 1;
    return n;
}

/* ---- layouts of one parameter ---- */

/* The view of the mesh in which the shard axis is (groups) x (ranks of a group), and the member's
 * layouts there. */
static dt_status place_on_view(dti_group *g, dti_member *mb, int axis, int dim)
{
    const dt_grid *grid = dt_mesh_grid(g->mesh);
    dt_mesh *view = NULL;
    char outer[DT_NAME_SIZE], inner[DT_NAME_SIZE], text[DT_LAYOUT_TEXT];
    (void)snprintf(outer, sizeof outer, "%.15s_far", grid->name[axis]);
    (void)snprintf(inner, sizeof inner, "%.15s_near", grid->name[axis]);
    DT_TRY(dt_mesh_split(g->mesh, grid->name[axis], outer,
                         grid->size[axis] / g->options.reshard_size, inner, &view));
    DT_TRY(dt_mesh_layout_text(view, mb->param->shape, dt_layout_print(mb->use, text, sizeof text),
                               &mb->use_view));
    dt_layout kept = *mb->use_view;
    int near = 0;
    DT_TRY(dt_mesh_axis(view, inner, &near));
    dt_layout_shard(&kept, near, dim);
    DT_TRY(dt_mesh_layout(view, &kept, &mb->kept_view));
    return DT_OK;
}

/* Gathering never widens: a parameter stored in the narrower type keeps it. */
static dt_dtype narrower(dt_dtype stored, dt_dtype wanted)
{
    return dt_dtype_size(stored) <= dt_dtype_size(wanted) ? stored : wanted;
}

static dt_status place(dti_group *g, dt_param *p, int naxes, const uint8_t *axis)
{
    dti_member *mb = &g->member[g->n];
    const int dim = g->options.shard_dim ? g->options.shard_dim(p, g->options.shard_dim_arg) : 0;
    if (dim < 0)
        return DT_OK; /* ignored: stays where it is */
    DT_REQUIRE(p->shape.ndim > 0, DT_ERR_ARG, "parameter %s is a scalar and cannot be sharded",
               p->name);
    DT_REQUIRE(dim < p->shape.ndim, DT_ERR_ARG, "shard_dim gave %d for %s of %d dims", dim, p->name,
               p->shape.ndim);
    DT_REQUIRE(!p->tensor, DT_ERR_STATE, "%s is materialized already; fully_shard comes before",
               p->name);
    DT_REQUIRE(!p->layout || dt_layout_mesh(p->layout) == g->mesh, DT_ERR_STATE,
               "%s was placed on another mesh than the one given to fully_shard", p->name);
    *mb = (dti_member){.param = p, .before = p->layout, .use = p->layout};
    if (!mb->use)
        DT_TRY(dt_mesh_layout_text(g->mesh, p->shape, "", &mb->use));
    dt_layout rest = *mb->use;
    for (int i = 0; i < naxes; i++) {
        DT_REQUIRE(dt_layout_at(&rest, axis[i]).kind == DT_REPLICATE, DT_ERR_STATE,
                   "%s is sharded over %s already", p->name, rest.grid->name[axis[i]]);
        if (rest.grid->size[axis[i]] > 1) /* axes of one rank stay out of it */
            dt_layout_shard(&rest, axis[i], dim);
    }
    if (g->options.reshard == DT_RESHARD_GROUP)
        DT_TRY(place_on_view(g, mb, axis[0], dim));
    DT_TRY(dt_mesh_layout(g->mesh, &rest, &p->layout));
    mb->use_dtype =
        g->options.param_dtype == DT_F32 ? p->dtype : narrower(p->dtype, g->options.param_dtype);
    mb->sum_dtype =
        g->options.reduce_dtype == DT_F32 && p->dtype == DT_F64 ? DT_F64 : g->options.reduce_dtype;
    mb->alias = p->layout == mb->use && mb->use_dtype == p->dtype;
    p->owner = g;
    p->store = g->options.store;
    g->n++;
    g->nmoving += !mb->alias || p->store;
    return DT_OK;
}

/* ---- which parameters ---- */

static dt_module *root_of(dt_module *m)
{
    while (dt_module_parent(m))
        m = dt_module_parent(m);
    return m;
}

/* All holders of a tied parameter must be in the group, else one would use it while it is not
 * gathered. */
static dt_status check_tied(const dt_param *p, int n, dt_module *const *modules)
{
    int inside = 0;
    for (int i = 0; i < n; i++)
        inside += dt_module_holders(modules[i], p, NULL, NULL);
    if (inside == p->users)
        return DT_OK;
    dt_module *other = NULL;
    for (int i = 0; i < n; i++) {
        dt_module *found = NULL;
        (void)dt_module_holders(root_of(modules[0]), p, modules[i], &found);
        other = found ? found : other;
    }
    return DT_ERROR(DT_ERR_STATE,
                    "tied parameter %s is held by '%s' and, outside of this group, by '%s': put "
                    "both in one group "
                    "(dt_fully_shard_list)",
                    p->name, dt_module_path(modules[0]),
                    other ? dt_module_path(other) : "another model");
}

static dt_status add_params(dti_group *g, int naxes, const uint8_t *axis)
{
    const int n = g->nmodules;
    dt_module *const *modules = g->modules;
    int total = 0, count = 0;
    for (int i = 0; i < n; i++) {
        (void)dt_module_params(modules[i], &count);
        total += count;
    }
    g->member = calloc((size_t)total + 1, sizeof *g->member);
    g->gathered = calloc((size_t)total + 1, sizeof *g->gathered);
    g->reducing = calloc((size_t)total + 1, sizeof *g->reducing);
    DT_REQUIRE(g->member && g->gathered && g->reducing, DT_ERR_NOMEM, "%d parameters", total);
    DT_REQUIRE(total > 0, DT_ERR_ARG, "module '%s' has no parameters", dt_module_path(modules[0]));
    for (int i = 0; i < n; i++) {
        dt_param *const *p = dt_module_params(modules[i], &count);
        for (int k = 0; k < count; k++) {
            if (p[k]->owner)
                continue;
            DT_REQUIRE(p[k]->name, DT_ERR_STATE,
                       "parameters have no names yet: dt_module_finish comes first");
            DT_TRY(check_tied(p[k], n, modules));
            DT_TRY(place(g, p[k], naxes, axis));
        }
    }
    return DT_OK;
}

/* ---- sharing events with the groups below ---- */

static dt_status adopt(dti_fsdp *f, dti_group *g)
{
    DT_TRY(dt_grow((void **)&f->group, &f->group_capacity, f->ngroups + 1, sizeof(dti_group *)));
    f->group[f->ngroups++] = g;
    g->fsdp = f;
    return DT_OK;
}

static void fsdp_free(dti_fsdp *f)
{
    free(f->group);
    free(f->pass);
    free(f);
}

/* Groups at and below m come under f; what they shared before goes. */
static dt_status adopt_below(dti_fsdp *f, dt_module *m)
{
    void *arg = NULL;
    if (dt_module_sharder(m, &arg) == &dti_fsdp_sharder) {
        dti_fsdp *old = ((dti_group *)arg)->fsdp;
        for (int64_t i = 0; old != f && i < old->ngroups; i++) {
            old->group[i]->is_root = false;
            DT_TRY(adopt(f, old->group[i]));
        }
        if (old != f)
            fsdp_free(old);
    }
    for (int i = 0; i < dt_module_nchildren(m); i++)
        DT_TRY(adopt_below(f, dt_module_child(m, i)));
    return DT_OK;
}

/* ---- life ---- */

static void release_members(dti_group *g)
{
    if (g->gather && dt_move_finish(&g->gather, g->gathered) != DT_OK)
        g->gathering = 0;
    for (int i = 0; i < g->gathering; i++)
        dt_array_release(&g->gathered[i].array);
    dt_local *got = g->reduce ? calloc((size_t)g->nreducing, sizeof *got) : NULL;
    if (got && dt_move_finish(&g->reduce, got) == DT_OK) {
        for (int i = 0; i < g->nreducing; i++)
            dt_array_release(&got[i].array);
    }
    free(got);
    for (int i = 0; i < g->n; i++) {
        dt_array_release(&g->member[i].kept.array);
        dt_tensor_destroy(&g->member[i].sum);
    }
    free(g->ahead[0].group);
    free(g->ahead[1].group);
    free(g->member);
    free(g->gathered);
    free(g->reducing);
    free(g->modules);
    free(g);
}

void dti_fsdp_group_release(void *arg)
{
    dti_group *g = arg;
    if (--g->hooked > 0)
        return;
    dti_fsdp *f = g->fsdp;
    for (int64_t i = 0; i < f->ngroups; i++) {
        if (f->group[i] == g)
            f->group[i] = f->group[--f->ngroups];
    }
    if (f->ngroups == 0)
        fsdp_free(f);
    release_members(g);
}

/* ---- the call ---- */

static dt_status check_options(dti_group *g, int naxes)
{
    dt_fsdp_options *o = &g->options;
    DT_REQUIRE(!(g->shard_axes & g->replicate_axes), DT_ERR_ARG,
               "an axis both shards and replicates");
    DT_REQUIRE(dt_dtype_is_float(o->param_dtype) && dt_dtype_is_float(o->reduce_dtype) &&
                   dt_dtype_is_float(o->output_dtype),
               DT_ERR_ARG, "param_dtype %s, reduce_dtype %s, output_dtype %s must be float types",
               dt_dtype_name(o->param_dtype), dt_dtype_name(o->reduce_dtype),
               dt_dtype_name(o->output_dtype));
    if (o->reshard != DT_RESHARD_GROUP)
        return DT_OK;
    const int ranks = ranks_of(g->mesh, g->shard_axes);
    DT_REQUIRE(naxes == 1, DT_ERR_ARG, "resharding to groups takes one shard axis, not %d", naxes);
    DT_REQUIRE(o->reshard_size > 0 && ranks % o->reshard_size == 0, DT_ERR_ARG,
               "reshard_size %d is not a factor of the %d ranks of the shard axis", o->reshard_size,
               ranks);
    if (o->reshard_size == ranks) /* the shard itself */
        o->reshard = DT_RESHARD_ALWAYS;
    else if (o->reshard_size == 1) /* the whole */
        o->reshard = DT_RESHARD_NEVER;
    return DT_OK;
}

/* Communicators are made here, so that a step makes none: of each axis, and of a list as one. */
static dt_status connect(dt_mesh *mesh, int naxes, const uint8_t *axis, int channel)
{
    dt_comm *comm = NULL;
    for (int i = 0; i < naxes; i++)
        DT_TRY(dt_mesh_comm(mesh, 1, &axis[i], channel, &comm));
    if (naxes > 1)
        DT_TRY(dt_mesh_comm(mesh, naxes, axis, channel, &comm));
    return DT_OK;
}

static dt_status connect_view(const dti_group *g)
{
    for (int i = 0; i < g->n && g->options.reshard == DT_RESHARD_GROUP; i++) {
        const dt_layout *kept = g->member[i].kept_view;
        for (int a = 0; a < kept->grid->naxes; a++) {
            const uint8_t axis = (uint8_t)a;
            if (dt_layout_at(kept, a).kind != dt_layout_at(g->member[i].use_view, a).kind)
                DT_TRY(connect(dt_layout_mesh(kept), 1, &axis, DTI_GATHER_CHANNEL));
        }
    }
    return DT_OK;
}

static dt_status build(dti_group *g, const char *axes)
{
    int naxes = 0, nreplicate = 0;
    uint8_t axis[DT_MAX_AXES], replicate[DT_MAX_AXES];
    DT_REQUIRE(axes, DT_ERR_ARG, "no axes were given");
    DT_TRY(dt_mesh_axes(g->mesh, axes, &naxes, axis, &g->shard_axes));
    if (g->options.replicate_axes)
        DT_TRY(dt_mesh_axes(g->mesh, g->options.replicate_axes, &nreplicate, replicate,
                            &g->replicate_axes));
    DT_TRY(check_options(g, naxes));
    g->all_replicas =
        g->options.reduce == DT_REDUCE_EACH && ranks_of(g->mesh, g->replicate_axes) > 1;
    for (int i = 0; i < g->nmodules; i++) {
        void *arg = NULL;
        DT_REQUIRE(!dt_module_sharder(g->modules[i], &arg), DT_ERR_STATE,
                   "module '%s' was given to fully_shard or replicate already",
                   dt_module_path(g->modules[i]));
    }
    DT_TRY(add_params(g, naxes, axis));
    DT_TRY(connect(g->mesh, naxes, axis, DTI_GATHER_CHANNEL));
    DT_TRY(connect(g->mesh, naxes, axis, DTI_REDUCE_CHANNEL));
    DT_TRY(connect(g->mesh, nreplicate, replicate, DTI_REDUCE_CHANNEL));
    DT_TRY(connect(g->mesh, nreplicate, replicate, 0)); /* dt_module_reduce_grads */
    DT_TRY(connect_view(g));
    return DT_OK;
}

/* Nothing was hooked yet: give the parameters back as they were. */
static void undo(dti_group *g)
{
    for (int i = 0; i < g->n; i++) {
        g->member[i].param->owner = NULL;
        g->member[i].param->store = NULL;
        g->member[i].param->layout = g->member[i].before;
    }
    release_members(g);
}

static dt_status share_events(dti_group *g)
{
    dti_fsdp *f = calloc(1, sizeof *f);
    DT_REQUIRE(f, DT_ERR_NOMEM, "shared state of groups");
    for (int i = 0; i < g->nmodules; i++)
        DT_TRY(adopt_below(f, g->modules[i]));
    DT_TRY(adopt(f, g));
    DT_TRY(dti_fsdp_install_hooks(g));
    return DT_OK;
}

dt_status dt_fully_shard_list(int n, dt_module *const *modules, dt_mesh *mesh, const char *axes,
                              const dt_fsdp_options *options)
{
    DT_REQUIRE(n > 0, DT_ERR_ARG, "no modules");
    dti_group *g = calloc(1, sizeof *g);
    dt_module **copy = calloc((size_t)n, sizeof(dt_module *));
    if (!g || !copy) {
        free(g);
        free(copy);
        return DT_ERROR(DT_ERR_NOMEM, "a group");
    }
    memcpy(copy, modules, (size_t)n * sizeof(dt_module *));
    g->modules = copy;
    g->nmodules = n;
    g->mesh = mesh;
    g->options = options ? *options : (dt_fsdp_options){0};
    g->is_root = n == 1;
    g->grad_sync = g->reshard_after_backward = true;
    g->ahead[0].n = g->ahead[1].n = -1;
    const dt_status st = build(g, axes);
    if (st != DT_OK) {
        undo(g);
        return dt_error_push(st, __FILE__, __LINE__, __func__);
    }
    DT_TRY(share_events(g)); /* NOLINT(clang-analyzer-unix.Malloc): the hooks own g */
    return DT_OK;
}

dt_status dt_fully_shard(dt_module *m, dt_mesh *mesh, const char *axes,
                         const dt_fsdp_options *options)
{
    DT_TRY(dt_fully_shard_list(1, &m, mesh, axes, options));
    return DT_OK;
}
