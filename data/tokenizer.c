/* data/tokenizer.c - see data/dt_tokenizer.h. A text is cut at added tokens, the rest by patterns
 * into pieces, and pieces into tokens (data/bpe.c). */
#include "data/tokenizer_internal.h"

#include <stdlib.h>
#include <string.h>

void dt_tokenizer_close(dt_tokenizer **tokenizer)
{
    dt_tokenizer *t = *tokenizer;
    if (!t)
        return;
    for (int i = 0; i < t->npatterns; i++)
        dti_pattern_destroy(t->pattern[i]);
    for (int64_t i = 0; i < t->nadded; i++)
        free(t->added[i].text);
    free(t->added);
    dti_bpe_free(&t->bpe);
    free(t->text);
    free(t);
    *tokenizer = NULL;
}

/* ---- bytes ---- */

static dt_status make_bytes(dt_tokenizer *t)
{
    t->bytes = true;
    t->bpe.vocab = 256;
    t->text = malloc(256);
    t->bpe.token = calloc(256, sizeof *t->bpe.token);
    DT_REQUIRE(t->text && t->bpe.token, DT_ERR_NOMEM, "256 tokens");
    for (int i = 0; i < 256; i++) {
        t->text[i] = (char)i;
        t->bpe.token[i] = (dti_token){t->text + i, 1};
    }
    return DT_OK;
}

static dt_status encode_bytes(const char *text, size_t n, dt_tokens *tokens)
{
    DT_TRY(dt_grow((void **)&tokens->id, &tokens->capacity, tokens->n + (int64_t)n,
                   sizeof *tokens->id));
    for (size_t i = 0; i < n; i++)
        tokens->id[tokens->n++] = (unsigned char)text[i];
    return DT_OK;
}

dt_status dt_tokenizer_open(const char *path, dt_tokenizer **tokenizer_out)
{
    dt_tokenizer *t = calloc(1, sizeof *t);
    DT_REQUIRE(t, DT_ERR_NOMEM, "a tokenizer");
    const dt_status st = strcmp(path, "bytes") == 0 ? make_bytes(t) : dti_tokenizer_read(path, t);
    if (st != DT_OK)
        dt_tokenizer_close(&t);
    else
        *tokenizer_out = t;
    return st;
}

/* ---- tokens and their texts ---- */

int64_t dt_tokenizer_vocab(const dt_tokenizer *t)
{
    return t->bpe.vocab;
}

const char *dt_tokenizer_text(const dt_tokenizer *t, int32_t token, size_t *size_bytes)
{
    if (token < 0 || token >= t->bpe.vocab || !t->bpe.token[token].bytes)
        return NULL;
    *size_bytes = t->bpe.token[token].size_bytes;
    return t->bpe.token[token].bytes;
}

int32_t dt_tokenizer_find(const dt_tokenizer *t, const char *text)
{
    const size_t n = strlen(text);
    for (int64_t i = 0; i < t->nadded; i++)
        if (strcmp(t->added[i].text, text) == 0)
            return t->added[i].id;
    if (t->bytes)
        return n == 1 ? (unsigned char)text[0] : -1;
    return dti_bpe_find(&t->bpe, text, n);
}

/* ---- encoding ---- */

/* Bytes of the valid UTF-8 character at s, of which n are left; 0: it is none. */
static size_t character(const unsigned char *s, size_t n)
{
    if (s[0] < 0x80)
        return 1;
    const size_t size = s[0] < 0xC2 ? 0 : s[0] < 0xE0 ? 2 : s[0] < 0xF0 ? 3 : s[0] < 0xF5 ? 4 : 0;
    if (size == 0 || size > n)
        return 0;
    for (size_t i = 1; i < size; i++)
        if ((s[i] & 0xC0) != 0x80)
            return 0;
    const bool overlong = (s[0] == 0xE0 && s[1] < 0xA0) || (s[0] == 0xF0 && s[1] < 0x90);
    const bool surrogate = s[0] == 0xED && s[1] >= 0xA0, beyond = s[0] == 0xF4 && s[1] >= 0x90;
    return overlong || surrogate || beyond ? 0 : size;
}

static dt_status check_text(const char *text, size_t n)
{
    for (size_t i = 0, size; i < n; i += size) {
        size = character((const unsigned char *)text + i, n - i);
        DT_REQUIRE(size > 0, DT_ERR_FORMAT, "byte %zu (0x%02x) of the text is not UTF-8", i,
                   (unsigned char)text[i]);
    }
    return DT_OK;
}

/* What encodes one text. */
typedef struct encoder {
    const dt_tokenizer *t;
    dti_matcher *matcher;
    dti_bpe_work work;
    dt_tokens *tokens;
} encoder;

/* A piece, cut by pattern `level` and those after it; what lies between matches is a piece too. */
static dt_status encode_piece(encoder *e, int level, const char *text, size_t n)
{
    if (n == 0)
        return DT_OK;
    if (level == e->t->npatterns)
        return dti_bpe_encode(&e->t->bpe, &e->work, text, n, e->tokens);
    for (size_t at = 0, lo, hi; at < n; at = hi) {
        DT_TRY(dti_pattern_next(e->t->pattern[level], e->matcher, text, n, at, &lo, &hi));
        DT_TRY(encode_piece(e, level + 1, text + at, lo - at));
        DT_TRY(encode_piece(e, level + 1, text + lo, hi - lo));
    }
    return DT_OK;
}

/* The longest added token that begins at text. */
static const dti_added *added_at(const dt_tokenizer *t, bool late, const char *text, size_t n)
{
    const dti_added *best = NULL;
    if (!t->added_starts[late][(unsigned char)text[0]])
        return NULL;
    for (int64_t i = 0; i < t->nadded; i++) {
        const dti_added *a = &t->added[i];
        if (a->late == late && a->size_bytes <= n && memcmp(a->text, text, a->size_bytes) == 0 &&
            (!best || a->size_bytes > best->size_bytes))
            best = a;
    }
    return best;
}

/* Cut at added tokens: first those that are not late, in what is left the others. */
static dt_status encode_text(encoder *e, bool late, const char *text, size_t n)
{
    size_t from = 0;
    for (size_t i = 0; i <= n;) {
        const dti_added *a = i < n ? added_at(e->t, late, text + i, n - i) : NULL;
        if (!a && i++ < n)
            continue;
        const size_t end = a ? i : n;
        DT_TRY(late ? encode_piece(e, 0, text + from, end - from)
                    : encode_text(e, true, text + from, end - from));
        if (!a)
            break;
        DT_TRY(dt_grow((void **)&e->tokens->id, &e->tokens->capacity, e->tokens->n + 1,
                       sizeof *e->tokens->id));
        e->tokens->id[e->tokens->n++] = a->id;
        from = i += a->size_bytes;
    }
    return DT_OK;
}

dt_status dt_tokenizer_encode(const dt_tokenizer *t, const char *text, size_t size_bytes,
                              dt_tokens *tokens)
{
    if (t->bytes)
        return encode_bytes(text, size_bytes, tokens);
    encoder e = {.t = t, .tokens = tokens};
    DT_TRY(check_text(text, size_bytes));
    DT_TRY(dti_matcher_create(&e.matcher));
    const dt_status st = encode_text(&e, false, text, size_bytes);
    dti_matcher_destroy(e.matcher);
    dti_bpe_work_free(&e.work);
    return st;
}
