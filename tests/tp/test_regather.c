/* tests/tp/test_regather.c - gathering again in backward changes no bit: against inputs that are
 * kept, with backward in two parts (zero-bubble schedules) and with recomputed layers. */
#include "nn/dt_recompute.h"
#include "tests/harness.h"
#include "tests/tp/model_case.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_GRADS = 20000 };

typedef struct way {
    bool keep_gathered, in_two;
    dt_recompute_policy recompute;
} way;

static dt_status walk(dt_tape *t, dt_tensor *loss, bool in_two)
{
    if (!in_two)
        return dt_backward(t, loss);
    dt_mesh *mesh = dt_tensor_mesh(loss);
    const dt_layout dual = dt_layout_dual(dt_tensor_layout(loss));
    dt_local one = {0};
    DT_TRY(dt_mesh_layout(mesh, &dual, &one.layout));
    DT_TRY(dt_array_create(dt_mesh_heap(mesh), DT_F32, DT_SCALAR, DT_TAG_GRADIENT, &one.array));
    dt_array_fill(&one.array, 1);
    DT_TRY(dt_backward_input(t, 1, &loss, &one));
    dt_array_release(&one.array);
    DT_TRY(dt_backward_weight(t));
    return DT_OK;
}

/* This rank's parts of all gradients, one after the other. */
static dt_status step(dt_world *world, const model_case *usual, const way *w, float *grads)
{
    dt_mesh *mesh = NULL;
    dt_module *model = NULL;
    dt_tape *t = NULL;
    dt_values in = {0};
    int64_t valid = 0;
    model_case c = *usual;
    c.keep_gathered = w->keep_gathered;
    DT_TRY(model_case_lay_out(&c, NULL, world, test_device(world), &mesh, &model));
    for (int i = 0; i < c.layers; i++)
        dt_recompute(dt_model_layer(model, i), w->recompute);
    DT_TRY(model_case_batch(&c, mesh, &in, &valid));
    dt_model_set_loss(model, valid, 0);
    DT_TRY(dt_tape_create(mesh, NULL, &t));
    DT_TRY(walk(t, dt_module_call(model, t, &in).value[0], w->in_two));
    TEST_THAT(dt_tape_saved_bytes(t) == 0, "%lld bytes stay saved",
              (long long)dt_tape_saved_bytes(t));
    DT_TRY(dt_module_reduce_grads(model));
    int n = 0;
    int64_t at = 0;
    dt_param *const *p = dt_module_params(model, &n);
    for (int i = 0; i < n; i++) {
        const dt_array *g = &dt_tensor_grad(p[i]->tensor)->array;
        TEST_THAT(at + dt_array_count(g) <= MAX_GRADS, "room");
        DT_TRY(dt_array_read(g, grads + at, dt_array_count(g)));
        at += dt_array_count(g);
    }
    dt_tape_destroy(&t);
    dt_tensor_destroy(&in.value[0]);
    dt_tensor_destroy(&in.value[1]);
    dt_module_destroy(&model);
    dt_mesh_destroy(&mesh);
    return DT_OK;
}

static dt_status body(dt_world *world, void *arg)
{
    static const way ways[] = {
        {true, false, DT_RECOMPUTE_NONE},  {false, false, DT_RECOMPUTE_NONE},
        {false, true, DT_RECOMPUTE_NONE},  {true, true, DT_RECOMPUTE_NONE},
        {false, false, DT_RECOMPUTE_FULL}, {false, false, DT_RECOMPUTE_SELECTIVE}};
    float *grads = calloc(2 * MAX_GRADS, sizeof *grads);
    TEST_THAT(grads, "memory");
    DT_TRY(step(world, arg, &ways[0], grads));
    for (int i = 1; i < DT_COUNT(ways); i++) {
        DT_TRY(step(world, arg, &ways[i], grads + MAX_GRADS));
        TEST_THAT(memcmp(grads, grads + MAX_GRADS, MAX_GRADS * sizeof *grads) == 0,
                  "other gradients the %d. way", i);
    }
    free(grads);
    return DT_OK;
}

/* 3 models x vocabulary split, gathered, whole, all under sequence parallelism. */
START_TEST(no_bit_changes)
{
    model_case c = model_case_usual(_i / 3);
    c.tp = 2;
    c.sp = true;
    c.vocab_as = (dt_tp_vocab)(_i % 3);
    test_ranks(2, body, &c);
}
END_TEST

/* P on tp and S(0) on dp at once become whole: it gathers, so it runs again. */
static dt_values both_forward(dt_module *m, dt_tape *t, const dt_values *in)
{
    dt_tensor *y = dt_linear(t, in->value[0], dt_module_param(m, "w")->tensor, NULL);
    return (dt_values){.n = 1, .value = {dt_redistribute(t, y, "")}};
}

static dt_status both_body(dt_world *world, void *arg)
{
    (void)arg;
    static const dt_module_kind kind = {"both", 0, both_forward};
    const dt_mesh_options axes = {.axes = {{"dp", 2}, {"tp", 2}}};
    const float host[24] = {1, 2, 3};
    dt_mesh *mesh = NULL;
    dt_module *m = NULL;
    dt_tape *t = NULL;
    dt_tensor *x = NULL;
    const dt_layout *layout = NULL;
    DT_TRY(dt_mesh_create(world, test_device(world), &axes, &mesh));
    DT_TRY(dt_module_create(&kind, &m));
    DT_TRY(dt_module_add_param(m, "w", DT_SHAPE(4, 6), NULL, (dt_init){DT_INIT_NORMAL, 1}, NULL));
    DT_TRY(dt_module_finish(m));
    DT_TRY(dt_module_place(m, mesh, "w", "S(1)@tp"));
    DT_TRY(dt_module_materialize(m, mesh, 1));
    DT_TRY(dt_mesh_layout_text(mesh, DT_SHAPE(4, 6), "S(0)@dp, S(1)@tp", &layout));
    DT_TRY(dt_distribute(layout, DT_F32, host, &x));
    DT_TRY(dt_tape_create(mesh, NULL, &t));
    dt_recompute(m, DT_RECOMPUTE_SELECTIVE);
    dt_tensor *loss = dt_sum(t, dt_module_call1(m, t, x), 0);
    dt_world_reset_counts(world);
    DT_TRY(dt_backward(t, loss));
    const dt_counts c = dt_world_counts(world);
    TEST_THAT(c.calls[DT_CALL_ALL_GATHER] == 1 && c.total_calls == 2, "%lld calls",
              (long long)c.total_calls);
    dt_tape_destroy(&t);
    dt_tensor_destroy(&x);
    dt_module_destroy(&m);
    dt_mesh_destroy(&mesh);
    return DT_OK;
}

START_TEST(what_gathers_and_reduces_runs_again)
{
    test_ranks(4, both_body, NULL);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("gathering again");
    TCase *tc = tcase_create("regather");
    tcase_set_timeout(tc, 120);
    test_loop(tc, no_bit_changes, 9);
    tcase_add_test(tc, what_gathers_and_reduces_runs_again);
    suite_add_tcase(suite, tc);
    return test_main(suite);
}
