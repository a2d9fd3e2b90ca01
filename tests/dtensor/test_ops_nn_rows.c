/* tests/dtensor/test_ops_nn_rows.c - single rows of neural network ops at the sizes of the map of
 * PyTorch's tests (O7, O9, O11), refusals and their fixes, and equal bits for any number
 * of threads. */
#include "array/dt_kernels.h"
#include "tests/dtensor/host_leaf.h"
#include "tests/dtensor/op_check.h"

#include <stdlib.h>
#include <string.h>

static void softmax(dt_tape *t, dt_tensor *const *in, dt_tensor **out, const void *arg)
{
    (void)arg;
    out[0] = dt_softmax(t, in[0]);
}

static void rmsnorm(dt_tape *t, dt_tensor *const *in, dt_tensor **out, const void *arg)
{
    (void)arg;
    out[0] = dt_rmsnorm(t, in[0], in[1], 1e-5);
}

static void layernorm(dt_tape *t, dt_tensor *const *in, dt_tensor **out, const void *arg)
{
    (void)arg;
    out[0] = dt_layernorm(t, in[0], in[1], in[2], 1e-5);
}

/* Neither weight nor bias. */
static void rmsnorm_plain(dt_tape *t, dt_tensor *const *in, dt_tensor **out, const void *arg)
{
    (void)arg;
    out[0] = dt_rmsnorm(t, in[0], NULL, 1e-5);
}

static void layernorm_plain(dt_tape *t, dt_tensor *const *in, dt_tensor **out, const void *arg)
{
    (void)arg;
    out[0] = dt_layernorm(t, in[0], NULL, NULL, 1e-5);
}

static void embedding(dt_tape *t, dt_tensor *const *in, dt_tensor **out, const void *arg)
{
    (void)arg;
    out[0] = dt_embedding(t, in[0], in[1]);
}

START_TEST(test_softmax_and_norms)
{
    const dt_shape x = DT_SHAPE(20, 5, 10), n = DT_SHAPE(10);
    const op_check_spec soft = {
        .name = "softmax", .call = softmax, .nin = 1, .shape = {DT_SHAPE(8, 12, 16)}};
    const op_check_spec rms = {.name = "rmsnorm", .call = rmsnorm, .nin = 2, .shape = {x, n}};
    const op_check_spec layer = {
        .name = "layernorm", .call = layernorm, .nin = 3, .shape = {x, n, n}};
    const op_check_spec rms_plain = {
        .name = "rmsnorm", .call = rmsnorm_plain, .nin = 1, .shape = {x}};
    const op_check_spec layer_plain = {
        .name = "layernorm", .call = layernorm_plain, .nin = 1, .shape = {x}};
    const op_check_row rows[] = {
        {&rms_plain, {"S(0)@axisA"}, "S(0)@axisA", {"S(0)@axisA"}},
        {&rms_plain, {"S(1)@axisA"}, "S(1)@axisA", {"S(1)@axisA"}},
        {&layer_plain, {"S(0)@axisA"}, "S(0)@axisA", {"S(0)@axisA"}},
        {&layer_plain, {"S(1)@axisA"}, "S(1)@axisA", {"S(1)@axisA"}},
        {&soft, {"S(0)@axisA"}, "S(0)@axisA", {"S(0)@axisA"}},
        {&soft, {"S(1)@axisA"}, "S(1)@axisA", {"S(1)@axisA"}},
        {&rms, {"S(0)@axisA", ""}, "S(0)@axisA", {"S(0)@axisA", "P@axisA"}},
        {&rms, {"S(1)@axisA", ""}, "S(1)@axisA", {"S(1)@axisA", "P@axisA"}},
        {&layer, {"S(0)@axisA", "", ""}, "S(0)@axisA", {"S(0)@axisA", "P@axisA", "P@axisA"}},
        {&layer, {"S(1)@axisA", "", ""}, "S(1)@axisA", {"S(1)@axisA", "P@axisA", "P@axisA"}},
    };
    op_check_rows(rows, DT_COUNT(rows));
}
END_TEST

START_TEST(test_embedding_sizes)
{
    static const int64_t column[][2] = {{17, 12}, {21, 11}, {23, 13}, {15, 14}};
    static const int64_t row[][2] = {{16, 22}, {13, 22}, {15, 14}};
    for (int i = 0; i < DT_COUNT(column); i++) {
        const op_check_spec spec = {
            .name = "embedding",
            .call = embedding,
            .nin = 2,
            .below = {column[i][0]},
            .shape = {DT_SHAPE(4, 3), DT_SHAPE(column[i][0], column[i][1])}};
        op_check_rows(
            &(op_check_row){&spec, {"", "S(1)@axisA"}, "S(2)@axisA", {NULL, "S(1)@axisA"}}, 1);
    }
    for (int i = 0; i < DT_COUNT(row); i++) {
        const op_check_spec spec = {.name = "embedding",
                                    .call = embedding,
                                    .nin = 2,
                                    .below = {row[i][0]},
                                    .shape = {DT_SHAPE(4, 3), DT_SHAPE(row[i][0], row[i][1])}};
        op_check_rows(&(op_check_row){&spec, {"", "S(0)@axisA"}, "P@axisA", {NULL, "S(0)@axisA"}},
                      1);
    }
}
END_TEST

/* ---- on 4 ranks ---- */

/* Two tables at once, vocabulary split, one all-reduce each on `full`; unseen rows; a bad id. */
static dt_status embedding_body(dt_world *world, void *arg)
{
    (void)arg;
    enum { N = 6, V = 13, D = 4 };
    static const int32_t ids[2][N] = {{0, 12, 3, 3, 7, 0}, {5, 5, 5, 11, 1, 2}};
    float w[2][V * D], y[N * D];
    dt_mesh *mesh;
    dt_tape *tape;
    dt_tensor *table[2], *id[2], *out[2];
    DT_TRY(
        dt_mesh_create(world, test_device(world), &(dt_mesh_options){.axes = {{"tp", 4}}}, &mesh));
    DT_TRY(dt_tape_create(mesh, NULL, &tape));
    for (int e = 0; e < 2; e++) {
        for (int i = 0; i < V * D; i++)
            w[e][i] = host_number(i + 1000 * e);
        DT_TRY(host_leaf(mesh, DT_SHAPE(V, D), "S(0)@tp", DT_F32, w[e], &table[e]));
        DT_TRY(host_leaf(mesh, DT_SHAPE(N), "", DT_I32, ids[e], &id[e]));
        out[e] = dt_embedding(tape, id[e], table[e]);
    }
    TEST_THAT(dt_world_counts(world).total_calls == 0, "forward moved data");
    for (int e = 0; e < 2; e++) {
        DT_TRY(dt_tensor_read_f32_sync(dt_full(tape, out[e]), y));
        for (int i = 0; i < N * D; i++)
            TEST_THAT(y[i] == w[e][ids[e][i / D] * D + i % D], "table %d, element %d", e, i);
    }
    TEST_THAT(dt_world_counts(world).calls[DT_CALL_ALL_REDUCE] == 2, "full");
    dt_tensor *sum = dt_sum(tape, out[0], 0);
    DT_TRY(dt_backward(tape, sum));
    int64_t lo, hi;
    const dt_array *dw = &dt_tensor_grad(table[0])->array;
    dt_layout_range(dt_tensor_layout(table[0]), 0, dt_mesh_coord(mesh), &lo, &hi);
    for (int64_t v = lo; v < hi; v++) {
        float times = 0;
        for (int i = 0; i < N; i++)
            times += ids[0][i] == v;
        TEST_THAT(((float *)test_look(dw))[(v - lo) * D] == times, "row %d", (int)v);
    }
    static const int32_t bad[N] = {0, 1, 2, 3, -1, 4};
    dt_tensor *bad_ids;
    DT_TRY(host_leaf(mesh, DT_SHAPE(2, 3), "", DT_I32, bad, &bad_ids));
    dt_tape_reset(tape, NULL);
    TEST_THAT(dt_tensor_is_failed(dt_embedding(tape, bad_ids, table[0])), "accepted");
    TEST_FAILS(DT_ERR_ARG, "the id at [1, 1] is -1, outside of the vocabulary [0, 13)",
               dt_tape_status(tape));
    dt_tensor_destroy(&bad_ids);
    for (int e = 0; e < 2; e++) {
        dt_tensor_destroy(&table[e]);
        dt_tensor_destroy(&id[e]);
    }
    dt_tape_destroy(&tape);
    dt_mesh_destroy(&mesh);
    return DT_OK;
}

START_TEST(test_split_embeddings)
{
    test_ranks(4, embedding_body, NULL);
}
END_TEST

/* A sharded softmax dim is refused with its fix; applied, it is one all-gather. */
static dt_status softmax_body(dt_world *world, void *arg)
{
    (void)arg;
    float x[8 * 12] = {0};
    dt_mesh *mesh;
    dt_tape *tape;
    dt_tensor *t;
    DT_TRY(
        dt_mesh_create(world, test_device(world), &(dt_mesh_options){.axes = {{"tp", 4}}}, &mesh));
    DT_TRY(dt_tape_create(mesh, NULL, &tape));
    DT_TRY(host_leaf(mesh, DT_SHAPE(8, 12), "S(1)@tp", DT_F32, x, &t));
    TEST_THAT(dt_tensor_is_failed(dt_softmax(tape, t)), "accepted");
    TEST_FAILS(DT_ERR_PLACEMENT, "to mend: redistribute operand 0 S(1) -> R", dt_tape_status(tape));
    dt_tape_reset(tape, NULL);
    dt_tensor *y = dt_softmax(tape, dt_redistribute(tape, t, ""));
    DT_TRY(dt_tape_status(tape));
    TEST_THAT(dt_world_counts(world).total_calls == 1 &&
                  dt_world_counts(world).calls[DT_CALL_ALL_GATHER] == 1,
              "the fix");
    TEST_THAT(dt_array_count(dt_tensor_local(y)) == 8 * 12, "not whole");
    dt_tensor_destroy(&t);
    dt_tape_destroy(&tape);
    dt_mesh_destroy(&mesh);
    return DT_OK;
}

START_TEST(test_refusal_and_fix)
{
    test_ranks(4, softmax_body, NULL);
}
END_TEST

/* ---- threads ---- */

enum { BIG = 160 * 512 };

/* Gradients of a chain of ops on `threads` threads; the leaves' gradients are copied to out. */
static dt_status chain(dt_mesh *mesh, int threads, const float *host, const int32_t *ids,
                       float *out)
{
    dt_tape *tape;
    dt_tensor *table, *w, *id;
    DT_TRY(dt_tape_create(mesh, NULL, &tape));
    DT_TRY(host_leaf(mesh, DT_SHAPE(160, 512), "", DT_F32, host, &table));
    DT_TRY(host_leaf(mesh, DT_SHAPE(512), "", DT_F32, host, &w));
    DT_TRY(host_leaf(mesh, DT_SHAPE(2, 100), "", DT_I32, ids, &id));
    dt_compute_threads_set(threads);
    dt_tensor *x = dt_layernorm(tape, dt_embedding(tape, id, table), w, w, 1e-5);
    dt_tensor *h = dt_rope(tape, dt_rearrange(tape, x, "b s (h d) -> b h s d", "h=8"), NULL,
                           &(dt_rope_options){.theta = 1e4});
    h = dt_rearrange(tape, dt_attention(tape, h, h, h, NULL), "b h s d -> b s (h d)", NULL);
    h = dt_rmsnorm(tape, dt_gelu(tape, dt_swiglu(tape, dt_silu(tape, h), x), DT_GELU_TANH), w,
                   1e-5);
    dt_tensor *loss =
        dt_cross_entropy(tape, dt_softmax(tape, h), id, &(dt_cross_entropy_options){.valid = 200});
    DT_TRY(dt_backward(tape, loss));
    memcpy(out, test_look(&dt_tensor_grad(table)->array), BIG * sizeof *out);
    memcpy(out + BIG, test_look(&dt_tensor_grad(w)->array), 512 * sizeof *out);
    dt_tensor_destroy(&table);
    dt_tensor_destroy(&w);
    dt_tensor_destroy(&id);
    dt_tape_destroy(&tape);
    return DT_OK;
}

static dt_status threads_body(dt_world *world, void *arg)
{
    float *host = malloc(BIG * sizeof *host), *one = malloc((BIG + 512) * sizeof *one);
    float *many = malloc((BIG + 512) * sizeof *many);
    int32_t ids[200];
    dt_mesh *mesh;
    (void)arg;
    TEST_THAT(host && one && many, "memory");
    for (int i = 0; i < BIG; i++)
        host[i] = host_number(i);
    for (int i = 0; i < 200; i++)
        ids[i] = i * 37 % 160;
    DT_TRY(
        dt_mesh_create(world, test_device(world), &(dt_mesh_options){.axes = {{"tp", 1}}}, &mesh));
    DT_TRY(chain(mesh, 1, host, ids, one));
    DT_TRY(chain(mesh, 3, host, ids, many));
    TEST_THAT(!memcmp(one, many, (BIG + 512) * sizeof *one), "threads change bits");
    free(host);
    free(one);
    free(many);
    dt_mesh_destroy(&mesh);
    return DT_OK;
}

START_TEST(test_threads_give_equal_bits)
{
    test_ranks(1, threads_body, NULL);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("rows of neural network ops");
    TCase *tc = tcase_create("rows");
    tcase_set_timeout(tc, 100);
    tcase_add_test(tc, test_softmax_and_norms);
    tcase_add_test(tc, test_embedding_sizes);
    tcase_add_test(tc, test_split_embeddings);
    tcase_add_test(tc, test_refusal_and_fix);
    tcase_add_test(tc, test_threads_give_equal_bits);
    suite_add_tcase(suite, tc);
    return test_main(suite);
}
