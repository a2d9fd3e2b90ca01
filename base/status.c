/* base/status.c - the error trace of a thread, and how a program ends on one. */
#include "base/dt_status.h"

#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { TRACE_BYTES = 4096, PATIENCE_S = 2, LONG_PATIENCE_S = 15 };

static _Thread_local struct {
    char text[TRACE_BYTES];
    int length;
    int rank, nranks;
    bool of_other;
    void (*end_job)(int exit_status);
} context;

const char *dt_status_string(dt_status st)
{
    static const char *const text[] = {
#define X(name, text) [DT_##name] = (text),
        DT_STATUS_TABLE(X)
#undef X
    };
    return (int)st >= 0 && (int)st < DT_COUNT(text) ? text[st] : "unknown status";
}

const char *dt_error_trace(void)
{
    return context.text;
}

void dt_error_clear(void)
{
    context.length = 0;
    context.text[0] = '\0';
}

/* What does not fit is dropped: a long trace keeps its first, deepest lines. */
DT_PRINTF(1, 0)
static void append_list(const char *fmt, va_list args)
{
    const int room = TRACE_BYTES - context.length;
    const int n = vsnprintf(context.text + context.length, (size_t)room, fmt, args);
    context.length += n < 0 ? 0 : n < room ? n : room - 1;
}

DT_PRINTF(1, 2)
static void append(const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    append_list(fmt, args);
    va_end(args);
}

dt_status dt_error_set(dt_status st, const char *file, int line, const char *func, const char *fmt,
                       ...)
{
    /* The message may quote the trace itself: print it before the trace is cleared. */
    char message[TRACE_BYTES / 2];
    va_list args;
    va_start(args, fmt);
    (void)vsnprintf(message, sizeof message, fmt, args);
    va_end(args);
    dt_error_clear();
    const size_t length = strlen(message);
    if (length && message[length - 1] == '\n') /* a quoted trace, which says its status */
        append("%s:%d %s: %s", file, line, func, message);
    else
        append("%s:%d %s: %s (%s)\n", file, line, func, message, dt_status_string(st));
    return st;
}

dt_status dt_error_push(dt_status st, const char *file, int line, const char *func)
{
    append("  from %s:%d %s\n", file, line, func);
    return st;
}

dt_status dt_error_restore(dt_status st, const char *trace)
{
    char copy[TRACE_BYTES]; /* it may be this thread's own */
    (void)snprintf(copy, sizeof copy, "%s", trace);
    dt_error_clear();
    append("%s%s", copy, *copy && copy[strlen(copy) - 1] == '\n' ? "" : "\n");
    return st;
}

/* A text that starts so was relayed and names its rank itself. */
static bool names_rank(const char *trace)
{
    return strncmp(trace, "rank ", 5) == 0;
}

dt_status dt_error_relay(dt_status st, int rank, const char *trace)
{
    char copy[TRACE_BYTES]; /* it may be this thread's own */
    (void)snprintf(copy, sizeof copy, "%s", trace);
    const size_t length = strlen(copy);
    dt_error_clear();
    if (!names_rank(copy))
        append("rank %d: ", rank);
    append("%s%s", copy, length && copy[length - 1] == '\n' ? "" : "\n");
    return st;
}

void dt_error_context(int rank, int nranks, void (*end_job)(int exit_status))
{
    context.rank = rank;
    context.nranks = nranks;
    context.end_job = end_job;
}

void dt_error_is_of_other(void)
{
    context.of_other = true;
}

/* One rank speaks for all: the one that a relayed trace names at once, rank 0 at once where each
 * rank has its own trace and nobody else has spoken. Its job's end reaches the others before their
 * patience does. */
static void wait_for_others(void)
{
    const bool relayed = names_rank(context.text);
    const int speaker = relayed ? (int)strtol(context.text + 5, NULL, 10) : 0;
    const struct timespec patience = {.tv_sec = relayed ? LONG_PATIENCE_S : PATIENCE_S};
    if (context.nranks > 1 && (context.rank != speaker || context.of_other))
        (void)nanosleep(&patience, NULL);
}

void dt_die(dt_status st, const char *file, int line)
{
    dt_error_push(st, file, line, "main");
    wait_for_others();
    if (context.nranks > 1 && !names_rank(context.text))
        (void)fprintf(stderr, "\nrank %d of %d failed: %s", context.rank, context.nranks,
                      context.text);
    else
        (void)fprintf(stderr, "\nfailed: %s", context.text);
    (void)fflush(NULL);
    if (context.end_job)
        context.end_job(EXIT_FAILURE);
    exit(EXIT_FAILURE);
}
