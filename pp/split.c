/* pp/split.c - cuts a model into stages: which modules, on which rank, and what of it is tied. Read
 * first: pp/cut.c, nn/split.c. Read next: pp/run.c. */
#include "pp/pipeline_internal.h"

#include <stdlib.h>
#include <string.h>

/* ---- which modules a stage has ---- */

typedef struct cut {
    const dt_chain *chain;
    int lo, hi; /* layers */
    bool first, last;
} cut;

static bool named(const char *path, const char *const *list)
{
    for (; *list; list++)
        if (strcmp(path, *list) == 0)
            return true;
    return false;
}

static bool is_above(const char *path, const char *below)
{
    const size_t n = strlen(path);
    return strncmp(path, below, n) == 0 && (below[n] == '.' || below[n] == '\0');
}

/* The layer that a module is: its place among its parent's children in the whole model, which is
 * its name. -1: none. */
static int64_t layer_of(const char *path, const char *layers)
{
    const size_t n = strlen(layers);
    return is_above(layers, path) && path[n] == '.' ? strtoll(path + n + 1, NULL, 10) : -1;
}

static dt_take take(const dt_module *m, void *arg)
{
    const cut *c = arg;
    const char *path = dt_module_path(m);
    const int64_t layer = layer_of(path, c->chain->layers);
    if (layer >= 0)
        return layer >= c->lo && layer < c->hi ? DT_TAKE_WHOLE : DT_TAKE_NOT;
    if (named(path, c->chain->first))
        return c->first ? DT_TAKE_WHOLE : DT_TAKE_NOT;
    if (named(path, c->chain->last))
        return c->last ? DT_TAKE_WHOLE : DT_TAKE_NOT;
    return is_above(path, c->chain->layers) ? DT_TAKE_INSIDE : DT_TAKE_NOT;
}

static cut cut_of(const dt_pipeline *p, int stage)
{
    cut c = {
        .chain = &p->options.chain, .first = stage == 0, .last = stage == p->lowered->nstages - 1};
    for (int s = 0; s <= stage; s++) {
        c.lo = c.hi;
        c.hi += p->layers[s];
    }
    return c;
}

/* ---- tied parameters ---- */

/* How many modules of a stage, below m of the whole model, hold a parameter. */
static int holders_in(dt_module *m, const dt_param *param, cut *c)
{
    int n = 0;
    for (int i = 0; i < dt_module_nchildren(m); i++) {
        dt_module *child = dt_module_child(m, i);
        const dt_take how = take(child, c);
        if (how == DT_TAKE_WHOLE)
            n += dt_module_holders(child, param, NULL, NULL);
        else if (how == DT_TAKE_INSIDE)
            n += holders_in(child, param, c);
    }
    return n;
}

static dt_status find_ties(dt_pipeline *p, dt_module *model)
{
    int n = 0;
    dt_param *const *param = dt_module_params(model, &n);
    for (int i = 0; i < n; i++) {
        dti_tie tie = {0};
        int found = 0;
        for (int s = 0; param[i]->users > 1 && s < p->lowered->nstages; s++) {
            cut c = cut_of(p, s);
            if (holders_in(model, param[i], &c) == 0)
                continue;
            DT_REQUIRE(found < 2, DT_ERR_UNSUPPORTED, "parameter %s is tied over three stages",
                       param[i]->name);
            tie.stage[found++] = s;
        }
        if (found < 2)
            continue;
        DT_REQUIRE(p->nties < DTI_PP_MAX_TIES, DT_ERR_UNSUPPORTED,
                   "more than %d parameters are tied over stages", DTI_PP_MAX_TIES);
        tie.name = strdup(param[i]->name);
        DT_REQUIRE(tie.name, DT_ERR_NOMEM, "a name");
        p->tie[p->nties++] = tie;
    }
    return DT_OK;
}

/* The earlier stage owns the parameter, the later one has a copy. */
static void join_ties(dt_pipeline *p, const dti_stage *stage)
{
    int n = 0;
    dt_param *const *param = dt_module_params(stage->root, &n);
    for (int t = 0; t < p->nties; t++) {
        dti_tie *tie = &p->tie[t];
        const int end = stage->index == tie->stage[1];
        for (int i = 0; i < n && (end || stage->index == tie->stage[0]); i++) {
            if (strcmp(param[i]->name, tie->name) != 0)
                continue;
            tie->param[end] = param[i];
            param[i]->copy = end;
        }
    }
}

/* ---- the call ---- */

static dt_status find_owners(dt_pipeline *p, const dt_pp_schedule *s)
{
    int *of_cell = NULL;
    DT_TRY(dti_pp_owners(s, &of_cell));
    dt_status st = DT_OK;
    p->owner = calloc((size_t)s->nstages, sizeof *p->owner);
    if (!p->owner)
        st = DT_ERROR(DT_ERR_NOMEM, "%d stages", s->nstages);
    for (int i = 0; st == DT_OK && i < s->nstages; i++) {
        p->owner[i] = of_cell[dti_pp_cell(s, i, 0)];
        p->nstages += p->owner[i] == p->rank;
        for (int k = 1; st == DT_OK && k < s->nmicrobatches; k++)
            if (of_cell[dti_pp_cell(s, i, k)] != p->owner[i])
                st =
                    DT_ERROR(DT_ERR_UNSUPPORTED,
                             "stage %d is on two ranks, as in dualpipe; that runs in the simulator "
                             "only (dualpipev does the same with one)",
                             i);
    }
    free(of_cell);
    return st;
}

static dt_status take_stages(dt_pipeline *p, dt_module *model)
{
    dt_module **root = calloc((size_t)p->nstages, sizeof(dt_module *));
    dt_status st = DT_OK;
    p->stage = calloc((size_t)p->nstages, sizeof *p->stage);
    if (!root || !p->stage)
        DT_TRY_TO(done, st, DT_ERROR(DT_ERR_NOMEM, "%d stages", p->nstages));
    for (int s = 0, i = 0; s < p->lowered->nstages; s++) {
        cut c = cut_of(p, s);
        if (p->owner[s] != p->rank)
            continue;
        p->stage[i].index = s;
        p->stage[i].cell = calloc((size_t)p->lowered->nmicrobatches, sizeof *p->stage[i].cell);
        if (!p->stage[i].cell)
            DT_TRY_TO(done, st, DT_ERROR(DT_ERR_NOMEM, "a stage"));
        DT_TRY_TO(done, st, dt_module_extract(model, take, &c, &root[i]));
        p->stage[i].root = root[i];
        i++;
    }
    for (int i = 0; i < p->nstages; i++)
        DT_TRY_TO(done, st, dt_module_untie(root[i]));
    for (int i = 0; i < p->nstages; i++)
        join_ties(p, &p->stage[i]);
    DT_TRY_TO(done, st, dt_module_bundle(p->nstages, root, &p->bundle));
done:
    for (int i = 0; root && i < p->nstages; i++)
        dt_module_destroy(&root[i]);
    free(root);
    return st;
}

/* The mesh without the axis. */
static dt_status stage_mesh(dt_mesh *mesh, int axis, dt_mesh **out)
{
    const dt_grid *grid = dt_mesh_grid(mesh);
    char names[DT_MAX_AXES * (DT_NAME_SIZE + 1)] = "";
    for (int a = 0; a < grid->naxes; a++) {
        if (a == axis)
            continue;
        if (*names)
            (void)strcat(names, ",");
        (void)strcat(names, grid->name[a]);
    }
    DT_TRY(dt_mesh_slice(mesh, names, out));
    return DT_OK;
}

/* How many received tensors can wait at once. */
static dt_status count_slots(dt_pipeline *p)
{
    dt_pp_timeline *t = NULL;
    DT_TRY(dt_pp_simulate(p->lowered, NULL, &t));
    p->slots = t->lane[p->rank].peak_received;
    dt_pp_timeline_destroy(&t);
    return DT_OK;
}

static dt_status find_comms(dt_pipeline *p, dt_mesh *mesh, uint8_t axis)
{
    uint8_t axes[DT_MAX_AXES];
    const int n = dt_mesh_grid(mesh)->naxes;
    for (int a = 0; a < n; a++)
        axes[a] = (uint8_t)a;
    DT_TRY(dt_mesh_comm(mesh, 1, &axis, DTI_PP_CHANNEL, &p->line));
    DT_TRY(dt_comm_link(p->line, dt_mesh_heap(mesh)));
    DT_TRY(dt_mesh_comm(mesh, n, axes, DTI_PP_CHANNEL, &p->all));
    return DT_OK;
}

static dt_status build(dt_pipeline *p, dt_module **model, dt_mesh *mesh, const char *axis,
                       const dt_pp_schedule *schedule)
{
    int a = 0;
    DT_TRY(dt_mesh_axis(mesh, axis, &a));
    const int ranks = dt_mesh_grid(mesh)->size[a];
    DT_REQUIRE(schedule->nranks == ranks, DT_ERR_ARG,
               "the schedule is for %d ranks, axis %s has %d", schedule->nranks, axis, ranks);
    p->rank = dt_mesh_coord(mesh)[a];
    while (p->ntensors < DT_PP_MAX_SKIPS && p->options.skip[p->ntensors])
        p->ntensors++;
    p->ntensors++;
    p->options.boundary = p->boundary = strdup(p->options.boundary);
    DT_REQUIRE(p->boundary, DT_ERR_NOMEM, "a layout's text");
    DT_TRY(find_owners(p, schedule));
    DT_TRY(dt_pp_lower(schedule, p->options.max_unsharded, &p->lowered));
    DT_TRY(count_slots(p));
    DT_TRY(dti_pp_choose_layers(p, *model));
    DT_TRY(find_ties(p, *model));
    DT_TRY(stage_mesh(mesh, a, &p->mesh));
    DT_TRY(find_comms(p, mesh, (uint8_t)a));
    const dt_status st = take_stages(p, *model);
    dt_module_destroy(model);
    p->options.split = NULL; /* the caller's */
    if (st != DT_OK)
        return dt_error_push(st, __FILE__, __LINE__, __func__);
    return DT_OK;
}

dt_status dt_pipeline_split(dt_module **model, dt_mesh *mesh, const char *axis,
                            const dt_pp_schedule *schedule, const dt_pipeline_options *options,
                            dt_pipeline **pipeline_out)
{
    dt_pipeline *p = calloc(1, sizeof *p);
    DT_REQUIRE(p, DT_ERR_NOMEM, "a pipeline");
    p->options = *options;
    const dt_status st = build(p, model, mesh, axis, schedule);
    if (st != DT_OK) {
        dt_pipeline_destroy(&p);
        return dt_error_push(st, __FILE__, __LINE__, __func__);
    }
    *pipeline_out = p;
    return DT_OK;
}

void dt_pipeline_destroy(dt_pipeline **pipeline)
{
    dt_pipeline *p = *pipeline;
    if (!p)
        return;
    if (p->stage)
        dti_pp_abandon(p);
    for (int i = 0; p->stage && i < p->nstages; i++)
        free(p->stage[i].cell);
    for (int64_t i = 0; i < p->nspare; i++)
        dt_tape_destroy(&p->spare[i]);
    for (int t = 0; t < p->nties; t++)
        free(p->tie[t].name);
    dt_module_destroy(&p->bundle);
    dt_pp_schedule_destroy(&p->lowered);
    free(p->stage);
    free(p->spare);
    free(p->owner);
    free(p->layers);
    free(p->boundary);
    free(p);
    *pipeline = NULL;
}

/* ---- looking ---- */

dt_mesh *dt_pipeline_mesh(const dt_pipeline *p)
{
    return p->mesh;
}

int dt_pipeline_nstages(const dt_pipeline *p)
{
    return p->nstages;
}

dt_module *dt_pipeline_stage(dt_pipeline *p, int i)
{
    return p->stage[i].root;
}

bool dt_pipeline_stage_is_last(const dt_pipeline *p, int i)
{
    return p->stage[i].index == p->lowered->nstages - 1;
}

int dt_pipeline_stage_number(const dt_pipeline *p, int i)
{
    return p->stage[i].index;
}

dt_module *dt_pipeline_module(dt_pipeline *p)
{
    return p->bundle;
}

int dt_pipeline_peak_live(const dt_pipeline *p)
{
    return p->peak_live;
}

int dt_pipeline_peak_received(const dt_pipeline *p)
{
    return p->peak_received;
}

const dt_pp_row *dt_pipeline_row(const dt_pipeline *p)
{
    return &p->lowered->row[p->rank];
}

const dt_pp_schedule *dt_pipeline_schedule(const dt_pipeline *p)
{
    return p->lowered;
}
