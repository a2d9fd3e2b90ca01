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

/* file.c: all of the bytes, or an error that names the file. */
DT_NODISCARD dt_status dti_file_read(const dti_file *file, int64_t offset, void *to, int64_t bytes);

/* A file that appears under its name only when it is complete. */
typedef struct dti_new_file dti_new_file;
DT_NODISCARD dt_status dti_new_file_open(const char *path, dti_new_file **file_out);
DT_NODISCARD dt_status dti_new_file_write(dti_new_file *file, const void *data, size_t bytes);
DT_NODISCARD dt_status dti_new_file_commit(dti_new_file **file); /* frees it, also on failure */
void dti_new_file_discard(dti_new_file **file);                  /* accepts NULL inside */

/* write.c: the header of a file with these tensors (data not looked at). */
DT_NODISCARD dt_status dti_header_write(dti_new_file *file, int n, const dt_safetensors_item *items,
                                        const char *const *metadata);
