/* tests/comm/edges.h - rank bodies about calls at the edges between a backend's ways: sizes at
 * which it takes another one, and calls that do not fit together. */
#pragma once

#include "tests/comm/cases.h"

/* Values of every call around a slip's size (comm/shm_internal.h), a little past it, and past the
 * caches; nothing behind a result is written. All ranks, 2 to 4. */
dt_status edge_values(dt_world *world, void *unused);
/* Calls that do not fit, of which each rank is told; the world is dead then. */
enum { EDGE_MISFITS = 8 };
dt_status edge_misfit(dt_world *world, int which);
