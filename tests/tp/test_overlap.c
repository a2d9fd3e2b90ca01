/* tests/tp/test_overlap.c - overlapped tensor parallelism: the results of plain sequence
 * parallelism within the law, the same bytes, and products that run while pieces are under way. */
#include "tests/harness.h"
#include "tests/tp/model_case.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_GRADS = 40000 };

typedef struct outcome {
    double loss;
    int64_t bytes, sends;
    float grad[MAX_GRADS]; /* whole, of all parameters, one after the other */
    int64_t count;
    int overlapped,
        rings; /* products begun between the issue of a piece and its arrival; sends issued */
} outcome;

typedef struct job {
    const model_case *c;
    outcome *outcome;
    bool hooks;
} job;

static dt_values doubled(dt_module *m, dt_tape *t, const dt_values *values, void *arg)
{
    (void)m;
    (void)arg;
    return (dt_values){.n = 1, .value = {dt_scale(t, values->value[0], 2)}};
}

static dt_status fires(dt_module *m, dt_tape *t, bool recompute, void *arg)
{
    (void)m;
    (void)t;
    (void)recompute;
    ++*(int *)arg;
    return DT_OK;
}

/* Products of one input: one sees it doubled, another is doubled, a third counts its calls. */
static dt_status add_hooks(dt_module *model, int *fired)
{
    const dt_lifetime counts = {.pre_forward = fires, .arg = fired};
    dt_module *k = dt_module_find(model, "model.layers.0.self_attn.k_proj");
    dt_module *v = dt_module_find(model, "model.layers.0.self_attn.v_proj");
    dt_module *gate = dt_module_find(model, "model.layers.1.mlp.gate_proj");
    TEST_THAT(k && v && gate, "a Llama");
    DT_TRY(dt_module_add_transform(k, doubled, NULL, NULL, NULL));
    DT_TRY(dt_module_add_transform(v, NULL, doubled, NULL, NULL));
    DT_TRY(dt_module_add_lifetime(gate, &counts));
    return DT_OK;
}

static dt_status read_grads(dt_module *model, float *grad, int64_t *count)
{
    int n = 0;
    dt_param *const *p = dt_module_params(model, &n);
    *count = 0;
    for (int i = 0; i < n; i++) {
        const dt_local *g = dt_tensor_grad(p[i]->tensor);
        dt_tensor *whole = NULL;
        TEST_THAT(*count + dt_shape_count(p[i]->shape) <= MAX_GRADS, "room");
        DT_TRY(dt_from_array(g->layout, &g->array, &whole));
        DT_TRY(dt_tensor_read_f32_sync(whole, grad + *count));
        dt_tensor_destroy(&whole);
        *count += dt_shape_count(p[i]->shape);
    }
    return DT_OK;
}

/* A product overlaps if it begins after a send was issued that nobody has waited for yet: "issue"
 * of a send, then BEGIN of a product, before the "wait" for that send. */
static void count_overlap(dt_trace *trace, outcome *o)
{
    int64_t n = 0;
    const dt_trace_event *e = dt_trace_events(trace, &n);
    bool flying = false;
    for (int64_t i = 0; i < n; i++) {
        const bool send = strncmp(e[i].name, "send ", 5) == 0;
        if (strcmp(e[i].kind, "issue") == 0 && send) {
            flying = true;
            o->rings++;
        } else if (strcmp(e[i].kind, "wait") == 0 && send) {
            flying = false;
        } else if (strcmp(e[i].kind, "product") == 0 && e[i].phase == DT_TRACE_BEGIN && flying) {
            o->overlapped++;
        }
    }
}

static dt_status body(dt_world *world, void *arg)
{
    const job *j = arg;
    dt_mesh *mesh = NULL;
    dt_module *model = NULL;
    dt_tape *t = NULL;
    dt_trace *trace = NULL;
    dt_values in = {0};
    int64_t valid = 0;
    outcome *mine = calloc(1, sizeof *mine);
    TEST_THAT(mine, "memory");
    DT_TRY(model_case_lay_out(j->c, NULL, world, test_device(world), &mesh, &model));
    DT_TRY(model_case_batch(j->c, mesh, &in, &valid));
    int fired = 0;
    if (j->hooks)
        DT_TRY(add_hooks(model, &fired));
    dt_model_set_loss(model, valid, 0);
    DT_TRY(dt_tape_create(mesh, NULL, &t));
    DT_TRY(dt_trace_create(&trace));
    dt_world_set_trace(world, trace);
    const int before = dt_world_comms_created(world);
    dt_world_reset_counts(world);
    dt_tensor *loss = dt_module_call(model, t, &in).value[0];
    TEST_THAT(fired == j->hooks, "a hook was called %d times", fired);
    DT_TRY(dt_backward(t, loss));
    const dt_counts counts = dt_world_counts(world);
    dt_world_set_trace(world, NULL);
    TEST_THAT(!j->c->overlap || dt_world_comms_created(world) - before <= 1,
              "%d communicators made within a step, one is that of the axis",
              dt_world_comms_created(world) - before);
    mine->bytes = counts.total_bytes;
    mine->sends = counts.calls[DT_CALL_SEND];
    count_overlap(trace, mine);
    DT_TRY(dt_module_reduce_grads(model));
    DT_TRY(dt_tensor_item_sync(loss, &mine->loss));
    DT_TRY(read_grads(model, mine->grad, &mine->count));
    if (dt_world_rank(world) == 0)
        *j->outcome = *mine;
    free(mine);
    dt_trace_destroy(&trace);
    dt_tape_destroy(&t);
    dt_tensor_destroy(&in.value[0]);
    dt_tensor_destroy(&in.value[1]);
    dt_module_destroy(&model);
    dt_mesh_destroy(&mesh);
    return DT_OK;
}

static void run_job(job j)
{
    *j.outcome = (outcome){0};
    test_ranks(j.c->dp * j.c->tp, body, &j);
}

static void run(const model_case *c, outcome *o)
{
    run_job((job){.c = c, .outcome = o});
}

static void run_hooked(const model_case *c, outcome *o)
{
    run_job((job){.c = c, .outcome = o, .hooks = true});
}

static void near(const outcome *a, const outcome *b, double limit)
{
    ck_assert(a->loss - b->loss < limit && b->loss - a->loss < limit);
    const double worst = test_max_diff(a->grad, b->grad, b->count);
    ck_assert_msg(worst <= limit * test_max_abs(b->grad, b->count), "gradients differ by %g",
                  worst);
}

/* 4 models x tp 2, 3, 4 x sequences that divide and not. The last one has tp_kv x tp_rep 2 x 1,
 * 1 x 3 and 2 x 2. */
START_TEST(overlap_changes_nothing)
{
    static outcome plain, overlap, one;
    model_case c = model_case_usual(_i / 6);
    c.seq = _i % 2 ? 5 : 12; /* 5 on 2 x 2: 2, 1, 1, 1; on 4: 2, 2, 1, 0 */
    run(&c, &one);
    c.tp = 2 + _i / 2 % 3;
    c.dp = c.tp == 2 ? 2 : 1;
    c.sp = true;
    run(&c, &plain);
    c.overlap = true;
    run(&c, &overlap);
    ck_assert(plain.sends == 0 && overlap.sends > 0);
    near(&overlap, &one, 1e-5);
    if (c.seq == 12) /* pieces are equal, and rank 0 sends as many bytes as any */
        ck_assert_int_eq(overlap.bytes, plain.bytes);
    /* Per layer: gather twice a forward and twice (again) for weights, scatter twice forward and
     * twice backward, and gather dy twice; each is t - 1 sends. Gathers overlap every send with a
     * product, and so do scatters. */
    ck_assert_int_eq(overlap.sends, c.layers * 10 * (c.tp - 1));
    ck_assert_int_eq(overlap.rings, overlap.sends);
    ck_assert_int_eq(overlap.overlapped, overlap.sends);
}
END_TEST

/* What is added to a linear layer does what it does without overlap. */
START_TEST(hooks_are_called)
{
    static outcome without, one, overlap;
    model_case c = model_case_usual(0);
    run(&c, &without);
    run_hooked(&c, &one);
    ck_assert(test_max_diff(one.grad, without.grad, one.count) > 1e-3);
    c.tp = 3;
    c.sp = c.overlap = true;
    run_hooked(&c, &overlap);
    ck_assert(overlap.sends > 0);
    near(&overlap, &one, 1e-5);
}
END_TEST

/* T11: 16 bits travel as 16 bits; sums on the way are rounded to them, which plain reduce-scatter
 * does once: no more than twice as far from f32. */
START_TEST(half_the_bytes_in_bf16)
{
    static outcome plain, overlap, one;
    model_case c = model_case_usual(_i);
    c.seq = 12;
    run(&c, &one);
    c.tp = 4;
    c.sp = c.bf16 = true;
    run(&c, &plain);
    c.overlap = true;
    run(&c, &overlap);
    ck_assert_int_eq(overlap.bytes, plain.bytes);
    const double usual = test_max_diff(plain.grad, one.grad, one.count);
    const double worst = test_max_diff(overlap.grad, one.grad, one.count);
    ck_assert(usual > 0 && usual < 0x1p-4 * test_max_abs(one.grad, one.count));
    ck_assert_msg(worst <= 2 * usual, "gradients are off by %g, plain ones by %g", worst, usual);
}
END_TEST

/* ---- the op ---- */

/* dx and dw of sum(y^2), y = x w^T: x S(1) on tp, gathered, and w R, so that y and dy are R there.
 * dw is then P, with the value once. */
static dt_status replicated_body(dt_world *world, void *arg)
{
    enum { B = 2, S = 5, K = 3, N = 4 };
    static const char *const place[] = {"", "S(1)@tp"};
    float value[B * S * K], grad[2][2][B * S * K] = {0};
    dt_mesh *mesh = NULL;
    (void)arg;
    for (int i = 0; i < B * S * K; i++)
        value[i] = (float)(i * 7 % 11) / 8 - 0.5f;
    DT_TRY(
        dt_mesh_create(world, test_device(world), &(dt_mesh_options){.axes = {{"tp", -1}}}, &mesh));
    for (int overlap = 0; overlap < 2; overlap++) {
        dt_tensor *x = NULL, *w = NULL, *b = NULL, *y = NULL, *whole = NULL;
        dt_tape *t = NULL;
        const dt_layout *lx = NULL, *lw = NULL;
        const dt_overlap_options o = {.naxes = 1, .axis = {0}, .n = 1};
        DT_TRY(dt_mesh_layout_text(mesh, DT_SHAPE(B, S, K), place[overlap], &lx));
        DT_TRY(dt_mesh_layout_text(mesh, DT_SHAPE(N, K), "", &lw));
        DT_TRY(dt_distribute(lx, DT_F32, value, &x));
        DT_TRY(dt_distribute(lw, DT_F32, value, &w));
        dt_tensor_set_requires_grad(x, true);
        dt_tensor_set_requires_grad(w, true);
        DT_TRY(dt_tape_create(mesh, NULL, &t));
        if (overlap)
            dt_gather_linear(t, x, &o, &w, &b, &y);
        else
            y = dt_linear(t, x, w, NULL);
        DT_TRY(dt_backward(t, dt_sum(t, dt_mul(t, y, y), 0)));
        for (int i = 0; i < 2; i++) {
            const dt_local *g = dt_tensor_grad(i ? w : x);
            DT_TRY(dt_from_array(g->layout, &g->array, &whole));
            DT_TRY(dt_tensor_read_f32_sync(whole, grad[overlap][i]));
            dt_tensor_destroy(&whole);
        }
        TEST_THAT(!overlap || dt_tensor_grad(w)->layout->partial == 1, "dw is P");
        dt_tape_destroy(&t);
        dt_tensor_destroy(&x);
        dt_tensor_destroy(&w);
    }
    for (int i = 0; i < 2; i++)
        TEST_THAT(test_max_diff(grad[0][i], grad[1][i], B * S * K) <= 1e-5, "gradient of %s",
                  i ? "w" : "x");
    dt_mesh_destroy(&mesh);
    return DT_OK;
}

START_TEST(replicated_weights_count_once)
{
    test_ranks(3, replicated_body, NULL);
}
END_TEST

/* Two products of one gathered x, of which one has a bias. */
static dt_status one_bias_body(dt_world *world, void *arg)
{
    enum { B = 2, S = 5, K = 3, N = 4 };
    float value[B * S * K], y[2][B * S * N];
    dt_mesh *mesh = NULL;
    dt_tape *t = NULL;
    dt_tensor *x[2] = {NULL}, *w = NULL, *bias = NULL, *out[2] = {NULL};
    const dt_overlap_options o = {.naxes = 1, .axis = {0}, .n = 2};
    const dt_layout *layout = NULL;
    (void)arg;
    for (int i = 0; i < B * S * K; i++)
        value[i] = (float)(i * 7 % 11) / 8 - 0.5f;
    DT_TRY(
        dt_mesh_create(world, test_device(world), &(dt_mesh_options){.axes = {{"tp", -1}}}, &mesh));
    DT_TRY(dt_tape_create(mesh, &(dt_tape_options){.no_grad = true}, &t));
    for (int i = 0; i < 2; i++) {
        DT_TRY(dt_mesh_layout_text(mesh, DT_SHAPE(B, S, K), i ? "S(1)@tp" : "", &layout));
        DT_TRY(dt_distribute(layout, DT_F32, value, &x[i]));
    }
    DT_TRY(dt_mesh_layout_text(mesh, DT_SHAPE(N, K), "", &layout));
    DT_TRY(dt_distribute(layout, DT_F32, value, &w));
    DT_TRY(dt_mesh_layout_text(mesh, DT_SHAPE(N), "", &layout));
    DT_TRY(dt_distribute(layout, DT_F32, value, &bias));
    for (int with = 0; with < 2; with++) {
        dt_gather_linear(t, x[1], &o, (dt_tensor *[]){w, w},
                         (dt_tensor *[]){with == 0 ? bias : NULL, with == 1 ? bias : NULL}, out);
        for (int i = 0; i < 2; i++) {
            DT_TRY(dt_tensor_read_f32_sync(out[i], y[0]));
            DT_TRY(dt_tensor_read_f32_sync(dt_linear(t, x[0], w, i == with ? bias : NULL), y[1]));
            TEST_THAT(test_max_diff(y[0], y[1], B * S * N) <= 1e-6, "bias of %d, output %d", with,
                      i);
        }
    }
    dt_tape_destroy(&t);
    dt_tensor_destroy(&x[0]);
    dt_tensor_destroy(&x[1]);
    dt_tensor_destroy(&w);
    dt_tensor_destroy(&bias);
    dt_mesh_destroy(&mesh);
    return DT_OK;
}

START_TEST(a_bias_of_one_product)
{
    test_ranks(3, one_bias_body, NULL);
}
END_TEST

/* There is no sequence to go round in pieces. */
static dt_status refused_body(dt_world *world, void *arg)
{
    dt_mesh *mesh = NULL;
    dt_module *model = NULL;
    TEST_FAILS(DT_ERR_ARG, "needs sequence=true; legal: both, or overlap=false",
               model_case_lay_out(arg, NULL, world, test_device(world), &mesh, &model));
    dt_module_destroy(&model);
    dt_mesh_destroy(&mesh);
    return DT_OK;
}

START_TEST(overlap_needs_a_sequence)
{
    model_case c = model_case_usual(_i);
    c.tp = 4;
    c.overlap = true;
    test_ranks(4, refused_body, &c);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("overlapped tensor parallelism");
    TCase *tc = tcase_create("overlap");
    tcase_set_timeout(tc, 120);
    test_loop(tc, overlap_changes_nothing, 24);
    test_loop(tc, half_the_bytes_in_bf16, 4);
    test_loop(tc, overlap_needs_a_sequence, 4);
    tcase_add_test(tc, replicated_weights_count_once);
    tcase_add_test(tc, hooks_are_called);
    tcase_add_test(tc, a_bias_of_one_product);
    suite_add_tcase(suite, tc);
    return test_main(suite);
}
