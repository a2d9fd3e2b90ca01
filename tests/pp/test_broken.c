/* tests/pp/test_broken.c - what the checker is for, rule by rule: of every schedule, each rule that
 * tests/pp/test_check.c states is broken at each place where it can be, alone, and the checker
 * names rank, position and action:
 *     (a) F, then B or I, then W, of a microbatch in a stage
 *     (c) a stage's F after the stage before's, its backward after the next one's; on one rank by
 *         order alone, on two as ranks that wait for each other
 *     (e) each once
 * Whole lowered schedules with actions dropped, doubled, displaced: tests/pp/test_check.c. */
#include "pp/dt_schedule.h"
#include "tests/harness.h"

#include <stdio.h>
#include <string.h>

typedef struct spot {
    int rank; /* -1: nowhere */
    int64_t at;
} spot;

static spot find(const dt_pp_schedule *s, dt_pp_kind kind, int stage, int microbatch)
{
    for (int r = 0; r < s->nranks; r++)
        for (int64_t i = 0; i < s->row[r].count; i++) {
            const dt_pp_action a = s->row[r].action[i];
            if (a.kind == kind && a.stage == stage && a.microbatch == microbatch)
                return (spot){r, i};
        }
    return (spot){-1, -1};
}

/* I, or the whole B. */
static spot find_back(const dt_pp_schedule *s, int stage, int microbatch)
{
    const spot half = find(s, DT_PP_I, stage, microbatch);
    return half.rank >= 0 ? half : find(s, DT_PP_B, stage, microbatch);
}

static dt_pp_action action_at(const dt_pp_schedule *s, spot x)
{
    return s->row[x.rank].action[x.at];
}

static void move(dt_pp_schedule *s, int rank, int64_t from, int64_t to)
{
    dt_pp_action *row = s->row[rank].action;
    const dt_pp_action a = row[from];
    if (from < to)
        memmove(&row[from], &row[from + 1], (size_t)(to - from) * sizeof a);
    else
        memmove(&row[to + 1], &row[to], (size_t)(from - to) * sizeof a);
    row[to] = a;
}

/* The checker refuses it with this text, and so does lowering, which has other positions. */
static void refused(const dt_pp_schedule *s, const char *text, const char *how)
{
    dt_pp_schedule *lowered = NULL;
    ck_ok(test_expect(dt_pp_check(s), DT_ERR_ARG, text, how));
    ck_ok(test_expect(dt_pp_lower(s, 2, &lowered), DT_ERR_ARG, text, how));
}

/* `late` comes to stand before what it needs, which is on the same rank. */
static void break_order(dt_pp_schedule *s, spot needed, spot late)
{
    char a[DT_PP_ACTION_TEXT], b[DT_PP_ACTION_TEXT], text[160];
    ck_assert(needed.rank == late.rank && needed.at < late.at);
    (void)snprintf(
        text, sizeof text, "rank %d, position %lld, %s waits for %s, which comes later in its row",
        late.rank, (long long)needed.at, dt_pp_action_print(action_at(s, late), a, sizeof a),
        dt_pp_action_print(action_at(s, needed), b, sizeof b));
    move(s, late.rank, late.at, needed.at);
    refused(s, text, "early");
    move(s, late.rank, needed.at, late.at);
}

/* Broken (a), of one microbatch in one stage. */
static int break_a(dt_pp_schedule *s, int stage, int k)
{
    const spot f = find(s, DT_PP_F, stage, k), back = find_back(s, stage, k);
    const spot w = find(s, DT_PP_W, stage, k);
    break_order(s, f, back);
    if (w.rank >= 0)
        break_order(s, back, w);
    return 1 + (w.rank >= 0);
}

/* F of a stage comes after a backward that follows the next stage's F on its rank: ranks wait for
 * each other, though in each stage all is in order. */
static int break_c_across(dt_pp_schedule *s, int stage, int k)
{
    const spot f = find(s, DT_PP_F, stage, k), next = find(s, DT_PP_F, stage + 1, k);
    const spot own = find_back(s, stage, k);
    char text[160];
    for (int64_t i = f.at + 1; i < own.at; i++) {
        const dt_pp_action x = s->row[f.rank].action[i];
        const spot from = x.stage == stage && (x.kind == DT_PP_B || x.kind == DT_PP_I)
                              ? find_back(s, stage + 1, x.microbatch)
                              : (spot){-1, -1};
        if (from.rank != next.rank || from.at < next.at)
            continue;
        (void)snprintf(text, sizeof text, "rank %d, position %lld, %dF%d waits for %dF%d",
                       next.rank, (long long)next.at, stage + 1, k, stage, k);
        move(s, f.rank, f.at, i);
        refused(s, text, "late");
        move(s, f.rank, i, f.at);
        return 1;
    }
    return 0;
}

static int break_c(dt_pp_schedule *s, int stage, int k)
{
    const spot f = find(s, DT_PP_F, stage, k), next = find(s, DT_PP_F, stage + 1, k);
    if (next.rank != f.rank)
        return break_c_across(s, stage, k);
    break_order(s, f, next);
    break_order(s, find_back(s, stage + 1, k), find_back(s, stage, k));
    return 2;
}

/* Without an action, with it twice, and as another microbatch's. */
static int break_e(dt_pp_schedule *s, int rank, int64_t at)
{
    dt_pp_row *row = &s->row[rank];
    const dt_pp_action a = row->action[at];
    const int64_t end = row->count - 1;
    move(s, rank, at, end);
    row->count--;
    refused(s, a.kind == DT_PP_F ? "no rank runs its F" : "is missing", "without");
    row->count++;
    move(s, rank, end, at);
    ck_ok(dt_grow((void **)&row->action, &row->capacity, row->count + 1, sizeof a));
    row->action[row->count++] = a;
    refused(s, "comes a second time", "twice");
    row->count--;
    row->action[at].microbatch = (a.microbatch + 1) % s->nmicrobatches;
    refused(s, "position", "of another microbatch");
    row->action[at] = a;
    return 3;
}

/* Number of broken schedules by rule. */
static void break_all(dt_pp_schedule *s, int broken[3])
{
    for (int stage = 0; stage < s->nstages; stage++)
        for (int k = 0; k < s->nmicrobatches; k++) {
            broken[0] += break_a(s, stage, k);
            broken[1] += stage + 1 < s->nstages ? break_c(s, stage, k) : 0;
        }
    for (int r = 0; r < s->nranks; r++)
        for (int64_t i = 0; i < s->row[r].count; i++)
            broken[2] += break_e(s, r, i);
}

START_TEST(each_rule_is_broken_alone)
{
    const dt_pp_rule *rule = dt_pp_rule_at(_i);
    int broken[3] = {0};
    for (int p = rule->p_multiple > 2 ? rule->p_multiple : 2; p <= 4; p += rule->p_multiple) {
        dt_pp_schedule *s = NULL;
        ck_ok(dt_pp_schedule_create(rule->name, p, 2 * p, 0, &s));
        for (int r = 0; r < s->nranks; r++)
            for (int64_t i = 0; i < s->row[r].count; i++)
                s->row[r].action[i].paired = false;
        ck_ok(dt_pp_check(s));
        break_all(s, broken);
        ck_ok(dt_pp_check(s)); /* all is mended */
        dt_pp_schedule_destroy(&s);
    }
    (void)printf("%-15s broken: (a) %d, (c) %d, (e) %d times\n", rule->name, broken[0], broken[1],
                 broken[2]);
    ck_assert(broken[0] > 50 && broken[1] > 10 && broken[2] > 250);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("pp broken");
    TCase *tests = tcase_create("broken");
    int rules = 0;
    while (dt_pp_rule_at(rules))
        rules++;
    tcase_set_timeout(tests, 60);
    test_loop(tests, each_rule_is_broken_alone, rules);
    suite_add_tcase(suite, tests);
    return test_main(suite);
}
