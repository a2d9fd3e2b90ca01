/* tests/data/test_dataset.c - what batches contain, against the formulas of the file formats; and
 * every bad file. */
#include "data/dt_data.h"
#include "tests/harness.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MOST = 64, MAGIC = 20240520 };

static char folder[] = "/tmp/dt_data_XXXXXX";
static char text_path[64], token_path[64], label_path[64], plain_path[64];

static void write_file(const char *path, const void *data, size_t size_bytes)
{
    FILE *f = fopen(path, "wb");
    ck_assert_ptr_nonnull(f);
    ck_assert_uint_eq(fwrite(data, 1, size_bytes, f), size_bytes);
    ck_assert_int_eq(fclose(f), 0);
}

/* A token file of n tokens, token i = 3000 i mod 65521; its header says `count`. */
static void write_tokens(const char *path, int32_t magic, int32_t version, int32_t count, int n)
{
    static unsigned char file[1024 + 2 * MOST];
    memset(file, 0, sizeof file);
    memcpy(file, (int32_t[]){magic, version, count}, 12);
    for (int i = 0; i < n; i++) {
        const unsigned token = 3000u * (unsigned)i % 65521u;
        file[1024 + 2 * i] = (unsigned char)(token & 255);
        file[1025 + 2 * i] = (unsigned char)(token >> 8);
    }
    write_file(path, file, 1024 + 2 * (size_t)n);
}

/* Bytes 200, 201, ... modulo 256: also above 127. */
static void write_text(const char *path, int n)
{
    unsigned char text[MOST];
    for (int i = 0; i < n; i++)
        text[i] = (unsigned char)(200 + i);
    write_file(path, text, (size_t)n);
}

static dt_dataset *opened(const char *path, const dt_dataset_options *options)
{
    dt_dataset *ds = NULL;
    ck_ok(dt_dataset_open(path, options, &ds));
    return ds;
}

static void open_fails(const char *path, const dt_dataset_options *options, dt_status want,
                       const char *message)
{
    dt_dataset *ds = NULL;
    ck_ok(test_expect(dt_dataset_open(path, options, &ds), want, message, path));
    ck_assert_ptr_null(ds);
}

/* Samples [lo, hi) must begin at token positions at[lo], at[lo + 1] ... */
static void check_batch(const dt_dataset *ds, dt_batch b, int32_t (*token)(int64_t),
                        const int64_t *at)
{
    int32_t ids[MOST], targets[MOST];
    ids[(b.hi - b.lo) * b.seq_len] = targets[(b.hi - b.lo) * b.seq_len] = -7;
    ck_ok(dt_dataset_batch(ds, &b, ids, targets));
    for (int64_t j = b.lo; j < b.hi; j++)
        for (int64_t t = 0; t < b.seq_len; t++) {
            ck_assert_int_eq(ids[(j - b.lo) * b.seq_len + t], token(at[j] + t));
            ck_assert_int_eq(targets[(j - b.lo) * b.seq_len + t], token(at[j] + t + 1));
        }
    ck_assert_int_eq(ids[(b.hi - b.lo) * b.seq_len], -7);
    ck_assert_int_eq(targets[(b.hi - b.lo) * b.seq_len], -7);
}

static int32_t text_token(int64_t i)
{
    return (int32_t)((200 + i) % 256);
}

static int32_t file_token(int64_t i)
{
    return (int32_t)(3000 * i % 65521);
}

START_TEST(text_and_tokens)
{
    write_text(text_path, 60);
    dt_dataset *ds = opened(text_path, NULL);
    ck_assert(dt_dataset_length(ds) == 60 && dt_dataset_format(ds) == DT_DATA_TEXT);
    check_batch(ds, (dt_batch){.position = 8, .global_batch = 4, .seq_len = 4, .lo = 0, .hi = 4},
                text_token, (int64_t[]){8, 12, 16, 20});
    check_batch(ds, (dt_batch){.position = 9, .global_batch = 4, .seq_len = 4, .lo = 1, .hi = 3},
                text_token, (int64_t[]){0, 13, 17});
    const dt_batch none = {.position = 8, .global_batch = 4, .seq_len = 4, .lo = 2, .hi = 2};
    ck_ok(dt_dataset_batch(ds, &none, NULL, NULL));
    dt_dataset_close(&ds);
    ck_assert_ptr_null(ds);
    dt_dataset_close(&ds);

    write_tokens(token_path, MAGIC, 1, 50, 50);
    ds = opened(token_path, &(dt_dataset_options){.vocab = 65521, .seq_len = 49});
    ck_assert(dt_dataset_length(ds) == 50 && dt_dataset_format(ds) == DT_DATA_TOKENS);
    check_batch(ds, (dt_batch){.position = 3, .global_batch = 2, .seq_len = 5, .lo = 0, .hi = 2},
                file_token, (int64_t[]){3, 8});
    dt_dataset_close(&ds);
    write_tokens(plain_path, MAGIC, 1, 50,
                 50); /* found by its magic number; text if that is asked for */
    ds = opened(plain_path, NULL);
    ck_assert(dt_dataset_format(ds) == DT_DATA_TOKENS);
    dt_dataset_close(&ds);
    ds = opened(plain_path, &(dt_dataset_options){.format = DT_DATA_TEXT});
    ck_assert_int_eq(dt_dataset_length(ds), 1024 + 100);
    dt_dataset_close(&ds);
}
END_TEST

/* 13 tokens, T = 3: four whole samples, at 0, 3, 6 and 9. */
START_TEST(wrap)
{
    write_text(text_path, 13);
    dt_dataset *ds = opened(text_path, NULL);
    dt_batch two = {.position = 6, .global_batch = 2, .seq_len = 3, .lo = 0, .hi = 2};
    check_batch(ds, two, text_token, (int64_t[]){6, 9}); /* the last step that fits */
    two.position = 7;                                    /* one token short: starts over */
    check_batch(ds, two, text_token, (int64_t[]){0, 3});
    two.position = 1000; /* saved by a run on longer data */
    check_batch(ds, two, text_token, (int64_t[]){0, 3});
    const dt_batch round = {.position = 3, .global_batch = 6, .seq_len = 3, .lo = 0, .hi = 6};
    check_batch(ds, round, text_token,
                (int64_t[]){0, 3, 6, 9, 0, 3}); /* a step larger than the data */
    dt_dataset_close(&ds);
}
END_TEST

START_TEST(positions)
{
    /* length, position, B, T -> start, next */
    static const int64_t rows[][6] = {
        {13, 0, 2, 3, 0, 6},        {13, 6, 2, 3, 6, 12}, {13, 12, 2, 3, 0, 6},
        {13, 7, 2, 3, 0, 6},        {13, 0, 4, 3, 0, 12}, {13, 12, 4, 3, 0, 12},
        {13, 0, 5, 3, 0, 0},        {13, 3, 5, 3, 0, 0},  {12, 0, 4, 3, 0, 0},
        {4, 0, 1, 3, 0, 3},         {4, 3, 1, 3, 0, 3},   {13, INT64_MAX, 2, 3, 0, 6},
        {13, 0, INT64_MAX, 3, 0, 0}};
    for (int i = 0; i < DT_COUNT(rows); i++) {
        const int64_t *r = rows[i];
        ck_assert_int_eq(dt_dataset_position_start(r[0], r[1], r[2], r[3]), r[4]);
        ck_assert_int_eq(dt_dataset_position_next(r[0], r[1], r[2], r[3]), r[5]);
    }
}
END_TEST

/* The golden files' rule: entry (s*B + j)*T + t of the labels is the target of sample j of step s
 * at t. */
START_TEST(labels)
{
    enum { B = 3, T = 4, STEPS = 2, LABELS = STEPS * B * T };
    int32_t label[LABELS];
    for (int i = 0; i < LABELS; i++)
        label[i] = i % 5 == 0 ? DT_LABEL_IGNORED : 1000 + i;
    write_tokens(token_path, MAGIC, 1, LABELS + 1, LABELS + 1);
    write_file(label_path, label, sizeof label);
    dt_dataset *ds = opened(token_path, &(dt_dataset_options){.labels_path = label_path});
    int64_t position = 0;
    for (int s = 0; s < STEPS; s++) {
        int32_t ids[B * T], targets[B * T];
        const dt_batch b = {
            .position = position, .global_batch = B, .seq_len = T, .lo = 0, .hi = B};
        ck_ok(dt_dataset_batch(ds, &b, ids, targets));
        for (int i = 0; i < B * T; i++) {
            ck_assert_int_eq(ids[i], file_token(s * B * T + i));
            ck_assert_int_eq(targets[i], label[s * B * T + i]);
        }
        position = dt_dataset_position_next(LABELS + 1, position, B, T);
    }
    dt_dataset_close(&ds);
    /* of what is held out: 12 of 25 tokens */
    ds = opened(token_path, &(dt_dataset_options){
                                .labels_path = label_path, .held_out = 0.5, .evaluation = true});
    int32_t ids[T], targets[T];
    ck_ok(dt_dataset_batch(ds, &(dt_batch){0, 1, T, 0, 1}, ids, targets));
    for (int i = 0; i < T; i++) {
        ck_assert_int_eq(ids[i], file_token(13 + i));
        ck_assert_int_eq(targets[i], label[13 + i]);
    }
    dt_dataset_close(&ds);
}
END_TEST

/* Any split of a step over ranks reads the same samples. */
START_TEST(split_does_not_matter)
{
    enum { B = 5, T = 3 };
    write_text(text_path, 24);
    dt_dataset *ds = opened(text_path, NULL);
    for (int64_t position = 0; position < 24; position += 2) {
        int32_t ids[B * T], targets[B * T];
        const dt_batch all = {
            .position = position, .global_batch = B, .seq_len = T, .lo = 0, .hi = B};
        ck_ok(dt_dataset_batch(ds, &all, ids, targets));
        for (int lo = 0; lo < B; lo++) {
            int32_t one[T], next[T];
            dt_batch b = all;
            b.lo = lo;
            b.hi = lo + 1;
            ck_ok(dt_dataset_batch(ds, &b, one, next));
            ck_assert_mem_eq(one, ids + lo * T, sizeof one);
            ck_assert_mem_eq(next, targets + lo * T, sizeof next);
        }
    }
    dt_dataset_close(&ds);
}
END_TEST

START_TEST(bad_files)
{
    const dt_dataset_options tokens = {.format = DT_DATA_TOKENS};
    open_fails("/nowhere/x.txt", NULL, DT_ERR_IO, "/nowhere/x.txt: No such file");
    open_fails(folder, NULL, DT_ERR_IO, "must be a regular file");
    write_file(text_path, "", 0);
    open_fails(text_path, NULL, DT_ERR_FORMAT, "the file is empty");
    write_text(text_path, 8);
    open_fails(text_path, &(dt_dataset_options){.seq_len = 8}, DT_ERR_FORMAT,
               "8 tokens are too few for one sample of seq_len + 1 = 9");
    open_fails(text_path, &tokens, DT_ERR_FORMAT, "8 bytes are too few for the 1024 bytes");
    write_tokens(token_path, 20240521, 1, 9, 9);
    open_fails(token_path, NULL, DT_ERR_FORMAT, "magic number is 20240521, must be 20240520");
    write_tokens(plain_path, 20240521, 1, 9, 9);
    open_fails(plain_path, &tokens, DT_ERR_FORMAT, "magic number is 20240521");
    write_tokens(token_path, MAGIC, 2, 9, 9);
    open_fails(token_path, NULL, DT_ERR_FORMAT, "version 2, must be 1");
    write_tokens(token_path, MAGIC, 1, 10, 9);
    open_fails(token_path, NULL, DT_ERR_FORMAT,
               "truncated: the header says 10 tokens, the file holds 9");
    write_tokens(token_path, MAGIC, 1, 8, 9);
    open_fails(token_path, NULL, DT_ERR_FORMAT, "wrong size: the header says 8 tokens");
    write_tokens(token_path, MAGIC, 1, -1, 9);
    open_fails(token_path, NULL, DT_ERR_FORMAT, "the header says -1 tokens");
    write_tokens(token_path, MAGIC, 1, 0, 0);
    open_fails(token_path, NULL, DT_ERR_FORMAT, "0 tokens are too few");
    open_fails(text_path, &(dt_dataset_options){.format = DT_DATA_MEGATRON}, DT_ERR_IO,
               "text.txt.bin: No such file");
    open_fails("/data/corpus.idx", NULL, DT_ERR_IO, "/data/corpus.bin: No such file");
}
END_TEST

START_TEST(bad_labels)
{
    write_text(text_path, 9);
    const dt_dataset_options options = {.labels_path = label_path, .vocab = 256};
    const dt_batch b = {.position = 4, .global_batch = 1, .seq_len = 4, .lo = 0, .hi = 1};
    int32_t label[8] = {0}, ids[4], targets[4];
    open_fails(text_path, &(dt_dataset_options){.labels_path = "/nowhere.bin"}, DT_ERR_IO,
               "/nowhere.bin");
    write_file(label_path, label, 28);
    open_fails(text_path, &options, DT_ERR_FORMAT, "7 labels are too few");
    write_file(label_path, label, 31);
    open_fails(text_path, &options, DT_ERR_FORMAT, "31 bytes are not a whole number of int32");
    const int32_t bad[] = {256, -1, -99, INT32_MAX, INT32_MIN};
    for (int i = 0; i < DT_COUNT(bad); i++) {
        char message[64];
        (void)snprintf(message, sizeof message, "label %d at position 6, must be -100 ", bad[i]);
        label[6] = bad[i];
        write_file(label_path, label, sizeof label);
        dt_dataset *ds = opened(text_path, &options);
        ck_ok(test_expect(dt_dataset_batch(ds, &b, ids, targets), DT_ERR_FORMAT, message, "batch"));
        dt_dataset_close(&ds);
    }
}
END_TEST

START_TEST(bad_tokens_and_batches)
{
    int32_t ids[8], targets[8];
    dt_batch b = {.position = 0, .global_batch = 2, .seq_len = 4, .lo = 0, .hi = 2};
    write_text(text_path, 9); /* 200 .. 208 */
    dt_dataset *ds = opened(text_path, &(dt_dataset_options){.vocab = 208});
    ck_ok(test_expect(dt_dataset_batch(ds, &b, ids, targets), DT_ERR_FORMAT,
                      "token 208 at position 8, must be below vocab = 208", "the last target"));
    b.hi = 1; /* the sample before it is good */
    ck_ok(dt_dataset_batch(ds, &b, ids, targets));
    b.seq_len = 9;
    ck_ok(test_expect(dt_dataset_batch(ds, &b, ids, targets), DT_ERR_FORMAT, "9 tokens are too few",
                      ""));
    const dt_batch bad[] = {{0, 2, 0, 0, 2},  {0, 0, 4, 0, 0}, {-1, 2, 4, 0, 2},
                            {0, 2, 4, -1, 2}, {0, 2, 4, 2, 1}, {0, 2, 4, 0, 3}};
    for (int i = 0; i < DT_COUNT(bad); i++)
        ck_ok(test_expect(dt_dataset_batch(ds, &bad[i], ids, targets), DT_ERR_ARG,
                          "global_batch=", ""));
    dt_dataset_close(&ds);
}
END_TEST

START_TEST(format_names)
{
    dt_data_format f = DT_DATA_AUTO;
    ck_ok(dt_data_format_parse("Tokens", &f));
    ck_assert(f == DT_DATA_TOKENS);
    ck_ok(dt_data_format_parse("megatron", &f));
    ck_assert(f == DT_DATA_MEGATRON);
    ck_ok(
        test_expect(dt_data_format_parse("csv", &f), DT_ERR_ARG, "'csv'; legal: auto, text,", ""));
}
END_TEST

static Suite *make_suite(void)
{
    Suite *suite = suite_create("dataset");
    TCase *tests = tcase_create("dataset");
    tcase_add_test(tests, text_and_tokens);
    tcase_add_test(tests, wrap);
    tcase_add_test(tests, positions);
    tcase_add_test(tests, labels);
    tcase_add_test(tests, split_does_not_matter);
    tcase_add_test(tests, bad_files);
    tcase_add_test(tests, bad_labels);
    tcase_add_test(tests, bad_tokens_and_batches);
    tcase_add_test(tests, format_names);
    suite_add_tcase(suite, tests);
    return suite;
}

int main(void)
{
    if (!mkdtemp(folder))
        return EXIT_FAILURE;
    char *const path[] = {text_path, token_path, label_path, plain_path};
    const char *const name[] = {"text.txt", "tokens.bin", "labels.bin", "plain"};
    for (int i = 0; i < DT_COUNT(path); i++)
        (void)snprintf(path[i], sizeof text_path, "%s/%s", folder, name[i]);
    const int result = test_main(make_suite());
    for (int i = 0; i < DT_COUNT(path); i++)
        (void)unlink(path[i]);
    (void)rmdir(folder);
    return result;
}
