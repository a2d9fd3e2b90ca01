/* pp/measure.c - a timeline of what really happened, from traces; draws as a simulated one does.
 * Read first: pp/run.c, base/dt_trace.h. */
#include "pp/pipeline_internal.h"

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

/* Times of a row's actions, from event `at` on. */
static dt_status row_times(const dt_pp_row *row, const dt_trace *trace, int64_t at, int rank,
                           dt_pp_lane *lane)
{
    char name[DT_PP_ACTION_TEXT];
    int64_t count = 0;
    const dt_trace_event *event = dt_trace_events(trace, &count);
    for (int64_t i = 0; i < row->count; i++) {
        bool works = false;
        (void)dt_pp_action_print(row->action[i], name, sizeof name);
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
    }
    return DT_OK;
}

/* What follows from the times. */
static void sum_up(const dt_pp_row *row, dt_pp_lane *lane)
{
    int live = 0;
    for (int64_t i = 0; i < row->count; i++) {
        const dt_pp_kind kind = row->action[i].kind;
        lane->busy += dti_pp_computes(kind) ? lane->end[i] - lane->start[i] : 0;
        live += (kind == DT_PP_F) - (kind == DT_PP_W || kind == DT_PP_B);
        lane->live[i] = live;
        lane->peak_live = live > lane->peak_live ? live : lane->peak_live;
    }
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

static void complete(const dt_pp_schedule *s, dt_pp_timeline *t)
{
    for (int r = 0; r < s->nranks; r++)
        sum_up(&s->row[r], &t->lane[r]);
    move_to_zero(s, t);
}

dt_status dt_pp_measure(const dt_pp_schedule *schedule, const dt_trace *const *traces,
                        dt_pp_timeline **timeline_out)
{
    dt_pp_timeline *t = NULL;
    dt_status st = DT_OK;
    DT_TRY(dti_pp_timeline_new(schedule, &t));
    for (int r = 0; r < schedule->nranks; r++)
        DT_TRY_TO(fail, st, row_times(&schedule->row[r], traces[r], 0, r, &t->lane[r]));
    complete(schedule, t);
    *timeline_out = t;
    return DT_OK;
fail:
    dt_pp_timeline_destroy(&t);
    return st;
}

/* ---- of a pipeline that runs: each rank has its own trace ---- */

/* A rank has the times of its row, the others zeros. */
static dt_status gather(const dt_pipeline *p, dt_pp_timeline *t)
{
    for (int r = 0; r < p->lowered->nranks; r++) {
        const int n = (int)p->lowered->row[r].count;
        DT_TRY(dt_all_reduce_f64_sync(p->line, t->lane[r].start, n, DT_REDUCE_SUM));
        DT_TRY(dt_all_reduce_f64_sync(p->line, t->lane[r].end, n, DT_REDUCE_SUM));
    }
    return DT_OK;
}

dt_status dt_pipeline_measure_sync(const dt_pipeline *p, const dt_trace *trace, int64_t from,
                                   dt_pp_timeline **timeline_out)
{
    dt_pp_timeline *t = NULL;
    dt_status st = dti_pp_timeline_new(p->lowered, &t);
    if (st == DT_OK)
        st = row_times(dt_pipeline_row(p), trace, from, p->rank, &t->lane[p->rank]);
    DT_TRY_TO(fail, st, dt_comm_agree_sync(p->line, st));
    DT_TRY_TO(fail, st, gather(p, t));
    complete(p->lowered, t);
    *timeline_out = t;
    return DT_OK;
fail:
    dt_pp_timeline_destroy(&t);
    return st;
}

/* ---- costs ---- */

void dt_pp_mean_costs(const dt_pp_schedule *s, const dt_pp_timeline *measured, double *stage,
                      dt_pp_costs *costs_out)
{
    double sum[DT_PP_B + 1] = {0}, all = 0;
    int64_t count[DT_PP_B + 1] = {0};
    for (int i = 0; i < s->nstages; i++)
        stage[i] = 0;
    for (int r = 0; r < s->nranks; r++)
        for (int64_t i = 0; i < s->row[r].count; i++) {
            const dt_pp_action a = s->row[r].action[i];
            if (!dti_pp_computes(a.kind))
                continue;
            const double time = measured->lane[r].end[i] - measured->lane[r].start[i];
            sum[a.kind] += time;
            count[a.kind]++;
            stage[a.stage] += time;
            all += time;
        }
    for (int i = 0; i < s->nstages; i++)
        stage[i] = all > 0 ? stage[i] * s->nstages / all : 1;
    for (int k = 0; k <= DT_PP_B; k++)
        sum[k] /= count[k] ? (double)count[k] : 1;
    *costs_out = (dt_pp_costs){
        .f = sum[DT_PP_F], .i = sum[DT_PP_I], .w = sum[DT_PP_W], .b = sum[DT_PP_B], .stage = stage};
}
