/* array/matmul_internal.h - between dt_matmul_run and the backends. Arguments are checked and
 * complete: no size is 0, leading dimensions are filled in. Read first: array/dt_matmul.h. */
#pragma once

#include "array/dt_matmul.h"

/* matmul_plain.c, in every build. */
void dti_matmul_plain_f32(const dt_matmul_args *args);
void dti_matmul_plain_f64(const dt_matmul_args *args);

/* matmul_onednn.c or matmul_none.c. The second multiplies bf16 or f16 as they are, alpha 1 and beta
 * 0 or 1; *done_out is false, and nothing happened, if this machine has no such product. */
DT_NODISCARD dt_status dti_matmul_f32(const dt_matmul_args *args);
DT_NODISCARD dt_status dti_matmul_16(const dt_matmul_args *args, bool *done_out);
