/* data/dt_data.h - token streams on disk, and the batches read from them in order.
 *
 * A dataset is one stream of tokens. Sample j of a step of B samples of T tokens reads tokens
 *     ids[t] = token[start + j*T + t],   targets[t] = token[start + j*T + t + 1],   t = 0 .. T-1
 * so neighbours share one token and a step needs B*T + 1 of them. `start` is the position, or 0 if
 * the whole step does not fit from the position to the end of the data: a step never straddles the
 * end. If a step does not fit even from 0, its samples go round the data: sample j is sample j mod
 * M, where M = (length - 1) / T.
 *
 * Blended or shuffled data has no end. Sample n = position / T + j is one of a source's M samples,
 * of which none comes twice before all have come once: a blend says of which source (the one that
 * is furthest behind its weight), and a permutation of (seed, source, round) says which, or else
 * they come in order.
 *
 * All of this is a function of (position, B, T), not of the number of ranks: each rank asks for
 * its own samples [lo, hi) of the step.
 *
 * Formats (little-endian, as the machine must be); text and tokens may be several files, named by a
 * pattern such as "shard_*.bin", one after the other in the order of their names:
 *   text      the bytes of a file, 0 .. 255
 *   tokens    256 int32: 20240520, 1 (version), number of tokens, 0 ...; then uint16 tokens
 *             (llm.c)
 *   megatron  NAME.idx and NAME.bin of Megatron-LM, named by either or by NAME
 *   labels    int32 without header; entry i replaces token[i + 1] as the target at token position
 *             i; -100 means "no target"
 * Files are mapped. One that becomes shorter during a run is an error of the next batch. */
#pragma once

#include "base/dt_types.h"

enum { DT_LABEL_IGNORED = -100 };

typedef enum dt_data_format {
    /* megatron where there is an .idx; tokens if the file starts with the magic number or is called
     * *.bin; else text */
    DT_DATA_AUTO,
    DT_DATA_TEXT,
    DT_DATA_TOKENS,
    DT_DATA_MEGATRON
} dt_data_format;

/* From "auto", "text", "tokens", "megatron". Errors: DT_ERR_ARG lists them. */
DT_NODISCARD dt_status dt_data_format_parse(const char *text, dt_data_format *format_out);

typedef struct dt_dataset dt_dataset;

typedef struct dt_dataset_options {
    dt_data_format format;
    const char *labels_path; /* NULL: targets are the next tokens */
    int64_t vocab;           /* tokens and labels must be below it; 0: not checked */
    int64_t seq_len; /* the data must hold one sample of it; 0: checked by the first batch */
    bool blend;      /* the path is "WEIGHT PATH WEIGHT PATH ..." */
    bool shuffle;    /* samples in another order every round */
    uint64_t seed;   /* of that order */
    /* The last part of every source, from 0 to below 1, is not for training (whole documents, where
     * they are known); evaluation: give that part and not the rest. */
    double held_out;
    bool evaluation;
    /* Targets that belong to another document than their token are ignored. Documents end where
     * Megatron's index says, or else after end_token. */
    bool documents;
    bool has_end_token;
    int32_t end_token;
} dt_dataset_options;

/* dt_dataset_open - map the files; tokens and labels are checked when they are read, every entry of
 * an index at once.
 * Errors: DT_ERR_IO: missing or unreadable; DT_ERR_FORMAT: empty, shorter than seq_len + 1, wrong
 * magic or version, a size that is not what the header or index says, an index with a gap, fewer
 * labels than targets; DT_ERR_ARG: a blend that is none, documents without known ends;
 * DT_ERR_UNSUPPORTED: labels of a blend, tokens that are no whole numbers, pictures. */
DT_NODISCARD dt_status dt_dataset_open(const char *path, const dt_dataset_options *options,
                                       dt_dataset **dataset_out);
void dt_dataset_close(dt_dataset **dataset);

/* In tokens, INT64_MAX for data without an end; and what auto has found, of a blend's first. */
int64_t dt_dataset_length(const dt_dataset *dataset);
dt_data_format dt_dataset_format(const dt_dataset *dataset);

/* Is it one of the files that are read, by whatever name? Those of all sources, and labels. */
bool dt_dataset_has_file(const dt_dataset *dataset, const char *path);

typedef struct dt_batch {
    int64_t position;     /* token position before the step */
    int64_t global_batch; /* samples of the step, on all ranks */
    int64_t seq_len;
    int64_t lo, hi; /* the samples wanted: 0 <= lo <= hi <= global_batch */
} dt_batch;

/* dt_dataset_batch - samples [lo, hi) of a step.
 * Out: ids, targets [hi - lo, seq_len]; may be NULL if lo == hi.
 * Cost: of a blend, also a look at all its samples before the step, once where a run begins.
 * Errors: DT_ERR_ARG: a batch that makes no sense; DT_ERR_FORMAT: data shorter than seq_len + 1, a
 * token or label outside of the vocabulary (names position and value); DT_ERR_IO: a file became
 * shorter. */
DT_NODISCARD dt_status dt_dataset_batch(const dt_dataset *dataset, const dt_batch *batch,
                                        int32_t *ids, int32_t *targets);

/* dt_dataset_documents - of the same samples: which document of the sample a token belongs to (0,
 * 1, ...), and its place in what the sample has of it. For attention within documents.
 * Out: positions, documents [hi - lo, seq_len]. Errors: as dt_dataset_batch. */
DT_NODISCARD dt_status dt_dataset_documents(const dt_dataset *dataset, const dt_batch *batch,
                                            int32_t *positions, int32_t *documents);

/* Where a step begins that finds `position`, in data of `length` tokens: position or 0; and the
 * position after that step, which is what a checkpoint saves. Pure. */
int64_t dt_dataset_position_start(int64_t length, int64_t position, int64_t global_batch,
                                  int64_t seq_len);
int64_t dt_dataset_position_next(int64_t length, int64_t position, int64_t global_batch,
                                 int64_t seq_len);

/* ---- writing ---- */

/* A pair NAME.bin and NAME.idx of Megatron-LM, a sequence a document; u16 below 65500 tokens of
 * vocabulary, else i32. The index is written last: a pair without one is unfinished. */
typedef struct dt_token_writer dt_token_writer;

DT_NODISCARD dt_status dt_token_writer_create(const char *name, int64_t vocab,
                                              dt_token_writer **writer_out);
/* Errors: DT_ERR_ARG: a token outside of the vocabulary; DT_ERR_IO. */
DT_NODISCARD dt_status dt_token_writer_add(dt_token_writer *writer, const int32_t *tokens,
                                           int64_t n);
DT_NODISCARD dt_status dt_token_writer_finish(dt_token_writer *writer);
void dt_token_writer_destroy(dt_token_writer **writer); /* accepts NULL inside */
