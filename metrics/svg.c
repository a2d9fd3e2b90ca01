/* metrics/svg.c - a curve as SVG: pixels, y downwards.
 *
 *       LEFT                       RIGHT
 *     TOP +--------------------------+
 *         |  polyline                |
 *  BOTTOM +--------------------------+   ticks and labels outside */
#include "metrics/metrics_internal.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { WIDTH = 720, HEIGHT = 420, LEFT = 70, RIGHT = 700, TOP = 40, BOTTOM = 370 };

static double pixel_x(const dti_frame *f, double x)
{
    return LEFT + dti_axis_part(&f->x, x) * (RIGHT - LEFT);
}

static double pixel_y(const dti_frame *f, double y)
{
    return BOTTOM - dti_axis_part(&f->y, y) * (BOTTOM - TOP);
}

static void put_text(FILE *out, const char *place, const char *text)
{
    (void)fprintf(out, "<text %s>", place);
    for (const char *c = text ? text : ""; *c; c++) {
        if (*c == '&' || *c == '<' || *c == '>')
            (void)fputs(*c == '&' ? "&amp;" : *c == '<' ? "&lt;" : "&gt;", out);
        else
            (void)fputc(*c, out);
    }
    (void)fputs("</text>\n", out);
}

/* Multiples of the tick inside of the axis; the small slack is for rounding. */
static double first_tick(const dti_axis *axis)
{
    return ceil(axis->lo / axis->tick - 1e-9);
}

static double last_tick(const dti_axis *axis)
{
    return floor(axis->hi / axis->tick + 1e-9);
}

static void put_ticks(FILE *out, const dti_frame *f)
{
    char place[128], label[64];
    for (double k = first_tick(&f->x); k <= last_tick(&f->x); k++) {
        const double at = pixel_x(f, k * f->x.tick);
        (void)fprintf(out, "<path d=\"M%.2f %d v6\" stroke=\"#333\"/>\n", at, BOTTOM);
        (void)snprintf(place, sizeof place,
                       "class=\"x\" x=\"%.2f\" y=\"%d\" text-anchor=\"middle\"", at, BOTTOM + 20);
        (void)snprintf(label, sizeof label, "%.*f", f->x.decimals, k * f->x.tick);
        put_text(out, place, label);
    }
    for (double k = first_tick(&f->y); k <= last_tick(&f->y); k++) {
        const double at = pixel_y(f, k * f->y.tick);
        (void)fprintf(out, "<path d=\"M%d %.2f H%d\" stroke=\"#ddd\"/>\n", LEFT, at, RIGHT);
        (void)snprintf(place, sizeof place,
                       "class=\"y\" x=\"%d\" y=\"%.2f\" dy=\"4\" text-anchor=\"end\"", LEFT - 8,
                       at);
        (void)snprintf(label, sizeof label, "%.*f", f->y.decimals, k * f->y.tick);
        put_text(out, place, label);
    }
}

static void put_points(FILE *out, const dt_curve *curve, const dti_frame *f)
{
    (void)fputs("<polyline fill=\"none\" stroke=\"#1f5fa8\" stroke-width=\"1.5\" points=\"", out);
    const char *gap = "";
    for (int64_t i = 0; i < curve->n; i++) {
        if (!dti_curve_has(curve, i))
            continue;
        (void)fprintf(out, "%s%.2f,%.2f", gap, pixel_x(f, curve->x[i]), pixel_y(f, curve->y[i]));
        gap = " ";
    }
    (void)fputs("\"/>\n", out);
}

static void put_svg(FILE *out, const dt_curve *curve)
{
    const dti_frame f = dti_curve_frame(curve);
    char place[128];
    (void)fprintf(out,
                  "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" "
                  "viewBox=\"0 0 %d %d\" font-family=\"sans-serif\" font-size=\"12\">\n"
                  "<rect width=\"100%%\" height=\"100%%\" fill=\"white\"/>\n",
                  WIDTH, HEIGHT, WIDTH, HEIGHT);
    put_ticks(out, &f);
    (void)fprintf(out, "<path d=\"M%d %d V%d H%d\" fill=\"none\" stroke=\"#333\"/>\n", LEFT, TOP,
                  BOTTOM, RIGHT);
    put_points(out, curve, &f);
    (void)snprintf(place, sizeof place, "x=\"%d\" y=\"24\" text-anchor=\"middle\" font-size=\"16\"",
                   (LEFT + RIGHT) / 2);
    put_text(out, place, curve->title);
    (void)snprintf(place, sizeof place, "x=\"%d\" y=\"%d\" text-anchor=\"middle\"",
                   (LEFT + RIGHT) / 2, HEIGHT - 8);
    put_text(out, place, curve->x_label);
    (void)snprintf(place, sizeof place,
                   "transform=\"translate(18 %d) rotate(-90)\" "
                   "text-anchor=\"middle\"",
                   (TOP + BOTTOM) / 2);
    put_text(out, place, curve->y_label);
    (void)fputs("</svg>\n", out);
}

dt_status dt_curve_svg(const dt_curve *curve, const char *path)
{
    FILE *out = fopen(path, "we");
    DT_REQUIRE(out, DT_ERR_IO, "%s: %s", path, strerror(errno));
    put_svg(out, curve);
    const bool failed = ferror(out) != 0;
    DT_REQUIRE(fclose(out) == 0 && !failed, DT_ERR_IO, "%s: %s", path, strerror(errno));
    return DT_OK;
}
