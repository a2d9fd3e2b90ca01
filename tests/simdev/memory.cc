/* tests/simdev/memory.cc - device memory: one arena for all devices, which the host cannot touch
 * while no device work runs; poison in what is new, guards around allocations; pinned host memory.
 *
 * An allocation in the arena:  | guard 512 | size bytes | guard, at least 512, to the span's end |
 * All ones everywhere at first: a NaN as f32, f64, bf16 and f16, and -1. */
#include "sim_internal.h"

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <execinfo.h>
#include <map>
#include <sys/mman.h>
#include <unistd.h>

static const size_t guard = 512, huge_page = 2 << 20;
static char *arena;
static size_t arena_bytes, arena_used;
static bool is_open;
static std::map<char *, SimAllocation> live;
static std::map<char *, size_t> free_spans; /* the rest of the arena, by address */
static std::vector<size_t> device_bytes;
static std::map<char *, size_t> pinned;

static size_t round_up(size_t n, size_t to)
{
    return (n + to - 1) / to * to;
}

bool sim_in_arena(const void *p)
{
    return arena && p >= arena && p < arena + arena_bytes;
}

const SimAllocation *sim_find(const void *p, char **base_out)
{
    auto next = live.upper_bound(const_cast<char *>(static_cast<const char *>(p)));
    if (next == live.begin())
        return nullptr;
    auto found = std::prev(next);
    if (static_cast<const char *>(p) >= found->first + found->second.size)
        return nullptr;
    if (base_out)
        *base_out = found->first;
    return &found->second;
}

void sim_need_device(const char *what, const void *p, size_t bytes, int device)
{
    char *base = nullptr;
    const SimAllocation *a = sim_find(p, &base);
    if (!bytes)
        return;
    if (!a || static_cast<const char *>(p) + bytes > base + a->size)
        sim_fail("%s: [%p, +%zu) is not inside one live device allocation", what, p, bytes);
    if (a->device != device)
        sim_fail("%s: %p is memory of device %d, the stream is of device %d", what, p, a->device,
                 device);
}

void sim_check_pointer(const char *kernel, int argument, const void *p, cudaStream_t stream)
{
    SimLock lock;
    const SimAllocation *a = sim_find(p, nullptr);
    int device = sim_stream_device(stream);
    if (!p)
        return;
    if (!a && p > arena)
        a = sim_find(static_cast<const char *>(p) - 1, nullptr); /* of an empty array at the end */
    if (!a)
        sim_fail("kernel %s, argument %d: %p is not a live device pointer", kernel, argument, p);
    if (a->device != device)
        sim_fail("kernel %s, argument %d: %p is memory of device %d, the stream is of device %d",
                 kernel, argument, p, a->device, device);
}

/* ---- who may touch it ---- */

static void set_access(int access)
{
    if (arena_used && mprotect(arena, round_up(arena_used, huge_page), access))
        sim_fail("mprotect of device memory failed");
}

void sim_memory_open()
{
    is_open = true;
    if (sim_settings.protect)
        set_access(PROT_READ | PROT_WRITE);
}

void sim_memory_close()
{
    is_open = false;
    if (sim_settings.protect)
        set_access(PROT_NONE);
}

struct Open {
    bool was = is_open;
    Open()
    {
        if (!was)
            sim_memory_open();
    }
    ~Open()
    {
        if (!was)
            sim_memory_close();
    }
};

static void on_fault(int sign, siginfo_t *info, void *)
{
    if (!sim_in_arena(info->si_addr)) {
        signal(sign, SIG_DFL);
        return; /* and fault again */
    }
    char *base = nullptr, *at = static_cast<char *>(info->si_addr);
    const SimAllocation *a = sim_find(at, &base);
    fprintf(stderr, "simdev: FATAL: %s access to device memory %p",
            is_open ? "out-of-bounds device" : "HOST", info->si_addr);
    if (a)
        fprintf(stderr, " (allocation %llu of %zu bytes, at byte %td)",
                static_cast<unsigned long long>(a->id), a->size, at - base);
    fprintf(stderr, "\n");
    void *trace[16];
    backtrace_symbols_fd(trace, backtrace(trace, 16), 2);
    _exit(97);
}

static void make_arena()
{
    if (arena)
        return;
    arena_bytes = static_cast<size_t>(sim_settings.devices) * sim_settings.memory;
    void *map = mmap(nullptr, arena_bytes + huge_page, PROT_NONE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (map == MAP_FAILED)
        sim_fail("no address space for %zu bytes of device memory", arena_bytes);
    arena = reinterpret_cast<char *>(round_up(reinterpret_cast<size_t>(map), huge_page));
    madvise(arena, arena_bytes, MADV_HUGEPAGE); /* or opening it takes 1 ms */
    if (!sim_settings.protect)
        mprotect(arena, arena_bytes, PROT_READ | PROT_WRITE);
    free_spans[arena] = arena_bytes;
    device_bytes.resize(static_cast<size_t>(sim_settings.devices));
    void *trace[1];
    backtrace(trace, 1); /* loads what it needs, which a signal handler may not */
    struct sigaction action = {};
    action.sa_sigaction = on_fault;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    sigaction(SIGSEGV, &action, nullptr);
}

/* ---- allocations ---- */

static void check_guards(const char *p, const SimAllocation &a)
{
    for (const char *q = p - guard; q < p; q++)
        if (*q != '\xff')
            sim_fail("allocation %llu (%zu bytes) was written %td bytes before its start",
                     static_cast<unsigned long long>(a.id), a.size, p - q);
    for (const char *q = p + a.size; q < p + a.span - guard; q++)
        if (*q != '\xff')
            sim_fail("allocation %llu (%zu bytes) was written %td bytes past its end",
                     static_cast<unsigned long long>(a.id), a.size, q - p - a.size);
}

void sim_check_all_guards()
{
    Open open;
    for (const auto &one : live)
        check_guards(one.first, one.second);
}

/* `bytes` of the arena, the lowest that are free, or NULL. */
static char *take_span(size_t bytes)
{
    for (auto one = free_spans.begin(); one != free_spans.end(); ++one) {
        char *p = one->first;
        size_t left = one->second - bytes;
        if (one->second < bytes)
            continue;
        free_spans.erase(one);
        if (left)
            free_spans[p + bytes] = left;
        arena_used = std::max(arena_used, static_cast<size_t>(p + bytes - arena));
        if (is_open || !sim_settings.protect)
            set_access(PROT_READ | PROT_WRITE);
        return p;
    }
    return nullptr;
}

static void give_span(char *p, size_t bytes)
{
    auto next = free_spans.lower_bound(p);
    if (next != free_spans.end() && p + bytes == next->first) {
        bytes += next->second;
        next = free_spans.erase(next);
    }
    if (next != free_spans.begin() && std::prev(next)->first + std::prev(next)->second == p)
        std::prev(next)->second += bytes;
    else
        free_spans[p] = bytes;
}

/* Of large allocations no more than that: heaps take most of a device. The rest is 0. */
static size_t poisoned(size_t size)
{
    return std::min(size, size_t{4} << 20);
}

cudaError_t cudaMalloc(void **out, size_t size)
{
    static uint64_t ids;
    SimLock lock;
    make_arena();
    int device = sim_device();
    size_t span = round_up(size + 2 * guard, guard);
    *out = nullptr;
    if (!size)
        return cudaSuccess;
    char *start = device_bytes[device] + span > sim_settings.memory ? nullptr : take_span(span);
    if (!start)
        return sim_error(cudaErrorMemoryAllocation);
    Open open;
    char *p = start + guard, *end = start + span;
    sim_redzone(start, span, false);
    memset(start, 0xff, guard);
    memset(p, sim_settings.poison ? 0xff : 0, poisoned(size));
    memset(p + size, 0xff, end - p - size);
    sim_redzone(start, guard, true);
    sim_redzone(p + size, end - p - size, true);
    device_bytes[device] += span;
    live[p] = SimAllocation{size, span, ++ids, device};
    *out = p;
    return cudaSuccess;
}

cudaError_t cudaFree(void *p)
{
    if (!p)
        return cudaSuccess;
    SimLock lock;
    auto found = live.find(static_cast<char *>(p));
    if (found == live.end())
        sim_fail("cudaFree(%p): not a live allocation", p);
    const SimAllocation a = found->second;
    char *start = found->first - guard;
    sim_drain_device(a.device);
    Open open;
    sim_redzone(start, a.span, false);
    check_guards(found->first, a);
    if (a.size > poisoned(a.size)) { /* give the memory back, and read zeros the next time */
        char *first = arena + round_up(static_cast<size_t>(start - arena), huge_page);
        madvise(first, static_cast<size_t>(start + a.span - first) / huge_page * huge_page,
                MADV_DONTNEED);
    }
    memset(found->first, 0xff, poisoned(a.size));
    sim_redzone(start, poisoned(a.span), true);
    device_bytes[a.device] -= a.span;
    give_span(start, a.span);
    live.erase(found);
    return cudaSuccess;
}

cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total)
{
    SimLock lock;
    make_arena();
    *total = sim_settings.memory;
    *free_bytes = sim_settings.memory - device_bytes[sim_device()];
    return cudaSuccess;
}

size_t sim_live_allocations(void)
{
    SimLock lock;
    return live.size();
}

/* ---- pinned host memory ---- */

bool sim_is_pinned(const void *p, size_t bytes)
{
    char *at = const_cast<char *>(static_cast<const char *>(p));
    auto next = pinned.upper_bound(at);
    if (next == pinned.begin())
        return false;
    auto found = std::prev(next);
    return at + bytes <= found->first + found->second;
}

cudaError_t cudaHostAlloc(void **out, size_t size, unsigned)
{
    SimLock lock;
    *out = nullptr;
    if (posix_memalign(out, 4096, size ? size : 1))
        return sim_error(cudaErrorMemoryAllocation);
    memset(*out, sim_settings.poison ? 0xff : 0, size);
    pinned[static_cast<char *>(*out)] = size;
    return cudaSuccess;
}

cudaError_t cudaMallocHost(void **out, size_t size)
{
    return cudaHostAlloc(out, size, cudaHostAllocDefault);
}

cudaError_t cudaHostRegister(void *p, size_t size, unsigned)
{
    SimLock lock;
    if (sim_is_pinned(p, 1))
        return sim_error(cudaErrorHostMemoryAlreadyRegistered);
    pinned[static_cast<char *>(p)] = size;
    return cudaSuccess;
}

cudaError_t cudaHostUnregister(void *p)
{
    SimLock lock;
    if (!pinned.erase(static_cast<char *>(p)))
        return sim_error(cudaErrorHostMemoryNotRegistered);
    return cudaSuccess;
}

cudaError_t cudaFreeHost(void *p)
{
    if (!p)
        return cudaSuccess;
    SimLock lock;
    if (!pinned.erase(static_cast<char *>(p)))
        sim_fail("cudaFreeHost(%p): not from cudaHostAlloc", p);
    sim_drain_device(sim_device());
    free(p);
    return cudaSuccess;
}
