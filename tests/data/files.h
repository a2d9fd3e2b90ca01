/* tests/data/files.h - files for the tests of data/: bytes, and Megatron's pairs built from the
 * byte layout by hand. */
#pragma once

#include "data/dt_data.h"
#include "tests/harness.h"

/* A fresh folder under /tmp; all its files go with it. */
const char *files_folder(void);
void files_remove(void);
/* FOLDER/name, in one of 16 texts in turn. */
const char *files_path(const char *name);
void files_write(const char *name, const void *bytes, size_t size_bytes);

dt_dataset *files_opened(const char *path, const dt_dataset_options *options);
void files_open_fails(const char *path, const dt_dataset_options *options, dt_status want,
                      const char *message);

/* name.idx and name.bin of documents of `length` tokens each; token i of the pair is first + i. */
void files_pair(const char *name, int32_t first, int ndocuments, const int32_t *length);
