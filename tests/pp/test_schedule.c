/* tests/pp/test_schedule.c - actions and schedules as text; names, sizes, costs, pictures. */
#include "pp/dt_schedule.h"
#include "tests/harness.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* What dt_pp_schedule_write writes; free it. */
static char *written(const dt_pp_schedule *s)
{
    char *text = NULL;
    size_t size = 0;
    FILE *out = open_memstream(&text, &size);
    ck_ok(dt_pp_schedule_write(s, out));
    ck_assert_int_eq(fclose(out), 0);
    return text;
}

static void round_trip(const char *text, const char *want)
{
    dt_pp_schedule *s = NULL;
    ck_ok(dt_pp_schedule_parse(text, "text", &s));
    char *back = written(s);
    ck_assert_str_eq(back, want);
    free(back);
    dt_pp_schedule_destroy(&s);
}

START_TEST(actions)
{
    static const char *const all[] = {"2F0",      "12I3",     "0W7",         "1B65535",
                                      "3SEND_F1", "4RECV_F1", "4SEND_B10",   "3RECV_B10",
                                      "1UNSHARD", "0RESHARD", "5REDUCE_GRAD"};
    ck_assert_int_eq(DT_COUNT(all), DT_PP_NKINDS);
    for (int i = 0; i < DT_COUNT(all); i++) {
        dt_pp_action a;
        char text[DT_PP_ACTION_TEXT];
        ck_ok(dt_pp_action_parse(all[i], &a));
        ck_assert_str_eq(dt_pp_action_print(a, text, sizeof text), all[i]);
    }
    dt_pp_action a = {.kind = DT_PP_W, .stage = 77};
    static const char *const bad[] = {"",        "F0",        "0F",   "0X0",
                                      "0F-1",    "0F0x",      "0f0",  "0F 0",
                                      "65536F0", "0UNSHARD1", "-1F0", "0F99999999999"};
    for (int i = 0; i < DT_COUNT(bad); i++)
        ck_ok(test_expect(dt_pp_action_parse(bad[i], &a), DT_ERR_FORMAT, "legal: stage, kind", ""));
    ck_assert_int_eq(a.stage, 77); /* untouched */
}
END_TEST

START_TEST(csv)
{
    /* Every kind, an idle cell, a pair, a rank with nothing to do, spaces, either end of line. */
    round_trip("0UNSHARD,0F0,,0SEND_F0, 0RECV_B0\r\n\n1RECV_F0,(1F0;0B2)OVERLAP_F_B,1I0,1W0,"
               "1SEND_B0,1REDUCE_GRAD,1RESHARD",
               "0UNSHARD,0F0,0SEND_F0,0RECV_B0\n\n1RECV_F0,(1F0;0B2)OVERLAP_F_B,1I0,1W0,"
               "1SEND_B0,1REDUCE_GRAD,1RESHARD\n");
    for (int i = 0; dt_pp_rule_at(i); i++) {
        dt_pp_schedule *s = NULL, *lowered = NULL;
        ck_ok(dt_pp_schedule_create(dt_pp_rule_at(i)->name, 4, 8, 0, &s));
        ck_ok(dt_pp_lower(s, 3, &lowered));
        char *plain = written(s), *low = written(lowered);
        round_trip(plain, plain);
        round_trip(low, low);
        free(plain);
        free(low);
        dt_pp_schedule_destroy(&s);
        dt_pp_schedule_destroy(&lowered);
    }
    static const struct {
        const char *text, *where;
    } bad[] = {{"", "file.csv: empty"},
               {"0F0,0B0\n0F0,,1Q7\n", "file.csv:2: cell 3: '1Q7'"},
               {"0F0;0B0\n", "file.csv:1: cell 1:"},
               {"0F0\n1F0,(0F5;7B3OVERLAP_F_B\n", "file.csv:2: cell 2:"},
               {"(0F5;7B3)\n", "file.csv:1: cell 1:"},
               {"(0F5;)OVERLAP_F_B\n", "file.csv:1: cell 1:"},
               {"0F0\n\n\n0F99999\n", "file.csv:4: cell 1:"}};
    for (int i = 0; i < DT_COUNT(bad); i++) {
        dt_pp_schedule *s = NULL;
        ck_ok(test_expect(dt_pp_schedule_parse(bad[i].text, "file.csv", &s), DT_ERR_FORMAT,
                          bad[i].where, bad[i].text));
        ck_assert_ptr_null(s);
    }
}
END_TEST

START_TEST(files)
{
    char path[] = "/tmp/dt_pp_XXXXXX";
    dt_pp_schedule *s = NULL;
    const int fd = mkstemp(path);
    FILE *file = fdopen(fd, "w");
    ck_assert(file && fputs("0F0,0B0\n1F0,1B0\n", file) >= 0 && fclose(file) == 0);
    ck_ok(dt_pp_schedule_read(path, &s));
    ck_assert(s->nranks == 2 && s->nstages == 2 && s->nmicrobatches == 1 && s->row[1].count == 2);
    ck_ok(dt_pp_check(s));
    dt_pp_schedule_destroy(&s);
    file = fopen(path, "w");
    ck_assert(file && fwrite("0F0\0,0B0", 1, 8, file) == 8 && fclose(file) == 0);
    ck_ok(test_expect(dt_pp_schedule_read(path, &s), DT_ERR_FORMAT, "a byte 0 after 3", ""));
    ck_assert_int_eq(remove(path), 0);
    ck_ok(test_expect(dt_pp_schedule_read(path, &s), DT_ERR_IO, path, ""));
    ck_ok(test_expect(dt_pp_schedule_read("/tmp", &s), DT_ERR_IO, "/tmp", ""));
}
END_TEST

START_TEST(names)
{
    static const char *const same[][2] = {{"1F1B", "1f1b"},
                                          {"GPipe", "gpipe"},
                                          {"zb1p", "zb-h1"},
                                          {"ZB-H2", "zb-h2"},
                                          {"ZB2P", "zb-h2"},
                                          {"LoopedBFS", "looped-bfs"},
                                          {"DualPipeV", "dualpipev"},
                                          {"v_half", "v-half"},
                                          {"Interleaved1F1B", "interleaved"},
                                          {"VMin", "v-min"},
                                          {"ZBVZeroBubble", "zbv"},
                                          {"InterleavedZeroBubble", "interleaved-zb"}};
    const dt_pp_rule *rule = NULL;
    for (int i = 0; i < DT_COUNT(same); i++) {
        ck_ok(dt_pp_rule_find(same[i][0], &rule));
        ck_assert_str_eq(rule->name, same[i][1]);
    }
    ck_ok(test_expect(dt_pp_rule_find("", &rule), DT_ERR_ARG, "", ""));
    ck_ok(test_expect(dt_pp_rule_find("2f2b", &rule), DT_ERR_ARG,
                      "no schedule '2f2b'; legal: gpipe|afab, 1f1b, looped-bfs", ""));
}
END_TEST

START_TEST(illegal_sizes)
{
    static const struct {
        const char *name;
        int p, m, v;
        const char *text;
    } bad[] = {
        {"gpipe", 4, 3, 0, "gpipe: microbatches m=3 is too few; the nearest legal value is 4"},
        {"1f1b", 4, 8, 2, "1f1b: stages per rank v=2 is too many; the nearest legal value is 1"},
        {"interleaved", 4, 3, 2, "m=3 is too few; the nearest legal value is 4"},
        {"interleaved", 4, 8, -1, "v=-1 is too few; the nearest legal value is 1"},
        {"zbv", 4, 8, 1, "v=1 is too few; the nearest legal value is 2"},
        {"v-half", 4, 8, 3, "v=3 is too many; the nearest legal value is 2"},
        {"dualpipev", 4, 7, 0, "m=7 is too few; the nearest legal value is 8"},
        {"dualpipe", 3, 8, 0, "p=3 must be a multiple of 2; the nearest legal values are 2 and 4"},
        {"dualpipe", 4, 9, 0, "m=9 must be a multiple of 2; the nearest legal values are 8 and 10"},
        {"1f1b", 0, 4, 0, "ranks p=0 is too few; the nearest legal value is 1"},
        {"gpipe", 1 << 20, 1 << 20, 0, "over 16777216 actions"},
        {"gpipe", 1 << 30, 1 << 30, 0, "ranks p=1073741824 is too many"}};
    dt_pp_schedule *s = NULL;
    for (int i = 0; i < DT_COUNT(bad); i++)
        ck_ok(test_expect(dt_pp_schedule_create(bad[i].name, bad[i].p, bad[i].m, bad[i].v, &s),
                          DT_ERR_ARG, bad[i].text, bad[i].name));
    ck_assert_ptr_null(s);
}
END_TEST

static double makespan(const dt_pp_schedule *s, dt_pp_costs costs)
{
    dt_pp_timeline *t = NULL;
    ck_ok(dt_pp_simulate(s, &costs, &t));
    const double span = t->makespan;
    dt_pp_timeline_destroy(&t);
    return span;
}

START_TEST(costs)
{
    dt_pp_schedule *s = NULL, *lowered = NULL;
    ck_ok(dt_pp_schedule_parse("0F0,0B0\n1F0,1B0", "text", &s));
    ck_ok(dt_pp_lower(s, 0, &lowered));
    const double half = 0.5, factor[2] = {1, 2};
    const dt_pp_schedule *const both[] = {s, lowered};
    for (int i = 0; i < 2; i++) {
        /* F0 0..1, F1 1.5..2.5, B1 ..4.5, B0 5..7 */
        ck_assert(fabs(makespan(both[i], (dt_pp_costs){.transfer = half}) - 7) < 1e-12);
        /* F0 0..1, F1 1.5..3.5, B1 ..7.5, B0 8..10 */
        const dt_pp_costs scaled = {.transfer = half, .stage = factor};
        ck_assert(fabs(makespan(both[i], scaled) - 10) < 1e-12);
        /* B on its own */
        ck_assert(fabs(makespan(both[i], (dt_pp_costs){.f = 2, .b = 5}) - 14) < 1e-12);
    }
    const dt_pp_costs waiting = {.transfer = half, .synchronous = true};
    ck_assert(fabs(makespan(lowered, waiting) - 7) < 1e-12);
    dt_pp_schedule_destroy(&s);
    dt_pp_schedule_destroy(&lowered);
    /* Rank 1: F0 4..5, B0 ..7, F1 ..8, B1 ..10; rank 0: B0 10..12, B1 when it arrives, 13..15. */
    ck_ok(dt_pp_schedule_create("1f1b", 2, 2, 0, &s));
    ck_assert(fabs(makespan(s, (dt_pp_costs){.transfer = 3}) - 15) < 1e-12);
    dt_pp_schedule_destroy(&s);
}
END_TEST

static int occurrences(const char *text, const char *word)
{
    int n = 0;
    for (const char *at = text; (at = strstr(at, word)); at++)
        n++;
    return n;
}

START_TEST(pictures)
{
    dt_pp_schedule *s = NULL, *dual = NULL;
    dt_pp_timeline *t = NULL, *overlapped = NULL;
    ck_ok(dt_pp_schedule_create("1f1b", 2, 2, 0, &s));
    ck_ok(dt_pp_simulate(s, NULL, &t));
    char *text = NULL;
    size_t size = 0;
    FILE *out = open_memstream(&text, &size);
    ck_ok(dt_pp_draw_text(s, t, 0, out));
    ck_assert_int_eq(fclose(out), 0);
    ck_assert_str_eq(text, "rank 0  F0 F1 .  .  B0    .  B1\n"
                           "rank 1  .  F0 B0    F1 B1    .  .\n");
    free(text);
    ck_ok(test_expect(dt_pp_draw_text(s, t, 1e-6, stdout), DT_ERR_ARG, "up to 4096 columns", ""));
    ck_ok(dt_pp_schedule_create("dualpipev", 2, 4, 0, &dual));
    ck_ok(dt_pp_simulate(dual, &(dt_pp_costs){.f = 1, .i = 1, .w = 1, .pair = 2}, &overlapped));
    out = open_memstream(&text, &size);
    ck_ok(dt_pp_draw_svg(2, (dt_pp_picture[]){{"a < b", s, t}, {"two", dual, overlapped}}, out));
    ck_assert_int_eq(fclose(out), 0);
    ck_assert_int_eq(occurrences(text, "<rect"),
                     (int)(8 + dual->row[0].count + dual->row[1].count));
    ck_assert(strstr(text, "a &lt; b") && strstr(text, "</svg>\n"));
    free(text);
    out = open_memstream(&text, &size);
    ck_ok(dt_pp_draw_text(dual, overlapped, 0, out));
    ck_assert_int_eq(fclose(out), 0);
    ck_assert_ptr_nonnull(strchr(text, '+'));
    free(text);
    dt_pp_schedule_destroy(&s);
    dt_pp_schedule_destroy(&dual);
    dt_pp_timeline_destroy(&t);
    dt_pp_timeline_destroy(&overlapped);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("pp schedule");
    TCase *tests = tcase_create("schedule");
    tcase_add_test(tests, actions);
    tcase_add_test(tests, csv);
    tcase_add_test(tests, files);
    tcase_add_test(tests, names);
    tcase_add_test(tests, illegal_sizes);
    tcase_add_test(tests, costs);
    tcase_add_test(tests, pictures);
    suite_add_tcase(suite, tests);
    return test_main(suite);
}
