/* models/dt_models.h - Llama (1 to 3), Mistral, Qwen2, Qwen3 and GPT-2, from a Hugging Face
 * config.json, with Hugging Face's parameter names. The first four are one decoder.
 *
 * A model is a module that takes {ids [B, S] i32} and gives logits [B, S, V], or takes {ids,
 * targets} and gives the loss: the sum over valid targets divided by what dt_model_set_loss was
 * told. With {ids, targets or NULL, positions, documents}, both [B, S] i32 and placed as ids, a
 * token has that position and sees only tokens of its own document before it. Made on meta: see
 * nn/dt_module.h. */
#pragma once

#include "tp/dt_tp.h"

typedef struct dt_llama_config {
    int64_t vocab_size, hidden_size, intermediate_size, num_hidden_layers;
    int64_t num_attention_heads, num_key_value_heads, head_dim, max_position_embeddings;
    dt_rope_options rope;
    double rms_norm_eps, initializer_range;
    bool tie_word_embeddings, mlp_bias;
    bool qkv_bias, o_bias; /* attention_bias is both; Qwen2 has the first */
    bool qk_norm;          /* Qwen3: rmsnorm of q and k, per head */
    double dropout; /* after attention and mlp; not a field of Hugging Face's */
} dt_llama_config;

typedef struct dt_gpt2_config {
    int64_t vocab_size, n_embd, n_layer, n_head, n_inner, n_positions;
    double layer_norm_epsilon, initializer_range;
    double embd_pdrop, resid_pdrop;
} dt_gpt2_config;

DT_NODISCARD dt_status dt_llama_create(const dt_llama_config *config, dt_module **model_out);
DT_NODISCARD dt_status dt_gpt2_create(const dt_gpt2_config *config, dt_module **model_out);

/* What a caller must know of a model, whichever it is. */
typedef struct dt_model_facts {
    const char *architecture; /* Hugging Face's: "LlamaForCausalLM", "GPT2LMHeadModel" ... */
    int64_t vocab, hidden, layers, heads, kv_heads, head_dim, max_positions;
    bool qk_norm;
} dt_model_facts;

/* dt_model_create - from a config.json (architecture by model_type or architectures).
 * A sliding attention window makes max_positions that window: within it nothing differs.
 * Errors: DT_ERR_IO, DT_ERR_FORMAT names a missing or unusable field; DT_ERR_UNSUPPORTED names a
 * value that the models do not compute (other activations, rope_type yarn), and a field that is not
 * known, so that no number is silently wrong. */
DT_NODISCARD dt_status dt_model_create(const char *config_path, dt_module **model_out,
                                       dt_model_facts *facts_out);

/* Divisor of the loss (valid targets of the global batch) and tokens whose logits exist at once
 * (0: 1024). */
void dt_model_set_loss(dt_module *model, int64_t valid, int64_t chunk);
/* The layers, to shard or recompute one by one; borrowed. Of a pipeline stage: its own. */
int dt_model_nlayers(dt_module *model);
dt_module *dt_model_layer(dt_module *model, int i);
/* What pipelining must know to cut it. */
dt_chain dt_model_chain(const dt_model_facts *facts);

/* What becomes of the vocabulary under tensor parallelism. */
typedef enum dt_tp_vocab {
    /* rows of the embedding and of the head are split; the loss is vocabulary-parallel */
    DT_TP_VOCAB_SPLIT,
    DT_TP_VOCAB_GATHERED, /* the same, but the loss sees gathered logits */
    /* every rank holds all of it; under sequence parallelism the loss is then P */
    DT_TP_VOCAB_WHOLE
} dt_tp_vocab;

/* The tensor-parallel plans, beside the models in llama_plan.c and gpt2_plan.c; static. `sequence`:
 * sequence parallelism. */
dt_tp_plan dt_llama_tp_plan(dt_tp_vocab vocab, bool sequence);
dt_tp_plan dt_gpt2_tp_plan(dt_tp_vocab vocab, bool sequence);
/* By architecture. */
dt_tp_plan dt_model_tp_plan(const dt_model_facts *facts, dt_tp_vocab vocab, bool sequence);
