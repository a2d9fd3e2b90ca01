/* checkpoint/module.c - parameters of a module from and to Hugging Face's files. */
#include "checkpoint/checkpoint_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- loading ---- */

/* Released GPT-2 files lack "transformer."; some files of bare bodies lack "model.". */
static const dt_safetensors_entry *find(const dt_safetensors *st, const char *name)
{
    static const char *const prefix[] = {"transformer.", "model."};
    const dt_safetensors_entry *e = dt_safetensors_find(st, name);
    for (int i = 0; !e && i < DT_COUNT(prefix); i++) {
        const size_t length = strlen(prefix[i]);
        char *longer = NULL;
        if (strncmp(name, prefix[i], length) == 0)
            e = dt_safetensors_find(st, name + length);
        else if (asprintf(&longer, "%s%s", prefix[i], name) >= 0)
            e = dt_safetensors_find(st, longer);
        free(longer);
    }
    return e;
}

dt_status dt_module_load_from(dt_module *m, dt_safetensors *st)
{
    int n = 0;
    dt_param *const *p = dt_module_params(m, &n);
    for (int i = 0; i < n; i++) {
        if (!p[i]->tensor)
            continue;
        char a[DT_SHAPE_TEXT], b[DT_SHAPE_TEXT];
        const dt_safetensors_entry *e = find(st, p[i]->name);
        DT_REQUIRE(e, DT_ERR_FORMAT, "%s%s: no tensor '%s'", st->nfiles ? st->file[0].path : "",
                   st->nfiles > 1 ? " and its fellows" : "", p[i]->name);
        DT_REQUIRE(dt_shape_equal(e->shape, p[i]->file_shape), DT_ERR_FORMAT,
                   "%s: tensor '%s' is %s, the model needs %s", st->file[e->file].path, e->name,
                   dt_shape_print(e->shape, a, sizeof a),
                   dt_shape_print(p[i]->file_shape, b, sizeof b));
        int64_t at[DT_MAX_DIMS];
        (void)dt_mesh_local(dt_tensor_layout(p[i]->tensor), at);
        dt_array *local = dt_tensor_local(p[i]->tensor);
        DT_TRY(dt_storage_open(local->storage));
        dt_status read = dt_safetensors_read(st, e, p[i]->shape, at, local);
        if (read == DT_OK)
            read = dt_storage_put(local->storage);
        dt_storage_close(local->storage);
        if (read != DT_OK)
            return dt_error_push(read, __FILE__, __LINE__, p[i]->name);
    }
    return DT_OK;
}

dt_status dt_module_load(dt_module *m, const char *path)
{
    dt_safetensors *st = NULL;
    DT_TRY(dt_safetensors_open(path, &st));
    const dt_status result = dt_module_load_from(m, st);
    dt_safetensors_close(&st);
    if (result != DT_OK)
        return dt_error_push(result, __FILE__, __LINE__, __func__);
    return DT_OK;
}

/* ---- saving ---- */

/* Rank 0 writes what it holds, so all must hold parameters of the same names. */
static dt_status check_same(dt_world *world, int n, dt_param *const *p)
{
    uint64_t hash = 1469598103934665603u; /* FNV-1a */
    for (int i = 0; i < n; i++)
        for (const char *c = p[i]->name; c == p[i]->name || c[-1]; c++)
            hash = (hash ^ (uint8_t)*c) * 1099511628211u;
    int64_t range[2] = {(int64_t)(hash >> 1), -(int64_t)(hash >> 1)};
    DT_TRY(dt_all_reduce_i64_sync(dt_world_comm(world), range, 2, DT_REDUCE_MAX));
    DT_REQUIRE(range[0] == -range[1], DT_ERR_UNSUPPORTED,
               "ranks hold different parameters (pipeline stages), which one writer cannot save");
    return DT_OK;
}

static dt_status copy_file(const char *from, const char *to)
{
    dti_file source = {.path = (char *)(uintptr_t)from, .fd = open(from, O_RDONLY | O_CLOEXEC)};
    DT_REQUIRE(source.fd >= 0, DT_ERR_IO, "%s: %s", from, strerror(errno));
    dti_new_file *file = NULL;
    char piece[4096];
    ssize_t got = 0;
    dt_status st = DT_OK;
    DT_TRY_TO(done, st, dti_new_file_open(to, &file));
    while ((got = read(source.fd, piece, sizeof piece)) > 0)
        DT_TRY_TO(done, st, dti_new_file_write(file, piece, (size_t)got));
    DT_TRY_TO(done, st,
              got < 0 ? DT_ERROR(DT_ERR_IO, "%s: %s", from, strerror(errno))
                      : dti_new_file_commit(&file));
done:
    dti_new_file_discard(&file);
    (void)close(source.fd);
    return st;
}

/* On the writing rank: the folder, its config.json, and the header of the weights. */
static dt_status begin(const char *folder, const char *config_path, int n, dt_param *const *p,
                       dti_new_file **file_out)
{
    static const char *const metadata[] = {"format", "pt", NULL}; /* what transformers asks for */
    DT_REQUIRE(mkdir(folder, 0777) == 0 || errno == EEXIST, DT_ERR_IO, "%s: %s", folder,
               strerror(errno));
    char *config = NULL, *weights = NULL;
    dti_new_file *file = NULL;
    dt_status st = DT_OK;
    dt_safetensors_item *items = calloc((size_t)n + 1, sizeof *items);
    if (!items || asprintf(&config, "%s/config.json", folder) < 0 ||
        asprintf(&weights, "%s/model.safetensors", folder) < 0)
        DT_TRY_TO(done, st, DT_ERROR(DT_ERR_NOMEM, "%s", folder));
    if (config_path)
        DT_TRY_TO(done, st, copy_file(config_path, config));
    for (int i = 0; i < n; i++)
        items[i] = (dt_safetensors_item){p[i]->name, DT_F32, p[i]->file_shape, NULL};
    DT_TRY_TO(done, st, dti_new_file_open(weights, &file));
    DT_TRY_TO(done, st, dti_header_write(file, n, items, metadata));
    *file_out = file;
    file = NULL;
done:
    dti_new_file_discard(&file);
    free(items);
    free(config);
    free(weights);
    return st;
}

/* All ranks gather; the one with a file writes. A full disk must not keep it from gathering. */
static dt_status put_all(int n, dt_param *const *p, dti_new_file *file, dt_status *write_out)
{
    for (int i = 0; i < n; i++) {
        const size_t bytes = (size_t)dt_shape_count(p[i]->shape) * sizeof(float);
        float *whole = malloc(bytes + 1);
        DT_REQUIRE(whole, DT_ERR_NOMEM, "%zu bytes of %s", bytes, p[i]->name);
        const dt_status st = dt_tensor_read_f32_sync(p[i]->tensor, whole);
        if (st == DT_OK && file && *write_out == DT_OK)
            *write_out = dti_new_file_write(file, whole, bytes);
        free(whole);
        if (st != DT_OK)
            return DT_ERROR(st, "gathering %s: %s", p[i]->name, dt_error_trace());
    }
    return DT_OK;
}

dt_status dt_module_save(dt_module *m, dt_world *world, const char *folder, const char *config_path)
{
    int n = 0;
    dt_param *const *p = dt_module_params(m, &n);
    for (int i = 0; i < n; i++)
        DT_REQUIRE(p[i]->tensor, DT_ERR_STATE, "%s is not materialized", p[i]->name);
    DT_TRY(check_same(world, n, p));
    dti_new_file *file = NULL;
    dt_status st = DT_OK, written = DT_OK;
    if (dt_world_rank(world) == 0)
        written = begin(folder, config_path, n, p, &file);
    DT_TRY(dt_world_agree_sync(world, written));
    DT_TRY_TO(done, st, put_all(n, p, file, &written));
    if (file && written == DT_OK)
        written = dti_new_file_commit(&file);
    DT_TRY_TO(done, st, dt_world_agree_sync(world, written));
done:
    dti_new_file_discard(&file);
    return st;
}
