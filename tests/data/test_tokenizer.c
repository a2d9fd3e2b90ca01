/* tests/data/test_tokenizer.c - tokens against those of the `tokenizers` package
 * (tests/golden/tokenizer, made by tests/golden/gen_tokenizer.py), back to text, and every
 * tokenizer.json that asks for what is not there. */
#include "base/dt_json.h"
#include "data/dt_tokenizer.h"
#include "tests/data/files.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *golden(const char *name)
{
    static char path[512];
    const char *folder = getenv("DT_GOLDEN");
    (void)snprintf(path, sizeof path, "%s/tokenizer/%s", folder ? folder : "tests/golden", name);
    return path;
}

/* Is there PCRE2? Without it these tokenizers must say so. */
static bool has_patterns(void)
{
    dt_tokenizer *t = NULL;
    const dt_status st = dt_tokenizer_open(golden("gpt2.json"), &t);
    ck_assert(st == DT_OK || (st == DT_ERR_UNSUPPORTED && strstr(dt_error_trace(), "PCRE2")));
    dt_tokenizer_close(&t);
    return st == DT_OK;
}

static void check_case(const dt_tokenizer *t, const json_t *text, const json_t *ids)
{
    dt_tokens tokens = {0};
    const char *s = json_string_value(text);
    size_t n = json_string_length(text), at = 0;
    ck_ok(dt_tokenizer_encode(t, s, n, &tokens));
    for (int64_t i = 0; i < tokens.n; i++) {
        size_t size = 0;
        const char *bytes = dt_tokenizer_text(t, tokens.id[i], &size);
        ck_assert_msg((size_t)i < json_array_size(ids) &&
                          tokens.id[i] == json_integer_value(json_array_get(ids, (size_t)i)),
                      "token %lld of %s is %d", (long long)i, s, tokens.id[i]);
        ck_assert(bytes && at + size <= n && memcmp(s + at, bytes, size) == 0);
        at += size;
    }
    ck_assert_uint_eq((size_t)tokens.n, json_array_size(ids));
    ck_assert_uint_eq(at, n); /* back to the same text */
    free(tokens.id);
}

START_TEST(same_as_tokenizers)
{
    static const char *const name[] = {"gpt2", "llama3"};
    json_t *root = NULL;
    if (!has_patterns())
        return;
    ck_ok(dt_json_load(golden("cases.json"), &root));
    const json_t *cases = json_object_get(root, "cases");
    ck_assert_uint_ge(json_array_size(cases), 350);
    for (int k = 0; k < DT_COUNT(name); k++) {
        char file[16];
        dt_tokenizer *t = NULL;
        (void)snprintf(file, sizeof file, "%s.json", name[k]);
        ck_ok(dt_tokenizer_open(golden(file), &t));
        size_t i;
        const json_t *one;
        json_array_foreach(cases, i, one)
            check_case(t, json_object_get(one, "text"), json_object_get(one, name[k]));
        dt_tokenizer_close(&t);
    }
    json_decref(root);
}
END_TEST

START_TEST(bytes)
{
    static const char text[] = "a\0\xff\xc3";
    dt_tokenizer *t = NULL;
    dt_tokens tokens = {0};
    size_t size = 0;
    ck_ok(dt_tokenizer_open("bytes", &t));
    ck_ok(dt_tokenizer_encode(t, text, 4, &tokens));
    ck_ok(dt_tokenizer_encode(t, "b", 1, &tokens)); /* appended */
    ck_assert(tokens.n == 5 && tokens.id[0] == 'a' && tokens.id[1] == 0 && tokens.id[2] == 255 &&
              tokens.id[3] == 0xc3 && tokens.id[4] == 'b');
    ck_assert(dt_tokenizer_vocab(t) == 256 && dt_tokenizer_find(t, "b") == 'b' &&
              dt_tokenizer_find(t, "bb") == -1);
    ck_assert(*dt_tokenizer_text(t, 255, &size) == '\xff' && size == 1);
    ck_assert_ptr_null(dt_tokenizer_text(t, 256, &size));
    ck_assert_ptr_null(dt_tokenizer_text(t, -1, &size));
    free(tokens.id);
    dt_tokenizer_close(&t);
    ck_assert_ptr_null(t);
    dt_tokenizer_close(&t);
}
END_TEST

/* A quarter of a megabyte that is one piece must not take the square of its length. */
START_TEST(long_pieces)
{
    enum { N = 1 << 18 };
    static char text[N];
    dt_tokenizer *t = NULL;
    dt_tokens tokens = {0};
    if (!has_patterns())
        return;
    for (int i = 0; i < N; i++)
        text[i] = "abcdefgh"[(i * 7 + i / 13) % 8];
    ck_ok(dt_tokenizer_open(golden("llama3.json"), &t));
    ck_ok(dt_tokenizer_encode(t, text, N, &tokens));
    ck_assert(tokens.n > N / 8 && tokens.n < N);
    memset(text, ' ', N);
    ck_ok(dt_tokenizer_encode(t, text, N, &tokens));
    memset(text, '\n', N);
    ck_ok(dt_tokenizer_encode(t, text, N, &tokens));
    free(tokens.id);
    dt_tokenizer_close(&t);
}
END_TEST

START_TEST(not_utf8)
{
    static const struct {
        const char *text;
        int at;
    } bad[] = {{"ab\xff", 2},
               {"\xc3", 0},
               {"a\xc0\x80", 1},
               {"\xe0\x9f\xbf", 0},
               {"\xed\xa0\x80", 0},
               {"\xf4\x90\x80\x80", 0},
               {"\xf0\x8f\xbf\xbf", 0},
               {"\xc3(", 0},
               {"\xe2\x82", 0},
               {"\xf8\x88\x80\x80\x80", 0},
               {"\x80", 0}};
    dt_tokenizer *t = NULL;
    if (!has_patterns())
        return;
    ck_ok(dt_tokenizer_open(golden("gpt2.json"), &t));
    for (int i = 0; i < DT_COUNT(bad); i++) {
        dt_tokens tokens = {0};
        char message[64];
        (void)snprintf(message, sizeof message, "byte %d (0x%02x) of the text is not UTF-8",
                       bad[i].at, (unsigned char)bad[i].text[bad[i].at]);
        ck_ok(test_expect(dt_tokenizer_encode(t, bad[i].text, strlen(bad[i].text), &tokens),
                          DT_ERR_FORMAT, message, ""));
        free(tokens.id);
    }
    dt_tokenizer_close(&t);
}
END_TEST

/* ---- files ---- */

/* Bytes 0 .. 255 in their alphabet, by its definition. */
static json_t *byte_vocab(void)
{
    json_t *vocab = json_object();
    int other = 256;
    for (int b = 0; b < 256; b++) {
        const bool same = (b > 32 && b < 127) || (b > 160 && b != 173);
        const int c = same ? b : other++;
        char text[3] = {(char)c, 0, 0};
        if (c >= 128) {
            text[0] = (char)(0xC0 | c >> 6);
            text[1] = (char)(0x80 | (c & 63));
        }
        (void)json_object_set_new(vocab, text, json_integer(b));
    }
    return vocab;
}

static json_t *parsed(const char *text)
{
    char json[512], *quote = json;
    (void)snprintf(json, sizeof json, "%s", text);
    for (; *quote; quote++)
        *quote = *quote == '\'' ? '"' : *quote;
    json_t *value = json_loads(json, JSON_DECODE_ANY, NULL);
    ck_assert_msg(value != NULL, "%s", text);
    return value;
}

/* A good file of 256 bytes, "ab", "abc"; `path` in it ("model.type") set to a value; NULL: it goes.
 * Values have ' for ". */
static const char *made(const char *path, const char *value)
{
    json_t *root = parsed("{'normalizer': null, 'added_tokens': [{'id': 258, 'content': '<e>'}],"
                          " 'pre_tokenizer': {'type': 'ByteLevel', 'add_prefix_space': false},"
                          " 'model': {'type': 'BPE', 'merges': ['a b', ['ab', 'c']]}}");
    json_t *vocab = byte_vocab(), *at = root;
    (void)json_object_set_new(vocab, "ab", json_integer(256));
    (void)json_object_set_new(vocab, "abc", json_integer(257));
    (void)json_object_set_new(json_object_get(root, "model"), "vocab", vocab);
    char copy[64], *rest = NULL;
    (void)snprintf(copy, sizeof copy, "%s", path);
    for (char *key = strtok_r(copy, ".", &rest), *next; key; key = next) {
        next = strtok_r(NULL, ".", &rest);
        if (next)
            at = json_object_get(at, key);
        else if (value)
            (void)json_object_set_new(at, key, parsed(value));
        else
            (void)json_object_del(at, key);
    }
    ck_assert_int_eq(json_dump_file(root, files_path("tokenizer.json"), 0), 0);
    json_decref(root);
    return files_path("tokenizer.json");
}

START_TEST(files_and_merges)
{
    static const int32_t want[] = {257, 256, 258, 'c', 'a', ' ', 257};
    dt_tokenizer *t = NULL;
    dt_tokens tokens = {0};
    if (!has_patterns())
        return;
    (void)made("model.type", "'BPE'");
    ck_ok(dt_tokenizer_open(files_folder(), &t)); /* the folder it is in */
    ck_assert_int_eq(dt_tokenizer_vocab(t), 259);
    ck_assert(dt_tokenizer_find(t, "<e>") == 258 && dt_tokenizer_find(t, "abc") == 257 &&
              dt_tokenizer_find(t, "abcd") == -1);
    ck_ok(dt_tokenizer_encode(t, "abcab<e>ca abc", 14, &tokens));
    ck_assert(tokens.n == DT_COUNT(want) && memcmp(tokens.id, want, sizeof want) == 0);
    free(tokens.id);
    dt_tokenizer_close(&t);
}
END_TEST

START_TEST(not_known)
{
    static const struct {
        const char *path, *value;
        dt_status want;
        const char *message;
    } rows[] = {
        {"normalizer", "{'type': 'NFC'}", DT_ERR_UNSUPPORTED, "normalizer is set"},
        {"model.type", "'WordPiece'", DT_ERR_UNSUPPORTED, "model WordPiece; legal: BPE"},
        {"model.type", NULL, DT_ERR_FORMAT, "'type' (a string) is missing"},
        {"model", "3", DT_ERR_FORMAT, "model must be an object"},
        {"model.byte_fallback", "true", DT_ERR_UNSUPPORTED, "model.byte_fallback is set"},
        {"model.dropout", "0.1", DT_ERR_UNSUPPORTED, "model.dropout is set"},
        {"model.end_of_word_suffix", "'</w>'", DT_ERR_UNSUPPORTED, "end_of_word_suffix is set"},
        {"model.ignore_merges", "1", DT_ERR_FORMAT, "'ignore_merges' must be true or false"},
        {"model.vocab", "[]", DT_ERR_FORMAT, "model.vocab must be an object"},
        {"model.vocab", "{}", DT_ERR_FORMAT, "byte 0x00 has no token"},
        {"model.vocab.a", "98", DT_ERR_FORMAT, "two tokens have the id 98"},
        {"model.vocab.a", "-1", DT_ERR_FORMAT, "token 'a' must have an id from 0"},
        {"model.vocab.a", "'x'", DT_ERR_FORMAT, "token 'a' must have an id from 0"},
        {"model.vocab.a", "2000000000", DT_ERR_FORMAT, "id 2000000000 of only 259 tokens"},
        {"model.vocab.a", "2147483647", DT_ERR_FORMAT, "to 2147483646"},
        {"model.vocab.a", NULL, DT_ERR_FORMAT, "byte 0x61 has no token"},
        {"model.vocab.ab", NULL, DT_ERR_FORMAT, "merge 0: the two and what they make"},
        {"model.merges", "['ab']", DT_ERR_FORMAT, "merge 0 must be two texts"},
        {"model.merges", "['ab ']", DT_ERR_FORMAT, "merge 0 must be two texts"},
        {"model.merges", "[['a']]", DT_ERR_FORMAT, "merge 0 must be two texts"},
        {"model.merges", "['a b', ['a', 3]]", DT_ERR_FORMAT, "merge 1 must be two texts"},
        {"model.merges", "['a  b']", DT_ERR_FORMAT, "merge 0: the two and what they make"},
        {"pre_tokenizer", "null", DT_ERR_FORMAT, "pre_tokenizer must be an object"},
        {"pre_tokenizer.type", "'Metaspace'", DT_ERR_UNSUPPORTED, "pre_tokenizer Metaspace; legal"},
        {"pre_tokenizer.add_prefix_space", "true", DT_ERR_UNSUPPORTED, "add_prefix_space is set"},
        {"pre_tokenizer",
         "{'type': 'Sequence', 'pretokenizers': [{'type': 'Digits'}, {'type': 'ByteLevel'}]}",
         DT_ERR_UNSUPPORTED, "pre_tokenizer Digits as number 1 of 2"},
        {"pre_tokenizer",
         "{'type': 'Sequence', 'pretokenizers': [{'type': 'Split', 'behavior': 'Removed', "
         "'pattern': {'Regex': 'a'}}, {'type': 'ByteLevel'}]}",
         DT_ERR_UNSUPPORTED, "behavior Removed; legal: Isolated"},
        {"added_tokens", "{}", DT_ERR_FORMAT, "added_tokens arrays"},
        {"added_tokens", "[{'id': 5, 'content': '<e>'}]", DT_ERR_FORMAT,
         "'<e>' has the id 5 of another token"},
        {"added_tokens", "[{'id': 258, 'content': ''}]", DT_ERR_FORMAT, "an added token is empty"},
        {"added_tokens", "[{'content': '<e>'}]", DT_ERR_FORMAT, "token '<e>' must have an id"},
        {"added_tokens", "[{'id': 258, 'content': '<e>', 'lstrip': true}]", DT_ERR_UNSUPPORTED,
         "<e>.lstrip is set"},
    };
    if (!has_patterns())
        return;
    for (int i = 0; i < DT_COUNT(rows); i++) {
        dt_tokenizer *t = NULL;
        ck_ok(test_expect(dt_tokenizer_open(made(rows[i].path, rows[i].value), &t), rows[i].want,
                          rows[i].message, rows[i].path));
        ck_assert_ptr_null(t);
    }
    dt_tokenizer *t = NULL;
    ck_ok(test_expect(dt_tokenizer_open("/nowhere.json", &t), DT_ERR_IO, "/nowhere.json", ""));
    files_write("twice.json", "{\"model\": 1, \"model\": 2}", 24);
    ck_ok(test_expect(dt_tokenizer_open(files_path("twice.json"), &t), DT_ERR_FORMAT, "duplicate",
                      ""));
}
END_TEST

/* What Oniguruma and PCRE2 read differently. */
START_TEST(patterns)
{
    static const char *const good[] = {
        "a+",         "[^\\\\s\\\\p{L}]+", "(?i:x|y)", "\\\\p{N}{1,3}",
        "a(?!\\\\S)", "\\\\p{Lu}+",        "[a-z^$.]", "\\\\r?\\\\n"};
    static const char *const bad[][2] = {
        {"\\\\w+", "'\\w'"}, {"\\\\h", "'\\h'"}, {"\\\\bx", "'\\b'"},    {"^a", "'^a'"},
        {"a$", "'$'"},       {"[a[b]]", "'[b'"}, {"[a&&b]", "'&&'"},     {"a{1,3}+", "'}+'"},
        {"(?m:a)", "'(?'"},  {"(*F)", "'(*'"},   {"\\\\u4e00", "'\\u'"}, {"(a", "missing closing"},
        {"[]a]", "']'"},     {"\\\\1", "'\\1'"}, {"a\\\\", "'\\'"}};
    char json[256];
    if (!has_patterns())
        return;
    for (int i = 0; i < DT_COUNT(good) + DT_COUNT(bad); i++) {
        dt_tokenizer *t = NULL;
        const bool is_good = i < DT_COUNT(good);
        const char *pattern = is_good ? good[i] : bad[i - DT_COUNT(good)][0];
        (void)snprintf(json, sizeof json,
                       "{'type': 'Sequence', 'pretokenizers': [{'type': 'Split', 'behavior': "
                       "'Isolated', 'pattern': {'Regex': '%s'}}, {'type': 'ByteLevel', "
                       "'use_regex': false}]}",
                       pattern);
        const dt_status st = dt_tokenizer_open(made("pre_tokenizer", json), &t);
        if (is_good)
            ck_assert_msg(st == DT_OK, "%s: %s", pattern, dt_error_trace());
        else
            ck_assert_msg(st != DT_OK && strstr(dt_error_trace(), bad[i - DT_COUNT(good)][1]),
                          "%s: %s", pattern, dt_error_trace());
        dt_tokenizer_close(&t);
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("tokenizer");
    TCase *tests = tcase_create("tokenizer");
    tcase_set_timeout(tests, 60);
    tcase_add_test(tests, same_as_tokenizers);
    tcase_add_test(tests, bytes);
    tcase_add_test(tests, long_pieces);
    tcase_add_test(tests, not_utf8);
    tcase_add_test(tests, files_and_merges);
    tcase_add_test(tests, not_known);
    tcase_add_test(tests, patterns);
    suite_add_tcase(suite, tests);
    const int result = test_main(suite);
    files_remove();
    return result;
}
