/* array/kernels_nn_internal.h - the CPU functions behind the table in array/kernels_nn.c, one line
 * each; what they do is said in array/dt_kernels_nn.h. */
#pragma once

#include "array/dt_kernels_nn.h"

void dti_norm(const dt_norm_args *a, void *y);
void dti_norm_backward(const dt_norm_args *a, void *dx, void *dw, void *db);
void dti_activation(dt_dtype dtype, dt_activation kind, int64_t n, const void *x, void *y);
void dti_activation_dx(dt_dtype dtype, dt_activation kind, int64_t n, const void *x, const void *dy,
                       void *dx);
void dti_swiglu(dt_dtype dtype, int64_t n, const void *gate, const void *up, void *y);
void dti_swiglu_backward(dt_dtype dtype, int64_t n, const void *gate, const void *up,
                         const void *dy, void *dgate, void *dup);
void dti_softmax(dt_dtype dtype, int64_t rows, int64_t n, const void *x, void *y);
void dti_softmax_dx(dt_dtype dtype, int64_t rows, int64_t n, const void *y, const void *dy,
                    void *dx);
int64_t dti_find_bad_id(int64_t n, const int32_t *ids, int64_t limit, int64_t ignore);
void dti_embedding(const dt_embedding_args *a, const void *w, void *y);
void dti_embedding_dw(const dt_embedding_args *a, const void *dy, void *dw);
void dti_rope_table(const dt_rope_args *a);
void dti_rope(const dt_rope_args *a, bool inverse, const void *x, void *y);
void dti_dropout(const dt_dropout_args *a, const void *x, void *y);
void dti_loss_rows(const dt_loss_args *a);
void dti_loss_shift(const dt_loss_args *a, const void *old_max);
void dti_loss_total(const dt_loss_args *a, double *total);
void dti_loss_dz(const dt_loss_args *a, const void *dy, double divisor, dt_dtype dz_dtype,
                 void *dz);
void dti_attention(const dt_attention_args *a);
void dti_attention_backward(const dt_attention_args *a);
