/* checkpoint/module.c - parameters of a module from Hugging Face's files. */
#include "checkpoint/checkpoint_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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
