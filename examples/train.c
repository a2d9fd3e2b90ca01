/* examples/train.c - train a Llama or GPT-2 on any number of ranks.
 *
 *     tools/mpirun -n 4 build/examples/train CONFIG.json --parallel.dp_replicate=4    ranks are processes
 *     build/examples/train CONFIG.json --ranks=4 --parallel.dp_replicate=4            ranks are threads
 *
 * `--help` lists the keys. Read next: examples/train_session.c (one step), examples/train_config.c (the keys). */
#include "array/dt_kernels.h"
#include "checkpoint/dt_safetensors.h"
#include "examples/train_session.h"
#include "metrics/dt_metrics.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* What the loop keeps for its reports; only rank 0 writes. */
typedef struct report {
    bool writes;
    dt_metrics_log *json;
    dt_flops flops;
    double peak_flops, started_s;
    double *loss, *step; /* the curve */
    int64_t points;
    double *grad_norm, *norm; /* one a parameter, with log.params */
} report;

static double now_s(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void print_line(void *arg, const char *line)
{
    (void)arg;
    (void)printf("%s\n", line);
}

static dt_status open_log(const train_config *c, report *r)
{
    if (r->writes && c->log_json)
        DT_TRY(dt_metrics_log_open(c->log_json, false, &r->json));
    if (r->writes && c->log_plot) { /* an unwritable place is told before training, not after */
        FILE *f = fopen(c->log_plot, "a");
        DT_REQUIRE(f, DT_ERR_IO, "log.plot=%s cannot be written", c->log_plot);
        (void)fclose(f);
    }
    return DT_OK;
}

static dt_status report_open(const train_config *c, train_session *s, report *r)
{
    int n = 0;
    (void)dt_module_params(s->model, &n);
    r->writes = dt_world_rank(s->world) == 0;
    DT_TRY(dt_world_agree_sync(s->world, open_log(c, r)));
    r->flops = (dt_flops){dt_flops_matmul_params(s->model), s->facts.layers, s->facts.heads,
                          s->facts.head_dim, c->seq_len};
    DT_TRY(dt_peak_flops_sync(dt_world_comm(s->world), c->peak_flops, &r->peak_flops));
    r->loss = calloc((size_t)c->steps, sizeof *r->loss);
    r->step = calloc((size_t)c->steps, sizeof *r->step);
    r->grad_norm = calloc((size_t)n, sizeof *r->grad_norm);
    r->norm = calloc((size_t)n, sizeof *r->norm);
    DT_REQUIRE(r->loss && r->step && r->grad_norm && r->norm, DT_ERR_NOMEM, "room for reports");
    if (r->writes) {
        char text[DT_FLOPS_TEXT], mesh[DT_MESH_TEXT];
        (void)printf("%s, %lld parameters, on %s\n%s\n", s->facts.architecture,
                     (long long)dt_module_count(s->model),
                     dt_mesh_print(s->mesh, mesh, sizeof mesh),
                     dt_flops_print(&r->flops, r->peak_flops, text, sizeof text));
    }
    r->started_s = now_s();
    return DT_OK;
}

static void report_close(report *r)
{
    dt_metrics_log_close(&r->json);
    free(r->loss);
    free(r->step);
    free(r->grad_norm);
    free(r->norm);
}

/* The rank that needed most memory, and norms of weights after the update. Collective. */
static dt_status measure(const train_config *c, train_session *s, report *r, int64_t *peak_bytes)
{
    *peak_bytes = dt_heap_get_stats(dt_mesh_heap(s->mesh)).peak_total;
    DT_TRY(dt_all_reduce_i64_sync(dt_world_comm(s->world), peak_bytes, 1, DT_REDUCE_MAX));
    if (!c->log_params)
        return DT_OK;
    int n = 0;
    dt_param *const *p = dt_module_params(s->model, &n);
    dt_local *weights = calloc((size_t)n, sizeof *weights);
    DT_REQUIRE(weights, DT_ERR_NOMEM, "%d weights", n);
    for (int i = 0; i < n; i++)
        weights[i] = (dt_local){p[i]->layout, *dt_tensor_local(p[i]->tensor)}; /* borrowed */
    double all = 0;
    const dt_status st = dt_global_norm_sync(n, weights, dt_world_comm(s->world), &all, r->norm);
    free(weights);
    return st;
}

static dt_status write_json(const train_config *c, train_session *s, report *r, const dt_metrics *m)
{
    int n = 0;
    dt_param *const *p = dt_module_params(s->model, &n);
    dt_param_metrics *each = calloc((size_t)n, sizeof *each);
    DT_REQUIRE(each, DT_ERR_NOMEM, "%d norms", n);
    for (int i = 0; i < n; i++)
        each[i] = (dt_param_metrics){p[i]->name, r->grad_norm[i], r->norm[i]};
    const dt_status st = dt_metrics_log_step(r->json, m, c->log_params ? n : 0, each);
    free(each);
    return st;
}

static void print_step(const train_config *c, const dt_metrics *m)
{
    char line[DT_METRICS_LINE];
    const bool live = isatty(STDOUT_FILENO) != 0;
    if (live)
        (void)printf("\r\033[K%s", dt_metrics_line(m, line, sizeof line));
    if (m->step % c->log_every == 0 || m->step == c->steps || m->step == 1)
        (void)printf("%s\n", live ? "" : dt_metrics_line(m, line, sizeof line));
    (void)fflush(stdout);
}

static dt_status tell(const train_config *c, train_session *s, const train_result *result,
                      report *r)
{
    dt_metrics m = {.step = s->step,
                    .steps = c->steps,
                    .loss = result->loss,
                    .grad_norm = result->grad_norm,
                    .lr = result->lr,
                    .tokens = s->step * result->tokens};
    const double elapsed_s = now_s() - r->started_s;
    DT_TRY(measure(c, s, r, &m.memory_peak_bytes));
    m.tokens_per_s = (double)m.tokens / (elapsed_s > 0 ? elapsed_s : 1);
    m.mfu = dt_flops_mfu(&r->flops, m.tokens_per_s, r->peak_flops);
    m.comm_bytes = dt_world_counts(s->world).total_bytes;
    m.left_s = dt_metrics_left(s->step, c->steps, elapsed_s);
    r->step[r->points] = (double)s->step;
    r->loss[r->points++] = result->loss;
    dt_status st = r->json ? write_json(c, s, r, &m) : DT_OK;
    if (r->writes)
        print_step(c, &m);
    DT_TRY(dt_world_agree_sync(s->world, st)); /* a full disk ends all ranks */
    return DT_OK;
}

static dt_status finish(const train_config *c, train_session *s, report *r)
{
    const dt_curve curve = {.title = "training loss",
                            .x_label = "step",
                            .y_label = "loss (nats per token)",
                            .n = r->points,
                            .x = r->step,
                            .y = r->loss};
    dt_status st = DT_OK;
    if (r->writes && c->log_plot) {
        dt_curve_print(&curve, print_line, NULL);
        st = dt_curve_svg(&curve, c->log_plot);
    }
    if (st == DT_OK && r->writes && c->log_trace)
        st = dt_trace_write(dt_world_trace(s->world), 0, c->log_trace);
    DT_TRY(dt_world_agree_sync(s->world, st));
    if (c->model_save)
        DT_TRY(dt_module_save(s->model, s->world, c->model_save, c->model_config));
    return DT_OK;
}

static dt_status loop(const train_config *c, train_session *s, report *r)
{
    DT_TRY(report_open(c, s, r));
    train_result result = {.param_grad_norm = c->log_params ? r->grad_norm : NULL};
    while (s->step < c->steps) {
        dt_world_reset_counts(s->world);
        dt_heap_reset_peaks(dt_mesh_heap(s->mesh));
        DT_TRY(train_session_step(s, &result));
        DT_TRY(tell(c, s, &result, r));
    }
    DT_TRY(finish(c, s, r));
    return DT_OK;
}

/* What every rank does. */
static dt_status train(dt_world *world, void *arg)
{
    const train_config *c = arg;
    const int cores = (int)sysconf(_SC_NPROCESSORS_ONLN);
    if (!getenv("OMP_NUM_THREADS")) /* ranks of one machine share its cores */
        dt_compute_threads_set(cores > dt_world_size(world) ? cores / dt_world_size(world) : 1);
    train_session s = {0};
    report r = {0};
    dt_trace *trace = NULL;
    if (c->log_trace)
        DT_TRY(dt_trace_create(&trace));
    dt_world_set_trace(world, trace);
    dt_status st = train_session_create(c, world, &s);
    if (st == DT_OK)
        st = loop(c, &s, &r);
    report_close(&r);
    train_session_destroy(&s);
    dt_world_set_trace(world, NULL);
    dt_trace_destroy(&trace);
    return st;
}

int main(int argc, char **argv)
{
    train_config config;
    bool done = false;
    DT_MUST(train_config_parse(argc, argv, &config, &done));
    if (done)
        return EXIT_SUCCESS;
    if (config.ranks > 0) {
        DT_MUST(dt_world_run_threads(config.ranks, NULL, train, &config));
    } else {
        dt_world *world = NULL;
        DT_MUST(dt_world_create(NULL, &world));
        DT_MUST(train(world, &config));
        dt_world_destroy(&world);
    }
    train_config_free(&config);
    return EXIT_SUCCESS;
}
