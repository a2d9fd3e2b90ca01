/* base/options.c - reading options from the command line and the file. Read next:
 * base/options_value.c (texts as values, the getters) and base/options_print.c. */
#include "base/options_internal.h"

#include "base/dt_json.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { KEY_BYTES = 96 };

/* ---- checking and storing a value ---- */

/* The entry of a "a|b|c" list that equals text in any case, as a copy; NULL: none. */
static char *legal_copy(const char *legal, const char *text)
{
    for (const char *word = legal; word; word = strchr(word, '|')) {
        word += *word == '|';
        const size_t length = strcspn(word, "|");
        if (length == strlen(text) && strncasecmp(word, text, length) == 0)
            return strndup(word, length);
    }
    return NULL;
}

static dt_status check_number(const dt_option *option, const char *text)
{
    static const char *const legal[] = {[DT_OPTION_INT] = "an integer",
                                        [DT_OPTION_FLOAT] = "a number",
                                        [DT_OPTION_BOOL] = "true or false",
                                        [DT_OPTION_STRING] = "a text",
                                        [DT_OPTION_SIZE] =
                                            "a number of bytes such as 4096, 64K, 64M or 64MB",
                                        [DT_OPTION_COMMAND] = "true or false"};
    dti_number number;
    DT_REQUIRE(dti_option_convert(option->type, text, &number), DT_ERR_ARG,
               "%s: '%s' is not legal, must be %s", option->key, text, legal[option->type]);
    const double x = option->type == DT_OPTION_FLOAT ? number.real : (double)number.integer;
    if (option->min < option->max && (x < option->min || x > option->max)) {
        DT_REQUIRE(isfinite(option->max), DT_ERR_ARG, "%s: %s is too small, must be at least %g",
                   option->key, text, option->min);
        return DT_ERROR(DT_ERR_ARG, "%s: %s is out of range, must be from %g to %g", option->key,
                        text, option->min, option->max);
    }
    return DT_OK;
}

/* Check a value, and keep it unless a better source has given one. */
static dt_status store(dt_options *o, int i, const char *text, dti_source source)
{
    const dt_option *option = &o->table[i];
    DT_TRY(check_number(option, text));
    char *copy = option->legal ? legal_copy(option->legal, text) : strdup(text);
    DT_REQUIRE(copy || !option->legal, DT_ERR_ARG, "%s: '%s' is not legal, must be one of %s",
               option->key, text, option->legal);
    DT_REQUIRE(copy, DT_ERR_NOMEM, "the value of %s", option->key);
    char *unused = copy;
    if (source >= o->source[i]) {
        unused = o->value[i];
        o->value[i] = copy;
        o->source[i] = source;
    }
    free(unused);
    return DT_OK;
}

/* ---- the message about an unknown key ---- */

int dt_text_distance(const char *a, const char *b)
{
    const int n = (int)strnlen(a, KEY_BYTES), m = (int)strnlen(b, KEY_BYTES);
    int row[KEY_BYTES + 1];
    for (int j = 0; j <= m; j++)
        row[j] = j;
    for (int i = 1; i <= n; i++) {
        int diagonal = row[0];
        row[0] = i;
        for (int j = 1; j <= m; j++) {
            const int replace = diagonal + (a[i - 1] != b[j - 1]);
            const int skip = (row[j] < row[j - 1] ? row[j] : row[j - 1]) + 1;
            diagonal = row[j];
            row[j] = replace < skip ? replace : skip;
        }
    }
    return row[m];
}

static bool starts_with(const char *text, const char *start)
{
    return strncmp(text, start, strlen(start)) == 0;
}

/* "seq_len" is as near to "train.seq_len" as one wrong letter; a key that goes on where this one
 * ends, as "parallel.dp_shard" does for "parallel.dp", is nearer than any with a wrong letter. */
static dt_status unknown_key(const dt_options *o, const char *key, const char *where)
{
    const char *nearest = "";
    int least = 2 * KEY_BYTES;
    for (int i = 0; i < o->count; i++) {
        const char *candidate = o->table[i].key, *dot = strrchr(candidate, '.');
        const int whole = dt_text_distance(key, candidate);
        const int last = dot ? dt_text_distance(key, dot + 1) + 1 : whole;
        const bool begun = starts_with(candidate, key) || (dot && starts_with(dot + 1, key));
        const int d = begun ? 0 : whole < last ? whole : last;
        if (d < least) {
            least = d;
            nearest = candidate;
        }
    }
    return DT_ERROR(DT_ERR_ARG, "%s: unknown key '%s'; the nearest is '%s'", where, key, nearest);
}

/* ---- the file ---- */

/* NULL if a JSON value may stand for this type, else what may. */
static const char *json_mismatch(dt_option_type type, const json_t *value)
{
    if (type == DT_OPTION_BOOL)
        return json_is_boolean(value) ? NULL : "true or false, without quotes";
    if (type == DT_OPTION_STRING)
        return json_is_string(value) ? NULL : "a text in quotes";
    if (type == DT_OPTION_SIZE && json_is_string(value))
        return NULL;
    return json_is_number(value) ? NULL : "a number, without quotes";
}

/* One value of the file, as the text that the command line would give. */
static dt_status store_json(dt_options *o, int i, const json_t *value, const char *path)
{
    const char *key = o->table[i].key, *wanted = json_mismatch(o->table[i].type, value);
    char *shown = json_dumps(value, JSON_ENCODE_ANY | JSON_REAL_PRECISION(17));
    DT_REQUIRE(shown, DT_ERR_NOMEM, "the value of %s", key);
    dt_status st = DT_OK;
    if (wanted)
        st = DT_ERROR(DT_ERR_ARG, "%s: '%s' is %s, must be %s", path, key, shown, wanted);
    else if (o->in_file[i])
        st = DT_ERROR(DT_ERR_ARG, "%s: '%s' is given twice", path, key);
    else
        st = store(o, i, json_is_string(value) ? json_string_value(value) : shown, DTI_FILE);
    o->in_file[i] = true;
    free(shown);
    return st;
}

static dt_status read_object(dt_options *o, const json_t *object, const char *prefix,
                             const char *path)
{
    const char *name;
    json_t *value;
    json_object_foreach((json_t *)object, name, value)
    {
        char key[2 * KEY_BYTES];
        (void)snprintf(key, sizeof key, "%s%s%s", prefix, *prefix ? "." : "", name);
        if (json_is_object(value) && strlen(key) < KEY_BYTES) {
            DT_TRY(read_object(o, value, key, path));
            continue;
        }
        const int i = dti_option_find(o, key);
        if (i < 0 || o->table[i].type == DT_OPTION_COMMAND)
            return unknown_key(o, key, path);
        if (!json_is_null(value))
            DT_TRY(store_json(o, i, value, path));
    }
    return DT_OK;
}

static dt_status read_file(dt_options *o, const char *path)
{
    json_t *root;
    DT_TRY(dt_json_load(path, &root));
    const bool is_model =
        json_object_get(root, "model_type") && dti_option_find(o, "model_type") < 0;
    const dt_status st =
        is_model ? DT_ERROR(DT_ERR_ARG,
                            "%s: this is a model's config.json, not a configuration of this "
                            "program; pass it as --model.config=%s",
                            path, path)
                 : read_object(o, root, "", path);
    json_decref(root);
    return st;
}

/* ---- the command line ---- */

/* Read the option at argv[*at], and the next one too if that is its value; moves *at past both. */
static dt_status read_argument(dt_options *o, int argc, const char *const *argv, int *at)
{
    const char *key_text = argv[*at] + 2, *value = strchr(key_text, '=');
    const size_t length = strcspn(key_text, "=");
    char key[KEY_BYTES];
    (void)snprintf(key, sizeof key, "%.*s", (int)(length < KEY_BYTES ? length : KEY_BYTES - 1),
                   key_text);
    const int i = dti_option_find(o, key);
    if (i < 0)
        return unknown_key(o, key, "command line");
    const dt_option_type type = o->table[i].type;
    const char *next = *at + 1 < argc ? argv[*at + 1] : NULL;
    dti_number ignored;
    const bool alone =
        type == DT_OPTION_COMMAND ||
        (type == DT_OPTION_BOOL && !(next && dti_option_convert(type, next, &ignored)));
    *at += 1;
    DT_REQUIRE(type != DT_OPTION_COMMAND || !value, DT_ERR_ARG, "--%s takes no value", key);
    if (value) {
        value++;
    } else if (alone) {
        value = "true";
    } else {
        DT_REQUIRE(next && strncmp(next, "--", 2) != 0, DT_ERR_ARG,
                   "--%s needs a value: --%s=VALUE", key, key);
        value = next;
        *at += 1;
    }
    return store(o, i, value, DTI_COMMAND_LINE);
}

static dt_status read_all(dt_options *o, int argc, const char *const *argv)
{
    const char *path = NULL;
    for (int at = 1; at < argc;) {
        if (strncmp(argv[at], "--", 2) == 0) {
            DT_TRY(read_argument(o, argc, argv, &at));
            continue;
        }
        DT_REQUIRE(argv[at][0] != '-', DT_ERR_ARG, "'%s': options start with --", argv[at]);
        DT_REQUIRE(!path, DT_ERR_ARG, "two configuration files, '%s' and '%s'; at most one", path,
                   argv[at]);
        path = argv[at++];
    }
    if (path)
        DT_TRY(read_file(o, path));
    return DT_OK;
}

dt_status dt_options_parse(const dt_option *table, int count, int argc, const char *const *argv,
                           dt_options **options_out)
{
    dt_status st;
    dt_options *o = calloc(1, sizeof *o);
    DT_REQUIRE(o, DT_ERR_NOMEM, "options");
    *o = (dt_options){.table = table, .count = count};
    o->value = calloc((size_t)count, sizeof *o->value);
    o->source = calloc((size_t)count, sizeof *o->source);
    o->in_file = calloc((size_t)count, sizeof *o->in_file);
    if (!o->value || !o->source || !o->in_file) {
        st = DT_ERROR(DT_ERR_NOMEM, "%d options", count);
        goto fail;
    }
    for (int i = 0; i < count; i++)
        if (table[i].fallback)
            DT_TRY_TO(fail, st, store(o, i, table[i].fallback, DTI_DEFAULT));
    DT_TRY_TO(fail, st, read_all(o, argc, argv));
    *options_out = o;
    return DT_OK;
fail:
    dt_options_destroy(&o);
    return st;
}

void dt_options_destroy(dt_options **options)
{
    dt_options *o = *options;
    if (!o)
        return;
    for (int i = 0; o->value && i < o->count; i++)
        free(o->value[i]);
    free(o->value);
    free(o->source);
    free(o->in_file);
    free(o);
    *options = NULL;
}
