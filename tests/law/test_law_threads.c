/* tests/law/test_law_threads.c - what a training step gives has the same bits on any number of
 * threads, and in every run: losses, norms, gradients and weights after some steps, in each type.
 * The batch is so large that kernels of 64 features use threads (DT_PARALLEL_MIN). */
#include "tests/law/law.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BATCH = 36, STEPS = 3 };

static const law_case cases[] = {{.golden = "llama_tiny"},
                                 {.golden = "gpt2_tiny"},
                                 {.golden = "llama_tiny", .param_dtype = DT_BF16},
                                 {.golden = "gpt2_tiny", .param_dtype = DT_BF16},
                                 {.golden = "llama_tiny", .f64 = true},
                                 {.golden = "gpt2_tiny", .f64 = true}};

static void same_bytes(const void *a, const void *b, size_t bytes, const char *what, int run)
{
    ck_assert_msg(memcmp(a, b, bytes) == 0, "%s: run %d differs from the first", what, run);
}

static void check_same(const law_run *a, const law_run *b, int run)
{
    ck_assert_int_eq(a->nparams, b->nparams);
    same_bytes(a->loss, b->loss, STEPS * sizeof *a->loss, "loss", run);
    same_bytes(a->norm, b->norm, STEPS * sizeof *a->norm, "norm", run);
    for (int i = 0; i < a->nparams; i++) {
        const size_t bytes = (size_t)a->count[i] * sizeof *a->grad[i];
        char what[160];
        (void)snprintf(what, sizeof what, "gradient of %s", a->name[i]);
        same_bytes(a->grad[i], b->grad[i], bytes, what, run);
        (void)snprintf(what, sizeof what, "weight %s", a->name[i]);
        same_bytes(a->weight[i], b->weight[i], bytes, what, run);
    }
}

START_TEST(threads_and_runs_give_the_same_bits)
{
    static const char *const threads[] = {"1", "1", "2", "3"};
    law_run first = {0};
    law_case c = cases[_i];
    c.ranks = 1;
    c.layers = 2;
    c.batch = BATCH;
    c.steps = STEPS;
    for (int i = 0; i < DT_COUNT(threads); i++) {
        law_run run = {0};
        ck_assert_int_eq(setenv("OMP_NUM_THREADS", threads[i], 1), 0);
        ck_ok(law_train(&c, &run));
        if (i == 0) {
            first = run;
            continue;
        }
        check_same(&run, &first, i);
        law_free(&run);
    }
    law_free(&first);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("law of threads");
    TCase *tc = tcase_create("threads");
    tcase_set_timeout(tc, 300);
    test_some(tc, threads_and_runs_give_the_same_bits, DT_COUNT(cases));
    suite_add_tcase(suite, tc);
    return test_main(suite);
}
