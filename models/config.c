/* models/config.c - Hugging Face's config.json to a model. What the models cannot do is refused by
 * name. */
#include "base/dt_json.h"
#include "models/dt_models.h"

#include <stdio.h>
#include <string.h>

/* Of a number, and of the elements of a tensor. With so many layers, the bytes of all tensors of a
 * model are still an int64_t. */
static const int64_t most = (int64_t)1 << 40, most_layers = 1 << 16;

/* A whole number >= min, <= most. */
static dt_status count(const json_t *j, const char *path, const char *key, const int64_t *fallback,
                       int64_t min, int64_t *out)
{
    DT_TRY(dt_json_int(j, path, key, fallback, out));
    DT_REQUIRE(*out >= min && *out <= most, DT_ERR_FORMAT, "%s: %s is %lld; legal: %lld to %lld",
               path, key, (long long)*out, (long long)min, (long long)most);
    return DT_OK;
}

/* A tensor of a x b x c elements, named by the fields that size it. */
typedef struct tensor_size {
    const char *fields;
    int64_t a, b, c;
} tensor_size;

static dt_status check_sizes(const char *path, int64_t layers, int n, const tensor_size *tensor)
{
    DT_REQUIRE(layers <= most_layers, DT_ERR_FORMAT, "%s: %lld layers; legal: 0 to %lld", path,
               (long long)layers, (long long)most_layers);
    for (int i = 0; i < n; i++) {
        const tensor_size *t = &tensor[i];
        DT_REQUIRE(t->a <= most / t->b && t->a * t->b <= most / t->c, DT_ERR_FORMAT,
                   "%s: %s is a tensor of %lld x %lld x %lld elements; legal: up to %lld", path,
                   t->fields, (long long)t->a, (long long)t->b, (long long)t->c, (long long)most);
    }
    return DT_OK;
}

/* ---- fields that say nothing here, and those that must not say more ---- */

/* Of every configuration; what they say has no effect on a training step. */
static const char *const neutral[] = {
    "model_type", "architectures", "_name_or_path", "transformers_version", "torch_dtype", "dtype",
    "bos_token_id", "eos_token_id", "pad_token_id", "sep_token_id", "decoder_start_token_id",
    "unk_token_id", "tokenizer_class", "use_cache", "return_dict", "output_attentions",
    "output_hidden_states", "gradient_checkpointing", "id2label", "label2id", "problem_type",
    "task_specific_params", "finetuning_task", "pretraining_tp", "chunk_size_feed_forward",
    "_attn_implementation", "attn_implementation", "max_length", "auto_map", "torchscript"};

/* Of GPT-2's: n_ctx repeats n_positions; summary_* are of another head; the last is rounding. */
static const char *const neutral_gpt2[] = {
    "n_ctx", "summary_type", "summary_use_proj", "summary_activation", "summary_proj_to_labels",
    "summary_first_dropout", "reorder_and_upcast_attn"};

/* What the readers below read or compare. */
static const char *const used_llama[] = {
    "hidden_act", "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers",
    "num_attention_heads", "num_key_value_heads", "head_dim", "max_position_embeddings",
    "rope_theta", "rope_scaling", "rope_parameters", "rms_norm_eps", "initializer_range",
    "tie_word_embeddings", "attention_bias", "mlp_bias", "attention_dropout", "dropout",
    "sliding_window", "use_sliding_window", "max_window_layers", "layer_types"};
static const char *const used_gpt2[] = {
    "activation_function", "tie_word_embeddings", "scale_attn_weights",
    "scale_attn_by_inverse_layer_idx", "add_cross_attention", "vocab_size", "n_embd", "n_layer",
    "n_head", "n_positions", "n_inner", "layer_norm_epsilon", "initializer_range", "embd_pdrop",
    "resid_pdrop", "attn_pdrop"};
static const char *const rope_types[] = {"default", "linear", "llama3"};
static const char *const used_rope[] = {"rope_type", "type", "rope_theta", "factor",
                                        "low_freq_factor", "high_freq_factor",
                                        "original_max_position_embeddings"};

typedef struct words {
    int n;
    const char *const *word;
} words;

static bool has(words w, const char *key)
{
    for (int i = 0; i < w.n; i++)
        if (strcmp(w.word[i], key) == 0)
            return true;
    return false;
}

/* Every field must be in one of the lists. */
static dt_status check_known(const json_t *j, const char *path, const char *what, words used,
                             words more)
{
    const char *key;
    const json_t *value;
    json_object_foreach((json_t *)j, key, value)
        DT_REQUIRE(has(used, key) || has(more, key) ||
                       has((words){DT_COUNT(neutral), neutral}, key),
                   DT_ERR_UNSUPPORTED,
                   "%s: field '%s' is not known for %s; remove it if it changes nothing", path, key,
                   what);
    return DT_OK;
}

/* A field that must be absent, null, or the one value that the models compute. */
static dt_status only(const json_t *j, const char *path, const char *key, const char *legal)
{
    const char *text = NULL;
    DT_TRY(dt_json_string(j, path, key, legal, &text));
    DT_REQUIRE(strcmp(text, legal) == 0, DT_ERR_UNSUPPORTED,
               "%s: %s '%s'; this library computes '%s'", path, key, text, legal);
    return DT_OK;
}

static dt_status only_bool(const json_t *j, const char *path, const char *key, bool legal)
{
    bool value = legal;
    DT_TRY(dt_json_bool(j, path, key, &legal, &value));
    DT_REQUIRE(value == legal, DT_ERR_UNSUPPORTED, "%s: %s %s is not built", path, key,
               value ? "true" : "false");
    return DT_OK;
}

static dt_status no_dropout(const json_t *j, const char *path, const char *key, double fallback)
{
    double rate = 0;
    DT_TRY(dt_json_double(j, path, key, &fallback, &rate));
    DT_REQUIRE(rate == 0, DT_ERR_UNSUPPORTED,
               "%s: %s %g: dropout of attention probabilities is not built; set it to 0", path, key,
               rate);
    return DT_OK;
}

/* ---- Llama and its relatives ---- */

/* What one family has that the others have not, and Hugging Face's defaults of its configuration.
 */
typedef struct family {
    const char *type, *architecture;
    int64_t kv_heads, head_dim; /* 0: as many as query heads; hidden / heads */
    int64_t max_positions, window;
    bool window_if_asked; /* sliding_window counts only with use_sliding_window */
    bool qkv_bias, qk_norm;
    bool attention_bias, mlp_bias; /* may be asked for */
} family;

static const family families[] = {
    {"llama", "LlamaForCausalLM", .max_positions = 2048, .attention_bias = true, .mlp_bias = true},
    {"mistral", "MistralForCausalLM", .kv_heads = 8, .max_positions = 131072, .window = 4096},
    {"qwen2", "Qwen2ForCausalLM", .kv_heads = 32, .max_positions = 32768, .window = 4096,
     .window_if_asked = true, .qkv_bias = true},
    {"qwen3", "Qwen3ForCausalLM", .kv_heads = 32, .head_dim = 128, .max_positions = 32768,
     .window = 4096, .window_if_asked = true, .qk_norm = true, .attention_bias = true}};

/* rope_theta, and rope_scaling or, in newer files, rope_parameters. */
static dt_status rope(const json_t *j, const char *path, dt_rope_options *out)
{
    const double usual = 10000;
    char where[1024];
    const char *type = NULL;
    const json_t *scaling = json_object_get(j, "rope_parameters");
    DT_TRY(dt_json_double(j, path, "rope_theta", &usual, &out->theta));
    if (!scaling || json_is_null(scaling))
        scaling = json_object_get(j, "rope_scaling");
    if (!scaling || json_is_null(scaling))
        return DT_OK;
    DT_REQUIRE(json_is_object(scaling), DT_ERR_FORMAT, "%s: rope_scaling is not an object", path);
    (void)snprintf(where, sizeof where, "%s: rope_scaling", path);
    const double theta = out->theta;
    DT_TRY(dt_json_double(scaling, where, "rope_theta", &theta, &out->theta));
    DT_TRY(dt_json_string(scaling, where, "type", "default", &type));
    DT_TRY(dt_json_string(scaling, where, "rope_type", type, &type));
    DT_REQUIRE(has((words){DT_COUNT(rope_types), rope_types}, type), DT_ERR_UNSUPPORTED,
               "%s: type '%s'; legal: default, linear, llama3", where, type);
    DT_TRY(check_known(scaling, where, "it", (words){DT_COUNT(used_rope), used_rope},
                       (words){0, NULL}));
    if (strcmp(type, "default") == 0)
        return DT_OK;
    DT_TRY(dt_json_double(scaling, where, "factor", NULL, &out->factor));
    DT_REQUIRE(out->factor >= 1, DT_ERR_FORMAT, "%s: factor %g; legal: 1 or more",
               where, out->factor);
    if (strcmp(type, "linear") == 0)
        return DT_OK;
    DT_TRY(dt_json_double(scaling, where, "low_freq_factor", NULL, &out->low_freq_factor));
    DT_TRY(dt_json_double(scaling, where, "high_freq_factor", NULL, &out->high_freq_factor));
    DT_TRY(dt_json_double(scaling, where, "original_max_position_embeddings", NULL,
                          &out->original_positions));
    DT_REQUIRE(out->low_freq_factor > 0 && out->high_freq_factor > out->low_freq_factor &&
                   out->original_positions > 0,
               DT_ERR_FORMAT,
               "%s: low_freq_factor %g, high_freq_factor %g, "
               "original_max_position_embeddings %g; legal: 0 < low < high, 0 < original",
               where, out->low_freq_factor, out->high_freq_factor, out->original_positions);
    return DT_OK;
}

/* A window that no sequence can reach past changes nothing: positions end where it does. */
static dt_status window(const json_t *j, const char *path, const family *f, int64_t *positions)
{
    const json_t *field = json_object_get(j, "sliding_window");
    bool asked = !f->window_if_asked && f->window > 0;
    int64_t size = f->window;
    if (f->window_if_asked)
        DT_TRY(dt_json_bool(j, path, "use_sliding_window", &asked, &asked));
    else
        DT_TRY(only_bool(j, path, "use_sliding_window", f->window > 0));
    if (field && json_is_null(field)) /* null: none; absent: the family's */
        asked = false;
    if (field && !json_is_null(field)) {
        DT_TRY(count(j, path, "sliding_window", NULL, 1, &size));
        asked = asked || !f->window_if_asked;
    }
    *positions = asked && size < *positions ? size : *positions;
    return DT_OK;
}

static dt_status llama_sizes(const json_t *j, const char *path, const family *f, dt_llama_config *c)
{
    DT_TRY(count(j, path, "vocab_size", NULL, 1, &c->vocab_size));
    DT_TRY(count(j, path, "hidden_size", NULL, 1, &c->hidden_size));
    DT_TRY(count(j, path, "intermediate_size", NULL, 1, &c->intermediate_size));
    DT_TRY(count(j, path, "num_hidden_layers", NULL, 0, &c->num_hidden_layers));
    DT_TRY(count(j, path, "num_attention_heads", NULL, 1, &c->num_attention_heads));
    const int64_t heads = c->num_attention_heads, kv_heads = f->kv_heads ? f->kv_heads : heads;
    DT_TRY(count(j, path, "num_key_value_heads", &kv_heads, 1, &c->num_key_value_heads));
    const int64_t head_dim = f->head_dim ? f->head_dim : c->hidden_size / heads;
    DT_TRY(count(j, path, "head_dim", &head_dim, 1, &c->head_dim));
    DT_TRY(count(j, path, "max_position_embeddings", &f->max_positions, 1,
                 &c->max_position_embeddings));
    const tensor_size tensor[] = {
        {"vocab_size, hidden_size", c->vocab_size, c->hidden_size, 1},
        {"intermediate_size, hidden_size", c->intermediate_size, c->hidden_size, 1},
        {"hidden_size, num_attention_heads, head_dim", c->hidden_size, heads, c->head_dim},
        {"hidden_size, num_key_value_heads, head_dim", c->hidden_size, c->num_key_value_heads,
         c->head_dim},
        {"max_position_embeddings, head_dim", c->max_position_embeddings, c->head_dim, 1}};
    DT_TRY(check_sizes(path, c->num_hidden_layers, DT_COUNT(tensor), tensor));
    return DT_OK;
}

static dt_status llama(const json_t *j, const char *path, const family *f, dt_module **model_out,
                       dt_model_facts *facts)
{
    dt_llama_config c = {.qk_norm = f->qk_norm};
    const double std = 0.02, eps = 1e-6, none = 0;
    const bool no = false;
    bool bias = false;
    DT_TRY(only(j, path, "hidden_act", "silu"));
    DT_TRY(no_dropout(j, path, "attention_dropout", 0));
    DT_TRY(llama_sizes(j, path, f, &c));
    DT_TRY(rope(j, path, &c.rope));
    DT_TRY(window(j, path, f, &c.max_position_embeddings));
    DT_TRY(dt_json_double(j, path, "rms_norm_eps", &eps, &c.rms_norm_eps));
    DT_TRY(dt_json_double(j, path, "initializer_range", &std, &c.initializer_range));
    DT_TRY(dt_json_bool(j, path, "tie_word_embeddings", &no, &c.tie_word_embeddings));
    if (f->attention_bias)
        DT_TRY(dt_json_bool(j, path, "attention_bias", &no, &bias));
    else
        DT_TRY(only_bool(j, path, "attention_bias", f->qkv_bias));
    c.qkv_bias = bias || f->qkv_bias;
    c.o_bias = bias;
    if (f->mlp_bias)
        DT_TRY(dt_json_bool(j, path, "mlp_bias", &no, &c.mlp_bias));
    else
        DT_TRY(only_bool(j, path, "mlp_bias", false));
    DT_TRY(dt_json_double(j, path, "dropout", &none, &c.dropout)); /* ours, not Hugging Face's */
    DT_TRY(check_known(j, path, f->type, (words){DT_COUNT(used_llama), used_llama},
                       (words){0, NULL}));
    *facts = (dt_model_facts){f->architecture,
                              c.vocab_size,
                              c.hidden_size,
                              c.num_hidden_layers,
                              c.num_attention_heads,
                              c.num_key_value_heads,
                              c.head_dim,
                              c.max_position_embeddings,
                              c.qk_norm};
    DT_TRY(dt_llama_create(&c, model_out));
    return DT_OK;
}

/* ---- GPT-2 ---- */

static dt_status gpt2(const json_t *j, const char *path, dt_module **model_out,
                      dt_model_facts *facts)
{
    dt_gpt2_config c = {0};
    const double eps = 1e-5, std = 0.02, usual_drop = 0.1;
    DT_TRY(only(j, path, "activation_function", "gelu_new"));
    DT_TRY(only_bool(j, path, "tie_word_embeddings", true));
    DT_TRY(only_bool(j, path, "scale_attn_weights", true));
    DT_TRY(only_bool(j, path, "scale_attn_by_inverse_layer_idx", false));
    DT_TRY(only_bool(j, path, "add_cross_attention", false));
    DT_TRY(no_dropout(j, path, "attn_pdrop", usual_drop));
    DT_TRY(count(j, path, "vocab_size", NULL, 1, &c.vocab_size));
    DT_TRY(count(j, path, "n_embd", NULL, 1, &c.n_embd));
    DT_TRY(count(j, path, "n_layer", NULL, 0, &c.n_layer));
    DT_TRY(count(j, path, "n_head", NULL, 1, &c.n_head));
    DT_TRY(count(j, path, "n_positions", NULL, 1, &c.n_positions));
    const int64_t inner = 4 * c.n_embd;
    DT_TRY(count(j, path, "n_inner", &inner, 1, &c.n_inner));
    DT_TRY(dt_json_double(j, path, "layer_norm_epsilon", &eps, &c.layer_norm_epsilon));
    DT_TRY(dt_json_double(j, path, "initializer_range", &std, &c.initializer_range));
    DT_TRY(dt_json_double(j, path, "embd_pdrop", &usual_drop, &c.embd_pdrop));
    DT_TRY(dt_json_double(j, path, "resid_pdrop", &usual_drop, &c.resid_pdrop));
    *facts =
        (dt_model_facts){"GPT2LMHeadModel", c.vocab_size,        c.n_embd,     c.n_layer, c.n_head,
                         c.n_head,          c.n_embd / c.n_head, c.n_positions, false};
    const tensor_size tensor[] = {{"vocab_size, n_embd", c.vocab_size, c.n_embd, 1},
                                  {"n_positions, n_embd", c.n_positions, c.n_embd, 1},
                                  {"n_embd", 3, c.n_embd, c.n_embd},
                                  {"n_inner, n_embd", c.n_inner, c.n_embd, 1}};
    DT_TRY(check_sizes(path, c.n_layer, DT_COUNT(tensor), tensor));
    DT_TRY(check_known(j, path, "gpt2", (words){DT_COUNT(used_gpt2), used_gpt2},
                       (words){DT_COUNT(neutral_gpt2), neutral_gpt2}));
    DT_TRY(dt_gpt2_create(&c, model_out));
    return DT_OK;
}

static dt_status by_type(const json_t *j, const char *path, const char *type,
                         dt_module **model_out, dt_model_facts *facts)
{
    for (int i = 0; i < DT_COUNT(families); i++)
        if (strcmp(type, families[i].type) == 0 || strcmp(type, families[i].architecture) == 0)
            return llama(j, path, &families[i], model_out, facts);
    if (strcmp(type, "gpt2") == 0 || strcmp(type, "GPT2LMHeadModel") == 0)
        return gpt2(j, path, model_out, facts);
    return DT_ERROR(DT_ERR_UNSUPPORTED,
                    "%s: model_type '%s'; legal: llama, mistral, qwen2, qwen3, gpt2", path, type);
}

dt_status dt_model_create(const char *config_path, dt_module **model_out, dt_model_facts *facts_out)
{
    json_t *j = NULL;
    const char *type = NULL;
    DT_TRY(dt_json_load(config_path, &j));
    dt_status st = dt_json_string(j, config_path, "model_type", "", &type);
    if (st == DT_OK && !*type) /* older files only name the class */
        type = json_string_value(json_array_get(json_object_get(j, "architectures"), 0));
    if (st == DT_OK)
        st = by_type(j, config_path, type ? type : "(missing)", model_out, facts_out);
    json_decref(j);
    return st;
}
