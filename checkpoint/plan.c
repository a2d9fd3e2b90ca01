/* checkpoint/plan.c - which tensors a save has, where they lie in files, and who writes what.
 *
 * Every tensor is told by the first rank of its mesh; all ranks gather the list, sort it by name
 * and lay it out in files alike. So files do not depend on the mesh. Each tensor is cut, in file
 * order, into equal pieces for the ranks of its mesh, in an order in which a tensor S(0) is cut
 * where it is cut already and copies share the work:
 *
 *     w [8, n]  S(0)@dp, R@tp      dp 0, tp 0 | dp 0, tp 1 | dp 1, tp 0 | dp 1, tp 1
 *               rows               0 1        | 2 3        | 4 5        | 6 7
 *
 * Small tensors are cut into fewer pieces, for those who have least to write. Read next: lay_out.c,
 * stage.c. */
#include "checkpoint/save_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- what is here ---- */

static dt_status add(dti_plan *p, const char *name, const char *suffix, dti_item item)
{
    if (asprintf(&item.name, "%s%s", name, suffix) < 0)
        return DT_ERROR(DT_ERR_NOMEM, "%s", name);
    const dt_status st =
        dt_grow((void **)&p->item, &p->item_capacity, p->nitems + 1, sizeof *p->item);
    if (st != DT_OK) {
        free(item.name);
        return DT_ERROR(st, "%s", name);
    }
    p->item[p->nitems++] = item;
    return DT_OK;
}

static dt_status add_param(dti_plan *p, const dt_param *param, const dt_optim_state *state,
                           bool with_optimizer, dt_dtype dtype)
{
    const dt_layout *layout = dt_tensor_layout(param->tensor);
    const dt_array *exact =
        state && state->master.storage ? &state->master : dt_tensor_local(param->tensor);
    dti_item item = {.dtype = dtype, .shape = param->file_shape, .layout = layout, .src = *exact};
    DT_REQUIRE(layout->partial == 0, DT_ERR_PLACEMENT, "%s is P: a sum that nobody made",
               param->name);
    DT_REQUIRE(!dt_array_is_meta(exact), DT_ERR_STATE, "%s is on meta: it has a shape, no values",
               param->name);
    DT_REQUIRE(!p->mesh || p->mesh == dt_layout_mesh(layout), DT_ERR_UNSUPPORTED,
               "%s is on another mesh than parameters before it", param->name);
    p->mesh = dt_layout_mesh(layout);
    DT_TRY(add(p, param->name, "", item));
    if (!with_optimizer)
        return DT_OK;
    item.optimizer = true;
    item.dtype = exact->dtype;
    if (item.dtype != dtype)
        DT_TRY(add(p, param->name, ".master", item));
    if (!state)
        return DT_OK;
    item.src = state->exp_avg;
    item.dtype = item.src.dtype;
    DT_TRY(add(p, param->name, ".exp_avg", item));
    item.src = state->exp_avg_sq;
    DT_TRY(add(p, param->name, ".exp_avg_sq", item));
    return DT_OK;
}

static dt_status list_local(dti_plan *p, dt_module *module, dt_optim *optim, dt_dtype dtype)
{
    int n = 0, nstates = 0, at = 0;
    dt_param *const *param = dt_module_params(module, &n);
    const dt_optim_state *state = optim ? dt_optim_states(optim, &nstates) : NULL;
    for (int i = 0; i < n; i++) {
        const bool has = at < nstates && state[at].param == param[i];
        const dt_optim_state *its = has ? &state[at++] : NULL;
        DT_REQUIRE(param[i]->tensor, DT_ERR_STATE, "%s is not materialized", param[i]->name);
        if (!param[i]->copy) /* its owner saves it */
            DT_TRY(add_param(p, param[i], its, optim != NULL, dtype));
    }
    return DT_OK;
}

/* ---- what there is ---- */

dt_status dti_gather_bytes(dt_world *world, const void *mine, size_t bytes, char **all_out,
                           int64_t **counts_out)
{
    const int n = dt_world_size(world);
    int64_t total = 0;
    dt_heap *heap = NULL;
    dt_array in = {0}, out = {0};
    dt_work *work = NULL;
    dt_status st = DT_OK;
    int64_t *counts = calloc((size_t)n, sizeof *counts);
    char *all = NULL;
    DT_REQUIRE(counts, DT_ERR_NOMEM, "%d counts", n);
    counts[dt_world_rank(world)] = (int64_t)bytes;
    DT_TRY_TO(done, st, dt_all_reduce_i64_sync(dt_world_comm(world), counts, n, DT_REDUCE_SUM));
    for (int r = 0; r < n; r++)
        total += counts[r];
    all = malloc((size_t)total + 1);
    DT_TRY_TO(done, st, all ? DT_OK : DT_ERROR(DT_ERR_NOMEM, "%lld bytes", (long long)total));
    DT_TRY_TO(done, st, dt_world_heap(world, (dt_device){DT_CPU, 0}, &heap));
    DT_TRY_TO(done, st, dt_array_create(heap, DT_U8, DT_SHAPE((int64_t)bytes), DT_TAG_COMM, &in));
    DT_TRY_TO(done, st, dt_array_create(heap, DT_U8, DT_SHAPE(total), DT_TAG_COMM, &out));
    DT_TRY_TO(done, st, dt_array_write(&in, mine, (int64_t)bytes));
    const dt_part part = {.in = &in, .out = &out, .recv = counts};
    DT_TRY_TO(done, st, dt_all_gather(dt_world_comm(world), 1, &part, "checkpoint", &work));
    DT_TRY_TO(done, st, dt_work_wait(&work));
    DT_TRY_TO(done, st, dt_array_read(&out, all, total));
    *all_out = all;
    *counts_out = counts;
    all = NULL;
    counts = NULL;
done:
    dt_array_release(&in);
    dt_array_release(&out);
    free(all);
    free(counts);
    return st;
}

/* The items that this rank tells, as JSON: [name, optimizer, dtype, dim, dim ...] each. */
static char *tell(const dti_plan *p)
{
    json_t *list = json_array();
    for (int64_t i = 0; i < p->nitems && dt_mesh_rank(p->mesh) == 0; i++) {
        const dti_item *item = &p->item[i];
        json_t *one = json_pack("[s, i, i]", item->name, item->optimizer, (int)item->dtype);
        for (int d = 0; d < item->shape.ndim; d++)
            (void)json_array_append_new(one, json_integer(item->shape.dim[d]));
        (void)json_array_append_new(list, one);
    }
    char *text = json_dumps(list, JSON_COMPACT);
    json_decref(list);
    return text;
}

static dt_status hear(dti_plan *all, const char *text, size_t bytes)
{
    json_t *list = json_loadb(text, bytes, 0, NULL), *one;
    size_t i;
    dt_status st = list ? DT_OK : DT_ERROR(DT_ERR_NOMEM, "a list of tensors");
    json_array_foreach(list, i, one)
    {
        const size_t ndim = json_array_size(one) - 3;
        dti_item item = {.optimizer = json_integer_value(json_array_get(one, 1)) != 0,
                         .dtype = (dt_dtype)json_integer_value(json_array_get(one, 2)),
                         .shape = {.ndim = (int)ndim}};
        for (size_t d = 0; d < ndim; d++)
            item.shape.dim[d] = json_integer_value(json_array_get(one, 3 + d));
        DT_TRY_TO(done, st, add(all, json_string_value(json_array_get(one, 0)), "", item));
    }
done:
    json_decref(list);
    return st;
}

static int by_name(const void *a, const void *b)
{
    const dti_item *x = a, *y = b;
    return x->optimizer != y->optimizer ? x->optimizer - y->optimizer
                                        : strverscmp(x->name, y->name);
}

/* Bring what is here into the list of all. */
static dt_status match(dti_plan *all, const dti_plan *here)
{
    if (all->nitems > 0)
        qsort(all->item, (size_t)all->nitems, sizeof *all->item, by_name);
    for (int64_t i = 1; i < all->nitems; i++)
        DT_REQUIRE(by_name(&all->item[i - 1], &all->item[i]) != 0, DT_ERR_UNSUPPORTED,
                   "two pipeline stages have '%s', and none of them as a copy", all->item[i].name);
    for (int64_t i = 0; i < here->nitems; i++) {
        const dti_item *mine = &here->item[i];
        dti_item *it = all->nitems == 0
                           ? NULL
                           : bsearch(mine, all->item, (size_t)all->nitems, sizeof *mine, by_name);
        DT_REQUIRE(it && it->dtype == mine->dtype && dt_shape_equal(it->shape, mine->shape),
                   DT_ERR_UNSUPPORTED, "ranks of one mesh hold different parameters: '%s'",
                   mine->name);
        it->layout = mine->layout;
        it->src = mine->src;
    }
    all->mesh = here->mesh;
    return DT_OK;
}

static void forget(dti_plan *p)
{
    for (int64_t i = 0; i < p->nitems; i++)
        free(p->item[i].name);
    for (int64_t f = 0; f < p->nfiles; f++)
        free(p->file[f].header);
    free(p->item);
    free(p->file);
    free(p->share);
    free(p->first);
}

static dt_status list_all(dti_plan *all, dt_module *module, dt_optim *optim, dt_dtype dtype)
{
    dti_plan here = {0};
    char *text = NULL, *joined = NULL;
    int64_t *counts = NULL;
    dt_status st = list_local(&here, module, optim, dtype);
    if (st == DT_OK && !(text = tell(&here)))
        st = DT_ERROR(DT_ERR_NOMEM, "names of tensors");
    DT_TRY_TO(done, st, dt_world_agree_sync(all->world, st));
    DT_TRY_TO(done, st, dti_gather_bytes(all->world, text, strlen(text), &joined, &counts));
    const char *at = joined;
    for (int r = 0; st == DT_OK && r < dt_world_size(all->world); r++) {
        st = hear(all, at, (size_t)counts[r]);
        at += counts[r];
    }
    if (st == DT_OK)
        st = match(all, &here);
    DT_TRY_TO(done, st, dt_world_agree_sync(all->world, st));
done:
    free(text);
    free(joined);
    free(counts);
    forget(&here);
    return st;
}

dt_status dti_plan_create(dt_world *world, dt_module *module, dt_optim *optim,
                          const dti_plan_options *options, dti_plan **plan_out)
{
    dti_plan *p = calloc(1, sizeof *p);
    dt_status st = p ? DT_OK : DT_ERROR(DT_ERR_NOMEM, "a save");
    DT_TRY_TO(fail, st, dt_world_agree_sync(world, st));
    p->world = world;
    DT_TRY_TO(fail, st, list_all(p, module, optim, options->dtype));
    st = dti_plan_files(p, options);
    if (st == DT_OK)
        st = dti_plan_shares(p, options->piece_bytes);
    DT_TRY_TO(fail, st, dt_world_agree_sync(world, st));
    *plan_out = p;
    return DT_OK;
fail:
    dti_plan_destroy(&p);
    return st;
}

void dti_plan_destroy(dti_plan **plan)
{
    if (*plan)
        forget(*plan);
    free(*plan);
    *plan = NULL;
}
