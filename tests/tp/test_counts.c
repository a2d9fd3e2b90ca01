/* tests/tp/test_counts.c - a step of small Llama and GPT-2 models under tensor, sequence and loss
 * parallelism, against the same step on one rank: values, exact counts of collectives, bytes a
 * layer, and memory.
 *
 * With L layers, one microbatch (the project's design, section 5):
 *     tp   2L+1 all-reduces forward, 2L+1 backward
 *     sp   2L+1 all-gathers and 2L+1 reduce-scatters each way, one all-reduce of norm gradients,
 *          and in backward 2L all-gathers more where gathered inputs are not saved
 * A vocabulary-parallel loss adds 3 small all-reduces, gathered logits one all-gather; a vocabulary
 * that is not split saves the embedding's and the head's. */
#include "tests/harness.h"
#include "tests/tp/model_case.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_GRADS = 300000 };

/* What a step left on rank 0. */
typedef struct step_result {
    dt_counts forward, backward, reduce;
    double loss;
    int64_t ngrads, saved_bytes, live_bytes, peak_bytes, param_bytes; /* live: after forward */
    float *grad; /* of all parameters, one after the other */
} step_result;

typedef struct job {
    const model_case *c;
    step_result *result;
} job;

/* ---- one step ---- */

static dt_counts counted(dt_world *world)
{
    const dt_counts c = dt_world_counts(world);
    dt_world_reset_counts(world);
    return c;
}

static dt_status read_grads(dt_module *model, step_result *r, bool mine)
{
    int n = 0;
    int64_t at = 0;
    dt_param *const *p = dt_module_params(model, &n);
    float *all = calloc(MAX_GRADS, sizeof *all);
    TEST_THAT(all && dt_module_count(model) <= MAX_GRADS, "room for gradients");
    for (int i = 0; i < n; i++) {
        const dt_local *g = dt_tensor_grad(p[i]->tensor);
        dt_tensor *whole = NULL;
        TEST_THAT(g->layout == p[i]->layout, "%s: the gradient is not at home", p[i]->name);
        DT_TRY(dt_from_array(g->layout, &g->array, &whole));
        DT_TRY(dt_tensor_read_f32_sync(whole, all + at));
        dt_tensor_destroy(&whole);
        at += dt_shape_count(p[i]->shape);
    }
    if (mine) {
        r->grad = all;
        r->ngrads = at;
    } else {
        free(all);
    }
    return DT_OK;
}

static dt_status run(dt_world *world, dt_module *model, dt_mesh *mesh, const dt_values *in,
                     step_result *r)
{
    dt_tape *t = NULL;
    DT_TRY(dt_tape_create(mesh, NULL, &t));
    dt_world_reset_counts(world);
    dt_heap_reset_peaks(dt_mesh_heap(mesh));
    dt_tensor *loss = dt_module_call(model, t, in).value[0];
    DT_TRY(dt_tape_status(t));
    r->forward = counted(world);
    r->saved_bytes = dt_tape_saved_bytes(t);
    r->live_bytes = dt_heap_get_stats(dt_mesh_heap(mesh)).live[DT_TAG_ACTIVATION];
    DT_TRY(dt_backward(t, loss));
    r->backward = counted(world);
    DT_TRY(dt_module_reduce_grads(model));
    r->reduce = counted(world);
    r->peak_bytes = dt_heap_get_stats(dt_mesh_heap(mesh)).peak_total;
    DT_TRY(dt_tensor_item_sync(loss, &r->loss));
    dt_tape_destroy(&t);
    return DT_OK;
}

static dt_status body(dt_world *world, void *arg)
{
    const job *j = arg;
    const bool mine = dt_world_rank(world) == 0;
    dt_mesh *mesh = NULL;
    dt_module *model = NULL;
    dt_values in = {0};
    int64_t valid = 0;
    step_result r = {0};
    DT_TRY(model_case_lay_out(j->c, NULL, world, test_device(world), &mesh, &model));
    DT_TRY(model_case_batch(j->c, mesh, &in, &valid));
    dt_model_set_loss(model, valid, 0);
    DT_TRY(run(world, model, mesh, &in, &r));
    r.param_bytes = dt_module_local_bytes(model);
    DT_TRY(read_grads(model, &r, mine));
    if (mine)
        *j->result = r;
    dt_tensor_destroy(&in.value[0]);
    dt_tensor_destroy(&in.value[1]);
    dt_module_destroy(&model);
    dt_mesh_destroy(&mesh);
    return DT_OK;
}

static step_result step(const model_case *c)
{
    step_result r = {0};
    job j = {c, &r};
    test_ranks(c->dp * c->tp, body, &j);
    ck_assert_ptr_nonnull(r.grad);
    return r;
}

static void check_values(const step_result *many, const step_result *one)
{
    ck_assert_msg(many->loss - one->loss < 1e-5 && one->loss - many->loss < 1e-5,
                  "loss %.9g, not %.9g", many->loss, one->loss);
    const double worst = test_max_diff(many->grad, one->grad, one->ngrads);
    ck_assert_msg(worst <= 1e-5 * test_max_abs(one->grad, one->ngrads), "gradients differ by %g",
                  worst);
}

/* ---- counts ---- */

static void is(const char *what, const dt_counts *c, int64_t ar, int64_t ag, int64_t rs)
{
    ck_assert_msg(
        c->calls[DT_CALL_ALL_REDUCE] == ar && c->calls[DT_CALL_ALL_GATHER] == ag &&
            c->calls[DT_CALL_REDUCE_SCATTER] == rs && c->total_calls == ar + ag + rs,
        "%s: %lld all-reduces, %lld all-gathers, %lld reduce-scatters of %lld calls; expected "
        "%lld, %lld, %lld",
        what, (long long)c->calls[DT_CALL_ALL_REDUCE], (long long)c->calls[DT_CALL_ALL_GATHER],
        (long long)c->calls[DT_CALL_REDUCE_SCATTER], (long long)c->total_calls, (long long)ar,
        (long long)ag, (long long)rs);
}

/* 3 models x tp 2, 3, 4 x what becomes of the vocabulary x sequence parallelism (every other time
 * without gathering again). */
START_TEST(counts_are_exact)
{
    model_case c = model_case_usual(_i / 18);
    step_result one = step(&c);
    c.tp = 2 + _i / 6 % 3;
    c.vocab_as = (dt_tp_vocab)(_i / 2 % 3);
    c.sp = _i % 2;
    c.keep_gathered = _i / 2 % 2;
    step_result many = step(&c);
    check_values(&many, &one);
    const bool split = c.vocab_as != DT_TP_VOCAB_WHOLE;
    const int small = c.vocab_as == DT_TP_VOCAB_SPLIT ? 3 : 0;
    const int logits = c.vocab_as == DT_TP_VOCAB_GATHERED;
    const int each = 2 * c.layers + split;
    if (c.sp) {
        is("forward", &many.forward, small, each + logits, each);
        const int again = c.keep_gathered ? 0 : 2 * c.layers + logits; /* that loss saves x */
        is("backward", &many.backward, 0, each + again, each);
        is("gradients", &many.reduce, 1, 0, 0);
    } else {
        is("forward", &many.forward, each + small, logits, 0);
        is("backward", &many.backward, each, 0, 0);
        is("gradients", &many.reduce, 0, 0, 0);
    }
    free(one.grad);
    free(many.grad);
}
END_TEST

/* With data parallelism beside it: activations' collectives stay, gradients are reduced over dp in
 * one call, and those that arise as P on both in one more. */
START_TEST(with_data_parallelism)
{
    model_case c = model_case_usual(_i / 2);
    step_result one = step(&c);
    c.dp = 2;
    c.tp = 2;
    c.sp = _i % 2;
    step_result many = step(&c);
    check_values(&many, &one);
    is("forward", &many.forward, c.sp ? 3 : 5 + 3, c.sp ? 5 : 0, c.sp ? 5 : 0);
    is("backward", &many.backward, c.sp ? 0 : 5, c.sp ? 5 + 4 : 0, c.sp ? 5 : 0);
    is("gradients", &many.reduce, c.sp ? 2 : 1, 0, 0);
    free(one.grad);
    free(many.grad);
}
END_TEST

/* Fewer key/value heads than ranks: split over gcd(kv, tp) and replicated over the rest, whose
 * gradients, P there, are one more all-reduce (without sp the only one). Key/value memory is tp /
 * gcd times its share. */
START_TEST(few_key_value_heads)
{
    static const struct {
        int kv, tp, gcd;
    } heads[] = {{2, 4, 2}, {2, 6, 2}, {2, 3, 1}, {4, 6, 2}, {1, 4, 1}, {3, 6, 3}};
    const int kv = heads[_i / 2].kv, tp = heads[_i / 2].tp;
    model_case c = model_case_usual(0);
    c.kv_heads = kv;
    step_result one = step(&c);
    c.tp = tp;
    c.sp = _i % 2;
    step_result many = step(&c);
    check_values(&many, &one);
    is("forward", &many.forward, c.sp ? 3 : 5 + 3, c.sp ? 5 : 0, c.sp ? 5 : 0);
    is("backward", &many.backward, c.sp ? 0 : 5, c.sp ? 5 + 4 : 0, c.sp ? 5 : 0);
    is("gradients", &many.reduce, c.sp && heads[_i / 2].gcd > 1 ? 2 : 1, 0, 0);
    c.kv_heads =
        12; /* what it costs to replicate them: kv / gcd heads here, kv / tp when all were split */
    step_result all = step(&c);
    const int64_t head = 2 * 2 * 24 * (int64_t)sizeof(float) * c.layers; /* k and v, of [2, 24] */
    ck_assert_int_eq(all.param_bytes - many.param_bytes, head * (12 / tp - kv / heads[_i / 2].gcd));
    free(one.grad);
    free(many.grad);
    free(all.grad);
}
END_TEST

/* ---- bytes and memory ---- */

/* Of one layer: two layers less one. All sizes divide. */
static void layer(model_case c, int64_t *comm_bytes, int64_t *saved_bytes)
{
    int64_t comm[2], saved[2], live[2];
    for (int i = 0; i < 2; i++) {
        c.layers = i + 1;
        const step_result r = step(&c);
        comm[i] = r.forward.total_bytes + r.backward.total_bytes;
        saved[i] = r.saved_bytes;
        live[i] = r.live_bytes;
        free(r.grad);
    }
    *comm_bytes = comm[1] - comm[0];
    *saved_bytes = saved[1] - saved[0];
    ck_assert_int_eq(live[1] - live[0], *saved_bytes); /* and nothing else stays */
}

/* Communicated: 8bsh(t-1)/t elements a layer and step, with sequence parallelism or without it; 10
 * where gathered inputs are gathered again. Saved for backward: with that, 1/t of what one rank
 * saves; without, two more whole inputs less the parts that they are made of. */
START_TEST(bytes_of_a_layer)
{
    model_case c = model_case_usual(_i / 6 * 2);
    c.batch = 3;
    c.seq = 8;
    const int64_t bsh = 3 * 8 * 24 * (int64_t)sizeof(float);
    int64_t comm, saved, one_comm, one_saved;
    layer(c, &one_comm, &one_saved);
    ck_assert_int_eq(one_comm, 0);
    c.sp = _i % 3 > 0;
    c.keep_gathered = _i % 3 == 2;
    c.tp = _i / 3 % 2 ? 2 : 4;
    layer(c, &comm, &saved);
    ck_assert_int_eq(comm, (c.sp && !c.keep_gathered ? 10 : 8) * bsh * (c.tp - 1) / c.tp);
    if (c.sp && c.tp == 2) /* an mlp of 10 does not divide by 4 */
        ck_assert_int_eq(saved, one_saved / 2 + (c.keep_gathered ? 2 * bsh / 2 : 0));
}
END_TEST

/* Korthikanti et al. (2022) have sbh (10 + 24/t + 5as/(ht)) bytes for tensor parallelism without
 * sequence parallelism, of 2 bytes a number and an mlp of 4h: 8 and 24 are 4h and 12h numbers a
 * token, 2 are dropout masks, which are made again here; so are the probabilities, the last term,
 * but for one number a head. For an mlp of f and k, v of g numbers a token:
 *     whole on each rank   4h: the inputs of both norms, and of qkv and mlp
 *     divided by t         q, k, v and the projection's input: 2h + 2g; a;
 *                          gpt2: before and after gelu, 2f; llama: gate, up and product, 3f
 * and on the cpu h more, divided by t: attention keeps its output by heads for its own backward,
 * and the projection the same by tokens. With sequence parallelism all of it is divided by t, 34/t
 * of theirs. */
START_TEST(activations_of_a_layer)
{
    static const int model[] = {0, 2, 3};
    model_case c = model_case_usual(model[_i / 3 % 3]);
    enum { H = 24, A = 12, F = 10, HEAD = 2 };
    int64_t comm, saved;
    c.tp = 1 << _i % 3;
    c.sp = _i / 9;
    c.seq = c.sp ? 8 : c.seq; /* divides */
    if (c.kv_heads < c.tp)    /* these would be replicated */
        c.kv_heads = c.tp;
    const int64_t tokens = (int64_t)c.batch * c.seq, t = c.tp, kv = (int64_t)c.kv_heads * HEAD;
    const int64_t mlp = (F + t - 1) / t; /* rank 0's */
    layer(c, &comm, &saved);
    const int64_t again = test_device_kind() == DT_CUDA ? 0 : H;
    const int64_t number =
        4 * H / (c.sp ? t : 1) + (2 * H + 2 * kv + A + again) / t + (c.gpt2 ? 2 : 3) * mlp;
    (void)printf("%s, tp %d%s: %lld bytes a layer, formula %lld\n", c.gpt2 ? "gpt2" : "llama", c.tp,
                 c.sp ? " sp" : "", (long long)saved,
                 (long long)(tokens * number * (int64_t)sizeof(float)));
    ck_assert_int_eq(saved, tokens * number * (int64_t)sizeof(float));
}
END_TEST

/* Logits of all tokens and the whole vocabulary exist under gathered logits and never under loss
 * parallelism. */
START_TEST(whole_logits_never_exist)
{
    model_case c = model_case_usual(_i);
    c.batch = 32;
    c.seq = 32;
    c.vocab = 2048;
    c.layers = 1;
    c.tp = 4;
    const int64_t logits = c.batch * c.seq * c.vocab * (int64_t)sizeof(float);
    step_result split = step(&c);
    c.vocab_as = DT_TP_VOCAB_GATHERED;
    step_result whole = step(&c);
    check_values(&split, &whole);
    ck_assert_msg(split.peak_bytes < logits, "a peak of %lld bytes, whole logits %lld",
                  (long long)split.peak_bytes, (long long)logits);
    ck_assert_int_ge(whole.peak_bytes, logits);
    free(split.grad);
    free(whole.grad);
}
END_TEST

/* Logits that two axes split become whole in one all-gather; then the loss sends nothing. */
static dt_status gathered_body(dt_world *world, void *arg)
{
    enum { B = 2, S = 3, N = 4, V = 13 };
    const dt_mesh_options axes = {.axes = {{"kv", 2}, {"rep", 2}}};
    dt_mesh *mesh = NULL;
    dt_module *head = NULL;
    dt_tensor *x = NULL, *targets = NULL;
    const dt_layout *whole = NULL;
    float host[B * S * N];
    int32_t target[B * S];
    double loss[2];
    (void)arg;
    for (int i = 0; i < B * S * N; i++)
        host[i] = (float)(i * 7 % 11) / 8 - 0.5f;
    for (int i = 0; i < B * S; i++)
        target[i] = i * 5 % V;
    DT_TRY(dt_mesh_create(world, test_device(world), &axes, &mesh));
    DT_TRY(dt_layer_lm_head(N, V, 0.5, NULL, &head));
    DT_TRY(dt_module_finish(head));
    DT_TRY(dt_module_place(head, mesh, "*", "S(0)@rep>kv"));
    DT_TRY(dt_module_materialize(head, mesh, 1));
    dt_layer_lm_head_set(head, B * S, 0);
    DT_TRY(dt_mesh_layout_text(mesh, DT_SHAPE(B, S, N), "", &whole));
    DT_TRY(dt_distribute(whole, DT_F32, host, &x));
    DT_TRY(dt_mesh_layout_text(mesh, DT_SHAPE(B, S), "", &whole));
    DT_TRY(dt_distribute(whole, DT_I32, target, &targets));
    for (int gather = 0; gather < 2; gather++) {
        const dt_values in = {.n = 2, .value = {x, targets}};
        dt_tape *t = NULL;
        DT_TRY(dt_tape_create(mesh, NULL, &t));
        dt_layer_lm_head_gather(head, gather);
        dt_world_reset_counts(world);
        dt_tensor *y = dt_module_call(head, t, &in).value[0];
        const dt_counts c = dt_world_counts(world);
        TEST_THAT(!gather || (c.calls[DT_CALL_ALL_GATHER] == 1 && c.total_calls == 1), "%lld calls",
                  (long long)c.total_calls);
        DT_TRY(dt_tensor_item_sync(y, &loss[gather]));
        dt_tape_destroy(&t);
    }
    const double off = loss[1] - loss[0];
    TEST_THAT(off < 1e-6 && off > -1e-6, "%.9g and %.9g", loss[0], loss[1]);
    dt_tensor_destroy(&x);
    dt_tensor_destroy(&targets);
    dt_module_destroy(&head);
    dt_mesh_destroy(&mesh);
    return DT_OK;
}

START_TEST(logits_of_two_axes_are_gathered_once)
{
    test_ranks(4, gathered_body, NULL);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("tensor parallel counts");
    TCase *tc = tcase_create("counts");
    tcase_set_timeout(tc, 120);
    test_loop(tc, counts_are_exact, 54);
    test_loop(tc, with_data_parallelism, 6);
    test_loop(tc, few_key_value_heads, 12);
    test_loop(tc, bytes_of_a_layer, 12);
    test_loop(tc, activations_of_a_layer, 18);
    test_loop(tc, whole_logits_never_exist, 3);
    tcase_add_test(tc, logits_of_two_axes_are_gathered_once);
    suite_add_tcase(suite, tc);
    return test_main(suite);
}
