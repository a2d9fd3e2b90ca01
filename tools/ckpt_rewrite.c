/* tools/ckpt_rewrite.c - weights into other files: another type, other sizes, one from several. */
#include "base/dt_json.h"
#include "tools/ckpt_internal.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { PIECE_BYTES = 4 << 20 };

/* A tensor to be written, and where it is read. */
typedef struct entry {
    dt_safetensors *st;
    const dt_safetensors_entry *e;
    dt_dtype dtype;
} entry;

typedef struct rewrite {
    const char *out;
    const ckpt_form *form;
    entry *entry;
    int64_t n, capacity;
    json_t *map; /* of the index */
    int64_t total;
} rewrite;

static int64_t bytes_of(const entry *x)
{
    return dt_shape_count(x->e->shape) * (int64_t)dt_dtype_size(x->dtype);
}

static dt_status add_all(rewrite *r, dt_safetensors *st)
{
    for (int i = 0; i < dt_safetensors_count(st); i++) {
        const dt_safetensors_entry *e = dt_safetensors_get(st, i);
        DT_REQUIRE(e->dtype != DT_NDTYPES, DT_ERR_UNSUPPORTED, "'%s' is %s", e->name,
                   e->dtype_name);
        DT_TRY(dt_grow((void **)&r->entry, &r->capacity, r->n + 1, sizeof *r->entry));
        const bool cast = dt_dtype_is_float(e->dtype) && r->form->dtype != DT_NDTYPES;
        r->entry[r->n++] = (entry){st, e, cast ? r->form->dtype : e->dtype};
    }
    return DT_OK;
}

static int by_name(const void *a, const void *b)
{
    const entry *x = a, *y = b;
    return strverscmp(x->e->name, y->e->name);
}

static dt_status copy_tensor(const entry *x, dt_array *piece, dt_safetensors_writer *w)
{
    const int64_t count = dt_shape_count(x->e->shape);
    const int64_t most = PIECE_BYTES / (int64_t)dt_dtype_size(x->dtype);
    piece->dtype = x->dtype;
    for (int64_t at = 0; at < count; at += most) {
        piece->shape = DT_SHAPE(count - at < most ? count - at : most);
        DT_TRY(dt_safetensors_read(x->st, x->e, DT_SHAPE(count), &at, piece));
        DT_TRY(dt_safetensors_writer_put(w, dt_array_data(piece), dt_array_bytes(piece)));
    }
    return DT_OK;
}

static dt_status write_file(rewrite *r, int64_t lo, int64_t hi, const char *name, dt_array *piece)
{
    static const char *const metadata[] = {"format", "pt", NULL};
    dt_safetensors_writer *w = NULL;
    char *path = NULL;
    dt_status st = DT_OK;
    dt_safetensors_item *items = calloc((size_t)(hi - lo) + 1, sizeof *items);
    if (asprintf(&path, "%s/%s", r->out, name) < 0)
        path = NULL;
    DT_TRY_TO(done, st, items && path ? DT_OK : DT_ERROR(DT_ERR_NOMEM, "%s", name));
    for (int64_t i = lo; i < hi; i++)
        items[i - lo] = (dt_safetensors_item){r->entry[i].e->name, r->entry[i].dtype,
                                              r->entry[i].e->shape, NULL};
    DT_TRY_TO(done, st, dt_safetensors_writer_open(path, (int)(hi - lo), items, metadata, &w));
    for (int64_t i = lo; i < hi; i++) {
        DT_TRY_TO(done, st, copy_tensor(&r->entry[i], piece, w));
        r->total += bytes_of(&r->entry[i]);
        (void)json_object_set_new(r->map, r->entry[i].e->name, json_string(name));
    }
    DT_TRY_TO(done, st, dt_safetensors_writer_close(&w));
done:
    dt_safetensors_writer_discard(&w);
    free(items);
    free(path);
    return st;
}

static int64_t end_of_file(const rewrite *r, int64_t lo)
{
    int64_t bytes = 0, hi = lo;
    do
        bytes += bytes_of(&r->entry[hi++]);
    while (hi < r->n && bytes + bytes_of(&r->entry[hi]) <= r->form->file_bytes);
    return hi;
}

static dt_status put_text(const char *out, const char *name, const char *text, size_t bytes)
{
    char *path = NULL;
    DT_REQUIRE(asprintf(&path, "%s/%s", out, name) >= 0, DT_ERR_NOMEM, "%s", name);
    FILE *f = fopen(path, "we");
    const bool wrote = f && fwrite(text, 1, bytes, f) == bytes;
    const bool closed = f && fclose(f) == 0;
    free(path);
    DT_REQUIRE(wrote && closed, DT_ERR_IO, "%s/%s: %s", out, name, strerror(errno));
    return DT_OK;
}

static dt_status write_all(rewrite *r, dt_array *piece)
{
    char name[64];
    int64_t files = 0;
    for (int64_t lo = 0; lo < r->n; lo = end_of_file(r, lo))
        files++;
    for (int64_t lo = 0, i = 1; lo < r->n; lo = end_of_file(r, lo), i++) {
        (void)snprintf(name, sizeof name,
                       files == 1 ? "model.safetensors" : "model-%05lld-of-%05lld.safetensors",
                       (long long)i, (long long)files);
        DT_TRY(write_file(r, lo, end_of_file(r, lo), name, piece));
    }
    if (files == 1)
        return DT_OK;
    json_t *index = json_pack("{s: {s: I}, s: O}", "metadata", "total_size", (json_int_t)r->total,
                              "weight_map", r->map);
    char *text = json_dumps(index, JSON_INDENT(2));
    json_decref(index);
    DT_REQUIRE(text, DT_ERR_NOMEM, "an index");
    const dt_status st = put_text(r->out, "model.safetensors.index.json", text, strlen(text));
    free(text);
    return st;
}

static dt_status copy_config(const char *from, const char *out)
{
    char *path = NULL, *text = NULL;
    DT_REQUIRE(asprintf(&path, "%s/config.json", from) >= 0, DT_ERR_NOMEM, "%s", from);
    FILE *f = fopen(path, "re");
    free(path);
    if (!f)
        return DT_OK; /* a file, or a folder without one */
    size_t size = 0;
    const ssize_t bytes = getdelim(&text, &size, '\0', f);
    const dt_status st = bytes < 0 ? DT_OK : put_text(out, "config.json", text, (size_t)bytes);
    free(text);
    (void)fclose(f);
    return st;
}

dt_status ckpt_rewrite(dt_heap *heap, int n, char **path, const char *out, const ckpt_form *form)
{
    rewrite r = {.out = out, .form = form, .map = json_object()};
    dt_safetensors **st = calloc((size_t)n, sizeof(dt_safetensors *));
    dt_array piece = {0};
    dt_status result = st ? DT_OK : DT_ERROR(DT_ERR_NOMEM, "%d paths", n);
    DT_TRY_TO(done, result, result);
    for (int i = 0; i < n; i++) {
        DT_TRY_TO(done, result, dt_safetensors_open(path[i], &st[i]));
        DT_TRY_TO(done, result, add_all(&r, st[i]));
    }
    qsort(r.entry, (size_t)r.n, sizeof *r.entry, by_name);
    for (int64_t i = 1; i < r.n; i++)
        if (by_name(&r.entry[i - 1], &r.entry[i]) == 0)
            DT_TRY_TO(done, result,
                      DT_ERROR(DT_ERR_ARG, "two of the paths have '%s'", r.entry[i].e->name));
    if (mkdir(out, 0777) != 0)
        DT_TRY_TO(done, result,
                  DT_ERROR(DT_ERR_IO, "%s: %s; give a new folder", out, strerror(errno)));
    DT_TRY_TO(done, result,
              dt_array_create(heap, DT_U8, DT_SHAPE(PIECE_BYTES), DT_TAG_WORKSPACE, &piece));
    DT_TRY_TO(done, result, copy_config(path[0], out));
    DT_TRY_TO(done, result, write_all(&r, &piece));
done:
    dt_array_release(&piece);
    for (int i = 0; st && i < n; i++)
        dt_safetensors_close(&st[i]);
    free(st);
    free(r.entry);
    json_decref(r.map);
    return result;
}
