/* tests/dtensor/test_ops_nn_loss_bits.c - cross-entropy with a split vocabulary against the one
 * that is whole, bit by bit where the order of additions is the same. (O12 of the map of PyTorch's
 * tests; values against the formula: test_ops_nn_loss.c.)
 *
 * A token's loss is log(S) + m - z_target, and dz = (exp(z - m) / S - hit) / valid. m is a maximum
 * and z_target a sum of one number and zeros: neither rounds, on any number of ranks. S does: a
 * row is summed in blocks of 512, these in lanes; a rank's sum is rounded to f32 and then added to
 * the others'. So these are equal bit for bit, of tokens whose sum has one order only:
 *     - one rank alone has something to add, the others' exponentials being 0 (logits 200 lower),
 *       and its blocks are blocks of the whole;
 *     - two numbers alone, wherever they are;
 *     - sums that are exact in any order: all logits equal, S = V;
 *     - tokens are split and the vocabulary is not;
 *     - the two forms with a split vocabulary, cross_entropy and linear_cross_entropy, if they are
 *       given the same logits.
 * This is of dz; the loss also adds tokens in f64 in their order, but is f32 when ranks add, so
 * that with split tokens it is the same only if the others add 0. Elsewhere S differs by the
 * roundings of its additions, and what is made of it by as much. */
#include "array/dt_kernels.h"
#include "tests/dtensor/host_leaf.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { TOKENS = 128, RANKS = 4 };

typedef enum kind { ONE_RANK, PAIR, EQUAL, SCATTERED } kind;

typedef struct problem {
    kind kind;
    int64_t vocab;
    bool ignore, one_term;
    dt_mesh_options axes;
    const char *logits, *targets; /* layouts */
    float *z;
    int32_t target[TOKENS];
    int64_t valid;
    double loss; /* what came out, on rank 0 */
    float *dz;
} problem;

/* In [-1, 1). */
static float number(int64_t i)
{
    return (float)((i * 2654435761 >> 8 & 0xffff) - 0x8000) / 0x8000;
}

/* Which rank of four has column v. */
static int64_t owner(const problem *p, int64_t v)
{
    return v / ((p->vocab + RANKS - 1) / RANKS);
}

static float logit(const problem *p, int64_t t, int64_t v)
{
    if (p->kind == EQUAL)
        return number(t);
    const bool far = (p->kind == ONE_RANK && owner(p, v) != t % RANKS) ||
                     (p->kind == PAIR && v != t * 251 % p->vocab && v != t * 13 % p->vocab);
    return 3 * number(t * p->vocab + v) - (far ? 200 : 0);
}

static void fill(problem *p)
{
    p->z = malloc((size_t)(TOKENS * p->vocab) * sizeof *p->z);
    p->dz = malloc((size_t)(TOKENS * p->vocab) * sizeof *p->dz);
    ck_assert(p->z && p->dz);
    for (int64_t t = 0; t < TOKENS; t++) {
        const bool off = p->one_term ? t != 5 : p->ignore && t % 10 < 3;
        p->target[t] = off ? -100 : (int32_t)((t * 7919 + 13) % p->vocab);
        p->valid += !off;
        for (int64_t v = 0; v < p->vocab; v++)
            p->z[t * p->vocab + v] = logit(p, t, v);
    }
}

static void forget(problem *p)
{
    free(p->z);
    free(p->dz);
}

static dt_status read_grad(dt_tensor *x, float *host)
{
    const dt_local *grad = dt_tensor_grad(x);
    dt_tensor *g;
    DT_TRY(dt_from_array(grad->layout, &grad->array, &g));
    DT_TRY(dt_tensor_read_f32_sync(g, host));
    dt_tensor_destroy(&g);
    return DT_OK;
}

static dt_status body(dt_world *world, void *arg)
{
    problem *p = arg;
    dt_mesh *mesh;
    dt_tape *tape;
    dt_tensor *z, *target;
    double loss;
    float *dz = malloc((size_t)(TOKENS * p->vocab) * sizeof *dz);
    TEST_THAT(dz, "memory");
    DT_TRY(dt_mesh_create(world, test_device(world), &p->axes, &mesh));
    DT_TRY(dt_tape_create(mesh, NULL, &tape));
    DT_TRY(host_leaf(mesh, DT_SHAPE(TOKENS, p->vocab), p->logits, DT_F32, p->z, &z));
    DT_TRY(host_leaf(mesh, DT_SHAPE(TOKENS), p->targets, DT_I32, p->target, &target));
    dt_tensor *y =
        dt_cross_entropy(tape, z, target, &(dt_cross_entropy_options){.valid = p->valid});
    DT_TRY(dt_backward(tape, y));
    DT_TRY(dt_tensor_item_sync(y, &loss));
    DT_TRY(read_grad(z, dz));
    if (dt_world_rank(world) == 0) {
        p->loss = loss;
        memcpy(p->dz, dz, (size_t)(TOKENS * p->vocab) * sizeof *dz);
    }
    free(dz);
    dt_tensor_destroy(&z);
    dt_tensor_destroy(&target);
    dt_tape_destroy(&tape);
    dt_mesh_destroy(&mesh);
    return DT_OK;
}

/* ---- against the whole vocabulary ---- */

static const struct {
    dt_mesh_options axes;
    const char *logits, *targets;
    bool splits_tokens;
} layouts[] = {
    {{.axes = {{"dp", 1}, {"tp", 4}}}, "S(1)@tp", "", false},
    {{.axes = {{"dp", 2}, {"tp", 2}}}, "S(0)@dp, S(1)@tp", "S(0)@dp", true},
    {{.axes = {{"dp", 4}, {"tp", 1}}}, "S(0)@dp", "S(0)@dp", true},
};

static void check(const problem *many, const problem *one, bool same_sums, bool same_loss)
{
    const int64_t n = TOKENS * one->vocab;
    if (same_sums)
        ck_assert_msg(memcmp(many->dz, one->dz, sizeof(float) * (size_t)n) == 0,
                      "gradients differ by %g", test_max_diff(many->dz, one->dz, n));
    if (same_loss)
        ck_assert_msg(many->loss == one->loss, "loss %.17g, not %.17g", many->loss, one->loss);
    /* Roundings of S on each side, half an epsilon each: of a lane and over lanes, of a rank's sum,
     * over ranks. Of dz three more: 1 / S, the product, less the hit. */
    const double sums = (512.0 / DT_LANES + 4 + RANKS) * (double)FLT_EPSILON;
    for (int64_t i = 0; i < n; i++) {
        const double a = (double)many->dz[i], b = (double)one->dz[i];
        const bool hit = i % one->vocab == one->target[i / one->vocab];
        const double p = hit ? 1 / (double)one->valid : fabs(b);
        ck_assert_msg(fabs(a - b) <= (sums + 3 * (double)FLT_EPSILON) * p, "dz %lld: %.9g, %.9g",
                      (long long)i, a, b);
    }
    ck_assert_msg(fabs(many->loss - one->loss) <= sums + (double)FLT_EPSILON * fabs(one->loss),
                  "loss %.17g, not %.17g", many->loss, one->loss);
}

static const problem problems[] = {
    {.kind = ONE_RANK, .vocab = 4096, .ignore = true}, /* 2 blocks a rank */
    {.kind = PAIR, .vocab = 1280},
    {.kind = PAIR, .vocab = 1283},
    {.kind = PAIR, .vocab = 1283, .one_term = true},
    {.kind = EQUAL, .vocab = 1283, .ignore = true},
    {.kind = SCATTERED, .vocab = 1280},
    {.kind = SCATTERED, .vocab = 1283, .ignore = true},
    {.kind = SCATTERED, .vocab = 8195, .ignore = true},
};

START_TEST(split_is_whole)
{
    const int l = _i % 3;
    problem one = problems[_i / 3];
    one.axes = (dt_mesh_options){.axes = {{"dp", 1}, {"tp", 1}}};
    one.logits = one.targets = "";
    fill(&one);
    problem many = one;
    many.axes = layouts[l].axes;
    many.logits = layouts[l].logits;
    many.targets = layouts[l].targets;
    many.dz = malloc((size_t)(TOKENS * one.vocab) * sizeof *many.dz);
    ck_assert(many.dz);
    test_ranks(1, body, &one);
    test_ranks(RANKS, body, &many);
    const bool same_sums = one.kind != SCATTERED || l == 2;
    check(&many, &one, same_sums, same_sums && (one.one_term || !layouts[l].splits_tokens));
    free(many.dz);
    forget(&one);
}
END_TEST

/* ---- the other form ---- */

enum { WIDTH = 51 }; /* of the vocabulary: w is the identity, so that logits are x */

/* Gradients of x through both; tokens of a rank are one chunk, as one sum of losses. */
static dt_status forms_body(dt_world *world, void *arg)
{
    const problem *p = arg;
    dt_mesh *mesh;
    dt_tape *tape;
    dt_tensor *x[2], *w, *target;
    double loss[2];
    float grad[2][TOKENS * WIDTH], identity[WIDTH * WIDTH];
    const dt_cross_entropy_options o = {.valid = p->valid, .chunk = TOKENS};
    for (int i = 0; i < WIDTH * WIDTH; i++)
        identity[i] = i % (WIDTH + 1) == 0 ? 1 : 0;
    DT_TRY(dt_mesh_create(world, test_device(world), &p->axes, &mesh));
    DT_TRY(host_leaf(mesh, DT_SHAPE(TOKENS), p->targets, DT_I32, p->target, &target));
    DT_TRY(host_leaf(mesh, DT_SHAPE(WIDTH, WIDTH), "S(0)@tp", DT_F32, identity, &w));
    DT_TRY(dt_tape_create(mesh, NULL, &tape));
    for (int i = 0; i < 2; i++) {
        DT_TRY(host_leaf(mesh, DT_SHAPE(TOKENS, WIDTH), i ? p->targets : p->logits, DT_F32, p->z,
                         &x[i]));
        dt_tape_reset(tape, NULL);
        dt_tensor *y = i ? dt_linear_cross_entropy(tape, x[1], w, target, &o)
                         : dt_cross_entropy(tape, x[0], target, &o);
        DT_TRY(dt_backward(tape, y));
        DT_TRY(dt_tensor_item_sync(y, &loss[i]));
        DT_TRY(read_grad(x[i], grad[i]));
        dt_tensor_destroy(&x[i]);
    }
    TEST_THAT(loss[0] == loss[1], "losses %.17g and %.17g", loss[0], loss[1]);
    for (int i = 0; i < TOKENS * WIDTH; i++)
        TEST_THAT(grad[0][i] == grad[1][i], "element %d: %.9g and %.9g", i, (double)grad[0][i],
                  (double)grad[1][i]);
    dt_tensor_destroy(&w);
    dt_tensor_destroy(&target);
    dt_tape_destroy(&tape);
    dt_mesh_destroy(&mesh);
    return DT_OK;
}

START_TEST(forms_agree)
{
    problem p = {.kind = SCATTERED,
                 .vocab = WIDTH,
                 .ignore = _i / 2,
                 .axes = layouts[_i % 2].axes,
                 .logits = layouts[_i % 2].logits,
                 .targets = layouts[_i % 2].targets};
    fill(&p);
    test_ranks(RANKS, forms_body, &p);
    forget(&p);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("bits of losses");
    TCase *tc = tcase_create("bits");
    tcase_set_timeout(tc, 100);
    tcase_add_loop_test(tc, split_is_whole, 0, 3 * DT_COUNT(problems));
    tcase_add_loop_test(tc, forms_agree, 0, 4);
    suite_add_tcase(suite, tc);
    return test_main(suite);
}
