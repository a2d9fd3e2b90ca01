/* bench/gpu_kernels.c - kernels on cuda one by one: those of a training step against copies, by the
 * bytes they cannot do without, and attention. Data is bf16. Read first: bench/gpu.c. */
#include "array/dt_kernels_math.h"
#include "array/dt_kernels_nn.h"
#include "array/dt_kernels_optim.h"
#include "bench/gpu_bench.h"

#include <math.h>
#include <stdio.h>

enum { ARRAYS = 5 };

typedef struct job {
    const dt_nn_kernels *nn;
    const dt_math_kernels *math;
    int64_t rows, cols, n;  /* n = rows * cols elements an array */
    int64_t vocab;          /* rows of an embedding's table: 31/16 of rows, in one array */
    int64_t dim, seq, wide; /* of a head; of rope; columns of logits */
    dt_array array[ARRAYS];
    void *x[ARRAYS]; /* 4 n bytes each: n f32 or 2 n bf16 */
    double *stats;   /* [2 rows] and more */
    int32_t *ids;    /* [rows + seq] below vocab */
} job;

/* ---- what moves bytes ---- */

/* The first n elements of an array, as of another dtype. */
static dt_array as(const job *j, int i, dt_dtype dtype)
{
    dt_array a = j->array[i];
    a.dtype = dtype;
    a.shape = DT_SHAPE(j->n);
    return a;
}

static void copy(const job *j)
{
    dt_array to = j->array[2];
    dt_array_copy(&to, &j->array[0]);
}

static void cast_up(const job *j)
{
    const dt_array from = as(j, 0, DT_BF16);
    dt_array to = as(j, 2, DT_F32);
    dt_array_cast(&to, &from);
}

static void cast_down(const job *j)
{
    const dt_array from = as(j, 0, DT_F32);
    dt_array to = as(j, 2, DT_BF16);
    dt_array_cast(&to, &from);
}

static void add(const job *j)
{
    j->math->add(DT_BF16, 1, j->n, j->x[0], j->x[1], j->x[2]);
}

static void scale(const job *j)
{
    j->math->scale(DT_BF16, j->n, 0.5, j->x[0], j->x[2]);
}

static void gelu(const job *j)
{
    j->nn->activation(DT_BF16, DT_ACT_GELU_TANH, j->n, j->x[0], j->x[2]);
}

static void gelu_back(const job *j)
{
    j->nn->activation_dx(DT_BF16, DT_ACT_GELU_TANH, j->n, j->x[0], j->x[1], j->x[2]);
}

static void swiglu(const job *j)
{
    j->nn->swiglu(DT_BF16, j->n, j->x[0], j->x[1], j->x[2]);
}

static void swiglu_back(const job *j)
{
    j->nn->swiglu_backward(DT_BF16, j->n, j->x[0], j->x[1], j->x[2], j->x[3], j->x[4]);
}

static dt_norm_args norm_of(const job *j, bool centred)
{
    return (dt_norm_args){.dtype = DT_BF16,
                          .rows = j->rows,
                          .n = j->cols,
                          .eps = 1e-5,
                          .centred = centred,
                          .x = j->x[0],
                          .w = j->x[3],
                          .b = centred ? j->x[3] : NULL,
                          .work = j->stats,
                          .dy = j->x[1]};
}

static void rmsnorm(const job *j)
{
    const dt_norm_args a = norm_of(j, false);
    j->nn->norm(&a, j->x[2]);
}

static void rmsnorm_back(const job *j)
{
    const dt_norm_args a = norm_of(j, false);
    j->nn->norm_backward(&a, j->x[2], j->x[4], NULL);
}

static void layernorm(const job *j)
{
    const dt_norm_args a = norm_of(j, true);
    j->nn->norm(&a, j->x[2]);
}

static void layernorm_back(const job *j)
{
    const dt_norm_args a = norm_of(j, true);
    j->nn->norm_backward(&a, j->x[2], j->x[4], (char *)j->x[4] + 2 * j->n);
}

static void rope(const job *j)
{
    const dt_rope_args a = {.dtype = DT_BF16,
                            .batch = 1,
                            .heads = j->n / j->dim / j->seq,
                            .seq = j->seq,
                            .dim = j->dim,
                            .rope.theta = 1e4};
    j->nn->rope(&a, false, j->x[0], j->x[2]);
}

static void softmax(const job *j)
{
    j->nn->softmax(DT_BF16, j->rows, j->cols, j->x[0], j->x[2]);
}

static void softmax_back(const job *j)
{
    j->nn->softmax_dx(DT_BF16, j->rows, j->cols, j->x[0], j->x[1], j->x[2]);
}

static void dropout(const job *j)
{
    const dt_dropout_args a = {.dtype = DT_BF16,
                               .p = 0.1,
                               .global = DT_SHAPE(j->rows, j->cols),
                               .local = DT_SHAPE(j->rows, j->cols)};
    j->nn->dropout(&a, j->x[0], j->x[2]);
}

static dt_loss_args loss_of(const job *j)
{
    float *row = (float *)j->stats;
    return (dt_loss_args){.dtype = DT_BF16,
                          .rows = j->n / j->wide,
                          .n = j->wide,
                          .ignore = -100,
                          .targets = j->ids,
                          .z = j->x[0],
                          .max = row,
                          .sum = row + j->rows,
                          .hit = row + 2 * j->rows};
}

static void loss_rows(const job *j)
{
    const dt_loss_args a = loss_of(j);
    j->nn->loss_rows(&a);
}

static void loss_dz(const job *j)
{
    const dt_loss_args a = loss_of(j);
    j->nn->loss_dz(&a, NULL, 1, DT_BF16, j->x[2]);
}

static dt_embedding_args embedding_of(const job *j)
{
    return (dt_embedding_args){
        .dtype = DT_BF16, .tokens = j->rows, .d = j->cols, .hi = j->vocab, .ids = j->ids};
}

static void embedding(const job *j)
{
    const dt_embedding_args a = embedding_of(j);
    j->nn->embedding(&a, j->x[1], j->x[2]);
}

static void embedding_back(const job *j)
{
    const dt_embedding_args a = embedding_of(j);
    j->nn->embedding_dw(&a, j->x[0], j->x[2]);
}

static void adamw(const job *j)
{
    dt_optim_kernels_of(DT_CUDA)->adamw(1, &(dt_adamw_args){.dtype = DT_F32,
                                                            .grad_dtype = DT_BF16,
                                                            .n = j->n,
                                                            .lr = 1e-4,
                                                            .beta1 = 0.9,
                                                            .beta2 = 0.95,
                                                            .eps = 1e-8,
                                                            .decay = 0.1,
                                                            .grad_scale = 1,
                                                            .correction1 = 0.1,
                                                            .correction2 = 0.05,
                                                            .g = j->x[0],
                                                            .w = j->x[1],
                                                            .m = j->x[2],
                                                            .v = j->x[3],
                                                            .rounded = j->x[4],
                                                            .rounded_dtype = DT_BF16});
}

static void square_sum(const job *j)
{
    dt_optim_kernels_of(DT_CUDA)->power_sum(
        1, &(dt_power_args){.dtype = DT_BF16, .n = j->n, .x = j->x[0], .sum = j->stats}, 2);
}

/* bytes: that must move, read or written, an element. The copy comes first. */
static const struct {
    const char *name;
    void (*run)(const job *j);
    double bytes;
} lines[] = {{"copy", copy, 8},
             {"cast bf16 to f32", cast_up, 6},
             {"cast f32 to bf16", cast_down, 6},
             {"add", add, 6},
             {"scale", scale, 4},
             {"gelu", gelu, 4},
             {"gelu backward", gelu_back, 6},
             {"swiglu", swiglu, 6},
             {"swiglu backward", swiglu_back, 10},
             {"rmsnorm", rmsnorm, 4},
             {"rmsnorm backward", rmsnorm_back, 6},
             {"layernorm", layernorm, 4},
             {"layernorm backward", layernorm_back, 6},
             {"rope", rope, 4},
             {"softmax", softmax, 4},
             {"softmax backward", softmax_back, 6},
             {"dropout", dropout, 4},
             {"cross-entropy", loss_rows, 2},
             {"cross-entropy backward", loss_dz, 4},
             {"embedding", embedding, 4},
             {"embedding backward", embedding_back, 2 + 2 * 31.0 / 16},
             {"adamw", adamw, 28},
             {"sum of squares", square_sum, 2}};

/* ---- measuring ---- */

static dt_status set_up(const gpu_bench *b, job *j)
{
    *j = (job){.nn = dt_nn_kernels_of(DT_CUDA),
               .math = dt_math_kernels_of(DT_CUDA),
               .rows = b->tiny ? 64 : 16384,
               .cols = b->tiny ? 1024 : 4096,
               .dim = b->tiny ? 64 : 128,
               .seq = b->tiny ? 64 : 8192,
               .wide = b->tiny ? 8192 : 32768};
    j->n = j->rows * j->cols;
    j->vocab = j->rows / 16 * 31;
    for (int i = 0; i < ARRAYS; i++) {
        DT_TRY(gpu_room(b, 4 * j->n, 1, &j->array[i]));
        j->x[i] = dt_array_data(&j->array[i]);
    }
    dt_array room;
    DT_TRY(gpu_room(b, j->n, 0, &room));
    j->stats = dt_array_data(&room);
    DT_TRY(gpu_room(b, 4 * (j->rows + j->seq), 0, &room));
    j->ids = dt_array_data(&room);
    j->math->range(j->seq, 0, j->ids + j->rows); /* positions; as ids, rows in order */
    j->math->range(j->rows, 0, j->ids);
    return dt_heap_status(b->heap);
}

typedef struct line_run {
    const job *j;
    void (*run)(const job *j);
} line_run;

static dt_status run_line(void *arg)
{
    const line_run *r = arg;
    r->run(r->j);
    return DT_OK;
}

dt_status gpu_bench_kernels(gpu_bench *b)
{
    job j;
    DT_TRY(set_up(b, &j));
    for (int i = 0; i < DT_COUNT(lines); i++) {
        double seconds = 0;
        line_run r = {&j, lines[i].run};
        DT_TRY(gpu_time(b, run_line, &r, &seconds));
        const double rate = lines[i].bytes * (double)j.n / seconds;
        b->bytes_per_s = i == 0 ? rate : b->bytes_per_s;
        (void)printf("%-24s %9.1f us %7.0f GB/s = %.2f of copies\n", lines[i].name, 1e6 * seconds,
                     1e-9 * rate, rate / b->bytes_per_s);
    }
    gpu_release();
    return DT_OK;
}

/* ---- attention: causal, width 2048, 16384 tokens ---- */

typedef struct attention {
    dt_attention_args a;
    bool back;
} attention;

static dt_status run_attention(void *arg)
{
    const attention *t = arg;
    if (t->back)
        dt_nn_kernels_of(DT_CUDA)->attention_backward(&t->a);
    else
        dt_nn_kernels_of(DT_CUDA)->attention(&t->a);
    return DT_OK;
}

static attention attention_of(const gpu_bench *b, const job *j, int64_t dim, int64_t seq)
{
    const int64_t heads = b->tiny ? 2 : 2048 / dim, batch = b->tiny ? 1 : 16384 / seq;
    const int64_t bytes = 2 * batch * heads * seq * dim;
    char *x = j->x[0], *y = j->x[1];
    return (attention){.a = {.dtype = DT_BF16,
                             .batch = batch,
                             .heads = heads,
                             .kv_heads = heads,
                             .queries = seq,
                             .keys = seq,
                             .dim = dim,
                             .vdim = dim,
                             .group = 1,
                             .scale = 1 / sqrt((double)dim),
                             .causal = true,
                             .q_pos = j->ids + j->rows,
                             .k_pos = j->ids + j->rows,
                             .q = x,
                             .k = x + bytes,
                             .v = x + 2 * bytes,
                             .dout = x + 3 * bytes,
                             .out = y,
                             .dq = y + bytes,
                             .dk = y + 2 * bytes,
                             .dv = y + 3 * bytes,
                             .lse = j->stats}};
}

/* Half the square counts: 2 products forward and 5 backward. */
dt_status gpu_bench_attention(gpu_bench *b)
{
    job j;
    DT_TRY(set_up(b, &j));
    for (int64_t dim = 64; dim <= 128; dim *= 2)
        for (int64_t seq = b->tiny ? 64 : 2048; seq <= j.seq; seq *= 2) {
            attention t = attention_of(b, &j, dim, seq);
            const double flops = 2 * (double)(t.a.batch * t.a.heads * seq * seq * dim);
            double ours = 0, cudnn = 0, backward = 0;
            DT_TRY(gpu_time(b, run_attention, &t, &ours));
            t.back = true;
            DT_TRY(gpu_time(b, run_attention, &t, &backward));
            (void)printf("attention dim %3lld, seq %4lld: forward %6.1f TFLOP/s, backward %6.1f",
                         (long long)dim, (long long)seq, 1e-12 * flops / ours,
                         2.5e-12 * flops / backward);
            t.back = false;
            t.a.q_pos = t.a.k_pos = NULL; /* counted, as models have them: may go to cuDNN */
            const char *why = j.nn->attention_ours(&t.a);
            if (!why)
                DT_TRY(gpu_time(b, run_attention, &t, &cudnn));
            (void)(why ? printf("; cuDNN: %s\n", why)
                       : printf("; cuDNN's forward %6.1f\n", 1e-12 * flops / cudnn));
        }
    gpu_release();
    return DT_OK;
}
