/* tests/dtensor/rule_sim.h - what an application of a sum of products means: all ranks computed
 * in this process. */
#pragma once

#include "dtensor/dt_rule.h"

enum { SIM_MAX_IN = 4 };

/* "bsk,nk+n->bsn" taken apart. */
typedef struct sim_op {
    int n, term[SIM_MAX_IN], nterms;
    char in[SIM_MAX_IN][DT_MAX_DIMS + 1], out[DT_MAX_DIMS + 1];
} sim_op;

typedef dt_layout (*sim_grad)(const dt_layout *operand, uint8_t zeroed, const dt_layout *out,
                              const dt_layout *dy);

sim_op sim_parse(const char *spec);
/* Shape of an operand or output from its letters; small, and uneven on most axes. */
dt_shape sim_shape(const char *word);
/* Is the accepted application r right: do local arrays of whole numbers, gathered by r->out[0],
 * equal those of one rank, and gradients, placed by `grad`, for every layout that the output's
 * gradient may have? */
bool sim_is_right(const sim_op *o, const dt_rule *r, sim_grad grad);
