/* tests/checkpoint/test_safetensors.c - reading blocks of every type, writing whole files. */
#include "base/dt_json.h"
#include "tests/checkpoint/files.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

static char folder[FILES_PATH], path[FILES_PATH + 64];
static dt_heap *heap;

static void begin(void)
{
    files_begin(folder);
    (void)snprintf(path, sizeof path, "%s/m.safetensors", folder);
    ck_ok(dt_heap_create((dt_device){DT_CPU, 0}, NULL, &heap));
}

static void end(void)
{
    dt_heap_destroy(&heap);
    files_end(folder);
}

static dt_array make(dt_dtype dtype, dt_shape shape)
{
    dt_array out = {0};
    ck_ok(dt_array_create(heap, dtype, shape, DT_TAG_WORKSPACE, &out));
    return out;
}

/* ---- types ---- */

/* 1, -2.5, 0.15625 in every type, bits by hand (IEEE 754). */
static const char types_header[] =
    "{\"f32\":{\"dtype\":\"F32\",\"shape\":[3],\"data_offsets\":[0,12]},"
    "\"bf16\":{\"dtype\":\"BF16\",\"shape\":[3],\"data_offsets\":[12,18]},"
    "\"f16\":{\"dtype\":\"F16\",\"shape\":[3],\"data_offsets\":[18,24]},"
    "\"f64\":{\"dtype\":\"F64\",\"shape\":[3],\"data_offsets\":[24,48]},"
    "\"bool\":{\"dtype\":\"BOOL\",\"shape\":[2],\"data_offsets\":[48,50]},"
    "\"i32\":{\"dtype\":\"I32\",\"shape\":[1],\"data_offsets\":[50,54]},"
    "\"empty\":{\"dtype\":\"F32\",\"shape\":[4,0],\"data_offsets\":[54,54]}}";

static void put_types(void)
{
    static const uint32_t f32[] = {0x3f800000, 0xc0200000, 0x3e200000};
    static const uint16_t bf16[] = {0x3f80, 0xc020, 0x3e20}, f16[] = {0x3c00, 0xc100, 0x3100};
    static const uint64_t f64[] = {0x3ff0000000000000, 0xc004000000000000, 0x3fc4000000000000};
    static const int32_t i32[] = {-7};
    char data[54];
    memcpy(data, f32, 12);
    memcpy(data + 12, bf16, 6);
    memcpy(data + 18, f16, 6);
    memcpy(data + 24, f64, 24);
    memcpy(data + 48, "\1\0", 2);
    memcpy(data + 50, i32, 4);
    files_put(folder, "m.safetensors", types_header, data, sizeof data);
}

START_TEST(test_types)
{
    static const char *const floats[] = {"f32", "bf16", "f16", "f64"};
    static const dt_dtype dtypes[] = {DT_F32, DT_BF16, DT_F16, DT_F64};
    static const double want[] = {1, -2.5, 0.15625};
    dt_safetensors *st = NULL;
    const int64_t zero[DT_MAX_DIMS] = {0};
    put_types();
    ck_ok(dt_safetensors_open(path, &st));
    ck_assert_int_eq(dt_safetensors_count(st), 7);
    for (int i = 0; i < 16; i++) { /* from every float to every float */
        const dt_safetensors_entry *e = dt_safetensors_find(st, floats[i / 4]);
        ck_assert(e && e->dtype == dtypes[i / 4]);
        dt_array out = make(dtypes[i % 4], DT_SHAPE(3)), wide = make(DT_F64, DT_SHAPE(3));
        ck_ok(dt_safetensors_read(st, e, e->shape, zero, &out));
        dt_array_cast(&wide, &out);
        ck_assert(memcmp(test_look(&wide), want, sizeof want) == 0);
        dt_array_release(&out);
        dt_array_release(&wide);
    }
    dt_array i32 = make(DT_I32, DT_SHAPE(1)), f32 = make(DT_F32, DT_SHAPE(1));
    const dt_safetensors_entry *e = dt_safetensors_find(st, "i32");
    ck_ok(dt_safetensors_read(st, e, e->shape, zero, &i32));
    ck_assert_int_eq(*(int32_t *)test_look(&i32), -7);
    ck_ok(test_expect(dt_safetensors_read(st, e, e->shape, zero, &f32), DT_ERR_UNSUPPORTED, "'i32'",
                      ""));
    e = dt_safetensors_find(st, "bool");
    ck_assert(e && e->dtype == DT_NDTYPES && strcmp(e->dtype_name, "BOOL") == 0);
    dt_array two = make(DT_F32, DT_SHAPE(2));
    ck_ok(test_expect(dt_safetensors_read(st, e, e->shape, zero, &two), DT_ERR_UNSUPPORTED, "BOOL",
                      ""));
    dt_array_release(&two);
    dt_array_release(&i32);
    dt_array_release(&f32);
    e = dt_safetensors_find(st, "empty");
    dt_array none = make(DT_F32, e->shape);
    ck_ok(dt_safetensors_read(st, e, e->shape, zero, &none));
    dt_array_release(&none);
    ck_assert(!dt_safetensors_find(st, "f3") && !dt_safetensors_find(st, "f320"));
    dt_safetensors_close(&st);
}
END_TEST

/* ---- blocks ---- */

/* Every block of a [3, 4, 2] tensor holds the right elements and costs its own bytes. */
START_TEST(test_blocks)
{
    float whole[24];
    for (int i = 0; i < 24; i++)
        whole[i] = (float)i;
    const dt_safetensors_item item = {"w", DT_F32, DT_SHAPE(6, 4), whole};
    const dt_shape view = DT_SHAPE(3, 4, 2); /* other dims over the same bytes */
    dt_safetensors *st = NULL;
    ck_ok(dt_safetensors_write(path, 1, &item, NULL));
    ck_ok(dt_safetensors_open(path, &st));
    const dt_safetensors_entry *e = dt_safetensors_get(st, 0);
    int64_t total = 0;
    for (int code = 0; code < 4 * 4 * 5 * 5 * 3 * 3; code++) {
        const int64_t lo[3] = {code % 4, code / 16 % 5, code / 400 % 3};
        const int64_t hi[3] = {code / 4 % 4, code / 80 % 5, code / 1200};
        if (lo[0] > hi[0] || lo[1] > hi[1] || lo[2] > hi[2])
            continue;
        dt_array out = make(DT_F32, DT_SHAPE(hi[0] - lo[0], hi[1] - lo[1], hi[2] - lo[2]));
        ck_ok(dt_safetensors_read(st, e, view, lo, &out));
        const float *got = test_look(&out);
        for (int64_t i = lo[0], at = 0; i < hi[0]; i++)
            for (int64_t j = lo[1]; j < hi[1]; j++)
                for (int64_t k = lo[2]; k < hi[2]; k++)
                    ck_assert(got[at++] == (float)(i * 8 + j * 2 + k));
        total += (int64_t)dt_array_bytes(&out);
        ck_assert_int_eq(dt_safetensors_bytes_read(st), total);
        dt_array_release(&out);
    }
    dt_array out = make(DT_F32, DT_SHAPE(2, 4, 2));
    ck_ok(test_expect(dt_safetensors_read(st, e, view, (int64_t[]){2, 0, 0}, &out), DT_ERR_SHAPE,
                      "'w'", ""));
    ck_ok(test_expect(dt_safetensors_read(st, e, view, (int64_t[]){-1, 0, 0}, &out), DT_ERR_SHAPE,
                      "'w'", ""));
    ck_ok(test_expect(dt_safetensors_read(st, e, DT_SHAPE(3, 4, 3), (int64_t[]){0, 0, 0}, &out),
                      DT_ERR_SHAPE, "cannot be read as [3, 4, 3]", ""));
    ck_ok(test_expect(dt_safetensors_read(st, e, DT_SHAPE(6, 4), (int64_t[]){0, 0}, &out),
                      DT_ERR_SHAPE, "'w'", ""));
    dt_array_release(&out);
    dt_safetensors_close(&st);
}
END_TEST

/* Longer than what is read at once. */
START_TEST(test_long)
{
    enum { N = 3000001 };
    float *whole = malloc(sizeof(float) * N);
    ck_assert(whole != NULL);
    for (int i = 0; i < N; i++)
        whole[i] = (float)i;
    const dt_safetensors_item item = {"w", DT_F32, DT_SHAPE(N), whole};
    dt_safetensors *st = NULL;
    ck_ok(dt_safetensors_write(path, 1, &item, NULL));
    ck_ok(dt_safetensors_open(path, &st));
    dt_array out = make(DT_F32, DT_SHAPE(N - 2));
    ck_ok(dt_safetensors_read(st, dt_safetensors_get(st, 0), DT_SHAPE(N), (int64_t[]){1}, &out));
    ck_assert(memcmp(test_look(&out), whole + 1, dt_array_bytes(&out)) == 0);
    dt_array_release(&out);
    dt_safetensors_close(&st);
    free(whole);
}
END_TEST

START_TEST(test_no_tensors)
{
    dt_safetensors *st = NULL;
    files_put(folder, "m.safetensors", "{}", "", 0);
    ck_ok(dt_safetensors_open(path, &st));
    ck_assert(dt_safetensors_count(st) == 0 && !dt_safetensors_find(st, "a"));
    dt_safetensors_close(&st);
}
END_TEST

/* Offsets past 4 GiB; nearly all of the file is a hole. */
START_TEST(test_huge)
{
    static const char header[] = "{\"a\":{\"dtype\":\"F32\",\"shape\":[1250000000],"
                                 "\"data_offsets\":[0,5000000000]},\"b\":{\"dtype\":\"F32\","
                                 "\"shape\":[4],\"data_offsets\":[5000000000,5000000016]}}";
    const float last[] = {7, 1, 2, 3, 4}; /* of a, and b */
    const int64_t end = 8 + (int64_t)strlen(header) + INT64_C(5000000016);
    dt_safetensors *st = NULL;
    files_put(folder, "m.safetensors", header, "", 0);
    FILE *f = fopen(path, "r+b");
    ck_assert(f && ftruncate(fileno(f), end) == 0 && fseeko(f, -20, SEEK_END) == 0 &&
              fwrite(last, sizeof last, 1, f) == 1 && fclose(f) == 0);
    ck_ok(dt_safetensors_open(path, &st));
    for (int i = 0; i < 2; i++) {
        const dt_safetensors_entry *e = dt_safetensors_get(st, i);
        dt_array out = make(DT_F32, DT_SHAPE(i ? 4 : 1));
        ck_ok(dt_safetensors_read(st, e, e->shape, (int64_t[]){i ? 0 : 1249999999}, &out));
        ck_assert(memcmp(dt_array_data(&out), last + i, dt_array_bytes(&out)) == 0);
        dt_array_release(&out);
    }
    dt_safetensors_close(&st);
}
END_TEST

/* ---- writing ---- */

/* The bytes follow the format: length a multiple of 8, JSON, data in the order given. */
START_TEST(test_written)
{
    static const float a[] = {1, 2};
    static const uint16_t b[] = {7, 8, 9};
    const dt_safetensors_item items[] = {{"b", DT_BF16, DT_SHAPE(3, 1), b},
                                         {"a", DT_F32, DT_SHAPE(2), a},
                                         {"scalar", DT_F32, DT_SCALAR, a}};
    static const char *const metadata[] = {"format", "pt", "step", "3", NULL};
    size_t bytes;
    ck_ok(dt_safetensors_write(path, 3, items, metadata));
    char *all = files_get(folder, "m.safetensors", &bytes);
    uint64_t length;
    memcpy(&length, all, 8);
    ck_assert(length % 8 == 0 && bytes == 8 + length + 6 + 8 + 4);
    json_t *header = NULL, *want = NULL;
    ck_ok(dt_json_parse(all + 8, length, "written", &header));
    static const char text[] =
        "{\"__metadata__\":{\"format\":\"pt\",\"step\":\"3\"},"
        "\"b\":{\"dtype\":\"BF16\",\"shape\":[3,1],\"data_offsets\":[0,6]},"
        "\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[6,14]},"
        "\"scalar\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[14,18]}}";
    ck_ok(dt_json_parse(text, strlen(text), "wanted", &want));
    ck_assert(json_equal(header, want));
    ck_assert(memcmp(all + 8 + length, b, 6) == 0 && memcmp(all + 8 + length + 6, a, 8) == 0);
    ck_assert(!files_exists(folder, "m.safetensors.tmp"));
    json_decref(header);
    json_decref(want);
    free(all);
}
END_TEST

/* What fails leaves the old file and nothing else. */
START_TEST(test_write_fails)
{
    static float zeros[20000];
    const dt_safetensors_item old = {"old", DT_F32, DT_SHAPE(1), zeros};
    const dt_safetensors_item twice[] = {{"a", DT_F32, DT_SHAPE(1), zeros},
                                         {"a", DT_F32, DT_SHAPE(1), zeros}};
    const dt_safetensors_item big = {"big", DT_F32, DT_SHAPE(20000), zeros};
    dt_safetensors *st = NULL;
    ck_ok(dt_safetensors_write(path, 1, &old, NULL));
    ck_ok(test_expect(dt_safetensors_write(path, 2, twice, NULL), DT_ERR_ARG, "'a'", ""));
    ck_ok(test_expect(dt_safetensors_write("/nowhere/m", 1, &old, NULL), DT_ERR_IO, "/nowhere/m",
                      ""));
    struct rlimit before, small;
    ck_assert(getrlimit(RLIMIT_FSIZE, &before) == 0);
    small = before;
    small.rlim_cur = 40000;
    (void)signal(SIGXFSZ, SIG_IGN);
    ck_assert(setrlimit(RLIMIT_FSIZE, &small) == 0);
    const dt_status got = dt_safetensors_write(path, 1, &big, NULL);
    ck_assert(setrlimit(RLIMIT_FSIZE, &before) == 0);
    ck_ok(test_expect(got, DT_ERR_IO, "m.safetensors.tmp: File too large", ""));
    ck_assert(!files_exists(folder, "m.safetensors.tmp"));
    ck_ok(dt_safetensors_open(path, &st));
    ck_assert(dt_safetensors_find(st, "old") && dt_safetensors_count(st) == 1);
    dt_safetensors_close(&st);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("safetensors");
    TCase *tc = tcase_create("safetensors");
    tcase_add_checked_fixture(tc, begin, end);
    tcase_set_timeout(tc, 60);
    tcase_add_test(tc, test_types);
    tcase_add_test(tc, test_blocks);
    tcase_add_test(tc, test_long);
    tcase_add_test(tc, test_no_tensors);
    tcase_add_test(tc, test_huge);
    tcase_add_test(tc, test_written);
    tcase_add_test(tc, test_write_fails);
    suite_add_tcase(suite, tc);
    return test_main(suite);
}
