/* base/dt_trace.h - what happened when, in order: spans and moments recorded by a rank, for tests
 * that assert an order and for pictures (chrome://tracing JSON). Off (NULL) it costs one test. */
#pragma once

#include "base/dt_types.h"

typedef struct dt_trace dt_trace;

typedef enum dt_trace_phase { DT_TRACE_BEGIN, DT_TRACE_END, DT_TRACE_MOMENT } dt_trace_phase;

typedef struct dt_trace_event {
    const char *kind;       /* static text: "op", "issue", "comm", "wait", "alloc", "free" ... */
    char name[72];          /* what: op and module path, or the label of a collective */
    dt_trace_phase phase;
    int lane;               /* 0: the host; 1 + channel: a communication worker */
    int64_t bytes;
    double time_s;          /* CLOCK_MONOTONIC: one clock for all ranks of a machine */
} dt_trace_event;

DT_NODISCARD dt_status dt_trace_create(dt_trace **trace_out);
void dt_trace_destroy(dt_trace **trace);

/* Record one event. `trace` may be NULL. Safe from several threads. */
void dt_trace_record(dt_trace *trace, const char *kind, const char *name, dt_trace_phase phase,
                     int lane, int64_t bytes);

/* Events so far, oldest first; valid until the next record, so call when nothing is in flight. */
const dt_trace_event *dt_trace_events(const dt_trace *trace, int64_t *count_out);
void dt_trace_clear(dt_trace *trace);
/* Write as Chrome trace JSON with `rank` as the process id. Errors: DT_ERR_IO. */
DT_NODISCARD dt_status dt_trace_write(const dt_trace *trace, int rank, const char *path);
