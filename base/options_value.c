/* base/options_value.c - options: what a text is worth as a value of its type, and the getters. */
#include "base/options_internal.h"

#include <assert.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static bool convert_int(const char *text, const char **end_out, int64_t *value_out)
{
    char *end;
    errno = 0;
    const long long value = strtoll(text, &end, 10);
    *end_out = end;
    *value_out = value;
    return end != text && errno == 0;
}

/* "64", "64B", "64K", "64KiB", "64KB". */
static bool convert_size(const char *text, int64_t *value_out)
{
    static const char prefix[] = "KMGT";
    const char *unit;
    int64_t value;
    if (!convert_int(text, &unit, &value) || value < 0)
        return false;
    const char *at = *unit ? strchr(prefix, *unit) : NULL;
    const int power = at ? (int)(at - prefix) + 1 : 0;
    unit += at ? 1 : 0;
    const bool decimal = at && strcmp(unit, "B") == 0;
    const bool legal = *unit == '\0' || strcmp(unit, "B") == 0 || (at && strcmp(unit, "iB") == 0);
    for (int i = 0; i < power; i++)
        if (__builtin_mul_overflow(value, decimal ? 1000 : 1024, &value))
            return false;
    *value_out = value;
    return legal;
}

static bool convert_bool(const char *text, int64_t *value_out)
{
    *value_out = strcmp(text, "true") == 0 || strcmp(text, "1") == 0;
    return *value_out || strcmp(text, "false") == 0 || strcmp(text, "0") == 0;
}

bool dti_option_convert(dt_option_type type, const char *text, dti_number *number_out)
{
    *number_out = (dti_number){0};
    const char *end = text;
    switch (type) {
    case DT_OPTION_INT: return convert_int(text, &end, &number_out->integer) && !*end;
    case DT_OPTION_SIZE: return convert_size(text, &number_out->integer);
    case DT_OPTION_BOOL:
    case DT_OPTION_COMMAND: return convert_bool(text, &number_out->integer);
    case DT_OPTION_FLOAT:
        number_out->real = strtod(text, (char **)&end);
        return end != text && !*end && isfinite(number_out->real);
    case DT_OPTION_STRING: break;
    }
    return true;
}

int dti_option_find(const dt_options *o, const char *key)
{
    for (int i = 0; i < o->count; i++)
        if (strcmp(o->table[i].key, key) == 0)
            return i;
    return -1;
}

static int find_known(const dt_options *o, const char *key)
{
    const int i = dti_option_find(o, key);
    assert(i >= 0 && "the program asks for a key that is not in its table");
    return i;
}

static dti_number number_of(const dt_options *o, const char *key, dt_option_type type)
{
    const int i = find_known(o, key);
    dti_number number;
    assert(o->table[i].type == type && o->value[i]);
    (void)type;
    (void)dti_option_convert(o->table[i].type, o->value[i], &number);
    return number;
}

int64_t dt_options_int(const dt_options *options, const char *key)
{
    return number_of(options, key, DT_OPTION_INT).integer;
}

double dt_options_float(const dt_options *options, const char *key)
{
    return number_of(options, key, DT_OPTION_FLOAT).real;
}

bool dt_options_bool(const dt_options *options, const char *key)
{
    if (options->table[find_known(options, key)].type == DT_OPTION_COMMAND)
        return dt_options_is_set(options, key);
    return number_of(options, key, DT_OPTION_BOOL).integer != 0;
}

int64_t dt_options_size(const dt_options *options, const char *key)
{
    return number_of(options, key, DT_OPTION_SIZE).integer;
}

const char *dt_options_string(const dt_options *options, const char *key)
{
    const int i = find_known(options, key);
    assert(options->table[i].type == DT_OPTION_STRING);
    return options->value[i];
}

bool dt_options_is_set(const dt_options *options, const char *key)
{
    return options->source[find_known(options, key)] != DTI_DEFAULT;
}

bool dt_options_has(const dt_options *options, const char *key)
{
    return options->value[find_known(options, key)] != NULL;
}
