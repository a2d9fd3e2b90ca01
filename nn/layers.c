/* nn/layers.c - linear, embedding, norms, the residual block, the head with its loss.
 * Read next: nn/attention.c. */
#include "nn/dt_layers.h"
#include "nn/nn_internal.h"

#include <math.h>
#include <string.h>

static dt_values one(dt_tensor *x)
{
    return (dt_values){.n = 1, .value = {x}};
}

/* What ops see of a parameter held here under `name`; NULL if there is none. */
static dt_tensor *weight(dt_module *m, const char *name)
{
    const dt_param *p = dt_module_param(m, name);
    return !p ? NULL : p->use ? p->use : p->tensor;
}

/* ---- group ---- */

static dt_values group_forward(dt_module *m, dt_tape *t, const dt_values *in)
{
    (void)in;
    (void)dt_tape_fail(
        t, DT_ERROR(DT_ERR_STATE, "module '%s' only holds others; call them", dt_module_path(m)));
    return one(dt_tape_failed(t));
}

dt_status dt_layer_group(dt_module **module_out)
{
    static const dt_module_kind kind = {"group", 0, group_forward};
    DT_TRY(dt_module_create(&kind, module_out));
    return DT_OK;
}

/* ---- linear ---- */

typedef struct linear_state {
    dt_linear_options options; /* first: what dt_module_state gives */
    dt_overlap_options overlap; /* no axes: none */
    bool rows;
} linear_state;

void dt_layer_linear_overlap(dt_module *linear, int naxes, const uint8_t *axis, bool rows)
{
    linear_state *s = dt_module_state(linear);
    s->overlap = (dt_overlap_options){.naxes = naxes, .n = 1, .in_out = s->options.in_out};
    memcpy(s->overlap.axis, axis, (size_t)naxes);
    s->rows = rows;
}

/* Does it gather its input, with nothing around it but hooks that look at its values? */
static bool gathers(const dt_module *m)
{
    const linear_state *s = m->state;
    return s->overlap.naxes > 0 && !s->rows && m->nlifetimes == 0 &&
           m->recompute == DT_RECOMPUTE_NONE;
}

static dt_tensor *through_hooks(dt_module *m, dt_tape *t, dt_tensor *x, bool after)
{
    dt_tape_enter(t, dt_module_path(m));
    const dt_values v = dti_transformed(m, t, one(x), after);
    dt_tape_leave(t);
    return v.value[0];
}

/* One gather for all whose hooks left the common input as it is. */
static void linears_together(dt_module *m, int n, dt_tape *t, dt_tensor *x, dt_tensor **out)
{
    dt_tensor *w[DT_OVERLAP_MOST], *b[DT_OVERLAP_MOST], *in[DT_OVERLAP_MOST];
    dt_overlap_options o = ((linear_state *)m->child[0]->state)->overlap;
    bool same = true;
    for (int i = 0; i < n; i++) {
        w[i] = weight(m->child[i], "weight");
        b[i] = weight(m->child[i], "bias");
        in[i] = through_hooks(m->child[i], t, x, false);
        same = same && in[i] == in[0];
    }
    o.n = same ? n : 1;
    for (int i = 0; i < n; i += o.n)
        dt_gather_linear(t, in[i], &o, &w[i], &b[i], &out[i]);
    for (int i = 0; i < n; i++)
        out[i] = through_hooks(m->child[i], t, out[i], true);
}

void dti_linears(dt_module *m, int n, dt_tape *t, dt_tensor *x, dt_tensor **out)
{
    bool together = n <= DT_OVERLAP_MOST;
    for (int i = 0; i < n; i++)
        together = together && gathers(m->child[i]);
    if (together)
        linears_together(m, n, t, x, out);
    for (int i = 0; i < n && !together; i++)
        out[i] = dt_module_call1(m->child[i], t, x);
}

static dt_values linear_forward(dt_module *m, dt_tape *t, const dt_values *in)
{
    const linear_state *s = dt_module_state(m);
    const dt_linear_options *o = &s->options;
    dt_tensor *w = weight(m, "weight"), *b = weight(m, "bias"), *y = NULL;
    if (s->overlap.naxes > 0 && s->rows)
        return one(dt_linear_scatter(t, in->value[0], &s->overlap, w, b));
    if (s->overlap.naxes > 0) {
        dt_gather_linear(t, in->value[0], &s->overlap, &w, &b, &y);
        return one(y);
    }
    return one(o->in_out ? dt_linear_in_out(t, in->value[0], w, b)
                         : dt_linear(t, in->value[0], w, b));
}

dt_status dt_layer_linear(const dt_linear_options *o, dt_module **module_out)
{
    static const dt_module_kind kind = {"linear", sizeof(linear_state), linear_forward};
    const double std = o->std > 0 ? o->std : 1 / sqrt((double)o->in);
    const dt_init normal = {DT_INIT_NORMAL, std}, zeros = {DT_INIT_ZEROS, 0};
    const dt_shape out = o->split.ndim ? o->split : DT_SHAPE(o->out);
    dt_shape w = DT_SHAPE(o->out, o->in);
    if (o->in_out) {
        w = DT_SHAPE(o->in);
        for (int d = 0; d < out.ndim; d++)
            w.dim[w.ndim++] = out.dim[d];
    }
    const dt_shape file_w = o->in_out ? DT_SHAPE(o->in, o->out) : w, file_b = DT_SHAPE(o->out);
    dt_module *m = NULL;
    dt_status st = DT_OK;
    DT_TRY(dt_module_create(&kind, &m));
    ((linear_state *)dt_module_state(m))->options = *o;
    DT_TRY_TO(fail, st, dt_module_add_param(m, "weight", w, &file_w, normal, NULL));
    if (o->bias)
        DT_TRY_TO(fail, st, dt_module_add_param(m, "bias", out, &file_b, zeros, NULL));
    *module_out = m;
    return DT_OK;
fail:
    dt_module_destroy(&m);
    return st;
}

/* ---- embedding, norms ---- */

static dt_values embedding_forward(dt_module *m, dt_tape *t, const dt_values *in)
{
    return one(dt_embedding(t, in->value[0], weight(m, "weight")));
}

static dt_values rmsnorm_forward(dt_module *m, dt_tape *t, const dt_values *in)
{
    const double *eps = dt_module_state(m);
    return one(dt_rmsnorm(t, in->value[0], weight(m, "weight"), *eps));
}

static dt_values layernorm_forward(dt_module *m, dt_tape *t, const dt_values *in)
{
    const double *eps = dt_module_state(m);
    return one(dt_layernorm(t, in->value[0], weight(m, "weight"), weight(m, "bias"), *eps));
}

/* A module with one parameter "weight", and zeros "bias" of the same shape if asked for. */
static dt_status with_weight(const dt_module_kind *kind, dt_shape shape, dt_init init, bool bias,
                             dt_module **module_out)
{
    dt_module *m = NULL;
    dt_status st = DT_OK;
    DT_TRY(dt_module_create(kind, &m));
    DT_TRY_TO(fail, st, dt_module_add_param(m, "weight", shape, NULL, init, NULL));
    if (bias)
        DT_TRY_TO(fail, st,
                  dt_module_add_param(m, "bias", shape, NULL, (dt_init){DT_INIT_ZEROS, 0}, NULL));
    *module_out = m;
    return DT_OK;
fail:
    dt_module_destroy(&m);
    return st;
}

dt_status dt_layer_embedding(int64_t count, int64_t n, double std, dt_module **module_out)
{
    static const dt_module_kind kind = {"embedding", 0, embedding_forward};
    DT_TRY(
        with_weight(&kind, DT_SHAPE(count, n), (dt_init){DT_INIT_NORMAL, std}, false, module_out));
    return DT_OK;
}

static dt_status norm(const dt_module_kind *kind, int64_t n, double eps, bool bias,
                      dt_module **module_out)
{
    if (n > 0)
        DT_TRY(with_weight(kind, DT_SHAPE(n), (dt_init){DT_INIT_ONES, 0}, bias, module_out));
    else
        DT_TRY(dt_module_create(kind, module_out));
    *(double *)dt_module_state(*module_out) = eps;
    return DT_OK;
}

dt_status dt_layer_rmsnorm(int64_t n, double eps, dt_module **module_out)
{
    static const dt_module_kind kind = {"rmsnorm", sizeof(double), rmsnorm_forward};
    return norm(&kind, n, eps, false, module_out);
}

dt_status dt_layer_layernorm(int64_t n, double eps, dt_module **module_out)
{
    static const dt_module_kind kind = {"layernorm", sizeof(double), layernorm_forward};
    return norm(&kind, n, eps, true, module_out);
}

/* ---- the residual block ---- */

static dt_values block_forward(dt_module *m, dt_tape *t, const dt_values *in)
{
    dt_module *norm1 = dt_module_child(m, 0), *mixer = dt_module_child(m, 1);
    dt_module *norm2 = dt_module_child(m, 2), *mlp = dt_module_child(m, 3);
    dt_values mixed = *in; /* x, and what only the mixer looks at */
    dt_tensor *x = in->value[0];
    mixed.value[0] = dt_module_call1(norm1, t, x);
    x = dt_add(t, x, dt_module_call(mixer, t, &mixed).value[0]);
    return one(dt_add(t, x, dt_module_call1(mlp, t, dt_module_call1(norm2, t, x))));
}

dt_status dt_layer_block(const dt_block_parts *parts, dt_module **module_out)
{
    static const dt_module_kind kind = {"block", 0, block_forward};
    dt_module *m = NULL;
    dt_status st = DT_OK;
    DT_TRY(dt_module_create(&kind, &m));
    DT_TRY_TO(fail, st, dt_module_add(m, parts->norm1_name, parts->norm1));
    DT_TRY_TO(fail, st, dt_module_add(m, parts->mixer_name, parts->mixer));
    DT_TRY_TO(fail, st, dt_module_add(m, parts->norm2_name, parts->norm2));
    DT_TRY_TO(fail, st, dt_module_add(m, parts->mlp_name, parts->mlp));
    *module_out = m;
    return DT_OK;
fail:
    dt_module_destroy(&m);
    return st;
}

/* ---- head and loss ---- */

typedef struct head_state {
    dt_cross_entropy_options loss;
    bool gather;
} head_state;

/* Logits with the whole vocabulary on every rank. */
static dt_tensor *gathered(dt_tape *t, dt_tensor *logits)
{
    if (dt_tensor_is_failed(logits))
        return logits;
    dt_layout whole = *dt_tensor_layout(logits);
    const int last = whole.shape.ndim - 1;
    while (whole.nsplit[last] > 0)
        dt_layout_clear(&whole, whole.split[last][0]);
    const dt_layout *layout = NULL;
    const dt_status st = dt_mesh_layout(dt_tensor_mesh(logits), &whole, &layout);
    if (st == DT_OK)
        return dt_redistribute_to(t, logits, layout);
    (void)dt_tape_fail(t, st);
    return dt_tape_failed(t);
}

static dt_values head_forward(dt_module *m, dt_tape *t, const dt_values *in)
{
    const head_state *s = dt_module_state(m);
    dt_tensor *x = in->value[0], *w = weight(m, "weight");
    if (in->n < 2 || !in->value[1])
        return one(dt_linear(t, x, w, NULL));
    if (s->gather)
        return one(
            dt_cross_entropy(t, gathered(t, dt_linear(t, x, w, NULL)), in->value[1], &s->loss));
    return one(dt_linear_cross_entropy(t, x, w, in->value[1], &s->loss));
}

dt_status dt_layer_lm_head(int64_t n, int64_t vocab, double std, dt_param *tied,
                           dt_module **module_out)
{
    static const dt_module_kind kind = {"lm_head", sizeof(head_state), head_forward};
    if (!tied) {
        DT_TRY(with_weight(&kind, DT_SHAPE(vocab, n), (dt_init){DT_INIT_NORMAL, std}, false,
                           module_out));
        return DT_OK;
    }
    dt_module *m = NULL;
    DT_TRY(dt_module_create(&kind, &m));
    const dt_status st = dt_module_tie(m, "weight", tied);
    if (st != DT_OK) {
        dt_module_destroy(&m);
        return dt_error_push(st, __FILE__, __LINE__, __func__);
    }
    *module_out = m;
    return DT_OK;
}

void dt_layer_lm_head_set(dt_module *head, int64_t valid, int64_t chunk)
{
    head_state *s = dt_module_state(head);
    s->loss.valid = valid;
    s->loss.chunk = chunk;
}

void dt_layer_lm_head_gather(dt_module *head, bool on)
{
    ((head_state *)dt_module_state(head))->gather = on;
}
