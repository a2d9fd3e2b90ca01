/* tests/dtensor/test_fuzz.c - random graphs for DT_FUZZ_SECONDS (3) from DT_FUZZ_SEED (1) on.
 * A failing case prints its seed; DT_FUZZ_SEED=<that> runs it first.
 * Read first: tests/dtensor/fuzz.h. */
#include "tests/dtensor/fuzz.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static double seconds_now(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static double number_from(const char *name, double otherwise)
{
    const char *text = getenv(name);
    return text ? strtod(text, NULL) : otherwise;
}

static void print_stats(const fuzz_stats *s, double seconds)
{
    printf("fuzz: %ld cases (%.0f a second), %ld values and %ld gradients right, "
           "%ld backwards refused\n",
           s->cases, (double)s->cases / seconds, s->values, s->gradients, s->refused_backward);
    for (int k = 0; k < fuzz_table_rows; k++)
        printf("    %-22s %6ld placed, %6ld all R, %6ld refused\n", fuzz_table[k].name,
               s->placed[k], s->replicated[k], s->refused[k]);
}

START_TEST(test_graphs)
{
    const fuzz_subject honest = {.table = fuzz_table, .nrows = fuzz_table_rows};
    const double seconds = number_from("DT_FUZZ_SECONDS", 3), start = seconds_now();
    uint64_t seed = (uint64_t)number_from("DT_FUZZ_SEED", 1);
    fuzz_stats stats = {0};
    int failing;
    do {
        const int n = FUZZ_BATCH - (int)(seed % FUZZ_BATCH);
        ck_ok(fuzz_batch(&honest, seed, n, true, &stats, &failing));
        seed += (uint64_t)n;
    } while (seconds_now() - start < seconds);
    print_stats(&stats, seconds_now() - start);
    for (int k = 0; k < fuzz_table_rows && stats.cases > 300; k++)
        ck_assert_msg(stats.placed[k] > 0, "%s was never accepted with a placement",
                      fuzz_table[k].name);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("fuzz");
    TCase *tc = tcase_create("random graphs");
    tcase_set_timeout(tc, 0);
    tcase_add_test(tc, test_graphs);
    suite_add_tcase(suite, tc);
    return test_main(suite);
}
