/* dtensor/apply.c - runs one op: rule, allocation, local function, record.
 *
 * The path of every op call, so it stays short: a look-up of (op, attributes' key, operand
 * layouts) in the mesh's cache
 * gives output layouts; then one allocation and the kernel. Read next: dtensor/backward.c. */
#include "dtensor/dtensor_internal.h"
#include "dtensor/tape_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- rules ---- */

/* The refusal as one message: what is wrong, and what would mend it. */
static dt_status refuse(dt_status st, const dt_op *op, const dt_rule *r, size_t elem_bytes)
{
    char fix[1000] = "";
    dti_reason_text why;
    dti_reason(st, &why);
    const size_t name = strlen(op->name); /* said already by what quotes this */
    const bool named = !strncmp(why.what, op->name, name) && !strncmp(why.what + name, ": ", 2);
    if (st == DT_ERR_PLACEMENT)
        DT_TRY(dti_rule_explain_fix(r, op->infer, op->rule, elem_bytes, fix, sizeof fix));
    return DT_ERROR(st, "%s%s%s", why.what + (named ? name + 2 : 0), *fix ? "\n  to mend: " : "",
                    fix);
}

static dt_status make_rule(const dt_op *op, const void *attr, dt_mesh *mesh, int nin,
                           dt_tensor *const *in, int nout, dti_rule **rule_out)
{
    dt_rule r = {.name = op->name,
                 .attr = attr,
                 .linear = op->linear,
                 .no_grad = op->no_grad_in,
                 .nin = nin,
                 .nout = nout};
    for (int i = 0; i < nin; i++)
        r.in[i] = in[i] ? in[i]->layout : NULL;
    const dt_status st = dti_rule_infer(&r, op->infer, op->rule);
    if (st != DT_OK)
        return refuse(st, op, &r, dt_dtype_size(in[0] ? in[0]->local.dtype : DT_F32));
    dti_rule *rule = calloc(1, sizeof *rule);
    DT_REQUIRE(rule, DT_ERR_NOMEM, "a rule");
    rule->nout = nout;
    memcpy(rule->zeroed, r.zeroed, sizeof rule->zeroed);
    memcpy(rule->summed, r.summed, sizeof rule->summed);
    for (int j = 0; j < nout; j++) {
        const dt_status interned = dt_mesh_layout(mesh, &r.out[j], &rule->out[j]);
        if (interned != DT_OK) {
            free(rule);
            return dt_error_push(interned, __FILE__, __LINE__, __func__);
        }
    }
    *rule_out = rule;
    return DT_OK;
}

static dt_status find_rule(const dt_op *op, const void *attr, dt_mesh *mesh, int nin,
                           dt_tensor *const *in, int nout, const dti_rule **rule_out)
{
    uint64_t key[DT_OP_MAX_IN + 2] = {(uint64_t)(uintptr_t)op, op->key ? op->key(attr) : 0};
    for (int i = 0; i < nin; i++)
        key[2 + i] = in[i] ? (uint64_t)(uintptr_t)in[i]->layout : 0;
    *rule_out = dt_mesh_cache_get(mesh, nin + 2, key);
    if (*rule_out)
        return DT_OK;
    dti_rule *rule = NULL;
    DT_TRY(make_rule(op, attr, mesh, nin, in, nout, &rule));
    const dt_status st = dt_mesh_cache_put(mesh, nin + 2, key, rule);
    if (st != DT_OK) {
        free(rule);
        return dt_error_push(st, __FILE__, __LINE__, __func__);
    }
    *rule_out = rule;
    return DT_OK;
}

/* ---- running ---- */

bool dti_holds_value(const dt_layout *layout, uint8_t axes)
{
    const int *coord = axes ? dt_mesh_coord(dt_layout_mesh(layout)) : NULL;
    for (int axis = 0; axes >> axis; axis++) {
        if ((axes >> axis & 1) && coord[axis] != 0)
            return false;
    }
    return true;
}

bool dti_widens(const dt_op *op, const dt_mesh *mesh, dt_dtype dtype)
{
    const bool half = dtype == DT_BF16 || dtype == DT_F16;
    return half && !op->handles_half && dt_mesh_device(mesh).kind != DT_CUDA;
}

bool dti_is_called(const dt_op *op, const dt_mesh *mesh)
{
    return dt_mesh_device(mesh).kind != DT_META || op->shares ||
           (op->communicates && !dt_mesh_rehearses(mesh));
}

/* The array as op functions shall see it: zero where its term went R -> P and this rank is not the
 * one that keeps it, and
 * f32 instead of 16 bits. *out is a new reference. */
static dt_status operand(dti_call *k, const dt_array *a, bool zero, dt_array *out)
{
    const bool widen = dti_widens(k->c.op, k->mesh, a->dtype);
    if (!zero && !widen) {
        *out = dt_array_share(a);
        return DT_OK;
    }
    DT_TRY(dt_array_create(dt_mesh_heap(k->mesh), widen ? DT_F32 : a->dtype, a->shape,
                           DT_TAG_WORKSPACE, out));
    if (zero)
        dt_array_zero(out);
    else
        dt_array_cast(out, a);
    return DT_OK;
}

static dt_status new_output(dti_call *k, dt_dtype dtype, const dt_layout *layout, dt_array *out)
{
    const bool widen = dti_widens(k->c.op, k->mesh, dtype);
    DT_TRY(dt_array_create(dt_mesh_heap(k->mesh), widen ? DT_F32 : dtype,
                           dt_mesh_local(layout, NULL),
                           widen ? DT_TAG_WORKSPACE : DT_TAG_ACTIVATION, out));
    return DT_OK;
}

void dti_call_release(dti_call *k)
{
    for (int i = 0; i < k->c.nin; i++) {
        dti_release(&k->c.in[i]);
        dti_release(&k->c.din[i]);
    }
    for (int j = 0; j < k->c.nout; j++) {
        dti_release(&k->c.out[j]);
        dti_release(&k->c.dout[j]);
    }
    for (int e = 0; e < DT_OP_MAX_EXTRA; e++)
        dti_release(&k->c.extra[e]);
    for (int i = 0; i < k->nscratch; i++)
        dti_release(&k->scratch[i]);
}

void dti_call_begin(dti_call *k, dt_tape *t, const dt_op *op, const void *attr, int nin, int nout)
{
    k->c.tape = t;
    k->c.op = op;
    k->c.attr = attr;
    k->c.nin = nin;
    k->c.nout = nout;
    k->c.need = 0;
    k->c.flops = k->c.flops_again = 0;
    k->nscratch = 0;
    for (int i = 0; i < nin; i++) {
        k->c.in[i] = (dt_array){0};
        k->c.din[i].storage = NULL;
    }
    for (int j = 0; j < nout; j++) {
        k->c.out[j] = (dt_array){0};
        k->c.dout[j].storage = NULL;
    }
    for (int e = 0; e < DT_OP_MAX_EXTRA; e++)
        k->c.extra[e].storage = NULL;
}

static dt_status load(dti_call *k, const dti_rule *rule, dt_tensor *const *in, dt_dtype dtype)
{
    dt_op_call *c = &k->c;
    for (int i = 0; i < c->nin; i++) {
        c->in_layout[i] = in[i] ? in[i]->layout : NULL;
        if (in[i])
            DT_TRY(operand(k, &in[i]->local, !dti_holds_value(in[i]->layout, rule->zeroed[i]),
                           &c->in[i]));
    }
    for (int j = 0; j < c->nout; j++) {
        c->out_layout[j] = rule->out[j];
        DT_TRY(new_output(k, dtype, rule->out[j], &c->out[j]));
    }
    return DT_OK;
}

/* Hand the outputs to tensors of the tape, in the storage dtype. */
static dt_status store(dti_call *k, dt_dtype dtype, bool requires_grad, bool weight_side,
                       dt_tensor **out)
{
    for (int j = 0; j < k->c.nout; j++) {
        dt_tensor *y = dti_tensor(k->c.tape, k->c.out_layout[j]);
        DT_REQUIRE(y, DT_ERR_NOMEM, "a tensor");
        if (k->c.out[j].dtype == dtype) {
            y->local = k->c.out[j];
            k->c.out[j].storage = NULL;
        } else {
            DT_TRY(dt_array_create(dt_mesh_heap(k->mesh), dtype, k->c.out[j].shape,
                                   DT_TAG_ACTIVATION, &y->local));
            dt_array_cast(&y->local, &k->c.out[j]);
        }
        y->requires_grad = requires_grad;
        y->weight_side = weight_side;
        out[j] = y;
    }
    return DT_OK;
}

/* Which operands and outputs the wanted gradients need. */
static uint32_t to_save(const dt_op *op, int nin, dt_tensor *const *in)
{
    uint32_t mask = 0;
    for (int i = 0; i < nin; i++) {
        if (in[i] && in[i]->requires_grad && !(op->no_grad_in >> i & 1))
            mask |= op->saves[i];
    }
    return mask;
}

static dt_status record(dti_call *k, const dti_rule *rule, dt_tensor *const *in,
                        dt_tensor *const *out)
{
    dt_tape *t = k->c.tape;
    const dt_op *op = k->c.op;
    dti_node *n = dti_append(t, op->name, k->c.nin, in, k->c.nout, out, dti_op_backward);
    DT_REQUIRE(n, DT_ERR_NOMEM, "a node");
    n->op = op;
    n->rule = rule;
    if (op->attr_bytes) {
        void *attr = dti_alloc(t, op->attr_bytes);
        DT_REQUIRE(attr, DT_ERR_NOMEM, "attributes");
        n->attr = memcpy(attr, k->c.attr, op->attr_bytes);
    }
    const uint32_t mask = to_save(op, k->c.nin, in);
    if (mask) {
        n->saved_in = dti_alloc(t, sizeof(dt_array) * (size_t)(k->c.nin + k->c.nout));
        DT_REQUIRE(n->saved_in, DT_ERR_NOMEM, "saved operands");
        n->saved_out = n->saved_in + k->c.nin;
    }
    for (int i = 0; i < k->c.nin; i++) {
        if (mask & DT_SAVE_IN(i) && in[i] && !in[i]->made_by)
            n->saved_in[i] = dt_array_share(&in[i]->local);
    }
    for (int j = 0; j < k->c.nout; j++) {
        if (mask & DT_SAVE_OUT(j))
            n->saved_out[j] = dt_array_share(&out[j]->local);
    }
    for (int e = 0; e < DT_OP_MAX_EXTRA; e++) {
        if (!k->c.extra[e].storage)
            continue;
        n->extra[e] = k->c.extra[e];
        k->c.extra[e].storage = NULL;
    }
    return DT_OK;
}

/* Operands, the local function, its traces. */
static dt_status compute(dti_call *k, const dti_rule *rule, dt_tensor *const *in, dt_dtype dtype,
                         bool records)
{
    const dt_op *op = k->c.op;
    DT_TRY(load(k, rule, in, dtype));
    dt_world *world = dt_mesh_world(k->mesh);
    if (dt_world_explain(world))
        dti_explain(world, &k->c, op->name);
    dt_trace *trace = dt_world_trace(world);
    if (trace)
        dt_trace_record(trace, "op", op->name, DT_TRACE_BEGIN, 0, 0);
    /* A loss that wants gradients may compute them in forward: it looks at c->need. */
    for (int i = 0; i < k->c.nin && records; i++)
        k->c.need |= in[i] && in[i]->requires_grad && !(op->no_grad_in >> i & 1) ? 1u << i : 0;
    if (dti_is_called(op, k->mesh)) {
        DT_TRY(op->forward(&k->c));
        DT_TRY(dt_heap_status(dt_mesh_heap(k->mesh)));
        dti_tally(&k->c, false);
    }
    if (trace)
        dt_trace_record(trace, "op", op->name, DT_TRACE_END, 0, 0);
    return DT_OK;
}

/* What a selective recompute kept of the first run, in place of computing it. */
static void restore(dti_call *k, const dti_rule *rule, dti_kept_result *kept)
{
    k->c.out_layout[0] = rule->out[0];
    k->c.out[0] = kept->out;
    memcpy(k->c.extra, kept->extra, sizeof k->c.extra);
    *kept = (dti_kept_result){0};
}

static dt_status run(dti_call *k, const dti_rule *rule, dt_tensor *const *in, dt_tensor **out)
{
    const dt_op *op = k->c.op;
    dt_tape *t = k->c.tape;
    const bool grad = op->backward && dti_wants_grad(t, k->c.nin, in, op->no_grad_in);
    const bool records = grad && dti_records(t);
    const bool weight_side = grad && k->c.nin == 1 && in[0]->weight_side;
    dt_dtype dtype = DT_F32;
    dti_kept_result *kept = NULL;
    DT_TRY(dti_result_dtype(op, k->c.attr, k->c.nin, in, &dtype));
    k->c.dtype = dtype;
    if (op->keep)
        DT_TRY(dti_take(t, op->name, rule->out[0], &kept));
    if (kept)
        restore(k, rule, kept);
    else
        DT_TRY(compute(k, rule, in, dtype, records));
    DT_TRY(store(k, dtype, grad, weight_side, out));
    if (op->keep)
        DT_TRY(dti_keep(t, op->name, rule->out[0], &out[0]->local, k->c.extra));
    if (records)
        DT_TRY(record(k, rule, in, out));
    return DT_OK;
}

static dt_mesh *mesh_of(int nin, dt_tensor *const *in)
{
    for (int i = 0; i < nin; i++) {
        if (in[i])
            return dt_layout_mesh(in[i]->layout);
    }
    return NULL;
}

void dti_run(dt_tape *t, const dt_op *op, const void *attr, const dti_rule *rule, int nin,
             dt_tensor *const *in, dt_tensor **out)
{
    dti_call k;
    dti_call_begin(&k, t, op, attr, nin, rule->nout);
    k.c.path = dt_tape_path(t);
    k.c.where = t->where;
    k.mesh = mesh_of(nin, in);
    const dt_status st = run(&k, rule, in, out);
    dti_call_release(&k);
    if (st != DT_OK) {
        for (int j = 0; j < rule->nout; j++)
            out[j] = dti_fail(t, st, op->name, nin, in);
    }
}

/* The first operand that is NULL and must not be; -1: none. */
static int missing(const dt_op *op, int nin, dt_tensor *const *in)
{
    for (int i = 0; i < nin; i++) {
        if (!in[i] && !(op->optional >> i & 1))
            return i;
    }
    return nin > 0 ? -1 : 0;
}

void dt_op_apply_n(dt_tape *t, const dt_op *op, const void *attr, int nin, dt_tensor *const *in,
                   int nout, dt_tensor **out)
{
    const dti_rule *rule = NULL;
    dt_status st = DT_OK;
    if (!dti_usable(t, op->name, nin, in))
        st = DT_ERR_STATE; /* recorded by dti_usable */
    else if (nin > DT_OP_MAX_IN || nout > DT_OP_MAX_OUT)
        st = DT_ERROR(DT_ERR_ARG, "%d operands (1 to %d) and %d results (1 to %d)", nin,
                      DT_OP_MAX_IN, nout, DT_OP_MAX_OUT);
    else if (missing(op, nin, in) >= 0)
        st = DT_ERROR(DT_ERR_ARG, "operand %d is NULL; it may not be left out",
                      missing(op, nin, in));
    else
        st = find_rule(op, attr, mesh_of(nin, in), nin, in, nout, &rule);
    if (st == DT_OK) {
        dti_run(t, op, attr, rule, nin, in, out);
        return;
    }
    for (int j = 0; j < nout; j++)
        out[j] = dti_fail(t, st, op->name, nin, in);
}

dt_tensor *dt_op_apply(dt_tape *t, const dt_op *op, const void *attr, int nin, dt_tensor *const *in)
{
    dt_tensor *out = NULL;
    dt_op_apply_n(t, op, attr, nin, in, 1, &out);
    return out;
}

dt_tensor *dt_op_apply1(dt_tape *t, const dt_op *op, const void *attr, dt_tensor *x)
{
    dt_tensor *out = NULL;
    dt_op_apply_n(t, op, attr, 1, &x, 1, &out);
    return out;
}

dt_tensor *dt_op_apply2(dt_tape *t, const dt_op *op, const void *attr, dt_tensor *x, dt_tensor *y)
{
    dt_tensor *out = NULL;
    dt_tensor *const in[2] = {x, y};
    dt_op_apply_n(t, op, attr, 2, in, 1, &out);
    return out;
}
