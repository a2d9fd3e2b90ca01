/* comm/nccl_internal.h - calls of arrays on cuda, from device to device by NCCL; nccl_none.c where
 * it is not built in. Read first: comm/comm_internal.h. */
#pragma once

#include "comm/comm_internal.h"

/* Whether NCCL makes the call. All ranks of the communicator can where each has a device of its
 * own, and NCCL; asked at the first collective, the answer is the same on all of them. Messages
 * go by way of the host but for those that dti_nccl_link was for.
 * Collective: over the communicator, the first time.   Blocks: the first time. */
DT_NODISCARD dt_status dti_nccl_takes(dt_comm *comm, const dt_array *any, const dti_call_options *o,
                                      bool *takes_out);
/* Behind dt_comm_link. */
DT_NODISCARD dt_status dti_nccl_link(dt_comm *comm, dt_heap *heap);
DT_NODISCARD dt_status dti_nccl_call(dt_comm *comm, const dti_call_options *o, int n,
                                     const dt_part *part, dt_work **work_out);
/* What is put on the compute stream from now on comes after the call. */
DT_NODISCARD dt_status dti_nccl_wait(dt_work *w);
bool dti_nccl_done(const dt_work *w);
void dti_nccl_forget(dt_work *w);
void dti_nccl_close(dt_comm *comm);
