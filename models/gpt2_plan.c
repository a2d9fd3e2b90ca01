/* models/gpt2_plan.c - how GPT-2 is split over tensor-parallel ranks. The fused c_attn, in files
 * [n, 3n], is [n, 3, heads, d] to the library and splits by heads; positions follow the token
 * embeddings that they are added to. Read first: models/llama_plan.c. */
#include "models/dt_models.h"

#define GPT2_BODY                                                     \
    {"transformer.wpe", DT_TP_REPLICATE, NULL, NULL},                 \
        {"transformer.h.*.ln_?", DT_TP_REPLICATE, NULL, NULL},        \
        {"transformer.h.*.attn", DT_TP_BORDER, .in = "R"},            \
        {"transformer.h.*.attn.c_attn", DT_TP_COLWISE, NULL, NULL},   \
        {"transformer.h.*.attn.c_proj", DT_TP_ROWWISE, .out = "seq"}, \
        {"transformer.h.*.mlp", DT_TP_BORDER, .in = "R"},             \
        {"transformer.h.*.mlp.c_fc", DT_TP_COLWISE, NULL, NULL},      \
        {"transformer.h.*.mlp.c_proj", DT_TP_ROWWISE, .out = "seq"},  \
    {                                                                 \
        "transformer.ln_f", DT_TP_REPLICATE, NULL, NULL               \
    }

static const dt_tp_rule split[] = {{"transformer.wte", DT_TP_ROWWISE, .out = "seq"},
                                   GPT2_BODY,
                                   {"lm_head", DT_TP_COLWISE, .in = "R"}};
static const dt_tp_rule gathered[] = {{"transformer.wte", DT_TP_ROWWISE, .out = "seq"},
                                      GPT2_BODY,
                                      {"lm_head", DT_TP_COLWISE, .in = "R", .out = "R"}};
static const dt_tp_rule whole[] = {{"transformer.wte", DT_TP_REPLICATE, .in = "seq"},
                                   GPT2_BODY,
                                   {"lm_head", DT_TP_REPLICATE, .in = "seq, seq"}};

dt_tp_plan dt_gpt2_tp_plan(dt_tp_vocab vocab, bool sequence)
{
    static const dt_tp_rule *const rule[] = {split, gathered, whole};
    return (dt_tp_plan){.nrules = DT_COUNT(split), .rule = rule[vocab], .sequence = sequence};
}
