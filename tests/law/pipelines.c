/* tests/law/pipelines.c - see tests/law/pipelines.h. */
#include "tests/law/pipelines.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

enum { LEVELS = 16, MOST = 4096 };

typedef struct model {
    const char *golden;
    int layers, batch, set_layers; /* set_layers 0: the golden's own */
} model;

static const model models[] = {{"llama_tiny", 4, 8, 0},
                               {"gpt2_tiny", 3, 6, 0}, /* tied, as is llama_tied */
                               {"llama_tied", 2, 4, 0},
                               {"llama_tiny", 8, 8, 8},
                               {"gpt2_tiny", 8, 6, 8}};

/* Choose what has the most new pairs, until there are no new ones. */
static void cover(law_choice *list, int n)
{
    static bool seen[LAW_FACTORS][LEVELS][LAW_FACTORS][LEVELS];
    memset(seen, 0, sizeof seen);
    for (;;) {
        law_choice *best = NULL;
        int most = 0;
        for (int i = 0; i < n; i++) {
            int fresh = 0;
            const int *l = list[i].level;
            for (int a = 0; a < LAW_FACTORS; a++)
                for (int b = 0; b < a; b++)
                    fresh += !seen[a][l[a]][b][l[b]];
            best = fresh > most ? &list[i] : best;
            most = fresh > most ? fresh : most;
        }
        if (!best)
            return;
        best->chosen = true;
        for (int a = 0; a < LAW_FACTORS; a++)
            for (int b = 0; b < a; b++)
                seen[a][best->level[a]][b][best->level[b]] = true;
    }
}

/* The number of stages and samples, where the levels are legal together. */
static bool complete(law_choice *x, bool goldens)
{
    law_case *c = &x->c;
    const model *m = &models[x->level[LAW_MODEL]];
    const dt_pp_rule *rule = dt_pp_rule_at(x->level[LAW_SCHEDULE]);
    const int least = rule->m_per_rank * c->pp, micro = x->level[LAW_MICRO];
    const int dp = c->ranks / (c->pp * (c->tp ? c->tp : 1));
    const int v = rule->v_most != 1 && 2 * c->pp <= m->layers ? 2 : 1;
    c->golden = m->golden;
    c->layers = m->set_layers;
    c->schedule = rule->name;
    c->stages_per_rank = v;
    if (rule->both_ways || v < rule->v_least || v * c->pp > m->layers)
        return false;
    c->micro_batch = micro ? 2 : 1;
    if (goldens) { /* three and four samples leave a short last microbatch of their batches */
        c->micro_batch = micro < 2 ? micro + 1 : m->batch == 6 ? 4 : 3;
        return (m->batch + c->micro_batch - 1) / c->micro_batch >= least;
    }
    c->batch = least * c->micro_batch * dp;
    c->batch = (c->batch > m->batch ? c->batch : m->batch) - (micro == 2);
    c->batch = c->batch == m->batch ? 0 : c->batch; /* the golden's own */
    return true;
}

static void add(law_choice *list, int *n, law_choice x, bool goldens)
{
    assert(*n < MOST);
    if (complete(&x, goldens))
        list[(*n)++] = x;
}

int law_pipelines(bool goldens, law_choice **list_out)
{
    law_choice *list = calloc(MOST, sizeof *list);
    int n = 0;
    assert(list);
    for (int m = 0; m < DT_COUNT(models); m++)
        for (int s = 0; dt_pp_rule_at(s) && !(goldens && models[m].set_layers); s++)
            for (int pp = 2; pp <= 4; pp++)
                for (int micro = 0; micro < 3; micro++)
                    add(list, &n,
                        (law_choice){{.ranks = pp, .pp = pp, .keep_gathered = micro != 1},
                                     {m, s, pp, micro},
                                     false},
                        goldens);
    cover(list, n);
    *list_out = list;
    return n;
}

/* One layout with every model, a microbatch of each kind, and some schedules. */
static void add_layout(law_choice *list, int *n, law_choice x)
{
    static const int with[] = {0, 3, 4}; /* models */
    static const char *const schedules[] = {"1f1b", "interleaved", "zb-h1", "zbv", "dualpipev"};
    for (int i = 0; i < 3 * DT_COUNT(schedules); i++) {
        const char *name = schedules[i % DT_COUNT(schedules)];
        x.level[LAW_SCHEDULE] = 0;
        while (strcmp(dt_pp_rule_at(x.level[LAW_SCHEDULE])->name, name) != 0)
            x.level[LAW_SCHEDULE]++;
        x.level[LAW_MODEL] = with[i / DT_COUNT(schedules)];
        for (int micro = 0; micro < 3; micro += 2) {
            x.level[LAW_MICRO] = micro;
            add(list, n, x, false);
        }
    }
}

/* Every way to reshard, and sequence parallelism or not. */
static void add_modes(law_choice *list, int *n, law_choice x)
{
    for (int sp = 0; sp <= (x.c.tp > 1); sp++) {
        for (int reshard = 0; reshard < (x.c.dp_shard == 4 ? 3 : 2); reshard++) {
            x.c.sp = sp;
            x.c.keep_gathered = reshard == 1;
            x.c.reshard_size = reshard == 2 ? 2 : 0;
            x.level[LAW_TP] = 2 * x.c.tp + sp;
            x.level[LAW_RESHARD] = reshard;
            add_layout(list, n, x);
        }
    }
}

int law_pipelines_3d(law_choice **list_out)
{
    law_choice *list = calloc(MOST, sizeof *list);
    int n = 0;
    assert(list);
    for (int pp = 2; pp <= 4; pp++) {
        for (int i = 0; i < 64; i++) { /* shards, replicas, tp: 1 to 4 each */
            const int shard = i % 4 + 1, replicate = i / 4 % 4 + 1, tp = i / 16 + 1;
            const int inner = shard * replicate * tp;
            if (tp == 3 || inner == 1 || pp * inner > 8)
                continue;
            add_modes(
                list, &n,
                (law_choice){{.ranks = pp * inner, .pp = pp, .dp_shard = shard, .tp = tp},
                             {[LAW_PP] = pp, [LAW_SHARD] = shard, [LAW_REPLICATE] = replicate},
                             false});
        }
    }
    cover(list, n);
    *list_out = list;
    return n;
}

bool law_runs(const law_choice *choice)
{
    return choice->chosen || getenv("DT_FULL") != NULL;
}
