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

static dt_status power_sum(const dt_local *x, double order, double *sum_out)
{
    const int64_t n = dt_array_count(&x->array);
    if (dt_array_is_meta(&x->array) || n == 0 || !counts_here(x->layout))
        return DT_OK;
    const dt_device_kind device = dt_mesh_device(dt_layout_mesh(x->layout)).kind;
    const dt_optim_kernels *kernels = dt_optim_kernels_of(device);
    DT_REQUIRE(kernels, DT_ERR_UNSUPPORTED, "no norm on device %d", (int)device);
    DT_TRY(dt_storage_open(x->array.storage));
    *sum_out = kernels->power_sum(x->array.dtype, n, dt_array_data(&x->array), order);
    dt_storage_close(x->array.storage);
    return DT_OK;
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
    for (int i = 0; i < n; i++) {
        if (locals[i].layout)
            DT_TRY_TO(done, st, power_sum(&locals[i], order, &sum[i]));
    }
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
