/* nn/module.c - the tree of modules: names, children, parameters. Read next: nn/call.c,
 * nn/param.c. */
#include "nn/nn_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

dt_status dt_module_create(const dt_module_kind *kind, dt_module **module_out)
{
    dt_module *m = calloc(1, sizeof *m);
    void *state = calloc(1, kind->state_bytes ? kind->state_bytes : 1);
    if (!m || !state) {
        free(m);
        free(state);
        return DT_ERROR(DT_ERR_NOMEM, "a module %s", kind->name);
    }
    m->kind = kind;
    m->state = state;
    *module_out = m;
    return DT_OK;
}

static void drop_param(dt_param *p)
{
    if (--p->users > 0)
        return;
    dt_tensor_destroy(&p->tensor);
    dt_tensor_destroy(&p->use);
    free(p->name);
    free(p);
}

void dt_module_destroy(dt_module **module)
{
    dt_module *m = *module;
    if (!m)
        return;
    for (int64_t i = 0; i < m->nchildren; i++)
        dt_module_destroy(&m->child[i]);
    for (int64_t i = 0; i < m->nslots; i++) {
        drop_param(m->slot[i].param);
        free(m->slot[i].name);
    }
    for (int64_t i = 0; i < m->ntransforms; i++) {
        if (m->transform[i].free_arg)
            m->transform[i].free_arg(m->transform[i].arg);
    }
    for (int64_t i = 0; i < m->nlifetimes; i++) {
        if (m->lifetime[i].free_arg)
            m->lifetime[i].free_arg(m->lifetime[i].arg);
    }
    free(m->child);
    free(m->slot);
    free(m->params);
    free(m->transform);
    free(m->lifetime);
    free(m->state);
    free(m->name);
    free(m->path);
    free(m);
    *module = NULL;
}

void *dt_module_state(dt_module *m)
{
    return m->state;
}

const char *dt_module_kind_name(const dt_module *m)
{
    return m->kind->name;
}

/* ---- building ---- */

/* Room for n more parameters in the lists of m and of all above, so that dt_module_params cannot
 * fail. */
static dt_status make_room(dt_module *m, int64_t n)
{
    for (; m; m = m->parent) {
        DT_TRY(dt_grow((void **)&m->params, &m->param_capacity, m->nbelow + n, sizeof *m->params));
        m->nbelow += n;
    }
    return DT_OK;
}

dt_status dt_module_add(dt_module *m, const char *name, dt_module *child)
{
    DT_REQUIRE(!child->parent, DT_ERR_ARG, "module '%s' has a parent already", name);
    for (const dt_module *above = m; above; above = above->parent)
        DT_REQUIRE(above != child, DT_ERR_ARG, "module '%s' cannot be below itself", name);
    DT_REQUIRE(*name && !strchr(name, '.'), DT_ERR_ARG,
               "a child named '%s': a name has letters and no dot, which paths put between names",
               name);
    for (int64_t i = 0; i < m->nchildren; i++)
        DT_REQUIRE(strcmp(m->child[i]->name, name) != 0, DT_ERR_ARG, "two children named '%s'",
                   name);
    DT_TRY(dt_grow((void **)&m->child, &m->child_capacity, m->nchildren + 1, sizeof *m->child));
    DT_TRY(make_room(m, child->nbelow));
    child->name = strdup(name);
    DT_REQUIRE(child->name, DT_ERR_NOMEM, "a name");
    child->parent = m;
    m->child[m->nchildren++] = child;
    return DT_OK;
}

dt_status dt_module_tie(dt_module *m, const char *name, dt_param *param)
{
    DT_REQUIRE(!dt_module_param(m, name), DT_ERR_ARG, "two parameters named '%s'", name);
    DT_TRY(dt_grow((void **)&m->slot, &m->slot_capacity, m->nslots + 1, sizeof *m->slot));
    DT_TRY(make_room(m, 1));
    char *copy = strdup(name);
    DT_REQUIRE(copy, DT_ERR_NOMEM, "a name");
    m->slot[m->nslots++] = (dti_slot){copy, param};
    param->users++;
    return DT_OK;
}

dt_status dt_module_add_param(dt_module *m, const char *name, dt_shape shape,
                              const dt_shape *file_shape, dt_init init, dt_param **param_out)
{
    DT_REQUIRE(!file_shape || dt_shape_count(*file_shape) == dt_shape_count(shape), DT_ERR_SHAPE,
               "parameter '%s': the shape in files has %lld elements, the logical one %lld", name,
               (long long)dt_shape_count(*file_shape), (long long)dt_shape_count(shape));
    dt_param *p = calloc(1, sizeof *p);
    DT_REQUIRE(p, DT_ERR_NOMEM, "a parameter");
    p->shape = shape;
    p->file_shape = file_shape ? *file_shape : shape;
    p->dtype = DT_F32;
    p->init = init;
    const dt_status st = dt_module_tie(m, name, p);
    if (st != DT_OK) {
        free(p);
        return dt_error_push(st, __FILE__, __LINE__, __func__);
    }
    if (param_out)
        *param_out = p;
    return DT_OK;
}

/* "a.b" from "a" and "b"; "b" alone at the root. */
static dt_status join(const char *path, const char *name, char **out)
{
    char *text = NULL;
    DT_REQUIRE(asprintf(&text, "%s%s%s", path, *path ? "." : "", name) >= 0, DT_ERR_NOMEM,
               "a path");
    *out = text;
    return DT_OK;
}

static dt_status give_paths(dt_module *m)
{
    free(m->path);
    m->path = NULL;
    if (m->parent)
        DT_TRY(join(m->parent->path, m->name, &m->path));
    else
        m->path = strdup("");
    DT_REQUIRE(m->path, DT_ERR_NOMEM, "a path");
    for (int64_t i = 0; i < m->nslots; i++) {
        if (!m->slot[i].param->name)
            DT_TRY(join(m->path, m->slot[i].name, &m->slot[i].param->name));
    }
    for (int64_t i = 0; i < m->nchildren; i++)
        DT_TRY(give_paths(m->child[i]));
    return DT_OK;
}

dt_status dt_module_finish(dt_module *root)
{
    DT_REQUIRE(!root->parent, DT_ERR_ARG, "names are given from the root, not from '%s'",
               root->name);
    DT_TRY(give_paths(root));
    return DT_OK;
}

/* ---- looking ---- */

const char *dt_module_path(const dt_module *m)
{
    return m->path ? m->path : "";
}

dt_module *dt_module_parent(const dt_module *m)
{
    return m->parent;
}

int dt_module_holders(dt_module *m, const dt_param *param, const dt_module *but,
                      dt_module **first_out)
{
    int n = 0;
    if (m == but)
        return 0;
    for (int64_t i = 0; i < m->nslots; i++) {
        if (m->slot[i].param != param)
            continue;
        n++;
        if (first_out && !*first_out)
            *first_out = m;
    }
    for (int64_t i = 0; i < m->nchildren; i++)
        n += dt_module_holders(m->child[i], param, but, first_out);
    return n;
}

void dt_module_set_sharder(dt_module *m, const dt_sharder *sharder, void *arg)
{
    m->sharder = sharder;
    m->sharder_arg = arg;
}

const dt_sharder *dt_module_sharder(const dt_module *m, void **arg_out)
{
    *arg_out = m->sharder_arg;
    return m->sharder;
}

dt_module *dt_module_find(dt_module *m, const char *path)
{
    while (m && *path) {
        const size_t n = strcspn(path, ".");
        dt_module *next = NULL;
        for (int64_t i = 0; i < m->nchildren && !next; i++) {
            if (strncmp(m->child[i]->name, path, n) == 0 && m->child[i]->name[n] == '\0')
                next = m->child[i];
        }
        m = next;
        path += n + (path[n] == '.');
    }
    return m;
}

int dt_module_nchildren(const dt_module *m)
{
    return (int)m->nchildren;
}

dt_module *dt_module_child(dt_module *m, int i)
{
    return m->child[i];
}

dt_param *dt_module_param(dt_module *m, const char *name)
{
    for (int64_t i = 0; i < m->nslots; i++) {
        if (strcmp(m->slot[i].name, name) == 0)
            return m->slot[i].param;
    }
    return NULL;
}

/* Append the parameters below `from` to m->params, each once. */
static void collect(dt_module *m, const dt_module *from, int *n)
{
    for (int64_t i = 0; i < from->nslots; i++) {
        bool seen = false;
        for (int k = 0; k < *n && !seen && from->slot[i].param->users > 1; k++)
            seen = m->params[k] == from->slot[i].param;
        if (!seen)
            m->params[(*n)++] = from->slot[i].param;
    }
    for (int64_t i = 0; i < from->nchildren; i++)
        collect(m, from->child[i], n);
}

dt_param *const *dt_module_params(dt_module *m, int *n_out)
{
    int n = 0;
    collect(m, m, &n);
    *n_out = n;
    return m->params;
}

int64_t dt_module_count(dt_module *m)
{
    int n = 0;
    dt_param *const *p = dt_module_params(m, &n);
    int64_t count = 0;
    for (int i = 0; i < n; i++)
        count += dt_shape_count(p[i]->shape);
    return count;
}

void dt_module_print(dt_module *m, void (*print)(void *arg, const char *line), void *arg)
{
    char line[900], shape[DT_SHAPE_TEXT], local[DT_SHAPE_TEXT], layout[DT_LAYOUT_TEXT];
    (void)snprintf(line, sizeof line, "%s (%s)", m->path && *m->path ? m->path : "model",
                   m->kind->name);
    print(arg, line);
    for (int64_t i = 0; i < m->nslots; i++) {
        const dt_param *p = m->slot[i].param;
        const bool placed = p->layout != NULL;
        (void)snprintf(
            line, sizeof line, "  %s %s %s %s%s%s%s", p->name ? p->name : m->slot[i].name,
            dt_shape_print(p->shape, shape, sizeof shape), dt_dtype_name(p->dtype),
            placed ? dt_layout_print(p->layout, layout, sizeof layout) : "not placed",
            placed ? " local " : "",
            placed ? dt_shape_print(dt_mesh_local(p->layout, NULL), local, sizeof local) : "",
            p->users > 1 ? " tied" : "");
        print(arg, line);
    }
    for (int64_t i = 0; i < m->nchildren; i++)
        dt_module_print(m->child[i], print, arg);
}
