/* examples/train_watch.c - what a training run looks out for: numbers that are not finite, losses
 * that jump; norms of gradients by layer; and scalars for TensorBoard. Read first:
 * examples/train_session.c, examples/train_report.c. */
#include "examples/train_watch.h"
#include "examples/train_pipeline.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- not finite ---- */

/* Has this rank found what comes first of all in the order of dt_tally? *none_out: nobody has found
 * anything. Collective. */
static dt_status is_first(train_session *s, bool *mine_out, bool *none_out)
{
    const dt_tally *y = &s->tally;
    const int64_t key[] = {y->bad_at == 0,  y->bad_sample,
                           y->bad_backward, y->bad_backward ? -y->bad_stage : y->bad_stage,
                           y->bad_at,       dt_world_rank(s->world)};
    *mine_out = true;
    for (int k = 0; k < DT_COUNT(key); k++) {
        int64_t least = *mine_out ? key[k] : INT64_MAX;
        DT_TRY(dt_all_reduce_i64_sync(dt_world_comm(s->world), &least, 1, DT_REDUCE_MIN));
        *mine_out = *mine_out && key[k] == least;
        *none_out = k == 0 ? least != 0 : *none_out;
    }
    return DT_OK;
}

/* The first parameter whose gradient is not finite; NULL: there is none. Collective. */
static dt_status bad_parameter(train_session *s, const char **name_out)
{
    train_result r = {.param_grad_norm = calloc((size_t)s->nparams, sizeof(double))};
    DT_REQUIRE(r.param_grad_norm, DT_ERR_NOMEM, "%d norms", s->nparams);
    const dt_status st = train_gradient_norm(s, &r);
    *name_out = NULL;
    for (int i = 0; st == DT_OK && i < s->nparams && !*name_out; i++)
        *name_out = isfinite(r.param_grad_norm[i]) ? NULL : s->param[i].name;
    free(r.param_grad_norm);
    return st;
}

dt_status train_find_bad(train_session *s, const train_result *r)
{
    const char *name = NULL;
    bool mine = false, none = false;
    double loss = 0;
    int64_t valid = 0;
    DT_TRY(bad_parameter(s, &name));
    dt_module_clear_grads(s->model);
    s->tally = (dt_tally){.watch = true};
    DT_TRY(train_passes(s, (train_place){s->data, s->position}, false, &loss, &valid));
    DT_TRY(is_first(s, &mine, &none));
    if (!mine)
        return dt_world_agree_sync(s->world, DT_OK);
    const dt_status st = DT_ERROR(
        DT_ERR_STATE,
        "step %lld: loss %g, gradient norm %g; nothing was updated.\n  first not finite: %s%s%s; "
        "on rank %d, in microbatch %lld",
        (long long)s->step + 1, r->loss, r->grad_norm,
        none ? "nothing when the step was done again" : s->tally.bad,
        name ? "; first parameter with such a gradient: " : "", name ? name : "",
        dt_world_rank(s->world),
        (long long)(s->tally.bad_sample / train_microbatch(s->config)));
    return dt_world_agree_sync(s->world, st);
}

/* ---- norms by layer ---- */

/* "model.layers.3" of "model.layers.3.mlp.up_proj.weight"; else what comes before the last dot. */
static int layer_length(const char *name)
{
    const char *end = strrchr(name, '.');
    for (const char *p = strchr(name, '.'); p; p = strchr(p + 1, '.'))
        if (p[1] >= '0' && p[1] <= '9')
            return (int)(p + 1 - name) + (int)strspn(p + 1, "0123456789");
    return end ? (int)(end - name) : (int)strlen(name);
}

int train_layers(const train_session *s, const double *grad_norm, train_layer *layer)
{
    int n = 0;
    for (int i = 0; i < s->nparams; i++) {
        const char *name = s->param[i].name;
        const int length = layer_length(name);
        int k = 0;
        while (k < n && (layer[k].length != length ||
                         strncmp(layer[k].name, name, (size_t)length) != 0))
            k++;
        if (k == n)
            layer[n++] = (train_layer){name, length, 0};
        layer[k].grad_norm += grad_norm[i] * grad_norm[i];
    }
    for (int k = 0; k < n; k++)
        layer[k].grad_norm = sqrt(layer[k].grad_norm);
    return n;
}

/* ---- a step ---- */

static void print_layers(int n, const train_layer *layer)
{
    for (int k = 0; k < n; k++)
        (void)printf("  gradient %-10.4g %.*s\n", layer[k].grad_norm, layer[k].length,
                     layer[k].name);
}

static dt_status write_events(dt_events *events, const dt_metrics *m, int n,
                              const train_layer *layer)
{
    enum { PLAIN = 9, TAG = 96 };
    const char *const name[PLAIN] = {
        "loss", "grad_norm",         "lr",         "tokens_per_s", "mfu",
        "hfu",  "memory_peak_bytes", "comm_bytes", "eval_loss"};
    const double value[PLAIN] = {m->loss,
                                 m->grad_norm,
                                 m->lr,
                                 m->tokens_per_s,
                                 m->mfu,
                                 m->hfu,
                                 (double)m->memory_peak_bytes,
                                 (double)m->comm_bytes,
                                 m->eval_loss};
    const int plain = m->evaluated ? PLAIN : PLAIN - 1;
    DT_TRY(dt_events_scalars(events, m->step, plain, name, value));
    for (int k = 0; k < n; k++) {
        char text[TAG];
        const char *const tag = text;
        (void)snprintf(text, sizeof text, "layer_grad_norm/%.*s", layer[k].length, layer[k].name);
        DT_TRY(dt_events_scalars(events, m->step, 1, &tag, &layer[k].grad_norm));
    }
    return DT_OK;
}

dt_status train_watch_open(const train_config *c, train_watch *w)
{
    if (c->log_tensorboard)
        DT_TRY(dt_events_open(c->log_tensorboard, &w->events));
    return DT_OK;
}

dt_status train_watch_step(const train_config *c, const train_session *s, const dt_metrics *m,
                           const double *grad_norm, train_watch *w)
{
    const double score = dt_spike_score(&w->spike, m->loss);
    const bool due = c->log_layers > 0 && m->step % c->log_layers == 0;
    if (c->log_spike > 0 && score > c->log_spike)
        (void)printf("step %" PRId64 ": a spike: loss %.4f is %.1f standard deviations above the "
                     "mean of the last %d\n",
                     m->step, m->loss, score,
                     (int)(w->spike.n - 1 < DT_SPIKE_WINDOW ? w->spike.n - 1 : DT_SPIKE_WINDOW));
    train_layer *layer = calloc((size_t)s->nparams, sizeof *layer);
    DT_REQUIRE(layer, DT_ERR_NOMEM, "%d norms", s->nparams);
    const int n = due ? train_layers(s, grad_norm, layer) : 0;
    print_layers(n, layer);
    const dt_status st = w->events ? write_events(w->events, m, n, layer) : DT_OK;
    free(layer);
    return st;
}

void train_watch_close(train_watch *w)
{
    dt_events_close(&w->events);
}
