/* tests/simdev/cudnn.cc - cuDNN's backend descriptors, for one graph: attention's forward pass as
 * array/cuda/cudnn_graph.c builds it. What is wrong ends the process; cuDNN would say NOT_SUPPORTED
 * or BAD_PARAM, and a program that then goes on without it would hide the mistake. Two engines are
 * offered, of which the first is not deterministic and must not be used.
 *
 * SIMDEV_CUDNN=old: a version that is too old; none: no engine for anything; fail: no run succeeds.
 * Read next: tests/simdev/cudnn_run.cc. */
#include "cudnn_internal.h"

#include <cstdlib>
#include <cstring>
#include <set>

typedef cudnnBackendDescriptorType_t Kind;
static std::set<const void *> alive;

bool sim_cudnn_asked_to(const char *what)
{
    const char *text = getenv("SIMDEV_CUDNN");
    return text && strcmp(text, what) == 0;
}

size_t cudnnGetVersion(void)
{
    return sim_cudnn_asked_to("old") ? 91001 : CUDNN_VERSION;
}

const char *cudnnGetErrorString(cudnnStatus_t status)
{
    switch (status) {
    case CUDNN_STATUS_SUCCESS: return "CUDNN_STATUS_SUCCESS";
    case CUDNN_STATUS_NOT_SUPPORTED: return "CUDNN_STATUS_NOT_SUPPORTED";
    case CUDNN_STATUS_EXECUTION_FAILED: return "CUDNN_STATUS_EXECUTION_FAILED";
    default: return "a cuDNN status that the simulated device does not give";
    }
}

void cudnnGetLastErrorString(char *message, size_t room)
{
    if (room > 0)
        strncpy(message, "(simulated)", room - 1)[room - 1] = '\0';
}

cudnnStatus_t cudnnCreate(cudnnHandle_t *out)
{
    *out = new cudnnContext{sim_device(), nullptr};
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnDestroy(cudnnHandle_t handle)
{
    delete handle;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnSetStream(cudnnHandle_t handle, cudaStream_t stream)
{
    SimLock lock;
    if (handle->device != sim_stream_device(stream))
        sim_fail("cudnnSetStream: a handle of device %d, a stream of device %d", handle->device,
                 sim_stream_device(stream));
    handle->stream = stream;
    return CUDNN_STATUS_SUCCESS;
}

/* ---- what may be set ---- */

#define D(name) CUDNN_BACKEND_##name##_DESCRIPTOR
#define A(name) CUDNN_ATTR_##name
#define T(name) CUDNN_TYPE_##name
static const int any = SIM_ANY;

/* `of`: which descriptors may be given. */
static const struct Rule {
    Kind kind;
    int name;
    cudnnBackendAttributeType_t type;
    int64_t least, most;
    bool needed;
    int of;
} rules[] = {
    {D(TENSOR), A(TENSOR_DATA_TYPE), T(DATA_TYPE), 1, 1, true, any},
    {D(TENSOR), A(TENSOR_DIMENSIONS), T(INT64), 4, 4, true, any},
    {D(TENSOR), A(TENSOR_STRIDES), T(INT64), 4, 4, true, any},
    {D(TENSOR), A(TENSOR_UNIQUE_ID), T(INT64), 1, 1, true, any},
    {D(TENSOR), A(TENSOR_BYTE_ALIGNMENT), T(INT64), 1, 1, true, any},
    {D(TENSOR), A(TENSOR_IS_VIRTUAL), T(BOOLEAN), 1, 1, false, any},
    {D(TENSOR), A(TENSOR_IS_BY_VALUE), T(BOOLEAN), 1, 1, false, any},
    {D(MATMUL), A(MATMUL_COMP_TYPE), T(DATA_TYPE), 1, 1, true, any},
    {D(OPERATION_MATMUL), A(OPERATION_MATMUL_DESC), T(BACKEND_DESCRIPTOR), 1, 1, true, D(MATMUL)},
    {D(OPERATION_MATMUL), A(OPERATION_MATMUL_ADESC), T(BACKEND_DESCRIPTOR), 1, 1, true, D(TENSOR)},
    {D(OPERATION_MATMUL), A(OPERATION_MATMUL_BDESC), T(BACKEND_DESCRIPTOR), 1, 1, true, D(TENSOR)},
    {D(OPERATION_MATMUL), A(OPERATION_MATMUL_CDESC), T(BACKEND_DESCRIPTOR), 1, 1, true, D(TENSOR)},
    {D(REDUCTION), A(REDUCTION_OPERATOR), T(REDUCTION_OPERATOR_TYPE), 1, 1, true, any},
    {D(REDUCTION), A(REDUCTION_COMP_TYPE), T(DATA_TYPE), 1, 1, true, any},
    {D(OPERATION_REDUCTION), A(OPERATION_REDUCTION_DESC), T(BACKEND_DESCRIPTOR), 1, 1, true,
     D(REDUCTION)},
    {D(OPERATION_REDUCTION), A(OPERATION_REDUCTION_XDESC), T(BACKEND_DESCRIPTOR), 1, 1, true,
     D(TENSOR)},
    {D(OPERATION_REDUCTION), A(OPERATION_REDUCTION_YDESC), T(BACKEND_DESCRIPTOR), 1, 1, true,
     D(TENSOR)},
    {D(POINTWISE), A(POINTWISE_MODE), T(POINTWISE_MODE), 1, 1, true, any},
    {D(POINTWISE), A(POINTWISE_MATH_PREC), T(DATA_TYPE), 1, 1, true, any},
    {D(POINTWISE), A(POINTWISE_AXIS), T(INT64), 1, 1, false, any},
    {D(OPERATION_POINTWISE), A(OPERATION_POINTWISE_PW_DESCRIPTOR), T(BACKEND_DESCRIPTOR), 1, 1,
     true, D(POINTWISE)},
    {D(OPERATION_POINTWISE), A(OPERATION_POINTWISE_XDESC), T(BACKEND_DESCRIPTOR), 1, 1, true,
     D(TENSOR)},
    {D(OPERATION_POINTWISE), A(OPERATION_POINTWISE_BDESC), T(BACKEND_DESCRIPTOR), 1, 1, false,
     D(TENSOR)},
    {D(OPERATION_POINTWISE), A(OPERATION_POINTWISE_TDESC), T(BACKEND_DESCRIPTOR), 1, 1, false,
     D(TENSOR)},
    {D(OPERATION_POINTWISE), A(OPERATION_POINTWISE_YDESC), T(BACKEND_DESCRIPTOR), 1, 1, true,
     D(TENSOR)},
    {D(OPERATIONGRAPH), A(OPERATIONGRAPH_OPS), T(BACKEND_DESCRIPTOR), 1, 64, true, any},
    {D(OPERATIONGRAPH), A(OPERATIONGRAPH_HANDLE), T(HANDLE), 1, 1, true, any},
    {D(ENGINEHEUR), A(ENGINEHEUR_OPERATION_GRAPH), T(BACKEND_DESCRIPTOR), 1, 1, true,
     D(OPERATIONGRAPH)},
    {D(ENGINEHEUR), A(ENGINEHEUR_MODE), T(HEUR_MODE), 1, 1, true, any},
    {D(EXECUTION_PLAN), A(EXECUTION_PLAN_ENGINE_CONFIG), T(BACKEND_DESCRIPTOR), 1, 1, true,
     D(ENGINECFG)},
    {D(VARIANT_PACK), A(VARIANT_PACK_UNIQUE_IDS), T(INT64), 1, 64, true, any},
    {D(VARIANT_PACK), A(VARIANT_PACK_DATA_POINTERS), T(VOID_PTR), 1, 64, true, any},
    {D(VARIANT_PACK), A(VARIANT_PACK_WORKSPACE), T(VOID_PTR), 1, 1, true, any},
};
#undef D
#undef A
#undef T

static size_t bytes_of(cudnnBackendAttributeType_t type)
{
    switch (static_cast<int>(type)) {
    case CUDNN_TYPE_INT64: return sizeof(int64_t);
    case CUDNN_TYPE_BOOLEAN: return sizeof(bool);
    case CUDNN_TYPE_HANDLE:
    case CUDNN_TYPE_VOID_PTR:
    case CUDNN_TYPE_BACKEND_DESCRIPTOR: return sizeof(void *);
    default: return sizeof(int); /* enums */
    }
}

SimDescriptor &sim_cudnn_of(const void *p, const char *what)
{
    if (!alive.count(p))
        sim_fail("%s: %p is no descriptor of cuDNN, or was destroyed", what, p);
    return *static_cast<SimDescriptor *>(const_cast<void *>(p));
}

SimDescriptor &sim_cudnn_finished(const void *p, int kind, const char *what)
{
    SimDescriptor &d = sim_cudnn_of(p, what);
    if (!d.finished)
        sim_fail("%s: a descriptor of kind %d that is not finalized", what, d.kind);
    if (kind != SIM_ANY && kind != static_cast<int>(d.kind))
        sim_fail("%s: a descriptor of kind %d in the place of one of kind %d", what, d.kind, kind);
    return d;
}

cudnnStatus_t cudnnBackendCreateDescriptor(Kind kind, cudnnBackendDescriptor_t *out)
{
    SimLock lock;
    SimDescriptor *d = new SimDescriptor{kind, false, {}, 0, nullptr};
    alive.insert(d);
    *out = d;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendDestroyDescriptor(cudnnBackendDescriptor_t p)
{
    SimLock lock;
    SimDescriptor *d = &sim_cudnn_of(p, "cudnnBackendDestroyDescriptor");
    alive.erase(d);
    delete d;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendSetAttribute(cudnnBackendDescriptor_t p, cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t type, int64_t n,
                                       const void *values)
{
    SimLock lock;
    const char *what = "cudnnBackendSetAttribute";
    SimDescriptor &d = sim_cudnn_of(p, what);
    if (d.finished)
        sim_fail("%s: attribute %d of a descriptor of kind %d, which is finalized", what, name,
                 d.kind);
    for (const Rule &r : rules) {
        if (r.kind != d.kind || r.name != static_cast<int>(name))
            continue;
        if (type != r.type || n < r.least || n > r.most)
            sim_fail("%s: %lld values of type %d for attribute %d, which takes %lld to %lld of "
                     "type %d",
                     what, static_cast<long long>(n), type, name, static_cast<long long>(r.least),
                     static_cast<long long>(r.most), r.type);
        const char *from = static_cast<const char *>(values);
        const std::vector<char> bytes(from, from + n * bytes_of(type));
        for (int64_t i = 0; type == CUDNN_TYPE_BACKEND_DESCRIPTOR && i < n; i++)
            sim_cudnn_finished(static_cast<void *const *>(values)[i], r.of, what);
        d.has[name] = SimAttribute{type, n, bytes};
        return CUDNN_STATUS_SUCCESS;
    }
    sim_fail("%s: attribute %d of a descriptor of kind %d is not simulated", what, name, d.kind);
}

void sim_cudnn_need_all(const SimDescriptor &d)
{
    if (d.finished)
        sim_fail("cudnnBackendFinalize: a descriptor of kind %d is finalized already", d.kind);
    for (const Rule &r : rules)
        if (r.kind == d.kind && r.needed && !d.has.count(r.name))
            sim_fail("cudnnBackendFinalize: attribute %d of a descriptor of kind %d is not set",
                     r.name, d.kind);
}
