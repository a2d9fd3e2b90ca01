/* pp/pp_internal.h - what the files of this folder share. */
#pragma once

#include "pp/dt_schedule.h"

/* An empty schedule; each row has room for `capacity` actions. */
DT_NODISCARD dt_status dti_pp_schedule_new(int nranks, int nstages, int nmicrobatches,
                                           int64_t capacity, dt_pp_schedule **schedule_out);
DT_NODISCARD dt_status dti_pp_push(dt_pp_row *row, dt_pp_action action);

static inline int64_t dti_pp_cell(const dt_pp_schedule *s, int stage, int microbatch)
{
    return (int64_t)stage * s->nmicrobatches + microbatch;
}

static inline bool dti_pp_computes(dt_pp_kind kind)
{
    return kind <= DT_PP_B;
}

static inline bool dti_pp_is_comm(dt_pp_kind kind)
{
    return kind >= DT_PP_SEND_F && kind <= DT_PP_RECV_B;
}

/* The stage that an action gets its input from, or that a send goes to; -1: there is none. */
int dti_pp_neighbour(const dt_pp_schedule *s, dt_pp_action action);

/* The rank that runs F of each cell, -1 where none does. Indices must be in range. free() it. */
DT_NODISCARD dt_status dti_pp_owners(const dt_pp_schedule *s, int **owner_out);

/* The part of dt_pp_check that needs no simulation; dt_pp_simulate begins with it. */
DT_NODISCARD dt_status dti_pp_check_actions(const dt_pp_schedule *s);

/* Lanes of zeros, with room for the times of every action. */
DT_NODISCARD dt_status dti_pp_timeline_new(const dt_pp_schedule *s, dt_pp_timeline **timeline_out);
