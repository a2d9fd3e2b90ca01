/* checkpoint/disk.c - see checkpoint/save_internal.h. Every return code is looked at: a full disk
 * may show in write, fsync, close or rename. */
#include "checkpoint/save_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { WRITE_BYTES = 16 << 20 }; /* at most, in one call */

dti_disk dti_disk_of(const dt_world *world)
{
    return (dti_disk){.kill_at = dt_world_fault_number(world, "checkpoint_kill"),
                      .full_at = dt_world_fault_number(world, "checkpoint_full")};
}

/* A call is due; true: the disk is said to be full. */
static bool begin_call(dti_disk *disk)
{
    const long long n = atomic_fetch_add(&disk->calls, 1) + 1;
    if (disk->kill_at > 0 && n >= disk->kill_at)
        (void)raise(SIGKILL);
    return disk->full_at > 0 && n >= disk->full_at;
}

static dt_status write_once(dti_disk *disk, int fd, const char *path, const char *from,
                            int64_t bytes, int64_t offset, int64_t *done)
{
    const bool last_words = disk->kill_at > 0 && atomic_load(&disk->calls) + 1 >= disk->kill_at;
    const bool full = !last_words && begin_call(disk);
    const int64_t most = bytes < WRITE_BYTES ? bytes : WRITE_BYTES;
    const int64_t now = last_words ? (most + 1) / 2 : most;
    errno = ENOSPC;
    const ssize_t put = full ? -1 : pwrite(fd, from, (size_t)now, (off_t)offset);
    if (last_words)
        (void)begin_call(disk);
    if (put < 0 && errno == EINTR)
        return DT_OK;
    DT_REQUIRE(put > 0, DT_ERR_IO, "%s: %s", path, put < 0 ? strerror(errno) : "nothing written");
    *done += put;
    return DT_OK;
}

dt_status dti_disk_write(dti_disk *disk, int fd, const char *path, const void *data, int64_t bytes,
                         int64_t offset)
{
    for (int64_t done = 0; done < bytes;)
        DT_TRY(write_once(disk, fd, path, (const char *)data + done, bytes - done, offset + done,
                          &done));
    return DT_OK;
}

dt_status dti_disk_sync(dti_disk *disk, int fd, const char *path)
{
    (void)begin_call(disk);
    DT_REQUIRE(fsync(fd) == 0, DT_ERR_IO, "%s: fsync: %s", path, strerror(errno));
    return DT_OK;
}

dt_status dti_disk_sync_folder(dti_disk *disk, const char *folder)
{
    const int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DT_REQUIRE(fd >= 0, DT_ERR_IO, "%s: %s", folder, strerror(errno));
    (void)begin_call(disk);
    const bool ok = fsync(fd) == 0 || errno == EINVAL; /* EINVAL: cannot be synced */
    const int why = errno;
    (void)close(fd);
    DT_REQUIRE(ok, DT_ERR_IO, "%s: fsync: %s", folder, strerror(why));
    return DT_OK;
}

dt_status dti_disk_rename(dti_disk *disk, const char *from, const char *to)
{
    (void)begin_call(disk);
    DT_REQUIRE(rename(from, to) == 0, DT_ERR_IO, "%s: cannot be renamed to %s: %s", from, to,
               strerror(errno));
    return DT_OK;
}

/* A folder is there for good when its parent has been synced. */
static dt_status make_folder(dti_disk *disk, const char *path, const char *parent)
{
    if (mkdir(path, 0777) == 0)
        return dti_disk_sync_folder(disk, parent);
    DT_REQUIRE(errno == EEXIST, DT_ERR_IO, "%s: %s", path, strerror(errno));
    return DT_OK;
}

dt_status dti_disk_make_folders(dti_disk *disk, const char *path)
{
    const char *slash = strrchr(path, '/');
    if (!slash || slash == path)
        return make_folder(disk, path, slash ? "/" : ".");
    char *parent = strndup(path, (size_t)(slash - path));
    DT_REQUIRE(parent, DT_ERR_NOMEM, "%s", path);
    dt_status st = DT_OK;
    if (access(parent, F_OK) != 0)
        st = dti_disk_make_folders(disk, parent);
    if (st == DT_OK)
        st = make_folder(disk, path, parent);
    free(parent);
    return st;
}

char *dti_path(const char *folder, const char *name)
{
    char *path = NULL;
    return asprintf(&path, "%s/%s", folder, name) < 0 ? NULL : path;
}

static dt_status put(dti_disk *disk, const char *path, const void *data, size_t bytes)
{
    (void)begin_call(disk);
    const int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    DT_REQUIRE(fd >= 0, DT_ERR_IO, "%s: %s", path, strerror(errno));
    dt_status st = dti_disk_write(disk, fd, path, data, (int64_t)bytes, 0);
    if (st == DT_OK)
        st = dti_disk_sync(disk, fd, path);
    const bool closed = close(fd) == 0;
    DT_TRY(st);
    DT_REQUIRE(closed, DT_ERR_IO, "%s: close: %s", path, strerror(errno));
    return DT_OK;
}

dt_status dti_disk_put(dti_disk *disk, const char *folder, const char *name, const void *data,
                       size_t bytes)
{
    char *path = dti_path(folder, name);
    DT_REQUIRE(path, DT_ERR_NOMEM, "%s", name);
    const dt_status st = put(disk, path, data, bytes);
    free(path);
    if (st != DT_OK)
        return dt_error_push(st, __FILE__, __LINE__, __func__);
    return DT_OK;
}
