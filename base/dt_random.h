/* base/dt_random.h - counter-based random numbers: a value is a pure function of (key, counter), so
 * it does not depend on who computes it, in which order, or on how many ranks.
 *
 * Source: Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3" (Philox4x32-10). Normal
 * variates use only + - * / sqrt in double, so that every compiler, CPU and GPU gives the same
 * bits. */
#pragma once

#include "base/dt_types.h"

typedef struct dt_key {
    uint32_t word[2];
} dt_key;

/* A key from a seed and any number of words; from a seed and a text (parameter name, module
 * path). */
dt_key dt_key_make(uint64_t seed, uint64_t a, uint64_t b);
dt_key dt_key_named(uint64_t seed, const char *name);
/* A key that differs from `key` for every different `a`. */
dt_key dt_key_fold(dt_key key, uint64_t a);

/* The 10-round block: 4 words from a 128-bit counter. */
void dt_philox(dt_key key, const uint32_t counter[4], uint32_t out[4]);

/* Element `index` of the infinite sequence of `key`: uniform in [0, 1) in steps of 2^-24, and
 * standard normal. */
float dt_uniform(dt_key key, uint64_t index);
float dt_normal(dt_key key, uint64_t index);
/* out[i] = element first + i, i < n. */
void dt_uniform_fill(dt_key key, uint64_t first, int64_t n, float *out);
void dt_normal_fill(dt_key key, uint64_t first, int64_t n, float *out);
