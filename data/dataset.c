/* data/dataset.c - see data/dt_data.h. Read next: data/source.c, data/blend.c. */
#include "data/data_internal.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>

struct dt_dataset {
    char *path, *labels_path;
    dt_dataset_options options; /* its strings are the caller's, and not used after opening */
    dti_source *source;
    int64_t nsources, capacity;
    dti_blend *blend; /* NULL: one source */
    dti_map labels_file;
    const int32_t *labels; /* in labels_file; NULL: none */
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

static dt_status check_length(const dt_dataset *ds, int64_t seq_len)
{
    for (int64_t i = 0; i < ds->nsources; i++) {
        const dti_source *s = &ds->source[i];
        const char *part = ds->options.held_out <= 0 ? ""
                           : ds->options.evaluation  ? " held out"
                                                     : " not held out";
        DT_REQUIRE(s->length > seq_len, DT_ERR_FORMAT,
                   "%s: %lld tokens%s are too few for one sample of seq_len + 1 = %lld",
                   s->file[0].path, (long long)s->length, part, (long long)seq_len + 1);
    }
    return DT_OK;
}

static dt_status open_labels(dt_dataset *ds)
{
    DT_TRY(dti_map_open(ds->labels_path, &ds->labels_file));
    const size_t size_bytes = ds->labels_file.size_bytes;
    const int64_t length = ds->source[0].all;
    DT_REQUIRE(size_bytes % sizeof(int32_t) == 0, DT_ERR_FORMAT,
               "%s: %zu bytes are not a whole number of int32 labels", ds->labels_path, size_bytes);
    const int64_t count = (int64_t)(size_bytes / sizeof(int32_t));
    DT_REQUIRE(count >= length - 1, DT_ERR_FORMAT,
               "%s: %lld labels are too few: %s has %lld tokens and so %lld targets",
               ds->labels_path, (long long)count, ds->path, (long long)length,
               (long long)length - 1);
    ds->labels = (const int32_t *)ds->labels_file.bytes;
    return DT_OK;
}

static dt_status add_source(dt_dataset *ds, const char *path, const dt_dataset_options *options)
{
    DT_TRY(dt_grow((void **)&ds->source, &ds->capacity, ds->nsources + 1, sizeof *ds->source));
    ds->source[ds->nsources] = (dti_source){0};
    DT_TRY(dti_source_open(path, options, &ds->source[ds->nsources++]));
    return DT_OK;
}

/* "WEIGHT PATH WEIGHT PATH ..." in ds->path, which is cut to pieces here. */
static dt_status open_blend(dt_dataset *ds, char *text, const dt_dataset_options *options,
                            double **weights)
{
    int64_t capacity = 0;
    char *rest = NULL, *end = NULL;
    for (char *word = strtok_r(text, " \t\n", &rest); word; word = strtok_r(NULL, " \t\n", &rest)) {
        const double weight = strtod(word, &end);
        const char *path = strtok_r(NULL, " \t\n", &rest);
        DT_REQUIRE(*end == 0 && path, DT_ERR_ARG,
                   "a blend is WEIGHT PATH WEIGHT PATH ...; '%s'%s is not a weight with a path",
                   word, path ? "" : ", the last word,");
        DT_TRY(dt_grow((void **)weights, &capacity, ds->nsources + 1, sizeof **weights));
        (*weights)[ds->nsources] = weight;
        DT_TRY(add_source(ds, path, options));
    }
    DT_REQUIRE(ds->nsources > 0 && ds->nsources < INT32_MAX, DT_ERR_ARG,
               "a blend is WEIGHT PATH WEIGHT PATH ..., and this one has none");
    DT_REQUIRE(!ds->labels_path, DT_ERR_UNSUPPORTED,
               "%s: labels of a blend; legal: labels of one source", ds->labels_path);
    ds->blend = calloc(1, sizeof *ds->blend);
    DT_REQUIRE(ds->blend, DT_ERR_NOMEM, "a blend");
    return dti_blend_create((size_t)ds->nsources, *weights, ds->blend);
}

static dt_status open_sources(dt_dataset *ds, const dt_dataset_options *options)
{
    if (!options->blend)
        return add_source(ds, ds->path, options);
    double *weights = NULL;
    char *text = strdup(ds->path);
    const dt_status st =
        text ? open_blend(ds, text, options, &weights) : DT_ERROR(DT_ERR_NOMEM, "a blend");
    free(text);
    free(weights);
    return st;
}

/* Where documents end must be known where it matters. */
static dt_status check_documents(const dt_dataset *ds, const dt_dataset_options *o)
{
    for (int64_t i = 0; o->documents && !o->has_end_token && i < ds->nsources; i++)
        DT_REQUIRE(ds->source[i].format == DT_DATA_MEGATRON, DT_ERR_ARG,
                   "%s: where documents end is not known: say which token ends them",
                   ds->source[i].file[0].path);
    return DT_OK;
}

dt_status dt_dataset_open(const char *path, const dt_dataset_options *options,
                          dt_dataset **dataset_out)
{
    static const dt_dataset_options defaults;
    if (!options)
        options = &defaults;
    dt_status st;
    DT_REQUIRE(options->held_out >= 0 && options->held_out < 1, DT_ERR_ARG,
               "a part of %g held out; legal: from 0 to below 1", options->held_out);
    dt_dataset *ds = calloc(1, sizeof *ds);
    DT_REQUIRE(ds, DT_ERR_NOMEM, "a dataset");
    ds->options = *options;
    ds->path = strdup(path);
    ds->labels_path = options->labels_path ? strdup(options->labels_path) : NULL;
    if (!ds->path || (options->labels_path && !ds->labels_path)) {
        st = DT_ERROR(DT_ERR_NOMEM, "a dataset's paths");
        goto fail;
    }
    DT_TRY_TO(fail, st, open_sources(ds, options));
    DT_TRY_TO(fail, st, check_length(ds, options->seq_len));
    DT_TRY_TO(fail, st, check_documents(ds, options));
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
    for (int64_t i = 0; i < ds->nsources; i++)
        dti_source_close(&ds->source[i]);
    free(ds->source);
    if (ds->blend)
        dti_blend_free(ds->blend);
    free(ds->blend);
    dti_map_close(&ds->labels_file);
    free(ds->path);
    free(ds->labels_path);
    free(ds);
    *dataset = NULL;
}

/* Are samples taken by their numbers, and not one after the other from the position? */
static bool by_number(const dt_dataset *ds)
{
    return ds->blend || ds->options.shuffle;
}

int64_t dt_dataset_length(const dt_dataset *dataset)
{
    return by_number(dataset) ? INT64_MAX : dataset->source[0].length;
}

dt_data_format dt_dataset_format(const dt_dataset *dataset)
{
    return dataset->source[0].format;
}

static bool is_file(const dti_map *m, const struct stat *info)
{
    return m->bytes && m->device == info->st_dev && m->inode == info->st_ino;
}

bool dt_dataset_has_file(const dt_dataset *ds, const char *path)
{
    struct stat info;
    if (stat(path, &info) != 0)
        return false;
    bool found = is_file(&ds->labels_file, &info);
    for (int64_t i = 0; i < ds->nsources; i++) {
        const dti_source *s = &ds->source[i];
        found = found || is_file(&s->index.map, &info);
        for (int64_t k = 0; k < s->nfiles; k++)
            found = found || is_file(&s->file[k].map, &info);
    }
    return found;
}

/* ---- which samples ---- */

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

/* A sample: in which source, and at which token of it. */
typedef struct place {
    int source;
    int64_t at;
} place;

static place place_of(const dt_dataset *ds, const dt_batch *b, int64_t j)
{
    const int64_t T = b->seq_len;
    if (!by_number(ds)) {
        const int64_t length = ds->source[0].length;
        const int64_t start = dt_dataset_position_start(length, b->position, b->global_batch, T);
        const int64_t samples = (length - 1 - start) / T; /* from start to the end */
        return (place){0, start + j % samples * T};
    }
    const int64_t first = b->position / T;
    int source = 0;
    int64_t k = first + j;
    if (ds->blend)
        dti_blend_at(ds->blend, first, first + j, &source, &k);
    const int64_t samples = (ds->source[source].length - 1) / T, epoch = k / samples;
    k %= samples;
    if (ds->options.shuffle)
        k = dti_permute(dt_key_make(ds->options.seed, (uint64_t)source, (uint64_t)epoch), k,
                        samples);
    return (place){source, k * T};
}

/* ---- reading ---- */

static dt_status read_labels(const dt_dataset *ds, int64_t at, int64_t n, int64_t limit,
                             int32_t *targets)
{
    DT_TRY(dti_map_check(&ds->labels_file, ds->labels_path));
    at += ds->source[0].first;
    for (int64_t t = 0; t < n; t++) {
        const int32_t label = ds->labels[at + t];
        DT_REQUIRE(label == DT_LABEL_IGNORED || (label >= 0 && label < limit), DT_ERR_FORMAT,
                   "%s: label %d at position %lld, must be %d (ignored) or from 0 to %lld",
                   ds->labels_path, label, (long long)(at + t), DT_LABEL_IGNORED,
                   (long long)limit - 1);
        targets[t] = label;
    }
    return DT_OK;
}

/* A sample's T + 1 tokens, and where documents start in it. */
typedef struct sample {
    int32_t *token;
    bool *starts;
} sample;

static dt_status sample_create(int64_t T, sample *s)
{
    *s = (sample){malloc((size_t)(T + 1) * sizeof *s->token),
                  malloc((size_t)(T + 1) * sizeof *s->starts)};
    return s->token && s->starts ? DT_OK : DT_ERROR(DT_ERR_NOMEM, "a sample");
}

static void sample_free(sample *s)
{
    free(s->token);
    free(s->starts);
}

static dt_status read_sample(const dt_dataset *ds, place p, int64_t T, sample *s)
{
    const dti_source *from = &ds->source[p.source];
    const int64_t limit = ds->options.vocab > 0 ? ds->options.vocab : INT32_MAX;
    DT_TRY(dti_source_read(from, p.at, T + 1, limit, s->token));
    dti_source_starts(from, p.at, T + 1, s->token,
                      ds->options.has_end_token ? ds->options.end_token : -1, s->starts);
    return DT_OK;
}

static dt_status check_batch(const dt_dataset *ds, const dt_batch *batch)
{
    const int64_t T = batch->seq_len, B = batch->global_batch;
    DT_REQUIRE(T > 0 && B > 0 && batch->position >= 0 && 0 <= batch->lo && batch->lo <= batch->hi &&
                   batch->hi <= B,
               DT_ERR_ARG, "position=%lld global_batch=%lld seq_len=%lld samples [%lld, %lld)",
               (long long)batch->position, (long long)B, (long long)T, (long long)batch->lo,
               (long long)batch->hi);
    return check_length(ds, T);
}

static dt_status batch_rows(const dt_dataset *ds, const dt_batch *b, int32_t *ids, int32_t *targets,
                            sample *s)
{
    const int64_t T = b->seq_len, limit = ds->options.vocab > 0 ? ds->options.vocab : INT32_MAX;
    for (int64_t j = b->lo; j < b->hi; j++, ids += T, targets += T) {
        const place p = place_of(ds, b, j);
        DT_TRY(read_sample(ds, p, T, s));
        memcpy(ids, s->token, (size_t)T * sizeof *ids);
        memcpy(targets, s->token + 1, (size_t)T * sizeof *targets);
        if (ds->labels)
            DT_TRY(read_labels(ds, p.at, T, limit, targets));
        for (int64_t t = 0; ds->options.documents && t < T; t++)
            targets[t] = s->starts[t + 1] ? DT_LABEL_IGNORED : targets[t];
    }
    return DT_OK;
}

dt_status dt_dataset_batch(const dt_dataset *ds, const dt_batch *batch, int32_t *ids,
                           int32_t *targets)
{
    sample s;
    DT_TRY(check_batch(ds, batch));
    dt_status st = sample_create(batch->seq_len, &s);
    if (st == DT_OK)
        st = batch_rows(ds, batch, ids, targets, &s);
    sample_free(&s);
    return st;
}

static dt_status document_rows(const dt_dataset *ds, const dt_batch *b, int32_t *positions,
                               int32_t *documents, sample *s)
{
    const int64_t T = b->seq_len;
    for (int64_t j = b->lo; j < b->hi; j++) {
        DT_TRY(read_sample(ds, place_of(ds, b, j), T, s));
        int32_t document = 0, position = 0;
        for (int64_t t = 0; t < T; t++, position++) {
            if (s->starts[t]) {
                document++;
                position = 0;
            }
            *positions++ = position;
            *documents++ = document;
        }
    }
    return DT_OK;
}

dt_status dt_dataset_documents(const dt_dataset *ds, const dt_batch *batch, int32_t *positions,
                               int32_t *documents)
{
    sample s;
    DT_TRY(check_batch(ds, batch));
    dt_status st = sample_create(batch->seq_len, &s);
    if (st == DT_OK)
        st = document_rows(ds, batch, positions, documents, &s);
    sample_free(&s);
    return st;
}
