/* dtensor/ops/rope.c - rotary positions, the halves of the head dim rotated against each other.
 *
 *     y[i]       = x[i] cos a - x[i + D/2] sin a        a = position * theta^(-2i/D), i < D/2
 *     y[i + D/2] = x[i + D/2] cos a + x[i] sin a        dx: the same by -a
 * With scaled frequencies (array/dt_kernels_nn.h) a is position * f_i.
 *
 * Rule: "bhsD->bhsD", or "bshD->bshD" in the other order, linear, so P passes. Positions are placed
 * as the dims of x that they meet, R elsewhere; left out, they are the global indices along s, so a
 * sharded sequence means the same.
 * Source: Su et al. 2021, "RoFormer". */
#include "dtensor/ops/nn_internal.h"

static bool is_bshd(const void *attr)
{
    return attr && ((const dt_rope_options *)attr)->bshd;
}

static uint64_t key(const void *attr)
{
    return is_bshd(attr);
}

static dt_status infer(dt_rule *r)
{
    dt_rule rule = *r;
    const bool bshd = is_bshd(r->attr);
    rule.nin = 1;
    DT_TRY(dt_rule_letters(&rule, bshd ? "bshD->bshD" : "bhsD->bhsD", NULL));
    DT_REQUIRE(r->in[0]->shape.dim[3] % 2 == 0, DT_ERR_SHAPE, "%s: head dim %lld must be even",
               r->name, (long long)r->in[0]->shape.dim[3]);
    DT_TRY(dti_positions_follow(r, 1, 0, bshd ? 1 : 2, "positions"));
    r->out[0] = rule.out[0];
    return DT_OK;
}

static dt_status rotate(dt_op_call *c, bool inverse, const dt_array *x, dt_array *y)
{
    const dt_shape s = x->shape;
    const int seq = is_bshd(c->attr) ? 1 : 2;
    dt_rope_args a = {.dtype = x->dtype,
                      .batch = s.dim[0],
                      .heads = s.dim[3 - seq],
                      .seq = s.dim[seq],
                      .dim = s.dim[3],
                      .batched = c->in_layout[1] && c->in_layout[1]->shape.ndim == 2,
                      .rope = *(const dt_rope_options *)c->attr};
    int64_t hi;
    dt_array *table;
    dt_op_range(c, 0, seq, &a.first, &hi);
    if (c->in_layout[1])
        a.positions = dt_array_data(&c->in[1]);
    if (dti_nn(c)->rope_table) {
        DT_TRY(dt_op_scratch(c, dti_wide(x->dtype), DT_SHAPE(a.batched ? a.batch : 1, a.seq, a.dim),
                             &table));
        a.table = dt_array_data(table);
        dti_nn(c)->rope_table(&a);
    }
    dti_nn(c)->rope(&a, inverse, dt_array_data(x), dt_array_data(y));
    return DT_OK;
}

static dt_status forward(dt_op_call *c)
{
    return rotate(c, false, &c->in[0], &c->out[0]);
}

static dt_status backward(dt_op_call *c)
{
    return rotate(c, true, &c->dout[0], &c->din[0]);
}

const dt_op dt_op_rope = {.name = "rope",
                          .infer = infer,
                          .key = key,
                          .linear = 1u << 0,
                          .nin = 2,
                          .nout = 1,
                          .attr_bytes = sizeof(dt_rope_options),
                          .optional = 1u << 1,
                          .forward = forward,
                          .backward = backward,
                          .no_grad_in = 1u << 1,
                          .saves = {DT_SAVE_IN(1)}};

dt_tensor *(dt_rope)(dt_tape *t, dt_tensor *x, dt_tensor *positions, const dt_rope_options *options)
{
    return dt_op_apply(t, &dt_op_rope, options, 2, (dt_tensor *[]){x, positions});
}
