/* tests/dtensor/test_misuse.c - operands of wrong types, left out, or outlived: an error each,
 * never a number. */
#include "nn/dt_layers.h"
#include "tests/harness.h"

static dt_status make(dt_mesh *mesh, dt_dtype dtype, dt_tensor **out)
{
    const dt_layout *l = NULL;
    DT_TRY(dt_mesh_layout_text(mesh, DT_SHAPE(4, 4), "", &l));
    DT_TRY(dt_full_value(l, dtype, 1.0, out));
    return DT_OK;
}

typedef struct operands {
    dt_mesh *mesh;
    dt_tensor *f32, *i32, *i64;
    dt_tape *tape;
} operands;

static dt_status set_up(dt_world *world, operands *o)
{
    DT_TRY(dt_mesh_create(world, test_device(world), &(dt_mesh_options){.axes = {{"dp", -1}}},
                          &o->mesh));
    DT_TRY(make(o->mesh, DT_F32, &o->f32));
    DT_TRY(make(o->mesh, DT_I32, &o->i32));
    DT_TRY(make(o->mesh, DT_I64, &o->i64));
    DT_TRY(dt_tape_create(o->mesh, NULL, &o->tape));
    return DT_OK;
}

static void tear_down(operands *o)
{
    dt_tape_destroy(&o->tape);
    dt_tensor_destroy(&o->f32);
    dt_tensor_destroy(&o->i32);
    dt_tensor_destroy(&o->i64);
    dt_mesh_destroy(&o->mesh);
}

/* The op must have failed with this text; the tape is fresh afterwards. */
static dt_status refused(operands *o, const dt_tensor *result, const char *text)
{
    TEST_THAT(dt_tensor_is_failed(result), "%s", text);
    TEST_FAILS(DT_ERR_ARG, text, dt_tape_status(o->tape));
    dt_tape_reset(o->tape, NULL);
    return DT_OK;
}

static dt_status types(dt_world *world, void *arg)
{
    operands o = {0};
    (void)arg;
    DT_TRY(set_up(world, &o));
    dt_tape *t = o.tape;
    DT_TRY(refused(&o, dt_sum(t, o.i32, 0), "operand 0 is i32; it must be a float type"));
    DT_TRY(refused(&o, dt_mul(t, o.i32, o.i32), "operand 0 is i32"));
    DT_TRY(refused(&o, dt_linear(t, o.f32, o.i32, NULL), "operand 1 is i32"));
    DT_TRY(refused(&o, dt_add(t, o.f32, o.i64), "operand 1 is i64"));
    DT_TRY(refused(&o, dt_embedding(t, o.i64, o.f32), "operand 0 is i64; it must be i32"));
    DT_TRY(refused(&o, dt_concat(t, 2, (dt_tensor *[]){o.f32, o.i32}, 0), "operand 1 is i32"));
    dt_tensor *moved = dt_rearrange(t, o.i64, "a b -> b a", ""); /* shapes of any type may change */
    TEST_THAT(!dt_tensor_is_failed(moved), "rearrange of i64");
    for (int i = -1; i <= DT_NDTYPES; i += DT_NDTYPES + 1) { /* no types at all */
        dt_tensor *none = NULL;
        TEST_FAILS(DT_ERR_ARG, "is none of DT_F32 ... DT_U8", make(o.mesh, (dt_dtype)i, &none));
        DT_TRY(refused(&o, dt_cast(t, o.f32, (dt_dtype)i, false), "is none of DT_F32"));
    }
    tear_down(&o);
    return DT_OK;
}

static dt_status left_out(dt_world *world, void *arg)
{
    operands o = {0};
    (void)arg;
    DT_TRY(set_up(world, &o));
    dt_tape *t = o.tape;
    DT_TRY(refused(&o, dt_add(t, o.f32, NULL), "operand 1 is NULL"));
    DT_TRY(refused(&o, dt_linear(t, NULL, o.f32, NULL), "operand 0 is NULL"));
    DT_TRY(refused(&o, dt_softmax(t, NULL), "operand 0 is NULL"));
    TEST_THAT(!dt_tensor_is_failed(dt_linear(t, o.f32, o.f32, NULL)), "a bias may be left out");
    tear_down(&o);
    return DT_OK;
}

static dt_status outlived(dt_world *world, void *arg)
{
    operands o = {0};
    double value = 0;
    (void)arg;
    DT_TRY(set_up(world, &o));
    dt_tensor *old = dt_sum(o.tape, o.f32, 0);
    dt_tape_reset(o.tape, NULL);
    TEST_FAILS(DT_ERR_STATE, "dropped", dt_tensor_item_sync(old, &value));
    (void)dt_scale(o.tape, old, 2.0);
    TEST_FAILS(DT_ERR_STATE, "its tape was reset", dt_tape_status(o.tape));
    tear_down(&o);
    return DT_OK;
}

static dt_status given_gradients(dt_world *world, void *arg)
{
    operands o = {0};
    (void)arg;
    DT_TRY(set_up(world, &o));
    dt_local g = {dt_tensor_layout(o.i32), dt_array_share(dt_tensor_local(o.i32))};
    TEST_FAILS(DT_ERR_ARG, "type i32", dt_tensor_add_grad(o.f32, &g));
    const dt_layout *wrong = NULL;
    DT_TRY(dt_mesh_layout_text(o.mesh, DT_SHAPE(5, 3), "", &wrong));
    g.layout = wrong;
    DT_TRY(
        dt_array_create(dt_mesh_heap(o.mesh), DT_F32, DT_SHAPE(5, 3), DT_TAG_GRADIENT, &g.array));
    TEST_FAILS(DT_ERR_SHAPE, "shape", dt_tensor_add_grad(o.f32, &g));
    dt_mesh *alone = NULL;
    DT_TRY(dt_mesh_slice(o.mesh, "", &alone));
    DT_TRY(dt_mesh_layout_text(alone, DT_SHAPE(4, 4), "", &g.layout));
    g.array = dt_array_share(dt_tensor_local(o.f32));
    TEST_FAILS(DT_ERR_SHAPE, "another mesh", dt_tensor_add_grad(o.f32, &g));
    tear_down(&o);
    return DT_OK;
}

static dt_status cycles(dt_world *world, void *arg)
{
    dt_module *above = NULL, *below = NULL;
    (void)world;
    (void)arg;
    DT_TRY(dt_layer_group(&above));
    DT_TRY(dt_layer_group(&below));
    TEST_FAILS(DT_ERR_ARG, "below itself", dt_module_add(above, "x", above));
    DT_TRY(dt_module_add(above, "x", below));
    TEST_FAILS(DT_ERR_ARG, "below itself", dt_module_add(below, "y", above));
    dt_module_destroy(&above);
    return DT_OK;
}

static const struct {
    dt_rank_body body;
} bodies[] = {{types}, {left_out}, {outlived}, {given_gradients}, {cycles}};

START_TEST(misuse_is_an_error)
{
    test_ranks(2, bodies[_i].body, NULL);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("misuse");
    TCase *tc = tcase_create("misuse");
    tcase_add_loop_test(tc, misuse_is_an_error, 0, DT_COUNT(bodies));
    suite_add_tcase(suite, tc);
    return test_main(suite);
}
