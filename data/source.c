/* data/source.c - a stream of tokens: text, llm.c token files, a Megatron pair of files. */
#include "data/data_internal.h"

#include <errno.h>
#include <glob.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { HEADER_BYTES = 1024, MAGIC = 20240520, VERSION = 1 };

static bool ends_in(const char *path, const char *end)
{
    const size_t n = strlen(path), m = strlen(end);
    return n >= m && strcmp(path + n - m, end) == 0;
}

/* ---- llm.c token files ---- */

static dt_status read_header(dti_file *f)
{
    const size_t size_bytes = f->map.size_bytes;
    DT_REQUIRE(size_bytes >= HEADER_BYTES, DT_ERR_FORMAT,
               "%s: %zu bytes are too few for the %d bytes of a token file's header", f->path,
               size_bytes, HEADER_BYTES);
    const int32_t *header = (const int32_t *)f->map.bytes;
    DT_REQUIRE(
        header[0] == MAGIC, DT_ERR_FORMAT,
        "%s: not a token file: magic number is %d, must be %d (for text set the format to text)",
        f->path, header[0], MAGIC);
    DT_REQUIRE(header[1] == VERSION, DT_ERR_FORMAT, "%s: token file of version %d, must be %d",
               f->path, header[1], VERSION);
    const int64_t held = (int64_t)((size_bytes - HEADER_BYTES) / sizeof(uint16_t));
    DT_REQUIRE(header[2] >= 0 && header[2] == held && size_bytes % sizeof(uint16_t) == 0,
               DT_ERR_FORMAT, "%s: %s: the header says %d tokens, the file holds %lld (%zu bytes)",
               f->path, header[2] > held ? "truncated" : "wrong size", header[2], (long long)held,
               size_bytes);
    f->count = header[2];
    f->tokens = f->map.bytes + HEADER_BYTES;
    return DT_OK;
}

/* ---- opening ---- */

static dt_status add_file(dti_source *s, const char *path)
{
    DT_TRY(dt_grow((void **)&s->file, &s->capacity, s->nfiles + 1, sizeof *s->file));
    dti_file *f = &s->file[s->nfiles++];
    *f = (dti_file){.path = strdup(path)};
    DT_REQUIRE(f->path, DT_ERR_NOMEM, "a path");
    DT_TRY(dti_map_open(f->path, &f->map));
    f->tokens = f->map.bytes;
    f->count = (int64_t)f->map.size_bytes;
    return DT_OK;
}

/* A path, or a pattern of several; a file that has the pattern as its name comes first. */
static dt_status add_files(dti_source *s, const char *path)
{
    glob_t found;
    if (!strpbrk(path, "*?[") || access(path, F_OK) == 0) {
        DT_TRY(add_file(s, path));
        return DT_OK;
    }
    const int failed = glob(path, 0, NULL, &found); /* sorted */
    DT_REQUIRE(failed != GLOB_NOMATCH, DT_ERR_IO, "%s: no file is called so", path);
    DT_REQUIRE(!failed, DT_ERR_IO, "%s: the files cannot be listed", path);
    dt_status st = DT_OK;
    for (size_t i = 0; i < found.gl_pathc && st == DT_OK; i++)
        st = add_file(s, found.gl_pathv[i]);
    globfree(&found);
    return st;
}

/* The path with .idx or .bin, for one of the two or for what they have in common. */
static char *sibling(const char *path, const char *end)
{
    const size_t n = strlen(path);
    const bool has_end = ends_in(path, ".idx") || ends_in(path, ".bin");
    char *other = malloc(n + 5);
    if (other) {
        memcpy(other, path, n + 1);
        strcpy(other + (has_end ? n - 4 : n), end);
    }
    return other;
}

static dt_status open_megatron(dti_source *s, const char *path)
{
    char *bin = sibling(path, ".bin"), *idx = sibling(path, ".idx");
    dt_status st = bin && idx ? DT_OK : DT_ERROR(DT_ERR_NOMEM, "a path");
    if (st == DT_OK && strpbrk(path, "*?[") && access(bin, F_OK) != 0)
        st = DT_ERROR(DT_ERR_UNSUPPORTED,
                      "%s: a pattern of Megatron files; name each one in a blend", path);
    if (st == DT_OK)
        st = add_file(s, bin);
    if (st == DT_OK)
        st = dti_index_open(idx, bin, s->file[0].map.size_bytes, &s->index);
    if (st == DT_OK) {
        s->format = DT_DATA_MEGATRON;
        s->code = s->index.code;
        s->file[0].count = s->index.tokens;
    }
    free(bin);
    free(idx);
    return st;
}

/* With auto: x.idx and x, where there is an x.idx and no x; x.bin with an x.idx that is not a token
 * file. */
static bool is_megatron(const char *path, dt_data_format format)
{
    if (format == DT_DATA_MEGATRON || format != DT_DATA_AUTO)
        return format == DT_DATA_MEGATRON;
    if (ends_in(path, ".idx"))
        return true;
    char *idx = sibling(path, ".idx");
    const bool there = idx && access(idx, F_OK) == 0;
    free(idx);
    if (!there || access(path, F_OK) != 0)
        return there;
    dti_map map = {0};
    int32_t magic = 0;
    if (!ends_in(path, ".bin") || dti_map_open(path, &map) != DT_OK)
        return false;
    if (map.size_bytes >= sizeof magic)
        memcpy(&magic, map.bytes, sizeof magic);
    dti_map_close(&map);
    return magic != MAGIC;
}

/* A name that says tokens must not be read as text because its magic number is wrong. */
static dt_data_format detect(const dti_file *f)
{
    int32_t magic = 0;
    if (f->map.size_bytes >= sizeof magic)
        memcpy(&magic, f->map.bytes, sizeof magic);
    return magic == MAGIC || ends_in(f->path, ".bin") ? DT_DATA_TOKENS : DT_DATA_TEXT;
}

static dt_status open_plain(dti_source *s, const char *path, dt_data_format format)
{
    DT_TRY(add_files(s, path));
    s->format = format == DT_DATA_AUTO ? detect(&s->file[0]) : format;
    s->code = s->format == DT_DATA_TEXT ? DTI_U8 : DTI_U16;
    for (int64_t i = 0; s->format == DT_DATA_TOKENS && i < s->nfiles; i++)
        DT_TRY(read_header(&s->file[i]));
    return DT_OK;
}

/* The part for training, or what is held out at the end: whole documents where they are known. */
static void take_part(const dt_dataset_options *o, dti_source *s)
{
    int64_t cut = s->all - (int64_t)((double)s->all * o->held_out);
    if (o->held_out > 0 && s->format == DT_DATA_MEGATRON && cut < s->all)
        cut = dti_index_start(&s->index, dti_index_find(&s->index, cut));
    s->first = o->evaluation ? cut : 0;
    s->length = o->evaluation ? s->all - cut : cut;
}

dt_status dti_source_open(const char *path, const dt_dataset_options *options, dti_source *s)
{
    if (is_megatron(path, options->format))
        DT_TRY(open_megatron(s, path));
    else
        DT_TRY(open_plain(s, path, options->format));
    for (int64_t i = 0; i < s->nfiles; i++) {
        s->file[i].start = s->all;
        s->all += s->file[i].count;
    }
    take_part(options, s);
    return DT_OK;
}

void dti_source_close(dti_source *s)
{
    for (int64_t i = 0; i < s->nfiles; i++) {
        dti_map_close(&s->file[i].map);
        free(s->file[i].path);
    }
    free(s->file);
    dti_map_close(&s->index.map);
    *s = (dti_source){0};
}

/* ---- reading ---- */

static int64_t token_at(int code, const unsigned char *tokens, int64_t i)
{
    switch (code) {
    case DTI_U8: return tokens[i];
    case DTI_I8: return ((const int8_t *)tokens)[i];
    case DTI_I16: return ((const int16_t *)tokens)[i];
    case DTI_U16: return ((const uint16_t *)tokens)[i];
    case DTI_I32: return ((const int32_t *)tokens)[i];
    default: return ((const int64_t *)tokens)[i];
    }
}

/* The file that holds token `at` of the whole stream. */
static const dti_file *file_of(const dti_source *s, int64_t at)
{
    int64_t lo = 0, hi = s->nfiles;
    while (hi - lo > 1) {
        const int64_t middle = lo + (hi - lo) / 2;
        *(s->file[middle].start <= at ? &lo : &hi) = middle;
    }
    return &s->file[lo];
}

dt_status dti_source_read(const dti_source *s, int64_t at, int64_t n, int64_t limit, int32_t *out)
{
    for (int64_t i = s->first + at, end = i + n; i < end;) {
        const dti_file *f = file_of(s, i);
        const int64_t stop = end < f->start + f->count ? end : f->start + f->count;
        DT_TRY(dti_map_check(&f->map, f->path));
        for (; i < stop; i++) {
            const int64_t token = token_at(s->code, f->tokens, i - f->start);
            DT_REQUIRE(token >= 0 && token < limit, DT_ERR_FORMAT,
                       "%s: token %lld at position %lld, must be %sbelow vocab = %lld", f->path,
                       (long long)token, (long long)(i - f->start),
                       token < 0 ? "0 or more and " : "", (long long)limit);
            *out++ = (int32_t)token;
        }
    }
    return DT_OK;
}

void dti_source_starts(const dti_source *s, int64_t at, int64_t n, const int32_t *token,
                       int64_t end_token, bool *starts)
{
    memset(starts, 0, (size_t)n * sizeof *starts);
    if (s->format != DT_DATA_MEGATRON) {
        for (int64_t t = 1; t < n; t++)
            starts[t] = token[t - 1] == end_token;
        return;
    }
    const int64_t first = s->first + at;
    for (int64_t d = dti_index_find(&s->index, first) + 1; d < s->index.documents; d++) {
        const int64_t begin = dti_index_start(&s->index, d);
        if (begin >= first + n)
            break;
        if (begin > first)
            starts[begin - first] = true;
    }
}
