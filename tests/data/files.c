/* tests/data/files.c - see tests/data/files.h. */
#include "tests/data/files.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char folder[32];

const char *files_folder(void)
{
    if (!folder[0]) {
        (void)strcpy(folder, "/tmp/dt_data_XXXXXX");
        ck_assert_ptr_nonnull(mkdtemp(folder));
    }
    return folder;
}

void files_remove(void)
{
    DIR *d = folder[0] ? opendir(folder) : NULL;
    for (struct dirent *e; d && (e = readdir(d));)
        if (e->d_name[0] != '.')
            (void)unlinkat(dirfd(d), e->d_name, 0);
    if (d)
        (void)closedir(d);
    (void)rmdir(folder);
    folder[0] = 0;
}

const char *files_path(const char *name)
{
    static char path[16][96];
    static int next;
    char *p = path[next++ % 16];
    (void)snprintf(p, sizeof path[0], "%s/%s", files_folder(), name);
    return p;
}

void files_write(const char *name, const void *bytes, size_t size_bytes)
{
    FILE *f = fopen(files_path(name), "wb");
    ck_assert_ptr_nonnull(f);
    ck_assert_uint_eq(fwrite(bytes, 1, size_bytes, f), size_bytes);
    ck_assert_int_eq(fclose(f), 0);
}

dt_dataset *files_opened(const char *path, const dt_dataset_options *options)
{
    dt_dataset *ds = NULL;
    ck_ok(dt_dataset_open(path, options, &ds));
    return ds;
}

void files_open_fails(const char *path, const dt_dataset_options *options, dt_status want,
                      const char *message)
{
    dt_dataset *ds = NULL;
    ck_ok(test_expect(dt_dataset_open(path, options, &ds), want, message, path));
    ck_assert_ptr_null(ds);
}

static unsigned char *put(unsigned char *at, const void *bytes, size_t n)
{
    memcpy(at, bytes, n);
    return at + n;
}

void files_pair(const char *name, int32_t first, int ndocuments, const int32_t *length)
{
    static unsigned char idx[4096];
    static uint16_t bin[4096];
    char path[64];
    int64_t n = ndocuments, entries = n + 1, version = 1, total = 0, pointer = 0;
    unsigned char *p = put(idx, "MMIDIDX\0", 9);
    p = put(p, &version, 8);
    *p++ = 8;
    p = put(p, &n, 8);
    p = put(p, &entries, 8);
    p = put(p, length, 4 * (size_t)n);
    for (int64_t i = 0; i < n; i++, pointer += 2 * length[i - 1])
        p = put(p, &pointer, 8);
    for (int64_t i = 0; i <= n; i++)
        p = put(p, &i, 8);
    for (int64_t i = 0; i < n; i++)
        for (int32_t k = 0; k < length[i]; k++, total++)
            bin[total] = (uint16_t)(first + total);
    (void)snprintf(path, sizeof path, "%s.idx", name);
    files_write(path, idx, (size_t)(p - idx));
    (void)snprintf(path, sizeof path, "%s.bin", name);
    files_write(path, bin, (size_t)(2 * total));
}
