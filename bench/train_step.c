/* bench/train_step.c - a whole training step (forward, backward, norm, AdamW) of a given model on
 * one rank, against what the machine does in products, measured between the steps:
 *
 *     build/bench/train_step gpt2-124m [f32|bf16] [threads=2] [steps=5]
 *
 * Useful FLOP: per token 6 for each parameter that a product uses, and 6 * hidden * seq a layer for
 * attention, which is causal: half the square. The table has the time by op, forward ("op") and
 * backward ("grad"), then memory against the sum of its parts; with more than 20 steps it fails
 * where memory grows. */
#include "array/dt_kernels.h"
#include "bench/limits.h"
#include "fsdp/dt_fsdp.h"
#include "metrics/dt_metrics.h"
#include "models/dt_models.h"
#include "optim/dt_optim.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct shape {
    const char *name;
    bool llama;
    int64_t vocab, hidden, inner, layers, heads, kv_heads, batch, seq;
} shape;

static const shape shapes[] = {{"gpt2-124m", false, 50304, 768, 3072, 12, 12, 12, 4, 256},
                               {"llama-25m", true, 3072, 512, 1376, 7, 8, 8, 4, 1024},
                               {"llama-110m", true, 32000, 768, 2048, 10, 12, 4, 2, 1024},
                               {"tiny", true, 128, 64, 128, 2, 4, 2, 2, 32}};

typedef struct bench {
    const shape *s;
    dt_dtype dtype;
    int threads, steps;
    dt_mesh *mesh;
    dt_module *model;
    dt_optim *optim;
    dt_tape *tape;
    dt_values in;
    dt_trace *trace;
    limits limit;
    double best_s, best_ratio;
} bench;

/* ---- set-up ---- */

static dt_status make_model(const shape *s, dt_module **model)
{
    const dt_llama_config llama = {.vocab_size = s->vocab,
                                   .hidden_size = s->hidden,
                                   .intermediate_size = s->inner,
                                   .num_hidden_layers = s->layers,
                                   .num_attention_heads = s->heads,
                                   .num_key_value_heads = s->kv_heads,
                                   .head_dim = s->hidden / s->heads,
                                   .max_position_embeddings = s->seq,
                                   .rope.theta = 1e4,
                                   .rms_norm_eps = 1e-5,
                                   .initializer_range = 0.02};
    const dt_gpt2_config gpt2 = {.vocab_size = s->vocab,
                                 .n_embd = s->hidden,
                                 .n_layer = s->layers,
                                 .n_head = s->heads,
                                 .n_inner = s->inner,
                                 .n_positions = s->seq,
                                 .layer_norm_epsilon = 1e-5,
                                 .initializer_range = 0.02};
    return s->llama ? dt_llama_create(&llama, model) : dt_gpt2_create(&gpt2, model);
}

static dt_status make_batch(bench *b)
{
    const int64_t n = b->s->batch * b->s->seq;
    const dt_layout *layout = NULL;
    int32_t *ids = calloc((size_t)n, sizeof *ids);
    DT_REQUIRE(ids, DT_ERR_NOMEM, "ids");
    for (int64_t i = 0; i < n; i++)
        ids[i] = (int32_t)(i * 7919 % b->s->vocab);
    b->in.n = 2;
    dt_status st = dt_mesh_layout_text(b->mesh, DT_SHAPE(b->s->batch, b->s->seq), "", &layout);
    for (int i = 0; i < 2 && st == DT_OK; i++)
        st = dt_distribute(layout, DT_I32, ids, &b->in.value[i]);
    free(ids);
    return st;
}

static dt_status set_up(bench *b, dt_world *world)
{
    const dt_fsdp_options policy = {.reshard = DT_RESHARD_NEVER, .param_dtype = b->dtype};
    dt_compute_threads_set(b->threads);
    DT_TRY(limits_check_cores(b->threads));
    DT_TRY(limits_create(b->dtype, &b->limit));
    DT_TRY(dt_trace_create(&b->trace));
    DT_TRY(dt_mesh_create(world, (dt_device){DT_CPU, 0},
                          &(dt_mesh_options){.axes = {{"dp_shard", 1}}}, &b->mesh));
    DT_TRY(make_model(b->s, &b->model));
    for (int i = 0; i < dt_model_nlayers(b->model); i++)
        DT_TRY(dt_fully_shard(dt_model_layer(b->model, i), b->mesh, "dp_shard", &policy));
    DT_TRY(dt_fully_shard(b->model, b->mesh, "dp_shard", &policy));
    DT_TRY(dt_module_materialize(b->model, b->mesh, 1));
    dt_model_set_loss(b->model, b->s->batch * b->s->seq, 0);
    DT_TRY(make_batch(b));
    DT_TRY(dt_adamw_create(b->model, &(dt_adamw_options){.weight_decay = 0.1}, &b->optim));
    DT_TRY(dt_tape_create(b->mesh, NULL, &b->tape));
    return DT_OK;
}

static void tear_down(bench *b)
{
    dt_tape_destroy(&b->tape);
    dt_optim_destroy(&b->optim);
    dt_tensor_destroy(&b->in.value[0]);
    dt_tensor_destroy(&b->in.value[1]);
    dt_module_destroy(&b->model);
    dt_mesh_destroy(&b->mesh);
    dt_trace_destroy(&b->trace);
    limits_destroy(&b->limit);
}

/* ---- a step ---- */

static void mark(bench *b, const char *name, dt_trace_phase phase)
{
    dt_trace_record(b->trace, "step", name, phase, 0, 0);
}

static dt_status clip_and_update(bench *b)
{
    int n = 0;
    double norm = 0;
    dt_param *const *p = dt_module_params(b->model, &n);
    dt_local *grads = calloc((size_t)n + 1, sizeof *grads);
    DT_REQUIRE(grads, DT_ERR_NOMEM, "%d gradients", n);
    for (int i = 0; i < n; i++)
        grads[i] = *dt_tensor_grad(p[i]->tensor);
    mark(b, "norm", DT_TRACE_BEGIN);
    dt_comm *comm = NULL;
    dt_status st = dt_mesh_comm(b->mesh, 1, (const uint8_t[]){0}, 0, &comm);
    if (st == DT_OK)
        st = dt_global_norm_sync(n, grads, comm, &norm, NULL);
    mark(b, "norm", DT_TRACE_END);
    free(grads);
    DT_TRY(st);
    mark(b, "adamw", DT_TRACE_BEGIN);
    DT_TRY(dt_optim_step(b->optim, 1e-4, dt_clip_factor(norm, 1)));
    mark(b, "adamw", DT_TRACE_END);
    return DT_OK;
}

static dt_status step(bench *b, float *loss)
{
    dt_tape_reset(b->tape, NULL);
    dt_tensor *y = dt_module_call(b->model, b->tape, &b->in).value[0];
    DT_TRY(dt_tape_status(b->tape));
    DT_TRY(dt_array_read(dt_tensor_local(y), loss, 1));
    DT_TRY(dt_backward(b->tape, y));
    DT_TRY(dt_module_reduce_grads(b->model));
    DT_TRY(clip_and_update(b));
    dt_module_clear_grads(b->model);
    return DT_OK;
}

/* ---- the table ---- */

typedef struct line {
    char kind[8], name[72];
    double total_s;
    int calls;
} line;

enum { LINES = 128, DEPTH = 32, SETTLED = 20 };

static line *line_of(line *lines, int *n, const dt_trace_event *e)
{
    for (int i = 0; i < *n; i++)
        if (!strcmp(lines[i].kind, e->kind) && !strcmp(lines[i].name, e->name))
            return &lines[i];
    if (*n == LINES)
        return &lines[LINES - 1];
    line *l = &lines[(*n)++];
    (void)snprintf(l->kind, sizeof l->kind, "%s", e->kind);
    (void)snprintf(l->name, sizeof l->name, "%s", e->name);
    return l;
}

/* Each op's own time: what ran within it counts for that alone. */
static int sum_events(const bench *b, line *lines)
{
    int64_t count = 0;
    int n = 0, depth = 0;
    double begun_s[DEPTH], inside_s[DEPTH];
    const dt_trace_event *e = dt_trace_events(b->trace, &count);
    for (int64_t i = 0; i < count; i++) {
        if (e[i].lane != 0 ||
            (strcmp(e[i].kind, "op") != 0 && strcmp(e[i].kind, "grad") != 0 &&
             strcmp(e[i].kind, "step") != 0))
            continue;
        if (e[i].phase == DT_TRACE_BEGIN && depth < DEPTH) {
            begun_s[depth] = e[i].time_s;
            inside_s[depth++] = 0;
        } else if (e[i].phase == DT_TRACE_END && depth > 0) {
            const double took_s = e[i].time_s - begun_s[--depth];
            line *l = line_of(lines, &n, &e[i]);
            l->total_s += took_s - inside_s[depth];
            l->calls++;
            if (depth > 0)
                inside_s[depth - 1] += took_s;
        }
    }
    return n;
}

static int slower_first(const void *a, const void *b)
{
    const double x = ((const line *)a)->total_s, y = ((const line *)b)->total_s;
    return x < y ? 1 : x > y ? -1 : 0;
}

static bool is_product(const char *name)
{
    return strstr(name, "linear") || strstr(name, "attention") || strstr(name, "matmul");
}

static void print_table(const bench *b, double step_s)
{
    static line lines[LINES];
    const int n = sum_events(b, lines);
    double known_s = 0, product_s = 0;
    qsort(lines, (size_t)n, sizeof *lines, slower_first);
    for (int i = 0; i < n; i++) {
        known_s += lines[i].total_s;
        product_s += is_product(lines[i].name) ? lines[i].total_s : 0;
        (void)printf("  %-5s %-24s %4d calls %8.2f ms %5.1f%%\n", lines[i].kind, lines[i].name,
                     lines[i].calls, 1e3 * lines[i].total_s, 100 * lines[i].total_s / step_s);
    }
    (void)printf("  %-35s %16.2f ms %5.1f%%\n", "between the ops", 1e3 * (step_s - known_s),
                 100 * (step_s - known_s) / step_s);
    (void)printf("outside products and attention: %.1f%% of the step\n",
                 100 * (1 - product_s / step_s));
}

static void print_memory(const bench *b)
{
    const dt_heap_stats s = dt_heap_get_stats(dt_mesh_heap(b->mesh));
    int64_t sum = 0;
    (void)printf("memory: peak %.1f MB, by part", 1e-6 * (double)s.peak_total);
    for (int i = 0; i < DT_NTAGS; i++) {
        sum += s.peak[i];
        (void)printf(", %s %.1f", dt_tag_name((dt_tag)i), 1e-6 * (double)s.peak[i]);
    }
    (void)printf("; sum of the parts' peaks %.1f MB\n", 1e-6 * (double)sum);
}

/* ---- growth ---- */

/* What must be the same after every step. */
typedef struct usage {
    int64_t live_bytes, reserved_bytes, resident_bytes;
} usage;

static usage usage_now(const bench *b)
{
    const dt_heap_stats s = dt_heap_get_stats(dt_mesh_heap(b->mesh));
    usage u = {s.live_total, s.reserved, 0};
    long long pages = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    if (f) {
        if (fscanf(f, "%*s %lld", &pages) == 1)
            u.resident_bytes = pages * sysconf(_SC_PAGESIZE);
        (void)fclose(f);
    }
    return u;
}

/* Few steps may fill caches. Errors: DT_ERR_STATE. */
static dt_status check_growth(const bench *b, usage early)
{
    const usage now = usage_now(b);
    (void)printf("after %d steps: live %+lld, reserved %+lld, resident %+lld bytes since step %d\n",
                 b->steps, (long long)(now.live_bytes - early.live_bytes),
                 (long long)(now.reserved_bytes - early.reserved_bytes),
                 (long long)(now.resident_bytes - early.resident_bytes), SETTLED);
    DT_REQUIRE(now.live_bytes == early.live_bytes && now.reserved_bytes == early.reserved_bytes &&
                   now.resident_bytes < early.resident_bytes + (1 << 20),
               DT_ERR_STATE, "memory grows from step to step");
    return DT_OK;
}

static double useful_flops(const bench *b)
{
    const shape *s = b->s;
    const double tokens = (double)(s->batch * s->seq);
    return tokens * (6 * (double)dt_flops_matmul_params(b->model) +
                     6 * (double)(s->layers * s->hidden * s->seq));
}

static dt_status body(dt_world *world, void *arg)
{
    bench *b = arg;
    float loss = 0;
    DT_TRY(set_up(b, world));
    dt_world_set_trace(world, b->trace);
    b->best_s = 1e30;
    usage early = {0};
    for (int i = 0; i <= b->steps; i++) { /* the first one warms up */
        if (i < SETTLED)
            DT_TRY(limits_probe(&b->limit));
        if (i == SETTLED)
            early = usage_now(b);
        dt_trace_clear(b->trace);
        dt_heap_reset_peaks(dt_mesh_heap(b->mesh));
        const double start_s = limits_now_s();
        DT_TRY(step(b, &loss));
        const double took_s = limits_now_s() - start_s;
        if (i > 0 && took_s < b->best_s)
            b->best_s = took_s;
        if (i == b->steps) {
            (void)printf("last step %.1f ms, loss %.6f\n", 1e3 * took_s, (double)loss);
            print_table(b, took_s);
            print_memory(b);
        }
    }
    if (b->steps > SETTLED)
        DT_TRY(check_growth(b, early));
    dt_world_set_trace(world, NULL);
    const double rate = useful_flops(b) / b->best_s;
    (void)printf(
        "%s %s, %d threads, %lld tokens: best step %.1f ms, %.0f tokens/s, %.1f GFLOP/s = "
        "%.2f of products' %.1f; copies %.1f GB/s\n",
        b->s->name, dt_dtype_name(b->dtype), b->threads, (long long)b->s->batch * b->s->seq,
        1e3 * b->best_s, (double)(b->s->batch * b->s->seq) / b->best_s, 1e-9 * rate,
        rate / b->limit.flops_per_s, 1e-9 * b->limit.flops_per_s, 1e-9 * b->limit.bytes_per_s);
    tear_down(b);
    return DT_OK;
}

static dt_status parse(int argc, char **argv, bench *b)
{
    *b = (bench){.s = &shapes[0], .threads = 2, .steps = 5};
    for (int i = 1; i < argc; i++) {
        bool known = false;
        for (int k = 0; k < DT_COUNT(shapes); k++)
            if (!strcmp(argv[i], shapes[k].name)) {
                b->s = &shapes[k];
                known = true;
            }
        if (!strcmp(argv[i], "bf16") || !strcmp(argv[i], "f32")) {
            b->dtype = *argv[i] == 'b' ? DT_BF16 : DT_F32;
            known = true;
        }
        known |= sscanf(argv[i], "threads=%d", &b->threads) == 1;
        known |= sscanf(argv[i], "steps=%d", &b->steps) == 1;
        DT_REQUIRE(known && b->threads > 0 && b->steps > 0, DT_ERR_ARG,
                   "'%s': see the top of bench/train_step.c", argv[i]);
    }
    return DT_OK;
}

int main(int argc, char **argv)
{
    bench b;
    DT_MUST(parse(argc, argv, &b));
    DT_MUST(dt_world_run_threads(1, NULL, body, &b));
    return EXIT_SUCCESS;
}
