/* array/cuda_none.c - where cuda is not built in. */
#include "array/cuda_internal.h"

const dti_cuda_arrays *dti_cuda_array_kernels(void)
{
    return NULL;
}

const dt_math_kernels *dti_cuda_math_kernels(void)
{
    return NULL;
}

const dt_nn_kernels *dti_cuda_nn_kernels(void)
{
    return NULL;
}

const dt_optim_kernels *dti_cuda_optim_kernels(void)
{
    return NULL;
}

const dti_cuda_copies_table *dti_cuda_copies(void)
{
    return NULL;
}

dt_status dti_cuda_matmul(const dt_matmul_args *p)
{
    (void)p;
    return DT_ERROR(DT_ERR_DEVICE, "this library was built without cuda");
}

dt_status dti_cuda_memory_create(int device, int ranks, size_t bytes, dti_cuda_memory *memory_out)
{
    (void)device;
    (void)ranks;
    (void)bytes;
    (void)memory_out;
    return DT_ERROR(DT_ERR_DEVICE, "this library was built without cuda: meson -Dcuda=enabled");
}

void dti_cuda_memory_destroy(const dti_cuda_memory *memory)
{
    (void)memory;
}

int dti_cuda_device_count(void)
{
    return 0;
}

dt_heap_counts dti_cuda_counts(void)
{
    return (dt_heap_counts){0};
}

dt_status dti_cuda_status(void)
{
    return DT_OK;
}

void *dti_cuda_stream(void)
{
    return NULL;
}

void *dti_cuda_set_stream(void *stream)
{
    (void)stream;
    return NULL;
}

void dti_cuda_set_watch(dt_heap_watch watch, void *arg)
{
    (void)watch;
    (void)arg;
}
