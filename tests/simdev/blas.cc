/* tests/simdev/blas.cc - cuBLASLt's functions: descriptors, which products are legal, one algorithm
 * for all. Stricter than cuBLASLt: what its documentation does not promise is not supported. */
#include "blas_internal.h"

#include <cstdlib>
#include <cstring>

static const uint64_t algorithm_mark = 0x73696d646576;
static const size_t workspace_wanted = 32768;

struct cublasLtContext {
    int device;
};
struct Preference {
    uint64_t workspace;
};

static SimLayout &of(cublasLtMatrixLayout_t l)
{
    return *reinterpret_cast<SimLayout *>(l);
}

static SimMatmul &of(cublasLtMatmulDesc_t d)
{
    return *reinterpret_cast<SimMatmul *>(d);
}

template <class T> static cublasStatus_t create(T *out)
{
    *out = static_cast<T>(calloc(1, sizeof **out));
    return *out ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_ALLOC_FAILED;
}

static cublasStatus_t destroy(void *p)
{
    free(p);
    return CUBLAS_STATUS_SUCCESS;
}

/* Copy an attribute of exactly the size of *to. */
template <class T> static cublasStatus_t set(T *to, const void *value, size_t bytes)
{
    if (bytes != sizeof *to)
        return CUBLAS_STATUS_INVALID_VALUE;
    memcpy(to, value, bytes);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtCreate(cublasLtHandle_t *out)
{
    *out = new cublasLtContext{sim_device()};
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle)
{
    delete handle;
    return CUBLAS_STATUS_SUCCESS;
}

size_t cublasLtGetVersion(void)
{
    return CUBLAS_VERSION;
}

const char *cublasLtGetStatusName(cublasStatus_t status)
{
    switch (status) {
    case CUBLAS_STATUS_SUCCESS: return "CUBLAS_STATUS_SUCCESS";
    case CUBLAS_STATUS_INVALID_VALUE: return "CUBLAS_STATUS_INVALID_VALUE";
    case CUBLAS_STATUS_NOT_SUPPORTED: return "CUBLAS_STATUS_NOT_SUPPORTED";
    case CUBLAS_STATUS_ALLOC_FAILED: return "CUBLAS_STATUS_ALLOC_FAILED";
    default: return "a cuBLAS status that the simulated device does not give";
    }
}

const char *cublasLtGetStatusString(cublasStatus_t status)
{
    return cublasLtGetStatusName(status);
}

/* ---- descriptors ---- */

cublasStatus_t cublasLtMatrixLayoutInit_internal(cublasLtMatrixLayout_t layout, size_t,
                                                 cudaDataType type, uint64_t rows, uint64_t cols,
                                                 int64_t ld)
{
    of(layout) = SimLayout{type, CUBLASLT_ORDER_COL, 1, rows, cols, ld, 0};
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *out, cudaDataType type,
                                          uint64_t rows, uint64_t cols, int64_t ld)
{
    cublasStatus_t status = create(out);
    return status ? status
                  : cublasLtMatrixLayoutInit_internal(*out, sizeof **out, type, rows, cols, ld);
}

cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout)
{
    return destroy(layout);
}

cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t layout,
                                                cublasLtMatrixLayoutAttribute_t attribute,
                                                const void *value, size_t bytes)
{
    SimLayout &l = of(layout);
    switch (attribute) {
    case CUBLASLT_MATRIX_LAYOUT_TYPE: return set(&l.type, value, bytes);
    case CUBLASLT_MATRIX_LAYOUT_ORDER: return set(&l.order, value, bytes);
    case CUBLASLT_MATRIX_LAYOUT_ROWS: return set(&l.rows, value, bytes);
    case CUBLASLT_MATRIX_LAYOUT_COLS: return set(&l.cols, value, bytes);
    case CUBLASLT_MATRIX_LAYOUT_LD: return set(&l.ld, value, bytes);
    case CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT: return set(&l.batch, value, bytes);
    case CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET: return set(&l.stride, value, bytes);
    default: return CUBLAS_STATUS_NOT_SUPPORTED;
    }
}

cublasStatus_t cublasLtMatmulDescInit_internal(cublasLtMatmulDesc_t desc, size_t,
                                               cublasComputeType_t compute, cudaDataType_t scale)
{
    SimMatmul &d = of(desc);
    memset(&d, 0, sizeof d);
    d.compute = compute;
    d.scale = scale;
    d.epilogue = CUBLASLT_EPILOGUE_DEFAULT;
    d.bias_type = d.aux_type = -1;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *out, cublasComputeType_t compute,
                                        cudaDataType_t scale)
{
    cublasStatus_t status = create(out);
    return status ? status : cublasLtMatmulDescInit_internal(*out, sizeof **out, compute, scale);
}

cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t desc)
{
    return destroy(desc);
}

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t desc,
                                              cublasLtMatmulDescAttributes_t attribute,
                                              const void *value, size_t bytes)
{
    SimMatmul &d = of(desc);
    switch (attribute) {
    case CUBLASLT_MATMUL_DESC_COMPUTE_TYPE: return set(&d.compute, value, bytes);
    case CUBLASLT_MATMUL_DESC_SCALE_TYPE: return set(&d.scale, value, bytes);
    case CUBLASLT_MATMUL_DESC_TRANSA: return set(&d.trans_a, value, bytes);
    case CUBLASLT_MATMUL_DESC_TRANSB: return set(&d.trans_b, value, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE: return set(&d.epilogue, value, bytes);
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER: return set(&d.bias, value, bytes);
    case CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE: return set(&d.bias_type, value, bytes);
    case CUBLASLT_MATMUL_DESC_BIAS_BATCH_STRIDE: return set(&d.bias_stride, value, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER: return set(&d.aux, value, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD: return set(&d.aux_ld, value, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_DATA_TYPE: return set(&d.aux_type, value, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_BATCH_STRIDE: return set(&d.aux_stride, value, bytes);
    default: return CUBLAS_STATUS_NOT_SUPPORTED;
    }
}

cublasStatus_t cublasLtMatmulPreferenceInit_internal(cublasLtMatmulPreference_t p, size_t)
{
    reinterpret_cast<Preference *>(p)->workspace = 0;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *out)
{
    return create(out);
}

cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t p)
{
    return destroy(p);
}

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t p,
                                                    cublasLtMatmulPreferenceAttributes_t attribute,
                                                    const void *value, size_t bytes)
{
    if (attribute == CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES)
        return set(&reinterpret_cast<Preference *>(p)->workspace, value, bytes);
    return CUBLAS_STATUS_SUCCESS; /* of speed */
}

/* ---- which products there are ---- */

static bool fits(const SimLayout &l)
{
    int64_t least = static_cast<int64_t>(l.order == CUBLASLT_ORDER_ROW ? l.cols : l.rows);
    return l.rows && l.cols && l.ld >= least && l.batch > 0 && l.stride >= 0 &&
           (l.order == CUBLASLT_ORDER_ROW || l.order == CUBLASLT_ORDER_COL);
}

static bool types_are_legal(const SimProduct &p)
{
    int a = p.layout_a.type, d = p.layout_d.type;
    bool narrow = a == CUDA_R_16F || a == CUDA_R_16BF;
    if (!sim_blas_bytes(a) || a != p.layout_b.type || d != p.layout_c.type)
        return false;
    if (a == CUDA_R_64F)
        return d == a && p.op.compute == CUBLAS_COMPUTE_64F && p.op.scale == CUDA_R_64F;
    return (d == a || (narrow && d == CUDA_R_32F)) && p.op.scale == CUDA_R_32F &&
           (p.op.compute == CUBLAS_COMPUTE_32F || p.op.compute == CUBLAS_COMPUTE_32F_FAST_TF32 ||
            p.op.compute == CUBLAS_COMPUTE_32F_PEDANTIC);
}

static bool epilogue_is_legal(const SimProduct &p)
{
    const SimMatmul &op = p.op;
    int type = p.layout_d.type;
    bool gradient = op.epilogue & (SIM_BGRAD | SIM_BGRAD_A | SIM_BGRAD_B);
    switch (op.epilogue) {
    case CUBLASLT_EPILOGUE_DEFAULT: return true;
    case CUBLASLT_EPILOGUE_BIAS:
    case CUBLASLT_EPILOGUE_GELU:
    case CUBLASLT_EPILOGUE_GELU_BIAS:
    case CUBLASLT_EPILOGUE_GELU_AUX:
    case CUBLASLT_EPILOGUE_GELU_AUX_BIAS:
    case CUBLASLT_EPILOGUE_DGELU:
    case CUBLASLT_EPILOGUE_DGELU_BGRAD:
    case CUBLASLT_EPILOGUE_BGRADA:
    case CUBLASLT_EPILOGUE_BGRADB: break;
    default: return false;
    }
    if (p.layout_d.order != CUBLASLT_ORDER_COL || type == CUDA_R_64F)
        return false;
    if ((op.epilogue & SIM_BIAS || gradient) &&
        (!op.bias || (op.bias_type >= 0 && op.bias_type != type)))
        return false;
    if (op.epilogue & SIM_AUX && (!op.aux || op.aux_ld < static_cast<int64_t>(p.layout_d.rows) ||
                                  op.aux_ld % 8 || (op.aux_type >= 0 && op.aux_type != type)))
        return false;
    return !gradient || p.layout_d.batch == 1;
}

static cublasStatus_t check(const SimProduct &p)
{
    const SimLayout &a = p.layout_a, &b = p.layout_b, &c = p.layout_c, &d = p.layout_d;
    if (!fits(a) || !fits(b) || !fits(c) || !fits(d) || a.batch != d.batch || b.batch != d.batch ||
        c.batch != d.batch || c.rows != d.rows || c.cols != d.cols ||
        (p.op.trans_a ? a.cols : a.rows) != d.rows || (p.op.trans_b ? b.rows : b.cols) != d.cols ||
        (p.op.trans_b ? b.cols : b.rows) != sim_blas_k(p))
        return CUBLAS_STATUS_INVALID_VALUE;
    return types_are_legal(p) && epilogue_is_legal(p) ? CUBLAS_STATUS_SUCCESS
                                                      : CUBLAS_STATUS_NOT_SUPPORTED;
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t desc,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preference, int wanted,
                                              cublasLtMatmulHeuristicResult_t *result, int *found)
{
    SimProduct p = {of(desc), of(a), of(b), of(c), of(d), 1, 0, nullptr, nullptr, nullptr, nullptr};
    cublasStatus_t status = wanted < 1 ? CUBLAS_STATUS_INVALID_VALUE : check(p);
    *found = status == CUBLAS_STATUS_SUCCESS;
    if (status)
        return status;
    uint64_t allowed = reinterpret_cast<Preference *>(preference)->workspace;
    memset(result, 0, sizeof *result);
    result->workspaceSize = allowed < workspace_wanted ? 0 : workspace_wanted;
    result->algo.data[0] = algorithm_mark;
    result->algo.data[1] = result->workspaceSize;
    return status;
}

/* ---- the product ---- */

static void enqueue(const SimProduct &p, void *workspace, size_t workspace_bytes, cudaStream_t s)
{
    struct Range {
        void *p;
        size_t bytes;
        bool write;
    };
    int device = sim_stream_device(s), epilogue = p.op.epilogue;
    size_t element = sim_blas_bytes(p.layout_d.type), m = p.layout_d.rows, n = p.layout_d.cols;
    bool gradient = epilogue & (SIM_BGRAD | SIM_BGRAD_A | SIM_BGRAD_B);
    std::vector<Range> ranges = {{const_cast<char *>(p.a), sim_blas_span(p.layout_a), false},
                                 {const_cast<char *>(p.b), sim_blas_span(p.layout_b), false},
                                 {p.d, sim_blas_span(p.layout_d), true}};
    if (p.beta != 0)
        ranges.push_back({const_cast<char *>(p.c), sim_blas_span(p.layout_c), false});
    if (epilogue & SIM_BIAS || gradient)
        ranges.push_back({p.op.bias, (epilogue & SIM_BGRAD_B ? n : m) * element, gradient});
    if (epilogue & SIM_AUX)
        ranges.push_back(
            {p.op.aux, ((n - 1) * p.op.aux_ld + m) * element, !(epilogue & SIM_DGELU)});
    if (workspace_bytes)
        ranges.push_back({workspace, workspace_bytes, true});
    for (const Range &r : ranges)
        sim_need_device("an operand of cublasLtMatmul", r.p, r.bytes, device);
    sim_enqueue_simple(s, "cublasLtMatmul", [=] {
        for (const Range &r : ranges)
            sim_touch(r.p, r.bytes, r.write);
        if (workspace_bytes)
            memset(workspace, 0xff, workspace_bytes);
        sim_blas_run(p);
    });
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc, const void *alpha,
                              const void *a, cublasLtMatrixLayout_t layout_a, const void *b,
                              cublasLtMatrixLayout_t layout_b, const void *beta, const void *c,
                              cublasLtMatrixLayout_t layout_c, void *d,
                              cublasLtMatrixLayout_t layout_d, const cublasLtMatmulAlgo_t *algo,
                              void *workspace, size_t workspace_bytes, cudaStream_t stream)
{
    SimLock lock;
    SimProduct p = {of(desc),
                    of(layout_a),
                    of(layout_b),
                    of(layout_c),
                    of(layout_d),
                    0,
                    0,
                    static_cast<const char *>(a),
                    static_cast<const char *>(b),
                    static_cast<const char *>(c),
                    static_cast<char *>(d)};
    bool wide = p.op.scale == CUDA_R_64F;
    p.alpha = wide ? *static_cast<const double *>(alpha) : *static_cast<const float *>(alpha);
    p.beta = wide ? *static_cast<const double *>(beta) : *static_cast<const float *>(beta);
    if (cublasStatus_t status = check(p))
        return status;
    if (handle->device != sim_stream_device(stream))
        sim_fail("cublasLtMatmul: a handle of device %d, a stream of device %d", handle->device,
                 sim_stream_device(stream));
    if (algo && algo->data[0] != algorithm_mark)
        sim_fail("cublasLtMatmul: the algorithm is not from cublasLtMatmulAlgoGetHeuristic");
    size_t needed = algo ? algo->data[1] : 0;
    if (workspace_bytes < needed)
        return CUBLAS_STATUS_INVALID_VALUE;
    enqueue(p, workspace, needed, stream);
    return CUBLAS_STATUS_SUCCESS;
}
