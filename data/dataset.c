/* data/dataset.c - see data/dt_data.h. Files are mapped read-only, so opening costs nothing and
 * ranks of one machine share the pages. */
#include "data/dt_data.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { HEADER_BYTES = 1024, MAGIC = 20240520, VERSION = 1 };

typedef struct map {
    const unsigned char *bytes;
    size_t size_bytes;
} map;

struct dt_dataset {
    char *path, *labels_path;
    dt_data_format format;
    int64_t vocab, length;
    map file, labels_file;
    const void *tokens;    /* in file: uint8_t (text) or uint16_t (tokens), [length] */
    const int32_t *labels; /* in labels_file, [>= length - 1]; NULL: none */
};

static const struct {
    const char *name;
    dt_data_format format;
} formats[] = {{"auto", DT_DATA_AUTO},
               {"text", DT_DATA_TEXT},
               {"tokens", DT_DATA_TOKENS},
               {"megatron", DT_DATA_MEGATRON}};

dt_status dt_data_format_parse(const char *text, dt_data_format *format_out)
{
    for (int i = 0; i < DT_COUNT(formats); i++) {
        if (strcasecmp(text, formats[i].name) == 0) {
            *format_out = formats[i].format;
            return DT_OK;
        }
    }
    return DT_ERROR(DT_ERR_ARG, "unknown data format '%s'; legal: auto, text, tokens, megatron",
                    text);
}

/* ---- opening ---- */

static dt_status map_open(const char *path, map *map_out)
{
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    DT_REQUIRE(fd >= 0, DT_ERR_IO, "%s: %s", path, strerror(errno));
    struct stat info;
    dt_status st = DT_OK;
    void *bytes = NULL;
    if (fstat(fd, &info) != 0)
        st = DT_ERROR(DT_ERR_IO, "%s: %s", path, strerror(errno));
    else if (!S_ISREG(info.st_mode))
        st = DT_ERROR(DT_ERR_IO, "%s: must be a regular file", path);
    else if (info.st_size == 0)
        st = DT_ERROR(DT_ERR_FORMAT, "%s: the file is empty", path);
    else
        bytes = mmap(NULL, (size_t)info.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
    if (bytes == MAP_FAILED)
        st = DT_ERROR(DT_ERR_IO, "%s: %s", path, strerror(errno));
    (void)close(fd);
    if (st == DT_OK)
        *map_out = (map){bytes, (size_t)info.st_size};
    return st;
}

static void map_close(map *m)
{
    if (m->bytes)
        (void)munmap((void *)m->bytes, m->size_bytes);
    *m = (map){0};
}

static bool ends_in(const char *path, const char *end)
{
    const size_t n = strlen(path), m = strlen(end);
    return n >= m && strcmp(path + n - m, end) == 0;
}

/* A name that says tokens must not be read as text because its magic number is wrong. */
static dt_data_format detect(const dt_dataset *ds)
{
    int32_t magic = 0;
    if (ds->file.size_bytes >= sizeof magic)
        memcpy(&magic, ds->file.bytes, sizeof magic);
    return magic == MAGIC || ends_in(ds->path, ".bin") ? DT_DATA_TOKENS : DT_DATA_TEXT;
}

static dt_status read_header(dt_dataset *ds)
{
    const size_t size_bytes = ds->file.size_bytes;
    DT_REQUIRE(size_bytes >= HEADER_BYTES, DT_ERR_FORMAT,
               "%s: %zu bytes are too few for the %d bytes of a token file's header", ds->path,
               size_bytes, HEADER_BYTES);
    const int32_t *header = (const int32_t *)ds->file.bytes;
    DT_REQUIRE(
        header[0] == MAGIC, DT_ERR_FORMAT,
        "%s: not a token file: magic number is %d, must be %d (for text set the format to text)",
        ds->path, header[0], MAGIC);
    DT_REQUIRE(header[1] == VERSION, DT_ERR_FORMAT, "%s: token file of version %d, must be %d",
               ds->path, header[1], VERSION);
    const int64_t held = (int64_t)((size_bytes - HEADER_BYTES) / sizeof(uint16_t));
    DT_REQUIRE(header[2] >= 0 && header[2] == held && size_bytes % sizeof(uint16_t) == 0,
               DT_ERR_FORMAT, "%s: %s: the header says %d tokens, the file holds %lld (%zu bytes)",
               ds->path, header[2] > held ? "truncated" : "wrong size", header[2], (long long)held,
               size_bytes);
    ds->length = header[2];
    ds->tokens = ds->file.bytes + HEADER_BYTES;
    return DT_OK;
}

static dt_status check_length(const dt_dataset *ds, int64_t seq_len)
{
    DT_REQUIRE(ds->length > seq_len, DT_ERR_FORMAT,
               "%s: %lld tokens are too few for one sample of seq_len + 1 = %lld", ds->path,
               (long long)ds->length, (long long)seq_len + 1);
    return DT_OK;
}

static dt_status open_tokens(dt_dataset *ds, const dt_dataset_options *options)
{
    DT_REQUIRE(options->format != DT_DATA_MEGATRON && !ends_in(ds->path, ".idx"),
               DT_ERR_UNSUPPORTED, "%s: data format megatron; built in are text and tokens",
               ds->path);
    DT_TRY(map_open(ds->path, &ds->file));
    ds->format = options->format == DT_DATA_AUTO ? detect(ds) : options->format;
    ds->length = (int64_t)ds->file.size_bytes;
    ds->tokens = ds->file.bytes;
    if (ds->format == DT_DATA_TOKENS)
        DT_TRY(read_header(ds));
    return check_length(ds, options->seq_len);
}

static dt_status open_labels(dt_dataset *ds)
{
    DT_TRY(map_open(ds->labels_path, &ds->labels_file));
    const size_t size_bytes = ds->labels_file.size_bytes;
    DT_REQUIRE(size_bytes % sizeof(int32_t) == 0, DT_ERR_FORMAT,
               "%s: %zu bytes are not a whole number of int32 labels", ds->labels_path, size_bytes);
    const int64_t count = (int64_t)(size_bytes / sizeof(int32_t));
    DT_REQUIRE(count >= ds->length - 1, DT_ERR_FORMAT,
               "%s: %lld labels are too few: %s has %lld tokens and so %lld targets",
               ds->labels_path, (long long)count, ds->path, (long long)ds->length,
               (long long)ds->length - 1);
    ds->labels = (const int32_t *)ds->labels_file.bytes;
    return DT_OK;
}

dt_status dt_dataset_open(const char *path, const dt_dataset_options *options,
                          dt_dataset **dataset_out)
{
    static const dt_dataset_options defaults;
    if (!options)
        options = &defaults;
    dt_status st;
    dt_dataset *ds = calloc(1, sizeof *ds);
    DT_REQUIRE(ds, DT_ERR_NOMEM, "a dataset");
    ds->vocab = options->vocab;
    ds->path = strdup(path);
    ds->labels_path = options->labels_path ? strdup(options->labels_path) : NULL;
    if (!ds->path || (options->labels_path && !ds->labels_path)) {
        st = DT_ERROR(DT_ERR_NOMEM, "a dataset's paths");
        goto fail;
    }
    DT_TRY_TO(fail, st, open_tokens(ds, options));
    if (ds->labels_path)
        DT_TRY_TO(fail, st, open_labels(ds));
    *dataset_out = ds;
    return DT_OK;
fail:
    dt_dataset_close(&ds);
    return st;
}

void dt_dataset_close(dt_dataset **dataset)
{
    dt_dataset *ds = *dataset;
    if (!ds)
        return;
    map_close(&ds->file);
    map_close(&ds->labels_file);
    free(ds->path);
    free(ds->labels_path);
    free(ds);
    *dataset = NULL;
}

int64_t dt_dataset_length(const dt_dataset *dataset)
{
    return dataset->length;
}

dt_data_format dt_dataset_format(const dt_dataset *dataset)
{
    return dataset->format;
}

/* ---- reading ---- */

static bool fits(int64_t length, int64_t start, int64_t global_batch, int64_t seq_len)
{
    return start < length && global_batch <= (length - 1 - start) / seq_len;
}

int64_t dt_dataset_position_start(int64_t length, int64_t position, int64_t global_batch,
                                  int64_t seq_len)
{
    return fits(length, position, global_batch, seq_len) ? position : 0;
}

int64_t dt_dataset_position_next(int64_t length, int64_t position, int64_t global_batch,
                                 int64_t seq_len)
{
    const int64_t start = dt_dataset_position_start(length, position, global_batch, seq_len);
    return fits(length, start, global_batch, seq_len) ? start + global_batch * seq_len : 0;
}

static int32_t token_at(const dt_dataset *ds, int64_t i)
{
    return ds->format == DT_DATA_TEXT ? ((const uint8_t *)ds->tokens)[i]
                                      : ((const uint16_t *)ds->tokens)[i];
}

/* One sample that begins at token `at`. */
static dt_status read_sample(const dt_dataset *ds, int64_t at, int64_t seq_len, int32_t *ids,
                             int32_t *targets)
{
    const int64_t limit = ds->vocab > 0 ? ds->vocab : INT32_MAX;
    for (int64_t t = 0; t <= seq_len; t++) {
        const int32_t token = token_at(ds, at + t);
        DT_REQUIRE(token < limit, DT_ERR_FORMAT,
                   "%s: token %d at position %lld, must be below vocab = %lld", ds->path, token,
                   (long long)(at + t), (long long)limit);
        if (t < seq_len)
            ids[t] = token;
        if (t > 0)
            targets[t - 1] = token;
    }
    for (int64_t t = 0; ds->labels && t < seq_len; t++) {
        const int32_t label = ds->labels[at + t];
        DT_REQUIRE(label == DT_LABEL_IGNORED || (label >= 0 && label < limit), DT_ERR_FORMAT,
                   "%s: label %d at position %lld, must be %d (ignored) or from 0 to %lld",
                   ds->labels_path, label, (long long)(at + t), DT_LABEL_IGNORED,
                   (long long)limit - 1);
        targets[t] = label;
    }
    return DT_OK;
}

dt_status dt_dataset_batch(const dt_dataset *dataset, const dt_batch *batch, int32_t *ids,
                           int32_t *targets)
{
    const int64_t T = batch->seq_len, B = batch->global_batch;
    DT_REQUIRE(T > 0 && B > 0 && batch->position >= 0 && 0 <= batch->lo && batch->lo <= batch->hi &&
                   batch->hi <= B,
               DT_ERR_ARG, "position=%lld global_batch=%lld seq_len=%lld samples [%lld, %lld)",
               (long long)batch->position, (long long)B, (long long)T, (long long)batch->lo,
               (long long)batch->hi);
    DT_TRY(check_length(dataset, T));
    const int64_t start = dt_dataset_position_start(dataset->length, batch->position, B, T);
    const int64_t samples = (dataset->length - 1 - start) / T; /* from start to the end */
    for (int64_t j = batch->lo; j < batch->hi; j++) {
        const int64_t row = j - batch->lo;
        DT_TRY(read_sample(dataset, start + j % samples * T, T, ids + row * T, targets + row * T));
    }
    return DT_OK;
}
