/* nn/split.c - takes a model apart: trees with the same names that hold some of its modules each,
 * and one module that holds several trees. Read first: nn/module.c. Read next: pp/split.c. */
#include "nn/nn_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- moving modules ---- */

static void detach(dt_module *m, int64_t i)
{
    dt_module *child = m->child[i];
    memmove(m->child + i, m->child + i + 1, (size_t)(m->nchildren - i - 1) * sizeof *m->child);
    m->nchildren--;
    child->parent = NULL;
    for (; m; m = m->parent)
        m->nbelow -= child->nbelow;
}

/* A module of the same kind, state, name and path; without children. */
static dt_status shell(const dt_module *m, dt_module **shell_out)
{
    dt_module *s = NULL;
    DT_REQUIRE(m->nslots == 0 && m->ntransforms == 0 && m->nlifetimes == 0, DT_ERR_STATE,
               "module '%s' has parameters or hooks of its own: it cannot be in two stages",
               dt_module_path(m));
    DT_TRY(dt_module_create(m->kind, &s));
    memcpy(s->state, m->state, m->kind->state_bytes);
    s->path = strdup(dt_module_path(m));
    if (!s->path) {
        dt_module_destroy(&s);
        return DT_ERROR(DT_ERR_NOMEM, "a path");
    }
    *shell_out = s;
    return DT_OK;
}

/* Give *child to a parent under its name; it is destroyed if that fails. */
static dt_status hand_over(dt_module *parent, const char *name, dt_module **child)
{
    char *old = (*child)->name;
    (*child)->name = NULL;
    const dt_status st = dt_module_add(parent, name, *child);
    free(old);
    if (st != DT_OK)
        dt_module_destroy(child);
    return st;
}

static dt_status take_children(dt_module *m, dt_module_taker take, void *arg, dt_module *into)
{
    for (int64_t i = 0; i < m->nchildren; i++) {
        dt_module *child = m->child[i];
        char name[DT_NAME_SIZE * 4];
        const dt_take how = take(child, arg);
        if (how == DT_TAKE_NOT)
            continue;
        (void)snprintf(name, sizeof name, "%s", child->name);
        if (how == DT_TAKE_WHOLE)
            detach(m, i--);
        else
            DT_TRY(dt_module_extract(m->child[i], take, arg, &child));
        DT_TRY(hand_over(into, name, &child));
    }
    return DT_OK;
}

dt_status dt_module_extract(dt_module *m, dt_module_taker take, void *arg, dt_module **out)
{
    dt_module *s = NULL;
    DT_TRY(shell(m, &s));
    const dt_status st = take_children(m, take, arg, s);
    if (st != DT_OK) {
        dt_module_destroy(&s);
        return dt_error_push(st, __FILE__, __LINE__, __func__);
    }
    *out = s;
    return DT_OK;
}

/* ---- tied parameters ---- */

static void replace(dt_module *m, dt_param *old, dt_param *by)
{
    for (int64_t i = 0; i < m->nslots; i++) {
        if (m->slot[i].param != old)
            continue;
        m->slot[i].param = by;
        by->users++;
        old->users--;
    }
    for (int64_t i = 0; i < m->nchildren; i++)
        replace(m->child[i], old, by);
}

dt_status dt_module_untie(dt_module *root)
{
    int n = 0;
    dt_param *const *p = dt_module_params(root, &n);
    for (int i = 0; i < n; i++) { /* NOLINT(clang-analyzer-unix.Malloc): slots own `own` */
        dt_param *shared = p[i];
        if (dt_module_holders(root, shared, NULL, NULL) == shared->users)
            continue;
        DT_REQUIRE(shared->name && !shared->tensor && !shared->owner, DT_ERR_STATE,
                   "tied parameter %s has no name yet, or is in use already",
                   shared->name ? shared->name : "");
        dt_param *own = calloc(1, sizeof *own);
        char *name = strdup(shared->name);
        if (!own || !name) {
            free(own);
            free(name);
            return DT_ERROR(DT_ERR_NOMEM, "a copy of %s", shared->name);
        }
        *own = *shared;
        own->name = name;
        own->users = 0;
        replace(root, shared, own);
    }
    return DT_OK;
}

/* ---- several trees as one ---- */

static dt_values bundle_forward(dt_module *m, dt_tape *t, const dt_values *in)
{
    (void)m;
    (void)in;
    (void)dt_tape_fail(
        t, DT_ERROR(DT_ERR_STATE, "these are stages of a pipeline, which runs them one by one"));
    return (dt_values){.n = 1, .value = {dt_tape_failed(t)}};
}

dt_status dt_module_bundle(int n, dt_module **roots, dt_module **bundle_out)
{
    static const dt_module_kind kind = {"bundle", 0, bundle_forward};
    dt_module *m = NULL;
    dt_status st = DT_OK;
    DT_TRY(dt_module_create(&kind, &m));
    for (int i = 0; i < n; i++) {
        char name[24];
        (void)snprintf(name, sizeof name, "stage%d", i);
        DT_TRY_TO(fail, st, dt_module_add(m, name, roots[i]));
        roots[i]->parent = NULL; /* each stays a root: of names, and to fully_shard */
        roots[i] = NULL;
    }
    *bundle_out = m;
    return DT_OK;
fail:
    dt_module_destroy(&m);
    return st;
}
