/* metrics/plot.c - a curve in the terminal. */
#include "metrics/metrics_internal.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { ROWS = 10, COLUMNS = 60, LABEL = 9 };

/* Row of each column's mean value, 0 at the top; -1: no points. */
static void place_points(const dt_curve *curve, const dti_frame *f, int row[COLUMNS])
{
    double sum[COLUMNS] = {0};
    int64_t count[COLUMNS] = {0};
    for (int64_t i = 0; i < curve->n; i++) {
        if (!dti_curve_has(curve, i))
            continue;
        const int c = (int)(dti_axis_part(&f->x, curve->x[i]) * (COLUMNS - 1) + 0.5);
        sum[c] += curve->y[i];
        count[c]++;
    }
    for (int c = 0; c < COLUMNS; c++) {
        const double mean = count[c] ? sum[c] / (double)count[c] : f->y.lo;
        const int height = (int)(dti_axis_part(&f->y, mean) * (ROWS - 1) + 0.5);
        row[c] = count[c] ? ROWS - 1 - height : -1;
    }
}

void dt_curve_print(const dt_curve *curve, void (*print)(void *arg, const char *line), void *arg)
{
    const dti_frame f = dti_curve_frame(curve);
    int row[COLUMNS];
    char line[LABEL + COLUMNS + 64], label[32] = "";
    place_points(curve, &f, row);
    (void)snprintf(line, sizeof line, "%*s  %.60s", LABEL, curve->y_label ? curve->y_label : "",
                   curve->title ? curve->title : "");
    print(arg, line);
    for (int r = 0; r < ROWS; r++) {
        const double y = f.y.hi - (f.y.hi - f.y.lo) * r / (ROWS - 1);
        label[0] = '\0';
        if (r % 3 == 0)
            (void)snprintf(label, sizeof label, "%.*f", f.y.decimals + 1, y);
        int used = snprintf(line, sizeof line, "%*s |", LABEL, label);
        for (int c = 0; c < COLUMNS; c++)
            line[used++] = row[c] == r ? '*' : ' ';
        line[used] = '\0';
        print(arg, line);
    }
    int used = snprintf(line, sizeof line, "%*s +", LABEL, "");
    memset(line + used, '-', COLUMNS);
    line[used + COLUMNS] = '\0';
    print(arg, line);
    used = snprintf(line, sizeof line, "%*s  %-*.*f", LABEL, "", COLUMNS / 2 - 4, f.x.decimals,
                    f.x.lo);
    (void)snprintf(line + used, sizeof line - (size_t)used, "%-8.8s%*.*f",
                   curve->x_label ? curve->x_label : "", COLUMNS / 2 - 4, f.x.decimals, f.x.hi);
    print(arg, line);
}
