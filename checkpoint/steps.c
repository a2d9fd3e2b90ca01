/* checkpoint/steps.c - a folder of steps. What carries a step's name is whole:
 *
 *     step-00000020        finished; everything in it was synced before it got this name
 *     step-00000030.tmp    being written, or left by a program that was killed
 *     step-00000010.old    being removed
 *     latest               a link to the newest; replaced by rename, after the step is durable
 *     .lock                locked by the program that has the folder, which is named in it
 *
 * Only world rank 0 comes here. */
#include "checkpoint/save_internal.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

static const char prefix[] = "step-";

const char *dti_step_name(int64_t step, char name[DTI_STEP_NAME])
{
    (void)snprintf(name, DTI_STEP_NAME, "%s%08lld", prefix, (long long)step);
    return name;
}

/* The step of a name, or -1; *rest: what follows the number. */
static int64_t parse(const char *name, const char **rest)
{
    char again[DTI_STEP_NAME], *end = NULL;
    if (strncmp(name, prefix, sizeof prefix - 1) != 0)
        return -1;
    errno = 0;
    const long long step = strtoll(name + sizeof prefix - 1, &end, 10);
    if (errno || step < 0 || strncmp(dti_step_name(step, again), name, (size_t)(end - name)) != 0 ||
        strlen(again) != (size_t)(end - name))
        return -1;
    *rest = end;
    return step;
}

static int by_number(const void *a, const void *b)
{
    const int64_t *x = a, *y = b;
    return (*x > *y) - (*x < *y);
}

dt_status dti_steps_list(const char *folder, int64_t **step_out, int64_t *n_out)
{
    DIR *d = opendir(folder);
    DT_REQUIRE(d, DT_ERR_IO, "%s: %s", folder, strerror(errno));
    int64_t *step = NULL, n = 0, capacity = 0;
    dt_status st = dt_grow((void **)&step, &capacity, 1, sizeof *step);
    for (const struct dirent *e = readdir(d); st == DT_OK && e; e = readdir(d)) {
        const char *rest = "";
        const int64_t number = parse(e->d_name, &rest);
        if (number < 0 || *rest)
            continue;
        st = dt_grow((void **)&step, &capacity, n + 1, sizeof *step);
        if (st == DT_OK)
            step[n++] = number;
    }
    (void)closedir(d);
    if (st != DT_OK) {
        free(step);
        return dt_error_push(st, __FILE__, __LINE__, __func__);
    }
    qsort(step, (size_t)n, sizeof *step, by_number);
    *step_out = step;
    *n_out = n;
    return DT_OK;
}

/* ---- one program at a time ---- */

static dt_status lock(int fd, const char *path)
{
    char who[256] = "";
    char host[200] = "";
    const int failed = flock(fd, LOCK_EX | LOCK_NB) == 0 ? 0 : errno;
    if (failed == EWOULDBLOCK && pread(fd, who, sizeof who - 1, 0) >= 0)
        return DT_ERROR(DT_ERR_STATE,
                        "%s: another program has this folder: %.*s; give this run one "
                        "of its own",
                        path, (int)strcspn(who, "\n"), who);
    DT_REQUIRE(!failed || failed == ENOLCK || failed == ENOSYS || failed == EOPNOTSUPP, DT_ERR_IO,
               "%s: flock: %s", path, strerror(failed));
    (void)gethostname(host, sizeof host - 1);
    (void)!ftruncate(fd, 0); /* only for that message: a full disk does not matter */
    (void)dprintf(fd, "process %ld on %s\n", (long)getpid(), host);
    return DT_OK;
}

dt_status dti_steps_lock(const char *folder, int *lock_out)
{
    char *path = dti_path(folder, ".lock");
    DT_REQUIRE(path, DT_ERR_NOMEM, "%s", folder);
    const int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    dt_status st = DT_OK;
    if (fd >= 0)
        st = lock(fd, path);
    else if (errno != EACCES && errno != EROFS && errno != EPERM)
        st = DT_ERROR(DT_ERR_IO, "%s: %s", path, strerror(errno));
    free(path);
    if (st != DT_OK && fd >= 0)
        (void)close(fd);
    if (st != DT_OK)
        return dt_error_push(st, __FILE__, __LINE__, __func__);
    *lock_out = fd;
    return DT_OK;
}

/* ---- removing; what cannot be removed stays ---- */

void dti_remove_tree(const char *path)
{
    if (unlink(path) == 0) /* no folder */
        return;
    DIR *d = opendir(path);
    for (const struct dirent *e = d ? readdir(d) : NULL; e; e = readdir(d)) {
        if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0)
            continue;
        char *inside = dti_path(path, e->d_name);
        if (inside)
            dti_remove_tree(inside);
        free(inside);
    }
    if (d)
        (void)closedir(d);
    (void)rmdir(path);
}

void dti_steps_clean(const char *folder)
{
    DIR *d = opendir(folder);
    for (const struct dirent *e = d ? readdir(d) : NULL; e; e = readdir(d)) {
        const char *rest = "";
        if (parse(e->d_name, &rest) < 0 || (strcmp(rest, ".tmp") != 0 && strcmp(rest, ".old") != 0))
            continue;
        char *path = dti_path(folder, e->d_name);
        if (path)
            dti_remove_tree(path);
        free(path);
    }
    if (d)
        (void)closedir(d);
}

/* First it loses its name: a step that is half removed is none. */
static void remove_step(const char *folder, int64_t step)
{
    char name[DTI_STEP_NAME];
    char *path = dti_path(folder, dti_step_name(step, name)), *old = NULL;
    if (path && asprintf(&old, "%s.old", path) >= 0) {
        if (rename(path, old) == 0)
            dti_remove_tree(old);
        free(old);
    }
    free(path);
}

void dti_steps_purge(const char *folder, int64_t newest, int keep, const int64_t *bad, int64_t nbad)
{
    int64_t *step = NULL, n = 0, good = 0;
    if (keep == 0 || dti_steps_list(folder, &step, &n) != DT_OK)
        return;
    while (n > 0 && step[n - 1] > newest)
        n--;
    for (int64_t i = n - 1; i >= 0; i--) {
        bool is_bad = false;
        for (int64_t k = 0; k < nbad; k++)
            is_bad |= bad[k] == step[i];
        if (good == keep)
            remove_step(folder, step[i]);
        else if (!is_bad)
            good++;
    }
    free(step);
}

/* ---- a new step ---- */

static dt_status publish(dti_disk *disk, const char *folder, const char *name, const char *from,
                         const char *to, const char *old)
{
    /* a step of this number, from a run before: the old one gives way, whole or not at all where
     * the file system can swap names */
    const bool again = access(to, F_OK) == 0;
    if (again && renameat2(AT_FDCWD, from, AT_FDCWD, to, RENAME_EXCHANGE) == 0)
        DT_TRY(dti_disk_rename(disk, from, old));
    else {
        if (again)
            DT_TRY(dti_disk_rename(disk, to, old));
        DT_TRY(dti_disk_rename(disk, from, to));
    }
    DT_TRY(dti_disk_sync_folder(disk, folder));
    if (again)
        dti_remove_tree(old);
    char *link = dti_path(folder, "latest"), *next = dti_path(folder, "latest.tmp");
    dt_status st = link && next ? DT_OK : DT_ERROR(DT_ERR_NOMEM, "%s", folder);
    if (st == DT_OK) {
        (void)unlink(next);
        if (symlink(name, next) != 0)
            st = DT_ERROR(DT_ERR_IO, "%s: %s", next, strerror(errno));
    }
    if (st == DT_OK)
        st = dti_disk_rename(disk, next, link);
    free(link);
    free(next);
    DT_TRY(st);
    DT_TRY(dti_disk_sync_folder(disk, folder));
    return DT_OK;
}

dt_status dti_step_publish(dti_disk *disk, const char *folder, int64_t step, const char *path)
{
    char name[DTI_STEP_NAME];
    char *to = dti_path(folder, dti_step_name(step, name)), *old = NULL;
    if (to && asprintf(&old, "%s.old", to) < 0)
        old = NULL;
    dt_status st = to && old ? DT_OK : DT_ERROR(DT_ERR_NOMEM, "%s", folder);
    if (st == DT_OK)
        dti_remove_tree(old);
    if (st == DT_OK)
        st = publish(disk, folder, name, path, to, old);
    free(to);
    free(old);
    if (st != DT_OK)
        return dt_error_push(st, __FILE__, __LINE__, __func__);
    return DT_OK;
}
