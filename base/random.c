/* base/random.c - Philox4x32-10, and uniform and normal numbers from its words.
 *
 * Element i of a sequence is word i % 4 of block i / 4, so one block gives four numbers and every
 * number stands on its own. A normal number is the inverse of the normal distribution at (word +
 * 1/2) / 2^32: its tails end at 6.2 deviations, and word w and its complement give z and -z
 * exactly.
 *
 * Sources: Salmon et al. 2011 (Philox); Wichura 1988, Algorithm AS 241 (inverse normal
 * distribution); Stafford 2011, "Better bit mixing", variant 13 (keys); FNV-1a (names). */
#include "base/dt_random.h"

#include <math.h>
#include <string.h>

/* Bijective on 64 bits. */
static uint64_t mix(uint64_t x)
{
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

/* Bijective in `a` for a fixed key, and in the key for a fixed `a`; the constant keeps (0, 0) from
 * being a fixed point. */
dt_key dt_key_fold(dt_key key, uint64_t a)
{
    const uint64_t packed = key.word[0] | (uint64_t)key.word[1] << 32;
    const uint64_t folded = mix(mix(packed + 0x9e3779b97f4a7c15u) + a);
    return (dt_key){{(uint32_t)folded, (uint32_t)(folded >> 32)}};
}

dt_key dt_key_make(uint64_t seed, uint64_t a, uint64_t b)
{
    const dt_key key = {{(uint32_t)seed, (uint32_t)(seed >> 32)}};
    return dt_key_fold(dt_key_fold(key, a), b);
}

dt_key dt_key_named(uint64_t seed, const char *name)
{
    uint64_t hash = 0xcbf29ce484222325u;
    for (const char *c = name; *c; c++)
        hash = (hash ^ (unsigned char)*c) * 0x100000001b3u;
    return dt_key_make(seed, hash, strlen(name));
}

void dt_philox(dt_key key, const uint32_t counter[4], uint32_t out[4])
{
    uint32_t c0 = counter[0], c1 = counter[1], c2 = counter[2], c3 = counter[3];
    uint32_t k0 = key.word[0], k1 = key.word[1];
    for (int round = 0; round < 10; round++) {
        const uint64_t p0 = (uint64_t)0xd2511f53u * c0, p1 = (uint64_t)0xcd9e8d57u * c2;
        c0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
        c1 = (uint32_t)p1;
        c2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c3 = (uint32_t)p0;
        k0 += 0x9e3779b9u;
        k1 += 0xbb67ae85u;
    }
    out[0] = c0;
    out[1] = c1;
    out[2] = c2;
    out[3] = c3;
}

/* Natural logarithm of a positive normal number: x = 2^e m with m in [sqrt(1/2), sqrt(2)), and
 * log m = 2 atanh(s), s = (m - 1) / (m + 1), |s| < 0.172, as its power series. */
static double log_portable(double x)
{
    const double ln2 = 0x1.62e42fefa39efp-1, sqrt2 = 0x1.6a09e667f3bcdp+0;
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    int exponent = (int)(bits >> 52) - 1023;
    bits = (bits & 0xfffffffffffffu) | (uint64_t)1023 << 52;
    double m;
    memcpy(&m, &bits, sizeof m);
    if (m >= sqrt2) {
        m = m / 2;
        exponent++;
    }
    const double s = (m - 1) / (m + 1), ss = s * s;
    double series = 1.0 / 23;
    for (int k = 21; k >= 1; k -= 2)
        series = series * ss + 1.0 / k;
    return 2 * s * series + exponent * ln2;
}

/* Horner, highest power first. */
static double polynomial(const double c[8], double x)
{
    double y = c[0];
    for (int i = 1; i < 8; i++)
        y = y * x + c[i];
    return y;
}

/* AS 241 (PPND16). Its third range, below p = e^-25, is out of reach of 32-bit words. */
static float normal_of(uint32_t word)
{
    static const double centre_num[8] = {2.5090809287301226727e+3, 3.3430575583588128105e+4,
                                         6.7265770927008700853e+4, 4.5921953931549871457e+4,
                                         1.3731693765509461125e+4, 1.9715909503065514427e+3,
                                         1.3314166789178437745e+2, 3.3871328727963666080e+0};
    static const double centre_den[8] = {5.2264952788528545610e+3, 2.8729085735721942674e+4,
                                         3.9307895800092710610e+4, 2.1213794301586595867e+4,
                                         5.3941960214247511077e+3, 6.8718700749205790830e+2,
                                         4.2313330701600911252e+1, 1.0};
    static const double tail_num[8] = {7.74545014278341407640e-4, 2.27238449892691845833e-2,
                                       2.41780725177450611770e-1, 1.27045825245236838258e+0,
                                       3.64784832476320460504e+0, 5.76949722146069140550e+0,
                                       4.63033784615654529590e+0, 1.42343711074968357734e+0};
    static const double tail_den[8] = {1.05075007164441684324e-9, 5.47593808499534494600e-4,
                                       1.51986665636164571966e-2, 1.48103976427480074590e-1,
                                       6.89767334985100004550e-1, 1.67638483018380384940e+0,
                                       2.05319162663775882187e+0, 1.0};
    const double p = ((double)word + 0.5) * 0x1p-32, q = p - 0.5;
    if (fabs(q) <= 0.425) {
        const double r = 0.180625 - q * q;
        return (float)(polynomial(centre_num, r) * q / polynomial(centre_den, r));
    }
    const double r = sqrt(-log_portable(q < 0 ? p : 1 - p)) - 1.6;
    const double z = polynomial(tail_num, r) / polynomial(tail_den, r);
    return (float)(q < 0 ? -z : z);
}

static float uniform_of(uint32_t word)
{
    return (float)(word >> 8) * 0x1p-24f;
}

static void fill(dt_key key, uint64_t first, int64_t n, float *out, float (*number)(uint32_t word))
{
    uint32_t word[4];
    for (int64_t i = 0; i < n; i++) {
        const uint64_t index = first + (uint64_t)i, block = index / 4;
        if (i == 0 || index % 4 == 0)
            dt_philox(key, (uint32_t[4]){(uint32_t)block, (uint32_t)(block >> 32), 0, 0}, word);
        out[i] = number(word[index % 4]);
    }
}

void dt_uniform_fill(dt_key key, uint64_t first, int64_t n, float *out)
{
    fill(key, first, n, out, uniform_of);
}

void dt_normal_fill(dt_key key, uint64_t first, int64_t n, float *out)
{
    fill(key, first, n, out, normal_of);
}

float dt_uniform(dt_key key, uint64_t index)
{
    float x;
    fill(key, index, 1, &x, uniform_of);
    return x;
}

float dt_normal(dt_key key, uint64_t index)
{
    float x;
    fill(key, index, 1, &x, normal_of);
    return x;
}
