/* array/cuda/gpu.c - a rank's context: its compute stream, workspace, first error, and the memory
 * of its heap. Read first: array/cuda/gpu_internal.h. */
#include "array/cuda/gpu_internal.h"

#include "array/cuda/kernels_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { ROOM_MIN = 1 << 20, ERROR_BYTES = 2048 };

/* Device memory that grows and is never given back before the end. */
typedef struct room {
    void *p;
    size_t bytes;
} room;

typedef struct context {
    int device, heaps;
    cudaStream_t compute, current; /* current: where kernels go */
    dt_heap_watch watch;
    void *watch_arg;
    room scratch, count_up;
    dti_gpu_kept kept[DTI_GPU_KEEPERS];
    dti_gpu_counts counts;
    cudaError_t error;
    bool watched; /* the watch has failed: `what` is why */
    char what[ERROR_BYTES];
} context;

static _Thread_local context *mine;

cudaStream_t dti_gpu_stream(void)
{
    return mine ? mine->current : NULL;
}

bool dti_gpu_ok(cudaError_t error, const char *what, const char *file, int line)
{
    if (error == cudaSuccess)
        return true;
    if (mine && mine->error == cudaSuccess) {
        mine->error = error;
        (void)snprintf(mine->what, sizeof mine->what, "%s:%d: %.120s: %s", file, line, what,
                       cudaGetErrorString(error));
    }
    return false;
}

int dti_cuda_device_count(void)
{
    int n = 0;
    return cudaGetDeviceCount(&n) == cudaSuccess ? n : 0;
}

void *dti_cuda_stream(void)
{
    return mine->current;
}

void *dti_cuda_set_stream(void *stream)
{
    void *before = mine->current;
    mine->current = stream;
    return before;
}

void dti_cuda_set_watch(dt_heap_watch watch, void *arg)
{
    mine->watch = watch;
    mine->watch_arg = arg;
}

dt_status dti_cuda_status(void)
{
    if (mine && mine->watched)
        return DT_ERROR(DT_ERR_COMM, "%s", mine->what);
    if (!mine || mine->error == cudaSuccess)
        return DT_OK;
    return DT_ERROR(DT_ERR_DEVICE, "cuda device %d failed at %s", mine->device, mine->what);
}

void dti_gpu_count_launch(void)
{
    mine->counts.launches++;
}

dti_gpu_counts dti_gpu_get_counts(void)
{
    return mine ? mine->counts : (dti_gpu_counts){0};
}

dt_heap_counts dti_cuda_counts(void)
{
    return mine ? (dt_heap_counts){mine->counts.launches, mine->counts.waits} : (dt_heap_counts){0};
}

dti_gpu_kept *dti_gpu_keep(dti_gpu_keeper keeper)
{
    return &mine->kept[keeper];
}

static double now_s(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* With a watch the host looks again and again, since it may be that nobody comes. */
void dti_gpu_sync(void)
{
    cudaError_t error;
    const double since_s = now_s();
    mine->counts.waits++;
    if (!mine->watch) {
        (void)DTI_GPU(cudaStreamSynchronize(mine->compute));
        return;
    }
    long nap_ns = 5000;
    while ((error = cudaStreamQuery(mine->compute)) == cudaErrorNotReady && !mine->watched) {
        if (mine->watch(mine->watch_arg, now_s() - since_s) != DT_OK) {
            mine->watched = true;
            (void)snprintf(mine->what, sizeof mine->what, "%s", dt_error_trace());
            return;
        }
        const struct timespec nap = {.tv_nsec = nap_ns};
        (void)nanosleep(&nap, NULL);
        nap_ns += nap_ns < 200000 ? nap_ns / 4 : 0;
    }
    if (mine->watched)
        return;
    (void)DTI_GPU(error);
}

/* At least `bytes`; what a smaller one held is lost. */
static void *grown(room *r, size_t bytes)
{
    if (bytes <= r->bytes)
        return r->p;
    size_t want = r->bytes > 0 ? 2 * r->bytes : ROOM_MIN;
    want = bytes > want ? bytes : want;
    /* What is on the stream may still use the old bytes. */
    dti_gpu_sync();
    (void)DTI_GPU(cudaFree(r->p));
    *r = (room){0};
    if (DTI_GPU(cudaMalloc(&r->p, want)))
        r->bytes = want;
    return r->p;
}

void *dti_gpu_scratch(size_t bytes)
{
    return grown(&mine->scratch, bytes);
}

const int32_t *dti_gpu_count_up(int64_t n)
{
    room *r = &mine->count_up;
    const size_t before = r->bytes;
    int32_t *p = grown(r, (size_t)n * sizeof *p);
    if (p && r->bytes != before)
        dti_cuda_range((int64_t)(r->bytes / sizeof *p), 0, p);
    return p;
}

static void close_context(context *c)
{
    (void)cudaStreamSynchronize(c->compute);
    for (int i = 0; i < DTI_GPU_KEEPERS; i++)
        if (c->kept[i].drop)
            c->kept[i].drop(c->kept[i].state);
    (void)cudaFree(c->scratch.p);
    (void)cudaFree(c->count_up.p);
    (void)cudaStreamDestroy(c->compute);
    if (mine == c)
        mine = NULL;
    free(c);
}

static dt_status open_context(int device)
{
    if (mine) {
        DT_REQUIRE(mine->device == device, DT_ERR_DEVICE,
                   "a rank has one device: %d, so it cannot use device %d", mine->device, device);
        return DT_OK;
    }
    int devices = 0;
    cudaError_t error = cudaGetDeviceCount(&devices);
    DT_REQUIRE(error == cudaSuccess, DT_ERR_DEVICE, "no cuda device: %s",
               cudaGetErrorString(error));
    DT_REQUIRE(device >= 0 && device < devices, DT_ERR_DEVICE,
               "cuda device %d: this machine has %d", device, devices);
    context *c = calloc(1, sizeof *c);
    DT_REQUIRE(c, DT_ERR_NOMEM, "no memory for a cuda context");
    c->device = device;
    error = cudaSetDevice(device);
    if (error == cudaSuccess)
        error = cudaStreamCreateWithFlags(&c->compute, cudaStreamNonBlocking);
    if (error != cudaSuccess) {
        free(c);
        return DT_ERROR(DT_ERR_DEVICE, "cuda device %d: %s", device, cudaGetErrorString(error));
    }
    c->current = c->compute;
    mine = c;
    return DT_OK;
}

dt_status dti_cuda_memory_create(int device, int ranks, size_t bytes, dti_cuda_memory *memory_out)
{
    DT_TRY(open_context(device));
    size_t unused = 0, all = 0;
    cudaError_t error = cudaMemGetInfo(&unused, &all);
    if (bytes == 0) {
        bytes = (all - all / 10) / (size_t)ranks;
        bytes = bytes <= unused ? bytes : unused / 2 / (size_t)ranks;
    }
    bytes &= ~(size_t)4095;
    void *base = NULL;
    if (error == cudaSuccess)
        error = cudaMalloc(&base, bytes);
    if (error != cudaSuccess) {
        if (mine->heaps == 0)
            close_context(mine);
        return DT_ERROR(DT_ERR_NOMEM, "%zu bytes of cuda device %d, %zu of %zu free: %s", bytes,
                        device, unused, all, cudaGetErrorString(error));
    }
    mine->heaps++;
    *memory_out = (dti_cuda_memory){base, bytes, mine};
    return DT_OK;
}

void dti_cuda_memory_destroy(const dti_cuda_memory *memory)
{
    context *c = memory->context;
    int before = 0;
    (void)cudaGetDevice(&before);
    (void)cudaSetDevice(c->device);
    (void)cudaStreamSynchronize(c->compute);
    (void)cudaFree(memory->base);
    if (--c->heaps == 0)
        close_context(c);
    (void)cudaSetDevice(before);
}
