/* dtensor/tensor.c - leaves: making them, reading them, their gradients. Read next:
 * dtensor/move.c. */
#include "array/dt_store.h"
#include "dtensor/tape_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const dt_layout *dt_tensor_layout(const dt_tensor *x)
{
    return x->layout;
}

dt_mesh *dt_tensor_mesh(const dt_tensor *x)
{
    return x->layout ? dt_layout_mesh(x->layout) : x->tape ? dt_tape_mesh(x->tape) : NULL;
}

dt_shape dt_tensor_shape(const dt_tensor *x)
{
    return x && x->layout ? x->layout->shape : (dt_shape){.ndim = 1};
}

dt_dtype dt_tensor_dtype(const dt_tensor *x)
{
    return x->local.dtype;
}

dt_array *dt_tensor_local(dt_tensor *x)
{
    return &x->local;
}

bool dt_tensor_requires_grad(const dt_tensor *x)
{
    return x->requires_grad;
}

void dt_tensor_set_requires_grad(dt_tensor *x, bool on)
{
    x->requires_grad = on && dt_dtype_is_float(x->local.dtype);
}

void dt_tensor_set_parameter(dt_tensor *x, bool on)
{
    dt_tensor_set_requires_grad(x, on);
    x->weight_side = x->requires_grad;
}

void dt_tensor_set_wide_grad(dt_tensor *x, bool on)
{
    x->wide_grad = on && dt_dtype_size(x->local.dtype) == 2;
}

const char *dt_tensor_name(const dt_tensor *x)
{
    return x->name ? x->name : "";
}

dt_status dt_tensor_set_name(dt_tensor *x, const char *name)
{
    char *copy = strdup(name);
    DT_REQUIRE(copy, DT_ERR_NOMEM, "name of a tensor");
    free(x->name);
    x->name = copy;
    return DT_OK;
}

dt_local *dt_tensor_grad(dt_tensor *x)
{
    return &x->grad;
}

void dt_tensor_clear_grad(dt_tensor *x)
{
    dti_local_release(&x->grad);
}

void dti_local_release(dt_local *x)
{
    dt_array_release(&x->array);
    x->layout = NULL;
}

/* A leaf that takes over `local`'s reference. */
static dt_status make_leaf(const dt_layout *layout, dt_array *local, dt_tensor **tensor_out)
{
    dt_tensor *x = calloc(1, sizeof *x);
    if (!x) {
        dt_array_release(local);
        return DT_ERROR(DT_ERR_NOMEM, "a tensor");
    }
    x->layout = layout;
    x->local = *local;
    *tensor_out = x;
    return DT_OK;
}

dt_status dt_tensor_create(const dt_layout *layout, dt_dtype dtype, dt_tag tag,
                           dt_tensor **tensor_out)
{
    dt_array local = {0};
    DT_TRY(dt_array_create(dt_mesh_heap(dt_layout_mesh(layout)), dtype, dt_mesh_local(layout, NULL),
                           tag, &local));
    DT_TRY(make_leaf(layout, &local, tensor_out));
    return DT_OK;
}

void dt_tensor_destroy(dt_tensor **x)
{
    if (!*x)
        return;
    dt_array_release(&(*x)->local);
    dti_local_release(&(*x)->grad);
    free((*x)->name);
    free(*x);
    *x = NULL;
}

dt_status dt_tensor_keep(dt_tensor *x, dt_tensor **kept_out)
{
    DT_TRY(dti_tensor_status(x, "keeping"));
    dt_array local = dt_array_share(&x->local);
    DT_TRY(make_leaf(x->layout, &local, kept_out));
    return DT_OK;
}

/* Under DT_CHECK=replicas: ranks that differ only on R axes must hold equal bytes. */
static dt_status check_replicas(const dt_layout *layout, const dt_array *local)
{
    dt_mesh *mesh = dt_layout_mesh(layout);
    char shape[DT_SHAPE_TEXT], text[DT_LAYOUT_TEXT];
    if (!dt_world_check(dt_mesh_world(mesh), "replicas"))
        return DT_OK;
    void *copy;
    const unsigned char *bytes = dt_array_look(local, &copy);
    uint64_t hash = 1469598103934665603u; /* FNV-1a */
    for (size_t i = 0; bytes && i < dt_array_bytes(local); i++)
        hash = (hash ^ bytes[i]) * 1099511628211u;
    free(copy);
    for (int axis = 0; axis < layout->grid->naxes; axis++) {
        if (layout->grid->size[axis] == 1 || dt_layout_at(layout, axis).kind != DT_REPLICATE)
            continue;
        const uint8_t axes[1] = {(uint8_t)axis};
        dt_comm *comm = NULL;
        DT_TRY(dt_mesh_comm(mesh, 1, axes, 0, &comm));
        int64_t range[2] = {(int64_t)(hash >> 1), -(int64_t)(hash >> 1)};
        DT_TRY(dt_all_reduce_i64_sync(comm, range, 2, DT_REDUCE_MAX));
        DT_REQUIRE(range[0] == -range[1], DT_ERR_STATE,
                   "replicas differ on axis %s: %s %s promises equal local arrays there",
                   layout->grid->name[axis], dt_shape_print(layout->shape, shape, sizeof shape),
                   dt_layout_print(layout, text, sizeof text));
    }
    return DT_OK;
}

dt_status dt_from_array(const dt_layout *layout, const dt_array *local, dt_tensor **tensor_out)
{
    const dt_shape want = dt_mesh_local(layout, NULL);
    char a[DT_SHAPE_TEXT], b[DT_SHAPE_TEXT], c[DT_LAYOUT_TEXT], d[DT_SHAPE_TEXT];
    DT_REQUIRE(dt_shape_equal(local->shape, want), DT_ERR_SHAPE,
               "local array %s, but %s of %s gives this rank %s",
               dt_shape_print(local->shape, a, sizeof a), dt_layout_print(layout, c, sizeof c),
               dt_shape_print(layout->shape, d, sizeof d), dt_shape_print(want, b, sizeof b));
    DT_TRY(check_replicas(layout, local));
    dt_array share = dt_array_share(local);
    DT_TRY(make_leaf(layout, &share, tensor_out));
    return DT_OK;
}

/* The rows, columns ... of a whole host array that `layout` gives to this rank. */
static void read_block(dt_array *local, const void *host, const dt_layout *layout)
{
    const int64_t start[DT_MAX_DIMS] = {0};
    int64_t at[DT_MAX_DIMS];
    const dt_shape part = dt_mesh_local(layout, at);
    dt_storage bytes = {.data = (void *)(uintptr_t)host};
    const dt_array whole = {&bytes, 0, layout->shape, local->dtype};
    if (!dt_array_is_meta(local))
        dt_array_copy_block(local, start, &whole, at, part);
}

dt_status dt_distribute(const dt_layout *layout, dt_dtype dtype, const void *host,
                        dt_tensor **tensor_out)
{
    char text[DT_LAYOUT_TEXT];
    DT_REQUIRE(
        !layout->partial, DT_ERR_PLACEMENT,
        "cannot distribute to %s: P has no single right split of a value; distribute to R and "
        "redistribute (R -> P: rank 0 of the axis keeps it)",
        dt_layout_print(layout, text, sizeof text));
    dt_tensor *x = NULL;
    DT_TRY(dt_tensor_create(layout, dtype, DT_TAG_ACTIVATION, &x));
    read_block(&x->local, host, layout);
    const dt_status st = check_replicas(layout, &x->local);
    if (st != DT_OK) {
        dt_tensor_destroy(&x);
        return dt_error_push(st, __FILE__, __LINE__, __func__);
    }
    *tensor_out = x;
    return DT_OK;
}

dt_status dt_full_value(const dt_layout *layout, dt_dtype dtype, double value,
                        dt_tensor **tensor_out)
{
    DT_TRY(dt_tensor_create(layout, dtype, DT_TAG_ACTIVATION, tensor_out));
    dt_array_fill(&(*tensor_out)->local, dti_holds_value(layout, layout->partial) ? value : 0.0);
    return DT_OK;
}

/* The whole tensor on every rank; x stays open, as *out may be its bytes. */
static dt_status gather(dt_tensor *x, dt_local *out)
{
    DT_TRY(dti_tensor_status(x, "reading"));
    dt_mesh *mesh = dt_layout_mesh(x->layout);
    const dt_layout whole = dt_layout_replicated(x->layout->grid, x->layout->shape);
    const dt_layout *dst = NULL;
    DT_TRY(dt_mesh_layout(mesh, &whole, &dst));
    const dt_local src = {x->layout, x->local};
    DT_TRY(dt_storage_open(x->local.storage));
    const dt_status st = dt_move(1, &src, &dst, 0, "read", DT_TAG_WORKSPACE, out);
    if (st == DT_OK)
        return DT_OK;
    dt_storage_close(x->local.storage);
    return dt_error_push(st, __FILE__, __LINE__, __func__);
}

static void let_go(dt_tensor *x, dt_local *whole)
{
    dti_local_release(whole);
    dt_storage_close(x->local.storage);
}

dt_status dt_tensor_read_sync(dt_tensor *x, void *host)
{
    dt_local whole = {0};
    DT_TRY(gather(x, &whole));
    const dt_status st = dt_array_read(&whole.array, host, dt_array_count(&whole.array));
    let_go(x, &whole);
    if (st != DT_OK)
        return dt_error_push(st, __FILE__, __LINE__, __func__);
    return DT_OK;
}

dt_status dt_tensor_read_f32_sync(dt_tensor *x, float *host)
{
    dt_local whole = {0};
    dt_array f32 = {0};
    dt_status st = DT_OK;
    DT_TRY(gather(x, &whole));
    DT_TRY_TO(done, st,
              dt_array_create(dt_mesh_heap(dt_layout_mesh(x->layout)), DT_F32, whole.array.shape,
                              DT_TAG_WORKSPACE, &f32));
    dt_array_cast(&f32, &whole.array);
    DT_TRY_TO(done, st, dt_array_read(&f32, host, dt_array_count(&f32)));
done:
    dt_array_release(&f32);
    let_go(x, &whole);
    return st;
}

dt_status dt_tensor_item_sync(dt_tensor *x, double *value_out)
{
    DT_TRY(dti_tensor_status(x, "reading"));
    DT_REQUIRE(dt_shape_count(x->layout->shape) == 1, DT_ERR_SHAPE,
               "item of a tensor of %lld elements", (long long)dt_shape_count(x->layout->shape));
    if (x->local.dtype == DT_F64) {
        DT_TRY(dt_tensor_read_sync(x, value_out));
        return DT_OK;
    }
    float value = 0;
    DT_TRY(dt_tensor_read_f32_sync(x, &value));
    *value_out = (double)value;
    return DT_OK;
}

dt_status dt_tensor_local_item_sync(dt_tensor *x, double *value_out)
{
    float value = 0;
    DT_TRY(dti_tensor_status(x, "reading"));
    DT_REQUIRE(x->local.dtype == DT_F32 || x->local.dtype == DT_F64, DT_ERR_ARG,
               "a scalar of type %s; cast it to f32", dt_dtype_name(x->local.dtype));
    if (x->local.dtype == DT_F64) {
        DT_TRY(dt_array_read(&x->local, value_out, 1));
        return DT_OK;
    }
    DT_TRY(dt_array_read(&x->local, &value, 1));
    *value_out = (double)value;
    return DT_OK;
}

const char *dt_tensor_print(dt_tensor *x, char *buf, size_t size_bytes)
{
    enum { SHOWN = 8 };
    if (x->failed || x->dropped) {
        (void)snprintf(buf, size_bytes, x->failed ? "failed tensor" : "dropped tensor");
        return buf;
    }
    char shape[DT_SHAPE_TEXT], local[DT_SHAPE_TEXT], layout[DT_LAYOUT_TEXT];
    size_t used = (size_t)snprintf(
        buf, size_bytes, "%s%s%s %s %s, local %s:", dt_tensor_name(x), x->name ? " " : "",
        dt_shape_print(x->layout->shape, shape, sizeof shape), dt_dtype_name(x->local.dtype),
        dt_layout_print(x->layout, layout, sizeof layout),
        dt_shape_print(x->local.shape, local, sizeof local));
    const int64_t count = dt_array_is_meta(&x->local) ? 0 : dt_array_count(&x->local);
    for (int64_t i = 0; i < count && i < SHOWN && used < size_bytes; i++) {
        const dt_array flat = {x->local.storage, x->local.offset + i, DT_SHAPE(1), x->local.dtype};
        double value = 0;
        dt_storage store = {.data = &value, .bytes = sizeof value, .refs = 1};
        dt_array one = {&store, 0, DT_SHAPE(1), DT_F64};
        dt_array_cast(&one, &flat);
        used += (size_t)snprintf(buf + used, size_bytes - used, " %.6g", value);
    }
    if (count > SHOWN && used < size_bytes)
        (void)snprintf(buf + used, size_bytes - used, " ...");
    return buf;
}
