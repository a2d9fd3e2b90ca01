/* examples/example.h - runs a body on every rank: as launched by tools/mpirun, or with `--ranks N`
 * as threads. */
#pragma once

#include "comm/dt_comm.h"

#include <stdlib.h>
#include <string.h>

static inline int example_run(int argc, char **argv, dt_rank_body body)
{
    if (argc == 3 && strcmp(argv[1], "--ranks") == 0) {
        DT_MUST(dt_world_run_threads(atoi(argv[2]), NULL, body, NULL));
        return EXIT_SUCCESS;
    }
    dt_world *world = NULL;
    DT_MUST(dt_world_create(NULL, &world));
    DT_MUST(body(world, NULL));
    dt_world_destroy(&world);
    return EXIT_SUCCESS;
}
