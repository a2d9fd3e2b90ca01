/* tools/tokenize.c - texts to Megatron's token files, and back:
 *
 *     build/tools/tokenize --tokenizer=tokenizer.json --input="FOLDER/x*.txt" --output=corpus
 *     build/tools/tokenize --tokenizer=tokenizer.json --decode=corpus
 *
 * Documents are encoded by several threads, a round at a time, and written in their order. Read
 * first: data/dt_tokenizer.h, data/dt_data.h. */
#include "base/dt_json.h"
#include "base/dt_options.h"
#include "data/dt_data.h"
#include "data/dt_tokenizer.h"

#include <errno.h>
#include <glob.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { ROUND = 4096, ROUND_BYTES = 64 << 20, MOST_THREADS = 256 };

static const dt_option table[] = {
    {"tokenizer", DT_OPTION_STRING, "bytes", "a Hugging Face tokenizer.json, its folder, or bytes",
     NULL, 0, 0},
    {"input", DT_OPTION_STRING, NULL, "texts: a file, or a pattern of several", NULL, 0, 0},
    {"documents", DT_OPTION_STRING, "file", "a document is a whole file, a line, or a line of JSON",
     "file|line|json", 0, 0},
    {"json_key", DT_OPTION_STRING, "text", "where a line of JSON has its text", NULL, 0, 0},
    {"end", DT_OPTION_STRING, NULL, "token to add to every document, such as <|endoftext|>", NULL,
     0, 0},
    {"output", DT_OPTION_STRING, NULL, "writes OUTPUT.bin and OUTPUT.idx", NULL, 0, 0},
    {"threads", DT_OPTION_INT, "0", "0: one a core", NULL, 0, MOST_THREADS},
    {"decode", DT_OPTION_STRING, NULL, "token files to print as text instead", NULL, 0, 0},
    {"help", DT_OPTION_COMMAND, NULL, "print this", NULL, 0, 0},
};

/* ---- documents ---- */

typedef struct document {
    char *text;
    size_t size_bytes;
    dt_tokens tokens;
    dt_status st;
} document;

typedef struct job {
    const dt_tokenizer *tokenizer;
    const char *kind, *json_key;
    int32_t end; /* -1: none */
    int threads;
    dt_token_writer *writer;
    document document[ROUND]; /* of this round */
    int n;
    size_t bytes;
    atomic_int next;
    int64_t documents, all_tokens, all_bytes;
} job;

/* The text in a line of JSON takes the line's place. */
static dt_status take_json(const job *j, document *d)
{
    json_t *object = NULL;
    const char *text = NULL;
    DT_TRY(dt_json_parse(d->text, d->size_bytes, "a line of JSON", &object));
    dt_status st = dt_json_string(object, "a line of JSON", j->json_key, NULL, &text);
    if (st == DT_OK) {
        d->size_bytes = json_string_length(json_object_get(object, j->json_key));
        char *copy = malloc(d->size_bytes + 1);
        if (copy) {
            memcpy(copy, text, d->size_bytes);
            free(d->text);
            d->text = copy;
        } else {
            st = DT_ERROR(DT_ERR_NOMEM, "a line of %zu bytes", d->size_bytes);
        }
    }
    json_decref(object);
    return st;
}

static dt_status encode(const job *j, document *d)
{
    d->tokens.n = 0;
    if (strcmp(j->kind, "json") == 0)
        DT_TRY(take_json(j, d));
    DT_TRY(dt_tokenizer_encode(j->tokenizer, d->text, d->size_bytes, &d->tokens));
    if (j->end >= 0) {
        DT_TRY(dt_grow((void **)&d->tokens.id, &d->tokens.capacity, d->tokens.n + 1,
                       sizeof *d->tokens.id));
        d->tokens.id[d->tokens.n++] = j->end;
    }
    return DT_OK;
}

static void *work(void *arg)
{
    job *j = arg;
    for (int i; (i = atomic_fetch_add(&j->next, 1)) < j->n;)
        j->document[i].st = encode(j, &j->document[i]);
    return NULL;
}

/* A worker's message is its thread's: encode once more to have it here. */
static dt_status fail_here(const job *j, document *d)
{
    dt_status st = encode(j, d);
    if (st == DT_OK)
        return st;
    char *why = strdup(dt_error_trace());
    st = DT_ERROR(st, "document %lld, counted from 0: %s", (long long)j->documents, why ? why : "");
    free(why);
    return st;
}

static dt_status write_one(job *j, document *d)
{
    if (d->st != DT_OK)
        DT_TRY(fail_here(j, d));
    DT_TRY(dt_token_writer_add(j->writer, d->tokens.id, d->tokens.n));
    j->documents++;
    j->all_tokens += d->tokens.n;
    j->all_bytes += (int64_t)d->size_bytes;
    return DT_OK;
}

static void forget(job *j)
{
    for (int i = 0; i < j->n; i++) {
        free(j->document[i].text);
        free(j->document[i].tokens.id);
    }
    j->n = 0;
    j->bytes = 0;
}

/* Encode what has been gathered, and write it. */
static dt_status finish_round(job *j)
{
    pthread_t thread[MOST_THREADS];
    int started = 0;
    dt_status st = DT_OK;
    atomic_store(&j->next, 0);
    while (started < j->threads - 1 && started < j->n - 1 &&
           pthread_create(&thread[started], NULL, work, j) == 0)
        started++;
    (void)work(j);
    for (int i = 0; i < started; i++)
        (void)pthread_join(thread[i], NULL);
    for (int i = 0; i < j->n && st == DT_OK; i++)
        st = write_one(j, &j->document[i]);
    forget(j);
    return st;
}

static dt_status add(job *j, const char *text, size_t n)
{
    document *d = &j->document[j->n];
    *d = (document){.text = malloc(n + 1), .size_bytes = n};
    DT_REQUIRE(d->text, DT_ERR_NOMEM, "a document of %zu bytes", n);
    memcpy(d->text, text, n);
    j->n++;
    j->bytes += n;
    return j->n == ROUND || j->bytes > ROUND_BYTES ? finish_round(j) : DT_OK;
}

/* ---- files ---- */

static dt_status read_lines(job *j, FILE *f)
{
    char *line = NULL;
    size_t room = 0;
    dt_status st = DT_OK;
    for (ssize_t n; st == DT_OK && (n = getline(&line, &room, f)) >= 0;) {
        while (n > 0 && (line[n - 1] == '\n' || line[n - 1] == '\r'))
            n--;
        if (n > 0)
            st = add(j, line, (size_t)n);
    }
    free(line);
    return st;
}

static dt_status read_whole(job *j, FILE *f)
{
    char *text = NULL;
    int64_t room = 0, n = 0;
    dt_status st = DT_OK;
    for (size_t got = 1; st == DT_OK && got > 0; n += (int64_t)got) {
        st = dt_grow((void **)&text, &room, n + (1 << 16), 1);
        got = st == DT_OK ? fread(text + n, 1, (size_t)(room - n), f) : 0;
    }
    if (st == DT_OK)
        st = add(j, text, (size_t)n);
    free(text);
    return st;
}

static dt_status read_file(job *j, const char *path)
{
    FILE *f = fopen(path, "rbe");
    DT_REQUIRE(f, DT_ERR_IO, "%s: %s", path, strerror(errno));
    dt_status st = strcmp(j->kind, "file") == 0 ? read_whole(j, f) : read_lines(j, f);
    if (st == DT_OK && ferror(f))
        st = DT_ERROR(DT_ERR_IO, "%s: %s", path, strerror(errno));
    (void)fclose(f);
    return st;
}

static dt_status read_files(job *j, const char *input)
{
    glob_t found;
    DT_REQUIRE(glob(input, GLOB_NOCHECK, NULL, &found) == 0, DT_ERR_IO, "%s: cannot be listed",
               input);
    dt_status st = DT_OK;
    for (size_t i = 0; i < found.gl_pathc && st == DT_OK; i++)
        st = read_file(j, found.gl_pathv[i]);
    globfree(&found);
    return st == DT_OK ? finish_round(j) : st;
}

static dt_status tokenize(const dt_options *o, job *j)
{
    const char *input = dt_options_string(o, "input"), *output = dt_options_string(o, "output");
    const char *end = dt_options_string(o, "end");
    DT_REQUIRE(input && output, DT_ERR_ARG, "--input and --output are both needed, or --decode");
    j->end = end ? dt_tokenizer_find(j->tokenizer, end) : -1;
    DT_REQUIRE(!end || j->end >= 0, DT_ERR_ARG, "--end=%s: the tokenizer has no such token", end);
    DT_TRY(dt_token_writer_create(output, dt_tokenizer_vocab(j->tokenizer), &j->writer));
    DT_TRY(read_files(j, input));
    DT_TRY(dt_token_writer_finish(j->writer));
    printf("%lld documents, %lld bytes, %lld tokens of a vocabulary of %lld: %s.bin, %s.idx\n",
           (long long)j->documents, (long long)j->all_bytes, (long long)j->all_tokens,
           (long long)dt_tokenizer_vocab(j->tokenizer), output, output);
    return DT_OK;
}

/* ---- and back ---- */

static dt_status print_tokens(const dt_tokenizer *t, const int32_t *id, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        size_t size = 0;
        const char *text = dt_tokenizer_text(t, id[i], &size);
        DT_REQUIRE(text, DT_ERR_FORMAT, "the tokenizer has no token %d", id[i]);
        (void)fwrite(text, 1, size, stdout);
    }
    return DT_OK;
}

static dt_status decode(const dt_tokenizer *t, const char *path)
{
    enum { AT_ONCE = 4096 };
    int32_t ids[AT_ONCE], targets[AT_ONCE];
    dt_dataset *ds = NULL;
    DT_TRY(dt_dataset_open(path, NULL, &ds));
    const int64_t last = dt_dataset_length(ds) - 1;
    dt_status st = DT_OK;
    for (int64_t at = 0, n; at < last && st == DT_OK; at += n) {
        n = last - at < AT_ONCE ? last - at : AT_ONCE;
        st = dt_dataset_batch(ds, &(dt_batch){at, 1, n, 0, 1}, ids, targets);
        if (st == DT_OK && at == 0)
            st = print_tokens(t, ids, 1);
        if (st == DT_OK)
            st = print_tokens(t, targets, n);
    }
    dt_dataset_close(&ds);
    DT_TRY(st);
    DT_REQUIRE(fflush(stdout) == 0 && !ferror(stdout), DT_ERR_IO, "the text could not be written");
    return DT_OK;
}

static dt_status run(const dt_options *o)
{
    dt_tokenizer *tokenizer = NULL;
    const char *path = dt_options_string(o, "decode");
    DT_TRY(dt_tokenizer_open(dt_options_string(o, "tokenizer"), &tokenizer));
    dt_status st = DT_OK;
    job *j = calloc(1, sizeof *j);
    if (path) {
        st = decode(tokenizer, path);
    } else if (j) {
        const int threads = (int)dt_options_int(o, "threads");
        const long cores = sysconf(_SC_NPROCESSORS_ONLN);
        j->tokenizer = tokenizer;
        j->kind = dt_options_string(o, "documents");
        j->json_key = dt_options_string(o, "json_key");
        j->threads = threads > 0 ? threads : cores < MOST_THREADS ? (int)cores : MOST_THREADS;
        st = tokenize(o, j);
        forget(j);
        dt_token_writer_destroy(&j->writer);
    } else {
        st = DT_ERROR(DT_ERR_NOMEM, "a round of documents");
    }
    free(j);
    dt_tokenizer_close(&tokenizer);
    return st;
}

int main(int argc, char **argv)
{
    dt_options *o = NULL;
    DT_MUST(dt_options_parse(table, DT_COUNT(table), argc, (const char *const *)argv, &o));
    if (dt_options_bool(o, "help"))
        dt_options_print_help(table, DT_COUNT(table), "tokenize [--key=value ...]", stdout);
    else
        DT_MUST(run(o));
    dt_options_destroy(&o);
    return EXIT_SUCCESS;
}
