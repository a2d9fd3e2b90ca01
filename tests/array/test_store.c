/* tests/array/test_store.c - storages whose bytes rest in a file: they come back as they were,
 * whatever the sizes and the order of calls; memory is given back; damage, full disks and folders
 * that cannot be are errors with names. */
#include "array/dt_store.h"
#include "tests/harness.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

static char folder[32], file[64];
static dt_heap *heap;
static dt_store *store;

static void set_up(void)
{
    (void)strcpy(folder, "/tmp/dt_store_XXXXXX");
    ck_assert(mkdtemp(folder));
    (void)snprintf(file, sizeof file, "%s/offload.3", folder);
    ck_ok(dt_heap_create((dt_device){DT_CPU, 0}, NULL, &heap));
    ck_ok(dt_store_create(heap, folder, 3, &store));
}

static void tear_down(void)
{
    dt_store_destroy(&store);
    ck_assert_msg(access(file, F_OK) != 0, "the file stays");
    ck_assert_int_eq(rmdir(folder), 0);
    dt_heap_destroy(&heap);
}

static int64_t live(void)
{
    return dt_heap_get_stats(heap).live[DT_TAG_PARAMETER];
}

static void fill(dt_array *a, int seed)
{
    uint8_t *p = dt_array_data(a);
    for (int64_t i = 0; i < dt_array_count(a); i++)
        p[i] = (uint8_t)(i * 7 + i / 251 + seed);
}

static void check(const dt_array *a, int seed)
{
    const uint8_t *p = dt_array_data(a);
    int64_t i = 0;
    while (i < dt_array_count(a) && p[i] == (uint8_t)(i * 7 + i / 251 + seed))
        i++;
    ck_assert_int_eq(i, dt_array_count(a));
}

static dt_array make(int64_t bytes, int seed)
{
    dt_array a = {0};
    ck_ok(dt_array_create(heap, DT_U8, DT_SHAPE(bytes), DT_TAG_PARAMETER, &a));
    fill(&a, seed);
    ck_ok(dt_store_adopt(store, a.storage, "a.weight"));
    return a;
}

/* Sizes around words, buffers and the whole ring. */
static const int64_t sizes[] = {0,
                                1,
                                7,
                                4097,
                                DT_STORE_BUFFER_BYTES,
                                DT_STORE_BUFFER_BYTES + 1,
                                DT_STORE_BUFFERS *DT_STORE_BUFFER_BYTES,
                                7 * DT_STORE_BUFFER_BYTES - 3};

START_TEST(bytes_come_back)
{
    set_up();
    dt_array a[DT_COUNT(sizes)];
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < DT_COUNT(sizes); i++) {
            if (round == 0)
                a[i] = make(sizes[i], i);
            ck_assert_int_eq(live(), 0);
            ck_ok(dt_storage_open(a[i].storage));
            ck_assert_int_eq(live(), sizes[i]);
            check(&a[i], round * 10 + i);
            fill(&a[i], round * 10 + 10 + i); /* the next round's */
            ck_ok(dt_storage_put(a[i].storage));
            dt_storage_close(a[i].storage);
        }
        for (int i = DT_COUNT(sizes) - 1; i >= 0; i--) /* in any order, all at once */
            ck_ok(dt_storage_prefetch(a[i].storage));
        for (int i = 0; i < DT_COUNT(sizes); i++) {
            ck_ok(dt_storage_open(a[i].storage));
            check(&a[i], round * 10 + 10 + i);
            dt_storage_close(a[i].storage);
        }
    }
    for (int i = 0; i < DT_COUNT(sizes); i++)
        dt_array_release(&a[i]);
    tear_down();
}
END_TEST

START_TEST(opens_nest)
{
    set_up();
    dt_array a = make(1000, 1), plain = {0};
    ck_ok(dt_storage_open(a.storage));
    ck_ok(dt_storage_open(a.storage));
    fill(&a, 2);
    dt_storage_close(a.storage);
    check(&a, 2);
    dt_storage_close(a.storage); /* not put: forgotten */
    uint8_t host[1000];
    ck_ok(dt_array_read(&a, host, 1000));
    ck_assert_int_eq(host[0], 1);
    memset(host, 9, sizeof host);
    ck_ok(dt_array_write(&a, host, 1000));
    ck_assert_int_eq(live(), 0);
    memset(host, 0, sizeof host);
    ck_ok(dt_array_read(&a, host, 1000));
    ck_assert(host[0] == 9 && host[999] == 9);
    ck_ok(dt_array_create(heap, DT_U8, DT_SHAPE(8), DT_TAG_PARAMETER, &plain));
    fill(&plain, 5);
    ck_ok(dt_storage_prefetch(plain.storage)); /* of memory alone: nothing happens */
    ck_ok(dt_storage_open(plain.storage));
    ck_ok(dt_storage_put(plain.storage));
    dt_storage_close(plain.storage);
    check(&plain, 5);
    ck_ok(dt_storage_prefetch(a.storage)); /* released on its way */
    dt_array_release(&a);
    dt_array_release(&plain);
    ck_assert_int_eq(live(), 0);
    tear_down();
}
END_TEST

/* ---- what can go wrong ---- */

static void expect(dt_status st, const char *what)
{
    ck_assert_int_eq(st, DT_ERR_IO);
    ck_assert_msg(strstr(dt_error_trace(), what) && strstr(dt_error_trace(), "offload.3"), "%s",
                  dt_error_trace());
    dt_error_clear();
}

START_TEST(damage_is_seen)
{
    enum { BYTES = 2 * DT_STORE_BUFFER_BYTES + 11 };
    static const off_t places[] = {0, 5, DT_STORE_BUFFER_BYTES, BYTES - 1};
    set_up();
    dt_array a = make(BYTES, 1), b = make(10, 1);
    ck_ok(dt_storage_open(b.storage)); /* then a was written too */
    dt_storage_close(b.storage);
    const int fd = open(file, O_RDWR | O_CLOEXEC);
    ck_assert_int_ge(fd, 0);
    if (_i < DT_COUNT(places)) {
        uint8_t byte = 0;
        ck_assert_int_eq(pread(fd, &byte, 1, places[_i]), 1);
        byte ^= 16;
        ck_assert_int_eq(pwrite(fd, &byte, 1, places[_i]), 1);
    } else {
        ck_assert_int_eq(ftruncate(fd, DT_STORE_BUFFER_BYTES), 0);
    }
    (void)close(fd);
    expect(dt_storage_open(a.storage),
           _i < DT_COUNT(places) ? "reading a.weight: damaged: the bytes read are not"
                                 : "reading a.weight: damaged: the file has become shorter");
    ck_assert_int_eq(live(), 0);
    expect(dt_storage_open(b.storage), "a.weight"); /* from then on nothing is trusted */
    dt_array_release(&a);
    dt_array_release(&b);
    tear_down();
}
END_TEST

/* A limit of the size of files stands for a full disk. */
START_TEST(the_disk_is_full)
{
    set_up();
    struct rlimit old, small;
    (void)signal(SIGXFSZ, SIG_IGN);
    ck_assert_int_eq(getrlimit(RLIMIT_FSIZE, &old), 0);
    small = old;
    small.rlim_cur = 3 * DT_STORE_BUFFER_BYTES;
    ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &small), 0);
    dt_array a = {0};
    ck_ok(dt_array_create(heap, DT_U8, DT_SHAPE(9 * DT_STORE_BUFFER_BYTES), DT_TAG_PARAMETER, &a));
    dt_status st = dt_store_adopt(store, a.storage, "a.weight");
    if (st == DT_OK)
        st = dt_storage_open(a.storage);
    ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &old), 0);
    expect(st, "writing a.weight: ");
    dt_array_release(&a);
    tear_down();
}
END_TEST

START_TEST(places_that_cannot_be)
{
    set_up();
    dt_store *other = NULL;
    expect(dt_store_create(heap, folder, 3, &other), "in use by another run");
    char below[96];
    (void)snprintf(below, sizeof below, "%s/deeper", file);
    expect(dt_store_create(heap, below, 0, &other), "Not a directory");
    (void)snprintf(below, sizeof below, "%s/new", folder); /* is made */
    ck_ok(dt_store_create(heap, below, 0, &other));
    dt_store_destroy(&other);
    ck_assert_int_eq(rmdir(below), 0);
    tear_down();
}
END_TEST

/* A file that a run left which was killed is taken over. */
START_TEST(what_was_left_is_taken_over)
{
    set_up();
    dt_store_destroy(&store);
    FILE *left = fopen(file, "we");
    ck_assert(left && fputs("left by another run", left) >= 0 && fclose(left) == 0);
    ck_ok(dt_store_create(heap, folder, 3, &store));
    dt_array a = make(100, 4);
    ck_ok(dt_storage_open(a.storage));
    check(&a, 4);
    dt_storage_close(a.storage);
    dt_array_release(&a);
    tear_down();
}
END_TEST

START_TEST(meta_only_counts)
{
    dt_array a = {0};
    ck_ok(dt_heap_create((dt_device){DT_META, 0}, NULL, &heap));
    ck_ok(dt_store_create(heap, "/nowhere", 0, &store));
    ck_ok(dt_array_create(heap, DT_F32, DT_SHAPE(1 << 20), DT_TAG_PARAMETER, &a));
    ck_ok(dt_store_adopt(store, a.storage, "a"));
    ck_assert_int_eq(live(), 0);
    ck_ok(dt_storage_open(a.storage));
    ck_assert_int_eq(live(), 4 << 20);
    ck_ok(dt_storage_put(a.storage));
    dt_storage_close(a.storage);
    ck_assert_int_eq(live(), 0);
    dt_array_release(&a);
    dt_store_destroy(&store);
    dt_heap_destroy(&heap);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("stores");
    TCase *tc = tcase_create("store");
    tcase_set_timeout(tc, 60);
    tcase_add_test(tc, bytes_come_back);
    tcase_add_test(tc, opens_nest);
    tcase_add_loop_test(tc, damage_is_seen, 0, 5);
    tcase_add_test(tc, the_disk_is_full);
    tcase_add_test(tc, places_that_cannot_be);
    tcase_add_test(tc, what_was_left_is_taken_over);
    tcase_add_test(tc, meta_only_counts);
    suite_add_tcase(suite, tc);
    return test_main(suite);
}
