/* metrics/frame.c - ranges and ticks of a plot. */
#include "metrics/metrics_internal.h"

#include <math.h>

bool dti_curve_has(const dt_curve *curve, int64_t i)
{
    return fabs(curve->x[i]) < 1e300 && fabs(curve->y[i]) < 1e300; /* so that ranges are finite */
}

double dti_axis_part(const dti_axis *axis, double v)
{
    return (v - axis->lo) / (axis->hi - axis->lo);
}

/* About `count` ticks over [lo, hi]. */
static dti_axis make_axis(double lo, double hi, int count)
{
    const double size = fmax(fabs(lo), fabs(hi));
    if (hi - lo <= 1e-9 * size) { /* flat but for rounding: ticks would be too close to count */
        const double middle = lo + (hi - lo) / 2, half = size > 0 ? 0.1 * size : 0.5;
        lo = middle - half;
        hi = middle + half;
    }
    const double rough = (hi - lo) / count, power = pow(10, floor(log10(rough)));
    const double digit = rough / power;
    const double tick = power * (digit > 5 ? 10 : digit > 2 ? 5 : digit > 1 ? 2 : 1);
    const int decimals = tick < 1 ? (int)ceil(-log10(tick) - 1e-9) : 0;
    return (dti_axis){lo, hi, tick, decimals};
}

dti_frame dti_curve_frame(const dt_curve *curve)
{
    double x_lo = INFINITY, x_hi = -INFINITY, y_lo = INFINITY, y_hi = -INFINITY;
    for (int64_t i = 0; i < curve->n; i++) {
        if (!dti_curve_has(curve, i))
            continue;
        x_lo = fmin(x_lo, curve->x[i]);
        x_hi = fmax(x_hi, curve->x[i]);
        y_lo = fmin(y_lo, curve->y[i]);
        y_hi = fmax(y_hi, curve->y[i]);
    }
    if (x_lo > x_hi)
        x_lo = y_lo = 0, x_hi = y_hi = 1;
    dti_frame frame = {make_axis(x_lo, x_hi, 6), make_axis(y_lo, y_hi, 5)};
    frame.y.lo = floor(frame.y.lo / frame.y.tick) * frame.y.tick;
    frame.y.hi = ceil(frame.y.hi / frame.y.tick) * frame.y.tick;
    return frame;
}
