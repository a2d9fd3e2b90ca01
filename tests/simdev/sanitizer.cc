/* tests/simdev/sanitizer.cc - what the simulator tells the sanitizers.
 *
 * Thread sanitizer: each stream and each simulated thread is a fiber to it, with a vector clock of
 * its own; events, barriers and __syncwarp are releases and acquires of tokens. Address sanitizer:
 * what lies between allocations is poisoned. The functions are weak: NULL in programs that are not
 * built for that sanitizer. The simulator itself is never instrumented. */
#include "sim_internal.h"

extern "C" {
void *__tsan_create_fiber(unsigned flags) __attribute__((weak));
void __tsan_destroy_fiber(void *fiber) __attribute__((weak));
void *__tsan_get_current_fiber() __attribute__((weak));
void __tsan_switch_to_fiber(void *fiber, unsigned flags) __attribute__((weak));
void __tsan_acquire(void *token) __attribute__((weak));
void __tsan_release(void *token) __attribute__((weak));
void __tsan_read_range(void *p, unsigned long bytes) __attribute__((weak));
void __tsan_write_range(void *p, unsigned long bytes) __attribute__((weak));
/* For collectors of garbage. Nothing else in its interface makes old memory new. */
void __tsan_java_init(unsigned long heap, unsigned long bytes) __attribute__((weak));
void __tsan_java_alloc(unsigned long p, unsigned long bytes) __attribute__((weak));
void __tsan_java_free(unsigned long p, unsigned long bytes) __attribute__((weak));
void __asan_poison_memory_region(const volatile void *p, size_t bytes) __attribute__((weak));
void __asan_unpoison_memory_region(const volatile void *p, size_t bytes) __attribute__((weak));
}

bool sim_tsan()
{
    return __tsan_create_fiber != nullptr;
}

bool sim_asan()
{
    return __asan_poison_memory_region != nullptr;
}

void sim_acquire(void *token)
{
    if (__tsan_acquire)
        __tsan_acquire(token);
}

void sim_release(void *token)
{
    if (__tsan_release)
        __tsan_release(token);
}

void *sim_fiber_create()
{
    return __tsan_create_fiber ? __tsan_create_fiber(0) : nullptr;
}

void sim_fiber_destroy(void *fiber)
{
    if (__tsan_destroy_fiber && fiber)
        __tsan_destroy_fiber(fiber);
}

void *sim_fiber_current()
{
    return __tsan_get_current_fiber ? __tsan_get_current_fiber() : nullptr;
}

void sim_fiber_switch(void *fiber)
{
    const unsigned no_sync = 1;
    if (__tsan_switch_to_fiber)
        __tsan_switch_to_fiber(fiber, no_sync);
}

void sim_touch(const void *p, size_t bytes, bool write)
{
    if (!__tsan_read_range || !bytes)
        return;
    (write ? __tsan_write_range : __tsan_read_range)(const_cast<void *>(p), bytes);
}

static const unsigned long cell = 8; /* of the thread sanitizer */

static unsigned long round_down(const char *p)
{
    return reinterpret_cast<unsigned long>(p) / cell * cell;
}

void sim_fresh_within(const char *first, const char *end)
{
    if (__tsan_java_init)
        __tsan_java_init(round_down(first), round_down(end + cell) - round_down(first));
}

/* Freed again at once, or reports would name no variable. */
void sim_fresh(const char *p, size_t bytes)
{
    unsigned long first = round_down(p), size = round_down(p + bytes + cell - 1) - first;
    if (!__tsan_java_init || !bytes)
        return;
    __tsan_java_free(first, size);
    __tsan_java_alloc(first, size);
    __tsan_java_free(first, size);
}

void sim_redzone(void *p, size_t bytes, bool poisoned)
{
    if (__asan_poison_memory_region)
        (poisoned ? __asan_poison_memory_region : __asan_unpoison_memory_region)(p, bytes);
}
