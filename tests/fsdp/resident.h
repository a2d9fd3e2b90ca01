/* tests/fsdp/resident.h - how much of what is offloaded is in memory: bounds of docs/fsdp.md. */
#pragma once

#include "tests/fsdp/net.h"

/* The most bytes that two parameters, neighbours in the optimizer's order, have here. */
int64_t net_neighbours(dt_module *m);
/* Peaks since the last call, of parameters and of optimizer state. */
dt_status net_peaks_are(dt_heap *heap, const char *when, int64_t params, int64_t optimizer);
/* A rank body: three steps of the net_case `arg`, with the peaks that the formulas give. */
dt_status net_resident_body(dt_world *world, void *arg);
