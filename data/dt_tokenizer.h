/* data/dt_tokenizer.h - text to tokens and back: bytes, or byte-pair encoding as a Hugging Face
 * tokenizer.json describes it.
 *
 * Read are the byte-level kinds of GPT-2 and Llama 3: model BPE, no normalizer, pre-tokenizer
 * ByteLevel or Split by patterns and then ByteLevel, added tokens. What a file asks for beyond that
 * is an error that names it, so that no token is silently another. The post-processor (tokens
 * around a text), truncation and padding are not applied: the same as the `tokenizers` package with
 * add_special_tokens=False.
 * Patterns are run by PCRE2; in a build without it only bytes are left. */
#pragma once

#include "base/dt_types.h"

typedef struct dt_tokenizer dt_tokenizer;

/* dt_tokenizer_open - from a file, or a folder with a tokenizer.json; "bytes": a token a byte.
 * Errors: DT_ERR_IO; DT_ERR_FORMAT: no tokenizer.json, or one that contradicts itself;
 * DT_ERR_UNSUPPORTED names what is not there. */
DT_NODISCARD dt_status dt_tokenizer_open(const char *path, dt_tokenizer **tokenizer_out);
void dt_tokenizer_close(dt_tokenizer **tokenizer); /* accepts NULL inside */

/* All tokens are below it. */
int64_t dt_tokenizer_vocab(const dt_tokenizer *t);
/* The token with exactly this text, or -1. */
int32_t dt_tokenizer_find(const dt_tokenizer *t, const char *text);
/* A token's bytes (not ended by 0; a token may be part of a character); NULL: there is none. */
const char *dt_tokenizer_text(const dt_tokenizer *t, int32_t token, size_t *size_bytes);

/* Grows; free(id) at the end. */
typedef struct dt_tokens {
    int32_t *id;
    int64_t n, capacity;
} dt_tokens;

/* dt_tokenizer_encode - append the tokens of a text. Several threads may encode with one tokenizer.
 * Cost: bytes x log of the longest piece.
 * Errors: DT_ERR_FORMAT names the byte where text is not UTF-8 (not for bytes); DT_ERR_NOMEM. */
DT_NODISCARD dt_status dt_tokenizer_encode(const dt_tokenizer *t, const char *text,
                                           size_t size_bytes, dt_tokens *tokens);
