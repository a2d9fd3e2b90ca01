/* pp/generate_v.c - schedules whose ranks hold two stages: in a V (rank r: stages r and 2p - 1 - r,
 * so that the turn and the loss need no message), or for DualPipe from both ends. Chunk 0 is the
 * stage that comes first on the way forward. Read first: pp/generate.c.
 *
 * Sources: Qi et al. 2024, "Zero Bubble" (ZBV) and "Pipeline Parallelism with Controllable Memory"
 * (V-Half, V-Min); DeepSeek-AI 2024, DualPipe and DualPipeV. */
#include "pp/generate_internal.h"

#include <stdlib.h>
#include <string.h>

/* A rank with two stages: what it did so far of each. */
typedef struct two_stages {
    dti_pp_shape g;
    dt_pp_row *row;
    int stage[2], first[2]; /* number, first microbatch */
    int f[2], b[2];         /* forwards and backwards so far */
    int64_t w;              /* Is before this position have their W */
} two_stages;

static void forward(two_stages *t, int chunk)
{
    dti_pp_put(t->g, t->row, DT_PP_F, t->stage[chunk], t->first[chunk] + t->f[chunk]++);
}

static void backward(two_stages *t, int chunk, dt_pp_kind kind)
{
    dti_pp_put(t->g, t->row, kind, t->stage[chunk], t->first[chunk] + t->b[chunk]++);
}

/* The W of the oldest I that has none; nothing if there is none. */
static void weight(two_stages *t)
{
    while (t->w < t->row->count && t->row->action[t->w].kind != DT_PP_I)
        t->w++;
    if (t->w == t->row->count)
        return;
    const dt_pp_action i = t->row->action[t->w++];
    dti_pp_put(t->g, t->row, DT_PP_W, i.stage, i.microbatch);
}

static void backward_whole(two_stages *t, int chunk)
{
    backward(t, chunk, DT_PP_I);
    weight(t);
}

/* Written for at least 2p - 1 microbatches, which fill the pipeline. */
void dti_pp_zbv(dti_pp_shape g, int rank, dt_pp_row *row)
{
    const int m = g.m > 2 * g.p - 1 ? g.m : 2 * g.p - 1;
    two_stages t = {.g = g, .row = row, .stage = {rank, 2 * g.p - 1 - rank}};
    for (int i = 0; i < 2 * (g.p - rank) - 1; i++)
        forward(&t, 0);
    for (int i = 0; i < rank; i++) {
        forward(&t, 1);
        forward(&t, 0);
    }
    for (int i = 0; i < g.p - rank; i++) {
        forward(&t, 1);
        backward_whole(&t, 1);
    }
    while (t.f[1] < t.f[0] || t.f[0] < m) {
        if (t.f[0] < m)
            forward(&t, 0);
        backward_whole(&t, 0);
        forward(&t, 1);
        backward_whole(&t, 1);
    }
    for (int i = 0; i < rank; i++) {
        backward(&t, 0, DT_PP_I);
        backward(&t, 1, DT_PP_I);
    }
    for (int i = 0; i < g.p - rank; i++) {
        backward(&t, 0, DT_PP_I);
        weight(&t);
    }
    for (int i = 0; i < g.p + rank; i++) /* as many Is as Ws are now missing */
        weight(&t);
}

static void pair(two_stages *t, int f_chunk, int b_chunk)
{
    forward(t, f_chunk);
    t->row->action[t->row->count - 1].paired = true;
    backward(t, b_chunk, DT_PP_B);
}

/* DeepSeek's eight steps, for n microbatches through chunk 0 on the `rank`-th of `half` ranks from
 * the end where they enter. Chunk 1 turns first, being nearer to the loss. */
static void dual(two_stages *t, int half, int rank, int n)
{
    const int out = half - 1 - rank; /* ranks between this one and the turn */
    for (int i = 0; i < 2 * out; i++)
        forward(t, 0);
    for (int i = 0; i <= rank; i++) {
        forward(t, 0);
        forward(t, 1);
    }
    for (int i = 0; i < out; i++) {
        backward_whole(t, 1);
        forward(t, 1);
    }
    for (int i = 0; i < n - 2 * half + rank + 1; i++) {
        pair(t, 0, 1);
        if (i == 0 && out == 0) /* apart, its F leaves sooner */
            t->row->action[t->row->count - 2].paired = false;
        pair(t, 1, 0);
    }
    for (int i = 0; i < out; i++) {
        backward(t, 1, DT_PP_B);
        pair(t, 1, 0);
    }
    const int split =
        rank + 1; /* of 2 (rank + 1) backwards, the first that leaves its W for later */
    for (int i = 0; i < 2 * (rank + 1); i++)
        backward(t, 1 - i % 2, i < split ? DT_PP_B : DT_PP_I);
    for (int i = 0; i < out; i++) {
        weight(t);
        backward(t, 0, DT_PP_I);
    }
    for (int i = 0; i <= rank; i++)
        weight(t);
}

void dti_pp_dualpipev(dti_pp_shape g, int rank, dt_pp_row *row)
{
    two_stages t = {.g = g, .row = row, .stage = {rank, 2 * g.p - 1 - rank}};
    dual(&t, g.p, rank, g.m);
}

/* The first half of the microbatches enters at rank 0, the second at rank p - 1. */
void dti_pp_dualpipe(dti_pp_shape g, int rank, dt_pp_row *row)
{
    const int far = g.p - 1 - rank, n = g.m / 2;
    two_stages t = {.g = g, .row = row, .stage = {rank, far}, .first = {0, n}};
    if (far < rank)
        t = (two_stages){.g = g, .row = row, .stage = {far, rank}, .first = {n, 0}};
    dual(&t, g.p / 2, rank < far ? rank : far, n);
}

/* V-Half and V-Min repeat a block of six slots: F0 F1 I1 I0 of microbatch k start at slots
 * offset[0..3] + 6k, the Ws take the two that are left. Here time is squeezed out of that: each
 * rank runs its next action in this order as soon as it can, and a W when it cannot. */
typedef struct pattern {
    int offset[4];
    int next[4];       /* microbatches begun */
    int live, pending; /* forwards without their W; of these, with their I */
    two_stages t;
} pattern;

/* The action that follows in the pattern, 0..3; 4: none. */
static int follows(const pattern *a, int m)
{
    int best = 4;
    for (int j = 0; j < 4; j++)
        if (a->next[j] < m &&
            (best == 4 || a->offset[j] + 6 * a->next[j] < a->offset[best] + 6 * a->next[best]))
            best = j;
    return best;
}

static int stage_of(const pattern *a, int j)
{
    return a->t.stage[j == 1 || j == 2];
}

/* done[0] and done[1]: microbatches each stage has forward and backward. */
static bool ready(const pattern *a, int j, const int *const done[2], int last_stage)
{
    const int s = stage_of(a, j), k = a->next[j];
    if (j < 2)
        return s == 0 || done[0][s - 1] > k;
    return done[0][s] > k && (s == last_stage || done[1][s + 1] > k);
}

/* What rank a does now: 0..3, 4 for a W, 5 for nothing. At most `cap` forwards are live. With
 * `swap` the action after the next may go before it. */
static int choose(const pattern *a, dti_pp_shape g, int cap, bool swap, const int *const done[2])
{
    const int j = follows(a, g.m), last_stage = 2 * g.p - 1;
    if (j < 4 && ready(a, j, done, last_stage) && (j >= 2 || a->live < cap))
        return j;
    if (swap && j < 4) {
        pattern after = *a;
        after.next[j]++;
        const int i = follows(&after, g.m);
        if (i < 4 && i != j && (i >= 2 || a->live < cap) && ready(a, i, done, last_stage))
            return i;
    }
    return a->pending > 0 ? 4 : 5;
}

static void act(pattern *a, int j)
{
    if (j < 2)
        forward(&a->t, j);
    else if (j < 4)
        backward(&a->t, j == 2, DT_PP_I);
    else if (j == 4)
        weight(&a->t);
    if (j < 4)
        a->next[j]++;
    a->live += (j < 2) - (j == 4);
    a->pending += (j == 2 || j == 3) - (j == 4);
}

static dt_status squeeze(dti_pp_shape g, pattern *ranks, int cap, bool swap)
{
    int *done = calloc(4 * (size_t)g.p, sizeof *done),
        *chosen = calloc((size_t)g.p, sizeof *chosen);
    const int *const view[2] = {done, done ? done + 2 * g.p : NULL};
    dt_status st = done && chosen ? DT_OK : DT_ERROR(DT_ERR_NOMEM, "%d ranks", g.p);
    for (int64_t left = (int64_t)6 * g.p * g.m, before = left + 1; st == DT_OK && left > 0;) {
        assert(left < before); /* the pattern never waits for itself */
        before = left;
        for (int r = 0; r < g.p; r++) /* all ranks look before any acts: actions take one slot */
            chosen[r] = choose(&ranks[r], g, cap, swap, view);
        for (int r = 0; r < g.p; r++) {
            const int j = chosen[r];
            left -= j < 5;
            if (j < 4)
                done[(j < 2 ? 0 : 2 * g.p) + stage_of(&ranks[r], j)]++;
            act(&ranks[r], j);
        }
    }
    free(done);
    free(chosen);
    return st;
}

static dt_status v_pattern(dti_pp_shape g, dt_pp_row *rows, bool half)
{
    pattern *ranks = calloc((size_t)g.p, sizeof *ranks);
    DT_REQUIRE(ranks, DT_ERR_NOMEM, "%d ranks", g.p);
    const int p = g.p, q = half ? (p % 2 ? 0 : 3) : (p % 3 ? 0 : 2);
    for (int r = 0; r < p; r++) {
        const int for_half[4] = {2 * r, 3 * p - r - 2, 3 * p + q + 2 * r - 1, 6 * p + q - r - 2};
        const int for_min[4] = {r, 2 * p - r - 1, 2 * p + q + r, 4 * p + q - r - 1};
        ranks[r].t = (two_stages){.g = g, .row = &rows[r], .stage = {r, 2 * p - 1 - r}};
        memcpy(ranks[r].offset, half ? for_half : for_min, sizeof for_half);
    }
    const int cap = half ? (p + 1) / 2 * 2 + 2 : (p + 4) / 3 * 2;
    const dt_status st = squeeze(g, ranks, cap, half);
    free(ranks);
    return st;
}

dt_status dti_pp_v_half(dti_pp_shape g, dt_pp_row *rows)
{
    return v_pattern(g, rows, true);
}

dt_status dti_pp_v_min(dti_pp_shape g, dt_pp_row *rows)
{
    return v_pattern(g, rows, false);
}
