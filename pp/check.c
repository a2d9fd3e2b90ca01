/* pp/check.c - what makes a schedule valid. Counting finds actions that are missing, doubled or on
 * the wrong rank; running it in the simulator, with sends that wait for their receives, finds a
 * wrong order. Read first: pp/simulate.c. */
#include "pp/pp_internal.h"

#include <stdlib.h>

/* Where an action stands; for messages. */
typedef struct place {
    int rank;
    int64_t position;
    dt_pp_action action;
} place;

static dt_status wrong(place at, const char *why)
{
    char text[DT_PP_ACTION_TEXT];
    return DT_ERROR(DT_ERR_ARG, "rank %d, position %lld, %s: %s", at.rank, (long long)at.position,
                    dt_pp_action_print(at.action, text, sizeof text), why);
}

/* Call `visit` on every action, in row order. */
static dt_status each(const dt_pp_schedule *s, void *state,
                      dt_status (*visit)(const dt_pp_schedule *s, place at, void *state))
{
    for (int r = 0; r < s->nranks; r++)
        for (int64_t i = 0; i < s->row[r].count; i++)
            DT_TRY(visit(s, (place){r, i, s->row[r].action[i]}, state));
    return DT_OK;
}

static dt_status well_formed(const dt_pp_schedule *s, place at, void *state)
{
    (void)state;
    const dt_pp_action a = at.action;
    const bool whole = a.kind >= DT_PP_UNSHARD;
    const dt_pp_row *row = &s->row[at.rank];
    if (a.stage < 0 || a.stage >= s->nstages)
        return wrong(at, "no such stage");
    if (whole ? a.microbatch != -1 : a.microbatch < 0 || a.microbatch >= s->nmicrobatches)
        return wrong(at, "no such microbatch");
    const dt_pp_action *next = at.position + 1 < row->count ? &row->action[at.position + 1] : NULL;
    if (a.paired && (a.kind != DT_PP_F || !next || next->paired ||
                     (next->kind != DT_PP_B && next->kind != DT_PP_I)))
        return wrong(at, "only an F is paired, with the B or I after it");
    return DT_OK;
}

typedef struct tally {
    int *owner;
    unsigned *seen; /* of each cell: a bit a kind */
    bool comms, unshards, reduces;
} tally;

static dt_status count(const dt_pp_schedule *s, place at, void *state)
{
    tally *t = state;
    const dt_pp_action a = at.action;
    t->comms |= dti_pp_is_comm(a.kind);
    t->unshards |= a.kind == DT_PP_UNSHARD || a.kind == DT_PP_RESHARD;
    t->reduces |= a.kind == DT_PP_REDUCE_GRAD;
    if (a.kind >= DT_PP_UNSHARD)
        return DT_OK;
    const int64_t cell = dti_pp_cell(s, a.stage, a.microbatch);
    if (t->seen[cell] & 1u << a.kind)
        return wrong(at, "comes a second time");
    t->seen[cell] |= 1u << a.kind;
    if (t->owner[cell] != at.rank)
        return wrong(at, t->owner[cell] < 0 ? "no rank runs its F" : "its F is on another rank");
    if ((a.kind == DT_PP_I || a.kind == DT_PP_W) && t->seen[cell] & 1u << DT_PP_B)
        return wrong(at, "the whole B is there too");
    if (a.kind == DT_PP_B && t->seen[cell] & (1u << DT_PP_I | 1u << DT_PP_W))
        return wrong(at, "I or W is there too");
    if (!dti_pp_is_comm(a.kind))
        return DT_OK;
    const int other = dti_pp_neighbour(s, a);
    if (other < 0)
        return wrong(at, "there is no stage on the other side");
    if (t->owner[dti_pp_cell(s, other, a.microbatch)] == at.rank)
        return wrong(at, "the stage on the other side is on the same rank");
    return DT_OK;
}

/* Every cell has its F and its backward. What is missing is placed at the end of the row where it
 * belongs, or of rank 0's. */
static dt_status complete(const dt_pp_schedule *s, const tally *t)
{
    for (int stage = 0; stage < s->nstages; stage++) {
        for (int k = 0; k < s->nmicrobatches; k++) {
            const int64_t cell = dti_pp_cell(s, stage, k);
            const unsigned seen = t->seen[cell];
            const int rank = t->owner[cell] < 0 ? 0 : t->owner[cell];
            place at = {rank, s->row[rank].count, {DT_PP_F, stage, k, false}};
            if (!(seen & 1u << DT_PP_F))
                return wrong(at, "is missing");
            at.action.kind = seen & 1u << DT_PP_W   ? DT_PP_I
                             : seen & 1u << DT_PP_I ? DT_PP_W
                                                    : DT_PP_B;
            if (!(seen & 1u << DT_PP_B) && !(seen & 1u << at.action.kind))
                return wrong(at, "is missing");
        }
    }
    return DT_OK;
}

/* UNSHARD, RESHARD and REDUCE_GRAD of one stage, on one rank, if the schedule has any. */
static dt_status stage_order(const dt_pp_schedule *s, const tally *t, int rank, int stage)
{
    bool whole = false, used = false, reduced = false;
    place at = {.rank = rank};
    for (; at.position < s->row[rank].count; at.position++) {
        at.action = s->row[rank].action[at.position];
        if (at.action.stage != stage)
            continue;
        if (at.action.kind == DT_PP_UNSHARD || at.action.kind == DT_PP_RESHARD) {
            if (whole == (at.action.kind == DT_PP_UNSHARD))
                return wrong(at, whole ? "it is unsharded already" : "it is not unsharded");
            whole = !whole;
        }
        used |= dti_pp_computes(at.action.kind);
        if (t->unshards && dti_pp_computes(at.action.kind) && !whole)
            return wrong(at, "its stage is not unsharded");
        if (reduced && (dti_pp_computes(at.action.kind) || at.action.kind == DT_PP_REDUCE_GRAD))
            return wrong(at, "its stage's gradients are reduced already");
        reduced |= at.action.kind == DT_PP_REDUCE_GRAD;
    }
    at.action = (dt_pp_action){DT_PP_RESHARD, stage, -1, false};
    if (whole)
        return wrong(at, "is missing");
    at.action.kind = DT_PP_REDUCE_GRAD;
    if (t->reduces && used != reduced)
        return wrong(at, used ? "is missing" : "its stage is on another rank");
    return DT_OK;
}

static dt_status check_counts(const dt_pp_schedule *s, tally *t)
{
    DT_TRY(each(s, t, count));
    DT_TRY(complete(s, t));
    for (int r = 0; (t->unshards || t->reduces) && r < s->nranks; r++)
        for (int stage = 0; stage < s->nstages; stage++)
            DT_TRY(stage_order(s, t, r, stage));
    return DT_OK;
}

dt_status dti_pp_check_actions(const dt_pp_schedule *s)
{
    DT_TRY(each(s, NULL, well_formed));
    int64_t actions = 0;
    for (int r = 0; r < s->nranks; r++)
        actions += s->row[r].count;
    const int64_t cells = dti_pp_cell(s, s->nstages, 0);
    DT_REQUIRE(actions > 0 && cells <= actions, DT_ERR_ARG,
               "%lld actions cannot be a schedule of %d stages and %d microbatches",
               (long long)actions, s->nstages, s->nmicrobatches);
    tally t = {0};
    DT_TRY(dti_pp_owners(s, &t.owner));
    t.seen = calloc((size_t)cells + 1, sizeof *t.seen);
    const dt_status st =
        t.seen ? check_counts(s, &t) : DT_ERROR(DT_ERR_NOMEM, "%lld cells", (long long)cells);
    free(t.owner);
    free(t.seen);
    return st;
}

dt_status dt_pp_check(const dt_pp_schedule *s)
{
    dt_pp_timeline *timeline = NULL;
    DT_TRY(dt_pp_simulate(s, &(dt_pp_costs){.synchronous = true}, &timeline));
    dt_pp_timeline_destroy(&timeline);
    return DT_OK;
}
