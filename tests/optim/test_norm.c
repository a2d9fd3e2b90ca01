/* tests/optim/test_norm.c - the global norm: PyTorch's goldens, every placement against the sum
 * over the whole; the clip factor. */
#include "array/dt_half.h"
#include "array/dt_kernels_optim.h"
#include "optim/dt_optim.h"
#include "tests/optim/bare.h"
#include "tests/optim/golden.h"

#include <math.h>

static const char *folder = "tests/golden";

/* ---- goldens ---- */

static dt_status run_golden(golden *g, const json_t *one, dt_mesh *mesh)
{
    static const char *const grads[] = {"grad_0", "grad_1"}, *const clipped[] = {"clipped_0",
                                                                                 "clipped_1"};
    float value[2][GOLDEN_MOST], want[GOLDEN_MOST];
    dt_local locals[2];
    dt_storage host[2];
    dt_shape shape;
    double norm;
    for (int i = 0; i < 2; i++) {
        DT_TRY(golden_read(g, one, grads[i], value[i], &shape));
        host[i] =
            (dt_storage){.heap = g->heap, .data = value[i], .bytes = sizeof value[i], .refs = 1};
        DT_TRY(dt_mesh_layout_text(mesh, shape, "", &locals[i].layout));
        locals[i].array = (dt_array){&host[i], 0, shape, DT_F32};
    }
    DT_TRY(dt_global_norm_sync(2, locals, dt_world_comm(dt_mesh_world(mesh)), &norm, NULL));
    DT_TRY(golden_read(g, one, "norm", want, &shape));
    TEST_THAT(fabs(norm - (double)want[0]) <= golden_number(one, "tolerance", "norm"), "%g %g",
              norm, (double)want[0]);
    const double factor = dt_clip_factor(norm, golden_number(one, "attrs", "max_norm"));
    for (int i = 0; i < 2; i++) {
        const int64_t n = dt_array_count(&locals[i].array);
        dt_array_scale(&locals[i].array, factor);
        DT_TRY(golden_read(g, one, clipped[i], want, &shape));
        const double worst = test_max_diff(value[i], want, n);
        TEST_THAT(worst <= golden_number(one, "tolerance", clipped[i]), "%s: %g", clipped[i],
                  worst);
    }
    return DT_OK;
}

START_TEST(test_goldens)
{
    golden_run(folder, "clip_grad_norm", run_golden);
}
END_TEST

/* ---- every placement ---- */

enum { MOST = 400 };

static const struct {
    dt_shape shape;
    dt_dtype dtype;
    const char *layout;
} tensors[] = {
    {{2, {7, 5}}, DT_F32, ""},
    {{2, {7, 5}}, DT_F32, "S(0)@x"},
    {{2, {7, 5}}, DT_F32, "S(1)@y"},
    {{2, {7, 5}}, DT_F32, "S(0)@x>y"},
    {{2, {5, 7}}, DT_F32, "S(0)@y, S(1)@x"},
    {{1, {2}}, DT_F32, "S(0)@y>x"}, /* fewer elements than ranks: empty shards */
    {{1, {0}}, DT_F32, "S(0)@x"},
    {{0}, DT_F64, ""},
    {{2, {20, 20}}, DT_F64, "S(1)@x>y"},
    {{2, {13, 9}}, DT_BF16, "S(0)@x"},
    {{1, {31}}, DT_F16, ""},
};

static double sample(int which, int64_t i)
{
    return ldexp((double)((i * 7 + which) % 13) - 6, -(int)(i % 4)); /* exact in every type */
}

static dt_status make(int which, dt_mesh *mesh, dt_tensor **out)
{
    double whole[MOST];
    const int64_t n = dt_shape_count(tensors[which].shape);
    const dt_layout *layout;
    dt_tensor *wide = NULL;
    for (int64_t i = 0; i < n; i++)
        whole[i] = sample(which, i);
    DT_TRY(dt_mesh_layout_text(mesh, tensors[which].shape, tensors[which].layout, &layout));
    DT_TRY(dt_distribute(layout, DT_F64, whole, &wide));
    DT_TRY(dt_tensor_create(layout, tensors[which].dtype, DT_TAG_GRADIENT, out));
    dt_array_cast(dt_tensor_local(*out), dt_tensor_local(wide));
    dt_tensor_destroy(&wide);
    return DT_OK;
}

/* 1, 3 and infinity, over the whole and of each; a NaN is not lost. */
static dt_status orders(dt_local locals[], dt_comm *comm)
{
    enum { N = DT_COUNT(tensors) };
    static const double order[] = {1, 3, INFINITY};
    double norm, each[N];
    for (int k = 0; k < DT_COUNT(order); k++) {
        double total = 0;
        DT_TRY(dt_global_norm_of_order_sync(order[k], N, locals, comm, &norm, each));
        for (int i = 0; i < N; i++) {
            double sum = 0;
            for (int64_t j = 0; j < dt_shape_count(tensors[i].shape); j++)
                sum = k == 2 ? fmax(sum, fabs(sample(i, j)))
                             : sum + pow(fabs(sample(i, j)), order[k]);
            total = k == 2 ? fmax(total, sum) : total + sum;
            sum = k == 2 ? sum : pow(sum, 1 / order[k]);
            TEST_THAT(fabs(each[i] - sum) <= 1e-12 * sum, "%d, order %g: %.17g, want %.17g", i,
                      order[k], each[i], sum);
        }
        total = k == 2 ? total : pow(total, 1 / order[k]);
        TEST_THAT(fabs(norm - total) <= 1e-12 * total, "order %g: %.17g, want %.17g", order[k],
                  norm, total);
    }
    const dt_array *last = &locals[N - 1].array; /* f16, on all ranks alike */
    dt_array element = {last->storage, last->offset + 30, DT_SHAPE(1), DT_F16};
    const uint16_t nan = 0x7e00, kept = ((const uint16_t *)test_look(last))[30];
    DT_TRY(dt_array_write(&element, &nan, 1));
    DT_TRY(dt_global_norm_of_order_sync(INFINITY, N, locals, comm, &norm, NULL));
    DT_TRY(dt_array_write(&element, &kept, 1));
    TEST_THAT(isnan(norm), "a NaN is lost: %g", norm);
    TEST_FAILS(DT_ERR_ARG, "above 0",
               dt_global_norm_of_order_sync(0, N, locals, comm, &norm, NULL));
    return DT_OK;
}

static dt_status placements(dt_world *world, void *arg)
{
    enum { N = DT_COUNT(tensors) };
    const int *sizes = arg;
    dt_mesh *mesh = NULL;
    dt_tensor *x[N];
    dt_local locals[N + 1] = {{0}}; /* the last: a tensor of another stage */
    double norm, each[N + 1], total = 0;
    DT_TRY(bare_mesh(world, sizes[0], sizes[1], &mesh));
    for (int i = 0; i < N; i++) {
        DT_TRY(make(i, mesh, &x[i]));
        locals[i] = (dt_local){dt_tensor_layout(x[i]), *dt_tensor_local(x[i])};
    }
    DT_TRY(dt_global_norm_sync(N + 1, locals, dt_world_comm(world), &norm, each));
    for (int i = 0; i < N; i++) {
        double sum = 0;
        for (int64_t j = 0; j < dt_shape_count(tensors[i].shape); j++)
            sum += sample(i, j) * sample(i, j);
        TEST_THAT(fabs(each[i] - sqrt(sum)) <= 1e-12 * sqrt(sum), "%d %s: %.17g, want %.17g", i,
                  tensors[i].layout, each[i], sqrt(sum));
        total += sum;
    }
    TEST_THAT(each[N] == 0 && fabs(norm - sqrt(total)) <= 1e-12 * norm, "%.17g", norm);
    DT_TRY(orders(locals, dt_world_comm(world)));
    DT_TRY(dt_global_norm_sync(0, NULL, dt_world_comm(world), &norm, NULL));
    TEST_THAT(norm == 0, "of nothing: %g", norm);

    DT_TRY(dt_mesh_layout_text(mesh, tensors[0].shape, "P@x", &locals[0].layout));
    if (sizes[0] > 1)
        TEST_FAILS(DT_ERR_PLACEMENT, "P@x",
                   dt_global_norm_sync(1, locals, dt_world_comm(world), &norm, NULL));
    else /* a sum over one rank is its value */
        DT_TRY(dt_global_norm_sync(1, locals, dt_world_comm(world), &norm, NULL));
    TEST_THAT(sizes[0] > 1 || fabs(norm - each[0]) <= 1e-12 * norm, "%g", norm);
    for (int i = 0; i < N; i++)
        dt_tensor_destroy(&x[i]);
    dt_mesh_destroy(&mesh);
    return DT_OK;
}

START_TEST(test_placements)
{
    static int meshes[][2] = {{1, 1}, {2, 1}, {3, 1}, {4, 1}, {1, 4}, {2, 2}};
    for (int i = 0; i < DT_COUNT(meshes); i++)
        test_ranks(meshes[i][0] * meshes[i][1], placements, meshes[i]);
}
END_TEST

/* A sum that f32 could not hold: 2^28 would swallow the ones. And any number of threads, one
 * result. */
static dt_status wide(dt_world *world, void *arg)
{
    (void)arg;
    enum { N = 300001 };
    dt_mesh *mesh = NULL;
    const dt_layout *layout;
    dt_tensor *x = NULL;
    double norm, again;
    DT_TRY(bare_mesh(world, 1, 1, &mesh));
    DT_TRY(dt_mesh_layout_text(mesh, DT_SHAPE(N), "", &layout));
    DT_TRY(dt_full_value(layout, DT_F32, 1.0, &x));
    dt_array first = dt_array_rows(dt_tensor_local(x), 0, 1);
    DT_TRY(dt_array_write(&first, &(float){16384}, 1)); /* 2^28 */
    dt_array_release(&first);
    const dt_local local = {layout, *dt_tensor_local(x)};
    DT_TRY(dt_global_norm_sync(1, &local, dt_world_comm(world), &norm, NULL));
    TEST_THAT(fabs(norm - sqrt(268435456.0 + N - 1)) <= 1e-12 * norm, "%.17g", norm);
    const int threads = dt_compute_threads_get();
    for (int n = 1; n <= 3; n++) {
        dt_compute_threads_set(n);
        DT_TRY(dt_global_norm_sync(1, &local, dt_world_comm(world), &again, NULL));
        TEST_THAT(norm == again, "%d threads: %.17g, not %.17g", n, again, norm);
    }
    dt_compute_threads_set(threads);
    dt_tensor_destroy(&x);
    dt_mesh_destroy(&mesh);
    return DT_OK;
}

START_TEST(test_wide)
{
    test_ranks(1, wide, NULL);
}
END_TEST

/* Every length, whatever is left over by vectors and blocks. */
START_TEST(test_lengths)
{
    enum { MOST_LENGTH = 4500 };
    static float x[MOST_LENGTH];
    const dt_optim_kernels *kernels = dt_optim_kernels_of(DT_CPU);
    double sum = 0, sizes = 0;
    for (int n = 0; n < MOST_LENGTH; n++) {
        double got[3];
        static const double power[] = {2, 1, INFINITY};
        for (int p = 0; p < 3; p++)
            kernels->power_sum(1, &(dt_power_args){DT_F32, n, x, &got[p]}, power[p]);
        ck_assert_double_eq(got[0], sum); /* integers: exact */
        ck_assert_double_eq(got[1], sizes);
        ck_assert_double_eq(got[2], n ? 5 : 0);
        x[n] = (float)(n % 11 - 5);
        sum += (double)x[n] * (double)x[n];
        sizes += fabs((double)x[n]);
    }
}
END_TEST

/* Of 16 bits: blocks longer than what is widened at once. */
START_TEST(test_long_halves)
{
    enum { N = 300001 };
    static const dt_dtype dtype[] = {DT_BF16, DT_F16};
    static float x[N];
    static uint16_t half[N];
    double want = 0, got = 0;
    for (int i = 0; i < N; i++) {
        x[i] = (float)(i / 500 % 9);
        want += (double)x[i] * (double)x[i];
    }
    for (int d = 0; d < DT_COUNT(dtype); d++) {
        dt_store_f32(dtype[d], x, half, N);
        dt_optim_kernels_of(DT_CPU)->power_sum(1, &(dt_power_args){dtype[d], N, half, &got}, 2);
        ck_assert_double_eq(got, want);
    }
}
END_TEST

START_TEST(test_clip)
{
    ck_assert_double_eq(dt_clip_factor(0.5, 1.0), 1.0);
    ck_assert_double_eq(dt_clip_factor(4.0, 1.0), 1.0 / 4.000001);
    ck_assert_double_eq(dt_clip_factor(4.0, 0), 1.0);
    ck_assert_double_eq(dt_clip_factor(1.0, 1.0), 1.0 / 1.000001);
    ck_assert_double_eq(dt_clip_factor(0, 1.0), 1.0);
    ck_assert(isnan(dt_clip_factor(NAN, 1.0)) && dt_clip_factor(INFINITY, 1.0) == 0);
}
END_TEST

int main(int argc, char **argv)
{
    if (argc > 1)
        folder = argv[1];
    Suite *suite = suite_create("global norm");
    TCase *tc = tcase_create("norm");
    tcase_set_timeout(tc, 60);
    tcase_add_test(tc, test_goldens);
    tcase_add_test(tc, test_placements);
    tcase_add_test(tc, test_wide);
    tcase_add_test(tc, test_lengths);
    tcase_add_test(tc, test_long_halves);
    tcase_add_test(tc, test_clip);
    suite_add_tcase(suite, tc);
    return test_main(suite);
}
