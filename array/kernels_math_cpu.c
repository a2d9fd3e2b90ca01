/* array/kernels_math_cpu.c - the CPU's table of dt_kernels_math.h. */
#include "array/kernels_math_internal.h"

#include <stddef.h>

static const dt_math_kernels cpu = {
    .add = dti_elementwise_add,
    .mul = dti_elementwise_mul,
    .scale = dti_elementwise_scale,
    .sum = dti_sum,
    .sum_mul = dti_sum_mul,
    .strided = dti_strided,
    .product = dti_product,
};

const dt_math_kernels *dt_math_kernels_of(dt_device_kind kind)
{
    return kind == DT_CPU ? &cpu : NULL;
}
