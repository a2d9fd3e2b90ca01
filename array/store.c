/* array/store.c - see array/dt_store.h.
 *
 *     rank's thread                    queue, in order              the store's thread
 *     put: copy to a free buffer    -> write 256 KiB      ->        pwrite, checksum
 *     prefetch: refill              -> read a storage     ->        pread, checksum, compare
 *     open: wait for the read
 *
 * On cuda the thread reads and writes memory of the host; put and open copy from and to the device.
 */
#include "array/device_internal.h"
#include "array/dt_store.h"
#include "array/heap_internal.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

typedef struct request {
    struct request *next;
    struct dti_slot *slot;
    char *data;
    size_t at, bytes; /* of the slot */
    bool write, busy;
} request;

/* Where a storage rests. */
struct dti_slot {
    dt_store *store;
    char *name;
    off_t offset;
    uint64_t sum; /* of the bytes in the file; the store's thread owns it */
    int opens;
    request read;
    char *host; /* cuda: what was read and is not on the device yet */
};

struct dt_store {
    char *path;
    int fd; /* -1: meta, no file and no thread */
    off_t end;
    int nslots;
    dt_array buffers;
    char *room; /* the buffers, on the host */
    char *host_buffers;
    request write[DT_STORE_BUFFERS];
    int64_t nwrites;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t wake, done;
    request *head, *tail; /* the head is being worked on */
    bool stop;
    bool closed;       /* destroyed, but for what storages that live on need to go */
    char failure[512]; /* the first; "" */
};

/* ---- the store's thread ---- */

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
static int transfer(int fd, const request *r, off_t offset)
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
static const char *serve(const dt_store *s, const request *r)
{
    uint64_t sum = r->at == 0 ? 1 : r->slot->sum;
    for (size_t done = 0; done < r->bytes; done += DT_STORE_BUFFER_BYTES) {
        const size_t left = r->bytes - done;
        request piece = *r;
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
        request *r = s->head;
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

static void enqueue(dt_store *s, request *r)
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

/* Until the request is served, or all are if it is NULL. Has all gone well so far? */
static bool is_served(dt_store *s, const request *r)
{
    pthread_mutex_lock(&s->lock);
    while (r ? r->busy : s->head != NULL)
        pthread_cond_wait(&s->done, &s->lock);
    const bool well = !*s->failure;
    pthread_mutex_unlock(&s->lock);
    return well;
}

static dt_status await(dt_store *s, const request *r)
{
    DT_REQUIRE(is_served(s, r), DT_ERR_IO, "%s", s->failure); /* which never changes again */
    return DT_OK;
}

/* ---- stores ---- */

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

static dt_status start(dt_store *s, dt_heap *heap, const char *folder, int rank)
{
    if (asprintf(&s->path, "%s/offload.%d", folder, rank) < 0)
        s->path = NULL;
    DT_REQUIRE(s->path, DT_ERR_NOMEM, "%s", folder);
    DT_TRY(dt_array_create(heap, DT_U8, DT_SHAPE(DT_STORE_BUFFERS, DT_STORE_BUFFER_BYTES),
                           DT_TAG_WORKSPACE, &s->buffers));
    if (dt_array_is_meta(&s->buffers))
        return DT_OK;
    if (dt_heap_device(heap).kind == DT_CUDA) {
        dt_array_release(&s->buffers);
        s->host_buffers = malloc((size_t)DT_STORE_BUFFERS * DT_STORE_BUFFER_BYTES);
        DT_REQUIRE(s->host_buffers, DT_ERR_NOMEM, "buffers of %s", s->path);
    }
    s->room = s->host_buffers ? s->host_buffers : dt_array_data(&s->buffers);
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

dt_status dt_store_create(dt_heap *heap, const char *folder, int rank, dt_store **store_out)
{
    dt_store *s = calloc(1, sizeof *s);
    DT_REQUIRE(s, DT_ERR_NOMEM, "%s", folder);
    s->fd = -1;
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->wake, NULL);
    pthread_cond_init(&s->done, NULL);
    const dt_status st = start(s, heap, folder, rank);
    if (st != DT_OK) {
        dt_store_destroy(&s);
        return dt_error_push(st, __FILE__, __LINE__, __func__);
    }
    *store_out = s;
    return DT_OK;
}

static void free_if_unused(dt_store *s)
{
    if (!s->closed || s->nslots > 0)
        return;
    pthread_mutex_destroy(&s->lock);
    pthread_cond_destroy(&s->wake);
    pthread_cond_destroy(&s->done);
    free(s->path);
    free(s);
}

void dt_store_destroy(dt_store **store)
{
    dt_store *s = *store;
    if (!s)
        return;
    if (s->fd >= 0) {
        pthread_mutex_lock(&s->lock);
        s->stop = true;
        pthread_cond_signal(&s->wake);
        pthread_mutex_unlock(&s->lock);
        pthread_join(s->thread, NULL);
        (void)unlink(s->path); /* before the lock goes with the descriptor */
        (void)close(s->fd);
    }
    dt_array_release(&s->buffers);
    free(s->host_buffers);
    s->closed = true;
    free_if_unused(s);
    *store = NULL;
}

/* ---- storages ---- */

dt_status dt_store_adopt(dt_store *s, dt_storage *storage, const char *name)
{
    DT_REQUIRE(!storage->slot && !storage->emptied, DT_ERR_STATE,
               "%s rests in a file already, or has no bytes", name);
    struct dti_slot *slot = calloc(1, sizeof *slot);
    char *copy = strdup(name);
    if (!slot || !copy) {
        free(slot);
        free(copy);
        return DT_ERROR(DT_ERR_NOMEM, "%s", name);
    }
    *slot = (struct dti_slot){.store = s, .name = copy, .offset = s->end, .opens = 1};
    s->end += (off_t)((storage->bytes + DTI_PAGE - 1) / DTI_PAGE * DTI_PAGE);
    s->nslots++;
    storage->slot = slot;
    const dt_status st = dt_storage_put(storage);
    dt_storage_close(storage);
    if (st != DT_OK)
        return dt_error_push(st, __FILE__, __LINE__, __func__);
    return DT_OK;
}

void dti_slot_release(dt_storage *storage)
{
    struct dti_slot *slot = storage->slot;
    (void)is_served(slot->store, NULL);
    slot->store->nslots--;
    free_if_unused(slot->store);
    free(slot->name);
    free(slot->host);
    free(slot);
    storage->slot = NULL;
}

static const dti_cuda_arrays *elsewhere(dt_storage *storage)
{
    return dti_elsewhere(&(dt_array){.storage = storage});
}

dt_status dt_storage_prefetch(dt_storage *storage)
{
    struct dti_slot *slot = storage->slot;
    if (!slot || !storage->emptied)
        return DT_OK;
    DT_TRY(dt_storage_refill(storage));
    slot->read = (request){.slot = slot, .data = storage->data, .bytes = storage->bytes};
    if (storage->data && elsewhere(storage)) {
        slot->read.data = slot->host = malloc(storage->bytes);
        DT_REQUIRE(slot->host, DT_ERR_NOMEM, "%s: %zu bytes of the host", slot->name,
                   storage->bytes);
    }
    if (storage->data)
        enqueue(slot->store, &slot->read);
    return DT_OK;
}

dt_status dt_storage_open(dt_storage *storage)
{
    struct dti_slot *slot = storage->slot;
    if (!slot || slot->opens++ > 0)
        return DT_OK;
    dt_status st = dt_storage_prefetch(storage);
    if (st == DT_OK)
        st = await(slot->store, &slot->read);
    if (st == DT_OK && slot->host)
        st = elsewhere(storage)->write(storage->data, slot->host, storage->bytes);
    free(slot->host);
    slot->host = NULL;
    if (st == DT_OK)
        return DT_OK;
    slot->opens = 0;
    dt_storage_empty(storage);
    return dt_error_push(st, __FILE__, __LINE__, __func__);
}

dt_status dt_storage_put(dt_storage *storage)
{
    if (!storage->slot)
        return DT_OK;
    dt_store *s = storage->slot->store;
    for (size_t at = 0; storage->data && at < storage->bytes; at += DT_STORE_BUFFER_BYTES) {
        const int64_t b = s->nwrites++ % DT_STORE_BUFFERS;
        const size_t left = storage->bytes - at;
        request *r = &s->write[b];
        DT_TRY(await(s, r));
        *r = (request){.slot = storage->slot, .at = at, .write = true};
        r->bytes = left < DT_STORE_BUFFER_BYTES ? left : DT_STORE_BUFFER_BYTES;
        r->data = s->room + b * DT_STORE_BUFFER_BYTES;
        const char *from = (const char *)storage->data + at;
        if (elsewhere(storage))
            DT_TRY(elsewhere(storage)->read(r->data, from, r->bytes));
        else
            memcpy(r->data, from, r->bytes);
        enqueue(s, r);
    }
    return DT_OK;
}

void dt_storage_close(dt_storage *storage)
{
    struct dti_slot *slot = storage->slot;
    assert((!slot || slot->opens > 0) && "close without open");
    if (slot && --slot->opens == 0)
        dt_storage_empty(storage);
}
