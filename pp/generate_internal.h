/* pp/generate_internal.h - what generators share. Read next: pp/generate.c. */
#pragma once

#include "pp/pp_internal.h"

#include <assert.h>

/* p ranks, m microbatches, v stages per rank. */
typedef struct dti_pp_shape {
    int p, m, v;
} dti_pp_shape;

/* Append an action; one of a microbatch that does not exist is left out. Rows have room. */
static inline void dti_pp_put(dti_pp_shape g, dt_pp_row *row, dt_pp_kind kind, int stage,
                              int microbatch)
{
    if (microbatch >= g.m)
        return;
    assert(row->count < row->capacity);
    row->action[row->count++] = (dt_pp_action){kind, stage, microbatch, false};
}

void dti_pp_zbv(dti_pp_shape g, int rank, dt_pp_row *row);
void dti_pp_dualpipev(dti_pp_shape g, int rank, dt_pp_row *row);
void dti_pp_dualpipe(dti_pp_shape g, int rank, dt_pp_row *row);
DT_NODISCARD dt_status dti_pp_v_half(dti_pp_shape g, dt_pp_row *rows);
DT_NODISCARD dt_status dti_pp_v_min(dti_pp_shape g, dt_pp_row *rows);
