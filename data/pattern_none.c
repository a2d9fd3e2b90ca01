/* data/pattern_none.c - a build without PCRE2: no patterns, so tokens are bytes. */
#include "data/tokenizer_internal.h"

dt_status dti_pattern_create(const char *text, const char *where, dti_pattern **pattern_out)
{
    (void)text;
    (void)pattern_out;
    return DT_ERROR(DT_ERR_UNSUPPORTED,
                    "%s: its pattern needs PCRE2, and this build is without it; legal: bytes",
                    where);
}

void dti_pattern_destroy(dti_pattern *p)
{
    (void)p;
}

dt_status dti_matcher_create(dti_matcher **matcher_out)
{
    *matcher_out = NULL;
    return DT_OK;
}

void dti_matcher_destroy(dti_matcher *m)
{
    (void)m;
}

dt_status dti_pattern_next(const dti_pattern *p, dti_matcher *m, const char *text, size_t n,
                           size_t from, size_t *lo_out, size_t *hi_out)
{
    (void)p;
    (void)m;
    (void)text;
    (void)from;
    *lo_out = *hi_out = n;
    return DT_OK;
}
