/* fsdp/hooks.c - what fully_shard hangs on modules: lifetime hooks that begin and end passes,
 * casts at the border.
 *
 * A group of several modules has one pass: forward from the first one's call to the end of the
 * last one's, backward the other way round. Read first: fsdp/order.c. */
#include "fsdp/fsdp_internal.h"

static dt_status pre_forward(dt_module *m, dt_tape *t, bool recompute, void *arg)
{
    dti_group *g = arg;
    (void)t;
    DT_TRY(dti_fsdp_check_root(g));
    if (recompute || m != g->modules[0])
        DT_TRY(dti_fsdp_unshard(g));
    else
        DT_TRY(dti_fsdp_forward_begins(g));
    return DT_OK;
}

static dt_status post_forward(dt_module *m, dt_tape *t, bool recompute, void *arg)
{
    dti_group *g = arg;
    if (!recompute && m == g->modules[g->nmodules - 1])
        DT_TRY(dti_fsdp_forward_ends(g, dt_tape_get_options(t)->no_grad));
    return DT_OK;
}

static dt_status pre_backward(dt_module *m, dt_tape *t, void *arg)
{
    dti_group *g = arg;
    (void)t;
    if (m != g->modules[g->nmodules - 1])
        DT_TRY(dti_fsdp_unshard(g));
    else
        DT_TRY(dti_fsdp_backward_begins(g));
    return DT_OK;
}

static dt_status post_backward(dt_module *m, dt_tape *t, void *arg)
{
    dti_group *g = arg;
    bool last = true;
    for (int i = 0; i < g->nmodules; i++)
        last = last && !dt_tape_marker_ahead(t, g->modules[i]);
    if (last || m == g->modules[0])
        DT_TRY(dti_fsdp_backward_ends(g, last));
    return DT_OK;
}

/* ---- casts at the group's border ---- */

static dt_values cast_floats(dt_tape *t, const dt_values *in, dt_dtype dtype)
{
    dt_values out = *in;
    for (int i = 0; i < in->n; i++) {
        dt_tensor *x = in->value[i];
        if (x && !dt_tensor_is_failed(x) && dt_dtype_is_float(dt_tensor_dtype(x)) &&
            dt_tensor_dtype(x) != dtype)
            out.value[i] = dt_cast(t, x, dtype, false);
    }
    return out;
}

static dt_values cast_inputs(dt_module *m, dt_tape *t, const dt_values *in, void *arg)
{
    (void)m;
    return cast_floats(t, in, ((const dti_group *)arg)->options.param_dtype);
}

static dt_values cast_outputs(dt_module *m, dt_tape *t, const dt_values *out, void *arg)
{
    (void)m;
    const dti_group *g = arg;
    return g->is_root ? cast_floats(t, out, g->options.output_dtype) : *out;
}

dt_status dti_fsdp_install_hooks(dti_group *g)
{
    for (int i = 0; i < g->nmodules; i++) {
        const dt_lifetime hooks = {.pre_forward = pre_forward,
                                   .post_forward = post_forward,
                                   .pre_backward = pre_backward,
                                   .post_backward_weight = post_backward,
                                   .arg = g,
                                   .free_arg = dti_fsdp_group_release};
        DT_TRY(dt_module_add_lifetime(g->modules[i], &hooks));
        g->hooked++;
        if (g->options.param_dtype != DT_F32 && !g->options.keep_input_dtype)
            DT_TRY(dt_module_add_transform(g->modules[i], cast_inputs, cast_outputs, g, NULL));
        dt_module_set_sharder(g->modules[i], &dti_fsdp_sharder, g);
    }
    return DT_OK;
}
