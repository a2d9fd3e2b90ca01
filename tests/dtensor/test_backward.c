/* tests/dtensor/test_backward.c - the walk: where gradients go, who owns them, in one part or two.
 * Its markers: tests/dtensor/test_markers.c. */
#include "tests/dtensor/place_check.h"

#include <string.h>

static dt_local local_of(dt_tensor *x)
{
    return (dt_local){dt_tensor_layout(x), *dt_tensor_local(x)};
}

/* ---- refusals ---- */

static dt_status refused_body(dt_world *world, void *arg)
{
    (void)arg;
    place_bench b;
    dt_tensor *x = NULL, *s1 = NULL, *p = NULL, *f64 = NULL, *short_one = NULL;
    DT_TRY(place_open(&b, world));
    DT_TRY(place_grad_leaf(&b, DT_SHAPE(4, 4), "S(0)@tp", DT_F32, 1, &x));
    DT_TRY(place_grad_leaf(&b, DT_SHAPE(4, 4), "S(1)@tp", DT_F32, 1, &s1));
    DT_TRY(place_grad_leaf(&b, DT_SHAPE(4, 4), "P@tp", DT_F32, 1, &p));
    DT_TRY(place_grad_leaf(&b, DT_SHAPE(4, 4), "S(0)@tp", DT_F64, 1, &f64));
    DT_TRY(place_grad_leaf(&b, DT_SHAPE(2, 4), "S(0)@tp", DT_F32, 1, &short_one));
    dt_tensor *y = dt_scale(b.t, x, 2), *plain = dt_scale(b.t, p, 2);
    TEST_FAILS(DT_ERR_SHAPE, "one element", dt_backward(b.t, y));
    dt_tape_reset(b.t, NULL);
    struct {
        dt_tensor *of, *grad;
        dt_status st;
        const char *word;
    } rows[] = {{x, s1, DT_ERR_PLACEMENT, "cannot be [S(1)@tp]"},
                {x, p, DT_ERR_PLACEMENT, "cannot be [P@tp]"},
                {p, p, DT_ERR_PLACEMENT, "cannot be [P@tp]"},
                {x, f64, DT_ERR_ARG, "its gradient f64"},
                {x, short_one, DT_ERR_PLACEMENT, "output 0"}};
    for (int i = 0; i < DT_COUNT(rows); i++) {
        y = dt_scale(b.t, rows[i].of, 2);
        const dt_local g = local_of(rows[i].grad);
        TEST_FAILS(rows[i].st, rows[i].word, dt_backward_from(b.t, 1, &y, &g));
        dt_tape_reset(b.t, NULL);
    }
    dt_local torn = {dt_tensor_layout(x), *dt_tensor_local(short_one)};
    y = dt_scale(b.t, x, 2);
    TEST_FAILS(DT_ERR_SHAPE, "local shape", dt_backward_from(b.t, 1, &y, &torn));
    dt_tape_reset(b.t, NULL);
    dt_local right = local_of(x);
    dt_tape *other = NULL;
    DT_TRY(dt_tape_create(dt_tensor_mesh(x), NULL, &other));
    y = dt_scale(other, x, 2);
    TEST_FAILS(DT_ERR_STATE, "on another tape", dt_backward_from(b.t, 1, &y, &right));
    dt_tape_destroy(&other);
    dt_tape_reset(b.t, NULL);
    DT_TRY(dt_backward_from(b.t, 1, &x, &right)); /* a leaf that was handed on */
    TEST_THAT(dt_tensor_grad(x)->layout == right.layout &&
                  memcmp(test_look(&dt_tensor_grad(x)->array), test_look(&right.array),
                         8 * sizeof(float)) == 0,
              "it has the gradient");
    dt_tensor_clear_grad(x);
    dt_tape_reset(b.t, NULL);
    dt_tensor_set_requires_grad(x, false);
    y = dt_scale(b.t, x, 2);
    TEST_FAILS(DT_ERR_STATE, "nothing that wants", dt_backward_from(b.t, 1, &y, &right));
    dt_tensor_set_requires_grad(x, true);
    dt_tape_reset(b.t, NULL);
    y = dt_scale(b.t, x, 2);
    TEST_FAILS(DT_ERR_STATE, "after dt_backward_input", dt_backward_weight(b.t));
    DT_TRY(dt_backward_from(b.t, 1, &y, &right));
    TEST_FAILS(DT_ERR_STATE, "walked already", dt_backward_from(b.t, 1, &y, &right));
    TEST_FAILS(DT_ERR_STATE, "after dt_backward_input", dt_backward_weight(b.t));
    (void)plain;
    dt_tensor_destroy(&x);
    dt_tensor_destroy(&s1);
    dt_tensor_destroy(&p);
    dt_tensor_destroy(&f64);
    dt_tensor_destroy(&short_one);
    place_close(&b);
    return DT_OK;
}

START_TEST(refused)
{
    test_ranks(2, refused_body, NULL);
}
END_TEST

/* ---- bytes: leaves own their gradients; tapes add up; R + P is P ---- */

static dt_status owned_body(dt_world *world, void *arg)
{
    (void)arg;
    place_bench b;
    dt_tensor *x = NULL, *z = NULL, *g = NULL;
    DT_TRY(place_open(&b, world));
    DT_TRY(place_grad_leaf(&b, DT_SHAPE(5, 3), "S(0)@tp", DT_F32, 1, &x));
    DT_TRY(place_grad_leaf(&b, DT_SHAPE(5, 3), "S(0)@tp", DT_F32, 2, &z));
    DT_TRY(place_grad_leaf(&b, DT_SHAPE(5, 3), "S(0)@tp", DT_F32, 3, &g));
    const dt_local dy = local_of(g);
    for (int step = 1; step <= 3; step++) {
        dt_tensor *y = dt_add(b.t, x, z); /* both gradients are dy itself */
        DT_TRY(dt_backward_from(b.t, 1, &y, &dy));
        DT_TRY(place_holds(dt_tensor_grad(x), 3, step, "x"));
        DT_TRY(place_holds(dt_tensor_grad(z), 3, step, "z"));
        const dt_storage *at = dt_tensor_grad(x)->array.storage;
        TEST_THAT(at != dt_tensor_grad(z)->array.storage && at != dy.array.storage, "shared");
        dt_tape_reset(b.t, NULL);
    }
    dt_array *dx = &dt_tensor_grad(x)->array;
    dt_array_scale(dx, 2.0); /* as clipping does */
    DT_TRY(place_holds(dt_tensor_grad(x), 3, 6, "x scaled"));
    DT_TRY(place_holds(dt_tensor_grad(z), 3, 3, "z is another's"));
    DT_TRY(place_holds(&dy, 3, 1, "the caller's array"));
    dt_tensor_clear_grad(x);
    dt_tensor *same = dt_redistribute(b.t, x, "S(0)@tp"); /* moves nothing */
    DT_TRY(dt_backward_from(b.t, 1, &same, &dy));
    TEST_THAT(dt_tensor_grad(x)->array.storage != dy.array.storage, "shared by a redistribute");
    dt_tensor_destroy(&x);
    dt_tensor_destroy(&z);
    dt_tensor_destroy(&g);
    place_close(&b);
    return DT_OK;
}

START_TEST(leaves_own_their_gradients)
{
    test_ranks(2, owned_body, NULL);
}
END_TEST

static dt_status mixed_body(dt_world *world, void *arg)
{
    (void)arg;
    place_bench b;
    dt_tensor *x = NULL, *r = NULL, *p = NULL;
    const dt_layout *home = NULL;
    DT_TRY(place_open(&b, world));
    DT_TRY(place_grad_leaf(&b, DT_SHAPE(4, 3), "", DT_F32, 1, &x));
    DT_TRY(place_grad_leaf(&b, DT_SHAPE(4, 3), "", DT_F32, 2, &r));
    DT_TRY(place_grad_leaf(&b, DT_SHAPE(4, 3), "P@tp", DT_F32, 2, &p));
    const dt_local grad[2] = {local_of(r), local_of(p)};
    home = dt_tensor_layout(x);
    dt_world_reset_counts(world);
    for (int order = 0; order < 2; order++) {
        for (int tapes = 1; tapes <= 2; tapes++) { /* on one tape, and over two tapes */
            for (int i = 0; i < 2; i += tapes == 1 ? 2 : 1) {
                dt_tensor *y[2] = {dt_scale(b.t, x, 1), dt_scale(b.t, x, 1)};
                const dt_local both[2] = {grad[order], grad[1 - order]};
                const dt_local one[1] = {grad[(i + order) % 2]};
                DT_TRY(dt_backward_from(b.t, tapes == 1 ? 2 : 1, y, tapes == 1 ? both : one));
                dt_tape_reset(b.t, NULL);
            }
            TEST_THAT(dt_tensor_grad(x)->layout->partial == 1, "R + P is P");
            DT_TRY(place_holds(dt_tensor_grad(x), 2, 2, "R + P"));
            TEST_THAT(dt_world_counts(world).total_calls == 0, "free");
            dt_local moved = {0};
            DT_TRY(dt_move(1, dt_tensor_grad(x), &home, 0, "home", DT_TAG_GRADIENT, &moved));
            DT_TRY(place_holds(&moved, 2, 2, "reduced"));
            dt_array_release(&moved.array);
            dt_tensor_clear_grad(x);
            dt_world_reset_counts(world);
        }
    }
    DT_TRY(place_holds(&grad[0], 2, 1, "given gradients stay"));
    DT_TRY(place_holds(&grad[1], 2, 1, "given gradients stay"));
    dt_tensor_destroy(&x);
    dt_tensor_destroy(&r);
    dt_tensor_destroy(&p);
    place_close(&b);
    return DT_OK;
}

START_TEST(r_and_p_add_up)
{
    test_ranks(3, mixed_body, NULL);
}
END_TEST

/* Inputs dropped by a scope: backward still knows their type. d sum(2 x * 3 x) = 12 x. */
static dt_status dropped_body(dt_world *world, void *arg)
{
    (void)arg;
    static const dt_dtype types[] = {DT_F32, DT_F64, DT_BF16, DT_F16};
    place_bench b;
    DT_TRY(place_open(&b, world));
    for (int i = 0; i < DT_COUNT(types); i++) {
        dt_tensor *x = NULL;
        DT_TRY(place_grad_leaf(&b, DT_SHAPE(5), "S(0)@tp", types[i], 1, &x));
        dt_scope_begin(b.t);
        dt_tensor *two = dt_scale(b.t, x, 2), *one = dt_add(b.t, two, x);
        dt_tensor *loss = dt_sum(b.t, dt_mul(b.t, dt_scale(b.t, x, 2), one), 0);
        dt_scope_end(b.t, 1, &loss);
        TEST_THAT(dt_tensor_dtype(two) == types[i], "%s", dt_dtype_name(types[i]));
        DT_TRY(dt_backward(b.t, loss));
        TEST_THAT(dt_tensor_grad(x)->array.dtype == types[i], "%s", dt_dtype_name(types[i]));
        DT_TRY(place_holds(dt_tensor_grad(x), 1, 12, dt_dtype_name(types[i])));
        dt_tape_reset(b.t, NULL);
        dt_tensor_destroy(&x);
    }
    place_close(&b);
    return DT_OK;
}

START_TEST(dropped_inputs_keep_their_type)
{
    test_ranks(2, dropped_body, NULL);
}
END_TEST

/* An output of split that no gradient reaches, among one that it does: there it is 0. */
static dt_status unreached_body(dt_world *world, void *arg)
{
    (void)arg;
    place_bench b;
    dt_tensor *x = NULL, *part[2];
    dt_array used = {0};
    DT_TRY(place_open(&b, world));
    DT_TRY(place_grad_leaf(&b, DT_SHAPE(4, 5), "", DT_F32, 1, &x));
    dt_split(b.t, x, 1, 2, (int64_t[]){2, 3}, part);
    dt_tensor *loss = dt_sum(b.t, dt_scale(b.t, part[1], 7), 0);
    DT_TRY(dt_array_create(dt_mesh_heap(b.mesh), DT_F32, DT_SHAPE(4, 5), DT_TAG_WORKSPACE, &used));
    dt_array_fill(&used, 99); /* memory that is not zero by luck */
    dt_array_release(&used);
    DT_TRY(dt_backward(b.t, loss));
    const float *g = test_look(&dt_tensor_grad(x)->array);
    for (int i = 0; i < 20; i++)
        TEST_THAT(g[i] == (i % 5 < 2 ? 0 : 7), "element %d: %g", i, (double)g[i]);
    dt_tensor_destroy(&x);
    place_close(&b);
    return DT_OK;
}

START_TEST(unreached_outputs_give_zeros)
{
    test_ranks(1, unreached_body, NULL);
}
END_TEST

/* ---- two parts ---- */

/* y = silu(x w1^T) w2^T, w2 through two casts; `tied`: w2 is w1. */
static dt_tensor *two_layers(dt_tape *t, dt_tensor *x, dt_tensor *w1, dt_tensor *w2)
{
    dt_tensor *w = dt_cast(t, dt_cast(t, w2, DT_F64, false), DT_F32, false);
    return dt_linear(t, dt_silu(t, dt_linear(t, x, w1, NULL)), w, NULL);
}

static dt_status same_bits(const dt_local *a, const dt_local *b, const char *what)
{
    TEST_THAT(a->layout == b->layout && dt_array_bytes(&a->array) == dt_array_bytes(&b->array),
              "%s", what);
    TEST_THAT(memcmp(test_look(&a->array), test_look(&b->array), dt_array_bytes(&a->array)) == 0,
              "%s: other bits", what);
    return DT_OK;
}

static dt_status halves_body(dt_world *world, void *arg)
{
    (void)arg;
    enum { N = 6 };
    place_bench b;
    dt_tensor *leafs[3] = {NULL}, *g = NULL; /* x, w1, w2 */
    dt_local whole[3];
    DT_TRY(place_open(&b, world));
    for (int i = 0; i < 3; i++)
        DT_TRY(place_grad_leaf(&b, DT_SHAPE(N, N), "", DT_F32, (uint64_t)i, &leafs[i]));
    DT_TRY(place_grad_leaf(&b, DT_SHAPE(N, N), "P@tp", DT_F32, 9, &g));
    dt_tensor_set_parameter(leafs[1], true);
    dt_tensor_set_parameter(leafs[2], true);
    const dt_local dy = local_of(g);
    for (int tied = 0; tied < 2; tied++) {
        dt_tensor *w2 = tied ? leafs[1] : leafs[2];
        dt_tensor *y = two_layers(b.t, leafs[0], leafs[1], w2);
        DT_TRY(dt_backward_from(b.t, 1, &y, &dy));
        for (int i = 0; i < 3; i++) {
            const dt_local *grad = dt_tensor_grad(leafs[i]);
            whole[i] = (dt_local){grad->layout, dt_array_share(&grad->array)};
            dt_tensor_clear_grad(leafs[i]);
        }
        dt_tape_reset(b.t, NULL);
        y = two_layers(b.t, leafs[0], leafs[1], w2);
        DT_TRY(dt_backward_input(b.t, 1, &y, &dy));
        DT_TRY(same_bits(dt_tensor_grad(leafs[0]), &whole[0], "x"));
        TEST_THAT(!dt_tensor_grad(leafs[1])->array.storage &&
                      !dt_tensor_grad(leafs[2])->array.storage,
                  "parameters wait");
        /* held between: (x, dy1) and (silu's result, dy); not the weights, nor silu's own input */
        TEST_THAT(dt_tape_saved_bytes(b.t) == 2 * N * N * 4, "%lld bytes saved",
                  (long long)dt_tape_saved_bytes(b.t));
        DT_TRY(dt_backward_weight(b.t));
        for (int i = 1; i < (tied ? 2 : 3); i++)
            DT_TRY(same_bits(dt_tensor_grad(leafs[i]), &whole[i], "w"));
        TEST_THAT(dt_tape_saved_bytes(b.t) == 0, "nothing is left");
        for (int i = 0; i < 3; i++) {
            dt_array_release(&whole[i].array);
            dt_tensor_clear_grad(leafs[i]);
        }
        dt_tape_reset(b.t, NULL);
    }
    for (int i = 0; i < 3; i++)
        dt_tensor_destroy(&leafs[i]);
    dt_tensor_destroy(&g);
    place_close(&b);
    return DT_OK;
}

START_TEST(two_parts_equal_the_whole)
{
    test_ranks(2, halves_body, NULL);
}
END_TEST

/* ---- a failure inside: which op, where it was recorded ---- */

static dt_status plain_forward(dt_op_call *c)
{
    dt_array_copy(&c->out[0], &c->in[0]);
    return DT_OK;
}

static dt_status bad_backward(dt_op_call *c)
{
    (void)c;
    return DT_ERROR(DT_ERR_DEVICE, "no luck");
}

static dt_status failing_body(dt_world *world, void *arg)
{
    (void)arg;
    static const dt_op op = {.name = "unlucky",
                             .nin = 1,
                             .nout = 1,
                             .rule = "...->...",
                             .forward = plain_forward,
                             .backward = bad_backward};
    place_bench b;
    dt_tensor *x = NULL;
    DT_TRY(place_open(&b, world));
    DT_TRY(place_grad_leaf(&b, DT_SHAPE(3), "S(0)@tp", DT_F32, 1, &x));
    dt_tape_enter(b.t, "model.mlp");
    dt_tensor *y = dt_op_apply1(dt_tape_at(b.t, "here.c:7"), &op, NULL, x);
    dt_tape_leave(b.t);
    dt_tensor *loss = dt_sum(b.t, y, 0);
    static const char *const words[] = {"no luck", "op unlucky", "model.mlp", "here.c:7"};
    TEST_FAILS(DT_ERR_DEVICE, "unlucky", dt_backward(b.t, loss));
    for (int i = 0; i < DT_COUNT(words); i++)
        TEST_FAILS(DT_ERR_DEVICE, words[i], dt_tape_status(b.t));
    dt_tensor_destroy(&x);
    place_close(&b);
    return DT_OK;
}

START_TEST(failing_gradient)
{
    test_ranks(2, failing_body, NULL);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("backward");
    TCase *tc = tcase_create("backward");
    tcase_set_timeout(tc, 0);
    tcase_add_test(tc, refused);
    tcase_add_test(tc, leaves_own_their_gradients);
    tcase_add_test(tc, r_and_p_add_up);
    tcase_add_test(tc, dropped_inputs_keep_their_type);
    tcase_add_test(tc, unreached_outputs_give_zeros);
    tcase_add_test(tc, two_parts_equal_the_whole);
    tcase_add_test(tc, failing_gradient);
    suite_add_tcase(suite, tc);
    return test_main(suite);
}
