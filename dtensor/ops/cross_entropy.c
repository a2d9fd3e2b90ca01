/* dtensor/ops/cross_entropy.c - the mean loss of a batch: sum over valid targets of -log
 * softmax(z)[target] / valid.
 *
 *     z [..., V], targets [...],  m_i = max_v z_iv
 *     loss_i = log(sum_v exp(z_iv - m_i)) + m_i - z_i,target
 *     dz_iv = (softmax(z)_iv - [v is the target]) dy / valid,  0 where the target is ignored
 *
 * valid is the number of valid targets of the whole batch, so that parts of it, on other ranks
 * or in other microbatches, add up. Targets follow the leading dims of z.
 * Rule, per axis: z R: loss R; leading dims of z sharded: loss P; V sharded: loss R, after 3
 * all-reduces of one number a token (m; the sum; the target's logit), and then the gradient must
 * be R on that axis: P would be summed twice. z may not be P. Saves z, m and the sum, in f32;
 * losses are added in f64 in token order.
 * Source: Shoeybi et al. 2019, "Megatron-LM" (vocab-parallel cross-entropy). */
#include "dtensor/ops/nn_internal.h"

#include <math.h>
#include <stdio.h>

typedef struct attributes {
    int64_t ignore, valid;
} attributes;

static dt_status infer(dt_rule *r)
{
    const dt_layout *z = r->in[0];
    const int last = z->shape.ndim - 1;
    char text[DT_LAYOUT_TEXT];
    DT_REQUIRE(last >= 0, DT_ERR_SHAPE, "%s: logits must have a dim", r->name);
    dti_follow f = {.i = 1, .lead = 0, .ndims = last, .what = "targets", .leader = "the logits"};
    dt_layout out = dt_layout_replicated(z->grid, DT_SCALAR);
    for (int axis = 0; axis < z->grid->naxes; axis++)
        DT_REQUIRE(dt_layout_at(z, axis).kind != DT_PARTIAL, DT_ERR_PLACEMENT,
                   "%s: on %s: operand 0 (the logits) %s is P, but the op is not linear in it: it "
                   "must be R or sharded",
                   r->name, z->grid->name[axis], dt_layout_print(z, text, sizeof text));
    for (int d = 0; d < last; d++) {
        f.dims[d] = d;
        for (int i = 0; i < z->nsplit[d]; i++)
            out.partial |= (uint8_t)(1u << z->split[d][i]);
    }
    DT_TRY(dti_follows(r, &f));
    r->out[0] = out;
    return DT_OK;
}

dt_dtype dti_loss_dtype(const void *attr, dt_dtype in)
{
    (void)attr;
    return dti_wide(in);
}

/* The axes that split a dim. */
static uint8_t axes_of(const dt_layout *layout, int dim)
{
    uint8_t axes = 0;
    for (int i = 0; i < layout->nsplit[dim]; i++)
        axes |= (uint8_t)(1u << layout->split[dim][i]);
    return axes;
}

static dt_status across(dt_op_call *c, const dt_layout *layout, int dim, const dt_array *x,
                        dt_array *y, dt_reduce how)
{
    dt_comm *comm;
    dt_work *work;
    DT_TRY(dt_mesh_comm(dt_layout_mesh(layout), layout->nsplit[dim], layout->split[dim], 0, &comm));
    char label[160];
    (void)snprintf(label, sizeof label, "%s%s%s", c->path, *c->path ? ", " : "", c->op->name);
    DT_TRY(dt_all_reduce(comm, 1, &(dt_part){.in = x, .out = y}, how, label, &work));
    DT_TRY(dt_work_wait(&work));
    return DT_OK;
}

dt_status dti_loss_whole_rows(dt_op_call *c, const dt_layout *layout, int dim, dt_loss_args *a,
                              const dti_loss_arrays *arrays)
{
    const bool split = layout->nsplit[dim] > 0;
    a->max = dt_array_data(split ? arrays->mine : arrays->max);
    a->sum = dt_array_data(arrays->sum);
    a->hit = dt_array_data(arrays->hit);
    const dt_nn_kernels *kernels = dti_nn(c);
    if (kernels)
        kernels->loss_rows(a);
    if (!split)
        return DT_OK;
    DT_TRY(across(c, layout, dim, arrays->mine, arrays->max, DT_REDUCE_MAX));
    a->max = dt_array_data(arrays->max);
    if (kernels)
        kernels->loss_shift(a, dt_array_data(arrays->mine));
    DT_TRY(across(c, layout, dim, arrays->sum, arrays->sum, DT_REDUCE_SUM));
    DT_TRY(across(c, layout, dim, arrays->hit, arrays->hit, DT_REDUCE_SUM));
    return DT_OK;
}

dt_status dti_loss_gradient(const dt_op_call *c, const dt_layout *layout, int dim)
{
    const uint8_t bad = c->dout_layout[0]->partial & axes_of(layout, dim);
    for (int axis = 0; bad >> axis; axis++)
        DT_REQUIRE(!(bad >> axis & 1), DT_ERR_PLACEMENT,
                   "%s: on %s: the vocabulary is split, so the loss's gradient must be R there, "
                   "not P; redistribute "
                   "the loss to its own layout before what follows",
                   c->op->name, layout->grid->name[axis]);
    return DT_OK;
}

void dti_loss_mean(dt_op_call *c, dt_array *total, int64_t valid)
{
    dt_array_scale(total, valid ? 1 / (double)valid : 0);
    dt_array_cast(&c->out[0], total);
}

static dt_loss_args arguments(dt_op_call *c)
{
    const int last = c->in[0].shape.ndim - 1;
    int64_t hi;
    dt_loss_args a = {.dtype = c->in[0].dtype,
                      .rows = dti_rows(&c->in[0]),
                      .n = c->in[0].shape.dim[last],
                      .ignore = ((const attributes *)c->attr)->ignore,
                      .targets = dt_array_data(&c->in[1]),
                      .z = dt_array_data(&c->in[0])};
    dt_op_range(c, 0, last, &a.lo, &hi);
    return a;
}

static dt_status forward(dt_op_call *c)
{
    const attributes *attr = c->attr;
    const dt_layout *z = c->in_layout[0];
    const int last = z->shape.ndim - 1;
    dt_array *hit, *mine = NULL, *total;
    dt_loss_args a = arguments(c);
    DT_TRY(dti_ids_check(c, 1, z->shape.dim[last], attr->ignore, "the target"));
    const dt_dtype dtype = dti_wide(a.dtype);
    DT_TRY(dt_op_extra(c, 0, dtype, DT_SHAPE(a.rows)));
    DT_TRY(dt_op_extra(c, 1, dtype, DT_SHAPE(a.rows)));
    DT_TRY(dt_op_scratch(c, dtype, DT_SHAPE(a.rows), &hit));
    DT_TRY(dt_op_scratch(c, DT_F64, DT_SCALAR, &total));
    if (z->nsplit[last] > 0)
        DT_TRY(dt_op_scratch(c, dtype, DT_SHAPE(a.rows), &mine));
    DT_TRY(dti_loss_whole_rows(c, z, last, &a,
                               &(dti_loss_arrays){&c->extra[0], &c->extra[1], hit, mine}));
    dt_array_zero(total);
    if (dti_nn(c))
        dti_nn(c)->loss_total(&a, dt_array_data(total));
    dti_loss_mean(c, total, attr->valid);
    return DT_OK;
}

static dt_status backward(dt_op_call *c)
{
    const attributes *attr = c->attr;
    dt_loss_args a = arguments(c);
    DT_TRY(dti_loss_gradient(c, c->in_layout[0], c->in[0].shape.ndim - 1));
    a.max = dt_array_data(&c->extra[0]);
    a.sum = dt_array_data(&c->extra[1]);
    const double divisor = attr->valid ? (double)attr->valid : INFINITY;
    if (dti_nn(c))
        dti_nn(c)->loss_dz(&a, dt_array_data(&c->dout[0]), divisor, c->din[0].dtype,
                           dt_array_data(&c->din[0]));
    return DT_OK;
}

const dt_op dt_op_cross_entropy = {.name = "cross_entropy",
                                   .infer = infer,
                                   .nin = 2,
                                   .nout = 1,
                                   .attr_bytes = sizeof(attributes),
                                   .forward = forward,
                                   .backward = backward,
                                   .no_grad_in = 1u << 1,
                                   .saves = {DT_SAVE_IN(0) | DT_SAVE_IN(1)},
                                   .communicates = true,
                                   .out_dtype = dti_loss_dtype};

dt_tensor *(dt_cross_entropy)(dt_tape *t, dt_tensor *logits, dt_tensor *targets,
                              const dt_cross_entropy_options *options)
{
    const attributes attr = {.ignore = options->ignore_index ? options->ignore_index : -100,
                             .valid = options->valid};
    return dt_op_apply2(t, &dt_op_cross_entropy, &attr, logits, targets);
}
