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

static dt_status power_sum(const dt_local *x, double order, double *sum)
{
    const int64_t n = dt_array_count(&x->array);
    const dt_device_kind device = dt_mesh_device(dt_layout_mesh(x->layout)).kind;
    const dt_optim_kernels *kernels = dt_optim_kernels_of(device);
    DT_REQUIRE(kernels, DT_ERR_UNSUPPORTED, "no norm on device %d", (int)device);
    DT_TRY(dt_storage_open(x->array.storage));
    kernels->power_sum(x->array.dtype, n, dt_array_data(&x->array), order, sum);
    dt_storage_close(x->array.storage);
    return DT_OK;
}

/* This rank's sums, 0 where it has none. What a device makes stays there until all are made, so
 * that the host waits once. */
static dt_status power_sums(double order, int n, const dt_local *locals, double *sum)
{
    dt_array made = {0};
    dt_status st = DT_OK;
    for (int i = 0; i < n; i++) {
        if (!adds(&locals[i]))
            continue;
        dt_heap *heap = locals[i].array.storage->heap;
        double *to = &sum[i];
        if (dt_heap_device(heap).kind != DT_CPU) {
            if (!made.storage) {
                DT_TRY(dt_array_create(heap, DT_F64, DT_SHAPE(n), DT_TAG_WORKSPACE, &made));
                dt_array_zero(&made);
            }
            to = (double *)dt_array_data(&made) + i;
        }
        DT_TRY_TO(done, st, power_sum(&locals[i], order, to));
    }
    if (made.storage)
        DT_TRY_TO(done, st, dt_array_read(&made, sum, n));
done:
    dt_array_release(&made);
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
    return max_norm > 0 && factor < 1 ? factor : 1;
}
