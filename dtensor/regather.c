/* dtensor/regather.c - a redistributed tensor that backward makes again instead of keeping it.
 *
 *     x S(1) --redistribute--> y R --> linear, linear ...
 *
 * Without: the linears save y, one storage, all of it. With: x is saved, 1/t of y; the first
 * gradient that needs y redistributes x again, the others share it. The walk meets the redistribute
 * after all that used y; then y and x go.
 * Source: Korthikanti et al. 2022, section 4.2.2. Read first: dtensor/redistribute.c. */
#include "dtensor/tape_internal.h"

#include <string.h>

void dt_tensor_regather(dt_tensor *y)
{
    dt_tape *t = y->tape;
    if (!t || y->failed || t->nnodes == 0 || dt_tape_origin(t) != t)
        return; /* a second run, made for its gradients, needs what it gathers */
    dti_node *n = t->node[t->nnodes - 1];
    if (n->nout != 1 || n->out[0] != y || n->op || strcmp(n->name, "redistribute") != 0)
        return;
    n->saved_in = dti_alloc(t, 2 * sizeof(dt_array));
    if (!n->saved_in)
        return; /* y is saved as ever */
    n->saved_out = n->saved_in + 1;
    n->saved_in[0] = dt_array_share(&n->in[0]->local);
    y->made_by = n;
}

dt_status dti_saved_input(dti_node *n, int i, uint32_t need, dt_array **out)
{
    uint32_t mask = 0;
    for (int k = 0; k < n->nin; k++)
        mask |= need >> k & 1 ? n->op->saves[k] : 0;
    dti_node *made_by = n->in[i] ? n->in[i]->made_by : NULL;
    *out = &n->saved_in[i];
    if (!made_by || !(mask & DT_SAVE_IN(i)))
        return DT_OK;
    *out = &made_by->saved_out[0];
    if ((*out)->storage)
        return DT_OK;
    const dt_local src = {made_by->in[0]->layout, made_by->saved_in[0]};
    dt_local again = {0};
    DT_TRY(dt_move(1, &src, &n->in[i]->layout, 0, made_by->path, DT_TAG_ACTIVATION, &again));
    **out = again.array;
    return DT_OK;
}
