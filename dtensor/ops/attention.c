/* dtensor/ops/attention.c - grouped-query attention. Query head h reads key head h / group,
 * group = H / G.
 *
 *     s = scale q k^T, -inf where hidden;  p = softmax(s) over keys;  out = p v, or 0 if all hidden
 *     dv = p^T dout;  dp = dout v^T;  ds = p (dp - sum(dout out)) scale;  dq = ds k;  dk = ds^T q
 *
 * Computed in blocks (array/kernels_attention.c); saved are q, k, v, out and the log of each
 * row's sum of exponentials.
 * Rule, q_BHSD, k_BGTD, v_BGTE -> [B, H, S, E], or all in the order B, S, H, D, per axis; linear
 * in v:
 *     A   heads of q, k, v sharded     kv's axes are the outermost of q's, in the same order,
 *                                      and on every rank q's bounds under them are group * kv's
 *     B   heads of q sharded, k, v R   by global head; dk, dv are P
 *     C   S of q sharded, k, v R       by positions; dk, dv are P
 *         batch of all, or E of v alone, sharded
 * Positions and documents follow dims B and S of q (k's: of k), R elsewhere.
 * Sources: Ainslie et al. 2023, "GQA"; Dao et al. 2022, "FlashAttention". */
#include "dtensor/ops/nn_internal.h"

#include <math.h>
#include <string.h>

enum { Q, K, V, Q_POSITIONS, K_POSITIONS, Q_DOCUMENTS, K_DOCUMENTS, NIN };

typedef struct attributes {
    double scale;
    bool causal, bshd;
} attributes;

static bool is_bshd(const void *attr)
{
    return attr && ((const attributes *)attr)->bshd;
}

/* The dims of heads and of tokens. */
static int heads_dim(const void *attr)
{
    return is_bshd(attr) ? 2 : 1;
}

static int tokens_dim(const void *attr)
{
    return is_bshd(attr) ? 1 : 2;
}

static uint64_t key(const void *attr)
{
    return is_bshd(attr);
}

/* ---- the rule ---- */

static bool splits(const dt_layout *x, int axis, int dim)
{
    const dt_placement at = dt_layout_at(x, axis);
    return at.kind == DT_SHARD && at.dim == dim;
}

/* Row A, or where kv is not split on heads, rows B and C. */
static const char *spec_of_axis(const dt_rule *r, int axis)
{
    const bool heads = splits(r->in[K], axis, heads_dim(r->attr));
    if (is_bshd(r->attr))
        return heads ? "bshD,bThD,bThe->bshe" : "bshD,bTGD,bTGe->bshe";
    return heads ? "bhsD,bhTD,bhTe->bhse" : "bhsD,bGTD,bGTe->bhse";
}

/* Do q's bounds in dim h, split by kv's axes alone, equal group times kv's on every rank of these
 * axes? */
static bool bounds_agree(const dt_layout *q, const dt_layout *k, int h, int64_t group)
{
    dt_layout outer = *q;
    const int n = k->nsplit[h];
    memset(outer.split[h] + n, 0, sizeof outer.split[h] - (size_t)n);
    outer.nsplit[h] = (uint8_t)n;
    int coord[DT_MAX_AXES] = {0}, i = 0;
    while (i < n) {
        int64_t q_lo, q_hi, k_lo, k_hi;
        dt_layout_range(&outer, h, coord, &q_lo, &q_hi);
        dt_layout_range(k, h, coord, &k_lo, &k_hi);
        if (q_lo != group * k_lo || q_hi != group * k_hi)
            return false;
        for (i = 0; i < n; i++) { /* the next corner */
            const int axis = k->split[h][i];
            if (++coord[axis] < k->grid->size[axis])
                break;
            coord[axis] = 0;
        }
    }
    return true;
}

/* Row A, where inference by letters does not see it: the heads of q, k and v. */
static dt_status heads_agree(const dt_rule *r)
{
    const dt_layout *q = r->in[Q], *k = r->in[K], *v = r->in[V];
    char a[DT_LAYOUT_TEXT], b[DT_LAYOUT_TEXT];
    const int h = heads_dim(r->attr);
    const int64_t heads = q->shape.dim[h], kv_heads = k->shape.dim[h];
    DT_REQUIRE(
        kv_heads > 0 && heads % kv_heads == 0 && v->shape.dim[h] == kv_heads, DT_ERR_SHAPE,
        "%s: %lld heads of q, %lld of k, %lld of v: k and v must have as many, and q a multiple",
        r->name, (long long)heads, (long long)kv_heads, (long long)v->shape.dim[h]);
    for (int axis = 0; axis < k->grid->naxes; axis++) {
        const char *name = k->grid->name[axis];
        DT_REQUIRE(splits(k, axis, h) == splits(v, axis, h), DT_ERR_PLACEMENT,
                   "%s: on %s: the heads of k %s and v %s must be split alike", r->name, name,
                   dt_layout_print(k, a, sizeof a), dt_layout_print(v, b, sizeof b));
    }
    const int n = k->nsplit[h];
    if (n == 0)
        return DT_OK;
    const char *first = k->grid->name[k->split[h][0]];
    DT_REQUIRE(!memcmp(k->split[h], v->split[h], (size_t)n), DT_ERR_PLACEMENT,
               "%s: on %s: the heads of k %s and v %s must be split in one order", r->name, first,
               dt_layout_print(k, a, sizeof a), dt_layout_print(v, b, sizeof b));
    DT_REQUIRE(q->nsplit[h] >= n && !memcmp(q->split[h], k->split[h], (size_t)n), DT_ERR_PLACEMENT,
               "%s: on %s: the axes that split the heads of k %s must be the outermost of q's %s",
               r->name, first, dt_layout_print(k, a, sizeof a), dt_layout_print(q, b, sizeof b));
    DT_REQUIRE(bounds_agree(q, k, h, heads / kv_heads), DT_ERR_PLACEMENT,
               "%s: on %s: %lld heads of k %s do not split as %lld of q %s do; make k and v R",
               r->name, first, (long long)kv_heads, dt_layout_print(k, a, sizeof a),
               (long long)heads, dt_layout_print(q, b, sizeof b));
    return DT_OK;
}

static dt_status infer(dt_rule *r)
{
    dt_rule rule = *r;
    dt_layout seen[2] = {*r->in[K],
                         *r->in[V]}; /* with q's head count, which their letter shall have */
    DT_REQUIRE(r->in[Q]->shape.ndim == 4 && seen[0].shape.ndim == 4 && seen[1].shape.ndim == 4,
               DT_ERR_SHAPE, "%s: q, k and v must have 4 dims", r->name);
    DT_REQUIRE(!r->in[Q_DOCUMENTS] == !r->in[K_DOCUMENTS], DT_ERR_ARG,
               "%s: documents of queries and of keys come together", r->name);
    DT_TRY(heads_agree(r));
    const int h = heads_dim(r->attr), s = tokens_dim(r->attr);
    seen[0].shape.dim[h] = seen[1].shape.dim[h] = r->in[Q]->shape.dim[h];
    rule.nin = 3;
    DT_TRY(dt_rule_letters(&rule, h == 2 ? "bshD,bTGD,bTGe->bshe" : "bhsD,bGTD,bGTe->bhse",
                           &(dt_letters){.loose = "hG",
                                         .spec_of_axis = spec_of_axis,
                                         .seen = {NULL, &seen[0], &seen[1]}}));
    DT_TRY(dti_positions_follow(r, Q_POSITIONS, Q, s, "positions of queries"));
    DT_TRY(dti_positions_follow(r, K_POSITIONS, K, s, "positions of keys"));
    DT_TRY(dti_positions_follow(r, Q_DOCUMENTS, Q, s, "documents of queries"));
    DT_TRY(dti_positions_follow(r, K_DOCUMENTS, K, s, "documents of keys"));
    r->out[0] = rule.out[0];
    return DT_OK;
}

/* ---- the functions ---- */

static bool batched(const dt_op_call *c, int i)
{
    return c->in_layout[i] && c->in_layout[i]->shape.ndim == 2;
}

static dt_status arguments(dt_op_call *c, dt_attention_args *out)
{
    const dt_array *q = &c->in[Q], *k = &c->in[K], *v = &c->in[V];
    const attributes *attr = c->attr;
    const int h = heads_dim(attr), s = tokens_dim(attr);
    dt_attention_args a = {.dtype = q->dtype,
                           .bshd = attr->bshd,
                           .batch = q->shape.dim[0],
                           .heads = q->shape.dim[h],
                           .kv_heads = k->shape.dim[h],
                           .queries = q->shape.dim[s],
                           .keys = k->shape.dim[s],
                           .dim = q->shape.dim[3],
                           .vdim = v->shape.dim[3],
                           .group = c->in_layout[Q]->shape.dim[h] / c->in_layout[K]->shape.dim[h],
                           .scale = attr->scale,
                           .causal = attr->causal,
                           .q_pos_batched = batched(c, Q_POSITIONS),
                           .k_pos_batched = batched(c, K_POSITIONS),
                           .q_doc_batched = batched(c, Q_DOCUMENTS),
                           .k_doc_batched = batched(c, K_DOCUMENTS),
                           .q = dt_array_data(q),
                           .k = dt_array_data(k),
                           .v = dt_array_data(v),
                           .out = dt_array_data(&c->out[0]),
                           .lse = dt_array_data(&c->extra[0])};
    int64_t hi;
    dt_op_range(c, Q, h, &a.head_lo, &hi);
    dt_op_range(c, K, h, &a.kv_lo, &hi);
    dt_op_range(c, Q, s, &a.q_first, &hi);
    dt_op_range(c, K, s, &a.k_first, &hi);
    if (c->in_layout[Q_POSITIONS])
        a.q_pos = dt_array_data(&c->in[Q_POSITIONS]);
    if (c->in_layout[K_POSITIONS])
        a.k_pos = dt_array_data(&c->in[K_POSITIONS]);
    if (c->in_layout[Q_DOCUMENTS]) {
        a.q_doc = dt_array_data(&c->in[Q_DOCUMENTS]);
        a.k_doc = dt_array_data(&c->in[K_DOCUMENTS]);
    }
    *out = a;
    return DT_OK;
}

/* Of a query and a key. */
static double pairs(const dt_attention_args *a)
{
    return (double)a->batch * (double)a->heads * (double)a->queries * (double)a->keys;
}

static dt_status forward(dt_op_call *c)
{
    const dt_shape s = c->in[Q].shape;
    dt_attention_args a;
    DT_TRY(dt_op_extra(c, 0, dti_wide(c->in[Q].dtype),
                       DT_SHAPE(s.dim[0], s.dim[heads_dim(c->attr)], s.dim[tokens_dim(c->attr)])));
    DT_TRY(arguments(c, &a));
    dti_nn(c)->attention(&a);
    c->flops = 2 * pairs(&a) * (double)(a.dim + a.vdim); /* q k^T, p v */
    return DT_OK;
}

static void *wanted(dt_op_call *c, int i)
{
    return c->need >> i & 1 ? dt_array_data(&c->din[i]) : NULL;
}

static dt_status backward(dt_op_call *c)
{
    dt_attention_args a;
    DT_TRY(arguments(c, &a));
    a.dout = dt_array_data(&c->dout[0]);
    a.dq = wanted(c, Q);
    a.dk = wanted(c, K);
    a.dv = wanted(c, V);
    dti_nn(c)->attention_backward(&a);
    c->flops = 4 * pairs(&a) * (double)(a.dim + a.vdim);
    c->flops_again = 2 * pairs(&a) * (double)a.dim; /* q k^T */
    return DT_OK;
}

#define EVERYTHING (((1u << NIN) - 1) | DT_SAVE_OUT(0))

const dt_op dt_op_attention = {
    .name = "attention",
    .infer = infer,
    .key = key,
    .linear = 1u << V,
    .nin = NIN,
    .nout = 1,
    .attr_bytes = sizeof(attributes),
    .optional = 1u << Q_POSITIONS | 1u << K_POSITIONS | 1u << Q_DOCUMENTS | 1u << K_DOCUMENTS,
    .forward = forward,
    .backward = backward,
    .no_grad_in = 1u << Q_POSITIONS | 1u << K_POSITIONS | 1u << Q_DOCUMENTS | 1u << K_DOCUMENTS,
    .saves = {EVERYTHING, EVERYTHING, EVERYTHING},
    .keep = true};

dt_tensor *(dt_attention)(dt_tape *t, dt_tensor *q, dt_tensor *k, dt_tensor *v,
                          const dt_attention_options *options)
{
    const dt_attention_options o = options ? *options : (dt_attention_options){0};
    const dt_shape s = dt_tensor_shape(q);
    attributes attr;
    memset(&attr, 0, sizeof attr);
    attr.causal = !o.not_causal;
    attr.bshd = o.bshd;
    attr.scale = o.scale != 0 ? o.scale : 1 / sqrt(s.ndim == 4 ? (double)s.dim[3] : 1);
    return dt_op_apply(
        t, &dt_op_attention, &attr, NIN,
        (dt_tensor *[]){q, k, v, o.q_positions, o.k_positions, o.q_documents, o.k_documents});
}
