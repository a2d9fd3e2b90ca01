/* dtensor/rule.c - the placement rules in letters: infer per mesh axis, place gradients.
 * Read first: dtensor/dt_rule.h, dtensor/rule_words.c (a spec as letters). Read next:
 * dtensor/rule_fix.c (what would mend a refusal), dtensor/rule_print.c (the table). A miss of
 * the caller's cache comes here, so nothing allocates. */
#include "dtensor/dtensor_internal.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

/* Where a letter was met first: operand (-1: nowhere) and dim. */
typedef struct place {
    int8_t operand, dim;
} place;

typedef struct inference {
    const dt_rule *r;
    const dt_layout *in[DT_OP_MAX_IN]; /* as inference sees them; NULL: left out */
    const char *loose;
    place first['z' + 1]; /* by letter */
    dt_layout out;
    uint8_t zeroed[DT_OP_MAX_IN];
} inference;

/* The operands on one axis. */
typedef struct line {
    const dti_words *s;
    int axis;
    dt_placement at[DT_OP_MAX_IN];
} line;

static const char *axis_name(const inference *f, int axis)
{
    return f->out.grid->name[axis];
}

/* ---- one axis ---- */

static const char *find(const char *letters, char c)
{
    return letters ? strchr(letters, c) : NULL;
}

/* Refusal: operand i must be S at letter l (or R where it lacks l), as operand `lead` is sharded
 * on l. */
static dt_status refuse(const inference *f, const line *x, int i, int lead, char l)
{
    char want[24] = "R", a[DTI_OPERAND_TEXT], b[DTI_OPERAND_TEXT];
    const char *here = find(x->s->in[i], l);
    if (here)
        (void)snprintf(want, sizeof want, "S(%d)", (int)(here - x->s->in[i]));
    return DT_ERROR(DT_ERR_PLACEMENT, "%s: on %s: %s must be %s, as %s is sharded on dim %d",
                    f->r->name, axis_name(f, x->axis), dti_rule_describe(f->r, i, a), want,
                    dti_rule_describe(f->r, lead, b), x->at[lead].dim);
}

static char letter_at(const line *x, int i)
{
    return x->s->in[i][x->at[i].dim];
}

/* Rule 2 in one term: every operand with the letter is sharded on it, the others are R. */
static dt_status sharded_term(const inference *f, const line *x, int term, int lead)
{
    const char l = letter_at(x, lead);
    char a[DTI_OPERAND_TEXT];
    DT_REQUIRE(!isupper((unsigned char)l), DT_ERR_PLACEMENT,
               "%s: on %s: dim %d of %s may not be sharded", f->r->name, axis_name(f, x->axis),
               x->at[lead].dim, dti_rule_describe(f->r, lead, a));
    for (int i = 0; i < f->r->nin; i++) {
        if (!f->in[i] || x->s->term[i] != term)
            continue;
        const bool sharded = x->at[i].kind == DT_SHARD && letter_at(x, i) == l;
        if (find(x->s->in[i], l) ? !sharded : x->at[i].kind != DT_REPLICATE)
            return refuse(f, x, i, lead, l);
    }
    return DT_OK;
}

/* Rules 1, 2, 3, 5 for one term: its result is 'R', 'P', or the letter of the output on which it
 * is sharded (never upper case); 0 if all its operands were left out. lead: the operand that
 * decided. */
static dt_status infer_term(const inference *f, const line *x, int term, char *result, int *lead)
{
    int shard = -1, part = -1;
    char a[DTI_OPERAND_TEXT], b[DTI_OPERAND_TEXT];
    *result = 0;
    for (int i = 0; i < f->r->nin; i++) {
        if (!f->in[i] || x->s->term[i] != term)
            continue;
        *result = 'R';
        if (x->at[i].kind == DT_SHARD && shard < 0)
            shard = i;
        if (x->at[i].kind != DT_PARTIAL)
            continue;
        DT_REQUIRE(part < 0, DT_ERR_PLACEMENT,
                   "%s: on %s: %s and %s are both P: a product of two sums; one must be R",
                   f->r->name, axis_name(f, x->axis), dti_rule_describe(f->r, part, a),
                   dti_rule_describe(f->r, i, b));
        part = i;
    }
    *lead = shard >= 0 ? shard : part;
    if (shard >= 0) {
        DT_TRY(sharded_term(f, x, term, shard));
        *result = find(x->s->out, letter_at(x, shard)) ? letter_at(x, shard) : 'P';
    } else if (part >= 0) {
        DT_REQUIRE(f->r->linear >> part & 1, DT_ERR_PLACEMENT,
                   "%s: on %s: %s is P, but the op is not linear in it: it must be R or sharded",
                   f->r->name, axis_name(f, x->axis), dti_rule_describe(f->r, part, a));
        *result = 'P';
    }
    return DT_OK;
}

/* The result of one term is l: those of terms with l are l too, of the others R. */
static dt_status same_letter(const inference *f, const line *x, const char *result, int lead,
                             char l)
{
    for (int i = 0; i < f->r->nin; i++) {
        if (!f->in[i])
            continue;
        const char got = result[x->s->term[i]];
        if (find(x->s->in[i], l) ? got != l : got != l && x->at[i].kind != DT_REPLICATE)
            return refuse(f, x, i, lead, l);
    }
    return DT_OK;
}

static dt_status infer_axis(inference *f, const dti_words *s, int axis)
{
    line x = {.s = s, .axis = axis};
    char result[DT_OP_MAX_IN], l = 0;
    int lead[DT_OP_MAX_IN], first = 0;
    bool partial = false;
    for (int i = 0; i < f->r->nin; i++) {
        if (f->in[i])
            x.at[i] = dt_layout_at(f->in[i], axis);
    }
    for (int t = 0; t < s->nterms; t++) {
        DT_TRY(infer_term(f, &x, t, &result[t], &lead[t]));
        partial |= result[t] == 'P';
        if (!l && result[t] && !isupper((unsigned char)result[t])) {
            l = result[t];
            first = lead[t];
        }
    }
    if (l)
        return same_letter(f, &x, result, first, l);
    if (!partial)
        return DT_OK;
    f->out.partial |= (uint8_t)(1u << axis);
    for (int i = 0; i < f->r->nin; i++) {
        if (f->in[i] && result[s->term[i]] == 'R') /* rule 4 */
            f->zeroed[i] |= (uint8_t)(1u << axis);
    }
    return DT_OK;
}

/* ---- all axes: sizes and orders ---- */

static bool same_split(const dt_layout *a, int da, const dt_layout *b, int db)
{
    return a->nsplit[da] == b->nsplit[db] && !memcmp(a->split[da], b->split[db], a->nsplit[da]);
}

/* The dims of the result, and where each letter was met first. */
static dt_status infer_shape(inference *f, const dti_words *s)
{
    char a[DTI_OPERAND_TEXT], b[DTI_OPERAND_TEXT];
    memset(f->first, -1, sizeof f->first);
    for (int i = 0; i < f->r->nin; i++) {
        for (int d = 0; f->in[i] && d < f->in[i]->shape.ndim; d++) {
            const char l = s->in[i][d];
            place *p = &f->first[(int)l];
            if (p->operand < 0)
                *p = (place){(int8_t)i, (int8_t)d};
            else
                DT_REQUIRE(p->operand != i, DT_ERR_ARG, "%s: operand %d has letter %c twice",
                           f->r->name, i, l);
            const int64_t want = f->in[p->operand]->shape.dim[p->dim], got = f->in[i]->shape.dim[d];
            DT_REQUIRE(
                want == got, DT_ERR_SHAPE,
                "%s: dim %d of %s has size %lld, dim %d of %s has size %lld: they must agree",
                f->r->name, p->dim, dti_rule_describe(f->r, p->operand, a), (long long)want, d,
                dti_rule_describe(f->r, i, b), (long long)got);
        }
    }
    f->out.shape.ndim = (int)strlen(s->out);
    for (int o = 0; o < f->out.shape.ndim; o++) {
        const place p = f->first[(int)s->out[o]];
        DT_REQUIRE(p.operand >= 0 && !find(s->out + o + 1, s->out[o]), DT_ERR_ARG,
                   "%s: output letter %c is in no operand, or twice in the output", f->r->name,
                   s->out[o]);
        f->out.shape.dim[o] = f->in[p.operand]->shape.dim[p.dim];
    }
    return DT_OK;
}

/* "Same order": once every axis agrees on the letters, operands that share a letter must nest
 * its axes alike. Where inference sees other rows on some axes, a letter of the output may be
 * whole in one operand. */
static dt_status infer_splits(inference *f, const dti_words *s)
{
    char a[DTI_OPERAND_TEXT], b[DTI_OPERAND_TEXT];
    for (int i = 0; i < f->r->nin; i++) {
        for (int d = 0; f->in[i] && d < f->in[i]->shape.ndim; d++) {
            const char l = s->in[i][d], *o = find(s->out, l);
            const place p = f->first[(int)l];
            const dt_layout *x = f->in[i], *y = f->in[p.operand];
            const bool whole = o && (!x->nsplit[d] || !y->nsplit[p.dim]);
            DT_REQUIRE(
                whole || isupper((unsigned char)l) || find(f->loose, l) ||
                    same_split(x, d, y, p.dim),
                DT_ERR_PLACEMENT,
                "%s: dim %d of %s and dim %d of %s are split differently: the order of axes must "
                "agree",
                f->r->name, p.dim, dti_rule_describe(f->r, p.operand, a), d,
                dti_rule_describe(f->r, i, b));
            if (!o || x->nsplit[d] <= f->out.nsplit[o - s->out])
                continue;
            f->out.nsplit[o - s->out] = x->nsplit[d];
            memcpy(f->out.split[o - s->out], x->split[d], sizeof f->out.split[0]);
        }
    }
    return DT_OK;
}

static dt_status prepare(inference *f, const dt_letters *options)
{
    const dt_rule *r = f->r;
    DT_REQUIRE(r->nin >= 1 && r->nin <= DT_OP_MAX_IN, DT_ERR_ARG, "%s: %d operands, limit %d",
               r->name, r->nin, DT_OP_MAX_IN);
    for (int i = 0; i < r->nin; i++) {
        if (!r->in[i])
            continue;
        f->in[i] = options && options->seen[i] ? options->seen[i] : r->in[i];
        if (!f->out.grid)
            f->out.grid = f->in[i]->grid;
        DT_REQUIRE(f->in[i]->grid == f->out.grid, DT_ERR_ARG,
                   "%s: operand %d lives on another mesh than the operands before it", r->name, i);
    }
    DT_REQUIRE(f->out.grid, DT_ERR_ARG, "%s: all operands were left out", r->name);
    f->loose = options ? options->loose : NULL;
    return DT_OK;
}

dt_status dt_rule_letters(dt_rule *r, const char *text, const dt_letters *options)
{
    inference f = {.r = r};
    dti_words s, other;
    DT_TRY(prepare(&f, options));
    DT_TRY(dti_words_parse(r, f.in, text, &s));
    DT_TRY(infer_shape(&f, &s));
    for (int axis = 0; axis < f.out.grid->naxes; axis++) {
        const dti_words *here = &s;
        const char *row = options && options->spec_of_axis ? options->spec_of_axis(r, axis) : NULL;
        if (row) {
            DT_TRY(dti_words_parse(r, f.in, row, &other));
            here = &other;
        }
        DT_TRY(infer_axis(&f, here, axis));
    }
    DT_TRY(infer_splits(&f, &s));
    r->out[0] = f.out;
    memcpy(r->zeroed, f.zeroed, sizeof r->zeroed);
    return DT_OK;
}

dt_status dti_rule_infer(dt_rule *r, dt_infer infer, const char *spec)
{
    return infer ? infer(r) : dt_rule_letters(r, spec, NULL);
}

dt_layout dt_rule_grad(const dt_layout *operand, uint8_t zeroed, const dt_layout *out,
                       const dt_layout *dy)
{
    dt_layout g = dt_layout_dual(operand);
    for (int axis = 0; axis < operand->grid->naxes; axis++) {
        const unsigned bit = 1u << axis;
        if (dt_layout_at(operand, axis).kind != DT_REPLICATE)
            continue;
        /* Output R: every rank computed the same, as dy. Else each rank sees only its part of
         * the sum. */
        const bool same = dt_layout_at(out, axis).kind == DT_REPLICATE;
        if (same ? dy->partial & bit : !(zeroed & bit))
            g.partial |= (uint8_t)bit;
    }
    return g;
}
