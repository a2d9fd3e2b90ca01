/* tests/gpu/test_optim_step.c - a step of the optimizer is one launch, a global norm two and one
 * wait, however many tensors there are; and both are the cpu's. */
#include "array/cuda/gpu_internal.h"
#include "optim/dt_optim.h"
#include "tests/gpu/gpu_test.h"

#include <math.h>
#include <stdio.h>

enum { PARAMS = 40, MOST = 400 };

static const dt_module_kind bare = {"bare", 0, NULL};

/* What one device makes of it. */
typedef struct outcome {
    double norm, each[PARAMS];
    float w[PARAMS][MOST];
    dti_gpu_counts step, norms;
} outcome;

static int64_t size_of(int k)
{
    return 1 + k * 37 % MOST;
}

static dt_status set_grad(const dt_param *p, int k)
{
    float value[MOST];
    for (int i = 0; i < MOST; i++)
        value[i] = ((float)((i * 7 + k) % 13) - 6.5f) / 8; /* none is 0 */
    dt_local *g = dt_tensor_grad(p->tensor);
    g->layout = p->layout;
    DT_TRY(dt_array_create(dt_mesh_heap(dt_layout_mesh(p->layout)), DT_F32, DT_SHAPE(size_of(k)),
                           DT_TAG_GRADIENT, &g->array));
    DT_TRY(dt_array_write(&g->array, value, size_of(k)));
    return DT_OK;
}

static dti_gpu_counts since(dti_gpu_counts before)
{
    const dti_gpu_counts now = dti_gpu_get_counts();
    return (dti_gpu_counts){now.launches - before.launches, now.waits - before.waits};
}

static dt_status run_on(dt_world *world, dt_device_kind kind, outcome *o)
{
    dt_device device;
    dt_mesh *mesh = NULL;
    dt_module *m = NULL;
    dt_optim *optim = NULL;
    dt_param *p[PARAMS];
    dt_local grads[PARAMS];
    DT_TRY(dt_world_device(world, kind, &device));
    DT_TRY(dt_mesh_create(world, device, &(dt_mesh_options){.axes = {{"x", 1}}}, &mesh));
    DT_TRY(dt_module_create(&bare, &m));
    for (int k = 0; k < PARAMS; k++) {
        char name[16];
        (void)snprintf(name, sizeof name, "w%d", k);
        DT_TRY(dt_module_add_param(m, name, DT_SHAPE(size_of(k)), NULL,
                                   (dt_init){.kind = DT_INIT_ONES}, &p[k]));
    }
    DT_TRY(dt_module_finish(m));
    DT_TRY(dt_module_materialize(m, mesh, 0));
    DT_TRY(dt_adamw_create(m, NULL, &optim));
    for (int k = 0; k < PARAMS; k++) {
        DT_TRY(set_grad(p[k], k));
        grads[k] = *dt_tensor_grad(p[k]->tensor);
    }
    /* The first one makes the workspace. */
    DT_TRY(dt_global_norm_sync(PARAMS, grads, dt_world_comm(world), &o->norm, NULL));
    dti_gpu_counts before = dti_gpu_get_counts();
    DT_TRY(dt_global_norm_sync(PARAMS, grads, dt_world_comm(world), &o->norm, o->each));
    o->norms = since(before);
    before = dti_gpu_get_counts();
    DT_TRY(dt_optim_step(optim, 0.1, 0.5));
    o->step = since(before);
    for (int k = 0; k < PARAMS; k++)
        DT_TRY(dt_array_read(dt_tensor_local(p[k]->tensor), o->w[k], size_of(k)));
    dt_optim_destroy(&optim);
    dt_module_destroy(&m);
    dt_mesh_destroy(&mesh);
    return DT_OK;
}

static dt_status compare(dt_world *world, void *arg)
{
    (void)arg;
    static outcome cpu, gpu;
    DT_TRY(run_on(world, DT_CPU, &cpu));
    DT_TRY(run_on(world, DT_CUDA, &gpu));
    TEST_THAT(fabs(gpu.norm - cpu.norm) <= 1e-12 * cpu.norm, "norm %.17g, not %.17g", gpu.norm,
              cpu.norm);
    for (int k = 0; k < PARAMS; k++) {
        TEST_THAT(fabs(gpu.each[k] - cpu.each[k]) <= 1e-12 * cpu.norm, "norm %d", k);
        for (int64_t i = 0; i < size_of(k); i++)
            TEST_THAT(fabsf(gpu.w[k][i] - cpu.w[k][i]) <= 1e-6f && cpu.w[k][i] != 1,
                      "w%d[%lld]: %g, not %g", k, (long long)i, (double)gpu.w[k][i],
                      (double)cpu.w[k][i]);
    }
    TEST_THAT(gpu.step.launches == 1 && gpu.step.waits == 0, "a step of %d tensors: %lld launches",
              PARAMS, (long long)gpu.step.launches);
    TEST_THAT(gpu.norms.launches == 2 && gpu.norms.waits == 1, "norms: %lld launches, %lld waits",
              (long long)gpu.norms.launches, (long long)gpu.norms.waits);
    return DT_OK;
}

START_TEST(test_step_and_norm)
{
    test_ranks(1, compare, NULL);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("gpu: a step of the optimizer");
    TCase *tc = tcase_create("step");
    tcase_add_test(tc, test_step_and_norm);
    suite_add_tcase(suite, tc);
    return gpu_main(suite);
}
