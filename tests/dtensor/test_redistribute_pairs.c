/* tests/dtensor/test_redistribute_pairs.c - every pair of layouts: values, adjoints, collectives
 * and bytes.
 *
 * A redistribution leaves the global value as it is, so y holds x's value, and with L = sum over
 * elements of y * g the gradient of x (of every part, where x is P) holds g's. */
#include "tests/dtensor/place_check.h"

#include <string.h>

enum { X = 1, G = 2, AXES = 3 };

typedef struct grid_case {
    int naxes;
    dt_axis axes[AXES];
    dt_shape shape;
    int every; /* take every n-th pair; all with DT_FULL */
} grid_case;

/* Payload bytes of this rank for a plan of f32: see dt_counts. */
static int64_t plan_bytes(dt_mesh *mesh, const dt_plan *plan)
{
    const int *coord = dt_mesh_coord(mesh);
    int64_t bytes = 0;
    for (int i = 0; i < plan->nsteps; i++) {
        const dt_step *s = &plan->step[i];
        int64_t at_a[DT_MAX_DIMS], at_b[DT_MAX_DIMS], k = 1, kept = 1;
        const dt_shape a = dt_layout_local(&s->before, coord, at_a);
        const dt_shape b = dt_layout_local(&s->after, coord, at_b);
        for (int m = 0; m < s->naxes; m++)
            k *= s->before.grid->size[s->axis[m]];
        for (int d = 0; d < a.ndim; d++) {
            const int64_t lo = at_a[d] > at_b[d] ? at_a[d] : at_b[d];
            const int64_t end_a = at_a[d] + a.dim[d], end_b = at_b[d] + b.dim[d];
            const int64_t hi = end_a < end_b ? end_a : end_b;
            kept *= hi > lo ? hi - lo : 0;
        }
        if (s->kind == DT_STEP_ALL_GATHER)
            bytes += 4 * dt_shape_count(b) * (k - 1) / k;
        if (s->kind == DT_STEP_REDUCE_SCATTER)
            bytes += 4 * dt_shape_count(a) * (k - 1) / k;
        if (s->kind == DT_STEP_ALL_REDUCE)
            bytes += 2 * 4 * dt_shape_count(a) * (k - 1) / k;
        if (s->kind == DT_STEP_ALL_TO_ALL)
            bytes += 4 * (dt_shape_count(a) - kept);
    }
    return bytes;
}

/* Since the last reset exactly the collectives of the plan a -> b were counted. Resets. */
static dt_status counted(dt_mesh *mesh, const dt_layout *a, const dt_layout *b, const char *what)
{
    dt_world *world = dt_mesh_world(mesh);
    const dt_counts c = dt_world_counts(world);
    const dt_plan *plan = NULL;
    char text[900];
    DT_TRY(dt_mesh_plan(mesh, a, b, &plan));
    TEST_THAT(c.total_calls == plan->ncollectives, "%s: %lld collectives, planned %d: %s", what,
              (long long)c.total_calls, plan->ncollectives, place_text(a, b, text, sizeof text));
    TEST_THAT(c.total_bytes == plan_bytes(mesh, plan), "%s: %lld bytes, planned %lld: %s", what,
              (long long)c.total_bytes, (long long)plan_bytes(mesh, plan),
              place_text(a, b, text, sizeof text));
    dt_world_reset_counts(world);
    return DT_OK;
}

/* Where the gradient of x arises: on axes that change the dual of x's placement; P elsewhere
 * passes; equal layouts
 * reduce every P. */
static dt_status grad_layout(const dt_layout *x, const dt_layout *y, const dt_layout *dy,
                             const dt_layout **out)
{
    dt_layout want = dt_layout_dual(x);
    for (int a = 0; a < x->grid->naxes && x != y; a++) {
        const dt_placement from = dt_layout_at(x, a), to = dt_layout_at(y, a);
        if (from.kind == to.kind && from.dim == to.dim)
            want.partial = (uint8_t)(want.partial | (dy->partial & 1u << a));
    }
    DT_TRY(dt_mesh_layout(dt_layout_mesh(x), &want, out));
    return DT_OK;
}

static dt_status check_pair(dt_tape *t, dt_tensor *x, const dt_layout *dst, dt_tensor *dy)
{
    const dt_layout *src = dt_tensor_layout(x), *want = NULL;
    dt_mesh *mesh = dt_tape_mesh(t);
    char text[900];
    place_text(src, dst, text, sizeof text);
    dt_world_reset_counts(dt_mesh_world(mesh));
    dt_tensor *y = dt_redistribute_to(t, x, dst);
    DT_TRY(dt_tape_status(t));
    TEST_THAT(dt_tensor_layout(y) == dst, "%s", text);
    DT_TRY(counted(mesh, src, dst, "forward"));
    DT_TRY(place_tensor_holds(y, X, text));
    if (src == dst)
        TEST_THAT(dt_tensor_local(y)->storage == dt_tensor_local(x)->storage, "copied: %s", text);
    DT_TRY(grad_layout(src, dst, dt_tensor_layout(dy), &want));
    const dt_local g = {dt_tensor_layout(dy), *dt_tensor_local(dy)};
    DT_TRY(dt_backward_from(t, 1, &y, &g));
    DT_TRY(counted(mesh, g.layout, want, "backward"));
    const dt_local *dx = dt_tensor_grad(x);
    char got[DT_LAYOUT_TEXT];
    TEST_THAT(dx->layout == want, "gradient at %s: %s",
              dt_layout_print(dx->layout, got, sizeof got), text);
    DT_TRY(place_holds(dx, G, 1, text));
    dt_tensor_clear_grad(x);
    dt_tape_reset(t, NULL);
    return DT_OK;
}

/* The same into an array that is there. */
static dt_status check_into(dt_tensor *x, const dt_layout *dst)
{
    char text[900];
    dt_array room = {0};
    const dt_array *const into = &room;
    const dt_local src = {dt_tensor_layout(x), *dt_tensor_local(x)};
    dt_local out = {0};
    dt_moving *moving = NULL;
    DT_TRY(dt_array_create(dt_mesh_heap(dt_layout_mesh(dst)), DT_F32, dt_mesh_local(dst, NULL),
                           DT_TAG_ACTIVATION, &room));
    dt_array_fill(&room, 99);
    const dt_move_options o = {.label = "into", .tag = DT_TAG_ACTIVATION, .into = &into};
    DT_TRY(dt_move_begin(1, &src, &dst, &o, &moving));
    DT_TRY(dt_move_finish(&moving, &out));
    place_text(src.layout, dst, text, sizeof text);
    TEST_THAT(out.array.storage == room.storage, "elsewhere: %s", text);
    DT_TRY(place_holds(&out, X, 1, text));
    DT_TRY(place_tensor_holds(x, X, "the source"));
    dt_array_release(&out.array);
    dt_array_release(&room);
    return DT_OK;
}

/* x to every layout, with every gradient; every n-th of them. Frees what it made also on failure
 * (faults are injected). */
static dt_status check_from(dt_tensor *x, dt_tape *t, const dt_layout *const *list, int n,
                            int every, int *number)
{
    for (int k = 0; k < 2 * n; k++) {
        dt_tensor *dy = NULL;
        if ((*number)++ % every != 0)
            continue;
        if (k % 2 == 0)
            DT_TRY(check_into(x, list[k / 2]));
        DT_TRY(place_dual_leaf(list[k / 2], k % 2, G, &dy));
        const dt_status st = check_pair(t, x, list[k / 2], dy);
        dt_tensor_destroy(&dy);
        DT_TRY(st);
    }
    return DT_OK;
}

static dt_status check_pairs(const grid_case *c, dt_mesh *mesh, dt_tape *t)
{
    const dt_layout *list[PLACE_MAX_LAYOUTS];
    int n = 0, number = 0;
    const int every = place_full() || c->every == 0 ? 1 : c->every;
    DT_TRY(place_layouts(mesh, c->shape, list, &n));
    for (int i = 0; i < n; i++) {
        dt_tensor *x = NULL;
        DT_TRY(place_leaf(list[i], DT_F32, X, &x));
        dt_tensor_set_requires_grad(x, true);
        const dt_status st = check_from(x, t, list, n, every, &number);
        dt_tensor_destroy(&x);
        DT_TRY(st);
    }
    return DT_OK;
}

static dt_status grid_body(dt_world *world, void *arg)
{
    const grid_case *c = arg;
    dt_mesh *mesh = NULL;
    dt_tape *t = NULL;
    dt_status st = DT_OK;
    DT_TRY_TO(done, st, place_mesh(world, c->axes, c->naxes, &mesh));
    DT_TRY_TO(done, st, dt_tape_create(mesh, NULL, &t));
    DT_TRY_TO(done, st, check_pairs(c, mesh, t));
done:
    dt_tape_destroy(&t);
    dt_mesh_destroy(&mesh);
    return st;
}

/* One world for all sizes of an axis of k. */
static dt_status axis_body(dt_world *world, void *arg)
{
    const int k = *(int *)arg;
    dt_mesh *mesh = NULL;
    dt_tape *t = NULL;
    dt_status st = DT_OK;
    DT_TRY_TO(done, st, place_mesh(world, (dt_axis[]){{"tp", k}}, 1, &mesh));
    DT_TRY_TO(done, st, dt_tape_create(mesh, NULL, &t));
    for (int n = 0; n <= 2 * k + 1; n++) {
        const dt_shape shape[] = {DT_SHAPE(n), DT_SHAPE(n, 3), DT_SHAPE(3, n), DT_SHAPE(2, n, 3)};
        for (int i = 0; i < DT_COUNT(shape); i++)
            DT_TRY_TO(done, st, check_pairs(&(grid_case){.shape = shape[i]}, mesh, t));
    }
done:
    dt_tape_destroy(&t);
    dt_mesh_destroy(&mesh);
    return st;
}

START_TEST(one_axis_all_pairs)
{
    int k = _i;
    test_ranks(k, axis_body, &k);
}
END_TEST

static grid_case grids[] = {
    {2, {{"dp", 2}, {"tp", 2}}, {2, {4, 4}}, 0},
    {2, {{"dp", 2}, {"tp", 2}}, {2, {5, 3}}, 0},
    {2, {{"dp", 2}, {"tp", 2}}, {2, {1, 2}}, 0},
    {2, {{"dp", 2}, {"tp", 2}}, {2, {0, 3}}, 3},
    {2, {{"dp", 2}, {"tp", 2}}, {1, {7}}, 0},
    {2, {{"dp", 2}, {"tp", 3}}, {2, {7, 5}}, 1},
    {2, {{"dp", 2}, {"tp", 3}}, {2, {12, 6}}, 1},
    {2, {{"dp", 3}, {"tp", 2}}, {2, {4, 13}}, 3},
    {2, {{"dp", 1}, {"tp", 3}}, {2, {4, 5}}, 0},
    {2, {{"dp", 2}, {"tp", 1}}, {2, {3, 3}}, 0},
    {3, {{"dp", 2}, {"cp", 2}, {"tp", 2}}, {2, {9, 7}}, 41},
    {3, {{"dp", 2}, {"cp", 2}, {"tp", 2}}, {2, {8, 16}}, 43},
    {3, {{"dp", 2}, {"cp", 1}, {"tp", 2}}, {2, {5, 6}}, 37},
};

START_TEST(grids_all_pairs)
{
    grid_case *c = &grids[_i];
    int n = 1;
    for (int a = 0; a < c->naxes; a++)
        n *= c->axes[a].size;
    test_ranks(n, grid_body, c);
}
END_TEST

/* ---- tests of these tests: with a fault in the collectives, the same bodies must fail ---- */

static dt_status faulty_body(dt_world *world, void *arg)
{
    dt_world_set_fault(world, arg);
    DT_TRY(grid_body(world, &grids[1]));
    return DT_OK;
}

START_TEST(faults_are_seen)
{
    static char names[3][16] = {"skip_reduce", "swap_shards", "drop_wait"};
    const dt_status st = dt_world_run_threads(4, NULL, faulty_body, names[_i]);
    ck_assert_msg(st == DT_ERR_STATE, "%s: %s", names[_i], dt_error_trace());
    ck_assert_msg(strstr(dt_error_trace(), "local element"), "%s: %s", names[_i], dt_error_trace());
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("redistribute: every pair");
    TCase *tc = tcase_create("pairs");
    tcase_set_timeout(tc, 0);
    tcase_add_loop_test(tc, one_axis_all_pairs, 1, 5);
    test_loop(tc, grids_all_pairs, DT_COUNT(grids));
    test_loop(tc, faults_are_seen, 3);
    suite_add_tcase(suite, tc);
    return test_main(suite);
}
