/* data/dt_data.h - token streams on disk, and the batches read from them in order.
 *
 * A dataset is one stream of tokens. Sample j of a step of B samples of T tokens reads tokens
 *     ids[t] = token[start + j*T + t],   targets[t] = token[start + j*T + t + 1],   t = 0 .. T-1
 * so neighbours share one token and a step needs B*T + 1 of them. `start` is the position, or 0 if
 * the whole step does not fit from the position to the end of the data: a step never straddles the
 * end. If a step does not fit even from 0, its samples go round the data: sample j is sample j mod
 * M, where M = (length - 1) / T. All of this is a function of (position, B, T), not of the number
 * of ranks: each rank asks for its own samples [lo, hi) of the step.
 *
 * Formats (little-endian, as the machine must be):
 *   text    the bytes of a file, 0 .. 255
 *   tokens  256 int32: 20240520, 1 (version), number of tokens, 0 ...; then uint16 tokens (llm.c)
 *   labels  int32 without header; entry i replaces token[i + 1] as the target at token position i;
 *           -100 means "no target" */
#pragma once

#include "base/dt_types.h"

enum { DT_LABEL_IGNORED = -100 };

typedef enum dt_data_format {
    DT_DATA_AUTO, /* tokens if the file starts with the magic number or is called *.bin, or text */
    DT_DATA_TEXT,
    DT_DATA_TOKENS,
    DT_DATA_MEGATRON /* PATH.idx with PATH.bin: DT_ERR_UNSUPPORTED */
} dt_data_format;

/* From "auto", "text", "tokens", "megatron". Errors: DT_ERR_ARG lists them. */
DT_NODISCARD dt_status dt_data_format_parse(const char *text, dt_data_format *format_out);

typedef struct dt_dataset dt_dataset;

typedef struct dt_dataset_options {
    dt_data_format format;
    const char *labels_path; /* NULL: targets are the next tokens */
    int64_t vocab;           /* tokens and labels must be below it; 0: not checked */
    int64_t seq_len; /* the data must hold one sample of it; 0: checked by the first batch */
} dt_dataset_options;

/* dt_dataset_open - map the files; tokens and labels are checked when they are read.
 * Errors: DT_ERR_IO: missing or unreadable; DT_ERR_FORMAT: empty, shorter than seq_len + 1, wrong
 * magic or version, a size that is not what the header says, fewer labels than targets;
 * DT_ERR_UNSUPPORTED. */
DT_NODISCARD dt_status dt_dataset_open(const char *path, const dt_dataset_options *options,
                                       dt_dataset **dataset_out);
void dt_dataset_close(dt_dataset **dataset);

/* In tokens; and what auto has found: text or tokens. */
int64_t dt_dataset_length(const dt_dataset *dataset);
dt_data_format dt_dataset_format(const dt_dataset *dataset);

typedef struct dt_batch {
    int64_t position;     /* token position before the step */
    int64_t global_batch; /* samples of the step, on all ranks */
    int64_t seq_len;
    int64_t lo, hi; /* the samples wanted: 0 <= lo <= hi <= global_batch */
} dt_batch;

/* dt_dataset_batch - samples [lo, hi) of a step.
 * Out: ids, targets [hi - lo, seq_len]; may be NULL if lo == hi.
 * Errors: DT_ERR_ARG: a batch that makes no sense; DT_ERR_FORMAT: data shorter than seq_len + 1, a
 * token or label outside of the vocabulary (names position and value). */
DT_NODISCARD dt_status dt_dataset_batch(const dt_dataset *dataset, const dt_batch *batch,
                                        int32_t *ids, int32_t *targets);

/* Where a step begins that finds `position`, in data of `length` tokens: position or 0; and the
 * position after that step, which is what a checkpoint saves. Pure. */
int64_t dt_dataset_position_start(int64_t length, int64_t position, int64_t global_batch,
                                  int64_t seq_len);
int64_t dt_dataset_position_next(int64_t length, int64_t position, int64_t global_batch,
                                 int64_t seq_len);
