/* tests/dtensor/test_local.c - leaving the global view and coming back, local regions, and ops of
 * one's own. */
#include "tests/dtensor/place_check.h"

#include <string.h>

static int64_t calls(const place_bench *b)
{
    return dt_world_counts(b->world).total_calls;
}

/* ---- x -> local -> scale by 2 -> back: nothing moves, either way ---- */

static const struct trip {
    const char *x, *declared;
} trips[] = {
    {"S(0)@tp", NULL}, {"S(1)@tp", "S(1)@tp"}, {"", NULL}, {"", ""}, {"P@tp", NULL},
};

static dt_status run_trip(place_bench *b, const struct trip *c)
{
    enum { X = 1, G = 2 };
    dt_tensor *x = NULL, *g = NULL;
    DT_TRY(place_grad_leaf(b, DT_SHAPE(5, 3), c->x, DT_F32, X, &x));
    DT_TRY(place_dual_leaf(dt_tensor_layout(x), false, G, &g));
    dt_world_reset_counts(b->world);
    dt_tensor *local = dt_to_local(b->t, x, c->declared);
    DT_TRY(dt_tape_status(b->t));
    TEST_THAT(dt_mesh_size(dt_tensor_mesh(local)) == 1, "a mesh of one rank");
    TEST_THAT(dt_shape_equal(dt_tensor_shape(local), dt_tensor_local(x)->shape), "my part");
    TEST_THAT(dt_tensor_local(local)->storage == dt_tensor_local(x)->storage, "not copied");
    dt_tensor *y = dt_from_local(b->t, dt_scale(b->t, local, 2), dt_tensor_layout(x));
    DT_TRY(dt_tape_status(b->t));
    DT_TRY(dt_backward_from(b->t, 1, &y, &(dt_local){dt_tensor_layout(g), *dt_tensor_local(g)}));
    TEST_THAT(calls(b) == 0, "%s: %lld calls", c->x, (long long)calls(b));
    const dt_local value = {dt_tensor_layout(y), *dt_tensor_local(y)};
    DT_TRY(place_holds(&value, X, 2, c->x));
    DT_TRY(place_holds(dt_tensor_grad(x), G, 2, c->x));
    dt_tensor_destroy(&x);
    dt_tensor_destroy(&g);
    dt_tape_reset(b->t, NULL);
    return DT_OK;
}

/* R8. x S(0) -> full -> to_local, gradient declared P: one reduce-scatter in backward; declared R:
 * none. Each rank sums its
 * local copy times (rank + 1): as parts of one loss, dx = sum over ranks; as copies, dx is the
 * rank's own row range. */
static dt_status declared_grad(place_bench *b, const char *declared, int64_t scatters)
{
    dt_tensor *x = NULL;
    const dt_layout *scalar = NULL;
    const int k = dt_world_size(b->world);
    DT_TRY(place_grad_leaf(b, DT_SHAPE(5, 3), "S(0)@tp", DT_F32, 1, &x));
    dt_tensor *mine = dt_to_local(b->t, dt_full(b->t, x), declared);
    const bool parts = declared && *declared;
    const double factor = parts ? dt_world_rank(b->world) + 1 : 1;
    dt_tensor *sum = dt_scale(b->t, dt_sum(b->t, mine, 0), factor);
    DT_TRY(dt_mesh_layout_text(b->mesh, DT_SCALAR, parts ? "P@tp" : "", &scalar));
    dt_tensor *loss = dt_from_local(b->t, sum, scalar);
    dt_world_reset_counts(b->world);
    DT_TRY(dt_backward(b->t, loss));
    scatters = k > 1 ? scatters : 0;
    const dt_counts n = dt_world_counts(b->world);
    TEST_THAT(n.total_calls == scatters && n.calls[DT_CALL_REDUCE_SCATTER] == scatters,
              "declared %s: %lld calls", declared ? declared : "nothing", (long long)n.total_calls);
    TEST_THAT(dt_tensor_grad(x)->layout == dt_tensor_layout(x), "S");
    const float *dx = dt_array_data(&dt_tensor_grad(x)->array);
    const double want = parts ? k * (k + 1) / 2.0 : 1;
    for (int64_t i = 0; i < dt_array_count(&dt_tensor_grad(x)->array); i++)
        TEST_THAT((double)dx[i] == want, "%g, not %g", (double)dx[i], want);
    dt_tensor_destroy(&x);
    dt_tape_reset(b->t, NULL);
    return DT_OK;
}

static dt_status trips_body(dt_world *world, void *arg)
{
    (void)arg;
    place_bench b;
    DT_TRY(place_open(&b, world));
    for (int i = 0; i < DT_COUNT(trips); i++)
        DT_TRY(run_trip(&b, &trips[i]));
    DT_TRY(declared_grad(&b, NULL, 0));
    DT_TRY(declared_grad(&b, "", 0));
    DT_TRY(declared_grad(&b, "P@tp", 1));
    place_close(&b);
    return DT_OK;
}

START_TEST(to_local_and_back)
{
    test_ranks(_i, trips_body, NULL);
}
END_TEST

static dt_status wrong_body(dt_world *world, void *arg)
{
    (void)arg;
    place_bench b;
    dt_tensor *x = NULL;
    const dt_layout *rows = NULL, *r = NULL;
    DT_TRY(place_open(&b, world));
    DT_TRY(place_grad_leaf(&b, DT_SHAPE(4, 6), "S(0)@tp", DT_F32, 1, &x));
    DT_TRY(dt_mesh_layout_text(b.mesh, DT_SHAPE(7, 6), "S(0)@tp", &rows));
    TEST_THAT(dt_tensor_is_failed(dt_to_local(b.t, x, "S(1)@tp")), "other local shape");
    TEST_FAILS(DT_ERR_SHAPE, "cannot live at [S(1)@tp]", dt_tape_status(b.t));
    dt_tape_reset(b.t, NULL);
    TEST_THAT(dt_tensor_is_failed(dt_to_local(b.t, x, "S(9)@tp")), "no layout");
    TEST_FAILS(DT_ERR_PLACEMENT, "to_local", dt_tape_status(b.t));
    dt_tape_reset(b.t, NULL);
    TEST_THAT(dt_tensor_is_failed(dt_from_local(b.t, dt_to_local(b.t, x, NULL), rows)), "R14");
    TEST_FAILS(DT_ERR_SHAPE, "[7, 6]", dt_tape_status(b.t));
    dt_tape_reset(b.t, NULL);
    /* R promises equal parts: DT_CHECK=replicas compares them */
    DT_TRY(dt_mesh_layout_text(b.mesh, DT_SHAPE(2, 6), "", &r));
    TEST_THAT(!dt_tensor_is_failed(dt_from_local(b.t, dt_to_local(b.t, x, NULL), r)), "unchecked");
    dt_world_set_check(world, "replicas");
    TEST_THAT(dt_tensor_is_failed(dt_from_local(b.t, dt_to_local(b.t, x, NULL), r)), "checked");
    TEST_FAILS(DT_ERR_STATE, "replicas differ on axis tp", dt_tape_status(b.t));
    dt_tensor_destroy(&x);
    place_close(&b);
    return DT_OK;
}

START_TEST(wrong_layouts)
{
    test_ranks(2, wrong_body, NULL);
}
END_TEST

/* ---- local_map: y = rows of x (S(0)) times w (R), plus the global row number; and a gradient for
 * w that is P ---- */

typedef struct region_attr {
    double factor;
} region_attr;

static dt_status region_forward(dt_op_call *c)
{
    const region_attr *a = c->attr;
    int64_t lo, hi;
    dt_op_range(c, 0, 0, &lo, &hi);
    const int64_t n = c->in[1].shape.dim[0];
    const float *x = dt_array_data(&c->in[0]), *w = dt_array_data(&c->in[1]);
    float *y = dt_array_data(&c->out[0]);
    for (int64_t i = 0; i < (hi - lo) * n; i++)
        y[i] = (float)a->factor * x[i] * w[i % n] + (float)(lo + i / n);
    return DT_OK;
}

static dt_status region_backward(dt_op_call *c)
{
    const region_attr *a = c->attr;
    const int64_t count = dt_array_count(&c->dout[0]), n = c->in[1].shape.dim[0];
    const float *x = dt_array_data(&c->in[0]), *w = dt_array_data(&c->in[1]),
                *dy = dt_array_data(&c->dout[0]);
    if (c->need & 1) {
        float *dx = dt_array_data(&c->din[0]);
        for (int64_t i = 0; i < count; i++)
            dx[i] = (float)a->factor * w[i % n] * dy[i];
    }
    if (c->need & 2) {
        float *dw = dt_array_data(&c->din[1]);
        dt_array_zero(&c->din[1]);
        for (int64_t i = 0; i < count; i++)
            dw[i % n] += (float)a->factor * x[i] * dy[i];
    }
    return DT_OK;
}

static dt_status region_body(dt_world *world, void *arg)
{
    (void)arg;
    enum { ROWS = 5, N = 3 };
    place_bench b;
    dt_tensor *x = NULL, *w = NULL, *y = NULL;
    const region_attr attr = {2};
    DT_TRY(place_open(&b, world));
    DT_TRY(place_grad_leaf(&b, DT_SHAPE(ROWS, N), "S(0)@tp", DT_F32, 1, &x));
    DT_TRY(place_grad_leaf(&b, DT_SHAPE(N), "", DT_F32, 2, &w));
    dt_local_map_options o = {.name = "rows",
                              .in = {"S(0)@tp", ""},
                              .nout = 1,
                              .out = {dt_tensor_layout(x)},
                              .grad = {NULL, "P@tp"},
                              .forward = region_forward,
                              .backward = region_backward,
                              .attr = &attr,
                              .attr_bytes = sizeof attr};
    dt_local_map(b.t, &o, 2, (dt_tensor *[]){x, w}, &y);
    DT_TRY(dt_tape_status(b.t));
    float value[ROWS * N];
    DT_TRY(dt_tensor_read_f32_sync(y, value));
    for (int i = 0; i < ROWS * N; i++)
        TEST_THAT((double)value[i] == 2 * place_value(1, i) * place_value(2, i % N) + i / N,
                  "element %d", i);
    dt_world_reset_counts(world);
    DT_TRY(dt_backward(b.t, dt_sum(b.t, y, 0)));
    TEST_THAT(calls(&b) == 0, "nothing moves");
    TEST_THAT(dt_tensor_grad(w)->layout->partial == 1, "as declared");
    const dt_local dw_parts = *dt_tensor_grad(w);
    const dt_layout *r = dt_tensor_layout(w);
    dt_local dw = {0};
    DT_TRY(dt_move(1, &dw_parts, &r, 0, "dw", DT_TAG_GRADIENT, &dw));
    for (int k = 0; k < N; k++) {
        double want = 0;
        for (int i = 0; i < ROWS; i++)
            want += 2 * place_value(1, i * N + k);
        TEST_THAT((double)((float *)dt_array_data(&dw.array))[k] == want, "dw %d", k);
    }
    dt_array_release(&dw.array);
    dt_tape_reset(b.t, NULL);
    /* declarations that cannot be kept */
    dt_mesh *alone = NULL;
    const dt_layout *foreign = NULL;
    DT_TRY(dt_mesh_slice(b.mesh, "", &alone));
    DT_TRY(dt_mesh_layout_text(alone, DT_SHAPE(ROWS, N), "", &foreign));
    struct {
        const char *in, *grad;
        const dt_layout *out;
        dt_status st;
        const char *word;
    } rows[] = {
        {"S(1)@tp", NULL, o.out[0], DT_ERR_PLACEMENT, "the region declares [S(1)@tp]"},
        {"S(0)@tp", "S(1)@tp", o.out[0], DT_ERR_PLACEMENT, "its gradient cannot be [S(1)@tp]"},
        {"S(0)@tp", NULL, NULL, DT_ERR_PLACEMENT, "output 0 needs a layout"},
        {"S(0)@tp", NULL, foreign, DT_ERR_PLACEMENT, "of the inputs' mesh"},
        {"S(0)@pp", NULL, o.out[0], DT_ERR_PLACEMENT, "pp"}};
    for (int i = 0; i < DT_COUNT(rows); i++) {
        o.in[0] = rows[i].in;
        o.grad[0] = rows[i].grad;
        o.out[0] = rows[i].out;
        dt_local_map(b.t, &o, 2, (dt_tensor *[]){x, w}, &y);
        TEST_THAT(dt_tensor_is_failed(y), "row %d", i);
        TEST_FAILS(rows[i].st, rows[i].word, dt_tape_status(b.t));
        dt_tape_reset(b.t, NULL);
    }
    dt_tensor *part = NULL; /* a P tensor's gradient is R */
    DT_TRY(place_grad_leaf(&b, DT_SHAPE(N), "P@tp", DT_F32, 2, &part));
    o.in[0] = "S(0)@tp";
    o.in[1] = "P@tp";
    o.out[0] = dt_tensor_layout(x);
    dt_local_map(b.t, &o, 2, (dt_tensor *[]){x, part}, &y);
    TEST_FAILS(DT_ERR_PLACEMENT, "its gradient cannot be [P@tp]", dt_tape_status(b.t));
    dt_tape_reset(b.t, NULL);
    dt_tensor_destroy(&part);
    o.in[0] = NULL;
    dt_local_map(b.t, &o, 2, (dt_tensor *[]){x, NULL}, &y);
    TEST_FAILS(DT_ERR_ARG, "input 1 of 2 is missing", dt_tape_status(b.t));
    dt_tensor_destroy(&x);
    dt_tensor_destroy(&w);
    place_close(&b);
    return DT_OK;
}

START_TEST(local_regions)
{
    test_ranks(_i, region_body, NULL);
}
END_TEST

/* ---- an op of one's own: y = x^2, and z = a * b summed over k ---- */

static dt_status square_forward(dt_op_call *c)
{
    const float *x = dt_array_data(&c->in[0]);
    float *y = dt_array_data(&c->out[0]);
    for (int64_t i = 0; i < dt_array_count(&c->in[0]); i++)
        y[i] = x[i] * x[i];
    return DT_OK;
}

static dt_status square_backward(dt_op_call *c)
{
    const float *x = dt_array_data(&c->in[0]), *dy = dt_array_data(&c->dout[0]);
    float *dx = dt_array_data(&c->din[0]);
    for (int64_t i = 0; i < dt_array_count(&c->in[0]); i++)
        dx[i] = 2 * x[i] * dy[i];
    return DT_OK;
}

static const dt_op square = {.name = "square",
                             .nin = 1,
                             .nout = 1,
                             .rule = "...->...",
                             .forward = square_forward,
                             .backward = square_backward,
                             .saves = {DT_SAVE_IN(0)}};

static dt_status own_op_body(dt_world *world, void *arg)
{
    (void)arg;
    place_bench b;
    dt_tensor *x = NULL, *p = NULL;
    DT_TRY(place_open(&b, world));
    DT_TRY(dt_op_register(&square));
    DT_TRY(place_grad_leaf(&b, DT_SHAPE(5, 3), "S(0)@tp", DT_F32, 1, &x));
    DT_TRY(place_grad_leaf(&b, DT_SHAPE(5, 3), "P@tp", DT_F32, 1, &p));
    dt_tensor *y = dt_op_apply1(b.t, &square, NULL, x);
    TEST_THAT(dt_tensor_layout(y) == dt_tensor_layout(x), "S passes");
    DT_TRY(dt_backward(b.t, dt_sum(b.t, y, 0)));
    DT_TRY(place_holds(dt_tensor_grad(x), 1, 2, "2 x"));
    dt_tape_reset(b.t, NULL);
    TEST_THAT(dt_tensor_is_failed(dt_op_apply1(b.t, &square, NULL, p)),
              "P does not: a square is not linear");
    TEST_FAILS(DT_ERR_PLACEMENT, "square", dt_tape_status(b.t));
    dt_tensor_destroy(&x);
    dt_tensor_destroy(&p);
    place_close(&b);
    return DT_OK;
}

START_TEST(an_op_of_ones_own)
{
    test_ranks(3, own_op_body, NULL);
}
END_TEST

START_TEST(ops_refused)
{
    struct {
        dt_op op;
        const char *word;
    } rows[] = {
        {{.nin = 1, .nout = 1, .rule = "...->...", .forward = square_forward}, "name"},
        {{.name = "a", .nin = 1, .nout = 1, .forward = square_forward}, "rule"},
        {{.name = "a", .nin = 1, .nout = 1, .rule = "...->..."}, "forward"},
        {{.name = "a", .nin = 0, .nout = 1, .rule = "...->...", .forward = square_forward},
         "0 operands"},
        {{.name = "a", .nin = 9, .nout = 1, .rule = "...->...", .forward = square_forward},
         "9 operands"},
        {{.name = "a", .nin = 1, .nout = 9, .rule = "...->...", .forward = square_forward},
         "9 results"},
        {{.name = "a", .nin = 1, .nout = 1, .rule = "...", .forward = square_forward}, "->"},
        {{.name = "a", .nin = 1, .nout = 1, .rule = "ab,bc->ac", .forward = square_forward},
         "more than 1 operands"},
        {{.name = "a", .nin = 1, .nout = 1, .rule = "a1->a", .forward = square_forward}, "1"},
        {{.name = "a", .nin = 1, .nout = 1, .rule = "ab->ac", .forward = square_forward}, "c"},
        {{.name = "a",
          .nin = 1,
          .nout = 1,
          .rule = "...->...",
          .forward = square_forward,
          .backward = square_backward,
          .saves = {DT_SAVE_IN(1)}},
         "saves[0]"},
        {{.name = "a",
          .nin = 1,
          .nout = 1,
          .rule = "...->...",
          .forward = square_forward,
          .backward = square_backward,
          .saves = {DT_SAVE_OUT(1)}},
         "saves[0]"},
        {{.name = "a",
          .nin = 1,
          .nout = 1,
          .rule = "...->...",
          .forward = square_forward,
          .backward = square_backward,
          .saves = {0, DT_SAVE_IN(0)}},
         "saves[1]"},
        {{.name = "a",
          .nin = 2,
          .nout = 1,
          .rule = "...,...->...",
          .linear = 4,
          .forward = square_forward},
         "linear"},
    };
    for (int i = 0; i < DT_COUNT(rows); i++) {
        ck_assert_msg(dt_op_register(&rows[i].op) == DT_ERR_ARG, "row %d is accepted", i);
        ck_assert_msg(strstr(dt_error_trace(), rows[i].word), "row %d: %s", i, dt_error_trace());
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("local");
    TCase *tc = tcase_create("local");
    tcase_set_timeout(tc, 0);
    tcase_add_loop_test(tc, to_local_and_back, 1, 4);
    tcase_add_test(tc, wrong_layouts);
    tcase_add_loop_test(tc, local_regions, 1, 5);
    tcase_add_test(tc, an_op_of_ones_own);
    tcase_add_test(tc, ops_refused);
    suite_add_tcase(suite, tc);
    return test_main(suite);
}
