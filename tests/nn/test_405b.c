/* tests/nn/test_405b.c - Llama 405B on 16,384 ranks: names, layouts and bytes, without a byte of
 * weights. */
#include "models/dt_models.h"
#include "tests/harness.h"

#include <stdio.h>
#include <time.h>
#include <unistd.h>

static int64_t ceil_part(int64_t n, int64_t k, int64_t r)
{
    const int64_t c = (n + k - 1) / k, lo = r * c < n ? r * c : n, hi = lo + c < n ? lo + c : n;
    return hi - lo;
}

/* Elements of a [rows, columns] matrix: rows (or columns) by tp, then rows of what is left by dp.
 * */
static int64_t shard(int64_t rows, int64_t columns, bool by_columns, int64_t dp, int64_t tp)
{
    if (by_columns)
        return ceil_part(rows, 2048, dp) * ceil_part(columns, 8, tp);
    return ceil_part(ceil_part(rows, 8, tp), 2048, dp) * columns;
}

static int64_t expected_elements(const dt_llama_config *c, int rank)
{
    const int64_t dp = rank / 8, tp = rank % 8, n = c->hidden_size, f = c->intermediate_size;
    const int64_t q = c->num_attention_heads * c->head_dim,
                  kv = c->num_key_value_heads * c->head_dim;
    const int64_t layer = shard(q, n, false, dp, tp) + 2 * shard(kv, n, false, dp, tp) +
                          shard(n, q, true, dp, tp) + 2 * shard(f, n, false, dp, tp) +
                          shard(n, f, true, dp, tp) + 2 * ceil_part(n, 2048, dp);
    return c->num_hidden_layers * layer + 2 * shard(c->vocab_size, n, false, dp, tp) +
           ceil_part(n, 2048, dp);
}

static int64_t resident_bytes(void)
{
    long total = 0, resident = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    ck_assert_ptr_nonnull(f);
    ck_assert_int_eq(fscanf(f, "%ld %ld", &total, &resident), 2);
    (void)fclose(f);
    return resident * sysconf(_SC_PAGESIZE);
}

START_TEST(llama_405b)
{
    static const int ranks[] = {0, 12345, 16383};
    static const struct {
        const char *pattern, *layout;
    } plan[] = {{"*norm.weight", "S(0)@dp_shard"},
                {"*layernorm.weight", "S(0)@dp_shard"},
                {"*[qkv]_proj.weight", "S(0)@tp>dp_shard"},
                {"*gate_proj.weight", "S(0)@tp>dp_shard"},
                {"*up_proj.weight", "S(0)@tp>dp_shard"},
                {"*o_proj.weight", "S(1)@tp, S(0)@dp_shard"},
                {"*down_proj.weight", "S(1)@tp, S(0)@dp_shard"},
                {"*embed_tokens.weight", "S(0)@tp>dp_shard"},
                {"lm_head.weight", "S(0)@tp>dp_shard"}};
    const dt_llama_config c = {.vocab_size = 128256,
                               .hidden_size = 16384,
                               .intermediate_size = 53248,
                               .num_hidden_layers = 126,
                               .num_attention_heads = 128,
                               .num_key_value_heads = 8,
                               .head_dim = 128,
                               .max_position_embeddings = 131072,
                               .rope.theta = 500000,
                               .rms_norm_eps = 1e-5,
                               .initializer_range = 0.02};
    const int rank = ranks[_i];
    const int64_t before = resident_bytes();
    const clock_t start = clock();
    dt_world *world = NULL;
    dt_mesh *mesh = NULL;
    dt_module *m = NULL;
    dt_heap *heap = NULL;
    ck_ok(dt_world_create(
        &(dt_world_options){.backend = DT_BACKEND_FAKE, .fake_rank = rank, .fake_size = 16384},
        &world));
    ck_ok(dt_mesh_create(world, (dt_device){DT_META, 0},
                         &(dt_mesh_options){.axes = {{"dp_shard", 2048}, {"tp", 8}}}, &mesh));
    ck_ok(dt_llama_create(&c, &m));
    for (int i = 0; i < DT_COUNT(plan); i++)
        ck_ok(dt_module_place(m, mesh, plan[i].pattern, plan[i].layout));
    ck_ok(dt_module_materialize(m, mesh, 1));
    ck_assert_int_eq(dt_module_count(m), INT64_C(405853388800)); /* the published size */
    ck_assert_int_eq(dt_module_local_bytes(m), 4 * expected_elements(&c, rank));
    ck_ok(dt_world_heap(world, (dt_device){DT_META, 0}, &heap));
    ck_assert_int_eq(dt_heap_get_stats(heap).live[DT_TAG_PARAMETER],
                     4 * expected_elements(&c, rank));
    ck_assert_int_eq(dt_world_counts(world).total_calls, 0);
    const int64_t used = resident_bytes() - before;
    (void)printf("405B, rank %d of 16384: %lld bytes of parameters; %.3f s, %.1f MB of memory\n",
                 rank, (long long)dt_module_local_bytes(m),
                 (double)(clock() - start) / CLOCKS_PER_SEC, (double)used / 1e6);
    ck_assert_int_lt(used, 1000000000);
    dt_module_destroy(&m);
    dt_mesh_destroy(&mesh);
    dt_world_destroy(&world);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("Llama 405B");
    TCase *tc = tcase_create("405B");
    tcase_set_timeout(tc, 0);
    tcase_add_loop_test(tc, llama_405b, 0, 3);
    suite_add_tcase(suite, tc);
    return test_main(suite);
}
