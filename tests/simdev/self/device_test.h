/* tests/simdev/self/device_test.h - what tests of the simulated device share. */
#pragma once

#include "tests/harness.h"
#include "tests/simdev/core.h"

#include <cuda_runtime_api.h>

#define ck_cuda(call) ck_assert_msg((call) == cudaSuccess, "%s", #call)

cudaStream_t new_stream(void);
void *device_array(size_t bytes);
void to_device(void *to, const void *from, size_t bytes, cudaStream_t s);
void to_host(void *to, const void *from, size_t bytes, cudaStream_t s); /* waits */
float value_at(int i); /* a multiple of 1/8, at most 2: small sums are exact, also in 16 bits */
