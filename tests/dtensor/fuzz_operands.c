/* tests/dtensor/fuzz_operands.c - operands: sizes, and placements that a rule may accept.
 * Read first: tests/dtensor/fuzz_graph.c. */
#include "tests/dtensor/fuzz_internal.h"

#include <ctype.h>
#include <string.h>

/* Axes that split each letter, outermost first, and the axes on which each operand is P. */
typedef struct places {
    int n[128];
    int axis[128][DT_MAX_AXES];
    uint8_t partial[DT_OP_MAX_IN];
} places;

/* ---- placements ---- */

static void shuffled_axes(fuzz_gen *d, int *axis)
{
    const int n = dt_mesh_grid(d->mesh)->naxes;
    for (int a = 0; a < n; a++) {
        const int k = fuzz_below(&d->r, a + 1);
        axis[a] = axis[k];
        axis[k] = a;
    }
}

static dt_layout random_layout(fuzz_gen *d, dt_shape shape, bool ids)
{
    const dt_grid *grid = dt_mesh_grid(d->mesh);
    dt_layout layout = dt_layout_replicated(grid, shape);
    int axis[DT_MAX_AXES];
    shuffled_axes(d, axis);
    for (int a = 0; a < grid->naxes; a++) {
        const int kind = fuzz_below(&d->r, 10);
        if (kind < 4 && shape.ndim > 0)
            dt_layout_shard(&layout, axis[a], fuzz_below(&d->r, shape.ndim));
        else if (kind < 6 && !ids)
            layout.partial = (uint8_t)(layout.partial | 1u << axis[a]);
    }
    return layout;
}

/* What the rule surely refuses, mostly away: P of what is not linear, splits of upper case. */
static void clean(fuzz_gen *d, const fuzz_operands *o, int i, dt_layout *layout)
{
    for (int a = 0; a < layout->grid->naxes; a++) {
        const dt_placement at = dt_layout_at(layout, a);
        const bool bad = at.kind == DT_PARTIAL ? o->nonlinear[i]
                                               : at.kind == DT_SHARD && isupper(o->word[i][at.dim]);
        if (bad && fuzz_chance(&d->r, 90))
            dt_layout_clear(layout, a);
    }
}

static void push(places *p, char letter, int axis)
{
    p->axis[(int)letter][p->n[(int)letter]++] = axis;
}

/* One operand or letter for an axis that operand 0 does not use. */
static void place_free_axis(fuzz_gen *d, const fuzz_operands *o, int axis, places *p)
{
    const int i = 1 + fuzz_below(&d->r, o->n - 1), length = (int)strlen(o->word[i]);
    const int kind = fuzz_below(&d->r, 10);
    if (kind < 4 && length > 0) {
        const char letter = o->word[i][fuzz_below(&d->r, length)];
        if (!strchr(o->word[0], letter))
            push(p, letter, axis);
    } else if (kind < 7 && !o->ids[i] && !o->nonlinear[i]) {
        p->partial[i] = (uint8_t)(p->partial[i] | 1u << axis);
    }
}

/* The letters' axes, from operand 0 and at random. */
static void place_letters(fuzz_gen *d, const fuzz_operands *o, const dt_layout *first, places *p)
{
    int axis[DT_MAX_AXES];
    *p = (places){0};
    for (int k = 0; k < first->shape.ndim; k++)
        for (int j = 0; j < first->nsplit[k]; j++)
            push(p, o->word[0][k], first->split[k][j]);
    if (p->n['h'] && fuzz_chance(&d->r, 60)) { /* kv heads with the heads of q */
        p->n['g'] = p->n['h'];
        memcpy(p->axis['g'], p->axis['h'], sizeof p->axis['g']);
    }
    shuffled_axes(d, axis);
    for (int a = 0; a < first->grid->naxes && o->n > 1; a++) {
        const dt_placement at = dt_layout_at(first, axis[a]);
        const int i = 1 + fuzz_below(&d->r, o->n - 1);
        if (at.kind == DT_REPLICATE)
            place_free_axis(d, o, axis[a], p);
        else if (at.kind == DT_PARTIAL && !o->ids[i] && fuzz_chance(&d->r, 30))
            p->partial[i] = (uint8_t)(p->partial[i] | 1u << axis[a]); /* P + P; P x P is refused */
    }
}

static dt_layout guided_layout(fuzz_gen *d, const fuzz_operands *o, int i, const places *p)
{
    if (fuzz_chance(&d->r, 8))
        return random_layout(d, o->shape[i], o->ids[i]);
    dt_layout layout = dt_layout_replicated(dt_mesh_grid(d->mesh), o->shape[i]);
    for (int k = 0; k < o->shape[i].ndim; k++) {
        const int letter = o->word[i][k];
        for (int j = 0; j < p->n[letter] && !isupper(letter); j++)
            if (dt_layout_at(&layout, p->axis[letter][j]).kind == DT_REPLICATE)
                dt_layout_shard(&layout, p->axis[letter][j], k);
    }
    for (int a = 0; a < layout.grid->naxes; a++)
        if (p->partial[i] >> a & 1 && dt_layout_at(&layout, a).kind == DT_REPLICATE)
            layout.partial = (uint8_t)(layout.partial | 1u << a);
    return layout;
}

/* ---- operands ---- */

/* Words with their marks; those left out are not counted (only the last can be). */
static void read_words(fuzz_gen *d, const char *words, fuzz_operands *o)
{
    const int star = fuzz_below(&d->r, 3), tail = fuzz_below(&d->r, star + 1);
    *o = (fuzz_operands){0};
    while (*words) {
        bool left_out = false;
        const int i = o->n;
        for (; *words && *words != ' '; words++) {
            if (*words == '#')
                o->ids[i] = true;
            else if (*words == '!')
                o->nonlinear[i] = true;
            else if (*words == '?')
                left_out = fuzz_chance(&d->r, 40);
            else if (*words == '*' || *words == '~')
                strcat(o->word[i], &"yz"[2 - (*words == '*' ? star : tail)]);
            else if (*words != '.')
                fuzz_append(o->word[i], *words);
        }
        words += *words == ' ';
        o->n += !left_out;
    }
}

/* Small, so that no operand that shares its letters exceeds FUZZ_ELEMENTS. */
static bool may_be_first(const fuzz_operands *o, const fuzz_value *v)
{
    const char *even = strchr(o->word[0], 'E');
    if (o->ids[0] || v->below || v->shape.ndim != (int)strlen(o->word[0]) ||
        dt_shape_count(v->shape) > FUZZ_ELEMENTS / 7)
        return false;
    for (int k = 0; k < v->shape.ndim; k++)
        if (v->shape.dim[k] > FUZZ_ELEMENTS / 80)
            return false;
    return !(even && v->shape.dim[even - o->word[0]] % 2);
}

static int random_divisor(fuzz_gen *d, int64_t n)
{
    int g = 1 + fuzz_below(&d->r, (int)n);
    while (n % g)
        g--;
    return g;
}

/* Operand 0 gives sizes to its letters (a value of the graph, or -1); the others are drawn. */
static void draw_sizes(fuzz_gen *d, int first, fuzz_operands *o)
{
    int64_t size[128] = {0};
    for (int k = 0; first >= 0 && o->word[0][k]; k++)
        size[(int)o->word[0][k]] = d->g->value[first].shape.dim[k];
    for (int i = 0; i < o->n; i++) {
        const int length = (int)strlen(o->word[i]);
        o->shape[i].ndim = length;
        for (int k = 0; k < length; k++) {
            const int letter = o->word[i][k];
            const int any = 1 + fuzz_below(&d->r, length > 3 ? 4 : 6);
            if (!size[letter])
                size[letter] = letter == 'E'   ? 2 + 2 * (any % 2)
                               : letter == 'g' ? random_divisor(d, size['h'])
                               : letter == 'p' ? size['s'] + any % 3
                                               : any;
            o->shape[i].dim[k] = size[letter];
        }
    }
}

/* A value of this shape and layout: of the graph, moved if need be, or a new leaf. */
static dt_status fetch(fuzz_gen *d, dt_layout layout, int64_t below, int *out)
{
    const int first = fuzz_below(&d->r, d->g->nvalues + 1);
    for (int k = 0; k < d->g->nvalues && below == 0 && fuzz_chance(&d->r, 97); k++) {
        int v = (first + k) % d->g->nvalues;
        const fuzz_value *have = &d->g->value[v];
        if (have->below || !dt_shape_equal(have->shape, layout.shape) || fuzz_chance(&d->r, 30))
            continue;
        if (!dt_layout_equal(have->layout, &layout))
            DT_TRY(fuzz_move(d, &v, layout));
        *out = v;
        return DT_OK;
    }
    return fuzz_new_value(d, layout, below, out);
}

/* Operand 0: a value of the graph as it is, or moved, or a new leaf. */
static dt_status fetch_first(fuzz_gen *d, const fuzz_operands *o, int64_t below, int *v)
{
    dt_layout layout = *v >= 0 && fuzz_chance(&d->r, 75) ? *d->g->value[*v].layout
                                                         : random_layout(d, o->shape[0], o->ids[0]);
    clean(d, o, 0, &layout);
    if (*v < 0)
        DT_TRY(fuzz_new_value(d, layout, below, v));
    else if (!dt_layout_equal(&layout, d->g->value[*v].layout))
        DT_TRY(fuzz_move(d, v, layout));
    return DT_OK;
}

int64_t fuzz_ids_below(const fuzz_operands *o)
{
    for (int i = 0; i < o->n; i++)
        for (int k = 0; o->word[i][k]; k++)
            if (o->word[i][k] == 'v')
                return o->shape[i].dim[k];
    return 4;
}

dt_status fuzz_draw_operands(fuzz_gen *d, fuzz_step *s, fuzz_operands *o)
{
    char spec_words[64];
    const char *words = s->op->words;
    if (!words) {
        fuzz_draw_spec(&d->r, s, spec_words, sizeof spec_words);
        words = spec_words;
    }
    read_words(d, words, o);
    int first = -1;
    for (int k = 0, v = fuzz_below(&d->r, d->g->nvalues + 1); k < d->g->nvalues && first < 0; k++)
        if (may_be_first(o, &d->g->value[(v + k) % d->g->nvalues]) && fuzz_chance(&d->r, 60))
            first = (v + k) % d->g->nvalues;
    draw_sizes(d, first, o);
    const int64_t below = fuzz_ids_below(o);
    DT_TRY(fetch_first(d, o, o->ids[0] ? below : 0, &first));
    s->in[0] = first;
    places p;
    place_letters(d, o, d->g->value[first].layout, &p);
    for (int i = 1; i < o->n; i++)
        DT_TRY(fetch(d, guided_layout(d, o, i, &p), o->ids[i] ? below : 0, &s->in[i]));
    s->nin = o->n;
    return DT_OK;
}
