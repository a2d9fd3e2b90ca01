/* tests/simdev/self/device_test.c - see device_test.h. */
#include "device_test.h"

cudaStream_t new_stream(void)
{
    cudaStream_t s;
    ck_cuda(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
    return s;
}

void *device_array(size_t bytes)
{
    void *p;
    ck_cuda(cudaMalloc(&p, bytes));
    return p;
}

void to_device(void *to, const void *from, size_t bytes, cudaStream_t s)
{
    ck_cuda(cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, s));
}

void to_host(void *to, const void *from, size_t bytes, cudaStream_t s)
{
    ck_cuda(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, s));
    ck_cuda(cudaStreamSynchronize(s));
}

float value_at(int i)
{
    return (float)((i * 7 + 3) % 31 - 15) / 8;
}
