/* data/pattern_pcre2.c - the patterns of tokenizers, run by PCRE2 with UTF and Unicode properties.
 *
 * They are written for Oniguruma. What both read alike passes; \s becomes \p{White_Space}, which is
 * what Oniguruma means by it (PCRE2's own has U+180E too); what they read differently or only one
 * knows (\w, \h, \b, ^, $, sets of sets, {1,3}+) is refused by name. */
#define PCRE2_CODE_UNIT_WIDTH 8
#include "data/tokenizer_internal.h"

#include <pcre2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct dti_pattern {
    pcre2_code *code;
};

struct dti_matcher {
    pcre2_match_data *found;
    pcre2_match_context *context;
    pcre2_jit_stack *stack;
};

/* ---- from one syntax to the other ---- */

static dt_status refuse(const char *where, const char *pattern, const char *at, size_t n)
{
    return DT_ERROR(DT_ERR_UNSUPPORTED, "%s: '%.*s' in the pattern %s is not known here", where,
                    (int)n, at, pattern);
}

/* One escape at p: its length in the pattern; what it becomes is written to *out. 0: refused. */
static size_t escape(const char *p, char **out)
{
    const char *as = NULL;
    size_t n = 2;
    if (p[1] == 's' || p[1] == 'S')
        as = p[1] == 's' ? "\\p{White_Space}" : "\\P{White_Space}";
    else if ((p[1] == 'p' || p[1] == 'P') && p[2] == '{' && strchr(p, '}'))
        n = (size_t)(strchr(p, '}') - p) + 1;
    else if (!p[1] || (!strchr("dDrntf", p[1]) &&
                       ((unsigned char)p[1] >= 128 || (p[1] >= '0' && p[1] <= '9') ||
                        ((p[1] | 32) >= 'a' && (p[1] | 32) <= 'z'))))
        return 0;
    const size_t length = as ? strlen(as) : n;
    memcpy(*out, as ? as : p, length);
    *out += length;
    return n;
}

/* Does what stands at p mean another thing to PCRE2? set: inside of [ ]. */
static bool differs(const char *p, bool set)
{
    if (set)
        return *p == '[' || (p[0] == '&' && p[1] == '&');
    return *p == '^' || *p == '$' || (p[0] == '}' && p[1] == '+') ||
           (p[0] == '(' && p[1] == '?' && !strchr(":!=i", p[2])) || (p[0] == '(' && p[1] == '*');
}

/* out has room for 8 times the pattern. */
static dt_status translate(const char *pattern, const char *where, char *out)
{
    bool set = false;
    for (const char *p = pattern; *p;) {
        if (*p == '\\') {
            const size_t n = escape(p, &out);
            if (n == 0)
                return refuse(where, pattern, p, p[1] ? 2 : 1);
            p += n;
            continue;
        }
        if (differs(p, set))
            return refuse(where, pattern, p, p[1] ? 2 : 1);
        const bool opens = !set && *p == '[';
        set = opens || (set && *p != ']');
        *out++ = *p++;
        if (opens && *p == '^')
            *out++ = *p++;
        if (opens && *p == ']') /* a letter there, to both; not worth the trouble */
            return refuse(where, pattern, p, 1);
    }
    *out = 0;
    return DT_OK;
}

/* ---- running ---- */

dt_status dti_pattern_create(const char *text, const char *where, dti_pattern **pattern_out)
{
    int code = 0;
    PCRE2_SIZE at = 0;
    PCRE2_UCHAR why[128];
    char *ours = malloc(8 * strlen(text) + 1);
    dti_pattern *p = calloc(1, sizeof *p);
    dt_status st = ours && p ? DT_OK : DT_ERROR(DT_ERR_NOMEM, "a pattern");
    if (st == DT_OK)
        st = translate(text, where, ours);
    if (st == DT_OK) {
        p->code = pcre2_compile((PCRE2_SPTR)ours, PCRE2_ZERO_TERMINATED, PCRE2_UTF | PCRE2_UCP,
                                &code, &at, NULL);
        (void)pcre2_get_error_message(code, why, sizeof why);
        if (!p->code)
            st = DT_ERROR(DT_ERR_FORMAT, "%s: pattern %s: %s", where, text, (const char *)why);
        else
            (void)pcre2_jit_compile(p->code, PCRE2_JIT_COMPLETE); /* or it is interpreted */
    }
    free(ours);
    if (st != DT_OK)
        dti_pattern_destroy(p);
    else
        *pattern_out = p;
    return st;
}

void dti_pattern_destroy(dti_pattern *p)
{
    if (!p)
        return;
    pcre2_code_free(p->code);
    free(p);
}

dt_status dti_matcher_create(dti_matcher **matcher_out)
{
    enum { LEAST = 32 << 10, MOST = 64 << 20 };
    dti_matcher *m = calloc(1, sizeof *m);
    DT_REQUIRE(m, DT_ERR_NOMEM, "a matcher");
    m->found = pcre2_match_data_create(1, NULL);
    m->context = pcre2_match_context_create(NULL);
    m->stack = pcre2_jit_stack_create(LEAST, MOST, NULL); /* NULL without JIT */
    if (!m->found || !m->context) {
        dti_matcher_destroy(m);
        return DT_ERROR(DT_ERR_NOMEM, "a matcher");
    }
    if (m->stack)
        pcre2_jit_stack_assign(m->context, NULL, m->stack);
    *matcher_out = m;
    return DT_OK;
}

void dti_matcher_destroy(dti_matcher *m)
{
    if (!m)
        return;
    pcre2_match_data_free(m->found);
    pcre2_match_context_free(m->context);
    pcre2_jit_stack_free(m->stack);
    free(m);
}

dt_status dti_pattern_next(const dti_pattern *p, dti_matcher *m, const char *text, size_t n,
                           size_t from, size_t *lo_out, size_t *hi_out)
{
    *lo_out = *hi_out = n;
    if (from >= n)
        return DT_OK;
    const int found = pcre2_match(p->code, (PCRE2_SPTR)text, n, from,
                                  PCRE2_NO_UTF_CHECK | PCRE2_NOTEMPTY, m->found, m->context);
    if (found == PCRE2_ERROR_NOMATCH)
        return DT_OK;
    PCRE2_UCHAR why[128] = "";
    if (found < 0)
        (void)pcre2_get_error_message(found, why, sizeof why);
    DT_REQUIRE(found >= 0, DT_ERR_STATE, "a tokenizer's pattern failed at byte %zu: %s", from,
               (const char *)why);
    const PCRE2_SIZE *range = pcre2_get_ovector_pointer(m->found);
    *lo_out = range[0];
    *hi_out = range[1];
    return DT_OK;
}
