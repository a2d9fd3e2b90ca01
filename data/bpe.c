/* data/bpe.c - byte-pair encoding of one piece of text: its bytes are tokens; of all neighbours
 * that have a merge the one of lowest rank, the leftmost of equals, becomes one token, until none
 * is left.
 *
 * A heap holds candidates; those whose neighbours have changed since are passed over. Source:
 * Sennrich et al. 2016, "Neural machine translation of rare words with subword units". */
#include "data/tokenizer_internal.h"

#include <stdlib.h>
#include <string.h>

/* ---- tables ---- */

static uint64_t mix(uint64_t h)
{
    h ^= h >> 32;
    h *= UINT64_C(0x9E3779B97F4A7C15);
    return h ^ h >> 29;
}

static uint64_t text_hash(const char *bytes, size_t n)
{
    uint64_t h = n;
    for (size_t i = 0; i < n; i++)
        h = (h ^ (unsigned char)bytes[i]) * UINT64_C(0x100000001B3);
    return mix(h);
}

static uint64_t pair_hash(int32_t left, int32_t right)
{
    return mix((uint64_t)(uint32_t)left << 32 | (uint32_t)right);
}

static uint64_t twice(int64_t n)
{
    uint64_t slots = 16;
    while (slots < 2 * (uint64_t)n)
        slots *= 2;
    return slots;
}

dt_status dti_bpe_tables(dti_bpe *b, int64_t nmerges)
{
    b->slots = twice(b->vocab);
    b->merge_slots = twice(nmerges);
    b->slot = malloc(b->slots * sizeof *b->slot);
    b->merge = calloc(b->merge_slots, sizeof *b->merge);
    DT_REQUIRE(b->slot && b->merge, DT_ERR_NOMEM, "%lld tokens and %lld merges",
               (long long)b->vocab, (long long)nmerges);
    memset(b->slot, -1, b->slots * sizeof *b->slot);
    return DT_OK;
}

void dti_bpe_free(dti_bpe *b)
{
    free(b->token);
    free(b->slot);
    free(b->merge);
    *b = (dti_bpe){0};
}

/* The slot of this text, or the empty one where it would go. */
static int32_t *slot_of(const dti_bpe *b, const char *bytes, size_t n)
{
    uint64_t i = text_hash(bytes, n) & (b->slots - 1);
    for (;; i = (i + 1) & (b->slots - 1)) {
        const int32_t token = b->slot[i];
        if (token < 0 ||
            (b->token[token].size_bytes == n && memcmp(b->token[token].bytes, bytes, n) == 0))
            return &b->slot[i];
    }
}

bool dti_bpe_add_token(dti_bpe *b, int32_t token)
{
    int32_t *slot = slot_of(b, b->token[token].bytes, b->token[token].size_bytes);
    if (*slot >= 0)
        return false;
    *slot = token;
    return true;
}

int32_t dti_bpe_find(const dti_bpe *b, const char *bytes, size_t size_bytes)
{
    return *slot_of(b, bytes, size_bytes);
}

static dti_merge *merge_of(const dti_bpe *b, int32_t left, int32_t right)
{
    uint64_t i = pair_hash(left, right) & (b->merge_slots - 1);
    while (b->merge[i].rank != 0 && (b->merge[i].left != left || b->merge[i].right != right))
        i = (i + 1) & (b->merge_slots - 1);
    return &b->merge[i];
}

void dti_bpe_add_merge(dti_bpe *b, dti_merge merge)
{
    *merge_of(b, merge.left, merge.right) = merge;
}

/* ---- a piece ---- */

/* Tokens in a row, linked as they merge; token -1: gone into the one before. */
typedef struct dti_symbol {
    int32_t token;
    int64_t before, after; /* -1: none */
} dti_symbol;

typedef struct dti_candidate {
    uint32_t rank;
    int32_t result;
    int64_t at; /* the left one */
} dti_candidate;

static bool sooner(const dti_candidate *a, const dti_candidate *b)
{
    return a->rank != b->rank ? a->rank < b->rank : a->at < b->at;
}

static dt_status push(dti_bpe_work *w, dti_candidate c)
{
    DT_TRY(dt_grow((void **)&w->heap, &w->heap_capacity, w->nheap + 1, sizeof *w->heap));
    int64_t i = w->nheap++;
    for (; i > 0 && sooner(&c, &w->heap[(i - 1) / 2]); i = (i - 1) / 2)
        w->heap[i] = w->heap[(i - 1) / 2];
    w->heap[i] = c;
    return DT_OK;
}

static dti_candidate pop(dti_bpe_work *w)
{
    const dti_candidate first = w->heap[0], last = w->heap[--w->nheap];
    int64_t i = 0;
    for (int64_t child; (child = 2 * i + 1) < w->nheap; i = child) {
        if (child + 1 < w->nheap && sooner(&w->heap[child + 1], &w->heap[child]))
            child++;
        if (!sooner(&w->heap[child], &last))
            break;
        w->heap[i] = w->heap[child];
    }
    w->heap[i] = last;
    return first;
}

/* The merge of symbol `at` and the one after it; rank 0: none. */
static dti_merge merge_at(const dti_bpe *b, const dti_bpe_work *w, int64_t at)
{
    if (at < 0 || w->symbol[at].token < 0 || w->symbol[at].after < 0)
        return (dti_merge){0};
    return *merge_of(b, w->symbol[at].token, w->symbol[w->symbol[at].after].token);
}

static dt_status consider(const dti_bpe *b, dti_bpe_work *w, int64_t at)
{
    const dti_merge m = merge_at(b, w, at);
    return m.rank == 0 ? DT_OK : push(w, (dti_candidate){m.rank, m.result, at});
}

static dt_status merge_all(const dti_bpe *b, dti_bpe_work *w)
{
    while (w->nheap > 0) {
        const dti_candidate c = pop(w);
        const dti_merge now = merge_at(b, w, c.at);
        if (now.rank != c.rank) /* one of the two has changed */
            continue;
        dti_symbol *left = &w->symbol[c.at], *right = &w->symbol[left->after];
        left->token = c.result;
        left->after = right->after;
        right->token = -1;
        if (left->after >= 0)
            w->symbol[left->after].before = c.at;
        DT_TRY(consider(b, w, left->before));
        DT_TRY(consider(b, w, c.at));
    }
    return DT_OK;
}

static dt_status append(dt_tokens *tokens, int32_t token)
{
    DT_TRY(dt_grow((void **)&tokens->id, &tokens->capacity, tokens->n + 1, sizeof *tokens->id));
    tokens->id[tokens->n++] = token;
    return DT_OK;
}

dt_status dti_bpe_encode(const dti_bpe *b, dti_bpe_work *w, const char *piece, size_t size_bytes,
                         dt_tokens *tokens)
{
    const int64_t n = (int64_t)size_bytes;
    const int32_t whole = b->ignore_merges ? dti_bpe_find(b, piece, size_bytes) : -1;
    if (whole >= 0)
        return append(tokens, whole);
    DT_TRY(dt_grow((void **)&w->symbol, &w->capacity, n, sizeof *w->symbol));
    w->nheap = 0;
    for (int64_t i = 0; i < n; i++)
        w->symbol[i] =
            (dti_symbol){b->byte[(unsigned char)piece[i]], i - 1, i + 1 < n ? i + 1 : -1};
    for (int64_t i = 0; i + 1 < n; i++)
        DT_TRY(consider(b, w, i));
    DT_TRY(merge_all(b, w));
    for (int64_t i = 0; i >= 0 && n > 0; i = w->symbol[i].after)
        DT_TRY(append(tokens, w->symbol[i].token));
    return DT_OK;
}

void dti_bpe_work_free(dti_bpe_work *w)
{
    free(w->symbol);
    free(w->heap);
    *w = (dti_bpe_work){0};
}
