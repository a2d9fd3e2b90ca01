/* tests/pp/test_mlp.c - MLPs in pipelines: every schedule twice, with tensors besides and skip
 * connections, against one rank; the losses of microbatches one by one; a loss scale; evaluation.
 * Read first: tests/pp/mlp.h. */
#include "tests/pp/mlp.h"

#include <math.h>

/* ---- against one rank ---- */

/* The uncut net on the whole batch: outputs in y, the loss, gradients. */
static dt_status run_whole(mlp *one, double *loss)
{
    float value = 0;
    dt_tape *t = NULL;
    dt_tensor *in[4] = {NULL};
    for (int i = 0; i < (one->plan->aside ? 4 : 2); i++)
        DT_TRY(mlp_rows(one, i, 0, one->samples, &in[i]));
    DT_TRY(dt_tape_create(one->mesh, NULL, &t));
    const dt_values v = {.n = one->plan->skips ? MLP_VALUES : 4,
                         .value = {in[0], NULL, in[2], in[3]}};
    dt_tensor *y = dt_module_call(one->whole, t, &v).value[0];
    dt_tensor *sum = mlp_squared_error(NULL, t, y, in[1]);
    DT_TRY(dt_tape_status(t));
    DT_TRY(dt_tensor_read_f32_sync(y, one->y));
    DT_TRY(dt_array_read(dt_tensor_local(sum), &value, 1));
    DT_TRY(dt_backward(t, sum));
    *loss = (double)value;
    dt_tape_destroy(&t);
    for (int i = 0; i < 4; i++)
        dt_tensor_destroy(&in[i]);
    return DT_OK;
}

/* A loss that every rank adds its terms of. */
static dt_status check_loss(dt_world *world, double mine, double want)
{
    DT_TRY(dt_all_reduce_f64_sync(dt_world_comm(world), &mine, 1, DT_REDUCE_SUM));
    TEST_THAT(want > 1 && fabs(mine - want) <= 1e-6 * want, "loss %.9g, one rank %.9g", mine, want);
    return DT_OK;
}

static bool has_last(const mlp *n)
{
    return dt_pipeline_stage_number(n->pipe, dt_pipeline_nstages(n->pipe) - 1) == n->nstages - 1;
}

static dt_status keep_loss(void *arg, int64_t lo, int64_t hi, dt_tensor *y)
{
    mlp *n = arg;
    float value = 0;
    TEST_THAT(lo == n->next && hi == lo + n->samples / n->plan->m, "samples [%lld, %lld)",
              (long long)lo, (long long)hi);
    DT_TRY(dt_array_read(dt_tensor_local(y), &value, 1));
    n->losses[n->seen++] = (double)value;
    n->next = hi;
    return DT_OK;
}

static dt_status keep_output(void *arg, int64_t lo, int64_t hi, dt_tensor *y)
{
    mlp *n = arg;
    TEST_THAT(lo == n->next && hi <= n->samples, "samples [%lld, %lld)", (long long)lo,
              (long long)hi);
    DT_TRY(dt_tensor_read_f32_sync(y, n->y + lo * n->d));
    n->seen++;
    n->next = hi;
    return DT_OK;
}

/* One message an action, whatever it carries: a word, then x and its skips. */
static dt_status check_messages(const mlp *n, dt_world *world)
{
    const dt_counts got = dt_world_counts(world);
    const dt_pp_row *row = dt_pipeline_row(n->pipe);
    const int64_t features = n->plan->skips ? 2 * n->d + n->d / 2 : n->d;
    const int64_t each = 4 + n->samples / n->plan->m * features * (int64_t)sizeof(float);
    int64_t sends = 0;
    for (int64_t i = 0; i < row->count; i++)
        sends += row->action[i].kind == DT_PP_SEND_F || row->action[i].kind == DT_PP_SEND_B;
    TEST_THAT(sends > 0 && got.calls[DT_CALL_SEND] == sends && got.total_bytes == sends * each &&
                  got.total_calls - sends == got.calls[DT_CALL_RECV],
              "%lld sends of %lld bytes, not %lld of %lld", (long long)got.calls[DT_CALL_SEND],
              (long long)got.total_bytes, (long long)sends, (long long)(sends * each));
    return DT_OK;
}

/* Twice, with the gradients cleared between; each like one rank, and both alike. */
static dt_status twice(mlp *n, mlp *one, dt_world *world, double want)
{
    const dt_pipeline_pass pass = mlp_pass(n);
    double loss[2];
    for (int i = 0; i < 2; i++) {
        dt_module_clear_grads(dt_pipeline_module(n->pipe));
        dt_world_reset_counts(world);
        DT_TRY(dt_pipeline_run(n->pipe, &pass, &loss[i]));
        DT_TRY(check_messages(n, world));
        DT_TRY(pipe_same_gradients(dt_pipeline_module(n->pipe), one->whole));
        DT_TRY(check_loss(world, loss[i], want));
    }
    TEST_THAT(loss[0] == loss[1], "%.9g, then %.9g", loss[0], loss[1]);
    return DT_OK;
}

/* The pass's `output` is given the loss of each microbatch in turn, m of them where the last stage
 * is; their sum is the loss. Backward is what it was. */
static dt_status one_by_one(mlp *n, mlp *one, dt_world *world, double want)
{
    dt_pipeline_pass pass = mlp_pass(n);
    double none = -1, sum = 0;
    pass.output = keep_loss;
    dt_module_clear_grads(dt_pipeline_module(n->pipe));
    DT_TRY(dt_pipeline_run(n->pipe, &pass, &none));
    TEST_THAT(n->seen == (has_last(n) ? n->plan->m : 0), "%d losses of %d microbatches", n->seen,
              n->plan->m);
    TEST_THAT(none == 0, "the loss is the caller's to add, and not %g", none);
    for (int i = 0; i < n->seen; i++) {
        TEST_THAT(n->losses[i] > 0 && n->losses[i] < want, "loss %d is %g", i, n->losses[i]);
        sum += n->losses[i];
    }
    DT_TRY(check_loss(world, sum, want));
    DT_TRY(pipe_same_gradients(dt_pipeline_module(n->pipe), one->whole));
    return DT_OK;
}

/* Gradients of 4 times the loss, which itself is as ever. */
static dt_status scaled(mlp *n, mlp *one, dt_world *world, double want)
{
    dt_pipeline_pass pass = mlp_pass(n);
    double loss = 0;
    int count = 0;
    pass.loss_scale = 4;
    dt_module_clear_grads(dt_pipeline_module(n->pipe));
    DT_TRY(dt_pipeline_run(n->pipe, &pass, &loss));
    DT_TRY(check_loss(world, loss, want));
    dt_param *const *param = dt_module_params(dt_pipeline_module(n->pipe), &count);
    for (int i = 0; i < count; i++)
        dt_array_scale(&dt_tensor_grad(param[i]->tensor)->array, 0.25);
    DT_TRY(pipe_same_gradients(dt_pipeline_module(n->pipe), one->whole));
    return DT_OK;
}

/* Forward only, in microbatches of another size: the loss, then the outputs; no gradient. */
static dt_status evaluate(mlp *n, mlp *one, dt_world *world, double want)
{
    dt_pipeline_pass pass = mlp_pass(n);
    double loss = 0;
    int count = 0;
    pass.tape.no_grad = true;
    pass.at_once = 2 * n->samples / n->plan->m + 1; /* the last is short */
    dt_module_clear_grads(dt_pipeline_module(n->pipe));
    DT_TRY(dt_pipeline_run(n->pipe, &pass, &loss));
    DT_TRY(check_loss(world, loss, want));
    pass.no_targets = true;
    pass.output = keep_output;
    n->seen = 0;
    n->next = 0;
    DT_TRY(dt_pipeline_run(n->pipe, &pass, &loss));
    const int64_t numbers = n->samples * n->d;
    if (has_last(n))
        TEST_THAT(n->next == n->samples && n->seen == (n->plan->m + 1) / 2 &&
                      test_max_diff(n->y, one->y, numbers) <= 1e-5 * test_max_abs(one->y, numbers),
                  "%d outputs; they differ by %g of %g", n->seen,
                  test_max_diff(n->y, one->y, numbers), test_max_abs(one->y, numbers));
    dt_param *const *param = dt_module_params(dt_pipeline_module(n->pipe), &count);
    for (int i = 0; i < count; i++)
        TEST_THAT(!dt_tensor_grad(param[i]->tensor)->array.storage, "%s has a gradient",
                  param[i]->name);
    return DT_OK;
}

static dt_status net_body(dt_world *world, void *arg)
{
    mlp n, one;
    double want = 0;
    dt_world *self = NULL;
    mlp_plan alone = *(const mlp_plan *)arg;
    alone.whole = true;
    DT_TRY(mlp_open(arg, world, &n));
    DT_TRY(dt_world_create(&(dt_world_options){.backend = DT_BACKEND_SELF}, &self));
    DT_TRY(mlp_open(&alone, self, &one));
    DT_TRY(run_whole(&one, &want));
    DT_TRY(twice(&n, &one, world, want));
    DT_TRY(one_by_one(&n, &one, world, want));
    DT_TRY(scaled(&n, &one, world, want));
    DT_TRY(evaluate(&n, &one, world, want));
    mlp_close(&n);
    mlp_close(&one);
    dt_world_destroy(&self);
    return DT_OK;
}

/* 4 ranks, chunks 4; 8 where a rank has several stages. */
START_TEST(stages_of_mlp_are_one_rank)
{
    const char *name = pipe_schedules[_i / 2];
    const dt_pp_rule *rule = NULL;
    ck_ok(dt_pp_rule_find(name, &rule));
    mlp_plan c = {.schedule = name, .ranks = 4, .m = rule->v_default > 1 ? 8 : 4, .aside = _i % 2};
    test_ranks(c.ranks, net_body, &c);
}
END_TEST

/* The reference's single-stage schedules and, for the same price, all others: 2, 3 and 4 ranks. */
START_TEST(skips_go_along)
{
    const char *name = pipe_schedules[_i / 3];
    const dt_pp_rule *rule = NULL;
    ck_ok(dt_pp_rule_find(name, &rule));
    mlp_plan c = {
        .schedule = name, .ranks = 2 + _i % 3, .m = rule->v_default > 1 ? 8 : 4, .skips = true};
    c.aside = _i % 2;
    c.recompute = _i % 4 > 1;
    test_ranks(c.ranks, net_body, &c);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("pipelines of MLPs");
    TCase *tc = tcase_create("mlp");
    tcase_set_timeout(tc, 120);
    test_loop(tc, stages_of_mlp_are_one_rank, 2 * PIPE_NSCHEDULES);
    test_loop(tc, skips_go_along, 3 * PIPE_NSCHEDULES);
    suite_add_tcase(suite, tc);
    return test_main(suite);
}
