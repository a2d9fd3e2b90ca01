/* tests/dtensor/test_redistribute.c - one line a transition with its counts, there and back, what
 * is refused, what DT_EXPLAIN says. R1 .. R15: the cases of PyTorch's DTensor tests, with our rules
 * (S -> P is legal; R -> P: rank 0 keeps the value). Every pair of layouts:
 * tests/dtensor/test_redistribute_pairs.c. */
#include "tests/dtensor/place_check.h"

#include <stdio.h>
#include <string.h>

enum { X = 1, G = 2 };

/* ---- the named cases: one line a transition, counts written down ---- */

typedef struct named_case {
    const char *name, *from, *to;
    dt_shape shape;
    int64_t forward[DT_NCALLS], backward[DT_NCALLS];
} named_case;

#define AG(n) [DT_CALL_ALL_GATHER] = (n)
#define RS(n) [DT_CALL_REDUCE_SCATTER] = (n)
#define AR(n) [DT_CALL_ALL_REDUCE] = (n)
#define AA(n) [DT_CALL_ALL_TO_ALL] = (n)

static const named_case world_4[] = {
    {"R1", "S(0)@tp", "", {2, {13, 3}}, {AG(1)}, {0}},
    {"R1", "S(1)@tp", "", {2, {3, 14}}, {AG(1)}, {0}},
    {"R2", "", "S(0)@tp", {2, {14, 3}}, {0}, {AG(1)}},
    {"R2", "", "S(-1)@tp", {2, {3, 13}}, {0}, {AG(1)}},
    {"R3", "P@tp", "", {2, {13, 3}}, {AR(1)}, {0}},
    {"R4", "P@tp", "S(0)@tp", {2, {13, 3}}, {RS(1)}, {AG(1)}},
    {"R4", "P@tp", "S(1)@tp", {2, {3, 14}}, {RS(1)}, {AG(1)}},
    {"R5", "", "P@tp", {2, {12, 3}}, {0}, {0}},
    {"R6", "S(0)@tp", "S(1)@tp", {2, {13, 14}}, {AA(1)}, {AA(1)}},
    {"R6", "S(1)@tp", "S(0)@tp", {2, {14, 3}}, {AA(1)}, {AA(1)}},
    {"R7", "", "", {2, {13, 3}}, {0}, {0}},
    {"R7", "S(0)@tp", "S(0)@tp", {2, {13, 3}}, {0}, {0}},
    {"R7", "P@tp", "P@tp", {2, {13, 3}}, {0}, {0}},
    {"S->P", "S(0)@tp", "P@tp", {2, {13, 3}}, {0}, {0}},
    {"S->P", "S(1)@tp", "P@tp", {2, {2, 3}}, {0}, {0}},
};

static const named_case world_2x2[] = {
    /* one call on the flattened axis, also where sizes do not divide */
    {"R10", "S(0)@dp>tp", "", {2, {8, 3}}, {AG(1)}, {0}},
    {"R10", "S(0)@dp>tp", "", {2, {5, 3}}, {AG(1)}, {0}},
    {"R10", "S(0)@tp>dp", "", {2, {7, 3}}, {AG(1)}, {0}},
    {"R10", "", "S(0)@dp>tp", {2, {5, 3}}, {0}, {AG(1)}},
    {"R10", "P@dp, P@tp", "", {2, {5, 3}}, {AR(1)}, {0}},
    {"R10", "P@dp, P@tp", "S(0)@dp>tp", {2, {5, 3}}, {RS(1)}, {AG(1)}},
    /* the inner axis of a nest comes off alone */
    {"R10", "S(0)@dp>tp", "S(0)@dp", {2, {8, 3}}, {AG(1)}, {0}},
    /* the outer one does not: gather both, cut again */
    {"R10", "S(0)@dp>tp", "S(0)@tp", {2, {8, 3}}, {AG(1)}, {AG(1)}},
    {"R10", "S(0)@dp, S(1)@tp", "", {2, {6, 6}}, {AG(2)}, {0}},
    {"R10", "S(0)@dp, P@tp", "S(0)@dp", {2, {6, 6}}, {AR(1)}, {0}},
    {"R10", "S(0)@dp, P@tp", "S(0)@dp>tp", {2, {6, 6}}, {RS(1)}, {AG(1)}},
    {"R10", "S(0)@dp>tp", "S(1)@dp>tp", {2, {5, 7}}, {AA(1)}, {AA(1)}},
};

static dt_status same_calls(const dt_counts *c, const int64_t *want, const named_case *n,
                            const char *which)
{
    for (int k = 0; k < DT_NCALLS; k++)
        TEST_THAT(c->calls[k] == want[k], "%s %s -> %s %s: %lld %s, not %lld", n->name, n->from,
                  n->to, which, (long long)c->calls[k], dt_call_name((dt_call)k),
                  (long long)want[k]);
    return DT_OK;
}

static dt_status run_named(dt_mesh *mesh, dt_tape *t, const named_case *n)
{
    const dt_layout *from = NULL, *to = NULL;
    dt_tensor *x = NULL, *dy = NULL;
    DT_TRY(dt_mesh_layout_text(mesh, n->shape, n->from, &from));
    DT_TRY(dt_mesh_layout_text(mesh, n->shape, n->to, &to));
    DT_TRY(place_leaf(from, DT_F32, X, &x));
    DT_TRY(place_dual_leaf(to, false, G, &dy));
    dt_tensor_set_requires_grad(x, true);
    dt_world_reset_counts(dt_mesh_world(mesh));
    dt_tensor *y = dt_redistribute(t, x, n->to);
    DT_TRY(dt_tape_status(t));
    dt_counts c = dt_world_counts(dt_mesh_world(mesh));
    DT_TRY(same_calls(&c, n->forward, n, "forward"));
    DT_TRY(place_tensor_holds(y, X, n->name));
    dt_world_reset_counts(dt_mesh_world(mesh));
    DT_TRY(dt_backward_from(t, 1, &y, &(dt_local){dt_tensor_layout(dy), *dt_tensor_local(dy)}));
    c = dt_world_counts(dt_mesh_world(mesh));
    DT_TRY(same_calls(&c, n->backward, n, "backward"));
    DT_TRY(place_holds(dt_tensor_grad(x), G, 1, n->name));
    dt_tensor_destroy(&x);
    dt_tensor_destroy(&dy);
    dt_tape_reset(t, NULL);
    return DT_OK;
}

static dt_status named_body(dt_world *world, void *arg)
{
    const bool two = *(bool *)arg;
    dt_mesh *mesh = NULL;
    dt_tape *t = NULL;
    DT_TRY(place_mesh(world, two ? (dt_axis[]){{"dp", 2}, {"tp", 2}} : (dt_axis[]){{"tp", 4}},
                      two ? 2 : 1, &mesh));
    DT_TRY(dt_tape_create(mesh, NULL, &t));
    for (int i = 0; i < (two ? DT_COUNT(world_2x2) : DT_COUNT(world_4)); i++)
        DT_TRY(run_named(mesh, t, two ? &world_2x2[i] : &world_4[i]));
    dt_tape_destroy(&t);
    dt_mesh_destroy(&mesh);
    return DT_OK;
}

START_TEST(named_cases)
{
    bool two = _i == 1;
    test_ranks(4, named_body, &two);
}
END_TEST

/* ---- R12: there and back, bit for bit, with numbers that are not whole; the global size stays
 * ---- */

static dt_status round_trip(dt_mesh *mesh, dt_tape *t, dt_shape shape, const char *by)
{
    const dt_layout *from = NULL;
    float value[64];
    for (int i = 0; i < DT_COUNT(value); i++)
        value[i] = 1.0f / (float)(i + 3);
    value[5] = -0.0f;
    DT_TRY(dt_mesh_layout_text(mesh, shape, "S(0)@tp", &from));
    dt_tensor *x = NULL;
    DT_TRY(dt_distribute(from, DT_F32, value, &x));
    dt_tensor *y = x;
    for (int trip = 0; trip < 2; trip++)
        y = dt_redistribute(t, dt_redistribute(t, y, by), "S(0)@tp");
    DT_TRY(dt_tape_status(t));
    TEST_THAT(dt_tensor_layout(y) == from, "by %s", by);
    TEST_THAT(dt_array_count(dt_tensor_local(x)) == 0 ||
                  memcmp(test_look(dt_tensor_local(x)), test_look(dt_tensor_local(y)),
                         dt_array_bytes(dt_tensor_local(x))) == 0,
              "by %s: other bits", by);
    dt_tensor_destroy(&x);
    dt_tape_reset(t, NULL);
    return DT_OK;
}

static dt_status trips_body(dt_world *world, void *arg)
{
    (void)arg;
    const int k = dt_world_size(world);
    dt_mesh *mesh = NULL;
    dt_tape *t = NULL;
    DT_TRY(place_mesh(world, (dt_axis[]){{"tp", k}}, 1, &mesh));
    DT_TRY(dt_tape_create(mesh, NULL, &t));
    for (int n = 0; n <= 2 * k + 1; n++) {
        DT_TRY(round_trip(mesh, t, DT_SHAPE(n, 3), ""));
        DT_TRY(round_trip(mesh, t, DT_SHAPE(n, 3), "S(1)@tp"));
    }
    const dt_layout *five = NULL;
    DT_TRY(dt_mesh_layout_text(mesh, DT_SHAPE(5, 3), "S(0)@tp", &five));
    static const int64_t rows[] = {2, 2, 1, 0}; /* of 5 on 4 ranks */
    if (k == 4)
        TEST_THAT(dt_mesh_local(five, NULL).dim[0] == rows[dt_world_rank(world)], "rows");
    dt_tape_destroy(&t);
    dt_mesh_destroy(&mesh);
    return DT_OK;
}

START_TEST(round_trips)
{
    test_ranks(_i, trips_body, NULL);
}
END_TEST

/* ---- R14, R15: what is refused, on every rank alike, and where a tape stands afterwards ---- */

static dt_status refused_body(dt_world *world, void *arg)
{
    (void)arg;
    dt_mesh *mesh = NULL, *other = NULL;
    dt_tape *t = NULL;
    DT_TRY(place_mesh(world, (dt_axis[]){{"tp", 2}}, 1, &mesh));
    DT_TRY(place_mesh(world, (dt_axis[]){{"dp", 2}}, 1, &other));
    DT_TRY(dt_tape_create(mesh, NULL, &t));
    const dt_layout *r = NULL, *p = NULL, *s = NULL, *elsewhere = NULL, *shape = NULL;
    DT_TRY(dt_mesh_layout_text(mesh, DT_SHAPE(4, 3), "", &r));
    DT_TRY(dt_mesh_layout_text(mesh, DT_SHAPE(4, 3), "P@tp", &p));
    DT_TRY(dt_mesh_layout_text(mesh, DT_SHAPE(4, 3), "S(-2)@tp", &s));
    DT_TRY(dt_mesh_layout_text(mesh, DT_SHAPE(3, 4), "", &shape));
    DT_TRY(dt_mesh_layout_text(other, DT_SHAPE(4, 3), "", &elsewhere));
    TEST_THAT(s->nsplit[0] == 1, "a negative dim counts from the end");
    const float zero[12] = {0};
    dt_tensor *x = NULL, *bad = NULL;
    TEST_FAILS(DT_ERR_PLACEMENT, "P", dt_distribute(p, DT_F32, zero, &bad));
    DT_TRY(dt_distribute(r, DT_F32, zero, &x));
    TEST_FAILS(DT_ERR_SHAPE, "[2, 3]", dt_from_array(s, dt_tensor_local(x), &bad));
    static const struct {
        const char *text, *word;
    } wrong[] = {{"S(2)@tp", "dim"},
                 {"S(-3)@tp", "dim"},
                 {"S(0)@dp", "dp"},
                 {"S(0)@tp, R@tp", "tp"},
                 {"X@tp", "X"}};
    for (int i = 0; i < DT_COUNT(wrong); i++) {
        TEST_THAT(dt_tensor_is_failed(dt_redistribute(t, x, wrong[i].text)), "%s", wrong[i].text);
        TEST_FAILS(DT_ERR_PLACEMENT, wrong[i].word, dt_tape_status(t));
        dt_tape_reset(t, NULL);
    }
    TEST_THAT(dt_tensor_is_failed(dt_redistribute_to(t, x, elsewhere)), "another mesh");
    TEST_FAILS(DT_ERR_PLACEMENT, "another mesh", dt_tape_status(t));
    dt_tape_reset(t, NULL);
    TEST_THAT(dt_tensor_is_failed(dt_redistribute_to(t, x, shape)), "another shape");
    TEST_FAILS(DT_ERR_SHAPE, "test_redistribute.c", dt_tape_status(t));
    dt_tensor_destroy(&x);
    dt_tape_destroy(&t);
    dt_mesh_destroy(&other);
    dt_mesh_destroy(&mesh);
    return DT_OK;
}

START_TEST(refused)
{
    test_ranks(2, refused_body, NULL);
}
END_TEST

/* ---- DT_EXPLAIN ---- */

static int explained_line;

static dt_status explained(dt_world *world)
{
    dt_mesh *mesh = NULL;
    dt_tape *t = NULL;
    dt_tensor *x = NULL;
    const dt_layout *layout = NULL;
    DT_TRY(place_mesh(world, (dt_axis[]){{"tensor_parallel_axis", 2}}, 1, &mesh));
    DT_TRY(dt_mesh_layout_text(mesh, DT_SHAPE(4, 3), "S(0)@tensor_parallel_axis", &layout));
    DT_TRY(place_leaf(layout, DT_F32, 1, &x));
    DT_TRY(dt_tape_create(mesh, NULL, &t));
    dt_world_set_explain(world, true);
    dt_tape_enter(t, "model.layers.0");
    explained_line = __LINE__ + 1;
    (void)dt_full(t, x);
    dt_tape_leave(t);
    DT_TRY(dt_tape_status(t));
    dt_tape_destroy(&t);
    dt_tensor_destroy(&x);
    dt_mesh_destroy(&mesh);
    return DT_OK;
}

/* The op's line, then the collective's: bytes, axis, ranks and channel, module path, source line.
 */
START_TEST(explain_says_who_asked)
{
    dt_world *world = NULL;
    const dt_world_options fake = {.backend = DT_BACKEND_FAKE, .fake_size = 2};
    char text[2000] = "", op[200], comm[200];
    ck_ok(dt_world_create(&fake, &world));
    FILE *saved = stderr;
    stderr = fmemopen(text, sizeof text - 1, "w");
    const dt_status st = explained(world);
    (void)fclose(stderr);
    stderr = saved;
    ck_ok(st);
    dt_world_destroy(&world);
    (void)snprintf(op, sizeof op, "test_redistribute.c:%d\ncomm: all-gather #", explained_line);
    (void)snprintf(comm, sizeof comm, "test_redistribute.c:%d\n", explained_line);
    const char *const words[] = {"op redistribute ",
                                 " [S(0)@tensor_parallel_axis] -> [R]  ",
                                 "model.layers.0  ",
                                 op,
                                 " on tensor_parallel_axis [0,1]/0, 24 bytes",
                                 ": model.layers.0 at ",
                                 comm};
    const char *at = text;
    for (int i = 0; i < DT_COUNT(words); i++) {
        at = strstr(at, words[i]);
        ck_assert_msg(at, "'%s' is missing in:\n%s", words[i], text);
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("redistribute");
    TCase *tc = tcase_create("redistribute");
    tcase_set_timeout(tc, 0);
    tcase_add_loop_test(tc, named_cases, 0, 2);
    tcase_add_loop_test(tc, round_trips, 1, 5);
    tcase_add_test(tc, refused);
    tcase_add_test(tc, explain_says_who_asked);
    suite_add_tcase(suite, tc);
    return test_main(suite);
}
