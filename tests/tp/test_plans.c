/* tests/tp/test_plans.c - plans that are errors, which leave the module as it was; the axes that
 * heads want. Case T10 of the map of PyTorch's tests. */
#include "tests/harness.h"
#include "tp/dt_tp.h"

#include <string.h>

static const struct {
    dt_tp_rule row[2];
    const char *axes;
    dt_status status;
    const char *text;
} wrong[] = {
    {{{"c_fcc", DT_TP_COLWISE, NULL, NULL}},
     "tp",
     DT_ERR_ARG,
     "matches no module; the nearest: c_fc, c_proj"},
    {{{"*", DT_TP_REPLICATE, NULL, NULL}, {"c_fc", DT_TP_COLWISE, NULL, NULL}},
     "tp",
     DT_ERR_ARG,
     "'c_fc' is matched twice, by '*' and 'c_fc'"},
    {{{"c_fc", DT_TP_COLWISE, NULL, NULL}, {"c_proj", DT_TP_ROWWISE, .out = "Q"}},
     "tp",
     DT_ERR_PLACEMENT,
     "'Q' is no list of placements"},
    {{{"c_fc", DT_TP_COLWISE, .in = "S(1)x"}}, "tp", DT_ERR_PLACEMENT, "'S(1)x' is no list"},
    {{{"", DT_TP_COLWISE, NULL, NULL}}, "tp", DT_OK, NULL}, /* nothing to split in a mlp itself */
    {{{"c_fc", DT_TP_COLWISE, NULL, NULL}}, "cp", DT_ERR_ARG, "cp"},
    {{{"c_fc", DT_TP_COLWISE, NULL, NULL}}, "tp,tp", DT_ERR_ARG, "named twice"},
    {{{"c_fc", DT_TP_COLWISE, NULL, NULL}}, "", DT_ERR_ARG, "needs an axis"},
};

static dt_status wrong_body(dt_world *world, void *arg)
{
    (void)arg;
    dt_mesh *mesh = NULL;
    DT_TRY(
        dt_mesh_create(world, test_device(world), &(dt_mesh_options){.axes = {{"tp", -1}}}, &mesh));
    for (int i = 0; i < DT_COUNT(wrong); i++) {
        dt_module *m = NULL;
        DT_TRY(dt_layer_gpt2_mlp(10, 7, 0.5, 0.5, 0, &m));
        DT_TRY(dt_module_finish(m));
        const dt_tp_plan plan = {.nrules = wrong[i].row[1].pattern ? 2 : 1, .rule = wrong[i].row};
        if (wrong[i].status != DT_OK)
            TEST_FAILS(wrong[i].status, wrong[i].text,
                       dt_parallelize_module(m, mesh, wrong[i].axes, &plan));
        else
            DT_TRY(dt_parallelize_module(m, mesh, wrong[i].axes, &plan));
        TEST_THAT(!dt_module_param(dt_module_child(m, 0), "weight")->layout, "row %d changed it",
                  i);
        dt_module_destroy(&m);
    }
    dt_module *norm = NULL, *again = NULL;
    const dt_tp_rule columns = {"", DT_TP_COLWISE, NULL, NULL};
    const dt_tp_plan plan = {.nrules = 1, .rule = &columns};
    DT_TRY(dt_layer_rmsnorm(12, 1e-5, &norm));
    DT_TRY(dt_module_finish(norm));
    TEST_FAILS(DT_ERR_ARG,
               "style colwise of '' is for linear, embedding and lm_head, not for the rmsnorm",
               dt_parallelize_module(norm, mesh, "tp", &plan));
    DT_TRY(dt_layer_linear(&(dt_linear_options){.in = 16, .out = 16}, &again));
    DT_TRY(dt_module_finish(again));
    DT_TRY(dt_module_materialize(again, mesh, 1));
    TEST_FAILS(DT_ERR_STATE, "parallelize before", dt_parallelize_module(again, mesh, "tp", &plan));
    dt_module_destroy(&norm);
    dt_module_destroy(&again);
    dt_mesh_destroy(&mesh);
    return DT_OK;
}

START_TEST(wrong_plans)
{
    test_ranks(2, wrong_body, NULL);
}
END_TEST

/* T10: heads that do not divide, and the mesh that key and value heads want. */
START_TEST(axes_of_heads)
{
    static const struct {
        int64_t heads, kv;
        int tp, outer, inner; /* inner 0: one axis */
    } good[] = {{8, 4, 1, 1, 0},    {8, 4, 2, 2, 0},  {8, 4, 4, 4, 0},
                {8, 4, 8, 4, 2},    {12, 4, 6, 2, 3}, {12, 2, 3, 1, 3},
                {12, 1, 12, 1, 12}, {6, 6, 3, 3, 0},  {32, 8, 16, 8, 2}};
    dt_axis axis[2];
    const char *names = NULL;
    for (int i = 0; i < DT_COUNT(good); i++) {
        ck_ok(dt_tp_axes(good[i].heads, good[i].kv, good[i].tp, axis, &names));
        ck_assert_int_eq(axis[0].size, good[i].outer);
        ck_assert_str_eq(names, good[i].inner ? "tp_kv,tp_rep" : "tp");
        ck_assert(good[i].inner ? axis[1].size == good[i].inner : !axis[1].name);
    }
    ck_assert_int_eq(dt_tp_axes(8, 4, 3, axis, &names), DT_ERR_ARG);
    ck_assert_ptr_nonnull(
        strstr(dt_error_trace(), "8 query heads do not divide by tp=3; legal: 1, 2, 4, 8"));
    ck_assert_int_eq(dt_tp_axes(8, 4, 16, axis, &names), DT_ERR_ARG);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("tensor parallel plans");
    TCase *tc = tcase_create("plans");
    tcase_set_timeout(tc, 60);
    tcase_add_test(tc, wrong_plans);
    tcase_add_test(tc, axes_of_heads);
    suite_add_tcase(suite, tc);
    return test_main(suite);
}
