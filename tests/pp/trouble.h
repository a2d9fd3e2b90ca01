/* tests/pp/trouble.h - hooks that let a stage of a pipeline fail: in forward, in backward, or where
 * weights get their gradients; at one microbatch. */
#pragma once

#include "tests/pp/pipe.h"

enum { MOST_STAGES = 16 };

/* Where it goes wrong. */
typedef enum spot { IN_FORWARD, IN_BACKWARD, IN_WEIGHTS, NSPOTS } spot;

/* What a rank's hooks do. */
typedef struct trouble {
    bool armed, always; /* always: in a rehearsal too */
    int stage;
    spot spot;
    int64_t first_sample, samples; /* of the microbatch; samples 0: of any size */
} trouble;

/* Of one stage. */
typedef struct witness {
    const trouble *trouble;
    int stage;
    int after; /* forwards of the failing microbatch in a later stage */
} witness;

/* Hooks on the first layer of each stage here; list: one a stage. */
dt_status trouble_watch(pipe *p, const trouble *x, witness *list);
/* How many stages the plan has. */
int pipe_stages(const pipe *p);
