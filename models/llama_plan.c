/* models/llama_plan.c - how Llama and its relatives are split over tensor-parallel ranks.
 *
 *     between blocks ("seq")    R, or S(1) under sequence parallelism
 *     inside of self_attn, mlp  R at the border (f), heads and hidden features split within,
 *                               and back to "seq" after the row-parallel product (g)
 *
 * So a layer costs two collectives forward and two backward. Read first: tp/dt_tp.h. */
#include "models/dt_models.h"

#include <string.h>

/* One row a kind of module; what differs is the vocabulary. The first row is for Qwen3 alone. */
#define QK_NORM {"model.layers.*.self_attn.[qk]_norm", DT_TP_REPLICATE, NULL, NULL}
#define LLAMA_BODY                                                               \
    {"model.layers.*.*_layernorm", DT_TP_REPLICATE, NULL, NULL},                 \
        {"model.layers.*.self_attn", DT_TP_BORDER, .in = "R"},                   \
        {"model.layers.*.self_attn.q_proj", DT_TP_COLWISE, NULL, NULL},          \
        {"model.layers.*.self_attn.[kv]_proj", DT_TP_COLWISE_OUTER, NULL, NULL}, \
        {"model.layers.*.self_attn.o_proj", DT_TP_ROWWISE, .out = "seq"},        \
        {"model.layers.*.mlp", DT_TP_BORDER, .in = "R"},                         \
        {"model.layers.*.mlp.gate_proj", DT_TP_COLWISE, NULL, NULL},             \
        {"model.layers.*.mlp.up_proj", DT_TP_COLWISE, NULL, NULL},               \
        {"model.layers.*.mlp.down_proj", DT_TP_ROWWISE, .out = "seq"},           \
    {                                                                            \
        "model.norm", DT_TP_REPLICATE, NULL, NULL                                \
    }

static const dt_tp_rule split[] = {QK_NORM,
                                   {"model.embed_tokens", DT_TP_ROWWISE, .out = "seq"},
                                   LLAMA_BODY,
                                   {"lm_head", DT_TP_COLWISE, .in = "R"}};
static const dt_tp_rule gathered[] = {QK_NORM,
                                   {"model.embed_tokens", DT_TP_ROWWISE, .out = "seq"},
                                      LLAMA_BODY,
                                      {"lm_head", DT_TP_COLWISE, .in = "R", .out = "R"}};
static const dt_tp_rule whole[] = {QK_NORM,
                                   {"model.embed_tokens", DT_TP_REPLICATE, .in = "seq"},
                                   LLAMA_BODY,
                                   {"lm_head", DT_TP_REPLICATE, .in = "seq, seq"}};

static dt_tp_plan plan_of(dt_tp_vocab vocab, bool sequence, bool qk_norm)
{
    static const dt_tp_rule *const rule[] = {split, gathered, whole};
    const int skip = qk_norm ? 0 : 1;
    return (dt_tp_plan){
        .nrules = DT_COUNT(split) - skip, .rule = rule[vocab] + skip, .sequence = sequence};
}

dt_tp_plan dt_llama_tp_plan(dt_tp_vocab vocab, bool sequence)
{
    return plan_of(vocab, sequence, false);
}

dt_tp_plan dt_model_tp_plan(const dt_model_facts *facts, dt_tp_vocab vocab, bool sequence)
{
    dt_tp_plan plan = strcmp(facts->architecture, "GPT2LMHeadModel") == 0
                          ? dt_gpt2_tp_plan(vocab, sequence)
                          : plan_of(vocab, sequence, facts->qk_norm);
    plan.stage = facts->layers == 0; /* rows for layers then match nothing */
    return plan;
}
