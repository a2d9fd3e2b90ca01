/* pp/measure.c - a timeline of what really happened, from traces; draws as a simulated one does.
 * Read first: pp/run.c, base/dt_trace.h. */
#include "pp/pp_internal.h"

#include <stdlib.h>
#include <string.h>

/* An action begins with its first op, forward or backward: before that it waits for messages, or
 * for parameters. One without ops begins where its event does. */
static bool is_work(const dt_trace_event *e)
{
    return e->phase == DT_TRACE_BEGIN &&
           (strcmp(e->kind, "op") == 0 || strcmp(e->kind, "grad") == 0);
}

static bool is_action(const dt_trace_event *e, dt_trace_phase phase, const char *name)
{
    return strcmp(e->kind, "pp") == 0 && e->phase == phase && strcmp(e->name, name) == 0;
}

/* Times of a row's actions, and what follows from them. */
static dt_status measure_row(const dt_pp_row *row, const dt_trace *trace, int rank,
                             dt_pp_lane *lane)
{
    char name[DT_PP_ACTION_TEXT];
    int64_t count = 0, at = 0;
    int live = 0;
    const dt_trace_event *event = dt_trace_events(trace, &count);
    for (int64_t i = 0; i < row->count; i++) {
        const dt_pp_action a = row->action[i];
        bool works = false;
        (void)dt_pp_action_print(a, name, sizeof name);
        while (at < count && !is_action(&event[at], DT_TRACE_BEGIN, name))
            at++;
        lane->start[i] = at < count ? event[at].time_s : 0;
        for (; at < count && !is_action(&event[at], DT_TRACE_END, name); at++) {
            if (!works && is_work(&event[at]))
                lane->start[i] = event[at].time_s;
            works |= is_work(&event[at]);
        }
        DT_REQUIRE(
            at < count, DT_ERR_ARG,
            "the trace of rank %d has no %s where its row has it: not one run of this schedule",
            rank, name);
        lane->end[i] = event[at].time_s;
        lane->busy += dti_pp_computes(a.kind) ? lane->end[i] - lane->start[i] : 0;
        live += (a.kind == DT_PP_F) - (a.kind == DT_PP_W || a.kind == DT_PP_B);
        lane->live[i] = live;
        lane->peak_live = live > lane->peak_live ? live : lane->peak_live;
    }
    return DT_OK;
}

/* From the first computation on. */
static void move_to_zero(const dt_pp_schedule *s, dt_pp_timeline *t)
{
    double first = 0;
    bool any = false;
    for (int r = 0; r < s->nranks; r++) {
        for (int64_t i = 0; i < s->row[r].count; i++) {
            const bool earlier = !any || t->lane[r].start[i] < first;
            if (!dti_pp_computes(s->row[r].action[i].kind))
                continue;
            first = earlier ? t->lane[r].start[i] : first;
            t->makespan = !any || t->lane[r].end[i] > t->makespan ? t->lane[r].end[i] : t->makespan;
            any = true;
        }
    }
    for (int r = 0; r < s->nranks; r++) {
        for (int64_t i = 0; i < s->row[r].count; i++) {
            t->lane[r].start[i] -= first;
            t->lane[r].end[i] -= first;
        }
    }
    t->makespan -= first;
}

dt_status dt_pp_measure(const dt_pp_schedule *schedule, const dt_trace *const *traces,
                        dt_pp_timeline **timeline_out)
{
    dt_pp_timeline *t = NULL;
    dt_status st = DT_OK;
    DT_TRY(dti_pp_timeline_new(schedule, &t));
    for (int r = 0; r < schedule->nranks; r++)
        DT_TRY_TO(fail, st, measure_row(&schedule->row[r], traces[r], r, &t->lane[r]));
    move_to_zero(schedule, t);
    *timeline_out = t;
    return DT_OK;
fail:
    dt_pp_timeline_destroy(&t);
    return st;
}
