/* optim/norm.c - the norm over tensors that lie in pieces on many ranks. */
#include "array/dt_kernels_optim.h"
#include "array/dt_store.h"
#include "optim/dt_optim.h"

#include <math.h>
#include <stdlib.h>

/* Of all ranks that hold the same elements, the one at index 0 of every R axis counts them. */
static bool counts_here(const dt_layout *layout)
{
    const int *coord = dt_mesh_coord(dt_layout_mesh(layout));
    for (int axis = 0; axis < layout->grid->naxes; axis++) {
        if (dt_layout_at(layout, axis).kind == DT_REPLICATE && coord[axis] != 0)
            return false;
    }
    return true;
}

/* Has this rank a part of x's sum? */
static bool adds(const dt_local *x)
{
    return x->layout && !dt_array_is_meta(&x->array) && dt_array_count(&x->array) > 0 &&
           counts_here(x->layout);
}

/* Tensors of one device whose sums are made together. */
typedef struct sum_list {
    const dt_optim_kernels *kernels;
    int n;
    dt_power_args *args;
    dt_array made; /* on a device: all sums, until the host waits for them, once */
} sum_list;

static void run(sum_list *list, double order)
{
    if (list->n > 0)
        list->kernels->power_sum(list->n, list->args, order);
    list->n = 0;
}

/* The i'th of n sums goes to *sum; on a device to the i'th element of list->made. */
static dt_status add(sum_list *list, double order, int i, int n, const dt_local *x, double *sum)
{
    dt_storage *storage = x->array.storage;
    const dt_device_kind device = dt_heap_device(storage->heap).kind;
    const dt_optim_kernels *kernels = dt_optim_kernels_of(device);
    DT_REQUIRE(kernels, DT_ERR_UNSUPPORTED, "no norm on device %d", (int)device);
    DT_REQUIRE(!list->kernels || kernels == list->kernels, DT_ERR_UNSUPPORTED,
               "tensor %d lies on another device than those before it", i);
    if (device != DT_CPU && !list->made.storage) {
        DT_TRY(dt_array_create(storage->heap, DT_F64, DT_SHAPE(n), DT_TAG_WORKSPACE, &list->made));
        dt_array_zero(&list->made);
    }
    list->kernels = kernels;
    DT_TRY(dt_storage_open(storage));
    list->args[list->n++] =
        (dt_power_args){.dtype = x->array.dtype,
                        .n = dt_array_count(&x->array),
                        .x = dt_array_data(&x->array),
                        .sum = device == DT_CPU ? sum : (double *)dt_array_data(&list->made) + i};
    if (storage->slot)
        run(list, order);
    dt_storage_close(storage);
    return DT_OK;
}

/* This rank's sums, 0 where it has none. */
static dt_status power_sums(double order, int n, const dt_local *locals, double *sum)
{
    sum_list list = {.args = calloc((size_t)n + 1, sizeof *list.args)};
    DT_REQUIRE(list.args, DT_ERR_NOMEM, "norms of %d tensors", n);
    dt_status st = DT_OK;
    for (int i = 0; i < n; i++)
        if (adds(&locals[i]))
            DT_TRY_TO(done, st, add(&list, order, i, n, &locals[i], &sum[i]));
    run(&list, order);
    if (list.made.storage)
        DT_TRY_TO(done, st, dt_array_read(&list.made, sum, n));
done:
    dt_array_release(&list.made);
    free(list.args);
    return st;
}

/* A sum over one rank is that rank's value. */
static bool is_partial(const dt_layout *layout)
{
    for (int axis = 0; axis < layout->grid->naxes; axis++) {
        if (dt_layout_at(layout, axis).kind == DT_PARTIAL && layout->grid->size[axis] > 1)
            return true;
    }
    return false;
}

/* What is wrong with the list is wrong on every rank, so that all leave before the all-reduce. */
static dt_status check(int n, const dt_local *locals)
{
    char text[DT_LAYOUT_TEXT];
    for (int i = 0; i < n; i++) {
        const dt_layout *layout = locals[i].layout;
        if (!layout)
            continue;
        DT_REQUIRE(!is_partial(layout), DT_ERR_PLACEMENT,
                   "the norm of a sum is not the sum of norms: tensor %d is %s; reduce it first "
                   "(dt_module_reduce_grads)",
                   i, dt_layout_print(layout, text, sizeof text));
        DT_REQUIRE(dt_dtype_is_float(locals[i].array.dtype), DT_ERR_ARG,
                   "tensor %d is %s, no float", i, dt_dtype_name(locals[i].array.dtype));
    }
    return DT_OK;
}

static double root(double sum, double order)
{
    return order == 2 ? sqrt(sum) : isinf(order) ? sum : pow(sum, 1 / order);
}

dt_status dt_global_norm_of_order_sync(double order, int n, const dt_local *locals, dt_comm *comm,
                                       double *norm_out, double *each_out)
{
    DT_REQUIRE(order > 0, DT_ERR_ARG, "a norm of order %g; it must be above 0", order);
    DT_TRY(check(n, locals));
    double *sum = calloc((size_t)n + 1, sizeof *sum);
    DT_REQUIRE(sum, DT_ERR_NOMEM, "norms of %d tensors", n);
    dt_status st = DT_OK;
    DT_TRY_TO(done, st, power_sums(order, n, locals, sum));
    if (n > 0)
        DT_TRY_TO(
            done, st,
            dt_all_reduce_f64_sync(comm, sum, n, isinf(order) ? DT_REDUCE_MAX : DT_REDUCE_SUM));
    double total = 0;
    for (int i = 0; i < n; i++) {
        if (!isinf(order))
            total += sum[i];
        else if (sum[i] > total || isnan(sum[i]))
            total = sum[i];
        if (each_out)
            each_out[i] = root(sum[i], order);
    }
    *norm_out = root(total, order);
done:
    free(sum);
    return st;
}

dt_status dt_global_norm_sync(int n, const dt_local *locals, dt_comm *comm, double *norm_out,
                              double *each_out)
{
    DT_TRY(dt_global_norm_of_order_sync(2, n, locals, comm, norm_out, each_out));
    return DT_OK;
}

double dt_clip_factor(double norm, double max_norm)
{
    const double factor = max_norm / (norm + 1e-6);
    return max_norm <= 0 || factor >= 1 ? 1 : factor;
}
