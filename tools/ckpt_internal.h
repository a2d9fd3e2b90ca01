/* tools/ckpt_internal.h - what tools/ckpt.c and tools/ckpt_rewrite.c share. */
#pragma once

#include "checkpoint/dt_checkpoint.h"

/* How tensors are written. */
typedef struct ckpt_form {
    dt_dtype dtype;     /* of floats; DT_NDTYPES: as they are */
    int64_t file_bytes; /* limit of a file of several tensors */
} ckpt_form;

/* The weights of n files or folders into the folder `out`, with the config.json of the first.
 * Errors: DT_ERR_ARG for a name that two have. */
dt_status ckpt_rewrite(dt_heap *heap, int n, char **path, const char *out, const ckpt_form *form);
