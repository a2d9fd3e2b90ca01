/* tests/base/test_random.c - Philox against its published vectors, sequences against
 * tests/base/random_golden.py, and the moments of what comes out. */
#include "base/dt_random.h"
#include "tests/harness.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const dt_key golden_key = {{0xa065e470u, 0x646df479u}};

static const struct {
    uint64_t index;
    uint32_t uniform, normal;
} golden[] = {
    {0u, 0x3e176390, 0xbf85dac6},
    {1u, 0x3f2d49e0, 0x3eeb0b65},
    {2u, 0x3f64c59a, 0x3f9f80ee},
    {3u, 0x3ee05d70, 0xbe1f3bda},
    {4u, 0x3f5a3d5f, 0x3f860b06},
    {5u, 0x3f6f0dc2, 0x3fc09b1d},
    {1000003u, 0x3f69f24d, 0x3faeb429},
    {17179869185u, 0x3e52c9ec, 0xbf52273d},
    {4611686018427387911u, 0x3f57b1b9, 0x3f80a465},
    {31115u, 0x3822c000, 0xc07ce31a},
    {45423u, 0x3f7ffe00, 0x4080499d},
};

/* kat_vectors of Random123 1.09, "philox4x32 10". */
START_TEST(philox_vectors)
{
    static const struct {
        uint32_t counter[4];
        dt_key key;
        uint32_t want[4];
    } vector[] = {
        {{0}, {{0}}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
        {{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff},
         {{0xffffffff, 0xffffffff}},
         {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
        {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
         {{0xa4093822, 0x299f31d0}},
         {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
    };
    for (int i = 0; i < DT_COUNT(vector); i++) {
        uint32_t out[4];
        dt_philox(vector[i].key, vector[i].counter, out);
        ck_assert_mem_eq(out, vector[i].want, sizeof out);
    }
}
END_TEST

static uint32_t bits_of(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

START_TEST(golden_values)
{
    const dt_key key = dt_key_named(1234, "model.embed_tokens.weight");
    ck_assert_mem_eq(&key, &golden_key, sizeof key);
    for (int i = 0; i < DT_COUNT(golden); i++) {
        ck_assert_uint_eq(bits_of(dt_uniform(key, golden[i].index)), golden[i].uniform);
        ck_assert_uint_eq(bits_of(dt_normal(key, golden[i].index)), golden[i].normal);
    }
}
END_TEST

enum { HASHED = 65536 };

/* All bits of 65536 numbers: the same for any compiler and optimisation. */
START_TEST(golden_hash)
{
    static float z[HASHED];
    dt_normal_fill(golden_key, 0, HASHED, z);
    uint64_t hash = 0xcbf29ce484222325u;
    for (int i = 0; i < HASHED; i++)
        hash = (hash ^ bits_of(z[i])) * 0x100000001b3u;
    ck_assert_uint_eq(hash, 0x57b8ccdfa543b52fu);
}
END_TEST

START_TEST(fill_equals_single)
{
    const dt_key key = dt_key_make(7, 1, 2);
    const uint64_t base[] = {0, (1ull << 34) - 6, UINT64_MAX - 40};
    for (int c = 0; c < DT_COUNT(base) * 6 * 11; c++) {
        const uint64_t first = base[c / 66] + (uint64_t)(c % 6);
        const int n = c / 6 % 11;
        float z[12], u[12];
        z[n] = u[n] = -77;
        dt_normal_fill(key, first, n, z);
        dt_uniform_fill(key, first, n, u);
        for (int i = 0; i < n; i++) {
            ck_assert_uint_eq(bits_of(z[i]), bits_of(dt_normal(key, first + (uint64_t)i)));
            ck_assert_uint_eq(bits_of(u[i]), bits_of(dt_uniform(key, first + (uint64_t)i)));
        }
        ck_assert(z[n] == -77 && u[n] == -77);
    }
}
END_TEST

enum { N = 1 << 20, BINS = 64 };
static float sample[N];

/* Is a count with expectation n p within 5 standard deviations? */
static void assert_share(double count, double p, const char *what)
{
    const double sigma = sqrt(N * p * (1 - p));
    ck_assert_msg(fabs(count - N * p) < 5 * sigma, "%s: %g, expected %g +- %g", what, count, N * p,
                  sigma);
}

/* Chi-square of equally likely bins: 63 degrees of freedom, mean 63, deviation sqrt(126). */
static void assert_flat(const int64_t bin[BINS])
{
    double chi2 = 0;
    for (int i = 0; i < BINS; i++)
        chi2 += pow((double)bin[i] - (double)N / BINS, 2) / ((double)N / BINS);
    ck_assert_msg(fabs(chi2 - 63) < 5 * sqrt(126), "chi-square %g", chi2);
}

/* Bounds are 5 standard errors of each moment for N independent normal numbers. */
START_TEST(normal_moments)
{
    dt_normal_fill(dt_key_named(3, "w"), 0, N, sample);
    double sum[5] = {0}, lagged = 0;
    int64_t bin[BINS] = {0};
    int beyond[5] = {0};
    for (int i = 0; i < N; i++) {
        const double x = (double)sample[i];
        for (int k = 1; k <= 4; k++) {
            sum[k] += pow(x, k);
            beyond[k] += fabs(x) > k;
        }
        lagged += i ? x * (double)sample[i - 1] : 0;
        bin[(int)(BINS * 0.5 * erfc(-x / sqrt(2)))]++;
    }
    ck_assert_double_lt(fabs(sum[1] / N), 5 * sqrt(1.0 / N));
    ck_assert_double_lt(fabs(sum[2] / N - 1), 5 * sqrt(2.0 / N));
    ck_assert_double_lt(fabs(sum[3] / N), 5 * sqrt(15.0 / N));
    ck_assert_double_lt(fabs(sum[4] / N - 3), 5 * sqrt(96.0 / N));
    ck_assert_double_lt(fabs(lagged / N), 5 * sqrt(1.0 / N));
    for (int k = 1; k <= 4; k++)
        assert_share(beyond[k], erfc(k / sqrt(2)), "beyond k deviations");
    assert_flat(bin);
}
END_TEST

START_TEST(uniform_moments)
{
    dt_uniform_fill(dt_key_named(3, "u"), 0, N, sample);
    double sum = 0, squares = 0;
    int64_t bin[BINS] = {0};
    for (int i = 0; i < N; i++) {
        const float x = sample[i];
        ck_assert(x >= 0 && x < 1 && x * 0x1p24f == floorf(x * 0x1p24f));
        sum += (double)x;
        squares += (double)x * (double)x;
        bin[(int)(x * BINS)]++;
    }
    ck_assert_double_lt(fabs(sum / N - 0.5), 5 * sqrt(1.0 / 12 / N));
    ck_assert_double_lt(fabs(squares / N - 1.0 / 3), 5 * sqrt(4.0 / 45 / N));
    assert_flat(bin);
}
END_TEST

static int compare_keys(const void *a, const void *b)
{
    return memcmp(a, b, sizeof(dt_key));
}

START_TEST(keys_differ)
{
    enum { KEYS = 6000 };
    static dt_key key[KEYS];
    const dt_key root = dt_key_make(0, 0, 0);
    for (int i = 0; i < KEYS / 6; i++) {
        char name[32];
        (void)snprintf(name, sizeof name, "layers.%d.weight", i);
        const uint64_t a = (uint64_t)i + 1;
        const dt_key six[] = {dt_key_named(0, name), dt_key_named(1, name),
                              dt_key_make(a, 0, 0),  dt_key_make(0, a, 0),
                              dt_key_make(0, 0, a),  dt_key_fold(root, a << 40)};
        memcpy(key + 6 * i, six, sizeof six);
    }
    qsort(key, KEYS, sizeof key[0], compare_keys);
    for (int i = 1; i < KEYS; i++)
        ck_assert_int_ne(compare_keys(&key[i - 1], &key[i]), 0);
    const dt_key ab = dt_key_fold(dt_key_fold(root, 1), 2),
                 ba = dt_key_fold(dt_key_fold(root, 2), 1);
    ck_assert_int_ne(compare_keys(&ab, &ba), 0);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("random");
    TCase *tests = tcase_create("random");
    tcase_add_test(tests, philox_vectors);
    tcase_add_test(tests, golden_values);
    tcase_add_test(tests, golden_hash);
    tcase_add_test(tests, fill_equals_single);
    tcase_add_test(tests, normal_moments);
    tcase_add_test(tests, uniform_moments);
    tcase_add_test(tests, keys_differ);
    suite_add_tcase(suite, tests);
    return test_main(suite);
}
