/* dtensor/rule_words.c - the spec of a rule as letters. Read first: dtensor/dt_rule.h. Read
 * next: dtensor/rule.c.
 *
 * Letters are plain characters; a spec such as "...k,nk+n->...n" becomes one word an operand,
 * with the dims of "..." written as digits, aligned on the right:
 *     x [4, 6, 8], w [16, 8], b [16]:   "01k"  "nk"  "n"  ->  "01n"      terms 0 0 1 */
#include "dtensor/dtensor_internal.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

const char *dti_rule_describe(const dt_rule *r, int i, char buf[DTI_OPERAND_TEXT])
{
    char shape[DT_SHAPE_TEXT], layout[DT_LAYOUT_TEXT];
    (void)snprintf(buf, DTI_OPERAND_TEXT, "operand %d (%s %s)", i,
             dt_shape_print(r->in[i]->shape, shape, sizeof shape),
             dt_layout_print(r->in[i], layout, sizeof layout));
    return buf;
}

/* Letters of a word that ends at `end`; whether it has "...". */
static int count_letters(const char *text, const char *end, bool *dots_out)
{
    int letters = 0;
    *dots_out = false;
    for (const char *p = text; p < end; p++) {
        letters += isalpha((unsigned char)*p) != 0;
        *dots_out |= *p == '.';
    }
    return letters;
}

/* Write a word out; "..." becomes the last `ndots` of the digits 0 .. most-1. Lengths were
 * checked. */
static void expand(const char *text, const char *end, int ndots, int most, char *out)
{
    for (const char *p = text; p < end; p++) {
        if (*p == '.') {
            for (int k = most - ndots; k < most; k++)
                *out++ = (char)('0' + k);
            p += 2;
        } else if (*p != ' ') {
            *out++ = *p;
        }
    }
    *out = 0;
}

static dt_status check_text(const dt_rule *r, const char *text)
{
    const char *arrow = strstr(text, "->");
    DT_REQUIRE(arrow, DT_ERR_ARG, "%s: rule '%s' has no '->'", r->name, text);
    for (const char *p = text; *p; p++) {
        const bool dots = p[0] == '.' && p[1] == '.' && p[2] == '.';
        const bool between = p < arrow && (*p == ',' || *p == '+');
        DT_REQUIRE(isalpha((unsigned char)*p) || *p == ' ' || dots || between || p == arrow,
                   DT_ERR_ARG, "%s: rule '%s': unexpected '%c' at %d", r->name, text, *p,
                   (int)(p - text));
        p += dots ? 2 : p == arrow;
    }
    return DT_OK;
}

/* The number of dims that "..." stands for in operand i, 0 without dots. */
static dt_status count_dots(const dt_rule *r, int i, int ndim, const char *text, const char *end,
                            int *ndots_out)
{
    bool dots;
    char a[DTI_OPERAND_TEXT];
    const int letters = count_letters(text, end, &dots);
    DT_REQUIRE(dots ? ndim >= letters : ndim == letters, DT_ERR_SHAPE,
               "%s: %s must have %s%d dims (%.*s)", r->name, dti_rule_describe(r, i, a),
               dots ? "at least " : "", letters, (int)(end - text), text);
    *ndots_out = ndim - letters;
    return DT_OK;
}

dt_status dti_words_parse(const dt_rule *r, const dt_layout *const *in, const char *text,
                          dti_words *s)
{
    DT_TRY(check_text(r, text));
    const char *begin[DT_OP_MAX_IN], *end[DT_OP_MAX_IN], *arrow = strstr(text, "->"), *p = text;
    int n = 0, most = 0, ndots[DT_OP_MAX_IN] = {0};
    s->nterms = 1;
    for (;; p++) {
        DT_REQUIRE(n < r->nin, DT_ERR_ARG, "%s: rule '%s' has more than %d operands", r->name, text,
                   r->nin);
        begin[n] = p;
        p += strcspn(p, ",+-");
        end[n] = p;
        s->term[n] = s->nterms - 1;
        if (in[n])
            DT_TRY(count_dots(r, n, in[n]->shape.ndim, begin[n], end[n], &ndots[n]));
        most = ndots[n] > most ? ndots[n] : most;
        n++;
        s->nterms += *p == '+';
        if (p == arrow)
            break;
    }
    DT_REQUIRE(n == r->nin, DT_ERR_ARG, "%s: rule '%s' has %d operands, not %d", r->name, text, n,
               r->nin);
    for (int i = 0; i < n; i++) {
        if (in[i])
            expand(begin[i], end[i], ndots[i], most, s->in[i]);
    }
    bool dots;
    const char *stop = arrow + strlen(arrow);
    const int letters = count_letters(arrow + 2, stop, &dots), ndim = letters + (dots ? most : 0);
    DT_REQUIRE(ndim <= DT_MAX_DIMS, DT_ERR_SHAPE, "%s: the result would have %d dims, limit %d",
               r->name, ndim, DT_MAX_DIMS);
    expand(arrow + 2, stop, most, most, s->out);
    return DT_OK;
}
