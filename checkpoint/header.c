/* checkpoint/header.c - the header of a safetensors file, trusted in nothing. Read next:
 * checkpoint/safetensors.c.
 *
 *     8 bytes: length L, little-endian | L bytes of JSON | data
 *
 * Every byte of the data belongs to exactly one tensor.
 * Source: huggingface/safetensors, "Format" in its README. */
#include "base/dt_json.h"
#include "checkpoint/checkpoint_internal.h"

#include <stdlib.h>
#include <string.h>

enum { LENGTH_BYTES = 8, MAX_HEADER_BYTES = 100000000 }; /* the limit of the reference reader */

/* Types of safetensors; DT_NDTYPES where the library has no such type. */
static const struct {
    const char *name;
    int bytes;
    dt_dtype dtype;
} file_type[] = {
#define X(name, bytes, is_float, file_name) {file_name, bytes, DT_##name},
    DT_DTYPE_TABLE(X)
#undef X
        {"BOOL", 1, DT_NDTYPES},
    {"I8", 1, DT_NDTYPES},
    {"I16", 2, DT_NDTYPES},
    {"U16", 2, DT_NDTYPES},
    {"U32", 4, DT_NDTYPES},
    {"U64", 8, DT_NDTYPES},
    {"F8_E4M3", 1, DT_NDTYPES},
    {"F8_E5M2", 1, DT_NDTYPES},
};

const char *dti_dtype_find(const char *name, int64_t *bytes_out, dt_dtype *dtype_out)
{
    for (int i = 0; i < DT_COUNT(file_type); i++) {
        if (strcmp(name, file_type[i].name) == 0) {
            *bytes_out = file_type[i].bytes;
            *dtype_out = file_type[i].dtype;
            return file_type[i].name;
        }
    }
    return NULL;
}

/* The tensor being parsed, for messages. */
typedef struct where {
    const char *path, *name;
    int64_t data_at, data_bytes; /* of the file */
} where;

static dt_status parse_shape(const where *w, const json_t *dims, dt_shape *shape_out)
{
    DT_REQUIRE(json_is_array(dims), DT_ERR_FORMAT, "%s: tensor '%s': shape must be an array",
               w->path, w->name);
    const size_t ndim = json_array_size(dims);
    DT_REQUIRE(ndim <= DT_MAX_DIMS, DT_ERR_FORMAT, "%s: tensor '%s': %zu dims, at most %d", w->path,
               w->name, ndim, DT_MAX_DIMS);
    dt_shape shape = {.ndim = (int)ndim};
    for (size_t d = 0; d < ndim; d++) {
        const json_t *dim = json_array_get(dims, d);
        DT_REQUIRE(json_is_integer(dim) && json_integer_value(dim) >= 0, DT_ERR_FORMAT,
                   "%s: tensor '%s': dim %zu of its shape is no count", w->path, w->name, d);
        shape.dim[d] = json_integer_value(dim);
    }
    *shape_out = shape;
    return DT_OK;
}

static dt_status parse_offsets(const where *w, const json_t *pair, dt_safetensors_entry *e)
{
    const json_t *first = json_array_get(pair, 0), *last = json_array_get(pair, 1);
    DT_REQUIRE(json_array_size(pair) == 2 && json_is_integer(first) && json_is_integer(last),
               DT_ERR_FORMAT, "%s: tensor '%s': data_offsets must be two integers", w->path,
               w->name);
    const int64_t lo = json_integer_value(first), hi = json_integer_value(last);
    DT_REQUIRE(0 <= lo && lo <= hi, DT_ERR_FORMAT, "%s: tensor '%s': data_offsets [%lld, %lld]",
               w->path, w->name, (long long)lo, (long long)hi);
    DT_REQUIRE(hi <= w->data_bytes, DT_ERR_FORMAT,
               "%s: tensor '%s': data_offsets [%lld, %lld], but the file has %lld bytes of data; "
               "is it cut short?",
               w->path, w->name, (long long)lo, (long long)hi, (long long)w->data_bytes);
    e->offset = w->data_at + lo;
    e->bytes = hi - lo;
    return DT_OK;
}

/* Everything but the name, which is copied last. */
static dt_status parse_entry(const where *w, const json_t *value, dt_safetensors_entry *entry_out)
{
    dt_safetensors_entry e = {0};
    char text[DT_SHAPE_TEXT];
    DT_REQUIRE(json_is_object(value), DT_ERR_FORMAT, "%s: tensor '%s' must be an object", w->path,
               w->name);
    const char *dtype = json_string_value(json_object_get(value, "dtype"));
    DT_REQUIRE(dtype, DT_ERR_FORMAT, "%s: tensor '%s': dtype must be a string", w->path, w->name);
    int64_t want = 0;
    e.dtype_name = dti_dtype_find(dtype, &want, &e.dtype);
    DT_REQUIRE(e.dtype_name, DT_ERR_FORMAT, "%s: tensor '%s': unknown dtype '%s'", w->path, w->name,
               dtype);
    DT_TRY(parse_shape(w, json_object_get(value, "shape"), &e.shape));
    DT_TRY(parse_offsets(w, json_object_get(value, "data_offsets"), &e));
    bool overflow = false;
    for (int d = 0; d < e.shape.ndim; d++)
        overflow |= __builtin_mul_overflow(want, e.shape.dim[d], &want);
    DT_REQUIRE(!overflow && want == e.bytes, DT_ERR_FORMAT,
               "%s: tensor '%s': data_offsets give it %lld bytes, which do not fit %s %s", w->path,
               w->name, (long long)e.bytes, e.dtype_name,
               dt_shape_print(e.shape, text, sizeof text));
    e.name = strdup(w->name);
    DT_REQUIRE(e.name, DT_ERR_NOMEM, "%s: header", w->path);
    *entry_out = e;
    return DT_OK;
}

static dt_status check_metadata(const char *path, const json_t *metadata)
{
    const char *key;
    json_t *value;
    DT_REQUIRE(json_is_object(metadata), DT_ERR_FORMAT, "%s: __metadata__ must be an object", path);
    json_object_foreach((json_t *)(uintptr_t)metadata, key, value)
    {
        DT_REQUIRE(json_is_string(value), DT_ERR_FORMAT, "%s: __metadata__: '%s' must be a string",
                   path, key);
    }
    return DT_OK;
}

static int by_offset(const void *a, const void *b)
{
    const dt_safetensors_entry *x = a, *y = b;
    if (x->offset != y->offset)
        return x->offset < y->offset ? -1 : 1;
    return (x->bytes > y->bytes) - (x->bytes < y->bytes); /* empty ones first */
}

/* The tensors of a file tile its data: no gaps, no overlaps, nothing left over. */
static dt_status check_tiling(const dti_file *file, int64_t data_at, dt_safetensors_entry *entry,
                              int64_t n)
{
    if (n > 0)
        qsort(entry, (size_t)n, sizeof *entry, by_offset);
    int64_t at = data_at;
    for (int64_t i = 0; i < n; i++) {
        DT_REQUIRE(entry[i].offset >= at, DT_ERR_FORMAT, "%s: tensor '%s' overlaps '%s'",
                   file->path, entry[i].name, entry[i - 1].name);
        DT_REQUIRE(entry[i].offset == at, DT_ERR_FORMAT,
                   "%s: %lld bytes of data before tensor '%s' belong to no tensor", file->path,
                   (long long)(entry[i].offset - at), entry[i].name);
        at += entry[i].bytes;
    }
    DT_REQUIRE(at == file->bytes, DT_ERR_FORMAT,
               "%s: the last %lld bytes belong to no tensor (the last is '%s')", file->path,
               (long long)(file->bytes - at), n > 0 ? entry[n - 1].name : "none");
    return DT_OK;
}

static dt_status parse_tensors(dt_safetensors *st, int index, const json_t *header, int64_t data_at)
{
    const dti_file *file = &st->file[index];
    const int64_t first = st->count;
    const char *name;
    json_t *value;
    DT_TRY(dt_grow((void **)&st->entry, &st->capacity, first + 1, sizeof *st->entry));
    json_object_foreach((json_t *)(uintptr_t)header, name, value)
    {
        if (strcmp(name, "__metadata__") == 0) {
            DT_TRY(check_metadata(file->path, value));
            continue;
        }
        const where w = {file->path, name, data_at, file->bytes - data_at};
        dt_safetensors_entry e;
        DT_TRY(dt_grow((void **)&st->entry, &st->capacity, st->count + 1, sizeof *st->entry));
        DT_TRY(parse_entry(&w, value, &e));
        e.file = index;
        st->entry[st->count++] = e;
    }
    DT_TRY(check_tiling(file, data_at, st->entry + first, st->count - first));
    return DT_OK;
}

dt_status dti_header_read(dt_safetensors *st, int index)
{
    const dti_file *file = &st->file[index];
    uint8_t raw[LENGTH_BYTES];
    DT_REQUIRE(file->bytes >= LENGTH_BYTES, DT_ERR_FORMAT,
               "%s: %lld bytes are too few for a safetensors file", file->path,
               (long long)file->bytes);
    DT_TRY(dti_file_read(file, 0, raw, LENGTH_BYTES));
    uint64_t length = 0;
    for (int i = LENGTH_BYTES - 1; i >= 0; i--)
        length = length << 8 | raw[i];
    const int64_t room = file->bytes - LENGTH_BYTES;
    DT_REQUIRE(length <= (uint64_t)room && length <= MAX_HEADER_BYTES, DT_ERR_FORMAT,
               "%s: header of %llu bytes, but the file has %lld more (limit %d); no safetensors?",
               file->path, (unsigned long long)length, (long long)room, MAX_HEADER_BYTES);
    char *text = malloc(length + 1);
    DT_REQUIRE(text, DT_ERR_NOMEM, "%s: header of %llu bytes", file->path,
               (unsigned long long)length);
    json_t *header = NULL;
    dt_status st_read = DT_OK;
    DT_TRY_TO(done, st_read, dti_file_read(file, LENGTH_BYTES, text, (int64_t)length));
    DT_TRY_TO(done, st_read, dt_json_parse(text, length, file->path, &header));
    DT_TRY_TO(done, st_read, parse_tensors(st, index, header, LENGTH_BYTES + (int64_t)length));
done:
    json_decref(header);
    free(text);
    return st_read;
}
