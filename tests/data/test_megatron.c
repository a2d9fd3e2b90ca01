/* tests/data/test_megatron.c - Megatron's files against their byte layout, documents in samples,
 * every damaged index, shards, and the part held out. */
#include "data/data_internal.h"
#include "tests/data/files.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static size_t read_file(const char *path, unsigned char *out, size_t most)
{
    FILE *f = fopen(path, "rb");
    ck_assert_ptr_nonnull(f);
    const size_t n = fread(out, 1, most, f);
    ck_assert_int_eq(fclose(f), 0);
    return n;
}

static void to_hex(const unsigned char *bytes, size_t n, char *out)
{
    static const char digit[] = "0123456789abcdef";
    for (size_t i = 0; i < n; i++) {
        out[2 * i] = digit[bytes[i] >> 4];
        out[2 * i + 1] = digit[bytes[i] & 15];
    }
    out[2 * n] = '\0';
}

/* One document [1, 2, 3], as Megatron-LM's own program writes it. */
START_TEST(golden_bytes)
{
    unsigned char bytes[256];
    char hex[513];
    dt_token_writer *w = NULL;
    ck_ok(dt_token_writer_create(files_path("golden"), 50257, &w));
    ck_ok(dt_token_writer_add(w, (int32_t[]){1, 2, 3}, 3));
    ck_ok(dt_token_writer_finish(w));
    dt_token_writer_destroy(&w);
    size_t n = read_file(files_path("golden.idx"), bytes, sizeof bytes);
    to_hex(bytes, n, hex);
    ck_assert_str_eq(hex, "4d4d49444944580000010000000000000008010000000000000002000000000000000300"
                          "0000000000000000000000000000000000000100000000000000");
    n = read_file(files_path("golden.bin"), bytes, sizeof bytes);
    to_hex(bytes, n, hex);
    ck_assert_str_eq(hex, "010002000300");
}
END_TEST

/* What was written is read: both types, empty documents, more than one write buffer. */
START_TEST(written_and_read)
{
    enum { LONG = 10000 };
    static int32_t tokens[LONG], ids[LONG], targets[LONG];
    static const int64_t vocab[] = {65499, 65500};
    for (int i = 0; i < LONG; i++)
        tokens[i] = i * 7 % 65499;
    for (int v = 0; v < 2; v++) {
        dt_token_writer *w = NULL;
        ck_ok(dt_token_writer_create(files_path("w"), vocab[v], &w));
        ck_ok(dt_token_writer_add(w, tokens, 3));
        ck_ok(dt_token_writer_add(w, tokens, 0));
        ck_ok(dt_token_writer_add(w, tokens + 3, LONG - 3));
        ck_ok(test_expect(dt_token_writer_add(w, (int32_t[]){65500}, 1), DT_ERR_ARG, "token 65500",
                          ""));
        ck_assert_int_ne(access(files_path("w.idx"), F_OK), 0); /* not before it is whole */
        ck_ok(dt_token_writer_finish(w));
        dt_token_writer_destroy(&w);
        dt_dataset *ds = files_opened(files_path("w"), NULL);
        ck_assert_int_eq(dt_dataset_length(ds), LONG);
        ck_assert(dt_dataset_format(ds) == DT_DATA_MEGATRON);
        const dt_batch b = {0, 1, LONG - 1, 0, 1};
        ck_ok(dt_dataset_batch(ds, &b, ids, targets));
        ck_assert_mem_eq(ids, tokens, sizeof *ids * (LONG - 1));
        ck_assert_mem_eq(targets, tokens + 1, sizeof *ids * (LONG - 1));
        dt_dataset_close(&ds);
    }
}
END_TEST

/* Megatron's sample index: sample k of T tokens begins in (document, at its token). */
START_TEST(sample_index)
{
    static const struct {
        int n;
        int32_t length[4];
        int64_t T;
        int samples;
        int64_t at[5][2];
    } rows[] = {{3, {3, 5, 4}, 4, 3, {{0, 0}, {1, 1}, {2, 0}}},
                {4, {2, 2, 2, 9}, 3, 5, {{0, 0}, {1, 1}, {3, 0}, {3, 3}, {3, 6}}}};
    for (int i = 0; i < DT_COUNT(rows); i++) {
        dti_index x = {0};
        files_pair("s", 0, rows[i].n, rows[i].length);
        const char *idx = files_path("s.idx"), *bin = files_path("s.bin");
        int64_t total = 0;
        for (int k = 0; k < rows[i].n; k++)
            total += rows[i].length[k];
        ck_ok(dti_index_open(idx, bin, 2 * (size_t)total, &x));
        for (int k = 0; k < rows[i].samples; k++) {
            const int64_t document = dti_index_find(&x, k * rows[i].T);
            ck_assert_int_eq(document, rows[i].at[k][0]);
            ck_assert_int_eq(k * rows[i].T - dti_index_start(&x, document), rows[i].at[k][1]);
        }
        dti_map_close(&x.map);
    }
}
END_TEST

static void check_rows(const dt_dataset *ds, dt_batch b, const int32_t *targets,
                       const int32_t *positions, const int32_t *documents)
{
    int32_t got[4][32];
    const size_t n = (size_t)((b.hi - b.lo) * b.seq_len);
    ck_ok(dt_dataset_batch(ds, &b, got[0], got[1]));
    ck_ok(dt_dataset_documents(ds, &b, got[2], got[3]));
    ck_assert_mem_eq(got[1], targets, n * sizeof **got);
    ck_assert_mem_eq(got[2], positions, n * sizeof **got);
    ck_assert_mem_eq(got[3], documents, n * sizeof **got);
}

/* Tokens 100 ... in documents of 3, 5, 0 and 5; and the same cut by an end token. */
START_TEST(documents)
{
    enum { I = DT_LABEL_IGNORED };
    files_pair("d", 100, 4, (int32_t[]){3, 5, 0, 5});
    dt_dataset *ds = files_opened(files_path("d.idx"), &(dt_dataset_options){.documents = true});
    const dt_batch b = {0, 2, 6, 0, 2};
    check_rows(ds, b, (int32_t[]){101, 102, I, 104, 105, 106, 107, I, 109, 110, 111, 112},
               (int32_t[]){0, 1, 2, 0, 1, 2, 0, 1, 0, 1, 2, 3},
               (int32_t[]){0, 0, 0, 1, 1, 1, 0, 0, 1, 1, 1, 1});
    dt_dataset_close(&ds);
    ds = files_opened(files_path("d.bin"), NULL); /* the loss sees ends only where asked to */
    check_rows(ds, (dt_batch){0, 1, 6, 0, 1}, (int32_t[]){101, 102, 103, 104, 105, 106},
               (int32_t[]){0, 1, 2, 0, 1, 2}, (int32_t[]){0, 0, 0, 1, 1, 1});
    dt_dataset_close(&ds);
    files_write("t.txt", "ab.cde.fghijk", 13);
    ds = files_opened(
        files_path("t.txt"),
        &(dt_dataset_options){.documents = true, .has_end_token = true, .end_token = '.'});
    check_rows(ds, b, (int32_t[]){'b', '.', I, 'd', 'e', '.', I, 'g', 'h', 'i', 'j', 'k'},
               (int32_t[]){0, 1, 2, 0, 1, 2, 0, 0, 1, 2, 3, 4},
               (int32_t[]){0, 0, 0, 1, 1, 1, 0, 1, 1, 1, 1, 1});
    dt_dataset_close(&ds);
    files_open_fails(files_path("t.txt"), &(dt_dataset_options){.documents = true}, DT_ERR_ARG,
                     "where documents end is not known");
}
END_TEST

/* Every entry of the tables changed: by one, and to the far ends of its type. */
START_TEST(damaged_index)
{
    unsigned char good[256], bad[256];
    static const int64_t values[] = {-1, 1, INT64_MAX, INT64_MIN, INT32_MAX};
    files_pair("x", 0, 3, (int32_t[]){3, 5, 4});
    const size_t n = read_file(files_path("x.idx"), good, sizeof good);
    ck_assert_uint_eq(n, 34 + 3 * 12 + 4 * 8);
    for (size_t at = 0; at + 4 <= n; at++) {
        for (int v = 0; v < DT_COUNT(values); v++) {
            memcpy(bad, good, n);
            const size_t width = n - at < 8 ? 4 : v == 4 || (at >= 34 && at < 46) ? 4 : 8;
            memcpy(bad + at, &values[v], width);
            if (memcmp(bad, good, n) == 0)
                continue;
            files_write("x.idx", bad, n);
            dt_dataset *ds = NULL;
            const dt_status st = dt_dataset_open(files_path("x.idx"), NULL, &ds);
            /* only a document's bound between its neighbours is another good file */
            ck_assert(st != DT_OK || (at >= 34 + 36 && at < n));
            dt_dataset_close(&ds);
        }
    }
    for (size_t size = 1; size < n; size++) {
        files_write("x.idx", good, size);
        dt_dataset *ds = NULL;
        ck_assert(dt_dataset_open(files_path("x.idx"), NULL, &ds) == DT_ERR_FORMAT);
    }
}
END_TEST

START_TEST(bad_pairs)
{
    unsigned char bytes[256];
    files_pair("b", 0, 2, (int32_t[]){3, 5});
    const char *path = files_path("b.idx");
    const size_t n = read_file(path, bytes, sizeof bytes);
    files_write("b.bin", bytes, 14);
    files_open_fails(path, NULL, DT_ERR_FORMAT,
                     "b.bin: truncated: the index says 16 bytes, it has 14");
    files_write("b.bin", bytes, 18);
    files_open_fails(path, NULL, DT_ERR_FORMAT, "wrong size");
    files_write("b.bin", bytes, 16);
    bytes[17] = 7;
    files_write("b.idx", bytes, n);
    files_open_fails(path, NULL, DT_ERR_FORMAT, "tokens of type 7; legal: 1 to 5 and 8");
    bytes[17] = 8;
    bytes[34 + 8] = 2; /* the first pointer */
    files_write("b.idx", bytes, n);
    files_open_fails(path, NULL, DT_ERR_FORMAT, "sequence 0 has 3 tokens from byte 2");
    bytes[34 + 8] = 0;
    memset(bytes + n, 0, 2); /* modes, as multimodal files have */
    files_write("b.idx", bytes, n + 2);
    dt_dataset *ds = files_opened(path, NULL);
    dt_dataset_close(&ds);
    bytes[n + 1] = 1;
    files_write("b.idx", bytes, n + 2);
    files_open_fails(path, NULL, DT_ERR_UNSUPPORTED, "sequence 1 is of mode 1, not text");
    files_open_fails(files_path("none.idx"), NULL, DT_ERR_IO, "none.bin: No such file");
    files_open_fails(files_path("*.idx"), NULL, DT_ERR_UNSUPPORTED, "name each one in a blend");
}
END_TEST

static void write_shard(const char *name, uint16_t first, int n)
{
    unsigned char file[1024 + 64] = {0};
    memcpy(file, (int32_t[]){20240520, 1, n}, 12);
    for (int i = 0; i < n; i++)
        memcpy(file + 1024 + 2 * i, &(uint16_t){(uint16_t)(first + i)}, 2);
    files_write(name, file, 1024 + 2 * (size_t)n);
}

/* Shards are one stream, in the order of their names; samples cross their borders. */
START_TEST(shards)
{
    int32_t ids[20], targets[20];
    write_shard("shard_02.bin", 8, 5);
    write_shard("shard_01.bin", 7, 1);
    write_shard("shard_00.bin", 0, 7);
    dt_dataset *ds = files_opened(files_path("shard_*.bin"), &(dt_dataset_options){.vocab = 13});
    ck_assert(dt_dataset_length(ds) == 13 && dt_dataset_format(ds) == DT_DATA_TOKENS);
    const dt_batch b = {0, 3, 4, 0, 3};
    ck_ok(dt_dataset_batch(ds, &b, ids, targets));
    for (int i = 0; i < 12; i++)
        ck_assert(ids[i] == i && targets[i] == i + 1);
    dt_dataset_close(&ds);
    write_shard("shard_02.bin", 9, 5);
    ds = files_opened(files_path("shard_*.bin"), &(dt_dataset_options){.vocab = 13});
    ck_ok(test_expect(dt_dataset_batch(ds, &b, ids, targets), DT_ERR_FORMAT,
                      "shard_02.bin: token 13 at position 4, must be below vocab = 13", ""));
    dt_dataset_close(&ds);
    files_write("shard_03.bin", "short", 5);
    files_open_fails(files_path("shard_*.bin"), NULL, DT_ERR_FORMAT, "shard_03.bin: 5 bytes");
    files_open_fails(files_path("nothing_*.bin"), NULL, DT_ERR_IO, "no file is called so");
}
END_TEST

/* Held out: the end, whole documents where they are known; both parts together are all. */
START_TEST(held_out)
{
    static const struct {
        const char *name;
        double part;
        int64_t cut;
    } rows[] = {{"h.txt", 0.25, 15},
                {"h.txt", 0.3, 14},
                {"h.idx", 0.25, 12},
                {"h.idx", 0.4, 12},
                {"h.idx", 0.45, 8}};
    files_write("h.txt", "abcdefghijklmnopqrst", 20);
    files_pair("h", 0, 3, (int32_t[]){8, 4, 8});
    for (int i = 0; i < DT_COUNT(rows); i++) {
        dt_dataset_options o = {.held_out = rows[i].part};
        const int32_t first = rows[i].name[2] == 't' ? 'a' : 0;
        int32_t ids[3], targets[3];
        dt_dataset *ds = files_opened(files_path(rows[i].name), &o);
        ck_assert_int_eq(dt_dataset_length(ds), rows[i].cut);
        dt_dataset_close(&ds);
        o.evaluation = true;
        ds = files_opened(files_path(rows[i].name), &o);
        ck_assert_int_eq(dt_dataset_length(ds), 20 - rows[i].cut);
        const dt_batch b = {0, 1, 3, 0, 1};
        ck_ok(dt_dataset_batch(ds, &b, ids, targets));
        ck_assert_int_eq(ids[0], first + rows[i].cut);
        dt_dataset_close(&ds);
    }
    files_open_fails(files_path("h.txt"),
                     &(dt_dataset_options){.held_out = 0.1, .evaluation = true, .seq_len = 2},
                     DT_ERR_FORMAT, "2 tokens held out are too few");
    files_open_fails(files_path("h.txt"), &(dt_dataset_options){.held_out = 1}, DT_ERR_ARG,
                     "a part of 1 held out");
}
END_TEST

/* A file that becomes shorter is an error, not the end of the process. */
START_TEST(truncated_while_open)
{
    int32_t ids[8], targets[8];
    files_pair("c", 0, 2, (int32_t[]){5, 5});
    dt_dataset *ds = files_opened(files_path("c"), NULL);
    const dt_batch b = {0, 1, 8, 0, 1};
    ck_ok(dt_dataset_batch(ds, &b, ids, targets));
    ck_assert_int_eq(truncate(files_path("c.bin"), 4), 0);
    ck_ok(test_expect(dt_dataset_batch(ds, &b, ids, targets), DT_ERR_IO,
                      "c.bin: became shorter while it was read: 4 bytes, was 20", ""));
    dt_dataset_close(&ds);
}
END_TEST

/* Offsets past 4 GiB: three documents of a thousand million tokens, nearly all of them holes. */
START_TEST(more_than_4_gib)
{
    const int64_t n = 1000000000, at = 2 * n + 123456789;
    const uint16_t some[] = {41, 42, 43, 44, 45};
    int32_t ids[4], targets[4];
    files_pair("huge", 0, 3, (int32_t[]){1, 1, 1}); /* whose numbers are changed: */
    FILE *idx = fopen(files_path("huge.idx"), "r+b");
    ck_assert(idx && fseek(idx, 34, SEEK_SET) == 0);
    const int32_t length[] = {(int32_t)n, (int32_t)n, (int32_t)n};
    const int64_t pointer[] = {0, 2 * n, 4 * n};
    ck_assert(fwrite(length, sizeof length, 1, idx) == 1 &&
              fwrite(pointer, sizeof pointer, 1, idx) == 1 && fclose(idx) == 0);
    FILE *bin = fopen(files_path("huge.bin"), "r+b");
    ck_assert(bin && ftruncate(fileno(bin), 6 * n) == 0);
    ck_assert(fseeko(bin, 2 * at, SEEK_SET) == 0 && fwrite(some, sizeof some, 1, bin) == 1 &&
              fclose(bin) == 0);
    dt_dataset *ds = files_opened(files_path("huge"), NULL);
    ck_assert_int_eq(dt_dataset_length(ds), 3 * n);
    ck_ok(dt_dataset_batch(ds, &(dt_batch){at, 1, 4, 0, 1}, ids, targets));
    for (int t = 0; t < 4; t++)
        ck_assert(ids[t] == some[t] && targets[t] == some[t + 1]);
    dt_dataset_close(&ds);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("megatron");
    TCase *tests = tcase_create("megatron");
    tcase_add_test(tests, golden_bytes);
    tcase_add_test(tests, written_and_read);
    tcase_add_test(tests, sample_index);
    tcase_add_test(tests, documents);
    tcase_add_test(tests, damaged_index);
    tcase_add_test(tests, bad_pairs);
    tcase_add_test(tests, shards);
    tcase_add_test(tests, held_out);
    tcase_add_test(tests, truncated_while_open);
    tcase_add_test(tests, more_than_4_gib);
    suite_add_tcase(suite, tests);
    const int result = test_main(suite);
    files_remove();
    return result;
}
