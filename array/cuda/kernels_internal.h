/* array/cuda/kernels_internal.h - the functions behind the cuda tables (array/cuda/table.c), one
 * line each; what they do is said in array/dt_kernels_*.h and array/cuda_internal.h. Beyond that,
 * every function takes f32, bf16, f16 and f64 arrays: 16 bits are computed in f32 and rounded once,
 * and what accompanies them (rope's table, attention's lse, a loss's max, sum, hit and dy) is f32.
 * All work is put on the rank's compute stream. */
#pragma once

#include "array/cuda_internal.h"

/* elementwise.cu, cast.cu: casts and normal numbers */
void dti_cuda_fill(dt_dtype dtype, void *dst, int64_t n, double value);
void dti_cuda_scale_into(dt_dtype dtype, void *dst, int64_t n, double factor);
void dti_cuda_add_into(dt_dtype dtype, void *dst, const void *src, int64_t n);
void dti_cuda_cast(int count, const dti_cast_args *list);
void dti_cuda_reduce(dt_dtype dtype, void *dst, int nsrc, const void *const *src, int64_t n,
                     dt_reduce op);
void dti_cuda_add(dt_dtype dtype, int64_t outer, int64_t inner, const void *x, const void *y,
                  void *out);
void dti_cuda_mul(dt_dtype dtype, int64_t outer, int64_t inner, const void *x, const void *y,
                  void *out);
void dti_cuda_scale(dt_dtype dtype, int64_t n, double factor, const void *x, void *out);
void dti_cuda_range(int64_t n, int32_t first, int32_t *out);
/* The same bits as on the cpu. */
void dti_cuda_normal(dt_dtype dtype, dt_key key, uint64_t first, int64_t n, double std, void *out);

/* strided.cu */
void dti_cuda_copy_block(const dti_strided_block *b);
void dti_cuda_strided(const dt_strided_args *a);

/* sum.cu, product.cu */
void dti_cuda_sum(dt_dtype dtype, int64_t outer, int64_t mid, int64_t inner, const void *x,
                  void *out);
void dti_cuda_sum_mul(dt_dtype dtype, int64_t mid, int64_t inner, const void *x, const void *y,
                      void *out);
void dti_cuda_product(const dt_product_args *a);

/* optim.cu */
void dti_cuda_adamw(int count, const dt_adamw_args *list);
void dti_cuda_power_sum(int count, const dt_power_args *list, double power);

/* norm.cu */
void dti_cuda_norm(const dt_norm_args *a, void *y);
void dti_cuda_norm_backward(const dt_norm_args *a, void *dx, void *dw, void *db);

/* activation.cu */
void dti_cuda_activation(dt_dtype dtype, dt_activation kind, int64_t n, const void *x, void *y);
void dti_cuda_activation_dx(dt_dtype dtype, dt_activation kind, int64_t n, const void *x,
                            const void *dy, void *dx);
void dti_cuda_swiglu(dt_dtype dtype, int64_t n, const void *gate, const void *up, void *y);
void dti_cuda_swiglu_backward(dt_dtype dtype, int64_t n, const void *gate, const void *up,
                              const void *dy, void *dgate, void *dup);

/* softmax.cu */
void dti_cuda_softmax(dt_dtype dtype, int64_t rows, int64_t n, const void *x, void *y);
void dti_cuda_softmax_dx(dt_dtype dtype, int64_t rows, int64_t n, const void *y, const void *dy,
                         void *dx);

/* loss.cu */
void dti_cuda_loss_rows(const dt_loss_args *a);
void dti_cuda_loss_shift(const dt_loss_args *a, const void *old_max);
void dti_cuda_loss_total(const dt_loss_args *a, double *total);
void dti_cuda_loss_dz(const dt_loss_args *a, const void *dy, double divisor, dt_dtype dz_dtype,
                      void *dz);

/* embedding.cu: find_bad_id blocks */
int64_t dti_cuda_find_bad_id(int64_t n, const int32_t *ids, int64_t limit, int64_t ignore);
void dti_cuda_embedding(const dt_embedding_args *a, const void *w, void *y);
void dti_cuda_embedding_dw(const dt_embedding_args *a, const void *dy, void *dw);

/* rope.cu: without a table; dropout.cu */
void dti_cuda_rope(const dt_rope_args *a, bool inverse, const void *x, void *y);
void dti_cuda_dropout(const dt_dropout_args *a, const void *x, void *y);

/* attention.cu: by cuDNN where that can, else by our own kernels; those alone */
void dti_cuda_attention(const dt_attention_args *a);
void dti_cuda_attention_own(const dt_attention_args *a);
void dti_cuda_attention_backward(const dt_attention_args *a);

/* attention_cudnn.c, cudnn_none.c. Why cuDNN is not for this attention; NULL: it is. */
const char *dti_cudnn_refuses(const dt_attention_args *a);
/* Forward by cuDNN; false: it does not take it or fails, and our kernels are to do it. A shape's
 * first call compiles kernels on the host, about a second. */
bool dti_cudnn_attention(const dt_attention_args *a);
