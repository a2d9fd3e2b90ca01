/* tests/dtensor/test_fuzz_mutants.c - wrong rules and lost communication: the fuzzer finds each.
 *
 * A mutant is an op of the library with another rule (or another placement of a gradient), added
 * to the table, or a fault of comm/ while the graph's ops or their adjoints run.
 * Read first: tests/dtensor/fuzz.h. */
#include "tests/dtensor/fuzz.h"

#include "dtensor/ops/nn_internal.h"

#include <stdio.h>
#include <string.h>

enum { CASES = 960, COPIES = 2 /* of the mutant's row */ };

/* The library's ops but for one field each; set in main, before any rank runs. */
static dt_op partial_product, bias, softmax, silu, sum, embedding, concat, dropout, head_loss;

/* ---- rules ---- */

/* P times P is said to be P. */
static dt_status infer_partial_product(dt_rule *r)
{
    dt_layout y = *r->in[1];
    y.partial = (uint8_t)(y.partial & ~r->in[0]->partial);
    return dt_rule_letters(r, "...,...->...", &(dt_letters){.seen = {NULL, &y}});
}

/* Every rank adds the bias to its part of a sum. */
static dt_status infer_bias(dt_rule *r)
{
    DT_TRY(dt_rule_letters(r, "...k,nk+n->...n", NULL));
    memset(r->zeroed, 0, sizeof r->zeroed);
    return DT_OK;
}

/* The same where tensors are joined. */
static dt_status infer_concat(dt_rule *r)
{
    DT_TRY(dt_op_concat.infer(r));
    memset(r->zeroed, 0, sizeof r->zeroed);
    return DT_OK;
}

/* The sum over a sharded dim is called R. */
static dt_status infer_sum(dt_rule *r)
{
    DT_TRY(dt_op_sum.infer(r));
    r->out[0].partial = r->in[0]->partial;
    return DT_OK;
}

/* Rows of a split vocabulary are called R. */
static dt_status infer_embedding(dt_rule *r)
{
    DT_TRY(dt_op_embedding.infer(r));
    r->out[0].partial = r->in[1]->partial;
    return DT_OK;
}

/* dx of a split vocabulary is called R. */
static dt_status infer_head_loss(dt_rule *r)
{
    DT_TRY(dt_op_linear_cross_entropy.infer(r));
    memset(r->summed, 0, sizeof r->summed);
    return DT_OK;
}

/* Every rank draws its own bits. */
static dt_status with_own_bits(dt_op_call *c, dt_status (*f)(dt_op_call *c))
{
    const void *attr = c->attr;
    dti_dropout_attributes mine = *(const dti_dropout_attributes *)attr;
    mine.key = dt_key_fold(mine.key, (uint64_t)dt_mesh_rank(dt_layout_mesh(c->in_layout[0])));
    c->attr = &mine;
    const dt_status st = f(c);
    c->attr = attr;
    return st;
}

static dt_status dropout_forward(dt_op_call *c)
{
    return with_own_bits(c, dt_op_dropout.forward);
}

static dt_status dropout_backward(dt_op_call *c)
{
    return with_own_bits(c, dt_op_dropout.backward);
}

static void make_mutants(void)
{
    partial_product = dt_op_mul;
    partial_product.rule = NULL;
    partial_product.infer = infer_partial_product;
    bias = dt_op_linear;
    bias.rule = NULL;
    bias.infer = infer_bias;
    concat = dt_op_concat;
    concat.infer = infer_concat;
    sum = dt_op_sum;
    sum.infer = infer_sum;
    embedding = dt_op_embedding;
    embedding.infer = infer_embedding;
    head_loss = dt_op_linear_cross_entropy;
    head_loss.infer = infer_head_loss;
    softmax = dt_op_softmax;
    softmax.rule = "...->..."; /* the last dim may be sharded */
    silu = dt_op_silu;
    silu.linear = 1; /* P passes */
    dropout = dt_op_dropout;
    dropout.forward = dropout_forward;
    dropout.backward = dropout_backward;
}

/* ---- calls ---- */

static void call_partial_product(fuzz_call *c)
{
    c->out[0] = dt_op_apply2(c->tape, &partial_product, NULL, c->in[0], c->in[1]);
}

static void call_bias(fuzz_call *c)
{
    c->out[0] = dt_op_apply(c->tape, &bias, NULL, 3, c->in);
}

static void call_concat(fuzz_call *c)
{
    c->out[0] = dt_op_apply(c->tape, &concat, &(int){0}, c->step->nin, c->in);
}

static void call_sum(fuzz_call *c)
{
    const uint32_t all = (1u << dt_tensor_shape(c->in[0]).ndim) - 1;
    c->out[0] = dt_op_apply1(c->tape, &sum, &all, c->in[0]);
}

static void call_embedding(fuzz_call *c)
{
    c->out[0] = dt_op_apply2(c->tape, &embedding, NULL, c->in[0], c->in[1]);
}

static void call_head_loss(fuzz_call *c)
{
    const dti_head_attributes attr = {.ignore = 1, .valid = 3, .chunk = 2};
    c->out[0] = dt_op_apply(c->tape, &head_loss, &attr, 3, c->in);
}

static void call_softmax(fuzz_call *c)
{
    c->out[0] = dt_op_apply1(c->tape, &softmax, NULL, c->in[0]);
}

static void call_silu(fuzz_call *c)
{
    c->out[0] = dt_op_apply1(c->tape, &silu, NULL, c->in[0]);
}

static void call_dropout(fuzz_call *c)
{
    const dti_dropout_attributes attr = {.key = dt_key_make(1, (uint64_t)c->step->out, 0),
                                         .p = 0.4};
    c->out[0] = dt_op_apply1(c->tape, &dropout, &attr, c->in[0]);
}

/* The gradient of w is called R where rows are sharded. */
static void call_norm(fuzz_call *c)
{
    const dt_layout *x = dt_tensor_layout(c->in[0]), *w = dt_tensor_layout(c->in[1]);
    const dti_norm_attributes attr = {0.1, false};
    const dt_local_map_options wrong = {.name = "norm",
                                        .nout = 1,
                                        .out = {x},
                                        .grad = {NULL, "[R]"},
                                        .forward = dt_op_rmsnorm.forward,
                                        .backward = dt_op_rmsnorm.backward,
                                        .attr = &attr,
                                        .attr_bytes = sizeof attr};
    if (x->partial || w->partial || x->nsplit[x->shape.ndim - 1] || w->nsplit[0])
        c->out[0] = dt_rmsnorm(c->tape, c->in[0], c->in[1], attr.eps); /* refused, or right */
    else
        dt_local_map(c->tape, &wrong, 2, c->in, c->out);
}

/* A redistribute that nobody asked for: P is read as if it were R. */
static void call_forgotten_sum(fuzz_call *c)
{
    dt_tensor *x = c->in[0], *local = dt_to_local(c->tape, x, NULL);
    const dt_layout dual = dt_layout_dual(dt_tensor_layout(x)), *to;
    if (dt_mesh_layout(dt_tensor_mesh(x), &dual, &to) == DT_OK)
        c->out[0] = dt_from_local(c->tape, local, to);
}

/* ---- hunting ---- */

typedef struct mutant {
    const char *name;
    fuzz_op row;
    const char *forward_fault, *backward_fault;
} mutant;

static const mutant mutants[] = {
    {"P x P is P", {.name = "mul", .words = "*n ~n", .call = call_partial_product}, NULL, NULL},
    {"bias added by every rank",
     {.name = "linear", .words = "*k nk n", .call = call_bias},
     NULL,
     NULL},
    {"R joins P on every rank",
     {.name = "concat", .words = "Mn Nn", .call = call_concat},
     NULL,
     NULL},
    {"sum over a sharded dim is R", {.name = "sum", .words = "*n", .call = call_sum}, NULL, NULL},
    {"split vocabulary gives R",
     {.name = "embedding", .words = "#* vd", .call = call_embedding},
     NULL,
     NULL},
    {"dx of a split head is R",
     {.name = "head", .words = "!*k !vk #*", .call = call_head_loss, .split_vocabulary = true},
     NULL,
     NULL},
    {"softmax over a sharded dim",
     {.name = "softmax", .words = "!*n", .call = call_softmax},
     NULL,
     NULL},
    {"silu of P", {.name = "silu", .words = "*n", .call = call_silu}, NULL, NULL},
    {"every rank its own dropout bits",
     {.name = "dropout", .words = "*n", .call = call_dropout},
     NULL,
     NULL},
    {"gradient of a norm's weight is R",
     {.name = "norm", .words = "!*N N", .call = call_norm},
     NULL,
     NULL},
    {"P read as R", {.name = "forgotten", .words = "*n", .call = call_forgotten_sum}, NULL, NULL},
    {"forward: reductions skipped", {0}, "skip_reduce", NULL},
    {"forward: shards swapped", {0}, "swap_shards", NULL},
    {"forward: results not waited for", {0}, "drop_wait", NULL},
    {"adjoints: reductions skipped", {0}, NULL, "skip_reduce"},
    {"adjoints: shards swapped", {0}, NULL, "swap_shards"},
    {"adjoints: results not waited for", {0}, NULL, "drop_wait"},
};

/* The table with the mutant's row added. */
static int make_table(const mutant *m, fuzz_op *table)
{
    int n = 0;
    for (; n < fuzz_table_rows; n++)
        table[n] = fuzz_table[n];
    for (int k = 0; k < COPIES && m->row.call; k++)
        table[n++] = m->row;
    return n;
}

START_TEST(test_mutant)
{
    const mutant *m = &mutants[_i];
    fuzz_op table[FUZZ_ROWS];
    const fuzz_subject subject = {.table = table,
                                  .nrows = make_table(m, table),
                                  .forward_fault = m->forward_fault,
                                  .backward_fault = m->backward_fault};
    fuzz_stats stats = {0};
    int failing = -1;
    for (uint64_t seed = 0; seed < CASES && failing < 0; seed += FUZZ_BATCH) {
        const dt_status st = fuzz_batch(&subject, seed, FUZZ_BATCH, false, &stats, &failing);
        ck_assert_msg((st == DT_OK) == (failing < 0), "%s: %s", m->name, dt_error_trace());
        if (failing >= 0)
            printf("mutant '%s': found in case %d: %.*s\n", m->name, (int)seed + failing,
                   (int)strcspn(dt_error_trace(), "\n"), dt_error_trace());
    }
    ck_assert_msg(failing >= 0, "mutant '%s' was not found in %d cases", m->name, CASES);
}
END_TEST

int main(void)
{
    make_mutants();
    Suite *suite = suite_create("fuzz mutants");
    TCase *tc = tcase_create("broken rules");
    tcase_set_timeout(tc, 100);
    tcase_add_loop_test(tc, test_mutant, 0, DT_COUNT(mutants));
    suite_add_tcase(suite, tc);
    return test_main(suite);
}
