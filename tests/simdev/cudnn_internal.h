/* tests/simdev/cudnn_internal.h - cuDNN's graphs as the simulator takes them apart. */
#pragma once

#include "sim_internal.h"

#include <cstring>
#include <cudnn.h>
#include <map>
#include <memory>

/* `type`: cudnnDataType_t. Strides of what is in memory, in elements; virtual arrays are only
 * between operations, numbers come by value. */
struct SimTensor {
    int type;
    int64_t dim[4], stride[4], uid, align;
    bool is_virtual, by_value;
    int64_t count() const
    {
        return dim[0] * dim[1] * dim[2] * dim[3];
    }
};

enum SimNodeKind { SIM_PRODUCT, SIM_REDUCE, SIM_EACH };
/* `what`: of cudnnReduceTensorOp_t or cudnnPointwiseMode_t. */
struct SimNode {
    SimNodeKind kind;
    int what;
    int64_t axis;              /* of an index */
    std::vector<SimTensor> in; /* a and b; x; x, b, t */
    SimTensor out;
};
typedef std::vector<SimNode> SimGraph;

/* ---- cudnn_run.cc ---- */

size_t sim_cudnn_bytes(int type); /* of an element; 0: not in memory */
size_t sim_cudnn_span(const SimTensor &t);
/* Addresses of everything that is not virtual, by uid. */
struct SimBinding {
    int64_t uid;
    void *at;
    float value; /* by value: read when the call was made */
};
void sim_cudnn_run(const SimGraph &graph, const std::vector<SimBinding> &bound);

/* ---- descriptors, cudnn.cc ---- */

struct cudnnContext {
    int device;
    cudaStream_t stream;
};

struct SimAttribute {
    cudnnBackendAttributeType_t type;
    int64_t n;
    std::vector<char> bytes;
};
struct SimDescriptor {
    cudnnBackendDescriptorType_t kind;
    bool finished;
    std::map<int, SimAttribute> has;
    int engine;                      /* of an engine and its configuration */
    std::shared_ptr<SimGraph> graph; /* of a graph and all that is made from it */
};

enum { SIM_ANY = -1 };                     /* kind of a descriptor */
bool sim_cudnn_asked_to(const char *what); /* by SIMDEV_CUDNN */
/* `what`: who asks, for the message if there is none, or it is of another kind or not finalized. */
SimDescriptor &sim_cudnn_of(const void *p, const char *what);
SimDescriptor &sim_cudnn_finished(const void *p, int kind, const char *what);
void sim_cudnn_need_all(const SimDescriptor &d); /* that must be set before it is finalized */

template <class V>
V sim_cudnn_value(const SimDescriptor &d, int name, size_t i = 0, V otherwise = V())
{
    const auto found = d.has.find(name);
    if (found == d.has.end())
        return otherwise;
    memcpy(&otherwise, &found->second.bytes[i * sizeof otherwise], sizeof otherwise);
    return otherwise;
}
