/* tests/fuzz/fuzz.h - what the fuzz targets share. Each is a program of libFuzzer that feeds a
 * reader any bytes: it must give a value or an error, and a value must make sense. Built by clang
 * with -Dfuzz=true (./quickstart test --full runs them for a few seconds); for longer:
 *
 *     BUILD/tests/fuzz/fuzz_index -max_total_time=600 */
#pragma once

#include "base/dt_types.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size_bytes);

/* A file in memory with these bytes; the same one every time for the same slot, 0 or 1. */
const char *fuzz_file(int slot, const uint8_t *data, size_t size_bytes);
/* Stops with the line where something does not make sense. */
#define FUZZ_THAT(cond) fuzz_that((cond), __FILE__, __LINE__, #cond)
void fuzz_that(bool holds, const char *file, int line, const char *what);
