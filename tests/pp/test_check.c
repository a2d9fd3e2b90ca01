/* tests/pp/test_check.c - every legal schedule obeys the rules of pipelining, stated here without
 * the library's checker; lowering; and the checker against schedules that are broken on purpose. */
#include "pp/dt_schedule.h"
#include "tests/harness.h"

#include <stdlib.h>
#include <string.h>

/* Position of an action in its rank's row; -1. */
static int64_t find(const dt_pp_schedule *s, int rank, dt_pp_kind kind, int stage, int microbatch)
{
    for (int64_t i = 0; i < s->row[rank].count; i++) {
        const dt_pp_action a = s->row[rank].action[i];
        if (a.kind == kind && a.stage == stage && a.microbatch == microbatch)
            return i;
    }
    return -1;
}

static int count(const dt_pp_schedule *s, dt_pp_kind kind, int stage)
{
    int n = 0;
    for (int r = 0; r < s->nranks; r++)
        for (int64_t i = 0; i < s->row[r].count; i++)
            n += s->row[r].action[i].kind == kind && s->row[r].action[i].stage == stage;
    return n;
}

static int owner(const dt_pp_schedule *s, int stage, int microbatch)
{
    int r = 0;
    while (r < s->nranks && find(s, r, DT_PP_F, stage, microbatch) < 0)
        r++;
    return r;
}

/* (a) F, then B or I, then W; (b) microbatches in order, per stage and kind; (e) m of each. */
static void rows_are_sound(const dt_pp_schedule *s, int m)
{
    int *last = calloc((size_t)s->nstages * 4, sizeof *last);
    for (int r = 0; r < s->nranks; r++) {
        for (int i = 0; i < s->nstages * 4; i++)
            last[i] = -1;
        for (int64_t i = 0; i < s->row[r].count; i++) {
            const dt_pp_action a = s->row[r].action[i];
            ck_assert(a.kind <= DT_PP_B);
            int *of_stage = last + 4 * a.stage;
            const int back =
                of_stage[DT_PP_B] > of_stage[DT_PP_I] ? of_stage[DT_PP_B] : of_stage[DT_PP_I];
            const bool input = a.kind == DT_PP_I || a.kind == DT_PP_B;
            ck_assert_msg(a.microbatch > of_stage[a.kind] && (!input || a.microbatch > back),
                          "(b) stage %d: microbatch %d is not in order", a.stage, a.microbatch);
            ck_assert_msg((!input || a.microbatch <= of_stage[DT_PP_F]) &&
                              (a.kind != DT_PP_W || a.microbatch <= of_stage[DT_PP_I]),
                          "(a) stage %d: microbatch %d goes back too early", a.stage, a.microbatch);
            of_stage[a.kind] = a.microbatch;
        }
    }
    free(last);
    for (int stage = 0; stage < s->nstages; stage++) {
        const int halves = count(s, DT_PP_I, stage);
        ck_assert_msg(count(s, DT_PP_F, stage) == m && halves == count(s, DT_PP_W, stage) &&
                          halves + count(s, DT_PP_B, stage) == m,
                      "(e) stage %d: not %d of each", stage, m);
    }
}

/* (c) A microbatch goes up the stages and down again; (d) it is never in two actions at once, but
 * for W, for which nobody waits. */
static void times_are_sound(const dt_pp_schedule *s)
{
    dt_pp_timeline *t = NULL;
    ck_ok(dt_pp_simulate(s, NULL, &t));
    for (int k = 0; k < s->nmicrobatches; k++) {
        double before = 0;
        for (int hop = 0; hop < 2 * s->nstages; hop++) {
            const int stage = hop < s->nstages ? hop : 2 * s->nstages - 1 - hop;
            const int r = owner(s, stage, k);
            int64_t at = find(s, r, hop < s->nstages ? DT_PP_F : DT_PP_I, stage, k);
            at = at < 0 ? find(s, r, DT_PP_B, stage, k) : at;
            ck_assert_msg(at >= 0 && t->lane[r].end[at] > before, "(c) stage %d of microbatch %d",
                          stage, k);
            ck_assert_msg(t->lane[r].start[at] >= before,
                          "(d) stage %d of microbatch %d: too early", stage, k);
            before = t->lane[r].end[at];
        }
    }
    dt_pp_timeline_destroy(&t);
}

/* Messages: one receive a send, where needed and only there; stages whole when used, three at
 * most; one reduction at a stage's end. */
static void lowered_is_sound(const dt_pp_schedule *s, const dt_pp_schedule *low)
{
    int sends = 0, receives = 0, remote = 0;
    for (int r = 0; r < low->nranks; r++) {
        int whole = 0;
        bool *is_whole = calloc((size_t)low->nstages, sizeof *is_whole);
        for (int64_t i = 0; i < low->row[r].count; i++) {
            const dt_pp_action a = low->row[r].action[i];
            const bool up = a.kind == DT_PP_SEND_F, down = a.kind == DT_PP_SEND_B;
            if (a.kind == DT_PP_UNSHARD || a.kind == DT_PP_RESHARD) {
                ck_assert(is_whole[a.stage] == (a.kind == DT_PP_RESHARD));
                is_whole[a.stage] = a.kind == DT_PP_UNSHARD;
                whole += a.kind == DT_PP_UNSHARD ? 1 : -1;
                ck_assert_int_le(whole, 3);
            }
            ck_assert(a.kind > DT_PP_B || is_whole[a.stage]);
            if (up || down) {
                const int to = a.stage + (up ? 1 : -1), peer = owner(s, to, a.microbatch);
                ck_assert(peer != r && peer < s->nranks);
                ck_assert(find(low, peer, up ? DT_PP_RECV_F : DT_PP_RECV_B, to, a.microbatch) >= 0);
            }
            sends += up || down;
            receives += a.kind == DT_PP_RECV_F || a.kind == DT_PP_RECV_B;
        }
        ck_assert_int_eq(whole, 0);
        free(is_whole);
        for (int stage = 0; stage < s->nstages; stage++) {
            const int64_t reduce = find(low, r, DT_PP_REDUCE_GRAD, stage, -1);
            for (int k = 0; k < s->nmicrobatches; k++)
                ck_assert(owner(s, stage, k) != r || (reduce > find(low, r, DT_PP_W, stage, k) &&
                                                      reduce > find(low, r, DT_PP_B, stage, k)));
        }
    }
    for (int stage = 0; stage + 1 < s->nstages; stage++)
        for (int k = 0; k < s->nmicrobatches; k++)
            remote += owner(s, stage, k) != owner(s, stage + 1, k);
    ck_assert(sends == 2 * remote && receives == sends);
}

/* A run in which every send waits for its receive, made here. */
typedef struct meeting {
    const dt_pp_schedule *s;
    int64_t *at; /* of each rank in its row */
    int *owner;  /* of each stage and microbatch */
    bool *done;  /* of each kind, stage and microbatch; a B is an I */
} meeting;

static int cell(const meeting *m, int stage, int microbatch)
{
    return stage * m->s->nmicrobatches + microbatch;
}

static bool *done(const meeting *m, dt_pp_kind kind, int stage, int microbatch)
{
    const int cells = m->s->nstages * m->s->nmicrobatches;
    return &m->done[(kind == DT_PP_B ? DT_PP_I : (int)kind) * cells + cell(m, stage, microbatch)];
}

/* Is there what F or I takes from the stage before it: made here, or received? */
static bool has_input(const meeting *m, int rank, dt_pp_action a, bool up)
{
    const int from = a.stage + (up ? -1 : 1), k = a.microbatch;
    if (from < 0 || from == m->s->nstages)
        return true;
    if (m->owner[cell(m, from, k)] == rank)
        return *done(m, up ? DT_PP_F : DT_PP_I, from, k);
    return *done(m, up ? DT_PP_RECV_F : DT_PP_RECV_B, a.stage, k);
}

/* If the next action of a rank can happen, it does. */
static bool step(meeting *m, int rank)
{
    if (m->at[rank] == m->s->row[rank].count)
        return false;
    const dt_pp_action a = m->s->row[rank].action[m->at[rank]];
    const int k = a.microbatch;
    bool can = a.kind >= DT_PP_UNSHARD;
    if (a.kind == DT_PP_F)
        can = has_input(m, rank, a, true);
    if (a.kind == DT_PP_I || a.kind == DT_PP_B)
        can = *done(m, DT_PP_F, a.stage, k) && has_input(m, rank, a, false);
    if (a.kind == DT_PP_W)
        can = *done(m, DT_PP_I, a.stage, k);
    if (a.kind == DT_PP_SEND_F || a.kind == DT_PP_SEND_B) {
        const bool up = a.kind == DT_PP_SEND_F;
        const int to = a.stage + (up ? 1 : -1), peer = m->owner[cell(m, to, k)];
        const dt_pp_action *b = &m->s->row[peer].action[m->at[peer]];
        can = *done(m, up ? DT_PP_F : DT_PP_I, a.stage, k) && m->at[peer] < m->s->row[peer].count &&
              b->stage == to && b->microbatch == k && b->kind == (up ? DT_PP_RECV_F : DT_PP_RECV_B);
        if (can) {
            *done(m, b->kind, to, k) = true;
            m->at[peer]++;
        }
    }
    if (can && k >= 0)
        *done(m, a.kind, a.stage, k) = true;
    m->at[rank] += can;
    return can;
}

static void runs_to_its_end(const dt_pp_schedule *s)
{
    const size_t cells = (size_t)(s->nstages * s->nmicrobatches);
    meeting m = {s, calloc((size_t)s->nranks, sizeof *m.at), calloc(cells, sizeof *m.owner),
                 calloc(cells * DT_PP_NKINDS, sizeof *m.done)};
    for (int r = 0; r < s->nranks; r++)
        for (int64_t i = 0; i < s->row[r].count; i++)
            if (s->row[r].action[i].kind == DT_PP_F)
                m.owner[cell(&m, s->row[r].action[i].stage, s->row[r].action[i].microbatch)] = r;
    for (bool moved = true; moved;) {
        moved = false;
        for (int r = 0; r < s->nranks; r++)
            while (step(&m, r))
                moved = true;
    }
    for (int r = 0; r < s->nranks; r++)
        ck_assert_msg(m.at[r] == s->row[r].count, "rank %d of %d stops at %lld of %lld", r,
                      s->nranks, (long long)m.at[r], (long long)s->row[r].count);
    free(m.at);
    free(m.owner);
    free(m.done);
}

static void legal(const char *name, int p, int m, int v, bool closely)
{
    dt_pp_schedule *s = NULL, *low = NULL;
    ck_ok(dt_pp_schedule_create(name, p, m, v, &s));
    ck_assert(s->nranks == p && s->nmicrobatches == m);
    rows_are_sound(s, m);
    ck_ok(dt_pp_check(s));
    ck_ok(dt_pp_lower(s, closely ? 3 : 0, &low));
    ck_ok(dt_pp_check(low));
    runs_to_its_end(low);
    if (closely) {
        times_are_sound(s);
        lowered_is_sound(s, low);
    }
    dt_pp_schedule_destroy(&s);
    dt_pp_schedule_destroy(&low);
}

/* Times and messages are looked at closely for some, with DT_FULL=1 for all; v is then up to 4. */
START_TEST(all_legal)
{
    const bool full = getenv("DT_FULL") != NULL;
    for (int i = 0; dt_pp_rule_at(i); i++) {
        const dt_pp_rule *rule = dt_pp_rule_at(i);
        for (int p = rule->p_multiple; p <= 8; p += rule->p_multiple)
            for (int m = rule->m_per_rank * p; m <= 4 * p; m += rule->m_multiple)
                for (int v = rule->v_least; v <= (rule->v_most ? rule->v_most : full ? 4 : 3); v++)
                    legal(rule->name, p, m, v, full || p <= 3 || (m == 2 * p && v <= 2));
    }
}
END_TEST

START_TEST(merging)
{
    dt_pp_schedule *s = NULL;
    ck_ok(dt_pp_schedule_parse("0F0,0F1,0F2,0I0,0W0,0I1,0I2,0W1,0W2\n1F0,(1F1;1I0)OVERLAP_F_B,1W0",
                               "text", &s));
    dt_pp_merge(s);
    ck_assert(s->row[0].count == 8 && s->row[0].action[3].kind == DT_PP_B);
    ck_assert(s->row[0].action[4].kind == DT_PP_I && s->row[0].action[7].kind == DT_PP_W);
    ck_assert_int_eq(s->row[1].count, 4);
    dt_pp_schedule_destroy(&s);
}
END_TEST

START_TEST(messages_of_the_checker)
{
    static const struct {
        const char *csv, *text;
    } bad[] = {
        {"0F0,0B0\n1B0,1F0", "rank 1, position 0, 1B0 waits for 1F0, which comes later in its row"},
        {"0F0,0B0,0F0\n1F0,1B0", "rank 0, position 2, 0F0: comes a second time"},
        {"0F0,0B0\n1F0", "rank 1, position 1, 1B0: is missing"},
        {"0F0,0I0\n1F0,1B0", "rank 0, position 2, 0W0: is missing"},
        {"0F0,0W0\n1F0,1B0", "rank 0, position 2, 0I0: is missing"},
        {"0F0,0F1,0B0,0B1\n1F0,1B0,1B1", "rank 1, position 2, 1B1: no rank runs its F"},
        {"0F0,0B0,1B0\n1F0", "rank 0, position 2, 1B0: its F is on another rank"},
        {"0F0,0I0,0W0,0B0\n1F0,1B0", "rank 0, position 3, 0B0: I or W is there too"},
        {"0F0,0B0,0W0\n1F0,1B0", "rank 0, position 2, 0W0: the whole B is there too"},
        {"0F0,9F9,0B0\n1F0,1B0", "5 actions cannot be a schedule of 10 stages and 10 microbatches"},
        {"0F0,1F0,0SEND_F0,1B0,0B0",
         "position 2, 0SEND_F0: the stage on the other side is on the same"},
        {"0F0,0B0\n1F0,1SEND_F0,1B0",
         "rank 1, position 1, 1SEND_F0: there is no stage on the other"},
        {"0F0,0B0\n1RECV_F0,1F0,1B0", "rank 1, position 0, 1RECV_F0 waits for 0SEND_F0"},
        {"0UNSHARD,0F0,0B0,0RESHARD\n1F0,1B0",
         "rank 1, position 0, 1F0: its stage is not unsharded"},
        {"0UNSHARD,0F0,0B0\n1UNSHARD,1F0,1B0,1RESHARD", "rank 0, position 3, 0RESHARD: is missing"},
        {"0F0,0REDUCE_GRAD,0B0\n1F0,1B0", "rank 0, position 2, 0B0: its stage's gradients are"},
        {"0F0,0B0,0REDUCE_GRAD\n1F0,1B0", "rank 1, position 2, 1REDUCE_GRAD: is missing"},
        {"(0F0;0F1)OVERLAP_F_B,0B0,0B1", "rank 0, position 0, 0F0: only an F is paired"},
        {"\n\n", "0 actions cannot be a schedule"},
        /* Each rank sends before it receives what the other sends. */
        {"0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1\n"
         "1RECV_F0,1F0,1B0,1SEND_B0,1RECV_F1,1F1,1B1,1SEND_B1",
         "rank 0, position 3, 0SEND_F1 waits for 1RECV_F1; rank 1, position 3, 1SEND_B0 waits "
         "for"}};
    for (int i = 0; i < DT_COUNT(bad); i++) {
        dt_pp_schedule *s = NULL;
        ck_ok(dt_pp_schedule_parse(bad[i].csv, "text", &s));
        ck_ok(test_expect(dt_pp_check(s), DT_ERR_ARG, bad[i].text, bad[i].csv));
        if (i == DT_COUNT(bad) - 1) { /* with buffered sends it would run */
            dt_pp_timeline *t = NULL;
            ck_ok(dt_pp_simulate(s, NULL, &t));
            dt_pp_timeline_destroy(&t);
        }
        dt_pp_schedule_destroy(&s);
    }
}
END_TEST

/* The row without action i, and with it twice, and with it on the next rank. Each time the checker
 * must name a place. */
static void mutate(dt_pp_schedule *s, int r, int64_t i)
{
    dt_pp_row *row = &s->row[r], *other = &s->row[(r + 1) % s->nranks];
    const dt_pp_action a = row->action[i];
    const size_t after = (size_t)(row->count - i - 1) * sizeof a;
    memmove(&row->action[i], &row->action[i + 1], after);
    row->count--;
    ck_ok(test_expect(dt_pp_check(s), DT_ERR_ARG, "position", "without"));
    ck_ok(dt_grow((void **)&other->action, &other->capacity, other->count + 1, sizeof a));
    other->action[other->count++] = a;
    ck_ok(test_expect(dt_pp_check(s), DT_ERR_ARG, "position", "on another rank"));
    other->count--;
    memmove(&row->action[i + 1], &row->action[i], after);
    row->action[i] = a;
    row->count++;
    ck_ok(dt_grow((void **)&row->action, &row->capacity, row->count + 1, sizeof a));
    row->action[row->count++] = a;
    ck_ok(test_expect(dt_pp_check(s), DT_ERR_ARG, "position", "twice"));
    row->count--;
}

/* What a microbatch does on a stage has one order: RECV_F F SEND_F RECV_B I, then SEND_B and W in
 * either. Swapping any two others is an error. */
static void swap_each(dt_pp_schedule *s, int r)
{
    dt_pp_action *row = s->row[r].action;
    for (int64_t i = 0; i < s->row[r].count; i++) {
        for (int64_t j = i + 1; j < s->row[r].count; j++) {
            const dt_pp_action a = row[i], b = row[j];
            const bool either = (a.kind == DT_PP_SEND_B && b.kind == DT_PP_W) ||
                                (a.kind == DT_PP_W && b.kind == DT_PP_SEND_B);
            if (a.stage != b.stage || a.microbatch != b.microbatch || a.microbatch < 0 || either)
                continue;
            row[i] = b;
            row[j] = a;
            ck_ok(test_expect(dt_pp_check(s), DT_ERR_ARG, "position", "swapped"));
            row[i] = a;
            row[j] = b;
        }
    }
}

START_TEST(mutations)
{
    static const char *const names[] = {"1f1b", "interleaved", "zb-h1",
                                        "zbv",  "v-half",      "dualpipev"};
    for (int n = 0; n < DT_COUNT(names); n++) {
        dt_pp_schedule *s = NULL, *low = NULL;
        ck_ok(dt_pp_schedule_create(names[n], 3, 6, 0, &s));
        ck_ok(dt_pp_lower(s, 2, &low));
        for (int r = 0; r < low->nranks; r++) {
            for (int64_t i = 0; i < low->row[r].count; i++)
                mutate(low, r, i);
            swap_each(low, r);
        }
        ck_ok(dt_pp_check(low)); /* all mutations were undone */
        ck_ok(test_expect(dt_pp_lower(low, 0, &s), DT_ERR_ARG, "lowered already", ""));
        ck_ok(test_expect(dt_pp_lower(s, 1, &low), DT_ERR_ARG, "max_unsharded=1; legal: 0", ""));
        dt_pp_schedule_destroy(&s);
        dt_pp_schedule_destroy(&low);
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("pp check");
    TCase *tests = tcase_create("check");
    tcase_set_timeout(tests, 120);
    tcase_add_test(tests, all_legal);
    tcase_add_test(tests, merging);
    tcase_add_test(tests, messages_of_the_checker);
    tcase_add_test(tests, mutations);
    suite_add_tcase(suite, tests);
    return test_main(suite);
}
