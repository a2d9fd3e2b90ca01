/* tests/simdev/self/fault_cudnn.c - programs that use cuDNN wrongly; the graph and the run are the
 * library's own. */
#include "array/cuda/cudnn_graph.h"
#include "device_test.h"
#include "faults.h"

#include <string.h>

typedef cudnnBackendDescriptor_t desc;
enum { TOKENS = 4, WIDTH = 8, BYTES = 2 * TOKENS * WIDTH, WORKSPACE = 4096 };
static const dti_cudnn_shape shape = {
    CUDNN_DATA_BFLOAT16, 0, 1, 1, 1, 1, TOKENS, TOKENS, WIDTH, WIDTH};
static cudnnHandle_t handle;
static cudaStream_t s;

static desc make(cudnnBackendDescriptorType_t type)
{
    desc d;
    ck_assert(cudnnBackendCreateDescriptor(type, &d) == CUDNN_STATUS_SUCCESS);
    return d;
}

static void set(desc d, cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
                int64_t n, const void *value)
{
    (void)cudnnBackendSetAttribute(d, name, type, n, value);
}

static desc tensor(const int64_t *stride)
{
    const desc d = make(CUDNN_BACKEND_TENSOR_DESCRIPTOR);
    const int64_t dim[] = {1, 1, TOKENS, WIDTH}, uid = 1, align = 16;
    const cudnnDataType_t type = CUDNN_DATA_FLOAT;
    set(d, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &type);
    set(d, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, 4, dim);
    set(d, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1, &uid);
    set(d, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, 1, &align);
    if (stride)
        set(d, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, 4, stride);
    return d;
}

static const int64_t dense[] = {TOKENS * WIDTH, TOKENS *WIDTH, WIDTH, 1},
                     overlapping[] = {TOKENS * WIDTH, TOKENS *WIDTH, WIDTH - 1, 1};

static void cudnn_type(void)
{
    set(tensor(dense), CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT32, 4, dense);
}

static void cudnn_count(void)
{
    set(tensor(dense), CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, 3, dense);
}

static void cudnn_unknown(void)
{
    set(tensor(dense), CUDNN_ATTR_TENSOR_VECTOR_COUNT, CUDNN_TYPE_INT64, 1, dense);
}

static void cudnn_not_set(void)
{
    (void)cudnnBackendFinalize(tensor(NULL));
}

static void cudnn_stride(void)
{
    (void)cudnnBackendFinalize(tensor(overlapping));
}

static void cudnn_not_finalized(void)
{
    const desc x = tensor(dense);
    set(make(CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR), CUDNN_ATTR_OPERATION_MATMUL_ADESC,
        CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &x);
}

static void cudnn_finalized(void)
{
    const desc x = tensor(dense);
    ck_assert(cudnnBackendFinalize(x) == CUDNN_STATUS_SUCCESS);
    set(x, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, 4, dense);
}

static void cudnn_destroyed(void)
{
    const desc x = tensor(dense);
    ck_assert(cudnnBackendDestroyDescriptor(x) == CUDNN_STATUS_SUCCESS);
    (void)cudnnBackendFinalize(x);
}

/* ---- runs ---- */

static dti_cudnn_arrays arrays(void)
{
    dti_cudnn_arrays a = {.q = device_array(BYTES),
                          .k = device_array(BYTES),
                          .v = device_array(BYTES),
                          .out = device_array(BYTES),
                          .lse = device_array(TOKENS * sizeof(float)),
                          .workspace = device_array(WORKSPACE),
                          .scale = 1};
    return a;
}

static void run(const dti_cudnn_arrays *a)
{
    dti_cudnn_plan p;
    ck_assert(dti_cudnn_plan_create(&shape, handle, NULL, &p) == CUDNN_STATUS_SUCCESS);
    (void)dti_cudnn_plan_run(handle, &p, &shape, a);
    ck_cuda(cudaStreamSynchronize(s));
    dti_cudnn_plan_destroy(&p);
}

static void cudnn_misaligned(void)
{
    dti_cudnn_arrays a = arrays();
    a.q = (const char *)device_array(BYTES + 8) + 8;
    run(&a);
}

static void cudnn_range(void)
{
    dti_cudnn_arrays a = arrays();
    a.out = device_array(BYTES - 2);
    run(&a);
}

static void cudnn_no_workspace(void)
{
    dti_cudnn_arrays a = arrays();
    a.workspace = NULL;
    run(&a);
}

static void cudnn_pack(int64_t n, const int64_t *uid, void *const *at)
{
    dti_cudnn_plan p;
    const desc pack = make(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR);
    void *workspace = device_array(WORKSPACE);
    ck_assert(dti_cudnn_plan_create(&shape, handle, NULL, &p) == CUDNN_STATUS_SUCCESS);
    set(pack, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, n, uid);
    set(pack, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, n, at);
    set(pack, CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1, &workspace);
    ck_assert(cudnnBackendFinalize(pack) == CUDNN_STATUS_SUCCESS);
    (void)cudnnBackendExecute(handle, p.plan, pack);
}

static void cudnn_missing(void)
{
    const int64_t uid[] = {1, 2, 3, 4, 6, 7}; /* no lse */
    void *x = device_array(BYTES);
    float number = 1;
    cudnn_pack(6, uid, (void *[]){x, x, x, x, &number, &number});
}

static void cudnn_number_on_device(void)
{
    const int64_t uid[] = {1, 2, 3, 4, 5, 6, 7};
    void *x = device_array(BYTES);
    cudnn_pack(7, uid, (void *[]){x, x, x, x, x, x, x});
}

/* k is written on another stream; nothing makes the run wait. */
static void cudnn_no_wait(void)
{
    const dti_cudnn_arrays a = arrays();
    const cudaStream_t other = new_stream();
    for (int i = 0; i < 2; i++) {
        ck_cuda(cudaStreamSynchronize(other));
        ck_cuda(cudaMemsetAsync((void *)(uintptr_t)a.k, 0, BYTES, other));
    }
    run(&a);
    ck_cuda(cudaDeviceSynchronize());
}

#define FAULTS(X)             \
    X(cudnn_type)             \
    X(cudnn_count)            \
    X(cudnn_unknown)          \
    X(cudnn_not_set)          \
    X(cudnn_stride)           \
    X(cudnn_not_finalized)    \
    X(cudnn_finalized)        \
    X(cudnn_destroyed)        \
    X(cudnn_misaligned)       \
    X(cudnn_range)            \
    X(cudnn_no_workspace)     \
    X(cudnn_missing)          \
    X(cudnn_number_on_device) \
    X(cudnn_no_wait)

bool fault_of_cudnn(const char *name)
{
    s = new_stream();
    ck_assert(cudnnCreate(&handle) == CUDNN_STATUS_SUCCESS);
    ck_assert(cudnnSetStream(handle, s) == CUDNN_STATUS_SUCCESS);
#define X(fault)                 \
    if (!strcmp(name, #fault)) { \
        fault();                 \
        return true;             \
    }
    FAULTS(X)
#undef X
    return false;
}
