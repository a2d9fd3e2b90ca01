/* data/map.c - files mapped into memory. */
#include "data/data_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

dt_status dti_map_open(const char *path, dti_map *map_out)
{
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    DT_REQUIRE(fd >= 0, DT_ERR_IO, "%s: %s", path, strerror(errno));
    struct stat info;
    dt_status st = DT_OK;
    void *bytes = NULL;
    if (fstat(fd, &info) != 0)
        st = DT_ERROR(DT_ERR_IO, "%s: %s", path, strerror(errno));
    else if (!S_ISREG(info.st_mode))
        st = DT_ERROR(DT_ERR_IO, "%s: must be a regular file", path);
    else if (info.st_size == 0)
        st = DT_ERROR(DT_ERR_FORMAT, "%s: the file is empty", path);
    else
        bytes = mmap(NULL, (size_t)info.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
    if (bytes == MAP_FAILED)
        st = DT_ERROR(DT_ERR_IO, "%s: %s", path, strerror(errno));
    (void)close(fd);
    if (st == DT_OK)
        *map_out = (dti_map){bytes, (size_t)info.st_size, info.st_dev, info.st_ino};
    return st;
}

dt_status dti_map_check(const dti_map *m, const char *path)
{
    struct stat info;
    if (stat(path, &info) != 0 || info.st_dev != m->device || info.st_ino != m->inode)
        return DT_OK; /* another file has its name now; ours is still there */
    DT_REQUIRE((size_t)info.st_size >= m->size_bytes, DT_ERR_IO,
               "%s: became shorter while it was read: %lld bytes, was %zu", path,
               (long long)info.st_size, m->size_bytes);
    return DT_OK;
}

void dti_map_close(dti_map *m)
{
    if (m->bytes)
        (void)munmap((void *)m->bytes, m->size_bytes);
    *m = (dti_map){0};
}
