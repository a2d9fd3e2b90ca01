/* tests/gpu/test_attention.c - attention on the device against the cpu's, forward and backward: by
 * positions and documents in any order, heads that share keys, sizes that fill no tile or are 0;
 * forward by our kernels and, where it is built in and takes the case, by cuDNN. */
#include "tests/gpu/gpu_test.h"

#include "array/array_internal.h"
#include "array/cuda/kernels_internal.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* HIDDEN: positions that leave queries without keys and keys without queries; FAR: so many tiles
 * that they are not looked at in one go; COUNTED: positions without an array. */
enum { CAUSAL = 1, SHUFFLED = 2, BATCHED = 4, DOCUMENTS = 8, HIDDEN = 16, FAR = 32, COUNTED = 64 };
enum { BSHD = 128 };                  /* heads behind tokens */
enum { TOGETHER = 256 };              /* counted positions of queries and of keys begin at 0 */
enum { NEGATIVE = 512, FLAT = 1024 }; /* the factor of scores: below 0, 0 */
enum { MANY = 1024 * 64 + 100 };

typedef struct kase {
    int batch, heads, kv_heads, queries, keys, dim, vdim, group, head_lo, kv_lo, flags;
} kase;

/* Positions, or documents, of token i of n. */
static int32_t mark(const kase *c, int n, int i, bool queries, bool documents)
{
    if (documents)
        return i / 50;
    if (c->flags & FAR) { /* the first and the last of many meet the few others, at 3 */
        const bool outer = i < 70 || i >= n - 70;
        return n < 140 ? 3 : outer == queries ? 5 : 1;
    }
    return (c->flags & HIDDEN && !queries ? n / 3 : 0) + i;
}

/* [n], or for each sample. */
static gpu_pair marks(const kase *c, int n, bool queries, bool documents, uint32_t *state)
{
    const int rows = c->flags & BATCHED ? c->batch : 1;
    int32_t *x = calloc((size_t)(rows * n + 1), sizeof *x);
    for (int i = 0; i < rows * n; i++)
        x[i] = mark(c, n, i % n, queries, documents);
    for (int i = 0; c->flags & SHUFFLED && i < rows * n; i++) {
        *state = *state * 1664525u + 1013904223u;
        const int j = i / n * n + (int)((*state >> 8) % (uint32_t)n);
        const int32_t other = x[j];
        x[j] = x[i];
        x[i] = other;
    }
    const gpu_pair p = gpu_values(DT_I32, rows * n, x);
    free(x);
    return p;
}

/* All arrays of a case, and its arguments for the cpu and for the device. */
typedef struct job {
    const kase *c;
    gpu_pair q, k, v, dout, out, lse, dq, dk, dv;
    dt_attention_args cpu, gpu;
} job;

static void add_marks(job *j)
{
    const kase *c = j->c;
    const bool batched = c->flags & BATCHED;
    uint32_t state = 7;
    const gpu_pair q_pos = marks(c, c->queries, true, false, &state),
                   k_pos = marks(c, c->keys, false, false, &state),
                   q_doc = marks(c, c->queries, true, true, &state),
                   k_doc = marks(c, c->keys, false, true, &state);
    for (int side = 0; side < 2; side++) {
        dt_attention_args *a = side ? &j->gpu : &j->cpu;
        a->causal = c->flags & CAUSAL;
        a->q_first = !(c->flags & TOGETHER) && c->keys > c->queries ? c->keys - c->queries : 0;
        a->k_first = !(c->flags & TOGETHER) && c->keys < c->queries ? 50 : 0;
        a->q_pos = c->flags & COUNTED ? NULL : side ? q_pos.gpu : q_pos.cpu;
        a->k_pos = c->flags & COUNTED ? NULL : side ? k_pos.gpu : k_pos.cpu;
        a->q_pos_batched = a->k_pos_batched = batched;
        if (c->flags & DOCUMENTS) {
            a->q_doc = side ? q_doc.gpu : q_doc.cpu;
            a->k_doc = side ? k_doc.gpu : k_doc.cpu;
            a->q_doc_batched = a->k_doc_batched = batched;
        }
    }
}

static job make(dt_dtype dtype, const kase *c)
{
    const int64_t nq = c->batch * c->heads * c->queries, nk = c->batch * c->kv_heads * c->keys;
    const int sign = c->flags & NEGATIVE ? -1 : 1;
    job j = {.c = c,
             .q = gpu_random(dtype, nq * c->dim, -1, 1),
             .k = gpu_random(dtype, nk * c->dim, -1, 1),
             .v = gpu_random(dtype, nk * c->vdim, -1, 1),
             .out = gpu_output(dtype, nq * c->vdim),
             .lse = gpu_output(dtype == DT_F64 ? DT_F64 : DT_F32, nq)};
    j.cpu = (dt_attention_args){.dtype = j.q.wide,
                                .bshd = c->flags & BSHD,
                                .batch = c->batch,
                                .heads = c->heads,
                                .kv_heads = c->kv_heads,
                                .queries = c->queries,
                                .keys = c->keys,
                                .dim = c->dim,
                                .vdim = c->vdim,
                                .group = c->group,
                                .head_lo = c->head_lo,
                                .kv_lo = c->kv_lo,
                                .scale = c->flags & FLAT ? 0 : sign * 2 / sqrt(c->dim + 1.0)};
    j.gpu = j.cpu;
    j.gpu.dtype = dtype;
    add_marks(&j);
    j.cpu.q = j.q.cpu;
    j.cpu.k = j.k.cpu;
    j.cpu.v = j.v.cpu;
    j.cpu.out = j.out.cpu;
    j.cpu.lse = j.lse.cpu;
    j.gpu.q = j.q.gpu;
    j.gpu.k = j.k.gpu;
    j.gpu.v = j.v.gpu;
    j.gpu.out = j.out.gpu;
    j.gpu.lse = j.lse.gpu;
    return j;
}

/* For backward: what forward gave on the cpu, rounded, on both sides. */
static gpu_pair given(const gpu_pair *x)
{
    void *rounded = malloc((size_t)x->n * dt_dtype_size(x->dtype) + 1);
    if (x->n > 0)
        dti_cast(x->dtype, rounded, x->wide, x->cpu, x->n);
    const gpu_pair y = gpu_values(x->dtype, x->n, rounded);
    free(rounded);
    return y;
}

/* The gradients named by `wanted`, bits 0 to 2, for q, k and v. */
static void make_backward(job *j, int wanted)
{
    const dt_dtype dtype = j->gpu.dtype;
    j->dout = gpu_random(dtype, j->out.n, -1, 1);
    j->out = given(&j->out);
    j->lse = given(&j->lse);
    j->dq = gpu_output(dtype, j->q.n);
    j->dk = gpu_output(dtype, j->k.n);
    j->dv = gpu_output(dtype, j->v.n);
    for (int side = 0; side < 2; side++) {
        dt_attention_args *a = side ? &j->gpu : &j->cpu;
        a->dout = side ? j->dout.gpu : j->dout.cpu;
        a->out = side ? j->out.gpu : j->out.cpu;
        a->lse = side ? j->lse.gpu : j->lse.cpu;
        a->dq = !(wanted & 1) ? NULL : side ? j->dq.gpu : j->dq.cpu;
        a->dk = !(wanted & 2) ? NULL : side ? j->dk.gpu : j->dk.cpu;
        a->dv = !(wanted & 4) ? NULL : side ? j->dv.gpu : j->dv.cpu;
    }
}

static double largest(const gpu_pair *x)
{
    double most = 0;
    for (int64_t i = 0; i < x->n; i++) {
        const double y = x->wide == DT_F64 ? ((double *)x->cpu)[i] : (double)((float *)x->cpu)[i];
        most = fmax(most, fabs(y));
    }
    return most;
}

/* The root mean square of what the device is off by, to that of the values: a bound that small
 * elements meet too. 16 bits only. */
static void check_mean(const gpu_pair *x, const char *what, int number)
{
    const int64_t all = dt_array_count(&x->array);
    const size_t size = dt_dtype_size(x->dtype);
    if (x->n == 0 || size != 2)
        return;
    char *host = malloc((size_t)all * size);
    float *got = malloc((size_t)all * sizeof *got);
    ck_ok(dt_array_read(&x->array, host, all));
    dti_cast(DT_F32, got, x->dtype, host + ((char *)x->gpu - (char *)dt_array_data(&x->array)),
             x->n);
    double off = 0, whole = 0;
    for (int64_t i = 0; i < x->n; i++) {
        const double want = (double)((float *)x->cpu)[i];
        off += ((double)got[i] - want) * ((double)got[i] - want);
        whole += want * want;
    }
    const double limit = x->dtype == DT_BF16 ? 0x1p-7 : 0x1p-10;
    ck_assert_msg(off <= limit * limit * whole, "%s of case %d: off by %g of the whole", what,
                  number, sqrt(off / whole));
    free(got);
    free(host);
}

/* What 16 bits round on the way, exponentials and their gradients, are terms of sums that are as
 * large as the largest element. `by`: which kernels compute forward. */
static void check_forward(job *j, const char *by, int number)
{
    dt_nn_kernels_of(DT_CPU)->attention(&j->cpu);
    if (strcmp(by, "cuDNN") == 0)
        ck_assert_msg(dti_cudnn_attention(&j->gpu), "cuDNN has not taken case %d", number);
    else
        dti_cuda_attention_own(&j->gpu);
    gpu_same(&j->out, largest(&j->v), "out of case %d by %s", number, by);
    check_mean(&j->out, "out", number);
    gpu_same(&j->lse, 0, "lse of case %d of %s by %s", number, dt_dtype_name(j->gpu.dtype), by);
}

static void check(dt_dtype dtype, const kase *c, int number, int wanted)
{
    job j = make(dtype, c);
    check_forward(&j, "us", number);
    make_backward(&j, wanted);
    dt_nn_kernels_of(DT_CPU)->attention_backward(&j.cpu);
    dt_nn_kernels_of(DT_CUDA)->attention_backward(&j.gpu);
    const gpu_pair *d[] = {&j.dq, &j.dk, &j.dv};
    for (int i = 0; i < 3; i++)
        if (wanted >> i & 1) {
            gpu_same(d[i], largest(d[i]), "d%c of case %d, %d wanted", "qkv"[i], number, wanted);
            check_mean(d[i], (const char *[]){"dq", "dk", "dv"}[i], number);
        }
}

static const kase cases[] = {
    /* batch, heads, kv, queries, keys, dim, vdim, group, head_lo, kv_lo */
    {2, 4, 2, 70, 90, 16, 24, 2, 0, 0, CAUSAL},
    {1, 2, 2, 150, 150, 64, 64, 1, 0, 0, CAUSAL},
    {2, 2, 1, 40, 67, 5, 7, 2, 0, 0, 0},
    {2, 2, 2, 130, 200, 24, 16, 1, 0, 0, CAUSAL | SHUFFLED | BATCHED | HIDDEN},
    {2, 2, 1, 140, 141, 40, 72, 2, 0, 0, CAUSAL | BATCHED | DOCUMENTS},
    {2, 1, 1, 70, 130, 72, 128, 1, 0, 0, SHUFFLED | DOCUMENTS},
    {1, 3, 2, 65, 64, 8, 8, 2, 2, 1, CAUSAL | HIDDEN},
    {1, 1, 2, 20, 33, 8, 8, 3, 7, 1, CAUSAL},
    {1, 2, 2, 65, 70, 150, 40, 1, 0, 0, CAUSAL},
    {1, 1, 1, 33, 130, 136, 256, 1, 0, 0, CAUSAL},
    {1, 1, 1, 20, 30, 264, 272, 1, 0, 0, 0},
    {1, 1, 1, 1, 300, 64, 128, 1, 0, 0, 0},
    {1, 1, 1, 3, MANY, 8, 8, 1, 0, 0, CAUSAL | FAR},
    {1, 2, 1, MANY, 3, 8, 8, 2, 0, 0, CAUSAL | FAR},
    {2, 4, 2, 70, 190, 16, 24, 2, 0, 0, CAUSAL | COUNTED},
    {1, 2, 1, 200, 130, 64, 64, 2, 0, 0, CAUSAL | COUNTED | DOCUMENTS},
    {2, 4, 2, 70, 190, 16, 24, 2, 0, 0, CAUSAL | BSHD},
    {2, 2, 2, 140, 70, 64, 64, 1, 0, 0, CAUSAL | BATCHED | DOCUMENTS | BSHD},
    {2, 3, 2, 65, 70, 7, 5, 2, 2, 1, CAUSAL | COUNTED | BSHD},
    {1, 2, 1, 40, 75, 136, 256, 2, 0, 0, CAUSAL | BSHD},
    {2, 2, 2, 6, 0, 8, 8, 1, 0, 0, CAUSAL | BSHD},
    {0, 2, 2, 4, 4, 8, 8, 1, 0, 0, CAUSAL},
    {2, 0, 2, 4, 5, 8, 8, 1, 0, 0, CAUSAL},
    {2, 2, 2, 0, 5, 8, 8, 1, 0, 0, CAUSAL},
    {2, 2, 2, 6, 0, 8, 8, 1, 0, 0, CAUSAL},
    {2, 2, 2, 5, 7, 8, 0, 1, 0, 0, CAUSAL},
    {2, 2, 2, 5, 7, 0, 8, 1, 0, 0, CAUSAL},
    {2, 4, 2, 70, 90, 16, 24, 2, 0, 0, CAUSAL | NEGATIVE},
    {2, 4, 2, 70, 90, 16, 24, 2, 0, 0, CAUSAL | FLAT},
    {2, 2, 1, 40, 67, 16, 12, 2, 0, 0, 0},
    {2, 2, 1, 40, 67, 12, 16, 2, 0, 0, BSHD},
};

/* What cuDNN takes, of 16 bits, and what it does not. */
static const kase taken[] = {
    {2, 4, 2, 70, 90, 16, 24, 2, 0, 0, CAUSAL | COUNTED | TOGETHER},
    {2, 4, 2, 70, 90, 16, 24, 2, 0, 0, CAUSAL | COUNTED | TOGETHER | BSHD},
    {1, 2, 2, 150, 150, 64, 64, 1, 0, 0, CAUSAL | COUNTED | TOGETHER | BSHD},
    {1, 3, 1, 130, 65, 128, 128, 3, 0, 0, CAUSAL | COUNTED | TOGETHER},
    {2, 4, 2, 33, 70, 40, 8, 2, 4, 2, BSHD},
    {2, 2, 1, 37, 1, 8, 16, 4, 1, 0, CAUSAL | COUNTED | TOGETHER},
    {1, 2, 2, 2, 300, 64, 128, 1, 0, 0, 0},
    {1, 6, 2, 40, 40, 72, 72, 3, 0, 0, SHUFFLED},
    {1, 2, 2, 65, 64, 8, 8, 2, 1, 0, 0},
};
static const kase refused[] = {
    {2, 4, 2, 70, 190, 16, 24, 2, 0, 0, CAUSAL | COUNTED},
    {2, 4, 2, 70, 90, 16, 24, 2, 0, 0, CAUSAL},
    {2, 2, 1, 40, 67, 5, 7, 2, 0, 0, 0},
    {1, 1, 1, 33, 130, 136, 128, 1, 0, 0, 0},
    {2, 1, 1, 70, 130, 72, 128, 1, 0, 0, DOCUMENTS},
    {1, 1, 1, 1, 300, 64, 128, 1, 0, 0, 0},
    {1, 3, 2, 65, 64, 8, 8, 2, 2, 1, 0},
    {1, 4, 2, 65, 64, 8, 8, 3, 2, 0, 0},
    {2, 2, 2, 6, 0, 8, 8, 1, 0, 0, 0},
};

START_TEST(test_cases)
{
    const int number = _i % DT_COUNT(cases), order = _i / DT_COUNT(cases);
    const int floats = cases[number].flags & FAR ? (order == 0) * 2 : order == 0 ? GPU_FLOATS : 2;
    for (int d = 0; d < floats; d++) {
        gpu_begin(order);
        check(gpu_float[d], &cases[number], number, 7);
        gpu_end();
    }
}
END_TEST

/* By cuDNN; on the simulated device also where it is too old, has no engine, or fails
 * (SIMDEV_CUDNN): then by our kernels, with a note. */
START_TEST(test_cudnn)
{
    const char *broken = getenv("SIMDEV_CUDNN");
    for (int i = 0; i < 2 * DT_COUNT(taken); i++) {
        gpu_begin(_i);
        job j = make(gpu_float[1 + i % 2], &taken[i / 2]);
        ck_assert_ptr_eq((void *)dti_cudnn_refuses(&j.gpu), NULL);
        if (!broken)
            check_forward(&j, "cuDNN", i / 2);
        else
            ck_assert(!dti_cudnn_attention(&j.gpu));
    }
    for (int i = 0; i < DT_COUNT(refused); i++) {
        gpu_begin(_i);
        const job j = make(DT_BF16, &refused[i]);
        ck_assert_msg(dti_cudnn_refuses(&j.gpu) != NULL, "case %d", i);
    }
    gpu_begin(_i);
    gpu_shift(1);
    const job shifted = make(DT_BF16, &taken[0]), wide = make(DT_F32, &taken[0]);
    ck_assert(dti_cudnn_refuses(&shifted.gpu) && dti_cudnn_refuses(&wide.gpu));
    gpu_end();
}
END_TEST

/* The table's function: whoever computes it, the numbers are right. */
START_TEST(test_whoever)
{
    gpu_begin(0);
    for (int i = 0; i < DT_COUNT(taken); i++) {
        job j = make(DT_BF16, &taken[i]);
        dt_nn_kernels_of(DT_CPU)->attention(&j.cpu);
        dt_nn_kernels_of(DT_CUDA)->attention(&j.gpu);
        gpu_same(&j.out, largest(&j.v), "out of case %d", i);
        gpu_same(&j.lse, 0, "lse of case %d", i);
        ck_ok(dt_heap_status(gpu_heap()));
    }
    gpu_end();
}
END_TEST

/* Some gradients only; addresses that allow no accesses of 16 bytes. */
START_TEST(test_wanted)
{
    for (int wanted = 0; wanted < 7; wanted++) {
        gpu_begin(1);
        check(DT_BF16, &cases[0], 100 + wanted, wanted);
        gpu_shift(1);
        check(DT_F32, &cases[0], 100 + wanted, wanted);
        check(DT_BF16, &cases[0], 200 + wanted, wanted);
        gpu_end();
    }
}
END_TEST

static bool cudnn_is_built_in(void)
{
    return !dti_cudnn_refuses(&(dt_attention_args){.dtype = DT_BF16,
                                                   .batch = 1,
                                                   .heads = 1,
                                                   .kv_heads = 1,
                                                   .queries = 2,
                                                   .keys = 2,
                                                   .dim = 8,
                                                   .vdim = 8,
                                                   .group = 1});
}

/* An argument: cuDNN alone. */
int main(int argc, char **argv)
{
    (void)argv;
    Suite *suite = suite_create("gpu_attention");
    TCase *tc = tcase_create("gpu_attention");
    tcase_set_timeout(tc, 110);
    suite_add_tcase(suite, tc);
    if (argc == 1) {
        tcase_add_loop_test(tc, test_cases, 0, GPU_ORDERS * DT_COUNT(cases));
        tcase_add_test(tc, test_wanted);
    }
    if (cudnn_is_built_in())
        tcase_add_loop_test(tc, test_cudnn, 0, GPU_ORDERS);
    else
        printf("SKIPPED cudnn: built without it\n");
    tcase_add_test(tc, test_whoever);
    return gpu_main(suite);
}
