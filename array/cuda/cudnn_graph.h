/* array/cuda/cudnn_graph.h - attention's forward pass as a graph of cuDNN's operations, the plan
 * that runs it, and one run. Needs nothing but cuDNN. Read next: array/cuda/attention_cudnn.c. */
#pragma once

#include <cudnn.h>
#include <stdbool.h>

/* What a plan depends on; compared as bytes. bshd: [batch, tokens, heads, dim], else heads before
 * tokens. Query head h reads key head h / (heads / kv_heads); causal: query i sees keys 0 to i.
 * type: a cudnnDataType_t, bf16 or f16. */
typedef struct dti_cudnn_shape {
    int64_t type, bshd, causal, batch, heads, kv_heads, queries, keys, dim, vdim;
} dti_cudnn_shape;

enum { DTI_CUDNN_MADE = 96 };
typedef struct dti_cudnn_plan {
    cudnnBackendDescriptor_t plan; /* NULL: there is none */
    int64_t workspace_bytes;
    int nmade;
    cudnnBackendDescriptor_t made[DTI_CUDNN_MADE]; /* all that belongs to it */
} dti_cudnn_plan;

/* The first plan that cuDNN's heuristics offer and whose engine gives equal bits in every run; to
 * be destroyed in any case. `device`: a description of the device in the place of a handle, for
 * tests; else NULL. Cost: a compilation of kernels. Errors: cuDNN's; NOT_SUPPORTED where there is
 * no such engine. */
cudnnStatus_t dti_cudnn_plan_create(const dti_cudnn_shape *s, cudnnHandle_t handle,
                                    cudnnBackendDescriptor_t device, dti_cudnn_plan *out);
void dti_cudnn_plan_destroy(dti_cudnn_plan *p);

/* out [.., vdim] and lse [batch, heads, queries], f32: log of the sum of exp(scale q k). All arrays
 * begin at multiples of 16 bytes. On the handle's stream. */
typedef struct dti_cudnn_arrays {
    const void *q, *k, *v;
    void *out, *lse, *workspace;
    float scale;
} dti_cudnn_arrays;
cudnnStatus_t dti_cudnn_plan_run(cudnnHandle_t handle, const dti_cudnn_plan *p,
                                 const dti_cudnn_shape *s, const dti_cudnn_arrays *a);
