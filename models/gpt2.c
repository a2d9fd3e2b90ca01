/* models/gpt2.c - the GPT-2 decoder.
 *
 *     x = wte(ids) + wpe(positions); x = block_i(x) ...; logits = ln_f(x) wte^T
 *
 * Initial values: 0.02, and 0.02 / sqrt(2 layers) for the projections that add to the residual
 * stream. Source: Radford et al. 2019. Read first: models/llama.c. */
#include "models/dt_models.h"
#include "models/models_internal.h"

#include <math.h>

static dt_status block(const dt_gpt2_config *c, dt_module **out)
{
    const double std = c->initializer_range, out_std = std / sqrt(2.0 * (double)c->n_layer);
    dt_block_parts p = {"ln_1", "attn", "ln_2", "mlp", NULL, NULL, NULL, NULL};
    dt_status st = DT_OK;
    DT_TRY_TO(fail, st, dt_layer_layernorm(c->n_embd, c->layer_norm_epsilon, &p.norm1));
    DT_TRY_TO(
        fail, st,
        dt_layer_gpt2_attention(c->n_embd, c->n_head, std, out_std, c->resid_pdrop, &p.mixer));
    DT_TRY_TO(fail, st, dt_layer_layernorm(c->n_embd, c->layer_norm_epsilon, &p.norm2));
    DT_TRY_TO(fail, st,
              dt_layer_gpt2_mlp(c->n_embd, c->n_inner, std, out_std, c->resid_pdrop, &p.mlp));
    DT_TRY_TO(fail, st, dt_layer_block(&p, out));
    return DT_OK;
fail:
    dti_block_destroy(&p);
    return st;
}

/* Positions [B, S], placed as those dims of what they meet. */
static dt_tensor *meet(dt_tape *t, dt_tensor *positions, dt_tensor *token)
{
    if (dt_tensor_is_failed(token))
        return token;
    dt_layout want =
        dt_layout_replicated(dt_tensor_layout(token)->grid, dt_tensor_shape(positions));
    for (int d = 0; d < 2; d++)
        for (int i = 0; i < dt_tensor_layout(token)->nsplit[d]; i++)
            dt_layout_shard(&want, dt_tensor_layout(token)->split[d][i], d);
    const dt_layout *layout = NULL;
    const dt_status st = dt_mesh_layout(dt_tensor_mesh(token), &want, &layout);
    if (st == DT_OK)
        return dt_redistribute_to(t, positions, layout);
    (void)dt_tape_fail(t, st);
    return dt_tape_failed(t);
}

static dt_tensor *embed(dt_module *body, dt_tape *t, dt_tensor *ids, dt_tensor *positions)
{
    const dti_decoder *d = dti_decoder_of(body);
    dt_tensor *token = dt_module_call1(dt_module_find(body, "wte"), t, ids);
    /* under sequence parallelism the token is split, the ids are not */
    dt_tensor *at = positions ? meet(t, positions, token) : dt_positions(t, token, 1);
    dt_tensor *position = dt_module_call1(dt_module_find(body, "wpe"), t, at);
    return dt_dropout(t, dt_add(t, token, position), d->dropout);
}

dt_status dt_gpt2_create(const dt_gpt2_config *c, dt_module **model_out)
{
    dti_decoder d = {.body_name = "transformer",
                     .embed_name = "wte",
                     .layers_name = "h",
                     .norm_name = "ln_f",
                     .embed = embed,
                     .layers = c->n_layer,
                     .dropout = c->embd_pdrop};
    dt_status st = DT_OK;
    DT_TRY_TO(fail, st, dti_decoder_begin(&d));
    DT_TRY_TO(
        fail, st,
        dti_add_made(d.body, "wte",
                     dt_layer_embedding(c->vocab_size, c->n_embd, c->initializer_range, &d.made),
                     &d.made));
    DT_TRY_TO(
        fail, st,
        dti_add_made(d.body, "wpe",
                     dt_layer_embedding(c->n_positions, c->n_embd, c->initializer_range, &d.made),
                     &d.made));
    for (int64_t i = 0; i < c->n_layer; i++)
        DT_TRY_TO(fail, st, dti_decoder_add_block(&d, i, block(c, &d.made)));
    DT_TRY_TO(fail, st,
              dti_add_made(d.body, d.norm_name,
                           dt_layer_layernorm(c->n_embd, c->layer_norm_epsilon, &d.made), &d.made));
    DT_TRY_TO(fail, st,
              dti_add_made(d.root, "lm_head",
                           dt_layer_lm_head(
                               c->n_embd, c->vocab_size, c->initializer_range,
                               dt_module_param(dt_module_find(d.body, "wte"), "weight"), &d.made),
                           &d.made));
    DT_TRY_TO(fail, st, dt_module_finish(d.root));
    *model_out = d.root;
    return DT_OK;
fail:
    dt_module_destroy(&d.made);
    dt_module_destroy(&d.root);
    return st;
}
