/* tests/placements/sim.h - all ranks of a small grid in one process, running plans on integers.
 *
 * It moves elements by a step's kind, axes and dims, as collectives do (concatenate, add, cut), and
 * takes only local bounds from the layouts. So it also shows that a plan can be run as it says. */
#pragma once

#include "placements/dt_plan.h"

enum { SIM_RANKS = 32, SIM_ELEMENTS = 128, SIM_LAYOUTS = 1024 };

typedef struct sim_array {
    dt_shape shape;
    int64_t value[SIM_ELEMENTS];
} sim_array;

/* Every layout of a tensor on a grid, each once; the number of them. */
int sim_layouts(const dt_grid *grid, dt_shape shape, dt_layout out[SIM_LAYOUTS]);
/* A grid from sizes; axes are named a, b, c ... in mesh order. */
dt_grid sim_grid(int naxes, const int *size);

/* local[rank] of a fixed global value; where P, parts that look random and add up. */
void sim_distribute(const dt_layout *layout, sim_array *local);
/* Run a plan from src to dst on arrays in layout src, which become arrays in layout dst; asserts
 * that the steps fit together. */
void sim_run(const dt_plan *plan, const dt_layout *src, const dt_layout *dst, sim_array *local);
/* NULL if the arrays are the fixed global value in this layout, else what is wrong. */
const char *sim_wrong(const dt_layout *layout, const sim_array *local);
/* Make, run and check the plan from src to dst. */
void sim_check_plan(const dt_layout *src, const dt_layout *dst);
