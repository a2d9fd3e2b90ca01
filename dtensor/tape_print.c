/* dtensor/tape_print.c - what a tape holds: bytes saved for backward; a line a node; an op's line
 * of DT_EXPLAIN. */
#include "dtensor/tape_internal.h"

#include <stdio.h>
#include <stdlib.h>

typedef void (*visitor)(const dt_array *a, void *arg);

static void each(const dt_array *a, int n, visitor see, void *arg)
{
    for (int i = 0; a && i < n; i++) {
        if (a[i].storage)
            see(&a[i], arg);
    }
}

/* Every array that the node holds; also those of a second run, which a split walk keeps between its
 * halves. */
static void each_saved(const dti_node *n, visitor see, void *arg)
{
    each(n->saved_in, n->nin, see, arg);
    each(n->saved_out, n->nout, see, arg);
    each(n->extra, DT_OP_MAX_EXTRA, see, arg);
    if (!n->again)
        return;
    for (int64_t i = 0; i < n->again->kept.n; i++) {
        each(&n->again->kept.result[i].out, 1, see, arg);
        each(n->again->kept.result[i].extra, DT_OP_MAX_EXTRA, see, arg);
    }
    const dt_tape *second = n->again->tape;
    for (int64_t i = 0; second && i < second->nnodes; i++)
        each_saved(second->node[i], see, arg);
}

/* ---- bytes, each storage once ---- */

typedef struct storages {
    const dt_storage **list; /* NULL: only count */
    int64_t n;
} storages;

static void add_storage(const dt_array *a, void *arg)
{
    storages *s = arg;
    if (a->storage->tag == DT_TAG_PARAMETER)
        return;
    if (s->list)
        s->list[s->n] = a->storage;
    s->n++;
}

static void collect(const dt_tape *t, storages *s)
{
    s->n = 0;
    for (int64_t i = 0; i < t->nnodes; i++)
        each_saved(t->node[i], add_storage, s);
}

static int by_address(const void *a, const void *b)
{
    const uintptr_t x = (uintptr_t) * (const dt_storage *const *)a,
                    y = (uintptr_t) * (const dt_storage *const *)b;
    return x < y ? -1 : x > y;
}

int64_t dt_tape_saved_bytes(const dt_tape *t)
{
    storages s = {0};
    int64_t bytes = 0;
    collect(t, &s);
    s.list = calloc((size_t)s.n + 1, sizeof *s.list);
    if (!s.list)
        return -1;
    collect(t, &s);
    qsort(s.list, (size_t)s.n, sizeof *s.list, by_address);
    for (int64_t i = 0; i < s.n; i++)
        bytes += i > 0 && s.list[i] == s.list[i - 1] ? 0 : (int64_t)s.list[i]->bytes;
    free(s.list);
    return bytes;
}

/* ---- lines ---- */

static void add_bytes(const dt_array *a, void *arg)
{
    *(int64_t *)arg += (int64_t)dt_array_bytes(a);
}

void dt_tape_print(const dt_tape *t, void (*print)(void *arg, const char *line), void *arg)
{
    char line[2000], text[DT_LAYOUT_TEXT];
    for (int64_t i = 0; i < t->nnodes; i++) {
        const dti_node *n = t->node[i];
        int64_t bytes = 0;
        each_saved(n, add_bytes, &bytes);
        size_t used = (size_t)snprintf(line, sizeof line, "%4lld %-16s", (long long)i, n->name);
        for (int k = 0; k < n->nin + n->nout && used < sizeof line; k++) {
            const dt_tensor *x = k < n->nin ? n->in[k] : n->out[k - n->nin];
            used +=
                (size_t)snprintf(line + used, sizeof line - used, " %s%s", k == n->nin ? "-> " : "",
                                 x ? dt_layout_print(x->layout, text, sizeof text) : "-");
        }
        if (used < sizeof line)
            (void)snprintf(line + used, sizeof line - used, "  %s  saves %lld B", n->path,
                           (long long)bytes);
        print(arg, line);
    }
}

void dti_explain(const dt_world *world, const dt_op_call *c, const char *name)
{
    char speaker[24], text[DT_LAYOUT_TEXT],
        line[(DT_OP_MAX_IN + DT_OP_MAX_OUT) * DT_LAYOUT_TEXT] = "";
    size_t used = 0;
    for (int i = 0; i < c->nin; i++)
        used += (size_t)snprintf(
            line + used, sizeof line - used, " %s",
            c->in_layout[i] ? dt_layout_print(c->in_layout[i], text, sizeof text) : "-");
    for (int j = 0; j < c->nout; j++)
        used += (size_t)snprintf(line + used, sizeof line - used, "%s%s", j ? " " : " -> ",
                                 dt_layout_print(c->out_layout[j], text, sizeof text));
    (void)fprintf(stderr, "%sop %-16s%s  %s  %s\n", dt_world_speaker(world, speaker), name, line,
                  c->path, c->where);
}
