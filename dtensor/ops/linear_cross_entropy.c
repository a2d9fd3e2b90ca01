/* dtensor/ops/linear_cross_entropy.c - cross_entropy(x w^T) without ever holding all logits.
 *
 *     x [..., k], w [V, k]:   per chunk of tokens   z = x w^T       the loss as in cross_entropy.c
 *                             and, where wanted     dx = dz w       dw += dz^T x
 *
 * The gradients come in forward, while the chunk's logits exist, for a loss whose gradient is 1;
 * backward scales them. What stays is dx and dw, which are there in the end anyway; at most
 * chunk * V logits live at once. Of bf16 and f16 operands the logits, losses and gradients are f32;
 * for its products dz is rounded, in f16 before 1 / valid makes it too small for that.
 * Rule: linear "...k,nk->...n" without a split k, then cross-entropy: tokens sharded: loss P, dw
 * P; w S(0): loss R, dx P (each rank has its columns' share), and the loss's gradient must be R
 * there.
 * Cost: w S(0): 3 all-reduces of one number a token for every chunk; ranks of these axes hold
 * the same tokens, hence the same chunks.
 * Sources: Megatron-LM (2019); Wijmans et al. 2024, "Cut your losses in large-vocabulary
 * language models". */
#include "array/dt_matmul.h"
#include "dtensor/ops/nn_internal.h"

#include <math.h>

enum { X, W, TARGETS, NIN };

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

/* One call. */
typedef struct pass {
    dt_op_call *c;
    dt_loss_args a;          /* of the chunk at hand */
    dt_dtype dtype;          /* of x and w */
    int64_t k, chunk, first; /* first: row of the chunk at hand */
    dt_array *logits, *dz; /* [chunk, n]; the same in dtype, logits itself, or NULL: no gradient */
    dt_array *work;        /* [nwork chunk] */
    int nwork;
    dt_array *total; /* f64 */
} pass;

static double mean_factor(const dt_op_call *c)
{
    const dti_head_attributes *attr = c->attr;
    return attr->valid ? 1 / (double)attr->valid : 0;
}

static bool is_half(const dt_array *x)
{
    return x->dtype == DT_BF16 || x->dtype == DT_F16;
}

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
    if (dt_array_is_meta(c))
        return DT_OK;
    return dt_op_multiply(p->c, &(dt_matmul_args){.dtype = p->dtype,
                                                  .dtype_c = c->dtype,
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
    dt_array rows[4];
    for (int i = 0; i < p->nwork; i++)
        rows[i] = dt_array_rows(p->work, i * p->chunk, i * p->chunk + p->a.rows);
    const dt_status st =
        dti_loss_whole_rows(p->c, p->c->in_layout[W], 0, &p->a,
                            &(dti_loss_arrays){&rows[0], &rows[1], &rows[2], &rows[3]});
    for (int i = 0; i < p->nwork; i++)
        dt_array_release(&rows[i]);
    DT_TRY(st);
    if (dti_nn(p->c))
        dti_nn(p->c)->loss_total(&p->a, dt_array_data(p->total));
    return DT_OK;
}

static dt_status one_chunk(pass *p, int64_t first)
{
    dt_op_call *c = p->c;
    const int64_t tokens = dti_rows(&c->in[X]);
    const char *x = dt_array_data(&c->in[X]);
    const void *w = dt_array_data(&c->in[W]);
    const int32_t *targets = dt_array_data(&c->in[TARGETS]);
    x = x ? x + first * p->k * (int64_t)dt_dtype_size(p->dtype) : NULL;
    p->a.rows = tokens - first < p->chunk ? tokens - first : p->chunk;
    p->a.targets = targets ? targets + first : NULL;
    p->first = first;
    DT_TRY(product(p, false, x, w, true, p->logits));
    DT_TRY(chunk_loss(p));
    if (!p->dz)
        return DT_OK;
    if (dti_nn(c) && !p->a.dz)
        dti_nn(c)->loss_dz(&p->a, NULL, p->a.divisor, p->dtype, dt_array_data(p->dz));
    const void *z = dt_array_data(p->dz);
    if (c->need >> X & 1)
        DT_TRY(product(p, false, z, w, false, &c->extra[X]));
    if (c->need >> W & 1)
        DT_TRY(product(p, true, z, x, false, &c->extra[W]));
    return DT_OK;
}

static dt_status forward(dt_op_call *c)
{
    const dti_head_attributes *attr = c->attr;
    const dt_array *x = &c->in[X], *w = &c->in[W];
    const int64_t tokens = dti_rows(x);
    int64_t hi;
    pass p = {.c = c,
              .k = w->shape.dim[1],
              .chunk = attr->chunk < tokens ? attr->chunk : tokens,
              .dtype = x->dtype,
              .nwork = c->in_layout[W]->nsplit[0] > 0 ? 4 : 3,
              .a = {.dtype = is_half(x) ? DT_F32 : x->dtype,
                    .n = w->shape.dim[0],
                    .ignore = attr->ignore,
                    .dz_dtype = x->dtype, /* backward does the rest of the division */
                    .divisor = attr->f16     ? 1
                               : attr->valid ? (double)attr->valid
                                             : INFINITY}};
    DT_TRY(dti_ids_check(c, TARGETS, c->in_layout[W]->shape.dim[0], attr->ignore, "the target"));
    dt_op_range(c, W, 0, &p.a.lo, &hi);
    DT_TRY(dt_op_scratch(c, p.a.dtype, DT_SHAPE(p.chunk, p.a.n), &p.logits));
    DT_TRY(dt_op_scratch(c, p.a.dtype, DT_SHAPE(p.nwork * p.chunk), &p.work));
    DT_TRY(dt_op_scratch(c, DT_F64, DT_SCALAR, &p.total));
    dt_array_zero(p.total);
    p.a.z = dt_array_data(p.logits);
    if (c->need & (1u << X | 1u << W))
        p.dz = p.logits;
    if (p.dz && is_half(x))
        DT_TRY(dt_op_scratch(c, x->dtype, DT_SHAPE(p.chunk, p.a.n), &p.dz));
    if (p.dz && c->in_layout[W]->nsplit[0] == 0)
        p.a.dz = dt_array_data(p.dz); /* at once: no rank has more columns */
    for (int i = X; i <= W; i++) {
        if (!(c->need >> i & 1))
            continue;
        DT_TRY(dt_op_extra(c, i, p.a.dtype, c->in[i].shape));
        if (tokens == 0)
            dt_array_zero(&c->extra[i]);
    }
    for (int64_t first = 0; first < tokens; first += p.chunk)
        DT_TRY(one_chunk(&p, first));
    dti_loss_mean(c, p.total, attr->valid);
    return DT_OK;
}

/* Looking is free on the cpu alone. */
static bool is_known_one(const dt_array *a)
{
    float value = 0;
    return a->dtype == DT_F32 && dt_heap_device(a->storage->heap).kind == DT_CPU &&
           dt_array_read(a, &value, 1) == DT_OK && value == 1;
}

static dt_status backward(dt_op_call *c)
{
    const dt_array *dy = &c->dout[0];
    DT_TRY(dti_loss_gradient(c, c->in_layout[W], 0));
    for (int i = X; i <= W; i++) {
        if (!(c->need >> i & 1))
            continue;
        dt_array *x = &c->extra[i]; /* nobody reads it again */
        if (dti_math(c) && !is_known_one(dy))
            dti_math(c)->mul(x->dtype, dt_array_count(x), 1, dt_array_data(x), dt_array_data(dy),
                             dt_array_data(x));
        if (((const dti_head_attributes *)c->attr)->f16)
            dt_array_scale(x, mean_factor(c));
        if (is_half(&c->din[i])) {
            dt_array_cast(&c->din[i], &c->extra[i]);
            continue;
        }
        dt_op_share_din(c, i, &c->extra[i]);
        dt_storage_set_tag(c->extra[i].storage, DT_TAG_GRADIENT);
        dt_array_release(&c->extra[i]);
    }
    return DT_OK;
}

const dt_op dt_op_linear_cross_entropy = {.name = "linear_cross_entropy",
                                          .infer = infer,
                                          .nin = NIN,
                                          .nout = 1,
                                          .attr_bytes = sizeof(dti_head_attributes),
                                          .forward = forward,
                                          .backward = backward,
                                          .no_grad_in = 1u << TARGETS,
                                          .wide_grad = 1u << W,
                                          .handles_half = true,
                                          .communicates = true,
                                          .out_dtype = dti_loss_dtype};

dt_tensor *(dt_linear_cross_entropy)(dt_tape *t, dt_tensor *x, dt_tensor *w, dt_tensor *targets,
                                     const dt_cross_entropy_options *options)
{
    const dti_head_attributes attr = {
        .ignore = options->ignore_index ? options->ignore_index : -100,
        .valid = options->valid,
        .f16 = dt_tensor_dtype(x) == DT_F16,
        .chunk = options->chunk ? options->chunk : 1024};
    return dt_op_apply(t, &dt_op_linear_cross_entropy, &attr, NIN, (dt_tensor *[]){x, w, targets});
}
