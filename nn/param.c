/* nn/param.c - parameters' memory: placing, materialising, bringing gradients home. */
#include "array/dt_kernels_math.h"
#include "nn/nn_internal.h"

#include <fnmatch.h>
#include <stdio.h>
#include <stdlib.h>

static const char NO_NAMES[] = "parameters have no names yet: call dt_module_finish on the root";

dt_status dt_module_place(dt_module *m, dt_mesh *mesh, const char *pattern, const char *layout)
{
    int n = 0, matched = 0;
    dt_param *const *p = dt_module_params(m, &n);
    for (int i = 0; i < n; i++) {
        DT_REQUIRE(p[i]->name, DT_ERR_STATE, "%s", NO_NAMES);
        if (fnmatch(pattern, p[i]->name, 0) != 0)
            continue;
        DT_REQUIRE(!p[i]->tensor, DT_ERR_STATE, "%s is materialized already; place it before",
                   p[i]->name);
        const dt_layout *placed = NULL;
        DT_TRY(dt_mesh_layout_text(mesh, p[i]->shape, layout, &placed));
        DT_REQUIRE(!placed->partial, DT_ERR_PLACEMENT, "a parameter cannot rest as P: %s",
                   p[i]->name);
        p[i]->layout = placed;
        matched++;
    }
    DT_REQUIRE(matched > 0, DT_ERR_ARG, "no parameter below '%s' matches '%s'", dt_module_path(m),
               pattern);
    return DT_OK;
}

/* Values first, first + 1 ... of the whole tensor, to the local array from element `at` on. */
static void fill_run(const dt_param *p, dt_key key, int64_t first, int64_t count,
                     const dt_array *local, int64_t at)
{
    char *out = (char *)dt_array_data(local) + at * (int64_t)dt_dtype_size(local->dtype);
    dt_math_kernels_of(dt_heap_device(local->storage->heap).kind)
        ->normal(local->dtype, key, (uint64_t)first, count, p->init.std, out);
}

/* Runs of the local array whose elements are neighbours in the whole tensor: the last dims that
 * are not split. */
static void fill_normal(const dt_param *p, const dt_array *local, dt_key key)
{
    int64_t at[DT_MAX_DIMS];
    const dt_shape whole = p->shape, part = dt_mesh_local(p->layout, at);
    int d = whole.ndim - 1; /* the innermost dim that is split */
    while (d > 0 && part.dim[d] == whole.dim[d])
        d--;
    const int64_t length = whole.ndim ? part.dim[d] * dt_shape_inner(whole, d) : 1;
    const int64_t runs = length ? dt_shape_count(part) / length : 0;
    for (int64_t r = 0; r < runs; r++) {
        int64_t rest = r, first = 0, stride = whole.ndim ? dt_shape_inner(whole, d) : 1;
        if (whole.ndim)
            first = at[d] * stride;
        for (int k = d - 1; k >= 0; k--) {
            stride *= whole.dim[k + 1];
            first += (at[k] + rest % part.dim[k]) * stride;
            rest /= part.dim[k];
        }
        fill_run(p, key, first, length, local, r * length);
    }
}

static void initialise(dt_param *p, uint64_t seed)
{
    dt_array *local = dt_tensor_local(p->tensor);
    if (dt_array_is_meta(local) || dt_array_count(local) == 0)
        return;
    if (p->init.kind == DT_INIT_NORMAL)
        fill_normal(p, local, dt_key_named(seed, p->name));
    else
        dt_array_fill(local, p->init.kind == DT_INIT_ONES ? 1.0 : 0.0);
}

dt_status dt_module_materialize(dt_module *m, dt_mesh *mesh, uint64_t seed)
{
    int n = 0;
    dt_param *const *p = dt_module_params(m, &n);
    for (int i = 0; i < n; i++) {
        if (p[i]->tensor)
            continue;
        DT_REQUIRE(p[i]->name, DT_ERR_STATE, "%s", NO_NAMES);
        if (!p[i]->layout)
            DT_TRY(dt_mesh_layout_text(mesh, p[i]->shape, "", &p[i]->layout));
        const dt_status st =
            dt_tensor_create(p[i]->layout, p[i]->dtype, DT_TAG_PARAMETER, &p[i]->tensor);
        if (st != DT_OK) {
            char trace[600];
            (void)snprintf(trace, sizeof trace, "%s", dt_error_trace());
            return DT_ERROR(st, "parameter %s: %s", p[i]->name, trace);
        }
        DT_TRY(dt_tensor_set_name(p[i]->tensor, p[i]->name));
        dt_tensor_set_parameter(p[i]->tensor, !p[i]->frozen);
        initialise(p[i], seed);
        if (p[i]->store)
            DT_TRY(dt_store_adopt(p[i]->store, dt_tensor_local(p[i]->tensor)->storage, p[i]->name));
    }
    return DT_OK;
}

int64_t dt_module_local_bytes(dt_module *m)
{
    int n = 0;
    dt_param *const *p = dt_module_params(m, &n);
    int64_t bytes = 0;
    for (int i = 0; i < n; i++) {
        const dt_shape local = p[i]->layout ? dt_mesh_local(p[i]->layout, NULL) : p[i]->shape;
        bytes += dt_shape_count(local) * (int64_t)dt_dtype_size(p[i]->dtype);
    }
    return bytes;
}

/* Gradients of one mesh, from where they arose to the parameters' layouts. */
static dt_status reduce_on(dt_mesh *mesh, int n, dt_param *const *p, dt_local *src,
                           const dt_layout **dst, dt_local *out)
{
    int count = 0;
    for (int i = 0; i < n; i++) {
        dt_local *g = p[i]->tensor ? dt_tensor_grad(p[i]->tensor) : NULL;
        if (!g || !g->array.storage || dt_layout_mesh(g->layout) != mesh ||
            g->layout == p[i]->layout)
            continue;
        src[count] = *g;
        dst[count++] = p[i]->layout;
    }
    if (count == 0)
        return DT_OK;
    DT_TRY(dt_move(count, src, dst, 0, "reduce_grads", DT_TAG_GRADIENT, out));
    count = 0;
    for (int i = 0; i < n; i++) {
        dt_local *g = p[i]->tensor ? dt_tensor_grad(p[i]->tensor) : NULL;
        if (!g || !g->array.storage || dt_layout_mesh(g->layout) != mesh ||
            g->layout == p[i]->layout)
            continue;
        dt_array_release(&g->array);
        *g = out[count++];
    }
    return DT_OK;
}

static dt_status finish_sharders(dt_module *m)
{
    void *arg = NULL;
    const dt_sharder *sharder = dt_module_sharder(m, &arg);
    if (sharder)
        DT_TRY(sharder->reduce_grads(m, arg));
    for (int i = 0; i < dt_module_nchildren(m); i++)
        DT_TRY(finish_sharders(dt_module_child(m, i)));
    return DT_OK;
}

dt_status dt_module_reduce_grads(dt_module *m)
{
    DT_TRY(finish_sharders(m));
    int n = 0;
    dt_param *const *p = dt_module_params(m, &n);
    if (n == 0)
        return DT_OK;
    dt_status st = DT_OK;
    dt_local *work = calloc((size_t)n * 2, sizeof *work);
    const dt_layout **dst = calloc((size_t)n, sizeof *dst);
    if (!work || !dst) {
        st = DT_ERROR(DT_ERR_NOMEM, "%d gradients", n);
        goto done;
    }
    /* Meshes in the order in which parameters name them; a mesh that is done has nothing left to
     * move. */
    for (int i = 0; i < n; i++) {
        if (p[i]->tensor)
            DT_TRY_TO(done, st, reduce_on(dt_layout_mesh(p[i]->layout), n, p, work, dst, work + n));
    }
done:
    free(work);
    free(dst);
    return st;
}

static void clear_sharders(dt_module *m)
{
    void *arg = NULL;
    const dt_sharder *sharder = dt_module_sharder(m, &arg);
    if (sharder && sharder->clear_grads)
        sharder->clear_grads(m, arg);
    for (int i = 0; i < dt_module_nchildren(m); i++)
        clear_sharders(dt_module_child(m, i));
}

void dt_module_clear_grads(dt_module *m)
{
    clear_sharders(m);
    int n = 0;
    dt_param *const *p = dt_module_params(m, &n);
    for (int i = 0; i < n; i++) {
        if (p[i]->tensor)
            dt_tensor_clear_grad(p[i]->tensor);
        if (p[i]->use)
            dt_tensor_clear_grad(p[i]->use);
    }
}
