/* tests/nn/test_recompute.c - recomputation against plain runs: equal bits of every gradient, bytes
 * saved and peaks by formula. Hooks, communication, failures: test_recompute_hooks.c. */
#include "nn/dt_layers.h"
#include "nn/dt_recompute.h"
#include "tests/harness.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A stack of Llama blocks: B samples, S positions, N hidden, H heads, G of keys, D dim of a head, I
 * inner. */
enum { B = 3, S = 5, N = 8, H = 4, G = 2, D = 4, I = 12, MOST_BLOCKS = 3 };

typedef struct stack {
    dt_mesh *mesh;
    dt_heap *heap;
    dt_module *root, *block[MOST_BLOCKS];
    dt_tensor *x; /* a leaf that wants a gradient, S(0)@dp */
    int blocks;
    bool twice; /* residual: each block is called again after the last one */
} stack;

static dt_status block(dt_module **out)
{
    const dt_attention_layer_options attention = {.n = N,
                                                  .heads = H,
                                                  .kv_heads = G,
                                                  .head_dim = D,
                                                  .rope.theta = 100,
                                                  .std = 0.3,
                                                  .dropout = 0.25};
    dt_block_parts p = {"norm1", "attn", "norm2", "mlp", NULL, NULL, NULL, NULL};
    DT_TRY(dt_layer_rmsnorm(N, 1e-5, &p.norm1));
    DT_TRY(dt_layer_attention(&attention, &p.mixer));
    DT_TRY(dt_layer_rmsnorm(N, 1e-5, &p.norm2));
    DT_TRY(dt_layer_swiglu_mlp(N, I, false, 0.3, 0.25, &p.mlp));
    DT_TRY(dt_layer_block(&p, out));
    return DT_OK;
}

static dt_status open_stack(dt_world *world, int blocks, stack *s)
{
    const dt_mesh_options axes = {.axes = {{"dp", dt_world_size(world)}}};
    const dt_layout *layout = NULL;
    float host[B * S * N];
    *s = (stack){.blocks = blocks};
    DT_TRY(dt_mesh_create(world, test_device(world), &axes, &s->mesh));
    s->heap = dt_mesh_heap(s->mesh);
    DT_TRY(dt_layer_group(&s->root));
    for (int i = 0; i < blocks; i++) {
        char name[2] = {(char)('0' + i), '\0'};
        DT_TRY(block(&s->block[i]));
        DT_TRY(dt_module_add(s->root, name, s->block[i]));
    }
    DT_TRY(dt_module_finish(s->root));
    DT_TRY(dt_module_materialize(s->root, s->mesh, 7));
    for (int i = 0; i < B * S * N; i++)
        host[i] = (float)((i * 37) % 23 - 11) / 8.0f;
    DT_TRY(dt_mesh_layout_text(s->mesh, DT_SHAPE(B, S, N), "S(0)@dp", &layout));
    DT_TRY(dt_distribute(layout, DT_F32, host, &s->x));
    dt_tensor_set_requires_grad(s->x, true);
    return DT_OK;
}

static void close_stack(stack *s)
{
    dt_tensor_destroy(&s->x);
    dt_module_destroy(&s->root);
    dt_mesh_destroy(&s->mesh);
}

static const dt_tape_options microbatch = {.seed = 5, .step = 3, .first_sample = 4};

/* x + block(x) again and again, so that the inputs of blocks have gradients before the blocks give
 * theirs; then the sum of squares. */
static dt_tensor *residual(stack *s, dt_tape *t)
{
    dt_tensor *x = s->x;
    for (int i = 0; i < (s->twice ? 2 : 1) * s->blocks; i++)
        x = dt_add(t, dt_module_call1(s->block[i % s->blocks], t, x), x);
    return dt_sum(t, dt_mul(t, x, x), 0);
}

static dt_tensor *plain(stack *s, dt_tape *t)
{
    dt_tensor *x = dt_module_sequence(s->block, s->blocks, t, s->x);
    return dt_sum(t, dt_mul(t, x, x), 0);
}

static dt_status walk(dt_tape *t, dt_tensor *loss, bool split)
{
    if (!split)
        return dt_backward(t, loss);
    const dt_layout dual = dt_layout_dual(dt_tensor_layout(loss));
    dt_local one = {0};
    DT_TRY(dt_mesh_layout(dt_tape_mesh(t), &dual, &one.layout));
    DT_TRY(dt_array_create(dt_mesh_heap(dt_tape_mesh(t)), DT_F32, DT_SCALAR, DT_TAG_GRADIENT,
                           &one.array));
    dt_array_fill(&one.array, 1);
    dt_status st = dt_backward_input(t, 1, &loss, &one);
    if (st == DT_OK)
        st = dt_backward_weight(t);
    dt_array_release(&one.array);
    return st;
}

/* ---- equal bits ---- */

/* Gradients of the parameters and of x, which the caller releases. */
enum { MOST_GRADS = 64 };
typedef struct grads {
    int n;
    dt_local of[MOST_GRADS];
} grads;

static void take(dt_tensor *x, grads *g)
{
    dt_local *grad = dt_tensor_grad(x);
    g->of[g->n].layout = grad->layout;
    g->of[g->n++].array = grad->array.storage ? dt_array_share(&grad->array) : (dt_array){0};
    dt_tensor_clear_grad(x);
}

static void release(grads *g)
{
    for (int i = 0; i < g->n; i++)
        dt_array_release(&g->of[i].array);
    g->n = 0;
}

static dt_status same_bits(const grads *a, const grads *b)
{
    TEST_THAT(a->n == b->n, "%d and %d gradients", a->n, b->n);
    for (int i = 0; i < a->n; i++) {
        const dt_array *x = &a->of[i].array, *y = &b->of[i].array;
        TEST_THAT(x->storage && y->storage, "gradient %d is missing", i);
        TEST_THAT(a->of[i].layout == b->of[i].layout, "gradient %d is placed otherwise", i);
        TEST_THAT(dt_array_count(x) == 0 ||
                      memcmp(test_look(x), test_look(y), dt_array_bytes(x)) == 0,
                  "gradient %d has other bits", i);
    }
    return DT_OK;
}

static dt_status gradients(stack *s, bool split, grads *g)
{
    dt_tape *t = NULL;
    int n = 0;
    dt_param *const *p = dt_module_params(s->root, &n);
    DT_TRY(dt_tape_create(s->mesh, &microbatch, &t));
    DT_TRY(walk(t, residual(s, t), split));
    dt_tape_destroy(&t);
    g->n = 0;
    for (int i = 0; i < n; i++)
        take(p[i]->tensor, g);
    take(s->x, g);
    return DT_OK;
}

/* What is marked: block 0 and 1, and their mlp and attention. */
static const dt_recompute_policy NO = DT_RECOMPUTE_NONE, FULL = DT_RECOMPUTE_FULL,
                                 PART = DT_RECOMPUTE_SELECTIVE;

static dt_status bits_body(dt_world *world, void *arg)
{
    const struct {
        dt_recompute_policy block0, block1, attn, mlp;
    } marks[] = {{FULL, FULL, NO, NO},     {PART, PART, NO, NO},    {FULL, PART, NO, NO},
                 {NO, FULL, NO, NO},       {NO, NO, PART, FULL},    {FULL, FULL, FULL, PART},
                 {PART, PART, PART, FULL}, {PART, FULL, FULL, FULL}};
    stack s;
    grads want, got;
    DT_TRY(open_stack(world, 2, &s));
    s.twice = *(bool *)arg;
    DT_TRY(gradients(&s, false, &want));
    const int64_t live = dt_heap_get_stats(s.heap).live_total;
    for (int i = 0; i < 2 * DT_COUNT(marks); i++) {
        dt_recompute(s.block[0], marks[i / 2].block0);
        dt_recompute(s.block[1], marks[i / 2].block1);
        for (int k = 0; k < 2; k++) {
            dt_recompute(dt_module_find(s.block[k], "attn"), marks[i / 2].attn);
            dt_recompute(dt_module_find(s.block[k], "mlp"), marks[i / 2].mlp);
        }
        DT_TRY(gradients(&s, i % 2, &got));
        DT_TRY(same_bits(&got, &want));
        release(&got);
        TEST_THAT(dt_heap_get_stats(s.heap).live_total == live, "marks %d leave memory", i);
    }
    release(&want);
    close_stack(&s);
    return DT_OK;
}

START_TEST(gradients_have_equal_bits)
{
    bool twice[] = {false, true};
    test_ranks(_i, bits_body, &twice[0]);
    test_ranks(_i, bits_body, &twice[1]);
}
END_TEST

/* ---- inputs and outputs of every sort ---- */

/* {a, b} -> {a b w, a (its own input), w / 4 (made of a parameter alone), nothing}. */
static dt_values sorts_forward(dt_module *m, dt_tape *t, const dt_values *in)
{
    dt_tensor *w = dt_module_param(m, "w")->tensor, *a = in->value[0];
    dt_tensor *ab = dt_mul(t, dt_mul(t, a, in->value[1]), w);
    return (dt_values){.n = 4, .value = {dt_dropout(t, ab, 0.5), a, dt_scale(t, w, 0.25), NULL}};
}

/* Which operands the module gets: 0: x and its square; 1: the square twice; 2: x twice; 3: a tensor
 * made of the parameter alone, and the square. */
static dt_status sorts(dt_module *m, dt_mesh *mesh, dt_tensor *x, int which, bool split, grads *g)
{
    dt_tape *t = NULL;
    dt_tensor *w = dt_module_param(m, "w")->tensor;
    DT_TRY(dt_tape_create(mesh, &microbatch, &t));
    dt_tensor *square = dt_mul(t, x, x), *wide = dt_scale(t, w, 3);
    dt_tensor *const a[] = {x, square, x, wide}, *const b[] = {square, square, x, square};
    const dt_values y = dt_module_call(m, t, &(dt_values){.n = 2, .value = {a[which], b[which]}});
    TEST_THAT(y.n == 4 && y.value[1] == a[which] && !y.value[3], "outputs are passed on");
    dt_tensor *all = dt_mul(t, dt_add(t, y.value[0], y.value[1]), y.value[2]);
    all = dt_add(t, dt_mul(t, all, wide), dt_add(t, square, dt_mul(t, w, x)));
    DT_TRY(walk(t, dt_sum(t, all, 0), split));
    dt_tape_destroy(&t);
    g->n = 0;
    take(x, g);
    take(w, g);
    return DT_OK;
}

static dt_status sorts_body(dt_world *world, void *arg)
{
    (void)arg;
    static const dt_module_kind kind = {"sorts", 0, sorts_forward};
    const float host[8] = {1, -2, 0.3f, 4, 0.1f, 7, -0.6f, 9};
    stack s;
    dt_module *m = NULL;
    dt_tensor *x = NULL;
    const dt_layout *layout = NULL;
    grads want, got;
    DT_TRY(open_stack(world, 0, &s));
    DT_TRY(dt_module_create(&kind, &m));
    DT_TRY(dt_module_add_param(m, "w", DT_SHAPE(8), NULL, (dt_init){DT_INIT_NORMAL, 1}, NULL));
    DT_TRY(dt_module_finish(m));
    DT_TRY(dt_module_materialize(m, s.mesh, 1));
    DT_TRY(dt_mesh_layout_text(s.mesh, DT_SHAPE(8), "", &layout));
    DT_TRY(dt_distribute(layout, DT_F32, host, &x));
    dt_tensor_set_requires_grad(x, true);
    for (int which = 0; which < 4; which++) {
        dt_recompute(m, NO);
        DT_TRY(sorts(m, s.mesh, x, which, false, &want));
        for (int i = 0; i < 4; i++) {
            dt_recompute(m, i < 2 ? FULL : PART);
            DT_TRY(sorts(m, s.mesh, x, which, i % 2, &got));
            DT_TRY(same_bits(&got, &want));
            release(&got);
        }
        release(&want);
    }
    dt_tensor_destroy(&x);
    dt_module_destroy(&m);
    close_stack(&s);
    return DT_OK;
}

START_TEST(inputs_and_outputs_of_every_sort)
{
    test_ranks(1, sorts_body, NULL);
}
END_TEST

/* ---- memory ---- */

enum { X_BYTES = 4 * B * S * N };

/* After forward: saved bytes; over the whole step: the peak of activations above what was there. */
static dt_status measure(dt_world *world, int blocks, dt_recompute_policy policy, int64_t *saved,
                         int64_t *peak)
{
    stack s;
    dt_tape *t = NULL;
    DT_TRY(open_stack(world, blocks, &s));
    for (int i = 0; i < blocks; i++)
        dt_recompute(s.block[i], policy);
    DT_TRY(dt_tape_create(s.mesh, &microbatch, &t));
    const int64_t before = dt_heap_get_stats(s.heap).live[DT_TAG_ACTIVATION];
    dt_heap_reset_peaks(s.heap);
    dt_tensor *loss = plain(&s, t);
    *saved = dt_tape_saved_bytes(t);
    DT_TRY(dt_backward(t, loss));
    *peak = dt_heap_get_stats(s.heap).peak[DT_TAG_ACTIVATION] - before;
    dt_tape_destroy(&t);
    close_stack(&s);
    return DT_OK;
}

static dt_status memory_body(dt_world *world, void *arg)
{
    (void)arg;
    /* products: q, k, v, o, gate, up, down; attention: its output and a number a row */
    const int64_t products = 4 * B * S * (H * D + 2 * G * D + N + 2 * I + N);
    const int64_t attention = 4 * B * S * (H * D + H);
    const int64_t square = X_BYTES; /* the last output, saved by x x */
    int64_t saved[3][MOST_BLOCKS + 1], peak[3][MOST_BLOCKS + 1];
    for (int l = 1; l <= MOST_BLOCKS; l++) {
        DT_TRY(measure(world, l, NO, &saved[0][l], &peak[0][l]));
        DT_TRY(measure(world, l, FULL, &saved[1][l], &peak[1][l]));
        DT_TRY(measure(world, l, PART, &saved[2][l], &peak[2][l]));
        TEST_THAT(saved[1][l] == l * X_BYTES + square, "full, %d blocks: %lld", l,
                  (long long)saved[1][l]);
        TEST_THAT(saved[2][l] == l * (X_BYTES + products + attention) + square,
                  "selective, %d blocks: %lld", l, (long long)saved[2][l]);
    }
    const int64_t each = saved[0][2] - saved[0][1]; /* activations of a block */
    TEST_THAT(each > X_BYTES + products + attention, "none saves most: %lld", (long long)each);
    for (int l = 1; l < MOST_BLOCKS; l++) {
        TEST_THAT(peak[0][l + 1] - peak[0][l] == each, "none: a block costs %lld",
                  (long long)(peak[0][l + 1] - peak[0][l]));
        TEST_THAT(peak[1][l + 1] - peak[1][l] == X_BYTES, "full: a block costs its input, not %lld",
                  (long long)(peak[1][l + 1] - peak[1][l]));
        TEST_THAT(peak[2][l + 1] - peak[2][l] == X_BYTES + products + attention,
                  "selective: a block costs %lld", (long long)(peak[2][l + 1] - peak[2][l]));
    }
    /* and one block in full, while the output, its square and the loss exist */
    TEST_THAT(peak[1][1] <= peak[0][1] + 2 * X_BYTES + 4, "full: %lld, a block alone %lld",
              (long long)peak[1][1], (long long)peak[0][1]);
    return DT_OK;
}

START_TEST(memory_by_formula)
{
    test_ranks(1, memory_body, NULL);
}
END_TEST

/* ---- nodes, lines ---- */

static void find_line(void *arg, const char *line)
{
    if (strstr(line, "recompute") && strstr(line, " 1  saves 480 B"))
        ++*(int *)arg;
}

static dt_status nodes_body(dt_world *world, void *arg)
{
    (void)arg;
    stack s;
    dt_tape *t = NULL;
    int found = 0;
    DT_TRY(open_stack(world, 2, &s));
    dt_recompute(s.block[0], FULL);
    dt_recompute(s.block[1], FULL);
    DT_TRY(dt_tape_create(s.mesh, &microbatch, &t));
    (void)plain(&s, t);
    TEST_THAT(dt_tape_nodes(t) == 2 + 2, "a node a block, and of x x and its sum, not %lld",
              (long long)dt_tape_nodes(t));
    dt_tape_print(t, find_line, &found);
    TEST_THAT(found == 1, "block 1 has a line with %d bytes", X_BYTES);
    dt_tape_options o = microbatch;
    o.no_grad = true;
    dt_tape_reset(t, &o);
    (void)plain(&s, t);
    TEST_THAT(dt_tape_nodes(t) == 0 && dt_tape_status(t) == DT_OK, "no gradients, no nodes");
    dt_recompute_policy p = NO;
    DT_TRY(dt_recompute_parse("selective", &p));
    TEST_THAT(p == PART, "selective");
    TEST_FAILS(DT_ERR_ARG, "legal: none, full, selective", dt_recompute_parse("some", &p));
    dt_tape_destroy(&t);
    close_stack(&s);
    return DT_OK;
}

START_TEST(one_node_a_call)
{
    test_ranks(1, nodes_body, NULL);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("recompute");
    TCase *tc = tcase_create("all");
    tcase_set_timeout(tc, 100);
    tcase_add_loop_test(tc, gradients_have_equal_bits, 1, 4);
    tcase_add_test(tc, inputs_and_outputs_of_every_sort);
    tcase_add_test(tc, memory_by_formula);
    tcase_add_test(tc, one_node_a_call);
    suite_add_tcase(suite, tc);
    return test_main(suite);
}
