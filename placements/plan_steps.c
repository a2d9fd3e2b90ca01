/* placements/plan_steps.c - the steps that can follow a layout on the way, and their costs.
 *
 * The innermost run of a dim can leave it: gathered, padded, or moved to another dim. Axes can join
 * a dim where src or dst has them, as its innermost. If many axes change, they join only where that
 * makes the dim's order a prefix of the wanted one: whatever joins otherwise has to leave again,
 * which pays only to park an axis for a while (three small all-to-alls instead of a gather and a
 * slice). Then each dim is always split by a prefix of its order in src or in dst, and the layouts
 * that can be reached are few. Read next: placements/plan_search.c.
 * Source: costs of ring algorithms, Thakur et al. 2005. */
#include "placements/placements_internal.h"

#include <math.h>
#include <string.h>

typedef struct maker {
    const dti_problem *problem;
    const dt_layout *from;
    dti_visit *visit;
    void *arg;
} maker;

/* The largest local array is that of the first rank of every axis. */
static int64_t largest_bytes(const dti_problem *problem, const dt_layout *layout)
{
    static const int first[DT_MAX_AXES] = {0};
    const dt_shape local = dt_layout_local(layout, first, NULL);
    return dt_shape_count(local) * (int64_t)problem->elem_bytes;
}

/* A ring passes on (k-1)/k of the larger side; an all-reduce does it twice. */
static void price(const dti_problem *problem, dti_edge *edge)
{
    dt_step *s = &edge->step;
    if (!dt_step_moves(s->kind))
        return;
    int64_t k = 1;
    double latency_s = 0, byte_s = 0;
    for (int i = 0; i < s->naxes; i++) {
        k *= s->before.grid->size[s->axis[i]];
        latency_s = fmax(latency_s, problem->link[s->axis[i]].latency_s);
        byte_s = fmax(byte_s, problem->link[s->axis[i]].byte_s);
    }
    const bool gather = s->kind == DT_STEP_ALL_GATHER;
    const int64_t whole = largest_bytes(problem, gather ? &s->after : &s->before);
    s->bytes = (whole - whole / k) * (s->kind == DT_STEP_ALL_REDUCE ? 2 : 1);
    /* No step is priced above a day, so that no path overflows. */
    edge->cost_ps = llround(fmin(latency_s + (double)s->bytes * byte_s, 86400) * 1e12);
}

/* The axes leave what they have and become S(to), or P where the kind says so, or else R. */
static dt_status make(const maker *m, dt_step_kind kind, int naxes, const uint8_t *axis, int from,
                      int to)
{
    dti_edge edge = {.step = {.kind = kind, .naxes = naxes, .dim_from = from, .dim_to = to}};
    edge.step.before = edge.step.after = *m->from;
    for (int i = 0; i < naxes; i++) {
        edge.step.axis[i] = axis[i];
        dt_layout_clear(&edge.step.after, axis[i]);
    }
    for (int i = 0; i < naxes; i++) {
        if (to >= 0)
            dt_layout_shard(&edge.step.after, axis[i], to);
        if (kind == DT_STEP_KEEP || kind == DT_STEP_PAD)
            edge.step.after.partial |= (uint8_t)(1u << axis[i]);
    }
    price(m->problem, &edge);
    return m->visit(m->arg, &edge);
}

static bool shards(const dt_layout *layout, int axis, int d)
{
    const dt_placement p = dt_layout_at(layout, axis);
    return p.kind == DT_SHARD && p.dim == d;
}

/* May these axes join dim d now, in this order? */
static bool may_join(const maker *m, int d, int naxes, const uint8_t *axis)
{
    const dt_layout *src = &m->problem->src, *dst = &m->problem->dst;
    if (m->problem->any_order) {
        for (int i = 0; i < naxes; i++)
            if (!shards(src, axis[i], d) && !shards(dst, axis[i], d))
                return false;
        return true;
    }
    const int n = m->from->nsplit[d];
    return n + naxes <= dst->nsplit[d] &&
           memcmp(m->from->split[d], dst->split[d], (size_t)n) == 0 &&
           memcmp(axis, dst->split[d] + n, (size_t)naxes) == 0;
}

static bool all_partial(unsigned partial, int naxes, const uint8_t *axis)
{
    for (int i = 0; i < naxes; i++)
        if (!(partial >> axis[i] & 1))
            return false;
    return true;
}

/* The innermost n axes of dim d leave: to R, to P, to another dim. */
static dt_status leave(const maker *m, int d, int n)
{
    const uint8_t *run = m->from->split[d] + m->from->nsplit[d] - n;
    DT_TRY(make(m, DT_STEP_ALL_GATHER, n, run, d, -1));
    if (all_partial(m->problem->dst.partial, n, run))
        DT_TRY(make(m, DT_STEP_PAD, n, run, d, -1));
    for (int to = 0; to < m->from->shape.ndim; to++)
        if (to != d && may_join(m, to, n, run))
            DT_TRY(make(m, DT_STEP_ALL_TO_ALL, n, run, d, to));
    return DT_OK;
}

/* A run of axes of one kind joins dim d: R by a slice, P by a reduce-scatter. */
static dt_status join_run(const maker *m, int d, int most, const uint8_t *run)
{
    const dt_placement_kind kind = dt_layout_at(m->from, run[0]).kind;
    if (kind == DT_SHARD)
        return DT_OK;
    const dt_step_kind step = kind == DT_PARTIAL ? DT_STEP_REDUCE_SCATTER : DT_STEP_SLICE;
    for (int n = 1; n <= most && may_join(m, d, n, run); n++) {
        if (dt_layout_at(m->from, run[n - 1]).kind != kind)
            break;
        DT_TRY(make(m, step, n, run, -1, d));
    }
    return DT_OK;
}

/* Runs as they stand in the order of dim d in `order` (src or dst). */
static dt_status join(const maker *m, int d, const dt_layout *order)
{
    for (int i = 0; i < order->nsplit[d]; i++)
        DT_TRY(join_run(m, d, order->nsplit[d] - i, order->split[d] + i));
    return DT_OK;
}

static dt_status make_set(const maker *m, dt_step_kind kind, unsigned set)
{
    uint8_t axis[DT_MAX_AXES];
    int n = 0;
    for (int a = 0; a < DT_MAX_AXES; a++)
        if (set >> a & 1)
            axis[n++] = (uint8_t)a;
    return make(m, kind, n, axis, -1, -1);
}

dt_status dti_steps_from(const dti_problem *problem, const dt_layout *from, dti_visit *visit,
                         void *arg)
{
    const maker m = {.problem = problem, .from = from, .visit = visit, .arg = arg};
    unsigned keep = 0;
    for (int a = 0; a < from->grid->naxes; a++)
        if (problem->dst.partial >> a & 1 && dt_layout_at(from, a).kind == DT_REPLICATE)
            keep |= 1u << a;
    if (keep)
        DT_TRY(make_set(&m, DT_STEP_KEEP, keep));
    for (int d = 0; d < from->shape.ndim; d++) {
        DT_TRY(join(&m, d, &problem->dst));
        if (problem->any_order)
            DT_TRY(join(&m, d, &problem->src));
        for (int n = 1; n <= from->nsplit[d]; n++)
            DT_TRY(leave(&m, d, n));
    }
    const unsigned reducible = from->partial & ~(unsigned)problem->dst.partial;
    for (unsigned set = reducible; set; set = (set - 1) & reducible)
        DT_TRY(make_set(&m, DT_STEP_ALL_REDUCE, set));
    return DT_OK;
}
