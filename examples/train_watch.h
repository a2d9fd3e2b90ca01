/* examples/train_watch.h - what a training run looks out for after a step; on the rank that writes.
 */
#pragma once

#include "examples/train_session.h"
#include "metrics/dt_metrics.h"

typedef struct train_watch {
    dt_spike spike;
    dt_events *events; /* NULL: none */
} train_watch;

/* A layer, or what else the parameters lie in. */
typedef struct train_layer {
    const char *name; /* its first `length` bytes */
    int length;
    double grad_norm;
} train_layer;

/* From norms of parameters to layers; room for one a parameter. Returns how many. */
int train_layers(const train_session *s, const double *grad_norm, train_layer *layer);

dt_status train_watch_open(const train_config *c, train_watch *w);
/* Tells of spikes, prints layers and writes scalars where it is time. grad_norm: of every
 * parameter, where c->log_layers asks for it. */
dt_status train_watch_step(const train_config *c, const train_session *s, const dt_metrics *m,
                           const double *grad_norm, train_watch *w);
void train_watch_close(train_watch *w);
