/* tests/base/test_json.c - files and typed fields, and the message for every kind of mistake. */
#include "base/dt_json.h"
#include "tests/harness.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char path[] = "/tmp/dt_json_XXXXXX";

static void write_file(const char *text)
{
    FILE *f = fopen(path, "w");
    ck_assert_ptr_nonnull(f);
    ck_assert_int_ge(fputs(text, f), 0);
    ck_assert_int_eq(fclose(f), 0);
}

static void expect(dt_status got, dt_status want, const char *text)
{
    ck_ok(test_expect(got, want, text, text));
}

START_TEST(load)
{
    json_t *root = NULL;
    write_file("{\"a\": 1,\n \"b\": {\"a\": 2}}");
    ck_ok(dt_json_load(path, &root));
    ck_assert_uint_eq(json_object_size(root), 2);
    json_decref(root);

    json_t *const before = NULL;
    root = before;
    write_file("{\"a\": 1,\n\n \"a\": 2}");
    expect(dt_json_load(path, &root), DT_ERR_FORMAT, "duplicate object key");
    expect(dt_json_load(path, &root), DT_ERR_FORMAT, ":3: "); /* the line */
    write_file("{\"a\": 1,\n}");
    expect(dt_json_load(path, &root), DT_ERR_FORMAT, path);
    write_file("[1]");
    expect(dt_json_load(path, &root), DT_ERR_FORMAT, "must be a JSON object");
    write_file("");
    expect(dt_json_load(path, &root), DT_ERR_FORMAT, path);
    expect(dt_json_load("/nowhere.json", &root), DT_ERR_IO, "/nowhere.json: No such file");
    expect(dt_json_load("/tmp", &root), DT_ERR_IO, "/tmp: is a folder");
    ck_assert_ptr_eq(root, before);
}
END_TEST

START_TEST(parse)
{
    json_t *root;
    ck_ok(dt_json_parse("{\"a\": 1}   trailing", 8, "memory", &root));
    json_decref(root);
    expect(dt_json_parse("{\"a\": 1} x", 10, "memory", &root), DT_ERR_FORMAT, "memory:1:");
    expect(dt_json_parse("{\"a\": 1, \"a\": 1}", 16, "header", &root), DT_ERR_FORMAT, "duplicate");
}
END_TEST

START_TEST(fields)
{
    const char *text =
        "{\"i\": 9007199254740993, \"d\": 1e-5, \"b\": true, \"s\": \"x\", \"n\": null}";
    json_t *o;
    ck_ok(dt_json_parse(text, strlen(text), "cfg", &o));
    int64_t i = 0;
    double d = 0;
    bool b = false;
    const char *s = "";
    ck_ok(dt_json_int(o, "cfg", "i", NULL, &i));
    ck_assert_int_eq(i, 9007199254740993);
    ck_ok(dt_json_double(o, "cfg", "d", NULL, &d));
    ck_assert(d == 1e-5);
    ck_ok(dt_json_bool(o, "cfg", "b", NULL, &b));
    ck_assert(b);
    ck_ok(dt_json_string(o, "cfg", "s", NULL, &s));
    ck_assert_str_eq(s, "x");
    ck_ok(dt_json_double(o, "cfg", "i", NULL, &d)); /* an integer is a number */
    ck_assert(d == 9007199254740992.0);

    const char *absent[] = {"gone", "n"}; /* null is as good as missing */
    for (int k = 0; k < 2; k++) {
        ck_ok(dt_json_int(o, "cfg", absent[k], &(int64_t){-3}, &i));
        ck_ok(dt_json_double(o, "cfg", absent[k], &(double){0.5}, &d));
        ck_ok(dt_json_bool(o, "cfg", absent[k], &(bool){false}, &b));
        ck_ok(dt_json_string(o, "cfg", absent[k], "def", &s));
        ck_assert(i == -3 && d == 0.5 && !b && strcmp(s, "def") == 0);
        expect(dt_json_int(o, "cfg", absent[k], NULL, &i), DT_ERR_FORMAT, absent[k]);
        expect(dt_json_double(o, "cfg", absent[k], NULL, &d), DT_ERR_FORMAT, "is missing");
        expect(dt_json_bool(o, "cfg", absent[k], NULL, &b), DT_ERR_FORMAT, "cfg: field");
        expect(dt_json_string(o, "cfg", absent[k], NULL, &s), DT_ERR_FORMAT, "a string");
    }
    expect(dt_json_int(o, "cfg", "d", NULL, &i), DT_ERR_FORMAT,
           "'d' must be an integer, is a number");
    expect(dt_json_double(o, "cfg", "s", &d, &d), DT_ERR_FORMAT,
           "'s' must be a number, is a string");
    expect(dt_json_bool(o, "cfg", "i", NULL, &b), DT_ERR_FORMAT, "'i' must be true or false");
    expect(dt_json_string(o, "cfg", "b", NULL, &s), DT_ERR_FORMAT, "'b' must be a string, is true");
    json_decref(o);
}
END_TEST

int main(void)
{
    if (close(mkstemp(path)) != 0)
        return EXIT_FAILURE;
    Suite *suite = suite_create("json");
    TCase *tests = tcase_create("json");
    tcase_add_test(tests, load);
    tcase_add_test(tests, parse);
    tcase_add_test(tests, fields);
    suite_add_tcase(suite, tests);
    const int result = test_main(suite);
    (void)unlink(path);
    return result;
}
