/* tp/border.c - a transform hook that brings a module's inputs or outputs to placements on the axes
 * of a plan, leaving the other axes as they are. Read first: tp/dt_tp.h. */
#include "tp/tp_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* One word of a list. */
typedef struct place {
    bool as_is, sequence; /* "-", "seq" */
    int dim;              /* S(dim), negative from the end; WHOLE: R */
} place;

enum { WHOLE = INT32_MIN };

typedef struct border {
    dti_tp_axes axes;
    bool after, always, regather;
    int n;
    place place[DT_MAX_VALUES];
} border;

void dti_tp_place(dt_layout *x, const dti_tp_axes *axes, int n, int dim)
{
    for (int i = 0; i < axes->n; i++)
        dt_layout_clear(x, axes->axis[i]);
    for (int i = 0; i < n && dim >= 0; i++)
        dt_layout_shard(x, axes->axis[i], dim);
}

/* ---- the text ---- */

static bool parse_word(const char *word, size_t length, place *out)
{
    char text[16];
    int end = 0;
    if (length >= sizeof text)
        return false;
    memcpy(text, word, length);
    text[length] = '\0';
    *out = (place){.as_is = strcmp(text, "-") == 0, .sequence = strcmp(text, "seq") == 0};
    if (out->as_is || out->sequence)
        return true;
    out->dim = WHOLE;
    if (strcmp(text, "R") == 0)
        return true;
    (void)sscanf(text, "S(%d)%n", &out->dim, &end);
    return end > 0 && (size_t)end == length;
}

static dt_status parse(const char *text, int *n_out, place out[DT_MAX_VALUES])
{
    int n = 0;
    for (const char *p = text; *p;) {
        p += strspn(p, " ");
        const size_t length = strcspn(p, ", ");
        DT_REQUIRE(n < DT_MAX_VALUES && parse_word(p, length, &out[n]), DT_ERR_PLACEMENT,
                   "'%s' is no list of placements such as \"R, S(1), seq, -\", of at most %d", text,
                   DT_MAX_VALUES);
        n++;
        p += length;
        p += strspn(p, " ");
        p += *p == ',';
    }
    *n_out = n;
    return DT_OK;
}

dt_status dti_tp_border_check(const char *text)
{
    place ignored[DT_MAX_VALUES];
    int n = 0;
    DT_TRY(parse(text, &n, ignored));
    return DT_OK;
}

/* ---- the hook ---- */

static dt_status target(const border *b, const place *p, const dt_tensor *x, const dt_layout **out)
{
    dt_layout wanted = *dt_tensor_layout(x);
    const int dim = p->dim == WHOLE || p->dim >= 0 ? p->dim : p->dim + wanted.shape.ndim;
    char shape[DT_SHAPE_TEXT];
    DT_REQUIRE(dt_tensor_mesh(x) == b->axes.mesh, DT_ERR_PLACEMENT,
               "the value lives on another mesh than the plan");
    DT_REQUIRE(dim == WHOLE || (dim >= 0 && dim < wanted.shape.ndim), DT_ERR_PLACEMENT,
               "the plan splits dim %d of a value of shape %s", p->dim,
               dt_shape_print(wanted.shape, shape, sizeof shape));
    dti_tp_place(&wanted, &b->axes, b->axes.n, dim);
    DT_TRY(dt_mesh_layout(b->axes.mesh, &wanted, out));
    return DT_OK;
}

static dt_tensor *moved(const border *b, const place *p, dt_tape *t, dt_tensor *x)
{
    const dt_layout *wanted = NULL;
    const dt_status st = target(b, p, x, &wanted);
    if (st != DT_OK) {
        (void)dt_tape_fail(t, st);
        return dt_tape_failed(t);
    }
    if (wanted == dt_tensor_layout(x) && !b->always)
        return x;
    dt_tensor *y = dt_redistribute_to(t, x, wanted);
    if (b->regather && dt_layout_at(wanted, b->axes.axis[0]).kind == DT_REPLICATE &&
        dt_layout_at(dt_tensor_layout(x), b->axes.axis[0]).kind == DT_SHARD)
        dt_tensor_regather(y);
    return y;
}

static dt_values transform(dt_module *m, dt_tape *t, const dt_values *values, void *arg)
{
    const border *b = arg;
    dt_values v = *values;
    if (b->n > v.n) {
        (void)dt_tape_fail(
            t, DT_ERROR(DT_ERR_ARG, "the plan places %d %s of module '%s', the call has %d", b->n,
                        b->after ? "outputs" : "inputs", dt_module_path(m), v.n));
        v.value[0] = dt_tape_failed(t);
        return v;
    }
    for (int i = 0; i < b->n; i++) {
        if (v.value[i] && !dt_tensor_is_failed(v.value[i]) && !b->place[i].as_is)
            v.value[i] = moved(b, &b->place[i], t, v.value[i]);
    }
    return v;
}

dt_status dti_tp_border_add(dt_module *m, const dti_tp_axes *axes, const dt_tp_plan *plan,
                            const char *text, bool after, bool always)
{
    border *b = calloc(1, sizeof *b);
    DT_REQUIRE(b, DT_ERR_NOMEM, "a border of module '%s'", dt_module_path(m));
    *b = (border){.axes = *axes,
                  .after = after,
                  .always = always,
                  .regather = !after && !plan->keep_gathered};
    dt_status st = parse(text, &b->n, b->place);
    for (int i = 0; i < b->n; i++) {
        if (b->place[i].sequence)
            b->place[i].dim = plan->sequence ? 1 : WHOLE;
    }
    if (st == DT_OK)
        st =
            dt_module_add_transform(m, after ? NULL : transform, after ? transform : NULL, b, free);
    if (st != DT_OK) {
        free(b);
        return dt_error_push(st, __FILE__, __LINE__, __func__);
    }
    return DT_OK;
}
