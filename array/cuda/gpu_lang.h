/* array/cuda/gpu_lang.h - the device language, for nvcc and, where kernels run on the simulated
 * device of tests/simdev, for g++ and clang++. The first header of every .cu file (array/cuda/vec.h
 * includes it); what runs on both: docs/cuda.md. */
#pragma once

#include <stdint.h>
#include <string.h>

#ifdef __CUDACC__
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#define GPU_START(kernel, grid, block, smem, stream, ...) \
    kernel<<<(grid), (block), (smem), (stream)>>>(__VA_ARGS__)
/* A kernel's dynamic shared memory. */
#define GPU_DYN_SMEM(T, name)                                      \
    extern __shared__ __align__(16) unsigned char gpu_dyn_smem_[]; \
    T *const name = reinterpret_cast<T *>(gpu_dyn_smem_)
/* p as a T *, for accesses of a T at once. */
#define GPU_AT_ONCE(T, p) reinterpret_cast<T *>(p)
#else
#include "simdev.h"
#define GPU_START(kernel, grid, block, smem, stream, ...) \
    SIM_LAUNCH(kernel, (grid), (block), (smem), (stream), __VA_ARGS__)
#define GPU_DYN_SMEM(T, name) SIM_DYNAMIC_SHARED(T, name)
#define GPU_AT_ONCE(T, p)     sim_aligned(reinterpret_cast<T *>(p))
#endif

extern "C" {
#include "array/cuda/gpu_internal.h"
#include "array/cuda/kernels_internal.h"
}

/* Put a grid of `kernel` on a stream; a template with commas goes into parentheses. `smem` counts
 * bytes of dynamic shared memory; more than 48 KiB a block only after GPU_SMEM_LIMIT. */
#define GPU_LAUNCH(kernel, grid, block, smem, stream, ...)                 \
    do {                                                                   \
        dti_gpu_count_launch();                                            \
        GPU_START(kernel, (grid), (block), (smem), (stream), __VA_ARGS__); \
        (void)DTI_GPU(cudaGetLastError());                                 \
    } while (0)
#define GPU_SMEM_LIMIT(kernel, bytes)    \
    ((void)DTI_GPU(cudaFuncSetAttribute( \
        (const void *)(kernel), cudaFuncAttributeMaxDynamicSharedMemorySize, (int)(bytes))))
