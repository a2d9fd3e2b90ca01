/* tests/law/pipelines.h - the pipelines that the law is tried on: every legal one of some sizes, of
 * which a pairwise cover is chosen for tests that shall be short. */
#pragma once

#include "tests/law/law.h"

/* What varies; a choice has one level of each. Cover: any two levels of any two of these, where
 * some legal choice has them, are in one that is chosen. */
typedef enum law_factor {
    LAW_MODEL,
    LAW_SCHEDULE,
    LAW_PP,
    LAW_MICRO, /* microbatches of one sample a rank; of two; of two, the last one short */
    LAW_SHARD,
    LAW_REPLICATE,
    LAW_TP,      /* with and without sequence parallelism */
    LAW_RESHARD, /* by layers, by the schedule, to groups */
    LAW_FACTORS
} law_factor;

typedef struct law_choice {
    law_case c;
    int level[LAW_FACTORS];
    bool chosen;
} law_choice;

/* Pipelines alone: every schedule on 2, 3 and 4 ranks. `goldens`: with models and batches as they
 * are in the golden cases; else also 8 layers, and batches as a schedule needs them. */
int law_pipelines(bool goldens, law_choice **list_out);
/* On up to 8 ranks together with shards, replicas, tensor and sequence parallelism. */
int law_pipelines_3d(law_choice **list_out);
/* DT_FULL=1 runs all; else those that are chosen. */
bool law_runs(const law_choice *choice);
