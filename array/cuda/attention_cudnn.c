/* array/cuda/attention_cudnn.c - attention's forward pass by cuDNN: for what, the plans kept by
 * shape, and one run. Read next: array/cuda/cudnn_graph.c.
 *
 * What cuDNN cannot do our own kernels do (array/cuda/attention.cu), and all of the backward pass:
 * as NVIDIA's frontend builds it for sm_90, it either adds up dq by atomics, so that bits change
 * from run to run, or keeps queries by keys of each head in memory. */
#include "array/cuda/cudnn_graph.h"
#include "array/cuda/gpu_internal.h"
#include "array/cuda/kernels_internal.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    OLDEST = 91002, /* 9.10.2: forward attention of 9.10.0 and 9.10.1 is known to be wrong */
    NEXT = 100000,  /* cuDNN 10: who knows */
    WIDEST = 128,   /* numbers in a head */
    PLANS = 64
};

typedef struct kept_plan {
    dti_cudnn_shape shape; /* batch 0: free */
    dti_cudnn_plan plan;
} kept_plan;

typedef struct state {
    cudnnHandle_t handle; /* NULL: cuDNN cannot be used */
    int next;             /* the slot that is filled next */
    kept_plan kept[PLANS];
} state;

/* ---- for what ---- */

enum { TYPE, WIDTH, EMPTY, ONE_QUERY, DOCUMENTS, POSITIONS, FIRSTS, GROUPS, ADDRESS, CUDNN, FITS };
static const char *const reason[FITS] = {
    [TYPE] = "neither bf16 nor f16",
    [WIDTH] = "heads are not of 8, 16 .. 128 numbers",
    [EMPTY] = "an empty array",
    [ONE_QUERY] = "one query: each number of keys would have a plan of its own",
    [DOCUMENTS] = "documents",
    [POSITIONS] = "causal by positions that are given",
    [FIRSTS] = "causal, and queries begin at another position than keys",
    [GROUPS] = "heads here begin or end within a group",
    [ADDRESS] = "an address that is no multiple of 16",
    [CUDNN] = "cuDNN fails",
};

/* Does head h of those here read key head h / (heads / kv_heads)? */
static bool groups_are_whole(const dt_attention_args *a)
{
    if (a->kv_heads == 0 || a->heads % a->kv_heads != 0)
        return false;
    const int64_t group = a->heads / a->kv_heads;
    for (int64_t h = 0; h < a->heads; h++)
        if ((a->head_lo + h) / a->group - a->kv_lo != h / group)
            return false;
    return true;
}

static bool aligned(const dt_attention_args *a)
{
    const void *const p[] = {a->q, a->k, a->v, a->out, a->lse};
    uintptr_t all = 0;
    for (int i = 0; i < DT_COUNT(p); i++)
        all |= (uintptr_t)p[i];
    return all % 16 == 0;
}

/* All queries come after all keys. */
static bool hides_nothing(const dt_attention_args *a)
{
    return !a->causal || (!a->q_pos && !a->k_pos && a->q_first - a->k_first >= a->keys - 1);
}

static int refusal(const dt_attention_args *a)
{
    const bool masked = !hides_nothing(a);
    if (a->dtype != DT_BF16 && a->dtype != DT_F16)
        return TYPE;
    if (a->dim % 8 != 0 || a->vdim % 8 != 0 || a->dim > WIDEST || a->vdim > WIDEST)
        return WIDTH;
    if (a->batch == 0 || a->heads == 0 || a->keys == 0 || a->dim == 0 || a->vdim == 0)
        return EMPTY;
    if (a->queries < 2)
        return ONE_QUERY;
    if (a->q_doc || a->k_doc)
        return DOCUMENTS;
    if (masked && (a->q_pos || a->k_pos))
        return POSITIONS;
    if (masked && a->q_first != a->k_first)
        return FIRSTS;
    if (!groups_are_whole(a))
        return GROUPS;
    return aligned(a) ? FITS : ADDRESS;
}

const char *dti_cudnn_refuses(const dt_attention_args *a)
{
    const int why = refusal(a);
    return why == FITS ? NULL : reason[why];
}

/* Once for each reason; false. */
static bool note(int why, const char *more)
{
    static atomic_flag said[FITS];
    if (!atomic_flag_test_and_set(&said[why]))
        (void)fprintf(stderr, "note: attention without cuDNN: %s%s\n", reason[why], more);
    return false;
}

static bool failed(const char *what, cudnnStatus_t status)
{
    char text[600], why[400] = "";
    cudnnGetLastErrorString(why, sizeof why);
    why[strcspn(why, "\n")] = '\0';
    (void)snprintf(text, sizeof text, " (%zu): %s: %s %s", cudnnGetVersion(), what,
                   cudnnGetErrorString(status), why);
    return note(CUDNN, text);
}

/* ---- plans ---- */

static void drop(void *kept)
{
    state *s = kept;
    for (int i = 0; i < PLANS; i++)
        dti_cudnn_plan_destroy(&s->kept[i].plan);
    if (s->handle)
        (void)cudnnDestroy(s->handle);
    free(s);
}

static state *get_state(void)
{
    dti_gpu_kept *kept = dti_gpu_keep(DTI_GPU_ATTENTION);
    state *s = kept->state ? kept->state : calloc(1, sizeof *s);
    if (!s || kept->state)
        return s;
    *kept = (dti_gpu_kept){s, drop};
    const size_t version = cudnnGetVersion();
    cudnnStatus_t st = CUDNN_STATUS_NOT_SUPPORTED;
    if (version >= OLDEST && version < NEXT)
        st = cudnnCreate(&s->handle);
    if (st != CUDNN_STATUS_SUCCESS) {
        s->handle = NULL;
        (void)failed("a cuDNN from 9.10.2 on is needed", st);
    }
    return s;
}

static kept_plan *get_plan(state *s, const dti_cudnn_shape *shape)
{
    for (int i = 0; i < PLANS; i++)
        if (memcmp(&s->kept[i].shape, shape, sizeof *shape) == 0)
            return &s->kept[i];
    kept_plan *k = &s->kept[s->next++ % PLANS];
    if (k->plan.plan)
        dti_gpu_sync(); /* it may be running */
    dti_cudnn_plan_destroy(&k->plan);
    k->shape = *shape;
    const cudnnStatus_t st = dti_cudnn_plan_create(shape, s->handle, NULL, &k->plan);
    if (st != CUDNN_STATUS_SUCCESS)
        (void)failed("no plan", st);
    return k;
}

static cudnnStatus_t run(const state *s, const kept_plan *k, const dt_attention_args *a)
{
    const size_t bytes = (size_t)k->plan.workspace_bytes;
    const dti_cudnn_arrays arrays = {.q = a->q,
                                     .k = a->k,
                                     .v = a->v,
                                     .out = a->out,
                                     .lse = a->lse,
                                     .workspace = bytes > 0 ? dti_gpu_scratch(bytes) : NULL,
                                     .scale = (float)a->scale};
    if (bytes > 0 && !arrays.workspace)
        return CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED;
    const cudnnStatus_t st = cudnnSetStream(s->handle, dti_gpu_stream());
    return st != CUDNN_STATUS_SUCCESS ? st
                                      : dti_cudnn_plan_run(s->handle, &k->plan, &k->shape, &arrays);
}

bool dti_cudnn_attention(const dt_attention_args *a)
{
    const int why = refusal(a);
    if (why != FITS)
        return why == TYPE || why == EMPTY ? false : note(why, "");
    state *s = get_state();
    if (!s || !s->handle)
        return false;
    const dti_cudnn_shape shape = {.type =
                                       a->dtype == DT_BF16 ? CUDNN_DATA_BFLOAT16 : CUDNN_DATA_HALF,
                                   .bshd = a->bshd,
                                   .causal = !hides_nothing(a),
                                   .batch = a->batch,
                                   .heads = a->heads,
                                   .kv_heads = a->kv_heads,
                                   .queries = a->queries,
                                   .keys = a->keys,
                                   .dim = a->dim,
                                   .vdim = a->vdim};
    kept_plan *k = get_plan(s, &shape);
    if (!k->plan.plan)
        return false;
    const cudnnStatus_t st = run(s, k, a);
    if (st != CUDNN_STATUS_SUCCESS) {
        (void)DTI_GPU(cudaGetLastError()); /* the device's own errors stay */
        (void)failed("a run", st);
        dti_cudnn_plan_destroy(&k->plan); /* and is not tried again */
        return false;
    }
    dti_gpu_count_launch();
    return true;
}
