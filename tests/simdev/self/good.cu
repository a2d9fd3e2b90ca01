/* tests/simdev/self/good.cu - kernels that do nothing wrong. */
#include "kernels.h"
#include "simdev.h"

__global__ void axpy(float *y, const float *x, float a, int n)
{
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
        y[i] += a * x[i];
}

__device__ float warp_sum(float v)
{
    for (int by = 16; by > 0; by /= 2)
        v += __shfl_xor_sync(0xffffffffu, v, by);
    return v;
}

__device__ void block_row_sum(float *part, float *y, const float *x, int n)
{
    const float *row = x + (size_t)blockIdx.x * n;
    float sum = 0;
    for (int i = threadIdx.x; i < n; i += blockDim.x)
        sum += row[i];
    sum = warp_sum(sum);
    if (threadIdx.x % 32 == 0)
        part[threadIdx.x / 32] = sum;
    __syncthreads();
    if (threadIdx.x < 32) {
        sum = warp_sum(threadIdx.x < blockDim.x / 32 ? part[threadIdx.x] : 0);
        if (threadIdx.x == 0)
            y[blockIdx.x] = sum;
    }
}

__global__ void row_sum_static(float *y, const float *x, int n)
{
    __shared__ float part[32];
    block_row_sum(part, y, x, n);
}

__global__ void row_sum_dynamic(float *y, const float *x, int n)
{
    SIM_DYNAMIC_SHARED(float, part);
    block_row_sum(part, y, x, n);
}

__global__ void count_odd(unsigned *out, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    bool odd = i < n && i % 2;
    unsigned votes = __ballot_sync(0xffffffffu, odd);
    if (threadIdx.x % 32 == 0)
        atomicAdd(&out[0], (unsigned)__popc(votes));
    int count = __syncthreads_count(odd);
    if (threadIdx.x == 0)
        atomicAdd(&out[1], (unsigned)count);
    if (odd)
        atomicAdd(&out[2], 1u);
}

__global__ void count_odd_3d(unsigned *out, int n)
{
    unsigned thread = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
    unsigned block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
    unsigned i = block * blockDim.x * blockDim.y * blockDim.z + thread;
    if (i < (unsigned)n && i % 2)
        atomicAdd(&out[3], 1u);
}

template <class T, int TILE>
__global__ void __launch_bounds__(TILE * 8) transpose(T *y, const T *x, int n)
{
    __shared__ T tile[TILE][TILE + 1];
    int col = blockIdx.x * TILE + threadIdx.x, row0 = blockIdx.y * TILE;
    for (int i = threadIdx.y; i < TILE; i += blockDim.y)
        if (col < n && row0 + i < n)
            tile[i][threadIdx.x] = x[(size_t)(row0 + i) * n + col];
    __syncthreads();
    col = row0 + threadIdx.x;
    row0 = blockIdx.x * TILE;
    for (int i = threadIdx.y; i < TILE; i += blockDim.y)
        if (col < n && row0 + i < n)
            y[(size_t)(row0 + i) * n + col] = tile[threadIdx.x][i];
}

__global__ void fresh_shared(float *out)
{
    __shared__ float kept[32];
    SIM_DYNAMIC_SHARED(float, more);
    float before = kept[threadIdx.x], before_more = more[threadIdx.x];
    out[blockIdx.x * 64 + threadIdx.x] = before;
    out[blockIdx.x * 64 + 32 + threadIdx.x] = before_more;
    kept[threadIdx.x] = more[threadIdx.x] = 1;
}

/* Threads have arrays of their own, in memory: the compiler cannot see what fill_own does. */
__device__ __attribute__((noinline)) void fill_own(int *a, int n, int from)
{
    for (int i = 0; i < n; i++)
        a[i] = from + i;
}

__global__ void own_arrays(int *out)
{
    int own[8], thread = threadIdx.x;
    fill_own(own, 8, thread);
    __syncthreads();
    out[blockIdx.x * blockDim.x + thread] = own[thread % 8];
}

extern "C" {
void k_axpy(float *y, const float *x, float a, int n, cudaStream_t s)
{
    SIM_LAUNCH(axpy, (n + 511) / 512, 256, 0, s, y, x, a, n);
}

void k_row_sum(float *y, const float *x, int rows, int n, int threads, int dynamic, cudaStream_t s)
{
    if (dynamic)
        SIM_LAUNCH(row_sum_dynamic, rows, threads, 32 * sizeof(float), s, y, x, n);
    else
        SIM_LAUNCH(row_sum_static, rows, threads, 0, s, y, x, n);
}

void k_count_odd(unsigned *out, int n, cudaStream_t s)
{
    SIM_LAUNCH(count_odd, (n + 127) / 128, 128, 0, s, out, n);
    SIM_LAUNCH(count_odd_3d, dim3(2, 3, (n + 767) / 768), dim3(4, 8, 4), 0, s, out, n);
}

void k_transpose(uint16_t *y, const uint16_t *x, int n, cudaStream_t s)
{
    const int tile = 32;
    dim3 grid((n + tile - 1) / tile, (n + tile - 1) / tile);
    SIM_LAUNCH((transpose<uint16_t, tile>), grid, dim3(tile, 8), 0, s, y, x, n);
}

void k_own_arrays(int *out, int blocks, int threads, cudaStream_t s)
{
    SIM_LAUNCH(own_arrays, blocks, threads, 0, s, out);
}

void k_fresh_shared(float *out, cudaStream_t s)
{
    SIM_LAUNCH(fresh_shared, 2, 32, 32 * sizeof(float), s, out);
}
}
