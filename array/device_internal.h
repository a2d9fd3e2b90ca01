/* array/device_internal.h - arrays of another device than the cpu, for array.c. */
#pragma once

#include "array/cuda_internal.h"

/* The operations of the array's device; NULL: array.c's own, on the cpu or on bytes of the host
 * that no heap owns. */
const dti_cuda_arrays *dti_elsewhere(const dt_array *a);

/* Where at least one of the two is elsewhere; data is there. Between host and device they block. */
void dti_copy_elsewhere(dt_array *dst, const dt_array *src);
void dti_cast_elsewhere(dt_array *dst, const dt_array *src);
void dti_block_elsewhere(const dti_strided_block *b, const dti_cuda_arrays *to,
                         const dti_cuda_arrays *from);
