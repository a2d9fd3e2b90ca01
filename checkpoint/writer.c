/* checkpoint/writer.c - the thread that writes. It takes filled buffers in their order, writes and
 * hashes them, then syncs its files. It touches bytes and files only: no communication, no heap.
 *
 *     rank's thread   take . fill . put   take . fill . put   take (waits) ...   end
 *     this thread                      write, hash        write, hash ...           sync, close
 *
 * Read first: checkpoint/disk.c. */
#include "checkpoint/save_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

enum { EARLY_BYTES = 1 << 20 };

typedef struct target {
    char *path; /* NULL: this rank writes nothing there */
    int fd;
} target;

struct dti_writer {
    dt_heap *heap;
    dti_disk *disk;
    XXH3_state_t *hash;
    dti_buffer *buffer;
    int nbuffers, most_buffers; /* in use, made */
    target *target;             /* one a file of the plan */
    int64_t ntargets;
    dti_sum *sum;
    int64_t nsums, sum_capacity;
    pthread_t thread;
    bool started;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int64_t put, written; /* buffers so far, with the lock */
    bool ended, done;
    dt_status status; /* the thread's first failure, and its trace */
    char *trace;
};

dt_status dti_writer_create(dt_heap *heap, dti_disk *disk, dti_writer **writer_out)
{
    dti_writer *w = calloc(1, sizeof *w);
    DT_REQUIRE(w, DT_ERR_NOMEM, "a writer");
    w->heap = heap;
    w->disk = disk;
    w->hash = XXH3_createState();
    if (!w->hash) {
        free(w);
        return DT_ERROR(DT_ERR_NOMEM, "a hash");
    }
    (void)pthread_mutex_init(&w->lock, NULL);
    (void)pthread_cond_init(&w->changed, NULL);
    *writer_out = w;
    return DT_OK;
}

/* ---- the thread ---- */

static dt_status write_one(dti_writer *w, const dti_buffer *b, const dti_write *one)
{
    const target *t = &w->target[one->file];
    const char *from = (const char *)dt_array_data(&b->bytes) + one->at;
    if (one->first) {
        DT_TRY(dt_grow((void **)&w->sum, &w->sum_capacity, w->nsums + 1, sizeof *w->sum));
        w->sum[w->nsums++] = (dti_sum){one->file, one->offset, 0, 0};
        (void)XXH3_64bits_reset(w->hash);
    }
    DT_TRY(dti_disk_write(w->disk, t->fd, t->path, from, one->bytes, one->offset));
    if (one->bytes >= EARLY_BYTES) /* the disk may begin; what fails shows in fsync */
        (void)sync_file_range(t->fd, one->offset, one->bytes, SYNC_FILE_RANGE_WRITE);
    dti_sum *sum = &w->sum[w->nsums - 1];
    sum->bytes += one->bytes;
    (void)XXH3_64bits_update(w->hash, from, (size_t)one->bytes);
    if (one->last)
        sum->hash = XXH3_64bits_digest(w->hash);
    return DT_OK;
}

static dt_status finish(dti_writer *w)
{
    for (int64_t f = 0; f < w->ntargets; f++) {
        target *t = &w->target[f];
        if (!t->path)
            continue;
        DT_TRY(dti_disk_sync(w->disk, t->fd, t->path));
        const int closed = close(t->fd);
        t->fd = -1;
        DT_REQUIRE(closed == 0, DT_ERR_IO, "%s: close: %s", t->path, strerror(errno));
    }
    return DT_OK;
}

static void *run(void *arg)
{
    dti_writer *w = arg;
    dt_status st = DT_OK;
    (void)pthread_mutex_lock(&w->lock);
    for (;;) {
        while (w->written == w->put && !w->ended)
            (void)pthread_cond_wait(&w->changed, &w->lock);
        if (w->written == w->put)
            break;
        const dti_buffer *b = &w->buffer[w->written % w->nbuffers];
        (void)pthread_mutex_unlock(&w->lock);
        for (int64_t i = 0; st == DT_OK && i < b->n; i++) /* after a failure nothing is written */
            st = write_one(w, b, &b->write[i]);
        (void)pthread_mutex_lock(&w->lock);
        w->written++;
        (void)pthread_cond_broadcast(&w->changed);
    }
    (void)pthread_mutex_unlock(&w->lock);
    if (st == DT_OK)
        st = finish(w);
    (void)pthread_mutex_lock(&w->lock);
    w->status = st;
    w->trace = st == DT_OK ? NULL : strdup(dt_error_trace());
    w->done = true;
    (void)pthread_cond_broadcast(&w->changed);
    (void)pthread_mutex_unlock(&w->lock);
    return NULL;
}

/* ---- the rank's thread ---- */

static void close_targets(dti_writer *w)
{
    for (int64_t f = 0; f < w->ntargets; f++) {
        if (w->target[f].path && w->target[f].fd >= 0)
            (void)close(w->target[f].fd);
        free(w->target[f].path);
    }
    free(w->target);
    w->target = NULL;
    w->ntargets = 0;
}

static dt_status open_targets(dti_writer *w, const dti_plan *plan, const char *folder)
{
    close_targets(w);
    w->target = calloc((size_t)plan->nfiles + 1, sizeof *w->target);
    DT_REQUIRE(w->target, DT_ERR_NOMEM, "%s", folder);
    w->ntargets = plan->nfiles;
    const int me = plan->mesh ? dt_mesh_rank(plan->mesh) : 0;
    for (int64_t i = plan->first[me]; plan->mesh && i < plan->first[me + 1]; i++) {
        const int64_t file = plan->item[plan->share[i].item].file;
        target *t = &w->target[file];
        if (t->path)
            continue;
        t->fd = -1;
        t->path = dti_path(folder, plan->file[file].name);
        DT_REQUIRE(t->path, DT_ERR_NOMEM, "%s", folder);
        t->fd = open(t->path, O_WRONLY | O_CLOEXEC);
        DT_REQUIRE(t->fd >= 0, DT_ERR_IO, "%s: %s", t->path, strerror(errno));
    }
    return DT_OK;
}

static void free_buffers(dti_writer *w)
{
    for (int i = 0; i < w->most_buffers; i++) {
        dt_array_release(&w->buffer[i].bytes);
        free(w->buffer[i].write);
    }
    free(w->buffer);
    w->buffer = NULL;
    w->most_buffers = 0;
}

static dt_status make_buffers(dti_writer *w, int n, int64_t bytes)
{
    w->nbuffers = n;
    if (w->most_buffers >= n && (int64_t)dt_array_bytes(&w->buffer[0].bytes) == bytes)
        return DT_OK;
    free_buffers(w);
    w->buffer = calloc((size_t)n, sizeof *w->buffer);
    DT_REQUIRE(w->buffer, DT_ERR_NOMEM, "%d buffers", n);
    w->most_buffers = n;
    for (int i = 0; i < n; i++)
        DT_TRY(dt_array_create(w->heap, DT_U8, DT_SHAPE(bytes), DT_TAG_WORKSPACE,
                               &w->buffer[i].bytes));
    return DT_OK;
}

dt_status dti_writer_begin(dti_writer *w, const dti_plan *plan, const char *folder, int nbuffers,
                           int64_t buffer_bytes)
{
    DT_TRY(make_buffers(w, nbuffers, buffer_bytes));
    DT_TRY(open_targets(w, plan, folder));
    w->put = w->written = w->nsums = 0;
    w->ended = w->done = false;
    w->status = DT_OK;
    free(w->trace);
    w->trace = NULL;
    const int error = pthread_create(&w->thread, NULL, run, w);
    DT_REQUIRE(error == 0, DT_ERR_NOMEM, "a thread to write with: %s", strerror(error));
    w->started = true;
    return DT_OK;
}

dti_buffer *dti_writer_take(dti_writer *w)
{
    (void)pthread_mutex_lock(&w->lock);
    while (w->put - w->written >= w->nbuffers)
        (void)pthread_cond_wait(&w->changed, &w->lock);
    dti_buffer *b = &w->buffer[w->put % w->nbuffers];
    (void)pthread_mutex_unlock(&w->lock);
    b->n = 0;
    return b;
}

void dti_writer_put(dti_writer *w)
{
    (void)pthread_mutex_lock(&w->lock);
    w->put++;
    (void)pthread_cond_broadcast(&w->changed);
    (void)pthread_mutex_unlock(&w->lock);
}

void dti_writer_end(dti_writer *w)
{
    (void)pthread_mutex_lock(&w->lock);
    w->ended = true;
    (void)pthread_cond_broadcast(&w->changed);
    (void)pthread_mutex_unlock(&w->lock);
}

bool dti_writer_is_done(dti_writer *w)
{
    (void)pthread_mutex_lock(&w->lock);
    const bool done = w->done || !w->started;
    (void)pthread_mutex_unlock(&w->lock);
    return done;
}

dt_status dti_writer_join(dti_writer *w, const dti_sum **sums_out, int64_t *n_out)
{
    if (w->started)
        (void)pthread_join(w->thread, NULL);
    w->started = false;
    close_targets(w);
    if (w->status != DT_OK)
        return dt_error_restore(w->status, w->trace ? w->trace : "");
    *sums_out = w->sum;
    *n_out = w->nsums;
    return DT_OK;
}

void dti_writer_destroy(dti_writer **writer)
{
    dti_writer *w = *writer;
    if (!w)
        return;
    if (w->started) {
        dti_writer_end(w);
        (void)pthread_join(w->thread, NULL);
    }
    close_targets(w);
    free_buffers(w);
    free(w->sum);
    free(w->trace);
    (void)XXH3_freeState(w->hash);
    (void)pthread_mutex_destroy(&w->lock);
    (void)pthread_cond_destroy(&w->changed);
    free(w);
    *writer = NULL;
}
