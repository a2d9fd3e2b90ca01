/* array/cuda/lists.h - one launch for a list of arrays: its blocks find their array in the launch's
 * arguments. Read first: array/cuda/vec.h. */
#pragma once

#include "array/cuda/vec.h"

namespace gpu {
/* Block b of a launch is block b - first[t] of array t, the last one with first[t] <= b. */
template <int MOST> struct block_map {
    int count;
    uint32_t first[MOST + 1];
};

template <int MOST> __device__ inline int array_of(const block_map<MOST> &map)
{
    int lo = 0, hi = map.count;
    while (hi - lo > 1) {
        const int middle = (lo + hi) / 2;
        if (map.first[middle] <= blockIdx.x)
            lo = middle;
        else
            hi = middle;
    }
    return lo;
}
} // namespace gpu
