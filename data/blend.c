/* data/blend.c - the order of samples: from which source each comes, and shuffled. Both are
 * functions of the sample's number, so that the data position stays one number. */
#include "data/data_internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

dt_status dti_blend_create(size_t n, const double *weight, dti_blend *blend)
{
    double sum = 0;
    for (size_t i = 0; i < n; i++) {
        DT_REQUIRE(weight[i] > 0 && isfinite(weight[i]), DT_ERR_ARG,
                   "weight %g of source %zu of a blend; legal: above 0", weight[i], i);
        sum += weight[i];
    }
    DT_REQUIRE(isfinite(sum), DT_ERR_ARG, "the weights of a blend add up to %g", sum);
    *blend = (dti_blend){.n = (int)n,
                         .weight = calloc(n, sizeof *blend->weight),
                         .step = calloc(n, sizeof *blend->step),
                         .now = calloc(n, sizeof *blend->now)};
    DT_REQUIRE(blend->weight && blend->step && blend->now, DT_ERR_NOMEM, "a blend of %zu sources",
               n);
    for (size_t i = 0; i < n; i++)
        blend->weight[i] = weight[i] / sum;
    return DT_OK;
}

void dti_blend_free(dti_blend *b)
{
    free(b->weight);
    free(b->step);
    free(b->now);
    *b = (dti_blend){0};
}

static int pick(const dti_blend *b, int64_t n, const int64_t *count)
{
    const double at = n > 1 ? (double)n : 1;
    int best = 0;
    for (int i = 1; i < b->n; i++)
        if (b->weight[i] * at - (double)count[i] > b->weight[best] * at - (double)count[best])
            best = i;
    return best;
}

static void forward_to(const dti_blend *b, int64_t n, int64_t *at, int64_t *count)
{
    if (*at > n) {
        memset(count, 0, (size_t)b->n * sizeof *count);
        *at = 0;
    }
    for (; *at < n; ++*at)
        count[pick(b, *at, count)]++;
}

void dti_blend_at(dti_blend *b, int64_t step_start, int64_t n, int *source_out, int64_t *sample_out)
{
    forward_to(b, step_start, &b->step_at, b->step);
    if (b->now_at > n || b->now_at < b->step_at) {
        memcpy(b->now, b->step, (size_t)b->n * sizeof *b->now);
        b->now_at = b->step_at;
    }
    forward_to(b, n, &b->now_at, b->now);
    *source_out = pick(b, n, b->now);
    *sample_out = b->now[*source_out];
}

int64_t dti_permute(dt_key key, int64_t i, int64_t n)
{
    enum { ROUNDS = 6 };
    int half = 1; /* bits; 2 half of them hold n - 1 */
    while (half < 32 && (uint64_t)(n - 1) >> (2 * half) > 0)
        half++;
    const uint64_t mask = (UINT64_C(1) << half) - 1;
    uint64_t x = (uint64_t)i;
    do {
        for (uint32_t round = 0; round < ROUNDS; round++) {
            const uint64_t left = x >> half, right = x & mask;
            uint32_t out[4];
            dt_philox(key, (uint32_t[4]){(uint32_t)right, round, 0, 0}, out);
            x = right << half | (left ^ (out[0] & mask));
        }
    } while (x >= (uint64_t)n);
    return (int64_t)x;
}
