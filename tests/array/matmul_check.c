/* tests/array/matmul_check.c - see tests/array/matmul_check.h. */
#include "tests/array/matmul_check.h"

#include "array/dt_half.h"
#include "tests/harness.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

uint32_t matmul_random(uint32_t *state)
{
    *state = *state * 1664525u + 1013904223u;
    return *state >> 8;
}

static double load(dt_dtype dtype, const void *p, int64_t i)
{
    if (dtype == DT_F64)
        return ((const double *)p)[i];
    float x = 0;
    dt_load_f32(dtype, (const char *)p + i * (int64_t)dt_dtype_size(dtype), &x, 1);
    return (double)x;
}

static void store(dt_dtype dtype, void *p, int64_t i, double x)
{
    const float narrow = (float)x;
    if (dtype == DT_F64)
        ((double *)p)[i] = x;
    else
        dt_store_f32(dtype, &narrow, (char *)p + i * (int64_t)dt_dtype_size(dtype), 1);
}

void *matmul_block(dt_dtype dtype, int64_t n, uint32_t *state)
{
    void *p = malloc((size_t)n * dt_dtype_size(dtype) + 1);
    ck_assert_ptr_nonnull(p);
    for (int64_t i = 0; i < n; i++)
        store(dtype, p, i, ldexp((double)matmul_random(state), -23) - 1);
    return p;
}

/* Elements from the first to one past the last of a batch of rows. */
static int64_t extent(int64_t batch, int64_t stride, int64_t rows, int64_t ld, int64_t cols)
{
    return batch == 0 || rows == 0 || cols == 0 ? 0 : (batch - 1) * stride + (rows - 1) * ld + cols;
}

static double unit_roundoff(dt_dtype dtype)
{
    switch (dtype) {
    case DT_F64: return ldexp(1, -53);
    case DT_BF16: return ldexp(1, -8);
    case DT_F16: return ldexp(1, -11);
    case DT_F32:
    case DT_I32:
    case DT_I64:
    case DT_U8:
    case DT_NDTYPES: break;
    }
    return ldexp(1, -24);
}

/* Where element (i, p) of an operand lies. */
static int64_t place(bool trans, int64_t ld, int64_t i, int64_t p)
{
    return trans ? p * ld + i : i * ld + p;
}

static void check_element(const dt_matmul_args *p, const void *before, int64_t z, int64_t i,
                          int64_t j)
{
    double sum = 0, size = 0;
    for (int64_t l = 0; l < p->k; l++) {
        const double a = load(p->dtype, p->a, z * p->stride_a + place(p->trans_a, p->lda, i, l));
        const double b = load(p->dtype, p->b, z * p->stride_b + place(p->trans_b, p->ldb, l, j));
        sum += a * b;
        size += fabs(a * b);
    }
    const int64_t at = z * p->stride_c + i * p->ldc + j;
    double c = p->beta == 0 ? 0 : p->beta * load(p->dtype_c, before, at);
    if (p->bias)
        c = load(p->dtype_c, p->bias, j);
    const double want = p->alpha * sum + c;
    const double u = p->dtype == DT_F64 ? ldexp(1, -53) : ldexp(1, -24);
    const double smallest =
        p->dtype_c == DT_F16 ? ldexp(1, -25) : 0; /* half of a subnormal's unit */
    const double bound = (double)(p->k + 4) * u * (fabs(p->alpha) * size + fabs(c)) +
                         unit_roundoff(p->dtype_c) * fabs(want) + smallest;
    const double got = load(p->dtype_c, p->c, at);
    if (!(fabs(got - want) <= bound))
        ck_abort_msg("%s to %s %lldx%lldx%lld batch %lld trans %d%d alpha %g beta %g bias %d: "
                     "C[%lld,%lld,%lld] = "
                     "%.9g, want %.9g within %g",
                     dt_dtype_name(p->dtype), dt_dtype_name(p->dtype_c), (long long)p->m,
                     (long long)p->n, (long long)p->k, (long long)p->batch, p->trans_a, p->trans_b,
                     p->alpha, p->beta, p->bias != NULL, (long long)z, (long long)i, (long long)j,
                     got, want, bound);
}

void matmul_check_result(const dt_matmul_args *p, const void *before, int64_t c_count)
{
    const size_t size = dt_dtype_size(p->dtype_c);
    for (int64_t z = 0; z < p->batch; z++)
        for (int64_t i = 0; i < p->m; i++)
            for (int64_t j = 0; j < p->n; j++)
                check_element(p, before, z, i, j);
    for (int64_t e = 0; e < c_count; e++) {
        const int64_t column = e % p->stride_c % p->ldc;
        const bool inside = column < p->n && e % p->stride_c / p->ldc < p->m;
        if (!inside && memcmp((const char *)p->c + e * (int64_t)size,
                              (const char *)before + e * (int64_t)size, size) != 0)
            ck_abort_msg("element %lld between rows of C was written", (long long)e);
    }
}

void matmul_check(matmul_fn *product, dt_matmul_args p, int64_t gap, bool shared_b, uint32_t *state)
{
    const int64_t a_rows = p.trans_a ? p.k : p.m, a_cols = p.trans_a ? p.m : p.k;
    const int64_t b_rows = p.trans_b ? p.n : p.k, b_cols = p.trans_b ? p.k : p.n;
    p.lda = a_cols + gap;
    p.ldb = b_cols + 2 * gap;
    p.ldc = p.ldc > 0 ? p.ldc : p.n + 3 * gap;
    p.stride_a = a_rows * p.lda + gap;
    p.stride_b = shared_b ? 0 : b_rows * p.ldb + gap;
    p.stride_c = p.stride_c > 0 ? p.stride_c : p.m * p.ldc + gap;
    const int64_t c_count = extent(p.batch, p.stride_c, p.m, p.ldc, p.n);
    const size_t c_bytes = (size_t)c_count * dt_dtype_size(p.dtype_c);
    void *a = matmul_block(p.dtype, extent(p.batch, p.stride_a, a_rows, p.lda, a_cols), state);
    void *b = matmul_block(p.dtype, extent(p.batch, p.stride_b, b_rows, p.ldb, b_cols), state);
    void *c = matmul_block(p.dtype_c, c_count, state), *before = malloc(c_bytes + 1);
    ck_assert_ptr_nonnull(before);
    for (int64_t i = 0; i < c_count && p.beta == 0; i++)
        store(p.dtype_c, c, i, (double)NAN); /* must not be read */
    memcpy(before, c, c_bytes);
    void *bias = p.bias ? matmul_block(p.dtype_c, p.n, state) : NULL;
    p.a = a;
    p.b = b;
    p.c = c;
    p.bias = bias;
    product(&p);
    matmul_check_result(&p, before, c_count);
    free(a);
    free(b);
    free(c);
    free(before);
    free(bias);
}
