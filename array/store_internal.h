/* array/store_internal.h - a store's parts: where bytes rest (array/store.c), and its file with the
 * thread that reads and writes it (array/store_file.c). */
#pragma once

#include "array/dt_store.h"
#include "array/heap_internal.h"

#include <pthread.h>
#include <sys/types.h>

typedef struct dti_request {
    struct dti_request *next;
    struct dti_slot *slot;
    char *data;
    size_t at, bytes; /* of the slot */
    bool write, busy;
} dti_request;

/* Where a storage rests. */
struct dti_slot {
    dt_store *store;
    char *name;
    int opens;
    /* In pinned memory: there; in a file, of cuda: what was read and is not on the device yet. */
    dt_storage *host;
    void *mark; /* pinned: of the last copy */
    off_t offset; /* the rest is of files */
    uint64_t sum; /* of the bytes in the file; the store's thread owns it */
    dti_request read;
};

struct dt_store {
    dt_heap *heap;
    dt_heap *host; /* cuda: pinned memory */
    void *copies;  /* storages rest in it: the streams to and from there */
    dt_array buffers;
    size_t buffer_bytes;
    int64_t nwrites;
    void *mark[DT_STORE_BUFFERS]; /* with `copies`: the last copy from that buffer */
    int nslots;
    bool here;   /* storages stay where they are */
    bool closed; /* destroyed, but for what storages that live on need to go */
    /* ---- of a file ---- */
    char *path;
    int fd; /* -1: no file and no thread */
    off_t end;
    dti_request write[DT_STORE_BUFFERS];
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t wake, done;
    dti_request *head, *tail; /* the head is being worked on */
    bool stop;
    char failure[512]; /* the first; "" */
};

DT_NODISCARD dt_status dti_file_open(dt_store *s, const char *folder, int rank);
/* After all that was asked for. */
void dti_file_close(dt_store *s);
void dti_file_enqueue(dt_store *s, dti_request *r);
/* Until the request is served, or all are if it is NULL. Has all gone well so far? */
bool dti_file_is_served(dt_store *s, const dti_request *r);
DT_NODISCARD dt_status dti_file_await(dt_store *s, const dti_request *r);
