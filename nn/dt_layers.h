/* nn/dt_layers.h - the layers that models are built of. All are made on meta; x is [B, S, n] where
 * not said otherwise. Parameter names are Hugging Face's. Each module gives one tensor. Read next:
 * models/dt_models.h. */
#pragma once

#include "nn/dt_module.h"

/* A module that only holds children (its forward is an error). */
DT_NODISCARD dt_status dt_layer_group(dt_module **module_out);

typedef struct dt_linear_options {
    int64_t in, out;
    bool bias;
    bool in_out;      /* weights stored [in, out], as GPT-2's Conv1D */
    /* in_out only: the logical shape of `out`, such as [3, heads, head_dim]; ndim 0: [out]. It is
     * also the output's. */
    dt_shape split;
    double std;       /* of the weight's initial values; 0: 1 / sqrt(in) */
} dt_linear_options;
/* weight, bias. */
DT_NODISCARD dt_status dt_layer_linear(const dt_linear_options *options, dt_module **module_out);

/* dt_layer_linear_overlap - from now on the layer communicates while it computes: a column-parallel
 * one takes its input S(1) on the axes and gathers it, a row-parallel one (`rows`) gives its output
 * S(1) on them. Layers of one module that share an input (q, k and v) gather it once. naxes 0: no
 * more.
 * Cost: that of dt_gather_linear, dt_linear_scatter. */
void dt_layer_linear_overlap(dt_module *linear, int naxes, const uint8_t *axis, bool rows);

/* weight [count, n]; takes ids [B, S] i32. */
DT_NODISCARD dt_status dt_layer_embedding(int64_t count, int64_t n, double std,
                                          dt_module **module_out);
/* weight [n]; weight and bias [n]. n 0: neither, over a last dim of any size (PyTorch's
 * elementwise_affine=False). */
DT_NODISCARD dt_status dt_layer_rmsnorm(int64_t n, double eps, dt_module **module_out);
DT_NODISCARD dt_status dt_layer_layernorm(int64_t n, double eps, dt_module **module_out);

/* dropout of attention and mlps: how likely an element of what the layer gives is dropped, 0: none;
 * the probabilities of attention are never dropped.
 * Attention takes {x}, or {x, positions, documents}: [B, S] i32, as dt_rope and dt_attention take
 * them; either NULL. So does a block, which hands them on to its mixer.
 * Llama and its relatives: q_proj, k_proj, v_proj, o_proj [, q_norm, k_norm]; rotary positions;
 * grouped queries. */
typedef struct dt_attention_layer_options {
    int64_t n, heads, kv_heads, head_dim;
    dt_rope_options rope;
    bool qkv_bias, o_bias;
    double qk_norm_eps; /* > 0: q_norm and k_norm, rmsnorms over the head dim (Qwen3) */
    double std, dropout;
} dt_attention_layer_options;
DT_NODISCARD dt_status dt_layer_attention(const dt_attention_layer_options *options,
                                          dt_module **module_out);
/* Llama: down(silu(gate x) * up x): gate_proj, up_proj, down_proj. */
DT_NODISCARD dt_status dt_layer_swiglu_mlp(int64_t n, int64_t hidden, bool bias, double std,
                                           double dropout, dt_module **module_out);
/* GPT-2: c_attn (fused q, k, v), c_proj; and c_fc, gelu (tanh), c_proj. out_std: of the c_proj
 * weights. */
DT_NODISCARD dt_status dt_layer_gpt2_attention(int64_t n, int64_t heads, double std, double out_std,
                                               double dropout, dt_module **module_out);
DT_NODISCARD dt_status dt_layer_gpt2_mlp(int64_t n, int64_t hidden, double std, double out_std,
                                         double dropout, dt_module **module_out);

/* x + mixer(norm1(x)), then x + mlp(norm2(x)); takes the four over, under the given names. */
typedef struct dt_block_parts {
    const char *norm1_name, *mixer_name, *norm2_name, *mlp_name;
    dt_module *norm1, *mixer, *norm2, *mlp;
} dt_block_parts;
DT_NODISCARD dt_status dt_layer_block(const dt_block_parts *parts, dt_module **module_out);

/* The head and the loss. Takes {x} and gives logits [B, S, V], or takes {x, targets [B, S]} and
 * gives the scalar loss sum of -log softmax / valid without holding all logits at once
 * (dt_linear_cross_entropy). `tied`: the embedding's parameter, or NULL for a weight [V, n] of its
 * own. */
DT_NODISCARD dt_status dt_layer_lm_head(int64_t n, int64_t vocab, double std, dt_param *tied,
                                        dt_module **module_out);
/* The divisor of the loss: valid targets of the global batch, set once a step; and tokens whose
 * logits exist at once. */
void dt_layer_lm_head_set(dt_module *head, int64_t valid, int64_t chunk);
/* With a vocabulary that is split: let the loss see whole logits (linear, redistribute to R,
 * cross-entropy) and not be vocabulary-parallel.   Cost: one all-gather of the logits; all of them
 * exist at once. */
void dt_layer_lm_head_gather(dt_module *head, bool on);
