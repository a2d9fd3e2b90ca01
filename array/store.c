/* array/store.c - see array/dt_store.h. Storages rest in a file (array/store_file.c), on cuda also
 * in pinned memory of the host:
 *
 *              compute stream                     streams of copies (array/cuda/copies.c)
 *     put      copy to a free buffer           -> device to host, 2 MiB
 *     prefetch take memory                     -> host to device
 *     open     wait for that copy
 *
 * The host waits for none of these. A file's bytes pass through pinned memory on cuda: there put
 * and open copy from and to the device, and the host waits. */
#include "array/device_internal.h"
#include "array/store_internal.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* ---- stores ---- */

static dt_status open_pinned(dt_store *s)
{
    DT_TRY(dti_cuda_copies()->open(dti_heap_drop_wait(s->heap), &s->copies));
    for (int b = 0; b < DT_STORE_BUFFERS; b++)
        DT_TRY(dti_cuda_copies()->mark(&s->mark[b]));
    return DT_OK;
}

static dt_status start(dt_store *s, const char *folder, int rank)
{
    const dt_device_kind kind = dt_heap_device(s->heap).kind;
    const dt_heap_options pinned = {.pinned = true};
    s->here = !folder && kind == DT_CPU;
    if (s->here)
        return DT_OK;
    if (kind == DT_CUDA)
        DT_TRY(dt_heap_create((dt_device){DT_CPU, 0}, &pinned, &s->host));
    s->buffer_bytes = folder ? DT_STORE_BUFFER_BYTES : DT_STORE_DEVICE_BYTES;
    DT_TRY(dt_array_create(folder && s->host ? s->host : s->heap, DT_U8,
                           DT_SHAPE(DT_STORE_BUFFERS, (int64_t)s->buffer_bytes), DT_TAG_WORKSPACE,
                           &s->buffers));
    if (kind == DT_META)
        return DT_OK;
    if (folder)
        DT_TRY(dti_file_open(s, folder, rank));
    else
        DT_TRY(open_pinned(s));
    return DT_OK;
}

dt_status dt_store_create(dt_heap *heap, const char *folder, int rank, dt_store **store_out)
{
    dt_store *s = calloc(1, sizeof *s);
    DT_REQUIRE(s, DT_ERR_NOMEM, "a store");
    s->heap = heap;
    s->fd = -1;
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->wake, NULL);
    pthread_cond_init(&s->done, NULL);
    const dt_status st = start(s, folder, rank);
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
    dt_heap_destroy(&s->host);
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
    dti_file_close(s);
    for (int b = 0; b < DT_STORE_BUFFERS && s->mark[b]; b++)
        dti_cuda_copies()->unmark(s->mark[b]);
    if (s->copies)
        dti_cuda_copies()->close(s->copies);
    dt_array_release(&s->buffers);
    s->closed = true;
    free_if_unused(s);
    *store = NULL;
}

dt_heap_stats dt_store_get_stats(const dt_store *s)
{
    return s->host ? dt_heap_get_stats(s->host) : (dt_heap_stats){0};
}

/* ---- storages ---- */

/* A place for them where they rest in memory; in a file, that is at its end. */
static dt_status make_slot(dt_store *s, const dt_storage *storage, const char *name,
                           struct dti_slot **slot_out)
{
    struct dti_slot *slot = calloc(1, sizeof *slot);
    char *copy = strdup(name);
    dt_status st = slot && copy ? DT_OK : DT_ERROR(DT_ERR_NOMEM, "%s", name);
    if (st == DT_OK && s->copies)
        st = dti_cuda_copies()->mark(&slot->mark);
    if (st == DT_OK && s->copies)
        st = dti_storage_create(s->host, storage->bytes, storage->tag, &slot->host);
    if (st != DT_OK) {
        if (slot && slot->mark)
            dti_cuda_copies()->unmark(slot->mark);
        free(slot);
        free(copy);
        return dt_error_push(st, __FILE__, __LINE__, name);
    }
    slot->store = s;
    slot->name = copy;
    slot->offset = s->end;
    slot->opens = 1;
    *slot_out = slot;
    return DT_OK;
}

dt_status dt_store_adopt(dt_store *s, dt_storage *storage, const char *name)
{
    DT_REQUIRE(!storage->slot && !storage->emptied, DT_ERR_STATE,
               "%s rests elsewhere already, or has no bytes", name);
    if (s->here)
        return DT_OK;
    DT_TRY(make_slot(s, storage, name, &storage->slot));
    s->end += (off_t)((storage->bytes + DTI_PAGE - 1) / DTI_PAGE * DTI_PAGE);
    s->nslots++;
    const dt_status st = dt_storage_put(storage);
    dt_storage_close(storage);
    if (st != DT_OK)
        return dt_error_push(st, __FILE__, __LINE__, __func__);
    return DT_OK;
}

void dti_slot_release(dt_storage *storage)
{
    struct dti_slot *slot = storage->slot;
    dt_store *s = slot->store;
    if (slot->mark)
        dti_cuda_copies()->unmark(slot->mark); /* others may get the memory of both sides */
    else
        (void)dti_file_is_served(s, NULL);
    if (slot->host)
        dti_storage_release(slot->host);
    free(slot->name);
    free(slot);
    storage->slot = NULL;
    s->nslots--;
    free_if_unused(s);
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
    dt_store *s = slot->store;
    DT_TRY(dt_storage_refill(storage));
    if (!storage->data)
        return DT_OK;
    if (s->copies) {
        dti_cuda_copies()->in(s->copies, storage->data, slot->host->data, storage->bytes,
                              slot->mark);
        return DT_OK;
    }
    slot->read = (dti_request){.slot = slot, .data = storage->data, .bytes = storage->bytes};
    if (s->host) {
        DT_TRY(dti_storage_create(s->host, storage->bytes, DT_TAG_WORKSPACE, &slot->host));
        slot->read.data = slot->host->data;
    }
    dti_file_enqueue(s, &slot->read);
    return DT_OK;
}

/* What was prefetched is there, for the host or for what comes on the compute stream. */
static dt_status arrive(dt_storage *storage)
{
    struct dti_slot *slot = storage->slot;
    dt_store *s = slot->store;
    if (s->copies) {
        dti_cuda_copies()->wait(s->copies, slot->mark);
        return dti_cuda_status();
    }
    dt_status st = dti_file_await(s, &slot->read);
    if (st == DT_OK && slot->host)
        st = elsewhere(storage)->write(storage->data, slot->host->data, storage->bytes);
    if (slot->host)
        dti_storage_release(slot->host);
    slot->host = NULL;
    return st;
}

dt_status dt_storage_open(dt_storage *storage)
{
    struct dti_slot *slot = storage->slot;
    if (!slot || slot->opens++ > 0)
        return DT_OK;
    dt_status st = dt_storage_prefetch(storage);
    if (st == DT_OK)
        st = arrive(storage);
    if (st == DT_OK)
        return DT_OK;
    slot->opens = 0;
    dt_storage_empty(storage);
    return dt_error_push(st, __FILE__, __LINE__, __func__);
}

/* `bytes` at `at`, by way of buffer b. */
static dt_status put_piece(dt_storage *storage, size_t at, size_t bytes, int64_t b)
{
    struct dti_slot *slot = storage->slot;
    dt_store *s = slot->store;
    char *buffer = (char *)dt_array_data(&s->buffers) + b * (int64_t)s->buffer_bytes;
    const char *from = (const char *)storage->data + at;
    const dti_cuda_arrays *device = elsewhere(storage);
    if (s->copies) {
        dti_cuda_copies()->wait(s->copies, s->mark[b]);
        device->copy(buffer, from, bytes);
        dti_cuda_copies()->out(s->copies, (char *)slot->host->data + at, buffer, bytes, s->mark[b],
                               slot->mark);
        return dti_cuda_status();
    }
    dti_request *r = &s->write[b];
    DT_TRY(dti_file_await(s, r));
    *r = (dti_request){.slot = slot, .data = buffer, .at = at, .bytes = bytes, .write = true};
    if (device)
        DT_TRY(device->read(buffer, from, bytes));
    else
        memcpy(buffer, from, bytes);
    dti_file_enqueue(s, r);
    return DT_OK;
}

dt_status dt_storage_put(dt_storage *storage)
{
    if (!storage->slot)
        return DT_OK;
    dt_store *s = storage->slot->store;
    for (size_t at = 0; storage->data && at < storage->bytes; at += s->buffer_bytes) {
        const size_t left = storage->bytes - at;
        DT_TRY(put_piece(storage, at, left < s->buffer_bytes ? left : s->buffer_bytes,
                         s->nwrites++ % DT_STORE_BUFFERS));
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
