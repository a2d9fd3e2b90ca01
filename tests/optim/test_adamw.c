/* tests/optim/test_adamw.c - AdamW: PyTorch's goldens, the defaults, decay by file shape, errors
 * that change nothing. Shards and types: tests/optim/test_adamw_shards.c. */
#include "array/dt_half.h"
#include "array/dt_kernels_optim.h"
#include "optim/dt_optim.h"
#include "tests/optim/bare.h"
#include "tests/optim/golden.h"

#include <math.h>

static const char *folder = "tests/golden";

/* ---- goldens ---- */

static dt_status compare(golden *g, const json_t *one, const char *what, int k, dt_array *got)
{
    char role[32];
    float want[GOLDEN_MOST];
    dt_shape shape;
    (void)snprintf(role, sizeof role, "%s_%d", what, k);
    DT_TRY(golden_read(g, one, role, want, &shape));
    const double limit = golden_number(one, "tolerance", role);
    const double worst = test_max_diff(test_look(got), want, dt_shape_count(shape));
    TEST_THAT(limit > 0 && worst <= limit, "%s: differs by %g, limit %g", role, worst, limit);
    return DT_OK;
}

static dt_status golden_step(golden *g, const json_t *one, dt_optim *optim, int k)
{
    int n;
    char role[32];
    float grad[GOLDEN_MOST];
    double wide[GOLDEN_MOST];
    dt_shape shape;
    dt_optim_state *s = dt_optim_states(optim, &n);
    (void)snprintf(role, sizeof role, "grad_%d", k);
    DT_TRY(golden_read(g, one, role, grad, &shape));
    for (int64_t i = 0; i < dt_shape_count(shape); i++)
        wide[i] = 4 * (double)grad[i]; /* undone by the scale, exactly */
    DT_TRY(bare_set_grad(s->param, DT_F32, wide));
    DT_TRY(dt_optim_step(optim, golden_number(one, "attrs", "lr"), 0.25));
    DT_TRY(compare(g, one, "param", k, dt_tensor_local(s->param->tensor)));
    DT_TRY(compare(g, one, "m", k, &s->exp_avg));
    DT_TRY(compare(g, one, "v", k, &s->exp_avg_sq));
    return DT_OK;
}

static dt_status run_golden(golden *g, const json_t *one, dt_mesh *mesh)
{
    float start[GOLDEN_MOST];
    dt_shape shape;
    dt_param *p;
    dt_module *m = NULL;
    dt_optim *optim = NULL;
    DT_TRY(golden_read(g, one, "param_0", start, &shape));
    DT_TRY(dt_module_create(&bare_kind, &m));
    DT_TRY(dt_module_add_param(m, "w", shape, NULL, (dt_init){0}, &p));
    DT_TRY(dt_module_finish(m));
    DT_TRY(dt_module_materialize(m, mesh, 0));
    DT_TRY(dt_array_write(dt_tensor_local(p->tensor), start, dt_shape_count(shape)));
    const dt_adamw_options options = {.beta1 = golden_number(one, "attrs", "beta1"),
                                      .beta2 = golden_number(one, "attrs", "beta2"),
                                      .eps = golden_number(one, "attrs", "eps"),
                                      .weight_decay = golden_number(one, "attrs", "weight_decay")};
    DT_TRY(dt_adamw_create(m, &options, &optim));
    const int steps = (int)golden_number(one, "attrs", "steps");
    for (int k = 1; k <= steps; k++)
        DT_TRY(golden_step(g, one, optim, k));
    TEST_THAT(steps == 3 && dt_optim_steps(optim) == 3, "%d steps", steps);
    dt_optim_destroy(&optim);
    dt_module_destroy(&m);
    return DT_OK;
}

START_TEST(test_goldens)
{
    golden_run(folder, "adamw", run_golden);
}
END_TEST

/* ---- decay by file shape; errors ---- */

static dt_status rules(dt_world *world, void *arg)
{
    (void)arg;
    dt_mesh *mesh = NULL;
    dt_module *m = NULL;
    dt_optim *optim = NULL;
    int n;
    dt_param *weight, *bias, *norm, *frozen;
    const dt_init ones = {.kind = DT_INIT_ONES};
    DT_TRY(bare_mesh(world, 1, 1, &mesh));
    DT_TRY(dt_module_create(&bare_kind, &m));
    DT_TRY(
        dt_module_add_param(m, "weight", DT_SHAPE(2, 3, 2), &(dt_shape){2, {2, 6}}, ones, &weight));
    DT_TRY(dt_module_add_param(m, "bias", DT_SHAPE(3, 2), &(dt_shape){1, {6}}, ones, &bias));
    DT_TRY(dt_module_add_param(m, "norm", DT_SHAPE(4), NULL, ones, &norm));
    DT_TRY(dt_module_add_param(m, "frozen", DT_SHAPE(4, 4), NULL, ones, &frozen));
    frozen->frozen = true;
    DT_TRY(dt_module_finish(m));
    TEST_FAILS(DT_ERR_STATE, "weight", dt_adamw_create(m, NULL, &optim));
    DT_TRY(dt_module_materialize(m, mesh, 0));
    TEST_FAILS(DT_ERR_ARG, "beta1 1", dt_adamw_create(m, &(dt_adamw_options){.beta1 = 1}, &optim));
    DT_TRY(dt_adamw_create(m, &(dt_adamw_options){.weight_decay = 0.5}, &optim));
    (void)dt_optim_states(optim, &n);
    TEST_THAT(n == 3, "%d states: the frozen one has none", n);

    const double zeros[12] = {0};
    DT_TRY(bare_set_grad(weight, DT_F32, zeros));
    DT_TRY(bare_set_grad(norm, DT_F32, zeros));
    TEST_FAILS(DT_ERR_STATE, "bias", dt_optim_step(optim, 0.1, 1));
    const float *w = test_look(dt_tensor_local(weight->tensor));
    TEST_THAT(w[0] == 1 && dt_optim_steps(optim) == 0, "a failed step changed something");
    DT_TRY(bare_set_grad(bias, DT_F32, zeros));
    DT_TRY(dt_optim_step(optim, 0.1, 1));
    const float *b = test_look(dt_tensor_local(bias->tensor));
    const float *c = test_look(dt_tensor_local(norm->tensor));
    const float *f = test_look(dt_tensor_local(frozen->tensor));
    w = test_look(dt_tensor_local(weight->tensor));
    TEST_THAT(fabsf(w[11] - 0.95f) < 1e-7f, "decayed by lr * decay: %g", (double)w[11]);
    TEST_THAT(b[5] == 1 && c[3] == 1 && f[15] == 1, "1-d in files, and frozen: no decay");
    dt_optim_set_steps(optim, 41);
    DT_TRY(dt_optim_step(optim, 0.1, 1));
    TEST_THAT(dt_optim_steps(optim) == 42, "%lld", (long long)dt_optim_steps(optim));
    dt_optim_destroy(&optim);
    dt_module_destroy(&m);
    dt_mesh_destroy(&mesh);
    return DT_OK;
}

static dt_status unreduced(dt_world *world, void *arg)
{
    (void)arg;
    dt_mesh *mesh = NULL;
    dt_module *m = NULL;
    dt_optim *optim = NULL;
    dt_param *p;
    const double zeros[4] = {0};
    DT_TRY(bare_mesh(world, 2, 1, &mesh));
    DT_TRY(dt_module_create(&bare_kind, &m));
    DT_TRY(dt_module_add_param(m, "weight", DT_SHAPE(2, 2), NULL, (dt_init){0}, &p));
    DT_TRY(dt_module_finish(m));
    DT_TRY(dt_module_materialize(m, mesh, 0));
    DT_TRY(dt_adamw_create(m, NULL, &optim));
    DT_TRY(bare_set_grad(p, DT_F32, zeros));
    DT_TRY(dt_mesh_layout_text(mesh, p->shape, "P@x", &dt_tensor_grad(p->tensor)->layout));
    TEST_FAILS(DT_ERR_PLACEMENT, "gradient of weight is [P@x]", dt_optim_step(optim, 0.1, 1));
    dt_optim_destroy(&optim);
    dt_module_destroy(&m);
    dt_mesh_destroy(&mesh);
    return DT_OK;
}

/* Without options: betas 0.9 and 0.95, eps 1e-8, no decay; one gradient is as small as eps. */
static dt_status defaults(dt_world *world, void *arg)
{
    (void)arg;
    static const double grad[2][2] = {{1, 1e-8}, {0.5, 1e-8}};
    dt_mesh *mesh = NULL;
    dt_module *m = NULL;
    dt_optim *optim = NULL;
    dt_param *p;
    double want[2] = {1, 1}, mean[2] = {0}, square[2] = {0};
    DT_TRY(bare_mesh(world, 1, 1, &mesh));
    DT_TRY(dt_module_create(&bare_kind, &m));
    DT_TRY(dt_module_add_param(m, "w", DT_SHAPE(1, 2), NULL, (dt_init){.kind = DT_INIT_ONES}, &p));
    DT_TRY(dt_module_finish(m));
    DT_TRY(dt_module_materialize(m, mesh, 0));
    DT_TRY(dt_adamw_create(m, NULL, &optim));
    for (int k = 0; k < 2; k++) {
        DT_TRY(bare_set_grad(p, DT_F32, grad[k]));
        DT_TRY(dt_optim_step(optim, 0.1, 1));
        const float *w = test_look(dt_tensor_local(p->tensor));
        for (int i = 0; i < 2; i++) {
            mean[i] = 0.9 * mean[i] + 0.1 * grad[k][i];
            square[i] = 0.95 * square[i] + 0.05 * grad[k][i] * grad[k][i];
            want[i] -= 0.1 * (mean[i] / (1 - pow(0.9, k + 1))) /
                       (sqrt(square[i] / (1 - pow(0.95, k + 1))) + 1e-8);
            TEST_THAT(fabs((double)w[i] - want[i]) < 1e-6, "step %d: %g, not %g", k, (double)w[i],
                      want[i]);
        }
    }
    dt_optim_destroy(&optim);
    dt_module_destroy(&m);
    dt_mesh_destroy(&mesh);
    return DT_OK;
}

START_TEST(test_rules)
{
    test_ranks(1, rules, NULL);
    test_ranks(1, defaults, NULL);
    test_ranks(2, unreduced, NULL);
}
END_TEST

/* ---- the kernel ---- */

/* Decay first, by a rate at which that matters: grad 2 3, mean 3.25, square 12, step (3.25 / 0.5) /
 * (sqrt(12 / 0.75) + 1) = 1.3, w = 2 (1 - 0.25) - 0.5 1.3. */
START_TEST(test_by_hand)
{
    double wide[] = {3, 2, 0.5, 4};
    float narrow[] = {3, 2, 0.5, 4};
    dt_adamw_args a = {.n = 1,
                       .lr = 0.5,
                       .beta1 = 0.5,
                       .beta2 = 0.75,
                       .eps = 1,
                       .decay = 0.5,
                       .grad_scale = 2,
                       .correction1 = 0.5,
                       .correction2 = 0.75};
    a.dtype = a.grad_dtype = DT_F64;
    a.g = &wide[0], a.w = &wide[1], a.m = &wide[2], a.v = &wide[3];
    dt_optim_kernels_of(DT_CPU)->adamw(1, &a);
    a.dtype = a.grad_dtype = DT_F32;
    a.g = &narrow[0], a.w = &narrow[1], a.m = &narrow[2], a.v = &narrow[3];
    dt_optim_kernels_of(DT_CPU)->adamw(1, &a);
    ck_assert_double_eq_tol(wide[1], 0.85, 1e-15);
    ck_assert_double_eq_tol((double)narrow[1], 0.85, 1e-7);
    ck_assert(wide[2] == 3.25 && wide[3] == 12 && narrow[2] == 3.25f && narrow[3] == 12);
}
END_TEST

/* A tensor longer than what is widened and rounded at once: the same as its elements one by one. */
START_TEST(test_long_runs)
{
    enum { N = 2500 };
    static const dt_dtype of_grad[] = {DT_F32, DT_BF16, DT_F16};
    static float g[N], narrow[N], w[2][N], m[2][N], v[2][N];
    static uint16_t rounded[2][N];
    const dt_dtype dtype = of_grad[_i], to = _i == 1 ? DT_F16 : DT_BF16;
    for (int i = 0; i < N; i++) {
        g[i] = (float)(i % 37 - 18) / 64;
        w[0][i] = w[1][i] = (float)(i % 101) / 100;
        m[0][i] = m[1][i] = (float)(i % 13) / 1000;
        v[0][i] = v[1][i] = (float)(i % 17) / 1000;
    }
    dt_store_f32(dtype, g, narrow, N);
    const dt_adamw_args options = {.grad_dtype = dtype,
                                   .n = N,
                                   .lr = 0.01,
                                   .beta1 = 0.9,
                                   .beta2 = 0.95,
                                   .eps = 1e-8,
                                   .decay = 0.1,
                                   .grad_scale = 0.5,
                                   .correction1 = 0.1,
                                   .correction2 = 0.05,
                                   .g = narrow,
                                   .w = w[0],
                                   .m = m[0],
                                   .v = v[0],
                                   .rounded = rounded[0],
                                   .rounded_dtype = to};
    dt_optim_kernels_of(DT_CPU)->adamw(1, &options);
    for (int i = 0; i < N; i++) {
        dt_adamw_args one = options;
        one.n = 1;
        one.g = (const char *)(const void *)narrow + (size_t)i * dt_dtype_size(dtype);
        one.w = &w[1][i], one.m = &m[1][i], one.v = &v[1][i], one.rounded = &rounded[1][i];
        dt_optim_kernels_of(DT_CPU)->adamw(1, &one);
    }
    ck_assert_mem_eq(w[0], w[1], sizeof w[0]);
    ck_assert_mem_eq(m[0], m[1], sizeof m[0]);
    ck_assert_mem_eq(v[0], v[1], sizeof v[0]);
    ck_assert_mem_eq(rounded[0], rounded[1], sizeof rounded[0]);
}
END_TEST

int main(int argc, char **argv)
{
    if (argc > 1)
        folder = argv[1];
    Suite *suite = suite_create("adamw");
    TCase *tc = tcase_create("adamw");
    tcase_set_timeout(tc, 60);
    tcase_add_test(tc, test_goldens);
    tcase_add_test(tc, test_rules);
    tcase_add_test(tc, test_by_hand);
    tcase_add_loop_test(tc, test_long_runs, 0, 3);
    suite_add_tcase(suite, tc);
    return test_main(suite);
}
