/* comm/mpi_internal.h - what mpi.c (world, communicators) takes from mpi_move.c (bytes). */
#pragma once

#include "comm/comm_internal.h"

#include <mpi.h>

/* dt_comm.data is an MPI_Comm *. These are entries of dti_backend. */
size_t dti_mpi_scratch_bytes(const dt_work *w);
dt_status dti_mpi_exchange(dt_work *w, const dti_exchange *x);
/* Only with those members: flags, NULL: all. */
dt_status dti_mpi_exchange_with(dt_work *w, const dti_exchange *x, const bool *to,
                                const bool *from);
dt_status dti_mpi_finish(dt_work *w);
dt_status dti_mpi_start(dt_work *w);
dt_status dti_mpi_test(dt_work *w, bool *done_out);
bool dti_mpi_cancel(dt_work *w);
