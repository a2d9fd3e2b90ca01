/* tests/law/test_stop.c - a number that is not finite, on one rank only: all ranks stop with the
 * same error, before the update (L7 of the map of PyTorch's tests). */
#include "tests/law/law.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { RANKS = 2 };

static const train_config layouts[] = {
    {.dp_replicate = 2, .dp_shard = 1, .tp = 1, .pp = 1},
    {.dp_replicate = 1, .dp_shard = 2, .tp = 1, .pp = 1},
    {.dp_replicate = 1, .dp_shard = 1, .tp = 2, .pp = 1},
    {.dp_replicate = 1, .dp_shard = 1, .tp = 1, .pp = 2},
};

/* This rank's weights and optimizer state, one after the other; the caller frees them. */
static dt_status keep(train_session *s, char **all_out, size_t *bytes_out)
{
    int n = 0;
    char *all = NULL;
    size_t bytes = 0;
    dt_optim_state *state = dt_optim_states(s->optim, &n);
    for (int i = 0; i < n; i++) {
        const dt_array *const part[] = {dt_tensor_local(state[i].param->tensor), &state[i].exp_avg,
                                        &state[i].exp_avg_sq};
        for (int k = 0; k < DT_COUNT(part); k++) {
            const size_t more = dt_array_bytes(part[k]);
            all = realloc(all, bytes + more + 1);
            TEST_THAT(all, "memory");
            memcpy(all + bytes, test_look(part[k]), more);
            bytes += more;
        }
    }
    *all_out = all;
    *bytes_out = bytes;
    return DT_OK;
}

static dt_status body(dt_world *world, void *arg)
{
    char path[3][1024];
    train_config c = *(const train_config *)arg;
    train_session s = {0};
    train_result result = {0};
    char *before = NULL, *after = NULL;
    size_t nbefore = 0, nafter = 0;
    int n = 0;
    c.model_config = law_path("llama_tiny", "config.json", path[0]);
    c.model_init = law_path("llama_tiny", "model.safetensors", path[1]);
    c.data_path = law_path("llama_tiny", "tokens.bin", path[2]);
    DT_TRY(train_session_create(&c, world, &s));
    DT_TRY(train_session_step(&s, &result));
    dt_param *last = dt_optim_states(s.optim, &n)[n - 1].param;
    dt_array first = *dt_tensor_local(last->tensor);
    first.shape = DT_SHAPE(1);
    if (dt_world_rank(world) == RANKS - 1) /* of what the last rank has; the others do not see it */
        DT_TRY(dt_array_write(&first, &(float){NAN}, 1));
    DT_TRY(keep(&s, &before, &nbefore));
    TEST_FAILS(DT_ERR_STATE, "nothing was updated", train_session_step(&s, &result));
    DT_TRY(keep(&s, &after, &nafter));
    TEST_THAT(nbefore == nafter && nbefore > 0 && memcmp(before, after, nbefore) == 0,
              "weights or optimizer state were changed");
    TEST_THAT(s.step == 1 && dt_optim_steps(s.optim) == 1 &&
                  s.position == c.global_batch * c.seq_len,
              "step %lld, position %lld", (long long)s.step, (long long)s.position);
    free(before);
    free(after);
    train_session_destroy(&s);
    return DT_OK;
}

START_TEST(not_a_number_on_one_rank)
{
    train_config c = layouts[_i];
    c.steps = 2;
    c.seq_len = 16;
    c.global_batch = 4;
    c.micro_batch = 1;
    c.device = test_device_kind();
    c.max_norm = 1;
    c.adamw = (dt_adamw_options){.beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1};
    c.schedule = (dt_schedule){.lr = 1e-2};
    c.pp_schedule = "1f1b";
    c.loss_parallel = true;
    c.reshard_after_forward = c.pp == 1;
    test_ranks(RANKS, body, &c);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("stop");
    TCase *tc = tcase_create("stop");
    tcase_set_timeout(tc, 100);
    tcase_add_loop_test(tc, not_a_number_on_one_rank, 0, DT_COUNT(layouts));
    suite_add_tcase(suite, tc);
    return test_main(suite);
}
