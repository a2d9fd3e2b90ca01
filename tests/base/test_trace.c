/* tests/base/test_trace.c - events keep their order, from several threads too; the file is
 * Chrome's. */
#include "base/dt_json.h"
#include "base/dt_trace.h"
#include "tests/harness.h"

#include <pthread.h>
#include <string.h>
#include <unistd.h>

START_TEST(order_and_fields)
{
    dt_trace *trace;
    ck_ok(dt_trace_create(&trace));
    dt_trace_record(trace, "op", "linear", DT_TRACE_BEGIN, 0, 0);
    dt_trace_record(trace, "issue", "all_gather", DT_TRACE_MOMENT, 3, 4096);
    dt_trace_record(trace, "op", "linear", DT_TRACE_END, 0, 0);
    int64_t n;
    const dt_trace_event *e = dt_trace_events(trace, &n);
    ck_assert_int_eq(n, 3);
    ck_assert_str_eq(e[1].kind, "issue");
    ck_assert_str_eq(e[1].name, "all_gather");
    ck_assert(e[0].phase == DT_TRACE_BEGIN && e[1].phase == DT_TRACE_MOMENT);
    ck_assert(e[1].lane == 3 && e[1].bytes == 4096 && e[0].bytes == 0);
    ck_assert(0 <= e[0].time_s && e[0].time_s <= e[1].time_s && e[1].time_s <= e[2].time_s);
    dt_trace_clear(trace);
    (void)dt_trace_events(trace, &n);
    ck_assert_int_eq(n, 0);
    dt_trace_destroy(&trace);
    ck_assert_ptr_null(trace);
    dt_trace_destroy(&trace);
}
END_TEST

START_TEST(off_is_nothing_and_long_names_are_cut)
{
    dt_trace_record(NULL, "op", "x", DT_TRACE_MOMENT, 0, 0);
    char name[200];
    memset(name, 'n', sizeof name - 1);
    name[sizeof name - 1] = '\0';
    dt_trace *trace;
    ck_ok(dt_trace_create(&trace));
    dt_trace_record(trace, "op", name, DT_TRACE_MOMENT, 0, 0);
    int64_t n;
    ck_assert_uint_eq(strlen(dt_trace_events(trace, &n)[0].name), 71);
    dt_trace_destroy(&trace);
}
END_TEST

enum { THREADS = 4, EACH = 1000 };

typedef struct writer {
    dt_trace *trace;
    int lane;
} writer;

static void *write_events(void *arg)
{
    const writer *w = arg;
    for (int i = 0; i < EACH; i++)
        dt_trace_record(w->trace, "op", "x", DT_TRACE_MOMENT, w->lane, i);
    return NULL;
}

START_TEST(threads)
{
    dt_trace *trace;
    ck_ok(dt_trace_create(&trace));
    pthread_t thread[THREADS];
    writer w[THREADS];
    for (int i = 0; i < THREADS; i++) {
        w[i] = (writer){trace, i};
        ck_assert_int_eq(pthread_create(&thread[i], NULL, write_events, &w[i]), 0);
    }
    for (int i = 0; i < THREADS; i++)
        (void)pthread_join(thread[i], NULL);
    int64_t n, next[THREADS] = {0};
    const dt_trace_event *e = dt_trace_events(trace, &n);
    ck_assert_int_eq(n, THREADS * EACH);
    for (int64_t i = 0; i < n; i++) {
        ck_assert_int_eq(e[i].bytes, next[e[i].lane]++);
        ck_assert(i == 0 || e[i - 1].time_s <= e[i].time_s);
    }
    dt_trace_destroy(&trace);
}
END_TEST

START_TEST(chrome_file)
{
    dt_trace *trace;
    ck_ok(dt_trace_create(&trace));
    dt_trace_record(trace, "comm", "say \"hi\"\\", DT_TRACE_BEGIN, 2, 1ll << 40);
    dt_trace_record(trace, "comm", "b", DT_TRACE_END, 2, 0);
    char path[] = "/tmp/dt_trace_XXXXXX";
    ck_assert_int_ge(close(mkstemp(path)), 0);
    ck_ok(dt_trace_write(trace, 5, path));
    json_t *root = json_load_file(path, 0, NULL), *first = json_array_get(root, 0);
    (void)unlink(path);
    ck_assert_uint_eq(json_array_size(root), 2);
    const char *name, *category, *phase;
    json_int_t pid, lane, bytes;
    double ts;
    ck_assert_int_eq(json_unpack(first, "{s:s, s:s, s:s, s:F, s:I, s:I, s:{s:I}}", "name", &name,
                                 "cat", &category, "ph", &phase, "ts", &ts, "pid", &pid, "tid",
                                 &lane, "args", "bytes", &bytes),
                     0);
    ck_assert_str_eq(name, "say \"hi\"\\");
    ck_assert_str_eq(category, "comm");
    ck_assert_str_eq(phase, "B");
    ck_assert(ts >= 0 && pid == 5 && lane == 2 && bytes == 1ll << 40);
    json_decref(root);
    ck_ok(
        test_expect(dt_trace_write(trace, 0, "/nowhere/t.json"), DT_ERR_IO, "/nowhere/t.json", ""));
    ck_ok(test_expect(dt_trace_write(trace, 0, "/dev/full"), DT_ERR_IO, "/dev/full", ""));
    dt_trace_destroy(&trace);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("trace");
    TCase *tests = tcase_create("trace");
    tcase_add_test(tests, order_and_fields);
    tcase_add_test(tests, off_is_nothing_and_long_names_are_cut);
    tcase_add_test(tests, threads);
    tcase_add_test(tests, chrome_file);
    suite_add_tcase(suite, tests);
    return test_main(suite);
}
