/* tests/tp/test_print.c - what dt_tp_print says before anything runs is what a real step then does:
 * every module's collectives, forward and backward, call by call and byte by byte; and it names a
 * missing f. */
#include "tests/harness.h"
#include "tests/tp/model_case.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Calls of one kind that a module makes in one walk. */
typedef struct row {
    char module[48], when[12];
    dt_call kind;
    int64_t calls, bytes;
} row;

typedef struct rows {
    row row[400];
    int n;
} rows;

typedef struct said {
    char text[40000];
    rows rows;
    int warnings;
} said;

/* The row of the same kind, module and walk; NULL: none. */
static row *find(rows *all, const row *r)
{
    for (int i = 0; i < all->n; i++) {
        row *at = &all->row[i];
        if (at->kind == r->kind && strcmp(at->module, r->module) == 0 &&
            strcmp(at->when, r->when) == 0)
            return at;
    }
    return NULL;
}

static void add(rows *all, row r)
{
    row *at = find(all, &r);
    ck_assert(at || all->n < DT_COUNT(all->row));
    if (!at) {
        all->row[all->n++] = r;
        return;
    }
    at->calls += r.calls;
    at->bytes += r.bytes;
}

/* Every "; forward N all-gathers, B B" and the like of a line "module (kind) ...". */
static void hear(void *arg, const char *line)
{
    said *s = arg;
    s->warnings += line[0] == '!';
    (void)snprintf(s->text + strlen(s->text), sizeof s->text - strlen(s->text), "%s\n", line);
    for (const char *p = strstr(line, "; "); p; p = strstr(p + 1, "; ")) {
        row r = {.module = ""};
        long long calls = 0, bytes = 0;
        char kind[32] = "";
        if (sscanf(p, "; %11[a-z ] %lld %31[a-z-], %lld B", r.when, &calls, kind, &bytes) != 4)
            continue;
        r.when[strlen(r.when) - 1] = '\0'; /* a space */
        if (strncmp(line, "gradients", 9) != 0)
            (void)sscanf(line, "%47s", r.module);
        r.calls = calls;
        r.bytes = bytes;
        while (strncmp(kind, dt_call_name(r.kind), strlen(dt_call_name(r.kind))) != 0)
            r.kind = (dt_call)(r.kind + 1);
        add(&s->rows, r);
    }
}

/* Print the plan of a case on one process that plays a rank of all. */
static dt_status print_case(const model_case *c, const dt_tp_plan *plan, said *s)
{
    dt_world *world = NULL;
    dt_mesh *mesh = NULL;
    dt_module *model = NULL;
    dt_values in = {0};
    int64_t valid = 0;
    const dt_world_options fake = {.backend = DT_BACKEND_FAKE, .fake_size = c->dp * c->tp};
    DT_TRY(dt_world_create(&fake, &world));
    DT_TRY(model_case_lay_out(c, plan, world, (dt_device){DT_META, 0}, &mesh, &model));
    DT_TRY(model_case_batch(c, mesh, &in, &valid));
    DT_TRY(dt_tp_print(model, mesh, &in, hear, s));
    dt_tensor_destroy(&in.value[0]);
    dt_tensor_destroy(&in.value[1]);
    dt_module_destroy(&model);
    dt_mesh_destroy(&mesh);
    dt_world_destroy(&world);
    return DT_OK;
}

/* ---- the real step ---- */

typedef struct real_step {
    const model_case *c;
    dt_counts counts;
    rows rows;
} real_step;

/* The calls recorded since the last time, by the module that their labels start with. */
static void take(dt_trace *trace, const char *when, rows *all)
{
    int64_t n = 0;
    const dt_trace_event *e = dt_trace_events(trace, &n);
    for (int64_t i = 0; i < n; i++) {
        row r = {.calls = 1, .bytes = e[i].bytes};
        char kind[32] = "";
        if (strcmp(e[i].kind, "issue") != 0)
            continue;
        ck_assert_int_ge(sscanf(e[i].name, "%31s %47[^ ,]", kind, r.module), 1);
        if (strcmp(r.module, "reduce_grads") == 0)
            *r.module = '\0';
        (void)snprintf(r.when, sizeof r.when, "%s", when);
        while (strcmp(kind, dt_call_name(r.kind)) != 0)
            r.kind = (dt_call)(r.kind + 1);
        add(all, r);
    }
    dt_trace_clear(trace);
}

static dt_status go(dt_module *model, dt_tape *t, const dt_values *in, dt_trace *trace, rows *all)
{
    dt_tensor *loss = dt_module_call(model, t, in).value[0];
    take(trace, "forward", all);
    DT_TRY(dt_backward(t, loss));
    take(trace, "backward", all);
    DT_TRY(dt_module_reduce_grads(model));
    take(trace, "in all", all);
    return DT_OK;
}

static dt_status step_body(dt_world *world, void *arg)
{
    real_step *r = arg;
    dt_mesh *mesh = NULL;
    dt_module *model = NULL;
    dt_tape *t = NULL;
    dt_trace *trace = NULL;
    dt_values in = {0};
    rows *mine = calloc(1, sizeof *mine);
    int64_t valid = 0;
    TEST_THAT(mine, "memory");
    DT_TRY(model_case_lay_out(r->c, NULL, world, test_device(world), &mesh, &model));
    DT_TRY(model_case_batch(r->c, mesh, &in, &valid));
    DT_TRY(dt_tape_create(mesh, NULL, &t));
    DT_TRY(dt_trace_create(&trace));
    dt_world_reset_counts(world);
    dt_world_set_trace(world, trace);
    DT_TRY(go(model, t, &in, trace, mine));
    dt_world_set_trace(world, NULL);
    if (dt_world_rank(world) == 0) {
        r->counts = dt_world_counts(world);
        r->rows = *mine;
    }
    free(mine);
    dt_trace_destroy(&trace);
    dt_tape_destroy(&t);
    dt_tensor_destroy(&in.value[0]);
    dt_tensor_destroy(&in.value[1]);
    dt_module_destroy(&model);
    dt_mesh_destroy(&mesh);
    return DT_OK;
}

/* Both lists have the same rows, and no call of the counters is missing from them. */
static void check_same(said *s, const real_step *r)
{
    int64_t calls[DT_NCALLS] = {0}, bytes[DT_NCALLS] = {0};
    for (int i = 0; i < r->rows.n; i++) {
        const row *done = &r->rows.row[i];
        const row *told = find(&s->rows, done);
        ck_assert_msg(told && told->calls == done->calls && told->bytes == done->bytes,
                      "'%s', %s: done %lld %s of %lld B, said %lld, %lld B\n%.1500s", done->module,
                      done->when, (long long)done->calls, dt_call_name(done->kind),
                      (long long)done->bytes, told ? (long long)told->calls : 0,
                      told ? (long long)told->bytes : 0, s->text);
        calls[done->kind] += done->calls;
        bytes[done->kind] += done->bytes;
    }
    ck_assert_msg(s->rows.n == r->rows.n, "said %d, done %d", s->rows.n, r->rows.n);
    ck_assert(memcmp(calls, r->counts.calls, sizeof calls) == 0);
    ck_assert(memcmp(bytes, r->counts.bytes, sizeof bytes) == 0);
    ck_assert_int_eq(s->warnings, 0);
}

/* 3 models and Llama with key/value heads on tp_kv x tp_rep, x tp, sp, sp with overlap x what
 * becomes of the vocabulary x tp 4, dp 2 x tp 2 (3 x tp 4 where heads are few), batches and
 * sequences that do not divide. */
START_TEST(what_is_said_is_done)
{
    static said s;
    static real_step r;
    model_case c = model_case_usual(_i / 18);
    c.sp = _i % 3 > 0;
    c.overlap = _i % 3 == 2;
    c.vocab_as = (dt_tp_vocab)(_i / 3 % 3);
    c.dp = _i / 9 % 2 ? 2 : 1;
    c.tp = _i / 18 == 3 ? 4 : 4 / c.dp;
    s = (said){0};
    r = (real_step){.c = &c};
    ck_ok(print_case(&c, NULL, &s));
    test_ranks(c.dp * c.tp, step_body, &r);
    check_same(&s, &r);
}
END_TEST

/* A plan without one of its `in` rows: every block before it is named, and nothing else. */
START_TEST(a_missing_f_is_named)
{
    static const char *const left_out[] = {"model.layers.*.self_attn", "model.layers.*.mlp",
                                           "lm_head"};
    static said s;
    s = (said){0};
    model_case c = model_case_usual(0);
    c.tp = 2;
    dt_tp_plan plan = dt_llama_tp_plan(DT_TP_VOCAB_SPLIT, false);
    dt_tp_rule rule[32];
    ck_assert_int_lt(plan.nrules, DT_COUNT(rule));
    for (int i = 0; i < plan.nrules; i++) {
        rule[i] = plan.rule[i];
        if (strcmp(rule[i].pattern, left_out[_i]) == 0)
            rule[i].in = NULL;
    }
    plan.rule = rule;
    ck_ok(print_case(&c, &plan, &s));
    ck_assert_msg(s.warnings == 2, "%d warnings\n%.3000s", s.warnings, s.text);
    ck_assert_ptr_nonnull(
        strstr(s.text, "! the gradient of the input of 'model.layers.0' stays P"));
}
END_TEST

/* The lines themselves. */
START_TEST(lines)
{
    static said s;
    s = (said){0};
    model_case c = model_case_usual(0);
    c.batch = 4;
    c.seq = 8;
    c.tp = 2;
    c.sp = true;
    ck_ok(print_case(&c, NULL, &s));
    /* 4 x 8 x 24 f32 are 3072 bytes; half of them move */
    static const char *const want[] = {
        "model.layers.0.self_attn (attention); [4, 8, 24] [S(0)@dp] -> [4, 8, 24] [S(0)@dp, "
        "S(1)@tp]; "
        "forward 1 all-gather, 1536 B; backward 1 all-gather, 1536 B; backward 1 reduce-scatter, "
        "1536 B\n",
        "model.layers.1.mlp.down_proj (linear); weight [24, 10] [S(1)@tp]; [4, 8, 10] [S(0)@dp, "
        "S(2)@tp] "
        "-> [4, 8, 24] [S(0)@dp, P@tp]; forward 1 reduce-scatter, 1536 B; backward 1 all-gather, "
        "1536 B\n",
        /* a maximum, a sum and a target's logit of 32 tokens */
        "lm_head (lm_head); weight [13, 24] [S(0)@tp]; [4, 8, 24] [S(0)@dp] -> [] [P@dp]; "
        "forward 1 all-gather, 1536 B; forward 3 all-reduces, 384 B; backward 1 "
        "reduce-scatter, 1536 B\n",
    };
    for (int i = 0; i < DT_COUNT(want); i++)
        ck_assert_msg(strstr(s.text, want[i]) != NULL, "no '%s' in\n%s", want[i],
                      s.text + (strlen(s.text) > 3000 ? strlen(s.text) - 3000 : 0));
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("tensor parallel plans in print");
    TCase *tc = tcase_create("print");
    tcase_set_timeout(tc, 120);
    test_loop(tc, what_is_said_is_done, 72);
    test_loop(tc, a_missing_f_is_named, 3);
    tcase_add_test(tc, lines);
    suite_add_tcase(suite, tc);
    return test_main(suite);
}
