/* tests/checkpoint/test_hostile.c - files that lie: each is an error that names file and tensor.
 * And 2000 damaged files, none of which may crash the reader (run it under sanitizers). */
#include "tests/checkpoint/files.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static char folder[FILES_PATH];

static void open_folder(void)
{
    files_begin(folder);
}

static void close_folder(void)
{
    files_end(folder);
}

/* Opening folder/name, or the folder for "", fails with `status` and a message with both texts. */
static void refuse(const char *name, dt_status status, const char *text, const char *tensor)
{
    char path[FILES_PATH + 64];
    dt_safetensors *st = NULL;
    (void)snprintf(path, sizeof path, "%s/%s", folder, name);
    const dt_status got = dt_safetensors_open(path, &st);
    ck_assert_msg(got == status, "%s: %s", text, dt_status_string(got));
    ck_assert(st == NULL);
    ck_assert_msg(strstr(dt_error_trace(), folder) && strstr(dt_error_trace(), text) &&
                      strstr(dt_error_trace(), tensor),
                  "wanted '%s' and '%s' in: %s", text, tensor, dt_error_trace());
}

#define T(rest) "{\"w.x\":{" rest "}}"

static const struct {
    const char *header;
    size_t data_bytes;
    const char *text, *tensor;
} bad[] = {
    {"", 0, ":1:", ""},
    {"not JSON", 0, ":1:", ""},
    {"{\"w.x\":", 0, ":1:", ""},
    {"[1, 2]", 0, "object", ""},
    {"{}", 3, "last 3 bytes", ""},
    {"{\"__metadata__\":[]}", 0, "__metadata__", ""},
    {"{\"__metadata__\":{\"format\":1}}", 0, "__metadata__", "format"},
    {"{\"w.x\":[]}", 0, "must be an object", "w.x"},
    {"{\"w.x\":null}", 0, "must be an object", "w.x"},
    {T(""), 0, "dtype", "w.x"},
    {T("\"dtype\":7,\"shape\":[],\"data_offsets\":[0,4]"), 4, "dtype", "w.x"},
    {T("\"dtype\":\"F31\",\"shape\":[],\"data_offsets\":[0,4]"), 4, "unknown dtype 'F31'", "w.x"},
    {T("\"dtype\":\"f32\",\"shape\":[],\"data_offsets\":[0,4]"), 4, "unknown dtype 'f32'", "w.x"},
    {T("\"dtype\":\"F32\",\"data_offsets\":[0,4]"), 4, "shape must be an array", "w.x"},
    {T("\"dtype\":\"F32\",\"shape\":{},\"data_offsets\":[0,4]"), 4, "shape must be", "w.x"},
    {T("\"dtype\":\"F32\",\"shape\":[1,1.0],\"data_offsets\":[0,4]"), 4, "dim 1", "w.x"},
    {T("\"dtype\":\"F32\",\"shape\":[-1],\"data_offsets\":[0,4]"), 4, "dim 0", "w.x"},
    {T("\"dtype\":\"F32\",\"shape\":[1,1,1,1,1,1,1,1,1],\"data_offsets\":[0,4]"), 4, "9 dims",
     "w.x"},
    {T("\"dtype\":\"F32\",\"shape\":[4294967296,4294967296],\"data_offsets\":[0,0]"), 0,
     "do not fit F32", "w.x"},
    {T("\"dtype\":\"F32\",\"shape\":[4611686018427387905],\"data_offsets\":[0,4]"), 4,
     "do not fit F32", "w.x"}, /* 2^62 + 1 elements: 4 bytes modulo 2^64 */
    {T("\"dtype\":\"F32\",\"shape\":[99999999999999999999],\"data_offsets\":[0,4]"), 4, ":1:", ""},
    {T("\"dtype\":\"F32\",\"shape\":[1]"), 4, "data_offsets", "w.x"},
    {T("\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0]"), 4, "data_offsets", "w.x"},
    {T("\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4,8]"), 4, "data_offsets", "w.x"},
    {T("\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[\"0\",4]"), 4, "data_offsets", "w.x"},
    {T("\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[-4,0]"), 4, "[-4, 0]", "w.x"},
    {T("\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,0]"), 4, "[4, 0]", "w.x"},
    {T("\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,8]"), 4, "cut short", "w.x"},
    {T("\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[9223372036854775803,"
       "9223372036854775807]"),
     4, "cut short", "w.x"},
    {T("\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,4]"), 4, "do not fit F32 [2]", "w.x"},
    {T("\"dtype\":\"BF16\",\"shape\":[1],\"data_offsets\":[0,4]"), 4, "do not fit BF16", "w.x"},
    {T("\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,8]"), 8, "4 bytes of data before",
     "w.x"},
    {T("\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]"), 7, "last 3 bytes", "w.x"},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]},"
     "\"w.x\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[3,7]}}",
     7, "overlaps 'a'", "w.x"},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]},"
     "\"w.x\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]}}",
     4, "overlaps", "w.x"},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]},"
     "\"w.x\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[5,9]}}",
     9, "1 bytes of data before", "w.x"},
    {"{\"w.x\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]},"
     "\"w.x\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[1,2]}}",
     2, "duplicate", "w.x"},
};

START_TEST(test_headers)
{
    static const char zeros[16] = {0};
    for (int i = 0; i < DT_COUNT(bad); i++) {
        files_put(folder, "m.safetensors", bad[i].header, zeros, bad[i].data_bytes);
        refuse("m.safetensors", DT_ERR_FORMAT, bad[i].text, bad[i].tensor);
    }
}
END_TEST

START_TEST(test_lengths)
{
    static const uint64_t lengths[] = {3,
                                       1000000,
                                       100000001,
                                       UINT64_MAX,
                                       (uint64_t)INT64_MAX + 1,
                                       (uint64_t)INT64_MAX,
                                       UINT64_MAX - 7};
    for (int i = 0; i < DT_COUNT(lengths); i++) {
        files_put_raw(folder, "m.safetensors", lengths[i], "{}", "", 0);
        refuse("m.safetensors", DT_ERR_FORMAT, "header of", "m.safetensors");
    }
    char path[FILES_PATH + 16];
    (void)snprintf(path, sizeof path, "%s/short", folder);
    FILE *out = fopen(path, "w");
    ck_assert(out && fputs("1234567", out) >= 0 && fclose(out) == 0);
    refuse("short", DT_ERR_FORMAT, "7 bytes are too few", "");
    out = fopen(path, "w");
    ck_assert(out && fclose(out) == 0);
    refuse("short", DT_ERR_FORMAT, "0 bytes are too few", "");
    refuse("absent", DT_ERR_IO, "No such file", "absent");
    refuse("", DT_ERR_IO, "neither model.safetensors nor", "");
    refuse("/dev/null/x", DT_ERR_IO, "", ""); /* folder//dev/null/x does not exist */
}
END_TEST

#define ONE(name) "{\"" name "\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}"
#define MAP(text) "{\"metadata\":{},\"weight_map\":" text "}"

static void put_index(const char *text)
{
    char path[FILES_PATH + 64];
    (void)snprintf(path, sizeof path, "%s/model.safetensors.index.json", folder);
    FILE *out = fopen(path, "w");
    ck_assert(out && fputs(text, out) >= 0 && fclose(out) == 0);
}

START_TEST(test_index)
{
    static const struct {
        const char *text;
        dt_status status;
        const char *message, *tensor;
    } cases[] = {
        {"{", DT_ERR_FORMAT, "index.json:1", ""},
        {"{}", DT_ERR_FORMAT, "weight_map", ""},
        {MAP("[]"), DT_ERR_FORMAT, "weight_map", ""},
        {MAP("{\"a\":1}"), DT_ERR_FORMAT, "must name a file", "'a'"},
        {MAP("{\"a\":\"\"}"), DT_ERR_FORMAT, "must name a file", "'a'"},
        {MAP("{\"a\":\"../1.safetensors\"}"), DT_ERR_FORMAT, "must name a file", "'a'"},
        {MAP("{\"a\":\"1.safetensors\",\"a\":\"2.safetensors\"}"), DT_ERR_FORMAT, "duplicate", "a"},
        {MAP("{\"a\":\"9.safetensors\"}"), DT_ERR_IO, "9.safetensors", "'a'"},
        {MAP("{\"a\":\"1.safetensors\",\"z\":\"2.safetensors\"}"), DT_ERR_FORMAT,
         "is not in 2.safetensors", "'z'"},
        {MAP("{\"a\":\"1.safetensors\",\"b\":\"1.safetensors\"}"), DT_ERR_FORMAT,
         "is not in 1.safetensors", "'b'"},
        {MAP("{\"a\":\"2.safetensors\",\"b\":\"1.safetensors\"}"), DT_ERR_FORMAT, "is not in", ""},
        {MAP("{\"a\":\"1.safetensors\",\"b\":\"3.safetensors\"}"), DT_ERR_FORMAT, "'a' stands in",
         "3.safetensors"},
        {MAP("{\"a\":\"1.safetensors\",\"b\":\"4.safetensors\"}"), DT_ERR_FORMAT, "overlaps",
         "4.safetensors"},
    };
    files_put(folder, "1.safetensors", ONE("a"), "x", 1);
    files_put(folder, "2.safetensors", ONE("b"), "x", 1);
    files_put(folder, "3.safetensors", ONE("a"), "x", 1);
    files_put(folder, "4.safetensors",
              "{\"b\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]},"
              "\"c\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}",
              "x", 1);
    for (int i = 0; i < DT_COUNT(cases); i++) {
        put_index(cases[i].text);
        refuse("", cases[i].status, cases[i].message, cases[i].tensor);
    }
    dt_safetensors *st = NULL;
    put_index(MAP("{\"a\":\"1.safetensors\",\"b\":\"2.safetensors\"}"));
    ck_ok(dt_safetensors_open(folder, &st));
    ck_assert_int_eq(dt_safetensors_count(st), 2);
    dt_safetensors_close(&st);
}
END_TEST

/* ---- damage ---- */

static uint64_t next(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

/* Open; read all that can be read. */
static bool try_read(const char *path, dt_heap *heap)
{
    dt_safetensors *st = NULL;
    if (dt_safetensors_open(path, &st) != DT_OK)
        return false;
    for (int i = 0; i < dt_safetensors_count(st); i++) {
        const dt_safetensors_entry *e = dt_safetensors_get(st, i);
        dt_array out = {0};
        if (dt_array_create(heap, DT_F32, e->shape, DT_TAG_WORKSPACE, &out) != DT_OK)
            continue;
        const dt_status got = dt_safetensors_read(st, e, e->shape, (int64_t[DT_MAX_DIMS]){0}, &out);
        ck_assert(got == DT_OK || got == DT_ERR_UNSUPPORTED);
        dt_array_release(&out);
    }
    dt_safetensors_close(&st);
    return true;
}

START_TEST(test_damage)
{
    static const char header[] =
        "{\"__metadata__\":{\"format\":\"pt\"},"
        "\"a\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[0,24]},"
        "\"b\":{\"dtype\":\"BF16\",\"shape\":[4],\"data_offsets\":[24,32]},"
        "\"c\":{\"dtype\":\"F64\",\"shape\":[],\"data_offsets\":[32,40]}}";
    char path[FILES_PATH + 64];
    size_t bytes;
    dt_heap *heap = NULL;
    uint64_t random = 88172645463325252u;
    int opened = 0;
    ck_ok(
        dt_heap_create((dt_device){DT_CPU, 0}, &(dt_heap_options){.limit_bytes = 1 << 20}, &heap));
    files_put(folder, "m.safetensors", header, header, 40);
    (void)snprintf(path, sizeof path, "%s/m.safetensors", folder);
    ck_assert(try_read(path, heap));
    unsigned char *good = files_get(folder, "m.safetensors", &bytes);
    for (int round = 0; round < 2000; round++) {
        unsigned char *flipped = malloc(bytes);
        memcpy(flipped, good, bytes);
        for (uint64_t k = next(&random) % 3 + 1; k > 0; k--)
            flipped[next(&random) % bytes] ^= (unsigned char)(1u << next(&random) % 8);
        const size_t cut = round % 10 == 0 ? next(&random) % bytes : bytes;
        FILE *out = fopen(path, "wb");
        ck_assert(out && fwrite(flipped, 1, cut, out) == cut && fclose(out) == 0);
        opened += try_read(path, heap);
        free(flipped);
    }
    /* Flips in the data, names and metadata leave it readable; all others must not. */
    ck_assert_msg(opened > 100 && opened < 1200, "%d of 2000 opened", opened);
    free(good);
    dt_heap_destroy(&heap);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("hostile safetensors");
    TCase *tc = tcase_create("hostile");
    tcase_add_checked_fixture(tc, open_folder, close_folder);
    tcase_set_timeout(tc, 60);
    tcase_add_test(tc, test_headers);
    tcase_add_test(tc, test_lengths);
    tcase_add_test(tc, test_index);
    tcase_add_test(tc, test_damage);
    suite_add_tcase(suite, tc);
    return test_main(suite);
}
