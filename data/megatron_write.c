/* data/megatron_write.c - writing a pair of .bin and .idx: see data/megatron.c for the layout.
 * Tokens go to .bin at once, the index is written last: a pair without one is unfinished. */
#include "data/data_internal.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct dt_token_writer {
    char *bin_path, *idx_path;
    FILE *bin;
    int64_t vocab;
    int code;
    int32_t *length; /* of each document */
    int64_t documents, capacity;
};

static dt_status failed(const char *path)
{
    return DT_ERROR(DT_ERR_IO, "%s: %s", path, strerror(errno));
}

dt_status dt_token_writer_create(const char *prefix, int64_t vocab, dt_token_writer **writer_out)
{
    dt_token_writer *w = calloc(1, sizeof *w);
    DT_REQUIRE(w, DT_ERR_NOMEM, "a writer");
    dt_status st = DT_OK;
    w->vocab = vocab;
    w->code = vocab < 65500 ? DTI_U16 : DTI_I32; /* as Megatron-LM chooses */
    if (asprintf(&w->bin_path, "%s.bin", prefix) < 0 ||
        asprintf(&w->idx_path, "%s.idx", prefix) < 0)
        st = DT_ERROR(DT_ERR_NOMEM, "a path");
    if (st == DT_OK && unlink(w->idx_path) != 0 && errno != ENOENT)
        st = failed(w->idx_path);
    if (st == DT_OK && !(w->bin = fopen(w->bin_path, "wbe")))
        st = failed(w->bin_path);
    if (st != DT_OK)
        dt_token_writer_destroy(&w);
    *writer_out = w;
    return st;
}

dt_status dt_token_writer_add(dt_token_writer *w, const int32_t *tokens, int64_t n)
{
    enum { AT_ONCE = 4096 };
    uint16_t small[AT_ONCE];
    DT_REQUIRE(n <= INT32_MAX, DT_ERR_ARG, "%s: a document of %lld tokens; at most 2147483647",
               w->bin_path, (long long)n);
    DT_TRY(dt_grow((void **)&w->length, &w->capacity, w->documents + 1, sizeof *w->length));
    for (int64_t i = 0; i < n;) {
        int64_t k = 0;
        for (; k < AT_ONCE && i + k < n; k++) {
            const int32_t token = tokens[i + k];
            DT_REQUIRE(token >= 0 && token < w->vocab, DT_ERR_ARG,
                       "%s: token %d, must be below vocab = %lld", w->bin_path, token,
                       (long long)w->vocab);
            small[k] = (uint16_t)token;
        }
        const bool is_small = w->code == DTI_U16;
        if (fwrite(is_small ? (const void *)small : tokens + i, is_small ? 2 : 4, (size_t)k,
                   w->bin) != (size_t)k)
            return failed(w->bin_path);
        i += k;
    }
    w->length[w->documents++] = (int32_t)n;
    return DT_OK;
}

static void put_i64(FILE *f, int64_t value)
{
    (void)fwrite(&value, sizeof value, 1, f); /* ferror tells at the end */
}

static void put_index(const dt_token_writer *w, FILE *f)
{
    const int64_t size = (int64_t)dti_token_size(w->code);
    int64_t pointer = 0;
    (void)fwrite("MMIDIDX\0", 1, 9, f);
    put_i64(f, 1);
    (void)fputc(w->code, f);
    put_i64(f, w->documents);
    put_i64(f, w->documents + 1);
    (void)fwrite(w->length, sizeof *w->length, (size_t)w->documents, f);
    for (int64_t i = 0; i < w->documents; i++) {
        put_i64(f, pointer);
        pointer += w->length[i] * size;
    }
    for (int64_t i = 0; i <= w->documents; i++)
        put_i64(f, i);
}

dt_status dt_token_writer_finish(dt_token_writer *w)
{
    const bool good = fflush(w->bin) == 0 && !ferror(w->bin) && fsync(fileno(w->bin)) == 0;
    if (!good)
        return failed(w->bin_path);
    FILE *f = fopen(w->idx_path, "wbe");
    if (!f)
        return failed(w->idx_path);
    put_index(w, f);
    const bool written = fflush(f) == 0 && !ferror(f) && fsync(fileno(f)) == 0;
    const int why = errno;
    const bool closed = fclose(f) == 0;
    if (written && closed)
        return DT_OK;
    (void)unlink(w->idx_path);
    errno = written ? errno : why;
    return failed(w->idx_path);
}

void dt_token_writer_destroy(dt_token_writer **writer)
{
    dt_token_writer *w = *writer;
    if (!w)
        return;
    if (w->bin)
        (void)fclose(w->bin);
    free(w->bin_path);
    free(w->idx_path);
    free(w->length);
    free(w);
    *writer = NULL;
}
