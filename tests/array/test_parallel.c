/* tests/array/test_parallel.c - how a range is cut among threads. */
#include "array/dt_kernels.h"
#include "array/dt_kernels_math.h"
#include "tests/harness.h"

#include <string.h>

static void record_piece(void *arg, int64_t lo, int64_t hi)
{
    for (int64_t i = lo; i < hi; i++)
        ((int *)arg)[i]++;
}

/* The pieces cover [0, n) once, for any number of threads. */
START_TEST(test_parallel_range)
{
    enum { MAX = 70000 };
    static int count[MAX];
    static const int64_t sizes[] = {0, 1, 2, 7, 63, 64, 65, 1000, 4097, 65535, 65536, MAX};
    const int before = dt_compute_threads_get();
    for (int threads = 1; threads <= 9; threads += 2)
        for (int s = 0; s < DT_COUNT(sizes); s++) {
            memset(count, 0, sizeof count);
            dt_compute_threads_set(threads);
            dt_parallel_range(sizes[s], s % 2 ? 1 : 100000, record_piece, count);
            for (int64_t i = 0; i < MAX; i++)
                if (count[i] != (i < sizes[s]))
                    ck_abort_msg("n %d, index %d: %d times", (int)sizes[s], (int)i, count[i]);
        }
    dt_compute_threads_set(before);
}
END_TEST

START_TEST(test_threads)
{
    const int before = dt_compute_threads_get();
    dt_compute_threads_set(0);
    ck_assert_int_eq(dt_compute_threads_get(), 1);
    dt_compute_threads_set(before);
    ck_assert_int_eq(dt_compute_threads_get(), before);
}
END_TEST

/* Lane j takes part in step "j + half" of each halving. */
START_TEST(test_lanes_are_summed_pairwise)
{
    float x[DT_LANES];
    double y[DT_LANES];
    for (int j = 0; j < DT_LANES; j++) {
        x[j] = 1.0f / (float)(j + 3);
        y[j] = 1.0 / (j + 3);
    }
    const float quarter[4] = {(x[0] + x[8]) + (x[4] + x[12]), (x[1] + x[9]) + (x[5] + x[13]),
                              (x[2] + x[10]) + (x[6] + x[14]), (x[3] + x[11]) + (x[7] + x[15])};
    const float want = (quarter[0] + quarter[2]) + (quarter[1] + quarter[3]);
    ck_assert_float_eq(dt_lanes_sum_f32(x), want);
    ck_assert_double_eq_tol(dt_lanes_sum_f64(y), (double)want, 1e-6);
}
END_TEST

/* One long run of elements that lie apart, by any number of threads. */
START_TEST(test_strided_run)
{
    enum { N = 200001, STEP = 3 };
    static uint16_t x[N * STEP], y[N];
    const dt_strided_args a = {
        .elem_bytes = 2, .ndim = 1, .size = {N}, .stride = {STEP}, .src = x, .dst = y};
    const int before = dt_compute_threads_get();
    for (int i = 0; i < N * STEP; i++)
        x[i] = (uint16_t)(i * 7);
    for (int threads = 1; threads <= 3; threads++) {
        memset(y, 0, sizeof y);
        dt_compute_threads_set(threads);
        dt_math_kernels_of(DT_CPU)->strided(&a);
        for (int i = 0; i < N; i++)
            if (y[i] != x[STEP * i])
                ck_abort_msg("%d threads, element %d: %d", threads, i, y[i]);
    }
    dt_compute_threads_set(before);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("parallel");
    TCase *tc = tcase_create("parallel");
    suite_add_tcase(suite, tc);
    tcase_add_test(tc, test_parallel_range);
    tcase_add_test(tc, test_threads);
    tcase_add_test(tc, test_lanes_are_summed_pairwise);
    tcase_add_test(tc, test_strided_run);
    return test_main(suite);
}
