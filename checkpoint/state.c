/* checkpoint/state.c - state.json: what a run needs besides tensors, and the checksums of every
 * file of the step, each as a list of parts "OFFSET BYTES XXH3" by whoever wrote that part.
 * The last field is the sum of all the others, as printed. */
#include "checkpoint/save_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

static const char name[] = "state.json", format[] = "dtensor checkpoint";
enum { VERSION = 1, READ_BYTES = 4 << 20, SUM_TEXT = 80 };

/* ---- writing ---- */

static json_t *pack_file(const dti_summed *f)
{
    json_t *parts = json_array();
    for (int64_t i = 0; i < f->nsums; i++) {
        char text[SUM_TEXT];
        (void)snprintf(text, sizeof text, "%" PRId64 " %" PRId64 " %016" PRIx64, f->sum[i].offset,
                       f->sum[i].bytes, f->sum[i].hash);
        (void)json_array_append_new(parts, json_string(text));
    }
    return json_pack("{s:I, s:o}", "bytes", (json_int_t)f->bytes, "xxh3", parts);
}

static json_t *pack_state(const dti_state *s)
{
    const dt_schedule *c = &s->is.schedule;
    const dt_scaler *l = &s->is.scaler;
    return json_pack(
        "{s:s, s:i, s:s, s:I, s:I, s:I, s:I, s:b, s:s,"
        " s:{s:f, s:I, s:I, s:s, s:f, s:I}, s:{s:f, s:I, s:I, s:I}}",
        "format", format, "version", VERSION, "library", DT_VERSION, "step", (json_int_t)s->is.step,
        "position", (json_int_t)s->is.position, "seed", (json_int_t)s->is.seed, "optimizer_steps",
        (json_int_t)s->optimizer_steps, "model_only", (int)s->model_only, "mesh", s->mesh,
        "schedule", "lr", c->lr, "warmup_steps", (json_int_t)c->warmup_steps, "total_steps",
        (json_int_t)c->total_steps, "decay", dt_decay_name(c->decay), "min_ratio", c->min_ratio,
        "decay_steps", (json_int_t)c->decay_steps, "loss_scale", "scale", l->scale, "interval",
        (json_int_t)l->interval, "good", (json_int_t)l->good, "skipped", (json_int_t)l->skipped);
}

/* Of everything in it, in a form that does not depend on blanks. */
static uint64_t sum_of(const json_t *root)
{
    char *text = json_dumps(root, JSON_COMPACT | JSON_SORT_KEYS);
    const uint64_t sum = text ? XXH3_64bits(text, strlen(text)) : 0;
    free(text);
    return sum;
}

dt_status dti_state_put(dti_disk *disk, const char *folder, const dti_state *state,
                        const dti_summed *file, int64_t nfiles)
{
    char text[SUM_TEXT];
    json_t *root = pack_state(state), *files = json_object();
    for (int64_t i = 0; i < nfiles; i++)
        (void)json_object_set_new(files, file[i].name, pack_file(&file[i]));
    (void)json_object_set_new(root, "files", files);
    (void)snprintf(text, sizeof text, "%016" PRIx64, sum_of(root));
    (void)json_object_set_new(root, "checksum", json_string(text));
    char *all = root ? json_dumps(root, JSON_INDENT(1)) : NULL;
    json_decref(root);
    DT_REQUIRE(all, DT_ERR_NOMEM, "%s", name);
    const dt_status st = dti_disk_put(disk, folder, name, all, strlen(all));
    free(all);
    if (st != DT_OK)
        return dt_error_push(st, __FILE__, __LINE__, __func__);
    return DT_OK;
}

/* ---- reading ---- */

static dt_status read_schedule(const json_t *o, const char *path, dt_schedule *s)
{
    const char *decay = NULL;
    DT_TRY(dt_json_double(o, path, "lr", NULL, &s->lr));
    DT_TRY(dt_json_int(o, path, "warmup_steps", NULL, &s->warmup_steps));
    DT_TRY(dt_json_int(o, path, "total_steps", NULL, &s->total_steps));
    DT_TRY(dt_json_string(o, path, "decay", NULL, &decay));
    DT_TRY(dt_decay_parse(decay, &s->decay));
    DT_TRY(dt_json_double(o, path, "min_ratio", NULL, &s->min_ratio));
    DT_TRY(dt_json_int(o, path, "decay_steps", NULL, &s->decay_steps));
    return DT_OK;
}

static dt_status read_scaler(const json_t *o, const char *path, dt_scaler *s)
{
    DT_TRY(dt_json_double(o, path, "scale", NULL, &s->scale));
    DT_TRY(dt_json_int(o, path, "interval", NULL, &s->interval));
    DT_TRY(dt_json_int(o, path, "good", NULL, &s->good));
    DT_TRY(dt_json_int(o, path, "skipped", NULL, &s->skipped));
    return DT_OK;
}

static dt_status read_state(const json_t *root, const char *path, dti_state *s)
{
    const char *text = NULL;
    int64_t version = 0, seed = 0;
    DT_TRY(dt_json_string(root, path, "format", "", &text));
    DT_REQUIRE(strcmp(text, format) == 0, DT_ERR_FORMAT, "%s: format '%s', not '%s'", path, text,
               format);
    DT_TRY(dt_json_int(root, path, "version", NULL, &version));
    DT_REQUIRE(version == VERSION, DT_ERR_FORMAT, "%s: version %" PRId64 ", this library reads %d",
               path, version, VERSION);
    DT_TRY(dt_json_int(root, path, "step", NULL, &s->is.step));
    DT_TRY(dt_json_int(root, path, "position", NULL, &s->is.position));
    DT_TRY(dt_json_int(root, path, "seed", NULL, &seed));
    s->is.seed = (uint64_t)seed;
    DT_TRY(dt_json_int(root, path, "optimizer_steps", NULL, &s->optimizer_steps));
    DT_TRY(dt_json_bool(root, path, "model_only", NULL, &s->model_only));
    DT_TRY(dt_json_string(root, path, "mesh", NULL, &text));
    (void)snprintf(s->mesh, sizeof s->mesh, "%s", text);
    DT_TRY(read_schedule(json_object_get(root, "schedule"), path, &s->is.schedule));
    DT_TRY(read_scaler(json_object_get(root, "loss_scale"), path, &s->is.scaler));
    DT_REQUIRE(json_is_object(json_object_get(root, "files")), DT_ERR_FORMAT, "%s: no 'files'",
               path);
    return DT_OK;
}

static dt_status check_sum(json_t *root, const char *path)
{
    const char *text = NULL;
    char want[SUM_TEXT], got[SUM_TEXT];
    DT_TRY(dt_json_string(root, path, "checksum", NULL, &text));
    (void)snprintf(want, sizeof want, "%s", text);
    (void)json_object_del(root, "checksum");
    (void)snprintf(got, sizeof got, "%016" PRIx64, sum_of(root));
    DT_REQUIRE(strcmp(want, got) == 0, DT_ERR_FORMAT, "%s: damaged: its checksum is %s, not %s",
               path, got, want);
    return DT_OK;
}

dt_status dti_state_read(const char *folder, dti_state *state_out, json_t **files_out)
{
    char *path = dti_path(folder, name);
    DT_REQUIRE(path, DT_ERR_NOMEM, "%s", folder);
    json_t *root = NULL;
    dti_state state = {0};
    dt_status st = DT_OK;
    DT_TRY_TO(done, st, dt_json_load(path, &root));
    DT_TRY_TO(done, st, check_sum(root, path));
    DT_TRY_TO(done, st, read_state(root, path, &state));
    *state_out = state;
    *files_out = json_incref(json_object_get(root, "files"));
done:
    json_decref(root);
    free(path);
    return st;
}

/* ---- comparing ---- */

static dt_status verify_part(const dti_file *f, const dti_sum *want, void *stage)
{
    XXH3_state_t *hash = XXH3_createState();
    DT_REQUIRE(hash, DT_ERR_NOMEM, "a hash");
    (void)XXH3_64bits_reset(hash);
    dt_status st = DT_OK;
    for (int64_t done = 0; st == DT_OK && done < want->bytes; done += READ_BYTES) {
        const int64_t left = want->bytes - done, n = left < READ_BYTES ? left : READ_BYTES;
        st = dti_file_read(f, want->offset + done, stage, n);
        (void)XXH3_64bits_update(hash, stage, (size_t)n);
    }
    const uint64_t got = XXH3_64bits_digest(hash);
    (void)XXH3_freeState(hash);
    DT_TRY(st);
    DT_REQUIRE(got == want->hash, DT_ERR_FORMAT,
               "%s: damaged: bytes %" PRId64 " to %" PRId64 " have checksum %016" PRIx64
               ", not %016" PRIx64,
               f->path, want->offset, want->offset + want->bytes, got, want->hash);
    return DT_OK;
}

/* Which rank compares what: parts of all files are dealt out in turn. */
typedef struct deal {
    int rank, nranks;
    int64_t n;
    void *stage;
} deal;

/* The parts in any order; together they must be the file. */
static dt_status verify_parts(const dti_file *f, const json_t *parts, deal *d)
{
    int64_t covered = 0;
    const size_t n = json_array_size(parts);
    for (size_t i = 0; i < n; i++) {
        dti_sum want = {0};
        const char *text = json_string_value(json_array_get(parts, i));
        DT_REQUIRE(text &&
                       sscanf(text, "%" SCNd64 " %" SCNd64 " %" SCNx64, &want.offset, &want.bytes,
                              &want.hash) == 3 &&
                       want.bytes >= 0,
                   DT_ERR_FORMAT, "%s: in state.json: part %zu is no checksum", f->path, i);
        covered += want.bytes;
        if (d->n++ % d->nranks == d->rank)
            DT_TRY(verify_part(f, &want, d->stage));
    }
    DT_REQUIRE(covered == f->bytes, DT_ERR_FORMAT,
               "%s: in state.json: checksums of %" PRId64 " bytes, the file has %" PRId64, f->path,
               covered, f->bytes);
    return DT_OK;
}

static dt_status verify_file(const char *path, const json_t *entry, deal *d)
{
    struct stat info;
    int64_t bytes = 0;
    DT_TRY(dt_json_int(entry, path, "bytes", NULL, &bytes));
    dti_file f = {.path = (char *)(uintptr_t)path, .fd = open(path, O_RDONLY | O_CLOEXEC)};
    DT_REQUIRE(f.fd >= 0, DT_ERR_IO, "%s: %s", path, strerror(errno));
    f.bytes = fstat(f.fd, &info) == 0 ? info.st_size : -1;
    const dt_status st =
        f.bytes == bytes
            ? verify_parts(&f, json_object_get(entry, "xxh3"), d)
            : DT_ERROR(DT_ERR_FORMAT, "%s: damaged: %" PRId64 " bytes, must be %" PRId64 "%s", path,
                       f.bytes, bytes, f.bytes < bytes ? "; it is cut short" : "");
    (void)close(f.fd);
    if (st != DT_OK)
        return dt_error_push(st, __FILE__, __LINE__, __func__);
    return DT_OK;
}

dt_status dti_state_verify(const char *folder, json_t *files, int rank, int nranks)
{
    deal d = {rank, nranks, 0, malloc(READ_BYTES)};
    DT_REQUIRE(d.stage, DT_ERR_NOMEM, "%s", folder);
    const char *file;
    json_t *entry;
    dt_status st = DT_OK;
    json_object_foreach(files, file, entry)
    {
        char *path = dti_path(folder, file);
        DT_TRY_TO(done, st, path ? DT_OK : DT_ERROR(DT_ERR_NOMEM, "%s", file));
        st = verify_file(path, entry, &d);
        free(path);
        if (st != DT_OK)
            break;
    }
done:
    free(d.stage);
    if (st != DT_OK)
        return dt_error_push(st, __FILE__, __LINE__, __func__);
    return DT_OK;
}

dt_status dt_checkpoint_verify(const char *step_folder)
{
    dti_state state;
    json_t *files = NULL;
    DT_TRY(dti_state_read(step_folder, &state, &files));
    const dt_status st = dti_state_verify(step_folder, files, 0, 1);
    json_decref(files);
    if (st != DT_OK)
        return dt_error_push(st, __FILE__, __LINE__, __func__);
    return DT_OK;
}
