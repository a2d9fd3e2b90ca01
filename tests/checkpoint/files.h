/* tests/checkpoint/files.h - safetensors files made by hand, in a folder that goes away. */
#pragma once

#include "checkpoint/dt_safetensors.h"
#include "tests/harness.h"

enum { FILES_PATH = 512 };

/* A new folder in the system's place for such; and all of it gone. */
void files_begin(char folder[FILES_PATH]);
void files_end(const char *folder);

/* folder/name = 8 bytes of `length`, the header's text, then data. */
void files_put_raw(const char *folder, const char *name, uint64_t length, const char *header,
                   const void *data, size_t bytes);
/* The same with the length that is right. */
void files_put(const char *folder, const char *name, const char *header, const void *data,
               size_t bytes);
/* The whole of folder/name; free it. */
void *files_get(const char *folder, const char *name, size_t *bytes_out);
bool files_exists(const char *folder, const char *name);
