/* array/cuda/cudnn_graph.c - see array/cuda/cudnn_graph.h.
 *
 *     s = scale q k^T       s = row >= column ? s : -inf       (causal)
 *     m = max s     e = exp(s - m)     l = sum e     lse = m + log l     out = (e / l) v
 *
 * cuDNN knows this graph by its operations and has kernels for it as a whole; nothing between q and
 * out goes to memory. Single operations for attention, softmax and masks came later: of those,
 * cuDNN 9.13.1 has attention, but masks in it only 9.21. Source: cuDNN's backend API (graph API) in
 * cudnn_graph.h, and the graphs that NVIDIA's cudnn-frontend builds. */
#include "array/cuda/cudnn_graph.h"

#include <math.h>

typedef cudnnBackendDescriptor_t desc;

/* Names of arrays in memory and of numbers on the host, by which a run gives their addresses;
 * arrays in between have the numbers from VIRTUAL on. */
enum { Q = 1, K, V, OUT, LSE, SCALE, HIDDEN, VIRTUAL };
enum { OPS = 16, CONFIGS = 8, ALIGNED = 16 };

/* The first error stays; then nothing more is done. */
typedef struct builder {
    const dti_cudnn_shape *s;
    dti_cudnn_plan *p;
    cudnnStatus_t status;
    int64_t next; /* number of an array in between */
    int nops;
    desc op[OPS];
} builder;

static desc make(builder *b, cudnnBackendDescriptorType_t type)
{
    desc d = NULL;
    if (b->status == CUDNN_STATUS_SUCCESS && b->p->nmade == DTI_CUDNN_MADE)
        b->status = CUDNN_STATUS_INTERNAL_ERROR;
    if (b->status == CUDNN_STATUS_SUCCESS)
        b->status = cudnnBackendCreateDescriptor(type, &d);
    if (d)
        b->p->made[b->p->nmade++] = d;
    return d;
}

static void set(builder *b, desc d, cudnnBackendAttributeName_t name,
                cudnnBackendAttributeType_t type, int64_t n, const void *value)
{
    if (b->status == CUDNN_STATUS_SUCCESS)
        b->status = cudnnBackendSetAttribute(d, name, type, n, value);
}

static void set_desc(builder *b, desc d, cudnnBackendAttributeName_t name, desc value)
{
    set(b, d, name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &value);
}

static int64_t get(builder *b, desc d, cudnnBackendAttributeName_t name,
                   cudnnBackendAttributeType_t type, int64_t room, void *value)
{
    int64_t n = 0;
    if (b->status == CUDNN_STATUS_SUCCESS)
        b->status = cudnnBackendGetAttribute(d, name, type, room, &n, value);
    return b->status != CUDNN_STATUS_SUCCESS ? 0 : n < room ? n : room;
}

static desc finish(builder *b, desc d)
{
    if (b->status == CUDNN_STATUS_SUCCESS)
        b->status = cudnnBackendFinalize(d);
    return d;
}

/* ---- arrays ---- */

static desc tensor(builder *b, int64_t name, cudnnDataType_t type, const int64_t dim[4],
                   const int64_t stride[4])
{
    const desc d = make(b, CUDNN_BACKEND_TENSOR_DESCRIPTOR);
    const bool yes = true, by_value = name == SCALE || name == HIDDEN;
    const int64_t align = by_value ? (int64_t)sizeof(float) : ALIGNED;
    set(b, d, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &type);
    set(b, d, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, 4, dim);
    set(b, d, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, 4, stride);
    set(b, d, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1, &name);
    set(b, d, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, 1, &align);
    if (name >= VIRTUAL)
        set(b, d, CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, 1, &yes);
    if (by_value)
        set(b, d, CUDNN_ATTR_TENSOR_IS_BY_VALUE, CUDNN_TYPE_BOOLEAN, 1, &yes);
    return finish(b, d);
}

/* [batch, heads, queries, last], side by side: `last` is keys or, of what each query has, 1. */
static desc scores(builder *b, int64_t name, cudnnDataType_t type, int64_t last)
{
    const int64_t h = b->s->heads, n = b->s->queries;
    return tensor(b, name, type, (int64_t[]){b->s->batch, h, n, last},
                  (int64_t[]){h * n * last, n * last, last, 1});
}

/* An array of the model's; cuDNN takes k transposed. */
static desc rows(builder *b, int64_t name, int64_t heads, int64_t n, int64_t width)
{
    const bool bshd = b->s->bshd, turned = name == K;
    const int64_t token = bshd ? heads * width : width, head = bshd ? width : n * width;
    return tensor(b, name, (cudnnDataType_t)b->s->type,
                  (int64_t[]){b->s->batch, heads, turned ? width : n, turned ? n : width},
                  (int64_t[]){heads * n * width, head, turned ? 1 : token, turned ? token : 1});
}

static desc number(builder *b, int64_t name)
{
    return tensor(b, name, CUDNN_DATA_FLOAT, (int64_t[]){1, 1, 1, 1}, (int64_t[]){1, 1, 1, 1});
}

/* ---- operations ---- */

static void keep(builder *b, desc op)
{
    b->op[b->nops++] = finish(b, op);
}

static void product(builder *b, desc x, desc y, desc out)
{
    const cudnnDataType_t type = CUDNN_DATA_FLOAT;
    const desc how = make(b, CUDNN_BACKEND_MATMUL_DESCRIPTOR),
               op = make(b, CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR);
    set(b, how, CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &type);
    set_desc(b, op, CUDNN_ATTR_OPERATION_MATMUL_DESC, finish(b, how));
    set_desc(b, op, CUDNN_ATTR_OPERATION_MATMUL_ADESC, x);
    set_desc(b, op, CUDNN_ATTR_OPERATION_MATMUL_BDESC, y);
    set_desc(b, op, CUDNN_ATTR_OPERATION_MATMUL_CDESC, out);
    keep(b, op);
}

static desc reduced(builder *b, cudnnReduceTensorOp_t what, desc x)
{
    const cudnnDataType_t type = CUDNN_DATA_FLOAT;
    const desc how = make(b, CUDNN_BACKEND_REDUCTION_DESCRIPTOR),
               op = make(b, CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR),
               out = scores(b, b->next++, type, 1);
    set(b, how, CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE, 1, &what);
    set(b, how, CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &type);
    set_desc(b, op, CUDNN_ATTR_OPERATION_REDUCTION_DESC, finish(b, how));
    set_desc(b, op, CUDNN_ATTR_OPERATION_REDUCTION_XDESC, x);
    set_desc(b, op, CUDNN_ATTR_OPERATION_REDUCTION_YDESC, out);
    keep(b, op);
    return out;
}

/* Of each element of x, with those of y and, for a choice, z, where they are not NULL. `axis`: of
 * an index, else -1. Gives `out`. */
static desc each(builder *b, cudnnPointwiseMode_t mode, int64_t axis, desc x, desc y, desc z,
                 desc out)
{
    const cudnnDataType_t type =
        mode == CUDNN_POINTWISE_CMP_GE ? CUDNN_DATA_BOOLEAN : CUDNN_DATA_FLOAT;
    const desc how = make(b, CUDNN_BACKEND_POINTWISE_DESCRIPTOR),
               op = make(b, CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
    set(b, how, CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, 1, &mode);
    set(b, how, CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, 1, &type);
    if (axis >= 0)
        set(b, how, CUDNN_ATTR_POINTWISE_AXIS, CUDNN_TYPE_INT64, 1, &axis);
    set_desc(b, op, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, finish(b, how));
    set_desc(b, op, CUDNN_ATTR_OPERATION_POINTWISE_XDESC, x);
    if (y)
        set_desc(b, op, CUDNN_ATTR_OPERATION_POINTWISE_BDESC, y);
    if (z)
        set_desc(b, op, CUDNN_ATTR_OPERATION_POINTWISE_TDESC, z);
    set_desc(b, op, CUDNN_ATTR_OPERATION_POINTWISE_YDESC, out);
    keep(b, op);
    return out;
}

/* The same in f32, into a new array. */
static desc each_score(builder *b, cudnnPointwiseMode_t mode, desc x, desc y, desc z)
{
    return each(b, mode, -1, x, y, z, scores(b, b->next++, CUDNN_DATA_FLOAT, b->s->keys));
}

static desc hide(builder *b, desc s)
{
    const int64_t n = b->s->keys;
    const desc row = each(b, CUDNN_POINTWISE_GEN_INDEX, 2, s, NULL, NULL,
                          scores(b, b->next++, CUDNN_DATA_INT32, n)),
               col = each(b, CUDNN_POINTWISE_GEN_INDEX, 3, s, NULL, NULL,
                          scores(b, b->next++, CUDNN_DATA_INT32, n)),
               seen = each(b, CUDNN_POINTWISE_CMP_GE, -1, row, col, NULL,
                           scores(b, b->next++, CUDNN_DATA_BOOLEAN, n));
    return each_score(b, CUDNN_POINTWISE_BINARY_SELECT, s, number(b, HIDDEN), seen);
}

static desc graph_of(builder *b, cudnnHandle_t handle)
{
    const dti_cudnn_shape *z = b->s;
    desc s = scores(b, b->next++, CUDNN_DATA_FLOAT, z->keys);
    product(b, rows(b, Q, z->heads, z->queries, z->dim), rows(b, K, z->kv_heads, z->keys, z->dim),
            s);
    s = each_score(b, CUDNN_POINTWISE_MUL, s, number(b, SCALE), NULL);
    if (z->causal)
        s = hide(b, s);
    const desc most = reduced(b, CUDNN_REDUCE_TENSOR_MAX, s),
               less = each_score(b, CUDNN_POINTWISE_SUB, s, most, NULL),
               e = each_score(b, CUDNN_POINTWISE_EXP, less, NULL, NULL),
               sum = reduced(b, CUDNN_REDUCE_TENSOR_ADD, e),
               log = each(b, CUDNN_POINTWISE_LOG, -1, sum, NULL, NULL,
                          scores(b, b->next++, CUDNN_DATA_FLOAT, 1));
    (void)each(b, CUDNN_POINTWISE_ADD, -1, most, log, NULL, scores(b, LSE, CUDNN_DATA_FLOAT, 1));
    const desc p = each(b, CUDNN_POINTWISE_DIV, -1, e, sum, NULL,
                        scores(b, b->next++, (cudnnDataType_t)z->type, z->keys));
    product(b, p, rows(b, V, z->kv_heads, z->keys, z->vdim),
            rows(b, OUT, z->heads, z->queries, z->vdim));
    const desc graph = make(b, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
    if (handle)
        set(b, graph, CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, 1, &handle);
    set(b, graph, CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR, b->nops, b->op);
    return finish(b, graph);
}

/* ---- plans ---- */

static bool same_bits_always(builder *b, desc config)
{
    desc engine = make(b, CUDNN_BACKEND_ENGINE_DESCRIPTOR);
    cudnnBackendNumericalNote_t note[CUDNN_NUMERICAL_NOTE_TYPE_COUNT];
    (void)get(b, config, CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &engine);
    const int64_t n = get(b, engine, CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, CUDNN_TYPE_NUMERICAL_NOTE,
                          CUDNN_NUMERICAL_NOTE_TYPE_COUNT, note);
    bool same = b->status == CUDNN_STATUS_SUCCESS;
    for (int64_t i = 0; i < n; i++)
        same = same && note[i] != CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC;
    return same;
}

static void plan_of(builder *b, desc config, desc device)
{
    const desc plan = make(b, CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
    set_desc(b, plan, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, config);
    if (device)
        set_desc(b, plan, CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP, device);
    finish(b, plan);
    (void)get(b, plan, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64, 1,
              &b->p->workspace_bytes);
    b->p->plan = b->status == CUDNN_STATUS_SUCCESS ? plan : NULL;
}

cudnnStatus_t dti_cudnn_plan_create(const dti_cudnn_shape *s, cudnnHandle_t handle,
                                    cudnnBackendDescriptor_t device, dti_cudnn_plan *out)
{
    *out = (dti_cudnn_plan){0};
    builder b = {.s = s, .p = out, .next = VIRTUAL};
    const cudnnBackendHeurMode_t mode = CUDNN_HEUR_MODE_A;
    const desc graph = graph_of(&b, handle), choice = make(&b, CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
    set_desc(&b, choice, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, graph);
    set(&b, choice, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, &mode);
    if (device)
        set_desc(&b, choice, CUDNN_ATTR_ENGINEHEUR_DEVICEPROP, device);
    finish(&b, choice);
    desc config[CONFIGS];
    for (int i = 0; i < CONFIGS; i++)
        config[i] = make(&b, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);
    const int64_t n = get(&b, choice, CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR,
                          CONFIGS, config);
    if (b.status != CUDNN_STATUS_SUCCESS)
        return b.status;
    b.status = CUDNN_STATUS_NOT_SUPPORTED;
    for (int64_t i = 0; i < n && CUDNN_STATUS_CATEGORY(b.status) == CUDNN_STATUS_NOT_SUPPORTED;
         i++) {
        b.status = CUDNN_STATUS_SUCCESS;
        if (same_bits_always(&b, config[i]))
            plan_of(&b, config[i], device);
        else
            b.status = CUDNN_STATUS_NOT_SUPPORTED;
    }
    return b.status;
}

void dti_cudnn_plan_destroy(dti_cudnn_plan *p)
{
    while (p->nmade > 0)
        (void)cudnnBackendDestroyDescriptor(p->made[--p->nmade]);
    *p = (dti_cudnn_plan){0};
}

cudnnStatus_t dti_cudnn_plan_run(cudnnHandle_t handle, const dti_cudnn_plan *p,
                                 const dti_cudnn_shape *s, const dti_cudnn_arrays *a)
{
    const float hidden = -INFINITY;
    const int64_t name[] = {Q, K, V, OUT, LSE, SCALE, HIDDEN};
    const void *const at[] = {a->q, a->k, a->v, a->out, a->lse, &a->scale, &hidden};
    const int64_t n = s->causal ? 7 : 6;
    dti_cudnn_plan mine = {0};
    builder b = {.p = &mine};
    const desc pack = make(&b, CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR);
    set(&b, pack, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, n, name);
    set(&b, pack, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, n, at);
    set(&b, pack, CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1, &a->workspace);
    finish(&b, pack);
    if (b.status == CUDNN_STATUS_SUCCESS)
        b.status = cudnnBackendExecute(handle, p->plan, pack);
    dti_cudnn_plan_destroy(&mine);
    return b.status;
}
