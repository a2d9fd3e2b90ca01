/* tests/dtensor/op_check_internal.h - what the two halves of the harness share. */
#pragma once

#include "tests/dtensor/op_check.h"

enum { OP_DOUT = 100 }; /* + o: as an operand's number, the gradient of output o */

/* What one rank computed; read by the ranks of the meshes. */
typedef struct op_reference {
    const op_check_spec *spec;
    double *out[DT_OP_MAX_OUT];
    double *grad[DT_OP_MAX_IN];
    bool *legal; /* by placements on one axis: accepted on an axis of 2 (rank 0 there writes) */
} op_reference;

static inline int op_outputs(const op_check_spec *spec)
{
    return spec->nout ? spec->nout : 1;
}

static inline bool op_is_float(const op_check_spec *spec, int i)
{
    return i >= OP_DOUT || spec->below[i] == 0;
}

/* Call the op on a tape that is emptied first. */
dt_status op_check_run(const op_check_spec *spec, dt_tape *tape, bool no_grad, dt_tensor *const *in,
                       dt_tensor **out);
/* Backward from gradients of the outputs that are R, or P where the outputs are R. */
dt_status op_check_backward(const op_check_spec *spec, dt_tape *tape, bool partial,
                            dt_tensor **out);

/* The sweep over the placements of a world of 2 or 4 ranks; arg is an op_reference. */
dt_status op_sweep_body(dt_world *world, void *arg);
