/* array/heap.c - a caching allocator for one rank, with exact counts by tag, and reference-counted
 * storage.
 *
 * Up to 64 KiB a block belongs to one of 40 size classes; each class keeps a stack of free blocks
 * and carves new ones from spans. Larger blocks are runs of pages (array/heap_pages.c). A block's
 * place follows from its size alone, so blocks have no headers. Small blocks stay with their class
 * until the heap is destroyed. */
#include "array/cuda_internal.h"
#include "array/heap_internal.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

/* Under the address sanitizer free blocks are poisoned, and so is a red zone after each block. */
#ifdef __SANITIZE_ADDRESS__
void __asan_poison_memory_region(void const volatile *address, size_t size);
void __asan_unpoison_memory_region(void const volatile *address, size_t size);
#define POISON(address, size)   __asan_poison_memory_region((address), (size))
#define UNPOISON(address, size) __asan_unpoison_memory_region((address), (size))
enum { RED_ZONE = 64 };
#else
#define POISON(address, size)   ((void)(address), (void)(size))
#define UNPOISON(address, size) ((void)(address), (void)(size))
enum { RED_ZONE = 0 };
#endif

enum {
    ALIGNMENT = 64,
    SMALL_MAX = 64 << 10,
    NCLASSES = 40,
    FINE_CLASSES = 16, /* 64, 128, ..., 1024; then four to a doubling */
    SLAB = 64          /* storages a slab */
};

typedef struct size_class {
    size_t block_bytes;
    char *fresh, *fresh_end; /* what is left of the newest span */
    void **free;             /* stack; capacity covers every block carved so far */
    int64_t nfree, capacity, carved;
} size_class;

typedef struct slab {
    struct slab *next;
    dt_storage storage[SLAB];
} slab;

struct dt_heap {
    dt_device device;
    size_t limit_bytes;
    int64_t fail_after;
    int drop_wait;
    dt_heap_stats stats;
    int64_t live_storages;
    dti_pages pages;
    dti_cuda_memory memory; /* on cuda */
    uint64_t nonce;
    slab *slabs;
    dt_storage *spare; /* unused storages, linked through `data` */
    size_class small[NCLASSES];
};

const char *dt_tag_name(dt_tag tag)
{
    static const char *const names[] = {
#define X(name, text) [DT_TAG_##name] = text,
        DT_TAG_TABLE(X)
#undef X
    };
    return (int)tag >= 0 && tag < DT_NTAGS ? names[tag] : "unknown";
}

static bool is_meta(const dt_heap *heap)
{
    return heap->device.kind == DT_META;
}

/* 0 < bytes <= SMALL_MAX. */
static int class_of(size_t bytes)
{
    if (bytes <= FINE_CLASSES * ALIGNMENT)
        return (int)((bytes - 1) / ALIGNMENT);
    const int exponent =
        63 - __builtin_clzll(bytes - 1); /* 2^exponent < bytes <= 2^(exponent + 1) */
    const int quarter = (int)((bytes - 1) >> (exponent - 2)) - 4;
    return FINE_CLASSES + (exponent - 10) * 4 + quarter;
}

static size_t class_bytes(int c)
{
    if (c < FINE_CLASSES)
        return (size_t)(c + 1) * ALIGNMENT;
    const int above = c - FINE_CLASSES;
    return (size_t)(above % 4 + 5) << (above / 4 + 8);
}

static size_t pages_for(size_t bytes)
{
    return (bytes + DTI_PAGE - 1) / DTI_PAGE;
}

static void *take_pages(dt_heap *heap, size_t n)
{
    void *block = dti_pages_take(&heap->pages, n);
    if (block == NULL && heap->pages.grows && dti_pages_grow(&heap->pages, n))
        block = dti_pages_take(&heap->pages, n);
    return block;
}

/* A new span for a class: at least eight blocks, and room on the stack for all of them. */
static bool carve_span(dt_heap *heap, size_class *c)
{
    const size_t bytes = c->block_bytes * 8 > SMALL_MAX ? c->block_bytes * 8 : SMALL_MAX;
    const int64_t count = (int64_t)(bytes / c->block_bytes);
    if (dt_grow((void **)&c->free, &c->capacity, c->carved + count, sizeof *c->free) != DT_OK)
        return false;
    char *span = take_pages(heap, pages_for(bytes));
    if (span == NULL)
        return false;
    c->carved += count;
    c->fresh = span;
    c->fresh_end = span + (size_t)count * c->block_bytes;
    return true;
}

static void *take_small(dt_heap *heap, size_class *c)
{
    if (c->nfree > 0)
        return c->free[--c->nfree];
    if (c->fresh == c->fresh_end && !carve_span(heap, c))
        return NULL;
    void *block = c->fresh;
    c->fresh += c->block_bytes;
    return block;
}

static void *take_block(dt_heap *heap, size_t bytes)
{
    const size_t want = bytes + RED_ZONE;
    void *block = want <= SMALL_MAX ? take_small(heap, &heap->small[class_of(want)])
                                    : take_pages(heap, pages_for(want));
    if (block != NULL && heap->device.kind == DT_CPU) {
        UNPOISON(block, bytes);
        POISON((char *)block + bytes, (size_t)RED_ZONE);
    }
    if (block != NULL && heap->device.kind == DT_CUDA)
        dti_cuda_block_taken(block, bytes, RED_ZONE);
    return block;
}

static void give_block(dt_heap *heap, void *block, size_t bytes)
{
    const size_t want = bytes + RED_ZONE;
    if (heap->device.kind == DT_CPU)
        POISON(block, bytes);
    if (heap->device.kind == DT_CUDA)
        dti_cuda_block_given(block, bytes);
    if (want <= SMALL_MAX) {
        size_class *c = &heap->small[class_of(want)];
        c->free[c->nfree++] = block;
        return;
    }
    dti_pages_give(&heap->pages, block, pages_for(want));
    if (heap->pages.cached > heap->limit_bytes / 2 / DTI_PAGE)
        dti_pages_trim(&heap->pages);
}

static void count_bytes(dt_heap_stats *s, dt_tag tag, int64_t bytes)
{
    s->live[tag] += bytes;
    s->live_total += bytes;
    if (s->live[tag] > s->peak[tag])
        s->peak[tag] = s->live[tag];
    if (s->live_total > s->peak_total)
        s->peak_total = s->live_total;
}

/* Account for `bytes` and find them; *data_out is NULL on meta and for 0 bytes. */
static dt_status allocate(dt_heap *heap, size_t bytes, dt_tag tag, void **data_out)
{
    dt_heap_stats *s = &heap->stats;
    s->allocations++;
    DT_REQUIRE(s->allocations != heap->fail_after, DT_ERR_NOMEM,
               "allocation %lld of %zu bytes (%s): asked to fail; %lld bytes live",
               (long long)s->allocations, bytes, dt_tag_name(tag), (long long)s->live_total);
    DT_REQUIRE(bytes <= heap->limit_bytes && (size_t)s->live_total <= heap->limit_bytes - bytes,
               DT_ERR_NOMEM, "%zu bytes (%s): %lld bytes live, limit %zu", bytes, dt_tag_name(tag),
               (long long)s->live_total, heap->limit_bytes);
    void *data = NULL;
    if (bytes > 0 && !is_meta(heap)) {
        data = take_block(heap, bytes);
        DT_REQUIRE(
            data != NULL, DT_ERR_NOMEM,
            "%zu bytes (%s): %lld bytes live, no free run that long among %zu bytes reserved",
            bytes, dt_tag_name(tag), (long long)s->live_total, heap->pages.npages * DTI_PAGE);
    }
    count_bytes(s, tag, (int64_t)bytes);
    *data_out = data;
    return DT_OK;
}

static void deallocate(dt_storage *storage)
{
    dt_heap *heap = storage->heap;
    if (storage->data != NULL)
        give_block(heap, storage->data, storage->bytes);
    storage->data = NULL;
    count_bytes(&heap->stats, storage->tag, -(int64_t)storage->bytes);
}

void dt_storage_set_tag(dt_storage *storage, dt_tag tag)
{
    if (!storage->emptied) {
        count_bytes(&storage->heap->stats, storage->tag, -(int64_t)storage->bytes);
        count_bytes(&storage->heap->stats, tag, (int64_t)storage->bytes);
    }
    storage->tag = tag;
}

static dt_status add_slab(dt_heap *heap)
{
    slab *s = malloc(sizeof *s);
    DT_REQUIRE(s != NULL, DT_ERR_NOMEM, "no memory for storage handles");
    s->next = heap->slabs;
    heap->slabs = s;
    for (int i = 0; i < SLAB; i++) {
        s->storage[i].data = heap->spare;
        heap->spare = &s->storage[i];
    }
    return DT_OK;
}

dt_status dti_storage_create(dt_heap *heap, size_t bytes, dt_tag tag, dt_storage **storage_out)
{
    if (heap->spare == NULL)
        DT_TRY(add_slab(heap));
    void *data = NULL;
    DT_TRY(allocate(heap, bytes, tag, &data));
    dt_storage *storage = heap->spare;
    heap->spare = storage->data;
    *storage = (dt_storage){.heap = heap, .data = data, .bytes = bytes, .refs = 1, .tag = tag};
    heap->live_storages++;
    *storage_out = storage;
    return DT_OK;
}

void dti_storage_release(dt_storage *storage)
{
    assert(storage->refs > 0);
    if (--storage->refs > 0)
        return;
    dt_heap *heap = storage->heap;
    if (storage->slot)
        dti_slot_release(storage);
    if (!storage->emptied)
        deallocate(storage);
    storage->data = heap->spare;
    heap->spare = storage;
    heap->live_storages--;
}

void dt_storage_empty(dt_storage *storage)
{
    if (storage->emptied)
        return;
    deallocate(storage);
    storage->emptied = true;
}

dt_status dt_storage_refill(dt_storage *storage)
{
    if (!storage->emptied)
        return DT_OK;
    DT_TRY(allocate(storage->heap, storage->bytes, storage->tag, &storage->data));
    storage->emptied = false;
    return DT_OK;
}

static size_t machine_bytes(void)
{
    const long pages = sysconf(_SC_PHYS_PAGES), page_bytes = sysconf(_SC_PAGESIZE);
    return pages > 0 && page_bytes > 0 ? (size_t)pages * (size_t)page_bytes : (size_t)1 << 32;
}

/* Address space for the blocks. */
static dt_status find_memory(dt_heap *heap, const dt_heap_options *options)
{
    size_t bytes = options ? options->reserve_bytes : 0;
    const int ranks = options && options->device_ranks > 0 ? options->device_ranks : 1;
    if (options && options->pinned)
        return dti_pages_reserve_pinned(&heap->pages, bytes > 0 ? bytes : machine_bytes());
    if (heap->device.kind == DT_CPU)
        return dti_pages_reserve(&heap->pages, bytes > 0 ? bytes : machine_bytes(), heap->nonce);
    if (is_meta(heap))
        return DT_OK;
    DT_TRY(dti_cuda_memory_create(heap->device.index, ranks, bytes, &heap->memory));
    const dt_status st = dti_pages_lend(&heap->pages, heap->memory.base, heap->memory.bytes);
    if (st != DT_OK)
        dti_cuda_memory_destroy(&heap->memory);
    else if (heap->memory.bytes < heap->limit_bytes)
        heap->limit_bytes = heap->memory.bytes;
    return st;
}

dt_status dt_heap_create(dt_device device, const dt_heap_options *options, dt_heap **heap_out)
{
    DT_REQUIRE((unsigned)device.kind <= DT_META, DT_ERR_DEVICE,
               "device kind %d is none of cpu, cuda and meta", (int)device.kind);
    DT_REQUIRE(!options || !options->pinned || device.kind == DT_CPU, DT_ERR_DEVICE,
               "only memory of the host can be pinned");
    dt_heap *heap = calloc(1, sizeof *heap);
    DT_REQUIRE(heap != NULL, DT_ERR_NOMEM, "no memory for a heap");
    heap->device = device;
    heap->pages.fd = -1;
    heap->limit_bytes = device.kind == DT_META ? SIZE_MAX : machine_bytes();
    if (options != NULL && options->limit_bytes > 0)
        heap->limit_bytes = options->limit_bytes;
    heap->fail_after = options != NULL ? options->fail_after : 0;
    heap->drop_wait = options != NULL ? options->drop_wait : 0;
    for (int c = 0; c < NCLASSES; c++)
        heap->small[c].block_bytes = class_bytes(c);
    if (getrandom(&heap->nonce, sizeof heap->nonce, 0) != (ssize_t)sizeof heap->nonce)
        heap->nonce = (uint64_t)(uintptr_t)heap ^ (uint64_t)getpid() << 32;
    const dt_status st = find_memory(heap, options);
    if (st != DT_OK) {
        free(heap);
        return st;
    }
    *heap_out = heap;
    return DT_OK;
}

void dt_heap_destroy(dt_heap **heap_ref)
{
    dt_heap *heap = *heap_ref;
    if (heap == NULL)
        return;
    assert(heap->live_storages == 0 && "an array outlives its heap");
    for (slab *s = heap->slabs, *next; s != NULL; s = next) {
        next = s->next;
        free(s);
    }
    for (int c = 0; c < NCLASSES; c++)
        free(heap->small[c].free);
    if (heap->device.kind == DT_CPU)
        UNPOISON(heap->pages.base, heap->pages.high * DTI_PAGE);
    if (!is_meta(heap))
        dti_pages_release(&heap->pages);
    if (heap->device.kind == DT_CUDA)
        dti_cuda_memory_destroy(&heap->memory);
    free(heap);
    *heap_ref = NULL;
}

void dt_heap_abandon(dt_heap *heap)
{
    if (heap->live_storages == 0)
        dt_heap_destroy(&heap);
    else if (heap->device.kind == DT_CUDA)
        dti_cuda_memory_destroy(&heap->memory);
}

dt_device dt_heap_device(const dt_heap *heap)
{
    return heap->device;
}

int dti_heap_drop_wait(const dt_heap *heap)
{
    return heap->drop_wait;
}

dt_heap_stats dt_heap_get_stats(const dt_heap *heap)
{
    dt_heap_stats stats = heap->stats;
    stats.reserved = (int64_t)(heap->pages.used + heap->pages.cached) * DTI_PAGE;
    return stats;
}

void dt_heap_reset_peaks(dt_heap *heap)
{
    memcpy(heap->stats.peak, heap->stats.live, sizeof heap->stats.peak);
    heap->stats.peak_total = heap->stats.live_total;
}

dt_heap_map dt_heap_get_map(const dt_heap *heap)
{
    return (dt_heap_map){.fd = heap->pages.fd,
                         .base = heap->pages.base,
                         .bytes = heap->pages.npages * DTI_PAGE,
                         .nonce = heap->nonce};
}
