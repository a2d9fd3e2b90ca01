/* array/matmul_none.c - the backend of builds without oneDNN: plain C. Read next:
 * array/matmul_plain.c. */
#include "array/matmul_internal.h"

dt_status dti_matmul_f32(const dt_matmul_args *args)
{
    dti_matmul_plain_f32(args);
    return DT_OK;
}

dt_status dti_matmul_16(const dt_matmul_args *args, bool *done_out)
{
    (void)args;
    *done_out = false;
    return DT_OK;
}
