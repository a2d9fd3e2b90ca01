/* bench/gpu_products.c - products of the library against the best of the algorithms that cuBLASLt
 * offers for them, each tried: those of a Llama 8B layer on 8192 tokens, forward and both
 * gradients. Read first: bench/gpu.c. */
#include "array/dt_matmul.h"
#include "bench/gpu_bench.h"

#include <cublasLt.h>
#include <cuda_runtime_api.h>
#include <stdio.h>

enum { ALGORITHMS = 32, WORKSPACE = 32 << 20, ROOM = 8192 * 14336 * 2 };

/* y [tokens, out] = x [tokens, in] w^T; w [out, in]. */
typedef enum form { FORWARD, INPUT, WEIGHT, FORMS } form;
static const char *const form_names[FORMS] = {"", ", dx", ", dw"};
static const struct {
    const char *name;
    int64_t out, in;
} weights[] = {
    {"q, o", 4096, 4096}, {"k, v", 1024, 4096}, {"up", 14336, 4096}, {"down", 4096, 14336}};

static dt_matmul_args args_of(form f, int64_t tokens, int64_t out, int64_t in)
{
    dt_matmul_args p = {
        .dtype = DT_BF16, .dtype_c = DT_BF16, .device = DT_CUDA, .batch = 1, .alpha = 1};
    p.m = f == WEIGHT ? out : tokens;
    p.n = f == FORWARD ? out : in;
    p.k = f == FORWARD ? in : f == INPUT ? out : tokens;
    p.trans_a = f == WEIGHT;
    p.trans_b = f == FORWARD;
    return p;
}

static dt_status run_ours(void *arg)
{
    return dt_matmul_run(arg);
}

/* ---- cuBLASLt itself: the column-major transpose, as array/cuda/matmul.c says ---- */

typedef struct direct {
    const dt_matmul_args *p;
    cublasLtHandle_t handle;
    cublasLtMatmulDesc_t desc;
    cublasLtMatrixLayout_t first, second, c;
    void *workspace;
    cudaStream_t stream;
    int n;
    cublasLtMatmulHeuristicResult_t found[ALGORITHMS], *now;
} direct;

#define TRY_BLAS(call)                                                                      \
    do {                                                                                    \
        const cublasStatus_t status_ = (call);                                              \
        DT_REQUIRE(status_ == CUBLAS_STATUS_SUCCESS, DT_ERR_DEVICE, "%s: status %d", #call, \
                   (int)status_);                                                           \
    } while (0)

static dt_status open_layout(cublasLtMatrixLayout_t *out, bool trans, int64_t rows, int64_t cols)
{
    const int64_t r = trans ? cols : rows, c = trans ? rows : cols;
    TRY_BLAS(cublasLtMatrixLayoutCreate(out, CUDA_R_16BF, (uint64_t)c, (uint64_t)r, c));
    return DT_OK;
}

static dt_status open_direct(direct *d)
{
    const dt_matmul_args *p = d->p;
    const int32_t first = p->trans_b ? CUBLAS_OP_T : CUBLAS_OP_N,
                  second = p->trans_a ? CUBLAS_OP_T : CUBLAS_OP_N;
    const uint64_t limit = WORKSPACE;
    cublasLtMatmulPreference_t preference;
    TRY_BLAS(cublasLtCreate(&d->handle));
    TRY_BLAS(cublasLtMatmulDescCreate(&d->desc, CUBLAS_COMPUTE_32F, CUDA_R_32F));
    TRY_BLAS(
        cublasLtMatmulDescSetAttribute(d->desc, CUBLASLT_MATMUL_DESC_TRANSA, &first, sizeof first));
    TRY_BLAS(cublasLtMatmulDescSetAttribute(d->desc, CUBLASLT_MATMUL_DESC_TRANSB, &second,
                                            sizeof second));
    DT_TRY(open_layout(&d->first, p->trans_b, p->k, p->n));
    DT_TRY(open_layout(&d->second, p->trans_a, p->m, p->k));
    DT_TRY(open_layout(&d->c, false, p->m, p->n));
    TRY_BLAS(cublasLtMatmulPreferenceCreate(&preference));
    TRY_BLAS(cublasLtMatmulPreferenceSetAttribute(
        preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &limit, sizeof limit));
    TRY_BLAS(cublasLtMatmulAlgoGetHeuristic(d->handle, d->desc, d->first, d->second, d->c, d->c,
                                            preference, ALGORITHMS, d->found, &d->n));
    (void)cublasLtMatmulPreferenceDestroy(preference);
    return DT_OK;
}

static void close_direct(direct *d)
{
    (void)cublasLtMatrixLayoutDestroy(d->c);
    (void)cublasLtMatrixLayoutDestroy(d->second);
    (void)cublasLtMatrixLayoutDestroy(d->first);
    (void)cublasLtMatmulDescDestroy(d->desc);
    (void)cublasLtDestroy(d->handle);
}

static dt_status run_direct(void *arg)
{
    const direct *d = arg;
    const float one = 1, zero = 0;
    TRY_BLAS(cublasLtMatmul(d->handle, d->desc, &one, d->p->b, d->first, d->p->a, d->second, &zero,
                            d->p->c, d->c, d->p->c, d->c, &d->now->algo, d->workspace, WORKSPACE,
                            d->stream));
    return DT_OK;
}

static dt_status best_of(const gpu_bench *b, direct *d, double *best_s)
{
    *best_s = 0;
    DT_TRY(open_direct(d));
    for (int i = 0; i < d->n; i++) {
        double seconds = 0;
        d->now = &d->found[i];
        if (d->now->state == CUBLAS_STATUS_SUCCESS)
            DT_TRY(gpu_time(b, run_direct, d, &seconds));
        if (seconds > 0 && (*best_s == 0 || seconds < *best_s))
            *best_s = seconds;
    }
    close_direct(d);
    return DT_OK;
}

dt_status gpu_bench_products(gpu_bench *b)
{
    const int64_t cut = b->tiny ? 64 : 1;
    dt_array x[4];
    for (int i = 0; i < 3; i++)
        DT_TRY(gpu_room(b, ROOM / cut / cut, 0.02, &x[i]));
    DT_TRY(gpu_room(b, WORKSPACE, 0, &x[3]));
    for (int i = 0; i < DT_COUNT(weights); i++)
        for (form f = FORWARD; f < FORMS; f++) {
            dt_matmul_args p = args_of(f, 8192 / cut, weights[i].out / cut, weights[i].in / cut);
            p.a = dt_array_data(&x[0]);
            p.b = dt_array_data(&x[1]);
            p.c = dt_array_data(&x[2]);
            direct d = {
                .p = &p, .workspace = dt_array_data(&x[3]), .stream = dt_heap_stream(b->heap)};
            double ours_s = 0, best_s = 0;
            DT_TRY(best_of(b, &d, &best_s));
            DT_TRY(gpu_time(b, run_ours, &p, &ours_s));
            (void)printf("product %-4s%-4s %5lld x %5lld x %5lld: %6.1f TFLOP/s = %.2f of the best "
                         "of cuBLASLt's %d\n",
                         weights[i].name, form_names[f], (long long)p.m, (long long)p.n,
                         (long long)p.k, 2e-12 * (double)(p.m * p.n * p.k) / ours_s,
                         best_s / ours_s, d.n);
        }
    gpu_release();
    return DT_OK;
}
