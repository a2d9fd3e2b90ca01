/* tp/print.c - shows what a parallelized module will do, by running it once on a meta mesh:
 * placements from hooks, collectives from the trace, whose labels begin with module paths.
 * Read first: tp/dt_tp.h. */
#include "tp/tp_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct tally {
    int64_t calls[DT_NCALLS], bytes[DT_NCALLS];
} tally;

/* A module: what its forward saw and gave, and what its borders cost. */
typedef struct line {
    dt_module *m;
    const dt_layout *in, *out; /* of the first tensor; NULL: did not run */
    dt_tensor *input;
    bool partial; /* the gradient of its input stayed P */
    tally forward, backward;
} line;

typedef struct report {
    line *line;
    int64_t n, capacity;
    struct watch **watch; /* the hooks' arguments, to cut off when done */
    tally once;
    void (*print)(void *arg, const char *line);
    void *arg;
} report;

typedef struct watch {
    report *r; /* NULL: done */
    int64_t i;
} watch;

/* ---- hooks ---- */

static dt_status reached(dt_tape *t, void *arg, dt_walk walk)
{
    (void)t;
    (void)walk;
    line *l = arg;
    const dt_local *g = dt_tensor_grad(l->input);
    l->partial = g->array.storage && g->layout->partial;
    return DT_OK;
}

static dt_values before(dt_module *m, dt_tape *t, const dt_values *values, void *arg)
{
    const watch *w = arg;
    line *l = w->r ? &w->r->line[w->i] : NULL;
    if (!l || values->n == 0 || !values->value[0] || dt_tensor_is_failed(values->value[0]))
        return *values;
    l->input = values->value[0];
    l->in = dt_tensor_layout(l->input);
    if (strcmp(dt_module_kind_name(m), "block") == 0)
        (void)dt_tape_mark_end(t, reached, l, 1, &l->input);
    return *values;
}

static dt_values after(dt_module *m, dt_tape *t, const dt_values *values, void *arg)
{
    const watch *w = arg;
    (void)m;
    (void)t;
    if (w->r && values->n > 0 && values->value[0] && !dt_tensor_is_failed(values->value[0]))
        w->r->line[w->i].out = dt_tensor_layout(values->value[0]);
    return *values;
}

static dt_status collect(report *r, dt_module *m)
{
    DT_TRY(dt_grow((void **)&r->line, &r->capacity, r->n + 1, sizeof *r->line));
    r->line[r->n++] = (line){.m = m};
    for (int i = 0; i < dt_module_nchildren(m); i++)
        DT_TRY(collect(r, dt_module_child(m, i)));
    return DT_OK;
}

static dt_status watch_all(report *r)
{
    r->watch = calloc((size_t)r->n, sizeof *r->watch);
    DT_REQUIRE(r->watch, DT_ERR_NOMEM, "%lld hooks", (long long)r->n);
    for (int64_t i = 0; i < r->n; i++) {
        watch *w = calloc(1, sizeof *w);
        DT_REQUIRE(w, DT_ERR_NOMEM, "a hook");
        *w = (watch){r, i};
        const dt_status st = dt_module_add_transform(r->line[i].m, before, after, w, free);
        if (st != DT_OK) {
            free(w);
            return dt_error_push(st, __FILE__, __LINE__, __func__);
        }
        r->watch[i] = w;
    }
    return DT_OK;
}

/* ---- running ---- */

/* Is it the module of a label "path", "path at file:line", "path, what"? */
static bool names(const char *label, const char *path)
{
    const size_t length = strlen(path);
    const char *rest = label + length;
    return length > 0 && strncmp(label, path, length) == 0 &&
           (!*rest || *rest == ',' || strncmp(rest, " at ", 4) == 0);
}

typedef enum phase { FORWARD, BACKWARD, GRADIENTS } phase;

/* Give the collectives recorded so far to the modules that their labels name, else to the root. */
static void tally_events(report *r, dt_trace *trace, phase now)
{
    int64_t n = 0;
    const dt_trace_event *e = dt_trace_events(trace, &n);
    for (int64_t k = 0; k < n; k++) {
        if (strcmp(e[k].kind, "issue") != 0)
            continue;
        for (int call = 0; call < DT_NCALLS; call++) {
            const size_t length = strlen(dt_call_name((dt_call)call));
            if (strncmp(e[k].name, dt_call_name((dt_call)call), length) != 0 ||
                e[k].name[length] != ' ')
                continue;
            line *l = &r->line[0];
            bool named = false;
            for (int64_t i = 1; i < r->n && !named; i++) {
                named = names(e[k].name + length + 1, dt_module_path(r->line[i].m));
                l = named ? &r->line[i] : l;
            }
            tally *to = now == FORWARD             ? &l->forward
                        : now == BACKWARD || named ? &l->backward
                                                   : &r->once;
            to->calls[call]++;
            to->bytes[call] += e[k].bytes;
        }
    }
    dt_trace_clear(trace);
}

/* Gradients for all outputs, placed as their duals. */
static dt_status backward(dt_tape *t, const dt_values *out)
{
    dt_local grad[DT_MAX_VALUES] = {0};
    dt_tensor *output[DT_MAX_VALUES];
    dt_status st = DT_OK;
    int n = 0;
    for (int i = 0; i < out->n; i++) {
        if (!out->value[i] || !dt_tensor_requires_grad(out->value[i]))
            continue;
        output[n] = out->value[i];
        const dt_layout dual = dt_layout_dual(dt_tensor_layout(output[n]));
        dt_mesh *mesh = dt_tensor_mesh(output[n]);
        DT_TRY_TO(done, st, dt_mesh_layout(mesh, &dual, &grad[n].layout));
        DT_TRY_TO(done, st,
                  dt_array_create(dt_mesh_heap(mesh), dt_tensor_dtype(output[n]),
                                  dt_mesh_local(grad[n].layout, NULL), DT_TAG_GRADIENT,
                                  &grad[n].array));
        n++;
    }
    if (n > 0)
        st = dt_backward_from(t, n, output, grad);
done:
    for (int i = 0; i < DT_MAX_VALUES; i++)
        dt_array_release(&grad[i].array);
    return st;
}

static dt_status run(report *r, dt_module *m, dt_tape *t, dt_trace *trace, const dt_values *in)
{
    const dt_values out = dt_module_call(m, t, in);
    DT_TRY(dt_tape_status(t));
    tally_events(r, trace, FORWARD);
    DT_TRY(backward(t, &out));
    tally_events(r, trace, BACKWARD);
    DT_TRY(dt_module_reduce_grads(m));
    tally_events(r, trace, GRADIENTS);
    dt_module_clear_grads(m);
    return DT_OK;
}

/* ---- printing ---- */

enum { TEXT = 1200 };

static void add_tally(char *text, const char *when, const tally *t)
{
    for (int call = 0; call < DT_NCALLS; call++) {
        if (t->calls[call])
            (void)snprintf(text + strlen(text), TEXT - strlen(text), "; %s %lld %s%s, %lld B", when,
                           (long long)t->calls[call], dt_call_name((dt_call)call),
                           t->calls[call] > 1 ? "s" : "", (long long)t->bytes[call]);
    }
}

static void print_line(const report *r, const line *l)
{
    static const char *const name[] = {"weight", "bias"};
    char text[TEXT], layout[DT_LAYOUT_TEXT], shape[DT_SHAPE_TEXT];
    (void)snprintf(text, sizeof text, "%s (%s)", *dt_module_path(l->m) ? dt_module_path(l->m) : ".",
                   dt_module_kind_name(l->m));
    for (int i = 0; i < DT_COUNT(name); i++) {
        const dt_param *p = dt_module_param(l->m, name[i]);
        if (p)
            (void)snprintf(text + strlen(text), TEXT - strlen(text), "; %s %s %s", name[i],
                           dt_shape_print(p->shape, shape, sizeof shape),
                           dt_layout_print(p->layout, layout, sizeof layout));
    }
    if (l->in)
        (void)snprintf(text + strlen(text), TEXT - strlen(text), "; %s %s ->",
                       dt_shape_print(l->in->shape, shape, sizeof shape),
                       dt_layout_print(l->in, layout, sizeof layout));
    if (l->out)
        (void)snprintf(text + strlen(text), TEXT - strlen(text), " %s %s",
                       dt_shape_print(l->out->shape, shape, sizeof shape),
                       dt_layout_print(l->out, layout, sizeof layout));
    add_tally(text, "forward", &l->forward);
    add_tally(text, "backward", &l->backward);
    r->print(r->arg, text);
}

static void print_report(const report *r, const dt_values *in)
{
    char text[TEXT] = "gradients, once a step";
    for (int64_t i = 0; i < r->n; i++) {
        const line *l = &r->line[i];
        if (l->in)
            print_line(r, l);
        bool partial = l->partial;
        for (int k = 0; i == 0 && k < in->n; k++) { /* the root's inputs are leaves */
            const dt_local *g = in->value[k] ? dt_tensor_grad(in->value[k]) : NULL;
            partial = partial || (g && g->array.storage && g->layout->partial);
        }
        if (!partial)
            continue;
        char warning[TEXT];
        (void)snprintf(
            warning, sizeof warning,
            "! the gradient of the input of '%s' stays P: an `in` row is missing in it or after it",
            dt_module_path(l->m));
        r->print(r->arg, warning);
    }
    add_tally(text, "in all", &r->once);
    r->print(r->arg, text);
}

dt_status dt_tp_print(dt_module *m, dt_mesh *mesh, const dt_values *in,
                      void (*print)(void *arg, const char *line), void *arg)
{
    report r = {.print = print, .arg = arg};
    dt_tape *t = NULL;
    dt_trace *trace = NULL, *old = dt_world_trace(dt_mesh_world(mesh));
    dt_status st = DT_OK;
    DT_REQUIRE(dt_mesh_device(mesh).kind == DT_META, DT_ERR_ARG,
               "a plan is printed from a meta mesh, where nothing is computed");
    DT_TRY_TO(done, st, collect(&r, m));
    DT_TRY_TO(done, st, watch_all(&r));
    DT_TRY_TO(done, st, dt_trace_create(&trace));
    DT_TRY_TO(done, st, dt_tape_create(mesh, NULL, &t));
    dt_world_set_trace(dt_mesh_world(mesh), trace);
    DT_TRY_TO(done, st, run(&r, m, t, trace, in));
    print_report(&r, in);
done:
    dt_world_set_trace(dt_mesh_world(mesh), old);
    dt_tape_destroy(&t);
    dt_trace_destroy(&trace);
    for (int64_t i = 0; r.watch && i < r.n; i++) {
        if (r.watch[i])
            r.watch[i]->r = NULL;
    }
    free(r.watch);
    free(r.line);
    return st;
}
