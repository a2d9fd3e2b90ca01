/* tests/simdev/cudnn_plan.cc - what cuDNN's descriptors must be when they are finalized, which
 * engines a graph has, and a run. Read first: tests/simdev/cudnn.cc. */
#include "cudnn_internal.h"

#include <cstring>
#include <map>

static const int64_t workspace_wanted = 4096;

static const SimDescriptor &child(const SimDescriptor &d, int name, size_t i = 0)
{
    return sim_cudnn_of(sim_cudnn_value<void *>(d, name, i), "a descriptor in use");
}

static int64_t count(const SimDescriptor &d, int name)
{
    const auto found = d.has.find(name);
    return found == d.has.end() ? 0 : found->second.n;
}

/* ---- arrays and operations ---- */

static SimTensor tensor_of(const SimDescriptor &d)
{
    SimTensor t = {};
    t.type = sim_cudnn_value<int>(d, CUDNN_ATTR_TENSOR_DATA_TYPE);
    t.uid = sim_cudnn_value<int64_t>(d, CUDNN_ATTR_TENSOR_UNIQUE_ID);
    t.align = sim_cudnn_value<int64_t>(d, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT);
    t.is_virtual = sim_cudnn_value<bool>(d, CUDNN_ATTR_TENSOR_IS_VIRTUAL);
    t.by_value = sim_cudnn_value<bool>(d, CUDNN_ATTR_TENSOR_IS_BY_VALUE);
    for (size_t i = 0; i < 4; i++) {
        t.dim[i] = sim_cudnn_value<int64_t>(d, CUDNN_ATTR_TENSOR_DIMENSIONS, i);
        t.stride[i] = sim_cudnn_value<int64_t>(d, CUDNN_ATTR_TENSOR_STRIDES, i);
    }
    return t;
}

/* Elements have places of their own, one beside the other along some dim. */
static void check_tensor(const SimTensor &t)
{
    std::multimap<int64_t, int64_t> by_stride;
    for (int i = 0; i < 4; i++) {
        if (t.dim[i] < 1 || t.stride[i] < 1)
            sim_fail("cuDNN: array %lld: dim %d is %lld, its stride %lld",
                     static_cast<long long>(t.uid), i, static_cast<long long>(t.dim[i]),
                     static_cast<long long>(t.stride[i]));
        if (t.dim[i] > 1)
            by_stride.insert({t.stride[i], t.dim[i]});
    }
    int64_t room = 1;
    for (const auto &x : by_stride) {
        if (x.first < room || (room == 1 && x.first != 1))
            sim_fail("cuDNN: array %lld: a stride of %lld where %lld elements are side by side",
                     static_cast<long long>(t.uid), static_cast<long long>(x.first),
                     static_cast<long long>(room));
        room = x.first * x.second;
    }
    const bool in_memory = !t.is_virtual && !t.by_value;
    if (t.align < 1 || (t.align & (t.align - 1)) || (in_memory && !sim_cudnn_bytes(t.type)) ||
        (t.by_value && (t.type != CUDNN_DATA_FLOAT || t.count() != 1)))
        sim_fail("cuDNN: array %lld of type %d, aligned to %lld", static_cast<long long>(t.uid),
                 t.type, static_cast<long long>(t.align));
}

static void need(bool fits, const SimNode &op)
{
    if (!fits)
        sim_fail("cuDNN: the operation that makes array %lld: dims or types do not fit",
                 static_cast<long long>(op.out.uid));
}

static void check_node(const SimNode &op)
{
    const SimTensor &x = op.in[0], &y = op.out;
    if (op.kind == SIM_PRODUCT) {
        const SimTensor &b = op.in[1];
        need(x.dim[0] == b.dim[0] && x.dim[1] % b.dim[1] == 0 && x.dim[3] == b.dim[2] &&
                 x.type == b.type && y.dim[0] == x.dim[0] && y.dim[1] == x.dim[1] &&
                 y.dim[2] == x.dim[2] && y.dim[3] == b.dim[3],
             op);
        return;
    }
    for (int i = 0; i < 4; i++) {
        need(y.dim[i] == x.dim[i] || (op.kind == SIM_REDUCE && y.dim[i] == 1), op);
        for (const SimTensor &b : op.in)
            need(b.dim[i] == x.dim[i] || b.dim[i] == 1, op);
    }
    need(op.what != CUDNN_POINTWISE_GEN_INDEX || (op.axis >= 0 && op.axis < 4), op);
}

static SimNode node_of(const SimDescriptor &d)
{
    SimNode n = {};
    const auto take = [&](int name) {
        if (d.has.count(name))
            n.in.push_back(tensor_of(child(d, name)));
    };
    if (d.kind == CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR) {
        n.kind = SIM_PRODUCT;
        take(CUDNN_ATTR_OPERATION_MATMUL_ADESC);
        take(CUDNN_ATTR_OPERATION_MATMUL_BDESC);
        n.out = tensor_of(child(d, CUDNN_ATTR_OPERATION_MATMUL_CDESC));
    } else if (d.kind == CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR) {
        n.kind = SIM_REDUCE;
        n.what = sim_cudnn_value<int>(child(d, CUDNN_ATTR_OPERATION_REDUCTION_DESC),
                                      CUDNN_ATTR_REDUCTION_OPERATOR);
        take(CUDNN_ATTR_OPERATION_REDUCTION_XDESC);
        n.out = tensor_of(child(d, CUDNN_ATTR_OPERATION_REDUCTION_YDESC));
    } else {
        const SimDescriptor &how = child(d, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR);
        n.kind = SIM_EACH;
        n.what = sim_cudnn_value<int>(how, CUDNN_ATTR_POINTWISE_MODE);
        n.axis = sim_cudnn_value<int64_t>(how, CUDNN_ATTR_POINTWISE_AXIS, 0, -1);
        take(CUDNN_ATTR_OPERATION_POINTWISE_XDESC);
        take(CUDNN_ATTR_OPERATION_POINTWISE_BDESC);
        take(CUDNN_ATTR_OPERATION_POINTWISE_TDESC);
        n.out = tensor_of(child(d, CUDNN_ATTR_OPERATION_POINTWISE_YDESC));
    }
    check_node(n);
    return n;
}

/* ---- graphs ---- */

/* Every array is made before it is read, once; what is not virtual and not made is given. */
static std::shared_ptr<SimGraph> graph_of(const SimDescriptor &d)
{
    std::shared_ptr<SimGraph> graph = std::make_shared<SimGraph>();
    std::map<int64_t, bool> made;
    for (int64_t i = 0; i < count(d, CUDNN_ATTR_OPERATIONGRAPH_OPS); i++) {
        const SimNode n = node_of(child(d, CUDNN_ATTR_OPERATIONGRAPH_OPS, static_cast<size_t>(i)));
        for (const SimTensor &t : n.in)
            if (t.is_virtual && !made[t.uid])
                sim_fail("cuDNN: array %lld is read before it is made",
                         static_cast<long long>(t.uid));
        if (made[n.out.uid])
            sim_fail("cuDNN: array %lld is made twice", static_cast<long long>(n.out.uid));
        made[n.out.uid] = true;
        graph->push_back(n);
    }
    return graph;
}

/* The operations of attention's forward pass, causal or not, that cuDNN has kernels for; the row
 * and the column may change places. */
static bool is_attention(const SimGraph &graph)
{
    static const int each = 1000, reduce = 2000, product = 3000;
    static const std::vector<int>
        before = {product, each + CUDNN_POINTWISE_MUL},
        mask = {each + CUDNN_POINTWISE_GEN_INDEX, each + CUDNN_POINTWISE_GEN_INDEX,
                each + CUDNN_POINTWISE_CMP_GE, each + CUDNN_POINTWISE_BINARY_SELECT},
        after = {reduce + CUDNN_REDUCE_TENSOR_MAX, each + CUDNN_POINTWISE_SUB,
                 each + CUDNN_POINTWISE_EXP,       reduce + CUDNN_REDUCE_TENSOR_ADD,
                 each + CUDNN_POINTWISE_LOG,       each + CUDNN_POINTWISE_ADD,
                 each + CUDNN_POINTWISE_DIV,       product};
    std::vector<int> ops, full = before, causal = before;
    for (const SimNode &n : graph)
        ops.push_back(n.kind == SIM_PRODUCT  ? product
                      : n.kind == SIM_REDUCE ? reduce + n.what
                                             : each + n.what);
    full.insert(full.end(), after.begin(), after.end());
    causal.insert(causal.end(), mask.begin(), mask.end());
    causal.insert(causal.end(), after.begin(), after.end());
    return ops == full || ops == causal;
}

/* Rows of 16 bits, a multiple of 8 numbers, that lie side by side. */
static bool has_engines(const SimGraph &graph)
{
    if (sim_cudnn_asked_to("none") || !is_attention(graph))
        return false;
    const SimTensor &q = graph.front().in[0], &k = graph.front().in[1], &v = graph.back().in[1];
    return (q.type == CUDNN_DATA_HALF || q.type == CUDNN_DATA_BFLOAT16) && v.type == q.type &&
           graph.back().out.type == q.type && q.dim[3] % 8 == 0 && v.dim[3] % 8 == 0 &&
           q.stride[3] == 1 && k.stride[2] == 1 && v.stride[3] == 1 &&
           graph.back().out.stride[3] == 1;
}

static void check_pack(const SimDescriptor &d)
{
    std::map<int64_t, bool> seen;
    const int64_t n = count(d, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS);
    if (n != count(d, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS))
        sim_fail("cuDNN: %lld names of arrays, %lld addresses", static_cast<long long>(n),
                 static_cast<long long>(count(d, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS)));
    for (int64_t i = 0; i < n; i++) {
        bool &again = seen[sim_cudnn_value<int64_t>(d, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS,
                                                    static_cast<size_t>(i))];
        if (again)
            sim_fail("cuDNN: an array is named twice in a variant pack");
        again = true;
    }
}

cudnnStatus_t cudnnBackendFinalize(cudnnBackendDescriptor_t p)
{
    SimLock lock;
    SimDescriptor &d = sim_cudnn_of(p, "cudnnBackendFinalize");
    sim_cudnn_need_all(d);
    switch (static_cast<int>(d.kind)) {
    case CUDNN_BACKEND_TENSOR_DESCRIPTOR: check_tensor(tensor_of(d)); break;
    case CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR:
    case CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR:
    case CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR: (void)node_of(d); break;
    case CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR: d.graph = graph_of(d); break;
    case CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR:
        d.graph = child(d, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH).graph;
        break;
    case CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR:
        d.graph = child(d, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG).graph;
        d.engine = child(d, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG).engine;
        break;
    case CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR: check_pack(d); break;
    default: break;
    }
    d.finished = true;
    return CUDNN_STATUS_SUCCESS;
}

/* ---- what cuDNN tells ---- */

/* A descriptor that the caller made is filled. */
static void fill(const void *p, cudnnBackendDescriptorType_t kind, const SimDescriptor &from,
                 int engine)
{
    SimDescriptor &d = sim_cudnn_of(p, "cudnnBackendGetAttribute");
    if (d.kind != kind || d.finished)
        sim_fail("cudnnBackendGetAttribute: descriptors to be filled are of kind %d, not finalized",
                 kind);
    d.finished = true;
    d.graph = from.graph;
    d.engine = engine;
}

cudnnStatus_t cudnnBackendGetAttribute(cudnnBackendDescriptor_t const p,
                                       cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t type, int64_t room,
                                       int64_t *n_out, void *values)
{
    SimLock lock;
    const char *what = "cudnnBackendGetAttribute";
    const SimDescriptor &d = sim_cudnn_finished(p, SIM_ANY, what);
    void **to = static_cast<void **>(values);
    const bool desc = type == CUDNN_TYPE_BACKEND_DESCRIPTOR;
    if (d.kind == CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR && name == CUDNN_ATTR_ENGINEHEUR_RESULTS &&
        desc) {
        *n_out = has_engines(*d.graph) ? 2 : 0;
        for (int i = 0; i < *n_out && i < room; i++)
            fill(to[i], CUDNN_BACKEND_ENGINECFG_DESCRIPTOR, d, i);
    } else if (d.kind == CUDNN_BACKEND_ENGINECFG_DESCRIPTOR &&
               name == CUDNN_ATTR_ENGINECFG_ENGINE && desc && room == 1) {
        fill(to[0], CUDNN_BACKEND_ENGINE_DESCRIPTOR, d, d.engine);
        *n_out = 1;
    } else if (d.kind == CUDNN_BACKEND_ENGINE_DESCRIPTOR &&
               name == CUDNN_ATTR_ENGINE_NUMERICAL_NOTE && type == CUDNN_TYPE_NUMERICAL_NOTE &&
               room >= 2) {
        cudnnBackendNumericalNote_t *note = static_cast<cudnnBackendNumericalNote_t *>(values);
        note[0] = CUDNN_NUMERICAL_NOTE_TENSOR_CORE;
        note[1] = CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC;
        *n_out = d.engine == 0 ? 2 : 1;
    } else if (d.kind == CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR &&
               name == CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE && type == CUDNN_TYPE_INT64 &&
               room == 1) {
        *static_cast<int64_t *>(values) = workspace_wanted;
        *n_out = 1;
    } else {
        sim_fail("%s: attribute %d as type %d, room for %lld, of a descriptor of kind %d is not "
                 "simulated",
                 what, name, type, static_cast<long long>(room), d.kind);
    }
    return CUDNN_STATUS_SUCCESS;
}

/* ---- a run ---- */

struct Range {
    void *p;
    size_t bytes;
    bool write;
};

/* What a graph has in memory or by value, once each, and whether it writes it. */
static std::map<int64_t, std::pair<SimTensor, bool>> given(const SimGraph &graph)
{
    std::map<int64_t, std::pair<SimTensor, bool>> all;
    for (const SimNode &n : graph) {
        for (const SimTensor &t : n.in)
            if (!t.is_virtual)
                all.insert({t.uid, {t, false}});
        if (!n.out.is_virtual)
            all[n.out.uid] = {n.out, true};
    }
    return all;
}

static SimBinding bind(const SimDescriptor &pack, const SimTensor &t)
{
    const int64_t n = count(pack, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS);
    size_t i = 0;
    while (static_cast<int64_t>(i) < n &&
           sim_cudnn_value<int64_t>(pack, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, i) != t.uid)
        i++;
    if (static_cast<int64_t>(i) == n)
        sim_fail("cudnnBackendExecute: the variant pack has no array %lld",
                 static_cast<long long>(t.uid));
    SimBinding b = {t.uid, sim_cudnn_value<void *>(pack, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, i),
                    0};
    if (t.by_value && (!b.at || sim_in_arena(b.at)))
        sim_fail("cudnnBackendExecute: the number %lld is not on the host",
                 static_cast<long long>(t.uid));
    if (t.by_value)
        memcpy(&b.value, b.at, sizeof b.value);
    else if (reinterpret_cast<uintptr_t>(b.at) % static_cast<uintptr_t>(t.align))
        sim_fail("cudnnBackendExecute: array %lld at %p is not aligned to %lld",
                 static_cast<long long>(t.uid), b.at, static_cast<long long>(t.align));
    return b;
}

cudnnStatus_t cudnnBackendExecute(cudnnHandle_t handle, cudnnBackendDescriptor_t plan_,
                                  cudnnBackendDescriptor_t pack_)
{
    SimLock lock;
    const char *what = "cudnnBackendExecute";
    const SimDescriptor &plan = sim_cudnn_finished(plan_, CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR,
                                                   what),
                        &pack =
                            sim_cudnn_finished(pack_, CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR, what);
    if (plan.engine == 0)
        sim_fail("%s: an engine whose bits change from run to run", what);
    if (sim_cudnn_asked_to("fail"))
        return CUDNN_STATUS_EXECUTION_FAILED;
    const int device = sim_stream_device(handle->stream);
    std::vector<SimBinding> bound;
    std::vector<Range> ranges = {
        {sim_cudnn_value<void *>(pack, CUDNN_ATTR_VARIANT_PACK_WORKSPACE), workspace_wanted, true}};
    const auto all = given(*plan.graph);
    for (const auto &x : all) {
        const SimTensor &t = x.second.first;
        bound.push_back(bind(pack, t));
        if (!t.by_value)
            ranges.push_back({bound.back().at, sim_cudnn_span(t), x.second.second});
    }
    if (static_cast<int64_t>(all.size()) != count(pack, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS))
        sim_fail("%s: the variant pack has arrays that the graph has not", what);
    for (const Range &r : ranges)
        sim_need_device("an array of cudnnBackendExecute", r.p, r.bytes, device);
    const std::shared_ptr<SimGraph> graph = plan.graph;
    sim_enqueue_simple(handle->stream, what, [=] {
        for (const Range &r : ranges)
            sim_touch(r.p, r.bytes, r.write);
        memset(ranges[0].p, 0xff, ranges[0].bytes);
        sim_cudnn_run(*graph, bound);
    });
    return CUDNN_STATUS_SUCCESS;
}
