/* bench/dispatch.c - what an op costs besides its work: 4 numbers are added, on a mesh of two axes
 * and one rank.
 *
 * Each line: nanoseconds a call, best of several rounds, next to the peer measured in the same
 * run: a C function, called
 * through a pointer, that allocates a result and adds 4 floats. */
#include "dtensor/ops/dt_ops.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { ROUNDS = 9, STEPS = 200, CALLS = 100 };

typedef struct bench {
    dt_mesh *mesh;
    dt_tape *t;
    dt_tensor *x, *w;
} bench;

static double now_ns(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return 1e9 * (double)t.tv_sec + (double)t.tv_nsec;
}

/* ---- what is measured: CALLS calls, then what a step pays once ---- */

static void add_recorded(bench *b)
{
    for (int i = 0; i < CALLS; i++)
        (void)dt_add(b->t, b->x, b->w);
    dt_tape_reset(b->t, NULL);
}

static void add_no_grad(bench *b)
{
    for (int i = 0; i < CALLS; i++)
        (void)dt_add(b->t, b->x, b->x);
    dt_tape_reset(b->t, NULL);
}

static void add_and_backward(bench *b)
{
    dt_tensor *y = b->w;
    for (int i = 0; i < CALLS; i++)
        y = dt_add(b->t, y, b->x);
    DT_MUST(dt_backward(b->t, dt_sum(b->t, y, 0)));
    dt_tensor_clear_grad(b->w);
    dt_tape_reset(b->t, NULL);
}

static void redistribute_nothing(bench *b)
{
    for (int i = 0; i < CALLS; i++)
        (void)dt_redistribute_to(b->t, b->w, dt_tensor_layout(b->w));
    dt_tape_reset(b->t, NULL);
}

static void redistribute_by_text(bench *b)
{
    for (int i = 0; i < CALLS; i++)
        (void)dt_redistribute(b->t, b->w, "S(0)@dp");
    dt_tape_reset(b->t, NULL);
}

/* ---- the peer ---- */

static float *add_plain(const float *x, const float *y, int n)
{
    float *z = malloc((size_t)n * sizeof *z);
    for (int i = 0; z && i < n; i++)
        z[i] = x[i] + y[i];
    return z;
}

static float *(*volatile peer)(const float *x, const float *y, int n) = add_plain;

static void add_in_c(bench *b)
{
    float *z[CALLS];
    const float *x = dt_array_data(dt_tensor_local(b->x)),
                *w = dt_array_data(dt_tensor_local(b->w));
    for (int i = 0; i < CALLS; i++)
        z[i] = peer(x, w, 4);
    for (int i = 0; i < CALLS; i++)
        free(z[i]);
}

/* Nanoseconds a call, best of the rounds. */
static double measure(void (*run)(bench *), bench *b)
{
    double best = 1e30;
    for (int round = 0; round < ROUNDS; round++) {
        const double start = now_ns();
        for (int s = 0; s < STEPS; s++)
            run(b);
        const double each = (now_ns() - start) / (STEPS * (double)CALLS);
        best = each < best ? each : best;
    }
    return best;
}

int main(void)
{
    static const struct {
        const char *name;
        void (*run)(bench *);
    } lines[] = {{"add, recorded", add_recorded},
                 {"add, nothing to record", add_no_grad},
                 {"add, forward and backward", add_and_backward},
                 {"redistribute, no change", redistribute_nothing},
                 {"redistribute, no change, text", redistribute_by_text}};
    bench b = {0};
    dt_world *world = NULL;
    const dt_layout *layout = NULL;
    DT_MUST(dt_world_create(&(dt_world_options){.backend = DT_BACKEND_SELF}, &world));
    DT_MUST(dt_mesh_create(world, (dt_device){DT_CPU, 0},
                           &(dt_mesh_options){.axes = {{"dp", 1}, {"tp", 1}}}, &b.mesh));
    DT_MUST(dt_mesh_layout_text(b.mesh, DT_SHAPE(4), "S(0)@dp", &layout));
    DT_MUST(dt_full_value(layout, DT_F32, 1, &b.x));
    DT_MUST(dt_full_value(layout, DT_F32, 2, &b.w));
    dt_tensor_set_requires_grad(b.w, true);
    DT_MUST(dt_tape_create(b.mesh, NULL, &b.t));
    const double c = measure(add_in_c, &b);
    (void)printf("%-32s %7.1f ns\n", "add in C, allocated", c);
    for (int i = 0; i < DT_COUNT(lines); i++) {
        const double ns = measure(lines[i].run, &b);
        DT_MUST(dt_tape_status(b.t));
        (void)printf("%-32s %7.1f ns, %5.1f of C's\n", lines[i].name, ns, ns / c);
    }
    dt_tensor_destroy(&b.x);
    dt_tensor_destroy(&b.w);
    dt_tape_destroy(&b.t);
    dt_mesh_destroy(&b.mesh);
    dt_world_destroy(&world);
    return 0;
}
