/* models/llama.c - the decoder of Llama, Mistral and Qwen.
 *
 *     x = embed(ids); x = block_i(x) ...; logits = lm_head(norm(x))
 *
 * Source: Touvron et al. 2023. Read first: nn/layers.c. */
#include "models/dt_models.h"
#include "models/models_internal.h"

#include <stdio.h>

static dt_status block(const dt_llama_config *c, dt_module **out)
{
    const dt_attention_layer_options attention = {.n = c->hidden_size,
                                                  .heads = c->num_attention_heads,
                                                  .kv_heads = c->num_key_value_heads,
                                                  .head_dim = c->head_dim,
                                                  .rope = c->rope,
                                                  .qkv_bias = c->qkv_bias,
                                                  .o_bias = c->o_bias,
                                                  .qk_norm_eps = c->qk_norm ? c->rms_norm_eps : 0,
                                                  .std = c->initializer_range,
                                                  .dropout = c->dropout};
    dt_block_parts p = {
        "input_layernorm", "self_attn", "post_attention_layernorm", "mlp", NULL, NULL, NULL, NULL};
    dt_status st = DT_OK;
    DT_TRY_TO(fail, st, dt_layer_rmsnorm(c->hidden_size, c->rms_norm_eps, &p.norm1));
    DT_TRY_TO(fail, st, dt_layer_attention(&attention, &p.mixer));
    DT_TRY_TO(fail, st, dt_layer_rmsnorm(c->hidden_size, c->rms_norm_eps, &p.norm2));
    DT_TRY_TO(fail, st,
              dt_layer_swiglu_mlp(c->hidden_size, c->intermediate_size, c->mlp_bias,
                                  c->initializer_range, c->dropout, &p.mlp));
    DT_TRY_TO(fail, st, dt_layer_block(&p, out));
    return DT_OK;
fail:
    dti_block_destroy(&p);
    return st;
}

static dt_tensor *embed(dt_module *body, dt_tape *t, dt_tensor *ids, dt_tensor *positions)
{
    (void)positions; /* every layer turns by them */
    return dt_module_call1(dt_module_find(body, "embed_tokens"), t, ids);
}

dt_status dt_llama_create(const dt_llama_config *c, dt_module **model_out)
{
    dti_decoder d = {.body_name = "model",
                     .embed_name = "embed_tokens",
                     .layers_name = "layers",
                     .norm_name = "norm",
                     .embed = embed,
                     .layers = c->num_hidden_layers};
    dt_status st = DT_OK;
    DT_TRY_TO(fail, st, dti_decoder_begin(&d));
    DT_TRY_TO(fail, st,
              dti_add_made(
                  d.body, "embed_tokens",
                  dt_layer_embedding(c->vocab_size, c->hidden_size, c->initializer_range, &d.made),
                  &d.made));
    for (int64_t i = 0; i < c->num_hidden_layers; i++)
        DT_TRY_TO(fail, st, dti_decoder_add_block(&d, i, block(c, &d.made)));
    DT_TRY_TO(fail, st,
              dti_add_made(d.body, d.norm_name,
                           dt_layer_rmsnorm(c->hidden_size, c->rms_norm_eps, &d.made), &d.made));
    dt_param *tied = c->tie_word_embeddings
                         ? dt_module_param(dt_module_find(d.body, "embed_tokens"), "weight")
                         : NULL;
    DT_TRY_TO(fail, st,
              dti_add_made(d.root, "lm_head",
                           dt_layer_lm_head(c->hidden_size, c->vocab_size, c->initializer_range,
                                            tied, &d.made),
                           &d.made));
    DT_TRY_TO(fail, st, dt_module_finish(d.root));
    *model_out = d.root;
    return DT_OK;
fail:
    dt_module_destroy(&d.made);
    dt_module_destroy(&d.root);
    return st;
}
