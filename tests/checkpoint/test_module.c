/* tests/checkpoint/test_module.c - parameters from files and back, on every mesh. */
#include "tests/checkpoint/files.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static char folder[FILES_PATH];

static void begin(void)
{
    files_begin(folder);
}

static void end(void)
{
    files_end(folder);
}

/* A piece of GPT-2: the fused weight has more dims than in files. n = 6, 3 heads of 5. */
enum { WTE = 7 * 6, ATTN = 6 * 45, BIAS = 45, NORM = 6, ALL = WTE + ATTN + BIAS + NORM };

static const dt_module_kind kind = {"bare", 0, NULL};

static dt_status add(dt_module *parent, const char *name, dt_module **child_out)
{
    DT_TRY(dt_module_create(&kind, child_out));
    DT_TRY(dt_module_add(parent, name, *child_out));
    return DT_OK;
}

static dt_status make_model(dt_dtype dtype, dt_module **m_out)
{
    dt_module *body, *wte, *attn, *norm;
    dt_param *p[4];
    const dt_init init = {DT_INIT_NORMAL, 1};
    const dt_shape fused = DT_SHAPE(6, 45), fused_bias = DT_SHAPE(45);
    DT_TRY(dt_module_create(&kind, m_out));
    DT_TRY(add(*m_out, "transformer", &body));
    DT_TRY(add(body, "wte", &wte));
    DT_TRY(add(body, "c_attn", &attn));
    DT_TRY(add(*m_out, "norm", &norm));
    DT_TRY(dt_module_add_param(wte, "weight", DT_SHAPE(7, 6), NULL, init, &p[0]));
    DT_TRY(dt_module_add_param(attn, "weight", DT_SHAPE(6, 3, 3, 5), &fused, init, &p[1]));
    DT_TRY(dt_module_add_param(attn, "bias", DT_SHAPE(3, 3, 5), &fused_bias, init, &p[2]));
    DT_TRY(dt_module_add_param(norm, "weight", DT_SHAPE(6), NULL, init, &p[3]));
    for (int i = 0; i < 4; i++)
        p[i]->dtype = dtype;
    return dt_module_finish(*m_out);
}

/* Element i of tensor t; exact in bf16. */
static float value(int t, int i)
{
    return (float)((i * 5 + t * 3) % 101 - 50);
}

static void put_weights(const char *const names[4], const char *file)
{
    static const int counts[4] = {WTE, ATTN, BIAS, NORM};
    static float data[ALL + 2];
    const dt_shape shapes[4] = {DT_SHAPE(7, 6), DT_SHAPE(6, 45), DT_SHAPE(45), DT_SHAPE(6)};
    dt_safetensors_item items[5];
    char path[FILES_PATH + 64];
    int at = 0;
    for (int t = 0; t < 4; t++) {
        items[t] = (dt_safetensors_item){names[t], DT_F32, shapes[t], data + at};
        for (int i = 0; i < counts[t]; i++)
            data[at++] = value(t, i);
    }
    items[4] = (dt_safetensors_item){"extra", DT_F32, DT_SHAPE(2), data};
    (void)snprintf(path, sizeof path, "%s/%s", folder, file);
    ck_ok(dt_safetensors_write(path, 5, items, NULL));
}

static dt_status check_values(dt_module *m)
{
    int n;
    dt_param *const *p = dt_module_params(m, &n);
    for (int t = 0; t < n; t++) {
        float got[ATTN];
        DT_TRY(dt_tensor_read_f32_sync(p[t]->tensor, got));
        for (int i = 0; i < dt_shape_count(p[t]->shape); i++)
            TEST_THAT(got[i] == value(t, i), "%s[%d] is %g", p[t]->name, i, (double)got[i]);
    }
    return DT_OK;
}

/* ---- loading on meshes ---- */

typedef struct plan {
    int x, y;
    dt_dtype dtype;
    const char *wte, *attn, *bias, *norm;
} plan;

static const plan plans[] = {
    {1, 1, DT_F32, "", "", "", ""},
    {2, 1, DT_F32, "S(0)@x", "S(2)@x", "S(1)@x", ""},
    {3, 1, DT_F32, "S(1)@x", "S(0)@x", "S(0)@x", "S(0)@x"},
    {4, 1, DT_BF16, "S(0)@x", "S(3)@x", "S(2)@x", "S(0)@x"},
    {2, 2, DT_F32, "S(0)@y>x", "S(2)@y, S(0)@x", "S(1)@y", "S(0)@x>y"},
    {2, 2, DT_F64, "S(1)@x>y", "S(1)@y>x", "S(2)@x, S(1)@y", ""},
};

static dt_status make_placed(dt_world *world, const plan *a, dt_mesh **mesh_out, dt_module **m_out)
{
    const dt_mesh_options options = {.axes = {{"x", a->x}, {"y", a->y}}};
    DT_TRY(dt_mesh_create(world, test_device(world), &options, mesh_out));
    DT_TRY(make_model(a->dtype, m_out));
    DT_TRY(dt_module_place(*m_out, *mesh_out, "*.wte.weight", a->wte));
    DT_TRY(dt_module_place(*m_out, *mesh_out, "*.c_attn.weight", a->attn));
    DT_TRY(dt_module_place(*m_out, *mesh_out, "*.c_attn.bias", a->bias));
    DT_TRY(dt_module_place(*m_out, *mesh_out, "norm.weight", a->norm));
    return dt_module_materialize(*m_out, *mesh_out, 1);
}

static dt_status load(dt_world *world, void *arg)
{
    const plan *a = arg;
    dt_mesh *mesh = NULL;
    dt_module *m = NULL;
    dt_safetensors *st = NULL;
    DT_TRY(make_placed(world, a, &mesh, &m));
    DT_TRY(dt_safetensors_open(folder, &st));
    DT_TRY(dt_module_load_from(m, st));
    DT_TRY(check_values(m));
    const int64_t held = dt_module_local_bytes(m) / (int64_t)dt_dtype_size(a->dtype) * 4;
    TEST_THAT(dt_safetensors_bytes_read(st) == held, "read %lld bytes for %lld held",
              (long long)dt_safetensors_bytes_read(st), (long long)held);
    dt_safetensors_close(&st);
    dt_module_destroy(&m);
    dt_mesh_destroy(&mesh);
    return DT_OK;
}

START_TEST(test_load)
{
    static const char *const names[][4] = {
        {"transformer.wte.weight", "transformer.c_attn.weight", "transformer.c_attn.bias",
         "norm.weight"},
        {"wte.weight", "c_attn.weight", "c_attn.bias", "model.norm.weight"}};
    for (int k = 0; k < DT_COUNT(names); k++) {
        put_weights(names[k], "model.safetensors");
        for (int i = 0; i < DT_COUNT(plans); i++)
            test_ranks(plans[i].x * plans[i].y, load, (void *)(uintptr_t)&plans[i]);
    }
}
END_TEST

/* ---- errors ---- */

static dt_status load_fails(dt_world *world, void *arg)
{
    const char *const *texts = arg;
    dt_mesh *mesh = NULL;
    dt_module *m = NULL;
    DT_TRY(make_placed(world, &plans[0], &mesh, &m));
    TEST_FAILS(DT_ERR_FORMAT, texts[0], dt_module_load(m, folder));
    if (texts[1])
        TEST_FAILS(DT_ERR_FORMAT, texts[1], dt_module_load(m, folder));
    TEST_FAILS(DT_ERR_IO, "/nowhere", dt_module_load(m, "/nowhere"));
    dt_module_destroy(&m);
    dt_mesh_destroy(&mesh);
    return DT_OK;
}

START_TEST(test_load_fails)
{
    static const char *const missing[4] = {"wte.weight", "c_attn.weight", "c_attn.bia",
                                           "norm.weight"};
    static const char *const swapped[4] = {"transformer.wte.weight", "c_attn.bias", "c_attn.weight",
                                           "norm.weight"};
    put_weights(missing, "model.safetensors");
    test_ranks(1, load_fails, (const char *[]){"no tensor 'transformer.c_attn.bias'", NULL});
    put_weights(swapped, "model.safetensors");
    test_ranks(1, load_fails,
               (const char *[]){"'c_attn.weight' is [45], the model needs [6, 45]", folder});
}
END_TEST

/* ---- saving ---- */

typedef struct save_case {
    const plan *a;
    const char *to, *config;
} save_case;

static dt_status save(dt_world *world, void *arg)
{
    const save_case *c = arg;
    dt_mesh *mesh = NULL;
    dt_module *m = NULL;
    char from[FILES_PATH + 64];
    (void)snprintf(from, sizeof from, "%s/from.safetensors", folder);
    DT_TRY(make_placed(world, c->a, &mesh, &m));
    DT_TRY(dt_module_load(m, from));
    DT_TRY(dt_module_save(m, world, c->to, c->config));
    int n;
    dt_param *const *p = dt_module_params(m, &n);
    for (int i = 0; i < n; i++)
        dt_array_fill(dt_tensor_local(p[i]->tensor), 77);
    DT_TRY(dt_module_load(m, c->to));
    DT_TRY(check_values(m));
    dt_module_destroy(&m);
    dt_mesh_destroy(&mesh);
    return DT_OK;
}

START_TEST(test_save)
{
    static const char *const names[4] = {"transformer.wte.weight", "transformer.c_attn.weight",
                                         "transformer.c_attn.bias", "norm.weight"};
    char to[FILES_PATH + 64], config[FILES_PATH + 64];
    char *first = NULL;
    size_t first_bytes = 0, bytes;
    (void)snprintf(to, sizeof to, "%s/out", folder);
    (void)snprintf(config, sizeof config, "%s/c.json", folder);
    FILE *out = fopen(config, "w");
    ck_assert(out && fputs("{\"model_type\": \"gpt2\"}\n", out) >= 0 && fclose(out) == 0);
    put_weights(names, "from.safetensors");
    for (int i = 0; i < DT_COUNT(plans); i++) {
        save_case c = {&plans[i], to, i == 0 ? config : NULL};
        test_ranks(plans[i].x * plans[i].y, save, &c);
        char *all = files_get(to, "model.safetensors", &bytes);
        ck_assert(i == 0 || (bytes == first_bytes && memcmp(all, first, bytes) == 0));
        if (i == 0) {
            first = all;
            first_bytes = bytes;
        } else
            free(all);
    }
    free(first);
    char *copy = files_get(to, "config.json", &bytes);
    ck_assert_str_eq(copy, "{\"model_type\": \"gpt2\"}\n");
    free(copy);
    ck_assert(!files_exists(to, "model.safetensors.tmp") && !files_exists(to, "config.json.tmp"));
    dt_safetensors *st = NULL;
    ck_ok(dt_safetensors_open(to, &st));
    const dt_safetensors_entry *e = dt_safetensors_find(st, "transformer.c_attn.weight");
    ck_assert(e && e->dtype == DT_F32 && dt_shape_equal(e->shape, DT_SHAPE(6, 45)));
    ck_assert_int_eq(dt_safetensors_count(st), 4);
    dt_safetensors_close(&st);
}
END_TEST

static dt_status save_fails(dt_world *world, void *arg)
{
    (void)arg;
    dt_mesh *mesh = NULL;
    dt_module *m = NULL, *other = NULL;
    dt_param *p;
    char file[FILES_PATH + 64], to[FILES_PATH + 64];
    (void)snprintf(file, sizeof file, "%s/file", folder);
    (void)snprintf(to, sizeof to, "%s/out", folder);
    DT_TRY(make_placed(world, &plans[1], &mesh, &m));
    TEST_FAILS(DT_ERR_IO, file, dt_module_save(m, world, file, NULL)); /* is no folder */
    TEST_FAILS(DT_ERR_IO, "/nowhere/c.json", dt_module_save(m, world, to, "/nowhere/c.json"));
    DT_TRY(dt_module_create(&kind, &other)); /* another name on each rank */
    DT_TRY(dt_module_add_param(other, dt_world_rank(world) ? "b" : "a", DT_SHAPE(1), NULL,
                               (dt_init){0}, &p));
    DT_TRY(dt_module_finish(other));
    TEST_FAILS(DT_ERR_STATE, "not materialized", dt_module_save(other, world, to, NULL));
    DT_TRY(dt_module_materialize(other, mesh, 0));
    TEST_FAILS(DT_ERR_UNSUPPORTED, "different parameters", dt_module_save(other, world, to, NULL));
    dt_module_destroy(&other);
    DT_TRY(dt_module_create(&kind, &other)); /* another shape on each rank */
    DT_TRY(dt_module_add_param(other, "a", DT_SHAPE(1 + dt_world_rank(world)), NULL, (dt_init){0},
                               &p));
    DT_TRY(dt_module_finish(other));
    DT_TRY(dt_module_materialize(other, mesh, 0));
    TEST_FAILS(DT_ERR_UNSUPPORTED, "different parameters", dt_module_save(other, world, to, NULL));
    dt_module_destroy(&other);
    dt_module_destroy(&m);
    dt_mesh_destroy(&mesh);
    return DT_OK;
}

START_TEST(test_save_fails)
{
    files_put(folder, "file", "", "", 0);
    test_ranks(2, save_fails, NULL);
    ck_assert(!files_exists(folder, "out/model.safetensors"));
    ck_assert(!files_exists(folder, "out/model.safetensors.tmp"));
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("parameters in files");
    TCase *tc = tcase_create("module");
    tcase_add_checked_fixture(tc, begin, end);
    tcase_set_timeout(tc, 60);
    tcase_add_test(tc, test_load);
    tcase_add_test(tc, test_load_fails);
    tcase_add_test(tc, test_save);
    tcase_add_test(tc, test_save_fails);
    suite_add_tcase(suite, tc);
    return test_main(suite);
}
