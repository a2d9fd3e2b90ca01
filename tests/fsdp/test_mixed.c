/* tests/fsdp/test_mixed.c - types: compute in bf16 or f16 with f32 weights, sums in f32 or bf16,
 * parameters of several types in one group; on one rank casts alone. (F12; the arithmetic is in
 * test_sums.c.) */
#include "optim/dt_scaler.h"
#include "tests/fsdp/net.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static net_case usual(int shard, dt_dtype param, dt_dtype sum)
{
    return (net_case){.shard = shard,
                      .blocks = 2,
                      .n = 7,
                      .hidden = 10,
                      .batch = 6,
                      .options = {.param_dtype = param, .reduce_dtype = sum}};
}

/* ---- training ---- */

/* On one rank nothing is sent and everything is cast: it is the same run as on several up to the
 * order of sums, which differs by rounding to the narrower type. */
START_TEST(low_precision_trains)
{
    static const dt_dtype type[][2] = {
        {DT_BF16, DT_F32}, {DT_F32, DT_BF16}, {DT_BF16, DT_BF16}, {DT_F16, DT_F32}};
    net_case c = usual(3, type[_i][0], type[_i][1]);
    c.steps = 10;
    net_run a = net_train(&c);
    c.shard = 1;
    net_run b = net_train(&c);
    ck_assert_int_eq(b.counts.total_calls, 0);
    net_same(&a, &b, 10, 1.0 / 64);
    c.options = (dt_fsdp_options){0};
    net_run f32 = net_train(&c);
    ck_assert_msg(a.loss[9] < 0.9 * a.loss[0], "it does not learn: %g, %g", a.loss[0], a.loss[9]);
    ck_assert_msg(fabs(a.loss[9] - f32.loss[9]) < 0.05 * f32.loss[9], "%g, in f32 %g", a.loss[9],
                  f32.loss[9]);
    ck_assert_msg(type[_i][0] == DT_F32 || b.loss[0] != f32.loss[0], "nothing was cast");
    net_free(&a);
    net_free(&b);
    net_free(&f32);
}
END_TEST

/* ---- several types in one group: each is gathered as it is stored ---- */

static dt_status types(net *n)
{
    int np = 0;
    dt_param *const *p = dt_module_params(n->root, &np);
    p[np - 1]->dtype = DT_BF16; /* the head's weight, in the group of the norm */
    p[np - 1]->frozen = true;
    for (int i = 0; i < n->c->blocks; i++)
        DT_TRY(dt_fully_shard(n->block[i], n->mesh, "dp_shard", &n->c->options));
    DT_TRY(dt_fully_shard(n->root, n->mesh, "dp_shard", &n->c->options));
    return DT_OK;
}

static dt_status types_body(dt_world *world, void *arg)
{
    net n;
    int np = 0;
    DT_TRY(net_open(arg, world, &n));
    dt_param *const *p = dt_module_params(n.root, &np);
    dt_world_reset_counts(world);
    DT_TRY(dt_fsdp_unshard(n.root));
    DT_TRY(dt_fsdp_reshard(n.root));
    TEST_THAT(net_calls(&n, DT_CALL_ALL_GATHER) == 1, "one call for f32 and bf16");
    TEST_THAT(dt_tensor_dtype(p[np - 1]->use) == DT_BF16 && dt_tensor_dtype(p[0]->use) == DT_F32,
              "types stay");
    int64_t bytes = 0;
    for (int i = 0; i < np; i++) {
        if (!strstr(p[i]->name, "layers"))
            bytes += dt_shape_count(p[i]->shape) * (int64_t)dt_dtype_size(p[i]->dtype) / 2;
    }
    TEST_THAT(dt_world_counts(world).total_bytes == bytes, "%lld, not %lld",
              (long long)dt_world_counts(world).total_bytes, (long long)bytes);
    net_close(&n);
    return DT_OK;
}

/* The narrower type stays also where another of 16 bits is asked for. */
static dt_status stays_body(dt_world *world, void *arg)
{
    net n;
    int np = 0;
    DT_TRY(net_open(arg, world, &n));
    dt_param *const *p = dt_module_params(n.root, &np);
    DT_TRY(dt_fsdp_unshard(n.root));
    DT_TRY(dt_fsdp_reshard(n.root));
    TEST_THAT(dt_tensor_dtype(p[np - 1]->use) == DT_BF16 && dt_tensor_dtype(p[0]->use) == DT_F16,
              "types of use");
    net_close(&n);
    return DT_OK;
}

START_TEST(types_in_a_group)
{
    net_case c = usual(2, DT_F32, DT_F32);
    c.n = 8;
    c.shard_with = types;
    test_ranks(2, types_body, &c);
    c.options.param_dtype = DT_F16;
    test_ranks(2, stays_body, &c);
    c.options.param_dtype = DT_BF16; /* all are used in bf16: it trains, all but the head */
    c.steps = 4;
    net_run a = net_train(&c);
    ck_assert_msg(a.loss[3] < a.loss[0], "%g, then %g", a.loss[0], a.loss[3]);
    net_free(&a);
}
END_TEST

/* Forgetting gradients forgets the sums in f32 too. */
static dt_status forget_body(dt_world *world, void *arg)
{
    net n;
    dt_tensor *loss = NULL;
    double a = 0, b = 0;
    float *first = NULL, *second = NULL;
    int64_t count = 0;
    DT_TRY(net_open(arg, world, &n));
    dt_fsdp_set_grad_sync(n.root, false);
    DT_TRY(net_forward(&n, 5, false, &loss)); /* dropped, as after an overflow */
    DT_TRY(dt_backward(n.t, loss));
    dt_module_clear_grads(n.root);
    dt_fsdp_set_grad_sync(n.root, true);
    DT_TRY(net_step(&n, 0, &a));
    DT_TRY(net_weights(&n, &count, &first));
    net_close(&n);
    DT_TRY(net_open(arg, world, &n));
    DT_TRY(net_step(&n, 0, &b));
    DT_TRY(net_weights(&n, &count, &second));
    TEST_THAT(a == b && memcmp(first, second, sizeof *first * (size_t)count) == 0,
              "the dropped one counts");
    free(first);
    free(second);
    net_close(&n);
    return DT_OK;
}

START_TEST(cleared_is_gone)
{
    net_case c = usual(2, _i ? DT_BF16 : DT_F32, DT_F32);
    test_ranks(2, forget_body, &c);
}
END_TEST

/* ---- f16 with a loss scale ---- */

typedef struct scaled_run {
    net_case c;
    double first; /* scale to begin with */
    int64_t skipped;
    double scale; /* at the end */
    float *weight;
    int64_t count;
} scaled_run;

/* A scale too large for f16 is halved until gradients fit, on all ranks alike; the weights are
 * then those of a run that began with the scale found: powers of two change no bit.  */
static dt_status scaled_body(dt_world *world, void *arg)
{
    scaled_run *run = arg;
    net n;
    int np = 0;
    DT_TRY(net_open(&run->c, world, &n));
    dt_param *const *p = dt_module_params(n.root, &np);
    dt_scaler s = dt_scaler_start();
    s.scale = run->first;
    dt_comm *all = dt_world_comm(world);
    for (int done = 0; done < 3;) {
        dt_tensor *loss = NULL;
        dt_local grads[40];
        double norm = 0, factor = 0;
        bool apply = false;
        DT_TRY(net_forward(&n, done, false, &loss));
        DT_TRY(dt_backward(n.t, dt_scale(n.t, loss, s.scale)));
        DT_TRY(dt_module_reduce_grads(n.root));
        for (int i = 0; i < np; i++)
            grads[i] = *dt_tensor_grad(p[i]->tensor);
        DT_TRY(dt_global_norm_sync(np, grads, all, &norm, NULL));
        DT_TRY(dt_scaler_update(&s, norm, &factor, &apply));
        if (apply)
            DT_TRY(dt_optim_step(n.optim, 1e-2, factor * dt_clip_factor(norm * factor, 1)));
        dt_module_clear_grads(n.root);
        done += apply;
        double same[] = {apply, -(double)apply}; /* all ranks decide alike */
        DT_TRY(dt_all_reduce_f64_sync(all, same, 2, DT_REDUCE_MAX));
        TEST_THAT(same[0] == -same[1], "some ranks skip, some do not");
    }
    int64_t count = 0;
    float *weight = NULL;
    DT_TRY(net_weights(&n, &count, &weight));
    if (dt_world_rank(world) == 0) {
        run->skipped = s.skipped;
        run->scale = s.scale;
        run->weight = weight;
        run->count = count;
    } else {
        free(weight);
    }
    net_close(&n);
    return DT_OK;
}

START_TEST(loss_scale)
{
    scaled_run high = {.c = usual(_i + 1, DT_F16, DT_F32), .first = 0x1p30};
    test_ranks(_i + 1, scaled_body, &high);
    ck_assert_msg(high.skipped > 2 && high.scale == ldexp(1, 30 - (int)high.skipped),
                  "%lld skipped, scale %g", (long long)high.skipped, high.scale);
    scaled_run found = {.c = high.c, .first = high.scale};
    test_ranks(_i + 1, scaled_body, &found);
    ck_assert_int_eq(found.skipped, 0);
    ck_assert(memcmp(found.weight, high.weight, sizeof(float) * (size_t)found.count) == 0);
    free(high.weight);
    free(found.weight);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("fully_shard types");
    TCase *tc = tcase_create("types");
    tcase_set_timeout(tc, 120);
    tcase_add_loop_test(tc, low_precision_trains, 0, 4);
    tcase_add_test(tc, types_in_a_group);
    tcase_add_loop_test(tc, cleared_is_gone, 0, 2);
    tcase_add_loop_test(tc, loss_scale, 0, 3);
    suite_add_tcase(suite, tc);
    return test_main(suite);
}
