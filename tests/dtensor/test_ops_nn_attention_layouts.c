/* tests/dtensor/test_ops_nn_attention_layouts.c - attention where heads or the sequence are split:
 * context parallel in order and permuted, more ranks than kv heads; and its memory. */
#include "tests/dtensor/host_leaf.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { HEADS = 4, KV = 2, SEQ = 70, DIM = 4, NQ = HEADS * SEQ * DIM, NK = KV * SEQ * DIM };

typedef struct attention_case {
    dt_axis axes[3];
    const char *q, *kv, *positions; /* layouts; positions NULL: left out */
    bool permuted;                  /* the sequence is stored in another order */
    float *y, *dq, *dk;             /* of one rank, in order */
} attention_case;

/* The position that is stored at s: head-tail order, as balanced context parallelism uses. */
static int place(const attention_case *c, int s)
{
    return !c->permuted ? s : s % 2 ? SEQ - 1 - s / 2 : s / 2;
}

/* x [heads, SEQ, DIM] in the stored order. */
static void arrange(const attention_case *c, int heads, int64_t seed, float *out)
{
    for (int h = 0; h < heads; h++)
        for (int s = 0; s < SEQ; s++)
            for (int d = 0; d < DIM; d++)
                out[(h * SEQ + s) * DIM + d] =
                    host_number(seed + (h * SEQ + place(c, s)) * DIM + d);
}

static dt_status compare(const attention_case *c, dt_tensor *x, int heads, float *want,
                         const char *what)
{
    float *got = malloc((size_t)(heads * SEQ * DIM) * sizeof *got);
    TEST_THAT(got, "memory");
    DT_TRY(dt_tensor_read_f32_sync(x, got));
    double worst = 0;
    for (int i = 0; i < heads * SEQ * DIM; i++) {
        const int s = i / DIM % SEQ, at = (i / DIM / SEQ * SEQ + place(c, s)) * DIM + i % DIM;
        if (c->permuted || c->axes[0].size > 1)
            worst = test_larger(fabs((double)got[i] - (double)want[at]), worst);
        else
            want[at] = got[i];
    }
    free(got);
    TEST_THAT(worst <= 2e-6, "%s differs by %g", what, worst);
    return DT_OK;
}

static dt_status compare_grad(const attention_case *c, dt_tensor *x, int heads, float *want,
                              const char *what)
{
    dt_tensor *g;
    DT_TRY(dt_from_array(dt_tensor_grad(x)->layout, &dt_tensor_grad(x)->array, &g));
    const dt_status st = compare(c, g, heads, want, what);
    dt_tensor_destroy(&g);
    return st;
}

static dt_status attention_body(dt_world *world, void *arg)
{
    const attention_case *c = arg;
    dt_mesh_options axes = {0};
    memcpy(axes.axes, c->axes, sizeof c->axes);
    dt_mesh *mesh;
    dt_tape *tape;
    dt_tensor *q, *k, *v, *q_pos = NULL, *k_pos = NULL, *dy;
    float *host = malloc(NQ * sizeof *host);
    int32_t position[SEQ];
    TEST_THAT(host, "memory");
    DT_TRY(dt_mesh_create(world, test_device(world), &axes, &mesh));
    DT_TRY(dt_tape_create(mesh, NULL, &tape));
    arrange(c, HEADS, 0, host);
    DT_TRY(host_leaf(mesh, DT_SHAPE(1, HEADS, SEQ, DIM), c->q, DT_F32, host, &q));
    arrange(c, KV, 5000, host);
    DT_TRY(host_leaf(mesh, DT_SHAPE(1, KV, SEQ, DIM), c->kv, DT_F32, host, &k));
    arrange(c, KV, 9000, host);
    DT_TRY(host_leaf(mesh, DT_SHAPE(1, KV, SEQ, DIM), c->kv, DT_F32, host, &v));
    for (int s = 0; s < SEQ; s++)
        position[s] = place(c, s);
    if (c->positions) {
        DT_TRY(host_leaf(mesh, DT_SHAPE(SEQ), c->positions, DT_I32, position, &q_pos));
        DT_TRY(host_leaf(mesh, DT_SHAPE(SEQ), "", DT_I32, position, &k_pos));
    }
    dt_tensor *y = dt_attention(
        tape, q, k, v, &(dt_attention_options){.q_positions = q_pos, .k_positions = k_pos});
    DT_TRY(dt_tape_status(tape));
    DT_TRY(compare(c, y, HEADS, c->y, "y"));
    arrange(c, HEADS, 20000, host);
    DT_TRY(host_leaf(mesh, DT_SHAPE(1, HEADS, SEQ, DIM), c->q, DT_F32, host, &dy));
    const dt_local grad = {dt_tensor_layout(dy), *dt_tensor_local(dy)};
    DT_TRY(dt_backward_from(tape, 1, &y, &grad));
    DT_TRY(compare_grad(c, q, HEADS, c->dq, "dq"));
    DT_TRY(compare_grad(c, k, KV, c->dk, "dk"));
    dt_tensor *all[] = {q, k, v, dy, q_pos, k_pos};
    for (int i = 0; i < DT_COUNT(all); i++)
        dt_tensor_destroy(&all[i]);
    free(host);
    dt_tape_destroy(&tape);
    dt_mesh_destroy(&mesh);
    return DT_OK;
}

START_TEST(test_attention_layouts)
{
    static float y[NQ], dq[NQ], dk[NK];
    attention_case cases[] = {
        {.axes = {{"tp", 1}}, .q = "", .kv = ""},
        {.axes = {{"tp", 1}}, .q = "", .kv = "", .positions = "", .permuted = true},
        /* Context parallel, in order and balanced. */
        {.axes = {{"cp", 4}}, .q = "S(2)@cp", .kv = ""},
        {.axes = {{"cp", 4}}, .q = "S(2)@cp", .kv = "", .positions = "S(0)@cp", .permuted = true},
        /* More ranks than kv heads: kv split on tp_kv alone, or not at all. */
        {.axes = {{"tp_kv", 2}, {"tp_rep", 2}}, .q = "S(1)@tp_kv>tp_rep", .kv = "S(1)@tp_kv"},
        {.axes = {{"tp", 4}}, .q = "S(1)@tp", .kv = ""},
        {.axes = {{"tp", 3}}, .q = "S(1)@tp", .kv = ""},
        {.axes = {{"cp", 2}, {"tp", 2}}, .q = "S(2)@cp, S(1)@tp", .kv = "S(1)@tp"},
    };
    for (int i = 0; i < DT_COUNT(cases); i++) {
        cases[i].y = y;
        cases[i].dq = dq;
        cases[i].dk = dk;
        test_ranks(cases[i].axes[0].size * (cases[i].axes[1].name ? cases[i].axes[1].size : 1),
                   attention_body, &cases[i]);
    }
}
END_TEST

/* Nothing of the size of S x S: activations are out and lse, the rest are positions. */
static dt_status memory_body(dt_world *world, void *arg)
{
    (void)arg;
    enum { S = 1024, D = 8 };
    dt_mesh *mesh;
    dt_tape *tape;
    dt_tensor *x[3];
    const dt_layout *layout;
    DT_TRY(
        dt_mesh_create(world, test_device(world), &(dt_mesh_options){.axes = {{"tp", 1}}}, &mesh));
    DT_TRY(dt_tape_create(mesh, NULL, &tape));
    DT_TRY(dt_mesh_layout_text(mesh, DT_SHAPE(1, 2, S, D), "", &layout));
    for (int i = 0; i < 3; i++) {
        DT_TRY(dt_full_value(layout, DT_F32, 0.5, &x[i]));
        dt_tensor_set_requires_grad(x[i], true);
    }
    const dt_heap_stats before = dt_heap_get_stats(dt_mesh_heap(mesh));
    dt_heap_reset_peaks(dt_mesh_heap(mesh));
    dt_tensor *y = dt_attention(tape, x[0], x[1], x[2], NULL);
    DT_TRY(dt_backward(tape, dt_sum(tape, y, 0)));
    const dt_heap_stats after = dt_heap_get_stats(dt_mesh_heap(mesh));
    TEST_THAT(after.peak[DT_TAG_ACTIVATION] - before.live[DT_TAG_ACTIVATION] ==
                  (2 * S * D + 2 * S + 1) * (int64_t)sizeof(float),
              "activations %lld bytes", (long long)after.peak[DT_TAG_ACTIVATION]);
    TEST_THAT(after.peak[DT_TAG_WORKSPACE] <= 2 * S * (int64_t)sizeof(int32_t), "work %lld bytes",
              (long long)after.peak[DT_TAG_WORKSPACE]);
    for (int i = 0; i < 3; i++)
        dt_tensor_destroy(&x[i]);
    dt_tape_destroy(&tape);
    dt_mesh_destroy(&mesh);
    return DT_OK;
}

START_TEST(test_attention_memory)
{
    test_ranks(1, memory_body, NULL);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("attention: layouts");
    TCase *tc = tcase_create("layouts");
    tcase_set_timeout(tc, 100);
    tcase_add_test(tc, test_attention_layouts);
    tcase_add_test(tc, test_attention_memory);
    suite_add_tcase(suite, tc);
    return test_main(suite);
}
