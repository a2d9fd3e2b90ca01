/* nn/nn_internal.h - the module, for the files of this folder. */
#pragma once

#include "nn/dt_recompute.h"

typedef struct dti_transform {
    dt_transform before, after;
    void *arg;
    void (*free_arg)(void *arg);
} dti_transform;

typedef struct dti_slot {
    char *name; /* "weight" */
    dt_param *param;
} dti_slot;

struct dt_module {
    const dt_module_kind *kind;
    void *state;
    char *name; /* in the parent */
    char *path;
    dt_module *parent;
    dt_module **child;
    int64_t nchildren, child_capacity;
    dti_slot *slot;
    int64_t nslots, slot_capacity;
    dt_param **params; /* dt_module_params: gathered anew at each call */
    int64_t nbelow, param_capacity; /* slots at or below; room in params */
    dti_transform *transform;
    int64_t ntransforms, transform_capacity;
    dt_lifetime *lifetime;
    int64_t nlifetimes, lifetime_capacity;
    const dt_sharder *sharder;
    void *sharder_arg;
    dt_recompute_policy recompute;
};

/* What a call does once its path is entered: scope, hooks, forward. marks: put markers for the
 * lifetime hooks of m on the tape. */
dt_values dti_module_run(dt_module *m, dt_tape *t, const dt_values *in, bool marks);
/* The same for a module with a policy: nothing of it stays but one node, between m's markers. */
dt_values dti_module_run_recomputed(dt_module *m, dt_tape *t, const dt_values *in);
/* What m's transform hooks make of its inputs, or outputs (`after`). */
dt_values dti_transformed(dt_module *m, dt_tape *t, dt_values v, bool after);
/* m's markers for backward: begin before its nodes, then end after them. No-ops without lifetime
 * hooks. */
int dti_mark_begin(dt_module *m, dt_tape *t);
void dti_mark_end(dt_module *m, dt_tape *t, int begin, const dt_values *out);

/* The first n children, linear layers, on one input. */
void dti_linears(dt_module *m, int n, dt_tape *t, dt_tensor *x, dt_tensor **out);
