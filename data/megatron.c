/* data/megatron.c - Megatron-LM's .idx files, little-endian:
 *
 *     "MMIDIDX\0\0"  u64 version 1  u8 type of tokens  u64 sequences S  u64 entries D
 *     i32 length[S]  i64 pointer[S]  i64 document[D]  and for pictures  i8 mode[S]
 *
 * pointer: the byte of .bin where a sequence begins, here each where the one before it ends.
 * document: the first sequence of each document, at last S. Source: Megatron-LM,
 * megatron/core/datasets/indexed_dataset.py. Read next: data/megatron_write.c. */
#include "data/data_internal.h"

#include <assert.h>
#include <string.h>

enum { TABLES = 34 };

size_t dti_token_size(int code)
{
    static const size_t size[] = {[DTI_U8] = 1,  [DTI_I8] = 1,  [DTI_I16] = 2, [DTI_I32] = 4,
                                  [DTI_I64] = 8, [DTI_U16] = 2, [DTI_F64] = 0, [DTI_F32] = 0};
    return code >= 0 && code < DT_COUNT(size) ? size[code] : 0;
}

static int64_t i64_at(const unsigned char *table, int64_t i)
{
    int64_t value;
    memcpy(&value, table + 8 * i, sizeof value);
    return value;
}

/* The header, and whether tables of that size fill the file. *modes: the last one, or NULL. */
static dt_status read_header(const char *path, dti_index *x, const unsigned char **modes)
{
    const unsigned char *b = x->map.bytes;
    const uint64_t size = x->map.size_bytes;
    DT_REQUIRE(size >= TABLES && memcmp(b, "MMIDIDX\0", 9) == 0, DT_ERR_FORMAT,
               "%s: not an index of tokens: it must begin with MMIDIDX and have %d bytes", path,
               TABLES);
    const int64_t version = i64_at(b + 9, 0);
    const uint64_t s = (uint64_t)i64_at(b + 18, 0), d = (uint64_t)i64_at(b + 26, 0);
    DT_REQUIRE(version == 1, DT_ERR_FORMAT, "%s: index of version %lld, must be 1", path,
               (long long)version);
    x->code = b[17];
    DT_REQUIRE(dti_token_size(x->code) > 0, DT_ERR_FORMAT,
               "%s: tokens of type %d; legal: 1 to 5 and 8 (u8, i8, i16, i32, i64, u16)", path,
               x->code);
    const bool small = s <= size / 12 && d <= size / 8;
    const uint64_t plain = small ? TABLES + 12 * s + 8 * d : 0;
    DT_REQUIRE(small && (plain == size || plain + s == size), DT_ERR_FORMAT,
               "%s: %llu bytes, but %llu sequences and %llu entries of documents need %llu", path,
               (unsigned long long)size, (unsigned long long)s, (unsigned long long)d,
               (unsigned long long)plain);
    x->sequences = (int64_t)s;
    x->documents = (int64_t)d;
    x->pointer = b + TABLES + 4 * s;
    x->document = x->pointer + 8 * s;
    *modes = plain == size ? NULL : x->document + 8 * d;
    return DT_OK;
}

static dt_status check_sequences(const char *path, const unsigned char *modes, dti_index *x)
{
    const int64_t size = (int64_t)dti_token_size(x->code);
    int64_t at = 0; /* in bytes */
    for (int64_t i = 0; i < x->sequences; i++) {
        int32_t length;
        memcpy(&length, x->map.bytes + TABLES + 4 * i, sizeof length);
        DT_REQUIRE(i64_at(x->pointer, i) == at && length >= 0, DT_ERR_FORMAT,
                   "%s: sequence %lld has %d tokens from byte %lld; it must begin at byte %lld",
                   path, (long long)i, length, (long long)i64_at(x->pointer, i), (long long)at);
        DT_REQUIRE(!modes || modes[i] == 0, DT_ERR_UNSUPPORTED,
                   "%s: sequence %lld is of mode %d, not text", path, (long long)i, modes[i]);
        DT_REQUIRE(!__builtin_add_overflow(at, length * size, &at), DT_ERR_FORMAT,
                   "%s: too many tokens", path);
    }
    x->tokens = at / size;
    return DT_OK;
}

static dt_status check_documents(const char *path, const dti_index *x)
{
    const int64_t d = x->documents;
    DT_REQUIRE(d > 0 && i64_at(x->document, 0) == 0 && i64_at(x->document, d - 1) == x->sequences,
               DT_ERR_FORMAT, "%s: documents must go from sequence 0 to %lld", path,
               (long long)x->sequences);
    for (int64_t i = 1; i < d; i++)
        DT_REQUIRE(i64_at(x->document, i) >= i64_at(x->document, i - 1), DT_ERR_FORMAT,
                   "%s: document %lld begins before the one before it", path, (long long)i);
    return DT_OK;
}

dt_status dti_index_open(const char *path, const char *bin_path, size_t bin_bytes,
                         dti_index *index_out)
{
    dti_index *x = index_out;
    const unsigned char *modes = NULL;
    DT_TRY(dti_map_open(path, &x->map));
    DT_TRY(read_header(path, x, &modes));
    DT_TRY(check_sequences(path, modes, x));
    DT_TRY(check_documents(path, x));
    const uint64_t want = (uint64_t)x->tokens * dti_token_size(x->code);
    DT_REQUIRE(want == bin_bytes, DT_ERR_FORMAT, "%s: %s: the index says %llu bytes, it has %zu",
               bin_path, want > bin_bytes ? "truncated" : "wrong size", (unsigned long long)want,
               bin_bytes);
    return DT_OK;
}

int64_t dti_index_start(const dti_index *x, int64_t i)
{
    const int64_t s = i64_at(x->document, i), size = (int64_t)dti_token_size(x->code);
    assert(size > 0); /* checked when it was opened */
    return s == x->sequences ? x->tokens : i64_at(x->pointer, s) / size;
}

int64_t dti_index_find(const dti_index *x, int64_t token)
{
    int64_t lo = 0, hi = x->documents - 1; /* start(lo) <= token < start(hi) */
    while (hi - lo > 1) {
        const int64_t middle = lo + (hi - lo) / 2;
        *(dti_index_start(x, middle) <= token ? &lo : &hi) = middle;
    }
    return lo;
}
