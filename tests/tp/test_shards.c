/* tests/tp/test_shards.c - tensor parallelism and fully_shard on one mesh, sizes uneven in both:
 * case F10 of the map of PyTorch's tests. Ten steps of gradient descent give the one-rank losses,
 * and every parameter rests by both axes. */
#include "fsdp/dt_fsdp.h"
#include "nn/dt_recompute.h"
#include "tests/harness.h"
#include "tp/dt_tp.h"

#include <math.h>
#include <string.h>

enum { STEPS = 10, BATCH = 7, MOST = 17 };

typedef struct shards_case {
    int64_t size; /* of inputs; hidden features are one more */
    int dp, tp;
    bool sequence, recompute;
    double loss[STEPS];
} shards_case;

static const dt_tp_rule whole[] = {{"", DT_TP_BORDER, .in = "R"},
                                   {"c_fc", DT_TP_COLWISE, NULL, NULL},
                                   {"c_proj", DT_TP_ROWWISE, .out = "R"}};
/* rows of the batch take the place of a sequence */
static const dt_tp_rule split[] = {{"", DT_TP_BORDER, .in = "R"},
                                   {"c_fc", DT_TP_COLWISE, NULL, NULL},
                                   {"c_proj", DT_TP_ROWWISE, .out = "S(0)"}};

/* Sharded by dp, and by tp unless it is the bias that all ranks add to. */
static dt_status rests_by_both(dt_module *m, dt_mesh *mesh)
{
    int n = 0, dp = 0, tp = 0;
    char text[DT_LAYOUT_TEXT];
    dt_param *const *p = dt_module_params(m, &n);
    DT_TRY(dt_mesh_axis(mesh, "dp", &dp));
    DT_TRY(dt_mesh_axis(mesh, "tp", &tp));
    TEST_THAT(n == 4, "%d parameters", n);
    for (int i = 0; i < n; i++) {
        const bool both = strcmp(p[i]->name, "c_proj.bias") != 0;
        const dt_layout *l = p[i]->layout;
        TEST_THAT(dt_layout_at(l, dp).kind == DT_SHARD &&
                      (dt_layout_at(l, tp).kind == DT_SHARD) == both &&
                      dt_tensor_layout(p[i]->tensor) == l,
                  "%s rests %s", p[i]->name, dt_layout_print(l, text, sizeof text));
        TEST_THAT(strcmp(p[i]->name, "c_fc.bias") != 0 ||
                      dt_layout_depth(l, tp) < dt_layout_depth(l, dp),
                  "%s: dp shards what tp gave it, not %s", p[i]->name,
                  dt_layout_print(l, text, sizeof text));
    }
    return DT_OK;
}

static dt_status build(const shards_case *c, dt_mesh *mesh, dt_module **m)
{
    const dt_tp_plan plan = {.nrules = DT_COUNT(whole), .rule = c->sequence ? split : whole};
    DT_TRY(dt_layer_gpt2_mlp(c->size, c->size + 1, 0.4, 0.4, 0, m));
    DT_TRY(dt_module_finish(*m));
    DT_TRY(dt_parallelize_module(*m, mesh, "tp", &plan));
    dt_recompute(*m, c->recompute ? DT_RECOMPUTE_FULL : DT_RECOMPUTE_NONE);
    DT_TRY(dt_fully_shard(*m, mesh, "dp", &(dt_fsdp_options){0}));
    DT_TRY(dt_module_materialize(*m, mesh, 5));
    if (c->dp * c->tp > 1)
        DT_TRY(rests_by_both(*m, mesh));
    return DT_OK;
}

/* loss = mean of squares of f(x) - x. */
static dt_status step(dt_module *m, dt_tape *t, dt_tensor *x, double *value)
{
    dt_tape_reset(t, NULL);
    dt_tensor *y = dt_module_call1(m, t, x);
    DT_TRY(dt_tape_status(t));
    dt_tensor *target = dt_scale(t, dt_redistribute_to(t, x, dt_tensor_layout(y)), -1);
    dt_tensor *error = dt_add(t, y, target);
    dt_tensor *loss = dt_scale(t, dt_sum(t, dt_mul(t, error, error), 0), 1.0 / BATCH);
    DT_TRY(dt_tensor_item_sync(loss, value));
    DT_TRY(dt_backward(t, loss));
    DT_TRY(dt_module_reduce_grads(m));
    int n = 0;
    dt_param *const *p = dt_module_params(m, &n);
    for (int i = 0; i < n; i++) {
        dt_local *g = dt_tensor_grad(p[i]->tensor);
        TEST_THAT(g->layout == p[i]->layout, "the gradient of %s is not at home", p[i]->name);
        dt_array_scale(&g->array, -0.1);
        dt_array_add_into(dt_tensor_local(p[i]->tensor), &g->array);
    }
    dt_module_clear_grads(m);
    return DT_OK;
}

static dt_status body(dt_world *world, void *arg)
{
    shards_case *c = arg;
    dt_mesh *mesh = NULL;
    dt_module *m = NULL;
    dt_tape *t = NULL;
    dt_tensor *x = NULL;
    const dt_layout *layout = NULL;
    float value[BATCH * MOST];
    for (int i = 0; i < BATCH * MOST; i++)
        value[i] = (float)sin(i * 12.9898);
    const dt_mesh_options axes = {.axes = {{"dp", c->dp}, {"tp", c->tp}}};
    DT_TRY(dt_mesh_create(world, test_device(world), &axes, &mesh));
    DT_TRY(build(c, mesh, &m));
    DT_TRY(dt_mesh_layout_text(mesh, DT_SHAPE(BATCH, c->size),
                               c->sequence ? "S(0)@dp>tp" : "S(0)@dp", &layout));
    DT_TRY(dt_distribute(layout, DT_F32, value, &x));
    DT_TRY(dt_tape_create(mesh, NULL, &t));
    for (int i = 0; i < STEPS; i++) {
        double loss = 0;
        DT_TRY(step(m, t, x, &loss));
        if (dt_world_rank(world) == 0)
            c->loss[i] = loss;
    }
    dt_tape_destroy(&t);
    dt_tensor_destroy(&x);
    dt_module_destroy(&m);
    dt_mesh_destroy(&mesh);
    return DT_OK;
}

/* sizes 3, 5, 16, 17 x (dp 2, tp 2), (dp 3, tp 2), (dp 2, tp 4) x sequence x recompute */
START_TEST(losses_are_those_of_one_rank)
{
    static const int64_t size[] = {3, 5, 16, 17};
    static const int mesh[][2] = {{2, 2}, {3, 2}, {2, 4}};
    shards_case one = {.size = size[_i % 4], .dp = 1, .tp = 1};
    shards_case many = {.size = size[_i % 4],
                        .dp = mesh[_i / 4 % 3][0],
                        .tp = mesh[_i / 4 % 3][1],
                        .sequence = _i / 12 % 2,
                        .recompute = _i / 24};
    test_ranks(1, body, &one);
    test_ranks(many.dp * many.tp, body, &many);
    ck_assert(one.loss[STEPS - 1] < one.loss[0]);
    for (int i = 0; i < STEPS; i++)
        ck_assert_msg(fabs(many.loss[i] - one.loss[i]) <= 1e-5 * one.loss[0],
                      "step %d: %.9g, not %.9g", i, many.loss[i], one.loss[i]);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("tensor parallelism and shards");
    TCase *tc = tcase_create("F10");
    tcase_set_timeout(tc, 120);
    test_loop(tc, losses_are_those_of_one_rank, 48);
    suite_add_tcase(suite, tc);
    return test_main(suite);
}
