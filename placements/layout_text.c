/* placements/layout_text.c - layouts from and to text: "[S(0)@tp>dp, P@cp]".
 *
 *     layout  = "[" parts "]" | parts          parts = nothing | part { "," part }
 *     part    = "R" | kind "@" axis { ">" axis }
 *     kind    = "R" | "P" | "S(" dim ")"       blanks are free between tokens
 *
 * Read before: placements/dt_layout.h. */
#include "placements/placements_internal.h"

#include <ctype.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What is being read: `at` moves forward in `text`. */
typedef struct reader {
    const char *text, *at;
    unsigned named; /* bit a: axis a was named */
    dt_layout layout;
} reader;

/* Step over blanks and, if it comes next, over `c`. */
static bool eat(reader *r, char c)
{
    while (isspace((unsigned char)*r->at))
        r->at++;
    if (*r->at != c || c == 0)
        return false;
    r->at++;
    return true;
}

static dt_status syntax(const reader *r, const char *wanted)
{
    return DT_ERROR(DT_ERR_PLACEMENT, "\"%s\": %s expected at \"%s\"", r->text, wanted, r->at);
}

static void print_axes(const dt_grid *grid, char *buf, size_t size_bytes)
{
    size_t used = 0;
    dti_text_append(buf, size_bytes, &used, grid->naxes ? "" : "none");
    for (int a = 0; a < grid->naxes; a++)
        dti_text_append(buf, size_bytes, &used, a ? ", %s" : "%s", grid->name[a]);
}

static dt_status read_axis(reader *r, int *axis_out)
{
    (void)eat(r, 0);
    const size_t len = strcspn(r->at, ",>@[]() \t\n");
    if (len == 0)
        return syntax(r, "the name of an axis");
    const dt_grid *grid = r->layout.grid;
    char name[DT_NAME_SIZE] = {0}, axes[DT_LAYOUT_TEXT];
    memcpy(name, r->at, len < sizeof name ? len : sizeof name - 1);
    const int axis = len < sizeof name ? dt_grid_axis(grid, name) : -1;
    print_axes(grid, axes, sizeof axes);
    DT_REQUIRE(axis >= 0, DT_ERR_PLACEMENT, "\"%s\": unknown axis %.*s; the mesh has: %s", r->text,
               (int)len, r->at, axes);
    DT_REQUIRE(!(r->named >> axis & 1), DT_ERR_PLACEMENT, "\"%s\": axis %s is named twice", r->text,
               name);
    r->named |= 1u << axis;
    r->at += len;
    *axis_out = axis;
    return DT_OK;
}

static dt_status read_dim(reader *r, int *dim_out)
{
    if (!eat(r, '('))
        return syntax(r, "( after S");
    char *end;
    const long dim = strtol(r->at, &end, 10);
    if (end == r->at)
        return syntax(r, "a dim");
    r->at = end;
    if (!eat(r, ')'))
        return syntax(r, ")");
    const int ndim = r->layout.shape.ndim;
    DT_REQUIRE(dim >= -ndim && dim < ndim, DT_ERR_PLACEMENT,
               "\"%s\": S(%ld) of a tensor with %d dims", r->text, dim, ndim);
    *dim_out = (int)(dim < 0 ? dim + ndim : dim);
    return DT_OK;
}

static dt_status read_part(reader *r)
{
    dt_placement p = {.kind = DT_REPLICATE};
    if (eat(r, 'P'))
        p.kind = DT_PARTIAL;
    else if (eat(r, 'S'))
        p.kind = DT_SHARD;
    else if (!eat(r, 'R'))
        return syntax(r, "R, P or S(dim)");
    if (p.kind == DT_SHARD)
        DT_TRY(read_dim(r, &p.dim));
    if (!eat(r, '@'))
        return p.kind == DT_REPLICATE ? DT_OK : syntax(r, "@");
    do {
        int axis = 0;
        DT_TRY(read_axis(r, &axis));
        if (p.kind == DT_SHARD)
            dt_layout_shard(&r->layout, axis, p.dim);
        if (p.kind == DT_PARTIAL)
            r->layout.partial |= (uint8_t)(1u << axis);
    } while (eat(r, '>'));
    return DT_OK;
}

dt_status dt_layout_parse(const dt_grid *grid, dt_shape shape, const char *text,
                          dt_layout *layout_out)
{
    reader r = {.text = text, .at = text, .layout = dt_layout_replicated(grid, shape)};
    const bool bracket = eat(&r, '[');
    (void)eat(&r, 0);
    if (*r.at != (bracket ? ']' : 0)) {
        do
            DT_TRY(read_part(&r));
        while (eat(&r, ','));
    }
    if (bracket && !eat(&r, ']'))
        return syntax(&r, ", or ]");
    (void)eat(&r, 0);
    if (*r.at)
        return syntax(&r, bracket ? "the end" : ", or the end");
    *layout_out = r.layout;
    return DT_OK;
}

void dti_text_append(char *buf, size_t size_bytes, size_t *used, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    const size_t room = *used < size_bytes ? size_bytes - *used : 0;
    *used += (size_t)vsnprintf(room ? buf + *used : NULL, room, format, args);
    va_end(args);
}

const char *dt_layout_print(const dt_layout *layout, char *buf, size_t size_bytes)
{
    size_t used = 0;
    const char *comma = "";
    dti_text_append(buf, size_bytes, &used, "[");
    for (int d = 0; d < layout->shape.ndim; d++) {
        for (int i = 0; i < layout->nsplit[d]; i++) {
            if (i == 0)
                dti_text_append(buf, size_bytes, &used, "%sS(%d)", comma, d);
            dti_text_append(buf, size_bytes, &used, "%c%s", i ? '>' : '@',
                            layout->grid->name[layout->split[d][i]]);
            comma = ", ";
        }
    }
    for (int a = 0; a < layout->grid->naxes; a++) {
        if (layout->partial >> a & 1) {
            dti_text_append(buf, size_bytes, &used, "%sP@%s", comma, layout->grid->name[a]);
            comma = ", ";
        }
    }
    dti_text_append(buf, size_bytes, &used, *comma ? "]" : "R]");
    return buf;
}
