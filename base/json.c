/* base/json.c - see base/dt_json.h. */
#include "base/dt_json.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>

/* The outcome of a parse: an object, or a message with file and line. Takes `root`. */
static dt_status finish(json_t *root, const char *where, const json_error_t *error,
                        json_t **object_out)
{
    DT_REQUIRE(root, DT_ERR_FORMAT, "%s:%d: %s", where, error->line, error->text);
    if (!json_is_object(root)) {
        json_decref(root);
        return DT_ERROR(DT_ERR_FORMAT, "%s: must be a JSON object, is an array", where);
    }
    *object_out = root;
    return DT_OK;
}

dt_status dt_json_load(const char *path, json_t **object_out)
{
    struct stat info;
    DT_REQUIRE(stat(path, &info) == 0, DT_ERR_IO, "%s: %s", path, strerror(errno));
    DT_REQUIRE(!S_ISDIR(info.st_mode), DT_ERR_IO, "%s: is a folder, must be a JSON file", path);
    json_error_t error;
    json_t *root = json_load_file(path, JSON_REJECT_DUPLICATES, &error);
    DT_REQUIRE(root || json_error_code(&error) != json_error_cannot_open_file, DT_ERR_IO, "%s",
               error.text);
    return finish(root, path, &error, object_out);
}

dt_status dt_json_parse(const char *text, size_t size_bytes, const char *where, json_t **object_out)
{
    json_error_t error;
    return finish(json_loadb(text, size_bytes, JSON_REJECT_DUPLICATES, &error), where, &error,
                  object_out);
}

/* The field, or NULL where it is missing or null. */
static const json_t *field(const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);
    return json_is_null(value) ? NULL : value;
}

static dt_status missing(const char *where, const char *key, const char *type)
{
    return DT_ERROR(DT_ERR_FORMAT, "%s: field '%s' (%s) is missing", where, key, type);
}

static dt_status mistyped(const char *where, const char *key, const char *type, const json_t *value)
{
    static const char *const name[] = {[JSON_OBJECT] = "an object",
                                       [JSON_ARRAY] = "an array",
                                       [JSON_STRING] = "a string",
                                       [JSON_INTEGER] = "an integer",
                                       [JSON_REAL] = "a number with a fraction",
                                       [JSON_TRUE] = "true",
                                       [JSON_FALSE] = "false",
                                       [JSON_NULL] = "null"};
    return DT_ERROR(DT_ERR_FORMAT, "%s: field '%s' must be %s, is %s", where, key, type,
                    name[json_typeof(value)]);
}

dt_status dt_json_int(const json_t *object, const char *where, const char *key,
                      const int64_t *fallback, int64_t *value_out)
{
    const json_t *value = field(object, key);
    if (!value && !fallback)
        return missing(where, key, "an integer");
    if (value && !json_is_integer(value))
        return mistyped(where, key, "an integer", value);
    *value_out = value ? json_integer_value(value) : *fallback;
    return DT_OK;
}

dt_status dt_json_double(const json_t *object, const char *where, const char *key,
                         const double *fallback, double *value_out)
{
    const json_t *value = field(object, key);
    if (!value && !fallback)
        return missing(where, key, "a number");
    if (value && !json_is_number(value))
        return mistyped(where, key, "a number", value);
    *value_out = value ? json_number_value(value) : *fallback;
    return DT_OK;
}

dt_status dt_json_bool(const json_t *object, const char *where, const char *key,
                       const bool *fallback, bool *value_out)
{
    const json_t *value = field(object, key);
    if (!value && !fallback)
        return missing(where, key, "true or false");
    if (value && !json_is_boolean(value))
        return mistyped(where, key, "true or false", value);
    *value_out = value ? json_is_true(value) : *fallback;
    return DT_OK;
}

dt_status dt_json_string(const json_t *object, const char *where, const char *key,
                         const char *fallback, const char **value_out)
{
    const json_t *value = field(object, key);
    if (!value && !fallback)
        return missing(where, key, "a string");
    if (value && !json_is_string(value))
        return mistyped(where, key, "a string", value);
    *value_out = value ? json_string_value(value) : fallback;
    return DT_OK;
}
