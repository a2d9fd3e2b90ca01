/* array/store_file.c - a store's file: its thread, which reads and writes in the order of the calls
 * and compares checksums.
 *
 *     rank's thread                    queue, in order              the store's thread
 *     put: copy to a free buffer    -> write 256 KiB      ->        pwrite, checksum
 *     prefetch: refill              -> read a storage     ->        pread, checksum, compare
 *     open: wait for the read
 *
 * Read first: array/store_internal.h. */
#include "array/store_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

/* A step for every word: no change of one word goes unseen. */
static uint64_t mix(uint64_t sum, const char *data, size_t bytes)
{
    for (size_t i = 0; i < bytes; i += sizeof(uint64_t)) {
        uint64_t word = 0;
        memcpy(&word, data + i, bytes - i < sizeof word ? bytes - i : sizeof word);
        sum = (sum ^ word) * 0x9e3779b97f4a7c15u;
        sum ^= sum >> 32;
    }
    return sum;
}

/* All of the bytes; 0 or the cause, as errno has it; -1: the file ends before. */
static int transfer(int fd, const dti_request *r, off_t offset)
{
    for (size_t done = 0; done < r->bytes;) {
        const off_t at = offset + (off_t)done;
        const ssize_t n = r->write ? pwrite(fd, r->data + done, r->bytes - done, at)
                                   : pread(fd, r->data + done, r->bytes - done, at);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return n < 0 ? errno : r->write ? ENOSPC : -1;
        done += (size_t)n;
    }
    return 0;
}

/* NULL, or what went wrong. Reads go on in pieces, to be summed while they are in the cache. */
static const char *serve(const dt_store *s, const dti_request *r)
{
    uint64_t sum = r->at == 0 ? 1 : r->slot->sum;
    for (size_t done = 0; done < r->bytes; done += DT_STORE_BUFFER_BYTES) {
        const size_t left = r->bytes - done;
        dti_request piece = *r;
        piece.data = r->data + done;
        piece.bytes = left < DT_STORE_BUFFER_BYTES ? left : DT_STORE_BUFFER_BYTES;
        const int error = transfer(s->fd, &piece, r->slot->offset + (off_t)(r->at + done));
        if (error != 0)
            return error < 0 ? "damaged: the file has become shorter" : strerror(error);
        sum = mix(sum, piece.data, piece.bytes);
    }
    if (r->write)
        r->slot->sum = sum;
    else if (sum != r->slot->sum)
        return "damaged: the bytes read are not those that were written";
    return NULL;
}

static void *work(void *arg)
{
    dt_store *s = arg;
    pthread_mutex_lock(&s->lock);
    while (s->head || !s->stop) {
        dti_request *r = s->head;
        if (!r) {
            pthread_cond_wait(&s->wake, &s->lock);
            continue;
        }
        pthread_mutex_unlock(&s->lock);
        const char *why = serve(s, r);
        pthread_mutex_lock(&s->lock);
        if (why && !*s->failure)
            (void)snprintf(s->failure, sizeof s->failure, "%s: %s %s: %s", s->path,
                           r->write ? "writing" : "reading", r->slot->name, why);
        s->head = r->next;
        r->busy = false;
        pthread_cond_broadcast(&s->done);
    }
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

void dti_file_enqueue(dt_store *s, dti_request *r)
{
    pthread_mutex_lock(&s->lock);
    r->next = NULL;
    r->busy = true;
    if (s->head)
        s->tail->next = r;
    else
        s->head = r;
    s->tail = r;
    pthread_cond_signal(&s->wake);
    pthread_mutex_unlock(&s->lock);
}

bool dti_file_is_served(dt_store *s, const dti_request *r)
{
    pthread_mutex_lock(&s->lock);
    while (r ? r->busy : s->head != NULL)
        pthread_cond_wait(&s->done, &s->lock);
    const bool well = !*s->failure;
    pthread_mutex_unlock(&s->lock);
    return well;
}

dt_status dti_file_await(dt_store *s, const dti_request *r)
{
    /* It never changes again. */
    DT_REQUIRE(dti_file_is_served(s, r), DT_ERR_IO, "%s", s->failure);
    return DT_OK;
}

/* ---- the file ---- */

static dt_status open_file(dt_store *s, const char *folder)
{
    DT_REQUIRE(mkdir(folder, 0777) == 0 || errno == EEXIST, DT_ERR_IO, "%s: %s", folder,
               strerror(errno));
    s->fd = open(s->path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    DT_REQUIRE(s->fd >= 0, DT_ERR_IO, "%s: %s", s->path, strerror(errno));
    if (flock(s->fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
        (void)close(s->fd);
        s->fd = -1;
        return DT_ERROR(DT_ERR_IO, "%s is in use by another run: give it another folder", s->path);
    }
    DT_REQUIRE(ftruncate(s->fd, 0) == 0, DT_ERR_IO, "%s: %s", s->path, strerror(errno));
    return DT_OK;
}

dt_status dti_file_open(dt_store *s, const char *folder, int rank)
{
    if (asprintf(&s->path, "%s/offload.%d", folder, rank) < 0)
        s->path = NULL;
    DT_REQUIRE(s->path, DT_ERR_NOMEM, "%s", folder);
    DT_TRY(open_file(s, folder));
    const int error = pthread_create(&s->thread, NULL, work, s);
    if (error != 0) {
        (void)close(s->fd);
        (void)unlink(s->path);
        s->fd = -1;
        return DT_ERROR(DT_ERR_NOMEM, "%s: no thread: %s", s->path, strerror(error));
    }
    return DT_OK;
}

void dti_file_close(dt_store *s)
{
    if (s->fd < 0)
        return;
    pthread_mutex_lock(&s->lock);
    s->stop = true;
    pthread_cond_signal(&s->wake);
    pthread_mutex_unlock(&s->lock);
    pthread_join(s->thread, NULL);
    (void)unlink(s->path); /* before the lock goes with the descriptor */
    (void)close(s->fd);
}
