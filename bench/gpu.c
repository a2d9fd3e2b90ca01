/* bench/gpu.c - a cuda device: kernels against its copies, attention and products in TFLOP/s,
 * training steps in tokens/s and MFU, and how often a step launches and waits.
 *
 *     build/bench/gpu [--tiny] [--peak=989.4] [counts|kernels|attention|products|train ...]
 *
 * No part named: all. --peak: TFLOP/s of the device's data sheet in bf16 without sparsity, which
 * MFU divides by; as it stands that of an H100 or H200 SXM. --tiny: sizes that the simulated device
 * runs in seconds; its times mean nothing. Read next: bench/gpu_kernels.c, bench/gpu_products.c. */
#include "array/dt_kernels_math.h"
#include "bench/gpu_bench.h"
#include "bench/limits.h"
#include "bench/trainer.h"

#include <cuda_runtime_api.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- time and room ---- */

static dt_status wait_for(const dt_heap *heap)
{
    const cudaError_t error = cudaStreamSynchronize(dt_heap_stream(heap));
    DT_REQUIRE(error == cudaSuccess, DT_ERR_DEVICE, "%s", cudaGetErrorString(error));
    return dt_heap_status(heap);
}

static dt_status run_many(const gpu_bench *b, dt_status (*run)(void *arg), void *arg, int64_t n,
                          double *seconds_out)
{
    DT_TRY(wait_for(b->heap));
    const double start_s = limits_now_s();
    for (int64_t i = 0; i < n; i++)
        DT_TRY(run(arg));
    DT_TRY(wait_for(b->heap));
    *seconds_out = (limits_now_s() - start_s) / (double)n;
    return DT_OK;
}

dt_status gpu_time(const gpu_bench *b, dt_status (*run)(void *arg), void *arg, double *seconds_out)
{
    double best_s = 0;
    DT_TRY(run_many(b, run, arg, 1, &best_s)); /* warms up */
    DT_TRY(run_many(b, run, arg, 1, &best_s));
    const double n = b->tiny ? 1 : 0.02 / best_s;
    const int64_t runs = n < 1 ? 1 : n > 2000 ? 2000 : (int64_t)n;
    for (int i = 0; i < 3 && !b->tiny; i++) {
        double seconds = 0;
        DT_TRY(run_many(b, run, arg, runs, &seconds));
        best_s = i == 0 || seconds < best_s ? seconds : best_s;
    }
    *seconds_out = best_s;
    return DT_OK;
}

enum { ROOMS = 16 };
static dt_array rooms[ROOMS];
static int nrooms;

dt_status gpu_room(const gpu_bench *b, int64_t bytes, double std, dt_array *borrowed_out)
{
    DT_REQUIRE(nrooms < ROOMS, DT_ERR_STATE, "more than %d arrays", ROOMS);
    dt_array *a = &rooms[nrooms];
    DT_TRY(dt_array_create(b->heap, DT_BF16, DT_SHAPE(bytes / 2), DT_TAG_WORKSPACE, a));
    if (std > 0)
        dt_math_kernels_of(DT_CUDA)->normal(DT_BF16, (dt_key){{1, 2}}, (uint64_t)nrooms << 40,
                                            bytes / 2, std, dt_array_data(a));
    else
        dt_array_zero(a);
    *borrowed_out = rooms[nrooms++];
    return dt_heap_status(b->heap);
}

void gpu_release(void)
{
    while (nrooms > 0)
        dt_array_release(&rooms[--nrooms]);
}

/* ---- launches and waits ---- */

/* Launches a layer, which are also the aims, and what a host waits for: two checks of ids and the
 * loss; nothing; the norm (docs/cuda.md). */
static const int64_t expected_launches[3] = {16, 30, 0}, expected_waits[3] = {3, 0, 1};
/* Two models that differ by two layers. */
static const trainer_shape counted[] = {{"llama, 2 layers", true, 256, 128, 256, 2, 2, 1, 1, 64},
                                        {"llama, 4 layers", true, 256, 128, 256, 4, 2, 1, 1, 64}};

/* Of forward with the loss on the host, backward, and the rest of a step. */
typedef struct step_counts {
    dt_heap_counts part[3];
} step_counts;

static dt_heap_counts since(const trainer *t, dt_heap_counts *from)
{
    const dt_heap_counts now = dt_heap_get_counts(dt_mesh_heap(t->mesh)),
                         more = {now.launches - from->launches, now.waits - from->waits};
    *from = now;
    return more;
}

static dt_status count_step(trainer *t, step_counts *c)
{
    float loss = 0;
    dt_tensor *y = NULL;
    dt_heap_counts from = dt_heap_get_counts(dt_mesh_heap(t->mesh));
    DT_TRY(trainer_forward(t, &y));
    DT_TRY(dt_array_read(dt_tensor_local(y), &loss, 1));
    c->part[0] = since(t, &from);
    DT_TRY(trainer_backward(t, y));
    c->part[1] = since(t, &from);
    DT_TRY(trainer_update(t));
    c->part[2] = since(t, &from);
    return DT_OK;
}

static dt_status make_trainer(dt_world *world, const trainer_shape *s, trainer *t)
{
    dt_device device;
    *t = (trainer){.s = s, .dtype = DT_BF16};
    DT_TRY(dt_world_device(world, DT_CUDA, &device));
    return trainer_create(t, world, device);
}

static dt_status count(dt_world *world, void *arg)
{
    (void)arg;
    static const char *const names[] = {"forward", "backward", "norm and AdamW"};
    step_counts c[2];
    trainer t;
    float loss = 0;
    for (int i = 0; i < 2; i++) {
        DT_TRY(make_trainer(world, &counted[i], &t));
        DT_TRY(trainer_step(&t, &loss)); /* the first one makes what later ones find */
        DT_TRY(count_step(&t, &c[i]));
        trainer_destroy(&t);
    }
    for (int p = 0; p < 3; p++) {
        const int64_t more = c[1].part[p].launches - c[0].part[p].launches;
        (void)printf("%-15s %5.1f launches a layer, %lld and %lld launches in %s and 4, waits of "
                     "the host %lld and %lld\n",
                     names[p], (double)more / 2, (long long)c[0].part[p].launches,
                     (long long)c[1].part[p].launches, counted[0].name,
                     (long long)c[0].part[p].waits, (long long)c[1].part[p].waits);
        DT_REQUIRE(c[1].part[p].waits == expected_waits[p], DT_ERR_STATE,
                   "%s should wait %lld times", names[p], (long long)expected_waits[p]);
        DT_REQUIRE(more == 2 * expected_launches[p], DT_ERR_STATE,
                   "%s should have %lld launches a layer", names[p],
                   (long long)expected_launches[p]);
    }
    return DT_OK;
}

/* ---- training steps ---- */

static const trainer_shape trained[] = {
    {"gpt2-124m", false, 50304, 768, 3072, 12, 12, 12, 16, 1024},
    {"llama-1b", true, 32000, 2048, 8192, 16, 32, 8, 2, 4096},
    {"llama-8b, 4 layers", true, 32000, 4096, 14336, 4, 32, 8, 2, 4096}};
static const trainer_shape trained_tiny[] = {{"gpt2-tiny", false, 256, 128, 256, 2, 2, 2, 1, 64},
                                             {"llama-tiny", true, 256, 128, 256, 2, 2, 1, 1, 64}};

typedef struct training {
    const gpu_bench *b;
    const trainer_shape *s;
} training;

static dt_status train(dt_world *world, void *arg)
{
    const training *job = arg;
    const trainer_shape *s = job->s;
    const int warm = job->b->tiny ? 1 : 3, steps = job->b->tiny ? 1 : 10;
    trainer t;
    float loss = 0;
    DT_TRY(make_trainer(world, s, &t));
    for (int i = 0; i < warm; i++)
        DT_TRY(trainer_step(&t, &loss));
    const dt_heap *heap = dt_mesh_heap(t.mesh);
    DT_TRY(wait_for(heap));
    dt_heap_counts from = dt_heap_get_counts(heap);
    const double start_s = limits_now_s();
    for (int i = 0; i < steps; i++)
        DT_TRY(trainer_step(&t, &loss));
    DT_TRY(wait_for(heap));
    const double step_s = (limits_now_s() - start_s) / steps;
    const dt_heap_counts n = since(&t, &from);
    const double rate = trainer_flops(&t) / step_s;
    (void)printf("train %s bf16, %lld x %lld tokens: %.2f ms a step, %.0f tokens/s, %.1f TFLOP/s = "
                 "MFU %.3f of %.1f; %.0f launches and %.0f waits a step, peak %.1f GB, loss %.4f\n",
                 s->name, (long long)s->batch, (long long)s->seq, 1e3 * step_s,
                 (double)(s->batch * s->seq) / step_s, 1e-12 * rate, rate / job->b->peak_flops,
                 1e-12 * job->b->peak_flops, (double)n.launches / steps, (double)n.waits / steps,
                 1e-9 * (double)dt_heap_get_stats(heap).peak_total, (double)loss);
    trainer_destroy(&t);
    return DT_OK;
}

static dt_status bench_train(gpu_bench *b)
{
    const int n = b->tiny ? DT_COUNT(trained_tiny) : DT_COUNT(trained);
    (void)printf(
        "MFU: (6 parameters of products + 6 layers hidden seq) FLOP a token, over the time "
        "and the peak\n");
    for (int i = 0; i < n; i++) {
        training job = {b, b->tiny ? &trained_tiny[i] : &trained[i]};
        DT_TRY(dt_world_run_threads(1, NULL, train, &job));
    }
    return DT_OK;
}

static dt_status bench_counts(gpu_bench *b)
{
    (void)b;
    return dt_world_run_threads(1, NULL, count, NULL);
}

/* ---- */

static const struct {
    const char *name;
    dt_status (*run)(gpu_bench *b);
    bool heap; /* needs the bench's own */
} parts[] = {{"counts", bench_counts, false},
             {"kernels", gpu_bench_kernels, true},
             {"attention", gpu_bench_attention, true},
             {"products", gpu_bench_products, true},
             {"train", bench_train, false}};

static dt_status run_part(gpu_bench *b, int part)
{
    const dt_heap_options options = {.reserve_bytes = b->tiny ? 64 << 20 : (size_t)4 << 30};
    if (parts[part].heap)
        DT_TRY(dt_heap_create((dt_device){DT_CUDA, 0}, &options, &b->heap));
    const dt_status st = parts[part].run(b);
    gpu_release();
    dt_heap_destroy(&b->heap);
    (void)fflush(stdout);
    return st;
}

int main(int argc, char **argv)
{
    gpu_bench b = {.peak_flops = 989.4e12};
    bool wanted[DT_COUNT(parts)] = {false}, all = true;
    for (int i = 1; i < argc; i++) {
        const bool tiny = strcmp(argv[i], "--tiny") == 0;
        bool known = tiny || sscanf(argv[i], "--peak=%lf", &b.peak_flops) == 1;
        b.peak_flops *= known && !tiny ? 1e12 : 1;
        b.tiny |= tiny;
        for (int k = 0; k < DT_COUNT(parts); k++)
            if (strcmp(argv[i], parts[k].name) == 0) {
                wanted[k] = known = true;
                all = false;
            }
        if (!known)
            DT_MUST(DT_ERROR(DT_ERR_ARG, "'%s': see the top of bench/gpu.c", argv[i]));
    }
    if (dt_device_count(DT_CUDA) == 0) {
        (void)printf("SKIPPED: no cuda device\n");
        return 77;
    }
    if (b.tiny)
        (void)printf("--tiny: no time below means anything\n");
    for (int k = 0; k < DT_COUNT(parts); k++)
        if (all || wanted[k])
            DT_MUST(run_part(&b, k));
    return EXIT_SUCCESS;
}
