/* examples/example.h - runs a body on every rank: as launched by tools/mpirun, or with `--ranks N`
 * or `--ranks=N` as threads. */
#pragma once

#include "comm/dt_comm.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static inline int example_run(int argc, char **argv, dt_rank_body body)
{
    const bool joined = argc == 2 && strncmp(argv[1], "--ranks=", 8) == 0;
    const bool apart = argc == 3 && strcmp(argv[1], "--ranks") == 0;
    const int ranks = joined ? atoi(argv[1] + 8) : apart ? atoi(argv[2]) : 0;
    if (argc > 1 && ranks < 1) {
        (void)fprintf(stderr, "usage: %s [--ranks=N]   or: tools/mpirun -n N %s\n", argv[0],
                      argv[0]);
        return 2;
    }
    if (ranks > 0) {
        DT_MUST(dt_world_run_threads(ranks, NULL, body, NULL));
        return EXIT_SUCCESS;
    }
    dt_world *world = NULL;
    DT_MUST(dt_world_create(NULL, &world));
    DT_MUST(body(world, NULL));
    dt_world_destroy(&world);
    return EXIT_SUCCESS;
}
