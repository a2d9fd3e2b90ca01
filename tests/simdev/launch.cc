/* tests/simdev/launch.cc - devices, errors, and launches of kernels. */
#include "sim_internal.h"

#include <cstdio>
#include <cstring>
#include <unordered_map>

static const int processors = 4;
static const size_t shared_default = 49152, shared_max = SIM_DYNAMIC_SHARED_MAX;
static thread_local int current_device;
static thread_local cudaError_t last_error;
static std::unordered_map<const void *, int> opted_in;
static uint64_t launches;

int sim_device()
{
    return current_device;
}

cudaError_t sim_error(cudaError_t error)
{
    last_error = error;
    return error;
}

/* ---- errors ---- */

#define ERRORS(X)                                                                      \
    X(cudaSuccess, "no error")                                                         \
    X(cudaErrorInvalidValue, "invalid argument")                                       \
    X(cudaErrorMemoryAllocation, "out of memory")                                      \
    X(cudaErrorInvalidConfiguration, "invalid configuration argument")                 \
    X(cudaErrorInvalidDevice, "invalid device ordinal")                                \
    X(cudaErrorInvalidResourceHandle, "invalid resource handle")                       \
    X(cudaErrorNotReady, "device not ready")                                           \
    X(cudaErrorHostMemoryAlreadyRegistered, "part or all of the memory is registered") \
    X(cudaErrorHostMemoryNotRegistered, "pointer is not registered memory")

const char *cudaGetErrorString(cudaError_t error)
{
#define X(code, text)  \
    if (error == code) \
        return text;
    ERRORS(X)
#undef X
    return "an error that the simulated device does not know";
}

const char *cudaGetErrorName(cudaError_t error)
{
#define X(code, text)  \
    if (error == code) \
        return #code;
    ERRORS(X)
#undef X
    return "cudaErrorUnknown";
}

cudaError_t cudaGetLastError(void)
{
    cudaError_t error = last_error;
    last_error = cudaSuccess;
    return error;
}

cudaError_t cudaPeekAtLastError(void)
{
    return last_error;
}

/* ---- devices ---- */

static bool is_device(int device)
{
    SimLock lock; /* reads the settings */
    return device >= 0 && device < sim_settings.devices;
}

cudaError_t cudaSetDevice(int device)
{
    if (!is_device(device))
        return sim_error(cudaErrorInvalidDevice);
    current_device = device;
    return cudaSuccess;
}

cudaError_t cudaGetDevice(int *device)
{
    *device = current_device;
    return cudaSuccess;
}

cudaError_t cudaGetDeviceCount(int *count)
{
    SimLock lock;
    *count = sim_settings.devices;
    return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int *version)
{
    *version = CUDART_VERSION;
    return cudaSuccess;
}

cudaError_t cudaDriverGetVersion(int *version)
{
    *version = CUDART_VERSION;
    return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *p, int device)
{
    if (!is_device(device))
        return sim_error(cudaErrorInvalidDevice);
    memset(p, 0, sizeof *p);
    snprintf(p->name, sizeof p->name, "simdev %d", device);
    p->totalGlobalMem = sim_settings.memory;
    p->sharedMemPerBlock = shared_default;
    p->sharedMemPerBlockOptin = SIM_DYNAMIC_SHARED_MAX;
    p->sharedMemPerMultiprocessor = SIM_DYNAMIC_SHARED_MAX + 1024;
    p->warpSize = 32;
    p->maxThreadsPerBlock = SIM_MAX_THREADS;
    p->maxThreadsPerMultiProcessor = 2048;
    p->multiProcessorCount = processors;
    p->major = 9;
    p->l2CacheSize = 1 << 20;
    return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int device)
{
    static const struct {
        enum cudaDeviceAttr attribute;
        int value;
    } known[] = {{cudaDevAttrMultiProcessorCount, processors},
                 {cudaDevAttrMaxSharedMemoryPerBlock, static_cast<int>(shared_default)},
                 {cudaDevAttrMaxSharedMemoryPerBlockOptin, SIM_DYNAMIC_SHARED_MAX},
                 {cudaDevAttrMaxThreadsPerBlock, SIM_MAX_THREADS},
                 {cudaDevAttrMaxThreadsPerMultiProcessor, 2048},
                 {cudaDevAttrWarpSize, 32},
                 {cudaDevAttrComputeCapabilityMajor, 9},
                 {cudaDevAttrComputeCapabilityMinor, 0},
                 {cudaDevAttrL2CacheSize, 1 << 20}};
    if (!is_device(device))
        return sim_error(cudaErrorInvalidDevice);
    for (const auto &one : known) {
        if (one.attribute == attribute) {
            *value = one.value;
            return cudaSuccess;
        }
    }
    sim_fail("cudaDeviceGetAttribute(%d): this attribute is not simulated", attribute);
}

/* ---- launches ---- */

size_t sim_shared_limit(const void *kernel)
{
    auto found = opted_in.find(kernel);
    return found == opted_in.end() ? shared_default : static_cast<size_t>(found->second);
}

cudaError_t cudaFuncSetAttribute(const void *kernel, enum cudaFuncAttribute attribute, int value)
{
    SimLock lock;
    if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize)
        return cudaSuccess; /* a hint */
    if (value < 0 || value > SIM_DYNAMIC_SHARED_MAX)
        return sim_error(cudaErrorInvalidValue);
    opted_in[kernel] = value;
    return cudaSuccess;
}

static bool is_legal(const sim_launch_args &l)
{
    const dim3 b = l.block, g = l.grid;
    return b.x && b.y && b.z && b.x <= 1024 && b.y <= 1024 && b.z <= 64 &&
           uint64_t{b.x} * b.y * b.z <= SIM_MAX_THREADS && g.x && g.y && g.z && g.x <= 0x7fffffff &&
           g.y <= 65535 && g.z <= 65535;
}

/* Static shared memory counts too, where it is known: after the first grid of a kernel. */
static void check_shared(const sim_launch_args &l)
{
    size_t statics = sim_shared_bytes(l.kernel), limit = sim_shared_limit(l.kernel);
    size_t both = limit > shared_default ? shared_max : shared_default;
    if (statics > shared_default || l.shared_bytes > limit || statics + l.shared_bytes > both)
        sim_fail("kernel %s: a launch with %zu bytes of dynamic shared memory, of %zu, and %zu of "
                 "static, of %zu together",
                 l.name, l.shared_bytes, limit, statics, both);
}

void sim_enqueue_kernel(const sim_launch_args *launch, cudaStream_t stream)
{
    SimLock lock;
    const sim_launch_args l = *launch;
    if (sim_stream_device(stream) != current_device)
        sim_fail("kernel %s: launched into a stream of device %d by a thread whose device is %d",
                 l.name, sim_stream_device(stream), current_device);
    if (!is_legal(l))
        sim_fail("kernel %s: a launch of (%u,%u,%u) blocks of (%u,%u,%u) threads", l.name, l.grid.x,
                 l.grid.y, l.grid.z, l.block.x, l.block.y, l.block.z);
    check_shared(l);
    launches++;
    sim_enqueue_simple(stream, l.name, [l] {
        sim_run_grid(l);
        check_shared(l);
        l.destroy(l.args);
    });
}

uint64_t sim_launches(void)
{
    SimLock lock;
    return launches;
}

void sim_set_order(int order)
{
    SimLock lock;
    sim_settings.order = order;
}
