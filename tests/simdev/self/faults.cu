/* tests/simdev/self/faults.cu - kernels that are wrong, each in one way. */
#include "faults.h"
#include "simdev.h"

static const unsigned all = 0xffffffffu;

/* ---- barriers and warps ---- */

__global__ void exit_before_barrier(int *out)
{
    if (threadIdx.x >= 40)
        return;
    __syncthreads();
    out[threadIdx.x] = 1;
}

__global__ void branch_around_barrier(int *out)
{
    if (threadIdx.x < 32)
        __syncthreads();
    else
        __syncthreads();
    out[threadIdx.x] = 1;
}

__global__ void shuffle_exited(int *out)
{
    if (threadIdx.x % 32 == 7)
        return;
    out[threadIdx.x] = __shfl_xor_sync(all, (int)threadIdx.x, 1);
}

__global__ void shuffle_branched(int *out)
{
    int v = threadIdx.x;
    if (threadIdx.x % 2)
        v = __shfl_xor_sync(all, v, 1);
    else
        v = __shfl_xor_sync(all, v, 1);
    out[threadIdx.x] = v;
}

__global__ void shuffle_left_out(int *out)
{
    out[threadIdx.x] = __shfl_sync(0xffffu, (int)threadIdx.x, 0);
}

__global__ void shuffle_foreign(int *out)
{
    if (threadIdx.x < 16)
        out[threadIdx.x] = __shfl_sync(0xffffu, (int)threadIdx.x, 20);
}

__global__ void active_mask(int *out)
{
    out[threadIdx.x] = (int)__activemask();
}

/* ---- missing barriers: out[i] = in[i - 1], and in[i + 1], of the block ---- */

__global__ void no_barrier_left(int *out)
{
    __shared__ int part[64];
    part[threadIdx.x] = threadIdx.x;
    out[threadIdx.x] = part[threadIdx.x ? threadIdx.x - 1 : 0];
}

__global__ void no_barrier_right(int *out)
{
    __shared__ int part[64];
    part[threadIdx.x] = threadIdx.x;
    out[threadIdx.x] = part[threadIdx.x < 63 ? threadIdx.x + 1 : 63];
}

/* The second round overwrites what slow threads still read. */
__global__ void no_barrier_behind(int *out)
{
    __shared__ int part[64];
    for (int round = 0; round < 2; round++) {
        part[threadIdx.x] = threadIdx.x + 100 * round;
        __syncthreads();
        out[threadIdx.x + 64 * round] = part[63 - threadIdx.x];
    }
}

__global__ void no_syncwarp(int *out)
{
    __shared__ int part[32];
    part[threadIdx.x % 32] = threadIdx.x;
    out[threadIdx.x] = part[31 - threadIdx.x % 32];
}

/* A shuffle exchanges values, and orders nothing else. */
__global__ void shuffle_for_syncwarp(int *out)
{
    __shared__ int part[64];
    part[threadIdx.x] = threadIdx.x;
    int lane = __shfl_xor_sync(all, (int)threadIdx.x, 1);
    out[threadIdx.x] = part[lane];
}

__global__ void blocks_write_one(int *out)
{
    if (threadIdx.x == 0)
        out[0] = (int)blockIdx.x;
}

__global__ void not_atomic(int *out)
{
    out[0] = out[0] + 1;
    if (threadIdx.x == 0 && out[0] < 0)
        atomicAdd(out, 1);
}

/* ---- memory ---- */

__global__ void write_past(int *out, int n)
{
    out[threadIdx.x < 63 ? threadIdx.x : n] = 1;
}

__global__ void write_before(int *out)
{
    out[threadIdx.x < 63 ? (int)threadIdx.x : -1] = 1;
}

__global__ void misaligned(int *out)
{
    *sim_aligned(reinterpret_cast<int4 *>(out + 1)) = int4{1, 2, 3, 4};
}

__global__ void static_shared_past(int *out, int n)
{
    __shared__ int part[64];
    part[threadIdx.x < 63 ? threadIdx.x : n] = 1;
    __syncthreads();
    out[threadIdx.x] = part[0];
}

__global__ void dynamic_shared_past(int *out, int n)
{
    SIM_DYNAMIC_SHARED(int, part);
    part[threadIdx.x < 63 ? threadIdx.x : n] = 1;
    __syncthreads();
    out[threadIdx.x] = part[0];
}

__global__ void much_shared(int *out)
{
    __shared__ int part[9000];
    SIM_DYNAMIC_SHARED(int, more);
    part[threadIdx.x] = more[threadIdx.x] = 1;
    __syncthreads();
    out[threadIdx.x] = part[63 - threadIdx.x] + more[63 - threadIdx.x];
}

__global__ void fine(int *out)
{
    out[threadIdx.x] = 1;
}

extern "C" {
#define X(name) {#name, name},
static const struct {
    const char *name;
    void (*kernel)(int *);
} plain_kernels[] = {FAULT_KERNELS(X)};
#undef X

void k_fault(const char *name, int blocks, int *out, cudaStream_t s)
{
    for (const auto &k : plain_kernels)
        if (!strcmp(k.name, name))
            sim_launch(name, k.kernel, blocks, 64, 0, s, out);
}

void k_past(int which, int n, int *out, cudaStream_t s)
{
    if (which == 0)
        SIM_LAUNCH(write_past, 1, 64, 0, s, out, n);
    else if (which == 1)
        SIM_LAUNCH(static_shared_past, 1, 64, 0, s, out, n);
    else
        SIM_LAUNCH(dynamic_shared_past, 1, 64, 64 * sizeof(int), s, out, n);
}

void k_much_shared(size_t bytes, int *out, cudaStream_t s)
{
    SIM_LAUNCH(much_shared, 1, 64, bytes, s, out);
}

void k_shared_limit(int bytes)
{
    (void)cudaFuncSetAttribute((const void *)much_shared,
                               cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
}

void k_threads(int blocks, int threads, int *out, cudaStream_t s)
{
    SIM_LAUNCH(fine, blocks, threads, 0, s, out);
}
}
