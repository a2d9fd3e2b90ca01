/* tests/simdev/self/test_blas.c - epilogues of cublasLtMatmul that cuBLASLt does not have are
 * refused. That those which it has compute what they should: tests/gpu/test_matmul.c. */
#include "tests/simdev/self/device_test.h"

#include <cublasLt.h>

enum { M = 16, N = 24, K = 8 };

typedef struct product {
    cublasLtEpilogue_t epilogue;
    cudaDataType_t in, out, bias; /* bias 0 (a type of its own, f32): none is named */
    bool named, no_pointer, rows_first;
    int32_t batch;
    cublasStatus_t status;
} product;

#define ck_blas(call) ck_assert_int_eq((call), CUBLAS_STATUS_SUCCESS)

static cublasLtMatrixLayout_t layout(const product *p, cudaDataType_t type, uint64_t rows,
                                     uint64_t cols)
{
    cublasLtMatrixLayout_t x;
    const int32_t order = p->rows_first ? CUBLASLT_ORDER_ROW : CUBLASLT_ORDER_COL;
    const int64_t stride = (int64_t)(rows * cols);
    ck_blas(
        cublasLtMatrixLayoutCreate(&x, type, rows, cols, (int64_t)(p->rows_first ? cols : rows)));
    ck_blas(
        cublasLtMatrixLayoutSetAttribute(x, CUBLASLT_MATRIX_LAYOUT_ORDER, &order, sizeof order));
    ck_blas(cublasLtMatrixLayoutSetAttribute(x, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &p->batch,
                                             sizeof p->batch));
    ck_blas(cublasLtMatrixLayoutSetAttribute(x, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET,
                                             &stride, sizeof stride));
    return x;
}

static cublasStatus_t ask(const product *p)
{
    cublasLtHandle_t lt;
    cublasLtMatmulDesc_t desc;
    cublasLtMatmulPreference_t preference;
    cublasLtMatmulHeuristicResult_t result;
    int found = 0;
    const bool wide = p->in == CUDA_R_64F;
    const int32_t type = (int32_t)p->bias;
    void *vector = device_array(4 * N);
    ck_blas(cublasLtCreate(&lt));
    ck_blas(cublasLtMatmulDescCreate(&desc, wide ? CUBLAS_COMPUTE_64F : CUBLAS_COMPUTE_32F,
                                     wide ? CUDA_R_64F : CUDA_R_32F));
    ck_blas(cublasLtMatmulDescSetAttribute(desc, CUBLASLT_MATMUL_DESC_EPILOGUE, &p->epilogue,
                                           sizeof p->epilogue));
    if (p->named)
        ck_blas(cublasLtMatmulDescSetAttribute(desc, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, &type,
                                               sizeof type));
    if (!p->no_pointer)
        ck_blas(cublasLtMatmulDescSetAttribute(desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &vector,
                                               sizeof vector));
    cublasLtMatrixLayout_t a = layout(p, p->in, M, K), b = layout(p, p->in, K, N),
                           c = layout(p, p->out, M, N);
    ck_blas(cublasLtMatmulPreferenceCreate(&preference));
    const cublasStatus_t st =
        cublasLtMatmulAlgoGetHeuristic(lt, desc, a, b, c, c, preference, 1, &result, &found);
    ck_assert_int_eq(found, st == CUBLAS_STATUS_SUCCESS);
    ck_blas(cublasLtMatmulPreferenceDestroy(preference));
    ck_blas(cublasLtMatrixLayoutDestroy(a));
    ck_blas(cublasLtMatrixLayoutDestroy(b));
    ck_blas(cublasLtMatrixLayoutDestroy(c));
    ck_blas(cublasLtMatmulDescDestroy(desc));
    ck_blas(cublasLtDestroy(lt));
    ck_cuda(cudaFree(vector));
    return st;
}

START_TEST(vectors_of_epilogues)
{
    static const cublasLtEpilogue_t with_vector[] = {
        CUBLASLT_EPILOGUE_BIAS, CUBLASLT_EPILOGUE_BGRADA, CUBLASLT_EPILOGUE_BGRADB};
    static const product cases[] = {
        {.in = CUDA_R_32F, .out = CUDA_R_32F},
        {.in = CUDA_R_16BF, .out = CUDA_R_32F, .bias = CUDA_R_32F, .named = true},
        {.in = CUDA_R_16BF, .out = CUDA_R_16BF, .bias = CUDA_R_16BF, .named = true},
        {.in = CUDA_R_16BF,
         .out = CUDA_R_32F,
         .bias = CUDA_R_16F,
         .named = true,
         .status = CUBLAS_STATUS_NOT_SUPPORTED},
        {.in = CUDA_R_32F,
         .out = CUDA_R_32F,
         .no_pointer = true,
         .status = CUBLAS_STATUS_NOT_SUPPORTED},
        {.in = CUDA_R_32F,
         .out = CUDA_R_32F,
         .rows_first = true,
         .status = CUBLAS_STATUS_NOT_SUPPORTED},
        {.in = CUDA_R_64F, .out = CUDA_R_64F, .status = CUBLAS_STATUS_NOT_SUPPORTED},
    };
    for (int e = 0; e < DT_COUNT(with_vector); e++)
        for (int i = 0; i < DT_COUNT(cases); i++) {
            product p = cases[i];
            p.epilogue = with_vector[e];
            p.batch = 1;
            ck_assert_msg(ask(&p) == p.status, "epilogue %d, case %d", (int)p.epilogue, i);
        }
}
END_TEST

/* Sums of a batch: there would be one vector for all. A name that no header has. */
START_TEST(epilogues_that_are_not)
{
    product p = {
        .in = CUDA_R_32F, .out = CUDA_R_32F, .batch = 2, .epilogue = CUBLASLT_EPILOGUE_BIAS};
    ck_assert_int_eq(ask(&p), CUBLAS_STATUS_SUCCESS);
    p.epilogue = CUBLASLT_EPILOGUE_BGRADA;
    ck_assert_int_eq(ask(&p), CUBLAS_STATUS_NOT_SUPPORTED);
    p.epilogue = (cublasLtEpilogue_t)(CUBLASLT_EPILOGUE_BGRADA | CUBLASLT_EPILOGUE_BGRADB);
    p.batch = 1;
    ck_assert_int_eq(ask(&p), CUBLAS_STATUS_NOT_SUPPORTED);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("products of the simulated device");
    TCase *tc = tcase_create("blas");
    tcase_add_test(tc, vectors_of_epilogues);
    tcase_add_test(tc, epilogues_that_are_not);
    suite_add_tcase(suite, tc);
    return test_main(suite);
}
