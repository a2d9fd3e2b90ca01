/* tests/tp/model_case.c - see tests/tp/model_case.h. */
#include "tests/tp/model_case.h"

#include "fsdp/dt_fsdp.h"
#include "tests/harness.h"

#include <stdlib.h>

model_case model_case_usual(int model)
{
    return (model_case){.gpt2 = model == 2,
                        .tied = model == 1 || model == 2,
                        .layers = 2,
                        .kv_heads = model == 3 ? 2 : 12,
                        .batch = 5,
                        .seq = 7,
                        .vocab = 13,
                        .dp = 1,
                        .tp = 1};
}

static dt_status make_model(const model_case *c, dt_module **model, dt_model_facts *facts)
{
    const dt_llama_config llama = {.vocab_size = c->vocab,
                                   .hidden_size = 24,
                                   .intermediate_size = 10, /* divides by 2 only */
                                   .num_hidden_layers = c->layers,
                                   .num_attention_heads = 12,
                                   .num_key_value_heads = c->kv_heads,
                                   .head_dim = 2,
                                   .max_position_embeddings = 64,
                                   .rope.theta = 1e4,
                                   .rms_norm_eps = 1e-5,
                                   .initializer_range = 0.3,
                                   .tie_word_embeddings = c->tied};
    const dt_gpt2_config gpt2 = {.vocab_size = c->vocab,
                                 .n_embd = 24,
                                 .n_layer = c->layers,
                                 .n_head = 12,
                                 .n_inner = 10,
                                 .n_positions = 64,
                                 .layer_norm_epsilon = 1e-5,
                                 .initializer_range = 0.3};
    *facts = (dt_model_facts){.architecture = c->gpt2 ? "GPT2LMHeadModel" : "LlamaForCausalLM",
                              .heads = 12,
                              .kv_heads = c->gpt2 ? 12 : c->kv_heads};
    DT_TRY(c->gpt2 ? dt_gpt2_create(&gpt2, model) : dt_llama_create(&llama, model));
    return DT_OK;
}

dt_status model_case_lay_out(const model_case *c, const dt_tp_plan *plan, dt_world *world,
                             dt_device device, dt_mesh **mesh, dt_module **model)
{
    dt_model_facts facts;
    const char *names = NULL;
    DT_TRY(make_model(c, model, &facts));
    dt_mesh_options options = {.axes = {{"dp", c->dp}}};
    DT_TRY(dt_tp_axes(facts.heads, facts.kv_heads, c->tp, &options.axes[1], &names));
    DT_TRY(dt_mesh_create(world, device, &options, mesh));
    dt_tp_plan usual = dt_model_tp_plan(&facts, c->vocab_as, c->sp);
    usual.keep_gathered = c->keep_gathered;
    usual.overlap = c->overlap;
    DT_TRY(dt_parallelize_module(*model, *mesh, names, plan ? plan : &usual));
    if (c->bf16)
        DT_TRY(dt_fully_shard(*model, *mesh, "dp", &(dt_fsdp_options){.param_dtype = DT_BF16}));
    DT_TRY(dt_module_materialize(*model, *mesh, 11));
    return DT_OK;
}

dt_status model_case_batch(const model_case *c, dt_mesh *mesh, dt_values *in, int64_t *valid)
{
    const int n = c->batch * c->seq;
    const dt_layout *layout = NULL;
    int32_t *host = calloc((size_t)n * 2, sizeof *host);
    TEST_THAT(host, "memory");
    for (int i = 0; i < n; i++) {
        host[i] = (int32_t)(i * 7 % c->vocab);
        host[n + i] = i % 4 == 3 ? -100 : (int32_t)((i * 5 + 2) % c->vocab);
        *valid += host[n + i] >= 0;
    }
    DT_TRY(dt_mesh_layout_text(mesh, DT_SHAPE(c->batch, c->seq), "S(0)@dp", &layout));
    DT_TRY(dt_distribute(layout, DT_I32, host, &in->value[0]));
    DT_TRY(dt_distribute(layout, DT_I32, host + n, &in->value[1]));
    in->n = 2;
    free(host);
    return DT_OK;
}
