/* tests/tp/test_styles.c - the styles one by one: placements, collectives and gradients against the
 * same module unsplit, on 2 and 4 ranks. Cases T1-T7 of the map of PyTorch's tests. Rows that are
 * errors: tests/tp/test_plans.c. */
#include "tests/harness.h"
#include "tp/dt_tp.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_ELEMENTS = 20 * 32 * 12 };

/* In (-1, 1), distinct. */
static float number(int64_t i)
{
    return (float)sin((double)i * 12.9898 + 4.1);
}

/* ---- modules under test ---- */

static dt_status make_linear(dt_module **out)
{
    const dt_linear_options o = {.in = 16, .out = 16, .bias = true, .std = 0.5};
    return dt_layer_linear(&o, out);
}

static dt_status make_embedding(dt_module **out)
{
    return dt_layer_embedding(16, 16, 0.5, out);
}

static dt_status make_layernorm(dt_module **out)
{
    return dt_layer_layernorm(12, 1e-5, out);
}

static dt_status make_rmsnorm(dt_module **out)
{
    return dt_layer_rmsnorm(12, 1e-5, out);
}

static dt_status make_layernorm_plain(dt_module **out)
{
    return dt_layer_layernorm(0, 1e-5, out);
}

static dt_status make_rmsnorm_plain(dt_module **out)
{
    return dt_layer_rmsnorm(0, 1e-5, out);
}

static dt_values dropout_forward(dt_module *m, dt_tape *t, const dt_values *in)
{
    (void)m;
    return (dt_values){.n = 1, .value = {dt_dropout(t, in->value[0], 0.3)}};
}

static dt_status make_dropout(dt_module **out)
{
    static const dt_module_kind kind = {"dropout", 0, dropout_forward};
    return dt_module_create(&kind, out);
}

static dt_status make_mlp(dt_module **out)
{
    return dt_layer_gpt2_mlp(10, 7, 0.5, 0.5, 0, out); /* 7 hidden features: uneven */
}

static dt_status make_head(dt_module **out)
{
    return dt_layer_lm_head(16, 13, 0.5, NULL, out); /* 13 tokens: uneven */
}

/* Calls counted: all-reduces, all-gathers, reduce-scatters. */
typedef struct calls {
    int64_t ar, ag, rs;
} calls;

typedef struct style_case {
    const char *name;
    dt_status (*make)(dt_module **out);
    dt_tp_rule row[3];
    const char *x;  /* layout of the input */
    dt_shape shape; /* of the input; int ids for an embedding */
    bool leaf;      /* the input wants no gradient */
    const char *y;  /* layout of the output */
    calls forward, backward, reduce;
} style_case;

#define COL DT_TP_COLWISE
#define ROW DT_TP_ROWWISE
#define SHAPE(n, ...)   \
    {                   \
        n,              \
        {               \
            __VA_ARGS__ \
        }               \
    }

/* clang-format off */
static const style_case cases[] = {
    /* name, module, rows, input, its shape, a leaf, output; calls forward, backward, of gradients
     * */
    {"T1", make_linear, {{"", COL, .in = "R"}},
     "", SHAPE(2, 8, 16), false, "S(1)@tp", {0}, {.ar = 1}, {0}},
    {"T1 from S(0)", make_linear, {{"", COL, .in = "R"}},
     "S(0)@tp", SHAPE(2, 8, 16), false, "S(1)@tp", {.ag = 1}, {.rs = 1}, {0}},
    {"T1 outer", make_linear, {{"", DT_TP_COLWISE_OUTER, .in = "R"}},
     "", SHAPE(2, 8, 16), false, "S(1)@tp", {0}, {.ar = 1}, {0}},
    {"T2", make_linear, {{"", ROW, NULL, NULL}},
     "S(1)@tp", SHAPE(2, 8, 16), false, "", {.ar = 1}, {0}, {0}},
    {"T2 to S(0)", make_linear, {{"", ROW, .out = "S(0)"}},
     "S(1)@tp", SHAPE(2, 8, 16), false, "S(0)@tp", {.rs = 1}, {.ag = 1}, {0}},
    {"T2 from R", make_linear, {{"", ROW, .in = "S(-1)"}},
     "", SHAPE(2, 8, 16), false, "", {.ar = 1}, {.ag = 1}, {0}},
    {"T3", make_embedding, {{"", COL, NULL, NULL}},
     "", SHAPE(2, 4, 6), true, "S(2)@tp", {0}, {0}, {0}},
    {"T3 rows", make_embedding, {{"", ROW, NULL, NULL}},
     "", SHAPE(2, 4, 6), true, "", {.ar = 1}, {0}, {0}},
    {"T3 rows to S(1)", make_embedding, {{"", ROW, .out = "S(1)"}},
     "", SHAPE(2, 4, 6), true, "S(1)@tp", {.rs = 1}, {.ag = 1}, {0}},
    {"T3 whole, ids split", make_embedding, {{"", DT_TP_REPLICATE, .in = "S(1)"}},
     "", SHAPE(2, 4, 6), true, "S(1)@tp", {0}, {0}, {.ar = 1}},
    {"T6", make_layernorm, {{"", DT_TP_SEQUENCE, NULL, NULL}},
     "S(1)@tp", SHAPE(3, 20, 32, 12), false, "S(1)@tp", {0}, {0}, {.ar = 1}},
    {"T6 rmsnorm, uneven", make_rmsnorm, {{"", DT_TP_SEQUENCE, NULL, NULL}},
     "S(1)@tp", SHAPE(3, 3, 7, 12), false, "S(1)@tp", {0}, {0}, {.ar = 1}},
    {"T6 from R", make_rmsnorm, {{"", DT_TP_SEQUENCE, NULL, NULL}},
     "", SHAPE(3, 3, 7, 12), false, "S(1)@tp", {0}, {.ag = 1}, {.ar = 1}},
    {"T6 without affine", make_layernorm_plain, {{"", DT_TP_SEQUENCE, NULL, NULL}},
     "S(1)@tp", SHAPE(3, 20, 32, 12), false, "S(1)@tp", {0}, {0}, {0}},
    {"T6 rmsnorm without affine, uneven", make_rmsnorm_plain, {{"", DT_TP_SEQUENCE, NULL, NULL}},
     "S(1)@tp", SHAPE(3, 3, 7, 12), false, "S(1)@tp", {0}, {0}, {0}},
    {"T6 dropout", make_dropout, {{"", DT_TP_SEQUENCE, NULL, NULL}},
     "S(1)@tp", SHAPE(3, 3, 7, 12), false, "S(1)@tp", {0}, {0}, {0}},
    {"T7", make_mlp,
     {{"", DT_TP_BORDER, .in = "R"}, {"c_fc", COL, NULL, NULL}, {"c_proj", ROW, NULL, NULL}},
     "", SHAPE(2, 8, 10), true, "", {.ar = 1}, {0}, {0}},
    {"T7 sequence", make_mlp,
     {{"", DT_TP_BORDER, .in = "R"}, {"c_fc", COL, NULL, NULL}, {"c_proj", ROW, .out = "S(0)"}},
     "S(0)@tp", SHAPE(2, 8, 10), true, "S(0)@tp", {.ag = 1, .rs = 1}, {.ag = 1}, {0}},
    {"head", make_head, {{"", COL, .in = "R"}},
     "", SHAPE(3, 2, 3, 16), false, "S(2)@tp", {0}, {.ar = 1}, {0}},
    {"head gathered", make_head, {{"", COL, .in = "R", .out = "R"}},
     "", SHAPE(3, 2, 3, 16), false, "", {.ag = 1}, {.ar = 1}, {0}},
};
/* clang-format on */

/* ---- one case ---- */

static calls counted(dt_world *world)
{
    const dt_counts c = dt_world_counts(world);
    dt_world_reset_counts(world);
    return (calls){c.calls[DT_CALL_ALL_REDUCE], c.calls[DT_CALL_ALL_GATHER],
                   c.calls[DT_CALL_REDUCE_SCATTER]};
}

#define SAME_CALLS(what, got, want)                                                              \
    TEST_THAT((got).ar == (want).ar && (got).ag == (want).ag && (got).rs == (want).rs,           \
              "%s, %s: %lld all-reduces, %lld all-gathers, %lld reduce-scatters", s->name, what, \
              (long long)(got).ar, (long long)(got).ag, (long long)(got).rs)

/* What a run leaves: whole arrays, read from every rank. */
typedef struct run {
    float y[MAX_ELEMENTS], dx[MAX_ELEMENTS], grad[2][MAX_ELEMENTS];
    calls forward, backward, reduce;
    const dt_layout *layout;
} run;

static dt_status input(dt_mesh *mesh, const style_case *s, const char *layout, dt_tensor **out)
{
    const dt_layout *l = NULL;
    DT_TRY(dt_mesh_layout_text(mesh, s->shape, layout, &l));
    float value[MAX_ELEMENTS];
    int32_t id[MAX_ELEMENTS];
    for (int64_t i = 0; i < dt_shape_count(s->shape); i++) {
        value[i] = number(i);
        id[i] = (int32_t)(i * 7 % 16);
    }
    if (s->make == make_embedding) {
        DT_TRY(dt_distribute(l, DT_I32, id, out));
        return DT_OK;
    }
    DT_TRY(dt_distribute(l, DT_F32, value, out));
    dt_tensor_set_requires_grad(*out, !s->leaf);
    return DT_OK;
}

/* A leaf's gradient as a whole; P is summed. Not counted. */
static dt_status read_grad(dt_world *world, dt_tensor *leaf, float *host)
{
    const dt_local *g = dt_tensor_grad(leaf);
    dt_tensor *whole = NULL;
    DT_TRY(dt_from_array(g->layout, &g->array, &whole));
    DT_TRY(dt_tensor_read_f32_sync(whole, host));
    dt_tensor_destroy(&whole);
    dt_world_reset_counts(world);
    return DT_OK;
}

/* loss = sum of y * y * c, so that every element has a gradient of its own. */
static dt_status go(dt_world *world, dt_module *m, dt_tensor *x, run *r)
{
    static const char *const name[] = {"weight", "bias"};
    dt_tape *t = NULL;
    DT_TRY(dt_tape_create(dt_tensor_mesh(x), NULL, &t));
    dt_world_reset_counts(world);
    dt_tensor *y = dt_module_call1(m, t, x);
    DT_TRY(dt_tape_status(t));
    r->forward = counted(world);
    r->layout = dt_tensor_layout(y);
    dt_tensor *loss = dt_sum(t, dt_mul(t, y, y), 0);
    DT_TRY(dt_backward(t, loss));
    r->backward = counted(world);
    DT_TRY(dt_module_reduce_grads(m));
    r->reduce = counted(world);
    DT_TRY(dt_tensor_read_f32_sync(y, r->y));
    if (dt_tensor_requires_grad(x))
        DT_TRY(read_grad(world, x, r->dx));
    dt_module *last = m;
    while (dt_module_nchildren(last))
        last = dt_module_child(last, 0);
    for (int i = 0; i < DT_COUNT(name); i++) {
        if (dt_module_param(last, name[i]))
            DT_TRY(read_grad(world, dt_module_param(last, name[i])->tensor, r->grad[i]));
    }
    dt_tape_destroy(&t);
    return DT_OK;
}

static dt_status run_module(dt_world *world, dt_mesh *mesh, const style_case *s, bool split, run *r)
{
    dt_module *m = NULL;
    dt_tensor *x = NULL;
    int nrows = 0;
    while (nrows < DT_COUNT(s->row) && s->row[nrows].pattern)
        nrows++;
    DT_TRY(s->make(&m));
    DT_TRY(dt_module_finish(m));
    if (split)
        DT_TRY(dt_parallelize_module(
            m, mesh, "tp", &(dt_tp_plan){.nrules = nrows, .rule = s->row, .keep_gathered = true}));
    DT_TRY(dt_module_materialize(m, mesh, 7));
    DT_TRY(input(mesh, s, split ? s->x : "", &x));
    DT_TRY(go(world, m, x, r));
    dt_tensor_destroy(&x);
    dt_module_destroy(&m);
    return DT_OK;
}

static bool near(const float *a, const float *b)
{
    return test_max_diff(a, b, MAX_ELEMENTS) <= 1e-5 * test_max_abs(b, MAX_ELEMENTS);
}

static dt_status style_body(dt_world *world, void *arg)
{
    const style_case *s = arg;
    char text[DT_LAYOUT_TEXT];
    dt_mesh *mesh = NULL;
    const dt_layout *want = NULL;
    const dt_mesh_options options = {.axes = {{"dp", 1}, {"tp", -1}}};
    run *r = calloc(2, sizeof *r);
    TEST_THAT(r, "memory");
    DT_TRY(dt_mesh_create(world, test_device(world), &options, &mesh));
    DT_TRY(run_module(world, mesh, s, true, &r[0]));
    DT_TRY(run_module(world, mesh, s, false, &r[1]));
    SAME_CALLS("forward", r[0].forward, s->forward);
    SAME_CALLS("backward", r[0].backward, s->backward);
    SAME_CALLS("gradients", r[0].reduce, s->reduce);
    DT_TRY(dt_mesh_layout_text(mesh, r[0].layout->shape, s->y, &want));
    TEST_THAT(r[0].layout == want, "%s: output %s", s->name,
              dt_layout_print(r[0].layout, text, sizeof text));
    TEST_THAT(near(r[0].y, r[1].y) && near(r[0].dx, r[1].dx), "%s: values", s->name);
    TEST_THAT(near(r[0].grad[0], r[1].grad[0]) && near(r[0].grad[1], r[1].grad[1]),
              "%s: gradients of parameters", s->name);
    if (s->row[0].style != ROW && !s->row[1].pattern)
        TEST_THAT(memcmp(r[0].y, r[1].y, sizeof r->y) == 0, "%s: other bits", s->name);
    free(r);
    dt_mesh_destroy(&mesh);
    return DT_OK;
}

START_TEST(styles)
{
    style_case s = cases[_i / 2];
    test_ranks(_i % 2 ? 4 : 2, style_body, &s);
}
END_TEST

/* ---- what is not a style ---- */

/* T4: a frozen weight stays so beside a bias that learns, and the other way round. */
static dt_status frozen_body(dt_world *world, void *arg)
{
    (void)arg;
    const dt_tp_rule row = {"", COL, .in = "R"};
    const style_case s = {.make = make_linear, .shape = DT_SHAPE(8, 16)};
    for (int frozen = 0; frozen < 2; frozen++) {
        dt_mesh *mesh = NULL;
        dt_module *m = NULL;
        dt_tensor *x = NULL;
        dt_tape *t = NULL;
        DT_TRY(dt_mesh_create(world, test_device(world), &(dt_mesh_options){.axes = {{"tp", -1}}},
                              &mesh));
        DT_TRY(make_linear(&m));
        DT_TRY(dt_module_finish(m));
        dt_param *p[2] = {dt_module_param(m, "weight"), dt_module_param(m, "bias")};
        p[frozen]->frozen = true;
        DT_TRY(dt_parallelize_module(m, mesh, "tp", &(dt_tp_plan){.nrules = 1, .rule = &row}));
        DT_TRY(dt_module_materialize(m, mesh, 7));
        DT_TRY(input(mesh, &s, "", &x));
        DT_TRY(dt_tape_create(mesh, NULL, &t));
        DT_TRY(dt_backward(t, dt_sum(t, dt_module_call1(m, t, x), 0)));
        TEST_THAT(!dt_tensor_grad(p[frozen]->tensor)->array.storage,
                  "the frozen one has a gradient");
        TEST_THAT(dt_tensor_grad(p[1 - frozen]->tensor)->array.storage, "the other one has none");
        dt_tape_destroy(&t);
        dt_tensor_destroy(&x);
        dt_module_destroy(&m);
        dt_mesh_destroy(&mesh);
    }
    return DT_OK;
}

START_TEST(frozen_parameters)
{
    test_ranks(2, frozen_body, NULL);
}
END_TEST

/* T5: every input named by an `in` list costs its own all-gather; "-" and NULL values are left. */
static dt_values pass(dt_module *m, dt_tape *t, const dt_values *in)
{
    (void)m;
    (void)t;
    return *in;
}

static dt_status border_body(dt_world *world, void *arg)
{
    (void)arg;
    static const dt_module_kind kind = {"pass", 0, pass};
    const dt_tp_rule row = {"", DT_TP_BORDER, .in = "R, -, R, R", .out = "S(0)"};
    dt_mesh *mesh = NULL;
    dt_module *m = NULL;
    dt_tape *t = NULL;
    dt_tensor *x = NULL;
    const style_case s = {.shape = DT_SHAPE(2, 16)};
    DT_TRY(
        dt_mesh_create(world, test_device(world), &(dt_mesh_options){.axes = {{"tp", -1}}}, &mesh));
    DT_TRY(dt_module_create(&kind, &m));
    DT_TRY(dt_module_finish(m));
    DT_TRY(dt_parallelize_module(m, mesh, "tp", &(dt_tp_plan){.nrules = 1, .rule = &row}));
    DT_TRY(input(mesh, &s, "S(0)@tp", &x));
    DT_TRY(dt_tape_create(mesh, NULL, &t));
    dt_world_reset_counts(world);
    const dt_values in = {.n = 4, .value = {x, x, NULL, x}};
    const dt_values out = dt_module_call(m, t, &in);
    DT_TRY(dt_tape_status(t));
    const calls c = counted(world);
    TEST_THAT(c.ag == 2 && c.ar == 0 && c.rs == 0, "%lld all-gathers", (long long)c.ag);
    TEST_THAT(dt_tensor_layout(out.value[0]) == dt_tensor_layout(x), "out of the first");
    TEST_THAT(dt_tensor_layout(out.value[3])->nsplit[0] == 0, "only the first has an `out`");
    TEST_THAT(out.value[1] == x && !out.value[2], "values left alone");
    const dt_values few = {.n = 2, .value = {x, x}};
    (void)dt_module_call(m, t, &few);
    TEST_FAILS(DT_ERR_ARG, "places 4 inputs of module '', the call has 2", dt_tape_status(t));
    dt_tape_destroy(&t);
    dt_tensor_destroy(&x);
    dt_module_destroy(&m);
    dt_mesh_destroy(&mesh);
    return DT_OK;
}

START_TEST(borders)
{
    test_ranks(2, border_body, NULL);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("tensor parallel styles");
    TCase *tc = tcase_create("styles");
    tcase_set_timeout(tc, 120);
    test_loop(tc, styles, 2 * DT_COUNT(cases));
    tcase_add_test(tc, frozen_parameters);
    tcase_add_test(tc, borders);
    suite_add_tcase(suite, tc);
    return test_main(suite);
}
