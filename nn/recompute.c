/* nn/recompute.c - a module call as one node that runs it again: see nn/dt_recompute.h.
 * Read next: dtensor/replay.c. */
#include "nn/nn_internal.h"

#include <string.h>

_Static_assert((int)DT_MAX_VALUES <= (int)DT_RECOMPUTED_MAX_OUT, "a call's results fit a node");

void dt_recompute(dt_module *m, dt_recompute_policy policy)
{
    m->recompute = policy;
}

dt_status dt_recompute_parse(const char *text, dt_recompute_policy *policy_out)
{
    static const char *const name[] = {
#define X(name, text) text,
        DT_RECOMPUTE_TABLE(X)
#undef X
    };
    for (int i = 0; i < DT_COUNT(name); i++) {
        if (strcmp(text, name[i]) == 0) {
            *policy_out = (dt_recompute_policy)i;
            return DT_OK;
        }
    }
    return DT_ERROR(DT_ERR_ARG, "recompute '%s'; legal: none, full, selective", text);
}

/* Both runs. */
static int run(dt_tape *t, void *arg, int nin, dt_tensor *const *in, dt_tensor **out)
{
    dt_module *m = arg;
    dt_values values = {.n = nin};
    for (int i = 0; i < nin; i++)
        values.value[i] = in[i];
    const dt_values y = dti_module_run(m, t, &values, false);
    for (int j = 0; j < y.n; j++)
        out[j] = y.value[j];
    return y.n;
}

dt_values dti_module_run_recomputed(dt_module *m, dt_tape *t, const dt_values *in)
{
    const dt_recomputed call = {run, m, m->recompute == DT_RECOMPUTE_SELECTIVE};
    const int begin = dti_mark_begin(m, t);
    dt_values out = {0};
    out.n = dt_tape_recompute(t, &call, in->n, in->value, out.value);
    dti_mark_end(m, t, begin, &out);
    return out;
}
