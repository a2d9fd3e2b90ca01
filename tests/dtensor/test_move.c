/* tests/dtensor/test_move.c - lists of arrays moved together, views of a mesh, and what Megatron's
 * f and g cost. */
#include "tests/dtensor/place_check.h"

#include <string.h>

enum { MOST = 8 };

/* Layouts by text of one mesh. */
typedef struct line {
    dt_shape shape;
    dt_dtype dtype;
    const char *from, *to;
} line;

/* Move all of them in one call; check values; the call's counts stay in the world. */
static dt_status move_lines(dt_mesh *mesh, const line *l, int n)
{
    dt_tensor *x[MOST];
    dt_local src[MOST], out[MOST];
    const dt_layout *dst[MOST];
    for (int i = 0; i < n; i++) {
        const dt_layout *from = NULL;
        DT_TRY(dt_mesh_layout_text(mesh, l[i].shape, l[i].from, &from));
        DT_TRY(dt_mesh_layout_text(mesh, l[i].shape, l[i].to, &dst[i]));
        DT_TRY(place_leaf(from, l[i].dtype, (uint64_t)i, &x[i]));
        src[i] = (dt_local){from, *dt_tensor_local(x[i])};
    }
    dt_world_reset_counts(dt_mesh_world(mesh));
    DT_TRY(dt_move(n, src, dst, 0, "test", DT_TAG_ACTIVATION, out));
    const dt_counts c = dt_world_counts(dt_mesh_world(mesh));
    for (int i = 0; i < n; i++) {
        TEST_THAT(out[i].layout == dst[i], "item %d", i);
        TEST_THAT(out[i].array.dtype == l[i].dtype, "item %d", i);
        TEST_THAT(src[i].layout != dst[i] || out[i].array.storage == src[i].array.storage,
                  "item %d is copied", i);
        DT_TRY(place_holds(&out[i], (uint64_t)i, 1, l[i].to));
        dt_array_release(&out[i].array);
        dt_tensor_destroy(&x[i]);
    }
    TEST_THAT(dt_world_counts(dt_mesh_world(mesh)).total_calls == c.total_calls,
              "checks do not count");
    return DT_OK;
}

static int64_t calls(dt_mesh *mesh, dt_call kind)
{
    return dt_world_counts(dt_mesh_world(mesh)).calls[kind];
}

/* ---- coalescing ---- */

static dt_status coalesced_body(dt_world *world, void *arg)
{
    (void)arg;
    static const line gathers[] = {{{2, {13, 3}}, DT_F32, "S(0)@tp", ""},
                                   {{2, {3, 14}}, DT_F32, "S(1)@tp", ""},
                                   {{3, {2, 3, 5}}, DT_F64, "S(2)@tp", ""},
                                   {{1, {3}}, DT_BF16, "S(0)@tp", ""},
                                   {{1, {0}}, DT_F32, "S(0)@tp", ""}};
    static const line mixed[] = {
        {{2, {5, 3}}, DT_F32, "S(0)@tp", ""},     {{2, {5, 3}}, DT_F32, "P@tp", ""},
        {{2, {5, 3}}, DT_F64, "P@tp", "S(1)@tp"}, {{2, {5, 3}}, DT_F32, "", "S(1)@tp"},
        {{2, {5, 3}}, DT_F32, "P@tp", "P@tp"},    {{2, {5, 3}}, DT_F16, "S(0)@tp", ""},
        {{2, {5, 9}}, DT_F32, "P@tp", "S(0)@tp"}, {{2, {5, 3}}, DT_I32, "S(0)@tp", "S(1)@tp"}};
    dt_mesh *mesh = NULL;
    DT_TRY(place_mesh(world, (dt_axis[]){{"tp", 4}}, 1, &mesh));
    DT_TRY(move_lines(mesh, gathers, DT_COUNT(gathers)));
    TEST_THAT(calls(mesh, DT_CALL_ALL_GATHER) == 1, "one call gathers all");
    TEST_THAT(dt_world_counts(world).total_calls == 1, "and there is no other");
    DT_TRY(move_lines(mesh, mixed, DT_COUNT(mixed)));
    TEST_THAT(calls(mesh, DT_CALL_ALL_GATHER) == 1 && calls(mesh, DT_CALL_ALL_REDUCE) == 1 &&
                  calls(mesh, DT_CALL_REDUCE_SCATTER) == 1 && calls(mesh, DT_CALL_ALL_TO_ALL) == 1,
              "one call a kind");
    TEST_THAT(dt_world_counts(world).total_calls == 4, "%lld calls",
              (long long)dt_world_counts(world).total_calls);
    DT_TRY(dt_move(0, NULL, NULL, 0, "none", DT_TAG_ACTIVATION, NULL));
    dt_mesh_destroy(&mesh);
    return DT_OK;
}

START_TEST(lists_are_coalesced)
{
    test_ranks(4, coalesced_body, NULL);
}
END_TEST

/* Three axes: gradients as they arise under dp x cp x tp come home in one call an axis set and
 * kind. */
static dt_status three_axes_body(dt_world *world, void *arg)
{
    (void)arg;
    static const line home[] = {
        {{2, {9, 7}}, DT_F32, "P@dp, P@cp, S(0)@tp", "S(0)@tp"},
        {{2, {5, 6}}, DT_F32, "P@dp, P@cp, S(1)@tp", "S(1)@tp"},
        {{1, {7}}, DT_F32, "P@dp, P@cp, P@tp", ""},
        {{1, {3}}, DT_F32, "P@dp, P@cp", ""},
        {{2, {8, 8}}, DT_F32, "P@dp, P@cp, S(0)@tp", "S(0)@tp>dp>cp"},
    };
    static const line nests[] = {
        {{2, {11, 13}}, DT_F32, "S(0)@dp>cp>tp", ""},
        {{2, {11, 13}}, DT_F32, "S(0)@tp>cp>dp", "S(1)@tp>cp>dp"},
        {{2, {11, 13}}, DT_F32, "P@dp, P@cp, P@tp", "S(1)@cp>tp>dp"},
        {{2, {11, 13}}, DT_F32, "S(0)@dp, S(1)@cp, P@tp", "S(1)@tp>cp, S(0)@dp"},
        {{2, {11, 13}}, DT_F32, "S(0)@cp>dp, P@tp", "P@dp, S(0)@cp"},
    };
    static const line others[] = {{{1, {8}}, DT_F32, "S(0)@dp", ""},
                                  {{1, {8}}, DT_F32, "S(0)@tp", ""},
                                  {{1, {8}}, DT_F32, "S(0)@cp>dp", "S(0)@cp"}};
    dt_mesh *mesh = NULL;
    DT_TRY(place_mesh(world, (dt_axis[]){{"dp", 2}, {"cp", 2}, {"tp", 2}}, 3, &mesh));
    DT_TRY(move_lines(mesh, others, DT_COUNT(others)));
    TEST_THAT(calls(mesh, DT_CALL_ALL_GATHER) == 2, "one over dp, one over tp");
    DT_TRY(move_lines(mesh, home, DT_COUNT(home)));
    /* reduce-scatter over dp, cp; all-reduce over dp, cp of three; all-reduce over all three axes
     * */
    TEST_THAT(calls(mesh, DT_CALL_REDUCE_SCATTER) == 1 && calls(mesh, DT_CALL_ALL_REDUCE) == 2 &&
                  dt_world_counts(world).total_calls == 3,
              "%lld calls", (long long)dt_world_counts(world).total_calls);
    DT_TRY(move_lines(mesh, nests, DT_COUNT(nests)));
    DT_TRY(move_lines(mesh, nests, 1));
    TEST_THAT(dt_world_counts(world).total_calls == 1, "three axes of a nest are one all-gather");
    dt_mesh_destroy(&mesh);
    return DT_OK;
}

START_TEST(three_axes)
{
    test_ranks(8, three_axes_body, NULL);
}
END_TEST

/* ---- views ---- */

static dt_status all_moves(dt_mesh *mesh, dt_shape shape)
{
    const dt_layout *list[PLACE_MAX_LAYOUTS];
    int n = 0;
    DT_TRY(place_layouts(mesh, shape, list, &n));
    for (int i = 0; i < n; i++) {
        dt_tensor *x = NULL;
        DT_TRY(place_leaf(list[i], DT_F32, 3, &x));
        for (int j = 0; j < n; j++) {
            const dt_local src = {list[i], *dt_tensor_local(x)};
            dt_local out = {0};
            char text[900];
            DT_TRY(dt_move(1, &src, &list[j], 0, "view", DT_TAG_ACTIVATION, &out));
            DT_TRY(place_holds(&out, 3, 1, place_text(list[i], list[j], text, sizeof text)));
            dt_array_release(&out.array);
        }
        dt_tensor_destroy(&x);
    }
    return DT_OK;
}

static dt_status views_body(dt_world *world, void *arg)
{
    (void)arg;
    dt_mesh *mesh = NULL, *flat = NULL, *split = NULL, *slice = NULL;
    DT_TRY(place_mesh(world, (dt_axis[]){{"dp", 2}, {"tp", 2}}, 2, &mesh));
    DT_TRY(dt_mesh_flatten(mesh, "dp,tp", "all", &flat));
    DT_TRY(dt_mesh_split(flat, "all", "kv", 2, "rep", &split));
    DT_TRY(dt_mesh_slice(mesh, "tp", &slice));
    DT_TRY(all_moves(flat, DT_SHAPE(5, 3)));
    DT_TRY(all_moves(split, DT_SHAPE(5, 3)));
    DT_TRY(all_moves(slice, DT_SHAPE(5, 3)));
    const dt_layout *rows = NULL;
    DT_TRY(dt_mesh_layout_text(flat, DT_SHAPE(5), "S(0)@all", &rows));
    static const int64_t flat_rows[] = {2, 2, 1, 0}, nest_rows[] = {2, 1, 1, 1};
    TEST_THAT(dt_mesh_local(rows, NULL).dim[0] == flat_rows[dt_world_rank(world)],
              "flattened axis");
    DT_TRY(dt_mesh_layout_text(mesh, DT_SHAPE(5), "S(0)@dp>tp", &rows));
    TEST_THAT(dt_mesh_local(rows, NULL).dim[0] == nest_rows[dt_world_rank(world)], "nested axes");
    dt_mesh_destroy(&mesh);
    return DT_OK;
}

START_TEST(views)
{
    test_ranks(4, views_body, NULL);
}
END_TEST

/* ---- size-1 axes ---- */

static dt_status free_body(dt_world *world, void *arg)
{
    (void)arg;
    dt_mesh *mesh = NULL;
    dt_tape *t = NULL;
    const dt_layout *list[PLACE_MAX_LAYOUTS];
    int n = 0;
    DT_TRY(place_mesh(world, (dt_axis[]){{"dp", 1}, {"cp", 1}, {"tp", 1}}, 3, &mesh));
    DT_TRY(dt_tape_create(mesh, NULL, &t));
    DT_TRY(place_layouts(mesh, DT_SHAPE(3, 2), list, &n));
    const int made = dt_world_comms_created(world);
    for (int i = 0; i < n; i++) {
        dt_tensor *x = NULL;
        DT_TRY(place_leaf(list[i], DT_F32, 1, &x));
        for (int j = 0; j < n; j += 7) {
            const dt_tensor *y = dt_redistribute_to(t, x, list[j]);
            DT_TRY(dt_tape_status(t));
            TEST_THAT(dt_tensor_local((dt_tensor *)y)->storage == dt_tensor_local(x)->storage,
                      "the same bytes from %d to %d", i, j);
        }
        dt_tape_reset(t, NULL);
        dt_tensor_destroy(&x);
    }
    TEST_THAT(dt_world_counts(world).total_calls == 0 && dt_world_comms_created(world) == made,
              "axes of size 1 cost nothing");
    dt_tape_destroy(&t);
    dt_mesh_destroy(&mesh);
    return DT_OK;
}

START_TEST(axes_of_one_are_free)
{
    test_ranks(1, free_body, NULL);
}
END_TEST

/* ---- f and g: a two-layer block on dp x tp, column then row parallel, three column-parallel
 * products of one input ---- */

typedef struct block {
    dt_mesh *mesh;
    dt_tensor *x, *w[3], *out;
} block;

static dt_status leaf(dt_mesh *mesh, dt_shape shape, const char *text, uint64_t seed,
                      dt_tensor **out)
{
    const dt_layout *layout = NULL;
    DT_TRY(dt_mesh_layout_text(mesh, shape, text, &layout));
    DT_TRY(place_leaf(layout, DT_F32, seed, out));
    dt_tensor_set_requires_grad(*out, true);
    return DT_OK;
}

static dt_tensor *run_block(const block *b, dt_tape *t, bool f)
{
    dt_tensor *x = f ? dt_redistribute_to(t, b->x, dt_tensor_layout(b->x)) : b->x;
    dt_tensor *h = NULL;
    for (int i = 0; i < 3; i++) {
        dt_tensor *y = dt_linear(t, x, b->w[i], NULL);
        h = h ? dt_add(t, h, y) : y;
    }
    return dt_redistribute_to(t, dt_linear(t, h, b->out, NULL), dt_tensor_layout(b->x)); /* g */
}

/* dL/dx for L = sum of y * g, in plain loops: x [4, 3], w [5, 3], out [3, 5]. */
static double block_dx(int64_t row, int64_t k)
{
    double dx = 0;
    for (int64_t n = 0; n < 5; n++) {
        double dh = 0, w = 0;
        for (int64_t m = 0; m < 3; m++)
            dh += place_value(9, row * 3 + m) * place_value(8, m * 5 + n);
        for (uint64_t i = 0; i < 3; i++)
            w += place_value(2 + i, n * 3 + k);
        dx += dh * w;
    }
    return dx;
}

static dt_status check_dx(const dt_local *dx)
{
    int64_t at[DT_MAX_DIMS];
    const dt_shape part = dt_mesh_local(dx->layout, at);
    const float *v = test_look(&dx->array);
    for (int64_t i = 0; i < dt_shape_count(part); i++) {
        const double want = block_dx(at[0] + i / 3, i % 3);
        TEST_THAT((double)v[i] == want, "element %lld: %g, not %g", (long long)i, (double)v[i],
                  want);
    }
    return DT_OK;
}

static dt_status walk_block(block *b, dt_tape *t, bool f, int64_t forward, int64_t backward)
{
    dt_world *world = dt_mesh_world(b->mesh);
    dt_world_reset_counts(world);
    dt_tensor *y = run_block(b, t, f);
    DT_TRY(dt_tape_status(t));
    TEST_THAT(calls(b->mesh, DT_CALL_ALL_REDUCE) == forward &&
                  dt_world_counts(world).total_calls == forward,
              "forward");
    dt_tensor *g = NULL;
    DT_TRY(leaf(b->mesh, DT_SHAPE(4, 3), "S(0)@dp", 9, &g));
    dt_world_reset_counts(world);
    DT_TRY(dt_backward_from(t, 1, &y, &(dt_local){dt_tensor_layout(g), *dt_tensor_local(g)}));
    TEST_THAT(calls(b->mesh, DT_CALL_ALL_REDUCE) == backward &&
                  dt_world_counts(world).total_calls == backward,
              "backward: %lld calls", (long long)dt_world_counts(world).total_calls);
    dt_tensor_destroy(&g);
    dt_tape_reset(t, NULL);
    return DT_OK;
}

static dt_status megatron_body(dt_world *world, void *arg)
{
    (void)arg;
    block b = {0};
    dt_tape *t = NULL;
    char text[DT_LAYOUT_TEXT];
    DT_TRY(place_mesh(world, (dt_axis[]){{"dp", 2}, {"tp", 2}}, 2, &b.mesh));
    DT_TRY(dt_tape_create(b.mesh, NULL, &t));
    DT_TRY(leaf(b.mesh, DT_SHAPE(4, 3), "S(0)@dp", 1, &b.x));
    for (int i = 0; i < 3; i++)
        DT_TRY(leaf(b.mesh, DT_SHAPE(5, 3), "S(0)@tp", 2 + (uint64_t)i, &b.w[i]));
    DT_TRY(leaf(b.mesh, DT_SHAPE(3, 5), "S(1)@tp", 8, &b.out));
    /* with f: one all-reduce each way, x's gradient is home; weights' gradients arise P@dp and
     * cost nothing yet */
    DT_TRY(walk_block(&b, t, true, 1, 1));
    TEST_THAT(dt_tensor_grad(b.x)->layout == dt_tensor_layout(b.x), "f reduces");
    DT_TRY(check_dx(dt_tensor_grad(b.x)));
    dt_layout_print(dt_tensor_grad(b.w[0])->layout, text, sizeof text);
    TEST_THAT(strcmp(text, "[S(0)@tp, P@dp]") == 0 || strcmp(text, "[P@dp, S(0)@tp]") == 0, "%s",
              text);
    dt_tensor_clear_grad(b.x);
    /* without f: no collective in backward; three gradients P@tp add up where they are */
    DT_TRY(walk_block(&b, t, false, 1, 0));
    const dt_local *dx = dt_tensor_grad(b.x);
    TEST_THAT(dx->layout->partial == 2, "P@tp");
    dt_local home = {0};
    const dt_layout *dst = dt_tensor_layout(b.x);
    DT_TRY(dt_move(1, dx, &dst, 0, "home", DT_TAG_GRADIENT, &home));
    DT_TRY(check_dx(&home));
    dt_array_release(&home.array);
    dt_tensor_destroy(&b.x);
    for (int i = 0; i < 3; i++)
        dt_tensor_destroy(&b.w[i]);
    dt_tensor_destroy(&b.out);
    dt_tape_destroy(&t);
    dt_mesh_destroy(&b.mesh);
    return DT_OK;
}

START_TEST(megatron_f_and_g)
{
    test_ranks(4, megatron_body, NULL);
}
END_TEST

/* ---- errors ---- */

static dt_status errors_body(dt_world *world, void *arg)
{
    (void)arg;
    dt_mesh *mesh = NULL;
    dt_heap *heap = NULL;
    const dt_layout *s = NULL, *r = NULL, *other = NULL;
    dt_tensor *x = NULL;
    DT_TRY(place_mesh(world, (dt_axis[]){{"tp", 2}}, 1, &mesh));
    DT_TRY(dt_world_heap(world, test_device(world), &heap));
    DT_TRY(dt_mesh_layout_text(mesh, DT_SHAPE(4), "S(0)@tp", &s));
    DT_TRY(dt_mesh_layout_text(mesh, DT_SHAPE(4), "", &r));
    DT_TRY(dt_mesh_layout_text(mesh, DT_SHAPE(5), "", &other));
    DT_TRY(place_leaf(s, DT_F32, 1, &x));
    const int64_t live = dt_heap_get_stats(heap).live_total;
    const dt_local src[2] = {{s, *dt_tensor_local(x)}, {s, *dt_tensor_local(x)}};
    const dt_layout *dst[2] = {r, other};
    dt_local out[2] = {0};
    TEST_FAILS(DT_ERR_SHAPE, "", dt_move(2, src, dst, 0, "bad", DT_TAG_ACTIVATION, out));
    TEST_THAT(!out[0].array.storage && dt_heap_get_stats(heap).live_total == live,
              "nothing is left");
    dt_tensor_destroy(&x);
    dt_mesh_destroy(&mesh);
    return DT_OK;
}

START_TEST(errors_leave_nothing)
{
    test_ranks(2, errors_body, NULL);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("move");
    TCase *tc = tcase_create("move");
    tcase_set_timeout(tc, 0);
    tcase_add_test(tc, lists_are_coalesced);
    tcase_add_test(tc, three_axes);
    tcase_add_test(tc, views);
    tcase_add_test(tc, axes_of_one_are_free);
    tcase_add_test(tc, megatron_f_and_g);
    tcase_add_test(tc, errors_leave_nothing);
    suite_add_tcase(suite, tc);
    return test_main(suite);
}
