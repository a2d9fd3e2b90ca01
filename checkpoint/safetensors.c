/* checkpoint/safetensors.c - opening files and folders, looking up tensors, reading blocks of them.
 * Read first: checkpoint/header.c. Read next: checkpoint/module.c. */
#include "base/dt_json.h"
#include "checkpoint/checkpoint_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { STAGE_BYTES = 1 << 22 }; /* read at once, before the cast */

/* ---- opening ---- */

static dt_status add_file(dt_safetensors *st, const char *path)
{
    struct stat info;
    DT_REQUIRE(stat(path, &info) == 0, DT_ERR_IO, "%s: %s", path, strerror(errno));
    DT_REQUIRE(S_ISREG(info.st_mode), DT_ERR_IO, "%s: is no file", path);
    DT_TRY(dt_grow((void **)&st->file, &st->file_capacity, st->nfiles + 1, sizeof *st->file));
    dti_file file = {.path = strdup(path), .bytes = info.st_size};
    DT_REQUIRE(file.path, DT_ERR_NOMEM, "%s", path);
    file.fd = open(path, O_RDONLY | O_CLOEXEC);
    if (file.fd < 0) {
        free(file.path);
        return DT_ERROR(DT_ERR_IO, "%s: %s", path, strerror(errno));
    }
    st->file[st->nfiles++] = file;
    DT_TRY(dti_header_read(st, (int)st->nfiles - 1));
    return DT_OK;
}

/* The file of that name in `folder`: its index, or -1. */
static int find_file(const dt_safetensors *st, const char *path)
{
    for (int i = 0; i < st->nfiles; i++) {
        if (strcmp(st->file[i].path, path) == 0)
            return i;
    }
    return -1;
}

static char *join(const char *folder, const char *name)
{
    char *path = NULL;
    return asprintf(&path, "%s/%s", folder, name) < 0 ? NULL : path;
}

/* One line of weight_map: open its file, if it is new. */
static dt_status add_weight(dt_safetensors *st, const char *folder, const char *index,
                            const char *tensor, const json_t *value)
{
    const char *name = json_string_value(value);
    DT_REQUIRE(name && name[0] && !strchr(name, '/'), DT_ERR_FORMAT,
               "%s: weight_map: '%s' must name a file of this folder", index, tensor);
    char *path = join(folder, name);
    DT_REQUIRE(path, DT_ERR_NOMEM, "%s", name);
    const dt_status result = find_file(st, path) < 0 ? add_file(st, path) : DT_OK;
    free(path);
    if (result != DT_OK)
        return DT_ERROR(result, "%s: weight_map: '%s': %s", index, tensor, dt_error_trace());
    return DT_OK;
}

static dt_status check_weight(const dt_safetensors *st, const char *index, const char *tensor,
                              const char *file)
{
    const dt_safetensors_entry *e = dt_safetensors_find(st, tensor);
    const char *path = e ? st->file[e->file].path : "";
    const char *slash = strrchr(path, '/');
    DT_REQUIRE(e && strcmp(slash ? slash + 1 : path, file) == 0, DT_ERR_FORMAT,
               "%s: weight_map: '%s' is not in %s", index, tensor, file);
    return DT_OK;
}

static int by_name(const void *a, const void *b)
{
    const dt_safetensors_entry *x = a, *y = b;
    return strcmp(x->name, y->name);
}

/* Put all entries in name order, where duplicates meet. */
static dt_status sort_entries(dt_safetensors *st)
{
    if (st->count > 0)
        qsort(st->entry, (size_t)st->count, sizeof *st->entry, by_name);
    for (int64_t i = 1; i < st->count; i++) {
        const dt_safetensors_entry *a = &st->entry[i - 1], *b = &st->entry[i];
        DT_REQUIRE(strcmp(a->name, b->name) != 0, DT_ERR_FORMAT,
                   "tensor '%s' stands in %s and in %s", a->name, st->file[a->file].path,
                   st->file[b->file].path);
    }
    return DT_OK;
}

static dt_status open_index(dt_safetensors *st, const char *folder, const char *index)
{
    json_t *root = NULL;
    DT_TRY(dt_json_load(index, &root));
    dt_status result = DT_OK;
    json_t *map = json_object_get(root, "weight_map"), *value;
    const char *tensor;
    if (!json_is_object(map)) {
        result = DT_ERROR(DT_ERR_FORMAT, "%s: field 'weight_map' must be an object", index);
        goto done;
    }
    json_object_foreach(map, tensor, value)
    {
        DT_TRY_TO(done, result, add_weight(st, folder, index, tensor, value));
    }
    DT_TRY_TO(done, result, sort_entries(st));
    json_object_foreach(map, tensor, value)
    {
        DT_TRY_TO(done, result, check_weight(st, index, tensor, json_string_value(value)));
    }
done:
    json_decref(root);
    return result;
}

static dt_status open_folder(dt_safetensors *st, const char *folder)
{
    char *one = join(folder, "model.safetensors");
    char *index = join(folder, "model.safetensors.index.json");
    dt_status result = DT_ERR_NOMEM;
    if (!one || !index)
        result = DT_ERROR(DT_ERR_NOMEM, "%s", folder);
    else if (access(one, F_OK) == 0)
        result = add_file(st, one);
    else if (access(index, F_OK) == 0)
        result = open_index(st, folder, index);
    else
        result =
            DT_ERROR(DT_ERR_IO,
                     "%s: has neither model.safetensors nor model.safetensors.index.json", folder);
    free(one);
    free(index);
    return result;
}

/* A file of tensors, or the index of several beside it. */
static dt_status open_file(dt_safetensors *st, const char *path)
{
    static const char end[] = ".index.json";
    const size_t n = strlen(path), k = sizeof end - 1;
    if (n < k || strcmp(path + n - k, end) != 0)
        return add_file(st, path);
    const char *slash = strrchr(path, '/');
    char *folder = slash ? strndup(path, (size_t)(slash - path)) : strdup(".");
    DT_REQUIRE(folder, DT_ERR_NOMEM, "%s", path);
    const dt_status result = open_index(st, folder, path);
    free(folder);
    return result;
}

dt_status dt_safetensors_open(const char *path, dt_safetensors **st_out)
{
    struct stat info;
    DT_REQUIRE(stat(path, &info) == 0, DT_ERR_IO, "%s: %s", path, strerror(errno));
    dt_safetensors *st = calloc(1, sizeof *st);
    DT_REQUIRE(st, DT_ERR_NOMEM, "%s", path);
    dt_status result = DT_OK;
    DT_TRY_TO(fail, result, S_ISDIR(info.st_mode) ? open_folder(st, path) : open_file(st, path));
    DT_TRY_TO(fail, result, sort_entries(st));
    *st_out = st;
    return DT_OK;
fail:
    dt_safetensors_close(&st);
    return result;
}

void dt_safetensors_close(dt_safetensors **st)
{
    if (!*st)
        return;
    for (int64_t i = 0; i < (*st)->count; i++)
        free((char *)(uintptr_t)(*st)->entry[i].name);
    for (int64_t i = 0; i < (*st)->nfiles; i++) {
        (void)close((*st)->file[i].fd);
        free((*st)->file[i].path);
    }
    free((*st)->entry);
    free((*st)->file);
    free(*st);
    *st = NULL;
}

/* ---- looking ---- */

int dt_safetensors_count(const dt_safetensors *st)
{
    return (int)st->count;
}

const dt_safetensors_entry *dt_safetensors_get(const dt_safetensors *st, int i)
{
    return &st->entry[i];
}

const dt_safetensors_entry *dt_safetensors_find(const dt_safetensors *st, const char *name)
{
    const dt_safetensors_entry key = {.name = name};
    return st->count == 0 ? NULL : bsearch(&key, st->entry, (size_t)st->count, sizeof key, by_name);
}

int64_t dt_safetensors_bytes_read(const dt_safetensors *st)
{
    return st->bytes_read;
}

/* ---- reading ---- */

static dt_status check_block(const dt_safetensors *st, const dt_safetensors_entry *e,
                             dt_shape whole, const int64_t *offset, const dt_array *out)
{
    const char *path = st->file[e->file].path;
    char a[DT_SHAPE_TEXT], b[DT_SHAPE_TEXT];
    const dt_shape part = out->shape;
    bool inside = part.ndim == whole.ndim;
    for (int d = 0; inside && d < whole.ndim; d++)
        inside = offset[d] >= 0 && offset[d] + part.dim[d] <= whole.dim[d];
    DT_REQUIRE(inside, DT_ERR_SHAPE, "%s: tensor '%s': a block %s is not inside of %s", path,
               e->name, dt_shape_print(part, a, sizeof a), dt_shape_print(whole, b, sizeof b));
    DT_REQUIRE(dt_shape_count(whole) == dt_shape_count(e->shape), DT_ERR_SHAPE,
               "%s: tensor '%s' is %s, cannot be read as %s", path, e->name,
               dt_shape_print(e->shape, a, sizeof a), dt_shape_print(whole, b, sizeof b));
    const bool castable =
        e->dtype != DT_NDTYPES && dt_dtype_is_float(e->dtype) && dt_dtype_is_float(out->dtype);
    DT_REQUIRE(castable || e->dtype == out->dtype, DT_ERR_UNSUPPORTED,
               "%s: tensor '%s' is %s, cannot be read as %s", path, e->name, e->dtype_name,
               dt_dtype_name(out->dtype));
    return DT_OK;
}

/* n elements that are neighbours in the file, from element `first` of the tensor to `at` of out. */
static dt_status read_run(dt_safetensors *st, const dt_safetensors_entry *e, int64_t first,
                          int64_t n, dt_array *out, int64_t at, void *stage)
{
    const int64_t elem = (int64_t)dt_dtype_size(e->dtype), most = STAGE_BYTES / elem;
    for (int64_t done = 0; done < n; done += most) {
        const int64_t count = n - done < most ? n - done : most;
        DT_TRY(dti_file_read(&st->file[e->file], e->offset + (first + done) * elem, stage,
                             count * elem));
        st->bytes_read += count * elem;
        dt_storage host = {.data = stage, .bytes = (size_t)(count * elem), .refs = 1};
        const dt_array src = {&host, 0, DT_SHAPE(count), e->dtype};
        dt_array dst = {out->storage, out->offset + at + done, DT_SHAPE(count), out->dtype};
        dt_array_cast(&dst, &src);
    }
    return DT_OK;
}

dt_status dt_safetensors_read(dt_safetensors *st, const dt_safetensors_entry *entry, dt_shape shape,
                              const int64_t *offset, dt_array *out)
{
    DT_TRY(check_block(st, entry, shape, offset, out));
    const dt_shape part = out->shape;
    if (dt_array_is_meta(out) || dt_shape_count(part) == 0)
        return DT_OK;
    dti_block block = {.whole = shape, .part = part};
    memcpy(block.offset, offset, (size_t)shape.ndim * sizeof *offset);
    /* To cuda in one transfer. */
    const bool away = dt_heap_device(out->storage->heap).kind == DT_CUDA;
    dt_storage host = {.bytes = dt_array_bytes(out), .refs = 1};
    dt_array room = away ? (dt_array){&host, 0, part, out->dtype} : *out;
    void *stage = malloc(STAGE_BYTES);
    host.data = away ? malloc(host.bytes) : NULL;
    dt_status result =
        stage && (!away || host.data) ? DT_OK : DT_ERROR(DT_ERR_NOMEM, "reading '%s'", entry->name);
    dti_run run;
    dti_runs runs = dti_runs_of(&block, 0, dt_shape_count(shape));
    while (result == DT_OK && dti_runs_next(&runs, &run))
        result = read_run(st, entry, run.whole, run.count, &room, run.block, stage);
    if (result == DT_OK && away)
        result = dt_array_write(out, host.data, dt_array_count(out));
    free(host.data);
    free(stage);
    if (result != DT_OK)
        return DT_ERROR(result, "tensor '%s': %s", entry->name, dt_error_trace());
    return DT_OK;
}
