/* tests/dtensor/test_ops_common.c - what sums of products and changes of shape have in common: the
 * other types, missing gradients, errors and refusals, equal bits for any number of threads. Their
 * rules: tests/dtensor/test_ops_product.c, test_ops_sum.c, test_ops_shape.c. */
#include "array/dt_kernels.h"
#include "dtensor/ops/ops_internal.h"
#include "tests/harness.h"

#include <stdlib.h>
#include <string.h>

typedef dt_status (*tape_body)(dt_mesh *mesh, dt_tape *tape);

static dt_status with_tape(dt_world *world, void *arg)
{
    dt_mesh *mesh;
    dt_tape *tape;
    DT_TRY(dt_mesh_create(world, test_device(world), &(dt_mesh_options){.axes = {{"axisA", -1}}},
                          &mesh));
    DT_TRY(dt_tape_create(mesh, NULL, &tape));
    DT_TRY((*(const tape_body *)arg)(mesh, tape));
    dt_tape_destroy(&tape);
    dt_mesh_destroy(&mesh);
    return DT_OK;
}

static void on_ranks(int nranks, tape_body body)
{
    test_ranks(nranks, with_tape, &body);
}

/* A leaf from host values in f64, in another type. */
static dt_status leaf(dt_mesh *mesh, dt_shape shape, dt_dtype dtype, const double *value,
                      dt_tensor **out)
{
    const dt_layout *layout;
    dt_array wide = {0}, local = {0};
    DT_TRY(dt_mesh_layout_text(mesh, shape, "", &layout));
    DT_TRY(dt_array_create(dt_mesh_heap(mesh), DT_F64, shape, DT_TAG_ACTIVATION, &wide));
    DT_TRY(dt_array_create(dt_mesh_heap(mesh), dtype, shape, DT_TAG_ACTIVATION, &local));
    DT_TRY(dt_array_write(&wide, value, dt_shape_count(shape)));
    dt_array_cast(&local, &wide);
    DT_TRY(dt_from_array(layout, &local, out));
    dt_array_release(&wide);
    dt_array_release(&local);
    dt_tensor_set_requires_grad(*out, dt_dtype_is_float(dtype));
    return DT_OK;
}

/* Elements of x, as f64, equal `want`. */
static dt_status holds(const dt_array *x, dt_dtype dtype, int n, const double *want)
{
    dt_array wide = {0};
    TEST_THAT(x->dtype == dtype && dt_array_count(x) == n, "%s, %lld elements",
              dt_dtype_name(x->dtype), (long long)dt_array_count(x));
    DT_TRY(dt_array_create(x->storage->heap, DT_F64, x->shape, DT_TAG_ACTIVATION, &wide));
    dt_array_cast(&wide, x);
    const double *got = test_look(&wide);
    for (int j = 0; j < n; j++)
        TEST_THAT(got[j] == want[j], "element %d is %g, want %g", j, got[j], want[j]);
    dt_array_release(&wide);
    return DT_OK;
}

/* Small whole numbers are exact in every type. */
static dt_status other_types(dt_mesh *mesh, dt_tape *tape)
{
    const double x[6] = {0, 1, 2, 3, 4, 5}, turned[6] = {0, 3, 1, 4, 2, 5},
                 w[6] = {1, 0, 2, 0, 1, 1}, b[2] = {7, 9}, y[4] = {11, 12, 20, 18},
                 dw[6] = {3, 5, 7, 3, 5, 7}, db[2] = {2, 2};
    for (int d = 0; d < DT_NDTYPES; d++) {
        dt_tensor *a;
        DT_TRY(leaf(mesh, DT_SHAPE(2, 3), (dt_dtype)d, x, &a));
        dt_tape_reset(tape, NULL);
        dt_tensor *parts[2];
        dt_split(tape, a, 1, 2, (int64_t[]){1, 2}, parts);
        DT_TRY(holds(dt_tensor_local(dt_rearrange(tape, a, "a b -> b a", "")), (dt_dtype)d, 6,
                     turned));
        DT_TRY(holds(dt_tensor_local(dt_concat(tape, 2, parts, 1)), (dt_dtype)d, 6, x));
        DT_TRY(holds(dt_tensor_local(dt_select(tape, dt_slice(tape, a, 0, 1, 2), 0, 0)),
                     (dt_dtype)d, 3, x + 3));
        DT_TRY(holds(dt_tensor_local(dt_cast(tape, a, DT_I64, false)), DT_I64, 6, x));
        dt_tensor_destroy(&a);
    }
    const dt_dtype floats[] = {DT_F32, DT_BF16, DT_F16};
    for (int d = 0; d < DT_COUNT(floats); d++) {
        dt_tensor *in[3];
        DT_TRY(leaf(mesh, DT_SHAPE(2, 3), floats[d], x, &in[0]));
        DT_TRY(leaf(mesh, DT_SHAPE(2, 3), floats[d], w, &in[1]));
        DT_TRY(leaf(mesh, DT_SHAPE(2), floats[d], b, &in[2]));
        dt_tape_reset(tape, NULL);
        dt_tensor *out = dt_linear(tape, in[0], in[1], in[2]);
        DT_TRY(dt_tape_status(tape));
        DT_TRY(holds(dt_tensor_local(out), floats[d], 4, y));
        DT_TRY(dt_backward(tape, dt_sum(tape, dt_cast(tape, out, DT_F32, false), 0)));
        DT_TRY(holds(&dt_tensor_grad(in[1])->array, floats[d], 6, dw));
        DT_TRY(holds(&dt_tensor_grad(in[2])->array, floats[d], 2, db));
        for (int i = 0; i < 3; i++)
            dt_tensor_destroy(&in[i]);
    }
    return DT_OK;
}

static dt_status arithmetic_of_other_types(dt_mesh *mesh, dt_tape *tape)
{
    const double x[6] = {0, 1, 2, 3, 4, 5}, twice[2] = {10, 100}, square[4] = {5, 14, 14, 50};
    const dt_dtype floats[] = {DT_F32, DT_BF16, DT_F16, DT_F64};
    for (int d = 0; d < DT_COUNT(floats); d++) {
        dt_tensor *a;
        DT_TRY(leaf(mesh, DT_SHAPE(2, 3), floats[d], x, &a));
        dt_tape_reset(tape, NULL);
        dt_tensor *dot = dt_product(tape, "ab,ab->a", 2, (dt_tensor *[]){a, a});
        dt_tensor *sum = dt_sum(tape, dt_mul(tape, a, dt_add(tape, a, a)), 2);
        dt_tensor *turned = dt_rearrange(tape, a, "a b -> b a", NULL);
        DT_TRY(holds(dt_tensor_local(dt_scale(tape, dot, 2)), floats[d], 2, twice));
        DT_TRY(holds(dt_tensor_local(sum), floats[d], 2, twice));
        DT_TRY(holds(dt_tensor_local(dt_matmul(tape, a, turned)), floats[d], 4, square));
        dt_tensor_destroy(&a);
    }
    return DT_OK;
}

START_TEST(ops_of_other_types)
{
    on_ranks(1, other_types);
    on_ranks(1, arithmetic_of_other_types);
}
END_TEST

/* An output without a gradient counts as 0; an operand used twice gets both. */
static dt_status missing_gradients(dt_mesh *mesh, dt_tape *tape)
{
    const double x[4] = {1, 2, 3, 4}, want[4] = {0, 6, 0, 12};
    dt_tensor *a, *parts[2];
    DT_TRY(leaf(mesh, DT_SHAPE(2, 2), DT_F64, x, &a));
    dt_split(tape, a, 1, 2, (int64_t[]){1, 1}, parts);
    dt_tensor *y = dt_mul(tape, parts[1], parts[1]);
    DT_TRY(dt_backward(tape, dt_sum(tape, dt_add(tape, y, dt_scale(tape, y, 0.5)), 0)));
    DT_TRY(holds(&dt_tensor_grad(a)->array, DT_F64, 4, want));
    dt_tensor_destroy(&a);
    return DT_OK;
}

START_TEST(gradients_that_are_missing_or_shared)
{
    on_ranks(1, missing_gradients);
}
END_TEST

#define FAILS(status, text, call)                       \
    do {                                                \
        dt_tape_reset(tape, NULL);                      \
        TEST_THAT(dt_tensor_is_failed(call), #call);    \
        TEST_FAILS(status, text, dt_tape_status(tape)); \
    } while (0)

static dt_status bad_calls(dt_mesh *mesh, dt_tape *tape)
{
    const double x[6] = {0};
    dt_tensor *a, *out[DT_OP_MAX_OUT + 1] = {0};
    DT_TRY(leaf(mesh, DT_SHAPE(2, 3), DT_F32, x, &a));
    FAILS(DT_ERR_SHAPE, "size 3", dt_matmul(tape, a, a));
    FAILS(DT_ERR_SHAPE, "w has 1 dims", dt_linear_in_out(tape, a, dt_select(tape, a, 0, 0), NULL));
    FAILS(DT_ERR_SHAPE, "", dt_add(tape, a, dt_slice(tape, a, 1, 0, 1)));
    FAILS(DT_ERR_ARG, "dims 0x4", dt_sum(tape, a, 4));
    FAILS(DT_ERR_ARG, "[1, 4) of dim 1, which has 3", dt_slice(tape, a, 1, 1, 4));
    FAILS(DT_ERR_ARG, "dim 2", dt_select(tape, a, 2, 0));
    FAILS(DT_ERR_ARG, "dim -1", dt_concat(tape, 1, &a, -1));
    FAILS(DT_ERR_SHAPE, "they must agree",
          dt_concat(tape, 2, (dt_tensor *[]){a, dt_slice(tape, a, 0, 0, 1)}, 1));
    FAILS(DT_ERR_SHAPE, "add up to 2", (dt_split(tape, a, 1, 2, (int64_t[]){1, 1}, out), out[0]));
    FAILS(DT_ERR_ARG, "operand 1 is missing",
          dt_product(tape, "ab,ab->", 2, (dt_tensor *[]){a, NULL}));
    FAILS(DT_ERR_ARG, "", dt_product(tape, "ab", 1, &a));
    FAILS(DT_ERR_ARG, "no '->'", dt_rearrange(tape, a, "a b", NULL));
    FAILS(DT_ERR_ARG, "twice", dt_rearrange(tape, a, "a a -> a", NULL));
    FAILS(DT_ERR_ARG, "not on the left", dt_rearrange(tape, a, "a b -> a c", NULL));
    FAILS(DT_ERR_ARG, "missing on the right", dt_rearrange(tape, a, "a b -> a", NULL));
    FAILS(DT_ERR_ARG, "not closed", dt_rearrange(tape, a, "a b -> (a b", NULL));
    FAILS(DT_ERR_ARG, "unexpected ')'", dt_rearrange(tape, a, "a) b -> a b", NULL));
    FAILS(DT_ERR_ARG, "unexpected '2'", dt_rearrange(tape, a, "a 2 -> a", NULL));
    FAILS(DT_ERR_ARG, "letter=number", dt_rearrange(tape, a, "(a c) b -> a b c", "c"));
    FAILS(DT_ERR_SHAPE, "unknown size", dt_rearrange(tape, a, "(a c) b -> a b c", NULL));
    FAILS(DT_ERR_SHAPE, "multiple of 4", dt_rearrange(tape, a, "(a c) b -> a b c", "c=4"));
    FAILS(DT_ERR_SHAPE, "has 2 dims", dt_rearrange(tape, a, "a -> a", NULL));
    dt_tensor_destroy(&a);
    return DT_OK;
}

START_TEST(errors_say_what_is_wrong)
{
    on_ranks(1, bad_calls);
}
END_TEST

static dt_status refusal_texts(dt_mesh *mesh, dt_tape *tape)
{
    const dt_layout *layout;
    dt_tensor *a;
    DT_TRY(dt_mesh_layout_text(mesh, DT_SHAPE(2, 24), "S(1)@axisA", &layout));
    DT_TRY(dt_full_value(layout, DT_F32, 1, &a));
    FAILS(DT_ERR_PLACEMENT, "redistribute", dt_slice(tape, a, 1, 0, 2));
    FAILS(DT_ERR_PLACEMENT,
          "rank 0 would hold elements [0, 6) of the dim but [0, 2) of its outermost letter",
          dt_rearrange(tape, a, "s (h d) -> s h d", "h=6"));
    FAILS(DT_ERR_PLACEMENT, "inner letter of dim 0", dt_rearrange(tape, a, "s h -> (s h)", NULL));
    dt_tensor_destroy(&a);
    return DT_OK;
}

START_TEST(refusals_name_what_is_sharded)
{
    on_ranks(4, refusal_texts);
}
END_TEST

START_TEST(ops_pass_the_check_of_registration)
{
    const dt_op *const ops[] = {&dt_op_linear, &dt_op_linear_in_out, &dt_op_matmul, &dt_op_add,
                                &dt_op_mul,    &dt_op_product,       &dt_op_sum,    &dt_op_scale,
                                &dt_op_cast,   &dt_op_rearrange,     &dt_op_split,  &dt_op_concat,
                                &dt_op_slice,  &dt_op_select};
    for (int i = 0; i < DT_COUNT(ops); i++)
        ck_ok(dt_op_register(ops[i]));
}
END_TEST

/* Above the size where threads start: the same bits from 1 and 3 threads. */
static dt_status large(dt_mesh *mesh, dt_tape *tape, float *total)
{
    const dt_layout *layout;
    dt_tensor *a, *y;
    DT_TRY(dt_mesh_layout_text(mesh, DT_SHAPE(3, 500, 300), "", &layout));
    DT_TRY(dt_full_value(layout, DT_F32, 1, &a));
    float *x = malloc(450000 * sizeof *x);
    for (int j = 0; x && j < 450000; j++)
        x[j] = 1.0f / (float)(j % 1009 + 1);
    const dt_status st = x ? dt_array_write(dt_tensor_local(a), x, 450000) : DT_ERR_NOMEM;
    free(x);
    DT_TRY(st);
    y = dt_rearrange(tape, dt_mul(tape, a, dt_add(tape, a, a)), "a b c -> c a b", NULL);
    memcpy(total, test_look(dt_tensor_local(dt_sum(tape, y, 2))), 150000 * sizeof *total);
    memcpy(total + 150000, test_look(dt_tensor_local(dt_sum(tape, y, 4))), 900 * sizeof *total);
    DT_TRY(dt_tape_status(tape));
    dt_tensor_destroy(&a);
    return DT_OK;
}

static dt_status threads(dt_mesh *mesh, dt_tape *tape)
{
    static float one[150900], three[150900];
    dt_compute_threads_set(1);
    DT_TRY(large(mesh, tape, one));
    dt_compute_threads_set(3);
    dt_tape_reset(tape, NULL);
    DT_TRY(large(mesh, tape, three));
    TEST_THAT(!memcmp(one, three, sizeof one), "bits depend on the number of threads");
    return DT_OK;
}

START_TEST(threads_do_not_change_bits)
{
    on_ranks(1, threads);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("ops: types, errors, threads");
    TCase *tc = tcase_create("ops");
    tcase_set_timeout(tc, 100);
    tcase_add_test(tc, ops_of_other_types);
    tcase_add_test(tc, gradients_that_are_missing_or_shared);
    tcase_add_test(tc, errors_say_what_is_wrong);
    tcase_add_test(tc, refusals_name_what_is_sharded);
    tcase_add_test(tc, ops_pass_the_check_of_registration);
    tcase_add_test(tc, threads_do_not_change_bits);
    suite_add_tcase(suite, tc);
    return test_main(suite);
}
