/* tests/fsdp/test_sums.c - what is gathered and what is summed, bit by bit, by rule: shapes that do
 * not divide, 2 to 8 ranks, every pair of types, microbatches synced or not. (F1, F2.) */
#include "tests/fsdp/net.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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
        float *host = (float *)(uintptr_t)test_look(&f32);
        for (int64_t k = 0; k < n; k++)
            host[k] = own(rank, s->micro, i, k);
        DT_TRY(dt_array_write(&f32, host, n));
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

/* What the rules say dw is: each rank's term in the type of use; unsynced microbatches added in
 * the type of sums; ranks added
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
    const bool near = !test_bits() && c->options.reduce_dtype == DT_F32;
    for (int i = 0; i < NPARAMS; i++) {
        char name[8];
        int64_t at[DT_MAX_DIMS] = {0};
        (void)snprintf(name, sizeof name, "p%d", i);
        const dt_param *p = dt_module_param(m, name);
        const dt_local *g = dt_tensor_grad(p->tensor);
        const dt_shape local = dt_mesh_local(p->layout, at);
        TEST_THAT(g->layout == p->layout && g->array.dtype == DT_F32, "%s", name);
        const float *got = test_look(&g->array);
        const int64_t first = at[0] * dt_shape_inner(sizes[i], 0);
        for (int64_t k = 0; k < dt_shape_count(local); k++) {
            const float want = expected(c, i, first + k);
            TEST_THAT(near ? fabsf(got[k] - want) <= 1e-6f : memcmp(&got[k], &want, 4) == 0,
                      "%s[%lld] is %.9g, not %.9g", name, (long long)(first + k), (double)got[k],
                      (double)want);
        }
    }
    return DT_OK;
}

/* What the forward saw equals all ranks' shards, cast. */
static dt_status check_gathered(const sums *c, dt_module *m, dt_mesh *mesh)
{
    for (int i = 0; i < NPARAMS; i++) {
        float *whole = malloc(sizeof *whole * (size_t)dt_shape_count(sizes[i]));
        char name[8];
        (void)snprintf(name, sizeof name, "p%d", i);
        TEST_THAT(whole, "memory");
        DT_TRY(dt_tensor_read_f32_sync(dt_module_param(m, name)->tensor, whole));
        dt_array f32 = {0}, *use = dt_tensor_local(used[dt_world_rank(dt_mesh_world(mesh))][i]);
        DT_TRY(dt_array_create(dt_mesh_heap(mesh), DT_F32, sizes[i], DT_TAG_WORKSPACE, &f32));
        dt_array_cast(&f32, use);
        TEST_THAT(use->dtype == c->options.param_dtype, "type of use");
        const float *got = test_look(&f32);
        for (int64_t k = 0; k < dt_shape_count(sizes[i]); k++)
            TEST_THAT(got[k] == rounded(whole[k], use->dtype), "%s[%lld]", name, (long long)k);
        dt_array_release(&f32);
        free(whole);
    }
    return DT_OK;
}

static dt_status sums_body(dt_world *world, void *arg)
{
    static const dt_module_kind kind = {"dots", sizeof(state *), forward};
    const sums *c = arg;
    dt_module *m = NULL;
    dt_tape *t = NULL;
    state s = {0};
    DT_TRY(dt_mesh_create(world, test_device(world), &(dt_mesh_options){.axes = {{"dp_shard", -1}}},
                          &s.mesh));
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
        DT_TRY(check_gathered(c, m, s.mesh));
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

int main(void)
{
    Suite *suite = suite_create("fully_shard sums");
    TCase *tc = tcase_create("all");
    tcase_set_timeout(tc, 120);
    tcase_add_loop_test(tc, sums_by_rule, 0, 40);
    suite_add_tcase(suite, tc);
    return test_main(suite);
}
