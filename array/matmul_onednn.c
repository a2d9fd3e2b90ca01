/* array/matmul_onednn.c - the oneDNN backend: f32 by dnnl_sgemm, bf16 and f16 by matmul primitives,
 * kept in a small table of the calling thread. What differs by version is in matmul_onednn2.c and
 * matmul_onednn3.c.
 *
 * oneDNN runs on OpenMP: from inside dt_parallel_range it uses one thread, else those of the
 * calling thread. */
#include "array/dt_kernels.h"
#include "array/onednn_internal.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

/* What a compiled product depends on; compared as bytes. */
typedef struct product_key {
    int64_t dtype, dtype_c, trans_a, trans_b, batch, m, n, k, lda, ldb, ldc, stride_a, stride_b,
        stride_c, threads;
} product_key;

enum { SLOTS = 64 };

typedef struct slot {
    product_key key; /* batch 0: free */
    bool missing;    /* the machine has no such product */
    dti_product product;
} slot;

typedef struct thread_cache {
    dnnl_stream_t stream;
    slot slot[SLOTS];
} thread_cache;

/* Shared by all threads: the engine, which is immutable, and the key of the threads' caches. */
static dnnl_engine_t engine;
static pthread_key_t cache_key;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static _Thread_local thread_cache *my_cache; /* the same as under cache_key, faster */

static void drop_slot(slot *s)
{
    if (s->product.primitive != NULL) {
        dnnl_memory_destroy(s->product.a);
        dnnl_memory_destroy(s->product.b);
        dnnl_memory_destroy(s->product.c);
        dnnl_primitive_destroy(s->product.primitive);
    }
    *s = (slot){0};
}

static void drop_cache(void *arg)
{
    thread_cache *cache = arg;
    for (int i = 0; i < SLOTS; i++)
        drop_slot(&cache->slot[i]);
    if (cache->stream != NULL)
        dnnl_stream_destroy(cache->stream);
    free(cache);
    my_cache = NULL;
}

static void drop_engine(void)
{
    if (my_cache != NULL)
        drop_cache(my_cache);
    dnnl_engine_destroy(engine);
}

static void set_up(void)
{
    if (pthread_key_create(&cache_key, drop_cache) != 0 ||
        dnnl_engine_create(&engine, dnnl_cpu, 0) != dnnl_success)
        engine = NULL;
    else
        (void)atexit(drop_engine); /* it only keeps leak checkers quiet */
}

/* This thread's cache, or NULL: then products go the way of machines that have none. */
static thread_cache *get_cache(void)
{
    if (my_cache != NULL)
        return my_cache;
    pthread_once(&once, set_up);
    if (engine == NULL)
        return NULL;
    thread_cache *cache = calloc(1, sizeof *cache);
    if (cache == NULL)
        return NULL;
    if (dnnl_stream_create(&cache->stream, engine, dnnl_stream_default_flags) != dnnl_success ||
        pthread_setspecific(cache_key, cache) != 0) {
        drop_cache(cache);
        return NULL;
    }
    my_cache = cache;
    return cache;
}

static uint64_t hash_key(const product_key *key)
{
    const unsigned char *byte = (const unsigned char *)key;
    uint64_t h = 14695981039346656037ull; /* FNV-1a */
    for (size_t i = 0; i < sizeof *key; i++)
        h = (h ^ byte[i]) * 1099511628211ull;
    return h ^ h >> 32;
}

static dnnl_data_type_t data_type(dt_dtype dtype)
{
    if (dtype == DT_BF16)
        return dnnl_bf16;
    return dtype == DT_F16 ? dnnl_f16 : dnnl_f32;
}

/* A shared operand has batch 1, which oneDNN broadcasts. */
static dti_operand operand_of(dt_dtype dtype, const int64_t dims[3], int64_t stride, int64_t ld,
                              bool trans)
{
    const int64_t batch = stride == 0 ? 1 : dims[0];
    return (dti_operand){.dims = {batch, dims[1], dims[2]},
                         .strides = {batch == 1 ? (trans ? dims[2] : dims[1]) * ld : stride,
                                     trans ? 1 : ld, trans ? ld : 1},
                         .type = data_type(dtype)};
}

static slot *find_product(thread_cache *cache, const dt_matmul_args *p)
{
    const product_key key = {
        p->dtype, p->dtype_c,  p->trans_a,  p->trans_b,  p->batch,
        p->m,     p->n,        p->k,        p->lda,      p->ldb,
        p->ldc,   p->stride_a, p->stride_b, p->stride_c, dt_compute_threads_get()};
    slot *s = &cache->slot[hash_key(&key) % SLOTS];
    if (memcmp(&s->key, &key, sizeof key) == 0)
        return s;
    drop_slot(s);
    s->key = key;
    const dti_operand operand[3] = {
        operand_of(p->dtype, (int64_t[]){p->batch, p->m, p->k}, p->stride_a, p->lda, p->trans_a),
        operand_of(p->dtype, (int64_t[]){p->batch, p->k, p->n}, p->stride_b, p->ldb, p->trans_b),
        operand_of(p->dtype_c, (int64_t[]){p->batch, p->m, p->n}, p->stride_c, p->ldc, false)};
    s->missing = dti_product_create(engine, operand, &s->product) != dnnl_success;
    return s;
}

dt_status dti_matmul_16(const dt_matmul_args *args, bool *done_out)
{
    thread_cache *cache = get_cache();
    slot *s = cache != NULL ? find_product(cache, args) : NULL;
    *done_out = s != NULL && !s->missing;
    if (!*done_out)
        return DT_OK;
    const dti_product *x = &s->product;
    dnnl_memory_set_data_handle(x->a, (void *)(uintptr_t)args->a);
    dnnl_memory_set_data_handle(x->b, (void *)(uintptr_t)args->b);
    dnnl_memory_set_data_handle(x->c, args->c);
    const dnnl_exec_arg_t exec[3] = {
        {DNNL_ARG_SRC, x->a}, {DNNL_ARG_WEIGHTS, x->b}, {DNNL_ARG_DST, x->c}};
    dnnl_status_t st = dnnl_primitive_execute(x->primitive, cache->stream, 3, exec);
    if (st == dnnl_success)
        st = dnnl_stream_wait(cache->stream);
    DT_REQUIRE(st == dnnl_success, DT_ERR_DEVICE, "oneDNN matmul failed with status %d", (int)st);
    return DT_OK;
}

typedef struct sgemm_job {
    const dt_matmul_args *args;
    dnnl_status_t status; /* written by whichever piece fails */
} sgemm_job;

static void sgemm_pieces(void *arg, int64_t lo, int64_t hi)
{
    sgemm_job *job = arg;
    const dt_matmul_args *p = job->args;
    for (int64_t i = lo; i < hi; i++) {
        const dnnl_status_t st = dnnl_sgemm(
            p->trans_a ? 'T' : 'N', p->trans_b ? 'T' : 'N', p->m, p->n, p->k, (float)p->alpha,
            (const float *)p->a + i * p->stride_a, p->lda, (const float *)p->b + i * p->stride_b,
            p->ldb, (float)p->beta, (float *)p->c + i * p->stride_c, p->ldc);
        if (st != dnnl_success)
            __atomic_store_n(&job->status, st, __ATOMIC_RELAXED);
    }
}

/* Many products: one thread each; few: all threads on one after the other. */
dt_status dti_matmul_f32(const dt_matmul_args *args)
{
    sgemm_job job = {.args = args, .status = dnnl_success};
    if (args->batch >= dt_compute_threads_get() && args->batch > 1)
        dt_parallel_range(args->batch, args->m * args->n * args->k, sgemm_pieces, &job);
    else
        sgemm_pieces(&job, 0, args->batch);
    DT_REQUIRE(job.status == dnnl_success, DT_ERR_DEVICE, "oneDNN sgemm failed with status %d",
               (int)job.status);
    return DT_OK;
}
