/* examples/train.c - train a Llama or GPT-2 on any number of ranks, as processes or as threads:
 *
 *     tools/mpirun -n 4 build/examples/train CONFIG.json --parallel.dp_replicate=4
 *     build/examples/train CONFIG.json --ranks=4 --parallel.dp_replicate=4
 *
 * `--help` lists the keys. Read next: examples/train_session.c (one step), examples/train_config.c
 * (the keys), examples/train_report.c (what is printed and logged). */
#include "array/dt_kernels.h"
#include "checkpoint/dt_safetensors.h"
#include "examples/train_checkpoint.h"
#include "examples/train_report.h"

#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

/* The loss on other data, if it is due after this step. */
static dt_status evaluate(const train_config *c, train_session *s, train_report *r, double *loss,
                          bool *evaluated)
{
    *evaluated = c->eval_every > 0 && (s->step % c->eval_every == 0 || s->step == c->steps);
    if (!*evaluated)
        return DT_OK;
    const double since_s = train_report_now();
    DT_TRY(train_session_eval(s, loss));
    train_report_skip(r, since_s);
    return DT_OK;
}

static dt_status loop(const train_config *c, train_session *s, train_report *r, train_saver *saver)
{
    DT_TRY(train_saver_open(c, s, saver));
    DT_TRY(train_report_open(c, s, r));
    const bool norms = c->log_params || c->log_layers > 0;
    train_result result = {.param_grad_norm = norms ? r->grad_norm : NULL};
    bool stop = false;
    while (s->step < c->steps && !stop) {
        double eval_loss = 0;
        bool evaluated = false;
        dt_world_reset_counts(s->world);
        dt_heap_reset_peaks(dt_mesh_heap(s->mesh));
        r->first_event = train_timeline_begin(c, s);
        DT_TRY(train_session_step(s, &result));
        DT_TRY(evaluate(c, s, r, &eval_loss, &evaluated));
        DT_TRY(train_report_step(c, s, &result, evaluated ? &eval_loss : NULL, r));
        DT_TRY(train_saver_step(c, s, saver, &stop));
        r->window_s += saver->spent_s;
    }
    DT_TRY(train_saver_finish(saver));
    DT_TRY(train_report_finish(c, s, r));
    if (c->model_save && !stop)
        DT_TRY(dt_module_save(s->model, s->world, c->model_save, c->model_config));
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
    train_report r = {0};
    train_saver saver = {0};
    dt_trace *trace = NULL;
    DT_TRY(train_report_check(c, world));
    if (c->log_trace || c->log_timeline)
        DT_TRY(dt_trace_create(&trace));
    dt_world_set_trace(world, trace);
    dt_status st = train_session_create(c, world, &s);
    if (st == DT_OK)
        st = loop(c, &s, &r, &saver);
    train_saver_close(&saver);
    train_report_close(&r);
    train_session_destroy(&s);
    dt_world_set_trace(world, NULL);
    dt_trace_destroy(&trace);
    return st;
}

static dt_status train_threads(const dt_world *world, train_config *c)
{
    DT_REQUIRE(dt_world_size(world) == 1, DT_ERR_ARG,
               "ranks=%d makes ranks as threads, but %d were launched as processes; leave one out",
               c->ranks, dt_world_size(world));
    DT_TRY(dt_world_run_threads(c->ranks, NULL, train, c));
    return DT_OK;
}

int main(int argc, char **argv)
{
    dt_world *world = NULL;
    train_config config = {0};
    bool done = false;
    (void)signal(SIGXFSZ, SIG_IGN); /* beyond a limit on file sizes writes fail, and say so */
    DT_MUST(dt_world_create(NULL, &world)); /* first: then what fails on all ranks is told once */
    FILE *out = dt_world_rank(world) == 0 ? stdout : NULL;
    DT_MUST(dt_world_agree_sync(world, train_config_parse(argc, argv, out, &config, &done)));
    if (!done)
        DT_MUST(config.ranks > 0 ? train_threads(world, &config) : train(world, &config));
    DT_MUST(dt_world_agree_sync(world, out ? train_report_flush() : DT_OK));
    train_config_free(&config);
    dt_world_destroy(&world);
    return EXIT_SUCCESS;
}
