/* array/dt_array.h - a local n-d array on one device, and the heap it lives in.
 *
 * Arrays are always contiguous and row-major. A dt_array is a small value that holds one reference
 * to its storage: copy it with dt_array_share, give it back with dt_array_release. Reference counts
 * and heaps are not thread-safe: they belong to the thread of the rank; workers touch only the
 * bytes. Read next: array/dt_kernels.h. */
#pragma once

#include "base/dt_types.h"

/* What memory is for; every allocation names one. */
#define DT_TAG_TABLE(X)         \
    X(PARAMETER, "parameter")   \
    X(GRADIENT, "gradient")     \
    X(ACTIVATION, "activation") \
    X(OPTIMIZER, "optimizer")   \
    X(COMM, "comm")             \
    X(WORKSPACE, "workspace")

typedef enum dt_tag {
#define X(name, text) DT_TAG_##name,
    DT_TAG_TABLE(X)
#undef X
        DT_NTAGS
} dt_tag;

const char *dt_tag_name(dt_tag tag);

typedef struct dt_heap dt_heap;

typedef struct dt_heap_options {
    size_t limit_bytes;   /* live bytes allowed; 0: what the machine has; on meta no limit */
    int64_t fail_after;   /* > 0: that allocation, counted from 1, fails (tests); 0: never */
    size_t reserve_bytes; /* address space, more than is ever used; 0: as much as the machine has */
    int device_ranks;     /* cuda: heaps of as many ranks share the device; 0: 1 */
    bool pinned;          /* cpu: memory that this thread's GPU copies in the background */
    int drop_wait;        /* cuda: > 0: a wait of array/cuda/copies.c is left out (tests) */
} dt_heap_options;

/* Bytes asked for, exact, by tag and together. Peaks restart at dt_heap_reset_peaks. */
typedef struct dt_heap_stats {
    int64_t live[DT_NTAGS], peak[DT_NTAGS];
    int64_t live_total, peak_total;
    int64_t reserved;    /* bytes taken from the system: in use, in size classes, cached */
    int64_t allocations; /* asked for since creation, failed ones too */
} dt_heap_stats;

/* dt_heap_create - a caching allocator for one rank and device. cpu: one memfd mapping (plain mmap
 * where refused) that peers on the same node can map; meta: counts only, data is NULL.
 * Cost: nothing until blocks are used; blocks are 64-byte aligned. Free memory goes back to the
 * system once more than half of limit_bytes is cached.
 * cuda: reserve_bytes (0: nine tenths of the device, divided by device_ranks) are taken at once and
 * kept, so that no step asks the driver for memory; blocks are reused in the order of the compute
 * stream of the thread that made the heap.
 * pinned: memory is pinned 32 MiB or more at a time, where none is free, and stays so: what is
 * given back serves again. Its thread must have a heap on cuda.
 * Errors: DT_ERR_DEVICE for a device that is not built in, DT_ERR_NOMEM. */
DT_NODISCARD dt_status dt_heap_create(dt_device device, const dt_heap_options *options,
                                      dt_heap **heap_out);
/* Every array must have been released: asserted in debug builds. Accepts NULL in *heap. */
void dt_heap_destroy(dt_heap **heap);
/* After a failure that may have left arrays behind: if so, a device's memory goes back, the handles
 * stay; they may only be released. */
void dt_heap_abandon(dt_heap *heap);
dt_device dt_heap_device(const dt_heap *heap);
/* Devices of a kind that this process can use; 0: none, or not built in. */
int dt_device_count(dt_device_kind kind);
/* cuda: the first error of what this thread asked of its device, which stays broken; on others
 * always DT_OK. Ops ask it; kernels have nothing to return it by. */
dt_status dt_heap_status(const dt_heap *heap);
/* cuda: the cudaStream_t that this thread's kernels run on; else NULL. Another one: gives the old
 * one back. Only whole-array operations may run there, and ops not at all. */
void *dt_heap_stream(const dt_heap *heap);
void *dt_heap_set_stream(dt_heap *heap, void *stream);
/* cuda: asked again and again while the host waits for the device; a failure ends the wait and is
 * the device's from then on. */
typedef dt_status (*dt_heap_watch)(void *arg, double waited_s);
void dt_heap_set_watch(dt_heap *heap, dt_heap_watch watch, void *arg);
/* cuda: kernels and products that this thread started so far, and its waits; else zeros. */
typedef struct dt_heap_counts {
    int64_t launches, waits;
} dt_heap_counts;
dt_heap_counts dt_heap_get_counts(const dt_heap *heap);
dt_heap_stats dt_heap_get_stats(const dt_heap *heap);
void dt_heap_reset_peaks(dt_heap *heap);
/* For comm/shm.c: the file that backs the heap (-1: none), where it is mapped, a number peers
 * check. */
typedef struct dt_heap_map {
    int fd;
    void *base;
    size_t bytes;
    uint64_t nonce;
} dt_heap_map;
dt_heap_map dt_heap_get_map(const dt_heap *heap);
/* Map the heap of another process of this machine, as it describes it, into this one (munmap ends
 * it). NULL with errno: it may not be opened, or (ESTALE) that process's file is another one, as
 * where the processes do not see each other. */
void *dt_heap_open_map(int pid, const dt_heap_map *theirs);

/* A block of heap memory with a reference count. Open to the library: comm and fsdp empty and
 * refill it. */
typedef struct dt_storage {
    dt_heap *heap;
    void *data; /* NULL on meta, for 0 bytes, and while emptied */
    size_t bytes;
    int refs;
    dt_tag tag;
    bool emptied;
    struct dti_slot *slot; /* where it rests (array/dt_store.h); NULL: here */
} dt_storage;

/* Give the bytes back to the heap but keep the handle; bring uninitialised bytes back. */
void dt_storage_empty(dt_storage *storage);
DT_NODISCARD dt_status dt_storage_refill(dt_storage *storage);
/* From now on its bytes count under another tag. */
void dt_storage_set_tag(dt_storage *storage, dt_tag tag);

typedef struct dt_array {
    dt_storage *storage; /* NULL: no array */
    int64_t offset;      /* elements from the start of the storage */
    dt_shape shape;
    dt_dtype dtype;
} dt_array;

/* A new array, uninitialised. Errors: DT_ERR_NOMEM names bytes, tag and live bytes. */
DT_NODISCARD dt_status dt_array_create(dt_heap *heap, dt_dtype dtype, dt_shape shape, dt_tag tag,
                                       dt_array *array_out);
/* Another reference to the same bytes. */
dt_array dt_array_share(const dt_array *a);
/* The same bytes under another shape of equal count; rows [lo, hi) of dim 0. New references. */
dt_array dt_array_reshape(const dt_array *a, dt_shape shape);
dt_array dt_array_rows(const dt_array *a, int64_t lo, int64_t hi);
/* Drop the reference; *a becomes all-zero. Accepts an all-zero array. */
void dt_array_release(dt_array *a);

int64_t dt_array_count(const dt_array *a);
size_t dt_array_bytes(const dt_array *a);
bool dt_array_is_meta(const dt_array *a);
/* Address of the first element; NULL on meta or for 0 elements. */
void *dt_array_data(const dt_array *a);

/* Host to array and back; n elements of the array's dtype. On meta nothing happens. Blocks. */
DT_NODISCARD dt_status dt_array_write(dt_array *a, const void *host, int64_t n);
DT_NODISCARD dt_status dt_array_read(const dt_array *a, void *host, int64_t n);
/* The bytes where the host can look at them: on the cpu the array's own, on cuda a copy, which the
 * caller frees by *copy_out (else NULL). NULL on meta, for 0 elements and where there is no memory.
 * For messages and checks. Blocks. */
const void *dt_array_look(const dt_array *a, void **copy_out);

/* Whole-array operations; all do nothing on meta. Arrays of one call live on one device, but in
 * copy, copy_block and cast one may be on cuda and one on the cpu: that blocks. Zero,
 * fill, cast, add_into and scale share large arrays among OpenMP threads; copy, copy_block and
 * reduce are serial, so that communication workers may call them. The result never depends on the
 * number of threads. */
void dt_array_zero(dt_array *a);
void dt_array_fill(dt_array *a, double value);              /* converted as dt_array_cast does */
void dt_array_copy(dt_array *dst, const dt_array *src);     /* same count and dtype */
void dt_array_add_into(dt_array *dst, const dt_array *src); /* dst += src, floats, same dtype */
void dt_array_scale(dt_array *a, double factor);            /* a *= factor, floats */
/* Between any dtypes, same count. To bf16 and f16: round to nearest, ties to even, by way of f32.
 * Floats become integers toward zero and saturate, NaN is 0; a narrower integer wraps. */
void dt_array_cast(dt_array *dst, const dt_array *src);
/* Casts that may share a launch: on cuda they wait for dt_casts_run, which goes before dst is used
 * or released (the list holds src); elsewhere, and where no more fit, they are done at once. Start
 * with {0}. */
enum { DT_CASTS = 24 };
typedef struct dt_casts {
    int n;
    dt_array dst[DT_CASTS], src[DT_CASTS];
} dt_casts;
void dt_casts_add(dt_casts *c, dt_array *dst, const dt_array *src);
void dt_casts_run(dt_casts *c);
/* Copy the block of `extent` elements from src at src_at to dst at dst_at: same ndim and dtype,
 * no overlap. */
void dt_array_copy_block(dt_array *dst, const int64_t dst_at[], const dt_array *src,
                         const int64_t src_at[], dt_shape extent);
/* Sum, max or min of n > 0 arrays, element by element, in the order given, in f32 (f64 for f64) and
 * rounded once; dst may be any of them. Integers wrap; a NaN stays. This order is what makes all
 * backends agree bit for bit. */
typedef enum dt_reduce { DT_REDUCE_SUM, DT_REDUCE_MAX, DT_REDUCE_MIN } dt_reduce;
void dt_array_reduce(dt_array *dst, int n, const dt_array *const *src, dt_reduce op);
