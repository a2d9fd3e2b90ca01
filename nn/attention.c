/* nn/attention.c - self-attention of Llama and of GPT-2.
 * Shapes: B batch, S sequence, H query heads, G key/value heads, D head dim, N hidden.
 *
 *     Llama   q_BSN = x Wq^T ... -> [B,H,S,D], [B,G,S,D]; rope on q and k; attention; [B,S,(H D)]
 *             Wo^T; Qwen2: biases on q, k, v; Qwen3: rmsnorm over D of q and k before rope
 *     GPT-2   qkv_BS3HD = x Wqkv + b; attention; [B,S,(H D)] Wo + b
 *
 * On cuda heads stay behind tokens, [B,S,H,D], and no bytes move. The cpu's caches want a head's
 * rows side by side: there they are copied.
 *
 * Sources: Touvron et al. 2023 (Llama), Ainslie et al. 2023 (grouped queries), Radford et al. 2019
 * (GPT-2). */
#include "nn/dt_layers.h"
#include "nn/nn_internal.h"

#include <stdio.h>

static dt_values one(dt_tensor *x)
{
    return (dt_values){.n = 1, .value = {x}};
}

static dt_status add_child(dt_module *m, const char *name, dt_module *child)
{
    const dt_status st = dt_module_add(m, name, child);
    if (st != DT_OK) {
        dt_module_destroy(&child);
        return dt_error_push(st, __FILE__, __LINE__, __func__);
    }
    return DT_OK;
}

static dt_status add_linear(dt_module *m, const char *name, const dt_linear_options *options)
{
    dt_module *child = NULL;
    DT_TRY(dt_layer_linear(options, &child));
    DT_TRY(add_child(m, name, child));
    return DT_OK;
}

static bool is_bshd(const dt_tape *t)
{
    return dt_mesh_device(dt_tape_mesh(t)).kind == DT_CUDA;
}

/* -> [B,S,(H D)]. documents NULL: one. Within a document the order of tokens is that of their
 * indices. */
static dt_tensor *attend(dt_tape *t, dt_tensor *q, dt_tensor *k, dt_tensor *v,
                         dt_tensor *documents)
{
    const dt_attention_options o = {
        .bshd = is_bshd(t), .q_documents = documents, .k_documents = documents};
    dt_tensor *y = dt_attention(t, q, k, v, &o);
    return dt_rearrange(t, y, o.bshd ? "b s h d -> b s (h d)" : "b h s d -> b s (h d)", "");
}

/* ---- Llama ---- */

/* q or k with its norm, if there is one, and its positions. */
static dt_tensor *rotated(dt_module *m, int norm, dt_tape *t, dt_tensor *head,
                          dt_tensor *positions)
{
    const dt_attention_layer_options *o = dt_module_state(m);
    dt_rope_options rope = o->rope;
    dt_tensor *x =
        o->qk_norm_eps > 0 ? dt_module_call1(dt_module_child(m, norm), t, head) : head;
    rope.bshd = is_bshd(t);
    return dt_rope(t, x, positions, &rope);
}

static dt_values llama_forward(dt_module *m, dt_tape *t, const dt_values *in)
{
    const dt_attention_layer_options *o = dt_module_state(m);
    char sizes[32];
    (void)snprintf(sizes, sizeof sizes, "d=%lld", (long long)o->head_dim);
    dt_tensor *y[3], *head[3]; /* q, k, v */
    dti_linears(m, 3, t, in->value[0], y);
    for (int i = 0; i < 3; i++) {
        head[i] = dt_rearrange(
            t, y[i], is_bshd(t) ? "b s (h d) -> b s h d" : "b s (h d) -> b h s d", sizes);
        dt_tensor_drop(y[i]);
    }
    dt_tensor *q = rotated(m, 4, t, head[0], in->value[1]);
    dt_tensor *k = rotated(m, 5, t, head[1], in->value[1]);
    dt_tensor *y_BSN = attend(t, q, k, head[2], in->value[2]);
    return one(dt_dropout(t, dt_module_call1(dt_module_child(m, 3), t, y_BSN), o->dropout));
}

dt_status dt_layer_attention(const dt_attention_layer_options *o, dt_module **module_out)
{
    static const dt_module_kind kind = {"attention", sizeof(dt_attention_layer_options),
                                        llama_forward};
    const int64_t q = o->heads * o->head_dim, kv = o->kv_heads * o->head_dim;
    const struct {
        const char *name;
        int64_t in, out;
        bool bias;
    } part[] = {{"q_proj", o->n, q, o->qkv_bias},
                {"k_proj", o->n, kv, o->qkv_bias},
                {"v_proj", o->n, kv, o->qkv_bias},
                {"o_proj", q, o->n, o->o_bias}};
    DT_REQUIRE(o->kv_heads > 0 && o->heads % o->kv_heads == 0, DT_ERR_ARG,
               "%lld query heads do not divide into groups for %lld key/value heads",
               (long long)o->heads, (long long)o->kv_heads);
    DT_REQUIRE(o->head_dim % 2 == 0, DT_ERR_ARG, "rotary positions need an even head_dim, not %lld",
               (long long)o->head_dim);
    dt_module *m = NULL;
    dt_status st = DT_OK;
    DT_TRY(dt_module_create(&kind, &m));
    *(dt_attention_layer_options *)dt_module_state(m) = *o;
    for (int i = 0; i < DT_COUNT(part); i++) {
        const dt_linear_options l = {
            .in = part[i].in, .out = part[i].out, .bias = part[i].bias, .std = o->std};
        DT_TRY_TO(fail, st, add_linear(m, part[i].name, &l));
    }
    for (int i = 0; i < 2 && o->qk_norm_eps > 0; i++) {
        dt_module *norm = NULL;
        DT_TRY_TO(fail, st, dt_layer_rmsnorm(o->head_dim, o->qk_norm_eps, &norm));
        DT_TRY_TO(fail, st, add_child(m, i ? "k_norm" : "q_norm", norm));
    }
    *module_out = m;
    return DT_OK;
fail:
    dt_module_destroy(&m);
    return st;
}

/* ---- GPT-2 ---- */

static dt_values gpt2_forward(dt_module *m, dt_tape *t, const dt_values *in)
{
    const double *dropout = dt_module_state(m);
    dt_tensor *qkv_BS3HD = dt_module_call1(dt_module_child(m, 0), t, in->value[0]);
    dt_tensor *head[3]; /* q, k, v */
    for (int i = 0; i < 3; i++) {
        dt_tensor *y_BSHD = dt_select(t, qkv_BS3HD, 2, i);
        head[i] = is_bshd(t) ? y_BSHD : dt_rearrange(t, y_BSHD, "b s h d -> b h s d", "");
        if (!is_bshd(t))
            dt_tensor_drop(y_BSHD);
    }
    dt_tensor *y_BSN = attend(t, head[0], head[1], head[2], in->value[2]);
    return one(dt_dropout(t, dt_module_call1(dt_module_child(m, 1), t, y_BSN), *dropout));
}

dt_status dt_layer_gpt2_attention(int64_t n, int64_t heads, double std, double out_std,
                                  double dropout, dt_module **module_out)
{
    static const dt_module_kind kind = {"attention", sizeof(double), gpt2_forward};
    DT_REQUIRE(heads > 0 && n % heads == 0, DT_ERR_ARG,
               "hidden size %lld does not divide into %lld heads", (long long)n, (long long)heads);
    const dt_linear_options qkv = {.in = n,
                                   .out = 3 * n,
                                   .bias = true,
                                   .in_out = true,
                                   .split = DT_SHAPE(3, heads, n / heads),
                                   .std = std};
    const dt_linear_options proj = {
        .in = n, .out = n, .bias = true, .in_out = true, .std = out_std};
    dt_module *m = NULL;
    dt_status st = DT_OK;
    DT_TRY(dt_module_create(&kind, &m));
    *(double *)dt_module_state(m) = dropout;
    DT_TRY_TO(fail, st, add_linear(m, "c_attn", &qkv));
    DT_TRY_TO(fail, st, add_linear(m, "c_proj", &proj));
    *module_out = m;
    return DT_OK;
fail:
    dt_module_destroy(&m);
    return st;
}

/* ---- their feed-forward halves ---- */

static dt_values swiglu_forward(dt_module *m, dt_tape *t, const dt_values *in)
{
    const double *dropout = dt_module_state(m);
    dt_tensor *hidden[2]; /* gate, up */
    dti_linears(m, 2, t, in->value[0], hidden);
    dt_tensor *y =
        dt_module_call1(dt_module_child(m, 2), t, dt_swiglu(t, hidden[0], hidden[1]));
    return one(dt_dropout(t, y, *dropout));
}

static dt_values gelu_forward(dt_module *m, dt_tape *t, const dt_values *in)
{
    const double *dropout = dt_module_state(m);
    dt_tensor *hidden = dt_module_call1(dt_module_child(m, 0), t, in->value[0]);
    dt_tensor *y = dt_module_call1(dt_module_child(m, 1), t, dt_gelu(t, hidden, DT_GELU_TANH));
    return one(dt_dropout(t, y, *dropout));
}

static dt_status mlp(const dt_module_kind *kind, int n, const char *const *name,
                     const dt_linear_options *part, double dropout, dt_module **module_out)
{
    dt_module *m = NULL;
    dt_status st = DT_OK;
    DT_TRY(dt_module_create(kind, &m));
    *(double *)dt_module_state(m) = dropout;
    for (int i = 0; i < n; i++)
        DT_TRY_TO(fail, st, add_linear(m, name[i], &part[i]));
    *module_out = m;
    return DT_OK;
fail:
    dt_module_destroy(&m);
    return st;
}

dt_status dt_layer_swiglu_mlp(int64_t n, int64_t hidden, bool bias, double std, double dropout,
                              dt_module **module_out)
{
    static const dt_module_kind kind = {"mlp", sizeof(double), swiglu_forward};
    const char *const name[] = {"gate_proj", "up_proj", "down_proj"};
    const dt_linear_options part[] = {{.in = n, .out = hidden, .bias = bias, .std = std},
                                      {.in = n, .out = hidden, .bias = bias, .std = std},
                                      {.in = hidden, .out = n, .bias = bias, .std = std}};
    DT_TRY(mlp(&kind, DT_COUNT(part), name, part, dropout, module_out));
    return DT_OK;
}

dt_status dt_layer_gpt2_mlp(int64_t n, int64_t hidden, double std, double out_std, double dropout,
                            dt_module **module_out)
{
    static const dt_module_kind kind = {"mlp", sizeof(double), gelu_forward};
    const char *const name[] = {"c_fc", "c_proj"};
    const dt_linear_options part[] = {
        {.in = n, .out = hidden, .bias = true, .in_out = true, .std = std},
        {.in = hidden, .out = n, .bias = true, .in_out = true, .std = out_std}};
    DT_TRY(mlp(&kind, DT_COUNT(part), name, part, dropout, module_out));
    return DT_OK;
}
