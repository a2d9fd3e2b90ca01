/* dtensor/ops/product.c - any sum of products in letters: the whole rule language as one op, in
 * plain loops.
 *
 * forward    y[out letters] = sum over terms of the sum over the term's other letters of the
 *            product of its operands
 * backward   the gradient of an operand is again a product: of dy and the other operands of its
 *            term, summed over the letters that it lacks, repeated over those that only it has
 * rule       the spec itself, linear in every operand */
#include "dtensor/dtensor_internal.h"
#include "dtensor/ops/ops_internal.h"

#include <string.h>

enum { SPEC_SIZE = 128 };

typedef struct product_attr {
    char spec[SPEC_SIZE];
} product_attr;

static dt_status infer(dt_rule *r)
{
    return dt_rule_letters(r, ((const product_attr *)r->attr)->spec, NULL);
}

static uint64_t key(const void *attr)
{
    const char *spec = ((const product_attr *)attr)->spec;
    return dti_hash(0, spec, strlen(spec));
}

static dt_status words_of(const dt_op_call *c, dti_words *w)
{
    const dt_rule r = {.name = "product", .nin = c->nin};
    return dti_words_parse(&r, c->in_layout, ((const product_attr *)c->attr)->spec, w);
}

/* ---- one product of arrays ---- */

typedef struct loops {
    dt_product_args a;
    char letter[DT_PRODUCT_LETTERS + 1];
} loops;

/* Give the letters of a word a place among the loops, if they have none yet. */
static void add_letters(loops *p, const char *word, dt_shape shape)
{
    for (int d = 0; word[d]; d++) {
        if (strchr(p->letter, word[d]))
            continue;
        p->letter[p->a.nletters] = word[d];
        p->a.size[p->a.nletters++] = shape.dim[d];
    }
}

static void set_strides(const loops *p, const char *word, dt_shape shape, int64_t *stride)
{
    int64_t step = 1;
    for (int d = shape.ndim - 1; d >= 0; d--) {
        stride[strchr(p->letter, word[d]) - p->letter] = step;
        step *= shape.dim[d];
    }
}

/* The result first: its letters are the free ones. */
static void set_result(loops *p, const char *word, dt_array *out)
{
    p->a.dtype = out->dtype;
    p->a.out = dt_array_data(out);
    add_letters(p, word, out->shape);
    p->a.nfree = p->a.nletters;
    set_strides(p, word, out->shape, p->a.out_stride);
}

/* dt_array_data is NULL for empty arrays; then nothing is read. */
static void add_factor(loops *p, const char *word, const dt_array *x)
{
    add_letters(p, word, x->shape);
    set_strides(p, word, x->shape, p->a.stride[p->a.nfactors]);
    p->a.factor[p->a.nfactors++] = dt_array_data(x);
}

/* ---- the op ---- */

static dt_status forward(dt_op_call *c)
{
    dti_words w;
    DT_TRY(words_of(c, &w));
    for (int term = 0; term < w.nterms; term++) {
        loops p = {.a = {.add = term > 0}};
        set_result(&p, w.out, &c->out[0]);
        for (int i = 0; i < c->nin; i++)
            if (w.term[i] == term)
                add_factor(&p, w.in[i], &c->in[i]);
        dti_math(c)->product(&p.a);
    }
    return DT_OK;
}

static dt_status backward(dt_op_call *c)
{
    dti_words w;
    DT_TRY(words_of(c, &w));
    for (int i = 0; i < c->nin; i++) {
        if (!(c->need >> i & 1))
            continue;
        loops p = {0};
        set_result(&p, w.in[i], &c->din[i]);
        add_factor(&p, w.out, &c->dout[0]);
        for (int j = 0; j < c->nin; j++)
            if (j != i && w.term[j] == w.term[i])
                add_factor(&p, w.in[j], &c->in[j]);
        dti_math(c)->product(&p.a);
    }
    return DT_OK;
}

#define ALL_INPUTS ((1u << DT_OP_MAX_IN) - 1)

const dt_op dt_op_product = {.name = "product",
                             .nin = DT_OP_MAX_IN,
                             .nout = 1,
                             .linear = ALL_INPUTS,
                             .infer = infer,
                             .key = key,
                             .attr_bytes = sizeof(product_attr),
                             .forward = forward,
                             .backward = backward,
                             .keep = true,
                             .saves = {ALL_INPUTS, ALL_INPUTS, ALL_INPUTS, ALL_INPUTS, ALL_INPUTS,
                                       ALL_INPUTS, ALL_INPUTS, ALL_INPUTS}};

static dt_status check(const char *spec, int n, dt_tensor *const *x)
{
    DT_REQUIRE(spec && strlen(spec) < SPEC_SIZE, DT_ERR_ARG,
               "product: a spec of 1 to %d characters is needed", SPEC_SIZE - 1);
    for (int i = 0; i < n; i++)
        DT_REQUIRE(x[i], DT_ERR_ARG, "product: operand %d is missing", i);
    return DT_OK;
}

dt_tensor *(dt_product)(dt_tape *t, const char *spec, int n, dt_tensor *const *x)
{
    product_attr attr = {{0}};
    const dt_status st = check(spec, n, x);
    if (st != DT_OK) {
        dt_tape_fail(t, st);
        return dt_tape_failed(t);
    }
    memcpy(attr.spec, spec, strlen(spec));
    return dt_op_apply(t, &dt_op_product, &attr, n, x);
}
