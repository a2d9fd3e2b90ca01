/* tests/optim/bare.c - see tests/optim/bare.h. */
#include "tests/optim/bare.h"

const dt_module_kind bare_kind = {"bare", 0, NULL};

dt_status bare_mesh(dt_world *world, int x, int y, dt_mesh **mesh_out)
{
    const dt_mesh_options options = {.axes = {{"x", x}, {"y", y}}};
    return dt_mesh_create(world, test_device(world), &options, mesh_out);
}

/* This rank's part of `whole`. */
static dt_status set_part(const dt_param *p, dt_dtype dtype, const double *whole, dt_array *part)
{
    const dt_layout *layout = p->layout;
    dt_tensor *full = NULL;
    DT_TRY(dt_distribute(layout, DT_F64, whole, &full));
    dt_array cast = {0};
    DT_TRY(dt_array_create(dt_mesh_heap(dt_layout_mesh(layout)), dtype,
                           dt_tensor_local(full)->shape, DT_TAG_GRADIENT, &cast));
    dt_array_cast(&cast, dt_tensor_local(full));
    dt_tensor_destroy(&full);
    dt_array_release(part);
    *part = cast;
    return DT_OK;
}

dt_status bare_set_value(const dt_param *p, const double *whole)
{
    dt_array part = {0};
    DT_TRY(set_part(p, p->dtype, whole, &part));
    dt_array_copy(dt_tensor_local(p->tensor), &part);
    dt_array_release(&part);
    return DT_OK;
}

dt_status bare_set_grad(const dt_param *p, dt_dtype dtype, const double *whole)
{
    dt_local *g = dt_tensor_grad(p->tensor);
    g->layout = p->layout;
    return set_part(p, dtype, whole, &g->array);
}
