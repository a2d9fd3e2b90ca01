/* tests/dtensor/test_ops_nn_loss.c - cross-entropy in both forms: a split vocabulary and its
 * collectives, ignored targets, bad targets, memory of the chunked form. Expected values come from
 * the formula, in f64. Cases O8 and O12 of the map of PyTorch's tests. */
#include "tests/dtensor/host_leaf.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct problem {
    int64_t tokens, vocab;
    bool ignore; /* three targets in ten */
    float *z;    /* [tokens, vocab] */
    int32_t *target;
    int64_t valid;
    double loss;
    float *dz;
} problem;

static void solve(problem *p)
{
    const int64_t n = p->tokens * p->vocab;
    p->z = malloc((size_t)n * sizeof *p->z);
    p->dz = calloc((size_t)n, sizeof *p->dz);
    p->target = malloc((size_t)p->tokens * sizeof *p->target);
    ck_assert(p->z && p->dz && p->target);
    for (int64_t i = 0; i < n; i++)
        p->z[i] = 3 * host_number(i);
    for (int64_t t = 0; t < p->tokens; t++) {
        p->target[t] = p->ignore && t % 10 < 3 ? -100 : (int32_t)((t * 7919 + 13) % p->vocab);
        p->valid += p->target[t] != -100;
    }
    for (int64_t t = 0; t < p->tokens; t++) {
        const float *z = p->z + t * p->vocab;
        double sum = 0;
        for (int64_t v = 0; v < p->vocab; v++)
            sum += exp((double)z[v]);
        if (p->target[t] == -100)
            continue;
        p->loss += (log(sum) - (double)z[p->target[t]]) / (double)p->valid;
        for (int64_t v = 0; v < p->vocab; v++)
            p->dz[t * p->vocab + v] =
                (float)((exp((double)z[v]) / sum - (v == p->target[t])) / (double)p->valid);
    }
}

static void forget(problem *p)
{
    free(p->z);
    free(p->dz);
    free(p->target);
}

/* max |gathered gradient of x - want| <= tol * max |want|. */
static dt_status check_grad(dt_tensor *x, const float *want, double tol)
{
    const int64_t n = dt_shape_count(dt_tensor_shape(x));
    dt_local *grad = dt_tensor_grad(x);
    dt_tensor *g;
    float *got = malloc((size_t)n * sizeof *got);
    TEST_THAT(got && grad->array.storage, "no gradient");
    DT_TRY(dt_from_array(grad->layout, &grad->array, &g));
    DT_TRY(dt_tensor_read_f32_sync(g, got));
    const double diff = test_max_diff(got, want, n), limit = tol * test_max_abs(want, n);
    dt_tensor_destroy(&g);
    free(got);
    TEST_THAT(diff <= limit, "differs by %g, limit %g", diff, limit);
    return DT_OK;
}

static int64_t calls(dt_world *world, dt_call kind)
{
    return dt_world_counts(world).calls[kind];
}

/* ---- the split vocabulary ---- */

static dt_status run_split(dt_world *world, const problem *p, const dt_mesh_options *axes,
                           const char *logits, const char *targets)
{
    dt_mesh *mesh;
    dt_tape *tape;
    dt_tensor *z, *target;
    double loss;
    DT_TRY(dt_mesh_create(world, test_device(world), axes, &mesh));
    DT_TRY(dt_tape_create(mesh, NULL, &tape));
    DT_TRY(host_leaf(mesh, DT_SHAPE(p->tokens, p->vocab), logits, DT_F32, p->z, &z));
    DT_TRY(host_leaf(mesh, DT_SHAPE(p->tokens), targets, DT_I32, p->target, &target));
    dt_world_reset_counts(world);
    dt_tensor *y =
        dt_cross_entropy(tape, z, target, &(dt_cross_entropy_options){.valid = p->valid});
    DT_TRY(dt_tape_status(tape));
    TEST_THAT(dt_world_counts(world).total_calls == 3 && calls(world, DT_CALL_ALL_REDUCE) == 3,
              "forward");
    DT_TRY(dt_backward(tape, y));
    TEST_THAT(dt_world_counts(world).total_calls == 3, "backward moved data");
    DT_TRY(dt_tensor_item_sync(y, &loss));
    TEST_THAT(fabs(loss - p->loss) <= 1e-5, "loss %.9g, want %.9g", loss, p->loss);
    DT_TRY(check_grad(z, p->dz, 1e-5));
    dt_tensor_destroy(&z);
    dt_tensor_destroy(&target);
    dt_tape_destroy(&tape);
    dt_mesh_destroy(&mesh);
    return DT_OK;
}

static dt_status split_body(dt_world *world, void *arg)
{
    DT_TRY(run_split(world, arg, &(dt_mesh_options){.axes = {{"tp", 4}}}, "S(1)@tp", ""));
    return run_split(world, arg, &(dt_mesh_options){.axes = {{"dp", 2}, {"tp", 2}}},
                     "S(0)@dp, S(1)@tp", "S(0)@dp");
}

START_TEST(test_split_vocabulary)
{
    problem cases[] = {
        {.tokens = 128, .vocab = 32000},
        {.tokens = 128, .vocab = 32003},
        {.tokens = 128, .vocab = 32000, .ignore = true},
        {.tokens = 5, .vocab = 5, .ignore = true}}; /* the last rank of 4 has no column */
    for (int i = 0; i < DT_COUNT(cases); i++) {
        solve(&cases[i]);
        test_ranks(4, split_body, &cases[i]);
        forget(&cases[i]);
    }
}
END_TEST

/* Case O8: no bytes but for the split vocabulary, whose logits never move. */
static dt_status quiet_body(dt_world *world, void *arg)
{
    static const struct {
        const char *logits, *targets;
        int64_t calls;
    } rows[] = {
        {"", "", 0}, {"S(0)@tp", "S(0)@tp", 0}, {"S(1)@tp", "S(1)@tp", 0}, {"S(2)@tp", "", 3}};
    const problem *p = arg; /* tokens 8 * 16, vocab 12 */
    dt_mesh *mesh;
    dt_tape *tape;
    DT_TRY(
        dt_mesh_create(world, test_device(world), &(dt_mesh_options){.axes = {{"tp", 4}}}, &mesh));
    DT_TRY(dt_tape_create(mesh, NULL, &tape));
    for (int i = 0; i < DT_COUNT(rows); i++) {
        dt_tensor *z, *target;
        double loss;
        DT_TRY(host_leaf(mesh, DT_SHAPE(8, 16, 12), rows[i].logits, DT_F32, p->z, &z));
        DT_TRY(host_leaf(mesh, DT_SHAPE(8, 16), rows[i].targets, DT_I32, p->target, &target));
        dt_tape_reset(tape, NULL);
        dt_world_reset_counts(world);
        dt_tensor *y =
            dt_cross_entropy(tape, z, target, &(dt_cross_entropy_options){.valid = p->valid});
        DT_TRY(dt_backward(tape, y));
        TEST_THAT(dt_world_counts(world).total_calls == rows[i].calls, "row %d", i);
        DT_TRY(dt_tensor_item_sync(y, &loss));
        TEST_THAT(fabs(loss - p->loss) <= 1e-5, "row %d: loss %.9g, want %.9g", i, loss, p->loss);
        DT_TRY(check_grad(z, p->dz, 1e-5));
        dt_tensor_destroy(&z);
        dt_tensor_destroy(&target);
    }
    dt_tape_destroy(&tape);
    dt_mesh_destroy(&mesh);
    return DT_OK;
}

START_TEST(test_whole_vocabulary_moves_nothing)
{
    problem p = {.tokens = 128, .vocab = 12, .ignore = true};
    solve(&p);
    test_ranks(4, quiet_body, &p);
    forget(&p);
}
END_TEST

/* ---- refusals and edges ---- */

static dt_status edges_body(dt_world *world, void *arg)
{
    const problem *p = arg; /* 6 tokens, vocab 4 */
    dt_mesh *mesh;
    dt_tape *tape;
    dt_tensor *z, *target;
    double loss = 1;
    DT_TRY(
        dt_mesh_create(world, test_device(world), &(dt_mesh_options){.axes = {{"tp", 2}}}, &mesh));
    DT_TRY(dt_tape_create(mesh, NULL, &tape));
    DT_TRY(host_leaf(mesh, DT_SHAPE(2, 3, 4), "S(2)@tp", DT_F32, p->z, &z));
    /* No valid target at all. */
    const int32_t none[6] = {-100, -100, -100, -100, -100, -100};
    const float zeros[24] = {0};
    DT_TRY(host_leaf(mesh, DT_SHAPE(2, 3), "", DT_I32, none, &target));
    dt_tensor *y = dt_cross_entropy(tape, z, target, &(dt_cross_entropy_options){.valid = 0});
    DT_TRY(dt_tensor_item_sync(y, &loss));
    DT_TRY(dt_backward(tape, y));
    TEST_THAT(loss == 0, "loss %g", loss);
    DT_TRY(check_grad(z, zeros, 0));
    dt_tensor_destroy(&target);
    /* A gradient that is P on the vocabulary's axis would be summed twice. */
    DT_TRY(host_leaf(mesh, DT_SHAPE(2, 3), "", DT_I32, p->target, &target));
    dt_tape_reset(tape, NULL);
    y = dt_cross_entropy(tape, z, target, &(dt_cross_entropy_options){.valid = 6});
    dt_local grad = {.array = dt_array_share(dt_tensor_local(y))};
    DT_TRY(dt_mesh_layout_text(mesh, DT_SCALAR, "P@tp", &grad.layout));
    TEST_FAILS(DT_ERR_PLACEMENT, "must be R", dt_backward_from(tape, 1, &y, &grad));
    dt_array_release(&grad.array);
    dt_tensor_destroy(&target);
    /* A target past the vocabulary. */
    const int32_t bad[6] = {0, 1, 2, 3, 0, 4};
    DT_TRY(host_leaf(mesh, DT_SHAPE(2, 3), "", DT_I32, bad, &target));
    dt_tape_reset(tape, NULL);
    y = dt_cross_entropy(tape, z, target, &(dt_cross_entropy_options){.valid = 6});
    TEST_THAT(dt_tensor_is_failed(y), "accepted");
    TEST_FAILS(DT_ERR_ARG, "[1, 2] is 4, outside of the vocabulary [0, 4)", dt_tape_status(tape));
    dt_tensor_destroy(&target);
    dt_tensor_destroy(&z);
    dt_tape_destroy(&tape);
    dt_mesh_destroy(&mesh);
    return DT_OK;
}

START_TEST(test_edges)
{
    problem p = {.tokens = 6, .vocab = 4};
    solve(&p);
    test_ranks(2, edges_body, &p);
    forget(&p);
}
END_TEST

/* ---- chunks ---- */

enum { TOKENS = 64, WIDTH = 8, VOCAB = 256, CHUNK = 10 };

typedef struct head {
    float x[TOKENS * WIDTH], w[VOCAB * WIDTH];
    int32_t target[TOKENS];
} head;

/* The loss by two ops, then by one on another tape: values, gradients, collectives, memory. */
static dt_status chunks_body(dt_world *world, void *arg)
{
    const head *h = arg;
    const int ranks = dt_world_size(world);
    const dt_cross_entropy_options options = {.valid = TOKENS, .chunk = CHUNK, .ignore_index = 3};
    dt_mesh *mesh;
    dt_tape *tape;
    dt_tensor *x[2], *w[2], *target, *y;
    double loss[2];
    DT_TRY(dt_mesh_create(world, test_device(world), &(dt_mesh_options){.axes = {{"tp", ranks}}},
                          &mesh));
    DT_TRY(dt_tape_create(mesh, NULL, &tape));
    DT_TRY(host_leaf(mesh, DT_SHAPE(TOKENS), "", DT_I32, h->target, &target));
    for (int i = 0; i < 2; i++) {
        DT_TRY(host_leaf(mesh, DT_SHAPE(TOKENS, WIDTH), "", DT_F32, h->x, &x[i]));
        DT_TRY(host_leaf(mesh, DT_SHAPE(VOCAB, WIDTH), ranks > 1 ? "S(0)@tp" : "", DT_F32, h->w,
                         &w[i]));
        dt_tape_reset(tape, NULL);
        dt_world_reset_counts(world);
        dt_heap_reset_peaks(dt_mesh_heap(mesh));
        const dt_heap_stats before = dt_heap_get_stats(dt_mesh_heap(mesh));
        y = i ? dt_linear_cross_entropy(tape, x[1], w[1], target, &options)
              : dt_cross_entropy(tape, dt_linear(tape, x[0], w[0], NULL), target, &options);
        DT_TRY(dt_tape_status(tape));
        const dt_heap_stats after = dt_heap_get_stats(dt_mesh_heap(mesh));
        const int64_t local = (VOCAB + ranks - 1) / ranks, bytes = (int64_t)sizeof(float);
        if (i == 1) {
            const int64_t chunks = (TOKENS + CHUNK - 1) / CHUNK;
            TEST_THAT(calls(world, DT_CALL_ALL_REDUCE) == (ranks > 1 ? 3 * chunks : 0), "forward");
            TEST_THAT(after.peak[DT_TAG_WORKSPACE] - before.live[DT_TAG_WORKSPACE] ==
                          CHUNK * (local + (ranks > 1 ? 4 : 3)) * bytes + (int64_t)sizeof(double),
                      "work %lld bytes", (long long)after.peak[DT_TAG_WORKSPACE]);
            TEST_THAT(after.peak[DT_TAG_ACTIVATION] - before.live[DT_TAG_ACTIVATION] ==
                          (TOKENS * WIDTH + local * WIDTH + 1) * bytes,
                      "activations %lld bytes", (long long)after.peak[DT_TAG_ACTIVATION]);
        }
        const int64_t moved = dt_world_counts(world).total_calls;
        DT_TRY(dt_backward(tape, y));
        TEST_THAT(dt_world_counts(world).total_calls == moved, "backward moved data");
        DT_TRY(dt_tensor_item_sync(y, &loss[i]));
    }
    TEST_THAT(fabs(loss[0] - loss[1]) <= 1e-6, "losses %.9g and %.9g", loss[0], loss[1]);
    dt_tensor *pair[2][2] = {{x[0], x[1]}, {w[0], w[1]}};
    for (int k = 0; k < 2; k++) {
        dt_local *a = dt_tensor_grad(pair[k][0]), *b = dt_tensor_grad(pair[k][1]);
        const int64_t n = dt_array_count(&a->array);
        TEST_THAT(a->layout == b->layout, "gradients placed differently");
        TEST_THAT(test_max_diff(test_look(&a->array), test_look(&b->array), n) <=
                      1e-5 * test_max_abs(test_look(&a->array), n),
                  "gradients of operand %d differ", k);
        dt_tensor_destroy(&pair[k][0]);
        dt_tensor_destroy(&pair[k][1]);
    }
    dt_tensor_destroy(&target);
    dt_tape_destroy(&tape);
    dt_mesh_destroy(&mesh);
    return DT_OK;
}

START_TEST(test_chunks)
{
    static head h;
    for (int i = 0; i < TOKENS * WIDTH; i++)
        h.x[i] = host_number(i);
    for (int i = 0; i < VOCAB * WIDTH; i++)
        h.w[i] = host_number(i + 5000);
    for (int i = 0; i < TOKENS; i++)
        h.target[i] = i * 37 % VOCAB;
    test_ranks(1, chunks_body, &h);
    test_ranks(4, chunks_body, &h);
}
END_TEST

/* ---- 16 bits ---- */

/* bf16 operands are computed on in f32: the loss is that of the rounded values, bit for bit. */
static dt_status half_body(dt_world *world, void *arg)
{
    const head *h = arg;
    const dt_cross_entropy_options options = {.valid = TOKENS, .chunk = CHUNK};
    dt_mesh *mesh;
    dt_tape *tape;
    dt_tensor *x, *w, *target;
    double loss[2][2];
    DT_TRY(
        dt_mesh_create(world, test_device(world), &(dt_mesh_options){.axes = {{"tp", 1}}}, &mesh));
    DT_TRY(dt_tape_create(mesh, NULL, &tape));
    DT_TRY(host_leaf(mesh, DT_SHAPE(TOKENS), "", DT_I32, h->target, &target));
    DT_TRY(host_leaf(mesh, DT_SHAPE(TOKENS, WIDTH), "", DT_F32, h->x, &x));
    DT_TRY(host_leaf(mesh, DT_SHAPE(VOCAB, WIDTH), "", DT_F32, h->w, &w));
    for (int i = 0; i < 2; i++) {
        dt_tape_reset(tape, NULL);
        dt_tensor *x16 = dt_cast(tape, x, DT_BF16, false), *w16 = dt_cast(tape, w, DT_BF16, false);
        dt_tensor *xi = i ? x16 : dt_cast(tape, x16, DT_F32, false);
        dt_tensor *wi = i ? w16 : dt_cast(tape, w16, DT_F32, false);
        dt_tensor *fused = dt_linear_cross_entropy(tape, xi, wi, target, &options);
        dt_tensor *plain = dt_cross_entropy(
            tape, xi, target, &(dt_cross_entropy_options){.valid = 1, .ignore_index = -1});
        DT_TRY(dt_tape_status(tape));
        TEST_THAT(dt_tensor_dtype(fused) == DT_F32 && dt_tensor_dtype(plain) == DT_F32,
                  "a 16-bit loss");
        DT_TRY(dt_tensor_item_sync(fused, &loss[i][0]));
        DT_TRY(dt_tensor_item_sync(plain, &loss[i][1]));
        DT_TRY(dt_backward(tape, dt_add(tape, fused, plain)));
    }
    TEST_THAT(!memcmp(loss[0], loss[1], sizeof loss[0]), "other losses in 16 bits");
    dt_tensor_destroy(&x);
    dt_tensor_destroy(&w);
    dt_tensor_destroy(&target);
    dt_tape_destroy(&tape);
    dt_mesh_destroy(&mesh);
    return DT_OK;
}

START_TEST(test_half)
{
    static head h;
    for (int i = 0; i < TOKENS * WIDTH; i++)
        h.x[i] = host_number(i);
    for (int i = 0; i < VOCAB * WIDTH; i++)
        h.w[i] = host_number(i + 5000);
    for (int i = 0; i < TOKENS; i++)
        h.target[i] = i % WIDTH;
    test_ranks(1, half_body, &h);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("losses");
    TCase *tc = tcase_create("losses");
    tcase_set_timeout(tc, 100);
    tcase_add_test(tc, test_split_vocabulary);
    tcase_add_test(tc, test_whole_vocabulary_moves_nothing);
    tcase_add_test(tc, test_edges);
    tcase_add_test(tc, test_chunks);
    tcase_add_test(tc, test_half);
    suite_add_tcase(suite, tc);
    return test_main(suite);
}
