/* base/dt_json.h - reading JSON: files, and fields with a type, with messages that say what is
 * wrong and where. Everything else is plain jansson, which this header includes. Read next:
 * base/dt_options.h. */
#pragma once

#include "base/dt_types.h"

#include <jansson.h>

/* dt_json_load - the JSON object in a file; json_decref it. A repeated key is an error.
 * Errors: DT_ERR_IO (no such file, not a file); DT_ERR_FORMAT names file and line. */
DT_NODISCARD dt_status dt_json_load(const char *path, json_t **object_out);

/* dt_json_parse - the same from size_bytes of text; `where` names it in messages. */
DT_NODISCARD dt_status dt_json_parse(const char *text, size_t size_bytes, const char *where,
                                     json_t **object_out);

/* One field of an object. `where` (usually the file's path) goes into messages. A missing field, or
 * one that is null, gives *fallback; without a fallback (NULL) it is an error. A double takes
 * integers too. The string belongs to the object, and its fallback is the text itself.
 * Errors: DT_ERR_FORMAT: missing, or of another type. */
DT_NODISCARD dt_status dt_json_int(const json_t *object, const char *where, const char *key,
                                   const int64_t *fallback, int64_t *value_out);
DT_NODISCARD dt_status dt_json_double(const json_t *object, const char *where, const char *key,
                                      const double *fallback, double *value_out);
DT_NODISCARD dt_status dt_json_bool(const json_t *object, const char *where, const char *key,
                                    const bool *fallback, bool *value_out);
DT_NODISCARD dt_status dt_json_string(const json_t *object, const char *where, const char *key,
                                      const char *fallback, const char **value_out);
