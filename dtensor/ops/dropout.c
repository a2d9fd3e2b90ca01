/* dtensor/ops/dropout.c - y = x m / (1 - p), m = 0 with probability p, else 1.
 *
 *     dx = dy m / (1 - p), with the same bits made again
 *
 * The bit of an element is u >= p, where u is number
 *     (first sample of the microbatch + index in dim 0) * elements a sample + index within it
 * of the sequence whose key is (seed, step, module path, how many dropouts of the module the tape
 * has had): the same on every mesh, for every microbatch and in a replay. Saves nothing.
 * Rule: "...->...", linear.
 * Sources: Srivastava et al. 2014, "Dropout"; Salmon et al. 2011 (counter-based random numbers). */
#include "dtensor/ops/nn_internal.h"

static void mask(const dt_op_call *c, const dt_array *x, dt_array *y)
{
    const dti_dropout_attributes *attr = c->attr;
    dt_dropout_args a = {.dtype = x->dtype,
                         .key = attr->key,
                         .first_sample = attr->first_sample,
                         .p = attr->p,
                         .global = c->in_layout[0]->shape};
    a.local = dt_mesh_local(c->in_layout[0], a.offset);
    dti_nn(c)->dropout(&a, dt_array_data(x), dt_array_data(y));
}

static dt_status forward(dt_op_call *c)
{
    mask(c, &c->in[0], &c->out[0]);
    return DT_OK;
}

static dt_status backward(dt_op_call *c)
{
    mask(c, &c->dout[0], &c->din[0]);
    return DT_OK;
}

const dt_op dt_op_dropout = {.name = "dropout",
                             .rule = "...->...",
                             .linear = 1u << 0,
                             .nin = 1,
                             .nout = 1,
                             .attr_bytes = sizeof(dti_dropout_attributes),
                             .forward = forward,
                             .backward = backward};

dt_tensor *(dt_dropout)(dt_tape *t, dt_tensor *x, double p)
{
    if (!(p >= 0 && p < 1)) {
        (void)dt_tape_fail(t, DT_ERROR(DT_ERR_ARG, "dropout: p is %g, must be in [0, 1)", p));
        return dt_tape_failed(t);
    }
    const dt_tape_options *o = dt_tape_get_options(t);
    if (p == 0 || o->no_dropout)
        return x; /* and costs no look through the tape's dropouts */
    const int ordinal = dt_tape_next_ordinal(t);
    dti_dropout_attributes attr = {
        .key = dt_key_named(o->seed, dt_tape_path(t)), .first_sample = o->first_sample, .p = p};
    attr.key = dt_key_fold(dt_key_fold(attr.key, (uint64_t)o->step), (uint64_t)ordinal);
    return dt_op_apply1(t, &dt_op_dropout, &attr, x);
}
