/* checkpoint/lay_out.c - the second half of a plan: tensors in files, files in pieces, pieces to
 * ranks. Read first: checkpoint/plan.c. */
#include "checkpoint/save_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int64_t item_bytes(const dti_item *item)
{
    return dt_shape_count(item->shape) * (int64_t)dt_dtype_size(item->dtype);
}

/* ---- files ---- */

/* The file of items [lo, hi), which belong together. */
static dt_status make_file(dti_plan *p, int64_t lo, int64_t hi, dti_out_file *f)
{
    static const char *const metadata[] = {"format", "pt", NULL}; /* what transformers asks for */
    dt_safetensors_item *items = calloc((size_t)(hi - lo) + 1, sizeof *items);
    DT_REQUIRE(items, DT_ERR_NOMEM, "%s", f->name);
    for (int64_t i = lo; i < hi; i++)
        items[i - lo] =
            (dt_safetensors_item){p->item[i].name, p->item[i].dtype, p->item[i].shape, NULL};
    const dt_status st =
        dti_header_make((int)(hi - lo), items, metadata, &f->header, &f->header_bytes);
    free(items);
    DT_TRY(st);
    f->bytes = (int64_t)f->header_bytes;
    for (int64_t i = lo; i < hi; i++) {
        p->item[i].file = f - p->file;
        p->item[i].at = f->bytes;
        f->bytes += item_bytes(&p->item[i]);
    }
    return DT_OK;
}

static int64_t end_of_file(const dti_plan *p, int64_t lo, int64_t limit)
{
    int64_t bytes = 0, hi = lo;
    while (hi < p->nitems && p->item[hi].optimizer == p->item[lo].optimizer) {
        bytes += item_bytes(&p->item[hi]);
        if (hi > lo && bytes > limit)
            break;
        hi++;
    }
    return hi;
}

dt_status dti_plan_files(dti_plan *p, const dti_plan_options *options)
{
    int64_t n[2] = {0, 0}, at[2] = {0, 0};
    for (int64_t lo = 0; lo < p->nitems; lo = end_of_file(p, lo, options->file_bytes))
        n[p->item[lo].optimizer]++;
    DT_TRY(dt_grow((void **)&p->file, &p->file_capacity, n[0] + n[1] + 1, sizeof *p->file));
    for (int64_t lo = 0, hi; lo < p->nitems; lo = hi) {
        const bool optimizer = p->item[lo].optimizer;
        dti_out_file *f = &p->file[p->nfiles++];
        *f = (dti_out_file){0};
        hi = end_of_file(p, lo, options->file_bytes);
        if (options->plain && n[optimizer] == 1)
            (void)snprintf(f->name, sizeof f->name, "model.safetensors");
        else
            (void)snprintf(f->name, sizeof f->name, "%s-%05lld-of-%05lld.safetensors",
                           optimizer ? "optimizer" : "model", (long long)++at[optimizer],
                           (long long)n[optimizer]);
        DT_TRY(make_file(p, lo, hi, f));
    }
    return DT_OK;
}

char *dti_plan_index(const dti_plan *p, bool optimizer)
{
    json_t *map = json_object();
    int64_t total = 0;
    for (int64_t i = 0; i < p->nitems; i++) {
        const dti_item *item = &p->item[i];
        if (item->optimizer != optimizer)
            continue;
        total += item_bytes(item);
        (void)json_object_set_new(map, item->name, json_string(p->file[item->file].name));
    }
    json_t *root = json_pack("{s: {s: I}, s: o}", "metadata", "total_size", (json_int_t)total,
                             "weight_map", map);
    char *text = root ? json_dumps(root, JSON_INDENT(2)) : NULL;
    json_decref(root);
    return text;
}

/* ---- shares ---- */

/* Rank i in the order of writers: axes that cut dim 0 outermost, as they nest, then the others. */
static int rank_in_order(const dt_layout *l, int i)
{
    int axis[DT_MAX_AXES], n = 0, coord[DT_MAX_AXES];
    for (int k = 0; k < l->nsplit[0]; k++)
        axis[n++] = l->split[0][k];
    for (int a = 0; a < l->grid->naxes; a++) {
        const dt_placement at = dt_layout_at(l, a);
        if (at.kind != DT_SHARD || at.dim != 0)
            axis[n++] = a;
    }
    for (int k = n - 1; k >= 0; k--) {
        coord[axis[k]] = i % l->grid->size[axis[k]];
        i /= l->grid->size[axis[k]];
    }
    return dt_grid_rank(l->grid, coord);
}

/* Who has least to write among [lo, hi) in order. */
static int choose(const dt_layout *l, int lo, int hi, const int64_t *load)
{
    int best = rank_in_order(l, lo);
    for (int i = lo + 1; i < hi; i++) {
        const int r = rank_in_order(l, i);
        if (load[r] < load[best])
            best = r;
    }
    return best;
}

static dt_status cut(dti_plan *p, int64_t index, int64_t piece_bytes, int64_t *load,
                     int64_t *nshares, int64_t *capacity)
{
    const dti_item *item = &p->item[index];
    const int k = dt_grid_count(item->layout->grid);
    const int64_t n = dt_shape_count(item->shape), wanted = item_bytes(item) / piece_bytes;
    const int pieces = wanted < 1 ? 1 : wanted < k ? (int)wanted : k;
    DT_TRY(dt_grow((void **)&p->share, capacity, *nshares + pieces, sizeof *p->share));
    for (int i = 0; i < pieces; i++) {
        dti_share s = {.item = index};
        dt_chunk(n, pieces, i, &s.lo, &s.hi);
        if (s.lo == s.hi)
            break;
        s.writer = choose(item->layout, (int)((int64_t)i * k / pieces),
                          (int)((int64_t)(i + 1) * k / pieces), load);
        load[s.writer] += (s.hi - s.lo) * (int64_t)dt_dtype_size(item->dtype);
        p->share[(*nshares)++] = s;
    }
    return DT_OK;
}

static int by_writer(const void *a, const void *b)
{
    const dti_share *x = a, *y = b;
    if (x->writer != y->writer)
        return x->writer - y->writer;
    return x->item != y->item ? (x->item > y->item) - (x->item < y->item)
                              : (x->lo > y->lo) - (x->lo < y->lo);
}

dt_status dti_plan_shares(dti_plan *p, int64_t piece_bytes)
{
    const int k = p->mesh ? dt_mesh_size(p->mesh) : 0;
    int64_t n = 0, capacity = 0;
    int64_t *load = calloc((size_t)k + 1, sizeof *load);
    p->first = calloc((size_t)k + 2, sizeof *p->first);
    dt_status st = load && p->first ? DT_OK : DT_ERROR(DT_ERR_NOMEM, "%d writers", k);
    for (int64_t i = 0; st == DT_OK && i < p->nitems; i++)
        if (p->item[i].layout)
            st = cut(p, i, piece_bytes, load, &n, &capacity);
    free(load);
    DT_TRY(st);
    if (n > 0)
        qsort(p->share, (size_t)n, sizeof *p->share, by_writer);
    for (int64_t i = 0; i < n; i++)
        p->first[p->share[i].writer + 1]++;
    for (int w = 0; w < k; w++)
        p->first[w + 1] += p->first[w];
    return DT_OK;
}
