/* comm/nccl_internal.h - calls of arrays on cuda, from device to device by NCCL; nccl_none.c where
 * it is not built in. Read first: comm/comm_internal.h. */
#pragma once

#include "comm/comm_internal.h"

/* Whether all ranks of the communicator can: each has a device of its own, and NCCL. Asked at the
 * first call; the answer is the same on all of them. What NCCL does not do here (messages, which
 * may be sent by two ranks to each other first) goes by way of the host.
 * Collective: over the communicator, the first time.   Blocks: the first time. */
DT_NODISCARD dt_status dti_nccl_takes(dt_comm *comm, const dt_array *any, dt_call kind,
                                      bool *takes_out);
DT_NODISCARD dt_status dti_nccl_call(dt_comm *comm, const dti_call_options *o, int n,
                                     const dt_part *part, dt_work **work_out);
/* What is put on the compute stream from now on comes after the call. */
DT_NODISCARD dt_status dti_nccl_wait(dt_work *w);
bool dti_nccl_done(const dt_work *w);
void dti_nccl_forget(dt_work *w);
void dti_nccl_close(dt_comm *comm);
