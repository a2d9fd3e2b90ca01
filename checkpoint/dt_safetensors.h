/* checkpoint/dt_safetensors.h - reads Hugging Face safetensors: one file, or a folder with model.safetensors or with
 * model.safetensors.index.json and several files. Each rank reads only the byte ranges of its shards.
 *
 * File: 8-byte little-endian header length, JSON header {name: {dtype, shape, data_offsets}}, data. */
#pragma once

#include "nn/dt_module.h"

typedef struct dt_safetensors dt_safetensors;

typedef struct dt_safetensors_entry {
    const char *name;
    dt_dtype dtype;
    dt_shape shape;
    int64_t offset, bytes; /* in its file, from the file's first byte */
    int file;
} dt_safetensors_entry;

/* Errors: DT_ERR_IO; DT_ERR_FORMAT, naming file and tensor, for a header past the file, broken JSON, unknown dtype, offsets
 * that overlap, leave gaps, do not fit the shape or the file; a name that stands twice, in one header or in several files. */
DT_NODISCARD dt_status dt_safetensors_open(const char *path, dt_safetensors **st_out);
void dt_safetensors_close(dt_safetensors **st);
int dt_safetensors_count(const dt_safetensors *st);
const dt_safetensors_entry *dt_safetensors_get(const dt_safetensors *st, int i);
const dt_safetensors_entry *dt_safetensors_find(const dt_safetensors *st, const char *name); /* or NULL */
/* Read the block [offset, offset + extent) of a tensor of the given shape (the entry's, or another over the same bytes),
 * cast to the array's dtype. F32, BF16, F16, F64. */
DT_NODISCARD dt_status dt_safetensors_read(dt_safetensors *st, const dt_safetensors_entry *entry, dt_shape shape,
                                           const int64_t *offset, dt_array *out);
/* dt_module_load - fill every materialized parameter below m from a file or folder. Names as they are, or with one prefix
 * ("transformer.", "model.") missing on either side.
 * Errors: DT_ERR_FORMAT names a missing tensor, or one of another shape (both shapes). Extra tensors are allowed. */
DT_NODISCARD dt_status dt_module_load(dt_module *m, const char *path);
