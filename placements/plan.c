/* placements/plan.c - plans from one layout to another: making, printing, freeing.
 * Read next: placements/plan_search.c, placements/plan_steps.c. */
#include "placements/placements_internal.h"

#include <stdlib.h>

static const struct {
    const char *text;
    bool moves;
} kinds[] = {
#define X(name, text, moves) [DT_STEP_##name] = {text, moves},
    DT_STEP_TABLE(X)
#undef X
};

const char *dt_step_name(dt_step_kind kind)
{
    return kinds[kind].text;
}

bool dt_step_moves(dt_step_kind kind)
{
    return kinds[kind].moves;
}

/* Whatever an axis of size 1 is said to be, the local arrays are the same. */
static dt_layout without_ones(const dt_layout *layout)
{
    dt_layout out = *layout;
    for (int a = 0; a < layout->grid->naxes; a++)
        if (layout->grid->size[a] == 1)
            dt_layout_clear(&out, a);
    return out;
}

/* Bring the axes of size 1 back: they move with the first and the last step, or alone if there is
 * none. */
static void with_ones(dt_plan *plan, const dt_layout *src, const dt_layout *dst)
{
    if (dt_layout_equal(src, dst))
        return;
    if (plan->nsteps == 0) {
        dt_step *s = &plan->step[plan->nsteps++]; /* the search leaves room for one more */
        *s = (dt_step){.kind = DT_STEP_RELABEL, .dim_from = -1, .dim_to = -1};
        for (int a = 0; a < src->grid->naxes; a++)
            if (src->grid->size[a] == 1)
                s->axis[s->naxes++] = (uint8_t)a;
    }
    plan->step[0].before = *src;
    plan->step[plan->nsteps - 1].after = *dst;
}

dt_status dt_plan_create(const dt_layout *src, const dt_layout *dst, size_t elem_bytes,
                         const dt_link *link, dt_plan **plan_out)
{
    DT_TRY(dt_layout_check(src));
    DT_TRY(dt_layout_check(dst));
    DT_REQUIRE(src->grid == dst->grid, DT_ERR_ARG, "a plan between layouts of two meshes");
    char a[DT_SHAPE_TEXT], b[DT_SHAPE_TEXT];
    DT_REQUIRE(dt_shape_equal(src->shape, dst->shape), DT_ERR_SHAPE,
               "a plan from global shape %s to %s", dt_shape_print(src->shape, a, sizeof a),
               dt_shape_print(dst->shape, b, sizeof b));
    dti_problem problem = {
        .src = without_ones(src), .dst = without_ones(dst), .elem_bytes = elem_bytes};
    for (int i = 0; i < src->grid->naxes; i++) {
        const bool given = link && (link[i].latency_s != 0 || link[i].byte_s != 0);
        problem.link[i] = given ? link[i] : (dt_link){.latency_s = 1e-5, .byte_s = 1e-10};
    }
    dt_plan *plan;
    DT_TRY(dti_plan_search(&problem, &plan));
    with_ones(plan, src, dst);
    *plan_out = plan;
    return DT_OK;
}

void dt_plan_destroy(dt_plan **plan)
{
    free(*plan);
    *plan = NULL;
}

static void print_bytes(char *buf, size_t size_bytes, size_t *used, int64_t bytes)
{
    static const char *const unit[] = {"kB", "MB", "GB", "TB", "PB"};
    if (bytes < 1000) {
        dti_text_append(buf, size_bytes, used, " %d B", (int)bytes);
        return;
    }
    double value = (double)bytes / 1e3;
    int u = 0;
    for (; value >= 999.95 && u < DT_COUNT(unit) - 1; u++)
        value /= 1e3;
    dti_text_append(buf, size_bytes, used, " %.1f %s", value, unit[u]);
}

const char *dt_plan_print(const dt_plan *plan, char *buf, size_t size_bytes)
{
    size_t used = 0;
    dti_text_append(buf, size_bytes, &used, plan->nsteps ? "" : "nothing");
    for (int i = 0; i < plan->nsteps; i++) {
        const dt_step *s = &plan->step[i];
        const int dim = s->dim_from >= 0 ? s->dim_from : s->dim_to;
        dti_text_append(buf, size_bytes, &used, "%s%s", i ? "; " : "", dt_step_name(s->kind));
        if (dim >= 0)
            dti_text_append(buf, size_bytes, &used, " dim %d", dim);
        if (s->dim_from >= 0 && s->dim_to >= 0)
            dti_text_append(buf, size_bytes, &used, " -> %d", s->dim_to);
        for (int j = 0; j < s->naxes; j++)
            dti_text_append(buf, size_bytes, &used, "%s%s",
                            j == 0     ? " @"
                            : dim >= 0 ? ">"
                                       : ",",
                            s->before.grid->name[s->axis[j]]);
        if (dt_step_moves(s->kind))
            print_bytes(buf, size_bytes, &used, s->bytes);
    }
    return buf;
}
