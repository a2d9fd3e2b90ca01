/* tests/data/test_blend.c - the order of samples: blends against Megatron's, permutations, and that
 * neither depends on who asks for which samples. */
#include "data/data_internal.h"
#include "tests/data/files.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

START_TEST(golden_order)
{
    static const struct {
        size_t n;
        double weight[3];
        const char *order;
    } rows[] = {{2, {0.7, 0.3}, "0100100100"},
                {2, {7, 3}, "0100100100"},
                {3, {0.5, 0.25, 0.25}, "012001200120"},
                {1, {3}, "0000"}};
    for (int i = 0; i < DT_COUNT(rows); i++) {
        dti_blend b;
        int64_t taken[3] = {0};
        ck_ok(dti_blend_create(rows[i].n, rows[i].weight, &b));
        for (int k = 0; rows[i].order[k]; k++) {
            int source = -1;
            int64_t sample = -1;
            dti_blend_at(&b, 0, k, &source, &sample);
            ck_assert_int_eq(source, rows[i].order[k] - '0');
            ck_assert_int_eq(sample, taken[source]++);
        }
        dti_blend_free(&b);
    }
}
END_TEST

/* Never a whole sample from its weight for two sources, never D - 1 of them for D; wherever the
 * step begins and whatever was asked before. */
START_TEST(bounds_and_restarts)
{
    static const double weight[] = {0.123, 0.001, 3.5, 0.4};
    for (size_t n = 2; n <= 4; n++) {
        dti_blend b, c;
        double sum = 0;
        int64_t taken[4] = {0}, sample;
        for (size_t i = 0; i < n; i++)
            sum += weight[i];
        ck_ok(dti_blend_create(n, weight, &b));
        ck_ok(dti_blend_create(n, weight, &c));
        for (int64_t k = 0; k < 3000; k++) {
            int source, same;
            int64_t same_sample;
            dti_blend_at(&b, k, k, &source, &sample);
            const int64_t step = k * 7919 % (k + 1); /* any start before k */
            dti_blend_at(&c, step, k, &same, &same_sample);
            ck_assert(same == source && same_sample == sample && sample == taken[source]);
            taken[source]++;
            for (size_t i = 0; i < n; i++)
                ck_assert(fabs((double)taken[i] - weight[i] / sum * (double)(k + 1)) <
                          (n == 2 ? 1 : (double)n - 1));
        }
        dti_blend_free(&b);
        dti_blend_free(&c);
    }
}
END_TEST

START_TEST(permutations)
{
    static const int64_t sizes[] = {1, 2, 3, 4, 5, 16, 17, 1000};
    for (int i = 0; i < DT_COUNT(sizes); i++) {
        const int64_t n = sizes[i];
        int moved = 0, differs = 0;
        bool seen[1000] = {false};
        for (int64_t k = 0; k < n; k++) {
            const int64_t to = dti_permute(dt_key_make(1, 2, 3), k, n);
            ck_assert(to >= 0 && to < n && !seen[to]);
            seen[to] = true;
            moved += to != k;
            differs += to != dti_permute(dt_key_make(1, 2, 4), k, n);
        }
        ck_assert(n < 16 || (moved > n * 3 / 4 && differs > n * 3 / 4));
    }
    const int64_t large = INT64_C(1) << 40;
    ck_assert_int_ge(dti_permute(dt_key_make(0, 0, 0), large - 1, large), 0);
    ck_assert_int_lt(dti_permute(dt_key_make(0, 0, 0), large - 1, large), large);
}
END_TEST

/* Samples of T = 4: A has 5 of them, 0 .. 20; B has 3, 100 .. 112. */
START_TEST(samples_once_a_round)
{
    char text[256];
    files_pair("A", 0, 2, (int32_t[]){9, 12});
    files_pair("B", 100, 1, (int32_t[]){13});
    (void)snprintf(text, sizeof text, "2 %s\t1 %s", files_path("A"), files_path("B.idx"));
    for (int shuffle = 0; shuffle < 2; shuffle++) {
        dt_dataset *ds = files_opened(
            text,
            &(dt_dataset_options){.blend = true, .shuffle = shuffle, .seed = 5, .seq_len = 4});
        ck_assert(dt_dataset_length(ds) == INT64_MAX);
        int seen[113] = {0}, count[2] = {0}, in_order = 0, last[2] = {-1, -1}, order[30], again = 0;
        for (int64_t n = 0; n < 45; n++) {
            int32_t ids[4], targets[4];
            /* steps of 3 samples; each its own call, as of ranks */
            const dt_batch b = {n / 3 * 12, 3, 4, n % 3, n % 3 + 1};
            ck_ok(dt_dataset_batch(ds, &b, ids, targets));
            const int source = ids[0] >= 100;
            if (!source)
                order[count[0]] = ids[0];
            const int round = count[source]++ / (source ? 3 : 5);
            ck_assert(ids[0] % 4 == 0 && targets[3] == ids[0] + 4);
            ck_assert_int_eq(seen[ids[0]]++, round); /* all others before this one again */
            in_order += ids[0] > last[source];
            last[source] = ids[0];
        }
        ck_assert(count[0] == 30 && count[1] == 15);
        for (int k = 5; k < 30; k++) /* every round has an order of its own */
            again += order[k] == order[k - 5];
        ck_assert(shuffle ? again < 20 : again == 25);
        ck_assert(shuffle ? in_order < 40 : in_order == 45 - 5 - 4);
        dt_dataset_close(&ds);
    }
}
END_TEST

/* Any split of a step over ranks, and any microbatches, read the same samples; a resumed run reads
 * what the run would have read. */
START_TEST(split_does_not_matter)
{
    enum { B = 5, T = 3 };
    char text[256];
    files_pair("A", 0, 2, (int32_t[]){9, 12});
    files_pair("B", 100, 1, (int32_t[]){13});
    (void)snprintf(text, sizeof text, "0.8 %s 0.2 %s", files_path("A"), files_path("B"));
    const dt_dataset_options o = {.blend = true, .shuffle = true};
    dt_dataset *ds = files_opened(text, &o);
    for (int64_t step = 0; step < 20; step++) {
        int32_t ids[B * T], targets[B * T], part[2][B * T];
        const dt_batch all = {step * B * T, B, T, 0, B};
        dt_dataset *resumed = files_opened(text, &o);
        ck_ok(dt_dataset_batch(ds, &all, ids, targets));
        for (int lo = B - 1; lo >= 0; lo--) {
            dt_batch b = all;
            b.lo = lo;
            const size_t n = (size_t)(B - lo) * T * sizeof *ids;
            ck_ok(dt_dataset_batch(step % 2 ? ds : resumed, &b, part[0], part[1]));
            ck_assert_mem_eq(part[0], ids + lo * T, n);
            ck_assert_mem_eq(part[1], targets + lo * T, n);
        }
        dt_dataset_close(&resumed);
    }
    dt_dataset_close(&ds);
}
END_TEST

START_TEST(bad_blends)
{
    char text[256];
    const dt_dataset_options o = {.blend = true, .labels_path = NULL};
    files_pair("A", 0, 1, (int32_t[]){9});
    const char *a = files_path("A");
    static const char *const rows[][2] = {{"", "and this one has none"},
                                          {"%s", "is not a weight with a path"},
                                          {"1 %s 2", "'2', the last word, is not a weight"},
                                          {"1x %s", "'1x' is not a weight with a path"},
                                          {"0 %s", "weight 0 of source 0"},
                                          {"-1 %s", "weight -1 of source 0"},
                                          {"nan %s", "weight nan"},
                                          {"1e308 %s", "add up to inf"}};
    for (int i = 0; i < DT_COUNT(rows); i++) {
        const char *at = strstr(rows[i][0], "%");
        if (i == DT_COUNT(rows) - 1) /* of two */
            (void)snprintf(text, sizeof text, "1e308 %s 1e308 %s", a, a);
        else
            (void)snprintf(text, sizeof text, "%.*s%s%s", at ? (int)(at - rows[i][0]) : 0,
                           rows[i][0], at ? a : "", at ? at + 2 : "");
        files_open_fails(text, &o, DT_ERR_ARG, rows[i][1]);
    }
    (void)snprintf(text, sizeof text, "1 %s 1 /nowhere/x.txt", a);
    files_open_fails(text, &o, DT_ERR_IO, "/nowhere/x.txt: No such file");
    (void)snprintf(text, sizeof text, "1 %s", a);
    files_open_fails(text, &(dt_dataset_options){.blend = true, .labels_path = a},
                     DT_ERR_UNSUPPORTED, "labels of a blend");
    files_open_fails(text, &(dt_dataset_options){.blend = true, .seq_len = 9}, DT_ERR_FORMAT,
                     "A.bin: 9 tokens are too few");
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("blend");
    TCase *tests = tcase_create("blend");
    tcase_add_test(tests, golden_order);
    tcase_add_test(tests, bounds_and_restarts);
    tcase_add_test(tests, permutations);
    tcase_add_test(tests, samples_once_a_round);
    tcase_add_test(tests, split_does_not_matter);
    tcase_add_test(tests, bad_blends);
    suite_add_tcase(suite, tests);
    const int result = test_main(suite);
    files_remove();
    return result;
}
