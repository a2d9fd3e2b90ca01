/* tests/fsdp/test_halves.c - the two halves of backward, as pipelines use them. */
#include "tests/fsdp/net.h"

#include <stdlib.h>
#include <string.h>

/* ---- I and W ---- */

/* The two halves of backward: gathers in the first, reductions in the second; the same bits. */
static dt_status halves_body(dt_world *world, void *arg)
{
    net n;
    char text[NET_TEXT];
    dt_tensor *loss = NULL;
    double value = 0;
    int np = 0;
    DT_TRY(net_open(arg, world, &n));
    dt_param *const *p = dt_module_params(n.root, &np);
    DT_TRY(net_gradients(&n, 0, &value));
    dt_array whole[40] = {{0}};
    TEST_THAT(np <= 40, "%d", np);
    for (int i = 0; i < np; i++)
        whole[i] = dt_array_share(&dt_tensor_grad(p[i]->tensor)->array);
    dt_module_clear_grads(n.root);
    DT_TRY(net_forward(&n, 0, false, &loss));
    dt_local one = {NULL, {0}};
    DT_TRY(dt_mesh_layout_text(n.mesh, DT_SCALAR, "", &one.layout));
    DT_TRY(dt_array_create(dt_mesh_heap(n.mesh), DT_F32, DT_SCALAR, DT_TAG_GRADIENT, &one.array));
    dt_array_fill(&one.array, 1);
    dt_trace_clear(n.trace);
    dt_world_reset_counts(world);
    DT_TRY(dt_backward_input(n.t, 1, &loss, &one));
    DT_TRY(net_events(&n, text));
    TEST_THAT(!strstr(text, "reduce") && !strstr(text, "free"), "%s", text);
    TEST_THAT(net_calls(&n, DT_CALL_REDUCE_SCATTER) == 0, "nothing is reduced");
    DT_TRY(dt_backward_weight(n.t));
    DT_TRY(net_events(&n, text));
    TEST_THAT(strcmp(text, "reduce layers.1\nfree layers.1\nreduced layers.1\nreduce layers.0\n"
                           "free layers.0\nreduced layers.0\nreduce root\nfree root\n"
                           "reduced root\n") == 0,
              "%s", text);
    TEST_THAT(net_calls(&n, DT_CALL_REDUCE_SCATTER) == 3 && net_calls(&n, DT_CALL_ALL_GATHER) == 2,
              "counts");
    DT_TRY(dt_module_reduce_grads(n.root));
    for (int i = 0; i < np; i++) {
        const dt_array *g = &dt_tensor_grad(p[i]->tensor)->array;
        TEST_THAT(memcmp(test_look(g), test_look(&whole[i]), dt_array_bytes(g)) == 0, "%s differs",
                  p[i]->name);
        dt_array_release(&whole[i]);
    }
    dt_array_release(&one.array);
    net_close(&n);
    return DT_OK;
}

START_TEST(two_halves)
{
    net_case c = {.shard = 2, .blocks = 2, .n = 4, .hidden = 4, .batch = 4};
    test_ranks(2, halves_body, &c);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("fully_shard in halves");
    TCase *tc = tcase_create("all");
    tcase_set_timeout(tc, 120);
    tcase_add_test(tc, two_halves);
    suite_add_tcase(suite, tc);
    return test_main(suite);
}
