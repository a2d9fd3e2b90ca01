/* checkpoint/save.c - one parallel save into a new folder, in two halves: until all is staged, and
 * until all is on disk. dt_module_save is one of them, checkpoint/checkpoint.c another.
 * Read first: checkpoint/save_internal.h. */
#include "checkpoint/save_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

enum { STAGING = 128 << 20, ROUND_LEAST = 256 << 10, BUFFER_LEAST = 64 };

/* ---- the folder and its small files, on world rank 0 ---- */

/* A file with its header, as long as it will be: a full disk shows here if it can. */
static dt_status fill_file(dti_disk *disk, int fd, const char *path, const dti_out_file *f)
{
    const int failed = fallocate(fd, 0, 0, (off_t)f->bytes) == 0 ? 0 : errno;
    DT_REQUIRE(failed != ENOSPC && failed != EDQUOT && failed != EFBIG, DT_ERR_IO,
               "%s: %lld bytes: %s", path, (long long)f->bytes, strerror(failed));
    DT_REQUIRE(!failed || ftruncate(fd, (off_t)f->bytes) == 0, DT_ERR_IO, "%s: %s", path,
               strerror(errno));
    DT_TRY(dti_disk_write(disk, fd, path, f->header, (int64_t)f->header_bytes, 0));
    return dti_disk_sync(disk, fd, path);
}

static dt_status make_file(dti_disk *disk, const char *folder, const dti_out_file *f)
{
    char *path = dti_path(folder, f->name);
    DT_REQUIRE(path, DT_ERR_NOMEM, "%s", f->name);
    const int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    dt_status st = fd < 0 ? DT_ERROR(DT_ERR_IO, "%s: %s", path, strerror(errno))
                          : fill_file(disk, fd, path, f);
    if (fd >= 0 && close(fd) != 0 && st == DT_OK)
        st = DT_ERROR(DT_ERR_IO, "%s: close: %s", path, strerror(errno));
    free(path);
    return st;
}

static dt_status put_small(dti_save *s, const char *name, const void *data, size_t bytes)
{
    const dti_sum sum = {.bytes = (int64_t)bytes, .hash = XXH3_64bits(data, bytes)};
    DT_TRY(dti_disk_put(s->disk, s->path, name, data, bytes));
    s->small[s->nsmall++] = (dti_small){name, sum};
    return DT_OK;
}

static dt_status copy_config(dti_save *s, const char *from)
{
    struct stat info;
    dti_file file = {.path = (char *)(uintptr_t)from, .fd = open(from, O_RDONLY | O_CLOEXEC)};
    DT_REQUIRE(file.fd >= 0 && fstat(file.fd, &info) == 0, DT_ERR_IO, "%s: %s", from,
               strerror(errno));
    char *all = malloc((size_t)info.st_size + 1);
    dt_status st =
        all ? dti_file_read(&file, 0, all, info.st_size) : DT_ERROR(DT_ERR_NOMEM, "%s", from);
    if (st == DT_OK)
        st = put_small(s, "config.json", all, (size_t)info.st_size);
    free(all);
    (void)close(file.fd);
    return st;
}

static dt_status put_index(dti_save *s, bool optimizer)
{
    char *text = dti_plan_index(s->plan, optimizer);
    DT_REQUIRE(text, DT_ERR_NOMEM, "an index");
    const dt_status st = put_small(
        s, optimizer ? "optimizer.safetensors.index.json" : "model.safetensors.index.json", text,
        strlen(text));
    free(text);
    return st;
}

static dt_status make_folder(dti_save *s, const dti_save_options *o)
{
    const dti_plan *p = s->plan;
    dti_remove_tree(s->path);
    DT_REQUIRE(mkdir(s->path, 0777) == 0, DT_ERR_IO, "%s: %s", s->path, strerror(errno));
    if (o->config_path)
        DT_TRY(copy_config(s, o->config_path));
    for (int64_t f = 0; f < p->nfiles; f++)
        DT_TRY(make_file(s->disk, s->path, &p->file[f]));
    if (!(o->plan.plain && p->nfiles == 1))
        DT_TRY(put_index(s, false));
    if (p->nitems > 0 && p->item[p->nitems - 1].optimizer)
        DT_TRY(put_index(s, true));
    return DT_OK;
}

/* ---- the two halves ---- */

/* Half of the staging memory is for what moves in a round, half for buffers. */
static dt_status begin_writer(dti_save *s, const dti_save_options *o, int64_t *round_out)
{
    const int k = s->plan->mesh ? dt_mesh_size(s->plan->mesh) : 1;
    const int64_t mine = dti_stage_bytes(s->plan);
    int64_t round = (o->staging_bytes ? o->staging_bytes : STAGING) / (2 * (k + 1)) / 8 * 8;
    if (round < (o->staging_bytes ? BUFFER_LEAST : ROUND_LEAST))
        round = o->staging_bytes ? BUFFER_LEAST : ROUND_LEAST;
    int64_t n = mine / round + 1;
    if (n > k + 1 && (o->staging_bytes || !o->async))
        n = k + 1;
    DT_TRY(dti_writer_begin(s->writer, s->plan, s->path, n < 2 ? 2 : (int)n,
                            mine < round ? mine + 8 : round));
    *round_out = round;
    return DT_OK;
}

dt_status dti_save_begin(dti_save *s, dt_module *module, dt_optim *optim, const dti_save_options *o)
{
    const bool first = dt_world_rank(s->world) == 0;
    int64_t round = 0;
    s->nsmall = 0;
    dt_status st = DT_OK;
    DT_TRY(dti_plan_create(s->world, module, optim, &o->plan, &s->plan));
    DT_TRY_TO(fail, st, dt_world_agree_sync(s->world, first ? make_folder(s, o) : DT_OK));
    DT_TRY_TO(fail, st, dt_world_agree_sync(s->world, begin_writer(s, o, &round)));
    st = dti_stage(s->plan, round, s->writer);
    dti_writer_end(s->writer);
    DT_TRY_TO(fail, st, dt_world_agree_sync(s->world, st));
    return DT_OK;
fail:
    dti_save_abandon(s);
    return st;
}

dt_status dti_save_join(dti_save *s, const dti_sum **sums_out, int64_t *n_out)
{
    dt_status st = dti_writer_join(s->writer, sums_out, n_out);
    DT_TRY_TO(fail, st, dt_world_agree_sync(s->world, st));
    return DT_OK;
fail:
    dti_save_abandon(s);
    return st;
}

void dti_save_abandon(dti_save *s)
{
    const dti_sum *sums;
    int64_t n;
    dti_writer_end(s->writer);
    (void)!dti_writer_join(s->writer, &sums, &n);
    dti_plan_destroy(&s->plan);
    if (dt_world_rank(s->world) == 0)
        dti_remove_tree(s->path);
}

/* ---- dt_module_save: into a folder that has other files too ---- */

static dt_status move_file(dti_disk *disk, const char *from, const char *to, const char *name)
{
    char *a = dti_path(from, name), *b = dti_path(to, name);
    const dt_status st = a && b ? dti_disk_rename(disk, a, b) : DT_ERROR(DT_ERR_NOMEM, "%s", to);
    free(a);
    free(b);
    return st;
}

static void remove_file(const char *folder, const char *name)
{
    char *path = dti_path(folder, name);
    if (path)
        (void)unlink(path);
    free(path);
}

/* One file is replaced whole; of several, the index comes last. */
static dt_status move_files(dti_save *s, const char *folder)
{
    DT_TRY(dti_disk_sync_folder(s->disk, s->path));
    for (int64_t f = 0; f < s->plan->nfiles; f++)
        DT_TRY(move_file(s->disk, s->path, folder, s->plan->file[f].name));
    bool index = false;
    for (int i = 0; i < s->nsmall; i++) {
        DT_TRY(move_file(s->disk, s->path, folder, s->small[i].name));
        index |= strstr(s->small[i].name, "index") != NULL;
    }
    remove_file(folder, index ? "model.safetensors" : "model.safetensors.index.json");
    dti_remove_tree(s->path);
    return dti_disk_sync_folder(s->disk, folder);
}

static dt_status save_module(dti_save *s, dt_module *m, const char *folder,
                             const dti_save_options *o)
{
    const dti_sum *sums;
    int64_t n;
    const bool first = dt_world_rank(s->world) == 0;
    DT_TRY(dt_world_agree_sync(s->world, first ? dti_disk_make_folders(s->disk, folder) : DT_OK));
    DT_TRY(dti_save_begin(s, m, NULL, o));
    DT_TRY(dti_save_join(s, &sums, &n));
    const dt_status st = dt_world_agree_sync(s->world, first ? move_files(s, folder) : DT_OK);
    dti_plan_destroy(&s->plan);
    return st;
}

dt_status dt_module_save(dt_module *m, dt_world *world, const char *folder, const char *config_path)
{
    dti_disk disk = dti_disk_of(world);
    const dti_save_options o = {.plan = {.dtype = DT_F32,
                                         .file_bytes = DTI_FILE_BYTES,
                                         .piece_bytes = DTI_PIECE_BYTES,
                                         .plain = true},
                                .config_path = config_path};
    dti_save s = {.world = world, .disk = &disk, .path = dti_path(folder, "saving.tmp")};
    dt_heap *heap = NULL;
    dt_status st = s.path ? dt_world_heap(world, (dt_device){DT_CPU, 0}, &heap)
                          : DT_ERROR(DT_ERR_NOMEM, "%s", folder);
    if (st == DT_OK)
        st = dti_writer_create(heap, &disk, &s.writer);
    st = dt_world_agree_sync(world, st);
    if (st == DT_OK)
        st = save_module(&s, m, folder, &o);
    dti_writer_destroy(&s.writer);
    free(s.path);
    if (st != DT_OK)
        return dt_error_push(st, __FILE__, __LINE__, __func__);
    return DT_OK;
}
