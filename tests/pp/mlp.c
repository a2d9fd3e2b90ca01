/* tests/pp/mlp.c - see tests/pp/mlp.h. */
#include "tests/pp/mlp.h"

#include "nn/dt_layers.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* ---- the model: y = down(gelu(up x)), then, where asked, y * scale + shift, and skips ---- */

/* A layer's place: the first of n makes skip A, the second one skip B; the last but one uses B, the
 * last one A. What a layer does not use goes on. */
typedef struct layer_state {
    int i, n;
    int64_t d;
} layer_state;

/* B has half as many features. */
static void skips(const layer_state *s, dt_tape *t, dt_tensor *x, dt_values *v)
{
    dt_tensor **y = &v->value[0], **a = &v->value[MLP_SKIP_A], **b = &v->value[MLP_SKIP_B];
    if (s->i == 0)
        *a = *y;
    if (s->i < 2) /* of x, for which nobody wants a gradient: B is yet to be made */
        *b = dt_slice(t, s->i == 0 ? x : *y, 2, 0, s->d / 2);
    if (s->i == s->n - 2)
        *y = dt_mul(t, *y, dt_concat(t, 2, (dt_tensor *[]){*b, *b}, 2));
    if (s->i == s->n - 1)
        *y = dt_add(t, *y, *a);
}

static dt_values layer_forward(dt_module *m, dt_tape *t, const dt_values *in)
{
    dt_values v = *in;
    dt_tensor *y = dt_module_call1(dt_module_find(m, "up"), t, in->value[0]);
    y = dt_module_call1(dt_module_find(m, "down"), t, dt_gelu(t, y, DT_GELU_ERF));
    if (in->value[2])
        y = dt_add(t, dt_mul(t, y, in->value[2]), in->value[3]);
    v.value[0] = y;
    if (in->n == MLP_VALUES)
        skips(dt_module_state(m), t, in->value[0], &v);
    return v;
}

static dt_values net_forward(dt_module *m, dt_tape *t, const dt_values *in)
{
    dt_module *layers = dt_module_find(m, "layers");
    dt_values v = *in;
    for (int i = 0; i < dt_module_nchildren(layers); i++)
        v = dt_module_call(dt_module_child(layers, i), t, &v);
    return v;
}

static const dt_module_kind layer_kind = {"mlp", sizeof(layer_state), layer_forward};
static const dt_module_kind net_kind = {.name = "net", .forward = net_forward};

static dt_status make_layer(layer_state s, dt_module **out)
{
    static const char *const name[] = {"up", "down"};
    const dt_linear_options o = {
        .in = s.d, .out = s.d, .bias = true, .std = 1.4 / sqrt((double)s.d)};
    DT_TRY(dt_module_create(&layer_kind, out));
    *(layer_state *)dt_module_state(*out) = s;
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
        DT_TRY(make_layer((layer_state){i, n, d}, &layer));
        DT_TRY(dt_module_add(layers, name, layer));
    }
    DT_TRY(dt_module_add(*out, "layers", layers));
    DT_TRY(dt_module_finish(*out));
    return DT_OK;
}

/* ---- a rank's part ---- */

static float number(int which, int64_t i)
{
    const double x = sin(0.37 * (double)(i + 1) * (which + 1) + which);
    return (float)(which == 2 ? 1 + 0.25 * x : which == 3 ? 0.1 * x : x);
}

dt_status mlp_rows(const mlp *n, int which, int64_t lo, int64_t hi, dt_tensor **out)
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
        DT_TRY(mlp_rows(arg, 0, lo, hi, x));
    if (targets)
        DT_TRY(mlp_rows(arg, 1, lo, hi, targets));
    return DT_OK;
}

static dt_status read_aside(void *arg, int64_t lo, int64_t hi, dt_tensor *out[2])
{
    for (int i = 0; i < 2; i++)
        DT_TRY(mlp_rows(arg, 2 + i, lo, hi, &out[i]));
    return DT_OK;
}

dt_tensor *mlp_squared_error(void *arg, dt_tape *t, dt_tensor *y, dt_tensor *targets)
{
    (void)arg;
    dt_tensor *diff = dt_add(t, y, dt_scale(t, targets, -1));
    return dt_sum(t, dt_mul(t, diff, diff), 0);
}

dt_status mlp_open(const mlp_plan *plan, dt_world *world, mlp *n)
{
    const bool full = getenv("DT_FULL") != NULL;
    const dt_mesh_options axes = {.axes = {{"pp", plan->whole ? 1 : plan->ranks}, {"dp", -1}}};
    dt_pipeline_options cut = {
        .chain = {.layers = "layers"}, .hidden = full ? 512 : 64, .boundary = "S(0)@dp"};
    if (plan->skips) {
        cut.skip[0] = cut.hidden;
        cut.skip[1] = cut.hidden / 2;
    }
    dt_pp_schedule *s = NULL;
    *n = (mlp){.plan = plan, .samples = full ? 256 : 32, .d = cut.hidden};
    DT_TRY(dt_mesh_create(world, test_device(world), &axes, &n->mesh));
    DT_TRY(dt_pp_schedule_create(plan->schedule, plan->ranks, plan->m, 0, &s));
    n->nstages = s->nstages;
    DT_TRY(make_net(n->nstages + 1, n->d, &n->whole)); /* uneven */
    for (int i = 0; plan->recompute && i <= n->nstages; i++)
        dt_recompute(dt_module_child(dt_module_find(n->whole, "layers"), i), DT_RECOMPUTE_FULL);
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

void mlp_close(mlp *n)
{
    dt_module_destroy(&n->whole);
    dt_pipeline_destroy(&n->pipe);
    dt_mesh_destroy(&n->mesh);
    free(n->y);
}

dt_pipeline_pass mlp_pass(mlp *n)
{
    return (dt_pipeline_pass){.samples = n->samples,
                              .at_once = n->samples / n->plan->m,
                              .seq_len = 1,
                              .loss = mlp_squared_error,
                              .read = read_rows,
                              .aside = n->plan->aside ? read_aside : NULL,
                              .arg = n};
}
