/* tests/fuzz/fuzz_config.c - a model's config.json: a model on meta, or an error. */
#include "base/dt_json.h"
#include "models/dt_models.h"
#include "tests/fuzz/fuzz.h"

/* Thousands of layers are legal and only take long. */
static bool is_small(const uint8_t *data, size_t size_bytes)
{
    json_t *o = json_loadb((const char *)data, size_bytes, 0, NULL);
    const json_int_t llama = json_integer_value(json_object_get(o, "num_hidden_layers"));
    const json_int_t gpt2 = json_integer_value(json_object_get(o, "n_layer"));
    json_decref(o);
    return llama < 8 && gpt2 < 8;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size_bytes)
{
    dt_module *model = NULL;
    dt_model_facts facts;
    if (is_small(data, size_bytes) &&
        dt_model_create(fuzz_file(0, data, size_bytes), &model, &facts) == DT_OK)
        FUZZ_THAT(facts.vocab > 0 && facts.hidden > 0 && dt_model_nlayers(model) == facts.layers &&
                  dt_module_count(model) > 0);
    dt_module_destroy(&model);
    return 0;
}
