/* tests/dtensor/op_check.h - what every op must pass, in one call: op_check(&(op_check_spec){...}).
 *
 *   1. On one rank in f64: outputs equal plain loops (`naive`), gradients of every float operand by
 *      the tape equal central finite differences, also when one operand alone wants its gradient.
 *   2. On an axis of 2, an axis of 4 and a 2 x 2 mesh: the op is called with every placement of
 *      every operand out of {R, S(d), P}; dims split by both axes in both orders. Where it
 *      accepts, gathered outputs and gathered gradients equal those of one rank (1e-10), for a
 *      gradient of the output that is R and one that is P where the output is R, and no byte
 *      moves. Where it refuses, the error names the op and an axis. The number of accepted
 *      placements is exactly the expected one, so that a rule can neither lose nor gain a row. On
 *      2 x 2, of the placements with an axis that is refused alone only every 256th is tried
 *      (16th with DT_FULL=1).
 *
 * Give sizes that do not divide (5 and 3 on 2 and 4 ranks: uneven and empty parts). Source of the
 * expected counts: tests/dtensor/RULES.txt. */
#pragma once

#include "dtensor/dt_op.h"
#include "dtensor/ops/dt_ops.h"
#include "tests/harness.h"

/* Call the op: operands `in`, fill `out`. */
typedef void (*op_check_call)(dt_tape *t, dt_tensor *const *in, dt_tensor **out, const void *arg);

/* The same in plain loops over the operands' values; ids come as numbers. */
typedef void (*op_check_naive)(const double *const *in, double *const *out, const void *arg);

typedef struct op_check_spec {
    const char *name; /* as the op calls itself in errors */
    op_check_call call;
    op_check_naive naive; /* NULL: not compared */
    const void *arg;      /* for call */
    int nin, nout;        /* nout 0 means 1 */
    dt_shape shape[DT_OP_MAX_IN];
    int64_t below
        [DT_OP_MAX_IN]; /* > 0: an i32 operand of values in [0, below); never P, has no gradient */
    int accept;         /* rows on an axis of 2 */
    int accept_4;       /* on an axis of 4; 0: as `accept` */
    int accept_2x2;     /* on 2 x 2, dims split by both axes in mesh order; 0: accept^2 */
    bool communicates;  /* moves bytes inside, and may refuse a gradient that is P */
} op_check_spec;

void op_check(const op_check_spec *spec);
/* Part 1 alone, for attributes that do not change the rule. */
void op_check_gradients(const op_check_spec *spec);

/* One row on an axis named axisA of 4 ranks: layouts as text, NULL: not checked. */
typedef struct op_check_row {
    const op_check_spec *spec;
    const char *in[DT_OP_MAX_IN];
    const char *out;                /* of output 0 */
    const char *grad[DT_OP_MAX_IN]; /* for a gradient of the outputs that is R or S */
} op_check_row;

/* Placements of outputs and gradients; no byte moves. Values are op_check's affair. */
void op_check_rows(const op_check_row *rows, int n);

/* ---- the pieces, for tests of one row ---- */

/* The number that op_check puts at a global index of operand i: in (-1, 1), or an id. */
double op_check_value(const op_check_spec *spec, int i, int64_t index);
/* Operand i placed by a layout, f64 or i32: random parts that add up where it is P. Caller destroys
 * it. */
dt_status op_check_operand(const op_check_spec *spec, int i, const dt_layout *layout,
                           dt_tensor **out);
/* The layout is `want` ("[S(0)@tp]"), or an error that says both. */
dt_status op_check_layout(const dt_layout *got, const char *want);
/* The gathered tensor equals `want` within tol * max|want|, element by element. f64 tensors;
 * collective. */
dt_status op_check_equal(dt_tensor *x, const double *want, double tol, const char *what);
