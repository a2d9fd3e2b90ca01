/* tests/optim/bare.h - a mesh of axes x and y, and parameters without a model, set from whole
 * arrays. */
#pragma once

#include "nn/dt_module.h"
#include "tests/harness.h"

extern const dt_module_kind bare_kind; /* cannot be called */

dt_status bare_mesh(dt_world *world, int x, int y, dt_mesh **mesh_out);
/* This rank's part of `whole` becomes the parameter, in its type. */
dt_status bare_set_value(const dt_param *p, const double *whole);
/* The same as its gradient, of type `dtype`. */
dt_status bare_set_grad(const dt_param *p, dt_dtype dtype, const double *whole);
