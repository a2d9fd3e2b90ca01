/* optim/adamw.c - AdamW: its state, and a step over this rank's shards. The arithmetic is in
 * array/kernel_optim.inc.
 *
 * Source: Loshchilov and Hutter 2019, "Decoupled weight decay regularization". */
#include "array/dt_kernels_optim.h"
#include "optim/dt_optim.h"

#include <math.h>
#include <stdlib.h>

struct dt_optim {
    dt_adamw_options options;
    int64_t steps;
    int n;
    dt_optim_state *state; /* one a parameter that is not frozen */
    dt_adamw_args *list;   /* room for as many */
};

/* from: what it starts as; NULL: zeros. */
static dt_status state_array(const dt_param *p, dt_store *store, dt_dtype dtype, dt_array *from,
                             dt_array *array_out)
{
    DT_TRY(dt_array_create(dt_mesh_heap(dt_layout_mesh(p->layout)), dtype,
                           dt_tensor_local(p->tensor)->shape, DT_TAG_OPTIMIZER, array_out));
    if (from) {
        DT_TRY(dt_storage_open(from->storage));
        dt_array_cast(array_out, from);
        dt_storage_close(from->storage);
    } else {
        dt_array_zero(array_out);
    }
    if (store)
        DT_TRY(dt_store_adopt(store, array_out->storage, p->name));
    return DT_OK;
}

static dt_status make_state(dt_param *p, dt_store *store, dt_optim_state *s)
{
    DT_REQUIRE(p->tensor, DT_ERR_STATE, "%s is not materialized: the optimizer comes after that",
               p->name);
    const dt_dtype dtype = p->dtype == DT_F64 ? DT_F64 : DT_F32;
    s->param = p;
    DT_TRY(state_array(p, store, dtype, NULL, &s->exp_avg));
    DT_TRY(state_array(p, store, dtype, NULL, &s->exp_avg_sq));
    if (dtype != p->dtype)
        DT_TRY(state_array(p, store, dtype, dt_tensor_local(p->tensor), &s->master));
    return DT_OK;
}

static double either(double value, double fallback)
{
    return value > 0 ? value : fallback;
}

dt_status dt_adamw_create(dt_module *model, const dt_adamw_options *options, dt_optim **optim_out)
{
    const dt_adamw_options o = options ? *options : (dt_adamw_options){0};
    DT_REQUIRE(o.beta1 >= 0 && o.beta1 < 1 && o.beta2 >= 0 && o.beta2 < 1 && o.eps >= 0 &&
                   o.weight_decay >= 0,
               DT_ERR_ARG, "beta1 %g, beta2 %g must be in [0, 1); eps %g, weight_decay %g >= 0",
               o.beta1, o.beta2, o.eps, o.weight_decay);
    int n = 0;
    dt_param *const *params = dt_module_params(model, &n);
    dt_status st = DT_OK;
    dt_optim *optim = calloc(1, sizeof *optim);
    dt_optim_state *state = calloc((size_t)n + 1, sizeof *state);
    dt_adamw_args *list = calloc((size_t)n + 1, sizeof *list);
    if (!optim || !state || !list) {
        free(list);
        free(state);
        free(optim);
        return DT_ERROR(DT_ERR_NOMEM, "an optimizer of %d parameters", n);
    }
    optim->state = state;
    optim->list = list;
    optim->options = (dt_adamw_options){either(o.beta1, 0.9), either(o.beta2, 0.95),
                                        either(o.eps, 1e-8), o.weight_decay, o.store};
    for (int i = 0; i < n; i++) {
        if (!params[i]->frozen)
            DT_TRY_TO(fail, st, make_state(params[i], o.store, &state[optim->n++]));
    }
    *optim_out = optim;
    return DT_OK;
fail:
    dt_optim_destroy(&optim);
    return st;
}

void dt_optim_destroy(dt_optim **optim)
{
    if (!*optim)
        return;
    for (int i = 0; i < (*optim)->n; i++) {
        dt_array_release(&(*optim)->state[i].exp_avg);
        dt_array_release(&(*optim)->state[i].exp_avg_sq);
        dt_array_release(&(*optim)->state[i].master);
    }
    free((*optim)->list);
    free((*optim)->state);
    free(*optim);
    *optim = NULL;
}

static dt_status check_gradient(const dt_optim_state *s)
{
    char here[DT_LAYOUT_TEXT], home[DT_LAYOUT_TEXT];
    const dt_param *p = s->param;
    const dt_local *g = dt_tensor_grad(p->tensor);
    DT_REQUIRE(g->array.storage, DT_ERR_STATE,
               "parameter %s has no gradient: no loss reached it; freeze it if that is meant",
               p->name);
    DT_REQUIRE(g->layout == p->layout, DT_ERR_PLACEMENT,
               "the gradient of %s is %s, the parameter %s: call dt_module_reduce_grads first",
               p->name, dt_layout_print(g->layout, here, sizeof here),
               dt_layout_print(p->layout, home, sizeof home));
    const dt_dtype dtype = g->array.dtype;
    DT_REQUIRE(p->dtype == DT_F64 ? dtype == DT_F64 : dt_dtype_is_float(dtype) && dtype != DT_F64,
               DT_ERR_ARG, "the gradient of %s is %s, the parameter %s", p->name,
               dt_dtype_name(dtype), dt_dtype_name(p->dtype));
    return DT_OK;
}

/* ---- a step ---- */

/* Call fn on the storages of a parameter and its state. */
static dt_status for_storages(const dt_optim_state *s, dt_status (*fn)(dt_storage *storage))
{
    const dt_array *a[] = {dt_tensor_local(s->param->tensor), &s->exp_avg, &s->exp_avg_sq,
                           &s->master};
    for (int i = 0; i < DT_COUNT(a); i++) {
        if (a[i]->storage)
            DT_TRY(fn(a[i]->storage));
    }
    return DT_OK;
}

static dt_status put_and_close(dt_storage *storage)
{
    DT_TRY(dt_storage_put(storage));
    dt_storage_close(storage);
    return DT_OK;
}

static bool rests_elsewhere(const dt_optim_state *s)
{
    return dt_tensor_local(s->param->tensor)->storage->slot || s->exp_avg.storage->slot;
}

/* Parameters of one device that are updated together. */
typedef struct update_list {
    const dt_optim_kernels *kernels;
    int n;
    dt_adamw_args *args;
} update_list;

static void update(update_list *list)
{
    if (list->n > 0)
        list->kernels->adamw(list->n, list->args);
    list->n = 0;
}

static dt_status add(update_list *list, const dt_optim_state *s, dt_adamw_args args)
{
    dt_array *local = dt_tensor_local(s->param->tensor);
    if (dt_array_is_meta(local) || dt_array_count(local) == 0)
        return DT_OK;
    const dt_device_kind device = dt_mesh_device(dt_layout_mesh(s->param->layout)).kind;
    const dt_optim_kernels *kernels = dt_optim_kernels_of(device);
    DT_REQUIRE(kernels, DT_ERR_UNSUPPORTED, "no AdamW on device %d", (int)device);
    const dt_array *grad = &dt_tensor_grad(s->param->tensor)->array;
    const bool master = s->master.storage != NULL;
    args.dtype = s->exp_avg.dtype;
    args.grad_dtype = grad->dtype;
    args.n = dt_array_count(local);
    args.g = dt_array_data(grad);
    args.w = dt_array_data(master ? &s->master : local);
    args.m = dt_array_data(&s->exp_avg);
    args.v = dt_array_data(&s->exp_avg_sq);
    args.rounded = master ? dt_array_data(local) : NULL;
    args.rounded_dtype = s->param->dtype;
    if (s->param->file_shape.ndim < 2)
        args.decay = 0;
    if (kernels != list->kernels)
        update(list);
    list->kernels = kernels;
    list->args[list->n++] = args;
    return DT_OK;
}

dt_status dt_optim_step(dt_optim *optim, double lr, double grad_scale)
{
    /* Look at all before touching any: a failed step changes nothing. */
    for (int i = 0; i < optim->n; i++)
        DT_TRY(check_gradient(&optim->state[i]));
    const dt_adamw_options *o = &optim->options;
    const double k = (double)(optim->steps + 1);
    const dt_adamw_args args = {
        .lr = lr,
        .beta1 = o->beta1,
        .beta2 = o->beta2,
        .eps = o->eps,
        .decay = o->weight_decay,
        .grad_scale = grad_scale,
        .correction1 = 1 - pow(o->beta1, k),
        .correction2 = 1 - pow(o->beta2, k),
    };
    update_list list = {.args = optim->list};
    for (int i = 0; i < optim->n; i++) {
        DT_TRY(for_storages(&optim->state[i], dt_storage_open));
        if (i + 1 < optim->n)
            DT_TRY(for_storages(&optim->state[i + 1], dt_storage_prefetch));
        DT_TRY(add(&list, &optim->state[i], args));
        if (rests_elsewhere(&optim->state[i]))
            update(&list);
        DT_TRY(for_storages(&optim->state[i], put_and_close));
    }
    update(&list);
    optim->steps++;
    return DT_OK;
}

int64_t dt_optim_steps(const dt_optim *optim)
{
    return optim->steps;
}

void dt_optim_set_steps(dt_optim *optim, int64_t steps)
{
    optim->steps = steps;
}

dt_optim_state *dt_optim_states(dt_optim *optim, int *n_out)
{
    *n_out = optim->n;
    return optim->state;
}
