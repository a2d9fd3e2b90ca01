/* tests/pp/test_golden.c - makespans and peaks of every schedule against published formulas and
 * what the generators of PyTorch, Zero Bubble and DualPipe give (F = I = W = 1, no transfer). */
#include "pp/dt_schedule.h"
#include "tests/harness.h"

#include <math.h>
#include <stdlib.h>

typedef struct result {
    double makespan, span; /* span: longest of a rank's first to last action */
    double idle[64];
    int peak[64], highest;
} result;

static result run(const char *name, int p, int m, int v, double pair)
{
    dt_pp_schedule *s = NULL;
    dt_pp_timeline *t = NULL;
    result out = {0};
    ck_ok(dt_pp_schedule_create(name, p, m, v, &s));
    ck_ok(dt_pp_simulate(s, &(dt_pp_costs){.f = 1, .i = 1, .w = 1, .pair = pair}, &t));
    out.makespan = t->makespan;
    for (int r = 0; r < p; r++) {
        const dt_pp_lane *lane = &t->lane[r];
        const double span = lane->end[s->row[r].count - 1] - lane->start[0];
        out.idle[r] = t->makespan - lane->busy;
        out.peak[r] = lane->peak_live;
        out.highest = lane->peak_live > out.highest ? lane->peak_live : out.highest;
        out.span = span > out.span ? span : out.span;
    }
    dt_pp_timeline_destroy(&t);
    dt_pp_schedule_destroy(&s);
    return out;
}

static void expect(const char *name, int p, int m, int v, double pair, double makespan)
{
    const result got = run(name, p, m, v, pair);
    ck_assert_msg(fabs(got.makespan - makespan) < 1e-9, "%s p=%d m=%d v=%d: %g, expected %g", name,
                  p, m, v, got.makespan, makespan);
}

START_TEST(makespans)
{
    /* 1F1B, interleaved v=2, interleaved-zb v=2, zbv, dualpipev (0: illegal) */
    static const int golden[][7] = {{2, 4, 15, 27, 25, 25, 25},
                                    {4, 4, 21, 33, 27, 30, 0},
                                    {4, 8, 33, 57, 51, 51, 51},
                                    {4, 16, 57, 105, 99, 99, 99},
                                    {8, 16, 69, 117, 103, 103, 103}};
    for (int i = 0; i < DT_COUNT(golden); i++) {
        const int *g = golden[i];
        expect("gpipe", g[0], g[1], 0, 0, g[2]);
        expect("1f1b", g[0], g[1], 0, 0, g[2]);
        expect("interleaved", g[0], g[1], 2, 0, g[3]);
        expect("interleaved-zb", g[0], g[1], 2, 0, g[4]);
        expect("zbv", g[0], g[1], 0, 0, g[5]);
        if (g[6])
            expect("dualpipev", g[0], g[1], 0, 0, g[6]);
    }
    /* Times of whole stages: 1F1B, ZB-H1 (exact), ZB-H2 (at most), v=2, v=4, ZBV, V-Half and V-Min
     * (at most). */
    static const double whole[][10] = {{4, 8, 33, 27, 27, 28.5, 26.25, 25.5, 26.5, 29.5},
                                       {4, 12, 45, 39, 39, 40.5, 38.25, 37.5, 38.5, 41.5},
                                       {8, 24, 93, 79, 79, 82.5, 77.25, 75.5, 80.5, 85.5}};
    for (int i = 0; i < DT_COUNT(whole); i++) {
        const double *g = whole[i];
        const int p = (int)g[0], m = (int)g[1];
        expect("gpipe", p, m, 0, 0, g[2]);
        expect("1f1b", p, m, 0, 0, g[2]);
        expect("zb-h1", p, m, 0, 0, g[3]);
        ck_assert(run("zb-h2", p, m, 0, 0).makespan <= g[4]);
        expect("interleaved", p, m, 2, 0, 2 * g[5]);
        expect("interleaved", p, m, 4, 0, 4 * g[6]);
        expect("zbv", p, m, 0, 0, 2 * g[7]);
        ck_assert(run("v-half", p, m, 0, 0).makespan <= 2 * g[8]);
        ck_assert(run("v-min", p, m, 0, 0).makespan <= 2 * g[9]);
        /* No rank is idle between its first and last action. */
        ck_assert(run("zb-h2", p, m, 0, 0).span <= 3 * m);
        ck_assert(run("zbv", p, m, 0, 0).span <= 6 * m);
    }
}
END_TEST

START_TEST(formulas)
{
    for (int p = 2; p <= 8; p++) {
        for (int m = p; m <= 4 * p; m += p) {
            expect("gpipe", p, m, 0, 0, 3 * (m + p - 1));
            expect("1f1b", p, m, 0, 0, 3 * (m + p - 1));
            for (int v = 1; v <= 4; v++) {
                expect("looped-bfs", p, m, v, 0, 3 * m * v + 3 * (p - 1));
                expect("interleaved", p, m, v, 0, 3 * m * v + 3 * (p - 1));
            }
            expect("zb-h1", p, m, 0, 0, 3 * m + p - 1);
            if (m >= 2 * p - 1) {
                expect("zb-h2", p, m, 0, 0, 3 * m + p - 1);
                expect("zbv", p, m, 0, 0, 6 * m + p - 1);
                expect("interleaved-zb", p, m, 2, 0, 6 * m + p - 1);
            }
            if (m >= 2 * p)
                expect("dualpipev", p, m, 0, 0, 6 * m + p - 1);
        }
    }
}
END_TEST

START_TEST(pairs)
{
    /* DualPipe's own table: a pair takes F + B, or one less. */
    static const struct {
        const char *name;
        int p, m;
        double whole, overlapped;
        int peak;
    } golden[] = {{"dualpipe", 4, 8, 26, 22, 5},
                  {"dualpipe", 8, 20, 66, 52, 9},
                  {"dualpipe", 16, 40, 134, 104, 17},
                  {"dualpipev", 4, 10, 66, 52, 9}};
    for (int i = 0; i < DT_COUNT(golden); i++) {
        expect(golden[i].name, golden[i].p, golden[i].m, 0, 3, golden[i].whole);
        expect(golden[i].name, golden[i].p, golden[i].m, 0, 2, golden[i].overlapped);
        for (int r = 0; r < golden[i].p; r++)
            ck_assert_int_eq(run(golden[i].name, golden[i].p, golden[i].m, 0, 3).peak[r],
                             golden[i].peak);
    }
    /* Its bubble (p/2 - 1)(FB + B - 3W); where a pair is faster, the outer ranks idle less. */
    static const double outer[8] = {1, 2, 3, 3, 3, 3, 2, 1};
    const result apart = run("dualpipe", 8, 20, 0, 3), together = run("dualpipe", 8, 20, 0, 2);
    for (int r = 0; r < 8; r++) {
        ck_assert(fabs(apart.idle[r] - 6) < 1e-9);
        ck_assert(fabs(together.idle[r] - outer[r]) < 1e-9);
    }
}
END_TEST

START_TEST(peaks)
{
    for (int p = 2; p <= 8; p++) {
        for (int m = 2 * p; m <= 4 * p; m += p) {
            for (int r = 0; r < p; r++) {
                ck_assert_int_eq(run("gpipe", p, m, 0, 0).peak[r], m);
                ck_assert_int_eq(run("1f1b", p, m, 0, 0).peak[r], p - r);
                ck_assert_int_eq(run("looped-bfs", p, m, 3, 0).peak[r], 3 * m);
                ck_assert_int_eq(run("zb-h1", p, m, 0, 0).peak[r], p);
                ck_assert_int_eq(run("interleaved-zb", p, m, 2, 0).peak[r], 2 * p);
                ck_assert_int_eq(run("zbv", p, m, 0, 0).peak[r], 2 * p);
                ck_assert_int_eq(run("dualpipev", p, m, 0, 0).peak[r], 2 * p + 1);
                for (int v = 2; v <= 4; v += 2)
                    ck_assert_int_eq(run("interleaved", p, m, v, 0).peak[r],
                                     (v - 1) * p + 2 * (p - 1 - r) + 1);
            }
            ck_assert_int_le(run("zb-h2", p, m, 0, 0).highest, 2 * p - 1);
            /* p/2 + O(1) and p/3 + O(1) whole stages; here in halves. */
            ck_assert_int_le(run("v-half", p, m, 0, 0).highest, p + 2 + p % 2);
            ck_assert_int_le(run("v-min", p, m, 0, 0).highest, (p + 4) / 3 * 2);
        }
    }
    static const int known[][4] = {{4, 8, 6, 4}, {8, 24, 10, 8}}; /* p, m, V-Half, V-Min */
    for (int i = 0; i < DT_COUNT(known); i++) {
        ck_assert_int_le(run("v-half", known[i][0], known[i][1], 0, 0).highest, known[i][2]);
        ck_assert_int_le(run("v-min", known[i][0], known[i][1], 0, 0).highest, known[i][3]);
    }
    ck_assert_int_eq(run("interleaved", 4, 8, 4, 0).peak[0], 19);
    ck_assert_int_eq(run("1f1b", 4, 4, 0, 0).peak[0], 4);
}
END_TEST

/* What lives and what was received, counted again from a lowered row. */
static void recount(const dt_pp_schedule *s, int rank, const dt_pp_lane *lane)
{
    const dt_pp_row *row = &s->row[rank];
    int live = 0, received = 0, peak_live = 0, peak_received = 0;
    for (int64_t i = 0; i < row->count; i++) {
        const dt_pp_action a = row->action[i];
        const bool back = a.kind == DT_PP_I || a.kind == DT_PP_B;
        live += (a.kind == DT_PP_F) - (a.kind == DT_PP_W || a.kind == DT_PP_B);
        received += a.kind == DT_PP_RECV_F || a.kind == DT_PP_RECV_B;
        for (int64_t k = 0; k < i && (back || a.kind == DT_PP_F); k++) {
            const dt_pp_action b = row->action[k];
            received -= b.kind == (back ? DT_PP_RECV_B : DT_PP_RECV_F) && b.stage == a.stage &&
                        b.microbatch == a.microbatch;
        }
        ck_assert_int_eq(lane->live[i], live);
        peak_live = live > peak_live ? live : peak_live;
        peak_received = received > peak_received ? received : peak_received;
    }
    ck_assert_int_eq(live, 0);
    ck_assert_int_eq(received, 0);
    ck_assert_int_eq(lane->peak_live, peak_live);
    ck_assert_int_eq(lane->peak_received, peak_received);
    ck_assert_int_gt(peak_received, 0);
}

START_TEST(counts)
{
    for (int i = 0; dt_pp_rule_at(i); i++) {
        for (int p = 2; p <= 4; p += 2) {
            dt_pp_schedule *s = NULL, *lowered = NULL;
            dt_pp_timeline *t = NULL;
            ck_ok(dt_pp_schedule_create(dt_pp_rule_at(i)->name, p, 3 * p, 0, &s));
            ck_ok(dt_pp_lower(s, 2, &lowered));
            ck_ok(dt_pp_simulate(lowered, NULL, &t));
            for (int r = 0; r < p; r++)
                recount(lowered, r, &t->lane[r]);
            dt_pp_timeline_destroy(&t);
            dt_pp_schedule_destroy(&lowered);
            dt_pp_schedule_destroy(&s);
        }
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("pp golden");
    TCase *tests = tcase_create("golden");
    tcase_set_timeout(tests, 60);
    tcase_add_test(tests, makespans);
    tcase_add_test(tests, formulas);
    tcase_add_test(tests, pairs);
    tcase_add_test(tests, peaks);
    tcase_add_test(tests, counts);
    suite_add_tcase(suite, tests);
    return test_main(suite);
}
