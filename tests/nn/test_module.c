/* tests/nn/test_module.c - the tree of modules, placing, and initial values that are the same on
 * every mesh. */
#include "base/dt_random.h"
#include "models/dt_models.h"
#include "nn/dt_layers.h"
#include "tests/harness.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static const char *golden = "tests/golden";

static dt_values pass_on(dt_module *m, dt_tape *t, const dt_values *in)
{
    (void)m;
    (void)t;
    return *in;
}

static const dt_module_kind plain = {"plain", 16, pass_on};

static dt_module *make(void)
{
    dt_module *m = NULL;
    ck_ok(dt_module_create(&plain, &m));
    return m;
}

static dt_status mesh_of(dt_world *world, const dt_axis *axes, int naxes, dt_mesh **out)
{
    dt_mesh_options o = {0};
    for (int a = 0; a < naxes; a++)
        o.axes[a] = axes[a];
    DT_TRY(dt_mesh_create(world, test_device(world), &o, out));
    return DT_OK;
}

/* ---- the tree ---- */

#define ck_fails(st, word, call)                                                            \
    do {                                                                                    \
        ck_assert_msg((call) == (st), "%s: %s", #call, dt_error_trace());                   \
        ck_assert_msg(strstr(dt_error_trace(), (word)), "%s: %s", #call, dt_error_trace()); \
    } while (0)

/* root { a { weight; x { weight, bias } }, b { weight = a's } } */
static dt_module *tree(void)
{
    dt_module *root = make(), *a = make(), *x = make(), *b = make();
    const dt_init zeros = {DT_INIT_ZEROS, 0}, normal = {DT_INIT_NORMAL, 0.5};
    dt_param *w = NULL;
    ck_ok(dt_module_add_param(a, "weight", DT_SHAPE(6, 4), NULL, normal, &w));
    ck_ok(
        dt_module_add_param(x, "weight", DT_SHAPE(2, 3, 4), &(dt_shape){2, {2, 12}}, normal, NULL));
    ck_ok(dt_module_add_param(x, "bias", DT_SHAPE(3), NULL, zeros, NULL));
    ck_ok(dt_module_tie(b, "weight", w));
    ck_ok(dt_module_add(a, "x", x));
    ck_ok(dt_module_add(root, "a", a));
    ck_ok(dt_module_add(root, "b", b));
    return root;
}

START_TEST(names_and_paths)
{
    dt_module *root = tree(), *stray = make();
    dt_module *x = dt_module_find(root, "a.x");
    ck_assert_ptr_nonnull(x);
    ck_fails(DT_ERR_ARG, "root", dt_module_finish(x));
    ck_ok(dt_module_finish(root));
    ck_assert_str_eq(dt_module_path(root), "");
    ck_assert_str_eq(dt_module_path(x), "a.x");
    ck_assert_ptr_eq(dt_module_find(root, ""), root);
    ck_assert_ptr_eq(dt_module_find(dt_module_child(root, 0), "x"), x);
    ck_assert_ptr_null(dt_module_find(root, "a.y"));
    ck_assert_ptr_null(dt_module_find(root, "a.x.weight"));
    ck_assert_ptr_null(dt_module_find(root, "ab"));
    ck_assert_str_eq(dt_module_param(x, "bias")->name, "a.x.bias");
    ck_assert_ptr_null(dt_module_param(x, "biases"));
    ck_assert_str_eq(dt_module_kind_name(x), "plain");
    for (int i = 0; i < 16; i++)
        ck_assert_int_eq(((char *)dt_module_state(x))[i], 0);
    ck_fails(DT_ERR_ARG, "two children", dt_module_add(root, "a", stray));
    ck_fails(DT_ERR_ARG, "dot", dt_module_add(root, "a.b", stray));
    ck_fails(DT_ERR_ARG, "letters", dt_module_add(root, "", stray));
    ck_fails(DT_ERR_ARG, "parent already", dt_module_add(root, "c", x));
    ck_fails(DT_ERR_ARG, "two parameters",
             dt_module_add_param(x, "bias", DT_SHAPE(1), NULL, (dt_init){0}, NULL));
    ck_fails(DT_ERR_SHAPE, "7 elements",
             dt_module_add_param(x, "c", DT_SHAPE(6), &(dt_shape){1, {7}}, (dt_init){0}, NULL));
    dt_module_destroy(&stray);
    dt_module_destroy(&root);
    ck_assert_ptr_null(root);
    dt_module_destroy(&root);
}
END_TEST

START_TEST(parameters_each_once)
{
    dt_module *root = tree();
    ck_ok(dt_module_finish(root));
    int n = 0;
    dt_param *const *p = dt_module_params(root, &n);
    static const char *const names[] = {"a.weight", "a.x.weight", "a.x.bias"};
    ck_assert_int_eq(n, 3);
    for (int i = 0; i < n; i++)
        ck_assert_str_eq(p[i]->name, names[i]);
    ck_assert_int_eq(p[0]->users, 2);
    ck_assert_int_eq(dt_module_count(root), 24 + 24 + 3);
    ck_assert_int_eq(dt_module_count(dt_module_find(root, "b")), 24);
    ck_assert_int_eq(dt_module_local_bytes(root), 51 * 4);
    dt_module_destroy(&root);
}
END_TEST

/* ---- placing ---- */

static void note_line(void *arg, const char *text)
{
    char *all = arg;
    (void)snprintf(all + strlen(all), 2000 - strlen(all), "%s\n", text);
}

static dt_status place_tree(dt_module *root, dt_mesh *mesh)
{
    TEST_FAILS(DT_ERR_STATE, "dt_module_finish", dt_module_place(root, mesh, "*", ""));
    TEST_FAILS(DT_ERR_STATE, "dt_module_finish", dt_module_materialize(root, mesh, 1));
    DT_TRY(dt_module_finish(root));
    int n = 0;
    dt_param *const *p = dt_module_params(root, &n);
    TEST_FAILS(DT_ERR_ARG, "matches 'z*'", dt_module_place(root, mesh, "z*", ""));
    TEST_FAILS(DT_ERR_PLACEMENT, "a.weight", dt_module_place(root, mesh, "a.weight", "P@tp"));
    TEST_FAILS(DT_ERR_PLACEMENT, "", dt_module_place(root, mesh, "a.x.bias", "S(1)@tp"));
    for (int i = 0; i < n; i++)
        TEST_THAT(!p[i]->layout, "a failed call places nothing");
    DT_TRY(dt_module_place(root, mesh, "*.weight", "S(0)@tp"));
    p[1]->dtype = DT_BF16;
    p[2]->frozen = true;
    TEST_THAT(dt_module_local_bytes(root) == 12 * 4 + 12 * 2 + 3 * 4, "half of the weights");
    DT_TRY(dt_module_materialize(root, mesh, 7));
    TEST_THAT(p[2]->layout->nsplit[0] == 0, "not placed: R");
    TEST_THAT(dt_tensor_requires_grad(p[0]->tensor) && !dt_tensor_requires_grad(p[2]->tensor),
              "frozen");
    TEST_THAT(strcmp(dt_tensor_name(p[1]->tensor), "a.x.weight") == 0, "named");
    TEST_THAT(dt_tensor_dtype(p[1]->tensor) == DT_BF16, "its own type");
    const dt_tensor *before = p[0]->tensor;
    DT_TRY(dt_module_materialize(root, mesh, 8));
    TEST_THAT(p[0]->tensor == before, "only once");
    TEST_FAILS(DT_ERR_STATE, "materialized already", dt_module_place(root, mesh, "*", ""));
    char all[2000] = "";
    dt_module_print(root, note_line, all);
    static const char *const words[] = {"model (plain)", "a.x (plain)",
                                        "a.weight [6, 4] f32 [S(0)@tp] local [3, 4] tied",
                                        "a.x.weight [2, 3, 4] bf16 [S(0)@tp] local [1, 3, 4]"};
    for (int i = 0; i < DT_COUNT(words); i++)
        TEST_THAT(strstr(all, words[i]), "'%s' lacks '%s'", all, words[i]);
    return DT_OK;
}

static dt_status placing_body(dt_world *world, void *arg)
{
    (void)arg;
    dt_mesh *mesh = NULL;
    dt_module *root = tree();
    DT_TRY(mesh_of(world, (dt_axis[]){{"tp", 2}}, 1, &mesh));
    DT_TRY(place_tree(root, mesh));
    dt_module_destroy(&root);
    dt_mesh_destroy(&mesh);
    return DT_OK;
}

START_TEST(placing)
{
    test_ranks(2, placing_body, NULL);
}
END_TEST

static dt_status no_room_body(dt_world *world, void *arg)
{
    (void)arg;
    dt_mesh *mesh = NULL;
    dt_module *root = tree();
    DT_TRY(mesh_of(world, (dt_axis[]){{"tp", 1}}, 1, &mesh));
    DT_TRY(dt_module_finish(root));
    TEST_FAILS(DT_ERR_NOMEM, "parameter a.x.weight", dt_module_materialize(root, mesh, 7));
    dt_module_destroy(&root);
    dt_mesh_destroy(&mesh);
    return DT_OK;
}

START_TEST(no_room_names_the_parameter)
{
    const dt_world_options o = {.heap.limit_bytes = 150};
    test_ranks_with(1, &o, no_room_body, NULL);
}
END_TEST

/* ---- initial values: those of the named Philox sequence at the global index of the file shape,
 * on every mesh ---- */

typedef struct init_case {
    const char *model;
    int naxes;
    dt_axis axes[2];
} init_case;

static const init_case init_cases[] = {
    {"llama_tiny", 1, {{"tp", 1}}},
    {"llama_tiny", 1, {{"tp", 2}}},
    {"llama_tiny", 1, {{"tp", 3}}},
    {"llama_tiny", 1, {{"tp", 4}}},
    {"llama_tiny", 2, {{"dp", 2}, {"tp", 2}}},
    {"gpt2_tiny", 1, {{"tp", 1}}},
    {"gpt2_tiny", 1, {{"tp", 2}}},
    {"gpt2_tiny", 1, {{"tp", 3}}},
    {"gpt2_tiny", 1, {{"tp", 4}}},
    {"gpt2_tiny", 2, {{"dp", 2}, {"tp", 2}}},
};

enum { SEED = 5 };

/* The value of an element of the file shape; bits. */
static float initial(const dt_param *p, int64_t index)
{
    if (p->init.kind != DT_INIT_NORMAL)
        return p->init.kind == DT_INIT_ONES ? 1.0f : 0.0f;
    return (float)(p->init.std * (double)dt_normal(dt_key_named(SEED, p->name), (uint64_t)index));
}

/* My block of p against the sequence; every `stride`-th element. */
static dt_status check_initial(const dt_param *p, int64_t stride)
{
    int64_t at[DT_MAX_DIMS];
    const dt_shape part = dt_layout_local(p->layout, dt_mesh_coord(dt_layout_mesh(p->layout)), at);
    const float *got = test_look(dt_tensor_local(p->tensor));
    TEST_THAT(dt_shape_count(p->shape) == dt_shape_count(p->file_shape), "%s", p->name);
    for (int64_t i = 0; i < dt_shape_count(part); i += stride) {
        int64_t rest = i, index = 0, step = 1;
        for (int d = part.ndim - 1; d >= 0; d--) {
            index += (at[d] + rest % part.dim[d]) * step;
            rest /= part.dim[d];
            step *= p->shape.dim[d];
        }
        const float want = initial(p, index);
        TEST_THAT(memcmp(&got[i], &want, sizeof want) == 0, "%s: element %lld is %g, not %g",
                  p->name, (long long)index, (double)got[i], (double)want);
    }
    return DT_OK;
}

/* Text with the number of dim d in it, or of the last dim of parameters that have fewer. */
static dt_status place_all(dt_module *m, dt_mesh *mesh, const char *before, const char *axes, int d)
{
    int n = 0;
    dt_param *const *p = dt_module_params(m, &n);
    for (int i = 0; i < n; i++) {
        char text[64];
        const int last = p[i]->shape.ndim - 1;
        (void)snprintf(text, sizeof text, "%sS(%d)@%s", before, d < last ? d : last, axes);
        DT_TRY(dt_mesh_layout_text(mesh, p[i]->shape, text, &p[i]->layout));
    }
    return DT_OK;
}

static dt_status check_split(const init_case *c, dt_mesh *mesh, const char *before,
                             const char *axes, int d)
{
    char config[300];
    dt_module *m = NULL;
    dt_model_facts facts;
    int n = 0;
    (void)snprintf(config, sizeof config, "%s/%s/config.json", golden, c->model);
    DT_TRY(dt_model_create(config, &m, &facts));
    DT_TRY(place_all(m, mesh, before, axes, d));
    DT_TRY(dt_module_materialize(m, mesh, SEED));
    dt_param *const *p = dt_module_params(m, &n);
    TEST_THAT(n > 10, "%d parameters", n);
    for (int i = 0; i < n; i++)
        DT_TRY(check_initial(p[i], dt_shape_count(p[i]->shape) > 2000 ? 13 : 1));
    dt_module_destroy(&m);
    return DT_OK;
}

static dt_status init_body(dt_world *world, void *arg)
{
    const init_case *c = arg;
    static const char *const two[][2] = {
        {"", "dp>tp"}, {"", "tp>dp"}, {"", "tp"}, {"S(0)@dp, ", "tp"}, {"S(-1)@dp, ", "tp"}};
    dt_mesh *mesh = NULL;
    DT_TRY(mesh_of(world, c->axes, c->naxes, &mesh));
    for (int d = 0; d < (c->model[0] == 'g' ? 4 : 2); d++) {
        for (int k = 0; k < (c->naxes == 2 ? DT_COUNT(two) : 1); k++)
            DT_TRY(check_split(c, mesh, c->naxes == 2 ? two[k][0] : "",
                               c->naxes == 2 ? two[k][1] : "tp", d));
    }
    dt_mesh_destroy(&mesh);
    return DT_OK;
}

START_TEST(same_initial_values_on_every_mesh)
{
    init_case c = init_cases[_i];
    test_ranks(c.axes[0].size * (c.naxes > 1 ? c.axes[1].size : 1), init_body, &c);
}
END_TEST

START_TEST(linear_std_0_is_one_over_root_of_in)
{
    static const double given[] = {0, 0.5}, want[] = {0.25, 0.5};
    for (int i = 0; i < DT_COUNT(given); i++) {
        dt_module *m = NULL;
        ck_ok(dt_layer_linear(&(dt_linear_options){.in = 16, .out = 3, .std = given[i]}, &m));
        ck_assert_double_eq(dt_module_param(m, "weight")->init.std, want[i]);
        dt_module_destroy(&m);
    }
}
END_TEST

/* ---- dropout of a layer's own ---- */

enum { PARTS = 4, HIDDEN = 8 };

static dt_status dropping(int part, double dropout, dt_module **out)
{
    const dt_attention_layer_options llama = {.n = HIDDEN,
                                              .heads = 2,
                                              .kv_heads = 1,
                                              .head_dim = 4,
                                              .rope.theta = 100,
                                              .std = 0.3,
                                              .dropout = dropout};
    switch (part) {
    case 0: return dt_layer_attention(&llama, out);
    case 1: return dt_layer_gpt2_attention(HIDDEN, 2, 0.3, 0.3, dropout, out);
    case 2: return dt_layer_swiglu_mlp(HIDDEN, 12, false, 0.3, dropout, out);
    default: return dt_layer_gpt2_mlp(HIDDEN, 12, 0.3, 0.3, dropout, out);
    }
}

/* Every element is 0 or that of the layer without dropout, over what is kept. */
static dt_status dropout_body(dt_world *world, void *arg)
{
    enum { COUNT = 3 * 5 * HIDDEN };
    float x[COUNT], y[2][COUNT];
    const double p = 0.75;
    dt_mesh *mesh = NULL;
    DT_TRY(mesh_of(world, (dt_axis[]){{"dp", 1}}, 1, &mesh));
    for (int i = 0; i < COUNT; i++)
        x[i] = (float)((i * 37) % 23 - 11) / 8;
    for (int on = 0; on < 2; on++) {
        dt_module *m = NULL;
        dt_tape *t = NULL;
        dt_tensor *in = NULL;
        const dt_layout *layout = NULL;
        DT_TRY(dropping(*(const int *)arg, on ? p : 0, &m));
        DT_TRY(dt_module_finish(m));
        DT_TRY(dt_module_materialize(m, mesh, 7));
        DT_TRY(dt_mesh_layout_text(mesh, DT_SHAPE(3, 5, HIDDEN), "", &layout));
        DT_TRY(dt_distribute(layout, DT_F32, x, &in));
        DT_TRY(dt_tape_create(mesh, &(dt_tape_options){.seed = 5, .step = 3}, &t));
        DT_TRY(dt_tensor_read_f32_sync(dt_module_call1(m, t, in), y[on]));
        dt_tape_destroy(&t);
        dt_tensor_destroy(&in);
        dt_module_destroy(&m);
    }
    int dropped = 0;
    for (int i = 0; i < COUNT; i++) {
        const double off = (double)y[1][i] - (double)y[0][i] / (1 - p);
        dropped += (double)y[1][i] == 0;
        TEST_THAT((double)y[1][i] == 0 || fabs(off) < 1e-5, "element %d: %g, without dropout %g", i,
                  (double)y[1][i], (double)y[0][i]);
    }
    TEST_THAT(dropped > COUNT / 2 && dropped < COUNT, "%d of %d are dropped", dropped, (int)COUNT);
    dt_mesh_destroy(&mesh);
    return DT_OK;
}

START_TEST(every_part_drops)
{
    int part = _i;
    test_ranks(1, dropout_body, &part);
}
END_TEST

int main(int argc, char **argv)
{
    golden = argc > 1 ? argv[1] : golden;
    Suite *suite = suite_create("module");
    TCase *tc = tcase_create("module");
    tcase_set_timeout(tc, 0);
    tcase_add_test(tc, names_and_paths);
    tcase_add_test(tc, parameters_each_once);
    tcase_add_test(tc, placing);
    tcase_add_test(tc, no_room_names_the_parameter);
    tcase_add_loop_test(tc, same_initial_values_on_every_mesh, 0, DT_COUNT(init_cases));
    tcase_add_test(tc, linear_std_0_is_one_over_root_of_in);
    tcase_add_loop_test(tc, every_part_drops, 0, PARTS);
    suite_add_tcase(suite, tc);
    return test_main(suite);
}
