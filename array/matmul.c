/* array/matmul.c - dt_matmul_run: checks, trivial cases, and the 16-bit products that the backend
 * does not have. Read next: array/matmul_onednn.c or array/matmul_plain.c. */
#include "array/cuda_internal.h"
#include "array/dt_half.h"
#include "array/dt_kernels.h"
#include "array/matmul_internal.h"

#include <stdlib.h>
#include <string.h>

enum { BLOCK = 1024 }; /* elements staged on the stack */

/* Rows of all products, as they lie. */
typedef struct rows {
    dt_dtype dtype;
    const char *data;
    int64_t batch, rows, cols, ld, stride;
} rows;

static rows rows_a(const dt_matmul_args *p)
{
    return (rows){p->dtype,
                  p->a,
                  p->stride_a == 0 ? 1 : p->batch,
                  p->trans_a ? p->k : p->m,
                  p->trans_a ? p->m : p->k,
                  p->lda,
                  p->stride_a};
}

static rows rows_b(const dt_matmul_args *p)
{
    return (rows){p->dtype,
                  p->b,
                  p->stride_b == 0 ? 1 : p->batch,
                  p->trans_b ? p->n : p->k,
                  p->trans_b ? p->k : p->n,
                  p->ldb,
                  p->stride_b};
}

static rows rows_c(const dt_matmul_args *p)
{
    return (rows){p->dtype_c, p->c, p->batch, p->m, p->n, p->ldc, p->stride_c};
}

static char *row_at(const rows *x, int64_t index)
{
    const int64_t element = index / x->rows * x->stride + index % x->rows * x->ld;
    return (char *)(uintptr_t)x->data + element * (int64_t)dt_dtype_size(x->dtype);
}

/* alpha * total + beta * C, row by row; total may be NULL (0). */
typedef struct finish_job {
    rows c;
    const float *total;
    double alpha, beta;
} finish_job;

DT_CLONES static void combine_f32(float *c, const float *total, int64_t n, float alpha, float beta)
{
    for (int64_t i = 0; i < n; i++)
        c[i] = beta * c[i] + alpha * total[i];
}

DT_CLONES static void scale_f32(float *out, const float *x, int64_t n, float factor)
{
    for (int64_t i = 0; i < n; i++)
        out[i] = factor * x[i];
}

static void finish_block(const finish_job *job, char *c, const float *total, int64_t n)
{
    float x[BLOCK];
    const float alpha = (float)job->alpha, beta = (float)job->beta;
    if (job->beta == 0) {
        scale_f32(x, total, n, alpha);
    } else {
        dt_load_f32(job->c.dtype, c, x, n);
        combine_f32(x, total, n, alpha, beta);
    }
    dt_store_f32(job->c.dtype, x, c, n);
}

static void finish_rows(void *arg, int64_t lo, int64_t hi)
{
    const finish_job *job = arg;
    const int64_t cols = job->c.cols, size = (int64_t)dt_dtype_size(job->c.dtype);
    for (int64_t r = lo; r < hi; r++) {
        char *c = row_at(&job->c, r);
        for (int64_t j = 0; j < cols; j += BLOCK)
            finish_block(job, c + j * size, job->total + r * cols + j,
                         cols - j < BLOCK ? cols - j : BLOCK);
    }
}

/* k = 0: C = beta * C, where 0 means zeros whatever was there. */
static void scale_rows(void *arg, int64_t lo, int64_t hi)
{
    const finish_job *job = arg;
    const int64_t cols = job->c.cols;
    static const float zeros[BLOCK];
    for (int64_t r = lo; r < hi; r++) {
        char *c = row_at(&job->c, r);
        if (job->c.dtype == DT_F64) {
            double *x = (double *)(void *)c;
            for (int64_t j = 0; j < cols; j++)
                x[j] = job->beta == 0 ? 0 : job->beta * x[j];
            continue;
        }
        const int64_t size = (int64_t)dt_dtype_size(job->c.dtype);
        for (int64_t j = 0; j < cols; j += BLOCK)
            finish_block(job, c + j * size, zeros, cols - j < BLOCK ? cols - j : BLOCK);
    }
}

typedef struct spread_job {
    rows c;
    const void *bias;
} spread_job;

/* C = the bias in every row. */
static void spread_rows(void *arg, int64_t lo, int64_t hi)
{
    const spread_job *job = arg;
    for (int64_t r = lo; r < hi; r++)
        memcpy(row_at(&job->c, r), job->bias, (size_t)job->c.cols * dt_dtype_size(job->c.dtype));
}

typedef struct widen_job {
    rows src;
    float *dst;
} widen_job;

static void widen_rows(void *arg, int64_t lo, int64_t hi)
{
    const widen_job *job = arg;
    for (int64_t r = lo; r < hi; r++)
        dt_load_f32(job->src.dtype, row_at(&job->src, r), job->dst + r * job->src.cols,
                    job->src.cols);
}

static int64_t total_rows(const rows *x)
{
    return x->batch * x->rows;
}

static size_t f32_bytes(const rows *x)
{
    return (size_t)(total_rows(x) * x->cols) * sizeof(float);
}

/* The f32 product of widened copies of A and B. */
static dt_status widened_product(const dt_matmul_args *p)
{
    widen_job a = {.src = rows_a(p)}, b = {.src = rows_b(p)};
    a.dst = malloc(f32_bytes(&a.src));
    b.dst = malloc(f32_bytes(&b.src));
    dt_status st = DT_OK;
    if (a.dst == NULL || b.dst == NULL) {
        st = DT_ERROR(DT_ERR_NOMEM, "f32 copies of a %s product's operands: %zu bytes",
                      dt_dtype_name(p->dtype), f32_bytes(&a.src) + f32_bytes(&b.src));
    } else {
        dt_parallel_range(total_rows(&a.src), a.src.cols, widen_rows, &a);
        dt_parallel_range(total_rows(&b.src), b.src.cols, widen_rows, &b);
        dt_matmul_args wide = *p;
        wide.dtype = DT_F32;
        wide.a = a.dst;
        wide.b = b.dst;
        wide.lda = a.src.cols;
        wide.ldb = b.src.cols;
        wide.stride_a = p->stride_a == 0 ? 0 : a.src.rows * a.src.cols;
        wide.stride_b = p->stride_b == 0 ? 0 : b.src.rows * b.src.cols;
        st = dti_matmul_f32(&wide);
    }
    free(a.dst);
    free(b.dst);
    return st;
}

/* bf16, f16: straight into C where possible, else through an f32 product. */
static dt_status product_16(const dt_matmul_args *p)
{
    bool done = false;
    if (p->alpha == 1 && (p->beta == 0 || p->beta == 1))
        DT_TRY(dti_matmul_16(p, &done));
    if (done)
        return DT_OK;
    const rows c = rows_c(p);
    float *total = malloc(f32_bytes(&c));
    DT_REQUIRE(total != NULL, DT_ERR_NOMEM, "f32 sums of a %s product: %zu bytes",
               dt_dtype_name(p->dtype), f32_bytes(&c));
    dt_matmul_args sum = *p;
    sum.dtype_c = DT_F32;
    sum.c = total;
    sum.ldc = p->n;
    sum.stride_c = p->m * p->n;
    sum.alpha = 1;
    sum.beta = 0;
    dt_status st = DT_OK;
    DT_TRY_TO(end, st, dti_matmul_16(&sum, &done));
    if (!done)
        DT_TRY_TO(end, st, widened_product(&sum));
    finish_job job = {.c = c, .total = total, .alpha = p->alpha, .beta = p->beta};
    dt_parallel_range(total_rows(&c), p->n, finish_rows, &job);
end:
    free(total);
    return st;
}

static dt_status check_args(const dt_matmul_args *p)
{
    const bool half = p->dtype == DT_BF16 || p->dtype == DT_F16;
    DT_REQUIRE(
        dt_dtype_is_float(p->dtype) && (p->dtype_c == p->dtype || (half && p->dtype_c == DT_F32)),
        DT_ERR_ARG, "%s product into %s: C must have the inputs' float dtype, or f32 for 16 bits",
        dt_dtype_name(p->dtype), dt_dtype_name(p->dtype_c));
    DT_REQUIRE(p->m >= 0 && p->n >= 0 && p->k >= 0 && p->batch >= 0, DT_ERR_ARG,
               "m=%lld n=%lld k=%lld batch=%lld must not be negative", (long long)p->m,
               (long long)p->n, (long long)p->k, (long long)p->batch);
    DT_REQUIRE(p->lda >= rows_a(p).cols && p->ldb >= rows_b(p).cols && p->ldc >= p->n, DT_ERR_ARG,
               "lda=%lld ldb=%lld ldc=%lld are shorter than rows of %lld, %lld, %lld",
               (long long)p->lda, (long long)p->ldb, (long long)p->ldc, (long long)rows_a(p).cols,
               (long long)rows_b(p).cols, (long long)p->n);
    DT_REQUIRE(p->bias == NULL || p->beta == 0, DT_ERR_ARG,
               "beta=%g with a bias: C would have to be read; give beta 0", p->beta);
    DT_REQUIRE(!p->sums || (p->batch == 1 && !p->bias && p->alpha == 1 && p->beta == 0), DT_ERR_ARG,
               "batch=%lld alpha=%g beta=%g bias=%d: sums are made of one product, with 1, 0 and 0",
               (long long)p->batch, p->alpha, p->beta, p->bias != NULL);
    return DT_OK;
}

dt_status dt_matmul_run(const dt_matmul_args *args)
{
    dt_matmul_args p = *args;
    p.lda = p.lda == 0 ? rows_a(&p).cols : p.lda;
    p.ldb = p.ldb == 0 ? rows_b(&p).cols : p.ldb;
    p.ldc = p.ldc == 0 ? p.n : p.ldc;
    DT_TRY(check_args(&p));
    if (p.sums)
        *p.summed = false;
    if (p.m == 0 || p.n == 0 || p.batch == 0)
        return DT_OK;
    if (p.device == DT_CUDA)
        return dti_cuda_matmul(&p);
    if (p.bias) {
        spread_job job = {.c = rows_c(&p), .bias = p.bias};
        dt_parallel_range(total_rows(&job.c), p.n, spread_rows, &job);
        p.beta = 1;
    }
    if (p.k == 0) {
        finish_job job = {.c = rows_c(&p), .beta = p.beta};
        dt_parallel_range(total_rows(&job.c), p.n, scale_rows, &job);
        return DT_OK;
    }
    if (p.dtype == DT_F64) {
        dti_matmul_plain_f64(&p);
        return DT_OK;
    }
    return p.dtype == DT_F32 ? dti_matmul_f32(&p) : product_16(&p);
}
