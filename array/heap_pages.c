/* array/heap_pages.c - address space reserved once, handed out in runs of pages: best fit, split,
 * coalesced when given back. Nothing is written into the pages themselves, so that free ones can
 * return to the system and peers never see bookkeeping. Read next: array/heap.c. */
#include "array/cuda_internal.h"
#include "array/heap_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { MIN_RESERVE = 64 << 20, STRETCH_BYTES = 32 << 20 };

/* Shared memory behind a file descriptor that peers can map; MAP_FAILED where refused. The file is
 * called by its nonce, so that a peer can tell that it has opened the right one. */
static void *map_shared(size_t bytes, uint64_t nonce, int *fd_out)
{
    char name[40];
    (void)snprintf(name, sizeof name, DTI_HEAP_NAME, (unsigned long long)nonce);
    const int low = memfd_create(name, MFD_CLOEXEC);
    if (low < 0)
        return MAP_FAILED;
    /* Never 0 to 2: where a program was started with stdout closed, printing would write into
     * tensors. */
    const int fd = fcntl(low, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
    close(low);
    if (fd < 0)
        return MAP_FAILED;
    void *base = MAP_FAILED;
    if (ftruncate(fd, (off_t)bytes) == 0)
        base = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
    if (base == MAP_FAILED)
        close(fd);
    else
        *fd_out = fd;
    return base;
}

static void *map_private(size_t bytes)
{
    return mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                -1, 0);
}

/* Index of the first free run that is not before (pages, first). */
static int64_t lower_bound(const dti_pages *p, size_t pages, size_t first)
{
    int64_t lo = 0, hi = p->nruns;
    while (lo < hi) {
        const int64_t mid = (lo + hi) / 2;
        const dti_run *r = &p->run[mid];
        if (r->pages < pages || (r->pages == pages && r->first < first))
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

static void insert_run(dti_pages *p, dti_run r)
{
    const int64_t i = lower_bound(p, r.pages, r.first);
    memmove(&p->run[i + 1], &p->run[i], (size_t)(p->nruns - i) * sizeof *p->run);
    p->run[i] = r;
    p->nruns++;
    p->edge[r.first] = p->edge[r.first + r.pages - 1] = r.pages;
    p->cached += r.dirty;
}

static dti_run remove_run(dti_pages *p, int64_t i)
{
    const dti_run r = p->run[i];
    p->nruns--;
    memmove(&p->run[i], &p->run[i + 1], (size_t)(p->nruns - i) * sizeof *p->run);
    p->edge[r.first] = p->edge[r.first + r.pages - 1] = 0;
    p->cached -= r.dirty;
    return r;
}

/* One free run of all pages, or of none yet; gives p back on failure. */
static dt_status make_table(dti_pages *p)
{
    p->edge = map_private((p->npages + 1) * sizeof *p->edge);
    if (p->edge == MAP_FAILED ||
        dt_grow((void **)&p->run, &p->capacity, 2, sizeof *p->run) != DT_OK) {
        dti_pages_release(p);
        return DT_ERROR(DT_ERR_NOMEM, "no memory for the page table of a heap");
    }
    if (!p->grows)
        insert_run(p, (dti_run){.pages = (uint32_t)p->npages});
    return DT_OK;
}

dt_status dti_pages_reserve(dti_pages *p, size_t bytes, uint64_t nonce)
{
    *p = (dti_pages){.fd = -1, .base = MAP_FAILED};
    for (; p->base == MAP_FAILED && bytes >= MIN_RESERVE; bytes /= 2) {
        bytes &= ~(size_t)(DTI_PAGE - 1);
        p->npages = bytes / DTI_PAGE;
        p->base = map_shared(bytes, nonce, &p->fd);
        if (p->base == MAP_FAILED)
            p->base = map_private(bytes);
    }
    if (p->base == MAP_FAILED)
        return DT_ERROR(DT_ERR_NOMEM, "the system refuses %d MiB of address space for a heap",
                        MIN_RESERVE >> 20);
    return make_table(p);
}

dt_status dti_pages_lend(dti_pages *p, void *base, size_t bytes)
{
    *p = (dti_pages){.fd = -1, .base = base, .npages = bytes / DTI_PAGE, .lent = true};
    return make_table(p);
}

dt_status dti_pages_reserve_pinned(dti_pages *p, size_t bytes)
{
    DT_REQUIRE(dti_cuda_copies(), DT_ERR_DEVICE, "pinned memory: no cuda in this library");
    *p = (dti_pages){.fd = -1, .npages = bytes / DTI_PAGE, .grows = true};
    p->base = map_private(p->npages * DTI_PAGE);
    DT_REQUIRE(p->base != MAP_FAILED, DT_ERR_NOMEM, "%zu bytes of address space to pin", bytes);
    return make_table(p);
}

bool dti_pages_grow(dti_pages *p, size_t n)
{
    n = n > STRETCH_BYTES / DTI_PAGE ? n : STRETCH_BYTES / DTI_PAGE;
    /* A page lies between two stretches: no block, so no copy, goes from one into another. */
    const size_t first = p->nstretches > 0 ? p->grown + 1 : 0;
    char *start = p->base + first * DTI_PAGE;
    if (first + n > p->npages ||
        dt_grow((void **)&p->stretch, &p->stretch_capacity, p->nstretches + 1,
                sizeof *p->stretch) != DT_OK ||
        dt_grow((void **)&p->run, &p->capacity, p->taken + p->nstretches + 4, sizeof *p->run) !=
            DT_OK ||
        dti_cuda_copies()->pin(start, n * DTI_PAGE) != DT_OK)
        return false;
    p->stretch[p->nstretches++] = start;
    p->grown = first + n;
    insert_run(p, (dti_run){.pages = (uint32_t)n, .first = (uint32_t)first});
    return true;
}

void dti_pages_release(dti_pages *p)
{
    while (p->nstretches > 0)
        dti_cuda_copies()->unpin(p->stretch[--p->nstretches]);
    free(p->stretch);
    if (!p->lent)
        munmap(p->base, p->npages * DTI_PAGE);
    if (p->edge != MAP_FAILED)
        munmap(p->edge, (p->npages + 1) * sizeof *p->edge);
    if (p->fd >= 0)
        close(p->fd);
    free(p->run);
    *p = (dti_pages){.fd = -1};
}

void *dti_pages_take(dti_pages *p, size_t n)
{
    const int64_t i = lower_bound(p, n, 0);
    /* Giving back must not fail: between k runs in use lie at most k + 1 free ones, and one more
     * for each stretch. */
    if (i == p->nruns || dt_grow((void **)&p->run, &p->capacity, p->taken + 3 + p->nstretches,
                                 sizeof *p->run) != DT_OK)
        return NULL;
    const dti_run r = remove_run(p, i);
    const uint32_t pages = (uint32_t)n;
    if (r.pages > pages)
        insert_run(p, (dti_run){.pages = r.pages - pages,
                                .first = r.first + pages,
                                .dirty = r.dirty > pages ? r.dirty - pages : 0});
    p->taken++;
    p->used += n;
    p->high = r.first + n > p->high ? r.first + n : p->high;
    return p->base + (size_t)r.first * DTI_PAGE;
}

void dti_pages_give(dti_pages *p, void *block, size_t n)
{
    const size_t first = (size_t)((char *)block - p->base) / DTI_PAGE;
    dti_run r = {.pages = (uint32_t)n, .first = (uint32_t)first, .dirty = (uint32_t)n};
    p->taken--;
    p->used -= n;
    if (r.first > 0 && p->edge[r.first - 1] > 0) {
        const uint32_t before = p->edge[r.first - 1];
        const dti_run left = remove_run(p, lower_bound(p, before, r.first - before));
        r = (dti_run){left.pages + r.pages, left.first, left.dirty + r.dirty};
    }
    if (p->edge[r.first + r.pages] > 0) { /* the table has one entry more than there are pages */
        const uint32_t after = p->edge[r.first + r.pages];
        const dti_run right = remove_run(p, lower_bound(p, after, r.first + r.pages));
        r = (dti_run){r.pages + right.pages, r.first, r.dirty + right.dirty};
    }
    insert_run(p, r);
}

void dti_pages_trim(dti_pages *p)
{
    const int advice = p->fd >= 0 ? MADV_REMOVE : MADV_DONTNEED;
    if (p->lent || p->grows)
        return;
    for (int64_t i = 0; i < p->nruns; i++) {
        dti_run *r = &p->run[i];
        const size_t end =
            (size_t)r->first + r->pages < p->high ? (size_t)r->first + r->pages : p->high;
        if (r->dirty == 0 || end <= r->first)
            continue;
        char *from = p->base + (size_t)r->first * DTI_PAGE;
        if (madvise(from, (end - r->first) * DTI_PAGE, advice) == 0) {
            p->cached -= r->dirty;
            r->dirty = 0;
        }
    }
}

void *dt_heap_open_map(int pid, const dt_heap_map *theirs)
{
    char path[64], name[64] = "", want[64];
    (void)snprintf(path, sizeof path, "/proc/%d/fd/%d", pid, theirs->fd);
    const int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0)
        return NULL;
    (void)snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    (void)snprintf(want, sizeof want, "/memfd:" DTI_HEAP_NAME " (deleted)",
                   (unsigned long long)theirs->nonce);
    void *base = MAP_FAILED;
    if (readlink(path, name, sizeof name - 1) > 0 && strcmp(name, want) == 0)
        base = mmap(NULL, theirs->bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
    else
        errno = ESTALE;
    const int error = errno;
    close(fd);
    errno = error;
    return base == MAP_FAILED ? NULL : base;
}
