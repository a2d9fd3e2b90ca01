/* pp/simulate.c - when each action of a schedule runs, given what actions cost. Each rank works
 * through its row in order; an action starts when the rank is free and its inputs are there.
 * Read first: pp/schedule.c. Read next: pp/check.c. */
#include "pp/pp_internal.h"

#include <stdlib.h>
#include <string.h>

typedef struct simulation {
    const dt_pp_schedule *s;
    dt_pp_costs costs;
    dt_pp_timeline *timeline;
    int *owner;                  /* of each cell */
    double *done[DT_PP_UNSHARD]; /* by kind and cell: when it ended; < 0: not yet */
    int64_t *at;                 /* position of each rank in its row */
    double *now;                 /* when each rank is free */
    int *live, *received;
    bool lowered; /* what comes from other ranks comes by messages */
} simulation;

static double *done_of(const simulation *m, dt_pp_kind kind, int stage, int microbatch)
{
    return &m->done[kind == DT_PP_B ? DT_PP_I : kind][dti_pp_cell(m->s, stage, microbatch)];
}

/* One thing an action waits for. */
typedef struct need {
    dt_pp_action action;
    double delay; /* after its end */
} need;

/* What an activation or gradient from the stage next to action a's needs. */
static int needs_from(const simulation *m, dt_pp_action a, int rank, need *out)
{
    const bool forward = a.kind == DT_PP_F;
    const int stage = dti_pp_neighbour(m->s, a), k = a.microbatch;
    if (stage < 0)
        return 0;
    const bool remote = m->owner[dti_pp_cell(m->s, stage, k)] != rank;
    if (!remote || !m->lowered) {
        out[0] =
            (need){{forward ? DT_PP_F : DT_PP_I, stage, k, false}, remote ? m->costs.transfer : 0};
        return 1;
    }
    out[0] = (need){{forward ? DT_PP_RECV_F : DT_PP_RECV_B, a.stage, k, false}, 0};
    if (m->costs.synchronous)
        return 1;
    out[1] = (need){{forward ? DT_PP_SEND_F : DT_PP_SEND_B, stage, k, false}, m->costs.transfer};
    return 2;
}

static int needs(const simulation *m, dt_pp_action a, int rank, need out[3])
{
    switch (a.kind) {
    case DT_PP_F: return needs_from(m, a, rank, out);
    case DT_PP_I:
    case DT_PP_B:
        out[0] = (need){{DT_PP_F, a.stage, a.microbatch, false}, 0};
        return 1 + needs_from(m, a, rank, out + 1);
    case DT_PP_W:
    case DT_PP_SEND_B: out[0] = (need){{DT_PP_I, a.stage, a.microbatch, false}, 0}; return 1;
    case DT_PP_SEND_F: out[0] = (need){{DT_PP_F, a.stage, a.microbatch, false}, 0}; return 1;
    case DT_PP_RECV_F:
    case DT_PP_RECV_B:
    case DT_PP_UNSHARD:
    case DT_PP_RESHARD:
    case DT_PP_REDUCE_GRAD:
    case DT_PP_NKINDS: break;
    }
    return 0;
}

static const dt_pp_action *head(const simulation *m, int rank)
{
    const dt_pp_row *row = &m->s->row[rank];
    return m->at[rank] < row->count ? &row->action[m->at[rank]] : NULL;
}

/* The receive of a send. */
static dt_pp_action match(const simulation *m, dt_pp_action send)
{
    const dt_pp_kind kind = send.kind == DT_PP_SEND_F ? DT_PP_RECV_F : DT_PP_RECV_B;
    return (dt_pp_action){kind, dti_pp_neighbour(m->s, send), send.microbatch, false};
}

static int receiver(const simulation *m, dt_pp_action send)
{
    return m->owner[dti_pp_cell(m->s, match(m, send).stage, send.microbatch)];
}

static bool is_send(dt_pp_kind kind)
{
    return kind == DT_PP_SEND_F || kind == DT_PP_SEND_B;
}

static bool is_receive(dt_pp_kind kind)
{
    return kind == DT_PP_RECV_F || kind == DT_PP_RECV_B;
}

/* Can an action start, and when? If not, *missing is what it waits for. */
static bool can_start(const simulation *m, int rank, dt_pp_action a, double *start,
                      dt_pp_action *missing)
{
    need list[3];
    const int n = needs(m, a, rank, list);
    for (int i = 0; i < n; i++) {
        const dt_pp_action w = list[i].action;
        const double end = *done_of(m, w.kind, w.stage, w.microbatch);
        *missing = w;
        if (end < 0)
            return false;
        *start = end + list[i].delay > *start ? end + list[i].delay : *start;
    }
    if (!m->costs.synchronous)
        return true;
    if (is_receive(a.kind)) { /* its send takes it along */
        *missing = (dt_pp_action){a.kind == DT_PP_RECV_F ? DT_PP_SEND_F : DT_PP_SEND_B,
                                  dti_pp_neighbour(m->s, a), a.microbatch, false};
        return false;
    }
    if (!is_send(a.kind))
        return true;
    const dt_pp_action want = match(m, a), *there = head(m, receiver(m, a));
    *missing = want;
    if (!there || there->kind != want.kind || there->stage != want.stage ||
        there->microbatch != want.microbatch)
        return false;
    *start = m->now[receiver(m, a)] > *start ? m->now[receiver(m, a)] : *start;
    return true;
}

static double duration(const dt_pp_costs *c, dt_pp_action a)
{
    const double whole = c->b > 0 ? c->b : c->i + c->w;
    const double cost = a.kind == DT_PP_F   ? c->f
                        : a.kind == DT_PP_I ? c->i
                        : a.kind == DT_PP_W ? c->w
                        : a.kind == DT_PP_B ? whole
                                            : 0;
    return c->stage ? cost * c->stage[a.stage] : cost;
}

static bool uses_message(const simulation *m, dt_pp_action a)
{
    const bool forward = a.kind == DT_PP_F;
    return (forward || a.kind == DT_PP_I || a.kind == DT_PP_B) &&
           *done_of(m, forward ? DT_PP_RECV_F : DT_PP_RECV_B, a.stage, a.microbatch) >= 0;
}

static void record(simulation *m, int rank, double start, double end)
{
    const dt_pp_action a = *head(m, rank);
    dt_pp_lane *lane = &m->timeline->lane[rank];
    lane->start[m->at[rank]] = start;
    lane->end[m->at[rank]] = end;
    m->now[rank] = end;
    if (a.kind < DT_PP_UNSHARD)
        *done_of(m, a.kind, a.stage, a.microbatch) = end;
    m->received[rank] += is_receive(a.kind) - uses_message(m, a);
    lane->peak_received =
        m->received[rank] > lane->peak_received ? m->received[rank] : lane->peak_received;
    m->live[rank] += (a.kind == DT_PP_F) - (a.kind == DT_PP_W || a.kind == DT_PP_B);
    lane->peak_live = m->live[rank] > lane->peak_live ? m->live[rank] : lane->peak_live;
    lane->live[m->at[rank]++] = m->live[rank];
    m->timeline->makespan = end > m->timeline->makespan ? end : m->timeline->makespan;
}

static void run(simulation *m, int rank, double start)
{
    const dt_pp_action a = *head(m, rank);
    double end = start + duration(&m->costs, a);
    if (is_send(a.kind) && m->costs.synchronous) {
        end += m->costs.transfer;
        record(m, receiver(m, a), start, end);
    }
    const bool pair = a.paired && m->costs.pair > 0;
    if (pair)
        end = start + m->costs.pair * (m->costs.stage ? m->costs.stage[a.stage] : 1);
    record(m, rank, start, end);
    if (pair)
        record(m, rank, start, end);
    m->timeline->lane[rank].busy += dti_pp_computes(a.kind) ? end - start : 0;
}

/* The rank whose next action starts first; -1 if none can start. */
static int first_to_start(const simulation *m, double *start_out)
{
    int best = -1;
    dt_pp_action missing;
    for (int r = 0; r < m->s->nranks; r++) {
        const dt_pp_action *a = head(m, r);
        double start = m->now[r];
        if (!a || !can_start(m, r, *a, &start, &missing) ||
            (a->paired && m->costs.pair > 0 && !can_start(m, r, a[1], &start, &missing)))
            continue;
        if (best < 0 || start < *start_out) {
            best = r;
            *start_out = start;
        }
    }
    return best;
}

/* What stands for it in the owner's row: I, or the whole B. */
static dt_pp_action as_written(const simulation *m, dt_pp_action a)
{
    const dt_pp_row *row = &m->s->row[m->owner[dti_pp_cell(m->s, a.stage, a.microbatch)]];
    for (int64_t i = 0; i < row->count && a.kind == DT_PP_I; i++)
        if (row->action[i].kind == DT_PP_B && row->action[i].stage == a.stage &&
            row->action[i].microbatch == a.microbatch)
            return row->action[i];
    return a;
}

/* Nobody can go on: name a rank whose action stands before what it needs, or else the first that
 * waits; then what the others wait for. */
static dt_status deadlock(const simulation *m)
{
    char text[400] = "", action[DT_PP_ACTION_TEXT], other[DT_PP_ACTION_TEXT];
    for (int pass = 0; pass < 2; pass++) {
        for (int r = 0; r < m->s->nranks; r++) {
            dt_pp_action missing = {0};
            const dt_pp_action *a = head(m, r);
            double start = 0;
            if (!a)
                continue;
            if (can_start(m, r, *a, &start, &missing) && a->paired)
                (void)can_start(m, r, a[1], &start, &missing);
            const bool own = dti_pp_computes(missing.kind) &&
                             m->owner[dti_pp_cell(m->s, missing.stage, missing.microbatch)] == r;
            const size_t used = strlen(text);
            if (own == (pass == 0))
                (void)snprintf(text + used, sizeof text - used,
                               "%srank %d, position %lld, %s waits for %s%s", used ? "; " : "", r,
                               (long long)m->at[r], dt_pp_action_print(*a, action, sizeof action),
                               dt_pp_action_print(as_written(m, missing), other, sizeof other),
                               own ? ", which comes later in its row" : "");
        }
    }
    return DT_ERROR(DT_ERR_ARG, "deadlock: %s", text);
}

dt_status dti_pp_timeline_new(const dt_pp_schedule *s, dt_pp_timeline **timeline_out)
{
    dt_pp_timeline *t = calloc(1, sizeof *t);
    bool ok = t && (t->lane = calloc((size_t)s->nranks, sizeof *t->lane));
    for (int r = 0; ok && r < s->nranks; r++) {
        const size_t room = (size_t)s->row[r].count + 1;
        t->nranks = r + 1;
        ok = (t->lane[r].start = calloc(room, sizeof *t->lane[r].start)) &&
             (t->lane[r].end = calloc(room, sizeof *t->lane[r].end)) &&
             (t->lane[r].live = calloc(room, sizeof *t->lane[r].live));
    }
    if (!ok)
        dt_pp_timeline_destroy(&t);
    DT_REQUIRE(ok, DT_ERR_NOMEM, "a timeline of %d ranks", s->nranks);
    *timeline_out = t;
    return DT_OK;
}

void dt_pp_timeline_destroy(dt_pp_timeline **timeline)
{
    dt_pp_timeline *t = *timeline;
    for (int r = 0; t && r < t->nranks; r++) {
        free(t->lane[r].start);
        free(t->lane[r].end);
        free(t->lane[r].live);
    }
    if (t)
        free(t->lane);
    free(t);
    *timeline = NULL;
}

double dt_pp_idle(const dt_pp_timeline *t)
{
    double idle = 0;
    for (int r = 0; r < t->nranks; r++)
        idle += t->makespan - t->lane[r].busy;
    return t->makespan > 0 ? idle / (t->makespan * t->nranks) : 0;
}

static void release(simulation *m)
{
    dt_pp_timeline_destroy(&m->timeline);
    for (int k = 0; k < DT_PP_UNSHARD; k++)
        free(m->done[k]);
    free(m->owner);
    free(m->at);
    free(m->now);
    free(m->live);
    free(m->received);
}

static dt_status prepare(simulation *m)
{
    const dt_pp_schedule *s = m->s;
    const size_t n = (size_t)s->nranks, cells = (size_t)dti_pp_cell(s, s->nstages, 0) + 1;
    DT_TRY(dti_pp_timeline_new(s, &m->timeline));
    bool ok = (m->at = calloc(n, sizeof *m->at)) && (m->now = calloc(n, sizeof *m->now)) &&
              (m->live = calloc(n, sizeof *m->live)) &&
              (m->received = calloc(n, sizeof *m->received));
    for (int k = 0; ok && k < DT_PP_UNSHARD; k++) {
        ok = (m->done[k] = malloc(cells * sizeof *m->done[k])) != NULL;
        for (size_t i = 0; ok && i < cells; i++)
            m->done[k][i] = -1;
    }
    for (int r = 0; r < s->nranks; r++)
        for (int64_t i = 0; i < s->row[r].count; i++)
            m->lowered |= dti_pp_is_comm(s->row[r].action[i].kind);
    DT_REQUIRE(ok, DT_ERR_NOMEM, "a simulation of %d ranks", s->nranks);
    return dti_pp_owners(s, &m->owner);
}

dt_status dt_pp_simulate(const dt_pp_schedule *schedule, const dt_pp_costs *costs,
                         dt_pp_timeline **timeline_out)
{
    simulation m = {.s = schedule, .costs = costs ? *costs : (dt_pp_costs){0}};
    if (m.costs.f <= 0 && m.costs.i <= 0 && m.costs.w <= 0 && m.costs.b <= 0)
        m.costs.f = m.costs.i = m.costs.w = 1;
    dt_status st = DT_OK;
    DT_TRY(dti_pp_check_actions(schedule));
    DT_TRY_TO(done, st, prepare(&m));
    double start = 0;
    for (int r; (r = first_to_start(&m, &start)) >= 0;)
        run(&m, r, start);
    for (int r = 0; r < schedule->nranks; r++)
        if (head(&m, r))
            DT_TRY_TO(done, st, deadlock(&m));
    *timeline_out = m.timeline;
    m.timeline = NULL;
done:
    release(&m);
    return st;
}
