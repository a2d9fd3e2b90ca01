/* data/tokenizer_json.c - reads a Hugging Face tokenizer.json. In it, tokens are written in an
 * alphabet in which every byte is a visible character: bytes that are one in Latin-1 stand for
 * themselves, the others are U+0100, U+0101 ... in order (Radford et al. 2019). */
#include "base/dt_json.h"
#include "data/tokenizer_internal.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* ---- the alphabet of bytes ---- */

static bool is_itself(int byte)
{
    return (byte > 32 && byte < 127) || (byte > 160 && byte < 256 && byte != 173);
}

/* The byte of a character; -1: it is none of the alphabet. */
static int byte_of(uint32_t character)
{
    if (character < 256)
        return is_itself((int)character) ? (int)character : -1;
    for (int byte = 0, other = 256; byte < 256 && character < 256 + 68; byte++)
        if (!is_itself(byte) && other++ == (int)character)
            return byte;
    return -1;
}

/* Bytes of a token from its text (valid UTF-8, as jansson gives it); -1: not of the alphabet. */
static int64_t to_bytes(const char *text, char *out)
{
    int64_t n = 0;
    for (const unsigned char *s = (const unsigned char *)text; *s;) {
        const bool two = (*s & 0xE0) == 0xC0;
        const int byte = *s < 0x80 ? byte_of(*s)
                         : two     ? byte_of((uint32_t)(*s & 31) << 6 | (s[1] & 63u))
                                   : -1;
        if (byte < 0)
            return -1;
        out[n++] = (char)byte;
        s += two ? 2 : 1;
    }
    return n;
}

/* ---- what is asked for ---- */

/* A part of the file that must be left out, or be what does nothing. */
static dt_status must_not(const json_t *object, const char *where, const char *part,
                          const char *key)
{
    const json_t *v = json_object_get(object, key);
    const bool nothing = !v || json_is_null(v) || json_is_false(v) ||
                         (json_is_string(v) && json_string_length(v) == 0) ||
                         (json_is_number(v) && json_number_value(v) == 0);
    DT_REQUIRE(nothing, DT_ERR_UNSUPPORTED, "%s: %s%s%s is set; legal: null", where, part,
               *part ? "." : "", key);
    return DT_OK;
}

static dt_status type_of(const json_t *object, const char *where, const char *part,
                         const char **type_out)
{
    DT_REQUIRE(json_is_object(object), DT_ERR_FORMAT, "%s: %s must be an object", where, part);
    DT_TRY(dt_json_string(object, where, "type", NULL, type_out));
    return DT_OK;
}

static dt_status add_pattern(dt_tokenizer *t, const char *where, const char *text)
{
    DT_REQUIRE(t->npatterns < DTI_MOST_PATTERNS, DT_ERR_UNSUPPORTED, "%s: more than %d patterns",
               where, DTI_MOST_PATTERNS);
    DT_TRY(dti_pattern_create(text, where, &t->pattern[t->npatterns]));
    t->npatterns++;
    return DT_OK;
}

static dt_status read_split(const json_t *object, const char *where, dt_tokenizer *t)
{
    const char *behavior = NULL, *text = NULL;
    const json_t *pattern = json_object_get(object, "pattern");
    DT_TRY(dt_json_string(object, where, "behavior", NULL, &behavior));
    DT_TRY(must_not(object, where, "pre_tokenizer.Split", "invert"));
    DT_REQUIRE(strcmp(behavior, "Isolated") == 0, DT_ERR_UNSUPPORTED,
               "%s: pre_tokenizer Split with behavior %s; legal: Isolated", where, behavior);
    DT_REQUIRE(json_is_object(pattern) && json_object_get(pattern, "Regex"), DT_ERR_UNSUPPORTED,
               "%s: pre_tokenizer Split must have pattern.Regex", where);
    DT_TRY(dt_json_string(pattern, where, "Regex", NULL, &text));
    return add_pattern(t, where, text);
}

static dt_status read_byte_level(const json_t *object, const char *where, dt_tokenizer *t)
{
    static const char gpt2[] = "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|"
                               "\\s+(?!\\S)|\\s+";
    const bool yes = true;
    bool use_regex = true;
    DT_TRY(must_not(object, where, "pre_tokenizer.ByteLevel", "add_prefix_space"));
    DT_TRY(dt_json_bool(object, where, "use_regex", &yes, &use_regex));
    return use_regex ? add_pattern(t, where, gpt2) : DT_OK;
}

/* ByteLevel, or Split ... and at last ByteLevel. */
static dt_status read_pre_tokenizer(const json_t *object, const char *where, dt_tokenizer *t)
{
    const char *type = NULL;
    DT_TRY(type_of(object, where, "pre_tokenizer", &type));
    if (strcmp(type, "ByteLevel") == 0)
        return read_byte_level(object, where, t);
    const json_t *list = json_object_get(object, "pretokenizers");
    DT_REQUIRE(strcmp(type, "Sequence") == 0 && json_array_size(list) > 0, DT_ERR_UNSUPPORTED,
               "%s: pre_tokenizer %s; legal: ByteLevel, or a Sequence of Split and ByteLevel",
               where, type);
    const size_t n = json_array_size(list);
    for (size_t i = 0; i < n; i++) {
        const json_t *part = json_array_get(list, i);
        DT_TRY(type_of(part, where, "pre_tokenizer", &type));
        const bool last = i + 1 == n;
        DT_REQUIRE(strcmp(type, last ? "ByteLevel" : "Split") == 0, DT_ERR_UNSUPPORTED,
                   "%s: pre_tokenizer %s as number %zu of %zu; legal: Split, and at last ByteLevel",
                   where, type, i + 1, n);
        DT_TRY(last ? read_byte_level(part, where, t) : read_split(part, where, t));
    }
    return DT_OK;
}

/* ---- the model ---- */

static dt_status check_id(const json_t *id, const char *where, const char *token, int64_t *most)
{
    const json_int_t value = json_is_integer(id) ? json_integer_value(id) : -1;
    DT_REQUIRE(value >= 0 && value < INT32_MAX, DT_ERR_FORMAT,
               "%s: token '%s' must have an id from 0 to 2147483646", where, token);
    *most = value > *most ? value : *most;
    return DT_OK;
}

/* How many tokens, and bytes of text. Ids far beyond the tokens there are would cost memory. */
static dt_status measure(const json_t *vocab, const json_t *added, const char *where,
                         int64_t *vocab_out, size_t *bytes_out)
{
    const char *text;
    json_t *id;
    const json_t *a;
    size_t i, bytes = 0;
    int64_t most = -1;
    json_object_foreach((json_t *)vocab, text, id)
    {
        DT_TRY(check_id(id, where, text, &most));
        bytes += strlen(text);
    }
    json_array_foreach(added, i, a)
    {
        DT_TRY(dt_json_string(a, where, "content", NULL, &text));
        DT_TRY(check_id(json_object_get(a, "id"), where, text, &most));
        bytes += strlen(text);
    }
    const int64_t known = (int64_t)(json_object_size(vocab) + json_array_size(added));
    DT_REQUIRE(most / 16 <= known + 65536, DT_ERR_FORMAT, "%s: id %lld of only %lld tokens", where,
               (long long)most, (long long)known);
    *vocab_out = most + 1;
    *bytes_out = bytes;
    return DT_OK;
}

static dt_status read_vocab(const json_t *vocab, const char *where, dt_tokenizer *t, char **free_at)
{
    const char *text;
    json_t *id;
    json_object_foreach((json_t *)vocab, text, id)
    {
        const int32_t token = (int32_t)json_integer_value(id);
        dti_token *k = &t->bpe.token[token];
        DT_REQUIRE(!k->bytes, DT_ERR_FORMAT, "%s: two tokens have the id %d, one is '%s'", where,
                   token, text);
        const int64_t n = to_bytes(text, *free_at);
        *k = (dti_token){*free_at, n < 0 ? strlen(text) : (size_t)n};
        if (n < 0) /* no merge makes it: an added token */
            memcpy(*free_at, text, k->size_bytes);
        *free_at += k->size_bytes;
        if (n >= 0)
            (void)dti_bpe_add_token(&t->bpe, token); /* texts differ, as keys do */
    }
    for (int i = 0; i < 256; i++) {
        const char byte = (char)i;
        t->bpe.byte[i] = dti_bpe_find(&t->bpe, &byte, 1);
        DT_REQUIRE(t->bpe.byte[i] >= 0, DT_ERR_FORMAT, "%s: byte 0x%02x has no token", where, i);
    }
    return DT_OK;
}

/* "a b", or ["a", "b"]: into one text "a\0b", of which both and their sum are tokens. */
static dt_status read_merge(const json_t *entry, const char *where, uint32_t rank, char *text,
                            dt_tokenizer *t)
{
    const char *left = NULL, *right = NULL;
    size_t n = 0;
    if (json_is_string(entry)) {
        left = json_string_value(entry);
        right = strchr(left, ' ');
        n = right ? (size_t)(right++ - left) : 0;
    } else if (json_array_size(entry) == 2) {
        left = json_string_value(json_array_get(entry, 0));
        right = json_string_value(json_array_get(entry, 1));
        n = left ? strlen(left) : 0;
    }
    DT_REQUIRE(left && right && n > 0 && *right, DT_ERR_FORMAT,
               "%s: merge %u must be two texts: \"a b\" or [\"a\", \"b\"]", where, rank - 1);
    memcpy(text, left, n);
    text[n] = 0;
    char *second = text + n + 1;
    strcpy(second, right);
    const int64_t a = to_bytes(text, text), b = to_bytes(second, second);
    dti_merge m = {-1, -1, -1, rank};
    if (a > 0 && b > 0) {
        m.left = dti_bpe_find(&t->bpe, text, (size_t)a);
        m.right = dti_bpe_find(&t->bpe, second, (size_t)b);
        memmove(text + a, second, (size_t)b);
        m.result = dti_bpe_find(&t->bpe, text, (size_t)(a + b));
    }
    DT_REQUIRE(m.left >= 0 && m.right >= 0 && m.result >= 0, DT_ERR_FORMAT,
               "%s: merge %u: the two and what they make must be tokens", where, rank - 1);
    dti_bpe_add_merge(&t->bpe, m);
    return DT_OK;
}

static size_t merge_bytes(const json_t *entry)
{
    size_t n = json_string_length(entry), i;
    const json_t *part;
    json_array_foreach(entry, i, part) n += json_string_length(part);
    return n + 2;
}

static dt_status read_merges(const json_t *merges, const char *where, dt_tokenizer *t)
{
    size_t i, most = 1;
    const json_t *entry;
    DT_REQUIRE(json_array_size(merges) < UINT32_MAX, DT_ERR_FORMAT, "%s: too many merges", where);
    json_array_foreach(merges, i, entry) most =
        merge_bytes(entry) > most ? merge_bytes(entry) : most;
    char *text = malloc(most);
    dt_status st = text ? DT_OK : DT_ERROR(DT_ERR_NOMEM, "a merge");
    for (i = 0; i < json_array_size(merges) && st == DT_OK; i++)
        st = read_merge(json_array_get(merges, i), where, (uint32_t)i + 1, text, t);
    free(text);
    return st;
}

static dt_status read_model(const json_t *root, const char *where, dt_tokenizer *t, char **free_at)
{
    const json_t *model = json_object_get(root, "model"),
                 *added = json_object_get(root, "added_tokens");
    const char *type = NULL;
    const bool no = false;
    size_t bytes = 0;
    DT_TRY(type_of(model, where, "model", &type));
    DT_REQUIRE(strcmp(type, "BPE") == 0, DT_ERR_UNSUPPORTED, "%s: model %s; legal: BPE", where,
               type);
    static const char *const unknown[] = {"dropout", "continuing_subword_prefix",
                                          "end_of_word_suffix", "byte_fallback"};
    for (int i = 0; i < DT_COUNT(unknown); i++)
        DT_TRY(must_not(model, where, "model", unknown[i]));
    DT_TRY(dt_json_bool(model, where, "ignore_merges", &no, &t->bpe.ignore_merges));
    const json_t *vocab = json_object_get(model, "vocab"),
                 *merges = json_object_get(model, "merges");
    DT_REQUIRE(json_is_object(vocab) && json_is_array(merges) && (!added || json_is_array(added)),
               DT_ERR_FORMAT,
               "%s: model.vocab must be an object, model.merges and added_tokens arrays", where);
    DT_TRY(measure(vocab, added, where, &t->bpe.vocab, &bytes));
    t->bpe.token = calloc((size_t)t->bpe.vocab, sizeof *t->bpe.token);
    t->text = *free_at = malloc(bytes + 1);
    DT_REQUIRE(t->bpe.token && t->text, DT_ERR_NOMEM, "%lld tokens", (long long)t->bpe.vocab);
    DT_TRY(dti_bpe_tables(&t->bpe, (int64_t)json_array_size(merges)));
    DT_TRY(read_vocab(vocab, where, t, free_at));
    return read_merges(merges, where, t);
}

/* ---- added tokens ---- */

static dt_status read_added(const json_t *entry, const char *where, dt_tokenizer *t, char **free_at)
{
    const char *content = NULL;
    const bool no = false;
    dti_added a = {0};
    DT_TRY(dt_json_string(entry, where, "content", NULL, &content));
    DT_REQUIRE(*content, DT_ERR_FORMAT, "%s: an added token is empty", where);
    static const char *const unknown[] = {"single_word", "lstrip", "rstrip"};
    for (int i = 0; i < DT_COUNT(unknown); i++)
        DT_TRY(must_not(entry, where, content, unknown[i]));
    DT_TRY(dt_json_bool(entry, where, "normalized", &no, &a.late));
    a.id = (int32_t)json_integer_value(json_object_get(entry, "id"));
    a.size_bytes = strlen(content);
    dti_token *k = &t->bpe.token[a.id];
    DT_REQUIRE(
        !k->bytes || (k->size_bytes == a.size_bytes && !memcmp(k->bytes, content, a.size_bytes)),
        DT_ERR_FORMAT, "%s: added token '%s' has the id %d of another token", where, content, a.id);
    memcpy(*free_at, content, a.size_bytes);
    *k = (dti_token){*free_at, a.size_bytes};
    *free_at += a.size_bytes;
    DT_TRY(dt_grow((void **)&t->added, &t->added_capacity, t->nadded + 1, sizeof *t->added));
    a.text = strdup(content);
    DT_REQUIRE(a.text, DT_ERR_NOMEM, "an added token");
    t->added[t->nadded++] = a;
    t->added_starts[a.late][(unsigned char)content[0]] = true;
    return DT_OK;
}

static dt_status read_all(const json_t *root, const char *where, dt_tokenizer *t)
{
    char *free_at = NULL;
    size_t i;
    const json_t *entry;
    DT_TRY(must_not(root, where, "", "normalizer"));
    DT_TRY(read_model(root, where, t, &free_at));
    DT_TRY(read_pre_tokenizer(json_object_get(root, "pre_tokenizer"), where, t));
    json_array_foreach(json_object_get(root, "added_tokens"), i, entry)
        DT_TRY(read_added(entry, where, t, &free_at));
    return DT_OK;
}

dt_status dti_tokenizer_read(const char *path, dt_tokenizer *t)
{
    struct stat info;
    char *inside = NULL;
    json_t *root = NULL;
    const bool folder = stat(path, &info) == 0 && S_ISDIR(info.st_mode);
    DT_REQUIRE(asprintf(&inside, folder ? "%s/tokenizer.json" : "%s", path) > 0, DT_ERR_NOMEM,
               "a path");
    dt_status st = dt_json_load(inside, &root);
    if (st == DT_OK)
        st = read_all(root, inside, t);
    json_decref(root);
    free(inside);
    return st;
}
