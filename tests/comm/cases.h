/* tests/comm/cases.h - every collective over dtypes, list lengths and cuts, checked against the
 * words of comm/dt_comm.h. The same cases run on threads and MPI, and `bytes_out` collects their
 * results, so that backends can be compared bit for bit. */
#pragma once

#include "tests/harness.h"

typedef struct case_results {
    unsigned char *bytes;
    int64_t count, capacity;
} case_results;

/* All cases on a communicator; `large`: some with thousands of elements. Results are appended. */
dt_status run_cases(dt_world *world, dt_comm *comm, bool large, case_results *results);

/* Building blocks. Element i of what rank `rank` puts in: small integers for integer types. */
double case_value(dt_dtype dtype, int rank, int part, int64_t i);
/* An array of such elements from `first` on; rank -1: filled with 99. */
dt_status case_array(dt_world *world, dt_dtype dtype, int rank, int part, int64_t first,
                     int64_t count, dt_array *array_out);
/* 1-d f32 arrays in short. */
dt_status case_floats(dt_world *world, int64_t count, float value, dt_array *array_out);
/* Messages go from device to device where that can be. */
dt_status case_link(dt_world *world, dt_comm *comm);
float case_first(const dt_array *a);
