/* metrics/log.c - one JSON object a step. */
#include "base/dt_json.h"
#include "metrics/dt_metrics.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct dt_metrics_log {
    char *path;
    FILE *file;
};

dt_status dt_metrics_log_open(const char *path, bool append, dt_metrics_log **log_out)
{
    dt_metrics_log *log = calloc(1, sizeof *log);
    char *copy = strdup(path);
    FILE *file = log && copy ? fopen(path, append ? "ae" : "we") : NULL;
    if (!file) {
        const int why = errno;
        free(copy);
        free(log);
        return DT_ERROR(DT_ERR_IO, "%s: %s", path, strerror(why));
    }
    *log = (dt_metrics_log){copy, file};
    *log_out = log;
    return DT_OK;
}

void dt_metrics_log_close(dt_metrics_log **log)
{
    if (!*log)
        return;
    (void)fclose((*log)->file); /* every line was flushed */
    free((*log)->path);
    free(*log);
    *log = NULL;
}

/* JSON has no NaN and no infinity. */
static json_t *number(double x)
{
    return isfinite(x) ? json_real(x) : json_null();
}

static json_t *pack_params(int n, const dt_param_metrics *params)
{
    json_t *all = json_object();
    for (int i = 0; i < n; i++) {
        json_t *one = json_pack("{s:o, s:o}", "grad_norm", number(params[i].grad_norm), "norm",
                                number(params[i].norm));
        (void)json_object_set_new(all, params[i].name, one);
    }
    return all;
}

static json_t *pack_step(const dt_metrics *m)
{
    return json_pack("{s:I, s:o, s:o, s:o, s:I, s:o, s:o, s:o, s:I, s:I}", "step",
                     (json_int_t)m->step, "loss", number(m->loss), "grad_norm",
                     number(m->grad_norm), "lr", number(m->lr), "tokens", (json_int_t)m->tokens,
                     "tokens_per_s", number(m->tokens_per_s), "mfu", number(m->mfu), "hfu",
                     number(m->hfu), "memory_peak_bytes", (json_int_t)m->memory_peak_bytes,
                     "comm_bytes", (json_int_t)m->comm_bytes);
}

dt_status dt_metrics_log_step(dt_metrics_log *log, const dt_metrics *m, int nparams,
                              const dt_param_metrics *params)
{
    json_t *step = pack_step(m);
    if (step && m->evaluated)
        (void)json_object_set_new(step, "eval_loss", number(m->eval_loss));
    if (step && nparams > 0)
        (void)json_object_set_new(step, "params", pack_params(nparams, params));
    char *text = step ? json_dumps(step, JSON_COMPACT | JSON_REAL_PRECISION(17)) : NULL;
    json_decref(step);
    DT_REQUIRE(text, DT_ERR_NOMEM, "%s: a line", log->path);
    const bool ok = fprintf(log->file, "%s\n", text) > 0 && fflush(log->file) == 0;
    const int why = errno;
    free(text);
    DT_REQUIRE(ok, DT_ERR_IO, "%s: %s", log->path, strerror(why));
    return DT_OK;
}
