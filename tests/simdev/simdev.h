/* tests/simdev/simdev.h - the CUDA device language for g++ and clang++: a .cu file that includes
 * this runs on the simulated device.
 *
 * The real CUDA headers supply the types (float4, dim3, __nv_bfloat16) and make __global__,
 * __device__ and __host__ empty; this file adds what they leave to nvcc: launches, barriers, warp
 * operations and shared memory. Intrinsics are in intrinsics.h. Which CUDA is understood, and what
 * is caught: README.md here. */
#pragma once

#ifdef __CUDACC__
#error "simdev.h is for host compilers"
#endif

#include <cmath>
#include <cstdint>
#include <cstring>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <tuple>
#include <type_traits>
#include <utility>

#include "core.h"

/* Static shared memory, found by a tag in its symbols' names. (A section of its own
 * would do, but g++ forgets it in templates.) */
#undef __shared__
#define __shared__ static __attribute__((abi_tag("simsh")))
#undef __launch_bounds__
#define __launch_bounds__(...)
#undef __forceinline__
#define __forceinline__ inline

#define threadIdx sim_threadIdx
#define blockIdx  sim_blockIdx
#define blockDim  sim_blockDim
#define gridDim   sim_gridDim
#define warpSize  32

#define SIM_DYNAMIC_SHARED(T, name) T *const name = static_cast<T *>(sim_dynamic_shared())

/* p, checked for an access of a T at once, as hardware checks it. */
template <class T> inline T *sim_aligned(T *p)
{
    if (reinterpret_cast<uintptr_t>(p) % alignof(T) != 0)
        sim_misaligned(p, alignof(T));
    return p;
}

/* ---- launches ---- */

/* A launch copies its arguments, as CUDA does, until the grid has run. */
template <class... P, class... A>
inline void sim_launch(const char *name, void (*kernel)(P...), dim3 grid, dim3 block,
                       size_t shared_bytes, cudaStream_t stream, A &&...values)
{
    static_assert(sizeof...(P) == sizeof...(A), "wrong number of kernel arguments");
    using Args = std::tuple<std::decay_t<P>...>;
    Args *args = new Args(static_cast<std::decay_t<P>>(std::forward<A>(values))...);
    [[maybe_unused]] int i = 0;
    [[maybe_unused]] auto check = [&](const auto &x) {
        if constexpr (std::is_pointer_v<std::decay_t<decltype(x)>>)
            sim_check_pointer(name, i, x, stream);
        i++;
    };
    std::apply([&](const auto &...x) { (check(x), ...); }, *args);
    sim_launch_args launch = {name,
                              reinterpret_cast<const void *>(kernel),
                              grid,
                              block,
                              shared_bytes,
                              [](const void *fn, void *a) {
                                  std::apply(
                                      reinterpret_cast<void (*)(P...)>(const_cast<void *>(fn)),
                                      *static_cast<Args *>(a));
                              },
                              args,
                              [](void *a) { delete static_cast<Args *>(a); }};
    sim_enqueue_kernel(&launch, stream);
}
#define SIM_LAUNCH(kernel, grid, block, shared_bytes, stream, ...) \
    sim_launch(#kernel, kernel, (grid), (block), (shared_bytes), (stream), ##__VA_ARGS__)

/* ---- barriers ---- */

#define SIM_HERE __FILE__, __LINE__

#define __syncthreads()        sim_barrier(0, SIM_HERE)
#define __syncthreads_count(p) sim_barrier(!!(p), SIM_HERE)
#define __syncthreads_or(p)    (sim_barrier(!!(p), SIM_HERE) != 0)
#define __syncthreads_and(p)   (sim_barrier(!(p), SIM_HERE) == 0)
#define __syncwarp(...)        sim_warp_rv(sim_mask_or_all(__VA_ARGS__), nullptr, 0, SIM_HERE)
inline unsigned sim_mask_or_all(unsigned mask = 0xffffffffu)
{
    return mask;
}
#define __activemask() sim_no_activemask()
/* Simulated threads take turns on one processor: all see memory in one order. */
inline void __threadfence()
{
}
inline void __threadfence_block()
{
}
inline void __nanosleep(unsigned)
{
    sim_yield();
}

/* ---- warp operations ---- */

enum sim_shuffle_kind { SIM_IDX = 1, SIM_UP, SIM_DOWN, SIM_XOR, SIM_BALLOT };

inline int sim_shuffle_source(sim_shuffle_kind kind, int by, int width)
{
    int lane = sim_lane(), first = lane & ~(width - 1), source = lane ^ by;
    if (kind == SIM_IDX)
        return first + (by & (width - 1));
    if (kind == SIM_UP)
        return lane - by < first ? lane : lane - by;
    if (kind == SIM_DOWN)
        source = lane + by;
    return source >= first + width ? lane : source;
}

template <class T>
inline T sim_shuffle(const char *file, int line, sim_shuffle_kind kind, unsigned mask, T value,
                     int by, int width = 32)
{
    static_assert(sizeof(T) <= 8 && std::is_trivially_copyable_v<T>, "shuffles move <= 8 bytes");
    uint64_t raw = 0;
    memcpy(&raw, static_cast<const void *>(&value), sizeof value);
    int source = sim_shuffle_source(kind, by, width);
    const uint64_t *values = sim_warp_rv(mask, &raw, kind, file, line);
    if (!(mask >> source & 1) || !sim_lane_exists(source))
        sim_fail("%s:%d: a shuffle reads lane %d, which is not in it (mask %08x)", file, line,
                 source, mask);
    memcpy(static_cast<void *>(&value), &values[source], sizeof value);
    return value;
}
#define SIM_SHUFFLE(kind, mask, ...) sim_shuffle(SIM_HERE, kind, mask, __VA_ARGS__)
#define __shfl_sync(mask, ...)       SIM_SHUFFLE(SIM_IDX, mask, __VA_ARGS__)
#define __shfl_up_sync(mask, ...)    SIM_SHUFFLE(SIM_UP, mask, __VA_ARGS__)
#define __shfl_down_sync(mask, ...)  SIM_SHUFFLE(SIM_DOWN, mask, __VA_ARGS__)
#define __shfl_xor_sync(mask, ...)   SIM_SHUFFLE(SIM_XOR, mask, __VA_ARGS__)

inline unsigned sim_ballot(unsigned mask, bool vote, const char *file, int line)
{
    uint64_t raw = vote;
    const uint64_t *votes = sim_warp_rv(mask, &raw, SIM_BALLOT, file, line);
    unsigned all = 0;
    for (int i = 0; i < 32; i++)
        if ((mask >> i & 1) && sim_lane_exists(i) && votes[i])
            all |= 1u << i;
    return all;
}
#define __ballot_sync(mask, vote) sim_ballot(mask, (vote), SIM_HERE)
#define __any_sync(mask, vote)    (sim_ballot(mask, (vote), SIM_HERE) != 0)
#define __all_sync(mask, vote)    (sim_ballot(mask, !(vote), SIM_HERE) == 0)

#include "intrinsics.h"
