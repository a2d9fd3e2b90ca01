/* tests/tp/model_case.h - small Llama and GPT-2 models, parallelized, with a batch: hidden size 24,
 * 12 heads, an mlp of 10. */
#pragma once

#include "models/dt_models.h"

typedef struct model_case {
    bool gpt2, tied;
    int layers, kv_heads, batch, seq;
    int64_t vocab;
    int dp, tp;
    dt_tp_vocab vocab_as;
    bool sp, keep_gathered, overlap;
    bool bf16; /* parameters and activations; one group of fully_shard */
} model_case;

/* Models 0..3: llama, llama with tied weights, GPT-2, llama with 2 key/value heads. 2 layers, batch
 * 5, sequence 7, vocabulary 13, one rank. */
model_case model_case_usual(int model);
/* Mesh [dp, tp] (or dp, tp_kv, tp_rep) and the materialized model on it; plan NULL: the model's. */
dt_status model_case_lay_out(const model_case *c, const dt_tp_plan *plan, dt_world *world,
                             dt_device device, dt_mesh **mesh, dt_module **model);
/* {ids, targets}, the caller's; one target in four is ignored. */
dt_status model_case_batch(const model_case *c, dt_mesh *mesh, dt_values *in, int64_t *valid);
