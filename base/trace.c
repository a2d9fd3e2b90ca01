/* base/trace.c - a growing list of events behind a mutex, and its writer. */
#include "base/dt_trace.h"

#include <errno.h>
#include <jansson.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct dt_trace {
    pthread_mutex_t mutex;
    dt_trace_event *events;
    int64_t count, capacity;
    int64_t lost; /* events for which there was no memory: the trace is then useless, and says so */
};

static double now_s(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

dt_status dt_trace_create(dt_trace **trace_out)
{
    dt_trace *trace = calloc(1, sizeof *trace);
    DT_REQUIRE(trace, DT_ERR_NOMEM, "a trace");
    pthread_mutex_init(&trace->mutex, NULL);
    *trace_out = trace;
    return DT_OK;
}

void dt_trace_destroy(dt_trace **trace)
{
    if (!*trace)
        return;
    pthread_mutex_destroy(&(*trace)->mutex);
    free((*trace)->events);
    free(*trace);
    *trace = NULL;
}

void dt_trace_record(dt_trace *trace, const char *kind, const char *name, dt_trace_phase phase,
                     int lane, int64_t bytes)
{
    if (!trace)
        return;
    dt_trace_event event = {.kind = kind, .phase = phase, .lane = lane, .bytes = bytes};
    (void)snprintf(event.name, sizeof event.name, "%s", name);
    pthread_mutex_lock(&trace->mutex);
    event.time_s = now_s(); /* taken inside, so that the order is by time */
    if (dt_grow((void **)&trace->events, &trace->capacity, trace->count + 1, sizeof event) == DT_OK)
        trace->events[trace->count++] = event;
    else
        trace->lost++;
    pthread_mutex_unlock(&trace->mutex);
}

const dt_trace_event *dt_trace_events(const dt_trace *trace, int64_t *count_out)
{
    *count_out = trace->count;
    return trace->events;
}

void dt_trace_clear(dt_trace *trace)
{
    pthread_mutex_lock(&trace->mutex);
    trace->count = 0;
    trace->lost = 0;
    pthread_mutex_unlock(&trace->mutex);
}

/* One line of the file; false if it could not be written. */
static bool write_event(FILE *f, const dt_trace_event *event, int rank, bool last)
{
    static const char *const phase[] = {
        [DT_TRACE_BEGIN] = "B", [DT_TRACE_END] = "E", [DT_TRACE_MOMENT] = "i"};
    json_t *line =
        json_pack("{s:s, s:s, s:s, s:f, s:i, s:i, s:{s:I}}", "name", event->name, "cat",
                  event->kind, "ph", phase[event->phase], "ts", event->time_s * 1e6, "pid", rank,
                  "tid", event->lane, "args", "bytes", (json_int_t)event->bytes);
    const bool ok =
        line && json_dumpf(line, f, JSON_COMPACT) == 0 && fputs(last ? "\n" : ",\n", f) >= 0;
    json_decref(line);
    return ok;
}

dt_status dt_trace_write(const dt_trace *trace, int rank, const char *path)
{
    DT_REQUIRE(trace->lost == 0, DT_ERR_NOMEM, "%lld events were lost for want of memory",
               (long long)trace->lost);
    FILE *f = fopen(path, "w");
    DT_REQUIRE(f, DT_ERR_IO, "%s: %s", path, strerror(errno));
    bool ok = fputs("[\n", f) >= 0;
    for (int64_t i = 0; ok && i < trace->count; i++)
        ok = write_event(f, &trace->events[i], rank, i == trace->count - 1);
    ok = ok && fputs("]\n", f) >= 0;
    ok = fclose(f) == 0 && ok;
    DT_REQUIRE(ok, DT_ERR_IO, "%s: could not write the trace", path);
    return DT_OK;
}
