/* data/tokenizer_internal.h - the tables of a tokenizer. Read next: data/tokenizer.c,
 * data/tokenizer_json.c, data/bpe.c. */
#pragma once

#include "data/dt_tokenizer.h"

enum { DTI_MOST_PATTERNS = 8 };

/* ---- pattern_pcre2.c, or pattern_none.c ---- */

typedef struct dti_pattern dti_pattern;
typedef struct dti_matcher dti_matcher; /* what one thread needs to search */

/* In the syntax of Oniguruma, as far as both mean the same by it. `where` goes into messages. */
dt_status dti_pattern_create(const char *text, const char *where, dti_pattern **pattern_out);
void dti_pattern_destroy(dti_pattern *p); /* accepts NULL */
dt_status dti_matcher_create(dti_matcher **matcher_out);
void dti_matcher_destroy(dti_matcher *m); /* accepts NULL */
/* The first match at or after `from` in valid UTF-8, never empty; *lo_out == n: there is none. */
dt_status dti_pattern_next(const dti_pattern *p, dti_matcher *m, const char *text, size_t n,
                           size_t from, size_t *lo_out, size_t *hi_out);

/* ---- bpe.c ---- */

/* A token's text. */
typedef struct dti_token {
    const char *bytes; /* NULL: no token has this number */
    size_t size_bytes;
} dti_token;

/* Two neighbours that become one; the lowest rank first. */
typedef struct dti_merge {
    int32_t left, right, result;
    uint32_t rank; /* 0: an empty slot of the table; else from 1 */
} dti_merge;

typedef struct dti_bpe {
    dti_token *token; /* [vocab] */
    int64_t vocab;
    int32_t *slot; /* by text: tokens, -1 empty */
    dti_merge *merge;
    uint64_t slots, merge_slots; /* powers of 2, never full */
    int32_t byte[256];
    bool ignore_merges; /* a piece that is a token is that token */
} dti_bpe;

/* Memory for one piece after the other. */
typedef struct dti_bpe_work {
    struct dti_symbol *symbol;
    struct dti_candidate *heap;
    int64_t capacity, heap_capacity, nheap;
} dti_bpe_work;

/* token and vocab are there; the tables become so for that many merges. */
dt_status dti_bpe_tables(dti_bpe *b, int64_t nmerges);
void dti_bpe_free(dti_bpe *b);
/* false: another token has this text. */
bool dti_bpe_add_token(dti_bpe *b, int32_t token);
int32_t dti_bpe_find(const dti_bpe *b, const char *bytes, size_t size_bytes); /* or -1 */
void dti_bpe_add_merge(dti_bpe *b, dti_merge merge); /* a later one of the same two wins */
dt_status dti_bpe_encode(const dti_bpe *b, dti_bpe_work *w, const char *piece, size_t size_bytes,
                         dt_tokens *tokens);
void dti_bpe_work_free(dti_bpe_work *w);

/* ---- the tokenizer ---- */

/* Found in the text before anything else. */
typedef struct dti_added {
    char *text;
    size_t size_bytes;
    int32_t id;
    bool late; /* "normalized": only in what the others left */
} dti_added;

struct dt_tokenizer {
    bool bytes;
    dti_bpe bpe;
    char *text;                              /* of all tokens */
    dti_pattern *pattern[DTI_MOST_PATTERNS]; /* each splits the pieces of the one before */
    int npatterns;
    dti_added *added;
    int64_t nadded, added_capacity;
    bool added_starts[2][256]; /* by late, does one begin with this byte? */
};

/* Fill an empty tokenizer; on failure, too, for the caller to close. */
dt_status dti_tokenizer_read(const char *path, dt_tokenizer *t);
