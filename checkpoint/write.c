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
dt_status dti_header_make(int n, const dt_safetensors_item *items, const char *const *metadata,
                          char **header_out, size_t *bytes_out)
{
    enum { LENGTH_BYTES = 8 };
    json_t *header = json_object();
    char *all = NULL;
    dt_status st = DT_OK;
    DT_TRY_TO(done, st, pack(header, n, items, metadata));
    const size_t used = json_dumpb(header, NULL, 0, JSON_COMPACT), length = (used + 7) / 8 * 8;
    all = malloc(LENGTH_BYTES + length);
    DT_TRY_TO(done, st, used > 0 && all ? DT_OK : DT_ERROR(DT_ERR_NOMEM, "header"));
    for (int i = 0; i < LENGTH_BYTES; i++)
        all[i] = (char)(uint8_t)(length >> 8 * i);
    memset(all + LENGTH_BYTES, ' ', length);
    DT_TRY_TO(done, st,
              json_dumpb(header, all + LENGTH_BYTES, used, JSON_COMPACT) == used
                  ? DT_OK
                  : DT_ERROR(DT_ERR_NOMEM, "header"));
    *header_out = all;
    *bytes_out = LENGTH_BYTES + length;
    all = NULL;
done:
    free(all);
    json_decref(header);
    return st;
}

struct dt_safetensors_writer {
    dti_new_file *file;
    char *path;
    size_t left; /* bytes */
};

static int64_t item_bytes(const dt_safetensors_item *item)
{
    return dt_shape_count(item->shape) * (int64_t)dt_dtype_size(item->dtype);
}

dt_status dt_safetensors_writer_open(const char *path, int n, const dt_safetensors_item *items,
                                     const char *const *metadata,
                                     dt_safetensors_writer **writer_out)
{
    char *header = NULL;
    size_t bytes = 0;
    dt_status st = DT_OK;
    dt_safetensors_writer *w = calloc(1, sizeof *w);
    DT_REQUIRE(w, DT_ERR_NOMEM, "%s", path);
    w->path = strdup(path);
    DT_TRY_TO(fail, st, w->path ? DT_OK : DT_ERROR(DT_ERR_NOMEM, "%s", path));
    DT_TRY_TO(fail, st, dti_header_make(n, items, metadata, &header, &bytes));
    DT_TRY_TO(fail, st, dti_new_file_open(path, &w->file));
    DT_TRY_TO(fail, st, dti_new_file_write(w->file, header, bytes));
    for (int i = 0; i < n; i++)
        w->left += (size_t)item_bytes(&items[i]);
    free(header);
    *writer_out = w;
    return DT_OK;
fail:
    free(header);
    dt_safetensors_writer_discard(&w);
    return st;
}

dt_status dt_safetensors_writer_put(dt_safetensors_writer *w, const void *data, size_t bytes)
{
    DT_REQUIRE(bytes <= w->left, DT_ERR_STATE, "%s: %zu bytes, but its tensors have %zu more",
               w->path, bytes, w->left);
    w->left -= bytes;
    return dti_new_file_write(w->file, data, bytes);
}

dt_status dt_safetensors_writer_close(dt_safetensors_writer **writer)
{
    dt_safetensors_writer *w = *writer;
    const dt_status st =
        w->left > 0
            ? DT_ERROR(DT_ERR_STATE, "%s: %zu bytes of its tensors are missing", w->path, w->left)
            : dti_new_file_commit(&w->file);
    dt_safetensors_writer_discard(writer);
    return st;
}

void dt_safetensors_writer_discard(dt_safetensors_writer **writer)
{
    if (!*writer)
        return;
    dti_new_file_discard(&(*writer)->file);
    free((*writer)->path);
    free(*writer);
    *writer = NULL;
}

dt_status dt_safetensors_write(const char *path, int n, const dt_safetensors_item *items,
                               const char *const *metadata)
{
    dt_safetensors_writer *w = NULL;
    dt_status st = DT_OK;
    DT_TRY(dt_safetensors_writer_open(path, n, items, metadata, &w));
    for (int i = 0; i < n; i++)
        DT_TRY_TO(fail, st,
                  dt_safetensors_writer_put(w, items[i].data, (size_t)item_bytes(&items[i])));
    return dt_safetensors_writer_close(&w);
fail:
    dt_safetensors_writer_discard(&w);
    return st;
}
