/* base/dt_status.h - how every function that can fail reports it.
 *
 * Such a function returns dt_status and gives its results through trailing *_out arguments, which
 * it leaves untouched on failure. The function that fails writes one message; each caller that
 * passes the failure on adds its own line, so that the trace reads like a stack. The trace belongs
 * to the calling thread. Read next: base/dt_types.h. */
#pragma once

#define DT_STATUS_TABLE(X)                                  \
    X(OK, "success")                                        \
    X(ERR_ARG, "invalid argument")                          \
    X(ERR_SHAPE, "shapes do not agree")                     \
    X(ERR_PLACEMENT, "no rule allows these placements")     \
    X(ERR_STATE, "object is in the wrong state")            \
    X(ERR_NOMEM, "out of memory")                           \
    X(ERR_IO, "file could not be read or written")          \
    X(ERR_FORMAT, "malformed file")                         \
    X(ERR_COMM, "communication failed")                     \
    X(ERR_TIMEOUT, "deadline passed")                       \
    X(ERR_DEVICE, "device error")                           \
    X(ERR_UNSUPPORTED, "not built into this library")

typedef enum dt_status {
#define X(name, text) DT_##name,
    DT_STATUS_TABLE(X)
#undef X
} dt_status;

#define DT_NODISCARD      __attribute__((warn_unused_result))
#define DT_PRINTF(fmt, n) __attribute__((format(printf, fmt, n)))
#define DT_COUNT(a)       ((int)(sizeof(a) / sizeof((a)[0])))

/* Text of a status code; never NULL. */
const char *dt_status_string(dt_status st);

/* The trace of the last failure on this thread:
 * "mesh/mesh.c:70 dt_mesh_create: what went wrong (invalid argument)\n  from ...\n". */
const char *dt_error_trace(void);
void dt_error_clear(void);

/* Behind the macros below. */
DT_PRINTF(5, 6)
dt_status dt_error_set(dt_status st, const char *file, int line, const char *func, const char *fmt,
                       ...);
dt_status dt_error_push(dt_status st, const char *file, int line, const char *func);

/* dt_error_relay - fail with the trace of another rank (or of an earlier relay): "rank R: " and the
 * trace as it was. Returns st. */
dt_status dt_error_relay(dt_status st, int rank, const char *trace);

/* dt_error_restore - fail with a trace that was copied earlier, as it was. Returns st. */
dt_status dt_error_restore(dt_status st, const char *trace);

/* Record a failure and evaluate to its status: `return DT_ERROR(DT_ERR_ARG, "n=%d", n);`. `st` is
 * evaluated twice, so that compilers and clang-tidy see what the value is. */
#define DT_ERROR(st, ...) \
    (dt_error_set((st), __FILE__, __LINE__, __func__, __VA_ARGS__), (dt_status)(st))

/* Require something of the inputs, in every build. Write the values into the message. */
#define DT_REQUIRE(cond, st, ...)               \
    do {                                        \
        if (!(cond))                            \
            return DT_ERROR((st), __VA_ARGS__); \
    } while (0)

/* Pass a failure on; only where this function owns nothing yet. */
#define DT_TRY(call)                                                                 \
    do {                                                                             \
        const dt_status try_st_ = (call);                                            \
        if (try_st_ != DT_OK)                                                        \
            return (dt_error_push(try_st_, __FILE__, __LINE__, __func__), try_st_);  \
    } while (0)

/* Pass a failure on through a cleanup label; `st` is the caller's variable. */
#define DT_TRY_TO(label, st, call)                               \
    do {                                                         \
        (st) = (call);                                           \
        if ((st) != DT_OK) {                                     \
            dt_error_push((st), __FILE__, __LINE__, __func__);   \
            goto label;                                          \
        }                                                        \
    } while (0)

/* For programs: end the process on failure, with the trace on stderr and exit status 1. */
#define DT_MUST(call)                                    \
    do {                                                 \
        const dt_status must_st_ = (call);               \
        if (must_st_ != DT_OK)                           \
            dt_die(must_st_, __FILE__, __LINE__);        \
    } while (0)

/* What DT_MUST calls. When all ranks fail alike, one message is enough: ranks other than 0 (or than
 * the one that a relayed trace names) wait 2 s (15 s) before they print, and the first that prints
 * ends the job (see dt_error_context). */
__attribute__((noreturn)) void dt_die(dt_status st, const char *file, int line);

/* dt_error_context - tell dt_die which rank this thread is and how its job ends. A world calls it
 * on the thread that creates it. `end_job` may be NULL (exit(1) is enough) and must not return. */
void dt_error_context(int rank, int nranks, void (*end_job)(int exit_status));
/* What has failed here is only that another rank ended, and its last words may be on their way:
 * dt_die lets it speak first. */
void dt_error_is_of_other(void);
