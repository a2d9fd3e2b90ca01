/* array/cuda/blocks.c - a GPU does not care which blocks of a heap are in use; the simulated device
 * does: tests/simdev/blocks.c. */
#include "array/cuda_internal.h"

void dti_cuda_block_taken(void *block, size_t bytes, size_t red_zone)
{
    (void)block;
    (void)bytes;
    (void)red_zone;
}

void dti_cuda_block_given(void *block, size_t bytes)
{
    (void)block;
    (void)bytes;
}
