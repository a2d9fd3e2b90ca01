/* base/random.c - Philox4x32-10, and uniform and normal numbers from its words
 * (base/random_math.inc).
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

#define RANDOM_FN        static
#define RANDOM_MUL(a, b) ((a) * (b))
#include "base/random_math.inc"

void dt_philox(dt_key key, const uint32_t counter[4], uint32_t out[4])
{
    philox(key, counter, out);
}

static void fill(dt_key key, uint64_t first, int64_t n, float *out, float (*number)(uint32_t word))
{
    uint32_t word[4];
    for (int64_t i = 0; i < n; i++) {
        const uint64_t index = first + (uint64_t)i, block = index / 4;
        if (i == 0 || index % 4 == 0)
            philox(key, (uint32_t[4]){(uint32_t)block, (uint32_t)(block >> 32), 0, 0}, word);
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
