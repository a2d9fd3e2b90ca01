/* models/decoder.c - the frame that Llama and GPT-2 share: embedding, blocks, norm, head with
 * loss. Of a pipeline stage some are missing: the first one has the embedding, the last one norm
 * and head; between them go hidden states. */
#include "models/dt_models.h"
#include "models/models_internal.h"

#include <stdio.h>
#include <string.h>

static dt_values root_forward(dt_module *m, dt_tape *t, const dt_values *in)
{
    const dt_values body = {.n = in->n > 2 ? 3 : 1,
                            .value = {in->value[0], in->value[2], in->value[3]}};
    const dt_values x = {.n = 2,
                         .value = {dt_module_call(dt_module_child(m, 0), t, &body).value[0],
                                   in->n > 1 ? in->value[1] : NULL}};
    if (dt_module_nchildren(m) < 2)
        return (dt_values){.n = 1, .value = {x.value[0]}};
    return dt_module_call(dt_module_child(m, 1), t, &x);
}

static dt_values body_forward(dt_module *m, dt_tape *t, const dt_values *in)
{
    const dti_decoder *d = dt_module_state(m);
    dt_module *layers = dt_module_find(m, d->layers_name);
    dt_module *norm = dt_module_find(m, d->norm_name);
    dt_values layer = *in;
    dt_tensor *x = in->value[0];
    if (dt_module_find(m, d->embed_name))
        x = d->embed(m, t, x, in->value[1]);
    for (int i = 0; i < dt_module_nchildren(layers); i++) {
        layer.value[0] = x;
        dt_tensor *y = dt_module_call(dt_module_child(layers, i), t, &layer).value[0];
        if (y != x)
            dt_tensor_drop(x); /* nothing else reads it */
        x = y;
    }
    return (dt_values){.n = 1, .value = {norm ? dt_module_call1(norm, t, x) : x}};
}

dt_status dti_add_made(dt_module *parent, const char *name, dt_status st, dt_module **made)
{
    if (st != DT_OK)
        return dt_error_push(st, __FILE__, __LINE__, name);
    DT_TRY(dt_module_add(parent, name, *made));
    *made = NULL;
    return DT_OK;
}

dt_status dti_decoder_begin(dti_decoder *d)
{
    static const dt_module_kind root = {"decoder", 0, root_forward};
    static const dt_module_kind body = {"body", sizeof(dti_decoder), body_forward};
    DT_REQUIRE(d->layers >= 0, DT_ERR_ARG, "%lld layers", (long long)d->layers);
    DT_TRY(dt_module_create(&root, &d->root));
    DT_TRY(dt_module_create(&body, &d->made));
    d->body = d->made;
    DT_TRY(dt_module_add(d->root, d->body_name, d->body));
    d->made = NULL;
    DT_TRY(dt_layer_group(&d->made));
    d->group = d->made;
    DT_TRY(dt_module_add(d->body, d->layers_name, d->group));
    d->made = NULL;
    *(dti_decoder *)dt_module_state(d->body) = *d;
    return DT_OK;
}

const dti_decoder *dti_decoder_of(dt_module *body)
{
    return dt_module_state(body);
}

dt_status dti_decoder_add_block(dti_decoder *d, int64_t i, dt_status st)
{
    char name[24];
    (void)snprintf(name, sizeof name, "%lld", (long long)i);
    DT_TRY(dti_add_made(d->group, name, st, &d->made));
    return DT_OK;
}

void dti_block_destroy(dt_block_parts *p)
{
    dt_module_destroy(&p->norm1);
    dt_module_destroy(&p->mixer);
    dt_module_destroy(&p->norm2);
    dt_module_destroy(&p->mlp);
}

void dt_model_set_loss(dt_module *model, int64_t valid, int64_t chunk)
{
    dt_module *head = dt_module_find(model, "lm_head");
    if (head)
        dt_layer_lm_head_set(head, valid, chunk);
}

static dt_module *layers_of(dt_module *model)
{
    dt_module *body = dt_module_child(model, 0);
    return dt_module_find(body, dti_decoder_of(body)->layers_name);
}

int dt_model_nlayers(dt_module *model)
{
    return dt_module_nchildren(layers_of(model));
}

dt_module *dt_model_layer(dt_module *model, int i)
{
    return dt_module_child(layers_of(model), i);
}

dt_chain dt_model_chain(const dt_model_facts *facts)
{
    static const dt_chain gpt2 = {.first = {"transformer.wte", "transformer.wpe"},
                                  .layers = "transformer.h",
                                  .last = {"transformer.ln_f", "lm_head"}};
    static const dt_chain llama = {.first = {"model.embed_tokens"},
                                   .layers = "model.layers",
                                   .last = {"model.norm", "lm_head"}};
    return strcmp(facts->architecture, "GPT2LMHeadModel") == 0 ? gpt2 : llama;
}
