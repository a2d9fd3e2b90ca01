/* tests/fsdp/net.c - see tests/fsdp/net.h. */
#include "tests/fsdp/net.h"

#include "tp/dt_tp.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int at_least_1(int n)
{
    return n > 0 ? n : 1;
}

int net_ranks(const net_case *c)
{
    return at_least_1(c->shard) * at_least_1(c->replicate) * at_least_1(c->tp);
}

/* ---- the module ---- */

static dt_values root_forward(dt_module *m, dt_tape *t, const dt_values *in)
{
    dt_module *layers = dt_module_child(m, 1);
    dt_tensor *x = dt_module_call1(dt_module_child(m, 0), t, in->value[0]);
    for (int i = 0; i < dt_module_nchildren(layers); i++)
        x = dt_module_call1(dt_module_child(layers, i), t, x);
    return (dt_values){.n = 1, .value = {dt_module_call1(dt_module_child(m, 2), t, x)}};
}

static dt_status make(net *n)
{
    static const dt_module_kind kind = {"net", 0, root_forward};
    const net_case *c = n->c;
    dt_module *made = NULL;
    DT_TRY(dt_module_create(&kind, &n->root));
    DT_TRY(dt_layer_layernorm(c->n, 1e-5, &made));
    DT_TRY(dt_module_add(n->root, "norm", made));
    DT_TRY(dt_layer_group(&n->layers));
    DT_TRY(dt_module_add(n->root, "layers", n->layers));
    for (int i = 0; i < c->blocks; i++) {
        char name[16];
        (void)snprintf(name, sizeof name, "%d", i);
        DT_TRY(dt_layer_gpt2_mlp(c->n, c->hidden, 0.4, 0.4, 0, &n->block[i]));
        DT_TRY(dt_module_add(n->layers, name, n->block[i]));
    }
    const dt_linear_options head = {.in = c->n, .out = c->n + 1, .std = 0.3};
    DT_TRY(dt_layer_linear(&head, &made));
    DT_TRY(dt_module_add(n->root, "head", made));
    DT_TRY(dt_module_finish(n->root));
    return DT_OK;
}

static const dt_tp_rule rows[] = {{"layers.*", DT_TP_BORDER, .in = "R"},
                                  {"layers.*.c_fc", DT_TP_COLWISE, NULL, NULL},
                                  {"layers.*.c_proj", DT_TP_ROWWISE, .out = "R"}};
static const dt_tp_plan plan = {.nrules = DT_COUNT(rows), .rule = rows};

static dt_status shard(net *n)
{
    if (n->c->shard_with)
        return n->c->shard_with(n);
    if (n->c->plain)
        return DT_OK;
    dt_fsdp_options o = n->c->options;
    o.replicate_axes = n->c->replicate > 1 ? "dp_replicate" : NULL;
    o.store = n->c->offload_params ? n->store : NULL;
    for (int i = 0; i < n->c->blocks; i++)
        DT_TRY(dt_fully_shard(n->block[i], n->mesh, "dp_shard", &o));
    DT_TRY(dt_fully_shard(n->root, n->mesh, "dp_shard", &o));
    return DT_OK;
}

dt_status net_open(const net_case *c, dt_world *world, net *n)
{
    dt_adamw_options adam = {.weight_decay = 0.1, .eps = 1e-3};
    *n = (net){.c = c, .world = world};
    const dt_mesh_options axes = {.axes = {{"dp_replicate", at_least_1(c->replicate)},
                                           {"dp_shard", at_least_1(c->shard)},
                                           {"tp", at_least_1(c->tp)}}};
    DT_TRY(dt_trace_create(&n->trace));
    DT_TRY(dt_mesh_create(world, test_device(world), &axes, &n->mesh));
    DT_TRY(make(n));
    if (c->tp > 1)
        DT_TRY(dt_parallelize_module(n->root, n->mesh, "tp", &plan));
    for (int i = 0; i < c->blocks; i++)
        dt_recompute(n->block[i], c->recompute);
    if (c->offload_dir || c->offload_host)
        DT_TRY(dt_store_create(dt_mesh_heap(n->mesh), c->offload_dir, dt_world_rank(world),
                               &n->store));
    adam.store = n->store;
    DT_TRY(shard(n));
    DT_TRY(dt_module_materialize(n->root, n->mesh, 5));
    DT_TRY(dt_adamw_create(n->root, &adam, &n->optim));
    DT_TRY(dt_tape_create(n->mesh, NULL, &n->t));
    dt_world_set_trace(world, n->trace);
    dt_world_set_delay(world, c->delayed, c->delay_ms);
    return DT_OK;
}

void net_close(net *n)
{
    dt_world_set_trace(n->world, NULL);
    dt_tape_destroy(&n->t);
    dt_tensor_destroy(&n->x);
    dt_optim_destroy(&n->optim);
    dt_module_destroy(&n->root);
    dt_store_destroy(&n->store);
    dt_mesh_destroy(&n->mesh);
    dt_trace_destroy(&n->trace);
}

/* ---- running ---- */

dt_status net_forward(net *n, int batch, bool no_grad, dt_tensor **loss)
{
    const net_case *c = n->c;
    const int64_t count = c->batch * c->n;
    const dt_layout *layout = NULL;
    dt_tape_reset(n->t, &(dt_tape_options){.no_grad = no_grad});
    dt_tensor_destroy(&n->x);
    float *host = malloc(sizeof *host * (size_t)count);
    TEST_THAT(host, "memory");
    for (int64_t i = 0; i < count; i++)
        host[i] = (float)sin((double)(i * 13 + batch * 7 + 1));
    dt_status st = dt_mesh_layout_text(n->mesh, DT_SHAPE(c->batch, c->n),
                                       "S(0)@dp_replicate>dp_shard", &layout);
    if (st == DT_OK)
        st = dt_distribute(layout, DT_F32, host, &n->x);
    free(host);
    if (st != DT_OK)
        return dt_error_push(st, __FILE__, __LINE__, __func__);
    dt_tensor *y = dt_module_call1(n->root, n->t, n->x);
    *loss = dt_scale(n->t, dt_sum(n->t, dt_mul(n->t, y, y), 0), 1.0 / (double)count);
    DT_TRY(dt_tape_status(n->t));
    return DT_OK;
}

dt_status net_loss(net *n, dt_tensor *loss, double *value)
{
    float term = 0;
    dt_comm *dp = NULL;
    DT_TRY(dt_array_read(dt_tensor_local(loss), &term, 1));
    *value = (double)term;
    DT_TRY(dt_mesh_comm_named(n->mesh, "dp_replicate,dp_shard", 0, &dp));
    DT_TRY(dt_all_reduce_f64_sync(dp, value, 1, DT_REDUCE_SUM));
    return DT_OK;
}

/* The host stands in a barrier while the workers of its channels go on: as long as the delay of
 * barriers is. */
static dt_status stop(net *n, const char *where)
{
    dt_work *work = NULL;
    if (!n->c->stops)
        return DT_OK;
    dt_trace_record(n->trace, "fsdp", where, DT_TRACE_MOMENT, 0, 0);
    DT_TRY(dt_barrier(dt_world_comm(n->world), where, &work));
    DT_TRY(dt_work_wait(&work));
    return DT_OK;
}

dt_status net_gradients(net *n, int step, double *loss)
{
    const int micro = at_least_1(n->c->micro);
    *loss = 0;
    for (int i = 0; i < micro; i++) {
        dt_tensor *term = NULL;
        double value = 0;
        if (n->c->last_sync_only)
            dt_fsdp_set_grad_sync(n->root, i == micro - 1);
        DT_TRY(net_forward(n, step * micro + i, false, &term));
        DT_TRY(net_loss(n, term, &value));
        *loss += value;
        DT_TRY(stop(n, "stop after forward"));
        DT_TRY(dt_backward(n->t, term));
    }
    DT_TRY(dt_module_reduce_grads(n->root));
    return DT_OK;
}

dt_status net_step(net *n, int step, double *loss)
{
    DT_TRY(net_gradients(n, step, loss));
    DT_TRY(stop(n, "stop before optimizer"));
    DT_TRY(dt_optim_step(n->optim, 1e-2, 1));
    dt_module_clear_grads(n->root);
    return DT_OK;
}

dt_status net_two_steps(dt_world *world, void *arg)
{
    net n;
    double loss = 0;
    dt_status st = net_open(arg, world, &n);
    for (int s = 0; s < 2 && st == DT_OK; s++)
        st = net_step(&n, s, &loss);
    net_close(&n);
    return st;
}

static dt_status read_all(net *n, bool grads, int64_t *count, float **out)
{
    int np = 0;
    dt_param *const *p = dt_module_params(n->root, &np);
    int64_t at = 0;
    *count = dt_module_count(n->root);
    *out = calloc((size_t)*count, sizeof **out);
    TEST_THAT(*out, "memory");
    for (int i = 0; i < np; i++) {
        const dt_local *g = dt_tensor_grad(p[i]->tensor);
        dt_tensor *grad = NULL;
        if (!grads)
            DT_TRY(dt_tensor_read_f32_sync(p[i]->tensor, *out + at));
        else if (g->array.storage) /* none: zeros */
            DT_TRY(dt_from_array(g->layout, &g->array, &grad));
        if (grad)
            DT_TRY(dt_tensor_read_f32_sync(grad, *out + at));
        dt_tensor_destroy(&grad);
        at += dt_shape_count(p[i]->shape);
    }
    return DT_OK;
}

dt_status net_weights(net *n, int64_t *count, float **out)
{
    return read_all(n, false, count, out);
}

dt_status net_grads(net *n, int64_t *count, float **out)
{
    return read_all(n, true, count, out);
}

typedef struct job {
    const net_case *c;
    net_run *run;
} job;

static dt_status train(dt_world *world, void *arg)
{
    const job *j = arg;
    net n;
    net_run run = {0};
    DT_TRY(net_open(j->c, world, &n));
    dt_heap *heap = dt_mesh_heap(n.mesh);
    for (int s = 0; s < j->c->steps; s++) {
        const int64_t waits = dt_heap_get_counts(heap).waits;
        dt_world_reset_counts(world);
        dt_trace_clear(n.trace);
        DT_TRY(net_step(&n, s, &run.loss[s]));
        run.waits = dt_heap_get_counts(heap).waits - waits;
    }
    DT_TRY(net_events(&n, run.events));
    run.counts = dt_world_counts(world);
    DT_TRY(net_weights(&n, &run.count, &run.weight));
    if (dt_world_rank(world) == 0)
        *j->run = run;
    else
        free(run.weight);
    net_close(&n);
    return DT_OK;
}

net_run net_train(const net_case *c)
{
    net_run run = {0};
    job j = {c, &run};
    test_ranks(net_ranks(c), train, &j);
    return run;
}

void net_free(net_run *r)
{
    free(r->weight);
}

void net_same(const net_run *a, const net_run *b, int steps, double limit)
{
    for (int s = 0; s < steps; s++)
        ck_assert_msg(fabs(a->loss[s] - b->loss[s]) <= limit * fabs(b->loss[s]),
                      "loss of step %d: %.9g, not %.9g", s, a->loss[s], b->loss[s]);
    ck_assert_int_eq(a->count, b->count);
    const double worst = test_max_diff(a->weight, b->weight, b->count);
    ck_assert_msg(worst <= limit * test_max_abs(b->weight, b->count), "weights differ by %g",
                  worst);
}

/* ---- looking ---- */

dt_status net_events(net *n, char text[NET_TEXT])
{
    int64_t count = 0;
    const dt_trace_event *e = dt_trace_events(n->trace, &count);
    size_t at = 0;
    text[0] = '\0';
    for (int64_t i = 0; i < count; i++) {
        if (strcmp(e[i].kind, "fsdp") != 0)
            continue;
        TEST_THAT(at + 80 < NET_TEXT, "too many events");
        at += (size_t)snprintf(text + at, NET_TEXT - at, "%s\n", e[i].name);
    }
    dt_trace_clear(n->trace);
    return DT_OK;
}

int64_t net_calls(net *n, dt_call kind)
{
    return dt_world_counts(n->world).calls[kind];
}

void net_add_line(void *text, const char *line)
{
    char what[16], who[200];
    (void)sscanf(line, "%15s %199s", what, who);
    const size_t at = strlen(text);
    (void)snprintf((char *)text + at, NET_TEXT - at, "%s %s\n", what, who);
}

const dt_llama_config net_wide = {.vocab_size = 515,
                                  .hidden_size = 512,
                                  .intermediate_size = 1376,
                                  .num_hidden_layers = 8,
                                  .num_attention_heads = 8,
                                  .num_key_value_heads = 4,
                                  .head_dim = 64,
                                  .max_position_embeddings = 128,
                                  .rope.theta = 1e4,
                                  .rms_norm_eps = 1e-5,
                                  .initializer_range = 0.02};
