/* tests/array/test_heap.c - the caching allocator against a model of what is live. */
#include "array/dt_array.h"
#include "tests/harness.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { PAGE = 4096, KIB = 1024, MIB = 1 << 20 };

static dt_heap *new_heap(dt_device_kind kind, size_t limit_bytes, int64_t fail_after)
{
    dt_heap *heap = NULL;
    const dt_heap_options options = {.limit_bytes = limit_bytes, .fail_after = fail_after};
    ck_ok(dt_heap_create((dt_device){.kind = kind}, &options, &heap));
    return heap;
}

static dt_array bytes_array(dt_heap *heap, int64_t n, dt_tag tag)
{
    dt_array a = {0};
    ck_ok(dt_array_create(heap, DT_U8, DT_SHAPE(n), tag, &a));
    return a;
}

static uint32_t next_random(uint32_t *state)
{
    *state = *state * 1664525u + 1013904223u;
    return *state >> 8;
}

/* 64 slots filled and released at random; the heap's counts must equal ours after every step,
 * blocks must be aligned, and no block may overwrite another. */
static void check_against_model(dt_device_kind kind)
{
    enum { SLOTS = 64, STEPS = 4000 };
    dt_heap *heap = new_heap(kind, 0, 0);
    dt_array slot[SLOTS] = {0};
    int64_t size[SLOTS] = {0}, live[DT_NTAGS] = {0}, peak[DT_NTAGS] = {0}, total = 0, top = 0;
    dt_tag tag[SLOTS] = {0};
    int64_t created = 0;
    uint32_t state = 7;
    for (int step = 0; step < STEPS; step++) {
        const int i = (int)(next_random(&state) % SLOTS);
        const int scale = (int)(next_random(&state) % 18);
        if (slot[i].storage != NULL) {
            const uint8_t *data = dt_array_data(&slot[i]);
            for (int64_t j = 0; data != NULL && j<size[i]; j += size[i]> 1 ? size[i] - 1 : 1)
                ck_assert_uint_eq(data[j], (unsigned)i);
            live[tag[i]] -= size[i];
            total -= size[i];
            dt_array_release(&slot[i]);
        } else {
            size[i] = (int64_t)(next_random(&state) % (2u << scale));
            tag[i] = (dt_tag)(next_random(&state) % DT_NTAGS);
            slot[i] = bytes_array(heap, size[i], tag[i]);
            created++;
            live[tag[i]] += size[i];
            total += size[i];
            peak[tag[i]] = live[tag[i]] > peak[tag[i]] ? live[tag[i]] : peak[tag[i]];
            top = total > top ? total : top;
            void *data = dt_array_data(&slot[i]);
            ck_assert_int_eq(data != NULL, kind == DT_CPU && size[i] > 0);
            ck_assert_uint_eq((uintptr_t)data % 64, 0);
            if (data != NULL)
                memset(data, i, (size_t)size[i]);
        }
        const dt_heap_stats s = dt_heap_get_stats(heap);
        ck_assert_mem_eq(s.live, live, sizeof live);
        ck_assert_mem_eq(s.peak, peak, sizeof peak);
        ck_assert_int_eq(s.live_total, total);
        ck_assert_int_eq(s.peak_total, top);
        ck_assert_int_eq(s.allocations, created);
    }
    for (int i = 0; i < SLOTS; i++)
        dt_array_release(&slot[i]);
    const dt_heap_stats s = dt_heap_get_stats(heap);
    ck_assert_int_eq(s.live_total, 0);
    ck_assert_int_eq(s.peak_total, top);
    dt_heap_reset_peaks(heap);
    ck_assert_int_eq(dt_heap_get_stats(heap).peak_total, 0);
    ck_assert_int_eq(dt_heap_get_stats(heap).peak[DT_TAG_COMM], 0);
    dt_heap_destroy(&heap);
    ck_assert_ptr_null(heap);
}

START_TEST(test_counts_are_exact)
{
    check_against_model(DT_CPU);
}
END_TEST

/* A program started with stdout closed must not print into its tensors. */
START_TEST(test_its_file_is_no_standard_stream)
{
    const int saved = dup(STDOUT_FILENO);
    (void)fflush(stdout);
    (void)close(STDOUT_FILENO);
    dt_heap *heap = new_heap(DT_CPU, 0, 0);
    const int fd = dt_heap_get_map(heap).fd;
    (void)dup2(saved, STDOUT_FILENO);
    (void)close(saved);
    ck_assert_int_ne(fd, STDIN_FILENO);
    ck_assert_int_ne(fd, STDOUT_FILENO);
    ck_assert_int_ne(fd, STDERR_FILENO);
    dt_heap_destroy(&heap);
}
END_TEST

START_TEST(test_meta_counts_the_same)
{
    check_against_model(DT_META);
    dt_heap *heap = new_heap(DT_META, 0, 0);
    dt_array a = {0};
    ck_ok(dt_array_create(heap, DT_BF16, DT_SHAPE(405, 1000, 1000, 1000), DT_TAG_PARAMETER, &a));
    ck_assert(dt_array_is_meta(&a));
    ck_assert_ptr_null(dt_array_data(&a));
    ck_assert_int_eq(dt_heap_get_stats(heap).live[DT_TAG_PARAMETER], 810000000000);
    ck_assert_int_eq(dt_heap_get_stats(heap).reserved, 0);
    ck_assert_int_eq(dt_heap_get_map(heap).fd, -1);
    dt_array_zero(&a);
    dt_array_copy(&a, &a);
    ck_ok(dt_array_write(&a, NULL, dt_array_count(&a)));
    dt_array_release(&a);
    dt_heap_destroy(&heap);
}
END_TEST

/* Every size around every class boundary: a released block comes back for the same size, and two
 * live blocks do not touch. */
START_TEST(test_small_blocks_are_reused)
{
    dt_heap *heap = new_heap(DT_CPU, 0, 0);
    for (int64_t size = 1; size <= 66 * KIB; size += size < 2200 ? 1 : 509) {
        dt_array a = bytes_array(heap, size, DT_TAG_WORKSPACE);
        dt_array b = bytes_array(heap, size, DT_TAG_WORKSPACE);
        char *first = dt_array_data(&a), *second = dt_array_data(&b);
        ck_assert(first + size <= second || second + size <= first);
        memset(first, 1, (size_t)size);
        memset(second, 2, (size_t)size);
        ck_assert_int_eq(first[size - 1], 1);
        dt_array_release(&a);
        a = bytes_array(heap, size, DT_TAG_GRADIENT);
        ck_assert_ptr_eq(dt_array_data(&a), first);
        dt_array_release(&a);
        dt_array_release(&b);
    }
    dt_heap_destroy(&heap);
}
END_TEST

START_TEST(test_large_blocks_split_and_coalesce)
{
    dt_heap *heap = new_heap(DT_CPU, 0, 0);
    /* Less than whole pages by the sanitizer's red zone, so that neighbours are adjacent in all
     * builds. */
    const int64_t size = MIB - 128;
    static const int orders[6][3] = {{0, 1, 2}, {0, 2, 1}, {1, 0, 2},
                                     {1, 2, 0}, {2, 0, 1}, {2, 1, 0}};
    void *first = NULL;
    for (int i = 0; i < 6; i++) {
        dt_array a[3];
        for (int j = 0; j < 3; j++)
            a[j] = bytes_array(heap, size, DT_TAG_ACTIVATION);
        if (i == 0)
            first = dt_array_data(&a[0]);
        for (int j = 0; j < 3; j++)
            ck_assert_ptr_eq(dt_array_data(&a[j]), (char *)first + j * MIB);
        for (int j = 0; j < 3; j++)
            dt_array_release(&a[orders[i][j]]);
        dt_array whole = bytes_array(heap, 3 * MIB - 128, DT_TAG_ACTIVATION);
        ck_assert_ptr_eq(dt_array_data(&whole), first);
        dt_array_release(&whole);
        ck_assert_int_eq(dt_heap_get_stats(heap).reserved, 3 * MIB);
    }
    dt_heap_destroy(&heap);
}
END_TEST

START_TEST(test_best_fit)
{
    dt_heap *heap = new_heap(DT_CPU, 0, 0);
    static const int64_t mib[5] = {4, 1, 2, 1,
                                   3}; /* blocks 0, 2, 4 will be holes of 4, 2, 3 + rest */
    dt_array a[5];
    for (int i = 0; i < 5; i++)
        a[i] = bytes_array(heap, mib[i] * MIB - 128, DT_TAG_ACTIVATION);
    void *hole4 = dt_array_data(&a[0]), *hole2 = dt_array_data(&a[2]);
    dt_array_release(&a[0]);
    dt_array_release(&a[2]);
    dt_array two = bytes_array(heap, 2 * MIB - 128, DT_TAG_ACTIVATION);
    ck_assert_ptr_eq(dt_array_data(&two), hole2);
    dt_array three = bytes_array(heap, 3 * MIB - 128, DT_TAG_ACTIVATION);
    ck_assert_ptr_eq(dt_array_data(&three), hole4);
    dt_array one = bytes_array(heap, MIB - 128, DT_TAG_ACTIVATION);
    ck_assert_ptr_eq(dt_array_data(&one), (char *)hole4 + 3 * MIB);
    dt_array *all[] = {&two, &three, &one, &a[1], &a[3], &a[4]};
    for (int i = 0; i < DT_COUNT(all); i++)
        dt_array_release(all[i]);
    dt_heap_destroy(&heap);
}
END_TEST

START_TEST(test_memory_goes_back)
{
    dt_heap *heap = new_heap(DT_CPU, 64 * MIB, 0);
    dt_array keep = bytes_array(heap, MIB, DT_TAG_PARAMETER);
    dt_array a = bytes_array(heap, 24 * MIB, DT_TAG_ACTIVATION);
    memset(dt_array_data(&keep), 5, MIB);
    memset(dt_array_data(&a), 6, 24 * MIB);
    dt_array_release(&a);
    ck_assert_int_ge(dt_heap_get_stats(heap).reserved,
                     25 * MIB); /* cached: less than half of the limit */
    a = bytes_array(heap, 40 * MIB, DT_TAG_ACTIVATION);
    memset(dt_array_data(&a), 7, 40 * MIB);
    dt_array_release(&a);
    ck_assert_int_le(dt_heap_get_stats(heap).reserved, 2 * MIB);
    ck_assert_uint_eq(((uint8_t *)dt_array_data(&keep))[MIB - 1], 5);
    a = bytes_array(heap, 40 * MIB, DT_TAG_ACTIVATION);
    ck_assert_uint_eq(((uint8_t *)dt_array_data(&a))[20 * MIB], 0); /* a fresh page of the system */
    dt_array_release(&a);
    dt_array_release(&keep);
    dt_heap_destroy(&heap);
}
END_TEST

static void expect_failure(dt_heap *heap, dt_dtype dtype, dt_shape shape, dt_status want,
                           const char *text)
{
    dt_array a = {0};
    const dt_heap_stats before = dt_heap_get_stats(heap);
    ck_assert_int_eq(dt_array_create(heap, dtype, shape, DT_TAG_COMM, &a), want);
    ck_assert_msg(strstr(dt_error_trace(), text) != NULL, "%s", dt_error_trace());
    ck_assert_ptr_null(a.storage);
    ck_assert_int_eq(dt_heap_get_stats(heap).live_total, before.live_total);
    ck_assert_int_eq(dt_heap_get_stats(heap).peak_total, before.peak_total);
    dt_error_clear();
}

START_TEST(test_failures)
{
    dt_heap *heap = new_heap(DT_CPU, 1000, 3);
    dt_array a = bytes_array(heap, 600, DT_TAG_COMM);
    dt_array b = bytes_array(heap, 400, DT_TAG_COMM); /* exactly the limit */
    dt_array_release(&b);
    expect_failure(heap, DT_U8, DT_SHAPE(1), DT_ERR_NOMEM, "asked to fail");
    b = bytes_array(heap, 1, DT_TAG_COMM); /* only that one failed */
    expect_failure(heap, DT_U8, DT_SHAPE(400), DT_ERR_NOMEM,
                   "400 bytes (comm): 601 bytes live, limit 1000");
    dt_array_release(&b);
    b = bytes_array(heap, 400, DT_TAG_COMM);
    dt_array_release(&a);
    dt_array_release(&b);
    expect_failure(heap, DT_F32, DT_SHAPE(-1), DT_ERR_SHAPE, "[-1]");
    expect_failure(heap, DT_F64, DT_SHAPE((int64_t)1 << 40, (int64_t)1 << 40), DT_ERR_SHAPE,
                   "63 bits");
    dt_heap_destroy(&heap);
    heap = new_heap(DT_CPU, (size_t)1 << 62, 0);
    expect_failure(heap, DT_U8, DT_SHAPE((int64_t)1 << 50), DT_ERR_NOMEM, "reserved");
    dt_heap_destroy(&heap);
    if (dt_device_count(DT_CUDA) == 0)
        ck_assert_int_eq(dt_heap_create((dt_device){.kind = DT_CUDA}, NULL, &heap), DT_ERR_DEVICE);
    ck_assert_ptr_null(heap);
    dt_heap_destroy(&heap);
}
END_TEST

START_TEST(test_empty_and_refill)
{
    dt_heap *heap = new_heap(DT_CPU, 5000, 0);
    dt_array a = bytes_array(heap, 3000, DT_TAG_PARAMETER);
    dt_array b = dt_array_share(&a);
    dt_storage_empty(a.storage);
    dt_storage_empty(a.storage);
    ck_assert_ptr_null(dt_array_data(&b));
    ck_assert_int_eq(dt_heap_get_stats(heap).live[DT_TAG_PARAMETER], 0);
    uint8_t host[3000];
    ck_assert_int_eq(dt_array_read(&a, host, 3000), DT_ERR_STATE);
    dt_array c = bytes_array(heap, 3000, DT_TAG_GRADIENT);
    ck_assert_int_eq(dt_storage_refill(a.storage), DT_ERR_NOMEM);
    ck_assert(a.storage->emptied);
    dt_array_release(&c);
    ck_ok(dt_storage_refill(a.storage));
    ck_ok(dt_storage_refill(a.storage));
    ck_assert_ptr_nonnull(dt_array_data(&b));
    ck_assert_int_eq(dt_heap_get_stats(heap).live[DT_TAG_PARAMETER], 3000);
    dt_storage_empty(a.storage);
    dt_array_release(&a);
    dt_array_release(&b); /* released while empty: nothing is given back twice */
    ck_assert_int_eq(dt_heap_get_stats(heap).live_total, 0);
    dt_heap_destroy(&heap);
}
END_TEST

/* What comm/shm.c relies on: another mapping of the file sees the bytes. */
START_TEST(test_file_shows_the_bytes)
{
    dt_heap *heap = new_heap(DT_CPU, 0, 0), *other = new_heap(DT_CPU, 0, 0);
    const dt_heap_map map = dt_heap_get_map(heap);
    const int probe = memfd_create("probe", 0);
    ck_assert_int_eq(map.fd >= 0, probe >= 0); /* plain memory only where the system has no memfd */
    if (probe >= 0)
        close(probe);
    ck_assert_uint_ne(map.nonce, dt_heap_get_map(other).nonce);
    dt_array a = bytes_array(heap, 100 * KIB, DT_TAG_COMM);
    memset(dt_array_data(&a), 9, 100 * KIB);
    const size_t offset = (size_t)((char *)dt_array_data(&a) - (char *)map.base);
    ck_assert_uint_lt(offset, map.bytes);
    uint8_t *whole = map.fd >= 0 ? dt_heap_open_map((int)getpid(), &map) : map.base;
    ck_assert_ptr_nonnull(whole);
    const uint8_t *peer = whole + offset;
    ck_assert_uint_eq(peer[0], 9);
    ck_assert_uint_eq(peer[100 * KIB - 1], 9);
    dt_heap_map wrong = map; /* a descriptor of that number, but not that heap */
    wrong.nonce = dt_heap_get_map(other).nonce;
    ck_assert_ptr_null(dt_heap_open_map((int)getpid(), &wrong));
    ck_assert(map.fd < 0 || errno == ESTALE);
    if (map.fd >= 0)
        munmap(whole, map.bytes);
    dt_array_release(&a);
    dt_heap_destroy(&heap);
    dt_heap_destroy(&other);
}
END_TEST

static void *use_own_heap(void *arg)
{
    const int rank = *(const int *)arg;
    dt_heap *heap = new_heap(DT_CPU, 0, 0);
    for (int i = 0; i < 50; i++) {
        dt_array a = bytes_array(heap, 1 + i * 5000, DT_TAG_ACTIVATION);
        memset(dt_array_data(&a), rank, (size_t)(1 + i * 5000));
        ck_assert_uint_eq(((uint8_t *)dt_array_data(&a))[i * 5000], (unsigned)rank);
        dt_array_release(&a);
    }
    dt_heap_destroy(&heap);
    return NULL;
}

START_TEST(test_sixteen_heaps_in_threads)
{
    enum { N = 16 };
    pthread_t thread[N];
    int rank[N];
    for (int i = 0; i < N; i++) {
        rank[i] = i;
        ck_assert_int_eq(pthread_create(&thread[i], NULL, use_own_heap, &rank[i]), 0);
    }
    for (int i = 0; i < N; i++)
        pthread_join(thread[i], NULL);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("heap");
    TCase *tc = tcase_create("heap");
    tcase_set_timeout(tc, 100);
    suite_add_tcase(suite, tc);
    tcase_add_test(tc, test_counts_are_exact);
    tcase_add_test(tc, test_its_file_is_no_standard_stream);
    tcase_add_test(tc, test_meta_counts_the_same);
    tcase_add_test(tc, test_small_blocks_are_reused);
    tcase_add_test(tc, test_large_blocks_split_and_coalesce);
    tcase_add_test(tc, test_best_fit);
    tcase_add_test(tc, test_memory_goes_back);
    tcase_add_test(tc, test_failures);
    tcase_add_test(tc, test_empty_and_refill);
    tcase_add_test(tc, test_file_shows_the_bytes);
    tcase_add_test(tc, test_sixteen_heaps_in_threads);
    return test_main(suite);
}
