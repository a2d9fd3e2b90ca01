/* tests/simdev/cudnn_run.cc - graphs of cuDNN's operations, one operation after the other, on whole
 * arrays in f32; an array of 16 bits is rounded, as the kernels for it do. */
#include "blas_internal.h"
#include "cudnn_internal.h"

#include <cmath>
#include <limits>
#include <map>

typedef std::vector<float> Values; /* of a tensor, side by side */

static int cuda_type(int type)
{
    switch (type) {
    case CUDNN_DATA_FLOAT: return CUDA_R_32F;
    case CUDNN_DATA_HALF: return CUDA_R_16F;
    case CUDNN_DATA_BFLOAT16: return CUDA_R_16BF;
    default: return -1;
    }
}

size_t sim_cudnn_bytes(int type)
{
    return sim_blas_bytes(cuda_type(type));
}

size_t sim_cudnn_span(const SimTensor &t)
{
    int64_t last = 0;
    for (int d = 0; d < 4; d++)
        last += (t.dim[d] - 1) * t.stride[d];
    return static_cast<size_t>(last + 1) * sim_cudnn_bytes(t.type);
}

/* Call for each element, in order: its indices and its number. */
template <class Body> static void for_each(const SimTensor &t, Body body)
{
    int64_t i[4], n = 0;
    for (i[0] = 0; i[0] < t.dim[0]; i[0]++)
        for (i[1] = 0; i[1] < t.dim[1]; i[1]++)
            for (i[2] = 0; i[2] < t.dim[2]; i[2]++)
                for (i[3] = 0; i[3] < t.dim[3]; i[3]++)
                    body(i, n++);
}

/* The number, in t, of the element at indices of a larger array: a dim of 1 has it for all. */
static size_t place(const SimTensor &t, const int64_t *i)
{
    int64_t n = 0;
    for (int d = 0; d < 4; d++)
        n = n * t.dim[d] + (t.dim[d] == 1 ? 0 : i[d]);
    return static_cast<size_t>(n);
}

static size_t address(const SimTensor &t, const int64_t *i)
{
    return static_cast<size_t>(i[0] * t.stride[0] + i[1] * t.stride[1] + i[2] * t.stride[2] +
                               i[3] * t.stride[3]);
}

/* ---- operations ---- */

/* Head h of a meets head h / (heads of a / heads of b). */
static void multiply(const SimNode &op, const Values &a, const Values &b, Values &c)
{
    const SimTensor &ta = op.in[0], &tb = op.in[1];
    const int64_t m = ta.dim[2], k = ta.dim[3], n = tb.dim[3], group = ta.dim[1] / tb.dim[1];
    for (int64_t z = 0; z < ta.dim[0] * ta.dim[1]; z++) {
        const int64_t zb = z / ta.dim[1] * tb.dim[1] + z % ta.dim[1] / group;
        for (int64_t i = 0; i < m * k; i++) {
            const float x = a[z * m * k + i];
            const float *from = &b[(zb * k + i % k) * n];
            float *to = &c[(z * m + i / k) * n];
            for (int64_t j = 0; j < n; j++)
                to[j] += x * from[j];
        }
    }
}

static void reduce(const SimNode &op, const Values &x, Values &y)
{
    const bool most = op.what == CUDNN_REDUCE_TENSOR_MAX;
    y.assign(y.size(), most ? -std::numeric_limits<float>::infinity() : 0.0f);
    for_each(op.in[0], [&](const int64_t *i, int64_t n) {
        float &to = y[place(op.out, i)];
        if (most)
            to = std::isnan(x[n]) || x[n] > to ? x[n] : to;
        else
            to += x[n];
    });
}

static float each(int mode, float x, float b, float t)
{
    switch (mode) {
    case CUDNN_POINTWISE_ADD: return x + b;
    case CUDNN_POINTWISE_SUB: return x - b;
    case CUDNN_POINTWISE_MUL: return x * b;
    case CUDNN_POINTWISE_DIV: return x / b;
    case CUDNN_POINTWISE_EXP: return std::exp(x);
    case CUDNN_POINTWISE_LOG: return std::log(x);
    case CUDNN_POINTWISE_CMP_GE: return x >= b;
    case CUDNN_POINTWISE_BINARY_SELECT: return t != 0 ? x : b;
    default: sim_fail("cuDNN: pointwise mode %d", mode);
    }
}

static void pointwise(const SimNode &op, const Values *const *in, Values &y)
{
    for_each(op.out, [&](const int64_t *i, int64_t n) {
        float x[3] = {};
        for (size_t k = 0; k < op.in.size(); k++)
            x[k] = (*in[k])[place(op.in[k], i)];
        y[n] = op.what == CUDNN_POINTWISE_GEN_INDEX ? static_cast<float>(i[op.axis])
                                                    : each(op.what, x[0], x[1], x[2]);
    });
}

/* ---- the graph ---- */

static const SimBinding &bound_to(const std::vector<SimBinding> &bound, int64_t uid)
{
    for (const SimBinding &b : bound)
        if (b.uid == uid)
            return b;
    sim_fail("cuDNN: no address for the array %lld", static_cast<long long>(uid));
}

static Values load(const SimTensor &t, const SimBinding &b)
{
    Values x(static_cast<size_t>(t.count()), b.value);
    if (!t.by_value)
        for_each(t, [&](const int64_t *i, int64_t n) {
            x[n] = static_cast<float>(sim_blas_get(b.at, address(t, i), cuda_type(t.type)));
        });
    return x;
}

static void store(const SimTensor &t, const SimBinding &b, const Values &x)
{
    for_each(t, [&](const int64_t *i, int64_t n) {
        sim_blas_put(b.at, address(t, i), cuda_type(t.type), x[n]);
    });
}

static void round_to(int type, Values &x)
{
    uint32_t narrow;
    for (float &v : x) {
        sim_blas_put(&narrow, 0, type, v);
        v = static_cast<float>(sim_blas_get(&narrow, 0, type));
    }
}

void sim_cudnn_run(const SimGraph &graph, const std::vector<SimBinding> &bound)
{
    std::map<int64_t, Values> made;
    for (const SimNode &op : graph) {
        const Values *in[3] = {};
        for (size_t k = 0; k < op.in.size(); k++) {
            const SimTensor &t = op.in[k];
            if (!made.count(t.uid))
                made[t.uid] = load(t, bound_to(bound, t.uid));
            in[k] = &made[t.uid];
        }
        Values &y = made[op.out.uid];
        y.assign(static_cast<size_t>(op.out.count()), 0.0f);
        if (op.kind == SIM_PRODUCT)
            multiply(op, *in[0], *in[1], y);
        else if (op.kind == SIM_REDUCE)
            reduce(op, *in[0], y);
        else
            pointwise(op, in, y);
        if (op.out.type == CUDNN_DATA_HALF || op.out.type == CUDNN_DATA_BFLOAT16)
            round_to(cuda_type(op.out.type), y);
        if (!op.out.is_virtual)
            store(op.out, bound_to(bound, op.out.uid), y);
    }
}
