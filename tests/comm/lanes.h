/* tests/comm/lanes.h - rank bodies about order and overlap that hold on threads and on MPI. */
#pragma once

#include "tests/comm/cases.h"

/* All ranks, up to 4. arg: the channel, an int. */
dt_status lane_chain(dt_world *world, void *arg);
dt_status lane_destroyed_early(dt_world *world, void *arg);
/* Ranks 0 and 1 only; the others do not call. arg: the channel or unused. */
dt_status lane_crossed_waits(dt_world *world, void *arg);
dt_status lane_background(dt_world *world, void *arg);
dt_status lane_messages_cross(dt_world *world, void *arg);
dt_status lane_receive_then_sum(dt_world *world, void *arg);
