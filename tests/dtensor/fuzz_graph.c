/* tests/dtensor/fuzz_graph.c - draws a graph: tries ops and keeps what their rules accept.
 * Read first: tests/dtensor/fuzz_ops.c. Read next: tests/dtensor/fuzz_operands.c. */
#include "tests/dtensor/fuzz_internal.h"

enum { TRIES = 40 };

static const dt_status too_large = DT_ERR_UNSUPPORTED; /* to compare; no case, no refusal */

/* ---- values ---- */

dt_status fuzz_new_value(fuzz_gen *d, dt_layout layout, int64_t below, int *out)
{
    fuzz_graph *g = d->g;
    TEST_THAT(g->nvalues < FUZZ_VALUES, "too many values");
    fuzz_value *v = &g->value[g->nvalues];
    *v = (fuzz_value){.shape = layout.shape,
                      .below = below,
                      .leaf = true,
                      .wants_grad = below == 0 && fuzz_chance(&d->r, 90),
                      .parameter = below == 0 && fuzz_chance(&d->r, 30),
                      .seed = fuzz_below(&d->r, 1 << 24)};
    DT_TRY(dt_mesh_layout(d->mesh, &layout, &v->layout));
    *out = g->nvalues++;
    return DT_OK;
}

/* Run a step on the meta mesh. Accepted: its results become values and it joins the graph. */
static dt_status try_step(fuzz_gen *d, fuzz_step *s, const dt_layout *to, dt_status *refused_out)
{
    fuzz_graph *g = d->g;
    fuzz_call c = {.tape = d->tape, .step = s, .to = to};
    dt_tensor *mine[DT_OP_MAX_IN] = {NULL};
    dt_status st = DT_OK;
    for (int i = 0; i < s->nin && st == DT_OK; i++) {
        for (int j = 0; j < i; j++)
            if (s->in[j] == s->in[i])
                c.in[i] = c.in[j];
        if (s->in[i] < 0 || c.in[i])
            continue;
        const fuzz_value *v = &g->value[s->in[i]];
        st = dt_tensor_create(v->layout, v->below ? DT_I32 : DT_F64, DT_TAG_ACTIVATION, &mine[i]);
        c.in[i] = mine[i];
    }
    if (st == DT_OK)
        s->op->call(&c);
    if (st == DT_OK)
        st = dt_tape_status(d->tape);
    *refused_out = st;
    s->out = g->nvalues;
    TEST_THAT(g->nvalues + s->nout <= FUZZ_VALUES && g->nsteps < FUZZ_STEPS, "a large graph");
    for (int j = 0; j < s->nout && st == DT_OK; j++)
        if (dt_shape_count(dt_tensor_shape(c.out[j])) > FUZZ_ELEMENTS)
            *refused_out = st = too_large;
    for (int j = 0; j < s->nout && st == DT_OK; j++)
        g->value[g->nvalues++] =
            (fuzz_value){.shape = dt_tensor_shape(c.out[j]), .layout = dt_tensor_layout(c.out[j])};
    dt_tape_reset(d->tape, NULL);
    for (int i = 0; i < s->nin; i++)
        dt_tensor_destroy(&mine[i]);
    if (st != DT_OK)
        return DT_OK;
    for (int i = 0; i < s->nin; i++)
        if (s->in[i] >= 0)
            g->value[s->in[i]].used = true;
    g->step[g->nsteps++] = *s;
    return DT_OK;
}

/* Steps that no rule refuses; *v becomes the result. */
static dt_status sure_step(fuzz_gen *d, fuzz_step s, const dt_layout *to, int *v)
{
    dt_status refused;
    s.nout = 1;
    DT_TRY(try_step(d, &s, to, &refused));
    DT_TRY(refused);
    *v = s.out;
    return DT_OK;
}

dt_status fuzz_move(fuzz_gen *d, int *v, dt_layout layout)
{
    const dt_layout *to;
    DT_TRY(dt_mesh_layout(d->mesh, &layout, &to));
    DT_TRY(sure_step(d, (fuzz_step){.op = &fuzz_op_redistribute, .nin = 1, .in = {*v}}, to, v));
    return DT_OK;
}

/* ---- graphs ---- */

static bool all_replicated(const fuzz_gen *d, const fuzz_step *s)
{
    for (int i = 0; i < s->nin; i++) {
        const dt_layout *l = d->g->value[s->in[i]].layout;
        const dt_layout r = dt_layout_replicated(l->grid, l->shape);
        if (!dt_layout_equal(l, &r))
            return false;
    }
    return true;
}

/* A loss with a split vocabulary refuses a gradient that is P, so it is mostly redistributed. */
static dt_status mend_loss(fuzz_gen *d, const fuzz_step *s)
{
    int v = s->out;
    if (s->op->split_vocabulary && fuzz_chance(&d->r, 90))
        DT_TRY(fuzz_move(d, &v, *d->g->value[v].layout));
    return DT_OK;
}

/* One op; where its placements are refused, perhaps again with all operands R. */
static dt_status draw_step(fuzz_gen *d, bool *accepted_out)
{
    const int row = fuzz_below(&d->r, d->subject->nrows);
    fuzz_step s = {.op = &d->subject->table[row], .nout = 1};
    fuzz_operands o;
    dt_status refused;
    DT_TRY(fuzz_draw_operands(d, &s, &o));
    if (s.op->draw)
        s.op->draw(&d->r, &s, &o);
    DT_TRY(try_step(d, &s, NULL, &refused));
    if (refused == DT_ERR_PLACEMENT && fuzz_chance(&d->r, 50)) {
        d->stats->refused[row]++;
        for (int i = 0; i < s.nin; i++)
            if (!o.ids[i])
                DT_TRY(fuzz_move(d, &s.in[i],
                                 dt_layout_replicated(dt_mesh_grid(d->mesh), o.shape[i])));
            else
                DT_TRY(fuzz_new_value(d, dt_layout_replicated(dt_mesh_grid(d->mesh), o.shape[i]),
                                      fuzz_ids_below(&o), &s.in[i]));
        DT_TRY(try_step(d, &s, NULL, &refused));
        TEST_THAT(refused != DT_ERR_PLACEMENT, "%s refuses R", s.op->name);
    }
    *accepted_out = refused == DT_OK;
    if (refused == DT_ERR_PLACEMENT)
        d->stats->refused[row]++;
    else if (refused == DT_OK)
        (all_replicated(d, &s) ? d->stats->replicated : d->stats->placed)[row]++;
    TEST_THAT(refused == DT_OK || refused == DT_ERR_PLACEMENT || refused == too_large, "%s %s: %s",
              s.op->name, s.text, dt_error_trace());
    dt_error_clear();
    return *accepted_out ? mend_loss(d, &s) : DT_OK;
}

/* Sum of value v times fixed numbers, placed as gradients of v may be, P among them. */
static dt_status weigh(fuzz_gen *d, int v, int *out)
{
    const dt_layout *layout = d->g->value[v].layout;
    dt_layout dual = dt_layout_dual(layout);
    for (int a = 0; a < dual.grid->naxes; a++)
        if (dt_layout_at(layout, a).kind == DT_REPLICATE && fuzz_chance(&d->r, 30))
            dual.partial = (uint8_t)(dual.partial | 1u << a);
    int c = -1;
    DT_TRY(fuzz_new_value(d, dual, 0, &c));
    d->g->value[c].wants_grad = true; /* so that every graph has a backward */
    DT_TRY(sure_step(d, (fuzz_step){.op = &fuzz_op_mul, .nin = 2, .in = {v, c}}, NULL, out));
    DT_TRY(sure_step(d, (fuzz_step){.op = &fuzz_op_sum, .nin = 1, .in = {*out}}, NULL, out));
    return DT_OK;
}

static dt_status draw_loss(fuzz_gen *d)
{
    const int n = d->g->nvalues;
    int loss = -1, term = -1;
    for (int v = 0; v < n; v++) {
        if (d->g->value[v].used || d->g->value[v].below)
            continue;
        DT_TRY(weigh(d, v, &term));
        if (loss < 0)
            loss = term;
        else
            DT_TRY(sure_step(d, (fuzz_step){.op = &fuzz_op_add, .nin = 2, .in = {loss, term}}, NULL,
                             &loss));
    }
    d->g->loss = loss;
    return DT_OK;
}

dt_status fuzz_draw(dt_mesh *meta, const fuzz_subject *subject, uint64_t seed, fuzz_graph *g,
                    fuzz_stats *stats)
{
    fuzz_gen d = {.r = {seed}, .g = g, .subject = subject, .stats = stats, .mesh = meta};
    *g = (fuzz_graph){.seed = seed, .two_walks = fuzz_chance(&d.r, 30)};
    DT_TRY(dt_tape_create(meta, NULL, &d.tape));
    dt_status st = DT_OK;
    bool accepted;
    for (int want = 3 + fuzz_below(&d.r, 8), tries = 0; want > 0 && tries < TRIES; tries++) {
        DT_TRY_TO(done, st, draw_step(&d, &accepted));
        want -= accepted;
    }
    DT_TRY_TO(done, st, draw_loss(&d));
done:
    dt_tape_destroy(&d.tape);
    return st;
}
