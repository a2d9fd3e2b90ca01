/* tests/checkpoint/files.c - see tests/checkpoint/files.h. */
#include "tests/checkpoint/files.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void join(char path[FILES_PATH], const char *folder, const char *name)
{
    ck_assert(snprintf(path, FILES_PATH, "%s/%s", folder, name) < FILES_PATH);
}

void files_begin(char folder[FILES_PATH])
{
    const char *base = getenv("TMPDIR");
    join(folder, base ? base : "/tmp", "dt_files_XXXXXX");
    ck_assert(mkdtemp(folder) != NULL);
}

void files_end(const char *folder)
{
    DIR *d = opendir(folder);
    ck_assert(d != NULL);
    for (struct dirent *e = readdir(d); e; e = readdir(d)) {
        char path[FILES_PATH];
        if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0)
            continue;
        join(path, folder, e->d_name);
        if (unlink(path) != 0)
            files_end(path);
    }
    closedir(d);
    ck_assert(rmdir(folder) == 0);
}

void files_put_raw(const char *folder, const char *name, uint64_t length, const char *header,
                   const void *data, size_t bytes)
{
    char path[FILES_PATH];
    join(path, folder, name);
    FILE *out = fopen(path, "wb");
    ck_assert(out != NULL);
    for (int i = 0; i < 8; i++)
        ck_assert(fputc((int)(length >> 8 * i & 255), out) != EOF);
    ck_assert(fputs(header, out) >= 0);
    ck_assert(fwrite(data, 1, bytes, out) == bytes);
    ck_assert(fclose(out) == 0);
}

void files_put(const char *folder, const char *name, const char *header, const void *data,
               size_t bytes)
{
    files_put_raw(folder, name, strlen(header), header, data, bytes);
}

void *files_get(const char *folder, const char *name, size_t *bytes_out)
{
    char path[FILES_PATH];
    join(path, folder, name);
    FILE *in = fopen(path, "rb");
    ck_assert_msg(in != NULL, "%s", path);
    ck_assert(fseek(in, 0, SEEK_END) == 0);
    const size_t bytes = (size_t)ftell(in);
    rewind(in);
    char *all = malloc(bytes + 1);
    ck_assert(all && fread(all, 1, bytes, in) == bytes);
    all[bytes] = '\0';
    fclose(in);
    *bytes_out = bytes;
    return all;
}

bool files_exists(const char *folder, const char *name)
{
    char path[FILES_PATH];
    join(path, folder, name);
    return access(path, F_OK) == 0;
}
