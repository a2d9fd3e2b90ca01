/* checkpoint/file.c - reading byte ranges, and files that are replaced whole or not at all. */
#include "checkpoint/save_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

dt_status dti_file_read(const dti_file *file, int64_t offset, void *to, int64_t bytes)
{
    for (int64_t done = 0; done < bytes;) {
        const ssize_t got =
            pread(file->fd, (char *)to + done, (size_t)(bytes - done), (off_t)(offset + done));
        if (got < 0 && errno == EINTR)
            continue;
        DT_REQUIRE(got >= 0, DT_ERR_IO, "%s: %s", file->path, strerror(errno));
        DT_REQUIRE(got > 0, DT_ERR_IO, "%s: ends at byte %lld, has become shorter while open",
                   file->path, (long long)(offset + done));
        done += got;
    }
    return DT_OK;
}

struct dti_new_file {
    char *path, *temporary;
    int fd; /* -1: closed */
};

dt_status dti_new_file_open(const char *path, dti_new_file **file_out)
{
    dti_new_file *file = calloc(1, sizeof *file);
    DT_REQUIRE(file, DT_ERR_NOMEM, "%s", path);
    file->fd = -1;
    file->path = strdup(path);
    if (!file->path || asprintf(&file->temporary, "%s.tmp", path) < 0) {
        file->temporary = NULL;
        dti_new_file_discard(&file);
        return DT_ERROR(DT_ERR_NOMEM, "%s", path);
    }
    file->fd = open(file->temporary, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (file->fd < 0) {
        const dt_status st = DT_ERROR(DT_ERR_IO, "%s: %s", file->temporary, strerror(errno));
        free(file->temporary); /* not ours: nothing to remove */
        file->temporary = NULL;
        dti_new_file_discard(&file);
        return st;
    }
    *file_out = file;
    return DT_OK;
}

dt_status dti_new_file_write(dti_new_file *file, const void *data, size_t bytes)
{
    for (size_t done = 0; done < bytes;) {
        const ssize_t put = write(file->fd, (const char *)data + done, bytes - done);
        if (put < 0 && errno == EINTR)
            continue;
        DT_REQUIRE(put >= 0, DT_ERR_IO, "%s: %s", file->temporary, strerror(errno));
        done += (size_t)put;
    }
    return DT_OK;
}

/* Make a rename in this file's folder last. */
static dt_status sync_folder(const char *path)
{
    const char *slash = strrchr(path, '/');
    char *folder = slash == path ? strdup("/")
                   : slash       ? strndup(path, (size_t)(slash - path))
                                 : strdup(".");
    DT_REQUIRE(folder, DT_ERR_NOMEM, "%s", path);
    dti_disk disk = {0};
    const dt_status st = dti_disk_sync_folder(&disk, folder);
    free(folder);
    return st;
}

static dt_status commit(dti_new_file *file)
{
    DT_REQUIRE(fsync(file->fd) == 0, DT_ERR_IO, "%s: %s", file->temporary, strerror(errno));
    const int closed = close(file->fd);
    file->fd = -1;
    DT_REQUIRE(closed == 0, DT_ERR_IO, "%s: %s", file->temporary, strerror(errno));
    DT_REQUIRE(rename(file->temporary, file->path) == 0, DT_ERR_IO, "%s: %s", file->path,
               strerror(errno));
    free(file->temporary);
    file->temporary = NULL;
    DT_TRY(sync_folder(file->path));
    return DT_OK;
}

dt_status dti_new_file_commit(dti_new_file **file)
{
    const dt_status st = commit(*file);
    dti_new_file_discard(file);
    return st;
}

void dti_new_file_discard(dti_new_file **file)
{
    if (!*file)
        return;
    if ((*file)->fd >= 0)
        (void)close((*file)->fd);
    if ((*file)->temporary)
        (void)unlink((*file)->temporary);
    free((*file)->temporary);
    free((*file)->path);
    free(*file);
    *file = NULL;
}
