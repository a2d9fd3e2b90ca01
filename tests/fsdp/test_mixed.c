/* tests/fsdp/test_mixed.c - types: compute in bf16 or f16 with f32 weights, sums in f32 or bf16, parameters of several types in
 * one group; on one rank casts alone. (F12; F1 and F2 for the arithmetic.) */
#include "optim/dt_scaler.h"
#include "tests/fsdp/net.h"

#include <math.h>
#include <stdio.h>
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

/* ---- a linear of known gradients: dw = the sum over ranks of what each holds ---- */

enum { MOST = 8 };

typedef struct sums {
    int ranks;
    dt_fsdp_options options;
    bool whole_steps; /* sync off for all microbatches but the last */
} sums;

static const dt_shape sizes[] = {{1, {17 * 257}}, {1, {17}},       {2, {64, 39}}, {1, {64}},
                                 {2, {64, 64}},   {2, {51, 64}},   {1, {256}},    {2, {5, 3}},
                                 {1, {7}},        {3, {61, 2, 2}}, {2, {3, 5}},   {2, {1, 9}}};
enum { NPARAMS = DT_COUNT(sizes) };

static dt_tensor *used[MOST][NPARAMS]; /* by rank: what the forward saw */

/* sum over parameters of <w, x_r> where x_r is this rank's own: dw = sum of x_r */
static float own(int rank, int micro, int i, int64_t k)
{
    return (float)sin(1.0 + rank * 3.1 + micro * 0.77 + i * 0.3 + (double)k * 0.01) * 0.3f;
}

typedef struct state {
    dt_mesh *mesh;
    int micro;
    dt_tensor *x[NPARAMS];
} state;

static dt_values forward(dt_module *m, dt_tape *t, const dt_values *in)
{
    state *s = *(state **)dt_module_state(m);
    (void)in;
    dt_tensor *sum = NULL;
    for (int i = 0; i < NPARAMS; i++) {
        char name[8];
        (void)snprintf(name, sizeof name, "p%d", i);
        const dt_param *p = dt_module_param(m, name);
        dt_tensor *w = p->use ? p->use : p->tensor;
        used[dt_world_rank(dt_mesh_world(s->mesh))][i] = w;
        dt_tensor *term = dt_sum(t, dt_cast(t, dt_mul(t, w, s->x[i]), DT_F32, true), 0);
        sum = sum ? dt_add(t, sum, term) : term;
    }
    return (dt_values){.n = 1, .value = {sum}};
}

/* x_r as a tensor that is P: then w R times x P gives P, and dw is P = x_r. */
static dt_status make_x(state *s, dt_dtype dtype)
{
    const int rank = dt_world_rank(dt_mesh_world(s->mesh));
    for (int i = 0; i < NPARAMS; i++) {
        const dt_layout *p = NULL;
        dt_tensor_destroy(&s->x[i]);
        DT_TRY(dt_mesh_layout_text(s->mesh, sizes[i], "P@dp_shard", &p));
        DT_TRY(dt_tensor_create(p, dtype, DT_TAG_ACTIVATION, &s->x[i]));
        const int64_t n = dt_shape_count(sizes[i]);
        dt_array f32 = {0};
        DT_TRY(dt_array_create(dt_mesh_heap(s->mesh), DT_F32, sizes[i], DT_TAG_WORKSPACE, &f32));
        for (int64_t k = 0; k < n; k++)
            ((float *)dt_array_data(&f32))[k] = own(rank, s->micro, i, k);
        dt_array_cast(dt_tensor_local(s->x[i]), &f32);
        dt_array_release(&f32);
    }
    return DT_OK;
}

/* A number in a type, rounded. */
static float rounded(float x, dt_dtype dtype)
{
    if (dtype == DT_F32 || x == 0)
        return x;
    const int digits = dtype == DT_BF16 ? 8 : 11, least = dtype == DT_BF16 ? -133 : -24;
    const int last = ilogbf(x) - digits + 1; /* exponent of the last digit kept */
    const int e = last > least ? last : least;
    return ldexpf(rintf(ldexpf(x, -e)), e);
}

enum { MICROS = 3 };

/* What the rules say dw is: each rank's term in the type of use; unsynced microbatches added in the type of sums; ranks added
 * in f32 in their order, rounded once to the type of sums; synced microbatches added in f32. */
static float expected(const sums *c, int i, int64_t k)
{
    const dt_dtype use = c->options.param_dtype, sum = c->options.reduce_dtype;
    float total = 0, term[MOST] = {0};
    for (int m = 0; m < MICROS; m++) {
        for (int r = 0; r < c->ranks; r++) {
            const float x = rounded(rounded(own(r, m, i, k), use), sum);
            term[r] = !c->whole_steps || m == 0 ? x : rounded(term[r] + x, sum);
        }
        if (c->whole_steps && m < MICROS - 1)
            continue;
        float over_ranks = term[0];
        for (int r = 1; r < c->ranks; r++)
            over_ranks += term[r];
        total =
            m == 0 || c->whole_steps ? rounded(over_ranks, sum) : total + rounded(over_ranks, sum);
    }
    return total;
}

static dt_status check(const sums *c, dt_module *m)
{
    for (int i = 0; i < NPARAMS; i++) {
        char name[8];
        int64_t at[DT_MAX_DIMS] = {0};
        (void)snprintf(name, sizeof name, "p%d", i);
        const dt_param *p = dt_module_param(m, name);
        const dt_local *g = dt_tensor_grad(p->tensor);
        const dt_shape local = dt_mesh_local(p->layout, at);
        TEST_THAT(g->layout == p->layout && g->array.dtype == DT_F32, "%s", name);
        const float *got = dt_array_data(&g->array);
        const int64_t first = at[0] * dt_shape_inner(sizes[i], 0);
        for (int64_t k = 0; k < dt_shape_count(local); k++)
            TEST_THAT(memcmp(&got[k], &(float){expected(c, i, first + k)}, 4) == 0,
                      "%s[%lld] is %.9g, not %.9g", name, (long long)(first + k), (double)got[k],
                      (double)expected(c, i, first + k));
    }
    return DT_OK;
}

static dt_status sums_body(dt_world *world, void *arg)
{
    static const dt_module_kind kind = {"dots", sizeof(state *), forward};
    const sums *c = arg;
    const int rank = dt_world_rank(world);
    dt_module *m = NULL;
    dt_tape *t = NULL;
    state s = {0};
    DT_TRY(dt_mesh_create(world, (dt_device){DT_CPU, 0},
                          &(dt_mesh_options){.axes = {{"dp_shard", -1}}}, &s.mesh));
    DT_TRY(dt_module_create(&kind, &m));
    *(state **)dt_module_state(m) = &s;
    for (int i = 0; i < NPARAMS; i++) {
        char name[8];
        (void)snprintf(name, sizeof name, "p%d", i);
        DT_TRY(dt_module_add_param(m, name, sizes[i], NULL, (dt_init){DT_INIT_NORMAL, 1}, NULL));
    }
    DT_TRY(dt_module_finish(m));
    DT_TRY(dt_fully_shard(m, s.mesh, "dp_shard", &c->options));
    DT_TRY(dt_module_materialize(m, s.mesh, 3));
    DT_TRY(dt_tape_create(s.mesh, NULL, &t));
    for (s.micro = 0; s.micro < MICROS; s.micro++) {
        dt_fsdp_set_grad_sync(m, !c->whole_steps || s.micro == MICROS - 1);
        DT_TRY(make_x(&s, c->options.param_dtype));
        const dt_values none = {0};
        const dt_values out = dt_module_call(m, t, &none);
        DT_TRY(dt_tape_status(t));
        for (int i = 0; i < NPARAMS; i++) { /* gathered: equal to all ranks' shards, cast */
            float *whole = malloc(sizeof *whole * (size_t)dt_shape_count(sizes[i]));
            char name[8];
            (void)snprintf(name, sizeof name, "p%d", i);
            TEST_THAT(whole, "memory");
            DT_TRY(dt_tensor_read_f32_sync(dt_module_param(m, name)->tensor, whole));
            dt_array f32 = {0}, *use = dt_tensor_local(used[rank][i]);
            DT_TRY(dt_array_create(dt_mesh_heap(s.mesh), DT_F32, sizes[i], DT_TAG_WORKSPACE, &f32));
            dt_array_cast(&f32, use);
            TEST_THAT(use->dtype == c->options.param_dtype, "type of use");
            for (int64_t k = 0; k < dt_shape_count(sizes[i]); k++)
                TEST_THAT(((float *)dt_array_data(&f32))[k] == rounded(whole[k], use->dtype),
                          "%s[%lld]", name, (long long)k);
            dt_array_release(&f32);
            free(whole);
        }
        dt_world_reset_counts(world);
        DT_TRY(dt_backward(t, out.value[0]));
        const dt_counts n = dt_world_counts(world);
        const bool reduces = !c->whole_steps || s.micro == MICROS - 1;
        TEST_THAT(n.total_calls == reduces && n.calls[DT_CALL_REDUCE_SCATTER] == reduces,
                  "one call");
        int64_t bytes = 0; /* in the type of sums */
        for (int i = 0; i < NPARAMS; i++)
            bytes += dt_shape_count(sizes[i]) * (int64_t)dt_dtype_size(c->options.reduce_dtype) *
                     (c->ranks - 1) / c->ranks;
        TEST_THAT(n.total_bytes == (reduces ? bytes : 0), "%lld bytes, not %lld",
                  (long long)n.total_bytes, (long long)bytes);
        dt_tape_reset(t, NULL);
    }
    DT_TRY(dt_module_reduce_grads(m));
    DT_TRY(check(c, m));
    for (int i = 0; i < NPARAMS; i++)
        dt_tensor_destroy(&s.x[i]);
    dt_tape_destroy(&t);
    dt_module_destroy(&m);
    dt_mesh_destroy(&s.mesh);
    return DT_OK;
}

START_TEST(sums_by_rule)
{
    static const dt_dtype type[][2] = {{DT_F32, DT_F32},
                                       {DT_BF16, DT_F32},
                                       {DT_F32, DT_BF16},
                                       {DT_BF16, DT_BF16},
                                       {DT_F16, DT_F32}};
    static const int ranks[] = {2, 3, 4, 8};
    sums c = {.ranks = ranks[_i / 2 % 4],
              .whole_steps = _i % 2,
              .options = {.param_dtype = type[_i / 8][0], .reduce_dtype = type[_i / 8][1]}};
    test_ranks(c.ranks, sums_body, &c);
}
END_TEST

/* ---- training ---- */

/* On one rank nothing is sent and everything is cast: it is the same run as on several up to the order of sums, which differs
 * by rounding to the narrower type. */
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

/* A scale too large for f16 is halved until gradients fit, on all ranks alike; the weights are then those of a run that began
 * with the scale found: powers of two change no bit.  */
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
    tcase_add_loop_test(tc, sums_by_rule, 0, 40);
    tcase_add_loop_test(tc, low_precision_trains, 0, 4);
    tcase_add_test(tc, types_in_a_group);
    tcase_add_loop_test(tc, cleared_is_gone, 0, 2);
    tcase_add_loop_test(tc, loss_scale, 0, 3);
    suite_add_tcase(suite, tc);
    return test_main(suite);
}
