/* array/kernels_nn.c - the CPU's table of neural network kernels. */
#include "array/kernels_nn_internal.h"

#include "array/cuda_internal.h"

static const dt_nn_kernels cpu = {
    .norm = dti_norm,
    .norm_backward = dti_norm_backward,
    .activation = dti_activation,
    .activation_dx = dti_activation_dx,
    .swiglu = dti_swiglu,
    .swiglu_backward = dti_swiglu_backward,
    .softmax = dti_softmax,
    .softmax_dx = dti_softmax_dx,
    .find_bad_id = dti_find_bad_id,
    .embedding = dti_embedding,
    .embedding_dw = dti_embedding_dw,
    .rope_table = dti_rope_table,
    .rope = dti_rope,
    .dropout = dti_dropout,
    .loss_rows = dti_loss_rows,
    .loss_shift = dti_loss_shift,
    .loss_total = dti_loss_total,
    .loss_dz = dti_loss_dz,
    .attention = dti_attention,
    .attention_backward = dti_attention_backward,
};

const dt_nn_kernels *dt_nn_kernels_of(dt_device_kind kind)
{
    return kind == DT_CPU ? &cpu : kind == DT_CUDA ? dti_cuda_nn_kernels() : NULL;
}
