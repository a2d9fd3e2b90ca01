/* tests/dtensor/test_tape.c - the tape as an owner: errors, scopes, kept tensors, what it saves,
 * what it gives back. */
#include "tests/dtensor/place_check.h"

#include <stdio.h>
#include <string.h>

static dt_status leaf(place_bench *b, dt_shape shape, const char *text, dt_tensor **out)
{
    const dt_layout *layout = NULL;
    DT_TRY(dt_mesh_layout_text(b->mesh, shape, text, &layout));
    DT_TRY(place_leaf(layout, DT_F32, 1, out));
    return DT_OK;
}

static int64_t live(const place_bench *b)
{
    return dt_heap_get_stats(b->heap).live_total;
}

/* ---- errors ---- */

/* Who called what; what is wrong; what mends it; where the library found it: a line each, each
 * thing said once. */
static dt_status check_error_lines(const dt_tape *t, const char *here)
{
    char text[2000];
    const dt_status st = dt_tape_status(t);
    TEST_THAT(st == DT_ERR_PLACEMENT, "still failed");
    (void)snprintf(text, sizeof text, "%s", dt_error_trace());
    static const char first[] = " in model.layers.3.mlp: op linear([4, 6] [S(1)@tp], [5, 6] [R]): "
                                "no rule allows these placements\n  on tp: operand 1 ";
    const char *const line[] = {first, "sharded on dim 1\n  to mend: redistribute operand ",
                                ")\n  from ", "dtensor/apply.c:"};
    const char *at = strstr(text, here);
    for (int i = 0; i < DT_COUNT(line) && at; i++)
        at = strstr(at, line[i]);
    TEST_THAT(at, "lines of the error: %s", text);
    TEST_THAT(!strstr(strstr(text, "no rule") + 1, "no rule"), "the status once: %s", text);
    TEST_THAT(!strstr(at + 10, "apply.c:") && !strstr(text, "/rule.c"),
              "one place of the library: %s", text);
    return DT_OK;
}

static dt_status first_error_body(dt_world *world, void *arg)
{
    (void)arg;
    place_bench b;
    dt_tensor *x = NULL, *w = NULL, *odd = NULL;
    DT_TRY(place_open(&b, world));
    DT_TRY(leaf(&b, DT_SHAPE(4, 6), "S(1)@tp", &x));
    DT_TRY(leaf(&b, DT_SHAPE(5, 6), "", &w));
    DT_TRY(leaf(&b, DT_SHAPE(7), "", &odd));
    dt_tensor_set_requires_grad(w, true);
    dt_tape_enter(b.t, "model.layers.3.mlp");
    dt_tensor *y = dt_linear(b.t, x, w, NULL);
    const int line = __LINE__ - 1;
    dt_tape_leave(b.t);
    TEST_THAT(dt_tensor_is_failed(y) && y == dt_tape_failed(b.t), "the failed tensor");
    TEST_THAT(dt_shape_count(dt_tensor_shape(y)) == 0 && !dt_tensor_layout(y), "of size 0");
    TEST_THAT(dt_tensor_mesh(y) == b.mesh, "of the tape's mesh");
    /* passes on, records nothing, keeps the first error */
    dt_tensor *parts[2] = {NULL, NULL};
    dt_tensor *z = dt_add(b.t, dt_silu(b.t, y), odd);
    dt_split(b.t, z, 0, 2, (int64_t[]){1, 1}, parts);
    TEST_THAT(dt_tensor_is_failed(z) && dt_tensor_is_failed(parts[0]) &&
                  dt_tensor_is_failed(parts[1]),
              "passed on");
    TEST_THAT(dt_tensor_is_failed(dt_full(b.t, z)) &&
                  dt_tensor_is_failed(dt_to_local(b.t, z, NULL)),
              "passed on by what moves");
    TEST_THAT(dt_tensor_is_failed(dt_add(b.t, odd, odd)), "nothing runs after an error");
    TEST_THAT(dt_tape_nodes(b.t) == 0, "no node");
    char here[64];
    (void)snprintf(here, sizeof here, "test_tape.c:%d", line);
    static const char *const words[] = {"op linear", "[4, 6] [S(1)@tp]", "[5, 6] [R]",
                                        "model.layers.3.mlp", "redistribute operand"};
    for (int i = 0; i < DT_COUNT(words); i++)
        TEST_FAILS(DT_ERR_PLACEMENT, words[i], dt_tape_status(b.t));
    TEST_FAILS(DT_ERR_PLACEMENT, here, dt_tape_status(b.t));
    TEST_FAILS(DT_ERR_PLACEMENT, "op linear", dt_backward(b.t, y));
    TEST_FAILS(DT_ERR_PLACEMENT, "op linear", dt_backward_input(b.t, 0, NULL, NULL));
    dt_tensor *kept = NULL;
    double item = 0;
    float whole[20];
    TEST_FAILS(DT_ERR_PLACEMENT, here, dt_tensor_keep(y, &kept));
    TEST_FAILS(DT_ERR_PLACEMENT, here, dt_tensor_item_sync(y, &item));
    TEST_FAILS(DT_ERR_PLACEMENT, here, dt_tensor_read_sync(y, whole));
    TEST_FAILS(DT_ERR_PLACEMENT, here, dt_tensor_read_f32_sync(y, whole));
    DT_TRY(check_error_lines(b.t, here));
    char text[200];
    TEST_THAT(strcmp(dt_tensor_print(y, text, sizeof text), "failed tensor") == 0, "%s", text);
    /* a reset tape is as new */
    dt_tape_reset(b.t, NULL);
    DT_TRY(dt_tape_status(b.t));
    TEST_THAT(!dt_tensor_is_failed(dt_add(b.t, odd, odd)), "works again");
    dt_tensor_destroy(&x);
    dt_tensor_destroy(&w);
    dt_tensor_destroy(&odd);
    place_close(&b);
    return DT_OK;
}

START_TEST(first_error_is_kept)
{
    test_ranks(2, first_error_body, NULL);
}
END_TEST

static dt_status misuse_body(dt_world *world, void *arg)
{
    (void)arg;
    place_bench b;
    dt_tape *other = NULL;
    dt_mesh *second = NULL;
    dt_tensor *x = NULL, *far = NULL;
    const dt_layout *there = NULL;
    DT_TRY(place_open(&b, world));
    DT_TRY(dt_tape_create(b.mesh, NULL, &other));
    DT_TRY(place_mesh(world, (dt_axis[]){{"dp", 1}}, 1, &second));
    DT_TRY(dt_mesh_layout_text(second, DT_SHAPE(3), "", &there));
    DT_TRY(place_leaf(there, DT_F32, 1, &far));
    DT_TRY(leaf(&b, DT_SHAPE(3), "", &x));
    dt_tensor *elsewhere = dt_scale(other, x, 2);
    TEST_THAT(dt_tensor_is_failed(dt_add(b.t, x, elsewhere)), "two tapes");
    TEST_FAILS(DT_ERR_STATE, "operand 1 belongs to another tape", dt_tape_status(b.t));
    DT_TRY(dt_tape_status(other));
    dt_tape_reset(b.t, NULL);
    dt_tensor *failed = dt_sum(other, x, 8);
    TEST_THAT(dt_tensor_is_failed(failed), "there is no dim 3");
    TEST_THAT(dt_tensor_is_failed(dt_silu(b.t, failed)), "failed on another tape");
    TEST_FAILS(DT_ERR_STATE, "failed on another tape", dt_tape_status(b.t));
    dt_tape_reset(b.t, NULL);
    dt_tensor *dropped = dt_scale(b.t, x, 2);
    dt_tensor_drop(dropped);
    TEST_THAT(dt_tensor_is_failed(dt_silu(b.t, dropped)), "dropped");
    TEST_FAILS(DT_ERR_STATE, "was dropped", dt_tape_status(b.t));
    dt_tape_reset(b.t, NULL);
    dt_tensor_drop(x);
    TEST_THAT(!dt_tensor_is_failed(dt_silu(b.t, x)), "leaves are left alone");
    TEST_THAT(dt_tensor_is_failed(dt_add(b.t, x, far)), "two meshes");
    TEST_FAILS(DT_ERR_STATE, "another mesh", dt_tape_status(b.t));
    dt_tape_reset(b.t, NULL);
    TEST_THAT(dt_tensor_is_failed(dt_silu(b.t, dt_tape_failed(b.t))),
              "a failed tensor without an error");
    TEST_FAILS(DT_ERR_STATE, "nothing failed", dt_tape_status(b.t));
    dt_tensor_destroy(&x);
    dt_tensor_destroy(&far);
    dt_tape_destroy(&other);
    dt_mesh_destroy(&second);
    place_close(&b);
    return DT_OK;
}

START_TEST(misuse_is_an_error)
{
    test_ranks(1, misuse_body, NULL);
}
END_TEST

/* ---- scopes ---- */

static dt_status scopes_body(dt_world *world, void *arg)
{
    (void)arg;
    enum { BYTES = 256 * 4 };
    place_bench b;
    dt_tensor *x = NULL, *kept = NULL;
    DT_TRY(place_open(&b, world));
    DT_TRY(leaf(&b, DT_SHAPE(256), "", &x));
    const int64_t base = live(&b);
    dt_scope_begin(b.t);
    dt_tensor *outer = dt_scale(b.t, x, 2);
    dt_scope_begin(b.t);
    dt_tensor *inner = dt_scale(b.t, outer, 2), *returned = dt_scale(b.t, inner, 2);
    TEST_THAT(live(&b) == base + 3 * BYTES, "three");
    dt_scope_end(b.t, 1, &returned);
    TEST_THAT(live(&b) == base + 2 * BYTES, "inner is gone, outer and returned live");
    TEST_THAT(dt_tensor_is_failed(dt_silu(b.t, inner)), "inner was dropped");
    TEST_FAILS(DT_ERR_STATE, "was dropped", dt_tape_status(b.t));
    DT_TRY(dt_tensor_keep(returned, &kept));
    dt_scope_end(b.t, 0, NULL);
    TEST_THAT(live(&b) == base + BYTES, "the kept one lives");
    dt_scope_end(b.t, 0, NULL); /* one end too many does nothing */
    dt_tape_reset(b.t, NULL);
    const float *v = test_look(dt_tensor_local(kept)), *from = test_look(dt_tensor_local(x));
    TEST_THAT(v[7] == 8 * from[7], "and outlives the tape's tensors");
    dt_tensor_destroy(&kept);
    TEST_THAT(live(&b) == base, "all given back");
    /* what backward needs survives its scope, once */
    dt_tensor_set_requires_grad(x, true);
    dt_scope_begin(b.t);
    dt_tensor *hidden = dt_scale(b.t, x, 3), *y = dt_mul(b.t, hidden, hidden);
    dt_scope_end(b.t, 1, &y);
    TEST_THAT(live(&b) == base + 2 * BYTES && dt_tape_saved_bytes(b.t) == BYTES, "hidden is saved");
    DT_TRY(dt_backward(b.t, dt_sum(b.t, y, 0)));
    TEST_THAT(dt_tape_saved_bytes(b.t) == 0, "saved arrays go with the walk");
    const float *dx = test_look(&dt_tensor_grad(x)->array);
    TEST_THAT(dx[5] == 18 * from[5], "d(9 x^2) = 18 x");
    dt_tensor_destroy(&x);
    place_close(&b);
    return DT_OK;
}

START_TEST(scopes)
{
    test_ranks(1, scopes_body, NULL);
}
END_TEST

/* ---- what is saved ---- */

/* y = x w^T, x [6, 8], w [4, 8]: the gradient of w needs x, that of x needs w (a parameter: not
 * the tape's bytes). */
static dt_status saved_body(dt_world *world, void *arg)
{
    (void)arg;
    place_bench b;
    const dt_layout *layout = NULL;
    dt_tensor *x = NULL, *w = NULL;
    DT_TRY(place_open(&b, world));
    DT_TRY(leaf(&b, DT_SHAPE(6, 8), "", &x));
    DT_TRY(dt_mesh_layout_text(b.mesh, DT_SHAPE(4, 8), "S(0)@tp", &layout));
    DT_TRY(dt_tensor_create(layout, DT_F32, DT_TAG_PARAMETER, &w));
    static const struct {
        bool x, w;
        int64_t bytes, nodes;
    } rows[] = {{false, false, 0, 0},
                {true, false, 0, 1},
                {false, true, 6 * 8 * 4, 1},
                {true, true, 6 * 8 * 4, 1}};
    for (int i = 0; i < DT_COUNT(rows); i++) {
        dt_tensor_set_requires_grad(x, rows[i].x);
        dt_tensor_set_requires_grad(w, rows[i].w);
        (void)dt_linear(b.t, x, w, NULL);
        DT_TRY(dt_tape_status(b.t));
        TEST_THAT(dt_tape_saved_bytes(b.t) == rows[i].bytes && dt_tape_nodes(b.t) == rows[i].nodes,
                  "row %d: %lld bytes", i, (long long)dt_tape_saved_bytes(b.t));
        (void)dt_linear(b.t, x, w, NULL); /* the same storage counts once */
        TEST_THAT(dt_tape_saved_bytes(b.t) == rows[i].bytes, "row %d twice", i);
        dt_tape_reset(b.t, NULL);
    }
    dt_tape_reset(b.t, &(dt_tape_options){.no_grad = true});
    dt_tensor *y = dt_linear(b.t, x, w, NULL);
    TEST_THAT(dt_tape_nodes(b.t) == 0 && !dt_tensor_requires_grad(y), "no_grad only owns");
    TEST_FAILS(DT_ERR_STATE, "no_grad", dt_backward(b.t, dt_sum(b.t, y, 0)));
    dt_tensor_destroy(&x);
    dt_tensor_destroy(&w);
    place_close(&b);
    return DT_OK;
}

START_TEST(saved_bytes)
{
    test_ranks(2, saved_body, NULL);
}
END_TEST

/* ---- a loop of layers: peak of an evaluation, and nothing is left after any number of steps ----
 * */

static dt_tensor *layers(place_bench *b, dt_tensor *x, dt_tensor *w, int n)
{
    dt_tensor *h = x;
    for (int i = 0; i < n; i++) {
        dt_scope_begin(b->t);
        dt_tensor *full = dt_redistribute(b->t, dt_linear(b->t, h, w, NULL), "");
        dt_tensor *y = dt_add(b->t, h, dt_silu(b->t, full));
        dt_scope_end(b->t, 1, &y);
        if (h != x)
            dt_tensor_drop(h);
        h = y;
    }
    return h;
}

static dt_status loop_body(dt_world *world, void *arg)
{
    (void)arg;
    place_bench b;
    dt_tensor *x = NULL, *w = NULL;
    int64_t peak[2] = {0};
    DT_TRY(place_open(&b, world));
    DT_TRY(leaf(&b, DT_SHAPE(8, 16), "", &x));
    DT_TRY(leaf(&b, DT_SHAPE(16, 16), "S(0)@tp", &w));
    const int64_t base = live(&b);
    for (int i = 0; i < 2; i++) {
        dt_tape_reset(b.t, &(dt_tape_options){.no_grad = true});
        dt_heap_reset_peaks(b.heap);
        (void)layers(&b, x, w, i ? 40 : 4);
        DT_TRY(dt_tape_status(b.t));
        peak[i] = dt_heap_get_stats(b.heap).peak_total;
    }
    TEST_THAT(peak[0] == peak[1], "4 layers %lld bytes, 40 layers %lld", (long long)peak[0],
              (long long)peak[1]);
    dt_tensor_set_requires_grad(w, true);
    for (int step = 0; step < 3; step++) {
        dt_tape_reset(b.t, NULL);
        DT_TRY(dt_backward(b.t, dt_sum(b.t, layers(&b, x, w, 5), 0)));
        dt_tensor_clear_grad(w);
        if (step == 1) /* given up half way */
            (void)dt_mul(b.t, x, w);
        dt_tape_reset(b.t, NULL);
        TEST_THAT(live(&b) == base, "step %d left %lld bytes", step, (long long)(live(&b) - base));
    }
    dt_tensor_destroy(&x);
    dt_tensor_destroy(&w);
    place_close(&b);
    return DT_OK;
}

START_TEST(loops_leave_nothing)
{
    test_ranks(2, loop_body, NULL);
}
END_TEST

/* ---- printing ---- */

static void note_line(void *arg, const char *text)
{
    char *all = arg;
    (void)snprintf(all + strlen(all), 2000 - strlen(all), "%s\n", text);
}

static dt_status print_body(dt_world *world, void *arg)
{
    (void)arg;
    place_bench b;
    dt_tensor *x = NULL;
    char all[2000] = "";
    DT_TRY(place_open(&b, world));
    DT_TRY(leaf(&b, DT_SHAPE(4, 6), "S(0)@tp", &x));
    dt_tensor_set_requires_grad(x, true);
    dt_tape_enter(b.t, "model.norm");
    (void)dt_silu(b.t, x);
    dt_tape_leave(b.t);
    (void)dt_redistribute(b.t, x, "");
    dt_tape_print(b.t, note_line, all);
    static const char *const words[] = {"silu",       "[S(0)@tp] -> [S(0)@tp]", "model.norm",
                                        "saves 48 B", "redistribute",           "[S(0)@tp] -> [R]",
                                        "saves 0 B"};
    for (int i = 0; i < DT_COUNT(words); i++)
        TEST_THAT(strstr(all, words[i]), "'%s' lacks '%s'", all, words[i]);
    dt_tensor_destroy(&x);
    place_close(&b);
    return DT_OK;
}

START_TEST(prints)
{
    test_ranks(2, print_body, NULL);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("tape");
    TCase *tc = tcase_create("tape");
    tcase_set_timeout(tc, 0);
    tcase_add_test(tc, first_error_is_kept);
    tcase_add_test(tc, misuse_is_an_error);
    tcase_add_test(tc, scopes);
    tcase_add_test(tc, saved_bytes);
    tcase_add_test(tc, loops_leave_nothing);
    tcase_add_test(tc, prints);
    suite_add_tcase(suite, tc);
    return test_main(suite);
}
