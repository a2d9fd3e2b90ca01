/* tests/tp/test_print.c - what dt_tp_print says before anything runs is what a real step then does:
 * collectives and bytes by kind; and it names a missing f. */
#include "tests/harness.h"
#include "tests/tp/model_case.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The text of a report, and the sum of "; forward N all-gathers, B B" and the like, by kind. */
typedef struct said {
    char text[40000];
    int64_t calls[DT_NCALLS], bytes[DT_NCALLS];
    int warnings;
} said;

static void hear(void *arg, const char *line)
{
    said *s = arg;
    s->warnings += line[0] == '!';
    (void)snprintf(s->text + strlen(s->text), sizeof s->text - strlen(s->text), "%s\n", line);
    for (const char *p = strstr(line, "; "); p; p = strstr(p + 1, "; ")) {
        long long calls = 0, bytes = 0;
        char kind[32] = "";
        if (sscanf(p, "; forward %lld %31[a-z-], %lld B", &calls, kind, &bytes) != 3 &&
            sscanf(p, "; backward %lld %31[a-z-], %lld B", &calls, kind, &bytes) != 3 &&
            sscanf(p, "; in all %lld %31[a-z-], %lld B", &calls, kind, &bytes) != 3)
            continue;
        for (int k = 0; k < DT_NCALLS; k++) {
            const char *name = dt_call_name((dt_call)k);
            if (strncmp(kind, name, strlen(name)) == 0) {
                s->calls[k] += calls;
                s->bytes[k] += bytes;
            }
        }
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

typedef struct real_step {
    const model_case *c;
    dt_counts counts;
} real_step;

static dt_status step_body(dt_world *world, void *arg)
{
    real_step *r = arg;
    dt_mesh *mesh = NULL;
    dt_module *model = NULL;
    dt_tape *t = NULL;
    dt_values in = {0};
    int64_t valid = 0;
    DT_TRY(model_case_lay_out(r->c, NULL, world, (dt_device){DT_CPU, 0}, &mesh, &model));
    DT_TRY(model_case_batch(r->c, mesh, &in, &valid));
    DT_TRY(dt_tape_create(mesh, NULL, &t));
    dt_world_reset_counts(world);
    dt_tensor *loss = dt_module_call(model, t, &in).value[0];
    DT_TRY(dt_backward(t, loss));
    DT_TRY(dt_module_reduce_grads(model));
    if (dt_world_rank(world) == 0)
        r->counts = dt_world_counts(world);
    dt_tape_destroy(&t);
    dt_tensor_destroy(&in.value[0]);
    dt_tensor_destroy(&in.value[1]);
    dt_module_destroy(&model);
    dt_mesh_destroy(&mesh);
    return DT_OK;
}

/* 3 models x sequence parallelism x (gathered logits, whole vocabulary) x tp 4, dp 2 x tp 2. The
 * vocabulary-parallel loss has all-reduces of its own, which do not run on meta. */
START_TEST(what_is_said_is_done)
{
    static said s;
    s = (said){0};
    model_case c = model_case_usual(_i / 8);
    c.sp = _i & 1;
    c.vocab_as = _i & 2 ? DT_TP_VOCAB_GATHERED : DT_TP_VOCAB_WHOLE;
    c.dp = _i & 4 ? 2 : 1;
    c.tp = 4 / c.dp;
    real_step r = {.c = &c};
    ck_ok(print_case(&c, NULL, &s));
    test_ranks(4, step_body, &r);
    for (int k = 0; k < DT_NCALLS; k++) {
        ck_assert_msg(s.calls[k] == r.counts.calls[k] && s.bytes[k] == r.counts.bytes[k],
                      "%s: said %lld calls, %lld B; done %lld, %lld B\n%s",
                      dt_call_name((dt_call)k), (long long)s.calls[k], (long long)s.bytes[k],
                      (long long)r.counts.calls[k], (long long)r.counts.bytes[k], s.text);
    }
    ck_assert_int_eq(s.warnings, 0);
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
    ck_assert_msg(s.warnings == 2, "%d warnings\n%s", s.warnings, s.text);
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
    };
    for (int i = 0; i < DT_COUNT(want); i++)
        ck_assert_msg(strstr(s.text, want[i]) != NULL, "no '%s' in\n%s", want[i], s.text);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("tensor parallel plans in print");
    TCase *tc = tcase_create("print");
    tcase_set_timeout(tc, 120);
    tcase_add_loop_test(tc, what_is_said_is_done, 0, 24);
    tcase_add_loop_test(tc, a_missing_f_is_named, 0, 3);
    tcase_add_test(tc, lines);
    suite_add_tcase(suite, tc);
    return test_main(suite);
}
