/* array/kernels_embedding.c - kernels that go by index: embedding, rope, dropout.
 *
 * rope's angles are computed in f64 and rounded once. Dropout's bits are a function of the key and
 * the element's index in the global tensor (base/dt_random.h), so a block of it can be computed
 * anywhere, and again. */
#include "array/kernels_nn_internal.h"

#include <math.h>
#include <string.h>

enum { UNIFORMS = 256 }; /* random numbers at once */

typedef struct embedding_job {
    const dt_embedding_args *a;
    const void *in;
    void *out;
} embedding_job;

typedef struct rope_job {
    const dt_rope_args *a;
    bool inverse;
    const void *x;
    void *y;
} rope_job;

typedef struct dropout_job {
    const dt_dropout_args *a;
    int64_t n; /* elements of a row */
    const void *x;
    void *y;
} dropout_job;

/* Global index of the first element of local row r, dim 0 counted from the first sample of the
 * whole batch. */
static uint64_t row_index(const dt_dropout_args *a, int64_t r)
{
    const int last = a->local.ndim - 1;
    int64_t index = 0, stride = 1, rest = r;
    for (int d = last; d >= 0; d--) {
        const int64_t here = d == last ? 0 : rest % a->local.dim[d];
        if (d != last)
            rest /= a->local.dim[d];
        index += (a->offset[d] + here + (d == 0 ? a->first_sample : 0)) * stride;
        stride *= a->global.dim[d];
    }
    return (uint64_t)index;
}

static double rope_frequency(const dt_rope_options *o, int64_t i, int64_t dim)
{
    const double f = pow(o->theta, -2.0 * (double)i / (double)dim);
    const double turns = o->original_positions * f / (2 * 3.14159265358979323846);
    double keep = 0; /* the share of f that is not divided */
    if (o->factor == 0)
        return f;
    if (o->high_freq_factor > o->low_freq_factor)
        keep = (turns - o->low_freq_factor) / (o->high_freq_factor - o->low_freq_factor);
    keep = keep < 0 ? 0 : keep > 1 ? 1 : keep;
    return keep * f + (1 - keep) * f / o->factor;
}

#define REAL    float
#define NAME(f) f##_f32
#include "array/kernel_embedding.inc"
#undef REAL
#undef NAME
#define REAL    double
#define NAME(f) f##_f64
#include "array/kernel_embedding.inc"

int64_t dti_find_bad_id(int64_t n, const int32_t *ids, int64_t limit, int64_t ignore)
{
    for (int64_t i = 0; i < n; i++)
        if ((ids[i] < 0 || ids[i] >= limit) && ids[i] != ignore)
            return i;
    return -1;
}

void dti_embedding(const dt_embedding_args *a, const void *w, void *y)
{
    embedding_job job = {.a = a, .in = w, .out = y};
    if (a->d == 0)
        return;
    dt_parallel_range(a->tokens, a->d, a->dtype == DT_F32 ? lookup_range_f32 : lookup_range_f64,
                      &job);
}

void dti_embedding_dw(const dt_embedding_args *a, const void *dy, void *dw)
{
    embedding_job job = {.a = a, .in = dy, .out = dw};
    dt_parallel_range(a->d, a->tokens, a->dtype == DT_F32 ? scatter_range_f32 : scatter_range_f64,
                      &job);
}

void dti_rope_table(const dt_rope_args *a)
{
    dt_rope_args copy = *a;
    const int64_t rows = a->batched ? a->batch * a->seq : a->seq;
    dt_parallel_range(rows, 16 * a->dim, a->dtype == DT_F32 ? table_range_f32 : table_range_f64,
                      &copy);
}

void dti_rope(const dt_rope_args *a, bool inverse, const void *x, void *y)
{
    rope_job job = {.a = a, .inverse = inverse, .x = x, .y = y};
    dt_parallel_range(a->batch * a->heads * a->seq, a->dim,
                      a->dtype == DT_F32 ? rotate_range_f32 : rotate_range_f64, &job);
}

void dti_dropout(const dt_dropout_args *a, const void *x, void *y)
{
    const int ndim = a->local.ndim;
    const int64_t n = ndim ? a->local.dim[ndim - 1] : 1;
    const int64_t rows = n ? dt_shape_count(a->local) / n : 0;
    dropout_job job = {.a = a, .n = n, .x = x, .y = y};
    dt_parallel_range(rows, 8 * n, a->dtype == DT_F32 ? dropout_range_f32 : dropout_range_f64,
                      &job);
}
