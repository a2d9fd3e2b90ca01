/* tests/dtensor/test_ops_nn.c - every neural network op: finite differences, and every placement
 * against one rank (op_check.h). Counts of rows: tests/dtensor/RULES.txt, and where an op is not in
 * it, its comment below. */
#include "tests/dtensor/op_check.h"

#include <math.h>

static void silu(dt_tape *t, dt_tensor *const *in, dt_tensor **out, const void *arg)
{
    (void)arg;
    out[0] = dt_silu(t, in[0]);
}

static void gelu(dt_tape *t, dt_tensor *const *in, dt_tensor **out, const void *arg)
{
    out[0] = dt_gelu(t, in[0], *(const dt_gelu_kind *)arg);
}

static void swiglu(dt_tape *t, dt_tensor *const *in, dt_tensor **out, const void *arg)
{
    (void)arg;
    out[0] = dt_swiglu(t, in[0], in[1]);
}

static void softmax(dt_tape *t, dt_tensor *const *in, dt_tensor **out, const void *arg)
{
    (void)arg;
    out[0] = dt_softmax(t, in[0]);
}

/* Which operand is the weight, the bias; 0: left out. */
typedef struct norm_form {
    int w, b;
    int accept; /* rows */
} norm_form;

static void rmsnorm(dt_tape *t, dt_tensor *const *in, dt_tensor **out, const void *arg)
{
    const norm_form *f = arg;
    out[0] = dt_rmsnorm(t, in[0], f->w ? in[f->w] : NULL, 1e-5);
}

static void layernorm(dt_tape *t, dt_tensor *const *in, dt_tensor **out, const void *arg)
{
    const norm_form *f = arg;
    out[0] = dt_layernorm(t, in[0], f->w ? in[f->w] : NULL, f->b ? in[f->b] : NULL, 1e-5);
}

/* Rows of 7. */
static void norm_naive(const double *const *in, double *const *out, const norm_form *f,
                       bool centred)
{
    for (int row = 0; row < 5 * 3; row++) {
        const double *x = in[0] + row * 7;
        double mean = 0, squares = 0;
        for (int i = 0; i < 7 && centred; i++)
            mean += x[i] / 7;
        for (int i = 0; i < 7; i++)
            squares += (x[i] - mean) * (x[i] - mean);
        for (int i = 0; i < 7; i++)
            out[0][row * 7 + i] =
                (x[i] - mean) / sqrt(squares / 7 + 1e-5) * (f->w ? in[f->w][i] : 1) +
                (f->b ? in[f->b][i] : 0);
    }
}

static void rmsnorm_naive(const double *const *in, double *const *out, const void *arg)
{
    norm_naive(in, out, arg, false);
}

static void layernorm_naive(const double *const *in, double *const *out, const void *arg)
{
    norm_naive(in, out, arg, true);
}

static void embedding(dt_tape *t, dt_tensor *const *in, dt_tensor **out, const void *arg)
{
    (void)arg;
    out[0] = dt_embedding(t, in[0], in[1]);
}

static void rope(dt_tape *t, dt_tensor *const *in, dt_tensor **out, const void *arg)
{
    out[0] = dt_rope(t, in[0], arg ? in[1] : NULL, &(dt_rope_options){.theta = 100});
}

/* In the other order of dims, with positions of each token. */
static void rope_bshd(dt_tape *t, dt_tensor *const *in, dt_tensor **out, const void *arg)
{
    (void)arg;
    out[0] = dt_rope(t, in[0], in[1], &(dt_rope_options){.theta = 100, .bshd = true});
}

static void rope_bshd_naive(const double *const *in, double *const *out, const void *arg)
{
    (void)arg;
    for (int row = 0; row < 3 * 5 * 2; row++)
        for (int i = 0; i < 3; i++) {
            const double angle = in[1][row / 2] * pow(100, -2.0 * i / 6);
            const double u = in[0][row * 6 + i], v = in[0][row * 6 + i + 3];
            out[0][row * 6 + i] = u * cos(angle) - v * sin(angle);
            out[0][row * 6 + i + 3] = v * cos(angle) + u * sin(angle);
        }
}

static void dropout(dt_tape *t, dt_tensor *const *in, dt_tensor **out, const void *arg)
{
    (void)arg;
    out[0] = dt_dropout(t, in[0], 0.4);
}

static void attention(dt_tape *t, dt_tensor *const *in, dt_tensor **out, const void *arg)
{
    out[0] = dt_attention(t, in[0], in[1], in[2], arg);
}

static void attention_all(dt_tape *t, dt_tensor *const *in, dt_tensor **out, const void *arg)
{
    (void)arg;
    out[0] = dt_attention(t, in[0], in[1], in[2],
                          &(dt_attention_options){.q_positions = in[3],
                                                  .k_positions = in[4],
                                                  .q_documents = in[5],
                                                  .k_documents = in[6]});
}

static void cross_entropy(dt_tape *t, dt_tensor *const *in, dt_tensor **out, const void *arg)
{
    out[0] = dt_cross_entropy(t, in[0], in[1], arg);
}

static void linear_cross_entropy(dt_tape *t, dt_tensor *const *in, dt_tensor **out, const void *arg)
{
    out[0] = dt_linear_cross_entropy(t, in[0], in[1], in[2], arg);
}

START_TEST(test_activations)
{
    const dt_gelu_kind tanh_form = DT_GELU_TANH, erf_form = DT_GELU_ERF;
    const dt_shape bsn = DT_SHAPE(5, 3, 7);
    op_check(&(op_check_spec){.name = "silu", .call = silu, .nin = 1, .shape = {bsn}, .accept = 4});
    op_check(&(op_check_spec){
        .name = "gelu", .call = gelu, .arg = &tanh_form, .nin = 1, .shape = {bsn}, .accept = 4});
    op_check_gradients(
        &(op_check_spec){.name = "gelu", .call = gelu, .arg = &erf_form, .nin = 1, .shape = {bsn}});
    /* R, P in up alone, and each dim sharded in both. */
    op_check(&(op_check_spec){
        .name = "swiglu", .call = swiglu, .nin = 2, .shape = {bsn, bsn}, .accept = 5});
    /* Linear: as scale. */
    op_check(&(op_check_spec){
        .name = "dropout", .call = dropout, .nin = 1, .shape = {bsn}, .accept = 5});
}
END_TEST

START_TEST(test_norms)
{
    const dt_shape bsn = DT_SHAPE(5, 3, 7), n = DT_SHAPE(7);
    op_check(&(op_check_spec){
        .name = "softmax", .call = softmax, .nin = 1, .shape = {bsn}, .accept = 3});
    /* x R or sharded on a row's dim; besides, for R, the weight or the bias P */
    static const norm_form rms[] = {{1, 0, 4}, {0, 0, 3}};
    static const norm_form layer[] = {{1, 2, 6}, {1, 0, 4}, {0, 1, 4}, {0, 0, 3}};
    op_check_spec spec = {
        .name = "rmsnorm", .call = rmsnorm, .naive = rmsnorm_naive, .shape = {bsn, n, n}};
    for (int i = 0; i < DT_COUNT(rms) + DT_COUNT(layer); i++) {
        const norm_form *f = i < DT_COUNT(rms) ? &rms[i] : &layer[i - DT_COUNT(rms)];
        if (i == DT_COUNT(rms)) {
            spec.name = "layernorm";
            spec.call = layernorm;
            spec.naive = layernorm_naive;
        }
        spec.arg = f;
        spec.nin = 1 + (f->w > 0) + (f->b > 0);
        spec.accept = f->accept;
        op_check(&spec);
    }
}
END_TEST

START_TEST(test_embedding)
{
    /* ids R: w R, S(0), S(1), P; each dim of ids sharded: w R. */
    op_check(&(op_check_spec){.name = "embedding",
                              .call = embedding,
                              .nin = 2,
                              .shape = {DT_SHAPE(5, 3), DT_SHAPE(7, 3)},
                              .below = {7},
                              .accept = 6});
}
END_TEST

START_TEST(test_rope)
{
    const dt_shape x = DT_SHAPE(3, 2, 5, 6);
    op_check(&(op_check_spec){.name = "rope", .call = rope, .nin = 1, .shape = {x}, .accept = 5});
    /* Positions follow s, or b and s: one placement of them for each of x. */
    op_check(&(op_check_spec){.name = "rope",
                              .call = rope,
                              .arg = "positions",
                              .nin = 2,
                              .shape = {x, DT_SHAPE(5)},
                              .below = {0, 50},
                              .accept = 5});
    op_check(&(op_check_spec){.name = "rope",
                              .call = rope,
                              .arg = "positions",
                              .nin = 2,
                              .shape = {x, DT_SHAPE(3, 5)},
                              .below = {0, 50},
                              .accept = 5});
    op_check(&(op_check_spec){.name = "rope",
                              .call = rope_bshd,
                              .naive = rope_bshd_naive,
                              .nin = 2,
                              .shape = {DT_SHAPE(3, 5, 2, 6), DT_SHAPE(3, 5)},
                              .below = {0, 50},
                              .accept = 5});
}
END_TEST

START_TEST(test_attention_one_head_a_group)
{
    /* On 2 x 2 all pairs of rows but: B on the first axis and A on the second, where kv's axis is
     * not q's outermost. */
    op_check(&(op_check_spec){
        .name = "attention",
        .call = attention,
        .nin = 3,
        .shape = {DT_SHAPE(2, 3, 3, 2), DT_SHAPE(2, 3, 3, 2), DT_SHAPE(2, 3, 3, 3)},
        .accept = 7,
        .accept_2x2 = 48});
}
END_TEST

START_TEST(test_attention_groups)
{
    /* 2 kv heads on 4 ranks do not split as 4 heads of q: row A goes; on 2 x 2 so does A with A. */
    op_check(&(op_check_spec){
        .name = "attention",
        .call = attention,
        .nin = 3,
        .shape = {DT_SHAPE(1, 4, 5, 2), DT_SHAPE(1, 2, 5, 2), DT_SHAPE(1, 2, 5, 3)},
        .accept = 7,
        .accept_4 = 6,
        .accept_2x2 = 47});
}
END_TEST

START_TEST(test_attention_bshd)
{
    const dt_attention_options bshd = {.bshd = true};
    op_check(&(op_check_spec){
        .name = "attention",
        .call = attention,
        .arg = &bshd,
        .nin = 3,
        .shape = {DT_SHAPE(1, 5, 4, 2), DT_SHAPE(1, 5, 2, 2), DT_SHAPE(1, 5, 2, 3)},
        .accept = 7,
        .accept_4 = 6,
        .accept_2x2 = 47});
    op_check_gradients(&(op_check_spec){
        .name = "attention",
        .call = attention,
        .arg = &bshd,
        .nin = 3,
        .shape = {DT_SHAPE(1, 67, 2, 1), DT_SHAPE(1, 67, 2, 1), DT_SHAPE(1, 67, 2, 1)}});
}
END_TEST

START_TEST(test_attention_options)
{
    /* Not causal, other numbers of keys than of queries; more than one block of both. */
    const dt_attention_options all = {.not_causal = true, .scale = 0.7};
    op_check_gradients(&(op_check_spec){
        .name = "attention",
        .call = attention,
        .arg = &all,
        .nin = 3,
        .shape = {DT_SHAPE(1, 2, 3, 2), DT_SHAPE(1, 1, 70, 2), DT_SHAPE(1, 1, 70, 1)}});
    op_check_gradients(&(op_check_spec){
        .name = "attention",
        .call = attention,
        .nin = 3,
        .shape = {DT_SHAPE(1, 1, 67, 1), DT_SHAPE(1, 1, 67, 1), DT_SHAPE(1, 1, 67, 1)}});
    /* Positions and documents at random: some queries see no key. */
    op_check_gradients(
        &(op_check_spec){.name = "attention",
                         .call = attention_all,
                         .nin = 7,
                         .shape = {DT_SHAPE(2, 2, 9, 2), DT_SHAPE(2, 1, 9, 2), DT_SHAPE(2, 1, 9, 3),
                                   DT_SHAPE(2, 9), DT_SHAPE(9), DT_SHAPE(9), DT_SHAPE(2, 9)},
                         .below = {0, 0, 0, 9, 9, 2, 2}});
}
END_TEST

START_TEST(test_losses)
{
    const dt_cross_entropy_options options = {.valid = 15, .chunk = 2, .ignore_index = 4};
    /* R; a leading dim; the vocabulary. */
    op_check(&(op_check_spec){.name = "cross_entropy",
                              .call = cross_entropy,
                              .arg = &options,
                              .nin = 2,
                              .shape = {DT_SHAPE(5, 3, 7), DT_SHAPE(5, 3)},
                              .below = {0, 7},
                              .accept = 4,
                              .communicates = true});
    op_check(&(op_check_spec){.name = "linear_cross_entropy",
                              .call = linear_cross_entropy,
                              .arg = &options,
                              .nin = 3,
                              .shape = {DT_SHAPE(5, 3, 2), DT_SHAPE(7, 2), DT_SHAPE(5, 3)},
                              .below = {0, 0, 7},
                              .accept = 4,
                              .communicates = true});
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("neural network ops");
    TCase *tc = tcase_create("every placement");
    tcase_set_timeout(tc, 100);
    tcase_add_test(tc, test_activations);
    tcase_add_test(tc, test_norms);
    tcase_add_test(tc, test_embedding);
    tcase_add_test(tc, test_rope);
    tcase_add_test(tc, test_attention_one_head_a_group);
    tcase_add_test(tc, test_attention_groups);
    tcase_add_test(tc, test_attention_bshd);
    tcase_add_test(tc, test_attention_options);
    tcase_add_test(tc, test_losses);
    suite_add_tcase(suite, tc);
    return test_main(suite);
}
