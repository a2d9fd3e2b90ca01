/* tests/simdev/blocks.c - tells the simulated device which blocks of a heap are in use; in the
 * place of array/cuda/blocks.c. Not where the rank's thread has ended, and its work with it. */
#include "array/cuda/gpu_internal.h"
#include "array/cuda_internal.h"
#include "core.h"

void dti_cuda_block_taken(void *block, size_t bytes, size_t red_zone)
{
    if (dti_gpu_stream())
        sim_block_taken(block, bytes, red_zone, dti_gpu_stream());
}

void dti_cuda_block_given(void *block, size_t bytes)
{
    if (dti_gpu_stream())
        sim_block_given(block, bytes, dti_gpu_stream());
}
