/* bench/kernels.c - the kernels of a training step one by one: attention against the rate of
 * products, the others against copies, by the bytes they cannot do without; both limits are
 * measured between the rounds.
 *
 *     build/bench/kernels [f32|bf16] [threads=2] [rounds=5] [rows=8192] */
#include "array/dt_half.h"
#include "array/dt_kernels_math.h"
#include "array/dt_kernels_nn.h"
#include "array/dt_kernels_optim.h"
#include "bench/limits.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { COLS = 2048, ARRAYS = 5, HEADS = 8, DIM = 64 };

typedef struct bench {
    dt_dtype dtype;
    int threads, rounds, rows;
    int64_t n;       /* rows * COLS elements an array */
    void *x[ARRAYS]; /* arrays of n floats */
    double *stats;   /* [2 rows] and more */
    int32_t *ids;    /* [rows] */
    const dt_nn_kernels *nn;
    const dt_math_kernels *math;
} bench;

/* ---- what is measured; all arrays are long, so that nothing stays in a cache ---- */

static dt_norm_args norm_of(const bench *b)
{
    return (dt_norm_args){.dtype = DT_F32,
                          .rows = b->rows,
                          .n = COLS,
                          .eps = 1e-5,
                          .x = b->x[0],
                          .w = b->x[3],
                          .work = b->stats,
                          .dy = b->x[1]};
}

static void rmsnorm(const bench *b)
{
    const dt_norm_args a = norm_of(b);
    b->nn->norm(&a, b->x[2]);
}

static void rmsnorm_back(const bench *b)
{
    const dt_norm_args a = norm_of(b);
    b->nn->norm_backward(&a, b->x[2], b->x[4], NULL);
}

static void add(const bench *b)
{
    b->math->add(b->dtype, 1, b->n, b->x[0], b->x[1], b->x[2]);
}

static void gelu(const bench *b)
{
    b->nn->activation(b->dtype, DT_ACT_GELU_TANH, b->n, b->x[0], b->x[2]);
}

static void gelu_back(const bench *b)
{
    b->nn->activation_dx(b->dtype, DT_ACT_GELU_TANH, b->n, b->x[0], b->x[1], b->x[2]);
}

static void swiglu(const bench *b)
{
    b->nn->swiglu(b->dtype, b->n, b->x[0], b->x[1], b->x[2]);
}

static void swiglu_back(const bench *b)
{
    b->nn->swiglu_backward(b->dtype, b->n, b->x[0], b->x[1], b->x[2], b->x[3], b->x[4]);
}

static void rope(const bench *b)
{
    const dt_rope_args a = {.dtype = DT_F32,
                            .batch = 1,
                            .heads = b->n / DIM / 1024,
                            .seq = 1024,
                            .dim = DIM,
                            .rope.theta = 1e4,
                            .positions = b->ids,
                            .table = b->x[3]};
    b->nn->rope_table(&a);
    b->nn->rope(&a, false, b->x[0], b->x[2]);
}

static void cross_entropy(const bench *b)
{
    const dt_loss_args a = {.dtype = DT_F32,
                            .rows = b->rows,
                            .n = COLS,
                            .ignore = -100,
                            .targets = b->ids,
                            .z = b->x[0],
                            .max = b->stats,
                            .sum = b->stats + b->rows / 2,
                            .hit = b->stats + b->rows,
                            .dz = b->x[2],
                            .dz_dtype = DT_F32,
                            .divisor = 1};
    b->nn->loss_rows(&a);
}

static void adamw(const bench *b)
{
    dt_optim_kernels_of(DT_CPU)->adamw(1, &(dt_adamw_args){.dtype = DT_F32,
                                                           .grad_dtype = DT_F32,
                                                           .n = b->n,
                                                           .lr = 1e-4,
                                                           .beta1 = 0.9,
                                                           .beta2 = 0.95,
                                                           .eps = 1e-8,
                                                           .decay = 0.1,
                                                           .grad_scale = 1,
                                                           .correction1 = 0.1,
                                                           .correction2 = 0.05,
                                                           .g = b->x[0],
                                                           .w = b->x[1],
                                                           .m = b->x[2],
                                                           .v = b->x[3]});
}

static void square_sum(const bench *b)
{
    double sum;
    dt_optim_kernels_of(DT_CPU)->power_sum(
        1, &(dt_power_args){.dtype = b->dtype, .n = b->n, .x = b->x[0], .sum = &sum}, 2);
}

/* arrays: how many of n elements must move, read or written; for f32 alone where `wide`, which
 * would also leave f32 in what others read as bf16. */
static const struct {
    const char *name;
    void (*run)(const bench *b);
    int arrays;
    bool wide;
} lines[] = {{"add", add, 3, false},
             {"gelu", gelu, 2, false},
             {"gelu backward", gelu_back, 3, false},
             {"swiglu", swiglu, 3, false},
             {"swiglu backward", swiglu_back, 5, false},
             {"rmsnorm", rmsnorm, 2, true},
             {"rmsnorm backward", rmsnorm_back, 3, true},
             {"rope", rope, 2, true},
             {"cross-entropy and gradient", cross_entropy, 2, true},
             {"adamw", adamw, 7, true},
             {"sum of squares", square_sum, 1, false}};

/* Causal, head dim 64: half the square counts, 2 products forward and 5 backward. */
static void attention(const bench *b, int64_t seq, bool back)
{
    const int64_t heads = b->n / 8 / seq / DIM < HEADS ? b->n / 8 / seq / DIM : HEADS;
    float *x = b->x[0], *y = b->x[1];
    const int64_t part = heads * seq * DIM;
    const dt_attention_args a = {.dtype = DT_F32,
                                 .batch = 1,
                                 .heads = heads,
                                 .kv_heads = heads,
                                 .queries = seq,
                                 .keys = seq,
                                 .dim = DIM,
                                 .vdim = DIM,
                                 .group = 1,
                                 .scale = 0.125,
                                 .causal = true,
                                 .q_pos = b->ids,
                                 .k_pos = b->ids,
                                 .q = x,
                                 .k = x + part,
                                 .v = x + 2 * part,
                                 .dout = x + 3 * part,
                                 .out = y,
                                 .dq = y + part,
                                 .dk = y + 2 * part,
                                 .dv = y + 3 * part,
                                 .lse = b->stats};
    if (back)
        b->nn->attention_backward(&a);
    else
        b->nn->attention(&a);
}

/* ---- measuring ---- */

static dt_status set_up(bench *b)
{
    dt_compute_threads_set(b->threads);
    DT_TRY(limits_check_cores(b->threads));
    b->n = (int64_t)b->rows * COLS;
    b->nn = dt_nn_kernels_of(DT_CPU);
    b->math = dt_math_kernels_of(DT_CPU);
    b->stats = calloc((size_t)b->rows * 2 + 8 * 65536, sizeof *b->stats);
    b->ids = malloc((size_t)(b->rows + 65536) * sizeof *b->ids);
    DT_REQUIRE(b->stats && b->ids, DT_ERR_NOMEM, "rows");
    for (int i = 0; i < b->rows + 65536; i++)
        b->ids[i] = i % 65536;
    for (int k = 0; k < ARRAYS; k++) {
        float *x = b->x[k] = aligned_alloc(64, (size_t)b->n * sizeof *x);
        DT_REQUIRE(x, DT_ERR_NOMEM, "arrays of %lld floats", (long long)b->n);
        for (int64_t i = 0; i < b->n; i++)
            x[i] = (float)(i * 7919 % 1000) * 1e-3f;
        if (b->dtype == DT_BF16) /* the first half of the bytes; the second stays f32 */
            for (int64_t i = 0; i < b->n; i++)
                ((uint16_t *)b->x[k])[i] = dt_f32_to_bf16((float)(i * 7919 % 1000) * 1e-3f);
    }
    return DT_OK;
}

static void tear_down(bench *b)
{
    for (int k = 0; k < ARRAYS; k++)
        free(b->x[k]);
    free(b->stats);
    free(b->ids);
}

static dt_status run_lines(bench *b, limits *limit)
{
    double best_s[DT_COUNT(lines)] = {0};
    for (int round = 0; round <= b->rounds; round++) {
        DT_TRY(limits_probe(limit));
        for (int i = 0; i < DT_COUNT(lines); i++) {
            if (lines[i].wide && b->dtype != DT_F32)
                continue;
            const double start_s = limits_now_s();
            lines[i].run(b);
            const double took_s = limits_now_s() - start_s;
            if (round > 0 && (best_s[i] == 0 || took_s < best_s[i]))
                best_s[i] = took_s;
        }
    }
    for (int i = 0; i < DT_COUNT(lines); i++) {
        const dt_dtype dtype = b->dtype;
        if (best_s[i] == 0)
            continue;
        const double bytes = (double)(lines[i].arrays * b->n) * (double)dt_dtype_size(dtype);
        (void)printf("%-28s %-4s %7.2f ms %6.1f GB/s = %.2f of copies' %.1f\n", lines[i].name,
                     dt_dtype_name(dtype), 1e3 * best_s[i], 1e-9 * bytes / best_s[i],
                     bytes / best_s[i] / limit->bytes_per_s, 1e-9 * limit->bytes_per_s);
    }
    return DT_OK;
}

static dt_status run_attention(bench *b, limits *limit, int64_t seq)
{
    const int64_t heads = b->n / 8 / seq / DIM < HEADS ? b->n / 8 / seq / DIM : HEADS;
    double best_s[2] = {1e30, 1e30}, flops[3];
    for (int round = 0; round < b->rounds; round++) {
        DT_TRY(limits_probe(limit));
        for (int back = 0; back < 2; back++) {
            const double start_s = limits_now_s();
            attention(b, seq, back);
            const double took_s = limits_now_s() - start_s;
            best_s[back] = took_s < best_s[back] ? took_s : best_s[back];
        }
    }
    flops[0] = 2 * (double)(seq * seq * DIM * heads);
    flops[1] = 2.5 * flops[0];
    flops[2] = flops[0] + flops[1];
    for (int i = 0; i < 3; i++) {
        static const char *const what[] = {"forward", "backward", "both"};
        const double rate = flops[i] / (i < 2 ? best_s[i] : best_s[0] + best_s[1]);
        (void)printf("attention %5lld %-12s f32  %8.1f GFLOP/s = %.2f of products' %.1f\n",
                     (long long)seq, what[i], 1e-9 * rate, rate / limit->flops_per_s,
                     1e-9 * limit->flops_per_s);
    }
    return DT_OK;
}

static dt_status run(bench *b)
{
    limits limit = {0};
    DT_TRY(set_up(b));
    DT_TRY(limits_create(DT_F32, &limit));
    DT_TRY(run_lines(b, &limit));
    for (int64_t seq = 256; seq <= 2048 && seq * DIM * 8 <= b->n; seq *= 2)
        DT_TRY(run_attention(b, &limit, seq));
    limits_destroy(&limit);
    tear_down(b);
    return DT_OK;
}

int main(int argc, char **argv)
{
    bench b = {.threads = 2, .rounds = 5, .rows = 8192};
    for (int i = 1; i < argc; i++) {
        const bool bf16 = strcmp(argv[i], "bf16") == 0;
        b.dtype = bf16 ? DT_BF16 : b.dtype;
        if (!bf16 && strcmp(argv[i], "f32") != 0 &&
            sscanf(argv[i], "threads=%d", &b.threads) != 1 &&
            sscanf(argv[i], "rounds=%d", &b.rounds) != 1 &&
            sscanf(argv[i], "rows=%d", &b.rows) != 1)
            DT_MUST(DT_ERROR(DT_ERR_ARG, "'%s': see the top of bench/kernels.c", argv[i]));
    }
    DT_MUST(run(&b));
    return EXIT_SUCCESS;
}
