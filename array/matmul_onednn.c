/* array/matmul_onednn.c - the oneDNN backend: f32 by dnnl_sgemm, bf16 and f16 by matmul primitives,
 * kept in a small table of the calling thread. What differs by version is in matmul_onednn2.c and
 * matmul_onednn3.c.
 *
 * C is cut into pieces by its size alone, and every piece is computed by one thread: oneDNN's own
 * threads may cut the inner dim too, and then the bits would depend on their number. */
#include "array/dt_kernels.h"
#include "array/onednn_internal.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

/* What a compiled product depends on; compared as bytes. */
typedef struct product_key {
    int64_t dtype, dtype_c, trans_a, trans_b, m, n, k, lda, ldb, ldc, add;
} product_key;

enum {
    SLOTS = 256,
    WAYS = 4,           /* slots where a key may be */
    PIECE = 512 * 1024, /* most elements of C; packing operands costs little then */
    FEW = 4,            /* pieces are cut further while they have more than WORK to do */
    WORK = 1 << 27,     /* multiplications */
    GRAIN = 32          /* rows and columns of a piece are multiples */
};

typedef struct slot {
    product_key key; /* m 0: free */
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

static dnnl_data_type_t data_type(dt_dtype dtype)
{
    if (dtype == DT_BF16)
        return dnnl_bf16;
    return dtype == DT_F16 ? dnnl_f16 : dnnl_f32;
}

static dti_operand operand_of(dt_dtype dtype, int64_t rows, int64_t cols, int64_t ld, bool trans)
{
    return (dti_operand){.dims = {rows, cols},
                         .strides = {trans ? 1 : ld, trans ? ld : 1},
                         .type = data_type(dtype)};
}

static dnnl_status_t create(const dti_operand operand[3], bool add, dti_product *product_out)
{
    dnnl_post_ops_t ops = NULL;
    dnnl_primitive_attr_t attr = NULL;
    dnnl_status_t st = dnnl_success;
    if (!add)
        return dti_product_create(engine, operand, NULL, product_out);
    st = dnnl_primitive_attr_create(&attr);
    if (st == dnnl_success)
        st = dnnl_post_ops_create(&ops);
    if (st == dnnl_success)
        st = dti_append_sum(ops);
    if (st == dnnl_success)
        st = dnnl_primitive_attr_set_post_ops(attr, ops);
    if (st == dnnl_success)
        st = dti_product_create(engine, operand, attr, product_out);
    dnnl_post_ops_destroy(ops);
    dnnl_primitive_attr_destroy(attr);
    return st;
}

static slot *find_product(thread_cache *cache, const dt_matmul_args *p)
{
    const product_key key = {p->dtype, p->dtype_c, p->trans_a, p->trans_b, p->m,        p->n,
                             p->k,     p->lda,     p->ldb,     p->ldc,     p->beta != 0};
    slot *first = &cache->slot[dti_matmul_hash(&key, sizeof key) % (SLOTS / WAYS) * WAYS],
         *s = first;
    while (s < first + WAYS && s->key.m != 0 && memcmp(&s->key, &key, sizeof key) != 0)
        s++;
    if (s == first + WAYS) { /* all taken: the oldest goes */
        drop_slot(first);
        memmove(first, first + 1, (WAYS - 1) * sizeof *first);
        *--s = (slot){0};
    }
    if (s->key.m != 0)
        return s;
    s->key = key;
    const dti_operand operand[3] = {operand_of(p->dtype, p->m, p->k, p->lda, p->trans_a),
                                    operand_of(p->dtype, p->k, p->n, p->ldb, p->trans_b),
                                    operand_of(p->dtype_c, p->m, p->n, p->ldc, false)};
    s->missing = create(operand, p->beta != 0, &s->product) != dnnl_success;
    return s;
}

/* ---- pieces ---- */

typedef struct cut {
    int64_t rows, cols, down, across; /* of a piece; pieces in a product */
} cut;

static int64_t parts(int64_t whole, int64_t each)
{
    return (whole + each - 1) / each;
}

/* Halves of the longer side, until a piece is small enough. */
static cut cut_of(const dt_matmul_args *p)
{
    cut c = {.rows = p->m, .cols = p->n, .down = 1, .across = 1};
    while (c.rows * c.cols > PIECE ||
           (p->batch * c.down * c.across < FEW && c.rows * c.cols > GRAIN * GRAIN &&
            c.rows * c.cols * p->k > WORK)) {
        int64_t *side = c.rows > c.cols ? &c.rows : &c.cols;
        *side = parts(parts(*side, 2), GRAIN) * GRAIN;
        c.down = parts(p->m, c.rows);
        c.across = parts(p->n, c.cols);
    }
    return c;
}

static void *at(const void *base, dt_dtype dtype, int64_t index)
{
    return (char *)(uintptr_t)base + index * (int64_t)dt_dtype_size(dtype);
}

/* Piece i of all. */
static dt_matmul_args piece_of(const dt_matmul_args *args, const cut *c, int64_t i)
{
    dt_matmul_args p = *args;
    const int64_t product = i / (c->down * c->across), row = i / c->across % c->down * c->rows,
                  col = i % c->across * c->cols;
    p.batch = 1;
    p.m = args->m - row < c->rows ? args->m - row : c->rows;
    p.n = args->n - col < c->cols ? args->n - col : c->cols;
    p.a = at(p.a, p.dtype, product * p.stride_a + row * (p.trans_a ? 1 : p.lda));
    p.b = at(p.b, p.dtype, product * p.stride_b + col * (p.trans_b ? p.ldb : 1));
    p.c = at(p.c, p.dtype_c, product * p.stride_c + row * p.ldc + col);
    return p;
}

typedef dnnl_status_t piece_fn(const dt_matmul_args *piece);

typedef struct piece_job {
    const dt_matmul_args *args;
    cut cut;
    piece_fn *run;
    dnnl_status_t status; /* written by whichever piece fails */
} piece_job;

static void run_pieces(void *arg, int64_t lo, int64_t hi)
{
    piece_job *job = arg;
    const int threads = dt_compute_threads_get();
    dt_compute_threads_set(1); /* oneDNN's, of this thread */
    for (int64_t i = lo; i < hi; i++) {
        const dt_matmul_args piece = piece_of(job->args, &job->cut, i);
        const dnnl_status_t st = job->run(&piece);
        if (st != dnnl_success)
            __atomic_store_n(&job->status, st, __ATOMIC_RELAXED);
    }
    dt_compute_threads_set(threads);
}

static dnnl_status_t run_all(const dt_matmul_args *args, piece_fn *run)
{
    piece_job job = {.args = args, .cut = cut_of(args), .run = run, .status = dnnl_success};
    dt_parallel_range(args->batch * job.cut.down * job.cut.across,
                      job.cut.rows * job.cut.cols * args->k, run_pieces, &job);
    return job.status;
}

static dnnl_status_t primitive_piece(const dt_matmul_args *p)
{
    thread_cache *cache = get_cache();
    const slot *s = cache != NULL ? find_product(cache, p) : NULL;
    if (s == NULL)
        return dnnl_out_of_memory;
    if (s->missing)
        return dnnl_unimplemented;
    const dti_product *x = &s->product;
    dnnl_memory_set_data_handle(x->a, (void *)(uintptr_t)p->a);
    dnnl_memory_set_data_handle(x->b, (void *)(uintptr_t)p->b);
    dnnl_memory_set_data_handle(x->c, p->c);
    const dnnl_exec_arg_t exec[3] = {
        {DNNL_ARG_SRC, x->a}, {DNNL_ARG_WEIGHTS, x->b}, {DNNL_ARG_DST, x->c}};
    const dnnl_status_t st = dnnl_primitive_execute(x->primitive, cache->stream, 3, exec);
    return st == dnnl_success ? dnnl_stream_wait(cache->stream) : st;
}

dt_status dti_matmul_16(const dt_matmul_args *args, bool *done_out)
{
    thread_cache *cache = get_cache();
    const cut c = cut_of(args);
    const dt_matmul_args first = piece_of(args, &c, 0);
    *done_out = cache != NULL && !find_product(cache, &first)->missing;
    if (!*done_out)
        return DT_OK;
    const dnnl_status_t st = run_all(args, primitive_piece);
    DT_REQUIRE(st == dnnl_success, DT_ERR_DEVICE, "oneDNN matmul failed with status %d", (int)st);
    return DT_OK;
}

static dnnl_status_t sgemm_piece(const dt_matmul_args *p)
{
    return dnnl_sgemm(p->trans_a ? 'T' : 'N', p->trans_b ? 'T' : 'N', p->m, p->n, p->k,
                      (float)p->alpha, p->a, p->lda, p->b, p->ldb, (float)p->beta, p->c, p->ldc);
}

dt_status dti_matmul_f32(const dt_matmul_args *args)
{
    const dnnl_status_t st = run_all(args, sgemm_piece);
    DT_REQUIRE(st == dnnl_success, DT_ERR_DEVICE, "oneDNN sgemm failed with status %d", (int)st);
    return DT_OK;
}
