/* array/kernels_math_cpu.c - the CPU's table of dt_kernels_math.h. */
#include "array/kernels_math_internal.h"

#include "array/array_internal.h"
#include "array/cuda_internal.h"

#include <stddef.h>

static void range(int64_t n, int32_t first, int32_t *out)
{
    for (int64_t i = 0; i < n; i++)
        out[i] = (int32_t)(first + i);
}

static void normal(dt_dtype dtype, dt_key key, uint64_t first, int64_t count, double std, void *out)
{
    enum { CHUNK = 2048 };
    float value[CHUNK];
    for (int64_t at = 0; at < count; at += CHUNK) {
        const int64_t n = count - at < CHUNK ? count - at : CHUNK;
        dt_normal_fill(key, first + (uint64_t)at, n, value);
        for (int64_t i = 0; i < n; i++)
            value[i] = (float)(std * (double)value[i]);
        dti_cast(dtype, dti_at(dtype, out, at), DT_F32, value, n);
    }
}

static const dt_math_kernels cpu = {
    .add = dti_elementwise_add,
    .mul = dti_elementwise_mul,
    .scale = dti_elementwise_scale,
    .sum = dti_sum,
    .sum_mul = dti_sum_mul,
    .strided = dti_strided,
    .range = range,
    .normal = normal,
    .product = dti_product,
};

const dt_math_kernels *dt_math_kernels_of(dt_device_kind kind)
{
    return kind == DT_CPU ? &cpu : kind == DT_CUDA ? dti_cuda_math_kernels() : NULL;
}
