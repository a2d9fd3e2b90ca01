/* tests/dtensor/fuzz_run.c - runs graphs on one rank and on the ranks of a mesh, and compares.
 * Read first: tests/dtensor/fuzz.h. Read next: tests/dtensor/test_fuzz.c. */
#include "tests/dtensor/fuzz.h"
#include "tests/dtensor/op_check_internal.h"

#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const dt_mesh_options meshes[] = {
    {.axes = {{"a", 2}}},
    {.axes = {{"a", 2}, {"b", 2}}},
    {.axes = {{"a", 3}}},
    {.axes = {{"a", 2}, {"b", 3}}},
    {.axes = {{"a", 4}}},
    {.axes = {{"a", 1}, {"b", 2}}},
    {.axes = {{"a", 2}, {"b", 1}, {"c", 2}}},
    {.axes = {{"a", 3}, {"b", 2}}},
    {.axes = {{"a", 5}}},
};

/* What one rank computed; NULL where no gradient arrived. */
typedef struct truth {
    double *value[FUZZ_VALUES], *grad[FUZZ_VALUES];
} truth;

typedef struct batch {
    const fuzz_subject *subject;
    const dt_mesh_options *mesh;
    int n;
    fuzz_graph graph[FUZZ_BATCH];
    truth truth[FUZZ_BATCH];
    fuzz_stats *stats;
    atomic_int failing; /* number in the batch; -1: none */
} batch;

typedef struct run {
    const fuzz_graph *g;
    const fuzz_subject *subject; /* NULL: one rank, which finds the truth */
    truth *truth;
    dt_mesh *mesh;
    dt_tape *tape;
    dt_tensor *x[FUZZ_VALUES];
    fuzz_stats *stats; /* rank 0 of the mesh counts; NULL elsewhere */
} run;

static bool alone(const run *r)
{
    return !r->subject;
}

static void set_fault(const run *r, const char *fault)
{
    dt_world_set_fault(dt_mesh_world(r->mesh), fault ? fault : "");
}

/* ---- forward ---- */

/* The layout drawn, as the mesh of this run has it; R on one rank. */
static dt_status layout_of(const run *r, int v, const dt_layout **out)
{
    dt_layout layout = *r->g->value[v].layout;
    if (alone(r))
        layout = dt_layout_replicated(dt_mesh_grid(r->mesh), layout.shape);
    DT_TRY(dt_mesh_layout(r->mesh, &layout, out));
    return DT_OK;
}

static dt_status make_leaf(run *r, int v)
{
    const fuzz_value *value = &r->g->value[v];
    const int64_t n = value->below;
    const op_check_spec spec = {.below = {n, n, n, n, n, n, n, n}};
    const dt_layout *layout;
    DT_TRY(layout_of(r, v, &layout));
    DT_TRY(op_check_operand(&spec, n ? value->seed % DT_OP_MAX_IN : OP_DOUT + value->seed, layout,
                            &r->x[v]));
    if (!n)
        dt_tensor_set_requires_grad(r->x[v], value->wants_grad);
    if (value->wants_grad && value->parameter)
        dt_tensor_set_parameter(r->x[v], true);
    return DT_OK;
}

static dt_status run_step(run *r, const fuzz_step *s)
{
    fuzz_call c = {.tape = r->tape, .step = s};
    for (int i = 0; i < s->nin; i++)
        c.in[i] = r->x[s->in[i]];
    DT_TRY(layout_of(r, s->out, &c.to));
    s->op->call(&c);
    const dt_status st = dt_tape_status(r->tape);
    DT_REQUIRE(st == DT_OK, st, "v%d = %s: %s", s->out, s->op->name, dt_error_trace());
    for (int j = 0; j < s->nout; j++) {
        const dt_layout *want;
        DT_TRY(layout_of(r, s->out + j, &want));
        r->x[s->out + j] = c.out[j];
        TEST_THAT(dt_tensor_layout(c.out[j]) == want, "%s gave another layout than on meta",
                  s->op->name);
    }
    return DT_OK;
}

static dt_status forward(run *r)
{
    dt_tape_reset(r->tape, &(dt_tape_options){.seed = r->g->seed});
    for (int v = 0; v < r->g->nvalues; v++)
        if (r->g->value[v].leaf)
            DT_TRY(make_leaf(r, v));
    if (!alone(r))
        set_fault(r, r->subject->forward_fault);
    for (int s = 0; s < r->g->nsteps; s++)
        DT_TRY(run_step(r, &r->g->step[s]));
    set_fault(r, NULL);
    return DT_OK;
}

/* ---- comparisons ---- */

/* Keep the truth, or compare with it: 1e-9 of the largest element, or of 1. */
static dt_status settle(const run *r, dt_tensor *x, double **kept, const char *what)
{
    const int64_t n = dt_shape_count(dt_tensor_shape(x));
    if (alone(r)) {
        *kept = malloc((size_t)(n + 1) * sizeof **kept);
        TEST_THAT(*kept, "memory");
        return dt_tensor_read_sync(x, *kept);
    }
    double largest = 1e-300;
    for (int64_t k = 0; k < n; k++)
        largest = fmax(largest, fabs((*kept)[k]));
    DT_TRY(op_check_equal(x, *kept, 1e-9 * fmax(1, largest) / largest, what));
    return DT_OK;
}

static dt_status settle_values(run *r)
{
    char what[64];
    for (int s = 0; s < r->g->nsteps; s++) {
        const fuzz_step *step = &r->g->step[s];
        for (int v = step->out; v < step->out + step->nout; v++) {
            (void)snprintf(what, sizeof what, "v%d = %s", v, step->op->name);
            DT_TRY(settle(r, r->x[v], &r->truth->value[v], what));
        }
    }
    return DT_OK;
}

/* S has a gradient S, P one that is R, R one that is R or P. */
static dt_status check_dual(const dt_layout *x, const dt_layout *grad, const char *what)
{
    const dt_layout dual = dt_layout_dual(x);
    dt_layout shards = *grad;
    shards.partial = 0;
    TEST_THAT(dt_layout_equal(&shards, &dual) && !(grad->partial & x->partial),
              "%s is no dual of its leaf's layout", what);
    return DT_OK;
}

static dt_status settle_grad(run *r, int v)
{
    char what[64];
    const dt_local *grad = dt_tensor_grad(r->x[v]);
    (void)snprintf(what, sizeof what, "gradient of v%d", v);
    if (!alone(r))
        TEST_THAT(!grad->array.storage == !r->truth->grad[v], "%s: arrived here or there", what);
    if (!grad->array.storage)
        return DT_OK;
    DT_TRY(check_dual(dt_tensor_layout(r->x[v]), grad->layout, what));
    dt_tensor *g;
    DT_TRY(dt_from_array(grad->layout, &grad->array, &g));
    const dt_status st = settle(r, g, &r->truth->grad[v], what);
    dt_tensor_destroy(&g);
    return st;
}

/* Two walks on a mesh must give what one walk gives on one rank. */
static dt_status walk(run *r)
{
    dt_tensor *loss = r->x[r->g->loss];
    if (alone(r) || !r->g->two_walks)
        return dt_backward(r->tape, loss);
    const dt_layout dual = dt_layout_dual(dt_tensor_layout(loss));
    dt_local one = {0};
    DT_TRY(dt_mesh_layout(r->mesh, &dual, &one.layout));
    DT_TRY(dt_array_create(dt_mesh_heap(r->mesh), DT_F64, DT_SCALAR, DT_TAG_GRADIENT, &one.array));
    dt_array_fill(&one.array, 1.0);
    dt_status st = dt_backward_input(r->tape, 1, &loss, &one);
    if (st == DT_OK)
        st = dt_backward_weight(r->tape);
    dt_array_release(&one.array);
    return st;
}

/* A loss with a split vocabulary may refuse a gradient that is P: not wrong, and counted. */
static dt_status backward(run *r, bool *refused_out)
{
    if (!alone(r))
        set_fault(r, r->subject->backward_fault);
    const dt_status st = walk(r);
    set_fault(r, NULL);
    *refused_out = !alone(r) && st == DT_ERR_PLACEMENT && strstr(dt_error_trace(), "cross_entropy");
    if (*refused_out)
        dt_error_clear();
    else
        DT_TRY(st);
    return DT_OK;
}

static dt_status run_checked(run *r)
{
    bool refused;
    long gradients = 0;
    DT_TRY(forward(r));
    DT_TRY(settle_values(r));
    DT_TRY(backward(r, &refused));
    for (int v = 0; v < r->g->nvalues && !refused; v++) {
        if (!r->g->value[v].wants_grad)
            continue;
        DT_TRY(settle_grad(r, v));
        gradients++;
    }
    if (r->stats) {
        r->stats->values += r->g->nvalues;
        r->stats->gradients += gradients;
        r->stats->refused_backward += refused;
    }
    return DT_OK;
}

static dt_status run_graph(batch *b, int k, dt_mesh *mesh, const fuzz_subject *subject)
{
    run *r = calloc(1, sizeof *r);
    TEST_THAT(r, "memory");
    *r = (run){.g = &b->graph[k],
               .subject = subject,
               .truth = &b->truth[k],
               .mesh = mesh,
               .stats = subject && dt_mesh_rank(mesh) == 0 ? b->stats : NULL};
    dt_status st = dt_tape_create(mesh, NULL, &r->tape);
    if (st == DT_OK)
        st = run_checked(r);
    dt_tape_destroy(&r->tape);
    for (int v = 0; v < r->g->nvalues; v++)
        if (r->g->value[v].leaf)
            dt_tensor_destroy(&r->x[v]);
    free(r);
    return st;
}

/* ---- batches ---- */

static dt_status ranks_body(dt_world *world, void *arg)
{
    batch *b = arg;
    dt_mesh *mesh;
    dt_status st = DT_OK;
    DT_TRY(dt_mesh_create(world, test_device(world), b->mesh, &mesh));
    for (int k = 0; k < b->n && st == DT_OK; k++) {
        st = run_graph(b, k, mesh, b->subject);
        if (st != DT_OK)
            b->failing = k;
    }
    dt_mesh_destroy(&mesh);
    return st;
}

static dt_status alone_body(dt_world *world, void *arg)
{
    batch *b = arg;
    dt_mesh *mesh;
    dt_status st = DT_OK;
    const dt_mesh_options one = {.axes = {{"one", 1}}};
    DT_TRY(dt_mesh_create(world, test_device(world), &one, &mesh));
    for (int k = 0; k < b->n && st == DT_OK; k++)
        st = run_graph(b, k, mesh, NULL);
    dt_mesh_destroy(&mesh);
    return st;
}

static dt_status run_batch(batch *b, dt_mesh *meta, uint64_t first, int nranks, bool loud)
{
    for (int k = 0; k < b->n; k++)
        DT_TRY(fuzz_draw(meta, b->subject, first + (uint64_t)k, &b->graph[k], b->stats));
    DT_TRY(dt_world_run_threads(1, NULL, alone_body, b));
    const dt_status st = dt_world_run_threads(nranks, NULL, ranks_body, b);
    b->stats->cases += b->n;
    if (st != DT_OK && loud && b->failing >= 0) {
        char text[DT_MESH_TEXT];
        printf("failing case, to replay: DT_FUZZ_SEED=%llu; %s\n",
               (unsigned long long)first + (unsigned long long)b->failing,
               dt_mesh_print(meta, text, sizeof text));
        fuzz_print(&b->graph[b->failing]);
    }
    return st;
}

dt_status fuzz_batch(const fuzz_subject *subject, uint64_t first, int n, bool loud,
                     fuzz_stats *stats, int *failing_out)
{
    const dt_mesh_options *mesh = &meshes[first / FUZZ_BATCH % DT_COUNT(meshes)];
    dt_world_options fake = {.backend = DT_BACKEND_FAKE, .fake_size = 1};
    for (int a = 0; mesh->axes[a].name; a++)
        fake.fake_size *= mesh->axes[a].size;
    batch *b = calloc(1, sizeof *b);
    TEST_THAT(b, "memory");
    *b = (batch){.subject = subject, .mesh = mesh, .n = n, .stats = stats, .failing = -1};
    dt_world *world = NULL;
    dt_mesh *meta = NULL;
    dt_status st = dt_world_create(&fake, &world);
    if (st == DT_OK)
        st = dt_mesh_create(world, (dt_device){DT_META, 0}, mesh, &meta);
    if (st == DT_OK)
        st = run_batch(b, meta, first, fake.fake_size, loud);
    dt_mesh_destroy(&meta);
    dt_world_destroy(&world);
    *failing_out = b->failing;
    for (int k = 0; k < n; k++)
        for (int v = 0; v < FUZZ_VALUES; v++) {
            free(b->truth[k].value[v]);
            free(b->truth[k].grad[v]);
        }
    free(b);
    return st;
}

/* ---- printing ---- */

static void print_value(const fuzz_graph *g, int v)
{
    char shape[DT_SHAPE_TEXT], layout[DT_LAYOUT_TEXT];
    printf("v%d %s %s", v, dt_shape_print(g->value[v].shape, shape, sizeof shape),
           dt_layout_print(g->value[v].layout, layout, sizeof layout));
}

void fuzz_print(const fuzz_graph *g)
{
    for (int v = 0; v < g->nvalues; v++) {
        if (!g->value[v].leaf)
            continue;
        print_value(g, v);
        printf(g->value[v].below        ? " = ids\n"
               : g->value[v].wants_grad ? g->value[v].parameter ? " = parameter\n" : " = leaf\n"
                                        : " = leaf without gradient\n");
    }
    for (int k = 0; k < g->nsteps; k++) {
        const fuzz_step *s = &g->step[k];
        for (int j = 0; j < s->nout; j++) {
            print_value(g, s->out + j);
            printf(j + 1 < s->nout ? ", " : " = %s(", s->op->name);
        }
        for (int i = 0; i < s->nin; i++)
            printf("%sv%d", i ? ", " : "", s->in[i]);
        printf(") %s %s attributes %lld %lld %lld %lld\n", s->text, s->sizes, (long long)s->n[0],
               (long long)s->n[1], (long long)s->n[2], (long long)s->n[3]);
    }
    printf("loss v%d\n", g->loss);
}
