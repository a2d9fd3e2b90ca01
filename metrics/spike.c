/* metrics/spike.c - z-scores of a series against its last values. */
#include "metrics/dt_metrics.h"

#include <math.h>

double dt_spike_score(dt_spike *s, double value)
{
    const int64_t n = s->n < DT_SPIKE_WINDOW ? s->n : DT_SPIKE_WINDOW;
    double sum = 0, squares = 0, score = 0;
    for (int64_t i = 0; i < n; i++)
        sum += s->value[i];
    const double mean = n > 0 ? sum / (double)n : 0;
    for (int64_t i = 0; i < n; i++)
        squares += (s->value[i] - mean) * (s->value[i] - mean);
    const double deviation = n > 1 ? sqrt(squares / (double)(n - 1)) : 0;
    if (n >= DT_SPIKE_LEAST && value != mean)
        score = (value - mean) / deviation; /* infinite after a flat line */
    s->value[s->n++ % DT_SPIKE_WINDOW] = value;
    return score;
}
