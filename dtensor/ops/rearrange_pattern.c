/* dtensor/ops/rearrange_pattern.c - reads patterns of rearrange. Read first:
 * dtensor/ops/rearrange_internal.h. */
#include "dtensor/ops/rearrange_internal.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

/* Names of letters, pieces of the pattern. */
typedef struct names {
    const char *text[DTI_LETTERS];
    int length[DTI_LETTERS];
} names;

static int word_length(const char *p)
{
    int n = 0;
    while (isalnum((unsigned char)p[n]) || p[n] == '_')
        n++;
    return n;
}

/* The letter of that name; -1: none. */
static int find(const dti_pattern *p, const names *all, const char *word, int length)
{
    for (int l = 0; l < p->nletters; l++)
        if (all->length[l] == length && !memcmp(all->text[l], word, (size_t)length))
            return l;
    return -1;
}

/* A letter's first place on the left, or its place on the right. */
static dt_status add_letter(dti_pattern *p, names *all, dti_side *side, const char *word,
                            int length)
{
    const int at = side->begin[side->ngroups + 1];
    int l = find(p, all, word, length);
    DT_REQUIRE(at < DTI_LETTERS, DT_ERR_ARG, "rearrange %s: more than %d letters", p->text,
               DTI_LETTERS);
    if (side == &p->left) {
        DT_REQUIRE(l < 0, DT_ERR_ARG, "rearrange %s: %.*s stands twice on the left", p->text,
                   length, word);
        l = p->nletters++;
        all->text[l] = word;
        all->length[l] = length;
        p->size[l] = -1;
    }
    DT_REQUIRE(l >= 0, DT_ERR_ARG, "rearrange %s: %.*s is not on the left", p->text, length, word);
    for (int k = 0; k < at; k++)
        DT_REQUIRE(side->letter[k] != l, DT_ERR_ARG, "rearrange %s: %.*s stands twice", p->text,
                   length, word);
    side->letter[at] = l;
    side->begin[side->ngroups + 1]++;
    return DT_OK;
}

/* While group g is read, begin[g + 1] counts the letters so far; then the next one opens there. */
static dt_status close_group(const dti_pattern *p, dti_side *side)
{
    DT_REQUIRE(side->ngroups < DT_MAX_DIMS, DT_ERR_ARG, "rearrange %s: more than %d dims", p->text,
               DT_MAX_DIMS);
    side->ngroups++;
    side->begin[side->ngroups + 1] = side->begin[side->ngroups];
    return DT_OK;
}

static dt_status parse_side(dti_pattern *p, names *all, const char *from, const char *end,
                            dti_side *side)
{
    bool inside = false;
    for (const char *c = from; c < end;) {
        const int length = word_length(c);
        if (*c == ' ') {
            c++;
            continue;
        }
        const bool one = length == 1 && *c == '1';
        const bool name = length > 0 && !isdigit((unsigned char)*c);
        DT_REQUIRE(one || name || *c == (inside ? ')' : '('), DT_ERR_ARG,
                   "rearrange %s: unexpected '%c' at %d", p->text, *c, (int)(c - p->text));
        if (length == 0)
            inside = !inside;
        else if (!one)
            DT_TRY(add_letter(p, all, side, c, length));
        if (!inside)
            DT_TRY(close_group(p, side));
        c += length ? length : 1;
    }
    DT_REQUIRE(!inside, DT_ERR_ARG, "rearrange %s: a '(' is not closed", p->text);
    return DT_OK;
}

/* "h=8 d=4" */
static dt_status parse_sizes(dti_pattern *p, const names *all, const char *c)
{
    while (*c) {
        const int length = word_length(c);
        if (*c == ' ') {
            c++;
            continue;
        }
        char *end = NULL;
        const int l = find(p, all, c, length);
        const long long size = c[length] == '=' ? strtoll(c + length + 1, &end, 10) : -1;
        DT_REQUIRE(l >= 0 && size >= 0 && end > c + length + 1, DT_ERR_ARG,
                   "rearrange %s: size '%s'; sizes are written letter=number", p->text, c);
        p->size[l] = size;
        c = end;
    }
    return DT_OK;
}

dt_status dti_pattern_parse(const char *text, const char *sizes, dti_pattern *p_out)
{
    DT_REQUIRE(text, DT_ERR_ARG, "rearrange: no pattern");
    dti_pattern p = {.text = text};
    names all = {.length = {0}};
    const char *arrow = strstr(text, "->");
    DT_REQUIRE(arrow, DT_ERR_ARG, "rearrange %s: no '->'", text);
    DT_TRY(parse_side(&p, &all, text, arrow, &p.left));
    DT_TRY(parse_side(&p, &all, arrow + 2, text + strlen(text), &p.right));
    DT_REQUIRE(p.right.begin[p.right.ngroups] == p.nletters, DT_ERR_ARG,
               "rearrange %s: a letter of the left is missing on the right", text);
    if (sizes)
        DT_TRY(parse_sizes(&p, &all, sizes));
    p.key =
        dti_hash(dti_hash(0, text, strlen(text)), sizes ? sizes : "", sizes ? strlen(sizes) : 0);
    *p_out = p;
    return DT_OK;
}

dt_status dti_pattern_solve(const dti_pattern *p, dt_shape shape, int64_t *size_out)
{
    DT_REQUIRE(shape.ndim == p->left.ngroups, DT_ERR_SHAPE, "rearrange %s: the tensor has %d dims",
               p->text, shape.ndim);
    for (int g = 0; g < shape.ndim; g++) {
        int64_t known = 1;
        int unknown = -1, nunknown = 0;
        for (int k = p->left.begin[g]; k < p->left.begin[g + 1]; k++) {
            const int l = p->left.letter[k];
            size_out[l] = p->size[l];
            known *= p->size[l] < 0 ? 1 : p->size[l];
            nunknown += p->size[l] < 0;
            unknown = p->size[l] < 0 ? l : unknown;
        }
        const int64_t n = shape.dim[g];
        DT_REQUIRE(nunknown <= 1, DT_ERR_SHAPE,
                   "rearrange %s: dim %d has %d letters of unknown size", p->text, g, nunknown);
        DT_REQUIRE(nunknown ? known > 0 && n % known == 0 : n == known, DT_ERR_SHAPE,
                   "rearrange %s: dim %d has %lld elements, its letters make %s%lld", p->text, g,
                   (long long)n, nunknown ? "a multiple of " : "", (long long)known);
        if (nunknown)
            size_out[unknown] = n / known;
    }
    return DT_OK;
}

int64_t dti_pattern_inner(const dti_side *side, int group, const int64_t *size)
{
    int64_t inner = 1;
    for (int k = side->begin[group] + 1; k < side->begin[group + 1]; k++)
        inner *= size[side->letter[k]];
    return inner;
}
