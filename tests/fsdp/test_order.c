/* tests/fsdp/test_order.c - the order of gather, wait, compute, free and reduce, from traces; that
 * the printed schedule is that order; that communication overlaps compute. (F6, and F19 without
 * clocks.) */
#include "tests/fsdp/net.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static net_case usual(int blocks, dt_fsdp_options o)
{
    return (net_case){.shard = 2, .blocks = blocks, .n = 6, .hidden = 5, .batch = 4, .options = o};
}

static dt_status is(const char *got, const char *want)
{
    TEST_THAT(strcmp(got, want) == 0, "got\n%s, wanted\n%s", got, want);
    return DT_OK;
}

/* Short forms: "G0 W0 F0 X0 B0 R0 D0" for gather, wait, forward, free, backward, reduce, reduced;
 * the root is r. */
static dt_status events(net *n, char text[NET_TEXT])
{
    static const struct {
        const char *word;
        char letter;
    } letters[] = {{"gather", 'G'},   {"wait", 'W'},    {"forward", 'F'}, {"free", 'X'},
                   {"backward", 'B'}, {"reduced", 'D'}, {"reduce", 'R'}};
    char all[NET_TEXT], *rest = NULL;
    size_t at = 0;
    DT_TRY(net_events(n, all));
    text[0] = '\0';
    for (char *line = strtok_r(all, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
        const char *who = strrchr(line, ' ') + 1, *number = strrchr(line, '.');
        char letter = '?';
        for (int i = DT_COUNT(letters) - 1; i >= 0; i--) {
            const size_t length = strlen(letters[i].word);
            if (strncmp(line, letters[i].word, length) == 0 && line[length] == ' ')
                letter = letters[i].letter;
        }
        at += (size_t)snprintf(text + at, NET_TEXT - at, "%c%s ", letter,
                               strcmp(who, "root") == 0 ? "r" : number + 1);
    }
    return DT_OK;
}

/* ---- F6 ---- */

static dt_status order_body(dt_world *world, void *arg)
{
    net n;
    dt_tensor *loss = NULL;
    char text[NET_TEXT];
    DT_TRY(net_open(arg, world, &n));
    DT_TRY(net_forward(&n, 0, false, &loss)); /* the order is not known yet: nothing ahead */
    DT_TRY(events(&n, text));
    DT_TRY(is(text, "Gr Wr Fr G0 W0 F0 X0 G1 W1 F1 X1 G2 W2 F2 X2 "));
    const char *backward = "G2 Br W2 G1 B2 R2 X2 W1 G0 B1 D2 R1 X1 W0 B0 D1 R0 X0 D0 Rr Xr Dr ";
    DT_TRY(dt_backward(n.t, loss));
    DT_TRY(events(&n, text));
    DT_TRY(is(text, backward));
    DT_TRY(net_forward(&n, 1, false, &loss));
    DT_TRY(events(&n, text));
    DT_TRY(is(text, "Gr Wr G0 Fr W0 G1 F0 X0 W1 G2 F1 X1 W2 F2 X2 "));
    DT_TRY(dt_backward(n.t, loss));
    DT_TRY(events(&n, text));
    DT_TRY(is(text, backward));
    net_close(&n);
    return DT_OK;
}

START_TEST(order)
{
    net_case c = usual(3, (dt_fsdp_options){0});
    test_ranks(2, order_body, &c);
}
END_TEST

/* The forward of a known order, by depth; F6's are those of 1 and 2 after the root's. */
static dt_status depth_body(dt_world *world, void *arg)
{
    static const char *const want[] = {
        "Gr Wr Fr G0 W0 F0 X0 G1 W1 F1 X1 G2 W2 F2 X2 G3 W3 F3 X3 ",
        "Gr Wr G0 Fr W0 G1 F0 X0 W1 G2 F1 X1 W2 G3 F2 X2 W3 F3 X3 ",
        "Gr Wr G0 G1 Fr W0 G2 F0 X0 W1 G3 F1 X1 W2 F2 X2 W3 F3 X3 ",
    };
    const net_case *c = arg;
    net n;
    double loss = 0;
    dt_tensor *l = NULL;
    char text[NET_TEXT];
    DT_TRY(net_open(c, world, &n));
    DT_TRY(net_step(&n, 0, &loss));
    dt_trace_clear(n.trace);
    DT_TRY(net_forward(&n, 1, false, &l));
    DT_TRY(events(&n, text));
    DT_TRY(is(text, want[c->options.prefetch < 0 ? 0 : c->options.prefetch]));
    net_close(&n);
    return DT_OK;
}

START_TEST(depth)
{
    net_case c = usual(4, (dt_fsdp_options){.prefetch = _i ? _i : -1});
    test_ranks(2, depth_body, &c);
}
END_TEST

/* The user's own lists, and a list of groups that are not used then: waited for and freed at the
 * end. */
static dt_status lists_body(dt_world *world, void *arg)
{
    net n;
    dt_tensor *loss = NULL;
    char text[NET_TEXT];
    DT_TRY(net_open(arg, world, &n));
    double value = 0;
    DT_TRY(net_step(&n, 0, &value));
    DT_TRY(dt_fsdp_set_prefetch(n.root, false, 3, n.block));
    for (int i = 0; i < 3; i++)
        DT_TRY(dt_fsdp_set_prefetch(n.block[i], false, 0, NULL));
    DT_TRY(dt_fsdp_set_prefetch(n.root, true, 1, &n.block[0])); /* too early */
    dt_trace_clear(n.trace);
    DT_TRY(net_forward(&n, 1, false, &loss));
    DT_TRY(events(&n, text));
    DT_TRY(is(text, "Gr Wr G0 G1 G2 Fr W0 F0 X0 W1 F1 X1 W2 F2 X2 "));
    DT_TRY(dt_backward(n.t, loss));
    DT_TRY(events(&n, text));
    DT_TRY(is(text, "G0 Br G2 W2 G1 B2 R2 X2 W1 B1 D2 R1 X1 W0 B0 D1 R0 X0 D0 Rr Xr Dr "));
    DT_TRY(dt_fsdp_set_prefetch(n.root, true, -1, NULL)); /* by the order again */
    DT_TRY(net_forward(&n, 1, false, &loss));
    dt_trace_clear(n.trace);
    DT_TRY(dt_backward(n.t, loss));
    DT_TRY(events(&n, text));
    TEST_THAT(strncmp(text, "G2 Br W2 G1 B2", 14) == 0, "%s", text);
    TEST_FAILS(DT_ERR_STATE, "was not given", dt_fsdp_set_prefetch(n.root, true, 1, &n.layers));
    DT_TRY(dt_fsdp_set_prefetch(n.block[2], false, 1, &n.block[0])); /* too late */
    DT_TRY(net_forward(&n, 1, true, &loss));
    TEST_THAT(dt_heap_get_stats(dt_mesh_heap(n.mesh)).live[DT_TAG_COMM] == 0,
              "evaluation leaves what it gathered in vain");
    net_close(&n);
    return DT_OK;
}

START_TEST(own_lists)
{
    net_case c = usual(3, (dt_fsdp_options){0});
    test_ranks(2, lists_body, &c);
}
END_TEST

/* Two forwards on one tape, then one backward: the inner pattern twice, the root last; each group
 * is reduced once, after its last backward. A gradient that reaches one block alone: what was
 * gathered ahead for nothing is freed at the end. */
static dt_status twice_body(dt_world *world, void *arg)
{
    net n;
    dt_tensor *loss = NULL;
    char text[NET_TEXT];
    DT_TRY(net_open(arg, world, &n));
    double value = 0;
    DT_TRY(net_step(&n, 0, &value));
    DT_TRY(net_forward(&n, 1, false, &loss));
    dt_tensor *again = dt_module_call1(n.root, n.t, n.x);
    loss = dt_add(n.t, loss, dt_sum(n.t, again, 0));
    dt_trace_clear(n.trace);
    DT_TRY(dt_backward(n.t, loss));
    DT_TRY(events(&n, text));
    DT_TRY(is(text, "G2 Br W2 G1 B2 X2 W1 G0 B1 X1 W0 B0 X0 "
                    "G2 Br W2 G1 B2 R2 X2 W1 G0 B1 D2 R1 X1 W0 B0 D1 R0 X0 D0 Rr Xr Dr "));
    dt_module_clear_grads(n.root);
    /* only blocks 2 and 0 run: block 1 is gathered ahead in vain, and all is well after the next
     * whole step */
    dt_tape_reset(n.t, NULL);
    dt_tensor *x = dt_module_call1(n.block[0], n.t, n.x);
    x = dt_module_call1(n.block[2], n.t, x);
    DT_TRY(dt_backward(n.t, dt_sum(n.t, x, 0)));
    DT_TRY(dt_module_reduce_grads(n.root));
    TEST_THAT(dt_heap_get_stats(dt_mesh_heap(n.mesh)).live[DT_TAG_COMM] == 0, "copies stay");
    dt_module_clear_grads(n.root);
    /* the same, forgotten while it is reduced */
    dt_tape_reset(n.t, NULL);
    x = dt_module_call1(n.block[2], n.t, dt_module_call1(n.block[0], n.t, n.x));
    DT_TRY(dt_backward(n.t, dt_sum(n.t, x, 0)));
    dt_module_clear_grads(n.root);
    DT_TRY(dt_module_reduce_grads(n.root));
    int count = 0;
    dt_param *const *p = dt_module_params(n.root, &count);
    for (int i = 0; i < count; i++)
        TEST_THAT(!dt_tensor_grad(p[i]->tensor)->array.storage, "%s has a gradient", p[i]->name);
    DT_TRY(net_step(&n, 1, &value));
    net_close(&n);
    return DT_OK;
}

START_TEST(two_forwards)
{
    net_case c = usual(3, (dt_fsdp_options){0});
    test_ranks(2, twice_body, &c);
}
END_TEST

/* A group inside of a group: backward goes by the order in which passes ended. */
static dt_status nested(net *n)
{
    for (int i = 0; i < n->c->blocks; i++) {
        DT_TRY(dt_fully_shard(dt_module_child(n->block[i], 1), n->mesh, "dp_shard", NULL));
        DT_TRY(dt_fully_shard(n->block[i], n->mesh, "dp_shard", NULL));
    }
    DT_TRY(dt_fully_shard(n->root, n->mesh, "dp_shard", NULL));
    return DT_OK;
}

static dt_status nested_body(dt_world *world, void *arg)
{
    net n;
    char text[NET_TEXT];
    double loss = 0;
    DT_TRY(net_open(arg, world, &n));
    DT_TRY(net_step(&n, 0, &loss));
    dt_trace_clear(n.trace);
    DT_TRY(net_step(&n, 1, &loss));
    DT_TRY(events(&n, text));
    DT_TRY(is(text, "Gr Wr G0 Fr W0 Gc_proj F0 Wc_proj G1 Fc_proj Xc_proj X0 W1 Gc_proj F1 Wc_proj "
                    "Fc_proj Xc_proj X1 "
                    "G1 Br W1 Gc_proj B1 Wc_proj G0 Bc_proj Rc_proj Xc_proj Dc_proj R1 X1 W0 "
                    "Gc_proj B0 Wc_proj "
                    "Bc_proj D1 Rc_proj Xc_proj Dc_proj R0 X0 D0 Rr Xr Dr "));
    net_close(&n);
    return DT_OK;
}

START_TEST(groups_in_groups)
{
    net_case c = usual(2, (dt_fsdp_options){0});
    c.shard_with = nested;
    test_ranks(2, nested_body, &c);
}
END_TEST

/* ---- the printed schedule ---- */

static dt_status print_body(dt_world *world, void *arg)
{
    net n;
    double loss = 0;
    char traced[NET_TEXT], printed[NET_TEXT] = "";
    DT_TRY(net_open(arg, world, &n));
    TEST_FAILS(DT_ERR_STATE, "first forward",
               dt_fsdp_schedule_print(n.root, net_add_line, printed));
    DT_TRY(net_step(&n, 0, &loss));
    DT_TRY(dt_fsdp_schedule_print(n.root, net_add_line, printed));
    dt_trace_clear(n.trace);
    DT_TRY(net_step(&n, 1, &loss));
    DT_TRY(net_events(&n, traced));
    DT_TRY(is(printed, traced));
    printed[0] = '\0';
    DT_TRY(dt_fsdp_schedule_print(n.root, net_add_line, printed)); /* printing changed nothing */
    DT_TRY(is(printed, traced));
    net_close(&n);
    return DT_OK;
}

/* One group of norm and head, with a block that is called by the root between them. */
static dt_status listed(net *n)
{
    dt_module *ends[] = {dt_module_child(n->root, 0), dt_module_child(n->root, 2)};
    for (int i = 0; i < n->c->blocks; i++)
        DT_TRY(dt_fully_shard(n->block[i], n->mesh, "dp_shard", &n->c->options));
    DT_TRY(dt_fully_shard_list(2, ends, n->mesh, "dp_shard", &n->c->options));
    DT_TRY(dt_fully_shard(n->root, n->mesh, "dp_shard", &n->c->options));
    return DT_OK;
}

START_TEST(printed_is_traced)
{
    static const dt_reshard reshard[] = {DT_RESHARD_DEFAULT, DT_RESHARD_ALWAYS, DT_RESHARD_NEVER,
                                         DT_RESHARD_STEP, DT_RESHARD_GROUP};
    static const dt_grad_reduce reduce[] = {DT_REDUCE_EACH, DT_REDUCE_SHARDS_EACH, DT_REDUCE_STEP};
    net_case c = usual(3, (dt_fsdp_options){.reshard = reshard[_i % 5],
                                            .reshard_size = 2,
                                            .reduce = reduce[_i / 5 % 3],
                                            .prefetch = _i / 15 % 3 ? _i / 15 % 3 : -1});
    c.shard = 4;
    test_ranks(4, print_body, &c);
    c.shard = 2;
    c.replicate = c.options.reshard == DT_RESHARD_GROUP ? 1 : 2;
    c.shard_with = _i % 2 ? listed : NULL;
    test_ranks(net_ranks(&c), print_body, &c);
    c.shard = c.replicate = 1; /* casts alone have the same order */
    c.shard_with = NULL;
    c.options.reshard = reshard[_i % 4];
    c.options.param_dtype = DT_BF16;
    test_ranks(1, print_body, &c);
    c.shard_with = nested;
    c.shard = 2;
    test_ranks(2, print_body, &c);
}
END_TEST

/* ---- overlap ---- */

/* Position in the trace of an event, from `from` on; -1 if there is none. */
static int64_t find(const net *n, int64_t from, const char *kind, const char *name, int phase)
{
    int64_t count = 0;
    const dt_trace_event *e = dt_trace_events(n->trace, &count);
    for (int64_t i = from; i < count; i++) {
        if (strcmp(e[i].kind, kind) == 0 && strstr(e[i].name, name) &&
            (phase < 0 || (int)e[i].phase == phase))
            return i;
    }
    return -1;
}

/* That of the next block begins before this block's compute, and is waited for after it; block 1's
 * reduction begins before block 0's backward and is waited for after it. The order of issue and
 * wait is what the host decides; how long calls take is not asserted. */
static dt_status overlapped(net *n, int step)
{
    dt_tensor *loss = NULL;
    dt_trace_clear(n->trace);
    DT_TRY(net_forward(n, step, false, &loss));
    const int64_t gather = find(n, 0, "fsdp", "gather layers.1", -1);
    const int64_t compute = find(n, gather, "op", "linear", DT_TRACE_BEGIN);
    const int64_t computed = find(n, compute, "op", "linear", DT_TRACE_END);
    const int64_t wait = find(n, gather, "fsdp", "wait layers.1", -1);
    TEST_THAT(gather >= 0 && gather < compute && compute < computed && computed < wait,
              "gather %lld, op %lld to %lld, wait %lld", (long long)gather, (long long)compute,
              (long long)computed, (long long)wait);
    dt_trace_clear(n->trace);
    DT_TRY(dt_backward(n->t, loss));
    const int64_t reduce = find(n, 0, "fsdp", "reduce layers.1", -1);
    const int64_t backward = find(n, reduce, "fsdp", "backward layers.0", -1);
    const int64_t grad = find(n, backward, "grad", "linear", DT_TRACE_END);
    const int64_t reduced = find(n, reduce, "fsdp", "reduced layers.1", -1);
    const int64_t next = find(n, backward, "fsdp", "reduce layers.0", -1);
    TEST_THAT(
        reduce >= 0 && reduce < backward && backward < grad && grad < reduced && reduced < next,
        "reduce %lld, backward %lld, gradient %lld, reduced %lld, next %lld", (long long)reduce,
        (long long)backward, (long long)grad, (long long)reduced, (long long)next);
    dt_module_clear_grads(n->root);
    return DT_OK;
}

static dt_status overlap_body(dt_world *world, void *arg)
{
    net n;
    double value = 0;
    DT_TRY(net_open(arg, world, &n));
    DT_TRY(net_step(&n, 0, &value));
    dt_world_set_delay(world, 1u << DT_CALL_ALL_GATHER | 1u << DT_CALL_REDUCE_SCATTER, 20);
    DT_TRY(overlapped(&n, 1));
    net_close(&n);
    return DT_OK;
}

START_TEST(overlap)
{
    net_case c = usual(2, (dt_fsdp_options){0});
    test_ranks(2, overlap_body, &c);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("fully_shard order");
    TCase *tc = tcase_create("order");
    tcase_set_timeout(tc, 120);
    tcase_add_test(tc, order);
    tcase_add_loop_test(tc, depth, 0, 3);
    tcase_add_test(tc, own_lists);
    tcase_add_test(tc, two_forwards);
    tcase_add_test(tc, groups_in_groups);
    tcase_add_loop_test(tc, printed_is_traced, 0, 45);
    tcase_add_test(tc, overlap);
    suite_add_tcase(suite, tc);
    return test_main(suite);
}
