/* tests/array/test_matmul.c - the product against a triple loop in double (matmul_check.h), over
 * types, transposes, sizes, strides and batches; threads; what is refused. */
#include "array/dt_kernels.h"
#include "array/matmul_internal.h"
#include "tests/array/matmul_check.h"
#include "tests/harness.h"

#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

static void by_backend(const dt_matmul_args *args)
{
    ck_ok(dt_matmul_run(args));
}

static const struct {
    dt_dtype dtype, dtype_c;
} pairs[] = {{DT_F32, DT_F32},  {DT_F64, DT_F64}, {DT_BF16, DT_BF16},
             {DT_BF16, DT_F32}, {DT_F16, DT_F16}, {DT_F16, DT_F32}};

/* Every transpose, with and without gaps, batches, shared B, a bias, over odd sizes. */
static void check_sizes(matmul_fn *product, bool biased, int pair, int rounds)
{
    static const int64_t sizes[] = {1, 2, 3, 5, 8, 17, 31, 33, 65, 130};
    static const double factors[][2] = {{1, 0}, {1, 1}, {0.5, 0}, {-2, 0.25}};
    uint32_t state = (uint32_t)pair + 5;
    for (int i = 0; i < rounds; i++) {
        const dt_matmul_args p = {.dtype = pairs[pair].dtype,
                                  .dtype_c = pairs[pair].dtype_c,
                                  .trans_a = i % 2 == 1,
                                  .trans_b = i / 2 % 2 == 1,
                                  .batch = i % 3 == 0 ? 3 : 1,
                                  .m = sizes[matmul_random(&state) % 10],
                                  .n = sizes[matmul_random(&state) % 10],
                                  .k = sizes[matmul_random(&state) % 10],
                                  .alpha = factors[i / 4 % 4][0],
                                  .beta = factors[i / 4 % 4][1],
                                  .bias = biased && factors[i / 4 % 4][1] == 0 && i % 5 < 3 ? ""
                                                                                            : NULL};
        matmul_check(product, p, i / 16 % 2 * 3, i / 32 % 2 == 1, &state);
    }
}

START_TEST(test_against_triple_loop)
{
    check_sizes(by_backend, true, _i, 96);
}
END_TEST

START_TEST(test_plain_against_triple_loop)
{
    check_sizes(_i == 0 ? dti_matmul_plain_f32 : dti_matmul_plain_f64, false, _i, 192);
}
END_TEST

/* Longer than a block in every direction, and more work than one thread takes. */
START_TEST(test_large)
{
    uint32_t state = 3;
    const dt_matmul_args p = {.dtype = pairs[_i].dtype,
                              .dtype_c = pairs[_i].dtype_c,
                              .batch = 1,
                              .m = 150,
                              .n = 140,
                              .k = 300,
                              .alpha = 1};
    matmul_check(by_backend, p, 1, false, &state);
    if (_i < 2)
        matmul_check(_i == 0 ? dti_matmul_plain_f32 : dti_matmul_plain_f64, p, 1, false, &state);
}
END_TEST

/* So large that C is computed in pieces, cut both ways, and its rows are rounded in several. */
START_TEST(test_pieces)
{
    uint32_t state = 11;
    for (int i = 0; i < 2; i++) {
        const dt_matmul_args p = {.dtype = pairs[_i].dtype,
                                  .dtype_c = pairs[_i].dtype_c,
                                  .trans_a = i == 0,
                                  .trans_b = i == 1,
                                  .batch = 1,
                                  .m = 1030,
                                  .n = 1100,
                                  .k = 2,
                                  .alpha = i == 0 ? 1 : 0.5};
        matmul_check(by_backend, p, 1, false, &state);
    }
}
END_TEST

START_TEST(test_sizes_of_zero)
{
    uint32_t state = 9;
    for (int zero = 0; zero < 16; zero++)
        for (int factors = 0; factors < 3; factors++) {
            const dt_matmul_args p = {.dtype = pairs[_i].dtype,
                                      .dtype_c = pairs[_i].dtype_c,
                                      .trans_a = zero % 3 == 0,
                                      .batch = zero & 8 ? 0 : 2,
                                      .m = zero & 1 ? 0 : 3,
                                      .n = zero & 2 ? 0 : 4,
                                      .k = zero & 4 ? 0 : 5,
                                      .alpha = 1,
                                      .beta = factors * 0.5,
                                      .bias = factors == 0 && zero & 4 ? "" : NULL};
            matmul_check(by_backend, p, zero % 2, false, &state);
        }
}
END_TEST

/* Heads side by side in a row: products closer together than rows. ldc 0: no gaps. */
START_TEST(test_interleaved_heads)
{
    enum { HEADS = 3, SEQ = 7, DIM = 5 };
    uint32_t state = 21;
    const dt_dtype dtype = pairs[_i].dtype, dtype_c = pairs[_i].dtype_c;
    void *q = matmul_block(dtype, SEQ * HEADS * DIM, &state);
    void *k = matmul_block(dtype, SEQ * HEADS * DIM, &state);
    void *scores = matmul_block(dtype_c, HEADS * SEQ * SEQ, &state);
    dt_matmul_args p = {.dtype = dtype,
                        .dtype_c = dtype_c,
                        .trans_b = true,
                        .batch = HEADS,
                        .m = SEQ,
                        .n = SEQ,
                        .k = DIM,
                        .a = q,
                        .b = k,
                        .c = scores,
                        .lda = HEADS * DIM,
                        .ldb = HEADS * DIM,
                        .stride_a = DIM,
                        .stride_b = DIM,
                        .stride_c = SEQ * SEQ,
                        .alpha = 1};
    by_backend(&p);
    p.ldc = SEQ;
    matmul_check_result(&p, scores, 0);
    free(q);
    free(k);
    free(scores);
}
END_TEST

/* The same product into rows of other lengths, one after the other. */
START_TEST(test_rows_apart)
{
    enum { N = 6, GAP = 3 };
    uint32_t state = 8;
    const size_t size = dt_dtype_size(pairs[_i].dtype_c);
    void *a = matmul_block(pairs[_i].dtype, N * N, &state);
    void *b = matmul_block(pairs[_i].dtype, N * N, &state);
    void *c = matmul_block(pairs[_i].dtype_c, N * (N + GAP), &state);
    void *before = malloc(N * (N + GAP) * size);
    ck_assert_ptr_nonnull(before);
    for (int gap = 0; gap <= GAP; gap += GAP) {
        const dt_matmul_args p = {.dtype = pairs[_i].dtype,
                                  .dtype_c = pairs[_i].dtype_c,
                                  .batch = 1,
                                  .m = N,
                                  .n = N,
                                  .k = N,
                                  .a = a,
                                  .b = b,
                                  .c = c,
                                  .lda = N,
                                  .ldb = N,
                                  .ldc = N + gap,
                                  .stride_c = N * (N + gap),
                                  .alpha = 1};
        memcpy(before, c, N * (N + GAP) * size);
        by_backend(&p);
        matmul_check_result(&p, before, p.stride_c);
    }
    free(a);
    free(b);
    free(c);
    free(before);
}
END_TEST

START_TEST(test_refusals)
{
    float x[4] = {0};
    dt_matmul_args p = {
        .batch = 1, .m = 2, .n = 2, .k = 2, .a = x, .b = x, .c = x, .lda = 1, .alpha = 1};
    ck_assert_int_eq(dt_matmul_run(&p), DT_ERR_ARG);
    ck_assert(strstr(dt_error_trace(), "lda=1") != NULL);
    p.lda = 0;
    p.beta = 1;
    p.bias = x;
    ck_assert_int_eq(dt_matmul_run(&p), DT_ERR_ARG);
    p.bias = NULL;
    p.m = -1;
    ck_assert_int_eq(dt_matmul_run(&p), DT_ERR_ARG);
    p.m = 2;
    p.dtype_c = DT_F64;
    ck_assert_int_eq(dt_matmul_run(&p), DT_ERR_ARG);
    p.dtype = p.dtype_c = DT_I32;
    ck_assert_int_eq(dt_matmul_run(&p), DT_ERR_ARG);
    dt_error_clear();
}
END_TEST

enum { RANKS = 4, SIZE = 96 };

typedef struct rank_job {
    const dt_matmul_args *args;
    int threads;
    float c[2][SIZE * SIZE];
} rank_job;

static void *multiply_as_rank(void *arg)
{
    rank_job *job = arg;
    dt_compute_threads_set(job->threads);
    for (int i = 0; i < 20; i++) {
        dt_matmul_args p = *job->args;
        p.c = job->c[i % 2];
        if (dt_matmul_run(&p) != DT_OK)
            job->c[i % 2][0] = NAN;
    }
    return NULL;
}

/* Ranks as threads multiply at the same time: all get the bits that this thread gets alone. */
START_TEST(test_ranks_at_once)
{
    uint32_t state = 4;
    const dt_dtype dtype = _i == 0 ? DT_F32 : DT_BF16;
    void *a = matmul_block(dtype, SIZE * SIZE, &state),
         *b = matmul_block(dtype, SIZE * SIZE, &state);
    static float alone[SIZE * SIZE];
    static rank_job job[RANKS];
    const dt_matmul_args p = {.dtype = dtype,
                              .dtype_c = DT_F32,
                              .batch = 1,
                              .m = SIZE,
                              .n = SIZE,
                              .k = SIZE,
                              .a = a,
                              .b = b,
                              .c = alone,
                              .alpha = 1};
    const int before = dt_compute_threads_get();
    for (int threads = 1; threads <= 2; threads++) {
        dt_compute_threads_set(threads);
        by_backend(&p);
        pthread_t thread[RANKS];
        for (int r = 0; r < RANKS; r++) {
            job[r].args = &p;
            job[r].threads = threads;
            ck_assert_int_eq(pthread_create(&thread[r], NULL, multiply_as_rank, &job[r]), 0);
        }
        for (int r = 0; r < RANKS; r++) {
            pthread_join(thread[r], NULL);
            ck_assert_mem_eq(job[r].c[0], alone, sizeof alone);
            ck_assert_mem_eq(job[r].c[1], alone, sizeof alone);
        }
    }
    dt_compute_threads_set(before);
    free(a);
    free(b);
}
END_TEST

/* Sizes and types whose bits oneDNN's own threads would change, and others. */
static const struct {
    dt_dtype dtype;
    bool trans_b;
    int64_t m, n, k;
    double beta;
} apart[] = {{DT_F64, false, 300, 40, 200, 0},  {DT_F32, true, 768, 768, 1024, 0},
             {DT_F32, true, 64, 768, 2048, 1},  {DT_F32, false, 40, 1030, 600, 0},
             {DT_BF16, true, 770, 768, 512, 1}, {DT_BF16, false, 64, 768, 2048, 0}};

START_TEST(test_ignores_threads)
{
    uint32_t state = 6;
    const dt_dtype dtype = apart[_i].dtype;
    const int64_t m = apart[_i].m, n = apart[_i].n, k = apart[_i].k;
    const size_t bytes = (size_t)(m * n) * dt_dtype_size(dtype);
    void *a = matmul_block(dtype, m * k, &state), *b = matmul_block(dtype, k * n, &state);
    void *start = matmul_block(dtype, m * n, &state), *c[3];
    const int before = dt_compute_threads_get();
    for (int threads = 1; threads <= 3; threads++) {
        dt_compute_threads_set(threads);
        c[threads - 1] = malloc(bytes);
        memcpy(c[threads - 1], start, bytes);
        by_backend(&(dt_matmul_args){.dtype = dtype,
                                     .dtype_c = dtype,
                                     .trans_b = apart[_i].trans_b,
                                     .batch = 1,
                                     .m = m,
                                     .n = n,
                                     .k = k,
                                     .a = a,
                                     .b = b,
                                     .c = c[threads - 1],
                                     .alpha = 1,
                                     .beta = apart[_i].beta});
        ck_assert_mem_eq(c[threads - 1], c[0], bytes);
    }
    dt_compute_threads_set(before);
    for (int i = 0; i < 3; i++)
        free(c[i]);
    free(a);
    free(b);
    free(start);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("matmul");
    TCase *tc = tcase_create("matmul");
    tcase_set_timeout(tc, 100);
    suite_add_tcase(suite, tc);
    tcase_add_loop_test(tc, test_against_triple_loop, 0, DT_COUNT(pairs));
    tcase_add_loop_test(tc, test_plain_against_triple_loop, 0, 2);
    tcase_add_loop_test(tc, test_large, 0, DT_COUNT(pairs));
    tcase_add_loop_test(tc, test_pieces, 0, DT_COUNT(pairs));
    tcase_add_loop_test(tc, test_sizes_of_zero, 0, DT_COUNT(pairs));
    tcase_add_loop_test(tc, test_interleaved_heads, 0, DT_COUNT(pairs));
    tcase_add_loop_test(tc, test_rows_apart, 0, DT_COUNT(pairs));
    tcase_add_test(tc, test_refusals);
    tcase_add_loop_test(tc, test_ranks_at_once, 0, 2);
    tcase_add_loop_test(tc, test_ignores_threads, 0, DT_COUNT(apart));
    return test_main(suite);
}
