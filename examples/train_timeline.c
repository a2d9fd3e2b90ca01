/* examples/train_timeline.c - a picture of the last step of a pipelined run: when each action
 * really ran, and above it what the simulator says for actions that take as long as these did in
 * the mean. Read first: pp/dt_schedule.h. */
#include "examples/train_report.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int64_t train_timeline_begin(const train_config *c, train_session *s)
{
    int64_t events = 0;
    dt_trace *trace = dt_world_trace(s->world);
    if (!c->log_timeline)
        return 0;
    if (!c->log_trace) /* nobody wants the steps before */
        dt_trace_clear(trace);
    (void)dt_trace_events(trace, &events);
    return events;
}

static void name_picture(const dt_pp_schedule *s, const char *name, const char *how,
                         const dt_pp_timeline *t, char title[160])
{
    (void)snprintf(title, 160, "%s, %d ranks, %d microbatches, %s", name, s->nranks,
                   s->nmicrobatches, how);
    (void)printf("pipeline: %s: %.3g ms, idle %.1f %%\n", title, 1e3 * t->makespan,
                 100 * dt_pp_idle(t));
}

static dt_status draw(const train_config *c, const dt_pp_schedule *s,
                      const dt_pp_timeline *simulated, const dt_pp_timeline *measured)
{
    char above[160], below[160];
    name_picture(s, c->pp_schedule, "simulated", simulated, above);
    name_picture(s, c->pp_schedule, "measured", measured, below);
    const dt_pp_picture picture[2] = {{above, s, simulated}, {below, s, measured}};
    FILE *out = fopen(c->log_timeline, "w");
    DT_REQUIRE(out, DT_ERR_IO, "log.timeline=%s: %s", c->log_timeline, strerror(errno));
    const dt_status st = dt_pp_draw_svg(2, picture, out);
    const bool closed = fclose(out) == 0;
    DT_TRY(st);
    DT_REQUIRE(closed, DT_ERR_IO, "log.timeline=%s: %s", c->log_timeline, strerror(errno));
    return DT_OK;
}

dt_status train_timeline_draw(const train_config *c, train_session *s, int64_t first_event)
{
    const dt_pp_schedule *schedule = dt_pipeline_schedule(s->pipe);
    dt_pp_timeline *measured = NULL, *simulated = NULL;
    dt_pp_costs costs;
    double *stage = calloc((size_t)schedule->nstages, sizeof *stage);
    dt_status st = stage ? DT_OK : DT_ERROR(DT_ERR_NOMEM, "%d stages", schedule->nstages);
    st = dt_world_agree_sync(s->world, st);
    if (st == DT_OK)
        st = dt_pipeline_measure_sync(s->pipe, dt_world_trace(s->world), first_event, &measured);
    if (st == DT_OK && dt_world_rank(s->world) == 0) {
        dt_pp_mean_costs(schedule, measured, stage, &costs);
        st = dt_pp_simulate(schedule, &costs, &simulated);
        if (st == DT_OK)
            st = draw(c, schedule, simulated, measured);
    }
    dt_pp_timeline_destroy(&measured);
    dt_pp_timeline_destroy(&simulated);
    free(stage);
    return dt_world_agree_sync(s->world, st);
}
