/* array/cuda/expo.h - exponentials: of what is stored in 16 bits the device's fast ones, whose
 * error of about 1e-6 the storage hides; else those of the math library. */
#pragma once

#include "array/cuda/vec.h"

namespace gpu {
template <class S> __device__ inline real<S> exponential(real<S> x)
{
    if constexpr (sizeof(S) == 2)
        return __expf(x);
    else if constexpr (sizeof(S) == 4)
        return expf(x);
    else
        return exp(x);
}

template <class S> __device__ inline real<S> sigmoid(real<S> x)
{
    const real<S> e = exponential<S>(-x);
    if constexpr (sizeof(S) == 2)
        return __fdividef(1.0f, 1.0f + e);
    else
        return 1 / (1 + e);
}
} // namespace gpu
