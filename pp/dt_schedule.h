/* pp/dt_schedule.h - pipeline schedules as data: made by pure generators, read from CSV, checked,
 * timed, drawn and lowered without a model or a second rank. docs/pipeline.md shows each of them.
 *
 * A schedule is a row of actions for every rank. A stage is a run of layers, numbered from the
 * input; rank r holds v stages, in a loop (r, r + p, ...) or in a V (r and 2p - 1 - r). Read next:
 * pp/generate.c. Source of the text and CSV form: PyTorch's torch.distributed.pipelining. */
#pragma once

#include "base/dt_trace.h"

#include <stdio.h>

/* F forward; B backward, or in two halves: I for the input's gradient, W for the weights'.
 * SEND_F of stage s feeds RECV_F of stage s + 1, SEND_B of s feeds RECV_B of s - 1. */
#define DT_PP_KIND_TABLE(X) \
    X(F) X(I) X(W) X(B) X(SEND_F) X(RECV_F) X(SEND_B) X(RECV_B) X(UNSHARD) X(RESHARD) X(REDUCE_GRAD)

typedef enum dt_pp_kind {
#define X(name) DT_PP_##name,
    DT_PP_KIND_TABLE(X)
#undef X
        DT_PP_NKINDS
} dt_pp_kind;

/* paired: this F and the next action, a B or I, may run at once. UNSHARD, RESHARD and REDUCE_GRAD
 * are of a whole stage and have microbatch -1. */
typedef struct dt_pp_action {
    dt_pp_kind kind;
    int stage, microbatch;
    bool paired;
} dt_pp_action;

/* "2F0", "3SEND_F1", "1UNSHARD". Returns buf. */
enum { DT_PP_ACTION_TEXT = 40 };
const char *dt_pp_action_print(dt_pp_action action, char *buf, size_t size_bytes);
/* Errors: DT_ERR_FORMAT quotes the text and lists the kinds. */
DT_NODISCARD dt_status dt_pp_action_parse(const char *text, dt_pp_action *action_out);

typedef struct dt_pp_row {
    dt_pp_action *action;
    int64_t count, capacity;
} dt_pp_row;

typedef struct dt_pp_schedule {
    int nranks, nstages, nmicrobatches;
    dt_pp_row *row; /* nranks; grown by dt_grow */
} dt_pp_schedule;

/* What is legal for a named schedule on p ranks with m microbatches and v stages per rank. */
typedef struct dt_pp_rule {
    const char *name, *alias; /* alias: "" or other names, with bars between */
    int v_least, v_most;      /* v_most 0: no limit */
    int v_default;
    int p_multiple;
    int m_per_rank; /* m >= m_per_rank * p */
    int m_multiple;
    bool v_shape, both_ways; /* both_ways: each stage lives on two ranks (r and p - 1 - r) */
} dt_pp_rule;

/* The table of schedules, in order; NULL past its end. By name: in any case, with or without
 * hyphens. Errors: DT_ERR_ARG lists the names. */
const dt_pp_rule *dt_pp_rule_at(int index);
DT_NODISCARD dt_status dt_pp_rule_find(const char *name, const dt_pp_rule **rule_out);

/* dt_pp_schedule_create - by name; v = 0: the schedule's own. Only F, B, I and W are in it.
 * Errors: DT_ERR_ARG: no such name; an illegal p, m or v, with the nearest legal values. */
DT_NODISCARD dt_status dt_pp_schedule_create(const char *name, int p, int m, int v,
                                             dt_pp_schedule **schedule_out);
void dt_pp_schedule_destroy(dt_pp_schedule **schedule);

/* CSV: a line a rank, a cell an action; an empty cell is idle time and is dropped, because order is
 * all that a schedule says. A pair is one cell, "(0F5;7B3)OVERLAP_F_B". `where` names the text in
 * messages. Reading does not check the order: dt_pp_check does.
 * Errors: DT_ERR_FORMAT names line and cell; DT_ERR_IO. */
DT_NODISCARD dt_status dt_pp_schedule_parse(const char *text, const char *where,
                                            dt_pp_schedule **schedule_out);
DT_NODISCARD dt_status dt_pp_schedule_read(const char *path, dt_pp_schedule **schedule_out);
DT_NODISCARD dt_status dt_pp_schedule_write(const dt_pp_schedule *schedule, FILE *out);

/* dt_pp_check - is it complete, on the right ranks, and does it run to its end even when a send
 * waits for its receive? Takes schedules with and without the actions that lowering adds.
 * Errors: DT_ERR_ARG names rank, position in the row and action. */
DT_NODISCARD dt_status dt_pp_check(const dt_pp_schedule *schedule);

/* dt_pp_merge - an I with its own W right after it becomes a B, in place. */
void dt_pp_merge(dt_pp_schedule *schedule);

/* dt_pp_lower - add what a rank must do besides computing: sends and receives between neighbouring
 * stages on different ranks, REDUCE_GRAD after a stage's last backward, and, where max_unsharded
 * is not 0 (it is at least 2), UNSHARD and RESHARD so that a rank has the next max_unsharded stages
 * whole and no others. A receive is put in its row at the moment when its send is, so the rows are
 * one order of events cut by rank, and cannot deadlock. Errors: what dt_pp_check finds. */
DT_NODISCARD dt_status dt_pp_lower(const dt_pp_schedule *schedule, int max_unsharded,
                                   dt_pp_schedule **lowered_out);

/* Times of actions in any unit. All zero, or NULL: F, I and W take 1 and B takes 2. */
typedef struct dt_pp_costs {
    double f, i, w, b;   /* b 0: i + w */
    double pair;         /* a paired F and B as one action; 0: one after the other */
    double transfer;     /* from rank to rank */
    const double *stage; /* factor of each stage; NULL: 1 */
    bool synchronous;    /* a send waits for its receive, and both for the transfer */
} dt_pp_costs;

typedef struct dt_pp_lane {
    double *start, *end; /* of each action of the row */
    double busy;         /* in F, B, I and W */
    int *live;           /* microbatches of a stage between F and the end of W or B, after each */
    int peak_live;       /* the most of them */
    int peak_received;   /* lowered: most messages between their receive and the F, I or B's end */
} dt_pp_lane;

/* When everything ran; a rank is idle for makespan - busy. Simulated or measured. */
typedef struct dt_pp_timeline {
    int nranks;
    double makespan;
    dt_pp_lane *lane;
} dt_pp_timeline;

/* Errors: DT_ERR_ARG: what dt_pp_check finds; a deadlock, with what each rank waits for. */
DT_NODISCARD dt_status dt_pp_simulate(const dt_pp_schedule *schedule, const dt_pp_costs *costs,
                                      dt_pp_timeline **timeline_out);
/* dt_pp_measure - when the actions really ran, in seconds after the first computation.
 *   in   schedule   lowered, as it was run (dt_pp_lower gives what dt_pipeline_split made of it)
 *        traces     one a rank, of one dt_pipeline_run, all begun at one moment (their clocks)
 * An action begins with its first op: what it waits for before is idle time.
 * Errors: DT_ERR_ARG names the first action that a trace does not have. */
DT_NODISCARD dt_status dt_pp_measure(const dt_pp_schedule *schedule, const dt_trace *const *traces,
                                     dt_pp_timeline **timeline_out);
void dt_pp_timeline_destroy(dt_pp_timeline **timeline);
/* dt_pp_mean_costs - what to simulate beside a measured run: the mean time of each kind of action,
 * and of each stage (its factor; `stage` has room for all of them, costs_out->stage is it). */
void dt_pp_mean_costs(const dt_pp_schedule *schedule, const dt_pp_timeline *measured, double *stage,
                      dt_pp_costs *costs_out);
/* Part of all ranks' time that is idle, 0 to 1. */
double dt_pp_idle(const dt_pp_timeline *timeline);

/* dt_pp_draw_text - a line a rank, a column `unit` of time (0: the shortest action).
 * Errors: DT_ERR_ARG: over 4096 columns; DT_ERR_IO. */
DT_NODISCARD dt_status dt_pp_draw_text(const dt_pp_schedule *schedule,
                                       const dt_pp_timeline *timeline, double unit, FILE *out);

typedef struct dt_pp_picture {
    const char *title;
    const dt_pp_schedule *schedule;
    const dt_pp_timeline *timeline;
} dt_pp_picture;

/* dt_pp_draw_svg - pictures one above the other, to the same scale of time: a simulated and a
 * measured run, or several schedules. Errors: DT_ERR_IO. */
DT_NODISCARD dt_status dt_pp_draw_svg(int npictures, const dt_pp_picture *pictures, FILE *out);
