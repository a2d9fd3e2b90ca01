/* tests/fsdp/test_slow.c - sleeps of 20 ms in the communicator, in every place where a wait may be
 * missing: gathers, reductions, after forward, before the optimizer; whatever is resharded or
 * offloaded. No bit changes and no event moves. (F4 of the tests that PyTorch has for fully_shard;
 * no time is asserted.) */
#include "tests/fsdp/net.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const dt_reshard reshard[] = {DT_RESHARD_ALWAYS, DT_RESHARD_NEVER, DT_RESHARD_GROUP};
static const unsigned kinds[] = {1u << DT_CALL_ALL_GATHER, 1u << DT_CALL_REDUCE_SCATTER,
                                 1u << DT_CALL_BARRIER};

/* The first event is there, and the second only after it. */
static void in_order(const char *events, const char *first, const char *second)
{
    const char *a = strstr(events, first), *b = strstr(events, second);
    ck_assert_msg(a && b && a < b, "%s, then %s, in\n%s", first, second, events);
}

/* The barriers stand where the delay of F4 does: after all of forward, before all of backward;
 * after the last sum came home. */
static void check_order(const char *events, bool offload)
{
    in_order(events, "forward layers.1", "stop after forward");
    in_order(events, "stop after forward", "backward root");
    in_order(events, "backward layers.0", "reduced root");
    in_order(events, "reduced root", "stop before optimizer");
    if (offload) /* a shard is in memory before it goes to others; read while 0 is on its way */
        in_order(events, "gather layers.0", "read layers.1");
    if (offload)
        in_order(events, "read layers.1", "gather layers.1");
}

/* 3 ways to reshard x 3 kinds of calls that are slow, x nothing offloaded or all. */
START_TEST(slow_communication)
{
    char folder[] = "/tmp/dt_slow_XXXXXX";
    net_case c = {.shard = 4,
                  .blocks = 2,
                  .n = 16,
                  .hidden = 10,
                  .batch = 8,
                  .steps = 2,
                  .stops = true,
                  .options = {.reshard = reshard[_i % 3], .reshard_size = 2}};
    net_case one = c, slow = c;
    one.shard = 1;
    one.plain = true;
    slow.delayed = kinds[_i / 3 % 3];
    slow.delay_ms = 20;
    slow.offload_params = _i / 9;
    ck_assert(mkdtemp(folder));
    slow.offload_dir = slow.offload_params ? folder : NULL;
    net_run a = net_train(&slow), b = net_train(&c), reference = net_train(&one);
    net_same(&a, &b, c.steps, 0);
    net_same(&a, &reference, c.steps, 2e-6); /* f32 sums in another order */
    check_order(a.events, slow.offload_params);
    if (!slow.offload_params) /* which adds events */
        ck_assert_str_eq(a.events, b.events);
    ck_assert_msg(rmdir(folder) == 0, "files stay in %s", folder);
    net_free(&a);
    net_free(&b);
    net_free(&reference);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("fully_shard with slow communication");
    TCase *tc = tcase_create("slow");
    tcase_set_timeout(tc, 120);
    tcase_add_loop_test(tc, slow_communication, 0, 18);
    suite_add_tcase(suite, tc);
    return test_main(suite);
}
