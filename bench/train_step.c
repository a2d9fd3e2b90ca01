/* bench/train_step.c - a whole training step (forward, backward, norm, AdamW) of a given model on
 * one rank, against what the machine does in products, measured between the steps:
 *
 *     build/bench/train_step gpt2-124m [f32|bf16] [threads=2] [steps=5]
 *
 * Useful FLOP: bench/trainer.h. The table has the time by op, forward ("op") and
 * backward ("grad"), then memory against the sum of its parts; with more than 20 steps it fails
 * where memory grows. */
#include "array/dt_kernels.h"
#include "bench/limits.h"
#include "bench/trainer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct bench {
    trainer t;
    int threads, steps;
    limits limit;
    double best_s, best_ratio;
} bench;

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
    const dt_trace_event *e = dt_trace_events(b->t.trace, &count);
    for (int64_t i = 0; i < count; i++) {
        if (e[i].lane != 0 || (strcmp(e[i].kind, "op") != 0 && strcmp(e[i].kind, "grad") != 0 &&
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
    const dt_heap_stats s = dt_heap_get_stats(dt_mesh_heap(b->t.mesh));
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
    const dt_heap_stats s = dt_heap_get_stats(dt_mesh_heap(b->t.mesh));
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

static dt_status body(dt_world *world, void *arg)
{
    bench *b = arg;
    float loss = 0;
    dt_compute_threads_set(b->threads);
    DT_TRY(limits_check_cores(b->threads));
    DT_TRY(limits_create(b->t.dtype, &b->limit));
    DT_TRY(dt_trace_create(&b->t.trace));
    DT_TRY(trainer_create(&b->t, world, (dt_device){DT_CPU, 0}));
    dt_world_set_trace(world, b->t.trace);
    b->best_s = 1e30;
    usage early = {0};
    for (int i = 0; i <= b->steps; i++) { /* the first one warms up */
        if (i < SETTLED)
            DT_TRY(limits_probe(&b->limit));
        if (i == SETTLED)
            early = usage_now(b);
        dt_trace_clear(b->t.trace);
        dt_heap_reset_peaks(dt_mesh_heap(b->t.mesh));
        const double start_s = limits_now_s();
        DT_TRY(trainer_step(&b->t, &loss));
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
    const double rate = trainer_flops(&b->t) / b->best_s;
    (void)printf(
        "%s %s, %d threads, %lld tokens: best step %.1f ms, %.0f tokens/s, %.1f GFLOP/s = "
        "%.2f of products' %.1f; copies %.1f GB/s\n",
        b->t.s->name, dt_dtype_name(b->t.dtype), b->threads, (long long)b->t.s->batch * b->t.s->seq,
        1e3 * b->best_s, (double)(b->t.s->batch * b->t.s->seq) / b->best_s, 1e-9 * rate,
        rate / b->limit.flops_per_s, 1e-9 * b->limit.flops_per_s, 1e-9 * b->limit.bytes_per_s);
    trainer_destroy(&b->t);
    dt_trace_destroy(&b->t.trace);
    limits_destroy(&b->limit);
    return DT_OK;
}

static dt_status parse(int argc, char **argv, bench *b)
{
    *b = (bench){.t.s = trainer_shape_named("gpt2-124m"), .threads = 2, .steps = 5};
    for (int i = 1; i < argc; i++) {
        const trainer_shape *named = trainer_shape_named(argv[i]);
        bool known = named != NULL;
        b->t.s = named ? named : b->t.s;
        if (!strcmp(argv[i], "bf16") || !strcmp(argv[i], "f32")) {
            b->t.dtype = *argv[i] == 'b' ? DT_BF16 : DT_F32;
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
