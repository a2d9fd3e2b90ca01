/* tests/pp/test_mlp.c - stages that are no language model: MLPs with a squared error as the user's
 * loss, and tensors besides that every stage takes; every schedule twice, against one rank; the
 * losses of microbatches one by one; evaluation. 32 samples of 64 numbers; with DT_FULL=1 256 of
 * 512. Read first: tests/pp/pipe.h. */
#include "nn/dt_layers.h"
#include "tests/pp/pipe.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* ---- the model: y = down(gelu(up x)), then, where asked, y * scale + shift ---- */

static dt_values layer_forward(dt_module *m, dt_tape *t, const dt_values *in)
{
    dt_tensor *y = dt_module_call1(dt_module_find(m, "up"), t, in->value[0]);
    y = dt_module_call1(dt_module_find(m, "down"), t, dt_gelu(t, y, DT_GELU_ERF));
    if (in->n == 4)
        y = dt_add(t, dt_mul(t, y, in->value[2]), in->value[3]);
    return (dt_values){.n = 1, .value = {y}};
}

static dt_values net_forward(dt_module *m, dt_tape *t, const dt_values *in)
{
    dt_module *layers = dt_module_find(m, "layers");
    dt_values v = *in;
    for (int i = 0; i < dt_module_nchildren(layers); i++)
        v.value[0] = dt_module_call(dt_module_child(layers, i), t, &v).value[0];
    return (dt_values){.n = 1, .value = {v.value[0]}};
}

static const dt_module_kind layer_kind = {.name = "mlp", .forward = layer_forward};
static const dt_module_kind net_kind = {.name = "net", .forward = net_forward};

static dt_status make_layer(int64_t d, dt_module **out)
{
    static const char *const name[] = {"up", "down"};
    const dt_linear_options o = {.in = d, .out = d, .bias = true, .std = 1.4 / sqrt((double)d)};
    DT_TRY(dt_module_create(&layer_kind, out));
    for (int i = 0; i < 2; i++) {
        dt_module *linear = NULL;
        DT_TRY(dt_layer_linear(&o, &linear));
        DT_TRY(dt_module_add(*out, name[i], linear));
    }
    return DT_OK;
}

static dt_status make_net(int n, int64_t d, dt_module **out)
{
    dt_module *layers = NULL;
    DT_TRY(dt_module_create(&net_kind, out));
    DT_TRY(dt_layer_group(&layers));
    for (int i = 0; i < n; i++) {
        char name[16];
        dt_module *layer = NULL;
        (void)snprintf(name, sizeof name, "%d", i);
        DT_TRY(make_layer(d, &layer));
        DT_TRY(dt_module_add(layers, name, layer));
    }
    DT_TRY(dt_module_add(*out, "layers", layers));
    DT_TRY(dt_module_finish(*out));
    return DT_OK;
}

/* ---- a rank's part ---- */

typedef struct net_plan {
    const char *schedule;
    int ranks, m;
    bool aside, whole; /* whole: not cut, on one rank */
} net_plan;

typedef struct net {
    const net_plan *plan;
    int64_t samples, d;
    int nstages;
    dt_mesh *mesh;
    dt_module *whole; /* one rank's */
    dt_pipeline *pipe;
    /* What `output` saw: calls, the sample that comes next, each loss; and in an evaluation the
     * last stage's numbers. */
    int seen;
    int64_t next;
    double losses[64];
    float *y;
} net;

/* Tensor number `which` of the batch: inputs, targets, scale, shift. */
static float number(int which, int64_t i)
{
    const double x = sin(0.37 * (double)(i + 1) * (which + 1) + which);
    return (float)(which == 2 ? 1 + 0.25 * x : which == 3 ? 0.1 * x : x);
}

static dt_status rows(const net *n, int which, int64_t lo, int64_t hi, dt_tensor **out)
{
    const dt_layout *layout = NULL;
    float *host = calloc((size_t)((hi - lo) * n->d), sizeof *host);
    TEST_THAT(host != NULL, "no memory");
    for (int64_t i = lo * n->d; i < hi * n->d; i++)
        host[i - lo * n->d] = number(which, i);
    dt_mesh *mesh = n->pipe ? dt_pipeline_mesh(n->pipe) : n->mesh;
    DT_TRY(dt_mesh_layout_text(mesh, DT_SHAPE(hi - lo, 1, n->d), "S(0)@dp", &layout));
    DT_TRY(dt_distribute(layout, DT_F32, host, out));
    free(host);
    return DT_OK;
}

static dt_status read_rows(void *arg, int64_t lo, int64_t hi, dt_tensor **x, dt_tensor **targets)
{
    if (x)
        DT_TRY(rows(arg, 0, lo, hi, x));
    if (targets)
        DT_TRY(rows(arg, 1, lo, hi, targets));
    return DT_OK;
}

static dt_status read_aside(void *arg, int64_t lo, int64_t hi, dt_tensor *out[2])
{
    for (int i = 0; i < 2; i++)
        DT_TRY(rows(arg, 2 + i, lo, hi, &out[i]));
    return DT_OK;
}

/* The sum of (y - target)^2. */
static dt_tensor *squared_error(void *arg, dt_tape *t, dt_tensor *y, dt_tensor *targets)
{
    (void)arg;
    dt_tensor *diff = dt_add(t, y, dt_scale(t, targets, -1));
    return dt_sum(t, dt_mul(t, diff, diff), 0);
}

static dt_status net_open(const net_plan *plan, dt_world *world, net *n)
{
    const bool full = getenv("DT_FULL") != NULL;
    const dt_mesh_options axes = {.axes = {{"pp", -1}, {"dp", 1}}};
    const dt_pipeline_options cut = {
        .chain = {.layers = "layers"}, .hidden = full ? 512 : 64, .boundary = "S(0)@dp"};
    dt_pp_schedule *s = NULL;
    *n = (net){.plan = plan, .samples = full ? 256 : 32, .d = cut.hidden};
    DT_TRY(dt_mesh_create(world, (dt_device){DT_CPU, 0}, &axes, &n->mesh));
    DT_TRY(dt_pp_schedule_create(plan->schedule, plan->ranks, plan->m, 0, &s));
    n->nstages = s->nstages;
    DT_TRY(make_net(n->nstages + 1, n->d, &n->whole)); /* uneven */
    if (plan->whole) {
        DT_TRY(dt_module_materialize(n->whole, n->mesh, 3));
    } else {
        DT_TRY(dt_pipeline_split(&n->whole, n->mesh, "pp", s, &cut, &n->pipe));
        DT_TRY(dt_module_materialize(dt_pipeline_module(n->pipe), dt_pipeline_mesh(n->pipe), 3));
    }
    n->y = calloc((size_t)(n->samples * n->d), sizeof *n->y);
    TEST_THAT(n->y != NULL, "no memory");
    dt_pp_schedule_destroy(&s);
    return DT_OK;
}

static void net_close(net *n)
{
    dt_module_destroy(&n->whole);
    dt_pipeline_destroy(&n->pipe);
    dt_mesh_destroy(&n->mesh);
    free(n->y);
}

static dt_pipeline_pass net_pass(net *n)
{
    return (dt_pipeline_pass){.samples = n->samples,
                              .at_once = n->samples / n->plan->m,
                              .seq_len = 1,
                              .loss = squared_error,
                              .read = read_rows,
                              .aside = n->plan->aside ? read_aside : NULL,
                              .arg = n};
}

/* ---- against one rank ---- */

/* The uncut net on the whole batch: outputs in y, the loss, gradients. */
static dt_status run_whole(net *one, double *loss)
{
    float value = 0;
    dt_tape *t = NULL;
    dt_tensor *in[4] = {NULL};
    for (int i = 0; i < (one->plan->aside ? 4 : 2); i++)
        DT_TRY(rows(one, i, 0, one->samples, &in[i]));
    DT_TRY(dt_tape_create(one->mesh, NULL, &t));
    const dt_values v = {.n = one->plan->aside ? 4 : 1, .value = {in[0], NULL, in[2], in[3]}};
    dt_tensor *y = dt_module_call(one->whole, t, &v).value[0];
    dt_tensor *sum = squared_error(NULL, t, y, in[1]);
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

static bool has_last(const net *n)
{
    return dt_pipeline_stage_number(n->pipe, dt_pipeline_nstages(n->pipe) - 1) == n->nstages - 1;
}

static dt_status keep_loss(void *arg, int64_t lo, int64_t hi, dt_tensor *y)
{
    net *n = arg;
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
    net *n = arg;
    TEST_THAT(lo == n->next && hi <= n->samples, "samples [%lld, %lld)", (long long)lo,
              (long long)hi);
    DT_TRY(dt_tensor_read_f32_sync(y, n->y + lo * n->d));
    n->seen++;
    n->next = hi;
    return DT_OK;
}

/* Twice, with the gradients cleared between; each like one rank, and both alike. */
static dt_status twice(net *n, net *one, dt_world *world, double want)
{
    const dt_pipeline_pass pass = net_pass(n);
    double loss[2];
    for (int i = 0; i < 2; i++) {
        dt_module_clear_grads(dt_pipeline_module(n->pipe));
        DT_TRY(dt_pipeline_run(n->pipe, &pass, &loss[i]));
        DT_TRY(pipe_same_gradients(dt_pipeline_module(n->pipe), one->whole));
        DT_TRY(check_loss(world, loss[i], want));
    }
    TEST_THAT(loss[0] == loss[1], "%.9g, then %.9g", loss[0], loss[1]);
    return DT_OK;
}

/* The pass's `output` is given the loss of each microbatch in turn, m of them where the last stage
 * is; their sum is the loss. Backward is what it was. */
static dt_status one_by_one(net *n, net *one, dt_world *world, double want)
{
    dt_pipeline_pass pass = net_pass(n);
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

/* Forward only, in microbatches of another size: the loss, then the outputs; no gradient. */
static dt_status evaluate(net *n, net *one, dt_world *world, double want)
{
    dt_pipeline_pass pass = net_pass(n);
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
    net n, one;
    double want = 0;
    dt_world *self = NULL;
    net_plan alone = *(const net_plan *)arg;
    alone.whole = true;
    DT_TRY(net_open(arg, world, &n));
    DT_TRY(dt_world_create(&(dt_world_options){.backend = DT_BACKEND_SELF}, &self));
    DT_TRY(net_open(&alone, self, &one));
    DT_TRY(run_whole(&one, &want));
    DT_TRY(twice(&n, &one, world, want));
    DT_TRY(one_by_one(&n, &one, world, want));
    DT_TRY(evaluate(&n, &one, world, want));
    net_close(&n);
    net_close(&one);
    dt_world_destroy(&self);
    return DT_OK;
}

/* 4 ranks, chunks 4; 8 where a rank has several stages. */
START_TEST(stages_of_mlp_are_one_rank)
{
    const char *name = pipe_schedules[_i / 2];
    const dt_pp_rule *rule = NULL;
    ck_ok(dt_pp_rule_find(name, &rule));
    net_plan c = {.schedule = name, .ranks = 4, .m = rule->v_default > 1 ? 8 : 4, .aside = _i % 2};
    test_ranks(c.ranks, net_body, &c);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("pipelines of MLPs");
    TCase *tc = tcase_create("mlp");
    tcase_set_timeout(tc, 120);
    tcase_add_loop_test(tc, stages_of_mlp_are_one_rank, 0, 2 * PIPE_NSCHEDULES);
    suite_add_tcase(suite, tc);
    return test_main(suite);
}
