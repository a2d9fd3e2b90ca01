/* data/data_internal.h - what the files of data/ share: mapped files, sources of tokens, the order
 * of samples. */
#pragma once

#include "base/dt_random.h"
#include "data/dt_data.h"

/* ---- map.c ---- */

/* A file, read-only, in memory: opening costs nothing, and ranks of one machine share the pages. */
typedef struct dti_map {
    const unsigned char *bytes;
    size_t size_bytes;
    uint64_t device, inode;
} dti_map;

/* Errors: DT_ERR_IO; DT_ERR_FORMAT for an empty file. */
dt_status dti_map_open(const char *path, dti_map *map_out);
/* Reading past the end of a file that became shorter would kill the process. Asked before every
 * read, so that only a moment remains. Errors: DT_ERR_IO. */
dt_status dti_map_check(const dti_map *m, const char *path);
void dti_map_close(dti_map *m);

/* ---- megatron.c ---- */

/* Types of tokens, by the numbers that .idx files have for them. */
enum { DTI_U8 = 1, DTI_I8, DTI_I16, DTI_I32, DTI_I64, DTI_F64, DTI_F32, DTI_U16 };
size_t dti_token_size(int code); /* 0: not whole numbers */

/* A checked .idx file. Its tables are not aligned. */
typedef struct dti_index {
    dti_map map;
    int code;
    int64_t sequences, documents;                /* documents: entries, one more than there are */
    int64_t tokens;                              /* of the .bin file */
    const unsigned char *pointer, *document; /* int64: bytes in .bin; first sequences */
} dti_index;

/* Every number in it is checked: against the others, and bin_bytes, the size of the .bin file.
 * Errors: DT_ERR_IO; DT_ERR_FORMAT, DT_ERR_UNSUPPORTED name what is wrong. */
dt_status dti_index_open(const char *path, const char *bin_path, size_t bin_bytes,
                         dti_index *index_out);
/* The token where document i begins; i == documents - 1: the end. */
int64_t dti_index_start(const dti_index *x, int64_t i);
/* The document that holds a token. */
int64_t dti_index_find(const dti_index *x, int64_t token);

/* ---- source.c ---- */

typedef struct dti_file {
    char *path;
    dti_map map;
    const unsigned char *tokens;
    int64_t start, count; /* in the source's stream */
} dti_file;

/* One stream of tokens: a file, or several one after the other; `first` and `length` are the part
 * of it that is in use. */
typedef struct dti_source {
    dt_data_format format;
    int code;
    dti_file *file;
    int64_t nfiles, capacity;
    dti_index index; /* DT_DATA_MEGATRON */
    int64_t all, first, length;
} dti_source;

/* On failure, too, for the caller to close. */
dt_status dti_source_open(const char *path, const dt_dataset_options *options, dti_source *source);
void dti_source_close(dti_source *source);
/* Tokens [at, at + n) of the part. Errors: DT_ERR_FORMAT: a token outside of [0, limit). */
dt_status dti_source_read(const dti_source *s, int64_t at, int64_t n, int64_t limit, int32_t *out);
/* starts[t]: does a document start at token at + t, 0 < t < n? Told by the index, or else by the
 * token before it. */
void dti_source_starts(const dti_source *s, int64_t at, int64_t n, const int32_t *token,
                       int64_t end_token, bool *starts);

/* ---- blend.c ---- */

/* Sample n of a blend is the next one of source argmax_i (weight_i max(n, 1) - count_i), the first
 * of equals, where count_i samples were taken from source i before. */
typedef struct dti_blend {
    int n;
    double *weight; /* sum 1 */
    int64_t *step, *now; /* taken of each source: when the step began; in it. Then their sums. */
    int64_t step_at, now_at;
} dti_blend;

dt_status dti_blend_create(size_t n, const double *weight, dti_blend *blend);
void dti_blend_free(dti_blend *blend);
/* Sample n >= step_start: its source, and which one of that source it is. Cost: the samples
 * between n and the last one asked for; from 0 where step_start is before the last one. */
void dti_blend_at(dti_blend *blend, int64_t step_start, int64_t n, int *source_out,
                  int64_t *sample_out);

/* Where i goes in an order of 0 .. n-1 that only the key knows. A bijection.
 * Source: Black and Rogaway 2002, "Ciphers with arbitrary finite domains": a Feistel network,
 * walked until it lands inside. */
int64_t dti_permute(dt_key key, int64_t i, int64_t n);
