/* dtensor/op.c - what dtensor/dt_op.h offers to those who write ops: memory and places during a
 * call, and the check of an op of one's own. Read next: dtensor/apply.c. */
#include "dtensor/dtensor_internal.h"
#include "dtensor/tape_internal.h"

#include <string.h>

dt_heap *dt_op_heap(const dt_op_call *c)
{
    return dt_mesh_heap(((const dti_call *)c)->mesh);
}

const int *dt_op_coord(const dt_op_call *c)
{
    return dt_mesh_coord(((const dti_call *)c)->mesh);
}

void dt_op_range(const dt_op_call *c, int i, int d, int64_t *lo_out, int64_t *hi_out)
{
    dt_layout_range(c->in_layout[i], d, dt_op_coord(c), lo_out, hi_out);
}

dt_status dt_op_extra(dt_op_call *c, int k, dt_dtype dtype, dt_shape shape)
{
    dt_array_release(&c->extra[k]);
    DT_TRY(dt_array_create(dt_op_heap(c), dtype, shape, DT_TAG_ACTIVATION, &c->extra[k]));
    return DT_OK;
}

dt_status dt_op_scratch(dt_op_call *c, dt_dtype dtype, dt_shape shape, dt_array **out)
{
    dti_call *mine = (dti_call *)c;
    DT_REQUIRE(mine->nscratch < DTI_MAX_SCRATCH, DT_ERR_STATE, "more than %d scratch arrays",
               DTI_MAX_SCRATCH);
    DT_TRY(dt_array_create(dt_op_heap(c), dtype, shape, DT_TAG_WORKSPACE,
                           &mine->scratch[mine->nscratch]));
    *out = &mine->scratch[mine->nscratch++];
    return DT_OK;
}

void dt_op_share_din(dt_op_call *c, int i, const dt_array *a)
{
    const dt_array shared = dt_array_share(a);
    dt_array_release(&c->din[i]);
    c->din[i] = shared;
}

/* ---- ops of one's own ---- */

/* The rule parses, has the op's operands, and its result has no letter of its own. */
static dt_status check_letters(const dt_op *op)
{
    DT_REQUIRE(op->nout == 1, DT_ERR_ARG, "op %s: letters give one result, it has %d: use infer",
               op->name, op->nout);
    const dt_rule r = {.name = op->name, .nin = op->nin};
    const dt_layout *const left_out[DT_OP_MAX_IN] = {NULL};
    dti_words words;
    DT_TRY(dti_words_parse(&r, left_out, op->rule, &words));
    const size_t operands = (size_t)(strstr(op->rule, "->") - op->rule);
    for (const char *p = words.out; *p; p++)
        DT_REQUIRE(memchr(op->rule, *p, operands), DT_ERR_ARG,
                   "op %s: rule '%s': no operand has the result's '%c'", op->name, op->rule, *p);
    return DT_OK;
}

dt_status dt_op_register(const dt_op *op)
{
    DT_REQUIRE(op->name && *op->name, DT_ERR_ARG, "an op needs a name");
    DT_REQUIRE(op->rule || op->infer, DT_ERR_ARG,
               "op %s needs a rule in letters or an infer function", op->name);
    DT_REQUIRE(op->forward, DT_ERR_ARG, "op %s needs a forward function", op->name);
    DT_REQUIRE(op->nin >= 1 && op->nin <= DT_OP_MAX_IN && op->nout >= 1 &&
                   op->nout <= DT_OP_MAX_OUT,
               DT_ERR_ARG, "op %s has %d operands (1 to %d) and %d results (1 to %d)", op->name,
               op->nin, DT_OP_MAX_IN, op->nout, DT_OP_MAX_OUT);
    DT_REQUIRE(!op->keep || op->nout == 1, DT_ERR_ARG,
               "op %s: keep is for ops with one result, it has %d", op->name, op->nout);
    DT_REQUIRE(!((op->linear | op->no_grad_in) >> op->nin), DT_ERR_ARG,
               "op %s: linear or no_grad_in names an operand that it does not have", op->name);
    for (int i = 0; i < DT_OP_MAX_IN; i++) {
        const uint32_t ins = op->saves[i] & 0xffff, outs = op->saves[i] >> 16;
        DT_REQUIRE(
            !(ins >> op->nin) && !(outs >> op->nout) && (i < op->nin || !op->saves[i]), DT_ERR_ARG,
            "op %s: saves[%d] names an operand or a result that it does not have", op->name, i);
    }
    if (!op->infer)
        DT_TRY(check_letters(op));
    return DT_OK;
}

dt_status dti_result_dtype(const dt_op *op, const void *attr, int nin, dt_tensor *const *in,
                           dt_dtype *out)
{
    int first = -1;
    for (int i = 0; i < nin; i++) {
        if (!in[i])
            continue;
        const dt_dtype dtype = in[i]->local.dtype;
        if (op->no_grad_in >> i & 1)
            DT_REQUIRE(dtype == DT_I32, DT_ERR_ARG, "operand %d is %s; it must be i32", i,
                       dt_dtype_name(dtype));
        else
            DT_REQUIRE(op->any_dtype || dt_dtype_is_float(dtype), DT_ERR_ARG,
                       "operand %d is %s; it must be a float type: cast it", i,
                       dt_dtype_name(dtype));
        if (!dt_dtype_is_float(dtype))
            continue;
        if (first < 0)
            first = i;
        DT_REQUIRE(in[i]->local.dtype == in[first]->local.dtype, DT_ERR_ARG,
                   "operand %d is %s, operand %d is %s; cast one of them", first,
                   dt_dtype_name(in[first]->local.dtype), i, dt_dtype_name(in[i]->local.dtype));
    }
    *out = in[first < 0 ? 0 : first]->local.dtype;
    if (op->out_dtype)
        *out = op->out_dtype(attr, *out);
    return DT_OK;
}
