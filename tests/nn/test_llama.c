/* tests/nn/test_llama.c - a whole small Llama through the tape: backward in two parts, tied
 * weights, evaluation's peak
 * memory, the meta device on a fake world, and memory that ends anywhere. */
#include "models/dt_models.h"
#include "tests/harness.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *golden = "tests/golden";

enum { BATCH = 4, SEQ = 6, VOCAB = 256, WORDS = BATCH * SEQ };

/* A model, placed and materialized, and a batch split by dp. Zeroed before open; close takes what
 * there is. */
typedef struct trainer {
    dt_mesh *mesh;
    dt_module *model;
    dt_heap *heap;
    dt_tape *t;
    dt_tensor *ids, *targets;
} trainer;

static dt_status make_batch(trainer *r)
{
    int32_t id[2][WORDS];
    dt_tensor **const tensor[2] = {&r->ids, &r->targets};
    const dt_layout *layout = NULL;
    for (int i = 0; i < WORDS; i++) {
        id[0][i] = (i * 37 + 5) % VOCAB;
        id[1][i] = (i * 11 + 3) % VOCAB;
    }
    DT_TRY(dt_mesh_layout_text(r->mesh, DT_SHAPE(BATCH, SEQ), "S(0)@dp", &layout));
    for (int i = 0; i < 2; i++)
        DT_TRY(dt_distribute(layout, DT_I32, id[i], tensor[i]));
    return DT_OK;
}

/* A model from the goldens; or a smaller Llama of some layers. */
static dt_status golden_model(const char *name, dt_module **out)
{
    char config[300];
    dt_model_facts facts;
    (void)snprintf(config, sizeof config, "%s/%s/config.json", golden, name);
    DT_TRY(dt_model_create(config, out, &facts));
    return DT_OK;
}

static dt_status small_llama(int64_t layers, dt_module **out)
{
    const dt_llama_config c = {.vocab_size = VOCAB,
                               .hidden_size = 32,
                               .intermediate_size = 48,
                               .num_hidden_layers = layers,
                               .num_attention_heads = 4,
                               .num_key_value_heads = 2,
                               .head_dim = 8,
                               .max_position_embeddings = 64,
                               .rope.theta = 10000,
                               .rms_norm_eps = 1e-5,
                               .initializer_range = 0.02};
    DT_TRY(dt_llama_create(&c, out));
    return DT_OK;
}

/* r->model is made already. */
static dt_status open_trainer(trainer *r, dt_world *world, dt_device_kind device,
                              const dt_tape_options *options)
{
    const dt_mesh_options o = {.axes = {{"dp", -1}}};
    DT_TRY(dt_world_heap(world, (dt_device){device, 0}, &r->heap));
    DT_TRY(dt_mesh_create(world, (dt_device){device, 0}, &o, &r->mesh));
    DT_TRY(dt_module_materialize(r->model, r->mesh, 3));
    dt_model_set_loss(r->model, WORDS, 0);
    DT_TRY(dt_tape_create(r->mesh, options, &r->t));
    DT_TRY(make_batch(r));
    return DT_OK;
}

static void close_trainer(trainer *r)
{
    dt_tensor_destroy(&r->ids);
    dt_tensor_destroy(&r->targets);
    dt_tape_destroy(&r->t);
    dt_module_destroy(&r->model);
    dt_mesh_destroy(&r->mesh);
}

static dt_tensor *loss_of(trainer *r)
{
    const dt_values in = {.n = 2, .value = {r->ids, r->targets}};
    return dt_module_call(r->model, r->t, &in).value[0];
}

static int64_t live(const trainer *r)
{
    return dt_heap_get_stats(r->heap).live_total;
}

/* A gradient of ones for the loss. */
static dt_status ones(trainer *r, dt_tensor *loss, dt_local *out)
{
    const dt_layout dual = dt_layout_dual(dt_tensor_layout(loss));
    DT_TRY(dt_mesh_layout(r->mesh, &dual, &out->layout));
    DT_TRY(dt_array_create(r->heap, DT_F32, DT_SCALAR, DT_TAG_GRADIENT, &out->array));
    dt_array_fill(&out->array, 1);
    return DT_OK;
}

/* ---- input and weight parts ---- */

enum { MOST_PARAMS = 64 };

static dt_status take_grads(trainer *r, dt_local *grad, int *n_out)
{
    int n = 0;
    dt_param *const *p = dt_module_params(r->model, &n);
    TEST_THAT(n <= MOST_PARAMS, "%d", n);
    for (int i = 0; i < n; i++) {
        const dt_local *g = dt_tensor_grad(p[i]->tensor);
        TEST_THAT(g->array.storage, "%s has no gradient", p[i]->name);
        grad[i] = (dt_local){g->layout, dt_array_share(&g->array)};
    }
    dt_module_clear_grads(r->model);
    *n_out = n;
    return DT_OK;
}

static dt_status same_grads(trainer *r, dt_local *want)
{
    int n = 0;
    dt_local got[MOST_PARAMS];
    DT_TRY(take_grads(r, got, &n));
    for (int i = 0; i < n; i++) {
        TEST_THAT(got[i].layout == want[i].layout, "parameter %d: another layout", i);
        TEST_THAT(memcmp(test_look(&got[i].array), test_look(&want[i].array),
                         dt_array_bytes(&got[i].array)) == 0,
                  "parameter %d: other bits", i);
        dt_array_release(&got[i].array);
    }
    return DT_OK;
}

/* What weights still need after the first part, a token: of each linear its input (shared by q, k,
 * v and by gate, up) and
 * of each norm its input; less than before, where attention's and swiglu's operands are there too.
 * */
static dt_status parts_body(dt_world *world, void *arg)
{
    trainer r = {0};
    dt_local whole[MOST_PARAMS];
    int n = 0;
    DT_TRY(golden_model(arg, &r.model));
    DT_TRY(open_trainer(&r, world, DT_CPU, NULL));
    const int64_t base = live(&r);
    DT_TRY(dt_backward(r.t, loss_of(&r)));
    DT_TRY(take_grads(&r, whole, &n));
    TEST_THAT(whole[0].layout->partial == (dt_world_size(world) > 1 ? 1 : whole[0].layout->partial),
              "parameters' gradients arise P@dp");
    dt_tape_reset(r.t, NULL);
    const int64_t with_grads = live(&r);
    for (int step = 0; step < 2; step++) {
        dt_local one = {0};
        dt_tensor *loss = loss_of(&r);
        DT_TRY(dt_tape_status(r.t));
        DT_TRY(ones(&r, loss, &one));
        const int64_t before = dt_tape_saved_bytes(r.t);
        DT_TRY(dt_backward_input(r.t, 1, &loss, &one));
        const int64_t between = dt_tape_saved_bytes(r.t);
        int count = 0;
        dt_param *const *p = dt_module_params(r.model, &count);
        for (int i = 0; i < count; i++)
            TEST_THAT(!dt_tensor_grad(p[i]->tensor)->array.storage, "%s came early", p[i]->name);
        DT_TRY(dt_backward_weight(r.t));
        TEST_THAT(between > 0 && between < before && dt_tape_saved_bytes(r.t) == 0,
                  "%lld, then %lld bytes saved", (long long)before, (long long)between);
        DT_TRY(same_grads(&r, whole));
        dt_array_release(&one.array);
        dt_tape_reset(r.t, NULL);
        TEST_THAT(live(&r) == with_grads, "step %d left %lld bytes", step,
                  (long long)(live(&r) - with_grads));
    }
    for (int i = 0; i < n; i++)
        dt_array_release(&whole[i].array);
    TEST_THAT(live(&r) == base, "all given back");
    close_trainer(&r);
    return DT_OK;
}

START_TEST(two_parts_equal_the_whole)
{
    static char *const models[] = {"llama_tiny", "llama_tied", "gpt2_tiny"};
    test_ranks(1 + _i / 3, parts_body, models[_i % 3]);
}
END_TEST

/* ---- evaluation: 4 layers and 40 have the same peak above their weights ---- */

static dt_status peak_of(dt_world *world, int64_t layers, int64_t *peak_out)
{
    trainer r = {0};
    DT_TRY(small_llama(layers, &r.model));
    DT_TRY(open_trainer(&r, world, DT_CPU, &(dt_tape_options){.no_grad = true}));
    const int64_t base = live(&r);
    dt_heap_reset_peaks(r.heap);
    (void)loss_of(&r);
    DT_TRY(dt_tape_status(r.t));
    *peak_out = dt_heap_get_stats(r.heap).peak_total - base;
    close_trainer(&r);
    return DT_OK;
}

static dt_status peaks_body(dt_world *world, void *arg)
{
    (void)arg;
    int64_t few = 0, many = 0;
    DT_TRY(peak_of(world, 4, &few));
    DT_TRY(peak_of(world, 40, &many));
    TEST_THAT(few == many, "4 layers %lld bytes, 40 layers %lld", (long long)few, (long long)many);
    return DT_OK;
}

START_TEST(peak_of_an_evaluation)
{
    test_ranks(1, peaks_body, NULL);
}
END_TEST

/* ---- meta: layouts, counts and exact bytes of a step, and nothing computed ---- */

START_TEST(a_step_on_meta)
{
    enum { RANKS = 4 };
    trainer r = {0};
    dt_world *world = NULL;
    ck_ok(dt_world_create(
        &(dt_world_options){.backend = DT_BACKEND_FAKE, .fake_rank = 2, .fake_size = RANKS},
        &world));
    ck_ok(golden_model("llama_tiny", &r.model));
    ck_ok(open_trainer(&r, world, DT_META, NULL));
    const int64_t base = live(&r);
    dt_world_reset_counts(world);
    dt_tensor *loss = loss_of(&r);
    ck_ok(dt_tape_status(r.t));
    ck_assert_int_eq(dt_tensor_layout(loss)->partial, 1);
    ck_assert_ptr_null(test_look(dt_tensor_local(loss)));
    ck_assert_int_gt(dt_tape_saved_bytes(r.t), 0);
    ck_ok(dt_backward(r.t, loss));
    ck_assert_int_eq(dt_world_counts(world).total_calls, 0);
    int n = 0;
    int64_t bytes = 0;
    dt_param *const *p = dt_module_params(r.model, &n);
    for (int i = 0; i < n; i++) {
        const dt_local *g = dt_tensor_grad(p[i]->tensor);
        ck_assert_msg(g->array.storage && g->layout->partial == 1, "%s", p[i]->name);
        ck_assert_ptr_null(test_look(&g->array));
        bytes += 2 * 4 * dt_shape_count(p[i]->shape) * (RANKS - 1) / RANKS;
    }
    ck_ok(dt_module_reduce_grads(r.model));
    const dt_counts c = dt_world_counts(world);
    ck_assert_int_eq(c.total_calls, 1); /* all gradients in one all-reduce */
    ck_assert_int_eq(c.calls[DT_CALL_ALL_REDUCE], 1);
    ck_assert_int_eq(c.total_bytes, bytes);
    for (int i = 0; i < n; i++)
        ck_assert_ptr_eq(dt_tensor_grad(p[i]->tensor)->layout, p[i]->layout);
    ck_ok(dt_module_reduce_grads(r.model)); /* at home already */
    ck_assert_int_eq(dt_world_counts(world).total_calls, 1);
    ck_assert_int_eq(dt_heap_get_stats(r.heap).live[DT_TAG_GRADIENT], 4 * dt_module_count(r.model));
    dt_module_clear_grads(r.model);
    dt_tape_reset(r.t, NULL);
    ck_assert_int_eq(live(&r), base);
    close_trainer(&r);
    dt_world_destroy(&world);
}
END_TEST

/* The bytes that meta counts are those of a real run. */
static dt_status step_peak(dt_world *world, dt_device_kind device, int64_t *saved, int64_t *peak)
{
    trainer r = {0};
    DT_TRY(golden_model("gpt2_tiny", &r.model));
    DT_TRY(open_trainer(&r, world, device, NULL));
    dt_heap_reset_peaks(r.heap);
    dt_tensor *loss = loss_of(&r);
    *saved = dt_tape_saved_bytes(r.t);
    DT_TRY(dt_backward(r.t, loss));
    const dt_heap_stats s = dt_heap_get_stats(r.heap);
    *peak = s.peak[DT_TAG_PARAMETER] + s.live[DT_TAG_GRADIENT];
    close_trainer(&r);
    return DT_OK;
}

static dt_status meta_equals_cpu(dt_world *world, void *arg)
{
    (void)arg;
    int64_t saved[2], peak[2];
    DT_TRY(step_peak(world, DT_CPU, &saved[0], &peak[0]));
    DT_TRY(step_peak(world, DT_META, &saved[1], &peak[1]));
    TEST_THAT(peak[0] == peak[1], "parameters and gradients: cpu %lld, meta %lld",
              (long long)peak[0], (long long)peak[1]);
    /* what forward makes for backward itself (statistics of norms and attention) is not there on
     * meta */
    TEST_THAT(saved[1] > 0 && saved[1] <= saved[0], "saved: cpu %lld, meta %lld",
              (long long)saved[0], (long long)saved[1]);
    return DT_OK;
}

START_TEST(meta_counts_as_the_cpu)
{
    test_ranks(1, meta_equals_cpu, NULL);
}
END_TEST

/* ---- memory that ends: at any allocation one clear error, nothing left, nobody hangs ---- */

static dt_status step(trainer *r, dt_world *world)
{
    DT_TRY(small_llama(2, &r->model));
    DT_TRY(open_trainer(r, world, DT_CPU, NULL));
    DT_TRY(dt_backward(r->t, loss_of(r)));
    DT_TRY(dt_module_reduce_grads(r->model));
    dt_tensor *w = dt_module_param(dt_module_find(r->model, "lm_head"), "weight")->tensor;
    dt_tape_reset(r->t, NULL);
    (void)dt_full(r->t, dt_redistribute(r->t, dt_redistribute(r->t, w, "S(0)@dp"), "S(1)@dp"));
    DT_TRY(dt_tape_status(r->t));
    return DT_OK;
}

/* Ranks make `arg` times rank allocations first, so that they fail at different places. */
static dt_status ending_body(dt_world *world, void *arg)
{
    trainer r = {0};
    dt_array early[3] = {{0}};
    dt_status st = DT_OK;
    dt_heap *heap = NULL;
    DT_TRY(dt_world_heap(world, test_device(world), &heap));
    for (int i = 0; i < *(int *)arg * dt_world_rank(world); i++)
        DT_TRY_TO(done, st,
                  dt_array_create(heap, DT_F32, DT_SHAPE(1), DT_TAG_WORKSPACE, &early[i]));
    DT_TRY_TO(done, st, step(&r, world));
done:
    for (int i = 0; i < 3; i++)
        dt_array_release(&early[i]);
    close_trainer(&r);
    /* a call that failed holds its arrays until the world ends, since peers may read them (a leak
     * sanitizer sees the rest) */
    if (st != DT_ERR_COMM && dt_heap_get_stats(heap).live_total != 0)
        return DT_ERROR(DT_ERR_FORMAT, "%lld bytes are left",
                        (long long)dt_heap_get_stats(heap).live_total);
    return st;
}

static dt_status count_body(dt_world *world, void *arg)
{
    trainer r = {0};
    const dt_status st = step(&r, world);
    if (st == DT_OK && dt_world_rank(world) == 0)
        *(int64_t *)arg = dt_heap_get_stats(r.heap).allocations;
    close_trainer(&r);
    return st;
}

START_TEST(memory_ends_anywhere)
{
    int64_t all = 0;
    int skew = _i;
    const char *full = getenv("DT_FULL");
    ck_ok(dt_world_run_threads(2, NULL, count_body, &all));
    ck_assert_int_gt(all, 100);
    for (int64_t n = 1; n <= all; n += full && *full == '1' ? 1 : 7) {
        const dt_world_options o = {.heap.fail_after = n, .timeout_s = 30};
        const dt_status st = dt_world_run_threads(2, &o, ending_body, &skew);
        ck_assert_msg(st == DT_ERR_NOMEM || st == DT_ERR_COMM, "allocation %lld: %s: %s",
                      (long long)n, dt_status_string(st), dt_error_trace());
        ck_assert_msg(st != DT_ERR_NOMEM || strstr(dt_error_trace(), "asked to fail"),
                      "allocation %lld: %s", (long long)n, dt_error_trace());
    }
}
END_TEST

int main(int argc, char **argv)
{
    golden = argc > 1 ? argv[1] : golden;
    Suite *suite = suite_create("llama");
    TCase *tc = tcase_create("llama");
    tcase_set_timeout(tc, 0);
    tcase_add_loop_test(tc, two_parts_equal_the_whole, 0, 6);
    tcase_add_test(tc, peak_of_an_evaluation);
    tcase_add_test(tc, a_step_on_meta);
    tcase_add_test(tc, meta_counts_as_the_cpu);
    tcase_add_loop_test(tc, memory_ends_anywhere, 0, 2);
    suite_add_tcase(suite, tc);
    return test_main(suite);
}
