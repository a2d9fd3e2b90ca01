/* bench/pipeline.c - idle time of pipelines on 4 ranks, measured beside simulated. The stages do
 * nothing but sleep: so long forward, and so long for each half of backward. So ranks need no cores
 * of their own, and what is left besides sleep is the executor's.
 *
 *   build/bench/pipeline [SLEEP_MS [FILE.svg]]     20; a picture of each measured run, above the
 *                                                  simulated one */
#include "dtensor/dt_op.h"
#include "pp/dt_pipeline.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { RANKS = 4, MICROBATCHES = 8, HIDDEN = 4 };

static const char *const names[] = {"gpipe", "1f1b", "interleaved", "zb-h1", "zbv"};

static double sleep_s;

static void nap(void)
{
    const double whole = floor(sleep_s);
    const struct timespec t = {(time_t)whole, (long)(1e9 * (sleep_s - whole))};
    (void)nanosleep(&t, NULL);
}

/* ---- y = x, slowly; the weight has a gradient of 0, slowly too ---- */

static dt_status nap_forward(dt_op_call *c)
{
    nap();
    dt_array_copy(&c->out[0], &c->in[0]);
    return DT_OK;
}

static dt_status nap_backward(dt_op_call *c)
{
    if (c->need & 1) {
        nap();
        dt_array_copy(&c->din[0], &c->dout[0]);
    }
    if (c->need & 2) {
        nap();
        dt_array_fill(&c->din[1], 0);
    }
    return DT_OK;
}

static const dt_op nap_op = {.name = "nap",
                             .nin = 2,
                             .nout = 1,
                             .rule = "...h,h->...h",
                             .forward = nap_forward,
                             .backward = nap_backward};

static dt_values nap_module(dt_module *m, dt_tape *t, const dt_values *in)
{
    dt_tensor *w = dt_module_param(m, "weight")->tensor;
    return (dt_values){.n = 1, .value = {dt_op_apply2(t, &nap_op, NULL, in->value[0], w)}};
}

static dt_values chain(dt_module *m, dt_tape *t, const dt_values *in)
{
    dt_tensor *x = in->value[0];
    for (int i = 0; i < dt_module_nchildren(m); i++)
        x = dt_module_call1(dt_module_child(m, i), t, x);
    return (dt_values){.n = 1, .value = {x}};
}

/* Layers "layers.0", ...: one for each stage. */
static dt_status build(int layers, dt_module **model)
{
    static const dt_module_kind kind = {"chain", 0, chain}, nap_kind = {"nap", 0, nap_module};
    dt_module *list = NULL;
    DT_TRY(dt_module_create(&kind, model));
    DT_TRY(dt_module_create(&kind, &list));
    DT_TRY(dt_module_add(*model, "layers", list));
    for (int i = 0; i < layers; i++) {
        dt_module *layer = NULL;
        dt_param *weight = NULL;
        char name[12];
        (void)snprintf(name, sizeof name, "%d", i);
        DT_TRY(dt_module_create(&nap_kind, &layer));
        DT_TRY(dt_module_add_param(layer, "weight", DT_SHAPE(HIDDEN), NULL, (dt_init){0}, &weight));
        DT_TRY(dt_module_add(list, name, layer));
    }
    DT_TRY(dt_module_finish(*model));
    return DT_OK;
}

/* ---- a run ---- */

typedef struct job {
    const dt_pp_schedule *schedule;
    dt_trace *trace[RANKS];
} job;

static dt_status read_samples(void *mesh, int64_t lo, int64_t hi, dt_tensor **x, dt_tensor **none)
{
    const dt_layout *layout = NULL;
    (void)none;
    DT_TRY(dt_mesh_layout_text(mesh, DT_SHAPE(hi - lo, 1, HIDDEN), "", &layout));
    DT_TRY(dt_full_value(layout, DT_F32, 1, x));
    dt_tensor_set_requires_grad(*x, true); /* else the first stage would have no I */
    return DT_OK;
}

static dt_status drop(void *arg, int64_t lo, int64_t hi, dt_tensor *y)
{
    (void)arg, (void)lo, (void)hi, (void)y;
    return DT_OK;
}

static dt_status body(dt_world *world, void *arg)
{
    const job *j = arg;
    const dt_pipeline_options options = {
        .chain = {.layers = "layers"}, .hidden = HIDDEN, .boundary = ""};
    dt_mesh *mesh = NULL;
    dt_module *model = NULL;
    dt_pipeline *p = NULL;
    double loss = 0;
    DT_TRY(dt_mesh_create(world, (dt_device){DT_CPU, 0},
                          &(dt_mesh_options){.axes = {{"pp", RANKS}}}, &mesh));
    DT_TRY(build(j->schedule->nstages, &model));
    DT_TRY(dt_pipeline_split(&model, mesh, "pp", j->schedule, &options, &p));
    DT_TRY(dt_module_materialize(dt_pipeline_module(p), dt_pipeline_mesh(p), 1));
    const dt_pipeline_pass pass = {.samples = MICROBATCHES,
                                   .at_once = 1,
                                   .seq_len = 1,
                                   .no_targets = true,
                                   .read = read_samples,
                                   .output = drop,
                                   .arg = dt_pipeline_mesh(p)};
    dt_world_set_trace(world, j->trace[dt_world_rank(world)]);
    DT_TRY(dt_pipeline_run(p, &pass, &loss));
    dt_world_set_trace(world, NULL);
    dt_pipeline_destroy(&p);
    dt_mesh_destroy(&mesh);
    return DT_OK;
}

/* Prints a line; *lowered and the two timelines are the caller's. */
static dt_status compare(const char *name, dt_pp_schedule **lowered, dt_pp_timeline **measured,
                         dt_pp_timeline **simulated)
{
    dt_pp_schedule *s = NULL;
    DT_TRY(dt_pp_schedule_create(name, RANKS, MICROBATCHES, 0, &s));
    DT_TRY(dt_pp_lower(s, 0, lowered));
    job j = {.schedule = s};
    for (int r = 0; r < RANKS; r++)
        DT_TRY(dt_trace_create(&j.trace[r]));
    DT_TRY(dt_world_run_threads(RANKS, NULL, body, &j));
    DT_TRY(dt_pp_simulate(*lowered, &(dt_pp_costs){.f = sleep_s, .i = sleep_s, .w = sleep_s},
                          simulated));
    DT_TRY(dt_pp_measure(*lowered, (const dt_trace *const *)j.trace, measured));
    const double want = 100 * dt_pp_idle(*simulated), got = 100 * dt_pp_idle(*measured);
    (void)printf("%-12s %7.1f ms, idle %5.1f %%; simulated %7.1f ms, idle %5.1f %%; %+.1f points\n",
                 name, 1e3 * (*measured)->makespan, got, 1e3 * (*simulated)->makespan, want,
                 got - want);
    for (int r = 0; r < RANKS; r++)
        dt_trace_destroy(&j.trace[r]);
    dt_pp_schedule_destroy(&s);
    return DT_OK;
}

int main(int argc, char **argv)
{
    enum { N = DT_COUNT(names) };
    dt_pp_schedule *lowered[N] = {NULL};
    dt_pp_timeline *measured[N] = {NULL}, *simulated[N] = {NULL};
    dt_pp_picture picture[2 * N];
    char title[2 * N][64];
    sleep_s = 1e-3 * (argc > 1 ? atof(argv[1]) : 20);
    for (int i = 0; i < N; i++) {
        DT_MUST(compare(names[i], &lowered[i], &measured[i], &simulated[i]));
        (void)snprintf(title[2 * i], sizeof title[0], "%s, measured", names[i]);
        (void)snprintf(title[2 * i + 1], sizeof title[0], "%s, simulated", names[i]);
        picture[2 * i] = (dt_pp_picture){title[2 * i], lowered[i], measured[i]};
        picture[2 * i + 1] = (dt_pp_picture){title[2 * i + 1], lowered[i], simulated[i]};
    }
    if (argc > 2) {
        FILE *out = fopen(argv[2], "w");
        if (!out) {
            perror(argv[2]);
            return EXIT_FAILURE;
        }
        DT_MUST(dt_pp_draw_svg(2 * N, picture, out));
        (void)fclose(out);
    }
    for (int i = 0; i < N; i++) {
        dt_pp_schedule_destroy(&lowered[i]);
        dt_pp_timeline_destroy(&measured[i]);
        dt_pp_timeline_destroy(&simulated[i]);
    }
    return EXIT_SUCCESS;
}
