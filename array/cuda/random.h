/* array/cuda/random.h - the random numbers of base/dt_random.h in kernels, bit for bit. */
#pragma once

#include "array/cuda/vec.h"

#define RANDOM_FN        __device__ inline
#define RANDOM_MUL(a, b) __dmul_rn((a), (b))

namespace gpu {
#include "base/random_math.inc"

/* The four words of elements 4 block ... 4 block + 3. */
__device__ inline void random_words(dt_key key, uint64_t block, uint32_t (&word)[4])
{
    const uint32_t counter[4] = {(uint32_t)block, (uint32_t)(block >> 32), 0, 0};
    philox(key, counter, word);
}
} // namespace gpu
