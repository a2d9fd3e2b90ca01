/* tests/nn/test_recompute_hooks.c - what hooks see of a recomputed call, in which order; what it
 * communicates; what a failing second run leaves. */
#include "nn/dt_layers.h"
#include "nn/dt_recompute.h"
#include "tests/harness.h"

#include <stdio.h>
#include <string.h>

/* A module: its children one after the other, then w x. It notes its name when it runs, and from
 * its second call on does something else if told to. */
enum { DIARY = 300 };
enum next { SAME, OTHER_OP, OTHER_LAYOUT, MORE, FAIL };
typedef struct act {
    char *diary;
    const char *name;
    dt_tensor *weight;
    int calls;
    int then; /* enum next */
} act;

static void note(char *diary, const char *who, const char *what)
{
    const size_t n = strlen(diary);
    (void)snprintf(diary + n, DIARY - n, "%s%s ", who, what);
}

static dt_values act_forward(dt_module *m, dt_tape *t, const dt_values *in)
{
    act *a = dt_module_state(m);
    const int then = a->calls++ ? a->then : SAME;
    dt_tensor *x = in->value[0];
    note(a->diary, a->name, "");
    for (int i = 0; i < dt_module_nchildren(m); i++)
        x = dt_module_call1(dt_module_child(m, i), t, x);
    dt_tensor *const both[] = {x, a->weight};
    if (then == FAIL)
        (void)dt_tape_fail(t, DT_ERROR(DT_ERR_IO, "the disk is full"));
    x = then == OTHER_OP ? dt_matmul(t, x, a->weight) : dt_product(t, "ab,bc->ac", 2, both);
    if (then == OTHER_LAYOUT)
        x = dt_scale(t, dt_slice(t, x, 0, 0, 1), 2);
    return (dt_values){.n = then == MORE ? 2 : 1, .value = {x, x}};
}

/* ---- hooks ---- */

typedef struct hook {
    char *diary;
    const char *name;
    dt_tape *tape; /* the user's */
    bool fails_again;
} hook;

static dt_values passes(dt_module *m, dt_tape *t, const dt_values *v, void *arg)
{
    (void)m;
    (void)t;
    note(((const hook *)arg)->diary, ((const hook *)arg)->name, "");
    return *v;
}

static dt_status pre_forward(dt_module *m, dt_tape *t, bool recompute, void *arg)
{
    (void)m;
    const hook *h = arg;
    note(h->diary, h->name, recompute ? "?" : "(");
    TEST_THAT(dt_tape_origin(t) == h->tape && (t != h->tape) == recompute, "the tape of %s",
              h->name);
    DT_REQUIRE(!(h->fails_again && recompute), DT_ERR_DEVICE, "the hook %s fails", h->name);
    return DT_OK;
}

static dt_status post_forward(dt_module *m, dt_tape *t, bool recompute, void *arg)
{
    (void)m;
    (void)t;
    note(((const hook *)arg)->diary, ((const hook *)arg)->name, recompute ? "!" : ")");
    return DT_OK;
}

static dt_status pre_backward(dt_module *m, dt_tape *t, void *arg)
{
    (void)m;
    (void)t;
    note(((const hook *)arg)->diary, ((const hook *)arg)->name, "[");
    return DT_OK;
}

static dt_status post_input(dt_module *m, dt_tape *t, void *arg)
{
    (void)m;
    (void)t;
    note(((const hook *)arg)->diary, ((const hook *)arg)->name, "]i");
    return DT_OK;
}

static dt_status post_weight(dt_module *m, dt_tape *t, void *arg)
{
    (void)m;
    (void)t;
    note(((const hook *)arg)->diary, ((const hook *)arg)->name, "]w");
    return DT_OK;
}

/* f holds g. f: transform pair A, lifetime 1; g: lifetime c. */
typedef struct bench {
    dt_mesh *mesh;
    dt_tape *t;
    dt_heap *heap;
    dt_tensor *x, *w; /* [2, 2] leaves that want gradients; w a parameter */
    dt_module *f, *g;
    hook before, after, outer, inner;
    char diary[DIARY];
} bench;

static dt_status make(bench *b, const char *name, dt_module **out)
{
    static const dt_module_kind kind = {"act", sizeof(act), act_forward};
    DT_TRY(dt_module_create(&kind, out));
    *(act *)dt_module_state(*out) = (act){.diary = b->diary, .name = name, .weight = b->w};
    return DT_OK;
}

static dt_status add_lifetime(dt_module *m, hook *h)
{
    const dt_lifetime l = {pre_forward, post_forward, pre_backward, post_input, post_weight,
                           h,           NULL};
    return dt_module_add_lifetime(m, &l);
}

static dt_status open_bench(bench *b, dt_world *world)
{
    *b = (bench){0};
    const dt_layout *r = NULL;
    const dt_mesh_options o = {.axes = {{"tp", dt_world_size(world)}}};
    DT_TRY(dt_mesh_create(world, test_device(world), &o, &b->mesh));
    DT_TRY(dt_tape_create(b->mesh, NULL, &b->t));
    b->heap = dt_mesh_heap(b->mesh);
    DT_TRY(dt_mesh_layout_text(b->mesh, DT_SHAPE(2, 2), "", &r));
    DT_TRY(dt_full_value(r, DT_F32, 1, &b->x));
    DT_TRY(dt_full_value(r, DT_F32, 3, &b->w));
    dt_tensor_set_requires_grad(b->x, true);
    dt_tensor_set_parameter(b->w, true);
    DT_TRY(make(b, "f", &b->f));
    DT_TRY(make(b, "g", &b->g));
    DT_TRY(dt_module_add(b->f, "g", b->g));
    DT_TRY(dt_module_finish(b->f));
    b->before = (hook){b->diary, "A>", b->t, false};
    b->after = (hook){b->diary, "A<", b->t, false};
    b->outer = (hook){b->diary, "1", b->t, false};
    b->inner = (hook){b->diary, "c", b->t, false};
    DT_TRY(dt_module_add_transform(b->f, passes, NULL, &b->before, NULL));
    DT_TRY(dt_module_add_transform(b->f, NULL, passes, &b->after, NULL));
    DT_TRY(add_lifetime(b->f, &b->outer));
    DT_TRY(add_lifetime(b->g, &b->inner));
    return DT_OK;
}

static void close_bench(bench *b)
{
    dt_tensor_destroy(&b->x);
    dt_tensor_destroy(&b->w);
    dt_module_destroy(&b->f);
    dt_tape_destroy(&b->t);
    dt_mesh_destroy(&b->mesh);
}

static dt_status diary_is(bench *b, const char *want)
{
    TEST_THAT(strcmp(b->diary, want) == 0, "'%s', not '%s'", b->diary, want);
    b->diary[0] = '\0';
    return DT_OK;
}

/* ---- order ---- */

#define FIRST_RUN  "A> 1( f c( g c) 1) A< "
#define SECOND_RUN "A> 1? f c? g c! 1! A< "

static dt_status order_body(dt_world *world, void *arg)
{
    (void)arg;
    bench b;
    DT_TRY(open_bench(&b, world));
    dt_recompute(b.f, DT_RECOMPUTE_FULL);
    dt_tensor *y = dt_module_call1(b.f, b.t, b.x);
    DT_TRY(diary_is(&b, FIRST_RUN));
    DT_TRY(dt_backward(b.t, dt_sum(b.t, y, 0)));
    DT_TRY(diary_is(&b, "1[ " SECOND_RUN "c[ c]i c]w 1]i 1]w "));
    TEST_THAT(*(const float *)test_look(&dt_tensor_grad(b.x)->array) == 36,
              "d sum(x w w) = the rows' sums of w w");
    dt_tape_reset(b.t, NULL);
    /* in two halves: the second run belongs to the first */
    const int64_t before = dt_heap_get_stats(b.heap).live[DT_TAG_ACTIVATION];
    dt_tensor *loss = dt_sum(b.t, dt_module_call1(b.f, b.t, b.x), 0);
    dt_local one = {dt_tensor_layout(loss), {0}};
    DT_TRY(dt_array_create(b.heap, DT_F32, DT_SCALAR, DT_TAG_GRADIENT, &one.array));
    dt_array_fill(&one.array, 1);
    DT_TRY(diary_is(&b, FIRST_RUN));
    DT_TRY(dt_backward_input(b.t, 1, &loss, &one));
    DT_TRY(diary_is(&b, "1[ " SECOND_RUN "c[ c]i 1]i "));
    TEST_THAT(dt_tape_saved_bytes(b.t) == 3 * 16, "x, g of x and w wait: %lld",
              (long long)dt_tape_saved_bytes(b.t));
    TEST_THAT(dt_heap_get_stats(b.heap).live[DT_TAG_ACTIVATION] - before == 16 + 16 + 4,
              "beside the leaves there are g of x, f of x and the loss");
    DT_TRY(dt_backward_weight(b.t));
    DT_TRY(diary_is(&b, "c]w 1]w "));
    TEST_THAT(dt_tape_saved_bytes(b.t) == 0, "nothing waits");
    dt_array_release(&one.array);
    dt_tape_reset(b.t, NULL);
    /* the inner one too: its first run is the outer's second, its own comes last */
    dt_recompute(b.g, DT_RECOMPUTE_FULL);
    y = dt_module_call1(b.f, b.t, b.x);
    DT_TRY(diary_is(&b, FIRST_RUN));
    DT_TRY(dt_backward(b.t, dt_sum(b.t, y, 0)));
    DT_TRY(diary_is(&b, "1[ " SECOND_RUN "c[ c? g c! c]i c]w 1]i 1]w "));
    dt_tape_reset(b.t, NULL);
    /* no gradient arrives: nothing happens */
    y = dt_module_call1(b.f, b.t, b.x);
    (void)dt_module_call1(b.f, b.t, y);
    b.diary[0] = '\0';
    DT_TRY(dt_backward(b.t, dt_sum(b.t, dt_scale(b.t, b.x, 2), 0)));
    DT_TRY(diary_is(&b, ""));
    close_bench(&b);
    return DT_OK;
}

START_TEST(hooks_in_order)
{
    test_ranks(1, order_body, NULL);
}
END_TEST

/* ---- communication ---- */

/* Row-parallel: x S(1) gathered, split again, w S(1): the result P, reduced. */
static dt_values moves_forward(dt_module *m, dt_tape *t, const dt_values *in)
{
    dt_tensor *x = dt_redistribute(t, in->value[0], "");
    dt_tensor *y =
        dt_linear(t, dt_redistribute(t, x, "S(1)@tp"), dt_module_param(m, "w")->tensor, NULL);
    return (dt_values){.n = 1, .value = {dt_redistribute(t, y, "")}};
}

static dt_status moves_body(dt_world *world, void *arg)
{
    (void)arg;
    static const dt_module_kind kind = {"moves", 0, moves_forward};
    /* backward: the adjoint of the gather is a slice, of the slice a gather, of the reduction none;
     * the second run gathers again, and in full reduces again */
    const struct {
        dt_recompute_policy policy;
        int64_t gathers, reductions;
    } want[] = {
        {DT_RECOMPUTE_NONE, 1, 0}, {DT_RECOMPUTE_FULL, 2, 1}, {DT_RECOMPUTE_SELECTIVE, 2, 0}};
    bench b;
    dt_module *m = NULL;
    dt_tape *t = NULL;
    dt_tensor *x = NULL;
    const dt_layout *layout = NULL;
    const float host[24] = {1, 2, 3};
    DT_TRY(open_bench(&b, world));
    DT_TRY(dt_module_create(&kind, &m));
    DT_TRY(dt_module_add_param(m, "w", DT_SHAPE(4, 6), NULL, (dt_init){DT_INIT_NORMAL, 1}, NULL));
    DT_TRY(dt_module_finish(m));
    DT_TRY(dt_module_place(m, b.mesh, "w", "S(1)@tp"));
    DT_TRY(dt_module_materialize(m, b.mesh, 1));
    DT_TRY(dt_mesh_layout_text(b.mesh, DT_SHAPE(4, 6), "S(0)@tp", &layout));
    DT_TRY(dt_distribute(layout, DT_F32, host, &x));
    dt_tensor_set_requires_grad(x, true);
    DT_TRY(dt_tape_create(b.mesh, NULL, &t));
    for (int i = 0; i < DT_COUNT(want); i++) {
        dt_recompute(m, want[i].policy);
        dt_tensor *loss = dt_sum(t, dt_module_call1(m, t, x), 0);
        dt_world_reset_counts(world);
        DT_TRY(dt_backward(t, loss));
        const dt_counts c = dt_world_counts(world);
        TEST_THAT(c.calls[DT_CALL_ALL_GATHER] == want[i].gathers &&
                      c.calls[DT_CALL_ALL_REDUCE] == want[i].reductions,
                  "policy %d: %lld gathers, %lld reductions", i,
                  (long long)c.calls[DT_CALL_ALL_GATHER], (long long)c.calls[DT_CALL_ALL_REDUCE]);
        dt_tape_reset(t, NULL);
    }
    dt_tape_destroy(&t);
    dt_tensor_destroy(&x);
    dt_module_destroy(&m);
    close_bench(&b);
    return DT_OK;
}

START_TEST(communication_of_the_second_run)
{
    test_ranks(2, moves_body, NULL);
}
END_TEST

/* ---- failures ---- */

/* One recomputed step of f, whose g or f goes astray in the second run. */
static dt_status goes_wrong(bench *b, dt_recompute_policy policy, dt_module *who, int then,
                            const char *text)
{
    const int64_t live = dt_heap_get_stats(b->heap).live_total;
    act *a = dt_module_state(who);
    a->calls = 0;
    a->then = then;
    dt_recompute(b->f, policy);
    dt_tensor *loss = dt_sum(b->t, dt_module_call1(b->f, b->t, b->x), 0);
    DT_TRY(dt_tape_status(b->t));
    const dt_status st = dt_backward(b->t, loss);
    TEST_THAT(st != DT_OK, "a failure was expected: %s", text);
    TEST_THAT(strstr(dt_error_trace(), text), "no '%s' in %s", text, dt_error_trace());
    TEST_THAT(strstr(dt_error_trace(), "gradients of op recompute"), "%s", dt_error_trace());
    TEST_THAT(dt_tape_status(b->t) == st, "the tape knows it");
    dt_tape_reset(b->t, NULL);
    dt_tensor_clear_grad(b->x);
    dt_tensor_clear_grad(b->w);
    TEST_THAT(dt_heap_get_stats(b->heap).live_total == live, "memory stays after %s", text);
    a->then = SAME;
    return DT_OK;
}

static dt_status failures_body(dt_world *world, void *arg)
{
    (void)arg;
    const dt_recompute_policy full = DT_RECOMPUTE_FULL, part = DT_RECOMPUTE_SELECTIVE;
    bench b;
    DT_TRY(open_bench(&b, world));
    DT_TRY(goes_wrong(&b, full, b.f, OTHER_LAYOUT, "result 0 was"));
    DT_TRY(goes_wrong(&b, full, b.f, MORE, "the second run gives 2 results"));
    DT_TRY(goes_wrong(&b, full, b.g, FAIL, "the disk is full"));
    DT_TRY(goes_wrong(&b, part, b.f, OTHER_OP, "the second run has matmul"));
    DT_TRY(goes_wrong(&b, part, b.g, OTHER_OP, " in g: op matmul("));
    b.inner.fails_again = true;
    DT_TRY(goes_wrong(&b, full, b.f, SAME, "the hook c fails"));
    b.inner.fails_again = false;
    dt_tensor *loss = dt_sum(b.t, dt_module_call1(b.f, b.t, b.x), 0);
    DT_TRY(dt_backward(b.t, loss)); /* and afterwards all is well */
    dt_tape_reset(b.t, NULL);
    /* a failure of the first run is the tape's, as ever */
    act *a = dt_module_state(b.g);
    a->then = FAIL;
    TEST_THAT(dt_tensor_is_failed(dt_module_call1(b.f, b.t, b.x)), "the first run fails");
    TEST_FAILS(DT_ERR_IO, "the disk is full", dt_tape_status(b.t));
    close_bench(&b);
    return DT_OK;
}

START_TEST(failures_are_told)
{
    test_ranks(1, failures_body, NULL);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("recompute and hooks");
    TCase *tc = tcase_create("all");
    tcase_set_timeout(tc, 100);
    tcase_add_test(tc, hooks_in_order);
    tcase_add_test(tc, communication_of_the_second_run);
    tcase_add_test(tc, failures_are_told);
    suite_add_tcase(suite, tc);
    return test_main(suite);
}
