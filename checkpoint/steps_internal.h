/* checkpoint/steps_internal.h - what checkpoint.c and load.c share. */
#pragma once

#include "checkpoint/save_internal.h"

struct dt_checkpoint {
    char *dir, *config_path;
    int keep;
    int lock; /* of the folder, on world rank 0; -1: none */
    void (*say)(void *arg, const char *line);
    void *say_arg;
    dti_disk disk;
    dti_save save; /* in flight while it has a plan */
    dti_save_options how;
    dti_state state;                  /* of that save */
    int64_t *bad, nbad, bad_capacity; /* damaged steps that were met */
};
