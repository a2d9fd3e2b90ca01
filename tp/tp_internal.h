/* tp/tp_internal.h - what the files of this folder share. */
#pragma once

#include "tp/dt_tp.h"

/* The axes of a plan on a mesh, outermost first. */
typedef struct dti_tp_axes {
    dt_mesh *mesh;
    int n;
    uint8_t axis[DT_MAX_AXES];
} dti_tp_axes;

/* Make x's layout R (dim < 0), or split along `dim` by the first `n` axes: innermost where other
 * axes split it already. */
void dti_tp_place(dt_layout *x, const dti_tp_axes *axes, int n, int dim);

/* The hook of a border: from the text of an `in` or `out` row. `always`: a node also where nothing
 * changes. Errors: DT_ERR_PLACEMENT for text that is no list of placements, DT_ERR_NOMEM. */
dt_status dti_tp_border_check(const char *text);
dt_status dti_tp_border_add(dt_module *m, const dti_tp_axes *axes, const dt_tp_plan *plan,
                            const char *text, bool after, bool always);
