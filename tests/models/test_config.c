/* tests/models/test_config.c - every field of a config.json reaches the model: a model read from a
 * file is, bit for bit, the one made from a struct with the same numbers, and the comparison sees
 * each field by itself. Fields left out take Hugging Face's defaults. */
#include "tests/models/picture.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- Llama ---- */

/* No value is a default, and none follows from another. */
static const dt_llama_config llama = {.vocab_size = PICTURE_VOCAB,
                                      .hidden_size = 24,
                                      .intermediate_size = 20,
                                      .num_hidden_layers = 2,
                                      .num_attention_heads = 4,
                                      .num_key_value_heads = 2,
                                      .head_dim = 10,
                                      .max_position_embeddings = 33,
                                      .rope.theta = 50,
                                      .rms_norm_eps = 0.25,
                                      .initializer_range = 0.5,
                                      .tie_word_embeddings = true,
                                      .qkv_bias = true,
                                      .o_bias = true,
                                      .mlp_bias = true,
                                      .dropout = 0.25};

static dt_status llama_picture(dt_world *world, const dt_llama_config *c, picture *out)
{
    dt_module *model = NULL;
    DT_TRY(dt_llama_create(c, &model));
    DT_TRY(picture_take(world, model, out));
    return DT_OK;
}

static const char *yes(bool b)
{
    return b ? "true" : "false";
}

/* The same model with one field changed. */
static dt_llama_config llama_but(int i)
{
    dt_llama_config c = llama;
    switch (i) {
    case 0: c.vocab_size += 1; break;
    case 1: c.hidden_size += 1; break;
    case 2: c.intermediate_size += 1; break;
    case 3: c.num_hidden_layers += 1; break;
    case 4: c.num_attention_heads = 2; break;
    case 5: c.num_key_value_heads = 4; break;
    case 6: c.head_dim = 6; break;
    case 7: c.rope.theta = 10000; break;
    case 8: c.rms_norm_eps = 1e-6; break;
    case 9: c.initializer_range = 0.02; break;
    case 10: c.tie_word_embeddings = false; break;
    case 11: c.qkv_bias = c.o_bias = false; break;
    case 12: c.mlp_bias = false; break;
    case 13: c.dropout = 0; break;
    default: break;
    }
    return c;
}

static dt_status llama_body(dt_world *world, void *arg)
{
    (void)arg;
    const dt_llama_config *c = &llama;
    char text[1024];
    picture file, made, other;
    dt_model_facts facts;
    (void)snprintf(
        text, sizeof text,
        "{\"model_type\": \"llama\", \"vocab_size\": %d, \"hidden_size\": %d, "
        "\"intermediate_size\": %d, \"num_hidden_layers\": %d, \"num_attention_heads\": %d, "
        "\"num_key_value_heads\": %d, \"head_dim\": %d, \"max_position_embeddings\": %d, "
        "\"rope_theta\": %g, \"rms_norm_eps\": %g, \"initializer_range\": %g, "
        "\"tie_word_embeddings\": %s, \"attention_bias\": %s, \"mlp_bias\": %s, \"dropout\": %g}",
        (int)c->vocab_size, (int)c->hidden_size, (int)c->intermediate_size,
        (int)c->num_hidden_layers, (int)c->num_attention_heads, (int)c->num_key_value_heads,
        (int)c->head_dim, (int)c->max_position_embeddings, c->rope.theta, c->rms_norm_eps,
        c->initializer_range, yes(c->tie_word_embeddings), yes(c->qkv_bias), yes(c->mlp_bias),
        c->dropout);
    DT_TRY(picture_of_text(world, text, &file, &facts));
    DT_TRY(llama_picture(world, c, &made));
    TEST_THAT(picture_same(&file, &made), "loss %.9g, not %.9g", (double)file.loss,
              (double)made.loss);
    TEST_THAT(facts.max_positions == 33 && facts.vocab == PICTURE_VOCAB && facts.hidden == 24 &&
                  facts.layers == 2 && facts.heads == 4 && facts.kv_heads == 2 &&
                  facts.head_dim == 10,
              "facts");
    for (int i = 0; i < 14; i++) {
        const dt_llama_config changed = llama_but(i);
        DT_TRY(llama_picture(world, &changed, &other));
        TEST_THAT(!picture_same(&other, &made), "field %d does not matter", i);
    }
    return DT_OK;
}

START_TEST(every_field_of_llama)
{
    test_ranks(1, llama_body, NULL);
}
END_TEST

/* Hugging Face's LlamaConfig where a field is absent. */
static dt_status llama_defaults_body(dt_world *world, void *arg)
{
    (void)arg;
    picture file, made;
    dt_model_facts facts;
    const dt_llama_config c = {.vocab_size = PICTURE_VOCAB,
                               .hidden_size = 24,
                               .intermediate_size = 20,
                               .num_hidden_layers = 2,
                               .num_attention_heads = 4,
                               .num_key_value_heads = 4,
                               .head_dim = 6,
                               .max_position_embeddings = 2048,
                               .rope.theta = 10000,
                               .rms_norm_eps = 1e-6,
                               .initializer_range = 0.02};
    DT_TRY(picture_of_text(world,
                           "{\"model_type\": \"llama\", \"vocab_size\": 40, \"hidden_size\": 24, "
                           "\"intermediate_size\": 20, \"num_hidden_layers\": 2, "
                           "\"num_attention_heads\": 4}",
                           &file, &facts));
    DT_TRY(llama_picture(world, &c, &made));
    TEST_THAT(picture_same(&file, &made), "loss %.9g, not %.9g", (double)file.loss,
              (double)made.loss);
    TEST_THAT(facts.max_positions == 2048, "%lld", (long long)facts.max_positions);
    return DT_OK;
}

START_TEST(defaults_of_llama)
{
    test_ranks(1, llama_defaults_body, NULL);
}
END_TEST

/* ---- GPT-2 ---- */

static const dt_gpt2_config gpt2 = {.vocab_size = PICTURE_VOCAB,
                                    .n_embd = 24,
                                    .n_layer = 2,
                                    .n_head = 4,
                                    .n_inner = 20,
                                    .n_positions = 33,
                                    .layer_norm_epsilon = 0.25,
                                    .initializer_range = 0.5,
                                    .embd_pdrop = 0.25,
                                    .resid_pdrop = 0.125};

static dt_status gpt2_picture(dt_world *world, const dt_gpt2_config *c, picture *out)
{
    dt_module *model = NULL;
    DT_TRY(dt_gpt2_create(c, &model));
    DT_TRY(picture_take(world, model, out));
    return DT_OK;
}

static dt_gpt2_config gpt2_but(int i)
{
    dt_gpt2_config c = gpt2;
    switch (i) {
    case 0: c.vocab_size += 1; break;
    case 1: c.n_embd = 28; break;
    case 2: c.n_layer += 1; break;
    case 3: c.n_head = 2; break;
    case 4: c.n_inner = 96; break;
    case 5: c.n_positions += 1; break;
    case 6: c.layer_norm_epsilon = 1e-5; break;
    case 7: c.initializer_range = 0.02; break;
    case 8: c.embd_pdrop = 0.1; break;
    case 9: c.resid_pdrop = 0.1; break;
    default: break;
    }
    return c;
}

static dt_status gpt2_body(dt_world *world, void *arg)
{
    (void)arg;
    const dt_gpt2_config *c = &gpt2;
    char text[1024];
    picture file, made, other;
    dt_model_facts facts;
    (void)snprintf(text, sizeof text,
                   "{\"model_type\": \"gpt2\", \"vocab_size\": %d, \"n_embd\": %d, "
                   "\"n_layer\": %d, \"n_head\": %d, \"n_inner\": %d, \"n_positions\": %d, "
                   "\"layer_norm_epsilon\": %g, \"initializer_range\": %g, \"embd_pdrop\": %g, "
                   "\"resid_pdrop\": %g, \"attn_pdrop\": 0}",
                   (int)c->vocab_size, (int)c->n_embd, (int)c->n_layer, (int)c->n_head,
                   (int)c->n_inner, (int)c->n_positions, c->layer_norm_epsilon,
                   c->initializer_range, c->embd_pdrop, c->resid_pdrop);
    DT_TRY(picture_of_text(world, text, &file, &facts));
    DT_TRY(gpt2_picture(world, c, &made));
    TEST_THAT(picture_same(&file, &made), "loss %.9g, not %.9g", (double)file.loss,
              (double)made.loss);
    for (int i = 0; i < 10; i++) {
        const dt_gpt2_config changed = gpt2_but(i);
        DT_TRY(gpt2_picture(world, &changed, &other));
        TEST_THAT(!picture_same(&other, &made), "field %d does not matter", i);
    }
    return DT_OK;
}

START_TEST(every_field_of_gpt2)
{
    test_ranks(1, gpt2_body, NULL);
}
END_TEST

/* Hugging Face's GPT2Config where a field is absent; attention's dropout has to be named 0. */
static dt_status gpt2_defaults_body(dt_world *world, void *arg)
{
    (void)arg;
    picture file, made;
    dt_model_facts facts;
    dt_gpt2_config c = gpt2;
    c.n_inner = 4 * c.n_embd;
    c.layer_norm_epsilon = 1e-5;
    c.initializer_range = 0.02;
    c.embd_pdrop = c.resid_pdrop = 0.1;
    DT_TRY(picture_of_text(world,
                           "{\"model_type\": \"gpt2\", \"vocab_size\": 40, \"n_embd\": 24, "
                           "\"n_layer\": 2, \"n_head\": 4, \"n_positions\": 33, \"attn_pdrop\": 0}",
                           &file, &facts));
    DT_TRY(gpt2_picture(world, &c, &made));
    TEST_THAT(picture_same(&file, &made), "loss %.9g, not %.9g", (double)file.loss,
              (double)made.loss);
    return DT_OK;
}

START_TEST(defaults_of_gpt2)
{
    test_ranks(1, gpt2_defaults_body, NULL);
}
END_TEST

/* ---- numbers too large ---- */

#define TERA 1099511627776

/* Vocabulary, hidden and inner size, layers, positions, size of a head. */
static const struct {
    const char *type;
    int64_t v, n, inner, layers, positions, head;
    const char *says;
} too_large[] = {{"llama", INT64_MAX, 24, 20, 2, 33, 6, "vocab_size is 9223372036854775807"},
                 {"llama", TERA, 24, 20, 2, 33, 6, "vocab_size, hidden_size"},
                 {"llama", 40, 24, TERA, 2, 33, 6, "intermediate_size, hidden_size"},
                 {"llama", 40, 24, 20, 2, 33, TERA, "num_attention_heads, head_dim"},
                 {"llama", 40, 24, 20, 2, TERA, 6, "max_position_embeddings, head_dim"},
                 {"llama", 40, 24, 20, 65537, 33, 6, "65537 layers"},
                 {"gpt2", 40, 1048576, 20, 2, 33, 6, "n_embd is a tensor"},
                 {"gpt2", 40, 24, TERA, 2, 33, 6, "n_inner, n_embd"},
                 {"gpt2", 40, 24, 20, 2, TERA, 6, "n_positions, n_embd"}};

static dt_status too_large_body(dt_world *world, void *arg)
{
    const int i = *(int *)arg;
    const long long v = too_large[i].v, n = too_large[i].n, inner = too_large[i].inner,
                    layers = too_large[i].layers, positions = too_large[i].positions;
    char text[1024];
    picture file;
    dt_model_facts facts;
    (void)snprintf(text, sizeof text,
                   "{\"model_type\": \"%s\", \"vocab_size\": %lld, \"hidden_size\": %lld, "
                   "\"n_embd\": %lld, \"intermediate_size\": %lld, \"n_inner\": %lld, "
                   "\"num_hidden_layers\": %lld, \"n_layer\": %lld, "
                   "\"max_position_embeddings\": %lld, \"n_positions\": %lld, \"head_dim\": %lld, "
                   "\"num_attention_heads\": 4, \"n_head\": 4, \"attn_pdrop\": 0}",
                   too_large[i].type, v, n, n, inner, inner, layers, layers, positions, positions,
                   (long long)too_large[i].head);
    const dt_status st = picture_of_text(world, text, &file, &facts);
    TEST_THAT(st == DT_ERR_FORMAT && strstr(dt_error_trace(), too_large[i].says), "%s: %s",
              too_large[i].says, dt_error_trace());
    return DT_OK;
}

START_TEST(too_large_numbers)
{
    test_ranks(1, too_large_body, &_i);
}
END_TEST

/* ---- initial values ---- */

/* GPT-2: what adds to the residual stream has 1 / sqrt(2 layers) of the others' deviation. */
static void check_deviations(dt_module *model, double std, const char *smaller, double factor)
{
    int n = 0, seen = 0;
    dt_param *const *p = dt_module_params(model, &n);
    for (int i = 0; i < n; i++) {
        const bool small = smaller && strstr(p[i]->name, smaller);
        if (p[i]->init.kind != DT_INIT_NORMAL)
            continue;
        const double want = small ? std * factor : std;
        ck_assert_msg(fabs(p[i]->init.std - want) < 1e-12, "%s: %g, not %g", p[i]->name,
                      p[i]->init.std, want);
        seen += small;
    }
    ck_assert_int_eq(seen, smaller ? 4 : 0);
    dt_module_destroy(&model);
}

START_TEST(deviations)
{
    dt_module *model = NULL;
    ck_ok(dt_llama_create(&llama, &model));
    check_deviations(model, 0.5, NULL, 1);
    ck_ok(dt_gpt2_create(&gpt2, &model));
    check_deviations(model, 0.5, ".c_proj.weight", 0.5);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("config.json");
    TCase *tc = tcase_create("fields");
    tcase_set_timeout(tc, 60);
    tcase_add_test(tc, every_field_of_llama);
    tcase_add_test(tc, defaults_of_llama);
    tcase_add_test(tc, every_field_of_gpt2);
    tcase_add_test(tc, defaults_of_gpt2);
    tcase_add_loop_test(tc, too_large_numbers, 0, DT_COUNT(too_large));
    tcase_add_test(tc, deviations);
    suite_add_tcase(suite, tc);
    return test_main(suite);
}
