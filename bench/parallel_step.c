/* bench/parallel_step.c - a training step of a model on two ranks with one thread each, against one
 * rank with two threads; rounds of both are interleaved, each in a world of its own.
 *
 *     build/bench/parallel_step llama-110m [f32|bf16] [WAY...] [samples=8] [split=cost]
 *                                [rounds=2] [steps=2]
 *
 * WAY: fsdp, replicated (f32), tp, sp (sequence parallelism), pp; none named: all of them. Each
 * line: the best step, and the one rank's best divided by it. A pipeline of 2 stages and m
 * microbatches is idle for one of m + 1 turns: its line has the share of that bound too. split:
 * its layers; equal numbers if not said, which leaves the stage with the head the most to do. */
#include "array/dt_kernels.h"
#include "bench/limits.h"
#include "bench/trainer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const way_names[TRAINER_NWAYS] = {"fsdp", "replicated", "tp", "sp", "pp"};

typedef struct bench {
    trainer t; /* what is asked for; each rank has a copy */
    bool picked[TRAINER_NWAYS];
    int rounds, steps, threads;
    double best_s;
} bench;

static dt_status body(dt_world *world, void *arg)
{
    bench *b = arg;
    trainer t = b->t;
    float loss = 0;
    dt_compute_threads_set(b->threads);
    DT_TRY(trainer_create(&t, world, (dt_device){DT_CPU, 0}));
    for (int i = 0; i <= b->steps; i++) { /* the first one warms up */
        DT_TRY(dt_world_agree_sync(world, DT_OK));
        const double start_s = limits_now_s();
        DT_TRY(trainer_step(&t, &loss));
        DT_TRY(dt_world_agree_sync(world, DT_OK));
        const double took_s = limits_now_s() - start_s;
        if (dt_world_rank(world) == 0 && i > 0 && took_s < b->best_s)
            b->best_s = took_s;
    }
    trainer_destroy(&t);
    return DT_OK;
}

static dt_status measure(bench *b, int ranks, trainer_way way, double *best_s)
{
    b->t.way = way;
    b->threads = 2 / ranks;
    b->best_s = *best_s;
    DT_TRY(dt_world_run_threads(ranks, NULL, body, b));
    *best_s = b->best_s;
    return DT_OK;
}

static dt_status run(bench *b)
{
    double alone_s = 1e30, best_s[TRAINER_NWAYS];
    DT_TRY(limits_check_cores(2));
    for (int w = 0; w < TRAINER_NWAYS; w++)
        best_s[w] = 1e30;
    if (b->t.dtype != DT_F32)
        b->picked[TRAINER_REPLICATED] = false;
    for (int round = 0; round < b->rounds; round++) {
        DT_TRY(measure(b, 1, TRAINER_FSDP, &alone_s));
        for (int w = 0; w < TRAINER_NWAYS; w++)
            if (b->picked[w])
                DT_TRY(measure(b, 2, (trainer_way)w, &best_s[w]));
    }
    (void)printf("%s %s, %lld x %lld tokens a step; 1 rank, 2 threads: %.1f ms\n", b->t.s->name,
                 dt_dtype_name(b->t.dtype), (long long)b->t.samples, (long long)b->t.s->seq,
                 1e3 * alone_s);
    for (int w = 0; w < TRAINER_NWAYS; w++) {
        if (!b->picked[w])
            continue;
        (void)printf("  2 ranks, 1 thread, %-10s %10.1f ms  %.2f x", way_names[w], 1e3 * best_s[w],
                     alone_s / best_s[w]);
        const double turns = (double)b->t.samples;
        if (w == TRAINER_PP)
            (void)printf(", %.2f of its bound", alone_s * (turns + 1) / turns / best_s[w]);
        (void)printf("\n");
    }
    return DT_OK;
}

static dt_status parse(int argc, char **argv, bench *b)
{
    bool any = false;
    long long samples = 8;
    *b = (bench){.t.s = trainer_shape_named("llama-110m"), .rounds = 2, .steps = 2};
    for (int i = 1; i < argc; i++) {
        const trainer_shape *named = trainer_shape_named(argv[i]);
        bool known = named != NULL;
        b->t.s = named ? named : b->t.s;
        for (int w = 0; w < TRAINER_NWAYS; w++)
            if (!strcmp(argv[i], way_names[w]))
                any = known = b->picked[w] = true;
        if (!strcmp(argv[i], "bf16") || !strcmp(argv[i], "f32")) {
            b->t.dtype = *argv[i] == 'b' ? DT_BF16 : DT_F32;
            known = true;
        }
        known |= sscanf(argv[i], "samples=%lld", &samples) == 1;
        if (!strncmp(argv[i], "split=", 6)) {
            b->t.split = argv[i] + 6;
            known = true;
        }
        known |= sscanf(argv[i], "rounds=%d", &b->rounds) == 1;
        known |= sscanf(argv[i], "steps=%d", &b->steps) == 1;
        DT_REQUIRE(known && samples > 1 && b->rounds > 0 && b->steps > 0, DT_ERR_ARG,
                   "'%s': see the top of bench/parallel_step.c", argv[i]);
    }
    for (int w = 0; w < TRAINER_NWAYS && !any; w++)
        b->picked[w] = true;
    b->t.samples = samples;
    return DT_OK;
}

int main(int argc, char **argv)
{
    bench b;
    DT_MUST(parse(argc, argv, &b));
    DT_MUST(run(&b));
    return EXIT_SUCCESS;
}
