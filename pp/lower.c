/* pp/lower.c - from a schedule of computations to one of everything a rank does. Read first:
 * pp/simulate.c, whose times say when a message can leave. Read next: pp/check.c. */
#include "pp/pp_internal.h"

#include <stdlib.h>

void dt_pp_merge(dt_pp_schedule *s)
{
    for (int r = 0; r < s->nranks; r++) {
        dt_pp_row *row = &s->row[r];
        int64_t n = 0;
        for (int64_t i = 0; i < row->count; i++) {
            const dt_pp_action a = row->action[i], *last = n > 0 ? &row->action[n - 1] : NULL;
            const bool in_pair = n > 1 && row->action[n - 2].paired;
            if (last && !in_pair && a.kind == DT_PP_W && last->kind == DT_PP_I &&
                a.stage == last->stage && a.microbatch == last->microbatch)
                row->action[n - 1].kind = DT_PP_B;
            else
                row->action[n++] = a;
        }
        row->count = n;
    }
}

/* The next stages, `most` at most, that the row computes with from position i on. Returns how
 * many. */
static int next_stages(const dt_pp_row *row, int64_t i, int most, int *stages)
{
    int n = 0;
    for (; i < row->count && n < most; i++) {
        int k = 0;
        while (k < n && stages[k] != row->action[i].stage)
            k++;
        stages[k] = row->action[i].stage;
        n += k == n;
    }
    return n;
}

static bool contains(const int *list, int n, int value)
{
    for (int i = 0; i < n; i++)
        if (list[i] == value)
            return true;
    return false;
}

/* RESHARD what is whole and not wanted, UNSHARD what is wanted and not whole. */
static dt_status shard_steps(dt_pp_row *out, int *whole, int *nwhole, const int *wanted,
                             int nwanted)
{
    for (int i = 0; i < *nwhole; i++)
        if (!contains(wanted, nwanted, whole[i]))
            DT_TRY(dti_pp_push(out, (dt_pp_action){DT_PP_RESHARD, whole[i], -1, false}));
    for (int i = 0; i < nwanted; i++)
        if (!contains(whole, *nwhole, wanted[i]))
            DT_TRY(dti_pp_push(out, (dt_pp_action){DT_PP_UNSHARD, wanted[i], -1, false}));
    for (int i = 0; i < nwanted; i++)
        whole[i] = wanted[i];
    *nwhole = nwanted;
    return DT_OK;
}

static bool backward_ends(dt_pp_kind kind)
{
    return kind == DT_PP_W || kind == DT_PP_B;
}

static bool last_of_stage(const dt_pp_row *row, int64_t i)
{
    for (int64_t j = i + 1; j < row->count; j++)
        if (row->action[j].stage == row->action[i].stage && backward_ends(row->action[j].kind))
            return false;
    return true;
}

/* Copy a row with the steps on whole stages. `lists` has room for twice max_unsharded. */
static dt_status add_stage_steps(const dt_pp_row *row, int max_unsharded, int *lists,
                                 dt_pp_row *out)
{
    int nwhole = 0, *const whole = lists, *const wanted = lists + max_unsharded;
    for (int64_t i = 0; i < row->count; i++) {
        const dt_pp_action a = row->action[i];
        const bool second = i > 0 && row->action[i - 1].paired; /* nothing comes into a pair */
        if (max_unsharded > 0 && !second)
            DT_TRY(shard_steps(out, whole, &nwhole, wanted,
                               next_stages(row, i, max_unsharded, wanted)));
        DT_TRY(dti_pp_push(out, a));
        if (backward_ends(a.kind) && last_of_stage(row, i))
            DT_TRY(dti_pp_push(out, (dt_pp_action){DT_PP_REDUCE_GRAD, a.stage, -1, false}));
    }
    return shard_steps(out, whole, &nwhole, NULL, 0);
}

/* The sends of a rank's last action (two, if that was a pair), which leave at its end. */
typedef struct outbox {
    dt_pp_action send[2];
    int count;
    double at;
} outbox;

static void post(const dt_pp_schedule *s, const int *owner, int rank, dt_pp_action a, outbox *box)
{
    const bool forward = a.kind == DT_PP_F;
    if (!forward && a.kind != DT_PP_I && a.kind != DT_PP_B)
        return;
    const dt_pp_action send = {forward ? DT_PP_SEND_F : DT_PP_SEND_B, a.stage, a.microbatch, false};
    const int to = dti_pp_neighbour(s, send);
    if (to >= 0 && owner[dti_pp_cell(s, to, a.microbatch)] != rank)
        box->send[box->count++] = send;
}

/* Put sends that leave by `now` and their receives into the rows. */
static dt_status flush(const dt_pp_schedule *s, const int *owner, outbox *boxes, double now,
                       dt_pp_schedule *out)
{
    for (int r = 0; r < s->nranks; r++) {
        for (int i = 0; boxes[r].at <= now && i < boxes[r].count; i++) {
            const dt_pp_action send = boxes[r].send[i];
            const int to = dti_pp_neighbour(s, send), k = send.microbatch;
            const dt_pp_kind kind = send.kind == DT_PP_SEND_F ? DT_PP_RECV_F : DT_PP_RECV_B;
            DT_TRY(dti_pp_push(&out->row[r], send));
            DT_TRY(dti_pp_push(&out->row[owner[dti_pp_cell(s, to, k)]],
                               (dt_pp_action){kind, to, k, false}));
        }
        boxes[r].count = boxes[r].at <= now ? 0 : boxes[r].count;
    }
    return DT_OK;
}

/* The rank whose next action starts first; -1: all rows are at their end. */
static int next_rank(const dt_pp_schedule *s, const dt_pp_timeline *t, const int64_t *at)
{
    int best = -1;
    for (int r = 0; r < s->nranks; r++)
        if (at[r] < s->row[r].count &&
            (best < 0 || t->lane[r].start[at[r]] < t->lane[best].start[at[best]]))
            best = r;
    return best;
}

/* Rank `r`'s next action, with those paired to it; what they send goes into its outbox. */
static dt_status take(const dt_pp_schedule *s, const int *owner, int r, int64_t *at, outbox *box,
                      dt_pp_schedule *out)
{
    for (bool more = true; more; (*at)++) {
        const dt_pp_action a = s->row[r].action[*at];
        DT_TRY(dti_pp_push(&out->row[r], a));
        post(s, owner, r, a, box);
        more = a.paired;
    }
    return DT_OK;
}

/* Copy all rows in order of time, with messages. Every action is needed by another only at or after
 * its end, when its send has been put into both rows. */
static dt_status add_messages(const dt_pp_schedule *s, const dt_pp_timeline *t, const int *owner,
                              dt_pp_schedule *out)
{
    dt_status st = DT_OK;
    int64_t *at = calloc((size_t)s->nranks, sizeof *at);
    outbox *boxes = calloc((size_t)s->nranks, sizeof *boxes);
    if (!at || !boxes)
        st = DT_ERROR(DT_ERR_NOMEM, "%d ranks", s->nranks);
    for (int r; st == DT_OK && (r = next_rank(s, t, at)) >= 0;) {
        DT_TRY_TO(done, st, flush(s, owner, boxes, t->lane[r].start[at[r]], out));
        boxes[r].at = t->lane[r].end[at[r]];
        DT_TRY_TO(done, st, take(s, owner, r, &at[r], &boxes[r], out));
    }
done:
    free(at);
    free(boxes);
    return st;
}

dt_status dt_pp_lower(const dt_pp_schedule *s, int max_unsharded, dt_pp_schedule **lowered_out)
{
    DT_REQUIRE(max_unsharded == 0 || (max_unsharded >= 2 && max_unsharded <= 1024), DT_ERR_ARG,
               "max_unsharded=%d; legal: 0 (no such actions), 2..1024", max_unsharded);
    for (int r = 0; r < s->nranks; r++)
        for (int64_t i = 0; i < s->row[r].count; i++)
            DT_REQUIRE(dti_pp_computes(s->row[r].action[i].kind), DT_ERR_ARG,
                       "rank %d, position %lld: the schedule is lowered already", r, (long long)i);
    DT_TRY(dt_pp_check(s)); /* while positions are the caller's */
    dt_pp_schedule *staged = NULL, *out = NULL;
    dt_pp_timeline *timeline = NULL;
    int *owner = NULL, *lists = calloc(2 * (size_t)max_unsharded + 1, sizeof *lists);
    dt_status st = lists ? DT_OK : DT_ERROR(DT_ERR_NOMEM, "%d stages", max_unsharded);
    if (st == DT_OK)
        st = dti_pp_schedule_new(s->nranks, s->nstages, s->nmicrobatches, 0, &staged);
    for (int r = 0; st == DT_OK && r < s->nranks; r++)
        st = add_stage_steps(&s->row[r], max_unsharded, lists, &staged->row[r]);
    DT_TRY_TO(done, st, st);
    /* Pairs as one action, so that their sends come after both. */
    DT_TRY_TO(done, st,
              dt_pp_simulate(staged, &(dt_pp_costs){.f = 1, .i = 1, .w = 1, .pair = 3}, &timeline));
    DT_TRY_TO(done, st, dti_pp_owners(s, &owner));
    DT_TRY_TO(done, st, dti_pp_schedule_new(s->nranks, s->nstages, s->nmicrobatches, 0, &out));
    DT_TRY_TO(done, st, add_messages(staged, timeline, owner, out));
    *lowered_out = out;
    out = NULL;
done:
    dt_pp_schedule_destroy(&staged);
    dt_pp_schedule_destroy(&out);
    dt_pp_timeline_destroy(&timeline);
    free(owner);
    free(lists);
    return st;
}
