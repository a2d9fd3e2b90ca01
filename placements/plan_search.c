/* placements/plan_search.c - Dijkstra's algorithm over layouts.
 *
 * Of the m axes that can change, each is as in src, in dst or R. If any order is allowed (m <= 3),
 * at most 3^m m! layouts are met. Else the order of a dim follows from the set of its axes, because
 * it is a prefix of src's or of dst's, and at most 3^m are met. (Only a set that is both has two
 * orders; its axes are sharded alike in src and dst and so have two placements, not three, and
 * 2 * 2^n <= 3^n.) So all tables are made once, at their full size.
 * Read before: placements/plan_steps.c. Read next: placements/plan.c. */
#include "placements/placements_internal.h"

#include <stdlib.h>
#include <string.h>

/* Cost of a path, compared from left to right. */
typedef struct path_cost {
    int64_t ps;
    int ncollectives, nsteps;
} path_cost;

typedef struct search {
    dti_problem problem;
    int nchanging; /* axes whose placement may change */
    int nnodes, capacity, from;
    uint32_t mask; /* slots - 1 */
    int *slot;     /* hash table: node + 1, or 0 */
    dt_step *step; /* node n was reached by step[n], from node parent[n]; node 0 is src */
    int *parent;   /* -1: src itself */
    path_cost *cost;
    bool *done;
} search;

static bool less(path_cost a, path_cost b)
{
    if (a.ps != b.ps)
        return a.ps < b.ps;
    if (a.ncollectives != b.ncollectives)
        return a.ncollectives < b.ncollectives;
    return a.nsteps < b.nsteps;
}

static path_cost longer(path_cost path, const dti_edge *edge)
{
    path.ps += edge->cost_ps;
    path.ncollectives += dt_step_moves(edge->step.kind);
    path.nsteps++;
    return path;
}

/* The slot that holds a layout, or the free one where it belongs. */
static int *find(const search *s, const dt_layout *layout)
{
    uint32_t i = (uint32_t)dt_layout_hash(layout) & s->mask;
    while (s->slot[i] && !dt_layout_equal(&s->step[s->slot[i] - 1].after, layout))
        i = (i + 1) & s->mask;
    return &s->slot[i];
}

static dt_status visit(void *arg, const dti_edge *edge)
{
    search *s = arg;
    const path_cost cost = longer(s->cost[s->from], edge);
    int *slot = find(s, &edge->step.after);
    if (*slot && !less(cost, s->cost[*slot - 1]))
        return DT_OK;
    if (!*slot) {
        DT_REQUIRE(s->nnodes < s->capacity, DT_ERR_STATE, "more than %d layouts", s->capacity);
        *slot = ++s->nnodes;
    }
    const int node = *slot - 1;
    s->step[node] = edge->step;
    s->parent[node] = s->from;
    s->cost[node] = cost;
    return DT_OK;
}

/* The open node of least cost, the oldest of equals. dst can be reached, so there is one. Nodes
 * after local steps come first, and of equal paths the first stays: local steps are done early. */
static int cheapest(const search *s)
{
    int best = -1;
    for (int n = 0; n < s->nnodes; n++)
        if (!s->done[n] && (best < 0 || less(s->cost[n], s->cost[best])))
            best = n;
    return best;
}

static dt_status collect(const search *s, int node, dt_plan **plan_out)
{
    int nsteps = 0;
    for (int n = node; s->parent[n] >= 0; n = s->parent[n])
        nsteps++;
    dt_plan *plan = calloc(1, sizeof *plan + (size_t)(nsteps + 1) * sizeof plan->step[0]);
    DT_REQUIRE(plan, DT_ERR_NOMEM, "a plan of %d steps", nsteps);
    plan->nsteps = nsteps;
    plan->step = (dt_step *)(plan + 1);
    plan->cost_s = (double)s->cost[node].ps * 1e-12;
    for (int n = node; s->parent[n] >= 0; n = s->parent[n])
        plan->step[--nsteps] = s->step[n];
    for (int i = 0; i < plan->nsteps; i++) {
        plan->ncollectives += dt_step_moves(plan->step[i].kind);
        plan->bytes += plan->step[i].bytes;
    }
    *plan_out = plan;
    return DT_OK;
}

static dt_status allocate(search *s)
{
    size_t nodes = 1, slots = 2;
    for (int i = 1; i <= s->nchanging; i++)
        nodes *= s->problem.any_order ? 3 * (size_t)i : 3;
    while (slots < 2 * nodes)
        slots *= 2;
    s->capacity = (int)nodes;
    s->mask = (uint32_t)slots - 1;
    s->slot = calloc(slots, sizeof s->slot[0]);
    s->step = malloc(nodes * sizeof s->step[0]);
    s->parent = malloc(nodes * sizeof s->parent[0]);
    s->cost = malloc(nodes * sizeof s->cost[0]);
    s->done = calloc(nodes, sizeof s->done[0]);
    DT_REQUIRE(s->slot && s->step && s->parent && s->cost && s->done, DT_ERR_NOMEM,
               "a search over %zu layouts", nodes);
    return DT_OK;
}

static dt_status run(search *s, dt_plan **plan_out)
{
    DT_TRY(allocate(s));
    s->step[0] = (dt_step){.after = s->problem.src};
    s->parent[0] = -1;
    s->cost[0] = (path_cost){0};
    s->nnodes = *find(s, &s->problem.src) = 1;
    for (;;) {
        s->from = cheapest(s);
        const dt_layout layout = s->step[s->from].after;
        if (dt_layout_equal(&layout, &s->problem.dst))
            return collect(s, s->from, plan_out);
        s->done[s->from] = true;
        DT_TRY(dti_steps_from(&s->problem, &layout, visit, s));
    }
}

dt_status dti_plan_search(const dti_problem *problem, dt_plan **plan_out)
{
    search s = {.problem = *problem};
    for (int a = 0; a < problem->src.grid->naxes; a++) {
        const dt_placement p = dt_layout_at(&problem->src, a), q = dt_layout_at(&problem->dst, a);
        s.nchanging += p.kind != q.kind || p.kind == DT_SHARD;
    }
    s.problem.any_order = s.nchanging <= 3;
    const dt_status st = run(&s, plan_out);
    free(s.slot);
    free(s.step);
    free(s.parent);
    free(s.cost);
    free(s.done);
    return st;
}
