/* placements/placements_internal.h - what the files of this folder share. */
#pragma once

#include "placements/dt_plan.h"

/* Append to a text that may be too long for its buffer; *used counts the bytes that were wanted. */
DT_PRINTF(4, 5)
void dti_text_append(char *buf, size_t size_bytes, size_t *used, const char *format, ...);

/* What a search is given; src and dst name no axis of size 1. */
typedef struct dti_problem {
    dt_layout src, dst;
    size_t elem_bytes;
    dt_link link[DT_MAX_AXES];
    bool any_order; /* few axes change: dims may be split in any order on the way */
} dti_problem;

/* Every step that could follow layout `from`, each with bytes and cost. plan_steps.c */
typedef struct dti_edge {
    dt_step step;
    int64_t cost_ps; /* picoseconds: whole numbers, so that equal costs are equal */
} dti_edge;
typedef dt_status dti_visit(void *arg, const dti_edge *edge);
dt_status dti_steps_from(const dti_problem *problem, const dt_layout *from, dti_visit *visit,
                         void *arg);

/* The cheapest path; *plan_out has its steps, to be freed with dt_plan_destroy. plan_search.c */
dt_status dti_plan_search(const dti_problem *problem, dt_plan **plan_out);
