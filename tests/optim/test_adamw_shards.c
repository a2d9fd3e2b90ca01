/* tests/optim/test_adamw_shards.c - AdamW: shards against the whole and against the formula in
 * double; every type of parameter and gradient. */
#include "optim/dt_optim.h"
#include "tests/optim/bare.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

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
    DT_TRY(dt_module_create(&bare_kind, m_out));
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
        DT_TRY(bare_set_value(p[i], values));
    DT_TRY(dt_adamw_create(m, &(dt_adamw_options){beta1, beta2, eps, decay, NULL}, optim_out));
    for (int k = 1; k <= STEPS; k++) {
        samples(k, COUNT, values);
        for (int i = 0; i < n; i++)
            DT_TRY(bare_set_grad(p[i], grad_dtype, values));
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
    DT_TRY(bare_mesh(world, sizes[0], sizes[1], &mesh));
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
    DT_TRY(bare_mesh(world, 1, 1, &mesh));
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
            TEST_THAT(memcmp(test_look(&round), test_look(dt_tensor_local(s->param->tensor)),
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
    DT_TRY(bare_mesh(world, 1, 1, &mesh));
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
    DT_TRY(bare_mesh(world, 1, 1, &mesh));
    DT_TRY(make_model(mesh, DT_BF16, &m));
    for (int i = 0; i < COUNT; i++)
        one[i] = 1;
    dt_param *const *p = dt_module_params(m, &n);
    for (int i = 0; i < n; i++)
        DT_TRY(bare_set_value(p[i], one));
    DT_TRY(dt_adamw_create(m, NULL, &optim));
    for (int k = 0; k < 100; k++) {
        for (int i = 0; i < n; i++)
            DT_TRY(bare_set_grad(p[i], DT_BF16, one));
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

int main(void)
{
    Suite *suite = suite_create("adamw: shards and types");
    TCase *tc = tcase_create("shards");
    tcase_set_timeout(tc, 60);
    tcase_add_test(tc, test_shards);
    tcase_add_test(tc, test_types);
    suite_add_tcase(suite, tc);
    return test_main(suite);
}
