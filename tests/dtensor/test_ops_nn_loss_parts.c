/* tests/dtensor/test_ops_nn_loss_parts.c - losses of batches in parts, against the formula in f64
 * for the whole: repeated and joined batches, microbatches with unequal numbers of targets (L1 of
 * the map of PyTorch's tests), and tokens in chunks (L2), whole and with a split vocabulary. */
#include "tests/dtensor/host_leaf.h"

#include <stdlib.h>
#include <string.h>

enum { MOST_TOKENS = 64, MOST_WIDTH = 32, MOST_VOCAB = 100 };

typedef struct problem {
    int64_t tokens, width, vocab, valid;
    float x[MOST_TOKENS * MOST_WIDTH], w[MOST_VOCAB * MOST_WIDTH];
    int32_t target[MOST_TOKENS];
    double loss; /* sum over targets; divide by valid */
    float dx[MOST_TOKENS * MOST_WIDTH], dw[MOST_VOCAB * MOST_WIDTH];
    int ranks; /* that split the vocabulary */
} problem;

/* Every `skip`-th target, from the second on, does not count; 0: all count. */
static void fill(problem *p, int skip)
{
    for (int64_t i = 0; i < p->tokens * p->width; i++)
        p->x[i] = host_number(i);
    for (int64_t i = 0; i < p->vocab * p->width; i++)
        p->w[i] = host_number(i + 5000);
    for (int64_t t = 0; t < p->tokens; t++)
        p->target[t] = skip && t % skip == 1 ? -100 : (int32_t)((t * 7919 + 13) % p->vocab);
}

/* One token's term of loss and gradients, times `share`. */
static void add_token(problem *p, int64_t t, double share, double *dx, double *dw)
{
    double z[MOST_VOCAB] = {0}, sum = 0;
    for (int64_t v = 0; v < p->vocab; v++) {
        for (int64_t k = 0; k < p->width; k++)
            z[v] += (double)p->x[t * p->width + k] * (double)p->w[v * p->width + k];
        sum += exp(z[v]);
    }
    p->loss += log(sum) - z[p->target[t]];
    for (int64_t v = 0; v < p->vocab; v++) {
        const double dz = share * (exp(z[v]) / sum - (v == p->target[t]));
        for (int64_t k = 0; k < p->width; k++) {
            dx[t * p->width + k] += dz * (double)p->w[v * p->width + k];
            dw[v * p->width + k] += dz * (double)p->x[t * p->width + k];
        }
    }
}

static void solve(problem *p)
{
    static double dx[MOST_TOKENS * MOST_WIDTH], dw[MOST_VOCAB * MOST_WIDTH];
    memset(dx, 0, sizeof dx);
    memset(dw, 0, sizeof dw);
    p->loss = 0;
    p->valid = 0;
    for (int64_t t = 0; t < p->tokens; t++)
        p->valid += p->target[t] != -100;
    for (int64_t t = 0; t < p->tokens; t++)
        if (p->target[t] != -100)
            add_token(p, t, 1 / (double)p->valid, dx, dw);
    for (int64_t i = 0; i < p->tokens * p->width; i++)
        p->dx[i] = (float)dx[i];
    for (int64_t i = 0; i < p->vocab * p->width; i++)
        p->dw[i] = (float)dw[i];
}

/* ---- a run: tokens [lo, hi) at a time, each a tape's work, all with the divisor of the whole ----
 */

typedef struct result {
    double loss;
    float dx[MOST_TOKENS * MOST_WIDTH], dw[MOST_VOCAB * MOST_WIDTH];
} result;

static dt_status read_grad(dt_tensor *x, float *host)
{
    const dt_local *grad = dt_tensor_grad(x);
    dt_tensor *g;
    TEST_THAT(grad->array.storage, "no gradient");
    DT_TRY(dt_from_array(grad->layout, &grad->array, &g));
    DT_TRY(dt_tensor_read_f32_sync(g, host));
    dt_tensor_destroy(&g);
    return DT_OK;
}

/* chunk 0: two ops, with all logits. */
static dt_status one_part(dt_mesh *mesh, dt_tape *tape, const problem *p, int64_t lo, int64_t hi,
                          int64_t chunk, dt_tensor *w, result *r)
{
    const dt_cross_entropy_options o = {.valid = p->valid, .chunk = chunk};
    dt_tensor *x, *target;
    double loss;
    dt_tape_reset(tape, NULL);
    DT_TRY(host_leaf(mesh, DT_SHAPE(hi - lo, p->width), "", DT_F32, p->x + lo * p->width, &x));
    DT_TRY(host_leaf(mesh, DT_SHAPE(hi - lo), "", DT_I32, p->target + lo, &target));
    dt_tensor *y = chunk ? dt_linear_cross_entropy(tape, x, w, target, &o)
                         : dt_cross_entropy(tape, dt_linear(tape, x, w, NULL), target, &o);
    DT_TRY(dt_tape_status(tape));
    DT_TRY(dt_backward(tape, y));
    DT_TRY(dt_tensor_item_sync(y, &loss));
    r->loss += loss;
    DT_TRY(read_grad(x, r->dx + lo * p->width));
    dt_tensor_destroy(&x);
    dt_tensor_destroy(&target);
    return DT_OK;
}

/* cut[i] .. cut[i + 1], up to the number of tokens. */
static dt_status run_parts(dt_world *world, const problem *p, const int64_t *cut, int64_t chunk,
                           result *r)
{
    dt_mesh *mesh;
    dt_tape *tape;
    dt_tensor *w;
    const dt_mesh_options axes = {.axes = {{"tp", dt_world_size(world)}}};
    r->loss = 0;
    DT_TRY(dt_mesh_create(world, (dt_device){DT_CPU, 0}, &axes, &mesh));
    DT_TRY(dt_tape_create(mesh, NULL, &tape));
    DT_TRY(host_leaf(mesh, DT_SHAPE(p->vocab, p->width), p->ranks > 1 ? "S(0)@tp" : "", DT_F32,
                     p->w, &w));
    for (int i = 0; cut[i] < p->tokens; i++)
        DT_TRY(one_part(mesh, tape, p, cut[i], cut[i + 1], chunk, w, r));
    DT_TRY(read_grad(w, r->dw));
    dt_tensor_destroy(&w);
    dt_tape_destroy(&tape);
    dt_mesh_destroy(&mesh);
    return DT_OK;
}

static dt_status check(const problem *p, const result *r, const char *what)
{
    const struct {
        const float *got, *want;
        int64_t n;
    } grad[] = {{r->dx, p->dx, p->tokens * p->width}, {r->dw, p->dw, p->vocab * p->width}};
    const double want = p->loss / (double)p->valid;
    TEST_THAT(fabs(r->loss - want) <= 1e-6 * want, "%s: loss %.9g, want %.9g", what, r->loss, want);
    for (int k = 0; k < 2; k++) {
        const double diff = test_max_diff(grad[k].got, grad[k].want, grad[k].n);
        TEST_THAT(diff <= 1e-5 * test_max_abs(grad[k].want, grad[k].n),
                  "%s: gradient %d differs by %g", what, k, diff);
    }
    return DT_OK;
}

/* ---- L1 ---- */

/* 32 tokens, the first 16 of which are cut where 8, 4 and 2 targets count. */
static dt_status microbatches_body(dt_world *world, void *arg)
{
    const problem *p = arg;
    static const int64_t whole[] = {0, 32}, two[] = {0, 16, 32}, uneven[] = {0, 8, 20, 32},
                         each[] = {0, 1, 2, 31, 32};
    static const int64_t *const cuts[] = {whole, two, uneven, each};
    result *r = malloc(sizeof *r);
    TEST_THAT(r, "memory");
    for (int i = 0; i < DT_COUNT(cuts); i++) {
        for (int64_t chunk = 0; chunk < 10; chunk += 3) {
            DT_TRY(run_parts(world, p, cuts[i], chunk, r));
            DT_TRY(check(p, r, i == 0 ? "whole" : "microbatches"));
        }
    }
    free(r);
    return DT_OK;
}

START_TEST(microbatches_with_other_numbers_of_targets)
{
    static problem p = {.tokens = 32, .width = 6, .vocab = 100};
    fill(&p, 0);
    for (int64_t t = 0; t < 32; t++) /* 8, 4 and 2 count in the parts of `uneven` */
        if ((t >= 8 && t < 20 && t % 3 > 0) || (t >= 20 && t % 6 > 0))
            p.target[t] = -100;
    solve(&p);
    ck_assert_int_eq(p.valid, 8 + 4 + 2);
    for (p.ranks = 1; p.ranks <= 3; p.ranks += 2)
        test_ranks(p.ranks, microbatches_body, &p);
}
END_TEST

static dt_status joined_body(dt_world *world, void *arg)
{
    const problem *p = arg;
    const int64_t whole[] = {0, p->tokens};
    result *r = malloc(sizeof *r);
    TEST_THAT(r, "memory");
    for (int64_t chunk = 0; chunk < 20; chunk += 7) {
        DT_TRY(run_parts(world, p, whole, chunk, r));
        DT_TRY(check(p, r, "joined"));
    }
    free(r);
    return DT_OK;
}

/* T = 32, V = 100, 4 ignored: the loss per token of the batch twice is that of the batch; of two
 * batches it is the mean over their targets. */
START_TEST(batches_joined)
{
    static problem p, twice, both, other;
    p = (problem){.tokens = 32, .width = 6, .vocab = 100, .ranks = 1};
    fill(&p, 8);
    solve(&p);
    ck_assert_int_eq(p.valid, 28);
    twice = both = p;
    twice.tokens = both.tokens = 64;
    fill(&both, 8);
    memcpy(twice.x + 32 * 6, p.x, 32 * 6 * sizeof(float));
    memcpy(twice.target + 32, p.target, 32 * sizeof(int32_t));
    both.target[40] = -100; /* 28 and 27 */
    other = p;
    memcpy(other.x, both.x + 32 * 6, 32 * 6 * sizeof(float));
    memcpy(other.target, both.target + 32, 32 * sizeof(int32_t));
    solve(&twice);
    solve(&both);
    solve(&other);
    ck_assert(fabs(twice.loss / 56 - p.loss / 28) < 1e-12);
    ck_assert(other.valid == 27 && fabs(both.loss - p.loss - other.loss) < 1e-12 * both.loss);
    for (int64_t i = 0; i < p.tokens * p.width; i++)
        ck_assert(fabs((double)twice.dx[i] * 2 - (double)p.dx[i]) <= 1e-9);
    test_ranks(1, joined_body, &p);
    test_ranks(1, joined_body, &twice);
    test_ranks(1, joined_body, &both);
}
END_TEST

/* ---- L2 ---- */

/* Chunks that divide the tokens and that do not: 10 tokens in chunks of 4 have a last one of 2. */
static dt_status chunks_body(dt_world *world, void *arg)
{
    const problem *p = arg;
    const int64_t whole[] = {0, p->tokens};
    result *r = malloc(sizeof *r);
    TEST_THAT(r, "memory");
    for (int64_t chunk = 1; chunk <= p->tokens + 1; chunk++) {
        DT_TRY(run_parts(world, p, whole, chunk, r));
        DT_TRY(check(p, r, "chunks"));
    }
    free(r);
    return DT_OK;
}

START_TEST(tokens_in_chunks)
{
    static problem p;
    static const struct {
        int64_t tokens, width, vocab;
        int skip;
    } rows[] = {{24, 5, 17, 0}, {16, 32, 64, 5}, {10, 5, 17, 0}, {1, 1, 2, 0}};
    for (int i = 0; i < DT_COUNT(rows); i++) {
        p = (problem){.tokens = rows[i].tokens, .width = rows[i].width, .vocab = rows[i].vocab};
        fill(&p, rows[i].skip);
        solve(&p);
        for (p.ranks = 1; p.ranks <= 4; p.ranks += 3)
            test_ranks(p.ranks, chunks_body, &p);
    }
}
END_TEST

/* ---- logits of -inf ---- */

/* Two rows of six logits 0; the first half of one, the second half of the other is -inf: all that
 * one of two ranks has. The loss is ln 3; gradients are 1/6, at the target 1/6 - 1/2. */
static dt_status masked_body(dt_world *world, void *arg)
{
    const float none = -INFINITY, z[12] = {none, none, none, 0, 0, 0, 0, 0, 0, none, none, none};
    const float sixth = 1.0F / 6, hit = sixth - 0.5F;
    const float want[12] = {0, 0, 0, sixth, hit, sixth, sixth, sixth, hit, 0, 0, 0};
    static const int32_t target[2] = {4, 2};
    const dt_mesh_options axes = {.axes = {{"tp", dt_world_size(world)}}};
    float dz[12];
    double loss;
    dt_mesh *mesh;
    dt_tape *tape;
    dt_tensor *logits, *targets;
    (void)arg;
    DT_TRY(dt_mesh_create(world, (dt_device){DT_CPU, 0}, &axes, &mesh));
    DT_TRY(dt_tape_create(mesh, NULL, &tape));
    DT_TRY(host_leaf(mesh, DT_SHAPE(2, 6), "S(1)@tp", DT_F32, z, &logits));
    DT_TRY(host_leaf(mesh, DT_SHAPE(2), "", DT_I32, target, &targets));
    dt_tensor *y = dt_cross_entropy(tape, logits, targets, &(dt_cross_entropy_options){.valid = 2});
    DT_TRY(dt_tape_status(tape));
    DT_TRY(dt_backward(tape, y));
    DT_TRY(dt_tensor_item_sync(y, &loss));
    TEST_THAT(fabs(loss - log(3)) <= 1e-6, "loss %.9g", loss);
    DT_TRY(read_grad(logits, dz));
    for (int i = 0; i < 12; i++)
        TEST_THAT(fabsf(dz[i] - want[i]) <= 1e-6F, "gradient %d is %.9g", i, (double)dz[i]);
    dt_tensor_destroy(&logits);
    dt_tensor_destroy(&targets);
    dt_tape_destroy(&tape);
    dt_mesh_destroy(&mesh);
    return DT_OK;
}

START_TEST(a_rank_with_nothing_but_masked_logits)
{
    for (int ranks = 1; ranks <= 3; ranks++)
        test_ranks(ranks, masked_body, NULL);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("losses in parts");
    TCase *tc = tcase_create("parts");
    tcase_set_timeout(tc, 100);
    tcase_add_test(tc, microbatches_with_other_numbers_of_targets);
    tcase_add_test(tc, batches_joined);
    tcase_add_test(tc, tokens_in_chunks);
    tcase_add_test(tc, a_rank_with_nothing_but_masked_logits);
    suite_add_tcase(suite, tc);
    return test_main(suite);
}
