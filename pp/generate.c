/* pp/generate.c - the table of schedules and what is legal for each. A generator writes one rank's
 * row, or all of them, from p, m, v alone. Read next: pp/generate_v.c, then pp/lower.c.
 *
 * Sources: Huang et al. 2019 (GPipe); Narayanan et al. 2021 (1F1B, interleaved); Lamy-Poirier 2023
 * (looped BFS); Qi et al. 2024, "Zero Bubble" (ZB-H1, ZB-H2, ZBV). */
#include "pp/generate_internal.h"

#include <stdlib.h>
#include <string.h>

static void gpipe(dti_pp_shape g, int rank, dt_pp_row *row)
{
    for (int c = 0; c < g.v; c++)
        for (int k = 0; k < g.m; k++)
            dti_pp_put(g, row, DT_PP_F, c * g.p + rank, k);
    for (int c = g.v - 1; c >= 0; c--)
        for (int k = 0; k < g.m; k++)
            dti_pp_put(g, row, DT_PP_B, c * g.p + rank, k);
}

/* A rank's i-th forward: rounds of p microbatches, in each round chunk after chunk. Backward it is
 * the same with the last chunk first. Microbatches past the last are not written (dti_pp_put): what
 * is left of a schedule without some microbatches is still a schedule, so the last round may be
 * short. */
static void put_nth(dti_pp_shape g, int rank, dt_pp_row *row, dt_pp_kind kind, int i)
{
    const int round = i / (g.p * g.v), chunk = i / g.p % g.v;
    const int c = kind == DT_PP_F ? chunk : g.v - 1 - chunk;
    dti_pp_put(g, row, kind, c * g.p + rank, round * g.p + i % g.p);
}

/* `warmup` forwards, then a forward and a backward in turn, then the backwards that are left.
 * delay < 0: whole backwards. Otherwise an I at once, and its W `delay` backwards later. */
static void one_f_one_b(dti_pp_shape g, int rank, dt_pp_row *row, int warmup, int delay)
{
    const int rounds = (g.m + g.p - 1) / g.p, total = rounds * g.p * g.v;
    const int first = warmup < total ? -warmup : -total;
    for (int k = first; k < total; k++) {
        if (k - first < total)
            put_nth(g, rank, row, DT_PP_F, k - first);
        if (k >= 0)
            put_nth(g, rank, row, delay < 0 ? DT_PP_B : DT_PP_I, k);
        if (delay >= 0 && k >= delay)
            put_nth(g, rank, row, DT_PP_W, k - delay);
    }
    for (int k = delay < total ? total - delay : 0; delay >= 0 && k < total; k++)
        put_nth(g, rank, row, DT_PP_W, k);
}

/* Rank r gets its first gradient 2 (p - 1 - r) hops after it sent its first activation, when
 * forwards and backwards go in turn, and p - 1 - r forwards cover that. */
static void f1b1(dti_pp_shape g, int rank, dt_pp_row *row)
{
    one_f_one_b(g, rank, row, g.p - 1 - rank, -1);
}

static void interleaved(dti_pp_shape g, int rank, dt_pp_row *row)
{
    one_f_one_b(g, rank, row, (g.v - 1) * g.p + 2 * (g.p - 1 - rank), -1);
}

/* Delayed weight gradients fill the end; with r of them every rank has as many microbatches live as
 * rank 0 of 1F1B. v = 1: ZB-H1. */
static void interleaved_zb(dti_pp_shape g, int rank, dt_pp_row *row)
{
    one_f_one_b(g, rank, row, (g.v - 1) * g.p + g.p - 1 - rank, rank);
}

/* Twice the forwards first and twice the delay: no rank is idle from its first action to its last,
 * for at most 2p - 1 live microbatches. */
static void zb_h2(dti_pp_shape g, int rank, dt_pp_row *row)
{
    one_f_one_b(g, rank, row, 2 * (g.p - 1 - rank), 2 * rank);
}

static const struct {
    dt_pp_rule rule;
    void (*rank_row)(dti_pp_shape g, int rank, dt_pp_row *row);
    dt_status (*all_rows)(dti_pp_shape g, dt_pp_row *rows); /* where rank_row is NULL */
} table[] = {
    /* name, alias, v least, most, default; p multiple; m per rank, multiple; V; both ways */
    {{"gpipe", "afab", 1, 1, 1, 1, 1, 1, false, false}, gpipe, NULL},
    {{"1f1b", "", 1, 1, 1, 1, 1, 1, false, false}, f1b1, NULL},
    {{"looped-bfs", "", 1, 0, 2, 1, 1, 1, false, false}, gpipe, NULL},
    {{"interleaved", "interleaved1f1b", 1, 0, 2, 1, 1, 1, false, false}, interleaved, NULL},
    {{"zb-h1", "zb1p", 1, 1, 1, 1, 1, 1, false, false}, interleaved_zb, NULL},
    {{"zb-h2", "zb2p", 1, 1, 1, 1, 1, 1, false, false}, zb_h2, NULL},
    {{"interleaved-zb", "interleavedzerobubble", 1, 0, 2, 1, 1, 1, false, false},
     interleaved_zb,
     NULL},
    {{"zbv", "zbvzerobubble", 2, 2, 2, 1, 1, 1, true, false}, dti_pp_zbv, NULL},
    {{"v-half", "", 2, 2, 2, 1, 1, 1, true, false}, NULL, dti_pp_v_half},
    {{"v-min", "", 2, 2, 2, 1, 1, 1, true, false}, NULL, dti_pp_v_min},
    {{"dualpipev", "", 2, 2, 2, 1, 2, 1, true, false}, dti_pp_dualpipev, NULL},
    {{"dualpipe", "", 2, 2, 2, 2, 2, 2, false, true}, dti_pp_dualpipe, NULL},
};

const dt_pp_rule *dt_pp_rule_at(int index)
{
    return index >= 0 && index < DT_COUNT(table) ? &table[index].rule : NULL;
}

/* Lower case, no hyphens or underscores. */
static void plain_name(const char *name, char *buf, size_t size_bytes)
{
    size_t n = 0;
    for (; *name && n + 1 < size_bytes; name++)
        if (*name != '-' && *name != '_')
            buf[n++] = (char)(*name >= 'A' && *name <= 'Z' ? *name - 'A' + 'a' : *name);
    buf[n] = 0;
}

dt_status dt_pp_rule_find(const char *name, const dt_pp_rule **rule_out)
{
    char want[64], have[64], list[512] = "";
    plain_name(name, want, sizeof want);
    for (int i = 0; i < DT_COUNT(table); i++) {
        const dt_pp_rule *rule = &table[i].rule;
        plain_name(rule->name, have, sizeof have);
        if (strcmp(have, want) == 0 || (*want && strcmp(rule->alias, want) == 0)) {
            *rule_out = rule;
            return DT_OK;
        }
        const size_t used = strlen(list);
        (void)snprintf(list + used, sizeof list - used, "%s%s%s%s", i ? ", " : "", rule->name,
                       *rule->alias ? "|" : "", rule->alias);
    }
    return DT_ERROR(DT_ERR_ARG, "no schedule '%.60s'; legal: %s", name, list);
}

/* n must be a multiple from `least` to `most` (0: no limit). */
static dt_status legal(const dt_pp_rule *rule, const char *what, int n, int least, int most,
                       int multiple)
{
    const int low = (least + multiple - 1) / multiple * multiple;
    if (n < low)
        return DT_ERROR(DT_ERR_ARG, "%s: %s=%d is too few; the nearest legal value is %d",
                        rule->name, what, n, low);
    if (most && n > most)
        return DT_ERROR(DT_ERR_ARG, "%s: %s=%d is too many; the nearest legal value is %d",
                        rule->name, what, n, most);
    const int below = n / multiple * multiple;
    DT_REQUIRE(below == n, DT_ERR_ARG,
               "%s: %s=%d must be a multiple of %d; the nearest legal values are %d and %d",
               rule->name, what, n, multiple, below, below + multiple);
    return DT_OK;
}

dt_status dt_pp_schedule_create(const char *name, int p, int m, int v,
                                dt_pp_schedule **schedule_out)
{
    enum { MOST_ACTIONS = 1 << 24 };
    const dt_pp_rule *rule = NULL;
    dt_status st = DT_OK;
    DT_TRY(dt_pp_rule_find(name, &rule));
    v = v == 0 ? rule->v_default : v;
    DT_TRY(legal(rule, "ranks p", p, 1, MOST_ACTIONS, rule->p_multiple));
    DT_TRY(legal(rule, "stages per rank v", v, rule->v_least, rule->v_most, 1));
    DT_TRY(legal(rule, "microbatches m", m, rule->m_per_rank * p, 0, rule->m_multiple));
    DT_REQUIRE((double)p * m * v * 3 <= MOST_ACTIONS, DT_ERR_ARG,
               "p=%d ranks, m=%d microbatches, v=%d stages per rank: over %d actions", p, m, v,
               MOST_ACTIONS);
    const dti_pp_shape g = {p, m, v};
    dt_pp_schedule *s = NULL;
    DT_TRY(dti_pp_schedule_new(p, rule->both_ways ? p : p * v, m, (int64_t)3 * m * v, &s));
    int i = 0;
    while (&table[i].rule != rule)
        i++;
    for (int r = 0; table[i].rank_row && r < p; r++)
        table[i].rank_row(g, r, &s->row[r]);
    if (!table[i].rank_row)
        DT_TRY_TO(fail, st, table[i].all_rows(g, s->row));
    *schedule_out = s;
    return DT_OK;
fail:
    dt_pp_schedule_destroy(&s);
    return st;
}
