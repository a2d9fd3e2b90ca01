/* tests/gpu/test_embedding.c - lookups and their gradient, whose sums run within blocks, over their
 * ends and over many of them; ids that other ranks have; the first bad id. */
#include "tests/gpu/gpu_test.h"

#include <stdlib.h>

/* Which ids: spread, all one, two that take turns, few beside one that is half of all, runs. */
typedef enum ids_kind { SPREAD, ONE, TWO, HALF, RUNS, KINDS } ids_kind;

typedef struct embedding_case {
    dt_dtype dtype;
    ids_kind kind;
    int64_t tokens, d, vocab, lo, hi;
    int shift;
} embedding_case;

static int32_t id_of(const embedding_case *c, int64_t t)
{
    const int64_t far = t * 7919 % 100003;
    switch ((int)c->kind) {
    case SPREAD: return (int32_t)(far % c->vocab);
    case ONE: return (int32_t)c->lo;
    case TWO: return (int32_t)(c->lo + t % 2);
    case HALF: return (int32_t)(t % 2 ? c->lo + 1 : far % c->vocab);
    default: return (int32_t)(t / 40 % c->vocab);
    }
}

static void check(const embedding_case *c, int order)
{
    const dt_nn_kernels *cpu = dt_nn_kernels_of(DT_CPU), *gpu = dt_nn_kernels_of(DT_CUDA);
    int32_t *id = malloc((size_t)(c->tokens + 1) * sizeof *id);
    ck_assert(id != NULL);
    for (int64_t t = 0; t < c->tokens; t++)
        id[t] = id_of(c, t);
    gpu_begin(order);
    const gpu_pair ids = gpu_values(DT_I32, c->tokens, id);
    free(id);
    gpu_shift(c->shift);
    const gpu_pair w = gpu_random(c->dtype, (c->hi - c->lo) * c->d, -1, 1);
    const gpu_pair dy = gpu_random(c->dtype, c->tokens * c->d, -1, 1);
    const gpu_pair y = gpu_output(c->dtype, dy.n), dw = gpu_output(c->dtype, w.n);
    dt_embedding_args a = {
        .dtype = w.wide, .tokens = c->tokens, .d = c->d, .lo = c->lo, .hi = c->hi, .ids = ids.cpu};
    cpu->embedding(&a, w.cpu, y.cpu);
    cpu->embedding_dw(&a, dy.cpu, dw.cpu);
    a.dtype = c->dtype;
    a.ids = ids.gpu;
    gpu->embedding(&a, w.gpu, y.gpu);
    gpu->embedding_dw(&a, dy.gpu, dw.gpu);
    gpu_same(&y, 0, "kind %d, %d tokens of %d, shift %d: y", (int)c->kind, (int)c->tokens,
             (int)c->d, c->shift);
    gpu_same(&dw, 0, "kind %d, %d tokens of %d, shift %d: dw", (int)c->kind, (int)c->tokens,
             (int)c->d, c->shift);
    gpu_end();
}

START_TEST(test_kinds)
{
    static const int64_t tokens[] = {0, 1, 31, 32, 33, 64, 257, 1000}, width[] = {1, 8, 64, 136};
    for (int d = 0; d < GPU_FLOATS; d++)
        for (int k = 0; k < KINDS; k++)
            for (int s = 0; s < DT_COUNT(tokens); s++)
                check(&(embedding_case){.dtype = gpu_float[d],
                                        .kind = (ids_kind)k,
                                        .tokens = tokens[s],
                                        .d = width[(s + k) % DT_COUNT(width)],
                                        .vocab = 50,
                                        .lo = 7,
                                        .hi = s == 5 ? 7 : 41,
                                        .shift = s == 6 ? 1 : -(s % 5)},
                      _i);
}
END_TEST

/* Sorted by more than one merge; rows wider than a block. */
START_TEST(test_many_tokens)
{
    for (int k = 0; k < KINDS; k++)
        check(&(embedding_case){.dtype = k % 2 ? DT_F32 : DT_BF16,
                                .kind = (ids_kind)k,
                                .tokens = 9001,
                                .d = 4,
                                .vocab = 3000,
                                .lo = 0,
                                .hi = k == 0 ? 3000 : 100},
              _i);
    check(&(embedding_case){.dtype = DT_BF16, .tokens = 70, .d = 2056, .vocab = 9, .hi = 9}, _i);
}
END_TEST

START_TEST(test_find_bad_id)
{
    enum { MOST = 70000 };
    static const int64_t count[] = {0, 1, 255, 257, 20000, MOST};
    static int32_t id[MOST];
    for (int s = 0; s < DT_COUNT(count); s++)
        for (int k = 0; k < 4; k++) {
            const int64_t n = count[s], bad = k == 0 ? n : n * (k - 1) / 2 - (k == 3);
            for (int64_t i = 0; i < n; i++)
                id[i] = i % 5 == 0 ? -100 : (int32_t)(i % 50);
            for (int64_t i = bad < 0 ? n : bad; i < n; i += 1 + i / 2)
                id[i] = i % 2 ? 50 : -1;
            gpu_begin(_i);
            const gpu_pair x = gpu_values(DT_I32, n, id);
            const int64_t want = dt_nn_kernels_of(DT_CPU)->find_bad_id(n, x.cpu, 50, -100);
            ck_assert_int_eq(dt_nn_kernels_of(DT_CUDA)->find_bad_id(n, x.gpu, 50, -100), want);
            ck_assert_int_eq(want, bad >= 0 && bad < n ? bad : -1);
            gpu_end();
        }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("gpu embedding");
    TCase *tc = tcase_create("embedding");
    tcase_set_timeout(tc, 120);
    tcase_add_loop_test(tc, test_kinds, 0, GPU_ORDERS);
    tcase_add_loop_test(tc, test_many_tokens, 0, GPU_ORDERS);
    tcase_add_loop_test(tc, test_find_bad_id, 0, GPU_ORDERS);
    suite_add_tcase(suite, tc);
    return gpu_main(suite);
}
