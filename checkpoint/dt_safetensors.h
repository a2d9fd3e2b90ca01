/* checkpoint/dt_safetensors.h - Hugging Face's safetensors, read and written.
 *
 * A path is one file, an index of several (NAME.index.json), or a folder with model.safetensors or
 * with model.safetensors.index.json. Each rank reads only the byte ranges of its shards.
 *
 * File: 8-byte little-endian header length, JSON header {name: {dtype, shape, data_offsets}},
 * data. */
#pragma once

#include "nn/dt_module.h"

typedef struct dt_safetensors dt_safetensors;

typedef struct dt_safetensors_entry {
    const char *name;
    const char *dtype_name; /* as in the file: "F32" */
    dt_dtype dtype; /* DT_NDTYPES: a type that the library does not have ("BOOL", "F8_E4M3") */
    dt_shape shape;
    int64_t offset, bytes; /* in its file, from the file's first byte */
    int file;
} dt_safetensors_entry;

/* Errors: DT_ERR_IO; DT_ERR_FORMAT, naming file and tensor, for a header past the file, broken
 * JSON, unknown dtype, offsets that overlap, leave gaps, do not fit the shape or the file; a name
 * that stands twice, in one header or in several files; an index that names a tensor which is not
 * in its file. */
DT_NODISCARD dt_status dt_safetensors_open(const char *path, dt_safetensors **st_out);
void dt_safetensors_close(dt_safetensors **st); /* accepts NULL inside */
int dt_safetensors_count(const dt_safetensors *st);
/* Entry i in name order; by name, or NULL. */
const dt_safetensors_entry *dt_safetensors_get(const dt_safetensors *st, int i);
const dt_safetensors_entry *dt_safetensors_find(const dt_safetensors *st, const char *name);
/* dt_safetensors_read - the block [offset, offset + the array's shape) of a tensor of the given
 * shape (the entry's, or another over the same bytes), cast to the array's dtype: F32, BF16, F16
 * and F64 to any float, others only to their own. Reads the bytes of the block only.
 * Errors: DT_ERR_SHAPE, DT_ERR_UNSUPPORTED, DT_ERR_IO; they name the tensor. */
DT_NODISCARD dt_status dt_safetensors_read(dt_safetensors *st, const dt_safetensors_entry *entry,
                                           dt_shape shape, const int64_t *offset, dt_array *out);
/* Bytes of tensors read since open (headers not counted). */
int64_t dt_safetensors_bytes_read(const dt_safetensors *st);

/* dt_module_load - fill this rank's part of every materialized parameter below m from a file or
 * folder, or from an open one. Names as they are, or with one prefix ("transformer.", "model.")
 * missing on either side. Extra tensors are allowed.
 * Errors: DT_ERR_FORMAT names a missing tensor, or one of another shape (both shapes). */
DT_NODISCARD dt_status dt_module_load(dt_module *m, const char *path);
DT_NODISCARD dt_status dt_module_load_from(dt_module *m, dt_safetensors *st);

/* ---- writing ---- */

typedef struct dt_safetensors_item {
    const char *name;
    dt_dtype dtype;
    dt_shape shape;
    const void *data; /* host, row-major */
} dt_safetensors_item;

/* dt_safetensors_write - one file, tensors in the order given; rank-local. path.tmp is written,
 * synced and renamed, so that `path` is the old file or the whole new one.
 *   in   metadata   key, value, key, value ..., NULL; or NULL
 * Errors: DT_ERR_IO (then path.tmp is gone), DT_ERR_ARG for a name used twice. */
DT_NODISCARD dt_status dt_safetensors_write(const char *path, int n,
                                            const dt_safetensors_item *items,
                                            const char *const *metadata);
/* The same without having all of it in memory: the data of `items` is not looked at, the bytes of
 * all tensors follow in their order, in any pieces. Close makes the file appear (and discard gives
 * it up) and frees the writer, also on failure.
 * Errors: of close, DT_ERR_STATE when bytes are missing; of put, when there are too many. */
typedef struct dt_safetensors_writer dt_safetensors_writer;
DT_NODISCARD dt_status dt_safetensors_writer_open(const char *path, int n,
                                                  const dt_safetensors_item *items,
                                                  const char *const *metadata,
                                                  dt_safetensors_writer **writer_out);
DT_NODISCARD dt_status dt_safetensors_writer_put(dt_safetensors_writer *writer, const void *data,
                                                 size_t bytes);
DT_NODISCARD dt_status dt_safetensors_writer_close(dt_safetensors_writer **writer);
void dt_safetensors_writer_discard(dt_safetensors_writer **writer); /* accepts NULL inside */

/* dt_module_save - a folder that Hugging Face and dt_model_create read: model.safetensors (or
 * several files of 5 GB and their index; every parameter below m in its file shape, F32) and, if
 * config_path is not NULL, a copy of it as config.json. Makes the folder, with its
 * parents. Pipeline stages each give their own. All ranks write (dt_checkpoint_save says how).
 * Collective: the world.   Blocks: yes.
 * Errors: on all ranks alike. DT_ERR_IO; DT_ERR_UNSUPPORTED when ranks of one mesh hold different
 * parameters. */
DT_NODISCARD dt_status dt_module_save(dt_module *m, dt_world *world, const char *folder,
                                      const char *config_path);
