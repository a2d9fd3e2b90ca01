/* pp/cut.c - which layers each stage has: equally many, so many, by names, or balanced by cost.
 * Read first: pp/dt_pipeline.h. Read next: pp/split.c. */
#include "pp/pipeline_internal.h"

#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static int64_t total(const int *layers, int n)
{
    int64_t sum = 0;
    for (int s = 0; s < n; s++)
        sum += layers[s];
    return sum;
}

/* ---- by counts: "3,2,2" ---- */

static dt_status by_counts(dt_pipeline *p, const char *text)
{
    const int n = p->lowered->nstages;
    int given = 0;
    for (char *end; *text; text = *end == ',' ? end + 1 : end) {
        const long count = strtol(text, &end, 10);
        DT_REQUIRE(end != text && (*end == ',' || *end == '\0'), DT_ERR_ARG,
                   "'%s' is not a list of counts of layers", text);
        DT_REQUIRE(count > 0 && count <= p->nlayers, DT_ERR_ARG,
                   "stage %d has %ld layers; legal: 1 .. %d", given, count, p->nlayers);
        if (given < n)
            p->layers[given] = (int)count;
        given++;
    }
    DT_REQUIRE(given == n, DT_ERR_ARG, "layers of %d stages are given, the schedule has %d stages",
               given, n);
    DT_REQUIRE(total(p->layers, n) == p->nlayers, DT_ERR_ARG,
               "the stages have %lld layers, the model %d", (long long)total(p->layers, n),
               p->nlayers);
    return DT_OK;
}

/* ---- by names: "model.embed_tokens,model.layers.0-2; model.layers.3,model.norm,lm_head" ---- */

/* Names must come in the order of the model. */
typedef struct reader {
    dt_pipeline *p;
    int stage, layer; /* where we are: layers before `layer` have been named */
    int first, last;  /* ends named so far */
} reader;

static int place_in(const char *name, const char *const *list)
{
    for (int i = 0; list[i]; i++)
        if (strcmp(name, list[i]) == 0)
            return i;
    return -1;
}

static int length(const char *const *list)
{
    int n = 0;
    while (list[n])
        n++;
    return n;
}

static dt_status take_layers(reader *r, const char *name, const char *range)
{
    char *end = NULL;
    const long lo = strtol(range, &end, 10), hi = *end == '-' ? strtol(end + 1, &end, 10) : lo;
    DT_REQUIRE(isdigit((unsigned char)*range) && *end == '\0' && hi >= lo && hi < r->p->nlayers,
               DT_ERR_ARG, "stage %d: '%s' is no layer; the model has %s.0 .. %s.%d", r->stage,
               name, r->p->options.chain.layers, r->p->options.chain.layers, r->p->nlayers - 1);
    DT_REQUIRE(lo == r->layer && r->last == 0, DT_ERR_ARG,
               "stage %d: '%s' is out of order; layer %d comes next", r->stage, name, r->layer);
    r->p->layers[r->stage] += (int)(hi - lo) + 1;
    r->layer = (int)hi + 1;
    return DT_OK;
}

static dt_status take_name(reader *r, const char *name)
{
    const dt_chain *chain = &r->p->options.chain;
    const size_t n = strlen(chain->layers);
    if (strncmp(name, chain->layers, n) == 0 && name[n] == '.')
        return take_layers(r, name, name + n + 1);
    const bool first = place_in(name, chain->first) >= 0, last = place_in(name, chain->last) >= 0;
    const int home = first ? 0 : r->p->lowered->nstages - 1;
    DT_REQUIRE(first || last, DT_ERR_ARG, "stage %d: the model has no module '%s' to cut at",
               r->stage, name);
    DT_REQUIRE(r->stage == home, DT_ERR_ARG, "stage %d: '%s' must be in stage %d", r->stage, name,
               home);
    DT_REQUIRE(place_in(name, first ? chain->first : chain->last) == (first ? r->first : r->last) &&
                   (last || r->layer == 0),
               DT_ERR_ARG, "stage %d: '%s' is out of order", r->stage, name);
    r->first += first;
    r->last += last;
    return DT_OK;
}

static dt_status take_names(reader *r, char *text)
{
    const int n = r->p->lowered->nstages;
    int given = 1;
    for (const char *c = text; *c; c++)
        given += *c == ';';
    DT_REQUIRE(given == n, DT_ERR_ARG, "names of %d stages, the schedule has %d", given, n);
    for (char *part = text, *next = text; next; part = next, r->stage++) {
        next = strchr(part, ';');
        if (next)
            *next++ = '\0';
        char *save = NULL;
        for (char *w = strtok_r(part, ", ", &save); w; w = strtok_r(NULL, ", ", &save))
            DT_TRY(take_name(r, w));
        DT_REQUIRE(r->p->layers[r->stage] > 0 || r->stage == 0 || r->stage == n - 1, DT_ERR_ARG,
                   "stage %d has no layers", r->stage);
    }
    const dt_chain *chain = &r->p->options.chain;
    DT_REQUIRE(r->layer == r->p->nlayers, DT_ERR_ARG, "no stage has '%s.%d'", chain->layers,
               r->layer);
    DT_REQUIRE(r->first == length(chain->first) && r->last == length(chain->last), DT_ERR_ARG,
               "no stage has '%s'",
               r->first < length(chain->first) ? chain->first[r->first] : chain->last[r->last]);
    return DT_OK;
}

static dt_status by_names(dt_pipeline *p, const char *text)
{
    reader r = {.p = p};
    char *copy = strdup(text);
    DT_REQUIRE(copy, DT_ERR_NOMEM, "a list of names");
    const dt_status st = take_names(&r, copy);
    free(copy);
    if (st != DT_OK)
        return dt_error_push(st, __FILE__, __LINE__, __func__);
    return DT_OK;
}

/* ---- by cost ---- */

/* Cost of a run of layers: up[hi] - up[lo], and the ends. */
typedef struct balance {
    int nlayers, nstages;
    double *up; /* nlayers + 1 */
    double first, last;
    double *best; /* [stage][lo]: of the stages from here on, when they begin at layer lo */
    int *hi;      /* where this stage then ends */
} balance;

static double cost_of(const balance *b, int s, int lo, int hi)
{
    return b->up[hi] - b->up[lo] + (s == 0 ? b->first : 0) + (s == b->nstages - 1 ? b->last : 0);
}

/* Least of the largest stage, or, where a cap is given, least sum of squares of stages within it;
 * of equals the one whose earlier stages have more layers. */
static double least(balance *b, double cap)
{
    const int n = b->nstages, row = b->nlayers + 1;
    for (int s = n - 1; s >= 0; s--) {
        for (int lo = 0; lo < b->nlayers; lo++) {
            double *best = &b->best[s * row + lo];
            *best = HUGE_VAL;
            for (int hi = lo + 1; hi <= b->nlayers; hi++) {
                const double rest =
                    s < n - 1 ? b->best[(s + 1) * row + hi] : (hi == b->nlayers ? 0 : HUGE_VAL);
                const double c = cost_of(b, s, lo, hi);
                const double all = cap <= 0 ? fmax(c, rest) : c <= cap ? c * c + rest : HUGE_VAL;
                if (all > *best || isinf(all))
                    continue;
                *best = all;
                b->hi[s * row + lo] = hi;
            }
        }
        b->best[s * row + b->nlayers] = HUGE_VAL; /* every stage has a layer */
    }
    return b->best[0];
}

/* A lookup costs next to nothing, however large the table. */
static double cost_of_modules(dt_module *model, const char *const *paths)
{
    double sum = 0;
    for (int i = 0; paths[i]; i++) {
        dt_module *m = dt_module_find(model, paths[i]);
        const bool works = m && strcmp(dt_module_kind_name(m), "embedding") != 0;
        sum += works ? (double)dt_module_count(m) : 0;
    }
    return sum;
}

static dt_status by_cost(dt_pipeline *p, dt_module *model)
{
    dt_module *layers = dt_module_find(model, p->options.chain.layers);
    const int n = p->lowered->nstages, row = p->nlayers + 1;
    const size_t cells = (size_t)n * (size_t)row;
    balance b = {.nlayers = p->nlayers,
                 .nstages = n,
                 .first = cost_of_modules(model, p->options.chain.first),
                 .last = cost_of_modules(model, p->options.chain.last),
                 .up = calloc((size_t)row, sizeof *b.up),
                 .best = calloc(cells, sizeof *b.best),
                 .hi = calloc(cells, sizeof *b.hi)};
    const bool room = b.up && b.best && b.hi;
    for (int i = 0; room && i < p->nlayers; i++)
        b.up[i + 1] = b.up[i] + (double)dt_module_count(dt_module_child(layers, i));
    if (room)
        (void)least(&b, least(&b, 0));
    for (int s = 0, lo = 0; room && s < n; s++) {
        p->layers[s] = b.hi[s * row + lo] - lo;
        lo += p->layers[s];
    }
    free(b.up);
    free(b.best);
    free(b.hi);
    DT_REQUIRE(room, DT_ERR_NOMEM, "%d stages of %d layers", n, p->nlayers);
    return DT_OK;
}

/* ---- the choice ---- */

dt_status dti_pp_choose_layers(dt_pipeline *p, dt_module *model)
{
    dt_module *layers = dt_module_find(model, p->options.chain.layers);
    const int n = p->lowered->nstages;
    const char *text = p->options.split ? p->options.split : "equal";
    DT_REQUIRE(layers, DT_ERR_ARG, "the model has no module '%s'", p->options.chain.layers);
    p->nlayers = dt_module_nchildren(layers);
    p->layers = calloc((size_t)n, sizeof *p->layers);
    DT_REQUIRE(p->layers, DT_ERR_NOMEM, "%d stages", n);
    if (strpbrk(text, ".;")) {
        DT_TRY(by_names(p, text));
        return DT_OK;
    }
    DT_REQUIRE(n <= p->nlayers, DT_ERR_ARG,
               "%d pipeline stages are more than the model's %d layers; legal: at most %d, ranks x "
               "stages of each",
               n, p->nlayers, p->nlayers);
    if (strcmp(text, "cost") == 0) {
        DT_TRY(by_cost(p, model));
        return DT_OK;
    }
    if (strcmp(text, "equal") != 0) {
        DT_REQUIRE(
            isdigit((unsigned char)*text), DT_ERR_ARG,
            "split '%s'; legal: equal, cost, counts of layers (\"3,2,2\") or names of modules "
            "(\"%s.0-1; %s.2\")",
            text, p->options.chain.layers, p->options.chain.layers);
        DT_TRY(by_counts(p, text));
        return DT_OK;
    }
    for (int s = 0; s < n; s++)
        p->layers[s] = p->nlayers / n + (s < p->nlayers % n);
    return DT_OK;
}
