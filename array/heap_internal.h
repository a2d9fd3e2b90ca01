/* array/heap_internal.h - the page level of a cpu heap, and storages for array.c. Read first:
 * array/dt_array.h. */
#pragma once

#include "array/dt_array.h"

enum { DTI_PAGE = 4096 };
#define DTI_HEAP_NAME "dt_heap-%016llx"

/* A run of free pages; of them, at most `dirty` were used before and hold memory of the system. */
typedef struct dti_run {
    uint32_t pages, first, dirty;
} dti_run;

/* One reserved stretch of address space, handed out in runs of pages. */
typedef struct dti_pages {
    char *base;
    int fd;    /* -1: anonymous memory */
    bool lent;  /* memory of a device, which is not ours to unmap or to trim */
    bool grows; /* pinned: pages are free from when their stretch was pinned, and stay so */
    void **stretch;
    int64_t nstretches, stretch_capacity;
    size_t grown; /* pages up to the end of the last stretch */
    size_t npages;
    uint32_t *edge; /* by page: length of the free run that begins or ends there, else 0 */
    dti_run *run;   /* the free runs, ascending by (pages, first) */
    int64_t nruns, capacity;
    int64_t taken;       /* runs handed out */
    size_t used, cached; /* pages: handed out; free and dirty */
    size_t high;         /* pages ever handed out lie below */
} dti_pages;

/* Reserve up to `bytes`, or half of it and so on where the system refuses. Errors: DT_ERR_NOMEM. */
DT_NODISCARD dt_status dti_pages_reserve(dti_pages *p, size_t bytes, uint64_t nonce);
/* The same over memory that there is; it must outlive them. Errors: DT_ERR_NOMEM. */
DT_NODISCARD dt_status dti_pages_lend(dti_pages *p, void *base, size_t bytes);
/* Address space of this process alone, whose memory comes by dti_pages_grow. Errors: DT_ERR_DEVICE,
 * DT_ERR_NOMEM. */
DT_NODISCARD dt_status dti_pages_reserve_pinned(dti_pages *p, size_t bytes);
/* Pin a stretch of at least n pages more. False: there is none. */
bool dti_pages_grow(dti_pages *p, size_t n);
void dti_pages_release(dti_pages *p);
/* n > 0 pages: the smallest free run that is long enough, its front. NULL: there is none. */
void *dti_pages_take(dti_pages *p, size_t n);
void dti_pages_give(dti_pages *p, void *block, size_t n);
/* Hand the memory of all free runs back to the system. */
void dti_pages_trim(dti_pages *p);

/* dt_heap_options.drop_wait. */
int dti_heap_drop_wait(const dt_heap *heap);
/* A storage with one reference. Errors: DT_ERR_NOMEM. */
DT_NODISCARD dt_status dti_storage_create(dt_heap *heap, size_t bytes, dt_tag tag,
                                          dt_storage **storage_out);
/* Drop one reference. */
void dti_storage_release(dt_storage *storage);
/* array/store.c: after what is read and written; forget where the storage rests. */
void dti_slot_release(dt_storage *storage);
