/* tests/dtensor/host_leaf.h - operands from whole arrays on the host. */
#pragma once

#include "dtensor/ops/dt_ops.h"
#include "tests/harness.h"

#include <math.h>

/* In (-1, 1), distinct. */
static inline float host_number(int64_t i)
{
    return (float)sin((double)i * 12.9898 + 4.1);
}

/* A leaf placed by `text`; of a float type it wants a gradient. The caller destroys it. */
static inline dt_status host_leaf(dt_mesh *mesh, dt_shape shape, const char *text, dt_dtype dtype,
                                  const void *host, dt_tensor **out)
{
    const dt_layout *layout = NULL;
    DT_TRY(dt_mesh_layout_text(mesh, shape, text, &layout));
    DT_TRY(dt_distribute(layout, dtype, host, out));
    dt_tensor_set_requires_grad(*out, dt_dtype_is_float(dtype));
    return DT_OK;
}
