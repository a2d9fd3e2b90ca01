/* tp/parallelize.c - applies a plan: finds modules by pattern, places their parameters, puts hooks
 * on their borders. Read first: tp/dt_tp.h; next: tp/border.c. */
#include "base/dt_options.h"
#include "tp/tp_internal.h"

#include <ctype.h>
#include <fnmatch.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const style_name[] = {
#define X(name, text) (text),
    DT_TP_STYLE_TABLE(X)
#undef X
};

/* A module below the root with the row that names it. */
typedef struct entry {
    dt_module *m;
    const char *path; /* below the root */
    const dt_tp_rule *rule;
} entry;

typedef struct job {
    dti_tp_axes axes;
    const dt_tp_plan *plan;
    entry *entry;
    int64_t n, capacity;
    size_t prefix; /* bytes of a path that lead to the root and its dot */
} job;

/* ---- which row names which module ---- */

static dt_status collect(job *j, dt_module *m)
{
    const char *path = dt_module_path(m);
    DT_TRY(dt_grow((void **)&j->entry, &j->capacity, j->n + 1, sizeof *j->entry));
    j->entry[j->n++] = (entry){m, strlen(path) > j->prefix ? path + j->prefix : "", NULL};
    for (int i = 0; i < dt_module_nchildren(m); i++)
        DT_TRY(collect(j, dt_module_child(m, i)));
    return DT_OK;
}

enum { PATH_BYTES = 256 };

/* With "/" for ".", so that "*" stays within a name; with "*" for numbers where `general`. */
static void as_file_path(const char *path, bool general, char out[PATH_BYTES])
{
    size_t n = 0;
    for (const char *p = path; *p && n + 1 < PATH_BYTES; p++) {
        const bool number = general && isdigit((unsigned char)*p) && (p == path || p[-1] == '.');
        out[n++] = *p == '.' ? '/' : number ? '*' : *p;
        while (number && isdigit((unsigned char)p[1]))
            p++;
    }
    out[n] = '\0';
}

/* "a.b, a.c": the modules whose names are nearest to the pattern, like ones once. */
static void near_names(const job *j, const char *pattern, char *buf, size_t bytes)
{
    char wanted[PATH_BYTES], path[PATH_BYTES], best[3][PATH_BYTES] = {"", "", ""};
    as_file_path(pattern, true, wanted);
    size_t used = 0;
    for (int k = 0; k < DT_COUNT(best); k++) {
        int least = INT_MAX;
        for (int64_t i = 0; i < j->n; i++) {
            as_file_path(j->entry[i].path, true, path);
            const int d = dt_text_distance(wanted, path);
            if (d < least && strcmp(path, best[0]) != 0 && strcmp(path, best[1]) != 0) {
                least = d;
                memcpy(best[k], path, sizeof path);
            }
        }
        if (*best[k] && used < bytes)
            used += (size_t)snprintf(buf + used, bytes - used, "%s%s", k ? ", " : "", best[k]);
    }
    for (char *p = buf; *p; p++)
        *p = *p == '/' ? '.' : *p;
}

static dt_status match(job *j, const dt_tp_rule *rule)
{
    char pattern[PATH_BYTES], path[PATH_BYTES], names[3 * PATH_BYTES + 16] = "none";
    int64_t found = 0;
    as_file_path(rule->pattern, false, pattern);
    for (int64_t i = 0; i < j->n; i++) {
        entry *e = &j->entry[i];
        as_file_path(e->path, false, path);
        if (fnmatch(pattern, path, FNM_PATHNAME) != 0)
            continue;
        DT_REQUIRE(!e->rule, DT_ERR_ARG, "module '%s' is matched twice, by '%s' and '%s'", e->path,
                   e->rule->pattern, rule->pattern);
        e->rule = rule;
        found++;
    }
    if (found == 0)
        near_names(j, rule->pattern, names, sizeof names);
    DT_REQUIRE(found > 0 || j->plan->stage, DT_ERR_ARG,
               "pattern '%s' matches no module; the nearest: %s", rule->pattern, names);
    return DT_OK;
}

/* ---- parameters ---- */

/* The dim of a parameter that a style splits; -1: none. */
static dt_status split_dim(const entry *e, const char *name, int *dim_out)
{
    const char *kind = dt_module_kind_name(e->m);
    const bool columns = e->rule->style == DT_TP_COLWISE || e->rule->style == DT_TP_COLWISE_OUTER;
    const bool bias = strcmp(name, "bias") == 0;
    *dim_out = -1;
    if (!columns && e->rule->style != DT_TP_ROWWISE)
        return DT_OK;
    if (strcmp(kind, "linear") == 0) {
        const dt_linear_options *o = dt_module_state(e->m);
        const int column = o->split.ndim > 1; /* of a fused [3, heads, d]: the heads */
        if (columns)
            *dim_out = bias ? column : o->in_out ? 1 + column : 0;
        else
            *dim_out = bias ? -1 : o->in_out ? 0 : 1;
    } else if (strcmp(kind, "embedding") == 0) {
        *dim_out = columns ? 1 : 0;
    } else {
        DT_REQUIRE(strcmp(kind, "lm_head") == 0 && columns, DT_ERR_ARG,
                   "style %s of '%s' is for %s, not for the %s '%s'", style_name[e->rule->style],
                   e->rule->pattern,
                   columns ? "linear, embedding and lm_head" : "linear and embedding", kind,
                   e->path);
        *dim_out = 0;
    }
    return DT_OK;
}

static dt_status layout_of(const job *j, const entry *e, const dt_param *p, const char *name,
                           const dt_layout **out)
{
    int dim;
    dt_layout layout = dt_layout_replicated(dt_mesh_grid(j->axes.mesh), p->shape);
    DT_TRY(split_dim(e, name, &dim));
    dti_tp_place(&layout, &j->axes, e->rule->style == DT_TP_COLWISE_OUTER ? 1 : j->axes.n, dim);
    DT_TRY(dt_mesh_layout(j->axes.mesh, &layout, out));
    return DT_OK;
}

static const char *const param_name[] = {"weight", "bias"};

/* Every parameter of the module gets its place, or, where `check`, only could. */
static dt_status place_params(const job *j, const entry *e, bool check)
{
    char a[DT_LAYOUT_TEXT], b[DT_LAYOUT_TEXT];
    for (int i = 0; i < DT_COUNT(param_name) && e->rule->style != DT_TP_BORDER; i++) {
        dt_param *p = dt_module_param(e->m, param_name[i]);
        const dt_layout *layout = NULL;
        if (!p)
            continue;
        DT_REQUIRE(!p->tensor, DT_ERR_STATE,
                   "%s is materialized already; parallelize before dt_module_materialize", p->name);
        DT_TRY(layout_of(j, e, p, param_name[i], &layout));
        /* a tied parameter: every module that holds it must agree */
        for (int64_t k = 0; check && p->users > 1 && k < j->n; k++) {
            const entry *other = &j->entry[k];
            const dt_layout *theirs = NULL;
            if (!other->rule || other->rule->style == DT_TP_BORDER ||
                dt_module_param(other->m, param_name[i]) != p)
                continue;
            DT_TRY(layout_of(j, other, p, param_name[i], &theirs));
            DT_REQUIRE(theirs == layout, DT_ERR_PLACEMENT,
                       "%s is tied: '%s' places it %s, '%s' places it %s", p->name, e->path,
                       dt_layout_print(layout, a, sizeof a), other->path,
                       dt_layout_print(theirs, b, sizeof b));
        }
        if (!check)
            p->layout = layout;
    }
    return DT_OK;
}

/* ---- applying ---- */

static const char *in_of(const dt_tp_rule *r)
{
    return r->in ? r->in : r->style == DT_TP_SEQUENCE ? "S(1)" : NULL;
}

static const char *out_of(const dt_tp_rule *r)
{
    return r->out ? r->out : r->style == DT_TP_ROWWISE ? "R" : NULL;
}

static dt_status check(job *j)
{
    DT_REQUIRE(!j->plan->overlap || j->plan->sequence, DT_ERR_ARG,
               "overlapped tensor parallelism moves pieces of the sequence: a plan with overlap "
               "needs sequence=true; legal: both, or overlap=false");
    for (int i = 0; i < j->plan->nrules; i++) {
        const dt_tp_rule *r = &j->plan->rule[i];
        DT_TRY(match(j, r));
        DT_TRY(dti_tp_border_check(in_of(r) ? in_of(r) : ""));
        DT_TRY(dti_tp_border_check(out_of(r) ? out_of(r) : ""));
    }
    for (int64_t i = 0; i < j->n; i++) {
        if (j->entry[i].rule)
            DT_TRY(place_params(j, &j->entry[i], true));
    }
    return DT_OK;
}

/* A linear layer that gathers its input or scatters its output along the sequence. */
static bool overlaps(const entry *e)
{
    const char *out = out_of(e->rule);
    const bool columns = e->rule->style == DT_TP_COLWISE || e->rule->style == DT_TP_COLWISE_OUTER;
    const bool rows = e->rule->style == DT_TP_ROWWISE && strcmp(out, "seq") == 0;
    return strcmp(dt_module_kind_name(e->m), "linear") == 0 && (columns || rows);
}

static dt_status apply(job *j)
{
    DT_TRY(check(j));
    for (int64_t i = 0; i < j->n; i++) {
        entry *e = &j->entry[i];
        if (!e->rule)
            continue;
        DT_TRY(place_params(j, e, false));
        const char *in = in_of(e->rule), *out = out_of(e->rule);
        if (j->plan->overlap && overlaps(e))
            dt_layer_linear_overlap(e->m, j->axes.n, j->axes.axis, e->rule->style == DT_TP_ROWWISE);
        if (j->plan->overlap && in && e->rule->style == DT_TP_BORDER && strcmp(in, "R") == 0)
            in = NULL; /* the products behind it gather what they need */
        const bool f = e->rule->style != DT_TP_SEQUENCE;
        if (out && strcmp(dt_module_kind_name(e->m), "lm_head") == 0)
            dt_layer_lm_head_gather(e->m, true);
        if (in)
            DT_TRY(dti_tp_border_add(e->m, &j->axes, j->plan, in, false, f));
        if (out)
            DT_TRY(dti_tp_border_add(e->m, &j->axes, j->plan, out, true, false));
    }
    return DT_OK;
}

static dt_status parse_axes(dt_mesh *mesh, const char *axes, dti_tp_axes *out)
{
    char name[DT_NAME_SIZE];
    *out = (dti_tp_axes){.mesh = mesh};
    for (const char *p = axes; *p;) {
        const size_t length = strcspn(p, ",");
        int axis = 0;
        DT_REQUIRE(length < sizeof name && out->n < DT_MAX_AXES, DT_ERR_ARG,
                   "'%s' is no list of axes", axes);
        memcpy(name, p, length);
        name[length] = '\0';
        DT_TRY(dt_mesh_axis(mesh, name, &axis));
        for (int i = 0; i < out->n; i++)
            DT_REQUIRE(out->axis[i] != axis, DT_ERR_ARG, "axis %s is named twice", name);
        out->axis[out->n++] = (uint8_t)axis;
        p += length + (p[length] == ',');
    }
    DT_REQUIRE(out->n > 0, DT_ERR_ARG, "a plan needs an axis, such as \"tp\"");
    return DT_OK;
}

dt_status dt_parallelize_module(dt_module *m, dt_mesh *mesh, const char *axes,
                                const dt_tp_plan *plan)
{
    const size_t prefix = strlen(dt_module_path(m));
    job j = {.plan = plan, .prefix = prefix ? prefix + 1 : 0};
    DT_TRY(parse_axes(mesh, axes, &j.axes));
    dt_status st = collect(&j, m);
    if (st == DT_OK)
        st = apply(&j);
    dt_comm *ring = NULL; /* made here, not in the first step */
    if (st == DT_OK && plan->overlap)
        st = dt_mesh_comm(mesh, j.axes.n, j.axes.axis, DT_OVERLAP_CHANNEL, &ring);
    free(j.entry);
    if (st != DT_OK)
        return dt_error_push(st, __FILE__, __LINE__, __func__);
    return DT_OK;
}

/* ---- heads ---- */

static int64_t gcd(int64_t a, int64_t b)
{
    return b ? gcd(b, a % b) : a;
}

dt_status dt_tp_axes(int64_t heads, int64_t kv_heads, int tp, dt_axis axis_out[2],
                     const char **names_out)
{
    char legal[200] = "";
    for (int64_t d = 1; d <= heads && strlen(legal) + 24 < sizeof legal; d++) {
        if (heads % d == 0)
            (void)snprintf(legal + strlen(legal), sizeof legal - strlen(legal), "%s%lld",
                           d > 1 ? ", " : "", (long long)d);
    }
    DT_REQUIRE(tp >= 1 && heads % tp == 0, DT_ERR_ARG,
               "%lld query heads do not divide by tp=%d; legal: %s", (long long)heads, tp, legal);
    const int kv = (int)gcd(kv_heads, tp);
    const bool whole = kv == tp;
    axis_out[0] = whole ? (dt_axis){"tp", tp} : (dt_axis){"tp_kv", kv};
    axis_out[1] = whole ? (dt_axis){NULL, 0} : (dt_axis){"tp_rep", tp / kv};
    *names_out = whole ? "tp" : "tp_kv,tp_rep";
    return DT_OK;
}
