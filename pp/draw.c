/* pp/draw.c - pictures of a run: a grid of text, and an SVG. Read first: pp/simulate.c. */
#include "pp/pp_internal.h"

#include <stdlib.h>
#include <string.h>

enum { MOST_COLUMNS = 4096 };

/* One action or pair of a lane: what to draw. */
typedef struct bar {
    dt_pp_action a, second; /* second.kind DT_PP_NKINDS: none */
    double start, end;
    int64_t next; /* position after it */
} bar;

/* The bar at position i; false if its action takes no time. A pair that ran as one is one bar. */
static bool bar_at(const dt_pp_row *row, const dt_pp_lane *lane, int64_t i, bar *out)
{
    *out = (bar){row->action[i], {.kind = DT_PP_NKINDS}, lane->start[i], lane->end[i], i + 1};
    if (out->a.paired && lane->start[i + 1] < lane->end[i]) {
        out->second = row->action[i + 1];
        out->end = lane->end[i + 1];
        out->next++;
    }
    return dti_pp_computes(out->a.kind) && out->end > out->start;
}

/* Is stage r all that rank r has? Then a picture need not name stages. */
static bool one_stage_each(const dt_pp_schedule *s)
{
    for (int r = 0; r < s->nranks; r++)
        for (int64_t i = 0; i < s->row[r].count; i++)
            if (s->row[r].action[i].stage != r)
                return false;
    return true;
}

/* "F3" (bare) or "2F3"; of a pair "2F3+1B0". */
static int bar_text(bool bare, const bar *b, char *buf, size_t size_bytes)
{
    char first[DT_PP_ACTION_TEXT], second[DT_PP_ACTION_TEXT];
    const char *f = dt_pp_action_print(b->a, first, sizeof first);
    if (bare && b->second.kind == DT_PP_NKINDS)
        f += strcspn(f, "FIWB");
    if (b->second.kind == DT_PP_NKINDS)
        return snprintf(buf, size_bytes, "%s", f);
    return snprintf(buf, size_bytes, "%s+%s", f,
                    dt_pp_action_print(b->second, second, sizeof second));
}

/* The shortest bar, and the width of the widest single text. */
static void measure(const dt_pp_schedule *s, const dt_pp_timeline *t, bool bare, double *unit,
                    int *width)
{
    char text[2 * DT_PP_ACTION_TEXT];
    bar b;
    for (int r = 0; r < s->nranks; r++) {
        for (int64_t i = 0; i < s->row[r].count; i = b.next) {
            if (!bar_at(&s->row[r], &t->lane[r], i, &b))
                continue;
            *unit = *unit <= 0 || b.end - b.start < *unit ? b.end - b.start : *unit;
            const int n = b.second.kind == DT_PP_NKINDS ? bar_text(bare, &b, text, sizeof text) : 0;
            *width = n > *width ? n : *width;
        }
    }
}

static void draw_lane(const dt_pp_row *row, const dt_pp_lane *lane, bool bare, double unit,
                      int width, char *line)
{
    char text[2 * DT_PP_ACTION_TEXT];
    bar b;
    for (int64_t i = 0; i < row->count; i = b.next) {
        if (!bar_at(row, lane, i, &b))
            continue;
        const int from = (int)(b.start / unit + 0.5) * width,
                  to = (int)(b.end / unit + 0.5) * width;
        const int n = bar_text(bare, &b, text, sizeof text);
        for (int c = from; c < to; c++)
            line[c] = c - from < n && c + 1 < to ? text[c - from] : ' ';
    }
}

dt_status dt_pp_draw_text(const dt_pp_schedule *s, const dt_pp_timeline *t, double unit, FILE *out)
{
    int width = 0;
    double shortest = 0;
    const bool bare = one_stage_each(s);
    measure(s, t, bare, &shortest, &width);
    unit = unit > 0 ? unit : shortest;
    DT_REQUIRE(unit > 0 && t->makespan / unit <= MOST_COLUMNS, DT_ERR_ARG,
               "time %g in columns of %g: legal are up to %d columns", t->makespan, unit,
               MOST_COLUMNS);
    width++;
    const int columns = (int)(t->makespan / unit + 1) * width;
    char *line = malloc((size_t)columns + 1);
    DT_REQUIRE(line, DT_ERR_NOMEM, "%d columns", columns);
    for (int r = 0; r < s->nranks; r++) {
        for (int c = 0; c < columns; c++)
            line[c] = c % width ? ' ' : '.';
        draw_lane(&s->row[r], &t->lane[r], bare, unit, width, line);
        int used = (int)(t->makespan / unit + 0.5) * width;
        while (used > 0 && line[used - 1] == ' ')
            used--;
        (void)fprintf(out, "rank %-2d %.*s\n", r, used, line);
    }
    free(line);
    DT_REQUIRE(!ferror(out), DT_ERR_IO, "the picture could not be written");
    return DT_OK;
}

enum { LEFT = 60, WIDE = 1200, HIGH = 22 }; /* pixels: names, the time axis, a lane */

static const char *color(dt_pp_kind kind)
{
    return kind == DT_PP_F   ? "#9ecae1"
           : kind == DT_PP_I ? "#fdae6b"
           : kind == DT_PP_W ? "#a1d99b"
                             : "#fdd0a2";
}

/* The text of an action fits in some 7 pixels a letter. A rank's second stage, and its fourth, are
 * pale. */
static void draw_box(dt_pp_action a, bool pale, const bar *b, double scale, double y, double high,
                     FILE *out)
{
    const double x = LEFT + b->start * scale, wide = (b->end - b->start) * scale;
    char text[DT_PP_ACTION_TEXT];
    (void)dt_pp_action_print(a, text, sizeof text);
    (void)fprintf(out,
                  "<g><title>%s: %g to %g</title><rect x=\"%.2f\" y=\"%.1f\" width=\"%.2f\" "
                  "height=\"%.1f\" fill=\"%s\"%s stroke=\"#555\" stroke-width=\"0.5\"/>",
                  text, b->start, b->end, x, y, wide, high, color(a.kind),
                  pale ? " fill-opacity=\"0.4\"" : "");
    const size_t kind = strcspn(text, "FIWB");
    const char *label = wide > 7.0 * (double)strlen(text) ? text : text + kind + 1;
    if (wide > 7.0 * (double)strlen(label))
        (void)fprintf(out, "<text x=\"%.2f\" y=\"%.1f\" text-anchor=\"middle\">%s</text>",
                      x + wide / 2, y + high / 2 + 3.5, label);
    (void)fprintf(out, "</g>\n");
}

static bool is_pale(const dt_pp_schedule *s, dt_pp_action a)
{
    return a.stage / s->nranks % 2;
}

/* What the colors say. */
static void draw_legend(FILE *out)
{
    static const char *const text[] = {"forward", "backward: inputs", "backward: weights",
                                       "backward (pale: of a rank's second stage)"};
    static const dt_pp_kind kind[] = {DT_PP_F, DT_PP_I, DT_PP_W, DT_PP_B};
    for (int i = 0; i < DT_COUNT(kind); i++)
        (void)fprintf(
            out, "<path d=\"M%d 5h14v12h-14z\" fill=\"%s\"/><text x=\"%d\" y=\"15\">%s</text>\n",
            LEFT + 170 * i, color(kind[i]), LEFT + 170 * i + 20, text[i]);
}

static void draw_picture(const dt_pp_picture *p, double scale, int y, FILE *out)
{
    bar b;
    (void)fprintf(out, "<text x=\"0\" y=\"%d\" font-weight=\"bold\">", y + 15);
    for (const char *c = p->title; *c; c++)
        (void)fprintf(out, *c == '<' ? "&lt;" : *c == '&' ? "&amp;" : "%c", *c);
    (void)fprintf(out, ": time %.4g, idle %.1f %%</text>\n", p->timeline->makespan,
                  100 * dt_pp_idle(p->timeline));
    for (int r = 0; r < p->schedule->nranks; r++) {
        const dt_pp_row *row = &p->schedule->row[r];
        const int top = y + (r + 1) * HIGH;
        (void)fprintf(out, "<text x=\"0\" y=\"%d\">rank %d</text>\n", top + 14, r);
        for (int64_t i = 0; i < row->count; i = b.next) {
            if (!bar_at(row, &p->timeline->lane[r], i, &b))
                continue;
            const bool two = b.second.kind != DT_PP_NKINDS;
            const double high = two ? (HIGH - 2) / 2.0 : HIGH - 2;
            draw_box(b.a, is_pale(p->schedule, b.a), &b, scale, top, high, out);
            if (two)
                draw_box(b.second, is_pale(p->schedule, b.second), &b, scale, top + high, high,
                         out);
        }
    }
}

dt_status dt_pp_draw_svg(int npictures, const dt_pp_picture *pictures, FILE *out)
{
    double longest = 0;
    int lanes = 1; /* the legend */
    for (int i = 0; i < npictures; i++) {
        const double span = pictures[i].timeline->makespan;
        longest = span > longest ? span : longest;
        lanes += pictures[i].schedule->nranks + 2;
    }
    (void)fprintf(out,
                  "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" "
                  "font-family=\"monospace\" font-size=\"11\">\n",
                  LEFT + WIDE + 10, lanes * HIGH);
    int y = HIGH;
    draw_legend(out);
    for (int i = 0; i < npictures; i++) {
        draw_picture(&pictures[i], longest > 0 ? WIDE / longest : 1, y, out);
        y += (pictures[i].schedule->nranks + 2) * HIGH;
    }
    (void)fprintf(out, "</svg>\n");
    DT_REQUIRE(!ferror(out), DT_ERR_IO, "the picture could not be written");
    return DT_OK;
}
