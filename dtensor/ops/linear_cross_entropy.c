/* dtensor/ops/linear_cross_entropy.c - cross_entropy(x w^T) without ever holding all logits.
 *
 *     x [..., k], w [V, k]:   per chunk of tokens   z = x w^T       the loss as in cross_entropy.c
 *                             and, where wanted     dx = dz w       dw += dz^T x
 *
 * The gradients come in forward, while the chunk's logits exist, for a loss whose gradient is 1;
 * backward scales them. What stays is dx and dw, which are there in the end anyway; at most
 * chunk * V logits live at once.
 * Rule: linear "...k,nk->...n" without a split k, then cross-entropy: tokens sharded: loss P, dw
 * P; w S(0): loss R, dx P (each rank has its columns' share), and the loss's gradient must be R
 * there.
 * Cost: w S(0): 3 all-reduces of one number a token for every chunk; ranks of these axes hold
 * the same tokens, hence the same chunks.
 * Sources: Megatron-LM (2019); Wijmans et al. 2024, "Cut your losses in large-vocabulary
 * language models". */
#include "array/dt_matmul.h"
#include "dtensor/ops/nn_internal.h"

enum { X, W, TARGETS, NIN };

typedef struct attributes {
    int64_t ignore, valid, chunk;
} attributes;

static dt_status infer(dt_rule *r)
{
    dt_rule rule = *r;
    const dt_layout *x = r->in[X], *w = r->in[W];
    rule.nin = 2;
    DT_TRY(dt_rule_letters(&rule, "...K,nK->...n", NULL));
    const int last = x->shape.ndim - 1;
    dti_follow f = {.i = TARGETS, .lead = X, .ndims = last, .what = "targets", .leader = "x"};
    dt_layout out = dt_layout_replicated(x->grid, DT_SCALAR);
    for (int d = 0; d < last; d++) {
        f.dims[d] = d;
        for (int i = 0; i < x->nsplit[d]; i++)
            out.partial |= (uint8_t)(1u << x->split[d][i]);
    }
    DT_TRY(dti_follows(r, &f));
    for (int i = 0; i < w->nsplit[0]; i++)
        r->summed[X] |= (uint8_t)(1u << w->split[0][i]);
    r->out[0] = out;
    return DT_OK;
}

/* One call: `work` arrays are [chunk, n] and [chunk]. */
typedef struct pass {
    dt_op_call *c;
    dt_loss_args a; /* of the chunk at hand */
    int64_t k, chunk, first; /* first: row of the chunk at hand */
    double factor;
    dt_array *logits, *work[3];
    double total;
} pass;

/* c = a b: the logits; rows of dx, at the chunk's place; or a term of dw, added from the second on.
 */
static dt_status product(const pass *p, bool trans_a, const void *a, const void *b, bool trans_b,
                         dt_array *c)
{
    const int64_t m = trans_a ? p->a.n : p->a.rows, n = trans_b ? p->a.n : p->k;
    const int64_t inner = trans_a ? p->a.rows : trans_b ? p->k : p->a.n;
    const bool by_rows = !trans_a && !trans_b;
    const int64_t at = by_rows ? p->first * n * (int64_t)dt_dtype_size(c->dtype) : 0;
    char *out = dt_array_data(c);
    return dt_matmul_run(&(dt_matmul_args){.dtype = p->a.dtype,
                                           .dtype_c = p->a.dtype,
                                           .trans_a = trans_a,
                                           .trans_b = trans_b,
                                           .batch = 1,
                                           .m = m,
                                           .n = n,
                                           .k = inner,
                                           .a = a,
                                           .b = b,
                                           .c = out ? out + at : NULL,
                                           .alpha = 1,
                                           .beta = trans_a && p->first > 0 ? 1 : 0});
}

/* The loss of the chunk's logits, its arrays cut to the rows at hand. */
static dt_status chunk_loss(pass *p)
{
    dt_array rows[3];
    for (int i = 0; i < 3; i++)
        rows[i] = dt_array_rows(p->work[i], 0, p->a.rows);
    const dt_status st = dti_loss_rows(p->c, p->c->in_layout[W], 0, &p->a,
                                       &(dti_loss_arrays){&rows[0], &rows[1], &rows[2]});
    for (int i = 0; i < 3; i++)
        dt_array_release(&rows[i]);
    DT_TRY(st);
    p->total += dti_nn(p->c)->loss_total(&p->a);
    return DT_OK;
}

static dt_status one_chunk(pass *p, int64_t first)
{
    dt_op_call *c = p->c;
    const int64_t tokens = dti_rows(&c->in[X]);
    const char *x = dt_array_data(&c->in[X]);
    const void *w = dt_array_data(&c->in[W]);
    const int32_t *targets = dt_array_data(&c->in[TARGETS]);
    x = x ? x + first * p->k * (int64_t)dt_dtype_size(p->a.dtype) : NULL;
    p->a.rows = tokens - first < p->chunk ? tokens - first : p->chunk;
    p->a.targets = targets + first;
    p->first = first;
    DT_TRY(product(p, false, x, w, true, p->logits));
    DT_TRY(chunk_loss(p));
    if (!(c->need & (1u << X | 1u << W)))
        return DT_OK;
    void *z = dt_array_data(p->logits);
    dti_nn(c)->loss_dz(&p->a, p->factor, z);
    if (c->need >> X & 1)
        DT_TRY(product(p, false, z, w, false, &c->extra[X]));
    if (c->need >> W & 1)
        DT_TRY(product(p, true, z, x, false, &c->extra[W]));
    return DT_OK;
}

static dt_status forward(dt_op_call *c)
{
    const attributes *attr = c->attr;
    const dt_array *x = &c->in[X], *w = &c->in[W];
    const int64_t tokens = dti_rows(x);
    int64_t hi;
    pass p = {.c = c,
              .k = w->shape.dim[1],
              .chunk = attr->chunk < tokens ? attr->chunk : tokens,
              .factor = attr->valid ? 1 / (double)attr->valid : 0,
              .a = {.dtype = x->dtype, .n = w->shape.dim[0], .ignore = attr->ignore}};
    DT_TRY(dti_ids_check(c, TARGETS, c->in_layout[W]->shape.dim[0], attr->ignore, "the target"));
    dt_op_range(c, W, 0, &p.a.lo, &hi);
    DT_TRY(dt_op_scratch(c, x->dtype, DT_SHAPE(p.chunk, p.a.n), &p.logits));
    p.a.z = dt_array_data(p.logits);
    for (int i = 0; i < 3; i++)
        DT_TRY(dt_op_scratch(c, x->dtype, DT_SHAPE(p.chunk), &p.work[i]));
    for (int i = X; i <= W; i++) {
        if (!(c->need >> i & 1))
            continue;
        DT_TRY(dt_op_extra(c, i, x->dtype, c->in[i].shape));
        if (tokens == 0)
            dt_array_zero(&c->extra[i]);
    }
    for (int64_t first = 0; first < tokens; first += p.chunk)
        DT_TRY(one_chunk(&p, first));
    dt_array_fill(&c->out[0], p.total * p.factor);
    return DT_OK;
}

static dt_status backward(dt_op_call *c)
{
    double dy;
    DT_TRY(dti_loss_gradient(c, c->in_layout[W], 0, &dy));
    for (int i = X; i <= W; i++) {
        if (!(c->need >> i & 1))
            continue;
        dt_array_copy(&c->din[i], &c->extra[i]);
        dt_array_scale(&c->din[i], dy);
    }
    return DT_OK;
}

const dt_op dt_op_linear_cross_entropy = {.name = "linear_cross_entropy",
                                          .infer = infer,
                                          .nin = NIN,
                                          .nout = 1,
                                          .attr_bytes = sizeof(attributes),
                                          .forward = forward,
                                          .backward = backward,
                                          .no_grad_in = 1u << TARGETS,
                                          .out_dtype = dti_loss_dtype};

dt_tensor *(dt_linear_cross_entropy)(dt_tape *t, dt_tensor *x, dt_tensor *w, dt_tensor *targets,
                                     const dt_cross_entropy_options *options)
{
    const attributes attr = {.ignore = options->ignore_index ? options->ignore_index : -100,
                             .valid = options->valid,
                             .chunk = options->chunk ? options->chunk : 1024};
    return dt_op_apply(t, &dt_op_linear_cross_entropy, &attr, NIN, (dt_tensor *[]){x, w, targets});
}
