/* tests/checkpoint/steps.h - a model of three tensors under many layouts, saved and loaded step by
 * step in a folder of the test. */
#pragma once

#include "checkpoint/dt_checkpoint.h"
#include "tests/checkpoint/files.h"
#include "tests/harness.h"

/* grid [4, 4]; odd [7, 3]; fused [6] in files, [2, 3] to ops. */
enum { STEPS_PARAMS = 3, STEPS_LAYOUTS = 13 };
extern const char *const steps_names[STEPS_PARAMS];

typedef struct steps_layout {
    int x, y;
    const char *grid, *odd, *fused;
} steps_layout;

extern const steps_layout steps_layouts[STEPS_LAYOUTS];

typedef struct steps_model {
    dt_mesh *mesh;
    dt_module *root;
    dt_param *p[STEPS_PARAMS];
    dt_optim *optim;
} steps_model;

dt_status steps_make(dt_world *world, const steps_layout *l, dt_dtype dtype, steps_model *m);
void steps_drop(steps_model *m);
/* Write or check all values, through local parts. `exact`: also masters and optimizer state. */
dt_status steps_each(steps_model *m, int salt, bool check, bool exact);

typedef struct steps_job {
    const steps_layout *l;
    dt_checkpoint_options o;
    const char *dir, *fault; /* of the world; in test_chain a file that is in the way */
    int step;
    bool load;
} steps_job;

/* Save, or load and check, one step on the job's ranks. */
void steps_go(steps_job j);
dt_checkpoint_state steps_state(int step);
extern const dt_checkpoint_options steps_tiny; /* pieces of 8 bytes */

/* The folder of a test: a fixture; the path of a file of a step. */
extern char steps_folder[FILES_PATH];
void steps_begin(void);
void steps_end(void);
char *steps_file(int step, const char *name, char path[FILES_PATH]);
