/* array/cuda/cudnn_none.c - where cuDNN is not built in. */
#include "array/cuda/kernels_internal.h"

const char *dti_cudnn_refuses(const dt_attention_args *a)
{
    (void)a;
    return "built without cuDNN";
}

bool dti_cudnn_attention(const dt_attention_args *a)
{
    (void)a;
    return false;
}
