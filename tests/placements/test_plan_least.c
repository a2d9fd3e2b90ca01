/* tests/placements/test_plan_least.c - no search over every layout of a grid finds a cheaper plan.
 * The search knows steps only as pairs of layouts and shares nothing with the planner. */
#include "tests/harness.h"
#include "tests/placements/sim.h"

#include <float.h>
#include <math.h>
#include <string.h>

static dt_layout all[SIM_LAYOUTS];

typedef struct setting {
    size_t elem_bytes;
    dt_link link[DT_MAX_AXES];
    double tie_s; /* the search below adds this for a collective, a hundredth for any step */
} setting;

static double largest_bytes(const dt_layout *layout, size_t elem_bytes)
{
    int64_t most = 0;
    for (int r = 0; r < dt_grid_count(layout->grid); r++) {
        int coord[DT_MAX_AXES];
        dt_grid_coord(layout->grid, r, coord);
        const int64_t n = dt_shape_count(dt_layout_local(layout, coord, NULL));
        most = n > most ? n : most;
    }
    return (double)most * (double)elem_bytes;
}

/* The axes that `longer` has on dim d beyond those of `shorter`, if that is a prefix; else 0. */
static unsigned extra(const dt_layout *shorter, const dt_layout *longer, int d)
{
    const int n = shorter->nsplit[d];
    if (n >= longer->nsplit[d] || memcmp(shorter->split[d], longer->split[d], (size_t)n) != 0)
        return 0;
    unsigned set = 0;
    for (int i = n; i < longer->nsplit[d]; i++)
        set |= 1u << longer->split[d][i];
    return set;
}

static double collective_cost(const setting *s, unsigned axes, const dt_grid *grid, double whole,
                              int times)
{
    double k = 1, latency = 0, byte = 0;
    for (int a = 0; a < grid->naxes; a++) {
        if (axes >> a & 1) {
            k *= grid->size[a];
            latency = fmax(latency, s->link[a].latency_s);
            byte = fmax(byte, s->link[a].byte_s);
        }
    }
    return latency + s->tie_s + times * ceil(whole * (k - 1) / k) * byte;
}

static double size_bytes[SIM_LAYOUTS]; /* of the largest local array in each layout */

/* Cost of a step between two layouts, DBL_MAX if no single step does it. */
static double one_step(const setting *s, int from, int to)
{
    const dt_layout *u = &all[from], *v = &all[to];
    int changed[DT_MAX_DIMS], n = 0;
    for (int d = 0; d < u->shape.ndim; d++)
        if (u->nsplit[d] != v->nsplit[d] || memcmp(u->split[d], v->split[d], DT_MAX_AXES) != 0)
            changed[n++] = d;
    const unsigned born = v->partial & ~(unsigned)u->partial;
    const unsigned gone = u->partial & ~(unsigned)v->partial;
    const double whole = size_bytes[from], after = size_bytes[to];
    if (n == 0 && gone && !born)
        return collective_cost(s, gone, u->grid, whole, 2);
    if (n == 0)
        return born && !gone ? 0 : DBL_MAX; /* keep */
    const unsigned left = extra(v, u, changed[0]), joined = extra(u, v, changed[0]);
    if (n == 1 && left && !gone)
        return born == 0      ? collective_cost(s, left, u->grid, after, 1)
               : born == left ? 0 /* pad */
                              : DBL_MAX;
    if (n == 1 && joined && !born)
        return gone == 0        ? 0 /* slice */
               : gone == joined ? collective_cost(s, joined, u->grid, whole, 1)
                                : DBL_MAX;
    if (n == 2 && !born && !gone) {
        const int i = left ? changed[0] : changed[1], j = left ? changed[1] : changed[0];
        const int m = u->nsplit[i] - v->nsplit[i];
        if (extra(v, u, i) && extra(v, u, i) == extra(u, v, j) &&
            memcmp(u->split[i] + v->nsplit[i], v->split[j] + u->nsplit[j], (size_t)m) == 0)
            return collective_cost(s, extra(v, u, i), u->grid, whole, 1);
    }
    return DBL_MAX;
}

static double edge[SIM_LAYOUTS][SIM_LAYOUTS];

static bool same_placement(dt_placement a, dt_placement b)
{
    return a.kind == b.kind && a.dim == b.dim;
}

/* Where a plan may pass: any layout; those that on each axis are as src, dst or R; those of them in
 * which each dim's order begins src's or dst's. */
typedef enum reach { ANYWHERE, ON_THE_WAY, IN_ORDER } reach;

/* The planner promises the least on the way if up to 3 axes change, else the least in order. */
static reach promised(const dt_layout *src, const dt_layout *dst)
{
    int nchanging = 0;
    for (int a = 0; a < src->grid->naxes; a++) {
        const dt_placement p = dt_layout_at(src, a), q = dt_layout_at(dst, a);
        nchanging += p.kind == DT_SHARD || p.kind != q.kind;
    }
    return nchanging <= 3 ? ON_THE_WAY : IN_ORDER;
}

static bool begins(const dt_layout *x, const dt_layout *whole, int d)
{
    return x->nsplit[d] <= whole->nsplit[d] &&
           memcmp(x->split[d], whole->split[d], x->nsplit[d]) == 0;
}

static bool on_the_way(const dt_layout *src, const dt_layout *dst, const dt_layout *x, reach rule)
{
    for (int d = 0; d < x->shape.ndim; d++)
        if (rule == IN_ORDER && !begins(x, src, d) && !begins(x, dst, d))
            return false;
    for (int a = 0; a < x->grid->naxes; a++) {
        const dt_placement p = dt_layout_at(src, a), q = dt_layout_at(dst, a);
        const dt_placement now = dt_layout_at(x, a);
        const bool fixed = same_placement(p, q) && p.kind != DT_SHARD;
        if (!same_placement(now, p) && !same_placement(now, q) &&
            (fixed || now.kind != DT_REPLICATE))
            return false;
    }
    return true;
}

static double least_cost(int nlayouts, int src, int dst, reach rule)
{
    double cost[SIM_LAYOUTS];
    bool done[SIM_LAYOUTS];
    for (int i = 0; i < nlayouts; i++) {
        cost[i] = i == src ? 0 : DBL_MAX;
        done[i] = rule != ANYWHERE && !on_the_way(&all[src], &all[dst], &all[i], rule);
    }
    for (;;) {
        int u = -1;
        for (int i = 0; i < nlayouts; i++)
            if (!done[i] && cost[i] < DBL_MAX && (u < 0 || cost[i] < cost[u]))
                u = i;
        if (u < 0 || u == dst)
            return cost[dst];
        done[u] = true;
        for (int v = 0; v < nlayouts; v++) {
            /* P must not arise where it is not wanted */
            const bool strays = all[v].partial & ~(all[u].partial | all[dst].partial);
            if (!strays && edge[u][v] < DBL_MAX && cost[u] + edge[u][v] < cost[v])
                cost[v] = cost[u] + edge[u][v];
        }
    }
}

/* Of every so many pairs of layouts, the plan costs the least. */
static void check_least(const dt_grid *grid, dt_shape shape, const setting *s, bool anywhere,
                        int every)
{
    const int n = sim_layouts(grid, shape, all);
    for (int i = 0; i < n; i++)
        size_bytes[i] = largest_bytes(&all[i], s->elem_bytes);
    for (int i = 0; i < n; i++)
        for (int j = 0; j < n; j++)
            edge[i][j] = one_step(s, i, j) + s->tie_s / 100;
    for (int pair = 0; pair < n * n; pair += every) {
        const int i = pair / n, j = pair % n;
        dt_plan *plan;
        ck_ok(dt_plan_create(&all[i], &all[j], s->elem_bytes, s->link, &plan));
        const reach rule = anywhere ? ANYWHERE : promised(&all[i], &all[j]);
        const double least = least_cost(n, i, j, rule);
        char a[DT_LAYOUT_TEXT], b[DT_LAYOUT_TEXT], text[500];
        const double ties_s = s->tie_s * (plan->ncollectives + plan->nsteps / 100.0);
        /* the planner rounds a step's time to picoseconds */
        if (!(fabs(plan->cost_s + ties_s - least) <= 1e-11))
            ck_abort_msg("%s -> %s costs %.9g, least is %.9g: %s",
                         dt_layout_print(&all[i], a, sizeof a),
                         dt_layout_print(&all[j], b, sizeof b), plan->cost_s, least,
                         dt_plan_print(plan, text, sizeof text));
        dt_plan_destroy(&plan);
    }
}

#define FIVE(...)                                                       \
    {                                                                   \
        __VA_ARGS__, __VA_ARGS__, __VA_ARGS__, __VA_ARGS__, __VA_ARGS__ \
    }
static const setting small = {.elem_bytes = 4, .link = FIVE({1e-5, 1e-10})};
static const setting large = {.elem_bytes = 1 << 20, .link = FIVE({1e-5, 1e-10})};
static const setting fewest = {
    .elem_bytes = 1, .link = FIVE({1e-5, 1e-25})}; /* only the number of collectives counts */
static const setting slow_outer = {.elem_bytes = 1 << 16,
                                   .link = {{3e-5, 1e-9}, {1e-5, 1e-10}, {2e-6, 1e-11}}};

START_TEST(least_on_two_axes)
{
    static const int sizes[][2] = {{2, 2}, {2, 3}, {3, 2}, {4, 2}};
    static const int64_t shapes[][2] = {{12, 12}, {5, 7}, {24, 8}, {3, 2}, {1, 9}};
    for (int g = 0; g < DT_COUNT(sizes); g++) {
        const dt_grid grid = sim_grid(2, sizes[g]);
        for (int i = 0; i < DT_COUNT(shapes); i++) {
            const dt_shape shape = DT_SHAPE(shapes[i][0], shapes[i][1]);
            check_least(&grid, shape, &fewest, true, 1);
            check_least(&grid, shape, &small, false, 1);
            check_least(&grid, shape, &large, false, 1);
            check_least(&grid, shape, &slow_outer, false, 1);
        }
    }
}
END_TEST

START_TEST(least_on_three_axes)
{
    const dt_grid grid = sim_grid(3, (int[]){2, 2, 2});
    check_least(&grid, DT_SHAPE(16, 8), &fewest, true, 1);
    check_least(&grid, DT_SHAPE(16, 8), &small, false, 1);
    check_least(&grid, DT_SHAPE(16, 8), &large, false, 1);
    check_least(&grid, DT_SHAPE(5, 7), &large, false, 1);
    check_least(&grid, DT_SHAPE(16, 8), &slow_outer, false, 1);
}
END_TEST

/* Of plans that send equally many bytes, without latency: fewer collectives, then fewer steps. */
START_TEST(ties)
{
    const setting bytes_only = {.elem_bytes = 1 << 20, .link = FIVE({0, 1e-10}), .tie_s = 1e-7};
    const dt_grid grids[] = {sim_grid(2, (int[]){2, 2}), sim_grid(2, (int[]){4, 2}),
                             sim_grid(3, (int[]){2, 2, 2})};
    for (int g = 0; g < DT_COUNT(grids); g++)
        check_least(&grids[g], DT_SHAPE(16, 8), &bytes_only, false, 1);
}
END_TEST

START_TEST(least_on_four_axes)
{
    const dt_grid grid = sim_grid(4, (int[]){2, 2, 2, 2});
    check_least(&grid, DT_SHAPE(64, 32), &small, false, 701);
    check_least(&grid, DT_SHAPE(64, 32), &large, false, 701);
    check_least(&grid, DT_SHAPE(64, 32), &fewest, true, 701);
}
END_TEST

/* More than 4 axes change in many of these. */
START_TEST(least_on_five_axes)
{
    const dt_grid grid = sim_grid(5, (int[]){2, 2, 2, 2, 2});
    check_least(&grid, DT_SHAPE(64), &large, false, 1499);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("placements/plan_least");
    TCase *tests = tcase_create("plan_least");
    tcase_set_timeout(tests, 100);
    tcase_add_test(tests, least_on_two_axes);
    tcase_add_test(tests, least_on_three_axes);
    tcase_add_test(tests, ties);
    tcase_add_test(tests, least_on_four_axes);
    tcase_add_test(tests, least_on_five_axes);
    suite_add_tcase(suite, tests);
    return test_main(suite);
}
