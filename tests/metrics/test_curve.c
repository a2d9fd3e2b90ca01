/* tests/metrics/test_curve.c - curves: the SVG's ticks turn its points back into the data; the
 * terminal's stars stand where the data is. */
#include "metrics/dt_metrics.h"
#include "tests/harness.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char path[64];

static void begin(void)
{
    strcpy(path, "/tmp/dt_curve_XXXXXX");
    const int fd = mkstemp(path);
    ck_assert(fd >= 0 && close(fd) == 0);
}

static void end(void)
{
    unlink(path);
}

static char *draw(const dt_curve *curve)
{
    ck_ok(dt_curve_svg(curve, path));
    FILE *in = fopen(path, "r");
    char *text = calloc(1, 1 << 20);
    ck_assert(in && text && fread(text, 1, (1 << 20) - 1, in) > 0);
    fclose(in);
    ck_assert(strncmp(text, "<svg ", 5) == 0 && strcmp(text + strlen(text) - 7, "</svg>\n") == 0);
    ck_assert(!strstr(text, "<script") && !strstr(text, "nan") && !strstr(text, "inf"));
    return text;
}

/* Value = a + b * pixel, from the first and last tick of a class; and how many ticks there are. */
static int ticks(const char *text, const char *class, const char *attribute, double *a, double *b)
{
    double pixel[2] = {0}, value[2] = {0};
    int count = 0;
    for (const char *at = strstr(text, class); at; at = strstr(at + 1, class), count++) {
        const char *place = strstr(at, attribute), *label = strchr(at, '>');
        ck_assert(place && label);
        const int which = count > 0;
        pixel[which] = atof(place + strlen(attribute));
        value[which] = atof(label + 1);
    }
    *b = (value[1] - value[0]) / (pixel[1] - pixel[0]);
    *a = value[0] - *b * pixel[0];
    return count;
}

/* The drawn points, as data; how many. */
static int points(const char *text, int most, double *x, double *y)
{
    double ax, bx, ay, by;
    ck_assert_int_ge(ticks(text, "class=\"x\"", " x=\"", &ax, &bx), 3);
    ck_assert_int_ge(ticks(text, "class=\"y\"", " y=\"", &ay, &by), 3);
    ck_assert(bx > 0 && by < 0); /* to the right, and upwards: pixels count downwards */
    char *at = strstr(text, "points=\"");
    ck_assert(at != NULL);
    at += strlen("points=\"");
    int n = 0;
    for (; *at != '"' && n < most; n++) {
        x[n] = ax + bx * strtod(at, &at);
        ck_assert(*at == ',');
        y[n] = ay + by * strtod(at + 1, &at);
    }
    return n;
}

enum { N = 200 };

START_TEST(test_svg)
{
    double x[N], y[N], got_x[N], got_y[N];
    for (int i = 0; i < N; i++) {
        x[i] = i + 1;
        y[i] = 2 + 3 * exp(-i / 40.0) + 0.1 * sin(i);
    }
    y[17] = NAN;
    const dt_curve curve = {"a < b & c", "step", "loss", N, x, y};
    char *text = draw(&curve);
    ck_assert(strstr(text, "a &lt; b &amp; c") && strstr(text, ">step<") && strstr(text, ">loss<"));
    ck_assert_int_eq(points(text, N, got_x, got_y), N - 1);
    for (int i = 0, j = 0; i < N; i++) {
        if (i == 17)
            continue;
        ck_assert_msg(fabs(got_x[j] - x[i]) < 0.02 && fabs(got_y[j] - y[i]) < 2e-3,
                      "%d: (%g, %g), want (%g, %g)", i, got_x[j], got_y[j], x[i], y[i]);
        j++;
    }
    free(text);
}
END_TEST

/* Flat, single, missing, huge and nearly equal values. */
START_TEST(test_svg_edges)
{
    static const struct {
        int n;
        double x[3], y[3];
        int drawn;
    } cases[] = {
        {0, {0}, {0}, 0},
        {1, {5}, {3}, 1},
        {3, {1, 2, 3}, {0, 0, 0}, 3},
        {3, {1, 2, 3}, {2, 2 + 4e-16, 2}, 3},
        {3, {1, 2, 3}, {NAN, NAN, INFINITY}, 0},
        {3, {1, 2, 3}, {-1e308, 1e308, 1}, 1},
        {3, {1, 2, 3}, {1e-200, 2e-200, 3e-200}, 3},
        {3, {0, 1e15, 2e15}, {-5e12, 0, 5e12}, 3},
    };
    for (int i = 0; i < DT_COUNT(cases); i++) {
        const dt_curve curve = {.n = cases[i].n, .x = cases[i].x, .y = cases[i].y};
        char *text = draw(&curve);
        const char *at = strstr(text, "points=\"");
        ck_assert(at != NULL);
        int commas = 0;
        for (at += 8; *at != '"'; at++)
            commas += *at == ',';
        ck_assert_int_eq(commas, cases[i].drawn);
        free(text);
    }
    const dt_curve none = {0};
    ck_ok(test_expect(dt_curve_svg(&none, "/nowhere/a.svg"), DT_ERR_IO, "/nowhere/a.svg", ""));
    ck_ok(test_expect(dt_curve_svg(&none, "/dev/full"), DT_ERR_IO, "/dev/full", ""));
}
END_TEST

/* ---- terminal ---- */

typedef struct screen {
    int n;
    char line[32][256];
} screen;

static void take(void *arg, const char *line)
{
    screen *s = arg;
    ck_assert(s->n < 32 && strlen(line) < 256);
    strcpy(s->line[s->n++], line);
}

START_TEST(test_terminal)
{
    double x[N], y[N];
    for (int i = 0; i < N; i++) {
        x[i] = i + 1;
        y[i] = 5 - 4.0 * i / (N - 1); /* from 5 down to 1 */
    }
    screen s = {0};
    const dt_curve curve = {"training", "step", "loss", N, x, y};
    dt_curve_print(&curve, take, &s);
    ck_assert_int_eq(s.n, 13);
    ck_assert(strstr(s.line[0], "loss") && strstr(s.line[0], "training"));
    ck_assert(strstr(s.line[12], "step") && strstr(s.line[12], "200"));
    ck_assert(strtod(s.line[1], NULL) == 5 && strtod(s.line[10], NULL) == 1);
    int last = 0, stars = 0;
    for (int r = 1; r <= 10; r++) { /* a falling line: every row has stars, further to the right */
        const char *bar = strchr(s.line[r], '|'), *star = strchr(s.line[r], '*');
        ck_assert(bar && star && strlen(s.line[r]) <= 72);
        ck_assert_int_gt((int)(star - bar), last);
        last = (int)(strrchr(s.line[r], '*') - bar);
        for (const char *c = s.line[r]; *c; c++)
            stars += *c == '*';
    }
    ck_assert_int_eq(stars, 60);
    ck_assert_int_eq(last, 60);
    screen empty = {0};
    dt_curve_print(&(dt_curve){0}, take, &empty);
    ck_assert_int_eq(empty.n, 13);
    for (int r = 0; r < 13; r++)
        ck_assert(!strchr(empty.line[r], '*'));
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("curves");
    TCase *tc = tcase_create("curve");
    tcase_add_checked_fixture(tc, begin, end);
    tcase_add_test(tc, test_svg);
    tcase_add_test(tc, test_svg_edges);
    tcase_add_test(tc, test_terminal);
    suite_add_tcase(suite, tc);
    return test_main(suite);
}
