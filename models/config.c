/* models/config.c - Hugging Face's config.json to a model. What the models cannot do is refused by
 * name. */
#include "base/dt_json.h"
#include "models/dt_models.h"

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

/* A field that must be absent, null, or the one value that the models compute. */
static dt_status only(const json_t *j, const char *path, const char *key, const char *legal)
{
    const char *text = NULL;
    DT_TRY(dt_json_string(j, path, key, legal, &text));
    DT_REQUIRE(strcmp(text, legal) == 0, DT_ERR_UNSUPPORTED,
               "%s: %s '%s'; this library computes '%s'", path, key, text, legal);
    return DT_OK;
}

static dt_status llama(const json_t *j, const char *path, dt_module **model_out,
                       dt_model_facts *facts)
{
    dt_llama_config c = {0};
    const double theta = 10000.0, std = 0.02, eps = 1e-6, none = 0;
    const bool no = false;
    const int64_t max_positions = 2048;
    DT_REQUIRE(!json_object_get(j, "rope_scaling") ||
                   json_is_null(json_object_get(j, "rope_scaling")),
               DT_ERR_UNSUPPORTED,
               "%s: rope_scaling is not built; remove it or use a model without", path);
    DT_TRY(only(j, path, "hidden_act", "silu"));
    DT_TRY(count(j, path, "vocab_size", NULL, 1, &c.vocab_size));
    DT_TRY(count(j, path, "hidden_size", NULL, 1, &c.hidden_size));
    DT_TRY(count(j, path, "intermediate_size", NULL, 1, &c.intermediate_size));
    DT_TRY(count(j, path, "num_hidden_layers", NULL, 0, &c.num_hidden_layers));
    DT_TRY(count(j, path, "num_attention_heads", NULL, 1, &c.num_attention_heads));
    DT_TRY(
        count(j, path, "num_key_value_heads", &c.num_attention_heads, 1, &c.num_key_value_heads));
    const int64_t head_dim = c.hidden_size / c.num_attention_heads;
    DT_TRY(count(j, path, "head_dim", &head_dim, 1, &c.head_dim));
    DT_TRY(
        count(j, path, "max_position_embeddings", &max_positions, 1, &c.max_position_embeddings));
    DT_TRY(dt_json_double(j, path, "rope_theta", &theta, &c.rope_theta));
    DT_TRY(dt_json_double(j, path, "rms_norm_eps", &eps, &c.rms_norm_eps));
    DT_TRY(dt_json_double(j, path, "initializer_range", &std, &c.initializer_range));
    DT_TRY(dt_json_bool(j, path, "tie_word_embeddings", &no, &c.tie_word_embeddings));
    DT_TRY(dt_json_bool(j, path, "attention_bias", &no, &c.attention_bias));
    DT_TRY(dt_json_bool(j, path, "mlp_bias", &no, &c.mlp_bias));
    DT_TRY(dt_json_double(j, path, "dropout", &none, &c.dropout)); /* ours, not Hugging Face's */
    *facts = (dt_model_facts){
        "LlamaForCausalLM",    c.vocab_size,          c.hidden_size, c.num_hidden_layers,
        c.num_attention_heads, c.num_key_value_heads, c.head_dim,    c.max_position_embeddings};
    const tensor_size tensor[] = {
        {"vocab_size, hidden_size", c.vocab_size, c.hidden_size, 1},
        {"intermediate_size, hidden_size", c.intermediate_size, c.hidden_size, 1},
        {"hidden_size, num_attention_heads, head_dim", c.hidden_size, c.num_attention_heads,
         c.head_dim},
        {"hidden_size, num_key_value_heads, head_dim", c.hidden_size, c.num_key_value_heads,
         c.head_dim},
        {"max_position_embeddings, head_dim", c.max_position_embeddings, c.head_dim, 1}};
    DT_TRY(check_sizes(path, c.num_hidden_layers, DT_COUNT(tensor), tensor));
    DT_TRY(dt_llama_create(&c, model_out));
    return DT_OK;
}

static dt_status gpt2(const json_t *j, const char *path, dt_module **model_out,
                      dt_model_facts *facts)
{
    dt_gpt2_config c = {0};
    const double eps = 1e-5, std = 0.02, usual_drop = 0.1;
    bool scaled = true;
    const bool yes = true;
    DT_TRY(only(j, path, "activation_function", "gelu_new"));
    DT_TRY(dt_json_bool(j, path, "tie_word_embeddings", &yes, &scaled));
    DT_REQUIRE(scaled, DT_ERR_UNSUPPORTED, "%s: GPT-2 with an untied head is not built", path);
    DT_TRY(dt_json_bool(j, path, "scale_attn_weights", &yes, &scaled));
    DT_REQUIRE(scaled, DT_ERR_UNSUPPORTED, "%s: scale_attn_weights false is not built", path);
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
    double attention = 0;
    DT_TRY(dt_json_double(j, path, "attn_pdrop", &usual_drop, &attention));
    DT_REQUIRE(attention == 0, DT_ERR_UNSUPPORTED,
               "%s: attn_pdrop %g: dropout of attention probabilities is not built; set it to 0",
               path, attention);
    *facts =
        (dt_model_facts){"GPT2LMHeadModel", c.vocab_size,        c.n_embd,     c.n_layer, c.n_head,
                         c.n_head,          c.n_embd / c.n_head, c.n_positions};
    const tensor_size tensor[] = {{"vocab_size, n_embd", c.vocab_size, c.n_embd, 1},
                                  {"n_positions, n_embd", c.n_positions, c.n_embd, 1},
                                  {"n_embd", 3, c.n_embd, c.n_embd},
                                  {"n_inner, n_embd", c.n_inner, c.n_embd, 1}};
    DT_TRY(check_sizes(path, c.n_layer, DT_COUNT(tensor), tensor));
    DT_TRY(dt_gpt2_create(&c, model_out));
    return DT_OK;
}

dt_status dt_model_create(const char *config_path, dt_module **model_out, dt_model_facts *facts_out)
{
    json_t *j = NULL;
    const char *type = NULL;
    DT_TRY(dt_json_load(config_path, &j));
    dt_status st = dt_json_string(j, config_path, "model_type", "", &type);
    if (st == DT_OK && !*type) /* older files only name the class */
        type = json_string_value(json_array_get(json_object_get(j, "architectures"), 0));
    if (st == DT_OK) {
        if (type && (strcmp(type, "llama") == 0 || strcmp(type, "LlamaForCausalLM") == 0))
            st = llama(j, config_path, model_out, facts_out);
        else if (type && (strcmp(type, "gpt2") == 0 || strcmp(type, "GPT2LMHeadModel") == 0))
            st = gpt2(j, config_path, model_out, facts_out);
        else
            st = DT_ERROR(DT_ERR_UNSUPPORTED, "%s: model_type '%s'; legal: llama, gpt2",
                          config_path, type ? type : "(missing)");
    }
    json_decref(j);
    return st;
}
