/* tests/dtensor/test_ops_nn_dropout.c - dropout: the same bits on every mesh, for every split into
 * microbatches and in a replay; others for another call, step, seed or module. */
#include "array/dt_kernels_nn.h"
#include "dtensor/ops/dt_ops.h"
#include "tests/harness.h"

#include <math.h>
#include <string.h>

enum { BATCH = 5, SEQ = 6, WIDTH = 7, COUNT = BATCH * SEQ * WIDTH };

static const dt_tape_options options = {.seed = 11, .step = 3, .first_sample = 40};
static const double p_drop = 0.25;

/* Leaf of ones; dropout in module "block"; result and gradient of a sum of ones. */
static dt_status run(dt_mesh *mesh, const char *text, int64_t first, int64_t samples, float *y_out,
                     float *dx_out)
{
    dt_tape_options o = options;
    o.first_sample += first;
    float ones[COUNT];
    for (int i = 0; i < COUNT; i++)
        ones[i] = 1;
    dt_tape *tape;
    dt_tensor *x, *g;
    const dt_layout *layout;
    DT_TRY(dt_tape_create(mesh, &o, &tape));
    DT_TRY(dt_mesh_layout_text(mesh, DT_SHAPE(samples, SEQ, WIDTH), text, &layout));
    DT_TRY(dt_distribute(layout, DT_F32, ones, &x));
    dt_tensor_set_requires_grad(x, true);
    dt_tape_enter(tape, "block");
    dt_tensor *y = dt_dropout(tape, x, p_drop);
    dt_tape_leave(tape);
    const dt_local one = {layout, *dt_tensor_local(x)};
    DT_TRY(dt_backward_from(tape, 1, &y, &one));
    TEST_THAT(dt_tape_saved_bytes(tape) == 0, "saves a mask");
    DT_TRY(dt_tensor_read_f32_sync(y, y_out));
    DT_TRY(dt_from_array(dt_tensor_grad(x)->layout, &dt_tensor_grad(x)->array, &g));
    DT_TRY(dt_tensor_read_f32_sync(g, dx_out));
    dt_tensor_destroy(&g);
    dt_tensor_destroy(&x);
    dt_tape_destroy(&tape);
    return DT_OK;
}

typedef struct mesh_case {
    dt_axis axes[3];
    const char *text;
    float want[COUNT];
} mesh_case;

static dt_status mesh_body(dt_world *world, void *arg)
{
    mesh_case *c = arg;
    dt_mesh *mesh;
    dt_mesh_options o = {0};
    float y[COUNT], dx[COUNT];
    memcpy(o.axes, c->axes, sizeof c->axes);
    DT_TRY(dt_mesh_create(world, test_device(world), &o, &mesh));
    DT_TRY(run(mesh, c->text, 0, BATCH, y, dx));
    TEST_THAT(!memcmp(y, c->want, sizeof y), "%s: other bits", c->text);
    TEST_THAT(!memcmp(dx, c->want, sizeof dx), "%s: backward uses another mask", c->text);
    /* In two microbatches. */
    DT_TRY(run(mesh, c->text, 0, 2, y, dx));
    DT_TRY(run(mesh, c->text, 2, BATCH - 2, y + 2 * SEQ * WIDTH, dx));
    TEST_THAT(!memcmp(y, c->want, sizeof y), "%s: other bits in microbatches", c->text);
    dt_mesh_destroy(&mesh);
    return DT_OK;
}

static dt_status one_rank_body(dt_world *world, void *arg)
{
    mesh_case *c = arg;
    dt_mesh *mesh;
    float dx[COUNT];
    DT_TRY(
        dt_mesh_create(world, test_device(world), &(dt_mesh_options){.axes = {{"dp", 1}}}, &mesh));
    DT_TRY(run(mesh, "", 0, BATCH, c->want, dx));
    dt_mesh_destroy(&mesh);
    return DT_OK;
}

START_TEST(test_every_mesh)
{
    static mesh_case cases[] = {{.axes = {{"dp", 2}}, .text = "S(0)@dp"},
                                {.axes = {{"dp", 3}}, .text = "S(0)@dp"},
                                {.axes = {{"tp", 4}}, .text = "S(1)@tp"},
                                {.axes = {{"tp", 4}}, .text = "S(2)@tp"},
                                {.axes = {{"tp", 2}}, .text = ""},
                                {.axes = {{"dp", 2}, {"tp", 2}}, .text = "S(0)@dp, S(2)@tp"},
                                {.axes = {{"dp", 2}, {"tp", 2}}, .text = "S(1)@tp>dp"}};
    static mesh_case one;
    test_ranks(1, one_rank_body, &one);
    int zeros = 0;
    for (int i = 0; i < COUNT; i++) {
        ck_assert(one.want[i] == 0 || one.want[i] == (float)(1 / (1 - p_drop)));
        zeros += one.want[i] == 0;
    }
    ck_assert_int_gt(zeros, COUNT / 6);
    ck_assert_int_lt(zeros, COUNT / 3);
    for (int i = 0; i < DT_COUNT(cases); i++) {
        memcpy(cases[i].want, one.want, sizeof one.want);
        test_ranks(cases[i].axes[0].size * (cases[i].axes[1].name ? cases[i].axes[1].size : 1),
                   mesh_body, &cases[i]);
    }
}
END_TEST

/* y of one dropout on a fresh tape; `skip` dropouts before it in the same call, and `calls` calls
 * with as many before that one. path NULL: in none. */
static dt_status draw(dt_mesh *mesh, const dt_tape_options *o, const char *path, int calls,
                      int skip, double p, float *out)
{
    dt_tape *tape;
    dt_tensor *x;
    const dt_layout *layout;
    DT_TRY(dt_tape_create(mesh, o, &tape));
    DT_TRY(dt_mesh_layout_text(mesh, DT_SHAPE(COUNT), "", &layout));
    DT_TRY(dt_full_value(layout, DT_F32, 1, &x));
    for (int k = 0; k <= calls; k++) {
        if (k > 0)
            dt_tape_leave(tape);
        if (path)
            dt_tape_enter(tape, path);
        for (int i = 0; i < skip; i++)
            (void)dt_dropout(tape, x, 0.5);
    }
    dt_tensor *y = dt_dropout(tape, x, p);
    DT_TRY(dt_tape_status(tape));
    TEST_THAT((p == 0) == (y == x), "p = 0 is x itself");
    memcpy(out, test_look(dt_tensor_local(y)), COUNT * sizeof *out);
    dt_tape_leave(tape);
    dt_tensor_destroy(&x);
    dt_tape_destroy(&tape);
    return DT_OK;
}

static dt_status key_body(dt_world *world, void *arg)
{
    (void)arg;
    dt_mesh *mesh;
    float first[COUNT], once[COUNT], other[COUNT];
    dt_tape_options seed = options, step = options;
    seed.seed++;
    step.step++;
    DT_TRY(
        dt_mesh_create(world, test_device(world), &(dt_mesh_options){.axes = {{"dp", 1}}}, &mesh));
    DT_TRY(draw(mesh, &options, "a", 0, 0, 0.5, first));
    DT_TRY(draw(mesh, &options, "a", 0, 0, 0.5, other));
    TEST_THAT(!memcmp(first, other, sizeof first), "a replay differs");
    DT_TRY(draw(mesh, &options, "b", 0, 0, 0.5, other));
    TEST_THAT(memcmp(first, other, sizeof first), "another module, same bits");
    DT_TRY(draw(mesh, &options, "a", 0, 1, 0.5, other));
    TEST_THAT(memcmp(first, other, sizeof first), "another call, same bits");
    DT_TRY(draw(mesh, &options, "a", 1, 1, 0.5, once));
    DT_TRY(draw(mesh, &options, "a", 0, 2, 0.5, other));
    TEST_THAT(!memcmp(once, other, sizeof once), "two dropouts of two calls are not the third's");
    DT_TRY(draw(mesh, &options, NULL, 0, 0, 0.5, once));
    DT_TRY(draw(mesh, &options, NULL, 0, 1, 0.5, other));
    TEST_THAT(memcmp(once, other, sizeof once), "another call outside of modules, same bits");
    DT_TRY(draw(mesh, &seed, "a", 0, 0, 0.5, other));
    TEST_THAT(memcmp(first, other, sizeof first), "another seed, same bits");
    DT_TRY(draw(mesh, &step, "a", 0, 0, 0.5, other));
    TEST_THAT(memcmp(first, other, sizeof first), "another step, same bits");
    DT_TRY(draw(mesh, &options, "a", 0, 0, 0, other));
    dt_mesh_destroy(&mesh);
    return DT_OK;
}

START_TEST(test_keys)
{
    test_ranks(1, key_body, NULL);
}
END_TEST

static int two_dropouts(dt_tape *t, void *arg, int nin, dt_tensor *const *in, dt_tensor **out)
{
    (void)arg;
    (void)nin;
    out[0] = dt_dropout(t, dt_dropout(t, in[0], 0.1), 0.1);
    return 1;
}

/* Of the sum of x after a dropout, two that may be computed again in backward, and another. */
static dt_status gradient(dt_mesh *mesh, const char *path, bool again, float *out)
{
    dt_tape *t;
    dt_tensor *x, *y = NULL;
    const dt_layout *layout;
    const dt_recomputed part = {.run = two_dropouts};
    DT_TRY(dt_tape_create(mesh, &options, &t));
    DT_TRY(dt_mesh_layout_text(mesh, DT_SHAPE(COUNT), "", &layout));
    DT_TRY(dt_full_value(layout, DT_F32, 1, &x));
    dt_tensor_set_requires_grad(x, true);
    if (path)
        dt_tape_enter(t, path);
    dt_tensor *in = dt_dropout(t, x, 0.1);
    if (again)
        (void)dt_tape_recompute(t, &part, 1, &in, &y);
    else
        (void)two_dropouts(t, NULL, 1, &in, &y);
    DT_TRY(dt_backward(t, dt_sum(t, dt_dropout(t, y, 0.1), 0)));
    memcpy(out, test_look(&dt_tensor_grad(x)->array), COUNT * sizeof *out);
    dt_tensor_destroy(&x);
    dt_tape_destroy(&t);
    return DT_OK;
}

static dt_status again_body(dt_world *world, void *arg)
{
    (void)arg;
    dt_mesh *mesh;
    float plain[COUNT], again[COUNT];
    DT_TRY(
        dt_mesh_create(world, test_device(world), &(dt_mesh_options){.axes = {{"dp", 1}}}, &mesh));
    for (int i = 0; i < 2; i++) {
        DT_TRY(gradient(mesh, i ? "a" : NULL, false, plain));
        DT_TRY(gradient(mesh, i ? "a" : NULL, true, again));
        TEST_THAT(!memcmp(plain, again, sizeof plain), "%s a call: other bits when computed again",
                  i ? "in" : "outside of");
    }
    dt_mesh_destroy(&mesh);
    return DT_OK;
}

START_TEST(test_again)
{
    test_ranks(1, again_body, NULL);
}
END_TEST

/* A block of a tensor, its rows longer than the numbers that are made at once: element by
 * element. */
START_TEST(test_numbers)
{
    enum { ROWS = 4, LONG = 600 };
    static float x[ROWS * LONG], y[ROWS * LONG];
    const dt_dropout_args a = {.dtype = DT_F32,
                               .key = dt_key_make(1, 2, 3),
                               .first_sample = 4,
                               .p = p_drop,
                               .global = DT_SHAPE(5, 3, 1000),
                               .local = DT_SHAPE(2, 2, LONG),
                               .offset = {1, 1, 321}};
    for (int i = 0; i < ROWS * LONG; i++)
        x[i] = (float)(3 * (i + 1));
    dt_nn_kernels_of(DT_CPU)->dropout(&a, x, y);
    for (int i = 0; i < ROWS * LONG; i++) {
        const int sample = 4 + 1 + i / (2 * LONG), row = 1 + i / LONG % 2, column = 321 + i % LONG;
        const float u = dt_uniform(a.key, (uint64_t)((sample * 3 + row) * 1000 + column));
        const float want = (double)u < p_drop ? 0 : (float)(4 * (i + 1));
        ck_assert_msg(fabsf(y[i] - want) <= 1e-6f * want, "element %d: %g, want %g", i,
                      (double)y[i], (double)want);
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("dropout");
    TCase *tc = tcase_create("dropout");
    tcase_add_test(tc, test_every_mesh);
    tcase_add_test(tc, test_keys);
    tcase_add_test(tc, test_again);
    tcase_add_test(tc, test_numbers);
    suite_add_tcase(suite, tc);
    return test_main(suite);
}
