/* tests/metrics/test_flops.c - model FLOPs utilisation by hand, the peak, memory by tag. */
#include "metrics/dt_metrics.h"
#include "models/dt_models.h"
#include "tests/harness.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* V 10, h 8, 2 layers, 2 heads of 4, 1 kv head, mlp 12. Attention: q 64, k and v 32 each, o 64; mlp
 * 3 * 96: 480 a layer. */
static dt_llama_config llama(bool tied)
{
    return (dt_llama_config){.vocab_size = 10,
                             .hidden_size = 8,
                             .intermediate_size = 12,
                             .num_hidden_layers = 2,
                             .num_attention_heads = 2,
                             .num_key_value_heads = 1,
                             .head_dim = 4,
                             .max_position_embeddings = 16,
                             .rope.theta = 10000,
                             .rms_norm_eps = 1e-5,
                             .initializer_range = 0.02,
                             .tie_word_embeddings = tied};
}

START_TEST(test_params)
{
    for (int tied = 0; tied < 2;
         tied++) { /* either way the head's 80 count once, the table's never */
        dt_module *m = NULL;
        const dt_llama_config config = llama(tied);
        ck_ok(dt_llama_create(&config, &m));
        ck_assert_int_eq(dt_flops_matmul_params(m), 2 * 480 + 80);
        dt_module_destroy(&m);
    }
    dt_module *m = NULL;
    const dt_gpt2_config gpt2 = {.vocab_size = 10,
                                 .n_embd = 8,
                                 .n_layer = 1,
                                 .n_head = 2,
                                 .n_inner = 32,
                                 .n_positions = 16,
                                 .layer_norm_epsilon = 1e-5,
                                 .initializer_range = 0.02};
    ck_ok(
        dt_gpt2_create(&gpt2, &m)); /* tied head, c_attn and c_proj, mlp; no positions, no biases */
    ck_assert_int_eq(dt_flops_matmul_params(m), 80 + 8 * 24 + 64 + 2 * 8 * 32);
    dt_module_destroy(&m);
}
END_TEST

START_TEST(test_formula)
{
    const dt_flops f = {
        .matmul_params = 1000, .layers = 3, .heads = 4, .head_dim = 5, .seq_len = 7};
    ck_assert_double_eq(dt_flops_per_token(&f), 6 * 1000 + 6 * 3 * 4 * 5 * 2 * 7);
    ck_assert_double_eq_tol(dt_flops_mfu(&f, 100, 2208000), 0.5, 1e-15);
    ck_assert_double_eq(dt_flops_mfu(&f, 100, 0), 0);
    /* Llama 3 8B at 8192: 57.9 GFLOP a token (torchtitan). N: 8030261248 - embedding - norms. */
    const int64_t n = INT64_C(8030261248) - INT64_C(128256) * 4096 - 65 * 4096;
    const dt_flops l8 = {n, 32, 32, 128, 8192};
    ck_assert_double_eq_tol(dt_flops_per_token(&l8), 57.9e9, 0.05e9);
    char buf[DT_FLOPS_TEXT];
    const char *text = dt_flops_print(&f, 2208000, buf, sizeof buf);
    ck_assert_str_eq(text, "mfu = tokens/s x FLOP/token / peak, 11.0 kFLOP/token, "
                           "peak 2.2 MFLOP/s");
}
END_TEST

static dt_status peak(dt_world *world, void *arg)
{
    (void)arg;
    double given = 0, measured = 0;
    DT_TRY(dt_peak_flops_sync(dt_world_comm(world), 1e12, &given));
    TEST_THAT(given == 1e12 * dt_world_size(world), "%g", given);
    DT_TRY(dt_peak_flops_sync(dt_world_comm(world), 0, &measured));
    double low = measured, high = measured;
    DT_TRY(dt_all_reduce_f64_sync(dt_world_comm(world), &low, 1, DT_REDUCE_MIN));
    DT_TRY(dt_all_reduce_f64_sync(dt_world_comm(world), &high, 1, DT_REDUCE_MAX));
    TEST_THAT(measured > 0 && isfinite(measured) && low == high, "%g", measured);
    return DT_OK;
}

START_TEST(test_peak)
{
    test_ranks(1, peak, NULL);
    test_ranks(2, peak, NULL);
}
END_TEST

static void take(void *arg, const char *line)
{
    strcat(strcat(arg, line), "\n");
}

START_TEST(test_memory)
{
    dt_heap *heap = NULL;
    dt_array a = {0}, b = {0};
    char text[1024] = "";
    ck_ok(dt_heap_create((dt_device){DT_CPU, 0}, NULL, &heap));
    ck_ok(dt_array_create(heap, DT_F32, DT_SHAPE(1001), DT_TAG_PARAMETER, &a));
    ck_ok(dt_array_create(heap, DT_F32, DT_SHAPE(7), DT_TAG_OPTIMIZER, &b));
    dt_array_release(&b);
    dt_memory_print(heap, take, text);
    ck_assert_str_eq(text, "parameter             4004 bytes live            4004 bytes peak\n"
                           "optimizer                0 bytes live              28 bytes peak\n"
                           "together              4004 bytes live            4032 bytes peak\n");
    dt_array_release(&a);
    dt_heap_destroy(&heap);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("flops and memory");
    TCase *tc = tcase_create("flops");
    tcase_set_timeout(tc, 60);
    tcase_add_test(tc, test_params);
    tcase_add_test(tc, test_formula);
    tcase_add_test(tc, test_peak);
    tcase_add_test(tc, test_memory);
    suite_add_tcase(suite, tc);
    return test_main(suite);
}
