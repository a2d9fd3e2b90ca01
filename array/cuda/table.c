/* array/cuda/table.c - the cuda tables, and moving bytes between host and device. Read first:
 * array/cuda_internal.h. */
#include "array/cuda/gpu_internal.h"
#include "array/cuda/kernels_internal.h"

static void zero(void *dst, size_t bytes)
{
    if (bytes > 0 && dst)
        (void)DTI_GPU(cudaMemsetAsync(dst, 0, bytes, dti_gpu_stream()));
}

static void copy(void *dst, const void *src, size_t bytes)
{
    (void)DTI_GPU(cudaMemcpyAsync(dst, src, bytes, cudaMemcpyDeviceToDevice, dti_gpu_stream()));
}

/* What comes before is waited for first: the copy itself blocks where nobody watches. */
static dt_status move(void *dst, const void *src, size_t bytes, enum cudaMemcpyKind kind)
{
    dti_gpu_sync();
    if (dti_cuda_status() == DT_OK)
        (void)DTI_GPU(cudaMemcpyAsync(dst, src, bytes, kind, dti_gpu_stream()));
    (void)DTI_GPU(cudaStreamSynchronize(dti_gpu_stream()));
    return dti_cuda_status();
}

static dt_status to_device(void *dst, const void *host, size_t bytes)
{
    return move(dst, host, bytes, cudaMemcpyHostToDevice);
}

static dt_status to_host(void *host, const void *src, size_t bytes)
{
    return move(host, src, bytes, cudaMemcpyDeviceToHost);
}

const dti_cuda_arrays *dti_cuda_array_kernels(void)
{
    static const dti_cuda_arrays table = {
        .zero = zero,
        .copy = copy,
        .fill = dti_cuda_fill,
        .scale = dti_cuda_scale_into,
        .add = dti_cuda_add_into,
        .cast = dti_cuda_cast,
        .copy_block = dti_cuda_copy_block,
        .reduce = dti_cuda_reduce,
        .write = to_device,
        .read = to_host,
    };
    return &table;
}

const dt_math_kernels *dti_cuda_math_kernels(void)
{
    static const dt_math_kernels table = {
        .add = dti_cuda_add,
        .mul = dti_cuda_mul,
        .scale = dti_cuda_scale,
        .sum = dti_cuda_sum,
        .sum_mul = dti_cuda_sum_mul,
        .strided = dti_cuda_strided,
        .range = dti_cuda_range,
        .normal = dti_cuda_normal,
        .product = dti_cuda_product,
    };
    return &table;
}

const dt_optim_kernels *dti_cuda_optim_kernels(void)
{
    static const dt_optim_kernels table = {.adamw = dti_cuda_adamw,
                                           .power_sum = dti_cuda_power_sum};
    return &table;
}

const dt_nn_kernels *dti_cuda_nn_kernels(void)
{
    static const dt_nn_kernels table = {
        .norm = dti_cuda_norm,
        .norm_backward = dti_cuda_norm_backward,
        .activation = dti_cuda_activation,
        .activation_dx = dti_cuda_activation_dx,
        .swiglu = dti_cuda_swiglu,
        .swiglu_backward = dti_cuda_swiglu_backward,
        .softmax = dti_cuda_softmax,
        .softmax_dx = dti_cuda_softmax_dx,
        .find_bad_id = dti_cuda_find_bad_id,
        .embedding = dti_cuda_embedding,
        .embedding_dw = dti_cuda_embedding_dw,
        .rope = dti_cuda_rope,
        .dropout = dti_cuda_dropout,
        .loss_rows = dti_cuda_loss_rows,
        .loss_shift = dti_cuda_loss_shift,
        .loss_total = dti_cuda_loss_total,
        .loss_dz = dti_cuda_loss_dz,
        .attention = dti_cuda_attention,
        .attention_ours = dti_cudnn_refuses,
        .attention_backward = dti_cuda_attention_backward,
    };
    return &table;
}
