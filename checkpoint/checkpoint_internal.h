/* checkpoint/checkpoint_internal.h - files and headers, for the sources of this folder. */
#pragma once

#include "checkpoint/dt_safetensors.h"

typedef struct dti_file {
    char *path;
    int fd;
    int64_t bytes;
} dti_file;

struct dt_safetensors {
    dti_file *file;
    int64_t nfiles, file_capacity;
    dt_safetensors_entry *entry; /* in name order, once open */
    int64_t count, capacity;
    int64_t bytes_read;
};

/* header.c: parse and check the header of file[index], which is open; adds its entries. Names are
 * the caller's to free. */
DT_NODISCARD dt_status dti_header_read(dt_safetensors *st, int index);
/* Bytes of an element of a type named in a file, and the library's type (DT_NDTYPES: none). Gives
 * the name as a constant, or NULL where it is unknown. */
const char *dti_dtype_find(const char *name, int64_t *bytes_out, dt_dtype *dtype_out);

/* ---- runs.c: a block of a tensor in the order of the whole ---- */

typedef struct dti_block {
    dt_shape whole, part;
    int64_t offset[DT_MAX_DIMS]; /* of the block's first element */
} dti_block;

typedef struct dti_run {
    int64_t whole, block, count; /* first element in the whole and in the block; neighbours */
} dti_run;

typedef struct dti_runs {
    const dti_block *block;
    int dim;         /* of which a run takes a part; inner dims are whole */
    int64_t length;  /* of a run */
    int64_t at, end; /* in the block */
} dti_runs;

/* Elements of the block that come before `element` of the whole. */
int64_t dti_block_below(const dti_block *b, int64_t element);
/* The block's elements within [lo, hi) of the whole, in order, by runs. */
dti_runs dti_runs_of(const dti_block *b, int64_t lo, int64_t hi);
bool dti_runs_next(dti_runs *r, dti_run *run_out);

/* file.c: all of the bytes, or an error that names the file. */
DT_NODISCARD dt_status dti_file_read(const dti_file *file, int64_t offset, void *to, int64_t bytes);

/* A file that appears under its name only when it is complete. */
typedef struct dti_new_file dti_new_file;
DT_NODISCARD dt_status dti_new_file_open(const char *path, dti_new_file **file_out);
DT_NODISCARD dt_status dti_new_file_write(dti_new_file *file, const void *data, size_t bytes);
DT_NODISCARD dt_status dti_new_file_commit(dti_new_file **file); /* frees it, also on failure */
void dti_new_file_discard(dti_new_file **file);                  /* accepts NULL inside */

/* write.c: the header of a file with these tensors (data not looked at), its length included;
 * free() it. */
DT_NODISCARD dt_status dti_header_make(int n, const dt_safetensors_item *items,
                                       const char *const *metadata, char **header_out,
                                       size_t *bytes_out);
