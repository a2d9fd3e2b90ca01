/* array/cuda/matmul.c - products on cuBLASLt. Row-major C = op(A) op(B) is the column-major C^T =
 * op(B)^T op(A)^T of the same bytes, so cuBLASLt is given B as its first operand and A as its
 * second, with n rows and m columns.
 *
 * Sums are in f32 for f32 (no TF32), bf16 and f16, in f64 for f64. What is described to cuBLASLt
 * and the algorithm it chose are kept in a small table of the rank's context; no product is timed,
 * so that all ranks choose alike. */
#include "array/cuda/gpu_internal.h"
#include "array/cuda/kernels_internal.h"
#include "array/matmul_internal.h"

#include <cublasLt.h>
#include <stdlib.h>
#include <string.h>

enum {
    SLOTS = 256,
    WAYS = 4,             /* slots where a key may be */
    WORKSPACE = 32 << 20, /* bytes that an algorithm may ask for: what cuBLAS takes on an H100 */
    ALIGNED = 256         /* bytes; more does not matter */
};

/* What an algorithm depends on; compared as bytes. */
typedef struct product_key {
    int64_t dtype, dtype_c, trans_a, trans_b, epilogue, batch, m, n, k, lda, ldb, ldc;
    int64_t stride_a, stride_b, stride_c, align_a, align_b, align_c, align_d;
} product_key;

typedef struct product {
    product_key key;       /* m 0: free */
    cublasStatus_t status; /* not success: cuBLASLt has no such product */
    cublasLtMatmulDesc_t desc;
    cublasLtMatrixLayout_t first, second, c;
    cublasLtMatmulAlgo_t algo;
    size_t workspace_bytes;
} product;

typedef struct products {
    cublasLtHandle_t handle;
    product slot[SLOTS];
} products;

static void drop_product(product *x)
{
    if (x->c)
        (void)cublasLtMatrixLayoutDestroy(x->c);
    if (x->second)
        (void)cublasLtMatrixLayoutDestroy(x->second);
    if (x->first)
        (void)cublasLtMatrixLayoutDestroy(x->first);
    if (x->desc)
        (void)cublasLtMatmulDescDestroy(x->desc);
    *x = (product){0};
}

static void drop_products(void *state)
{
    products *all = state;
    for (int i = 0; i < SLOTS; i++)
        drop_product(&all->slot[i]);
    (void)cublasLtDestroy(all->handle);
    free(all);
}

static dt_status get_products(products **out)
{
    dti_gpu_kept *kept = dti_gpu_keep(DTI_GPU_PRODUCTS);
    if (!kept->state) {
        products *all = calloc(1, sizeof *all);
        DT_REQUIRE(all, DT_ERR_NOMEM, "no memory for the table of products");
        const cublasStatus_t status = cublasLtCreate(&all->handle);
        if (status != CUBLAS_STATUS_SUCCESS) {
            free(all);
            return DT_ERROR(DT_ERR_DEVICE, "cublasLtCreate: %s", cublasLtGetStatusName(status));
        }
        *kept = (dti_gpu_kept){all, drop_products};
    }
    *out = kept->state;
    return DT_OK;
}

/* ---- what is described to cuBLASLt ---- */

static cudaDataType_t data_type(dt_dtype dtype)
{
    if (dtype == DT_F64)
        return CUDA_R_64F;
    if (dtype == DT_F32)
        return CUDA_R_32F;
    return dtype == DT_BF16 ? CUDA_R_16BF : CUDA_R_16F;
}

static int64_t alignment(const void *p)
{
    const uintptr_t lowest = (uintptr_t)p & -(uintptr_t)p;
    return lowest == 0 || lowest > ALIGNED ? ALIGNED : (int64_t)lowest;
}

/* What is added to all rows, or summed: never both. */
static const void *vector_of(const dt_matmul_args *p)
{
    return p->sums ? p->sums : p->bias;
}

/* cuBLASLt's first operand, its A, is our B. */
static uint32_t epilogue_of(const dt_matmul_args *p)
{
    if (p->sums)
        return p->sums_of_a ? CUBLASLT_EPILOGUE_BGRADB : CUBLASLT_EPILOGUE_BGRADA;
    return p->bias ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT;
}

static product_key key_of(const dt_matmul_args *p)
{
    const int64_t align_bias = alignment(vector_of(p)), align_c = alignment(p->c);
    return (product_key){.dtype = p->dtype,
                         .dtype_c = p->dtype_c,
                         .trans_a = p->trans_a,
                         .trans_b = p->trans_b,
                         .epilogue = epilogue_of(p),
                         .batch = p->batch,
                         .m = p->m,
                         .n = p->n,
                         .k = p->k,
                         .lda = p->lda,
                         .ldb = p->ldb,
                         .ldc = p->ldc,
                         .stride_a = p->stride_a,
                         .stride_b = p->stride_b,
                         .stride_c = p->stride_c,
                         .align_a = alignment(p->a),
                         .align_b = alignment(p->b),
                         .align_c = align_c,
                         .align_d = align_bias < align_c ? align_bias : align_c};
}

#define TRY_BLAS(call)                         \
    do {                                       \
        const cublasStatus_t status_ = (call); \
        if (status_ != CUBLAS_STATUS_SUCCESS)  \
            return status_;                    \
    } while (0)

static cublasStatus_t set(const product *x, cublasLtMatmulDescAttributes_t what, const void *value,
                          size_t bytes)
{
    return cublasLtMatmulDescSetAttribute(x->desc, what, value, bytes);
}

static cublasStatus_t set_vector(const product *x, const dt_matmul_args *p)
{
    const void *vector = vector_of(p);
    return set(x, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &vector, sizeof vector);
}

static cublasStatus_t create_desc(product *x, const dt_matmul_args *p)
{
    const bool wide = p->dtype == DT_F64;
    const int32_t first = p->trans_b ? CUBLAS_OP_T : CUBLAS_OP_N,
                  second = p->trans_a ? CUBLAS_OP_T : CUBLAS_OP_N,
                  bias_type = (int32_t)data_type(p->dtype_c);
    const uint32_t epilogue = epilogue_of(p);
    TRY_BLAS(cublasLtMatmulDescCreate(&x->desc, wide ? CUBLAS_COMPUTE_64F : CUBLAS_COMPUTE_32F,
                                      wide ? CUDA_R_64F : CUDA_R_32F));
    TRY_BLAS(set(x, CUBLASLT_MATMUL_DESC_TRANSA, &first, sizeof first));
    TRY_BLAS(set(x, CUBLASLT_MATMUL_DESC_TRANSB, &second, sizeof second));
    TRY_BLAS(set(x, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof epilogue));
    if (!vector_of(p))
        return CUBLAS_STATUS_SUCCESS;
    TRY_BLAS(set(x, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, &bias_type, sizeof bias_type));
    return set_vector(x, p);
}

/* The transpose of `rows` rows of `cols` numbers, as they are stored. */
static cublasStatus_t create_layout(cublasLtMatrixLayout_t *out, dt_dtype dtype, int64_t rows,
                                    int64_t cols, int64_t ld)
{
    return cublasLtMatrixLayoutCreate(out, data_type(dtype), (uint64_t)cols, (uint64_t)rows, ld);
}

static cublasStatus_t set_batch(cublasLtMatrixLayout_t layout, int64_t batch, int64_t stride)
{
    const int32_t count = (int32_t)batch;
    TRY_BLAS(cublasLtMatrixLayoutSetAttribute(layout, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &count,
                                              sizeof count));
    return cublasLtMatrixLayoutSetAttribute(layout, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET,
                                            &stride, sizeof stride);
}

static cublasStatus_t create_layouts(product *x, const dt_matmul_args *p)
{
    TRY_BLAS(create_layout(&x->first, p->dtype, p->trans_b ? p->n : p->k, p->trans_b ? p->k : p->n,
                           p->ldb));
    TRY_BLAS(create_layout(&x->second, p->dtype, p->trans_a ? p->k : p->m, p->trans_a ? p->m : p->k,
                           p->lda));
    TRY_BLAS(create_layout(&x->c, p->dtype_c, p->m, p->n, p->ldc));
    TRY_BLAS(set_batch(x->first, p->batch, p->stride_b));
    TRY_BLAS(set_batch(x->second, p->batch, p->stride_a));
    return set_batch(x->c, p->batch, p->stride_c);
}

static cublasStatus_t prefer(cublasLtMatmulPreference_t preference, const product_key *key)
{
    const struct {
        cublasLtMatmulPreferenceAttributes_t what;
        int64_t bytes;
    } alignments[] = {{CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, key->align_b},
                      {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, key->align_a},
                      {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, key->align_c},
                      {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, key->align_d}};
    const uint64_t limit = WORKSPACE;
    TRY_BLAS(cublasLtMatmulPreferenceSetAttribute(
        preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &limit, sizeof limit));
    for (int i = 0; i < DT_COUNT(alignments); i++) {
        const uint32_t bytes = (uint32_t)alignments[i].bytes;
        TRY_BLAS(cublasLtMatmulPreferenceSetAttribute(preference, alignments[i].what, &bytes,
                                                      sizeof bytes));
    }
    return CUBLAS_STATUS_SUCCESS;
}

static cublasStatus_t choose(cublasLtHandle_t handle, product *x)
{
    cublasLtMatmulHeuristicResult_t result;
    cublasLtMatmulPreference_t preference;
    int found = 0;
    TRY_BLAS(cublasLtMatmulPreferenceCreate(&preference));
    cublasStatus_t st = prefer(preference, &x->key);
    if (st == CUBLAS_STATUS_SUCCESS)
        st = cublasLtMatmulAlgoGetHeuristic(handle, x->desc, x->first, x->second, x->c, x->c,
                                            preference, 1, &result, &found);
    (void)cublasLtMatmulPreferenceDestroy(preference);
    if (st == CUBLAS_STATUS_SUCCESS && found == 0)
        st = CUBLAS_STATUS_NOT_SUPPORTED;
    if (st == CUBLAS_STATUS_SUCCESS) {
        x->algo = result.algo;
        x->workspace_bytes = result.workspaceSize;
    }
    return st;
}

static cublasStatus_t create_product(cublasLtHandle_t handle, product *x, const dt_matmul_args *p)
{
    TRY_BLAS(create_desc(x, p));
    TRY_BLAS(create_layouts(x, p));
    return choose(handle, x);
}

static product *find_product(products *all, const dt_matmul_args *p)
{
    const product_key key = key_of(p);
    product *first = &all->slot[dti_matmul_hash(&key, sizeof key) % (SLOTS / WAYS) * WAYS],
            *x = first;
    while (x < first + WAYS && x->key.m != 0 && memcmp(&x->key, &key, sizeof key) != 0)
        x++;
    if (x == first + WAYS) { /* all taken: the oldest goes */
        drop_product(first);
        memmove(first, first + 1, (WAYS - 1) * sizeof *first);
        *--x = (product){0};
    }
    if (x->key.m == 0) {
        x->key = key;
        x->status = create_product(all->handle, x, p);
    }
    return x;
}

/* ---- without cuBLASLt ---- */

/* C = beta C. */
static void scale_c(const dt_matmul_args *p)
{
    const bool dense = p->ldc == p->n;
    const int64_t n = dense ? p->m * p->n : p->n, pieces = dense ? 1 : p->m;
    for (int64_t i = 0; p->beta != 1 && i < p->batch * pieces; i++) {
        const int64_t at = i / pieces * p->stride_c + i % pieces * p->ldc;
        char *c = (char *)p->c + at * (int64_t)dt_dtype_size(p->dtype_c);
        if (p->beta == 0)
            dti_cuda_fill(p->dtype_c, c, n, 0);
        else
            dti_cuda_scale_into(p->dtype_c, c, n, p->beta);
    }
}

/* C = the bias in every row. */
static void spread_bias(const dt_matmul_args *p)
{
    dti_cuda_copy_block(&(dti_strided_block){.elem_bytes = (int64_t)dt_dtype_size(p->dtype_c),
                                             .ndim = 3,
                                             .extent = {p->batch, p->m, p->n},
                                             .dst_stride = {p->stride_c, p->ldc, 1},
                                             .src_stride = {0, 0, 1},
                                             .dst = p->c,
                                             .src = p->bias});
}

static cublasStatus_t run(cublasLtHandle_t handle, const product *x, const dt_matmul_args *p)
{
    const float alpha = (float)p->alpha, beta = (float)p->beta;
    const bool wide = p->dtype == DT_F64;
    TRY_BLAS(x->status);
    if (vector_of(p))
        TRY_BLAS(set_vector(x, p));
    void *room = dti_gpu_scratch(x->workspace_bytes);
    TRY_BLAS(room || x->workspace_bytes == 0 ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_ALLOC_FAILED);
    return cublasLtMatmul(handle, x->desc, wide ? (const void *)&p->alpha : &alpha, p->b, x->first,
                          p->a, x->second, wide ? (const void *)&p->beta : &beta, p->c, x->c, p->c,
                          x->c, &x->algo, room, x->workspace_bytes, dti_gpu_stream());
}

/* cuBLASLt adds and sums no vector in f64, and may not at every alignment. */
static bool has_epilogue(products *all, const dt_matmul_args *p)
{
    return p->k > 0 && p->dtype != DT_F64 && find_product(all, p)->status == CUBLAS_STATUS_SUCCESS;
}

dt_status dti_cuda_matmul(const dt_matmul_args *args)
{
    dt_matmul_args p = *args;
    products *all;
    DT_TRY(get_products(&all));
    if (p.bias && !has_epilogue(all, &p)) {
        spread_bias(&p);
        p.bias = NULL;
        p.beta = 1;
    }
    if (p.sums && !has_epilogue(all, &p))
        p.sums = NULL;
    if (p.k == 0) {
        scale_c(&p);
        return dti_cuda_status();
    }
    const cublasStatus_t st = run(all->handle, find_product(all, &p), &p);
    DT_REQUIRE(st == CUBLAS_STATUS_SUCCESS, DT_ERR_DEVICE,
               "cublasLtMatmul of %s, m=%lld n=%lld k=%lld batch=%lld: %s", dt_dtype_name(p.dtype),
               (long long)p.m, (long long)p.n, (long long)p.k, (long long)p.batch,
               cublasLtGetStatusName(st));
    dti_gpu_count_launch();
    if (p.sums)
        *p.summed = true;
    return dti_cuda_status();
}
