/* dtensor/gradient.c - how gradients add up where they meet: R + P is P, and nobody writes to bytes
 * that somebody else reads. Read next: dtensor/backward.c. */
#include "dtensor/tape_internal.h"

dt_status dti_make_partial(dt_local *x, uint8_t partial, dt_tag tag)
{
    const uint8_t made = (uint8_t)(partial & ~x->layout->partial);
    if (!made)
        return DT_OK;
    dt_mesh *mesh = dt_layout_mesh(x->layout);
    dt_layout wanted = *x->layout;
    wanted.partial |= partial;
    if (!dti_holds_value(x->layout, made)) {
        dt_array zero = {0};
        DT_TRY(dt_array_create(dt_mesh_heap(mesh), x->array.dtype, x->array.shape, tag, &zero));
        dt_array_zero(&zero);
        dt_array_release(&x->array);
        x->array = zero;
    }
    DT_TRY(dt_mesh_layout(mesh, &wanted, &x->layout));
    return DT_OK;
}

dt_status dti_recast(dt_array *a, dt_dtype dtype, dt_tag tag)
{
    if (a->dtype == dtype)
        return DT_OK;
    dt_array other = {0};
    DT_TRY(dt_array_create(a->storage->heap, dtype, a->shape, tag, &other));
    dt_array_cast(&other, a);
    dt_array_release(a);
    *a = other;
    return DT_OK;
}

/* A copy of one's own if somebody else holds the bytes. */
static dt_status own(dt_array *a)
{
    if (a->storage->refs == 1)
        return DT_OK;
    dt_array mine = {0};
    DT_TRY(dt_array_create(a->storage->heap, a->dtype, a->shape, DT_TAG_GRADIENT, &mine));
    dt_array_copy(&mine, a);
    dt_array_release(a);
    *a = mine;
    return DT_OK;
}

/* wide: the sum of a gradient in f32 and one of 16 bits is in f32. */
static dt_status add(dt_local *sum, dt_local *g, bool wide)
{
    if (wide && sum->array.dtype != g->array.dtype) {
        DT_TRY(dti_recast(&sum->array, DT_F32, DT_TAG_GRADIENT));
        DT_TRY(dti_recast(&g->array, DT_F32, DT_TAG_GRADIENT));
    }
    const uint8_t both = sum->layout->partial | g->layout->partial;
    DT_TRY(dti_make_partial(sum, both, DT_TAG_GRADIENT));
    DT_TRY(dti_make_partial(g, both, DT_TAG_GRADIENT));
    char a[DT_LAYOUT_TEXT], b[DT_LAYOUT_TEXT];
    DT_REQUIRE(sum->layout == g->layout, DT_ERR_PLACEMENT, "gradients placed %s and %s do not add",
               dt_layout_print(sum->layout, a, sizeof a), dt_layout_print(g->layout, b, sizeof b));
    DT_REQUIRE(sum->array.dtype == g->array.dtype, DT_ERR_ARG,
               "gradients of types %s and %s do not add", dt_dtype_name(sum->array.dtype),
               dt_dtype_name(g->array.dtype));
    DT_TRY(own(&sum->array));
    dt_array_add_into(&sum->array, &g->array);
    return DT_OK;
}

dt_status dti_deliver(dt_tensor *x, dt_local *g)
{
    dt_status st = DT_OK;
    if (!x->grad.array.storage) {
        x->grad = *g;
        *g = (dt_local){0};
        if (!x->tape) /* who owns the leaf may write to it: a + b gives both the same array */
            DT_TRY(own(&x->grad.array));
        return DT_OK;
    }
    st = add(&x->grad, g, x->wide_grad);
    dti_local_release(g);
    if (st != DT_OK)
        return dt_error_push(st, __FILE__, __LINE__, __func__);
    return DT_OK;
}

/* A gradient from outside: of the leaf's mesh, shape and type. */
static dt_status check_given(const dt_tensor *x, const dt_local *g)
{
    DT_REQUIRE(g->layout->grid == x->layout->grid &&
                   dt_shape_equal(g->layout->shape, x->layout->shape),
               DT_ERR_SHAPE, "a gradient of another mesh or shape than its tensor's");
    DT_REQUIRE(g->array.dtype == x->local.dtype, DT_ERR_ARG,
               "a gradient of type %s for a tensor of %s", dt_dtype_name(g->array.dtype),
               dt_dtype_name(x->local.dtype));
    return DT_OK;
}

dt_status dt_tensor_add_grad(dt_tensor *x, dt_local *g)
{
    const dt_status st = check_given(x, g);
    if (st != DT_OK) {
        dti_local_release(g);
        return dt_error_push(st, __FILE__, __LINE__, __func__);
    }
    DT_TRY(dti_deliver(x, g));
    return DT_OK;
}
