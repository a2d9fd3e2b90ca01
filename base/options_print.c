/* base/options_print.c - options for people (--help) and for the next run (--print-config). */
#include "base/options_internal.h"

#include "base/dt_json.h"

#include <stdlib.h>
#include <string.h>

enum { HELP_COLUMN = 40, KEY_BYTES = 96 };

static size_t group_length(const char *key)
{
    return strchr(key, '.') ? strcspn(key, ".") : 0;
}

static bool same_group(const char *a, const char *b)
{
    return group_length(a) == group_length(b) && strncmp(a, b, group_length(a)) == 0;
}

static void print_option(const dt_option *option, FILE *out)
{
    static const char *const value[] = {
        [DT_OPTION_INT] = "=INTEGER",       [DT_OPTION_FLOAT] = "=NUMBER",
        [DT_OPTION_BOOL] = "[=true|false]", [DT_OPTION_STRING] = "=TEXT",
        [DT_OPTION_SIZE] = "=BYTES",        [DT_OPTION_COMMAND] = ""};
    const char *legal = option->legal ? option->legal : value[option->type];
    const int used = fprintf(out, "  --%s%s%s", option->key, option->legal ? "=" : "", legal);
    (void)fprintf(out, "%*s%s", used < HELP_COLUMN ? HELP_COLUMN - used : 2, "", option->help);
    if (option->fallback && *option->fallback) {
        (void)fputs(" [", out);
        for (const char *c = option->fallback; *c; c++)
            (void)fputs(*c == '\n' ? "\\n" : (const char[]){*c, '\0'}, out);
        (void)fputc(']', out);
    }
    (void)fputc('\n', out);
}

static void print_general(const dt_option *table, int count, FILE *out)
{
    (void)fputs("\ngeneral\n", out);
    for (int i = 0; i < count; i++) {
        if (!group_length(table[i].key))
            print_option(&table[i], out);
    }
}

void dt_options_print_help(const dt_option *table, int count, const char *usage, FILE *out)
{
    (void)fprintf(out, "usage: %s\n%s[defaults in brackets]\n", usage,
                  strstr(usage, "CONFIG.json") ? "Dots in a key are nested objects in CONFIG.json. "
                                               : "");
    int last = -1; /* key without a group: there all of them stand together */
    for (int i = 0; i < count; i++)
        last = group_length(table[i].key) ? last : i;
    const char *before = NULL;
    for (int i = 0; i < count; i++) {
        const char *key = table[i].key;
        if (group_length(key)) {
            if (!before || !same_group(key, before))
                (void)fprintf(out, "\n%.*s\n", (int)group_length(key), key);
            print_option(&table[i], out);
            before = key;
        }
        if (i == last)
            print_general(table, count, out);
    }
}

/* The value in JSON's own type. */
static json_t *json_of(const dt_option *option, const char *text)
{
    dti_number number;
    (void)dti_option_convert(option->type, text, &number);
    if (option->type == DT_OPTION_STRING)
        return json_string(text);
    if (option->type == DT_OPTION_FLOAT)
        return json_real(number.real);
    if (option->type == DT_OPTION_BOOL)
        return json_boolean(number.integer);
    return json_integer(number.integer);
}

/* Put a value at its dotted key, making the objects on the way. Takes `value`. */
static bool put(json_t *object, const char *key, json_t *value)
{
    for (const char *dot = strchr(key, '.'); dot; dot = strchr(key, '.')) {
        char name[KEY_BYTES];
        (void)snprintf(name, sizeof name, "%.*s", (int)(dot - key), key);
        json_t *inner = json_object_get(object, name);
        if (!inner) {
            inner = json_object();
            (void)json_object_set_new(object, name, inner);
        }
        object = inner;
        key = dot + 1;
    }
    return json_object_set_new(object, key, value) == 0;
}

static bool fits_15_digits(const char *text)
{
    char rounded[40];
    const double x = strtod(text, NULL);
    (void)snprintf(rounded, sizeof rounded, "%.15g", x);
    return strtod(rounded, NULL) == x;
}

dt_status dt_options_print_config(const dt_options *options, FILE *out)
{
    json_t *root = json_object();
    bool ok = root != NULL;
    size_t digits = 15; /* 0.1 and not 0.10000000000000001, unless a value needs all 17 */
    for (int i = 0; ok && i < options->count; i++) {
        const dt_option *option = &options->table[i];
        if (!options->value[i] || option->type == DT_OPTION_COMMAND)
            continue;
        ok = put(root, option->key, json_of(option, options->value[i]));
        if (option->type == DT_OPTION_FLOAT && !fits_15_digits(options->value[i]))
            digits = 17;
    }
    ok = ok && json_dumpf(root, out, JSON_INDENT(2) | JSON_REAL_PRECISION(digits)) == 0 &&
         fputc('\n', out) != EOF;
    json_decref(root);
    DT_REQUIRE(ok, DT_ERR_IO, "the configuration could not be printed");
    return DT_OK;
}
