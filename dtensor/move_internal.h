/* dtensor/move_internal.h - redistributions under way: the list (move.c) and the single step of a
 * tensor (move_step.c). */
#pragma once

#include "dtensor/dt_tensor.h"

/* One tensor on its way. */
typedef struct dti_item {
    dt_local now;
    const dt_layout *dst;
    const dt_plan *plan;
    int next;
    dt_array target;           /* where the result shall lie; storage NULL: anywhere */
    dt_array packed, received; /* of the step under way */
    int64_t *send, *recv;      /* elements per member */
} dti_item;

struct dt_moving {
    dt_mesh *mesh;
    int channel;
    char *label;
    dt_tag tag;
    int n;
    dti_item *item;
    dt_work *work; /* the collective in flight, of items called[0 .. ncalled) */
    dt_part *part;
    int *called;
    int ncalled;
};

/* The item's next step, or NULL when it has arrived. */
const dt_step *dti_step_next(const dti_item *it);
/* Arrive without a step: only shapes are wanted. */
dt_status dti_step_skip(const dt_moving *m, dti_item *it);
/* Do a local step. */
dt_status dti_step_local(const dt_moving *m, dti_item *it, const dt_step *step);
/* A collective: pack what each member gets and make room for what comes; then, when it has come,
 * unpack and go on. */
dt_status dti_step_prepare(const dt_moving *m, dti_item *it, const dt_step *step);
dt_status dti_step_finish(const dt_moving *m, dti_item *it, const dt_step *step);
