/* checkpoint/write.c - writing a safetensors file. Read first: checkpoint/file.c. */
#include "base/dt_json.h"
#include "checkpoint/checkpoint_internal.h"

#include <stdlib.h>
#include <string.h>

static json_t *pack_shape(dt_shape shape)
{
    json_t *dims = json_array();
    for (int d = 0; d < shape.ndim; d++)
        (void)json_array_append_new(dims, json_integer(shape.dim[d]));
    return dims;
}

static dt_status pack(json_t *header, int n, const dt_safetensors_item *items,
                      const char *const *metadata)
{
    static const char *const file_name[] = {
#define X(name, bytes, is_float, text) [DT_##name] = text,
        DT_DTYPE_TABLE(X)
#undef X
    };
    json_t *pairs = metadata ? json_object() : NULL;
    for (int i = 0; metadata && metadata[i]; i += 2)
        (void)json_object_set_new(pairs, metadata[i], json_string(metadata[i + 1]));
    if (pairs)
        DT_REQUIRE(json_object_set_new(header, "__metadata__", pairs) == 0, DT_ERR_NOMEM, "header");
    int64_t at = 0;
    for (int i = 0; i < n; i++) {
        const dt_safetensors_item *item = &items[i];
        DT_REQUIRE(strcmp(item->name, "__metadata__") != 0 && !json_object_get(header, item->name),
                   DT_ERR_ARG, "tensor '%s' is given twice, or has no legal name", item->name);
        const int64_t end = at + dt_shape_count(item->shape) * (int64_t)dt_dtype_size(item->dtype);
        json_t *entry =
            json_pack("{s:s, s:o, s:[I, I]}", "dtype", file_name[item->dtype], "shape",
                      pack_shape(item->shape), "data_offsets", (json_int_t)at, (json_int_t)end);
        DT_REQUIRE(entry && json_object_set_new(header, item->name, entry) == 0, DT_ERR_ARG,
                   "tensor '%s': the name is not UTF-8, or memory is out", item->name);
        at = end;
    }
    return DT_OK;
}

/* Length, text, and spaces up to a multiple of 8, so that the data is aligned. */
static dt_status put_header(dti_new_file *file, const char *text)
{
    const uint64_t used = strlen(text), length = (used + 7) / 8 * 8;
    uint8_t raw[8];
    for (int i = 0; i < 8; i++)
        raw[i] = (uint8_t)(length >> 8 * i);
    DT_TRY(dti_new_file_write(file, raw, sizeof raw));
    DT_TRY(dti_new_file_write(file, text, used));
    DT_TRY(dti_new_file_write(file, "        ", length - used));
    return DT_OK;
}

dt_status dti_header_write(dti_new_file *file, int n, const dt_safetensors_item *items,
                           const char *const *metadata)
{
    json_t *header = json_object();
    char *text = NULL;
    dt_status st = DT_OK;
    DT_TRY_TO(done, st, pack(header, n, items, metadata));
    text = json_dumps(header, JSON_COMPACT);
    DT_TRY_TO(done, st, text ? put_header(file, text) : DT_ERROR(DT_ERR_NOMEM, "header"));
done:
    free(text);
    json_decref(header);
    return st;
}

dt_status dt_safetensors_write(const char *path, int n, const dt_safetensors_item *items,
                               const char *const *metadata)
{
    dti_new_file *file = NULL;
    dt_status st = DT_OK;
    DT_TRY(dti_new_file_open(path, &file));
    DT_TRY_TO(fail, st, dti_header_write(file, n, items, metadata));
    for (int i = 0; i < n; i++) {
        const size_t bytes = (size_t)dt_shape_count(items[i].shape) * dt_dtype_size(items[i].dtype);
        DT_TRY_TO(fail, st, dti_new_file_write(file, items[i].data, bytes));
    }
    DT_TRY(dti_new_file_commit(&file));
    return DT_OK;
fail:
    dti_new_file_discard(&file);
    return st;
}
