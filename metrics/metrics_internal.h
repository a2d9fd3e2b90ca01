/* metrics/metrics_internal.h - the frame of a plot, shared by SVG and terminal. */
#pragma once

#include "metrics/dt_metrics.h"

typedef struct dti_axis {
    double lo, hi; /* lo < hi */
    double tick;   /* distance of ticks: 1, 2 or 5 times a power of ten */
    int decimals;  /* that tell ticks apart */
} dti_axis;

typedef struct dti_frame {
    dti_axis x, y; /* x ends where the data ends, y at ticks */
} dti_frame;

bool dti_curve_has(const dt_curve *curve, int64_t i); /* is the point drawn? */
dti_frame dti_curve_frame(const dt_curve *curve);
/* Where v stands between lo (0) and hi (1). */
double dti_axis_part(const dti_axis *axis, double v);
