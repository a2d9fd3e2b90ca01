/* examples/train_report.c - see examples/train_report.h. */
#include "examples/train_report.h"

#include "base/dt_json.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

double train_report_now(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* ---- before the run ---- */

static dt_status try_file(const char *key, const char *path, const char *shown)
{
    const bool existed = access(path, F_OK) == 0;
    FILE *f = fopen(path, "ae");
    DT_REQUIRE(f, DT_ERR_IO, "%s=%s cannot be written: %s", key, shown, strerror(errno));
    (void)fclose(f);
    if (!existed)
        (void)unlink(path);
    return DT_OK;
}

/* `path` is that of `key`, or a parent of it. */
static dt_status try_below(const char *key, const char *path, const char *shown)
{
    if (mkdir(path, 0777) == 0) {
        (void)rmdir(path);
        return DT_OK;
    }
    DT_REQUIRE(errno == EEXIST, DT_ERR_IO, "%s=%s cannot be made: %s", key, shown, strerror(errno));
    char *inside = NULL;
    DT_REQUIRE(asprintf(&inside, "%s/.try-%ld", path, (long)getpid()) > 0, DT_ERR_NOMEM, "%s",
               path);
    const dt_status st = try_file(key, inside, shown);
    free(inside);
    return st;
}

/* parents: those that are not there will be made too. */
static dt_status try_folder(const char *key, const char *path, bool parents)
{
    char *at = strdup(path);
    DT_REQUIRE(at, DT_ERR_NOMEM, "%s", path);
    for (char *slash = strrchr(at, '/'); parents && slash && slash > at; slash = strrchr(at, '/')) {
        *slash = '\0';
        if (access(at, F_OK) == 0) {
            *slash = '/';
            break;
        }
    }
    const dt_status st = try_below(key, at, path);
    free(at);
    return st;
}

/* By device and inode, whatever the names; devices such as /dev/null have nothing to lose. */
static bool same_file(const char *a, const char *b)
{
    struct stat x, y;
    return a && b && stat(a, &x) == 0 && stat(b, &y) == 0 && S_ISREG(x.st_mode) &&
           x.st_dev == y.st_dev && x.st_ino == y.st_ino;
}

static bool in_folder(const char *file, const char *folder)
{
    char *at = strdup(file);
    if (!at)
        return true;
    char *slash = strrchr(at, '/');
    struct stat x, y;
    if (slash)
        slash[slash == at] = '\0';
    const bool same = stat(slash ? at : ".", &x) == 0 && stat(folder, &y) == 0 &&
                      x.st_dev == y.st_dev && x.st_ino == y.st_ino;
    free(at);
    return same;
}

static dt_status try_all(const train_config *c)
{
    const struct {
        const char *key, *path;
    } file[] = {{"log.json", c->log_json},         {"log.plot", c->log_plot},
                {"log.trace", c->log_trace},       {"log.timeline", c->log_timeline},
                {"model.config", c->model_config}, {"model.init", c->model_init}};
    enum { WRITTEN = 4 };
    for (int i = 0; i < WRITTEN; i++)
        for (int k = i + 1; k < DT_COUNT(file); k++)
            DT_REQUIRE(!same_file(file[i].path, file[k].path), DT_ERR_ARG,
                       "%s=%s is the file of %s, which it would overwrite; give another",
                       file[i].key, file[i].path, file[k].key);
    for (int i = 0; i < WRITTEN && c->model_init; i++)
        DT_REQUIRE(!file[i].path || !in_folder(file[i].path, c->model_init), DT_ERR_ARG,
                   "%s=%s is in the folder of model.init, of whose files it could overwrite one; "
                   "give another",
                   file[i].key, file[i].path);
    for (int i = 0; i < WRITTEN; i++)
        if (file[i].path)
            DT_TRY(try_file(file[i].key, file[i].path, file[i].path));
    if (c->model_save)
        DT_TRY(try_folder("model.save", c->model_save, true));
    if (c->offload_dir)
        DT_TRY(try_folder("offload.dir", c->offload_dir, false));
    if (c->log_tensorboard)
        DT_TRY(try_folder("log.tensorboard", c->log_tensorboard, false));
    if (c->checkpoint_dir)
        DT_TRY(try_folder("checkpoint.dir", c->checkpoint_dir, true));
    return DT_OK;
}

dt_status train_report_check(const train_config *c, dt_world *world)
{
    DT_TRY(dt_world_agree_sync(world, dt_world_rank(world) == 0 ? try_all(c) : DT_OK));
    return DT_OK;
}

/* The data's files are known when they are open. */
static dt_status check_data(const train_config *c, const train_session *s)
{
    const struct {
        const char *key, *path;
    } file[] = {{"log.json", c->log_json},
                {"log.plot", c->log_plot},
                {"log.trace", c->log_trace},
                {"log.timeline", c->log_timeline}};
    for (int i = 0; i < DT_COUNT(file); i++) {
        const char *path = file[i].path;
        DT_REQUIRE(!path || !(dt_dataset_has_file(s->data, path) ||
                              (s->eval_data && dt_dataset_has_file(s->eval_data, path))),
                   DT_ERR_ARG,
                   "%s=%s is a file of the data, which it would overwrite; give another",
                   file[i].key, path);
    }
    return DT_OK;
}

/* A run that goes on adds to the log of the one before, of which later steps are dropped. */
static dt_status open_log(const char *path, int64_t step, dt_metrics_log **log_out)
{
    FILE *f = step > 0 ? fopen(path, "r+e") : NULL;
    char *line = NULL;
    size_t size = 0;
    off_t end = 0;
    dt_status st = DT_OK;
    while (f && getline(&line, &size, f) > 0 && strchr(line, '\n')) {
        json_t *one = json_loads(line, 0, NULL);
        const json_int_t at = json_integer_value(json_object_get(one, "step"));
        json_decref(one);
        if (at > step)
            break;
        end = ftello(f);
    }
    free(line);
    if (f && ftruncate(fileno(f), end) != 0)
        st = DT_ERROR(DT_ERR_IO, "%s: %s", path, strerror(errno));
    if (f)
        (void)fclose(f);
    DT_TRY(st);
    DT_TRY(dt_metrics_log_open(path, step > 0, log_out));
    return DT_OK;
}

dt_status train_report_open(const train_config *c, train_session *s, train_report *r)
{
    const int n = s->nparams;
    r->writes = dt_world_rank(s->world) == 0;
    r->first = s->step;
    r->tokens = s->step * c->global_batch * c->seq_len;
    DT_TRY(dt_world_agree_sync(s->world, r->writes ? check_data(c, s) : DT_OK));
    DT_TRY(dt_world_agree_sync(s->world, r->writes && c->log_json
                                             ? open_log(c->log_json, s->step, &r->json)
                                             : DT_OK));
    DT_TRY(dt_world_agree_sync(s->world, r->writes ? train_watch_open(c, &r->watch) : DT_OK));
    r->flops = (dt_flops){s->matmul_params, s->facts.layers, s->facts.heads, s->facts.head_dim,
                          c->seq_len};
    DT_TRY(dt_peak_flops_sync(dt_world_comm(s->world), c->peak_flops, &r->peak_flops));
    r->loss = calloc((size_t)c->steps, sizeof *r->loss);
    r->step = calloc((size_t)c->steps, sizeof *r->step);
    r->grad_norm = calloc((size_t)n, sizeof *r->grad_norm);
    r->norm = calloc((size_t)n, sizeof *r->norm);
    DT_REQUIRE(r->loss && r->step && r->grad_norm && r->norm, DT_ERR_NOMEM,
               "the losses of train.steps=%lld steps", (long long)c->steps);
    if (r->writes) {
        char text[DT_FLOPS_TEXT], mesh[DT_MESH_TEXT];
        (void)printf("%s, %lld parameters, on %s\n%s\n", s->facts.architecture,
                     (long long)s->elements, dt_mesh_print(s->whole, mesh, sizeof mesh),
                     dt_flops_print(&r->flops, r->peak_flops, text, sizeof text));
    }
    if (c->log_plan)
        DT_TRY(dt_world_agree_sync(
            s->world, r->writes ? train_plan_print(c, dt_world_size(s->world)) : DT_OK));
    r->started_s = r->window_s = train_report_now();
    return DT_OK;
}

void train_report_close(train_report *r)
{
    dt_metrics_log_close(&r->json);
    train_watch_close(&r->watch);
    free(r->loss);
    free(r->step);
    free(r->grad_norm);
    free(r->norm);
}

void train_report_skip(train_report *r, double since_s)
{
    r->window_s += train_report_now() - since_s;
}

/* ---- a step ---- */

/* FLOPs that ran in the first step, beside those of the formula. Collective. */
static dt_status count_flops(const train_session *s, train_report *r, int64_t tokens)
{
    double ran[2] = {s->tally.flops, s->tally.flops_again};
    DT_TRY(dt_all_reduce_f64_sync(dt_world_comm(s->world), ran, 2, DT_REDUCE_SUM));
    r->hardware = ran[0] > 0 ? (ran[0] + ran[1]) / ran[0] : 1;
    if (r->writes)
        (void)printf("FLOP/token: %.6g by the formula, %.6g counted, %.6g with what ran twice\n",
                     dt_flops_per_token(&r->flops), ran[0] / (double)tokens,
                     (ran[0] + ran[1]) / (double)tokens);
    return DT_OK;
}

/* The rank that needed most memory, and norms of weights after the update. Collective. */
static dt_status measure(const train_config *c, train_session *s, train_report *r,
                         int64_t *peak_bytes)
{
    *peak_bytes = dt_heap_get_stats(dt_mesh_heap(s->mesh)).peak_total;
    DT_TRY(dt_all_reduce_i64_sync(dt_world_comm(s->world), peak_bytes, 1, DT_REDUCE_MAX));
    if (!c->log_params)
        return DT_OK;
    const int n = s->nparams;
    dt_local *weights = calloc((size_t)n, sizeof *weights);
    DT_REQUIRE(weights, DT_ERR_NOMEM, "%d weights", n);
    for (int i = 0; i < n; i++)
        if (s->param[i].here) /* borrowed */
            weights[i] =
                (dt_local){s->param[i].here->layout, *dt_tensor_local(s->param[i].here->tensor)};
    double all = 0;
    const dt_status st = dt_global_norm_sync(n, weights, dt_world_comm(s->world), &all, r->norm);
    free(weights);
    return st;
}

static dt_status write_json(const train_config *c, train_session *s, train_report *r,
                            const dt_metrics *m)
{
    const int n = s->nparams;
    dt_param_metrics *each = calloc((size_t)n, sizeof *each);
    DT_REQUIRE(each, DT_ERR_NOMEM, "%d norms", n);
    for (int i = 0; i < n; i++)
        each[i] = (dt_param_metrics){s->param[i].name, r->grad_norm[i], r->norm[i]};
    const dt_status st = dt_metrics_log_step(r->json, m, c->log_params ? n : 0, each);
    free(each);
    return st;
}

/* A line that is written over until it is one of those to keep. skipped_for: the loss scale that a
 * skipped step left; 0: it was not skipped. */
static void print_step(const train_config *c, const dt_metrics *m, double skipped_for,
                       train_report *r)
{
    char line[DT_METRICS_LINE];
    const char *terminal = getenv("TERM");
    const bool live = isatty(STDOUT_FILENO) && terminal && strcmp(terminal, "dumb") != 0;
    struct winsize size = {0};
    if (live)
        (void)ioctl(STDOUT_FILENO, TIOCGWINSZ, &size);
    const int columns = size.ws_col > 1 ? size.ws_col - 1 : 0;
    const bool keep =
        m->step % c->log_every == 0 || m->step == c->steps || m->step == 1 || m->evaluated;
    if (skipped_for > 0)
        (void)printf("%sstep %lld was skipped: a gradient overflowed; the loss scale is now %g\n",
                     live ? "\r\033[K" : "", (long long)m->step, skipped_for);
    if (live || keep)
        (void)printf("%s%s%s", live ? "\r\033[K" : "",
                     dt_metrics_line(m, columns, line, sizeof line), keep ? "\n" : "");
    (void)fflush(stdout);
    if (keep) {
        r->window_s = train_report_now();
        r->window_tokens = 0;
    }
}

dt_status train_report_step(const train_config *c, train_session *s, const train_result *result,
                            const double *eval_loss, train_report *r)
{
    r->tokens += result->tokens;
    r->window_tokens += result->tokens;
    const double now_s = train_report_now(), window_s = now_s - r->window_s;
    dt_metrics m = {.step = s->step,
                    .steps = c->steps,
                    .loss = result->loss,
                    .grad_norm = result->grad_norm,
                    .lr = result->lr,
                    .tokens = r->tokens,
                    .evaluated = eval_loss != NULL,
                    .eval_loss = eval_loss ? *eval_loss : 0,
                    .comm_bytes = dt_world_counts(s->world).total_bytes,
                    .left_s = dt_metrics_left(s->step - r->first, c->steps - r->first,
                                              now_s - r->started_s)};
    DT_TRY(measure(c, s, r, &m.memory_peak_bytes));
    if (r->hardware <= 0)
        DT_TRY(count_flops(s, r, result->tokens));
    m.tokens_per_s = (double)r->window_tokens / (window_s > 0 ? window_s : 1);
    const double rate = dt_flops_per_token(&r->flops) * m.tokens_per_s;
    if (c->peak_flops <= 0 && rate > r->peak_flops) /* it was measured while others were busy */
        r->peak_flops = rate;
    m.mfu = dt_flops_mfu(&r->flops, m.tokens_per_s, r->peak_flops);
    m.hfu = m.mfu * r->hardware;
    r->step[r->points] = (double)s->step;
    r->loss[r->points++] = result->loss;
    dt_status st = r->json ? write_json(c, s, r, &m) : DT_OK;
    if (r->writes)
        print_step(c, &m, result->skipped ? s->scaler.scale : 0, r);
    if (r->writes && st == DT_OK)
        st = train_watch_step(c, s, &m, r->grad_norm, &r->watch);
    DT_TRY(dt_world_agree_sync(s->world, st)); /* a full disk ends all ranks */
    return DT_OK;
}

/* ---- the end ---- */

dt_status train_report_flush(void)
{
    DT_REQUIRE(fflush(stdout) == 0 && !ferror(stdout), DT_ERR_IO,
               "standard output could not be written; lines of it are lost");
    return DT_OK;
}

static void print_line(void *arg, const char *line)
{
    (void)arg;
    (void)printf("%s\n", line);
}

dt_status train_report_finish(const train_config *c, train_session *s, train_report *r)
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
    if (c->log_timeline && r->points > 0)
        DT_TRY(train_timeline_draw(c, s, r->first_event));
    return DT_OK;
}
