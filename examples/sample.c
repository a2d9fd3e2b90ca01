/* examples/sample.c - continue a text with a trained model.
 *
 *     build/examples/sample FOLDER --prompt="Once" --tokens=200 --temperature=0.8 --seed=1
 *
 * FOLDER holds config.json, safetensors and perhaps a tokenizer.json; without one tokens are bytes,
 * as examples/train.c makes of a text.
 * The whole context runs again for every token: short, and no cache to keep right. */
#include "base/dt_options.h"
#include "base/dt_random.h"
#include "checkpoint/dt_safetensors.h"
#include "data/dt_tokenizer.h"
#include "models/dt_models.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const dt_option table[] = {
    {"model", DT_OPTION_STRING, NULL, "folder with config.json and model.safetensors", NULL, 0, 0},
    {"tokenizer", DT_OPTION_STRING, NULL,
     "a tokenizer.json, or bytes; none: FOLDER/tokenizer.json where it is there, or bytes", NULL, 0,
     0},
    {"prompt", DT_OPTION_STRING, "\n", "text to continue", NULL, 0, 0},
    {"tokens", DT_OPTION_INT, "200", "how many to add", NULL, 1, 1e6},
    {"context", DT_OPTION_INT, "0", "tokens the model looks back; 0: all its positions", NULL, 0,
     1e6},
    {"temperature", DT_OPTION_FLOAT, "0.8", "0: always the likeliest token", NULL, 0, 100},
    {"seed", DT_OPTION_INT, "0", "of the draws", NULL, 0, 1e18},
    {"help", DT_OPTION_COMMAND, NULL, "print this", NULL, 0, 0},
};

/* Draw a token from logits: softmax(logits / temperature), by the inverse of the cumulative sum. */
static int draw(const float *logits, int64_t n, double temperature, double uniform)
{
    int best = 0;
    for (int64_t i = 1; i < n; i++)
        best = logits[i] > logits[best] ? (int)i : best;
    if (temperature == 0)
        return best;
    double sum = 0, so_far = 0;
    for (int64_t i = 0; i < n; i++)
        sum += exp(((double)logits[i] - (double)logits[best]) / temperature);
    for (int64_t i = 0; i < n; i++) {
        so_far += exp(((double)logits[i] - (double)logits[best]) / temperature) / sum;
        if (so_far > uniform)
            return (int)i;
    }
    return best;
}

/* Logits of the last of n tokens. */
static dt_status next_logits(dt_mesh *mesh, dt_module *model, dt_tape *tape, const int32_t *ids,
                             int64_t n, int64_t vocab, float *logits)
{
    const dt_layout *layout = NULL;
    dt_tensor *x = NULL;
    DT_TRY(dt_mesh_layout_text(mesh, DT_SHAPE(1, n), "", &layout));
    DT_TRY(dt_distribute(layout, DT_I32, ids, &x));
    dt_tape_reset(tape, &(dt_tape_options){.no_grad = true, .no_dropout = true});
    dt_tensor *all = dt_module_call1(model, tape, x);
    dt_tensor *last = dt_slice(tape, all, 1, n - 1, n);
    dt_status st = dt_tape_status(tape);
    if (st == DT_OK)
        st = dt_array_read(dt_tensor_local(last), logits, vocab);
    dt_tensor_destroy(&x);
    return st;
}

static dt_status open_tokenizer(const dt_options *o, const char *folder, int64_t vocab,
                                dt_tokenizer **tokenizer_out)
{
    char path[4096];
    const char *given = dt_options_string(o, "tokenizer");
    (void)snprintf(path, sizeof path, "%s/tokenizer.json", folder);
    if (!given)
        given = access(path, F_OK) == 0 ? path : "bytes";
    dt_tokenizer *t = NULL;
    DT_TRY(dt_tokenizer_open(given, &t));
    const int64_t known = dt_tokenizer_vocab(t);
    const bool fits = strcmp(given, "bytes") == 0 ? known == vocab : known <= vocab;
    if (fits)
        *tokenizer_out = t;
    else
        dt_tokenizer_close(&t);
    DT_REQUIRE(fits, DT_ERR_UNSUPPORTED, "%s has %lld tokens, the tokenizer (%s) %lld", folder,
               (long long)vocab, given, (long long)known);
    return DT_OK;
}

static dt_status flush(void)
{
    DT_REQUIRE(fflush(stdout) == 0, DT_ERR_IO, "standard output cannot be written: %s",
               strerror(errno));
    return DT_OK;
}

static dt_status print_token(const dt_tokenizer *t, int32_t token)
{
    size_t size_bytes = 0;
    const char *text = dt_tokenizer_text(t, token, &size_bytes);
    if (text)
        (void)fwrite(text, 1, size_bytes, stdout);
    return flush();
}

/* The prompt and what follows it. */
static dt_status write_text(const dt_options *o, dt_mesh *mesh, dt_module *model,
                            const dt_model_facts *facts, const dt_tokenizer *tokenizer)
{
    const char *prompt = dt_options_string(o, "prompt");
    const int64_t more = dt_options_int(o, "tokens"), asked = dt_options_int(o, "context");
    const int64_t most = facts->max_positions;
    const int64_t window = asked > 0 && asked < most ? asked : most;
    dt_tokens ids = {0};
    dt_tape *tape = NULL;
    DT_TRY(dt_tokenizer_encode(tokenizer, prompt, strlen(prompt), &ids));
    const int64_t given = ids.n, known = dt_tokenizer_vocab(tokenizer);
    DT_REQUIRE(given > 0, DT_ERR_ARG, "prompt is empty; the model needs one token to start from");
    DT_TRY(dt_grow((void **)&ids.id, &ids.capacity, given + more, sizeof *ids.id));
    float *logits = malloc((size_t)facts->vocab * sizeof *logits);
    DT_REQUIRE(logits, DT_ERR_NOMEM, "%lld logits", (long long)facts->vocab);
    DT_TRY(dt_tape_create(mesh, NULL, &tape));
    (void)fputs(prompt, stdout);
    const dt_key key = dt_key_make((uint64_t)dt_options_int(o, "seed"), 0, 0);
    for (int64_t n = given; n < given + more; n++) {
        const int64_t from = n > window ? n - window : 0;
        DT_TRY(next_logits(mesh, model, tape, ids.id + from, n - from, facts->vocab, logits));
        ids.id[n] = draw(logits, known, dt_options_float(o, "temperature"),
                         (double)dt_uniform(key, (uint64_t)(n - given)));
        DT_TRY(print_token(tokenizer, ids.id[n]));
    }
    (void)putchar('\n');
    free(ids.id);
    free(logits);
    dt_tape_destroy(&tape);
    return DT_OK;
}

static dt_status generate(dt_world *world, const dt_options *o, const char *folder)
{
    char path[4096];
    (void)snprintf(path, sizeof path, "%s/config.json", folder);
    dt_mesh *mesh = NULL;
    dt_module *model = NULL;
    dt_model_facts facts;
    dt_tokenizer *tokenizer = NULL;
    DT_TRY(dt_mesh_create(world, (dt_device){DT_CPU, 0},
                          &(dt_mesh_options){.axes = {{"dp_replicate", 1}}}, &mesh));
    DT_TRY(dt_model_create(path, &model, &facts));
    DT_TRY(open_tokenizer(o, folder, facts.vocab, &tokenizer));
    DT_TRY(dt_module_materialize(model, mesh, 0));
    DT_TRY(dt_module_load(model, folder));
    DT_TRY(write_text(o, mesh, model, &facts, tokenizer));
    dt_tokenizer_close(&tokenizer);
    dt_module_destroy(&model);
    dt_mesh_destroy(&mesh);
    return flush();
}

int main(int argc, char **argv)
{
    /* The folder may stand first, without a key. */
    const bool first = argc > 1 && argv[1][0] != '-';
    dt_options *o = NULL;
    dt_world *world = NULL;
    DT_MUST(dt_options_parse(table, DT_COUNT(table), argc - first,
                             (const char *const *)argv + first, &o));
    if (dt_options_bool(o, "help")) {
        dt_options_print_help(table, DT_COUNT(table), "sample FOLDER [--key=value ...]", stdout);
        dt_options_destroy(&o);
        return EXIT_SUCCESS;
    }
    const char *folder = first ? argv[1] : dt_options_string(o, "model");
    DT_MUST(folder ? DT_OK : DT_ERROR(DT_ERR_ARG, "sample FOLDER [--prompt=...]: which model?"));
    DT_MUST(dt_world_create(&(dt_world_options){.backend = DT_BACKEND_SELF}, &world));
    DT_MUST(generate(world, o, folder));
    dt_world_destroy(&world);
    dt_options_destroy(&o);
    return EXIT_SUCCESS;
}
