/* array/dt_store.h - storages whose bytes rest in a file, or in memory of the host, and are in
 * their heap only while in use.
 *
 *     dt_store_create(heap, "scratch", rank, &store);     the file is scratch/offload.<rank>
 *     dt_store_create(heap, NULL, rank, &store);          cuda: pinned memory of the host
 *     dt_store_adopt(store, a.storage, "layer.weight");   bytes go there, memory given back
 *     dt_storage_prefetch(a.storage);                     begins to read them
 *     dt_storage_open(a.storage);                         they are in memory
 *     ...                                                 use them, change them
 *     dt_storage_put(a.storage);                          writes them, where they were changed
 *     dt_storage_close(a.storage);                        memory given back
 *
 * The last four do nothing to storages of memory alone, so that code which looks at parameters and
 * optimizer state calls them on all. A write is copied into a ring of buffers first, so that its
 * memory is free at once and the bytes in flight are bounded; reads go straight to the storage.
 * File: a thread of the store reads and writes in the order of the calls. A checksum of each
 * storage stays in memory and is compared when its bytes come back.
 * Memory of the host, on cuda: copies in the background, after what is on the compute stream;
 * nobody waits for them but what comes there later. On the cpu storages stay in their heap, which
 * is memory of the host.
 * A store belongs to one rank and is called from its thread; on a meta heap it only counts. */
#pragma once

#include "array/dt_array.h"

typedef struct dt_store dt_store;

/* Of a store's ring, counted as DT_TAG_WORKSPACE: all the memory that it needs for itself. That of
 * a file is on the host; of what rests on the host, on the device. */
enum {
    DT_STORE_BUFFERS = 4,
    DT_STORE_BUFFER_BYTES = 256 << 10, /* file */
    DT_STORE_DEVICE_BYTES = 2 << 20    /* cuda, memory of the host */
};

/* dt_store_create - the folder is made where it is missing; the file is made, or taken over from a
 * run that was killed, and removed by dt_store_destroy. NULL: no file, but memory of the host.
 * Errors: DT_ERR_IO where they cannot be written, or another run uses the file; DT_ERR_NOMEM. */
DT_NODISCARD dt_status dt_store_create(dt_heap *heap, const char *folder, int rank,
                                       dt_store **store_out);
/* After the last use of its storages: those that live on, as in communication that failed, can only
 * be released. Before its heap. Accepts NULL inside. */
void dt_store_destroy(dt_store **store);
/* Of memory of the host that the store has on cuda, pinned: what rests there; of files, buffers. */
dt_heap_stats dt_store_get_stats(const dt_store *store);

/* dt_store_adopt - from now on the storage rests there; it is closed. `name` is for messages.
 * Cost: a write of its bytes, in the background. */
DT_NODISCARD dt_status dt_store_adopt(dt_store *store, dt_storage *storage, const char *name);

/* What was prefetched stays in memory until it was opened and closed. Errors: DT_ERR_NOMEM. */
DT_NODISCARD dt_status dt_storage_prefetch(dt_storage *storage);
/* Calls nest. Blocks: until the bytes are here; not where they rest on the host.
 * Errors: DT_ERR_IO, with the file, the name of what was adopted and the cause: read and write
 * errors of any earlier call too (a full disk), and bytes that are not those which were written.
 * They are this rank's alone. A store that failed once fails from then on. */
DT_NODISCARD dt_status dt_storage_open(dt_storage *storage);
/* Of an open one: what is in memory now is what rests there from now on. Blocks: while the
 * ring of a file is full. Errors: of earlier writes. */
DT_NODISCARD dt_status dt_storage_put(dt_storage *storage);
void dt_storage_close(dt_storage *storage);
