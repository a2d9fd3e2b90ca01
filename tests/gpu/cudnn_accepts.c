/* tests/gpu/cudnn_accepts.c - NVIDIA's cuDNN, where it is installed, looks at our attention's graph
 * for a device that is only described to it: it knows the graph, has an engine that gives equal
 * bits in every run, and compiles it. No GPU and no driver are needed, and nothing is computed.
 *
 *     cudnn_accepts STUB      STUB: the toolkit's lib64/stubs/libcuda.so, for where no driver is
 *
 * DT_FULL=1: for more devices than sm_90. */
#include "array/cuda/cudnn_graph.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What cuDNN asks a device for: that of an H200, but for the version. */
static const char device_format[] =
    "{\"cudaDeviceId\":0,\"deviceVer\":%d,\"driverVer\":13000,\"deviceName\":\"none\","
    "\"maxGridSize\":[2147483647,65535,65535],\"maxBlockSize\":[1024,1024,64],"
    "\"regsPerBlock\":65536,\"multiProcessorCount\":132,\"smClockRateKHz\":1980000,"
    "\"memClockRateKHz\":3201000,\"l2CacheSize\":62914560,\"warpSize\":32,"
    "\"maxSharedMemoryPerBlock\":49152,\"maxSharedMemoryPerBlockOptin\":%d,"
    "\"reservedSharedMemoryPerBlock\":1024,\"maxRegistersPerSM\":65536,\"pciDeviceId\":0,"
    "\"maxCtasPerSM\":32,\"maxThreadsPerBlock\":1024,\"maxThreadsPerSM\":2048,\"isTccDriver\":0,"
    "\"supportCoopLaunch\":1,\"totalGlobalMem\":150000000000}";

static const struct {
    dti_cudnn_shape shape;
    bool accepted;
} cases[] = {
    /* type, bshd, causal, batch, heads, key heads, queries, keys, dim, vdim */
    {{CUDNN_DATA_BFLOAT16, 1, 1, 2, 32, 8, 4096, 4096, 128, 128}, true},
    {{CUDNN_DATA_BFLOAT16, 1, 1, 16, 12, 12, 1024, 1024, 64, 64}, true},
    {{CUDNN_DATA_HALF, 1, 1, 2, 4, 2, 70, 90, 16, 24}, true},
    {{CUDNN_DATA_HALF, 0, 1, 2, 4, 2, 140, 33, 8, 8}, true},
    {{CUDNN_DATA_BFLOAT16, 0, 0, 2, 4, 1, 37, 75, 24, 40}, true},
    {{CUDNN_DATA_BFLOAT16, 1, 0, 1, 1, 1, 2, 1, 128, 8}, true},
    {{CUDNN_DATA_BFLOAT16, 1, 1, 1, 2, 2, 64, 64, 12, 12}, false},
    {{CUDNN_DATA_BFLOAT16, 1, 1, 1, 3, 2, 64, 64, 64, 64}, false},
};

static cudnnStatus_t describe(int version, cudnnBackendDescriptor_t *out)
{
    char text[1000];
    (void)snprintf(text, sizeof text, device_format, version, version == 800 ? 166912 : 232448);
    cudnnStatus_t st = cudnnBackendCreateDescriptor(CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR, out);
    if (st == CUDNN_STATUS_SUCCESS)
        st = cudnnBackendSetAttribute(*out, CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION,
                                      CUDNN_TYPE_CHAR, (int64_t)strlen(text) + 1, text);
    return st == CUDNN_STATUS_SUCCESS ? cudnnBackendFinalize(*out) : st;
}

/* What has been compiled cannot be loaded without a driver. */
static bool compiled(cudnnStatus_t st)
{
    return st == CUDNN_STATUS_SUCCESS || CUDNN_STATUS_CATEGORY(st) == CUDNN_STATUS_EXECUTION_FAILED;
}

static int failures_of(int version)
{
    cudnnBackendDescriptor_t device;
    int failures = 0;
    const cudnnStatus_t described = describe(version, &device);
    if (described != CUDNN_STATUS_SUCCESS) {
        printf("SKIPPED cudnn_accepts: cuDNN does not take the description of sm_%d: %s\n",
               version / 10, cudnnGetErrorString(described));
        exit(77);
    }
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        dti_cudnn_plan p;
        char why[300];
        const cudnnStatus_t st = dti_cudnn_plan_create(&cases[i].shape, NULL, device, &p);
        cudnnGetLastErrorString(why, sizeof why);
        const bool right = compiled(st) == cases[i].accepted;
        printf("sm_%d, case %zu: %s%s%s\n", version / 10, i, cudnnGetErrorString(st),
               right ? "" : ": WRONG: ", right ? "" : why);
        failures += !right;
        dti_cudnn_plan_destroy(&p);
    }
    (void)cudnnBackendDestroyDescriptor(device);
    return failures;
}

int main(int argc, char **argv)
{
    static const int versions[] = {900, 800, 1000};
    const char *full = getenv("DT_FULL");
    int failures = 0;
    if (!dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL) &&
        (argc < 2 || !dlopen(argv[1], RTLD_NOW | RTLD_GLOBAL))) {
        printf("SKIPPED cudnn_accepts: no driver, and no stub of it in the toolkit\n");
        return 77;
    }
    printf("cuDNN %zu\n", cudnnGetVersion());
    for (int i = 0; i < (full && strcmp(full, "1") == 0 ? 3 : 1); i++)
        failures += failures_of(versions[i]);
    return failures > 0;
}
