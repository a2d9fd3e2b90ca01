/* tests/optim/test_adamw.c - AdamW: PyTorch's goldens, the formula in double, shards against the
 * whole, types, decay by file shape, errors that change nothing. */
#include "optim/dt_optim.h"
#include "tests/optim/golden.h"

#include <math.h>
#include <stdlib.h>

static const char *folder = "tests/golden";

/* ---- a module of bare parameters ---- */

static const dt_module_kind kind = {"bare", 0, NULL};

static dt_status make_mesh(dt_world *world, int a, int b, dt_mesh **mesh_out)
{
    const dt_mesh_options options = {.axes = {{"x", a}, {"y", b}}};
    return dt_mesh_create(world, (dt_device){DT_CPU, 0}, &options, mesh_out);
}

/* This rank's part of `whole`, in the tensor's dtype, as its value or as its gradient. */
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

static dt_status set_value(const dt_param *p, const double *whole)
{
    dt_array part = {0};
    DT_TRY(set_part(p, p->dtype, whole, &part));
    dt_array_copy(dt_tensor_local(p->tensor), &part);
    dt_array_release(&part);
    return DT_OK;
}

static dt_status set_grad(const dt_param *p, dt_dtype dtype, const double *whole)
{
    dt_local *g = dt_tensor_grad(p->tensor);
    g->layout = p->layout;
    return set_part(p, dtype, whole, &g->array);
}

/* A parameter's start and gradients: any values, of both signs and all sizes. */
static double sample(int which, int64_t i)
{
    return sin(0.7 * (double)i + 1.3 * which) * pow(10, (double)((i + which) % 5) - 3);
}

static void samples(int which, int64_t n, double *out)
{
    for (int64_t i = 0; i < n; i++)
        out[i] = sample(which, i);
}

/* ---- goldens ---- */

static dt_status compare(golden *g, const json_t *one, const char *what, int k, dt_array *got)
{
    char role[32];
    float want[GOLDEN_MOST];
    dt_shape shape;
    (void)snprintf(role, sizeof role, "%s_%d", what, k);
    DT_TRY(golden_read(g, one, role, want, &shape));
    const double limit = golden_number(one, "tolerance", role);
    const double worst = test_max_diff(dt_array_data(got), want, dt_shape_count(shape));
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
    DT_TRY(set_grad(s->param, DT_F32, wide));
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
    DT_TRY(dt_module_create(&kind, &m));
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

static dt_status goldens(dt_world *world, void *arg)
{
    golden *g = arg;
    dt_mesh *mesh = NULL;
    json_t *one;
    size_t i;
    int seen = 0;
    DT_TRY(make_mesh(world, 1, 1, &mesh));
    json_array_foreach(json_object_get(g->cases, "ops"), i, one)
    {
        if (strcmp(json_string_value(json_object_get(one, "op")), "adamw") != 0)
            continue;
        DT_TRY(run_golden(g, one, mesh));
        seen++;
    }
    TEST_THAT(seen == 2, "%d cases", seen);
    dt_mesh_destroy(&mesh);
    return DT_OK;
}

START_TEST(test_goldens)
{
    golden g;
    golden_open(&g, folder);
    test_ranks(1, goldens, &g);
    golden_close(&g);
}
END_TEST

/* ---- shards against the whole, against the formula ---- */

enum { ROWS = 7, COLUMNS = 5, COUNT = ROWS * COLUMNS, STEPS = 3 };

static const double beta1 = 0.8, beta2 = 0.9, eps = 1e-6, decay = 0.1, lr = 0.03;

/* The formula of the golden README, in double. */
static void formula(double *w)
{
    double m[COUNT] = {0}, v[COUNT] = {0};
    for (int k = 1; k <= STEPS; k++) {
        for (int i = 0; i < COUNT; i++) {
            const double g = sample(k, i);
            m[i] = beta1 * m[i] + (1 - beta1) * g;
            v[i] = beta2 * v[i] + (1 - beta2) * g * g;
            w[i] = w[i] - lr * decay * w[i] -
                   lr * (m[i] / (1 - pow(beta1, k))) / (sqrt(v[i] / (1 - pow(beta2, k))) + eps);
        }
    }
}

/* Each layout's parameter after STEPS steps equals the first one's (all R) bit for bit. */
static const char *const layouts[] = {"",         "S(0)@x",   "S(0)@y",        "S(1)@x",
                                      "S(0)@x>y", "S(0)@y>x", "S(0)@x, S(1)@y"};

static dt_status make_model(dt_mesh *mesh, dt_dtype dtype, dt_module **m_out)
{
    dt_param *p;
    DT_TRY(dt_module_create(&kind, m_out));
    for (int i = 0; i < DT_COUNT(layouts); i++) {
        char name[8];
        (void)snprintf(name, sizeof name, "w%d", i);
        DT_TRY(dt_module_add_param(*m_out, name, DT_SHAPE(ROWS, COLUMNS), NULL, (dt_init){0}, &p));
        p->dtype = dtype;
    }
    DT_TRY(dt_module_finish(*m_out));
    for (int i = 0; i < DT_COUNT(layouts); i++) {
        char name[8];
        (void)snprintf(name, sizeof name, "w%d", i);
        DT_TRY(dt_module_place(*m_out, mesh, name, layouts[i]));
    }
    DT_TRY(dt_module_materialize(*m_out, mesh, 0));
    return DT_OK;
}

static dt_status train(dt_module *m, dt_dtype grad_dtype, dt_optim **optim_out)
{
    int n;
    double values[COUNT];
    dt_param *const *p = dt_module_params(m, &n);
    samples(0, COUNT, values);
    for (int i = 0; i < n; i++)
        DT_TRY(set_value(p[i], values));
    DT_TRY(dt_adamw_create(m, &(dt_adamw_options){beta1, beta2, eps, decay, NULL}, optim_out));
    for (int k = 1; k <= STEPS; k++) {
        samples(k, COUNT, values);
        for (int i = 0; i < n; i++)
            DT_TRY(set_grad(p[i], grad_dtype, values));
        DT_TRY(dt_optim_step(*optim_out, lr, 1.0));
    }
    return DT_OK;
}

static dt_status shards(dt_world *world, void *arg)
{
    const int *sizes = arg;
    dt_mesh *mesh = NULL;
    dt_module *m = NULL;
    dt_optim *optim = NULL;
    float first[COUNT], got[COUNT];
    double want[COUNT];
    int n;
    DT_TRY(make_mesh(world, sizes[0], sizes[1], &mesh));
    DT_TRY(make_model(mesh, DT_F32, &m));
    DT_TRY(train(m, DT_F32, &optim));
    dt_param *const *p = dt_module_params(m, &n);
    DT_TRY(dt_tensor_read_f32_sync(p[0]->tensor, first));
    samples(0, COUNT, want);
    for (int i = 0; i < COUNT; i++)
        want[i] = (double)(float)want[i];
    formula(want);
    for (int i = 0; i < COUNT; i++)
        TEST_THAT(fabs((double)first[i] - want[i]) <= 1e-6 * fmax(1, fabs(want[i])),
                  "element %d is %.9g, the formula gives %.9g", i, (double)first[i], want[i]);
    int64_t local = 0;
    for (int i = 0; i < n; i++) {
        DT_TRY(dt_tensor_read_f32_sync(p[i]->tensor, got));
        TEST_THAT(memcmp(got, first, sizeof got) == 0, "layout '%s' is not as R", layouts[i]);
        local += dt_array_count(dt_tensor_local(p[i]->tensor));
    }
    const int64_t bytes = dt_heap_get_stats(dt_mesh_heap(mesh)).live[DT_TAG_OPTIMIZER];
    TEST_THAT(bytes == 8 * local, "%lld bytes of state for %lld elements", (long long)bytes,
              (long long)local);
    dt_optim_destroy(&optim);
    dt_module_destroy(&m);
    dt_mesh_destroy(&mesh);
    return DT_OK;
}

START_TEST(test_shards)
{
    static int meshes[][2] = {{1, 1}, {2, 1}, {3, 1}, {1, 4}, {2, 2}, {8, 1}};
    for (int i = 0; i < DT_COUNT(meshes); i++)
        test_ranks(meshes[i][0] * meshes[i][1], shards, meshes[i]);
}
END_TEST

/* ---- types ---- */

static dt_status types(dt_world *world, void *arg)
{
    (void)arg;
    static const struct {
        dt_dtype param, grad;
    } pairs[] = {{DT_BF16, DT_BF16}, {DT_BF16, DT_F32}, {DT_F16, DT_F16}, {DT_F32, DT_BF16}};
    dt_mesh *mesh = NULL;
    DT_TRY(make_mesh(world, 1, 1, &mesh));
    for (int i = 0; i < DT_COUNT(pairs); i++) {
        dt_module *m = NULL;
        dt_optim *optim = NULL;
        int n;
        DT_TRY(make_model(mesh, pairs[i].param, &m));
        DT_TRY(train(m, pairs[i].grad, &optim));
        const dt_optim_state *s = dt_optim_states(optim, &n);
        double want[COUNT];
        samples(0, COUNT, want);
        formula(want);
        float got[COUNT];
        DT_TRY(dt_tensor_read_f32_sync(s->param->tensor, got));
        for (int j = 0; j < COUNT; j++)
            TEST_THAT(fabs((double)got[j] - want[j]) <= 8e-3 * (fabs(want[j]) + STEPS * lr),
                      "%d: %d", i, j);
        TEST_THAT((s->master.storage != NULL) == (pairs[i].param != DT_F32), "%d", i);
        if (s->master.storage) { /* the parameter is the master, rounded once */
            dt_array round = {0};
            DT_TRY(dt_array_create(dt_mesh_heap(mesh), pairs[i].param, DT_SHAPE(ROWS, COLUMNS),
                                   DT_TAG_WORKSPACE, &round));
            dt_array_cast(&round, &s->master);
            TEST_THAT(memcmp(dt_array_data(&round),
                             dt_array_data(dt_tensor_local(s->param->tensor)),
                             dt_array_bytes(&round)) == 0,
                      "%d", i);
            dt_array_release(&round);
        }
        dt_optim_destroy(&optim);
        dt_module_destroy(&m);
    }
    dt_mesh_destroy(&mesh);
    return DT_OK;
}

static dt_status doubles(dt_world *world, void *arg)
{
    (void)arg;
    dt_mesh *mesh = NULL;
    dt_module *m = NULL;
    dt_optim *optim = NULL;
    double want[COUNT], got[COUNT];
    int n;
    DT_TRY(make_mesh(world, 1, 1, &mesh));
    DT_TRY(make_model(mesh, DT_F64, &m));
    DT_TRY(train(m, DT_F64, &optim));
    DT_TRY(dt_tensor_read_sync(dt_module_params(m, &n)[0]->tensor, got));
    samples(0, COUNT, want);
    formula(want);
    for (int i = 0; i < COUNT; i++)
        TEST_THAT(fabs(got[i] - want[i]) <= 1e-14 * fmax(1, fabs(want[i])), "%d", i);
    dt_optim_destroy(&optim);
    dt_module_destroy(&m);
    dt_mesh_destroy(&mesh);
    return DT_OK;
}

/* A small step that bf16 would lose is kept in the master, and shows after enough of them. */
static dt_status small_steps(dt_world *world, void *arg)
{
    (void)arg;
    dt_mesh *mesh = NULL;
    dt_module *m = NULL;
    dt_optim *optim = NULL;
    int n;
    double one[COUNT];
    float got[COUNT];
    DT_TRY(make_mesh(world, 1, 1, &mesh));
    DT_TRY(make_model(mesh, DT_BF16, &m));
    for (int i = 0; i < COUNT; i++)
        one[i] = 1;
    dt_param *const *p = dt_module_params(m, &n);
    for (int i = 0; i < n; i++)
        DT_TRY(set_value(p[i], one));
    DT_TRY(dt_adamw_create(m, NULL, &optim));
    for (int k = 0; k < 100; k++) {
        for (int i = 0; i < n; i++)
            DT_TRY(set_grad(p[i], DT_BF16, one));
        DT_TRY(dt_optim_step(optim, 1e-4, 1.0)); /* a constant gradient: steps of lr */
    }
    DT_TRY(dt_tensor_read_f32_sync(p[0]->tensor, got));
    TEST_THAT(fabs((double)got[0] - 0.99) <= 2e-3, "is %g", (double)got[0]);
    dt_optim_destroy(&optim);
    dt_module_destroy(&m);
    dt_mesh_destroy(&mesh);
    return DT_OK;
}

START_TEST(test_types)
{
    test_ranks(1, types, NULL);
    test_ranks(1, doubles, NULL);
    test_ranks(1, small_steps, NULL);
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
    DT_TRY(make_mesh(world, 1, 1, &mesh));
    DT_TRY(dt_module_create(&kind, &m));
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
    DT_TRY(set_grad(weight, DT_F32, zeros));
    DT_TRY(set_grad(norm, DT_F32, zeros));
    TEST_FAILS(DT_ERR_STATE, "bias", dt_optim_step(optim, 0.1, 1));
    const float *w = dt_array_data(dt_tensor_local(weight->tensor));
    TEST_THAT(w[0] == 1 && dt_optim_steps(optim) == 0, "a failed step changed something");
    DT_TRY(set_grad(bias, DT_F32, zeros));
    DT_TRY(dt_optim_step(optim, 0.1, 1));
    const float *b = dt_array_data(dt_tensor_local(bias->tensor));
    const float *c = dt_array_data(dt_tensor_local(norm->tensor));
    const float *f = dt_array_data(dt_tensor_local(frozen->tensor));
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
    DT_TRY(make_mesh(world, 2, 1, &mesh));
    DT_TRY(dt_module_create(&kind, &m));
    DT_TRY(dt_module_add_param(m, "weight", DT_SHAPE(2, 2), NULL, (dt_init){0}, &p));
    DT_TRY(dt_module_finish(m));
    DT_TRY(dt_module_materialize(m, mesh, 0));
    DT_TRY(dt_adamw_create(m, NULL, &optim));
    DT_TRY(set_grad(p, DT_F32, zeros));
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
    DT_TRY(make_mesh(world, 1, 1, &mesh));
    DT_TRY(dt_module_create(&kind, &m));
    DT_TRY(dt_module_add_param(m, "w", DT_SHAPE(1, 2), NULL, (dt_init){.kind = DT_INIT_ONES}, &p));
    DT_TRY(dt_module_finish(m));
    DT_TRY(dt_module_materialize(m, mesh, 0));
    DT_TRY(dt_adamw_create(m, NULL, &optim));
    const float *w = dt_array_data(dt_tensor_local(p->tensor));
    for (int k = 0; k < 2; k++) {
        DT_TRY(set_grad(p, DT_F32, grad[k]));
        DT_TRY(dt_optim_step(optim, 0.1, 1));
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

int main(int argc, char **argv)
{
    if (argc > 1)
        folder = argv[1];
    Suite *suite = suite_create("adamw");
    TCase *tc = tcase_create("adamw");
    tcase_set_timeout(tc, 60);
    tcase_add_test(tc, test_goldens);
    tcase_add_test(tc, test_shards);
    tcase_add_test(tc, test_types);
    tcase_add_test(tc, test_rules);
    suite_add_tcase(suite, tc);
    return test_main(suite);
}
