/* tests/metrics/test_log.c - the step line, its texts, and JSON lines read back bit for bit. */
#include "base/dt_json.h"
#include "metrics/dt_metrics.h"
#include "tests/harness.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char path[64];

static void begin(void)
{
    strcpy(path, "/tmp/dt_log_XXXXXX");
    const int fd = mkstemp(path);
    ck_assert(fd >= 0 && close(fd) == 0);
}

static void end(void)
{
    unlink(path);
}

static const dt_metrics sample = {.step = 12,
                                  .steps = 100,
                                  .loss = 3.12341,
                                  .grad_norm = 0.5198,
                                  .lr = 1e-3,
                                  .tokens = 24576,
                                  .tokens_per_s = 12345,
                                  .mfu = 0.0412,
                                  .hfu = 0.0523,
                                  .memory_peak_bytes = 119900000,
                                  .comm_bytes = 3200000,
                                  .left_s = 42};

START_TEST(test_line)
{
    char buf[DT_METRICS_LINE];
    ck_assert_str_eq(dt_metrics_line(&sample, 0, buf, sizeof buf),
                     "step 12/100  loss 3.1234  norm 0.52  lr 1.0e-03  12.3k tok/s  mfu 4.1%  "
                     "mem 120 MB  comm 3.2 MB  eta 0:42");
    dt_metrics bare = sample;
    bare.mfu = 0;
    bare.left_s = -1;
    bare.evaluated = true;
    bare.eval_loss = 3.5;
    ck_assert_str_eq(
        dt_metrics_line(&bare, 0, buf, sizeof buf),
        "step 12/100  loss 3.1234  eval 3.5000  norm 0.52  lr 1.0e-03  12.3k tok/s  mem 120 MB  "
        "comm 3.2 MB");
    dt_metrics above = sample;
    above.mfu = 1.02;
    ck_assert_ptr_null(strstr(dt_metrics_line(&above, 0, buf, sizeof buf), "mfu"));
}
END_TEST

START_TEST(test_line_within_a_terminal)
{
    static const struct {
        int columns;
        const char *line;
    } cases[] = {
        {105, "step 12/100  loss 3.1234  norm 0.52  lr 1.0e-03  12.3k tok/s  mfu 4.1%  mem 120 MB  "
              "comm 3.2 MB  eta 0:42"},
        {104, "step 12/100  loss 3.1234  norm 0.52  lr 1.0e-03  12.3k tok/s  mfu 4.1%  mem 120 MB  "
              "eta 0:42"},
        {80, "step 12/100  loss 3.1234  norm 0.52  lr 1.0e-03  12.3k tok/s  mfu 4.1%  eta 0:42"},
        {79, "step 12/100  loss 3.1234  norm 0.52  12.3k tok/s  mfu 4.1%  eta 0:42"},
        {60, "step 12/100  loss 3.1234  norm 0.52  12.3k tok/s  eta 0:42"},
        {50, "step 12/100  loss 3.1234  12.3k tok/s  eta 0:42"},
        {20, "step 12/100  loss 3."},
    };
    char buf[DT_METRICS_LINE];
    for (int i = 0; i < DT_COUNT(cases); i++)
        ck_assert_str_eq(dt_metrics_line(&sample, cases[i].columns, buf, sizeof buf),
                         cases[i].line);
}
END_TEST

START_TEST(test_texts)
{
    static const struct {
        double seconds;
        const char *text;
    } times[] = {{0, "0:00"},          {59.4, "0:59"},    {59.6, "1:00"},      {3599, "59:59"},
                 {3600, "1:00:00"},    {3723, "1:02:03"}, {86399, "23:59:59"}, {86400, "1d 00:00"},
                 {183900, "2d 03:05"}, {-1, "?"},         {INFINITY, "?"},     {NAN, "?"}};
    static const struct {
        int64_t bytes;
        const char *text;
    } sizes[] = {{0, "0 B"},
                 {999, "999 B"},
                 {1000, "1.0 kB"},
                 {9949, "9.9 kB"},
                 {9950, "10 kB"},
                 {999499, "999 kB"},
                 {999500, "1.0 MB"},
                 {3200000, "3.2 MB"},
                 {120000000, "120 MB"},
                 {INT64_C(5000000000000), "5.0 TB"}};
    static const struct {
        double count;
        const char *text;
    } counts[] = {{0, "0.0"},       {4.56, "4.6"},      {999, "999"},     {1000, "1.0k"},
                  {12345, "12.3k"}, {999949, "999.9k"}, {999951, "1.0M"}, {2.5e12, "2.5T"}};
    char buf[DT_METRICS_TEXT];
    for (int i = 0; i < DT_COUNT(times); i++)
        ck_assert_str_eq(dt_metrics_time(times[i].seconds, buf), times[i].text);
    for (int i = 0; i < DT_COUNT(sizes); i++)
        ck_assert_str_eq(dt_metrics_bytes(sizes[i].bytes, buf), sizes[i].text);
    for (int i = 0; i < DT_COUNT(counts); i++)
        ck_assert_str_eq(dt_metrics_count(counts[i].count, buf), counts[i].text);
    ck_assert_double_eq(dt_metrics_left(25, 100, 10), 30);
    ck_assert_double_eq(dt_metrics_left(100, 100, 10), 0);
    ck_assert(dt_metrics_left(0, 100, 10) < 0);
}
END_TEST

/* Line `index` of the file, parsed. */
static json_t *read_line(int index)
{
    char line[4096];
    json_t *object = NULL;
    FILE *in = fopen(path, "r");
    ck_assert(in != NULL);
    for (int i = 0; i <= index; i++)
        ck_assert(fgets(line, sizeof line, in) != NULL);
    fclose(in);
    ck_ok(dt_json_parse(line, strlen(line), path, &object));
    return object;
}

static void check_number(const json_t *object, const char *key, double want)
{
    const json_t *value = json_object_get(object, key);
    ck_assert_msg(json_is_number(value), "%s", key);
    const double got = json_number_value(value);
    ck_assert_msg(memcmp(&got, &want, sizeof got) == 0, "%s: %.17g, want %.17g", key, got, want);
}

START_TEST(test_log)
{
    dt_metrics_log *log = NULL;
    dt_metrics m = sample;
    const dt_param_metrics params[] = {{"model.embed_tokens.weight", 1.0 / 3, 1e-310},
                                       {"odd \"name\"", 0.1, NAN}};
    m.loss = 10.0 / 3;
    m.grad_norm = 0.1 + 0.2;
    m.tokens_per_s = 1e22 / 7;
    m.memory_peak_bytes = INT64_C(9007199254740993); /* 2^53 + 1: no double holds it */
    ck_ok(dt_metrics_log_open(path, false, &log));
    ck_ok(dt_metrics_log_step(log, &m, 2, params));
    json_t *line = read_line(0); /* flushed: the file is still open */
    ck_assert_uint_eq(json_object_size(line), 11);
    ck_assert_int_eq(json_integer_value(json_object_get(line, "step")), 12);
    ck_assert_int_eq(json_integer_value(json_object_get(line, "tokens")), 24576);
    ck_assert(json_integer_value(json_object_get(line, "memory_peak_bytes")) ==
              m.memory_peak_bytes);
    ck_assert_int_eq(json_integer_value(json_object_get(line, "comm_bytes")), 3200000);
    check_number(line, "loss", m.loss);
    check_number(line, "grad_norm", m.grad_norm);
    check_number(line, "lr", m.lr);
    check_number(line, "tokens_per_s", m.tokens_per_s);
    check_number(line, "mfu", m.mfu);
    check_number(line, "hfu", m.hfu);
    const json_t *all = json_object_get(line, "params");
    ck_assert_uint_eq(json_object_size(all), 2);
    check_number(json_object_get(all, params[0].name), "grad_norm", 1.0 / 3);
    check_number(json_object_get(all, params[0].name), "norm", 1e-310);
    ck_assert(json_is_null(json_object_get(json_object_get(all, params[1].name), "norm")));
    json_decref(line);

    m.step = 13;
    m.loss = INFINITY;
    m.evaluated = true;
    m.eval_loss = 2.0 / 3;
    ck_ok(dt_metrics_log_step(log, &m, 0, NULL));
    line = read_line(1);
    ck_assert(json_is_null(json_object_get(line, "loss")) && !json_object_get(line, "params"));
    check_number(line, "eval_loss", 2.0 / 3);
    json_decref(line);
    dt_metrics_log_close(&log);
    ck_assert(log == NULL);

    ck_ok(dt_metrics_log_open(path, true, &log)); /* a resumed run goes on */
    m.step = 14;
    ck_ok(dt_metrics_log_step(log, &m, 0, NULL));
    dt_metrics_log_close(&log);
    line = read_line(2);
    ck_assert_int_eq(json_integer_value(json_object_get(line, "step")), 14);
    json_decref(line);
    ck_ok(dt_metrics_log_open(path, false, &log)); /* a new one starts anew */
    dt_metrics_log_close(&log);
    ck_assert_int_eq(access(path, R_OK), 0);
}
END_TEST

START_TEST(test_log_fails)
{
    dt_metrics_log *log = NULL;
    ck_ok(test_expect(dt_metrics_log_open("/nowhere/log.json", false, &log), DT_ERR_IO,
                      "/nowhere/log.json", ""));
    ck_ok(test_expect(dt_metrics_log_open("/tmp", false, &log), DT_ERR_IO, "/tmp", ""));
    ck_assert(log == NULL);
    ck_ok(dt_metrics_log_open("/dev/full", false, &log));
    ck_ok(test_expect(dt_metrics_log_step(log, &sample, 0, NULL), DT_ERR_IO, "No space", ""));
    dt_metrics_log_close(&log);
    dt_metrics_log_close(&log);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("metrics log");
    TCase *tc = tcase_create("log");
    tcase_add_checked_fixture(tc, begin, end);
    tcase_add_test(tc, test_line);
    tcase_add_test(tc, test_line_within_a_terminal);
    tcase_add_test(tc, test_texts);
    tcase_add_test(tc, test_log);
    tcase_add_test(tc, test_log_fails);
    suite_add_tcase(suite, tc);
    return test_main(suite);
}
