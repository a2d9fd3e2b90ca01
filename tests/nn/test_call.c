/* tests/nn/test_call.c - what happens around a module's forward: hooks, scopes, failures, lists of
 * modules. */
#include "nn/dt_layers.h"
#include "tests/harness.h"

#include <stdio.h>
#include <string.h>

/* A module that does what its state says, and notes it. */
typedef struct act {
    char *diary; /* of 200 bytes */
    const char *name;
    dt_tensor *weight;
    bool fails, passes_on, two;
} act;

static void note(char *diary, const char *who, const char *what)
{
    const size_t n = strlen(diary);
    (void)snprintf(diary + n, 200 - n, "%s%s ", who, what);
}

static dt_values act_forward(dt_module *m, dt_tape *t, const dt_values *in)
{
    const act *a = dt_module_state(m);
    note(a->diary, a->name, "");
    if (a->fails)
        (void)dt_tape_fail(t, DT_ERROR(DT_ERR_IO, "act"));
    if (a->passes_on)
        return *in;
    dt_tensor *x = in->value[0];
    for (int i = 0; i < dt_module_nchildren(m); i++)
        x = dt_module_call1(dt_module_child(m, i), t, x);
    x = a->weight ? dt_mul(t, x, a->weight) : dt_scale(t, dt_scale(t, x, 4), 0.25);
    return (dt_values){.n = a->two ? 2 : 1, .value = {x, NULL}};
}

static const dt_module_kind kind = {"act", sizeof(act), act_forward};

static dt_status make(char *diary, const char *name, dt_module **out)
{
    DT_TRY(dt_module_create(&kind, out));
    *(act *)dt_module_state(*out) = (act){.diary = diary, .name = name};
    return DT_OK;
}

/* Hooks that note a prefix and their place. */
typedef struct hook {
    char *diary;
    const char *name;
    bool fails;
} hook;

static dt_values before(dt_module *m, dt_tape *t, const dt_values *v, void *arg)
{
    (void)m;
    const hook *h = arg;
    note(h->diary, h->name, ">");
    return (dt_values){.n = 1, .value = {dt_scale(t, v->value[0], 2)}};
}

static dt_values after(dt_module *m, dt_tape *t, const dt_values *v, void *arg)
{
    (void)m;
    const hook *h = arg;
    note(h->diary, h->name, "<");
    return (dt_values){.n = 1, .value = {dt_scale(t, v->value[0], 8)}};
}

static dt_status pre_forward(dt_module *m, dt_tape *t, bool recompute, void *arg)
{
    (void)m;
    (void)t;
    const hook *h = arg;
    note(h->diary, h->name, recompute ? "?" : "(");
    DT_REQUIRE(!h->fails, DT_ERR_DEVICE, "the hook %s fails", h->name);
    return DT_OK;
}

static dt_status post_forward(dt_module *m, dt_tape *t, bool recompute, void *arg)
{
    (void)m;
    (void)t;
    (void)recompute;
    note(((const hook *)arg)->diary, ((const hook *)arg)->name, ")");
    return DT_OK;
}

static dt_status noted(void *arg, const char *what)
{
    note(((const hook *)arg)->diary, ((const hook *)arg)->name, what);
    return DT_OK;
}

static dt_status pre_backward(dt_module *m, dt_tape *t, void *arg)
{
    (void)m;
    (void)t;
    return noted(arg, "[");
}

static dt_status post_input(dt_module *m, dt_tape *t, void *arg)
{
    (void)m;
    (void)t;
    return noted(arg, "]i");
}

static dt_status post_weight(dt_module *m, dt_tape *t, void *arg)
{
    (void)m;
    (void)t;
    return noted(arg, "]w");
}

static void freed(void *arg)
{
    note(((const hook *)arg)->diary, ((const hook *)arg)->name, "free");
}

static dt_lifetime lifetime(hook *h)
{
    return (dt_lifetime){pre_forward, post_forward, pre_backward, post_input, post_weight,
                         h,           freed};
}

typedef struct bench {
    dt_mesh *mesh;
    dt_tape *t;
    dt_heap *heap;
    dt_tensor *x, *w; /* [4], ones; leaves that want gradients; w a parameter */
    char diary[200];
} bench;

static dt_status open_bench(bench *b, dt_world *world)
{
    *b = (bench){0};
    const dt_layout *r = NULL;
    const dt_mesh_options o = {.axes = {{"tp", dt_world_size(world)}}};
    DT_TRY(dt_mesh_create(world, test_device(world), &o, &b->mesh));
    DT_TRY(dt_tape_create(b->mesh, NULL, &b->t));
    DT_TRY(dt_world_heap(world, test_device(world), &b->heap));
    DT_TRY(dt_mesh_layout_text(b->mesh, DT_SHAPE(4), "", &r));
    DT_TRY(dt_full_value(r, DT_F32, 1, &b->x));
    DT_TRY(dt_full_value(r, DT_F32, 3, &b->w));
    dt_tensor_set_requires_grad(b->x, true);
    dt_tensor_set_parameter(b->w, true);
    return DT_OK;
}

static void close_bench(bench *b)
{
    dt_tensor_destroy(&b->x);
    dt_tensor_destroy(&b->w);
    dt_tape_destroy(&b->t);
    dt_mesh_destroy(&b->mesh);
}

static dt_status diary_is(bench *b, const char *want)
{
    TEST_THAT(strcmp(b->diary, want) == 0, "'%s', not '%s'", b->diary, want);
    b->diary[0] = '\0';
    return DT_OK;
}

static dt_status value_is(dt_tensor *x, double want)
{
    float v[4];
    DT_TRY(dt_tensor_read_f32_sync(x, v));
    TEST_THAT((double)v[3] == want, "%g, not %g", (double)v[3], want);
    return DT_OK;
}

static dt_status grad_is(const dt_local *g, double want)
{
    TEST_THAT(g->array.storage, "no gradient");
    TEST_THAT((double)((const float *)test_look(&g->array))[3] == want, "%g, not %g",
              (double)((const float *)test_look(&g->array))[3], want);
    return DT_OK;
}

/* ---- order ---- */

static dt_status order_body(dt_world *world, void *arg)
{
    (void)arg;
    bench b;
    dt_module *m = NULL, *child = NULL;
    DT_TRY(open_bench(&b, world));
    hook h[4] = {
        {b.diary, "A", false}, {b.diary, "B", false}, {b.diary, "1", false}, {b.diary, "2", false}};
    DT_TRY(make(b.diary, "f", &m));
    DT_TRY(make(b.diary, "g", &child));
    ((act *)dt_module_state(m))->weight = b.w;
    DT_TRY(dt_module_add(m, "g", child));
    DT_TRY(dt_module_finish(m));
    for (int i = 0; i < 2; i++) {
        const dt_lifetime l = lifetime(&h[2 + i]);
        DT_TRY(dt_module_add_transform(m, before, after, &h[i], freed));
        DT_TRY(dt_module_add_lifetime(m, &l));
    }
    const dt_lifetime l = lifetime(&(hook){b.diary, "c", false}), empty = {0};
    DT_TRY(dt_module_add_lifetime(child, &l));
    DT_TRY(dt_module_add_lifetime(child, &empty));
    dt_tensor *y = dt_module_call1(m, b.t, b.x);
    DT_TRY(dt_tape_status(b.t));
    DT_TRY(diary_is(&b, "A> B> 1( 2( f c( g c) 2) 1) B< A< "));
    DT_TRY(value_is(y, 2 * 2 * 3 * 8 * 8));
    DT_TRY(dt_backward(b.t, dt_sum(b.t, y, 0)));
    DT_TRY(diary_is(&b, "2[ 1[ c[ c]i c]w 1]i 1]w 2]i 2]w "));
    DT_TRY(grad_is(dt_tensor_grad(b.x), 768));
    dt_tape_reset(b.t, NULL);
    /* twice on a tape: hooks twice; in two parts: hooks of each part */
    y = dt_module_call1(m, b.t, dt_module_call1(m, b.t, b.x));
    b.diary[0] = '\0';
    dt_tensor *loss = dt_sum(b.t, y, 0);
    dt_local one = {dt_tensor_layout(loss), {0}};
    DT_TRY(dt_array_create(b.heap, DT_F32, DT_SCALAR, DT_TAG_GRADIENT, &one.array));
    dt_array_fill(&one.array, 1);
    DT_TRY(dt_backward_input(b.t, 1, &loss, &one));
    DT_TRY(diary_is(&b, "2[ 1[ c[ c]i 1]i 2]i 2[ 1[ c[ c]i 1]i 2]i "));
    DT_TRY(dt_backward_weight(b.t));
    DT_TRY(diary_is(&b, "c]w 1]w 2]w c]w 1]w 2]w "));
    dt_array_release(&one.array);
    dt_tape_reset(b.t, NULL);
    /* the loss does not depend on the second call: its hooks stay silent */
    dt_tensor *first = dt_module_call1(m, b.t, b.x);
    (void)dt_module_call1(m, b.t, first);
    b.diary[0] = '\0';
    DT_TRY(dt_backward(b.t, dt_sum(b.t, first, 0)));
    DT_TRY(diary_is(&b, "2[ 1[ c[ c]i c]w 1]i 1]w 2]i 2]w "));
    dt_tape_reset(b.t, &(dt_tape_options){.no_grad = true});
    (void)dt_module_call1(m, b.t, b.x);
    TEST_THAT(dt_tape_nodes(b.t) == 0, "no markers without gradients");
    b.diary[0] = '\0';
    dt_module_destroy(&m);
    DT_TRY(diary_is(&b, "cfree Afree Bfree 1free 2free "));
    close_bench(&b);
    return DT_OK;
}

START_TEST(hooks_in_order)
{
    test_ranks(1, order_body, NULL);
}
END_TEST

/* ---- failures ---- */

static dt_status failures_body(dt_world *world, void *arg)
{
    (void)arg;
    bench b;
    dt_module *m = NULL;
    DT_TRY(open_bench(&b, world));
    hook h = {b.diary, "1", true};
    const dt_lifetime l = {.pre_forward = pre_forward, .post_forward = post_forward, .arg = &h};
    DT_TRY(make(b.diary, "f", &m));
    DT_TRY(dt_module_finish(m));
    act *a = dt_module_state(m);
    DT_TRY(dt_module_add_lifetime(m, &l));
    TEST_THAT(dt_tensor_is_failed(dt_module_call1(m, b.t, b.x)), "the hook fails");
    TEST_FAILS(DT_ERR_DEVICE, "hook 1 fails", dt_tape_status(b.t));
    DT_TRY(diary_is(&b, "1( "));
    TEST_THAT(*dt_tape_path(b.t) == '\0', "the path is left");
    dt_tape_reset(b.t, NULL);
    h.fails = false;
    a->fails = true;
    TEST_THAT(dt_tensor_is_failed(dt_module_call1(m, b.t, b.x)), "the forward fails");
    TEST_FAILS(DT_ERR_IO, "act", dt_tape_status(b.t));
    dt_tape_reset(b.t, NULL);
    a->fails = false;
    a->two = true;
    TEST_THAT(dt_tensor_is_failed(dt_module_call1(m, b.t, b.x)), "two values where one is wanted");
    TEST_FAILS(DT_ERR_STATE, "gave 2 tensors", dt_tape_status(b.t));
    dt_tape_reset(b.t, NULL);
    const dt_values in = {.n = 1, .value = {b.x}};
    const dt_values out = dt_module_call(m, b.t, &in); /* a value may be left out */
    TEST_THAT(out.n == 2 && !out.value[1], "{y, NULL}");
    DT_TRY(dt_backward(b.t, dt_sum(b.t, out.value[0], 0)));
    DT_TRY(grad_is(dt_tensor_grad(b.x), 1));
    dt_module_destroy(&m);
    close_bench(&b);
    return DT_OK;
}

START_TEST(failures)
{
    test_ranks(1, failures_body, NULL);
}
END_TEST

/* A layer whose weight is not materialized fails with words, not with a crash. */
static dt_status unready_body(dt_world *world, void *arg)
{
    (void)arg;
    bench b;
    dt_module *m = NULL;
    DT_TRY(open_bench(&b, world));
    DT_TRY(dt_layer_linear(&(dt_linear_options){.in = 4, .out = 4}, &m));
    DT_TRY(dt_module_finish(m));
    TEST_THAT(dt_tensor_is_failed(dt_module_call1(m, b.t, b.x)), "no weight yet");
    TEST_FAILS(DT_ERR_STATE, "materialize", dt_tape_status(b.t));
    dt_module_destroy(&m);
    close_bench(&b);
    return DT_OK;
}

START_TEST(not_materialized)
{
    test_ranks(1, unready_body, NULL);
}
END_TEST

/* ---- memory ---- */

static dt_status memory_body(dt_world *world, void *arg)
{
    (void)arg;
    enum { MOST = 40, BYTES = 4 * 4 };
    bench b;
    dt_module *m[MOST] = {NULL};
    int64_t peak[2];
    DT_TRY(open_bench(&b, world));
    char quiet[200] = "";
    for (int i = 0; i < MOST; i++) {
        DT_TRY(make(quiet, "", &m[i]));
        DT_TRY(dt_module_finish(m[i]));
    }
    const int64_t base = dt_heap_get_stats(b.heap).live_total;
    dt_tape_reset(b.t, &(dt_tape_options){.no_grad = true});
    (void)dt_module_call1(m[0], b.t, b.x);
    TEST_THAT(dt_heap_get_stats(b.heap).live_total == base + BYTES, "a call leaves its result");
    for (int i = 0; i < 2; i++) {
        dt_tape_reset(b.t, &(dt_tape_options){.no_grad = true});
        dt_heap_reset_peaks(b.heap);
        dt_tensor *y = dt_module_sequence(m, i ? MOST : 4, b.t, b.x);
        DT_TRY(value_is(y, 1));
        quiet[0] = '\0';
        peak[i] = dt_heap_get_stats(b.heap).peak_total - base;
    }
    TEST_THAT(peak[0] == peak[1], "4 layers %lld bytes, 40 layers %lld", (long long)peak[0],
              (long long)peak[1]);
    /* a module that passes its input on: the caller's tensor is not dropped */
    dt_tape_reset(b.t, NULL);
    ((act *)dt_module_state(m[0]))->passes_on = true;
    dt_tensor *x = dt_scale(b.t, b.x, 5), *y = dt_module_sequence(m, 3, b.t, x);
    DT_TRY(value_is(y, 5));
    DT_TRY(value_is(x, 5));
    TEST_THAT(!dt_tensor_is_failed(dt_add(b.t, x, y)), "x is still there");
    for (int i = 0; i < MOST; i++)
        dt_module_destroy(&m[i]);
    close_bench(&b);
    return DT_OK;
}

START_TEST(memory)
{
    test_ranks(1, memory_body, NULL);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("call");
    TCase *tc = tcase_create("call");
    tcase_set_timeout(tc, 0);
    tcase_add_test(tc, hooks_in_order);
    tcase_add_test(tc, failures);
    tcase_add_test(tc, not_materialized);
    tcase_add_test(tc, memory);
    suite_add_tcase(suite, tc);
    return test_main(suite);
}
