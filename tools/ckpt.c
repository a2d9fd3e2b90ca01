/* tools/ckpt.c - look at checkpoints and rewrite them. A PATH is a step, a folder with a model, or
 * one safetensors file; tensors are read in pieces, however large they are.
 *
 *   build/tools/ckpt ls runs/a/latest             names, shapes, types, norms
 *   build/tools/ckpt diff runs/a/latest model     the worst tensors, in units in the last place
 *   build/tools/ckpt verify runs/a/step-*         checksums of every file
 *   build/tools/ckpt convert runs/a/latest out --dtype=bf16 --file_bytes=2000000000
 *   build/tools/ckpt merge out A B ...            several files or folders into one file
 *
 * Exit status: 0, 1 for a difference or damage, 2 for wrong arguments. */
#include "array/dt_half.h"
#include "tools/ckpt_internal.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PIECE = 1 << 20, SHOWN = 20 };

static const char usage[] =
    "ckpt ls PATH | diff PATH PATH | verify STEP ... |\n"
    "     convert PATH OUT [--dtype=f32|bf16|f16] [--file_bytes=N] | merge OUT PATH ...\n";

/* ---- reading ---- */

/* Weights and, of a step, optimizer state. */
typedef struct source {
    dt_safetensors *part[2];
    int n;
} source;

static void close_source(source *s)
{
    for (int i = 0; i < s->n; i++)
        dt_safetensors_close(&s->part[i]);
    s->n = 0;
}

static dt_status open_source(const char *path, source *s)
{
    *s = (source){0};
    DT_TRY(dt_safetensors_open(path, &s->part[0]));
    s->n = 1;
    char *index = NULL;
    DT_REQUIRE(asprintf(&index, "%s/optimizer.safetensors.index.json", path) >= 0, DT_ERR_NOMEM,
               "%s", path);
    const bool has = access(index, F_OK) == 0;
    const dt_status st = has ? dt_safetensors_open(index, &s->part[1]) : DT_OK;
    free(index);
    if (st != DT_OK) {
        close_source(s);
        return dt_error_push(st, __FILE__, __LINE__, __func__);
    }
    s->n += has;
    return DT_OK;
}

/* Elements [at, at + n) in `to`, whose type is the piece's. */
static dt_status read_piece(dt_safetensors *st, const dt_safetensors_entry *e, int64_t at,
                            int64_t n, dt_array *to)
{
    to->shape = DT_SHAPE(n);
    return dt_safetensors_read(st, e, DT_SHAPE(dt_shape_count(e->shape)), &at, to);
}

static int64_t piece_of(int64_t count, int64_t at)
{
    return count - at < PIECE ? count - at : PIECE;
}

/* ---- ls ---- */

static dt_status list_one(dt_safetensors *st, const dt_safetensors_entry *e, dt_array *piece)
{
    char text[DT_SHAPE_TEXT], norm[32] = "-";
    const int64_t count = dt_shape_count(e->shape);
    double sum = 0;
    const bool is_float = e->dtype != DT_NDTYPES && dt_dtype_is_float(e->dtype);
    for (int64_t at = 0; is_float && at < count; at += PIECE) {
        const int64_t n = piece_of(count, at);
        DT_TRY(read_piece(st, e, at, n, piece));
        const float *x = dt_array_data(piece);
        for (int64_t i = 0; i < n; i++)
            sum += (double)x[i] * (double)x[i];
    }
    if (is_float)
        (void)snprintf(norm, sizeof norm, "%.6g", sqrt(sum));
    printf("%-56s %-5s %-18s norm %s\n", e->name, e->dtype_name,
           dt_shape_print(e->shape, text, sizeof text), norm);
    return DT_OK;
}

static dt_status list(dt_heap *heap, const char *path)
{
    source s;
    dt_array piece = {0};
    int64_t count = 0, bytes = 0;
    DT_TRY(open_source(path, &s));
    dt_status st = dt_array_create(heap, DT_F32, DT_SHAPE(PIECE), DT_TAG_WORKSPACE, &piece);
    for (int k = 0; k < s.n; k++)
        for (int i = 0; st == DT_OK && i < dt_safetensors_count(s.part[k]); i++) {
            const dt_safetensors_entry *e = dt_safetensors_get(s.part[k], i);
            st = list_one(s.part[k], e, &piece);
            count += dt_shape_count(e->shape);
            bytes += e->bytes;
        }
    dt_array_release(&piece);
    close_source(&s);
    DT_TRY(st);
    printf("%lld elements, %lld bytes\n", (long long)count, (long long)bytes);
    return DT_OK;
}

/* ---- diff ---- */

/* Numbers of a type in their order, as integers: neighbours differ by 1. */
static int64_t place(float x, dt_dtype dtype)
{
    const uint32_t u = dtype == DT_BF16  ? (uint32_t)dt_f32_to_bf16(x) << 16
                       : dtype == DT_F16 ? (uint32_t)dt_f32_to_f16(x) << 16
                                         : dt_float_bits(x);
    const int64_t bits = u & 0x7fffffff;
    return (u >> 31 ? -bits : bits) / (dtype == DT_F32 ? 1 : 1 << 16);
}

typedef struct difference {
    const char *name;
    int64_t ulp, at; /* the worst element */
    double a, b;
} difference;

/* In units of the coarser of the two types. A NaN is far from all but a NaN. */
static dt_status compare(dt_safetensors *a, const dt_safetensors_entry *x, dt_safetensors *b,
                         const dt_safetensors_entry *y, dt_array piece[2], difference *d)
{
    const int64_t count = dt_shape_count(x->shape);
    const bool by_x = dt_dtype_size(x->dtype) <= dt_dtype_size(y->dtype);
    dt_dtype dtype = by_x ? x->dtype : y->dtype;
    dtype = dtype == DT_F64 ? DT_F32 : dtype;
    for (int64_t at = 0; at < count; at += PIECE) {
        const int64_t n = piece_of(count, at);
        DT_TRY(read_piece(a, x, at, n, &piece[0]));
        DT_TRY(read_piece(b, y, at, n, &piece[1]));
        const float *p = dt_array_data(&piece[0]), *q = dt_array_data(&piece[1]);
        for (int64_t i = 0; i < n; i++) {
            const bool nan = isnan(p[i]) != 0 || isnan(q[i]) != 0;
            const int64_t ulp = nan ? (isnan(p[i]) && isnan(q[i]) ? 0 : INT64_MAX)
                                    : llabs(place(p[i], dtype) - place(q[i], dtype));
            if (ulp > d->ulp)
                *d = (difference){d->name, ulp, at + i, (double)p[i], (double)q[i]};
        }
    }
    return DT_OK;
}

static int by_ulp(const void *a, const void *b)
{
    const difference *x = a, *y = b;
    return (x->ulp < y->ulp) - (x->ulp > y->ulp);
}

static bool comparable(const dt_safetensors_entry *x, const dt_safetensors_entry *y)
{
    return x && y && x->dtype != DT_NDTYPES && y->dtype != DT_NDTYPES &&
           dt_dtype_is_float(x->dtype) && dt_dtype_is_float(y->dtype) &&
           dt_shape_equal(x->shape, y->shape);
}

static const dt_safetensors_entry *find(const source *s, const char *name, dt_safetensors **in)
{
    for (int k = 0; k < s->n; k++) {
        const dt_safetensors_entry *e = dt_safetensors_find(s->part[k], name);
        *in = s->part[k];
        if (e)
            return e;
    }
    return NULL;
}

/* Tensors of a against b; those of one side only, or not comparable, are told at once. */
static dt_status diff_all(const source *a, const source *b, dt_array piece[2], difference *d,
                          int *n, int *apart)
{
    dt_safetensors *in = NULL;
    for (int k = 0; k < a->n; k++)
        for (int i = 0; i < dt_safetensors_count(a->part[k]); i++) {
            const dt_safetensors_entry *x = dt_safetensors_get(a->part[k], i);
            const dt_safetensors_entry *y = find(b, x->name, &in);
            if (!comparable(x, y)) {
                printf("%s: %s\n", x->name, y ? "another shape or type" : "only in the first");
                ++*apart;
                continue;
            }
            d[*n] = (difference){x->name, 0, 0, 0, 0};
            DT_TRY(compare(a->part[k], x, in, y, piece, &d[(*n)++]));
        }
    for (int k = 0; k < b->n; k++)
        for (int i = 0; i < dt_safetensors_count(b->part[k]); i++) {
            const char *name = dt_safetensors_get(b->part[k], i)->name;
            if (!find(a, name, &in)) {
                printf("%s: only in the second\n", name);
                ++*apart;
            }
        }
    return DT_OK;
}

static void print_differences(difference *d, int n, int *differ)
{
    qsort(d, (size_t)n, sizeof *d, by_ulp);
    while (*differ < n && d[*differ].ulp > 0)
        ++*differ;
    for (int i = 0; i < *differ && i < SHOWN; i++)
        printf("%-56s %lld ulp at element %lld: %.9g, %.9g\n", d[i].name, (long long)d[i].ulp,
               (long long)d[i].at, d[i].a, d[i].b);
}

static dt_status diff(dt_heap *heap, char **path, bool *equal)
{
    source a = {0}, b = {0};
    dt_array piece[2] = {{0}, {0}};
    int n = 0, apart = 0, differ = 0;
    difference *d = NULL;
    dt_status st = DT_OK;
    DT_TRY_TO(done, st, open_source(path[0], &a));
    DT_TRY_TO(done, st, open_source(path[1], &b));
    for (int i = 0; i < 2; i++)
        DT_TRY_TO(done, st,
                  dt_array_create(heap, DT_F32, DT_SHAPE(PIECE), DT_TAG_WORKSPACE, &piece[i]));
    for (int k = 0; k < a.n; k++)
        n += dt_safetensors_count(a.part[k]);
    d = calloc((size_t)n + 1, sizeof *d);
    DT_TRY_TO(done, st, d ? DT_OK : DT_ERROR(DT_ERR_NOMEM, "%d tensors", n));
    n = 0;
    DT_TRY_TO(done, st, diff_all(&a, &b, piece, d, &n, &apart));
    print_differences(d, n, &differ);
    printf("%d tensors are equal, %d differ, %d are on one side only or of another shape or type\n",
           n - differ, differ, apart);
    *equal = differ == 0 && apart == 0;
done:
    free(d);
    dt_array_release(&piece[0]);
    dt_array_release(&piece[1]);
    close_source(&a);
    close_source(&b);
    return st;
}

/* ---- verify ---- */

static void verify(const char *folder, bool *good)
{
    const dt_status st = dt_checkpoint_verify(folder);
    printf("%s: %s\n", folder, st == DT_OK ? "good" : "BAD");
    if (st != DT_OK)
        printf("    %s\n", dt_error_trace());
    *good = *good && st == DT_OK;
}

/* ---- arguments ---- */

/* --key=value among argv: its value; it is taken out. */
static const char *take_option(const char *key, int *argc, char **argv)
{
    for (int i = 1; i < *argc; i++) {
        const size_t n = strlen(key);
        if (strncmp(argv[i], key, n) != 0 || argv[i][n] != '=')
            continue;
        const char *value = argv[i] + n + 1;
        memmove(&argv[i], &argv[i + 1], (size_t)(--*argc - i) * sizeof *argv);
        return value;
    }
    return NULL;
}

static dt_status run(int argc, char **argv, const ckpt_form *form, bool *known, bool *good)
{
    const char *verb = argc > 1 ? argv[1] : "";
    dt_heap *heap = NULL;
    dt_status st = DT_OK;
    DT_TRY(dt_heap_create((dt_device){DT_CPU, 0}, NULL, &heap));
    if (strcmp(verb, "ls") == 0 && argc == 3)
        st = list(heap, argv[2]);
    else if (strcmp(verb, "diff") == 0 && argc == 4)
        st = diff(heap, argv + 2, good);
    else if (strcmp(verb, "verify") == 0 && argc >= 3)
        for (int i = 2; i < argc; i++)
            verify(argv[i], good);
    else if (strcmp(verb, "convert") == 0 && argc == 4)
        st = ckpt_rewrite(heap, 1, argv + 2, argv[3], form);
    else if (strcmp(verb, "merge") == 0 && argc >= 4)
        st = ckpt_rewrite(heap, argc - 3, argv + 3, argv[2], form);
    else
        *known = false;
    dt_heap_destroy(&heap);
    return st;
}

int main(int argc, char **argv)
{
    ckpt_form form = {.dtype = DT_NDTYPES, .file_bytes = INT64_MAX};
    const char *dtype = take_option("--dtype", &argc, argv);
    const char *bytes = take_option("--file_bytes", &argc, argv);
    bool known = true, good = true;
    if (dtype)
        DT_MUST(dt_dtype_parse(dtype, &form.dtype));
    if (bytes)
        form.file_bytes = strtoll(bytes, NULL, 10);
    if (form.file_bytes < 1 || (dtype && !dt_dtype_is_float(form.dtype)))
        known = false;
    if (known)
        DT_MUST(run(argc, argv, &form, &known, &good));
    if (!known)
        (void)fputs(usage, stderr);
    if (fflush(stdout) != 0)
        return 1;
    return !known ? 2 : good ? 0 : 1;
}
