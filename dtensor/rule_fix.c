/* dtensor/rule_fix.c - what would mend a refused application of an op, and what it would cost.
 * Read first: dtensor/dt_rule.h, placements/dt_plan.h.
 *
 * A change gives one operand another placement on one axis. All changes are tried, then, if none
 * is accepted, all pairs. Each is priced as the redistribute that the user would write: its plan
 * forward, and backward the plan of its adjoint from where the gradient then arises. */
#include "dtensor/dtensor_internal.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { MAX_CHANGES = 2, MAX_PROPOSALS = 2 };

typedef struct change {
    int operand, axis;
    dt_layout after; /* of the operand */
} change;

typedef struct proposal {
    int n;
    change change[MAX_CHANGES];
    double cost_s; /* forward and backward */
} proposal;

typedef struct search {
    const dt_rule *r;
    dt_infer infer;
    const char *spec;
    size_t elem_bytes;
    int found;
    proposal best[MAX_PROPOSALS]; /* cheapest first, each changing other operands */
} search;

/* ---- prices ---- */

/* The layouts between which the adjoint of a redistribute src -> dst moves a gradient that arose
 * as g: the dual of src on the axes that change; P on other axes passes through. */
static dt_layout adjoint_target(const dt_layout *src, const dt_layout *dst, const dt_layout *g)
{
    dt_layout target = dt_layout_dual(src);
    for (int a = 0; a < src->grid->naxes; a++) {
        const dt_placement p = dt_layout_at(src, a), q = dt_layout_at(dst, a);
        if (p.kind == q.kind && p.dim == q.dim)
            target.partial |= (uint8_t)(g->partial & 1u << a);
    }
    return target;
}

/* Plans of the redistribute of operand i of the accepted application r. */
static dt_status plan_both(const search *s, const dt_rule *r, int i, dt_plan **forward_out,
                           dt_plan **backward_out)
{
    const dt_layout *src = s->r->in[i], *dst = r->in[i], dy = dt_layout_dual(&r->out[0]);
    dt_layout g = dt_rule_grad(dst, r->zeroed[i], &r->out[0], &dy);
    g.partial |= r->summed[i];
    const dt_layout home = s->r->no_grad >> i & 1 ? g : adjoint_target(src, dst, &g);
    dt_plan *forward = NULL;
    DT_TRY(dt_plan_create(src, dst, s->elem_bytes, NULL, &forward));
    const dt_status st = dt_plan_create(&g, &home, s->elem_bytes, NULL, backward_out);
    if (st != DT_OK) {
        dt_plan_destroy(&forward);
        return dt_error_push(st, __FILE__, __LINE__, __func__);
    }
    *forward_out = forward;
    return DT_OK;
}

/* ---- the search ---- */

/* The application with a proposal's changes made; layouts live in `in`. */
static dt_rule changed(const search *s, const proposal *p, dt_layout in[MAX_CHANGES])
{
    dt_rule r = *s->r;
    for (int k = 0; k < p->n; k++) {
        in[k] = p->change[k].after;
        r.in[p->change[k].operand] = &in[k];
    }
    return r;
}

static unsigned operands(const proposal *p)
{
    unsigned bits = 0;
    for (int k = 0; k < p->n; k++)
        bits |= 1u << p->change[k].operand;
    return bits;
}

static void keep(search *s, const proposal *p)
{
    int at = 0;
    while (at < s->found && s->best[at].cost_s <= p->cost_s) {
        if (operands(&s->best[at]) == operands(p))
            return;
        at++;
    }
    if (at == MAX_PROPOSALS)
        return;
    int last = at; /* the one that goes: dearer and of the same operands, else the last */
    while (last < s->found && operands(&s->best[last]) != operands(p))
        last++;
    if (last == s->found && s->found < MAX_PROPOSALS)
        s->found++;
    last = last < MAX_PROPOSALS ? last : MAX_PROPOSALS - 1;
    memmove(&s->best[at + 1], &s->best[at], (size_t)(last - at) * sizeof *p);
    s->best[at] = *p;
}

static dt_status try_proposal(search *s, proposal p)
{
    dt_layout in[MAX_CHANGES];
    dt_rule r = changed(s, &p, in);
    if (dti_rule_infer(&r, s->infer, s->spec) != DT_OK)
        return DT_OK;
    p.cost_s = 0;
    for (int k = 0; k < p.n; k++) {
        dt_plan *forward, *backward;
        if (k + 1 < p.n && p.change[k + 1].operand == p.change[k].operand)
            continue; /* two axes of one operand: one redistribute */
        DT_TRY(plan_both(s, &r, p.change[k].operand, &forward, &backward));
        p.cost_s += forward->cost_s + backward->cost_s;
        dt_plan_destroy(&forward);
        dt_plan_destroy(&backward);
    }
    keep(s, &p);
    return DT_OK;
}

/* The k-th placement for an operand on an axis: R, then S(d) at every depth of the nest of d.
 * False past the last. P is not proposed: it is free to make, but every rank then computes on
 * zeros and the parts wait for a sum. */
static bool nth_change(const dt_layout *before, int axis, int k, dt_layout *after)
{
    *after = *before;
    dt_layout_clear(after, axis);
    if (k-- == 0)
        return true;
    for (int d = 0; d < before->shape.ndim; d++) {
        const int depths = after->nsplit[d] + 1;
        if (k >= depths) {
            k -= depths;
            continue;
        }
        uint8_t *nest = after->split[d];
        memmove(&nest[k + 1], &nest[k], (size_t)(depths - 1 - k));
        nest[k] = (uint8_t)axis;
        after->nsplit[d]++;
        return true;
    }
    return false;
}

static dt_status try_changes(search *s, proposal p, int deeper);

/* The last change of p, in all ways from `before` on. */
static dt_status try_last(search *s, proposal p, const dt_layout *before, int deeper)
{
    change *c = &p.change[p.n - 1];
    for (int k = 0; nth_change(before, c->axis, k, &c->after); k++) {
        if (!dt_layout_equal(before, &c->after))
            DT_TRY(deeper ? try_changes(s, p, deeper - 1) : try_proposal(s, p));
    }
    return DT_OK;
}

/* Tries p with one change more, in all ways; `deeper`: instead tries each of those with yet one
 * more. */
static dt_status try_changes(search *s, proposal p, int deeper)
{
    const int mine = p.n++;
    change *c = &p.change[mine];
    for (int i = 0; i < s->r->nin; i++) {
        for (int a = 0; s->r->in[i] && a < s->r->in[i]->grid->naxes; a++) {
            if (mine > 0 && (i < c[-1].operand || (i == c[-1].operand && a <= c[-1].axis)))
                continue; /* each pair once */
            const bool again = mine > 0 && i == c[-1].operand;
            const dt_layout before = again ? c[-1].after : *s->r->in[i];
            *c = (change){.operand = i, .axis = a};
            DT_TRY(try_last(s, p, &before, deeper));
        }
    }
    return DT_OK;
}

/* ---- the text ---- */

typedef struct text {
    char *buf;
    size_t size_bytes, used;
} text;

DT_PRINTF(2, 3)
static void append(text *t, const char *format, ...)
{
    if (t->used >= t->size_bytes)
        return;
    va_list args;
    va_start(args, format);
    const int n = vsnprintf(t->buf + t->used, t->size_bytes - t->used, format, args);
    va_end(args);
    t->used += n > 0 ? (size_t)n : 0;
}

/* "all-gather + all-reduce 1.0 MB", "0 bytes" */
static void append_price(text *t, const dt_plan *plan)
{
    static const char *const unit[] = {"bytes", "kB", "MB", "GB", "TB", "PB"};
    const char *between = "";
    for (int i = 0; i < plan->nsteps; i++) {
        if (!dt_step_moves(plan->step[i].kind))
            continue;
        append(t, "%s%s", between, dt_step_name(plan->step[i].kind));
        between = " + ";
    }
    double value = (double)plan->bytes;
    int u = 0;
    for (; value >= 999.95 && u < DT_COUNT(unit) - 1; u++)
        value /= 1e3;
    append(t, "%s%.*f %s", *between ? " " : "", u ? 1 : 0, value, unit[u]);
}

/* "S(1)", with the whole nest where other axes shard the dim too: "S(1)@tp>dp" */
static void append_placement(text *t, const dt_layout *layout, int axis)
{
    const dt_placement p = dt_layout_at(layout, axis);
    if (p.kind != DT_SHARD) {
        append(t, "%s", p.kind == DT_PARTIAL ? "P" : "R");
        return;
    }
    append(t, "S(%d)", p.dim);
    for (int k = 0; k < layout->nsplit[p.dim] && layout->nsplit[p.dim] > 1; k++)
        append(t, "%s%s", k ? ">" : "@", layout->grid->name[layout->split[p.dim][k]]);
}

static dt_status append_change(text *t, const search *s, const proposal *p, int k)
{
    const change *c = &p->change[k];
    const bool again = k > 0 && p->change[k - 1].operand == c->operand;
    dt_layout in[MAX_CHANGES];
    dt_rule r = changed(s, p, in);
    dt_plan *forward, *backward;
    append(t, "operand %d ", c->operand);
    append_placement(t, again ? &p->change[k - 1].after : s->r->in[c->operand], c->axis);
    append(t, " -> ");
    append_placement(t, &c->after, c->axis);
    append(t, " on %s", s->r->in[c->operand]->grid->name[c->axis]);
    if (k + 1 < p->n && p->change[k + 1].operand == c->operand)
        return DT_OK; /* priced with the next */
    DT_TRY(dti_rule_infer(&r, s->infer, s->spec));
    DT_TRY(plan_both(s, &r, c->operand, &forward, &backward));
    append(t, " (forward ");
    append_price(t, forward);
    append(t, ", backward ");
    append_price(t, backward);
    append(t, ")");
    dt_plan_destroy(&forward);
    dt_plan_destroy(&backward);
    return DT_OK;
}

dt_status dti_rule_explain_fix(const dt_rule *r, dt_infer infer, const char *spec,
                               size_t elem_bytes, char *buf, size_t size_bytes)
{
    search s = {.r = r, .infer = infer, .spec = spec, .elem_bytes = elem_bytes};
    text t = {.buf = buf, .size_bytes = size_bytes};
    append(&t, "%s", "");
    for (int changes = 1; changes <= MAX_CHANGES && s.found == 0; changes++)
        DT_TRY(try_changes(&s, (proposal){.n = 0}, changes - 1));
    for (int i = 0; i < s.found; i++) {
        append(&t, "%s", i ? " or " : "redistribute ");
        for (int k = 0; k < s.best[i].n; k++) {
            append(&t, "%s", k ? " and " : "");
            DT_TRY(append_change(&t, &s, &s.best[i], k));
        }
    }
    dt_rule again = *r; /* for the trace, which the trials have overwritten */
    const dt_status st = dti_rule_infer(&again, infer, spec);
    DT_REQUIRE(st != DT_OK, DT_ERR_STATE, "%s: this application is accepted", r->name);
    return DT_OK;
}
