/* tests/fuzz/fuzz.c - see tests/fuzz/fuzz.h. */
#include "tests/fuzz/fuzz.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

const char *fuzz_file(int slot, const uint8_t *data, size_t size_bytes)
{
    static int fd[2];
    static char path[2][32];
    if (fd[slot] == 0) {
        fd[slot] = memfd_create("fuzz", MFD_CLOEXEC);
        (void)snprintf(path[slot], sizeof path[slot], "/proc/self/fd/%d", fd[slot]);
    }
    fuzz_that(ftruncate(fd[slot], 0) == 0 &&
                  pwrite(fd[slot], data, size_bytes, 0) == (ssize_t)size_bytes,
              __FILE__, __LINE__, "the file is written");
    return path[slot];
}

void fuzz_that(bool holds, const char *file, int line, const char *what)
{
    if (holds)
        return;
    (void)fprintf(stderr, "%s:%d: not so: %s\n", file, line, what);
    abort();
}
